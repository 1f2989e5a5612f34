"""Our own client against the simulator, and against the faults that the vendor's client was shown."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import anyio
import pytest

from bridge.core.events import ProviderEnded, ProviderFailed, Transcript
from bridge.dialects.hcompany import HCOMPANY
from bridge.simulator.hcompany import (
    Answer,
    Ask,
    Call,
    End,
    Fail,
    Fate,
    Fault,
    OwnTool,
    Rules,
    Scenario,
    Simulator,
    Verdict,
    Work,
)
from tests.simulator.over_http import Served, serve

pytestmark = pytest.mark.anyio

PATIENCE = 20.0
CREATE = {"create": {"agent": {"name": "clerk", "description": "x", "environments": []}, "messages": "Count."}}
ONE = Ask((Call("stock_level", {"sku": "B-17"}, "xml_0"),))
TWO = Ask((Call("stock_level", {"sku": "B-17"}, "xml_0"), Call("stock_level", {"sku": "C-02"}, "xml_1")))


async def stock_level(arguments: dict[str, Any]) -> Any:
    return {"sku": arguments["sku"]}


async def served(sim: Simulator, **options: Any) -> Served:
    """Serve the newest session, or a new one, to its end."""
    asked = {"setup": CREATE, "tools": {"stock_level": stock_level}, **options}
    with anyio.fail_after(PATIENCE):
        return await serve(sim.url, sim.api_key, HCOMPANY, **asked)


def verdicts(sim: Simulator) -> list[Verdict]:
    return [result.verdict for result in sim.ledger.results]


async def test_every_call_is_answered_once_also_when_its_id_comes_again() -> None:
    script = Scenario(
        (TWO, OwnTool(Call("click")), ONE, Ask((Call("stock_level", {"sku": "D"}, None),)), Answer("Ok."))
    )
    async with Simulator(script) as sim:
        it = await served(sim)
    assert verdicts(sim) == [Verdict.SETTLED] * 4
    assert sim.ledger.violations == []
    assert len(it.ran) == len(set(it.ran)) == 4
    assert any(isinstance(event, Transcript) and event.text == "Ok." for event in it.events)
    assert any(isinstance(event, ProviderEnded) for event in it.events)


async def test_two_equal_calls_without_an_id_are_both_answered() -> None:
    call = Call("stock_level", {"sku": "A"}, None)
    async with Simulator(Scenario((Ask((call, call)), Answer()))) as sim:
        assert len((await served(sim)).ran) == 2
    assert [record.fate for record in sim.ledger.calls] == [Fate.SETTLED] * 2


async def test_a_failure_and_an_unknown_tool_are_answered() -> None:
    async def stock(arguments: dict[str, Any]) -> Any:
        raise ValueError("no such sku")

    script = Scenario((Ask((Call("stock_level", {"sku": "A"}), Call("weather"))), Answer()))
    async with Simulator(script) as sim:
        await served(sim, tools={"stock_level": stock})
    assert [(result.is_error, result.verdict) for result in sim.ledger.results] == [(True, Verdict.SETTLED)] * 2
    assert sim.ledger.call("stock_level").settled_with == "no such sku"


@pytest.mark.parametrize("end", [End.REFUSED, End.CUT], ids=["refused", "cut"])
@pytest.mark.parametrize("done", [True, False], ids=["after the effect", "before the effect"])
async def test_a_post_whose_fate_is_unknown_is_confirmed_and_never_doubled(end: End, done: bool) -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim:
        sim.faults.append(Fault(operation="tool_results", end=end, done=done))
        it = await served(sim)
    assert verdicts(sim) == [Verdict.SETTLED] * 2
    assert len(it.ran) == 2


async def test_a_result_that_never_counts_is_posted_again() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="tool_results", delay=math.inf))
        it = await served(sim)
    assert verdicts(sim) == [Verdict.ON_ITS_WAY, Verdict.SETTLED]
    assert len(it.ran) == 1


async def test_a_result_that_counts_late_is_not_posted_again() -> None:
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(apply_after=0.02)) as sim:
        await served(sim)
    assert verdicts(sim) == [Verdict.SETTLED]


async def test_a_poll_that_is_reset_is_repeated() -> None:
    async with Simulator(Scenario((Work(0.05), ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="changes", end=End.CUT, times=2))
        await served(sim)
    assert verdicts(sim) == [Verdict.SETTLED]


async def test_calls_whose_announcement_was_evicted_are_run() -> None:
    async with Simulator(Scenario((TWO, Answer())), rules=Rules(kept_events=1)) as sim:
        it = await served(sim)
    assert [call.fate for call in sim.ledger.calls] == [Fate.SETTLED] * 2
    assert len(it.ran) == 2


async def test_a_session_is_attached_to_and_its_waiting_calls_are_answered() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        created = asyncio.create_task(served(sim, tools={}, setup={"create": {"agent": "h/clerk", "messages": "Go."}}))
        session = await sim.reached("awaiting_tool_results")
        created.cancel()
        await served(sim, setup={"attach": session.id})
    assert sim.ledger.call("stock_level").fate is Fate.SETTLED


async def test_a_paused_session_gets_its_results_and_stays_paused() -> None:
    async def paused(arguments: dict[str, Any]) -> Any:
        sim.session.pause()
        return 1

    async with Simulator(Scenario((ONE, Answer()))) as sim, asyncio.TaskGroup() as tasks:
        tasks.create_task(served(sim, tools={"stock_level": paused}))
        await sim.agenda.until(lambda: bool(sim.sessions) and bool(sim.ledger.results))
        assert sim.session.status.value == "paused"
        sim.session.resume()
    assert verdicts(sim) == [Verdict.SETTLED]


async def test_a_session_that_ends_while_its_tool_runs_is_over() -> None:
    async def ends(arguments: dict[str, Any]) -> Any:
        sim.session.interrupt()
        return 1

    async with Simulator(Scenario((ONE, Answer()))) as sim:
        await served(sim, tools={"stock_level": ends})
    assert [each.status for each in sim.exchanges if each.operation == "tool_results"] == [409]
    assert sim.ledger.call("stock_level").fate is Fate.RESOLVED_BY_SERVER


async def test_why_a_session_has_failed_is_told() -> None:
    async with Simulator(Scenario((Fail(),))) as sim:
        it = await served(sim)
    assert any(isinstance(event, ProviderFailed) and event.fatal for event in it.events)


async def test_an_empty_401_is_not_asked_again_at_once() -> None:
    async with Simulator(Scenario((Work(0.3), ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="changes", end=End.REFUSED, status=401, empty=True, times=3))
        await served(sim)
    assert sum(each.operation == "changes" for each in sim.exchanges) < 15
    assert verdicts(sim) == [Verdict.SETTLED]


async def test_a_wrong_key_is_told() -> None:
    async with Simulator() as sim:
        with anyio.fail_after(PATIENCE):
            it = await serve(sim.url, "wrong", HCOMPANY, CREATE, {})
    assert [event.code for event in it.events if isinstance(event, ProviderFailed)] == ["http_401"]
