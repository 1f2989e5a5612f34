"""OpenAI Agent Sessions from end to end: tools, a session, the HTTP transport, and the offline provider."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from bridge import (
    ApprovalRequest,
    AuthenticationFailed,
    ConfigurationRefused,
    ProviderError,
    ReplyDone,
    ReplyStarted,
    ToolError,
    Toolset,
    ToolSettled,
)
from bridge.agents.openai_sessions import OpenAISessions
from bridge.core.dialect import Delivery
from bridge.dialects.openai_sessions import OPENAI_SESSIONS
from bridge.runner.approvals import Approvals
from bridge.runner.runner import Runner
from bridge.session.consent import Asking
from bridge.session.session import Session, SessionOptions
from bridge.simulator.openai_sessions import (
    Ask,
    AskApproval,
    AwaitResults,
    Call,
    Cancel,
    Cut,
    Effect,
    Fail,
    FailSession,
    Fate,
    Fault,
    On,
    Request,
    Rules,
    Scenario,
    Simulator,
    Steer,
    Step,
    Tell,
    Verdict,
    Wait,
)
from bridge.tools.tool import Tool
from bridge.transports.http import HttpTransport
from bridge.transports.patience import Patience

pytestmark = pytest.mark.anyio

BOOK = Ask((Call("book", {"no": "77"}, "a"),))
QUICK = Patience(first_pause=0.01, longest_pause=0.05, give_up=3.0, confirm_after=0.5)


class Desk:
    """Tools that count what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = anyio.Event()
        self.tools = Toolset()

        @self.tools.tool(effect="write")
        async def book(no: str = "77") -> dict[str, str]:
            """Book a parcel."""
            self.done.append(f"book {no}")
            return {"booked": no}

        @self.tools.tool(effect="read")
        async def wait() -> str:
            """Wait for the gate."""
            await self.gate.wait()
            self.done.append("wait")
            return "open"

        @self.tools.tool(effect="read")
        async def refuse() -> None:
            """Refuse."""
            raise ToolError("No such parcel.")

        @self.tools.tool(effect="read")
        async def odd(what: str) -> Any:
            """Return something odd."""
            return {"nan": math.nan, "half": "\ud800", "when": datetime(2026, 1, 2, tzinfo=UTC), "none": None}[what]


@asynccontextmanager
async def serving(
    sim: Simulator,
    tools: Mapping[str, Tool],
    *,
    api_key: str = "k",
    patience: Patience = QUICK,
    delivery: Delivery | None = None,
    approvals: Asking | None = None,
    **settings: Any,
) -> AsyncIterator[Session]:
    """A session with these tools."""
    given = settings or {"model": "m", "environment": "openai_hosted"}
    agent = OpenAISessions(**given, url=sim.url)
    runner = Runner()
    session = Session(
        agent,
        tools,
        runner.session(max_concurrent=4),
        observers=(),
        metadata={},
        delivery=delivery,
        options=SessionOptions(),
        approvals=approvals,
    )
    transport = HttpTransport(agent.dialect.endpoint(agent.url, api_key), agent.dialect, patience=patience)
    try:
        with anyio.fail_after(15):
            async with session.over(transport):
                yield session
    finally:
        runner.close()


async def until(session: Session, true: Callable[[Any], bool]) -> list[Any]:
    """The session's events up to the first of which this is true."""
    events = []
    async for event in session:
        events.append(event)
        if true(event):
            return events
    raise AssertionError(f"the session ended after {events}")


def turn_over(event: Any) -> bool:
    return isinstance(event, ReplyDone)


def turns(*steps: Step, **rules: Any) -> Scenario:
    return Scenario((steps,), Rules(**rules))


async def one_turn(scenario: Scenario, desk: Desk) -> Simulator:
    """One turn from its message to its end; the provider as it was then."""
    async with Simulator(scenario) as sim, serving(sim, desk.tools) as session:
        session.say("Please.")
        await sim.turn_over()
        return sim


# ------------------------------------------------------------------------------------------------ answers


async def test_parallel_calls_are_run_and_answered_once_each() -> None:
    desk = Desk()
    calls = Ask((Call("book", {"no": "1"}), Call("book", {"no": "2"}), Call("refuse")))
    sim = await one_turn(turns(calls, Tell()), desk)
    assert sorted(desk.done) == ["book 1", "book 2"]
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED] * 3
    assert sim.ledger.said == ['book says: {"booked":"1"}. book says: {"booked":"2"}. refuse failed: No such parcel..']
    assert not sim.ledger.violations


async def test_a_fast_result_does_not_wait_for_a_slow_one() -> None:
    desk = Desk()
    scenario = turns(Ask((Call("wait"), Call("book"))), Tell())
    async with Simulator(scenario) as sim, serving(sim, desk.tools) as session:
        session.say("Please.")
        await sim.until(lambda ledger: any(call.name == "book" and call.fate is Fate.ANSWERED for call in ledger.calls))
        assert sim.ledger.call("wait").fate is Fate.OPEN
        desk.gate.set()
        await sim.turn_over()
        assert sim.ledger.turns == {"turn_1": "completed"}


