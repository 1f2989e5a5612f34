"""Every scenario, played to the client of the documentation: where it serves, and where it is known to fail."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bridge.scenarios import SCENARIOS
from bridge.simulator import Call, Ended, Fate, Ledger, Phase, Reply, ReplyEnd, Simulator, Verdict
from tests.simulator.documented_loop import DocumentedLoop, Edition, Running
from tests.simulator.raw import PATIENCE

pytestmark = pytest.mark.anyio

PACE = 0.1
EDITIONS = [Edition.EARLY, Edition.CURRENT]


async def play(
    name: str, edition: Edition = Edition.EARLY, running: Running = Running.IN_BACKGROUND
) -> tuple[Ledger, DocumentedLoop]:
    scenario = SCENARIOS[name]
    client = DocumentedLoop(scenario.tools, PACE, edition, running)
    async with Simulator(scenario, pace=PACE) as sim, asyncio.timeout(PATIENCE):
        await client.converse(sim.url)
        return await sim.session_over(), client


def fates(ledger: Ledger) -> dict[str, Fate]:
    return {call.name: call.fate for call in ledger.calls}


def verdicts(ledger: Ledger) -> list[Verdict]:
    return [answer.verdict for answer in ledger.answers]


def replies(ledger: Ledger) -> list[str]:
    return [reply.text for reply in ledger.replies]


# Where the documented loop serves


@pytest.mark.parametrize(
    ("edition", "running"),
    # The early one has to have its result before the reply ends, which only waiting for it makes certain.
    [(Edition.EARLY, Running.IN_LOOP), (Edition.CURRENT, Running.IN_BACKGROUND)],
    ids=EDITIONS,
)
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("weather", "get_weather says: sky light rain, celsius 14."),
        ("failing-tool", "open_ticket failed: The ticket system is closed."),
        ("unknown-tool", "tell_joke failed: no such tool."),
        ("cough", "list_invoices says: count 27."),
        ("call-after-barge-in", "get_weather says: sky light rain, celsius 14."),
        ("silent-preamble", "get_weather says: sky light rain, celsius 14."),
        ("early-result-drops-reply", "list_invoices says: count 27."),
        ("older-wire", "get_weather says: sky light rain, celsius 14."),
        ("arguments-as-text", "get_weather says: sky light rain, celsius 14."),
        ("strange-events", "get_weather says: sky light rain, celsius 14."),
        ("early-start", "get_weather says: sky light rain, celsius 14."),
    ],
)
async def test_one_call_is_answered_once_in_time_and_told(
    name: str, told: str, edition: Edition, running: Running
) -> None:
    served(*await play(name, edition, running), told)


@pytest.mark.parametrize("edition", EDITIONS)
async def test_a_result_that_comes_while_the_user_speaks_is_told_after_the_reply_to_that(edition: Edition) -> None:
    served(*await play("result-during-speech", edition), "run_line_test says: noise high.")


def served(ledger: Ledger, client: DocumentedLoop, told: str) -> None:
    """Its one call was answered once, in time, and told."""
    (call,) = ledger.calls
    assert (call.fate, call.answered, call.answers[0].timely) == (Fate.TOLD, 1, True)
    assert replies(ledger)[-1] == told
    assert ledger.ended is Ended.BY_PROVIDER
    assert (ledger.violations, ledger.errors, client.close_code) == ([], [], 1000)


async def test_two_results_make_one_reply() -> None:
    ledger, _ = await play("two-calls", running=Running.IN_LOOP)
    assert [call.fate for call in ledger.calls] == [Fate.TOLD] * 2
    assert len(ledger.replies) == 2
    assert ledger.replies[1].knows == [call.call_id for call in ledger.calls]


async def test_each_result_can_make_a_reply() -> None:
    ledger, _ = await play("one-reply-each", running=Running.IN_LOOP)
    assert [len(reply.knows) for reply in ledger.replies] == [0, 1, 1]


async def test_the_results_of_an_interrupted_reply_are_thrown_away() -> None:
    ledger, client = await play("barge-in")
    assert client.ran == ["list_invoices"]
    assert (fates(ledger), ledger.answers) == ({"list_invoices": Fate.ABANDONED}, [])
    assert [reply.end for reply in ledger.replies] == [ReplyEnd.INTERRUPTED, ReplyEnd.COMPLETED]


async def test_an_id_that_comes_again_is_a_new_call() -> None:
    ledger, _ = await play("ids-start-again")
    assert [(call.call_id, call.fate, call.answered) for call in ledger.calls] == [("call_0", Fate.TOLD, 1)] * 2


async def test_a_current_client_sends_the_result_of_a_slow_tool_in_the_silence() -> None:
    ledger, _ = await play("slow-tool", Edition.CURRENT)
    (answer,) = ledger.answers
    assert (answer.phase, fates(ledger)) == (Phase.WAITING, {"run_line_test": Fate.TOLD})


async def test_a_current_client_waits_out_a_burst_of_audio() -> None:
    ledger, _ = await play("burst-audio", Edition.CURRENT)
    assert fates(ledger) == {"end_call": Fate.TOLD}


async def test_a_current_client_serves_an_agent_that_waits_for_all_results() -> None:
    ledger, _ = await play("waits-for-all", Edition.CURRENT)
    assert len(ledger.replies[-1].knows) == 2


async def test_the_support_line_is_served_by_a_current_client() -> None:
    ledger, client = await play("support-line", Edition.CURRENT)
    told = {"look_up_order", "check_stock", "run_line_test", "open_ticket", "end_call"}
    assert fates(ledger) == dict.fromkeys(told, Fate.TOLD) | {"list_invoices": Fate.ABANDONED}
    assert all(answer.timely for answer in ledger.answers)
    assert len(client.ran) == 6
    assert len(ledger.user_turns) == 6


# Where it fails


async def test_an_early_client_strands_the_result_of_a_tool_slower_than_its_reply() -> None:
    ledger, client = await play("slow-tool")
    assert client.ran == ["run_line_test"]
    assert fates(ledger) == {"run_line_test": Fate.TIMED_OUT}
    assert "did not answer in time" in replies(ledger)[-1]


async def test_an_early_client_leaves_an_agent_that_waits_for_all_results_waiting() -> None:
    ledger, _ = await play("waits-for-all")
    assert fates(ledger)["check_stock"] is Fate.TIMED_OUT


async def test_a_current_client_sends_the_late_result_of_an_interrupted_turn() -> None:
    ledger, _ = await play("barge-in-then-slow-result", Edition.CURRENT)
    assert verdicts(ledger) == [Verdict.VOID]


@pytest.mark.parametrize("edition", EDITIONS)
async def test_a_later_interruption_takes_an_earlier_turns_result_with_it(edition: Edition) -> None:
    ledger, client = await play("later-reply-cut-short", edition)
    assert client.ran == ["run_line_test"]
    assert (fates(ledger), ledger.answers) == ({"run_line_test": Fate.TIMED_OUT}, [])


@pytest.mark.slow
@pytest.mark.parametrize("edition", EDITIONS)
@pytest.mark.parametrize("name", ["hold-mode", "hold-mode-with-speech", "stuck-reply"])
async def test_waiting_for_an_end_of_reply_that_does_not_come_deadlocks(name: str, edition: Edition) -> None:
    ledger, client = await play(name, edition)
    assert len(client.ran) == 1
    assert next(iter(fates(ledger).values())) is Fate.TIMED_OUT


async def test_a_blocking_tool_does_not_see_that_its_reply_was_cut() -> None:
    ledger, client = await play("barge-in-then-slow-result", Edition.CURRENT, Running.IN_LOOP)
    assert verdicts(ledger) == []
    sent = [event["timestamp"] for event in client.of("reply.done")]
    assert client.ran == ["list_invoices"]
    assert len(sent) == 2


async def test_a_doubled_call_is_run_and_answered_twice() -> None:
    ledger, client = await play("duplicate-events")
    assert client.ran == ["get_weather"] * 2
    assert verdicts(ledger) == [Verdict.ACCEPTED, Verdict.REPEATED]


async def test_a_call_that_the_provider_runs_is_answered_by_mistake() -> None:
    ledger, _ = await play("server-tool")
    assert verdicts(ledger) == [Verdict.SERVER_RUN]
    assert replies(ledger)[-1] == "find_shop says: street Main Street 4."


async def test_broken_arguments_run_the_tool() -> None:
    _, client = await play("broken-arguments")
    assert client.ran == ["get_weather"]


@pytest.mark.parametrize("name", ["terminal-after-goodbye", "goodbye-cut-short"])
async def test_hanging_up_begins_before_the_goodbye_stands(name: str) -> None:
    ledger, client = await play(name)
    assert client.ran == ["end_call"]
    assert fates(ledger)["end_call"] is (Fate.TOLD if name == "terminal-after-goodbye" else Fate.ABANDONED)


async def test_an_order_is_placed_twice_when_its_first_result_was_thrown_away() -> None:
    ledger, client = await play("order-repeated-after-barge-in")
    assert client.ran == ["create_order"] * 2
    assert [call.fate for call in ledger.calls] == [Fate.ABANDONED, Fate.TOLD]


async def test_a_runaway_agent_is_served_for_ever() -> None:
    _, client = await play("runaway")
    assert client.ran == ["get_weather"] * 8


async def test_a_tool_slower_than_its_own_timeout_is_late() -> None:
    ledger, _ = await play("tool-timeout", Edition.CURRENT)
    assert (verdicts(ledger), fates(ledger)) == ([Verdict.LATE], {"run_line_test": Fate.TIMED_OUT})


@pytest.mark.parametrize("name", ["dropped-line", "dropped-reply", "dropped-twice", "refused-resume"])
@pytest.mark.slow
async def test_a_client_that_never_resumes_loses_the_session(name: str) -> None:
    ledger, client = await play(name)
    assert (ledger.ended, client.close_code) == (Ended.GRACE_OVER, 1006)


async def test_a_provider_that_fails_says_so_and_closes() -> None:
    ledger, client = await play("provider-fails")
    assert (ledger.ended, ledger.errors, client.close_code) == (Ended.FAILED, ["internal_error"], 1011)


# The table


def test_every_scenario_is_listed_by_its_name_and_says_what_it_is_about() -> None:
    assert list(SCENARIOS) == [scenario.name for scenario in SCENARIOS.values()]
    assert all(scenario.about.endswith(".") for scenario in SCENARIOS.values())


def test_every_tool_that_is_called_is_sketched_but_for_those_nobody_has() -> None:
    missing = {
        call.name
        for scenario in SCENARIOS.values()
        for step in scenario.steps
        if isinstance(step, Reply)
        for call in step.calls
        if call.name not in {tool.name for tool in scenario.tools}
    }
    assert missing == {"tell_joke", "find_shop"}


def test_sketches_of_a_tool_agree_on_what_it_takes() -> None:
    sketches = [tool for scenario in SCENARIOS.values() for tool in scenario.tools]
    for one, other in itertools.combinations(sketches, 2):
        if one.name == other.name:
            assert one.parameters == other.parameters


def test_calls_fit_the_parameters_of_their_tools_but_for_the_broken_one() -> None:
    calls: list[tuple[Call, set[str]]] = [
        (call, set(tool.parameters["required"]))
        for scenario in SCENARIOS.values()
        for step in scenario.steps
        if isinstance(step, Reply)
        for call in step.calls
        for tool in scenario.tools
        if tool.name == call.name
    ]
    assert all(isinstance(call.args, str) or set(call.args) == required for call, required in calls)


@pytest.mark.slow
async def test_the_support_line_takes_less_than_fifteen_seconds() -> None:
    scenario = SCENARIOS["support-line"]
    async with Simulator(scenario) as sim, asyncio.timeout(15):
        await DocumentedLoop(scenario.tools, 1.0, Edition.CURRENT).converse(sim.url)
