"""Calls that go on after an interim result, and calls that are completed from outside."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge.core.conversation import Step
from bridge.core.events import (
    CallConcluded,
    CallKey,
    LocalEvent,
    Run,
    Sent,
    ToolCall,
    ToolFinished,
    ToolResult,
    ToolResults,
)
from bridge.errors import ToolBusy, ToolError
from bridge.runner.parking import Answer, Completion, Parking, Verdict
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.session.running import Host, Running, ToolEvent, ToolParked, ToolSettled
from bridge.testing.clock import VirtualClock
from bridge.tools import CallContext, TooLarge, Unencodable
from bridge.tools.tool import Parked
from tests.runner.test_runner import Desk, error_of

pytestmark = pytest.mark.anyio


class Bench(Desk):
    """A desk on a virtual clock, whose runner is watched."""

    def __init__(
        self, clock: VirtualClock, *, max_parked: int = 1000, max_concurrent: int = 256, **limits: int
    ) -> None:
        self.clock = clock
        self.watched: list[Finished] = []
        watchers = (self.watched.append,)
        runner = Runner(clock=clock.time, watchers=watchers, max_parked=max_parked, max_concurrent=max_concurrent)
        super().__init__(runner, **limits)

    def said(self) -> list[str]:
        """What the agent was told meanwhile."""
        return [json.loads(each.output)["message"] for each in self.interims]


@pytest.fixture
async def clock(anyio_backend: str) -> AsyncIterator[VirtualClock]:
    with VirtualClock.borrowed() as clock:
        yield clock


@pytest.fixture
async def bench(clock: VirtualClock) -> AsyncIterator[Bench]:
    bench = Bench(clock)
    yield bench
    await bench.calls.aclose(1)
    await bench.runner.aclose(1)
    assert (bench.calls.running, bench.runner.parked, bench.runner.waiting) == (0, 0, ())
    bench.runner.close()


# ------------------------------------------------------------------------------------------------- interim results


async def test_a_slow_call_is_answered_for_the_time_being_and_ends_later(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60)
    async def render() -> str:
        await asyncio.sleep(30)
        return "done"

    bench.start("render")
    await asyncio.sleep(1.9)
    assert bench.interims == []
    await asyncio.sleep(0.2)
    (interim,) = bench.interims
    assert json.loads(interim.output)["status"] == "pending"
    assert "Nothing has happened yet" in bench.said()[0]
    assert (interim.is_error, interim.name, interim.echo) == (False, "render", (("e", "1"),))
    assert (bench.finished, bench.watched, bench.runner.parked) == ([], [], 1)
    await asyncio.sleep(30)
    (finished,) = bench.finished
    assert (finished.outcome, finished.result.output, finished.result.interim) == (Outcome.OK, '"done"', False)
    assert (bench.watched, bench.runner.parked) == ([finished], 0)


async def test_a_call_that_is_quick_enough_is_answered_once(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2)
    async def quick() -> str:
        return "done"

    bench.start("quick")
    await asyncio.sleep(5)
    assert (bench.interims, bench.outcomes()) == ([], [Outcome.OK])


async def test_a_tool_has_its_own_words_for_the_meantime(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, interim="The kitchen has the order.")
    async def cook() -> None:
        await asyncio.sleep(3)

    bench.start("cook")
    await asyncio.sleep(4)
    assert bench.said() == ["The kitchen has the order."]


async def test_the_deadline_of_a_parked_call_stays_and_progress_does_not_move_it(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=10)
    async def hangs(call: CallContext) -> None:
        while True:
            call.progress("still at it")
            await asyncio.sleep(1)

    bench.start("hangs")
    await asyncio.sleep(9.9)
    assert bench.finished == []
    await asyncio.sleep(0.2)
    assert bench.outcomes() == [Outcome.TIMEOUT]
    assert error_of(bench.finished[0]) == "hangs did not answer within 10 s"


async def test_a_call_that_waits_in_the_queue_is_answered_for_the_time_being(clock: VirtualClock) -> None:
    bench = Bench(clock, max_concurrent=1)

    @bench.tools.tool(answer_within=2, queue_timeout=30)
    async def render() -> None:
        await asyncio.sleep(8)

    bench.start("render")
    bench.start("render", "{} ")
    await asyncio.sleep(2.5)
    assert len(bench.interims) == 2
    await asyncio.sleep(14)
    assert bench.outcomes() == [Outcome.OK, Outcome.OK]


async def test_a_parked_call_makes_room_in_its_session_but_not_in_the_process(clock: VirtualClock) -> None:
    bench = Bench(clock, max_concurrent=2)
    bench.calls = bench.runner.session(max_concurrent=1)

    @bench.tools.tool(answer_within=1, timeout=100, queue_timeout=5)
    async def render(page: int) -> None:
        await asyncio.sleep(50)

    @bench.tools.tool(queue_timeout=5)
    async def look() -> None:
        await asyncio.sleep(0.5)

    bench.start("render", '{"page":1}')
    bench.start("look")
    await asyncio.sleep(0.9)
    assert bench.finished == []  # the only place of the session is taken
    await asyncio.sleep(1)
    assert bench.outcomes() == [Outcome.OK]
    bench.start("render", '{"page":2}')
    await asyncio.sleep(2)
    bench.start("look", "{} ")
    await asyncio.sleep(6)
    assert bench.outcomes() == [Outcome.OK, Outcome.BUSY]  # both places of the process are taken
    await asyncio.sleep(60)
    assert len(bench.finished) == 4
    bench.start("look")
    await asyncio.sleep(1)
    assert bench.outcomes()[-1] is Outcome.OK  # everything has been given back


async def test_a_repeated_call_is_not_told_of_twice(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60, dedupe=60)
    async def render() -> str:
        await asyncio.sleep(30)
        return "done"

    first = bench.start("render")
    second = bench.start("render")
    await asyncio.sleep(40)
    assert {each.key: each.outcome for each in bench.finished} == {first: Outcome.OK, second: Outcome.BUSY}
    assert [each.call_id for each in bench.interims] == [first.call_id]


async def test_a_session_that_cannot_hear_of_interim_results_gets_the_outcome_alone(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60)
    async def render() -> str:
        await asyncio.sleep(30)
        return "done"

    done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    context = CallContext(session_id="s", key=CallKey(0, "c"), tool="render")
    call = ToolCall("c", "render")
    bench.calls.start(context.key, call, bench.tools["render"], (), context, done.set_result)
    assert (await done).outcome is Outcome.OK


async def test_a_parked_call_that_is_discarded_says_nothing_more(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60)
    async def render() -> str:
        await asyncio.sleep(30)
        return "done"

    key = bench.start("render")
    await asyncio.sleep(1)
    bench.calls.discard(key)
    await asyncio.sleep(5)
    assert (bench.interims, bench.finished, bench.runner.parked) == ([], [], 1)
    await asyncio.sleep(30)
    assert bench.outcomes() == [Outcome.OK]  # by default what has begun is finished


async def test_a_tool_that_has_been_told_to_stop_and_does_not_is_not_said_to_go_on(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60, on_interrupt="cancel")
    async def stubborn() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(10)

    key = bench.start("stubborn")
    await asyncio.sleep(1)
    bench.calls.discard(key)
    await asyncio.sleep(5)
    assert (bench.interims, bench.runner.parked) == ([], 0)
    await asyncio.sleep(10)
    assert bench.calls.running == 0


# ---------------------------------------------------------------------------------------------- the end of a session


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, Outcome.OK),
        ({"effect": "read"}, Outcome.CANCELLED),
        ({"on_session_end": "cancel"}, Outcome.CANCELLED),
        ({"effect": "read", "on_session_end": "finish"}, Outcome.OK),
    ],
)
async def test_a_parked_call_outlives_its_session_if_its_tool_says_so(
    bench: Bench, options: dict[str, Any], outcome: Outcome
) -> None:
    @bench.tools.tool(answer_within=2, timeout=60, **options)
    async def render() -> str:
        await asyncio.sleep(30)
        return "done"

    bench.start("render")
    await asyncio.sleep(3)
    await bench.calls.aclose(1)
    await asyncio.sleep(40)
    assert [each.outcome for each in bench.watched] == [outcome]
    assert bench.runner.parked == 0


async def test_a_call_that_was_not_parked_ends_with_its_session(bench: Bench) -> None:
    @bench.tools.tool(answer_within=20, timeout=60)
    async def render() -> None:
        await asyncio.sleep(30)

    bench.start("render")
    await asyncio.sleep(3)
    await bench.calls.aclose(1)
    assert bench.outcomes() == [Outcome.CANCELLED]


async def test_what_outlives_its_session_keeps_its_deadline(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=20)
    async def hangs() -> None:
        await asyncio.sleep(1000)

    bench.start("hangs")
    await asyncio.sleep(3)
    await bench.calls.aclose(1)
    await asyncio.sleep(18)
    assert [each.outcome for each in bench.watched] == [Outcome.TIMEOUT]


async def test_the_end_of_the_process_ends_what_has_outlived_its_session(bench: Bench) -> None:
    @bench.tools.tool(answer_within=2, timeout=60)
    async def render() -> None:
        await asyncio.sleep(30)

    bench.start("render")
    await asyncio.sleep(3)
    await bench.calls.aclose(1)
    assert bench.finished == []
    await bench.runner.aclose(1)
    assert [each.outcome for each in bench.watched] == [Outcome.CANCELLED]


# ------------------------------------------------------------------------------------------- completed from outside


def outside(bench: Bench, **options: Any) -> list[str]:
    """A tool `send_off` that hands its work out; the tickets it has given to whoever does it."""
    tickets: list[str] = []

    @bench.tools.tool(timeout=3600, **options)
    async def send_off(call: CallContext) -> Parked:
        tickets.append(call.ticket)
        return Parked()

    return tickets


async def test_a_call_that_is_left_open_is_completed_from_outside(bench: Bench) -> None:
    tickets = outside(bench)
    key = bench.start("send_off")
    await bench.clock.rest()
    assert tickets == ["s.0.c1"]
    assert bench.runner.waiting == ("s.0.c1",)
    assert [each.call_id for each in bench.interims] == [key.call_id]
    await asyncio.sleep(3000)
    assert bench.finished == []
    assert bench.runner.complete("s.0.c1", {"frames": 3}) == Completion(Verdict.ACCEPTED, Answer('{"frames":3}'))
    await bench.clock.rest()
    (finished,) = bench.finished
    assert (finished.outcome, finished.result.output) == (Outcome.OK, '{"frames":3}')


async def test_what_is_completed_in_time_looks_like_an_ordinary_result(bench: Bench) -> None:
    tickets = outside(bench, answer_within=5)
    bench.start("send_off")
    await asyncio.sleep(2)
    bench.runner.complete(tickets[0], None)
    await asyncio.sleep(5)
    assert (bench.interims, [each.result.output for each in bench.finished]) == ([], ["null"])


async def test_work_that_fails_outside_is_told_in_the_words_that_came(bench: Bench) -> None:
    tickets = outside(bench)
    bench.start("send_off")
    await bench.clock.rest()
    assert bench.runner.fail(tickets[0], "The printer is on fire.").verdict is Verdict.ACCEPTED
    await bench.clock.rest()
    assert (bench.outcomes(), error_of(bench.finished[0])) == ([Outcome.ERROR], "The printer is on fire.")


async def test_a_parked_value_has_its_own_words(bench: Bench) -> None:
    @bench.tools.tool(interim="Words of the tool.")
    async def send_off() -> Parked:
        return Parked("The courier is on the way.")

    bench.start("send_off")
    await bench.clock.rest()
    assert bench.said() == ["The courier is on the way."]


async def test_the_first_completion_stands_and_the_same_again_is_fine(bench: Bench) -> None:
    (tickets, runner) = outside(bench), bench.runner
    bench.start("send_off")
    await bench.clock.rest()
    stands = Answer("1")
    assert runner.complete(tickets[0], 1) == Completion(Verdict.ACCEPTED, stands)
    for _ in range(2):
        assert runner.complete(tickets[0], 1) == Completion(Verdict.REPEATED, stands)
        assert runner.complete(tickets[0], 2) == Completion(Verdict.CONFLICT, stands)
        assert runner.fail(tickets[0], "no") == Completion(Verdict.CONFLICT, stands)
        await bench.clock.rest()
    assert [each.result.output for each in bench.finished] == ["1"]


async def test_a_call_that_nobody_completes_times_out_and_then_it_is_too_late(bench: Bench) -> None:
    tickets = outside(bench)
    bench.start("send_off")
    await asyncio.sleep(3601)
    assert bench.outcomes() == [Outcome.TIMEOUT]
    assert bench.runner.complete(tickets[0], 1) == Completion(Verdict.EXPIRED)
    assert bench.runner.complete("s.0.other", 1) == Completion(Verdict.UNKNOWN)


async def test_a_call_that_is_not_left_open_cannot_be_completed_afterwards(bench: Bench) -> None:
    @bench.tools.tool
    async def quick(call: CallContext) -> str:
        return call.ticket

    ticket = json.loads((await bench.result("quick")).result.output)
    assert bench.runner.complete(ticket, 1).verdict is Verdict.UNKNOWN


async def test_a_completion_that_comes_before_the_tool_has_returned_counts(bench: Bench) -> None:
    @bench.tools.tool(answer_within=5)
    async def send_off(call: CallContext) -> Parked:
        assert bench.runner.complete(call.ticket, 1).verdict is Verdict.ACCEPTED
        assert bench.runner.complete(call.ticket, 1).verdict is Verdict.REPEATED
        return Parked()

    assert (await bench.result("send_off")).result.output == "1"


async def test_what_cannot_be_a_result_is_refused_and_the_call_stays_open(bench: Bench) -> None:
    tickets = outside(bench, result_limit=10)
    bench.start("send_off")
    await bench.clock.rest()
    with pytest.raises(Unencodable):
        bench.runner.complete(tickets[0], object())
    with pytest.raises(TooLarge):
        bench.runner.complete(tickets[0], "a long story")
    assert bench.runner.complete(tickets[0], "short").verdict is Verdict.ACCEPTED


async def test_a_call_that_waits_for_the_outside_has_no_place_in_the_process(clock: VirtualClock) -> None:
    bench = Bench(clock, max_concurrent=1, max_parked=2)
    tickets = outside(bench)
    for arguments in ("{}", "{} ", "{}  "):
        bench.start("send_off", arguments)
    await clock.rest()
    assert (len(bench.interims), bench.outcomes()) == (2, [Outcome.BUSY])
    assert error_of(bench.finished[0]).startswith("too many calls wait for their outcome already")
    for ticket in tickets[:2]:
        bench.runner.complete(ticket, 1)
    await clock.rest()
    assert bench.outcomes() == [Outcome.BUSY, Outcome.OK, Outcome.OK]


@pytest.mark.parametrize(("on_interrupt", "verdict"), [("finish", Verdict.ACCEPTED), ("cancel", Verdict.EXPIRED)])
async def test_a_discarded_call_stays_open_only_if_its_tool_finishes(
    bench: Bench, on_interrupt: str, verdict: Verdict
) -> None:
    tickets = outside(bench, answer_within=5, on_interrupt=on_interrupt)
    key = bench.start("send_off")
    await bench.clock.rest()
    bench.calls.discard(key)
    await bench.clock.rest()
    assert bench.runner.complete(tickets[0], 1).verdict is verdict


async def test_a_call_that_is_discarded_in_the_moment_of_its_completion_is_cancelled(bench: Bench) -> None:
    tickets = outside(bench, on_interrupt="cancel")
    key = bench.start("send_off")
    await bench.clock.rest()
    bench.calls.discard(key)
    assert bench.runner.complete(tickets[0], 1).verdict is Verdict.ACCEPTED
    await bench.clock.rest()
    assert bench.outcomes() == [Outcome.CANCELLED]


async def test_a_call_completed_from_outside_outlives_its_session(bench: Bench) -> None:
    tickets = outside(bench)
    bench.start("send_off")
    await bench.clock.rest()
    await bench.calls.aclose(1)
    assert bench.runner.complete(tickets[0], 1).verdict is Verdict.ACCEPTED
    await bench.clock.rest()
    assert [each.outcome for each in bench.watched] == [Outcome.OK]


async def test_a_plain_function_may_leave_its_call_open_and_another_thread_complete_it(bench: Bench) -> None:
    workers: list[threading.Thread] = []

    @bench.tools.tool(timeout=60)
    def send_off(call: CallContext) -> Parked:
        workers.append(threading.Thread(target=bench.runner.complete, args=(call.ticket, "from a thread")))
        workers[0].start()
        return Parked()

    finished = await bench.result("send_off")
    workers[0].join()
    assert finished.result.output == '"from a thread"'


async def test_an_outcome_in_the_moment_of_the_deadline_is_not_lost(bench: Bench) -> None:
    tickets = outside(bench)
    bench.start("send_off")
    await bench.clock.rest()
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 3600 - 1e-9, bench.runner.complete, tickets[0], 1)
    loop.call_at(loop.time() + 3600 - 1e-9, lambda: bench.calls._expire(next(iter(bench.calls._live.values()))))
    await asyncio.sleep(3700)
    assert bench.outcomes() == [Outcome.OK]


# ----------------------------------------------------------------------------------------- what its session makes of it


class Listener:
    """A session's calls, and what its conversation hears of them."""

    def __init__(self, bench: Bench, **tool: Any) -> None:
        self.bench, self.go_on = bench, asyncio.Event()
        self.heard: list[LocalEvent] = []
        self.delivered: list[ToolEvent] = []

        @bench.tools.tool(answer_within=1, timeout=60, **tool)
        async def render() -> None:
            await self.go_on.wait()

        nobody: Any = None
        host = Host("s", {}, self._here, self.delivered.append, lambda: None, nobody, lambda: None)
        self.running = Running(bench.calls, host, bench.tools)

    def _here(self, event: LocalEvent) -> bool:
        self.heard.append(event)
        return True

    async def parks(self, *, expects_result: bool = True) -> ToolResult | None:
        """The call is made, and parked; the interim result, if the conversation hears of one."""
        self.running.start(Run(KEY, ToolCall("c", "render", expects_result=expects_result)), self.bench.tools)
        await asyncio.sleep(2)
        assert self.bench.runner.parked == 1
        return self.heard[0].result if self.heard and isinstance(self.heard[0], ToolFinished) else None

    async def ends(self) -> None:
        self.go_on.set()
        await self.bench.clock.rest()


