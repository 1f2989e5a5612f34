from __future__ import annotations

import asyncio
import copy
import io
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bridge.core.conversation import Step
from bridge.core.dialect import Delivery
from bridge.core.events import (
    AgentAudio,
    CallKey,
    Discard,
    DiscardedBy,
    HeldBy,
    Hold,
    LinkLost,
    ProviderFailed,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    Run,
    Sent,
    SessionReady,
    SpeechStarted,
    SpeechStopped,
    Start,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
)
from bridge.demo.demo import Claim, demo, play, prove
from bridge.demo.drawing import Cell, chart
from bridge.demo.timeline import Kind, Timeline
from bridge.simulator import Ended, Fate, Ledger, Verdict

ROOT = Path(__file__).parent.parent.parent
PACE = 0.1
AT_ONCE = Delivery(hold=False, whole_turn=False, asks=True, void=True)


def plain() -> Console:
    return Console(file=io.StringIO(), width=100)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=100, height=40, force_terminal=True, color_system="standard")


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# ------------------------------------------------------------------------------------------------------- the demo


@pytest.mark.anyio
async def test_without_a_terminal_the_demo_is_plain_text_and_all_claims_hold() -> None:
    console = plain()
    assert await demo(console, pace=PACE)
    text = written(console)
    assert "\x1b" not in text
    assert text.isascii()
    assert "All 8 claims hold." in text
    assert "FALSE" not in text
    assert "list_invoices    discarded: the caller cut in" in text
    assert "end_call         is called, and must wait until this reply has been heard" in text
    assert "~x discarded" in text


@pytest.mark.anyio
async def test_in_a_terminal_the_chart_is_drawn_again_and_again_and_the_table_is_coloured() -> None:
    console = terminal()
    assert await demo(console, pace=PACE)
    text = written(console)
    assert text.count("must not start yet") > 5
    assert "\x1b[32m✔" in text
    assert "All 8 claims hold." in text


@pytest.mark.anyio
async def test_a_session_that_does_not_hold_results_is_found_out() -> None:
    console = plain()
    assert not await demo(console, pace=PACE, delivery=AT_ONCE)
    text = written(console)
    assert "FALSE  Nothing is sent for the reply the caller cut into" in text
    assert "FALSE  Results arrive only while the provider wants them" in text
    assert "2 of 8 claims do not hold." in text


@pytest.mark.anyio
async def test_a_claim_that_does_not_hold_stands_out_in_a_terminal() -> None:
    console = terminal()
    assert not await demo(console, pace=PACE, delivery=AT_ONCE)
    assert "\x1b[1;31m✘" in written(console)


@pytest.mark.slow
def test_the_command_takes_less_than_twenty_seconds_and_ends_with_0() -> None:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "bridge", "demo"], capture_output=True, cwd=ROOT, timeout=40)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    assert b"All 8 claims hold." in done.stdout
    assert b"\x1b" not in done.stdout
    assert done.stderr == b""