@pytest.mark.parametrize(
    ("call", "failure"),
    [
        (Call("unknown"), "no such tool"),
        (Call("book", {"no": []}), "no"),
        (Call("book", [1]), "object"),
    ],
)
async def test_a_call_that_cannot_be_run_is_answered_with_a_failure(call: Call, failure: str) -> None:
    desk = Desk()
    sim = await one_turn(turns(Ask((call,)), Tell()), desk)
    (answer,) = sim.ledger.answers
    assert (answer.success, answer.verdict) == (False, Verdict.ACCEPTED)
    assert failure in (answer.error or "")
    assert desk.done == []


@pytest.mark.parametrize(("what", "output"), [("nan", "null"), ("when", "2026-01-02T00:00:00Z"), ("none", "null")])
async def test_an_odd_value_arrives_as(what: str, output: str) -> None:
    sim = await one_turn(turns(Ask((Call("odd", {"what": what}),)), Tell()), Desk())
    (answer,) = sim.ledger.answers
    assert (answer.verdict, str(answer.output).replace("+00:00", "Z")) == (Verdict.ACCEPTED, output)


async def test_half_a_character_is_answered_whatever_becomes_of_it() -> None:
    sim = await one_turn(turns(Ask((Call("odd", {"what": "half"}),)), Tell()), Desk())
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]


async def test_arguments_that_come_as_text_are_read() -> None:
    desk = Desk()
    await one_turn(turns(BOOK, Tell(), arguments_as_text=True), desk)
    assert desk.done == ["book 77"]


# ------------------------------------------------------------------------------------------------ oddities


async def test_a_message_that_steers_a_turn_leaves_its_call_as_it_is() -> None:
    desk = Desk()
    sim = await one_turn(turns(BOOK, Steer("Quickly!"), Tell()), desk)
    assert desk.done == ["book 77"]
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]
    assert sim.ledger.turns == {"turn_1": "completed"}


@pytest.mark.parametrize(
    "rules", [{"required_actions_sent": 3}, {"idle_sent": 2}, {"start_lag": 0.05}, {"apply_lag": 0.1}]
)
async def test_whatever_the_provider_does_two_turns_run_their_tools_once_each(rules: dict[str, Any]) -> None:
    desk = Desk()
    scenario = Scenario(((BOOK, Tell()), (BOOK, Tell())), Rules(**rules))
    async with Simulator(scenario) as sim, serving(sim, desk.tools) as session:
        for number in (1, 2):
            session.say("Please.")
            await until(session, turn_over)
            await sim.turn_over(number)
        assert desk.done == ["book 77", "book 77"]
        assert [call.fate for call in sim.ledger.calls] == [Fate.ANSWERED, Fate.ANSWERED]


# ------------------------------------------------------------------------------------------------ ends of turns


@pytest.mark.parametrize("ending", [Cancel(), Fail()])
async def test_after_a_turn_that_was_cut_short_something_is_said_at_once(ending: Step) -> None:
    endless = replace(OPENAI_SESSIONS.delivery, max_hold=600.0)
    scenario = Scenario(((Ask((Call("wait"),)), Wait(0.1), ending), (BOOK, Tell())))
    desk = Desk()
    async with Simulator(scenario) as sim, serving(sim, desk.tools, delivery=endless) as session:
        session.say("Please.")
        await until(session, turn_over)
        session.say("And now?")
        await sim.turn_over(2)
        assert sim.ledger.messages == ["Please.", "And now?"]


@pytest.mark.parametrize("allowed", [True, False])
async def test_whoever_decides_about_tools_is_asked_about_calls_of_the_providers_servers(allowed: bool) -> None:
    requests: list[ApprovalRequest] = []

    async def decide(request: ApprovalRequest) -> bool:
        requests.append(request)
        return allowed

    desk, approvals = Desk(), Approvals(decide)
    rules = Rules(required_actions_sent=2)
    scenario = Scenario(((Ask((Call("wait"),)), AskApproval("shop", "refund", {"amount": 5}), Tell()),), rules)
    async with Simulator(scenario) as sim, serving(sim, desk.tools, approvals=approvals) as session:
        session.say("Please.")
        await sim.until(lambda ledger: len(ledger.posts) == 2)
        desk.gate.set()
        await sim.turn_over()
    (request,) = requests
    assert (request.tool, json.loads(request.arguments)) == ("shop.refund", {"amount": 5})
    assert [each.decision for each in sim.ledger.approvals] == ["approve" if allowed else "deny"]
    assert [post.types for post in sim.ledger.posts[1:]] == [("mcp_approval_request_result",), ("tool_result",)]


