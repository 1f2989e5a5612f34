"""What the provider asks about calls: who decides, and what a decision is worth later."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge import ApprovalRequest, CallContext, CallKey, Herm, Session, SessionOptions, ToolCall, Toolset
from bridge.core.events import ApprovalAnswer
from bridge.runner.approvals import Approvals, Approver, Resolution
from bridge.runner.runner import Runner
from bridge.session.consent import Consent

pytestmark = pytest.mark.anyio

CALL = ToolCall("c1", "send_money", '{"amount": 5, "to": "Ann"}')


class Answers:
    """What the provider is told."""

    def __init__(self) -> None:
        self.told: list[ApprovalAnswer] = []
        self.came = asyncio.Event()

    def __call__(self, answer: ApprovalAnswer) -> None:
        self.told.append(answer)
        self.came.set()


async def yes(request: ApprovalRequest) -> bool:
    return True


async def no(request: ApprovalRequest) -> bool:
    return False


async def never(request: ApprovalRequest) -> bool:
    await asyncio.Event().wait()
    return True


def context(key: CallKey, name: str) -> CallContext:
    return CallContext(session_id="s", key=key, tool=name)


@asynccontextmanager
async def asked(approver: Approver | None, call: ToolCall = CALL) -> AsyncIterator[tuple[Consent, Answers, Approvals]]:
    """The provider has asked about this call, and has been told, or, where nobody ever decides, is waiting."""
    answers, begun = Answers(), asyncio.Event()
    approvals = Approvals(approver, observers=(lambda _: begun.set(),))
    consent = Consent(approvals, context, answers)
    try:
        consent.asked(call, None)
        async with asyncio.timeout(20):
            await (begun if approver is never else answers.came).wait()
        yield consent, answers, approvals
    finally:
        await consent.aclose()


@pytest.mark.parametrize(("approver", "allowed"), [(yes, True), (no, False), (None, False)])
async def test_the_provider_is_told_what_was_decided(approver: Approver | None, allowed: bool) -> None:
    async with asked(approver) as (consent, answers, _):
        assert answers.told == [ApprovalAnswer("c1", allowed)]
        assert consent.forbids(CALL) is not allowed


async def test_whoever_decides_is_shown_all_digits_of_a_number() -> None:
    shown: list[str] = []

    async def look(request: ApprovalRequest) -> bool:
        shown.append(request.arguments)
        return True

    async with asked(look, ToolCall("c1", "send_money", '{"to":41111111111111111111111}')):
        assert shown == ['{"to":41111111111111111111111}']


async def test_a_tool_of_the_providers_own_may_have_any_name() -> None:
    async with asked(yes, ToolCall("c1", "shop.refund/" + "x" * 100, "{}")) as (_, answers, _):
        assert answers.told == [ApprovalAnswer("c1", allowed=True)]


async def test_what_is_asked_again_is_decided_once() -> None:
    async with asked(yes) as (consent, answers, approvals):
        consent.asked(CALL, None)
        await asyncio.sleep(0)
        assert answers.told == [ApprovalAnswer("c1", allowed=True)]
        assert approvals.resolved[Resolution.APPROVED] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "forbidden"),
    [
        ("send_money", '{"to":"Ann","amount":5}', False),
        ("send_money", '{"to":"Ann","amount":500}', True),
        ("send_money", "{", True),
        ("close_account", CALL.arguments, True),
    ],
)
async def test_an_approval_is_for_this_call_and_no_other(name: str, arguments: str, forbidden: bool) -> None:
    async with asked(yes) as (consent, _, _):
        assert consent.forbids(ToolCall("c1", name, arguments)) is forbidden


async def test_a_call_that_was_never_asked_about_is_free() -> None:
    async with asked(no) as (consent, _, _):
        assert not consent.forbids(ToolCall("c2", "send_money"))


@pytest.mark.parametrize("arguments", ["{", "[1]", "5"])
async def test_nobody_can_approve_arguments_that_are_no_object(arguments: str) -> None:
    async with asked(yes, ToolCall("c1", "send_money", arguments)) as (_, answers, approvals):
        assert answers.told == [ApprovalAnswer("c1", allowed=False)]
        assert not approvals.resolved


async def test_without_anybody_to_ask_the_answer_is_no() -> None:
    answers = Answers()
    consent = Consent(None, context, answers)
    consent.asked(CALL, None)
    async with asyncio.timeout(20):
        await answers.came.wait()
    assert answers.told == [ApprovalAnswer("c1", allowed=False)]
    await consent.aclose()


@pytest.mark.parametrize("allowed", [True, False])
async def test_what_the_host_has_answered_by_itself_is_asked_no_more_and_counts(allowed: bool) -> None:
    async with asked(never) as (consent, answers, approvals):
        consent.answered(ApprovalAnswer("c1", allowed))
        consent.answered(ApprovalAnswer("c1", not allowed))
        consent.answered(ApprovalAnswer("unknown", allowed=True))
        assert consent.forbids(CALL) is not allowed
        await consent.aclose()
        assert (approvals.pending, answers.told) == ((), [])


async def test_a_call_that_comes_while_we_still_wait_was_approved_by_others() -> None:
    async with asked(never) as (consent, answers, approvals):
        assert not consent.forbids(CALL)
        await consent.aclose()
        assert (approvals.resolved[Resolution.REVOKED], answers.told) == (1, [])


async def test_after_the_end_of_the_reply_a_late_yes_is_worth_nothing() -> None:
    async with asked(never) as (consent, answers, approvals):
        (request,) = approvals.pending
        consent.over()
        await consent.aclose()
        approvals.decide(request.id, approve=True, by="anna")
        assert answers.told == []
        assert approvals.resolved[Resolution.APPROVED] == 0


class Scripted:
    """A transport to a provider that is played by the test."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[str] = asyncio.Queue()
        self.outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def say(self, kind: str, **payload: Any) -> None:
        told = {"id": kind, "type": kind, "payload": {"type": kind, **payload}}
        self.incoming.put_nowait(json.dumps(told))

    async def receive(self) -> str:
        return await self.incoming.get()

    async def send(self, frame: str | bytes) -> None:
        message = json.loads(frame)
        if "attach" in message:
            self.incoming.put_nowait(json.dumps({"id": "session_7", "agentId": "agent_1"}))
        self.outgoing.put_nowait(message)

    async def told(self, kind: str) -> dict[str, Any]:
        """The next event of this kind that is sent."""
        while True:
            for event in (await self.outgoing.get()).get("events", ()):
                if event["type"] == kind:
                    return dict(event)

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(("amount", "status", "ran"), [(5, "completed", [5]), (500, "failed", [])])
async def test_what_is_called_under_the_id_of_another_approved_call_is_answered_and_not_run(
    amount: int, status: str, ran: list[int]
) -> None:
    tools, runs = Toolset(), list[int]()

    @tools.tool
    async def send_money(amount: int) -> str:
        """Send money."""
        runs.append(amount)
        return "sent"

    runner, line = Runner(), Scripted()
    session = Session(
        Herm(session_id="session_7"),
        tools,
        runner.session(),
        observers=(),
        metadata={},
        delivery=None,
        options=SessionOptions(end_timeout=0.0),
        approvals=Approvals(yes),
    )
    try:
        async with asyncio.timeout(20), session.over(line):
            line.say("agent.approval_request", tool_use_id="one", name="send_money", input={"amount": 5})
            assert (await line.told("user.tool_confirmation"))["result"] == "allow"
            line.say("agent.custom_tool_use", tool_use_id="one", name="send_money", input={"amount": amount})
            answer = await line.told("user.custom_tool_result")
        assert (answer["status"], runs) == (status, ran)
    finally:
        runner.close()