KEY = CallKey(0, "c")


async def test_the_outcome_of_a_call_for_the_record_is_not_told(bench: Bench) -> None:
    listener = Listener(bench, reply=False)
    interim = await listener.parks()
    assert interim is not None
    listener.running.saw(Step((), (ToolResults((interim,), True, (KEY,)),)))
    listener.running.saw(Step((Sent((KEY,)),)))
    await listener.ends()
    assert listener.heard == [ToolFinished(KEY, interim)]
    assert listener.delivered[1:] == [ToolParked(KEY, "render"), ToolSettled(KEY, "render", "kept", "ok")]


async def test_a_call_of_which_nobody_expects_a_result_has_no_interim_one(bench: Bench) -> None:
    listener = Listener(bench)
    assert await listener.parks(expects_result=False) is None
    await listener.ends()
    assert [type(event) for event in listener.heard] == [ToolFinished]


async def test_the_outcome_of_a_call_whose_interim_result_is_still_held_is_always_told(bench: Bench) -> None:
    listener = Listener(bench, follow_up_within=0.1)
    await listener.parks()
    await listener.ends()
    assert [type(event) for event in listener.heard] == [ToolFinished, CallConcluded]
    result = ToolResult("c", "null", name="render")
    assert listener.heard[1] == CallConcluded(KEY, result)
    listener.running.saw(Step((), (ToolResults((result,), False, (KEY,)),)))
    listener.running.saw(Step((Sent((KEY,)),)))
    assert listener.delivered[1:] == [ToolSettled(KEY, "render", "sent", "ok")]