@pytest.mark.parametrize(
    ("fault", "posts"),
    [
        (Fault(on=On.APPROVALS, status=202, effect=Effect.NONE), 2),
        (Fault(on=On.APPROVALS, status=0, effect=Effect.NONE), 2),
        (Fault(on=On.APPROVALS, status=503, effect=Effect.NOW), 1),
        (Fault(on=On.APPROVALS, status=0, effect=Effect.NOW), 1),
    ],
)
async def test_a_decision_that_may_be_lost_is_looked_for_and_counts_once(fault: Fault, posts: int) -> None:
    async def decide(request: ApprovalRequest) -> bool:
        return True

    asking = Scenario(((AskApproval("shop", None, message="May it?"), Tell()),), faults=(fault,))
    hasty = replace(QUICK, confirm_after=0.05)
    async with (
        Simulator(asking) as sim,
        serving(sim, Desk().tools, approvals=Approvals(decide), patience=hasty) as session,
    ):
        session.say("Please.")
        await sim.turn_over()
    assert [each.decision for each in sim.ledger.approvals] == ["approve"]
    assert [post.types for post in sim.ledger.posts].count(("mcp_approval_request_result",)) == posts


@pytest.mark.parametrize("ending", [Cancel(), Fail()])
async def test_a_turn_that_is_cut_short_voids_its_calls_and_nothing_is_posted_for_them(ending: Step) -> None:
    desk = Desk()
    scenario = Scenario(((Ask((Call("wait"),)), Wait(0.1), ending), (BOOK, Tell())))
    async with Simulator(scenario) as sim, serving(sim, desk.tools) as session:
        session.say("Please.")
        events = await until(session, turn_over)
        assert events[-1].interrupted
        settled = await until(session, lambda event: isinstance(event, ToolSettled))
        assert settled[-1].how == "interrupted"
        desk.gate.set()
        await session.send({"events": [message("And now?")]})  # a fence: the next turn is answered after that
        await sim.turn_over(2)
        assert [call.fate for call in sim.ledger.calls] == [Fate.ABANDONED, Fate.ANSWERED]
        assert sim.ledger.calls[0].answers == []


def message(text: str) -> dict[str, Any]:
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"type": "agent.session.input.message", "input": [user]}


async def test_a_turn_that_was_cancelled_while_nobody_listened_voids_its_calls() -> None:
    desk = Desk()
    async with Simulator(turns(Ask((Call("wait"),)), Wait(0.1), Cut(), Cancel())) as sim:
        async with serving(sim, desk.tools) as session:
            session.say("Please.")
            settled = await until(session, lambda event: isinstance(event, ToolSettled))
            assert settled[-1].how == "interrupted"
        assert sim.ledger.answers == []


async def test_a_session_that_fails_ends_with_the_providers_error() -> None:
    async with Simulator(turns(BOOK, AwaitResults(), FailSession())) as sim:
        with pytest.raises(ProviderError, match="session_failed"):
            await one_session(sim)


async def one_session(sim: Simulator) -> None:
    async with serving(sim, Desk().tools) as session:
        session.say("Please.")
        await session.run()


async def test_leaving_ends_at_once_and_leaves_the_turn_to_others() -> None:
    first, second = Desk(), Desk()
    async with Simulator(turns(Wait(0.1), BOOK, Tell())) as sim:
        async with serving(sim, first.tools) as session:
            session.say("Please.")
            await until(session, lambda event: isinstance(event, ReplyStarted))
        assert first.done == []
        async with serving(sim, second.tools, session_id=sim.ledger.session_id):
            await sim.turn_over()
        assert second.done == ["book 77"]
        assert sim.ledger.turns == {"turn_1": "completed"}


# ------------------------------------------------------------------------------------------------ setup and changes


async def test_a_session_that_is_created_with_input_is_served_from_its_first_call() -> None:
    desk = Desk()
    async with Simulator(turns(BOOK, Tell())) as sim, serving(sim, desk.tools, model="m", input="Book it.") as session:
        await until(session, turn_over)
        assert desk.done == ["book 77"]
        assert sim.ledger.messages == ["Book it."]


async def test_a_wrong_key_is_told_as_such() -> None:
    async with Simulator(api_key="right") as sim:
        with pytest.raises(AuthenticationFailed, match="unauthorized"):
            async with serving(sim, {}, api_key="wrong"):
                pass


async def test_a_setting_that_is_refused_is_told_as_such() -> None:
    async with Simulator() as sim:
        with pytest.raises(ConfigurationRefused, match="metadata"):
            async with serving(sim, {}, model="m", input="Hi", metadata={"k" * 65: "v"}):
                pass


async def test_a_session_that_does_not_exist_cannot_be_attached_to() -> None:
    async with Simulator() as sim:
        with pytest.raises(ConfigurationRefused, match="not_found_error"):
            async with serving(sim, {}, session_id="sess_none"):
                pass


async def test_tools_are_replaced_while_the_session_runs() -> None:
    desk, other = Desk(), Toolset()

    @other.tool(effect="read")
    async def later() -> str:
        """Do it later."""
        return "later"

    async with Simulator(turns(Ask((Call("later"),)), Tell())) as sim, serving(sim, desk.tools) as session:
        await session.update(tools=other)
        session.say("Please.")
        await sim.turn_over()
        assert sim.ledger.said == ["later says: later."]


async def test_settings_are_changed_while_the_session_runs() -> None:
    async with Simulator() as sim, serving(sim, Desk().tools) as session:
        await session.update(metadata={"a": "b"})
        path = f"/v1/agents/sessions/{sim.ledger.session_id}"
        assert Request("POST", path, 200) in sim.requests
