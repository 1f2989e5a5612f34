"""Every scenario, played to a real session, judged by the provider's own account."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest

from bridge import AgentAudio, Delivery, ProviderError, Toolset, ToolSettled, ToolStarted
from bridge.scenarios import SCENARIOS
from bridge.session.reconnect import ConnectionLost, ConnectionResumed
from bridge.simulator import Ended, Fate, Phase, ReplyEnd, Verdict
from tests.e2e.conftest import BRISK, PACE, Played, call, eventually, play, seconds_of, sent

pytestmark = pytest.mark.anyio

STUCK_AFTER = 3.0 * PACE
WAITING_IN_VAIN = frozenset({"stuck-reply", "cough"})
"""Where the provider never does what a client may expect: the end of the reply, a reply to a noise."""


@dataclass(frozen=True)
class Right:
    """The right outcome of a scenario: what became of its calls, what was run, and how that was settled."""

    fates: dict[str, Fate]
    ran: tuple[str, ...]
    settled: tuple[tuple[str, str], ...]
    ended: Ended = Ended.BY_PROVIDER
    errors: tuple[str, ...] = ()


def told(*names: str) -> Right:
    """Every call is answered, and its result told."""
    return Right(dict.fromkeys(names, Fate.TOLD), names, tuple((name, "sent") for name in names))


def thrown_away(*names: str) -> Right:
    """The reply of every call is interrupted, so its result is not sent."""
    return Right(dict.fromkeys(names, Fate.ABANDONED), names, tuple((name, "interrupted") for name in names))


def cut_off(name: str) -> Right:
    """The session ends while the tool runs."""
    return Right({name: Fate.OPEN}, (name,), ((name, "ended"),), Ended.OPEN)


RIGHT = {
    "weather": told("get_weather"),
    "two-calls": told("look_up_order", "check_stock"),
    "slow-tool": told("run_line_test"),
    "failing-tool": told("open_ticket"),
    "unknown-tool": Right({"tell_joke": Fate.TOLD}, (), (("", "sent"),)),
    "broken-arguments": replace(told("get_weather"), ran=()),
    "tool-timeout": told("run_line_test"),
    "result-during-speech": told("run_line_test"),
    "barge-in": thrown_away("list_invoices"),
    "barge-in-then-slow-result": thrown_away("list_invoices"),
    "call-after-barge-in": told("get_weather"),
    "later-reply-cut-short": told("run_line_test"),
    "cough": told("list_invoices"),
    "order-repeated-after-barge-in": Right(
        {"create_order": Fate.TOLD},
        ("create_order", "create_order"),
        (("create_order", "interrupted"), ("create_order", "sent")),
    ),
    "terminal-after-goodbye": told("end_call"),
    "goodbye-cut-short": Right({"end_call": Fate.ABANDONED}, (), ()),
    "hold-mode": told("run_audit"),
    "hold-mode-with-speech": told("run_audit"),
    "stuck-reply": told("run_line_test"),
    "silent-preamble": told("get_weather"),
    "early-result-drops-reply": told("list_invoices"),
    "one-reply-each": told("look_up_order", "check_stock"),
    "waits-for-all": told("look_up_order", "check_stock"),
    "duplicate-events": told("get_weather"),
    "ids-start-again": told("get_weather", "get_weather"),
    "runaway": replace(told(*["get_weather"] * 8), ran=("get_weather",) * 5),
    "server-tool": Right({"find_shop": Fate.TOLD}, (), ()),
    "older-wire": told("get_weather"),
    "arguments-as-text": told("get_weather"),
    "strange-events": told("get_weather"),
    "early-start": told("get_weather"),
    "burst-audio": told("end_call"),
    "dropped-line": told("run_line_test"),
    "dropped-reply": told("list_invoices"),
    "dropped-twice": told("run_line_test"),
    # What is left of the script is played to the fresh session, which knows of no call.
    "refused-resume": Right({}, ("run_line_test",), (("run_line_test", "orphaned"),)),
    "provider-fails": replace(cut_off("run_line_test"), ended=Ended.FAILED, errors=("internal_error",)),
    "support-line": Right(
        {
            "look_up_order": Fate.TOLD,
            "check_stock": Fate.TOLD,
            "run_line_test": Fate.TOLD,
            "open_ticket": Fate.TOLD,
            "list_invoices": Fate.ABANDONED,
            "end_call": Fate.TOLD,
        },
        ("look_up_order", "check_stock", "run_line_test", "open_ticket", "list_invoices", "end_call"),
        (
            ("look_up_order", "sent"),
            ("check_stock", "sent"),
            ("run_line_test", "sent"),
            ("open_ticket", "sent"),
            ("list_invoices", "interrupted"),
            ("end_call", "sent"),
        ),
    ),
}


_PLAYED: dict[str, Played] = {}


async def played(name: str) -> Played:
    """The scenario, played once; its account is looked at by several tests."""
    if name not in _PLAYED:
        delivery = replace(BRISK, max_hold=STUCK_AFTER) if name in WAITING_IN_VAIN else BRISK
        _PLAYED[name] = await play(SCENARIOS[name], delivery=delivery)
    return _PLAYED[name]


def test_there_is_a_right_outcome_for_every_scenario() -> None:
    assert list(RIGHT) == list(SCENARIOS)


@pytest.mark.parametrize("name", RIGHT)
async def test_every_call_is_answered_once_or_thrown_away_for_a_reason(name: str) -> None:
    right, result = RIGHT[name], await played(name)
    ledger = result.ledger
    assert {call.name: call.fate for call in ledger.calls} == right.fates
    assert [invoked.name for invoked in result.invoked] == list(right.ran)
    assert result.settled == list(right.settled)
    assert ledger.ended is right.ended
    # What was sent was wanted: once, in time, and by the call that it answers.
    answered = [call for call in ledger.calls if call.fate is Fate.TOLD and not call.server_run]
    assert [call for call in ledger.calls if call.answers] == answered
    assert [(answer.call_id, answer.verdict) for answer in ledger.answers] == [
        (call.call_id, Verdict.ACCEPTED) for call in answered
    ]
    welcome = {Phase.REPLYING} if name == "stuck-reply" else {Phase.WAITING, Phase.HOLDING}
    assert {answer.phase for answer in ledger.answers} <= welcome
    assert (ledger.violations, ledger.strays, ledger.errors) == ([], [], list(right.errors))
    assert ledger.requests == []
    assert (result.failure is None) is (right.ended is Ended.BY_PROVIDER)


@pytest.mark.parametrize("name", ["weather", "support-line"])
async def test_the_host_hears_of_every_call_that_it_began_and_that_it_is_settled(name: str) -> None:
    result = await played(name)
    begun = [event.key for event in result.of(ToolStarted)]
    assert len(set(begun)) == len(begun)
    assert sorted(begun) == sorted(event.key for event in result.of(ToolSettled))


async def test_two_results_are_sent_together_and_told_in_one_reply() -> None:
    ledger = (await played("two-calls")).ledger
    assert [len(reply.knows) for reply in ledger.replies] == [0, 2]
    first = ledger.timeline.index("-> tool.result")
    assert ledger.timeline[first : first + 2] == ["-> tool.result"] * 2


async def test_parallel_calls_begin_at_once_and_their_results_go_in_call_order() -> None:
    result = await played("two-calls")
    one, other = result.invoked
    assert (one.timeline.count("-> tool.result"), other.timeline.count("-> tool.result")) == (0, 0)
    assert [event.how for event in result.of(ToolSettled)] == ["sent", "sent"]
    # The second tool is the faster one.
    assert [name for name, _ in result.settled] == ["look_up_order", "check_stock"]


async def test_the_result_of_a_slow_tool_goes_out_in_the_silence_and_not_with_the_next_reply() -> None:
    ledger = (await played("slow-tool")).ledger
    at = ledger.timeline.index("-> tool.result")
    assert ledger.timeline[at - 1] == "<- reply.done"
    assert ledger.timeline[at + 1] == "<- reply.started"
    assert [reply.knows for reply in ledger.replies] == [[], [ledger.calls[0].call_id]]


async def test_a_failing_tool_is_answered_with_its_own_words_marked_as_an_error() -> None:
    (call,) = (await played("failing-tool")).ledger.calls
    assert (call.is_error, call.result) == (True, '{"error":"The ticket system is closed."}')


async def test_a_tool_that_nobody_has_is_answered_with_an_error() -> None:
    (call,) = (await played("unknown-tool")).ledger.calls
    assert call.is_error
    assert "no such tool; available: none" in call.result


async def test_broken_arguments_are_answered_with_an_error() -> None:
    (call,) = (await played("broken-arguments")).ledger.calls
    assert (call.is_error, call.result) == (True, '{"error":"the arguments are not JSON"}')


async def test_a_tool_that_takes_too_long_is_answered_before_the_provider_loses_its_patience() -> None:
    result = await played("tool-timeout")
    (call,) = result.ledger.calls
    assert call.is_error
    assert "did not answer within" in call.result
    assert [event.outcome for event in result.of(ToolSettled)] == ["timeout"]


async def test_a_tool_that_outlasts_the_providers_patience_is_answered_once_and_late() -> None:
    result = await play(SCENARIOS["tool-timeout"], patience=4.0)
    assert [answer.verdict for answer in result.ledger.answers] == [Verdict.LATE]
    assert result.settled == [("run_line_test", "sent")]


async def test_a_result_that_is_ready_while_the_user_speaks_waits_for_the_reply_to_that() -> None:
    timeline = (await played("result-during-speech")).ledger.timeline
    at = timeline.index("-> tool.result")
    assert timeline[:at].count("<- reply.done") == 2
    assert timeline[at - 1] == "<- reply.done"


async def test_only_the_interrupted_reply_loses_its_results() -> None:
    ledger = (await played("later-reply-cut-short")).ledger
    assert [reply.end for reply in ledger.replies] == [
        ReplyEnd.COMPLETED,
        ReplyEnd.INTERRUPTED,
        ReplyEnd.COMPLETED,
        ReplyEnd.COMPLETED,
    ]
    assert ledger.replies[-1].knows == [ledger.calls[0].call_id]


async def test_the_result_of_an_interrupted_order_is_not_sent_and_the_repeat_is() -> None:
    first, second = (await played("order-repeated-after-barge-in")).ledger.calls
    assert (first.fate, first.answers) == (Fate.ABANDONED, [])
    assert (second.fate, second.answered) == (Fate.TOLD, 1)


async def test_nothing_is_sent_for_an_interrupted_reply_even_when_its_tool_ends_in_an_open_window() -> None:
    result = await played("barge-in-then-slow-result")
    # The session ended long after the tool did, and nothing but the setup was ever sent.
    assert sent(result.ledger) == ["session.update"]


@pytest.mark.parametrize("name", ["terminal-after-goodbye", "burst-audio"])
async def test_a_terminal_tool_begins_after_its_goodbye_has_been_heard(name: str) -> None:
    result = await played(name)
    (invoked,) = result.invoked
    assert "<- reply.done" in invoked.timeline
    before = [(at, event) for at, event in result.events if isinstance(event, AgentAudio) and at < invoked.at]
    assert invoked.at - before[0][0] >= seconds_of([event for _, event in before]) - 0.01


async def test_nobody_hangs_up_when_the_goodbye_is_cut_short() -> None:
    result = await played("goodbye-cut-short")
    assert result.invoked == []
    assert sent(result.ledger) == ["session.update"]


@pytest.mark.parametrize("name", ["hold-mode", "hold-mode-with-speech"])
async def test_a_hold_tool_is_answered_although_no_reply_ends(name: str) -> None:
    ledger = (await played(name)).ledger
    (answer,) = ledger.answers
    assert answer.phase is Phase.HOLDING
    assert "<- reply.done" not in ledger.timeline[: ledger.timeline.index("-> tool.result")]


async def test_a_reply_that_waits_for_its_own_result_gets_it_after_the_hold_limit() -> None:
    result = await played("stuck-reply")
    (answer,) = result.ledger.answers
    last = max(at for at, event in result.events if isinstance(event, ToolStarted))
    assert answer.phase is Phase.REPLYING
    assert result.events[-1][0] - last >= STUCK_AFTER


async def test_without_the_hold_limit_a_stuck_reply_runs_into_the_providers_timeout() -> None:
    result = await play(SCENARIOS["stuck-reply"], delivery=Delivery(max_hold=60.0))
    assert [call.fate for call in result.ledger.calls] == [Fate.TIMED_OUT]


async def test_each_result_may_make_a_reply_of_its_own() -> None:
    ledger = (await played("one-reply-each")).ledger
    assert [len(reply.knows) for reply in ledger.replies] == [0, 1, 1]


async def test_an_agent_that_waits_for_all_results_gets_the_late_one_too() -> None:
    tools = Toolset()

    @tools.tool(effect="read")
    async def look_up_order(order: str) -> str:
        """State of an order."""
        return "shipped"

    @tools.tool(effect="read")
    async def check_stock(item: str) -> int:
        """Items in stock. Takes longer than the other result waits for it, however long that is."""
        await eventually(lambda: bool(sim.ledger.answers))
        return 3

    async with call(SCENARIOS["waits-for-all"], tools) as (sim, session):
        await session.run()
    assert [len(reply.knows) for reply in sim.ledger.replies] == [0, 2]
    quick, slow = sim.ledger.answers
    assert slow.at > quick.at


async def test_doubled_events_are_heard_once() -> None:
    result = await played("duplicate-events")
    kinds = [kind for kind in result.order if kind in ("SpeechStarted", "SpeechStopped", "ReplyDone", "ToolCalled")]
    assert kinds == ["SpeechStarted", "SpeechStopped", "ToolCalled", "ReplyDone", "ReplyDone"]
    assert result.ledger.timeline.count("<- tool.call") == 2


async def test_an_id_that_comes_again_in_a_later_turn_is_a_new_call() -> None:
    result = await played("ids-start-again")
    keys = [event.key for event in result.of(ToolSettled)]
    assert [key.call_id for key in keys] == ["call_0", "call_0"]
    assert keys[0] != keys[1]
    assert [call.answered for call in result.ledger.calls] == [1, 1]


async def test_a_runaway_agent_is_told_to_stop() -> None:
    calls = (await played("runaway")).ledger.calls
    assert [call.is_error for call in calls] == [False] * 5 + [True] * 3
    assert "do not repeat it" in calls[-1].result


async def test_every_other_answer_makes_the_agent_speak_exactly_once() -> None:
    ledger = (await played("support-line")).ledger
    knowing = [reply for reply in ledger.replies if reply.knows]
    assert sum(len(reply.knows) for reply in knowing) == 5
    answers = sorted(answer.at for answer in ledger.answers)
    assert all(later >= earlier for earlier, later in pairwise(answers))


@pytest.mark.parametrize(
    ("name", "fresh"),
    [
        ("dropped-line", [False]),
        ("dropped-reply", [False]),
        ("dropped-twice", [False, False]),
        ("refused-resume", [True]),
    ],
)
async def test_a_broken_connection_is_replaced_and_the_host_is_told(name: str, fresh: list[bool]) -> None:
    result = await played(name)
    assert [event.close_code for event in result.of(ConnectionLost)] == [1006] * len(fresh)
    assert [event.fresh for event in result.of(ConnectionResumed)] == fresh


async def test_a_failure_of_the_provider_ends_the_iteration_with_its_code() -> None:
    failure = (await played("provider-fails")).failure
    assert isinstance(failure, ProviderError)
    assert failure.code == "internal_error"
