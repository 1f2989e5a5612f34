"""Calls that somebody has to approve: what is asked, who decides, and what is too late."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bridge.core.events import CallKey
from bridge.runner.approvals import (
    AlreadyDecided,
    ApprovalRequest,
    Approvals,
    Approver,
    Decided,
    Expired,
    Resolution,
    Resolved,
    Unknown,
    _Open,
)
from bridge.runner.runner import Outcome, Runner
from bridge.testing.clock import VirtualClock
from bridge.tools import CallContext
from tests.runner.test_runner import Desk, error_of

pytestmark = pytest.mark.anyio


class Office(Desk):
    """A desk whose tool `pay` has to be approved: what was asked, how it ended, and what was paid."""

    def __init__(self, clock: VirtualClock, approver: Approver | None = None, **limits: int) -> None:
        self.clock = clock
        self.told: list[ApprovalRequest | Resolved] = []
        self.approvals = Approvals(approver, observers=(self.told.append,), clock=lambda: 1000.0)
        self.paid: list[int] = []
        super().__init__(Runner(clock=clock.time, approvals=self.approvals, **limits))

    def pays(self, **options: Any) -> None:
        """Add the tool."""
        options.setdefault("approval", "always_ask")

        @self.tools.tool(**options)
        async def pay(amount: int, card: str = "") -> str:
            self.paid.append(amount)
            return "paid"

    async def asked(self, arguments: str = '{"amount":5}') -> ApprovalRequest:
        """Call it, and wait until somebody is asked."""
        self.start("pay", arguments)
        await self.clock.rest()
        return self.approvals.pending[-1]

    def ends(self) -> list[Resolution]:
        return [each.how for each in self.told if isinstance(each, Resolved)]


@pytest.fixture
async def clock(anyio_backend: str) -> AsyncIterator[VirtualClock]:
    with VirtualClock.borrowed() as clock:
        yield clock


@pytest.fixture
async def office(clock: VirtualClock) -> AsyncIterator[Office]:
    """With somebody who hears of requests, and decides by code."""
    office = Office(clock)
    with office.approvals.attached(lambda told: None):
        yield office
    await office.calls.aclose(1)
    assert (office.calls.running, office.approvals.pending) == (0, ())
    office.runner.close()


def yes(request: ApprovalRequest) -> Any:
    return asyncio.sleep(3, True)


# --------------------------------------------------------------------------------------------------------- the policy


async def test_a_tool_that_needs_no_approval_just_runs(office: Office) -> None:
    office.pays(approval="always_allow")
    assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.OK
    assert office.told == []


async def test_a_tool_that_is_never_allowed_is_answered_without_anybody_being_asked(office: Office) -> None:
    office.pays(approval="always_deny")
    finished = await office.result("pay", '{"amount":5}')
    assert (finished.outcome, error_of(finished)) == (Outcome.DENIED, "pay is not allowed, and was not run")
    assert (office.told, office.paid) == ([], [])


async def test_a_rule_decides_by_arguments_and_by_the_call(office: Office) -> None:
    def rule(arguments: Mapping[str, Any], call: CallContext) -> Any:
        assert call.tool == "pay"
        return "always_ask" if arguments["amount"] > 100 else "always_allow"

    office.pays(approval=rule)
    assert (await office.result("pay", '{"amount":100}')).outcome is Outcome.OK
    request = await office.asked('{"amount":101}')
    office.approvals.decide(request.id, approve=False, by="anna")
    await office.clock.rest()
    assert office.outcomes() == [Outcome.OK, Outcome.DENIED]


def fails(arguments: object, call: object) -> Any:
    raise KeyError("amount 5")


@pytest.mark.parametrize("rule", [fails, lambda arguments, call: "maybe", lambda arguments, call: None])
async def test_a_rule_that_does_not_work_forbids_the_call(
    office: Office, rule: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    office.pays(approval=rule)
    assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.DENIED
    assert "the approval rule of tool pay" in caplog.text
    assert "amount" not in caplog.text
    assert office.paid == []


# ------------------------------------------------------------------------------------------------------ the decision


async def test_a_call_runs_once_it_is_approved(office: Office) -> None:
    office.pays()
    request = await office.asked()
    await asyncio.sleep(30)
    assert office.paid == []
    assert office.approvals.decide(request.id, approve=True, by="anna", reason="known customer") == Decided(
        Resolved(request, Resolution.APPROVED, "anna", "known customer")
    )
    await office.clock.rest()
    assert (office.paid, office.outcomes()) == ([5], [Outcome.OK])
    assert office.approvals.resolved == {Resolution.APPROVED: 1}


async def test_a_call_that_is_refused_never_runs_and_the_agent_hears_neither_by_whom_nor_why(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    office.pays()
    request = await office.asked()
    office.approvals.decide(request.id, approve=False, by="anna", reason="smells of fraud")
    await office.clock.rest()
    assert (office.paid, office.outcomes()) == ([], [Outcome.DENIED])
    assert error_of(office.finished[0]) == "pay was not approved, and was not run"
    assert f"approval {request.id} of tool pay: denied by anna" in caplog.text
    assert "fraud" not in caplog.text


async def test_the_first_decision_stands_and_whoever_comes_second_hears_of_it(office: Office) -> None:
    office.pays()
    request = await office.asked()
    office.approvals.decide(request.id, approve=False, by="anna")
    for _ in range(2):
        second = office.approvals.decide(request.id, approve=True, by="bert")
        assert second == AlreadyDecided(Resolved(request, Resolution.DENIED, "anna"))
        await office.clock.rest()
    assert (office.paid, office.ends()) == ([], [Resolution.DENIED])


async def test_nobody_decides_what_was_never_asked(office: Office) -> None:
    assert office.approvals.decide("made up", approve=True, by="anna") == Unknown()


async def test_a_request_expires_and_is_not_run_by_a_late_decision(office: Office) -> None:
    office.pays(approval_timeout=20)
    request = await office.asked()
    await asyncio.sleep(20.1)
    assert office.outcomes() == [Outcome.DENIED]
    late = office.approvals.decide(request.id, approve=True, by="anna")
    assert late == Expired(Resolved(request, Resolution.EXPIRED))
    await asyncio.sleep(1)
    assert (office.paid, office.ends()) == ([], [Resolution.EXPIRED])


async def test_waiting_for_a_decision_counts_towards_no_other_limit(clock: VirtualClock) -> None:
    office = Office(clock)
    office.calls = office.runner.session(max_concurrent=1)

    @office.tools.tool(approval="always_ask", approval_timeout=500, timeout=5, queue_timeout=1)
    async def wait() -> None:
        await asyncio.sleep(4)

    office.pays(approval="always_allow")
    with office.approvals.attached(lambda told: None):
        office.start("wait")
        await asyncio.sleep(400)
        assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.OK  # its place is free
        office.approvals.decide(office.approvals.pending[0].id, approve=True, by="anna")
        await asyncio.sleep(4.5)
    assert office.outcomes() == [Outcome.OK, Outcome.OK]


async def test_a_decision_may_come_from_another_thread(office: Office) -> None:
    office.pays()
    request = await office.asked()
    decided: list[object] = []
    decide = lambda: decided.append(office.approvals.decide(request.id, approve=True, by="anna"))  # noqa: E731
    thread = threading.Thread(target=decide)
    thread.start()
    thread.join()
    await office.until(lambda: bool(office.finished))
    assert office.paid == [5]


# --------------------------------------------------------------------------------------------------- what is shown


async def test_a_request_shows_everything_but_what_the_tool_redacts(office: Office) -> None:
    office.pays(redact=("card",), approval_timeout=20)
    request = await office.asked('{"amount":"5","card":"4111111111111111"}')
    assert json.loads(request.arguments) == {"amount": 5, "card": "(masked)"}
    assert (request.session_id, request.key, request.tool) == ("s", CallKey(0, "c1"), "pay")
    assert (request.asked, request.seconds) == (1000.0, 20)
    assert "4111111111111111" not in repr(request)
    assert "amount" not in repr(request)
    assert office.told == [request]


async def test_a_request_is_for_this_call_and_these_arguments_alone(clock: VirtualClock) -> None:
    office = Office(clock)
    office.pays(redact=("card",))
    call = CallContext(session_id="s", key=CallKey(0, "c"), tool="pay")
    prints = [
        office.approvals._request(office.tools["pay"], arguments, context).fingerprint
        for arguments, context in (
            ({"amount": 5, "card": "1"}, call),
            ({"card": "1", "amount": 5}, call),
            ({"amount": 5, "card": "2"}, call),
            ({"amount": 6, "card": "1"}, call),
            ({"amount": 41_111_111_111_111_111_111_111, "card": "1"}, call),
            ({"amount": 41_111_111_111_111_111_111_112, "card": "1"}, call),
            ({"amount": 5, "card": "1"}, replace(call, session_id="t")),
            ({"amount": 5, "card": "1"}, replace(call, key=CallKey(1, "c"))),
            ({"amount": 5, "card": "1"}, replace(call, tool="refund")),
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 8


# -------------------------------------------------------------------------------------------------- who may decide


async def test_where_nobody_could_decide_the_answer_is_no(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office(clock)
    office.pays()
    assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.DENIED
    assert (office.ends(), office.paid) == ([Resolution.UNATTENDED], [])
    assert "attach an approver" in caplog.text


async def test_an_approver_decides(clock: VirtualClock) -> None:
    office = Office(clock, yes)
    office.pays()
    finished = await office.result("pay", '{"amount":5}')
    assert (finished.outcome, office.paid) == (Outcome.OK, [5])
    assert [each.by for each in office.told if isinstance(each, Resolved)] == ["approver"]


@pytest.mark.parametrize("answer", [False, None, "yes", 1])
async def test_only_a_plain_yes_of_the_approver_counts(clock: VirtualClock, answer: Any) -> None:
    office = Office(clock, lambda request: asyncio.sleep(0, answer))
    office.pays()
    assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.DENIED


async def test_an_approver_that_fails_forbids_the_call(clock: VirtualClock, caplog: pytest.LogCaptureFixture) -> None:
    async def approver(request: ApprovalRequest) -> bool:
        raise ConnectionError(request.arguments)

    office = Office(clock, approver)
    office.pays()
    assert (await office.result("pay", '{"amount":5}')).outcome is Outcome.DENIED
    assert "the approver failed (ConnectionError), so tool pay is not run" in caplog.text
    assert "amount" not in caplog.text


async def test_whoever_is_faster_than_the_approver_decides_and_it_is_told_to_stop(clock: VirtualClock) -> None:
    stopped = []

    async def approver(request: ApprovalRequest) -> bool:
        try:
            await asyncio.sleep(50)
        except asyncio.CancelledError:
            stopped.append(True)
            raise
        return False

    office = Office(clock, approver)
    office.pays()
    request = await office.asked()
    office.approvals.decide(request.id, approve=True, by="anna")
    await clock.rest()
    assert (office.paid, office.ends(), stopped) == ([5], [Resolution.APPROVED], [True])


async def test_whoever_is_attached_hears_of_everything_until_they_leave(clock: VirtualClock) -> None:
    office, heard = Office(clock), list[object]()
    office.pays()
    with office.approvals.attached(heard.append):
        request = await office.asked()
        office.approvals.decide(request.id, approve=False, by="anna")
    await office.result("pay", '{"amount":5}')
    assert heard == office.told[:2] == [request, Resolved(request, Resolution.DENIED, "anna")]
    assert office.ends() == [Resolution.DENIED, Resolution.UNATTENDED]


async def test_a_watcher_that_fails_stands_in_nobodys_way(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    def fail(told: object) -> None:
        raise RuntimeError("secret")

    office.pays()
    with office.approvals.attached(fail):
        request = await office.asked()
        office.approvals.decide(request.id, approve=True, by="anna")
        await office.clock.rest()
    assert office.paid == [5]
    assert "whoever watches approvals failed: RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_so_many_may_wait_and_no_more(clock: VirtualClock) -> None:
    office = Office(clock)
    office.approvals._max_pending = 1
    office.pays()
    with office.approvals.attached(lambda told: None):
        await office.asked()
        finished = await office.result("pay", '{"amount":6}')
        assert (finished.outcome, len(office.approvals.pending)) == (Outcome.BUSY, 1)
        await office.calls.aclose(1)


async def test_only_so_many_ends_are_remembered(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.runner.approvals._REMEMBERED", 1)
    office.pays()
    requests = [await office.asked('{"amount":1}'), await office.asked('{"amount":2}')]
    for request in requests:
        office.approvals.decide(request.id, approve=False, by="anna")
    decisions = [office.approvals.decide(request.id, approve=True, by="anna") for request in requests]
    assert [type(each) for each in decisions] == [Unknown, AlreadyDecided]
    await office.clock.rest()


# ----------------------------------------------------------------------------------------------- what is not wanted


async def test_an_interruption_revokes_the_request_and_approved_afterwards_it_is_not_run(office: Office) -> None:
    office.pays()
    request = await office.asked()
    office.calls.discard(request.key)
    await office.clock.rest()
    late = office.approvals.decide(request.id, approve=True, by="anna")
    assert late == Expired(Resolved(request, Resolution.REVOKED))
    await office.clock.rest()
    assert (office.paid, office.outcomes()) == ([], [Outcome.CANCELLED])


async def test_a_call_that_is_discarded_in_the_moment_of_its_approval_is_not_run(office: Office) -> None:
    office.pays()
    request = await office.asked()
    office.approvals.decide(request.id, approve=True, by="anna")
    office.calls.discard(request.key)
    await office.clock.rest()
    assert (office.paid, office.outcomes()) == ([], [Outcome.CANCELLED])


@pytest.mark.parametrize("options", [{}, {"answer_within": 1}])
async def test_the_end_of_the_session_revokes_what_waits(office: Office, options: dict[str, Any]) -> None:
    office.pays(**options)
    request = await office.asked()
    await asyncio.sleep(2)
    await office.calls.aclose(1)
    assert office.ends() == [Resolution.REVOKED]
    office.approvals.decide(request.id, approve=True, by="anna")
    await office.clock.rest()
    assert office.paid == []


async def test_a_shutdown_forbids_what_waits_and_what_comes(office: Office) -> None:
    office.pays()
    await office.asked()
    await office.runner.aclose(1)
    await office.clock.rest()
    await office.result("pay", '{"amount":6}')
    assert (office.outcomes(), office.paid) == ([Outcome.DENIED] * 2, [])
    assert office.ends() == [Resolution.REVOKED, Resolution.UNATTENDED]


async def test_new_tools_revoke_what_waits_for_one_that_has_changed(office: Office) -> None:
    office.pays()
    await office.asked()
    office.approvals.keep(dict(office.tools))
    assert office.ends() == []
    office.approvals.keep({"pay": replace(office.tools["pay"], approval="always_deny")})
    await office.clock.rest()
    assert (office.ends(), office.outcomes(), office.paid) == ([Resolution.REVOKED], [Outcome.DENIED], [])


async def test_a_tool_that_is_switched_off_meanwhile_is_not_run_although_approved(office: Office) -> None:
    office.pays()
    request = await office.asked()
    office.runner.guards.switch(off=["pay"])
    office.approvals.decide(request.id, approve=True, by="anna")
    await office.clock.rest()
    assert (office.outcomes(), office.paid) == ([Outcome.UNAVAILABLE], [])


async def _nothing() -> None: ...


def test_a_decision_after_the_tools_loop_has_closed_harms_nobody() -> None:
    approvals, office = Approvals(), Desk(Runner())
    office.tools.tool(approval="always_ask")(_nothing)
    opened: list[str] = []

    async def leave_open() -> None:
        context = CallContext(session_id="s", key=CallKey(0, "c"), tool="_nothing")
        request = approvals._request(office.tools["_nothing"], {}, context)
        from_here = asyncio.get_running_loop().create_future()
        approvals._open[request.id] = _Open(request, office.tools["_nothing"], from_here)
        opened.append(request.id)

    asyncio.run(leave_open())
    assert isinstance(approvals.decide(opened[0], approve=True, by="anna"), Decided)


# ---------------------------------------------------------------------------------------- its place among the checks


async def test_somebody_is_asked_only_for_a_call_that_would_run(office: Office) -> None:
    office.pays(rate="1/hour")
    request = await office.asked()
    office.approvals.decide(request.id, approve=False, by="anna")
    await office.clock.rest()
    await office.result("pay", '{"amount":"much"}')
    await office.result("pay", '{"amount":6}')
    assert office.outcomes() == [Outcome.DENIED, Outcome.INVALID, Outcome.TOO_OFTEN]
    assert office.ends() == [Resolution.DENIED]


async def test_a_call_that_was_made_before_needs_no_second_approval(office: Office) -> None:
    office.pays(dedupe=60)
    request = await office.asked()
    office.approvals.decide(request.id, approve=True, by="anna")
    await office.clock.rest()
    await office.result("pay", '{"amount":5}')
    assert (office.outcomes(), office.paid) == ([Outcome.OK, Outcome.REPLAYED], [5])


async def test_a_repeated_call_waits_for_the_tools_time_while_the_first_waits_for_its_approval(office: Office) -> None:
    office.pays(dedupe=60, timeout=2, approval_timeout=50)
    request = await office.asked()
    office.start("pay", '{"amount":5} ')
    await asyncio.sleep(10)
    assert (office.outcomes(), len(office.approvals.pending)) == ([Outcome.BUSY], 1)
    office.approvals.decide(request.id, approve=True, by="anna")
    await office.clock.rest()
    assert (office.outcomes(), office.paid) == ([Outcome.BUSY, Outcome.OK], [5])


async def test_a_refusal_says_nothing_about_the_tools_health(clock: VirtualClock) -> None:
    office = Office(clock, lambda request: asyncio.sleep(0, False), max_failures=1)
    office.pays()
    for amount in (1, 2):
        await office.result("pay", json.dumps({"amount": amount}))
    assert office.outcomes() == [Outcome.DENIED] * 2
    assert office.runner.guards.unavailable == frozenset()


async def test_while_somebody_is_asked_the_agent_is_told_that_nothing_has_happened(office: Office) -> None:
    office.pays(answer_within=2, approval_timeout=500)
    request = await office.asked()
    await asyncio.sleep(2.5)
    (interim,) = office.interims
    said = json.loads(interim.output)["message"]
    assert said.startswith("It waits to be approved by a person. Nothing has happened yet")
    await asyncio.sleep(100)
    office.approvals.decide(request.id, approve=True, by="anna")
    await office.clock.rest()
    assert (office.outcomes(), len(office.interims)) == ([Outcome.OK], 1)
