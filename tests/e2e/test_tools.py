"""Tools as an agent sees them: what they are called with, what they answer, and what becomes of bad ones."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from bridge import (
    AssemblyAI,
    Bridge,
    CallContext,
    ReplyDone,
    ToolError,
    Toolset,
    ToolSettled,
    ToolStarted,
)
from bridge.simulator import (
    AwaitResults,
    BargeIn,
    Call,
    CallRecord,
    EarlyResults,
    Fate,
    HangUp,
    Phase,
    Preamble,
    Reply,
    Rules,
    Say,
    Simulator,
    Verdict,
)
from tests.e2e.conftest import BRISK, PACE, call, eventually, script, sent, tidily, until

pytestmark = pytest.mark.anyio

FINISH = (AwaitResults(), HangUp())


def named(function: Any, **options: Any) -> Toolset:
    tools = Toolset()
    tools.tool(function, name="work", **options)
    return tools


def ask(*calls: Call, seconds: float = 0.4) -> Reply:
    return Reply("One moment.", calls or (Call("work"),), seconds)


async def answered(tools: Toolset, *calls: Call, **options: Any) -> list[CallRecord]:
    """The calls of one reply, as the provider saw them answered."""
    async with call(script(ask(*calls), *FINISH), tools, **options) as (sim, session):
        await session.run()
        records = sim.ledger.calls
        assert [[answer.verdict for answer in record.answers] for record in records] == [[Verdict.ACCEPTED]] * len(
            records
        )
        assert all(answer.timely for answer in sim.ledger.answers)
        return records


# ----------------------------------------------------------------------------------------------- what a tool answers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("", '""'),
        (0, "0"),
        (False, "false"),
        ({}, "{}"),
        ([], "[]"),
        ({"city": "Tromsø", "sun": "☀"}, '{"city":"Tromsø","sun":"☀"}'),
    ],
)
async def test_a_result_reaches_the_provider_as_strict_json(value: object, text: str) -> None:
    async def work() -> object:
        return value

    (record,) = await answered(named(work))
    assert (record.result, record.is_error) == (text, False)


async def test_a_result_that_is_no_json_is_an_error_that_names_its_type() -> None:
    async def work() -> object:
        return object()

    (record,) = await answered(named(work))
    assert record.is_error
    assert "object" in record.result
    assert "0x" not in record.result


async def test_a_result_that_is_too_big_is_an_error() -> None:
    async def work() -> str:
        return "x" * 2000

    (record,) = await answered(named(work, result_limit=1000))
    assert record.is_error
    assert len(record.result) < 1000


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    threads: list[str] = []

    def work() -> str:
        threads.append(threading.current_thread().name)
        time.sleep(0.1)
        return "done"

    (record,) = await answered(named(work))
    assert record.result == '"done"'
    assert threads == ["bridge-tool-1"]


async def test_arguments_arrive_as_the_types_that_were_declared() -> None:
    seen: list[object] = []

    async def work(city: str, days: int = 1) -> None:
        seen.append((city, days))

    await answered(
        named(work),
        Call("work", {"city": "Oslo", "days": 3}),
        Call("work", {"city": "Oslo", "days": "2"}),
        Call("work", '{"city": "Oslo"}'),
    )
    assert seen == [("Oslo", 3), ("Oslo", 2), ("Oslo", 1)]


@pytest.mark.parametrize("arguments", [{}, {"days": "many"}, '{"days": 1', "[1]", "3", ""])
async def test_arguments_that_do_not_fit_are_answered_with_what_was_expected(arguments: Any) -> None:
    ran: list[int] = []

    async def work(days: int) -> None:
        ran.append(days)

    (record,) = await answered(named(work), Call("work", arguments))
    assert record.is_error
    assert "days" in record.result
    assert ran == []


# ------------------------------------------------------------------------------------------------- tools that misbehave


async def test_the_text_of_a_tool_error_is_for_the_agent() -> None:
    async def work() -> None:
        raise ToolError("no such order")

    (record,) = await answered(named(work))
    assert (record.result, record.is_error) == ('{"error":"no such order"}', True)


@pytest.mark.parametrize(
    "error", [ValueError("inner"), KeyboardInterrupt(), SystemExit(3), ExceptionGroup("", [OSError()])]
)
async def test_any_other_exception_says_only_that_the_tool_failed(error: BaseException) -> None:
    async def work() -> None:
        raise error

    (record,) = await answered(named(work))
    assert (record.result, record.is_error) == ('{"error":"the tool work failed"}', True)


async def test_a_tool_that_cancels_itself_is_answered_with_an_error() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    (record,) = await answered(named(work))
    assert (record.result, record.is_error) == ('{"error":"the tool was aborted"}', True)


async def test_one_of_two_calls_fails_and_the_other_is_answered_all_the_same() -> None:
    async def work(well: bool) -> str:
        if not well:
            raise ToolError("not well")
        await asyncio.sleep(0.01)
        return "well"

    bad, good = await answered(named(work), Call("work", {"well": False}), Call("work", {"well": True}))
    assert (bad.is_error, good.is_error, good.result) == (True, False, '"well"')


async def test_a_tool_that_takes_too_long_is_answered_in_time_although_it_goes_on() -> None:
    release = threading.Event()

    def work() -> str:
        release.wait(2.0)
        return "too late"

    try:
        (record,) = await answered(named(work, timeout=0.05))
    finally:
        release.set()
    assert record.is_error
    assert "work did not answer within 0.05 s" in record.result
    assert record.answered == 1


async def test_calls_beyond_the_sessions_places_wait_for_one() -> None:
    most, running = 0, 0

    async def work(number: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return number

    calls = tuple(Call("work", {"number": number}) for number in range(6))
    async with tidily(), Simulator(script(ask(*calls), *FINISH), pace=PACE) as sim:
        bridge = Bridge(named(work), max_concurrent_tools_per_session=2)
        async with bridge, bridge.session(AssemblyAI(url=sim.url), api_key="k", delivery=BRISK) as session:
            await session.run()
        assert [record.result for record in sim.ledger.calls] == [str(number) for number in range(6)]
    assert most == 2


async def test_a_call_that_finds_no_place_in_time_is_answered_busy() -> None:
    async def work(number: int) -> None:
        await asyncio.sleep(0.15)

    calls = tuple(Call("work", {"number": number}) for number in range(2))
    async with tidily(), Simulator(script(ask(*calls), *FINISH), pace=PACE) as sim:
        bridge = Bridge(named(work, queue_timeout=0.02), max_concurrent_tools_per_session=1)
        async with bridge, bridge.session(AssemblyAI(url=sim.url), api_key="k", delivery=BRISK) as session:
            await session.run()
        first, second = sim.ledger.calls
    assert (first.is_error, second.is_error) == (False, True)
    assert "try again later" in second.result


# --------------------------------------------------------------------------------------------------------- in parallel


async def test_parallel_calls_take_the_time_of_the_slower_one() -> None:
    async def work(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    slower, faster = await answered(
        named(work), Call("work", {"seconds": 0.3}), Call("work", {"seconds": 0.28}), delivery=None
    )
    for record in (slower, faster):
        (answer,) = record.answers
        assert 0.28 <= answer.at - record.asked_at < 0.5


async def test_a_sibling_that_outlasts_the_grace_is_sent_by_itself() -> None:
    release = asyncio.Event()

    async def work(slow: bool) -> bool:
        if slow:
            await release.wait()
        return slow

    calls = (Call("work", {"slow": True}), Call("work", {"slow": False}))
    async with call(script(ask(*calls), *FINISH), named(work)) as (sim, session):
        await until(session, ToolSettled)
        await eventually(lambda: bool(sim.ledger.answers))
        release.set()
        await session.run()
        slow, quick = (record.answers[0].at for record in sim.ledger.calls)
        assert quick < slow


# ------------------------------------------------------------------------------------------------------ interruptions


CUT = (ask(seconds=4.0), BargeIn("Never mind.", after=0.5, seconds=1.2), Say("All right."))
QUICK_CUT = Rules(interruption_lag=0.5)


async def test_an_interrupted_tool_is_left_to_finish_and_nothing_is_sent() -> None:
    finished = asyncio.Event()
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()
        finished.set()

    async with call(script(*CUT, rules=QUICK_CUT), named(work)) as (sim, session):
        settled = await until(session, ToolSettled)
        assert (settled.how, settled.outcome) == ("interrupted", "")
        await until(session, ReplyDone)
        release.set()
        await finished.wait()
        await session.update(volume=1.0)
        assert sent(sim.ledger) == ["session.update"] * 2


async def test_an_interrupted_tool_is_cancelled_if_it_wants_to_be() -> None:
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with call(script(*CUT, rules=QUICK_CUT), named(work, on_interrupt="cancel")) as (sim, session):
        await until(session, ToolSettled)
        await cancelled.wait()
        await session.update(volume=1.0)
        assert sent(sim.ledger) == ["session.update"] * 2


async def test_a_call_that_waits_for_a_place_when_it_is_interrupted_never_runs() -> None:
    ran: list[int] = []
    release = asyncio.Event()

    async def work(number: int) -> None:
        ran.append(number)
        await release.wait()

    calls = tuple(Call("work", {"number": number}) for number in range(2))
    scenario = script(ask(*calls, seconds=4.0), *CUT[1:], rules=QUICK_CUT)
    async with tidily(), Simulator(scenario, pace=PACE) as sim:
        bridge = Bridge(named(work), max_concurrent_tools_per_session=1)
        async with bridge, bridge.session(AssemblyAI(url=sim.url), api_key="k") as session:
            await until(session, ToolSettled)
            await until(session, ToolSettled)
            release.set()
            await until(session, ReplyDone)
    assert ran == [0]
    assert [record.fate for record in sim.ledger.calls] == [Fate.ABANDONED] * 2


async def test_a_terminal_tool_is_not_run_when_the_user_speaks_during_its_reply() -> None:
    ran: list[str] = []

    async def work() -> None:
        ran.append("work")

    async with call(script(*CUT, *FINISH, rules=QUICK_CUT), named(work, effect="terminal")) as (_, session):
        await session.run()
    assert ran == []


# ------------------------------------------------------------------------------------------------------------ delivery


async def test_a_result_that_may_go_now_does_not_wait_for_the_end_of_the_reply() -> None:
    async def work() -> str:
        return "quick"

    scenario = script(ask(seconds=6.0), *FINISH, rules=Rules(preamble=Preamble.SILENT, gap=2.3))
    async with call(scenario, named(work, deliver="now")) as (sim, session):
        await session.run()
        (answer,) = sim.ledger.answers
        assert (answer.phase, answer.verdict) == (Phase.REPLYING, Verdict.ACCEPTED)
        assert sim.ledger.call("work").fate is Fate.TOLD


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.3])
async def test_a_provider_that_loses_early_results_loses_none(seconds: float) -> None:
    async def work() -> str:
        await asyncio.sleep(seconds)
        return "done"

    scenario = script(ask(seconds=2.0), *FINISH, rules=Rules(early_results=EarlyResults.IGNORED))
    async with call(scenario, named(work)) as (sim, session):
        await session.run()
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]
        assert sim.ledger.call("work").fate is Fate.TOLD


async def test_a_hold_tool_is_declared_as_one_and_answered_in_the_silence() -> None:
    async def work() -> str:
        await asyncio.sleep(0.05)
        return "checked"

    async with call(script(ask(), *FINISH), named(work, hold=True)) as (sim, session):
        await session.run()
        assert [answer.phase for answer in sim.ledger.answers] == [Phase.HOLDING]
        assert sim.ledger.replies[0].text == "work says: checked."


async def test_an_agent_that_never_says_that_its_reply_is_done_still_gets_its_result() -> None:
    async def work() -> str:
        return "done"

    scenario = script(ask(), *FINISH, rules=Rules(omitted=frozenset({"reply.done"})))
    async with call(scenario, named(work), delivery=replace(BRISK, max_hold=0.1)) as (sim, session):
        await session.run()
        assert [record.fate for record in sim.ledger.calls] == [Fate.TOLD]


# -------------------------------------------------------------------------------------------------------- its session


async def test_calls_are_told_apart_by_their_keys_in_events_and_contexts() -> None:
    contexts: list[CallContext] = []

    async def work(context: CallContext) -> None:
        contexts.append(context)

    calls = (Call("work", id="a"), Call("work", id="b"))
    async with call(script(ask(*calls), *FINISH), named(work)) as (_, session):
        started = [event.key async for event in session if isinstance(event, ToolStarted)]
    assert [context.key for context in contexts] == started
    assert [key.call_id for key in started] == ["a", "b"]
