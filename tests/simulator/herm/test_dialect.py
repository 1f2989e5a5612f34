"""Our own client against the simulator. Both rest on reading, each by itself: there is no client of the vendor's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from bridge.core.dialect import Message
from bridge.core.events import CallKey, FollowUp, ProviderFailed, ReplyDone, ToolResult, ToolResults, ToolSpec
from bridge.dialects.herm import HERM, HermDialect
from bridge.simulator.herm import Answer, Ask, Call, End, Fail, Fate, Fault, Scenario, Simulator, Verdict
from bridge.transports.http import HttpTransport
from tests.simulator.herm.documented_loop import Raw, raw
from tests.simulator.over_http import QUICK, Served, Tool, serve

pytestmark = pytest.mark.anyio

TOOL = {"name": "transcode", "description": "Makes it smaller."}
ONE = Ask((Call("transcode", {"file": "a.mov"}, "one"),))
ONE_MORE = Ask((Call("transcode", {"file": "c.mov"}, "three"),))
TOOL_SPEC = ToolSpec("transcode", "Makes it smaller.")
TWO = Ask((Call("transcode", {"file": "a.mov"}, "one"), Call("transcode", {"file": "b.mov"}, "two")))


async def transcode(arguments: dict[str, Any]) -> Any:
    return {"small": arguments["file"]}


async def turns_ended(sim: Simulator, count: int = 1) -> None:
    """Wait until so many turns have ended."""
    await sim.agenda.until(lambda: sum(bool(turn.ended) for turn in sim.ledger.turns) >= count)


@asynccontextmanager
async def session(*steps: Any, tool: Tool = transcode, **declared: Any) -> AsyncIterator[tuple[Simulator, Raw, Served]]:
    """A session that is served until the block is left."""
    async with Simulator(Scenario(steps)) as sim, raw(sim) as client:
        session_id = await client.create({**TOOL, **declared})
        served = Served()
        serving = asyncio.create_task(
            serve(sim.url, sim.api_key, HERM, {"attach": session_id}, {"transcode": tool}, served=served)
        )
        await sim.agenda.until(lambda: sim.session.history.streams > 0)
        try:
            yield sim, client, served
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def verdicts(sim: Simulator) -> list[Verdict]:
    return [result.verdict for result in sim.ledger.results]


async def test_calls_are_answered_and_the_turn_goes_on() -> None:
    async with session(TWO, ONE_MORE, Answer("Done.")) as (sim, client, served):
        await client.say()
        await turns_ended(sim)
        assert verdicts(sim) == [Verdict.ANSWERED] * 3
        assert served.ran == ["one", "two", "three"]
        assert sim.ledger.calls[0].text == '{"small": "a.mov"}'
        assert sim.ledger.violations == []


async def test_a_failure_is_answered() -> None:
    async def broken(arguments: dict[str, Any]) -> Any:
        raise ValueError("no codec")

    async with session(ONE, Answer(), tool=broken) as (sim, client, _):
        await client.say()
        await turns_ended(sim)
        assert (sim.ledger.calls[0].text, sim.ledger.calls[0].is_error) == ("no codec", True)


@pytest.mark.parametrize("end", [End.REFUSED, End.CUT], ids=["refused", "cut"])
@pytest.mark.parametrize("done", [True, False], ids=["after the effect", "before the effect"])
async def test_an_answer_whose_fate_is_unknown_is_confirmed_and_never_doubled(end: End, done: bool) -> None:
    async with session(ONE, Answer()) as (sim, client, served):
        await client.say()
        sim.faults.append(Fault(operation="send", end=end, done=done))
        await turns_ended(sim)
        assert verdicts(sim) == [Verdict.ANSWERED]
        assert served.ran == ["one"]


async def test_a_call_that_was_made_while_no_stream_was_open_is_answered() -> None:
    async with session(ONE, Answer(), ONE_MORE, Answer()) as (sim, client, served):
        await client.say()
        await turns_ended(sim)
        sim.faults.append(Fault(operation="stream", end=End.REFUSED))
        sim.cut_streams()
        await client.say()
        await turns_ended(sim, 2)
        assert served.ran == ["one", "three"]
        assert verdicts(sim) == [Verdict.ANSWERED] * 2


async def test_a_stream_that_breaks_while_a_tool_runs_makes_no_second_call() -> None:
    async def cut(arguments: dict[str, Any]) -> Any:
        before = sum(each.operation == "stream" for each in sim.exchanges)
        sim.cut_streams()
        await sim.agenda.until(lambda: sum(each.operation == "stream" for each in sim.exchanges) > before)
        return 1

    async with session(ONE, ONE_MORE, Answer(), tool=cut) as (sim, client, served):
        await client.say()
        await turns_ended(sim)
        assert served.ran == ["one", "three"]
        assert verdicts(sim) == [Verdict.ANSWERED] * 2


async def test_an_answer_that_comes_too_late_is_given_up() -> None:
    async def slow(arguments: dict[str, Any]) -> Any:
        sim.agenda.advance(301)
        return 1

    async with session(ONE, Answer(), tool=slow) as (sim, client, served):
        await client.say()
        await turns_ended(sim)
        await sim.agenda.until(lambda: bool(sim.ledger.results))
        await client.say()
        await turns_ended(sim, 2)
        assert verdicts(sim) == [Verdict.EXPIRED]
        assert (await served.heard(ReplyDone)).interrupted


async def test_a_turn_that_fails_is_told() -> None:
    async with session(Fail("no model")) as (_, client, served):
        await client.say()
        assert (await served.heard(ProviderFailed)).text == "no model"


async def test_a_session_is_created_under_an_agent_that_declares_our_tools() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        dialect = HermDialect()
        agent = await client.http.post("agents", json=dict(dialect.agent({"name": "clerk"}, [TOOL_SPEC])))
        setup = {"create": {"agent_id": agent.json()["id"], "userId": "u1"}}
        serving = asyncio.create_task(serve(sim.url, sim.api_key, HERM, setup, {"transcode": transcode}))
        await sim.agenda.until(lambda: bool(sim.sessions) and sim.session.history.streams > 0)
        await client.say()
        await turns_ended(sim)
        assert verdicts(sim) == [Verdict.ANSWERED]
        await client.http.delete(f"sessions/{sim.session.id}")
        sim.agenda.notify()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_call_is_made_after_its_approval() -> None:
    ask = {"permissionPolicy": {"type": "always_ask"}}
    async with session(ONE, Answer(), **ask) as (sim, client, served):
        await client.say()
        await sim.agenda.until(lambda: bool(sim.ledger.calls))
        assert served.ran == []
        approved = HermDialect().decision("one", allowed=True)
        assert (await client.send(*approved["events"])).status_code == 202
        await turns_ended(sim)
        assert served.ran == ["one"]
        assert sim.ledger.calls[0].fate is Fate.CLOSED


async def sent(transport: HttpTransport, event: ToolResults | FollowUp) -> None:
    """Say this, as a session would."""
    for message in HERM.encode_client(event):
        await transport.send(json.dumps(message))


async def until(transport: HttpTransport, kind: str) -> Message:
    """Listen until a message of this type comes."""
    with anyio.fail_after(20):
        while True:
            message: Message = json.loads(await transport.receive())
            if message.get("type") == kind:
                return message


@pytest.mark.parametrize("lost", ["kickoff", "outcome", "neither"])
async def test_the_outcome_of_a_long_running_tool_starts_one_turn_whatever_is_lost(lost: str) -> None:
    running = ToolResults((ToolResult("one", '"begun"', interim=True),))
    outcome = FollowUp(CallKey(0, "one"), ToolResult("one", '"small"'))
    cut = Fault(operation="send", end=End.CUT, done=True)
    async with Simulator(Scenario((ONE, Answer("It has begun."), Answer("Done.")))) as sim, raw(sim) as client:
        session_id = await client.create(TOOL)
        transport = HttpTransport(HERM.endpoint(sim.url, sim.api_key), HERM, patience=QUICK)
        await transport.send(json.dumps({"attach": session_id}))
        await sim.agenda.until(lambda: sim.session.history.streams > 0)
        await client.say()
        await until(transport, "agent.custom_tool_use")
        sim.faults.extend([cut] if lost == "kickoff" else [])
        await sent(transport, running)
        await turns_ended(sim)
        sim.faults.extend([cut] if lost == "outcome" else [])
        await sent(transport, outcome)
        await turns_ended(sim, 2)
        await transport.aclose()
        repeated = [Verdict.REPEATED] if lost == "outcome" else []
        assert verdicts(sim) == [Verdict.STARTED, Verdict.FINAL, *repeated]
        assert [turn.started_by for turn in sim.ledger.turns] == ["", "one"]