@pytest.mark.slow
def test_the_command_draws_live_in_a_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    command = subprocess.Popen(
        [sys.executable, "-m", "bridge", "demo"], stdout=theirs, stderr=theirs, stdin=theirs, cwd=ROOT, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # the other end is closed
    finally:
        os.close(ours)
    assert command.wait(10) == 0
    text = shown.decode()
    assert "\x1b[" in text
    assert "All 8 claims hold." in text
    assert "✘ discarded" in text


# ------------------------------------------------------------------------------------------------------- the claims


@pytest.fixture(scope="module")
def call() -> tuple[Ledger, Timeline]:
    return asyncio.run(play(plain(), pace=PACE))


def false(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.text for claim in claims if not claim.holds]


def test_a_good_call_proves_every_claim(call: tuple[Ledger, Timeline]) -> None:
    assert false(prove(*call)) == []


def repeat_an_answer(ledger: Ledger) -> None:
    record = ledger.call("look_up_order")
    record.answers.append(replace(record.answers[0], verdict=Verdict.REPEATED))


def answer_a_stranger(ledger: Ledger) -> None:
    ledger.strays.append(replace(ledger.answers[0], call_id="nobody's", verdict=Verdict.UNKNOWN))


def break_a_rule(ledger: Ledger) -> None:
    ledger.violations.append("input.audio before session.ready")


def answer_what_was_cut(ledger: Ledger) -> None:
    ledger.call("list_invoices").answers.append(replace(ledger.answers[0], verdict=Verdict.VOID))


def answer_one_late(ledger: Ledger) -> None:
    record = ledger.call("check_stock")
    record.answers[0] = replace(record.answers[0], at=record.answers[0].at + 10.0)


def leave_a_failure_untold(ledger: Ledger) -> None:
    ledger.call("open_ticket").fate = Fate.ANSWERED


@pytest.mark.parametrize(
    ("damage", "claims"),
    [
        (repeat_an_answer, {"Every call: one answer", "No answer late"}),
        (answer_a_stranger, {"No answer late"}),
        (break_a_rule, {"No answer late"}),
        (answer_what_was_cut, {"Every call: one answer", "Nothing is sent", "No answer late"}),
        (answer_one_late, {"Two calls at once"}),
        (leave_a_failure_untold, {"A failure is an answer"}),
    ],
)
def test_a_ledger_that_shows_a_fault_proves_the_claim_false(
    call: tuple[Ledger, Timeline], damage: Callable[[Ledger], None], claims: set[str]
) -> None:
    ledger = copy.deepcopy(call[0])
    damage(ledger)
    found = false(prove(ledger, call[1]))
    assert {next(claim for claim in claims if text.startswith(claim)) for text in found} == claims


def test_hanging_up_during_the_goodbye_proves_the_claim_false(call: tuple[Ledger, Timeline]) -> None:
    trace = call[1].call("end_call")
    began = trace.began
    trace.began = trace.asked
    try:
        assert false(prove(*call)) == ["Hanging up waits until the goodbye has been heard"]
    finally:
        trace.began = began


def test_a_slow_result_that_was_held_proves_the_claim_false(call: tuple[Ledger, Timeline]) -> None:
    timeline = copy.deepcopy(call[1])
    timeline.call("run_line_test").held_by = HeldBy.USER
    assert false(prove(call[0], timeline)) == ["A slow result goes out the moment it is there"]


def test_a_machine_that_is_slow_proves_no_claim_false(call: tuple[Ledger, Timeline]) -> None:
    timeline = copy.deepcopy(call[1])
    late = timeline.call("run_line_test")
    late.over = (late.over or 0.0) + 0.5  # the provider confirms what was sent at once
    cut = timeline.call("list_invoices")
    cut.finished = (cut.over or 0.0) + 0.1  # its tool had not even ended when the caller cut in
    claims = prove(call[0], timeline)
    assert false(claims) == []
    assert "thrown away before it was there" in [claim.evidence for claim in claims]


@pytest.mark.parametrize("missing", ["look_up_order", "end_call"])
def test_a_call_that_never_came_is_a_claim_that_does_not_hold(call: tuple[Ledger, Timeline], missing: str) -> None:
    ledger = copy.deepcopy(call[0])
    ledger.calls = [record for record in ledger.calls if record.name != missing]
    assert [claim.evidence for claim in prove(ledger, call[1])] == [f"{missing} was not called"]


def test_a_call_without_an_answer_is_a_claim_that_does_not_hold(call: tuple[Ledger, Timeline]) -> None:
    ledger = copy.deepcopy(call[0])
    ledger.call("check_stock").answers.clear()
    assert [claim.evidence for claim in prove(ledger, call[1])] == ["check_stock was not answered"]


def test_the_line_is_ended_by_the_tool_that_may_not_be_too_early(call: tuple[Ledger, Timeline]) -> None:
    assert call[0].ended is Ended.BY_CLIENT


# ------------------------------------------------------------------------------------------------------ the timeline


class Scene:
    """A timeline that is told what happens, with a clock of its own."""

    def __init__(self) -> None:
        self.time = 100.0
        self.timeline = Timeline((2, 24_000), clock=lambda: self.time)
        self.happens(SessionReady("s"))

    def happens(self, *events: object, outputs: tuple[object, ...] = (), after: float = 0.0) -> None:
        self.time += after
        self.timeline.watch(None, Step(events, outputs))  # type: ignore[arg-type]  # any event will do

    def call(self, name: str, start: Start = Start.NOW) -> CallKey:
        key, call = CallKey(1, f"call-{name}"), ToolCall(f"call-{name}", name)
        outputs = (Run(key, call),) if start is Start.NOW else ()
        self.happens(ToolCalled(call, start=start), outputs=outputs)
        return key

    @property
    def told(self) -> list[str]:
        return [line.text for line in self.timeline.lines]

    def row(self, name: str, width: int = 40, seconds: float = 4.0) -> str:
        rows = dict(chart(self.timeline, width=width, seconds=seconds))
        return drawn_text(rows[name])


def drawn_text(cells: list[Cell]) -> str:
    return "".join(cell.text for cell in cells).rstrip()


def finish(scene: Scene, key: CallKey, *, error: bool = False, after: float = 0.0) -> ToolResult:
    result = ToolResult(key.call_id, "{}", is_error=error)
    scene.happens(ToolFinished(key, result), outputs=(ToolResults((result,), keys=(key,)),), after=after)
    return result


def test_a_result_that_goes_out_at_once_is_drawn_without_a_hold() -> None:
    scene = Scene()
    key = scene.call("look")
    finish(scene, key, after=1.0)
    scene.happens(Sent((key,)))
    assert scene.told == ["runs", "done after 1.00 s, sent at once"]
    assert scene.row("look") == "━━━━━━━━━━✔ sent"
    assert scene.timeline.call("look").fate is Kind.SENT


def test_what_became_of_a_call_is_written_before_the_edge_where_there_is_no_room_behind_it() -> None:
    scene = Scene()
    scene.time += 3.5
    key = scene.call("look")
    finish(scene, key, error=True, after=0.4)
    scene.happens(Sent((key,)))
    assert scene.row("look").endswith("✔ error sent")
    assert len(scene.row("look")) == 40


def test_a_long_session_is_drawn_at_a_coarser_scale() -> None:
    scene = Scene()
    key = scene.call("look")
    finish(scene, key, after=30.0)
    scene.happens(Sent((key,)))
    assert scene.row("look", width=40, seconds=4.0) == "━" * 30 + "✔ sent"
    assert drawn_text(chart(scene.timeline, width=40)[0][1]) == "0 s       10 s      20 s      30 s"


def test_a_session_of_hours_still_fits() -> None:
    scene = Scene()
    scene.time += 3 * 3600
    assert all(len(cells) == 30 for _, cells in chart(scene.timeline, width=30))


def test_a_call_that_must_wait_and_is_answered_without_running_says_so() -> None:
    scene = Scene()
    key = scene.call("end_call", Start.AFTER_REPLY)
    assert scene.timeline.call("end_call").fate is Kind.WAITING
    result = ToolResult(key.call_id, '"no"', is_error=True)
    scene.happens(SpeechStarted(), outputs=(ToolResults((result,), keys=(key,)),), after=1.0)
    scene.happens(Sent((key,)))
    assert scene.told[-1] == "not run: the error says so"
    assert scene.row("end_call") == "┄┄┄┄┄┄┄┄┄┄✔ error sent"


def test_a_tool_that_ends_after_its_call_was_discarded_is_told_as_unwanted() -> None:
    scene = Scene()
    key = scene.call("look")
    scene.happens(outputs=(Discard(key, DiscardedBy.INTERRUPTION),), after=1.0)
    scene.happens(ToolFinished(key, ToolResult(key.call_id, "1")), after=1.0)
    assert scene.told[1:] == ["discarded: the caller cut in", "ends after 2.00 s, and nobody wants to know"]
    assert scene.row("look") == "━━━━━━━━━━✘ discarded"


def test_a_call_that_the_provider_runs_is_nothing_to_wait_for() -> None:
    scene = Scene()
    scene.happens(ToolCalled(ToolCall("c", "find_shop")))
    assert scene.told == ["is run by the provider itself"]
    assert scene.timeline.is_quiet()
    with pytest.raises(LookupError):
        scene.timeline.call("find_shop")


def test_the_agents_words_are_told_once_and_before_the_call_that_goes_with_them() -> None:
    scene = Scene()
    scene.happens(ReplyStarted("r"), Transcript("agent", "One"), Transcript("agent", "moment."))
    scene.call("look")
    scene.happens(Transcript("agent", "One moment.", final=True), ReplyDone(), after=1.0)
    assert scene.told == ['"One moment."', "runs"]


def test_a_reply_that_is_cut_short_shows_how_far_it_came() -> None:
    scene = Scene()
    scene.happens(ReplyStarted("r"), Transcript("agent", "All"), Transcript("agent", "right."))
    scene.happens(SpeechStarted(), after=0.5)
    scene.happens(Transcript("agent", "All", final=True, interrupted=True), ReplyDone(interrupted=True), after=0.5)
    assert scene.told == ['"All right."', "begins to speak over the agent", 'is cut short, after "All"']
    assert scene.row("agent") == "▇▇▇▇▇▇▇▇▇▇"


def test_a_result_that_waits_says_for_what_each_time_that_changes() -> None:
    scene = Scene()
    key = scene.call("look")
    result = ToolResult(key.call_id, "1")
    scene.happens(ToolFinished(key, result), outputs=(Hold(key, HeldBy.REPLY),), after=0.5)
    scene.happens(SpeechStarted(), outputs=(Hold(key, HeldBy.USER),), after=0.5)
    trace = scene.timeline.call("look")
    assert (trace.fate, trace.held_by) == (Kind.HELD, HeldBy.REPLY)
    scene.happens(outputs=(ToolResults((result,), keys=(key,)),), after=0.5)
    assert scene.told[1:] == [
        "done after 0.50 s, held: the agent is speaking",
        "still held: the caller is speaking, or is owed a reply",
        "result sent, after being held for 1.00 s",
    ]
    assert scene.row("look") == "━━━━━░░░░░░░░░░"


def test_audio_that_is_still_to_be_heard_counts_as_speech_until_the_caller_cuts_in() -> None:
    scene = Scene()
    scene.happens(ReplyStarted("r"), AgentAudio(bytes(2 * 24_000 * 3)), ReplyDone())
    scene.time += 1.0
    assert not scene.timeline.is_quiet()
    assert scene.row("agent") == "▇▇▇▇▇▇▇▇▇▇"
    scene.happens(SpeechStarted(), SpeechStopped(), after=0.5)
    assert scene.timeline.is_quiet()
    assert scene.timeline.speech[0].end == pytest.approx(1.5)


def test_trouble_is_told() -> None:
    scene = Scene()
    scene.happens(ProviderFailed("internal_error", "oh"), LinkLost(), outputs=(ReplyRequest("say something"),))
    assert scene.told == [
        "reports an error: internal_error oh",
        "the connection is gone",
        "is asked to say something meanwhile",
    ]