async def test_the_outcome_of_a_call_that_is_not_wanted_any_more_is_no_follow_up(bench: Bench) -> None:
    listener = Listener(bench)
    await listener.parks()
    listener.running.discard(KEY, "interrupted")
    await listener.ends()
    assert [type(event) for event in listener.heard] == [ToolFinished, ToolFinished]
    assert listener.delivered[1:] == [ToolSettled(KEY, "render", "interrupted")]


async def test_the_same_value_spelled_otherwise_is_the_same_answer(anyio_backend: str) -> None:
    parking = Parking(10)
    parking.open("a", 100)
    parking.complete("a", {"parcels": 1, "weight": 2})
    said = [{"weight": 2, "parcels": 1}, {"parcels": True, "weight": 2}, {"parcels": 1.0, "weight": 2}]
    verdicts = [parking.complete("a", value).verdict for value in said]
    assert verdicts == [Verdict.REPEATED, Verdict.CONFLICT, Verdict.CONFLICT]


async def test_only_so_many_ends_are_remembered(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.runner.parking._REMEMBERED", 1)
    parking = Parking(10)
    for ticket in ("a", "b"):
        parking.open(ticket, 100)
        parking.complete(ticket, 1)
        parking.close(ticket)
    assert [parking.complete(ticket, 1).verdict for ticket in ("a", "b")] == [Verdict.UNKNOWN, Verdict.REPEATED]


def test_a_completion_after_the_tools_loop_has_closed_harms_nobody() -> None:
    parking = Parking(10)

    async def leave_open() -> None:
        parking.open("a", 100)
        waiting = asyncio.ensure_future(parking.leave("a", "s", "t"))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave_open())
    assert parking.complete("a", 1).verdict is Verdict.ACCEPTED


async def test_work_that_fails_without_a_word_fails_all_the_same(anyio_backend: str) -> None:
    parking = Parking(1)
    parking.open("a", 100)
    parking.fail("a", "")
    with pytest.raises(ToolError, match="it failed"):
        await parking.leave("a", "s", "t")
    parking.open("b", 100)
    with pytest.raises(ToolBusy):
        parking.leave("b", "s", "t")
