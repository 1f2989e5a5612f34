"""Calls that take longer than their turn: what the agent is told meanwhile, and how it hears of the outcome."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect as dial

from bridge import AssemblyAI, Bridge, Toolset, ToolSettled
from bridge.runner.approvals import ApprovalRequest, Decided, Expired, Resolution, Resolved
from bridge.session.running import ToolParked
from bridge.simulator import BargeIn, Call, HangUp, Reply, Simulator, Step, Until, Wait
from bridge.testing import Result, ScriptedSession, scripted_session
from bridge.tools.tool import Parked
from tests.e2e.conftest import BRISK, PACE, call, fence, script, sent, take_all, tidily
from tests.relay.rig import address, providing, relaying, until

pytestmark = pytest.mark.anyio

FOLLOW_UP = "The tool work that was started earlier in this conversation has finished now."


def working(seconds: float = 30, **options: Any) -> Toolset:
    """A tool `work` that takes a while, and what it says."""
    tools = Toolset()
    options = {"answer_within": 2, "timeout": 300} | options

    @tools.tool(**options)
    async def work() -> str:
        await asyncio.sleep(seconds)
        return "it is done"

    return tools


async def parked(s: ScriptedSession) -> Result:
    """The agent calls the tool, and is told that it takes longer; that was 2.5 seconds ago."""
    call = await s.call("work")
    await s.reply_done()
    await s.advance(2.5)
    assert call.result is not None
    return call.result


# --------------------------------------------------------------------------------------------------------- in a turn


async def test_the_agent_hears_at_once_that_nothing_has_happened_and_of_the_outcome_once() -> None:
    async with scripted_session(working()) as s:
        interim = await parked(s)
        assert (interim.output["status"], interim.is_error, interim.at) == ("pending", False, 2)
        await s.advance(40)
        assert len(s.results) == 1
        (said,) = s.said
        assert said.text.startswith(FOLLOW_UP)
        assert said.text.endswith('"it is done"')
        assert said.at == pytest.approx(30, abs=0.01)


async def test_an_outcome_that_comes_while_the_user_speaks_waits_for_a_quiet_window() -> None:
    async with scripted_session(working()) as s:
        await parked(s)
        await s.advance(25)
        await s.user_speaks("And another thing, while I have you.", seconds=5)
        await s.agent_says("Yes?")
        assert s.said == []
        await s.reply_done()
        assert [said.text.startswith(FOLLOW_UP) for said in s.said] == [True]


async def test_an_outcome_that_comes_while_the_interim_result_is_held_is_an_ordinary_result() -> None:
    async with scripted_session(working(4)) as s:
        call = await s.call("work")
        await s.agent_says("This is a long sentence that goes on and on, while the work is done", seconds=3)
        await s.advance(1.5)
        await s.agent_says("and on and on.", seconds=3)
        await s.advance(1.5)
        assert s.results == []
        await s.advance(1.2)
        await s.reply_done()
        assert call.result is not None
        assert (call.result.output, s.said) == ("it is done", [])


async def test_a_call_that_is_interrupted_before_the_agent_was_told_is_discarded_and_its_outcome_never_told() -> None:
    async with scripted_session(working()) as s:
        call = await s.call("work")
        await s.advance(2.5)
        await s.barge_in("Stop!")
        assert call.discarded == "interrupted"
        await s.advance(60)
        assert (call.outcome, s.results, s.said) == ("ok", [], [])  # what had begun was finished


async def test_an_interruption_after_the_agent_was_told_leaves_the_call_alone() -> None:
    async with scripted_session(working()) as s:
        await parked(s)
        await s.agent_says("I am on it. Meanwhile, may I tell you about")
        await s.barge_in("No.")
        await s.agent_says("All right.")
        await s.reply_done()
        await s.advance(40)
        assert [said.text.startswith(FOLLOW_UP) for said in s.said] == [True]


@pytest.mark.parametrize(("follow_up_within", "told"), [(29, 1), (27, 0)])
async def test_an_outcome_whose_topic_is_over_is_kept_and_not_told(follow_up_within: float, told: int) -> None:
    async with scripted_session(working(follow_up_within=follow_up_within)) as s:
        await parked(s)
        await s.advance(40)
        assert len(s.said) == told


async def test_a_parked_call_that_fails_is_told_as_a_failure() -> None:
    async with scripted_session(working(timeout=10)) as s:
        await parked(s)
        await s.advance(20)
        (said,) = s.said
        assert "has failed now" in said.text
        assert "work did not answer within 10 s" in said.text


async def test_no_filler_and_no_progress_is_said_once_the_agent_was_told() -> None:
    async with scripted_session(working(filler="Say that it takes a while.", filler_after=1.5)) as s:
        call = await s.call("work")
        await s.reply_done()
        await s.advance(20)
        assert [said.text for said in s.said] == ["Say that it takes a while."]
        assert call.result is not None


# ------------------------------------------------------------------------------------------------- what the host sees


async def test_the_host_sees_a_call_parked_and_then_settled_with_its_outcome() -> None:
    tools, done = Toolset(), asyncio.Event()

    @tools.tool(answer_within=0.01)
    async def work() -> str:
        await done.wait()
        return "it is done"

    seen: list[Any] = []

    def take(event: object) -> None:
        if isinstance(event, ToolParked | ToolSettled):
            seen.append(event)
        if isinstance(event, ToolParked):
            done.set()

    steps = (Reply("One moment.", (Call("work"),), 0.4), Until("reply.create"), HangUp())
    async with call(script(*steps), tools) as (sim, session):
        await take_all(session, take)
        assert len(sim.ledger.calls) == 1
    parked, settled = seen
    assert (parked.name, parked.key) == ("work", settled.key)
    assert (settled.how, settled.outcome) == ("told", "ok")


@pytest.mark.parametrize(("options", "how"), [({"follow_up_within": 1e-9}, "kept"), ({"timeout": 60}, "ended")])
async def test_the_host_sees_what_becomes_of_a_call_that_is_not_told(options: dict[str, Any], how: str) -> None:
    tools, done = Toolset(), asyncio.Event()

    @tools.tool(answer_within=0.01, **options)
    async def work() -> None:
        await done.wait()

    settled: list[ToolSettled] = []
    async with call(script(Reply("One moment.", (Call("work"),), 0.4)), tools) as (sim, session):
        async for event in session:
            if isinstance(event, ToolParked):
                if how == "ended":
                    await session.end()
                done.set()
            elif isinstance(event, ToolSettled):
                settled.append(event)
                if how == "kept":
                    await fence(session)
                    break
        assert "reply.create" not in "".join(sent(sim.ledger))
    assert [each.how for each in settled] == [how]


async def test_a_call_that_outlives_its_session_goes_on_until_the_bridge_ends() -> None:
    tools, ended = Toolset(), asyncio.Event()
    begun: list[str] = []

    @tools.tool(answer_within=0.01, timeout=60)
    async def work() -> None:
        begun.append("work")
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with tidily(), Simulator(script(Reply("One moment.", (Call("work"),), 0.4)), pace=PACE) as sim:
        async with Bridge(tools) as bridge:
            async with bridge.session(AssemblyAI(url=sim.url), api_key="offline", delivery=BRISK) as session:
                async for event in session:
                    if isinstance(event, ToolParked):
                        break
            assert (begun, ended.is_set(), bridge.runner.parked) == (["work"], False, 1)
        assert (ended.is_set(), bridge.runner.parked) == (True, 0)


# ------------------------------------------------------------------------------------------------------- approvals


async def test_a_call_is_approved_by_whom_the_host_names_and_the_agent_hears_the_result() -> None:
    asked: list[ApprovalRequest] = []

    async def approver(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    tools = Toolset()

    @tools.tool(approval="always_ask")
    async def work() -> str:
        return "paid"

    steps = (Reply("One moment.", (Call("work"),), 0.4), Until("tool.result"), HangUp())
    async with call(script(*steps), tools, approver=approver) as (sim, session):
        await session.run()
        (record,) = sim.ledger.calls
        assert (record.result, record.is_error, len(asked)) == ('"paid"', False, 1)
        assert asked[0].session_id == session.id


@pytest.mark.parametrize(
    "steps",
    [
        (Reply("One moment, please.", (Call("work"),), 20), BargeIn("Stop!", after=0.5)),
        (Reply("One moment, please.", (Call("work"),), 0.4), Wait(0.5), HangUp()),
    ],
    ids=["an interruption", "a hang-up"],
)
async def test_what_ends_the_call_takes_the_request_back(steps: tuple[Step, ...]) -> None:
    asked: list[ApprovalRequest | Resolved] = []
    tools, runs = Toolset(), []

    @tools.tool(approval="always_ask")
    async def work() -> None:
        runs.append("work")

    async with tidily(), Bridge(tools) as bridge, Simulator(script(*steps), pace=PACE) as sim:
        with bridge.approvals.attached(asked.append):
            async with bridge.session(AssemblyAI(url=sim.url), api_key="offline", delivery=BRISK):
                await until(lambda: len(asked) == 2)
        request, resolved = asked
        assert isinstance(request, ApprovalRequest)
        assert resolved == Resolved(request, Resolution.REVOKED)
        assert bridge.approvals.decide(request.id, approve=True, by="anna") == Expired(resolved)
    assert runs == []


async def test_new_tools_take_the_requests_for_the_old_ones_back() -> None:
    tools, other = Toolset(), Toolset()
    for each in (tools, other):

        @each.tool(approval="always_ask")
        async def work() -> None: ...

    async with Bridge(tools) as bridge, Simulator(script(Reply("One moment.", (Call("work"),), 0.4)), pace=PACE) as sim:
        with bridge.approvals.attached(lambda told: None):
            async with bridge.session(AssemblyAI(url=sim.url), api_key="offline"):
                await until(lambda: bool(bridge.approvals.pending))
                await bridge.replace(dict(tools))
                assert len(bridge.approvals.pending) == 1
                await bridge.replace(other)
                assert bridge.approvals.pending == ()


# -------------------------------------------------------------------------------------------------- behind the sidecar


async def test_behind_the_sidecar_a_call_is_approved_from_this_loop_and_its_outcome_told() -> None:
    tools = Toolset()

    @tools.tool(approval="always_ask", answer_within=0.02)
    async def work() -> str:
        return "paid"

    async with providing() as providers, relaying(providers.url, tools) as relay:
        with relay.approvals.attached(lambda told: None):
            async with dial(address(relay)) as application:
                provider = await providers.next()
                await application.send(json.dumps({"type": "session.update", "session": {}}))
                await provider.ready()
                await provider.call("work", x=1)
                interim = json.loads((await provider.hear("tool.result"))["result"])
                assert interim["message"].startswith("It waits to be approved by a person.")
                (request,) = relay.approvals.pending
                await provider.say("reply.started", reply_id="r1")
                await provider.say("reply.done", reply_id="r1")
                decision = relay.approvals.decide(request.id, approve=True, by="anna")
                assert isinstance(decision, Decided)
                follow_up = await provider.hear("reply.create")
                assert follow_up["instructions"].startswith(FOLLOW_UP)
                assert follow_up["instructions"].endswith('"paid"')


async def test_behind_the_sidecar_a_call_left_open_outlives_its_session_until_the_end() -> None:
    tools, tickets = Toolset(), list[str]()

    @tools.tool
    async def work() -> Parked:
        tickets.append("left")
        return Parked("The courier is on the way.")

    async with providing() as providers, relaying(providers.url, tools) as relay:
        async with dial(address(relay)) as application:
            provider = await providers.next()
            await application.send(json.dumps({"type": "session.update", "session": {}}))
            await provider.ready()
            await provider.call("work")
            interim = json.loads((await provider.hear("tool.result"))["result"])
            assert interim["message"] == "The courier is on the way."
            await provider.say("session.ended")
            providers.over.set()
        await until(lambda: not relay.sessions)
        assert (tickets, len(relay.runner.waiting)) == (["left"], 1)
    assert relay.runner.waiting == ()
