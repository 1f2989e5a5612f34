from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bridge.core.conversation import Step
from bridge.core.events import (
    CallKey,
    Discard,
    DiscardedBy,
    FollowUp,
    ReplyStarted,
    Sent,
    SessionEnded,
    ToolCall,
    ToolResult,
    ToolResults,
)
from bridge.errors import JournalError, ToolError
from bridge.journal import CallId, Claim, Claimed, Concluded, Fate, State
from bridge.journal.memory import MemoryJournal
from bridge.journal.payloads import Keep, Payloads
from bridge.runner.durable import Durable, owner_of_this_life
from bridge.runner.leftovers import NOT_KNOWN, Found, Recovered, died_here, recover
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.tools import CallContext, Tool, Toolset
from bridge.tools.tool import CheckOutcome, Parked

pytestmark = pytest.mark.anyio

LIMIT = 20.0
"""Seconds after which a test that waits has failed."""
NONE = "{}"


class Journal(MemoryJournal):
    """A journal that says what it was asked, in order, and is out of order or slow on demand."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.late: set[str] = set()
        """What is done after all although it is said that it could not be."""
        self.gate = asyncio.Event()
        self.gate.set()

    async def _ask(self, what: str) -> None:
        self.asked.append(what)
        await self.gate.wait()
        if what in self.broken:
            raise JournalError("the disk is full; make room, and it goes on by itself")

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        await self._ask("claim")
        claim = await super().claim(call, tool, arguments, owner, instead_of=instead_of)
        if "claim" in self.late:
            raise JournalError("nothing could be written within 5 s")
        return claim

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        await self._ask("conclude")
        return await super().conclude(call, result, outcome)

    async def settle(self, calls: Sequence[CallId], state: Fate) -> None:
        await self._ask("settle")
        await super().settle(calls, state)

    async def check(self) -> None:
        await self._ask("check")
        await super().check()

    async def state(self, number: int = 1) -> Claimed:
        """How far a call has come."""
        claims = await self.claims(states=tuple(State))
        return next(each for each in claims if each.call.call_id == f"c{number}")


class Desk:
    """A session's calls behind a journal, and the reports they led to."""

    def __init__(self, journal: Journal, owner: str = "me") -> None:
        self.journal = journal
        self.runner = Runner(journal=journal, owner=owner)
        assert self.runner.durable is not None
        self.durable: Durable = self.runner.durable
        self.durable._retry = 0.01
        self.calls = self.runner.session()
        self.tools = Toolset()
        self.runs: list[str] = []
        self.finished: list[Finished] = []
        self.id = "s"

    def start(self, name: str, arguments: str = NONE, number: int = 1) -> None:
        key = CallKey(0, f"c{number}")
        context = CallContext(session_id="s", key=key, tool=name)
        call = ToolCall(key.call_id, name, arguments)
        self.calls.start(key, call, self.tools.get(name), self.tools, context, self._report, interim=lambda *_: None)

    def _report(self, finished: Finished) -> None:
        self.journal.asked.append("reported")
        self.finished.append(finished)

    async def result(self, name: str, arguments: str = NONE, number: int = 1) -> Finished:
        before = len(self.finished)
        self.start(name, arguments, number)
        await until(lambda: len(self.finished) > before and self.calls.running == 0)
        return self.finished[-1]

    def saw(self, *events: Any, outputs: Sequence[Any] = ()) -> None:
        """The session goes on by this."""
        self.durable(self, Step(tuple(events), tuple(outputs)))

    def book(self, **options: Any) -> Tool:
        """A tool that counts its runs."""

        async def book(room: int = 1) -> dict[str, int]:
            self.runs.append("book")
            self.journal.asked.append("run")
            return {"booking": len(self.runs)}

        self.tools.tool(book, **options)
        return self.tools["book"]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0)


def error_of(finished: Finished) -> str:
    assert finished.result.is_error
    text: str = json.loads(finished.result.output)["error"]
    return text


@pytest.fixture
async def journal(anyio_backend: str) -> Journal:
    return Journal()


@pytest.fixture
async def desk(journal: Journal) -> AsyncIterator[Desk]:
    desk = Desk(journal)
    yield desk
    await desk.calls.aclose(1)
    await desk.runner.aclose(1)
    assert desk.calls.running == 0
    desk.runner.close()


# --------------------------------------------------------------------------------------------- the way of a call


async def test_a_call_is_claimed_before_it_runs_and_its_outcome_is_durable_before_it_is_reported(desk: Desk) -> None:
    desk.book()
    finished = await desk.result("book", '{"room": 7}')
    assert desk.journal.asked == ["claim", "run", "conclude", "reported"]
    assert (finished.outcome, finished.result.output) == (Outcome.OK, '{"booking":1}')
    claimed = await desk.journal.state()
    assert (claimed.tool, claimed.owner, claimed.state, claimed.outcome) == ("book", "me", State.OWED, "ok")
    assert claimed.result == finished.result


async def test_a_tool_that_only_reads_asks_nothing_of_the_journal(desk: Desk) -> None:
    desk.book(effect="read")
    await desk.result("book")
    assert desk.journal.asked == ["run", "reported"]


async def test_a_call_that_is_not_approved_is_not_claimed(desk: Desk) -> None:
    desk.book(approval="always_deny")
    assert (await desk.result("book")).outcome is Outcome.DENIED
    assert desk.journal.asked == ["reported"]


async def test_a_failure_is_an_outcome_like_any_other(desk: Desk) -> None:
    @desk.tools.tool
    async def book() -> None:
        raise ToolError("no room is free")

    await desk.result("book")
    claimed = await desk.journal.state()
    assert (claimed.state, claimed.outcome) == (State.OWED, "error")
    assert claimed.result is not None
    assert claimed.result.is_error


async def test_a_call_whose_time_is_over_is_reported_once_that_is_durable(desk: Desk) -> None:
    released = asyncio.Event()

    @desk.tools.tool(timeout=0.01)
    async def book() -> str:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return "late"

    desk.start("book")
    await until(lambda: bool(desk.finished))
    assert desk.journal.asked == ["claim", "conclude", "reported"]
    released.set()
    await until(lambda: desk.calls.running == 0)
    assert [each.outcome for each in desk.finished] == [Outcome.TIMEOUT]
    assert (await desk.journal.state()).outcome == "timeout"


async def test_the_outcome_of_a_parked_call_is_durable_before_it_is_reported(desk: Desk) -> None:
    tickets: list[str] = []

    @desk.tools.tool
    async def book(call: CallContext) -> Parked:
        tickets.append(call.ticket)
        return Parked()

    desk.start("book")
    await until(lambda: bool(desk.runner.waiting))
    assert (await desk.journal.state()).state is State.STARTED
    desk.runner.complete(tickets[0], "booked")
    await until(lambda: bool(desk.finished))
    assert desk.journal.asked == ["claim", "conclude", "reported"]
    assert (await desk.journal.state()).outcome == "ok"


# ------------------------------------------------------------------------------------------ calls that are not new


async def test_a_call_that_has_run_gets_its_stored_result_and_does_not_run(journal: Journal) -> None:
    first, second = Desk(journal), Desk(journal, "the next life")
    first.book(), second.book()
    before = await first.result("book", '{"room":7}')
    again = await second.result("book", '{"room": 7}')
    assert (again.outcome, again.result) == (Outcome.REPLAYED, before.result)
    assert (first.runs, second.runs) == (["book"], [])


async def test_a_stored_failure_is_given_again_as_a_failure(journal: Journal) -> None:
    first, second = Desk(journal), Desk(journal, "the next life")
    for desk in (first, second):

        @desk.tools.tool
        async def book() -> None:
            raise ToolError("no room is free")

    await first.result("book")
    again = await second.result("book")
    assert (again.outcome, error_of(again)) == (Outcome.REPLAYED, "no room is free")


@pytest.mark.parametrize("well", [True, False])
async def test_a_result_that_is_not_kept_is_said_to_be_done_already(well: bool, anyio_backend: str) -> None:
    journal = Journal(payloads=Payloads(Keep.NONE))
    desk = Desk(journal)
    desk.book()
    call = CallId("s", 0, "c1")
    await journal.claim(call, "book", NONE, "dead")
    await journal.conclude(call, ToolResult("c1", '"secret"', is_error=not well), "ok" if well else "timeout")
    await journal.settle([call], State.SENT)
    finished = await desk.result("book")
    assert (finished.outcome, finished.result.is_error, desk.runs) == (Outcome.REPLAYED, not well, [])
    assert "book was already done; its result is not kept any more" in finished.result.output


async def test_a_call_of_which_nobody_knows_whether_it_ran_is_not_run_again(desk: Desk) -> None:
    desk.book()
    await desk.journal.claim(CallId("s", 0, "c1"), "book", NONE, "dead")
    finished = await desk.result("book")
    assert (finished.outcome, desk.runs) == (Outcome.ERROR, [])
    assert "may or may not have happened" in error_of(finished)
    assert (await desk.journal.state()).state is State.STARTED


@pytest.mark.parametrize("owner", ["dead", "me"])
async def test_a_repeatable_call_of_which_nobody_knows_runs_again(desk: Desk, owner: str) -> None:
    desk.book(idempotent=True)
    await desk.journal.claim(CallId("s", 0, "c1"), "book", NONE, owner)
    assert (await desk.result("book")).outcome is Outcome.OK
    assert desk.runs == ["book"]


async def test_another_call_with_the_same_id_is_not_run(desk: Desk) -> None:
    desk.book()
    await desk.journal.claim(CallId("s", 0, "c1"), "book", '{"room": 1}', "dead")
    finished = await desk.result("book", '{"room": 2}')
    assert (finished.outcome, desk.runs) == (Outcome.ERROR, [])
    assert "another call has the same id" in error_of(finished)


# --------------------------------------------------------------------------------------- a journal that is out of order


async def test_without_a_journal_that_works_a_tool_with_effects_is_not_run(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    desk.journal.broken = {"claim", "check"}
    finished = await desk.result("book")
    assert (finished.outcome, desk.runs, desk.durable.refused) == (Outcome.UNAVAILABLE, [], 1)
    assert error_of(finished) == "book is not available now, and was not run"
    (line,) = [each.message for each in caplog.records if each.name == "bridge.journal"]
    assert line.startswith("the journal is out of order, so tool book is not run: the disk is full; make room")
    assert desk.durable.trouble.startswith("the journal is out of order")


async def test_a_claim_that_was_given_up_and_came_to_stand_is_concluded_as_not_run(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    desk.journal.late, desk.journal.broken = {"claim"}, {"conclude"}
    assert (await desk.result("book")).outcome is Outcome.UNAVAILABLE
    desk.saw(Sent((CallKey(0, "c1"),)))
    assert (await desk.journal.state()).state is State.STARTED
    desk.journal.broken = set()
    async with asyncio.timeout(LIMIT):
        while (claimed := await desk.journal.state()).state is not State.SENT:  # noqa: ASYNC110 - in its own time
            await asyncio.sleep(0)
    assert (claimed.outcome, desk.runs) == ("unavailable", [])
    assert claimed.result is not None
    assert json.loads(claimed.result.output) == {"error": "book is not available now, and was not run"}
    assert "another outcome" not in caplog.text


async def test_the_journal_that_fails_does_not_count_as_a_failing_tool(desk: Desk) -> None:
    desk.book()
    desk.journal.broken = {"claim", "check"}
    for number in range(10):
        await desk.result("book", f'{{"room": {number}}}', number)
    assert not desk.runner.guards.unavailable
    desk.journal.broken = set()
    await until(lambda: not desk.durable.trouble)
    assert (await desk.result("book", number=11)).outcome is Outcome.OK


async def test_a_repeatable_tool_runs_all_the_same(desk: Desk) -> None:
    desk.book(idempotent=True)
    desk.journal.broken = {"claim", "check"}
    assert (await desk.result("book")).outcome is Outcome.OK
    assert (desk.runs, desk.durable.refused) == (["book"], 0)
    assert "conclude" not in desk.journal.asked


async def test_a_journal_that_works_again_is_noticed_although_nothing_is_called(desk: Desk) -> None:
    desk.book()
    desk.journal.broken = {"claim", "check"}
    await desk.result("book")
    await until(lambda: desk.journal.asked.count("check") > 1)
    assert desk.durable.trouble
    desk.journal.broken = set()
    await until(lambda: not desk.durable.trouble)


@pytest.mark.parametrize(("idempotent", "outcome"), [(False, Outcome.UNAVAILABLE), (True, Outcome.OK)])
async def test_nobody_waits_for_a_journal_that_is_known_to_fail(desk: Desk, idempotent: bool, outcome: Outcome) -> None:
    desk.book(idempotent=idempotent)
    desk.journal.broken = {"claim", "check"}
    await desk.result("book")
    desk.journal.gate.clear()  # as a disk that hangs
    assert (await desk.result("book", number=2)).outcome is outcome
    assert desk.journal.asked.count("claim") == 1
    desk.journal.broken = set()
    desk.journal.gate.set()
    await until(lambda: not desk.durable.trouble)
    assert (await desk.result("book", number=3)).outcome is Outcome.OK


async def test_an_outcome_that_cannot_be_written_is_told_and_never_runs_twice(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    desk.journal.broken = {"conclude"}
    assert (await desk.result("book")).outcome is Outcome.OK
    assert desk.durable.unrecorded == 1
    assert "its outcome is told, but is not in the journal yet" in caplog.text
    assert "may or may not have happened" in error_of(await desk.result("book"))
    assert desk.runs == ["book"]


async def test_an_outcome_that_could_not_be_written_is_once_the_journal_works_again(desk: Desk) -> None:
    desk.book()
    desk.journal.broken = {"conclude"}
    await desk.result("book")
    desk.saw(Sent((CallKey(0, "c1"),)))
    assert (await desk.journal.state()).state is State.STARTED
    assert desk.durable.recording("s.0.c1")
    desk.journal.broken = set()
    async with asyncio.timeout(LIMIT):
        while (await desk.journal.state()).state is not State.SENT:  # noqa: ASYNC110 - in its own time
            await asyncio.sleep(0)
    assert (await desk.journal.state()).outcome == "ok"
    assert not desk.durable.recording("s.0.c1")
    assert (await desk.result("book")).outcome is Outcome.REPLAYED


async def test_an_outcome_that_stands_already_stays_and_that_is_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @desk.tools.tool
    async def book() -> str:
        await desk.journal.conclude(CallId("s", 0, "c1"), ToolResult("c1", '"other"'), "ok")
        return "mine"

    assert (await desk.result("book")).result.output == '"mine"'
    assert "the journal has another outcome already (ok)" in caplog.text


async def test_a_fault_of_the_journal_itself_costs_nobody_the_result(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Concluded:
        raise ValueError("a fault")

    desk.book()
    monkeypatch.setattr(desk.journal, "conclude", fail)
    assert (await desk.result("book")).outcome is Outcome.OK
    assert "its outcome cannot be recorded" in caplog.text


# ------------------------------------------------------------------------------------------ cancelled on the way


async def test_a_call_that_is_discarded_while_it_is_claimed_does_not_run_and_is_concluded(desk: Desk) -> None:
    desk.book()
    desk.journal.gate.clear()
    desk.start("book")
    await until(lambda: desk.journal.asked == ["claim"])
    desk.calls.discard(CallKey(0, "c1"))
    desk.saw(outputs=[Discard(CallKey(0, "c1"))])
    desk.journal.gate.set()
    await until(lambda: bool(desk.finished))
    assert (desk.runs, desk.finished[0].outcome) == ([], Outcome.CANCELLED)
    assert (await desk.journal.state()).outcome == "cancelled"


async def test_a_call_that_is_discarded_while_it_is_concluded_keeps_its_outcome(desk: Desk) -> None:
    @desk.tools.tool(on_interrupt="cancel")
    async def book() -> str:
        desk.journal.gate.clear()
        return "booked"

    desk.start("book")
    await until(lambda: desk.journal.asked == ["claim", "conclude"])
    desk.calls.discard(CallKey(0, "c1"))
    desk.journal.gate.set()
    await until(lambda: bool(desk.finished))
    assert ((await desk.journal.state()).outcome, desk.finished[0].outcome) == ("ok", Outcome.OK)


async def test_a_session_that_ends_waits_for_what_is_being_written(desk: Desk) -> None:
    @desk.tools.tool
    async def book() -> str:
        desk.journal.gate.clear()
        return "booked"

    desk.start("book")
    await until(lambda: desk.journal.asked == ["claim", "conclude"])
    closing = asyncio.ensure_future(desk.calls.aclose(LIMIT))
    await asyncio.sleep(0)
    desk.journal.gate.set()
    await closing
    assert [each.outcome for each in desk.finished] == [Outcome.OK]


async def test_a_tool_that_ignores_its_cancellation_is_concluded_as_cancelled(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    released, running = asyncio.Event(), asyncio.Event()

    @desk.tools.tool
    async def book() -> None:
        running.set()
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    desk.start("book")
    await running.wait()
    await desk.calls.aclose(0.01)
    assert [each.outcome for each in desk.finished] == [Outcome.CANCELLED]
    assert (await desk.journal.state()).outcome == "cancelled"
    assert "tool book ignores its cancellation" in caplog.text
    released.set()
    await until(lambda: desk.calls.running == 0)


# -------------------------------------------------------------------------------------------- what becomes of results

KEY = CallKey(0, "c1")
RESULT = ToolResult("c1", "1")


@pytest.mark.parametrize(
    ("event", "outputs", "state"),
    [
        (Sent((KEY,)), (), State.SENT),
        (Sent((KEY, CallKey(0, "of a tool that reads"))), (), State.SENT),
        (Sent((CallKey(1, "c1"),)), (), State.OWED),
        (SessionEnded("bye"), (), State.ORPHANED),
        (SessionEnded("bye"), (Discard(KEY, DiscardedBy.END),), State.ORPHANED),
        (None, (Discard(KEY, DiscardedBy.ORPHANED),), State.ORPHANED),
        (None, (Discard(KEY, DiscardedBy.INTERRUPTION),), State.DISCARDED),
        (None, (Discard(KEY, DiscardedBy.CANCELLATION),), State.DISCARDED),
        (None, (ToolResults((RESULT,), keys=(KEY,)),), State.OWED),
        (None, (FollowUp(KEY, RESULT),), State.OWED),
    ],
)
async def test_what_becomes_of_a_result_is_in_the_journal(
    desk: Desk, event: Any, outputs: Sequence[Any], state: State
) -> None:
    desk.book()
    await desk.result("book")
    desk.saw(*([] if event is None else [event]), outputs=outputs)
    await desk.durable.aclose(LIMIT)
    assert (await desk.journal.state()).state is state


async def test_an_interim_result_that_was_sent_leaves_the_call_owed_until_its_outcome_is_told(desk: Desk) -> None:
    @desk.tools.tool
    async def book() -> Parked:
        return Parked()

    desk.start("book")
    await until(lambda: bool(desk.runner.waiting))
    desk.saw(outputs=[ToolResults((ToolResult("c1", "0", interim=True),), keys=(KEY,))])
    desk.saw(Sent((KEY,)))
    desk.runner.complete("s.0.c1", 1)
    await until(lambda: bool(desk.finished))
    desk.saw(outputs=[FollowUp(KEY, RESULT)])
    await desk.durable.aclose(LIMIT)
    assert (await desk.journal.state()).state is State.OWED
    desk.saw(ReplyStarted("r1"))
    await desk.durable.aclose(LIMIT)
    assert (await desk.journal.state()).state is State.SENT


async def test_what_the_agent_was_told_of_calls_that_only_read_is_forgotten_with_the_session(desk: Desk) -> None:
    interim = ToolResult("c1", "0", interim=True)
    desk.saw(outputs=[ToolResults((interim,), keys=(KEY,)), FollowUp(CallKey(0, "c2"), RESULT)])
    assert desk.durable._interim | desk.durable._spoken == {CallId("s", 0, "c1"), CallId("s", 0, "c2")}
    desk.saw(SessionEnded("bye"))
    assert desk.durable._interim | desk.durable._spoken == set()


@pytest.mark.parametrize("claimed_after", [False, True])
async def test_a_call_whose_session_ends_while_it_runs_is_orphaned_once_it_has_its_outcome(
    desk: Desk, claimed_after: bool
) -> None:
    release = asyncio.Event()

    @desk.tools.tool
    async def book() -> None:
        await release.wait()

    if claimed_after:
        desk.saw(SessionEnded("bye"))
    desk.start("book")
    await until(lambda: "claim" in desk.journal.asked)
    if not claimed_after:
        desk.saw(SessionEnded("bye"))
    await desk.durable.aclose(LIMIT)
    assert (await desk.journal.state()).state is State.STARTED
    release.set()
    await until(lambda: bool(desk.finished))
    await desk.durable.aclose(LIMIT)
    claimed = await desk.journal.state()
    assert (claimed.state, claimed.outcome) == (State.ORPHANED, "ok")


async def test_what_cannot_be_written_at_once_is_written_once_the_journal_works(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    await desk.result("book")
    desk.journal.broken = {"settle"}
    desk.saw(Sent((KEY,)))
    await until(lambda: "what has become of results is not in the journal yet" in caplog.text)
    desk.journal.broken = set()
    await desk.durable.aclose(LIMIT)
    assert (await desk.journal.state()).state is State.SENT


async def test_the_end_does_not_wait_for_a_journal_that_stays_out_of_order(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    await desk.result("book")
    desk.journal.broken = {"settle"}
    desk.saw(Sent((KEY,)))
    with caplog.at_level(logging.ERROR):
        await desk.durable.aclose(0.02)
    assert "and takes them as owed" in caplog.text
    assert (await desk.journal.state()).state is State.OWED
    desk.journal.broken = set()


async def test_the_end_waits_for_what_is_being_written_as_long_as_the_journal_does(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.book()
    await desk.result("book")
    desk.journal.gate.clear()
    desk.saw(Sent((KEY,)))
    await until(lambda: "settle" in desk.journal.asked)
    ending = asyncio.create_task(desk.durable.aclose(0))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ending.done()
    desk.journal.gate.set()
    await ending
    assert (await desk.journal.state()).state is State.SENT
    assert caplog.text == ""


async def test_the_end_says_so_if_what_was_being_written_fails(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.book()
    await desk.result("book")
    desk.journal.gate.clear()
    desk.journal.broken = {"settle"}
    desk.saw(Sent((KEY,)))
    await until(lambda: "settle" in desk.journal.asked)
    ending = asyncio.create_task(desk.durable.aclose(0))
    await asyncio.sleep(0)
    desk.journal.gate.set()
    await ending
    assert "and takes them as owed" in caplog.text
    assert (await desk.journal.state()).state is State.OWED


def test_no_two_lives_have_the_same_name() -> None:
    assert owner_of_this_life() != owner_of_this_life()


# -------------------------------------------------------------------------------------------- what the dead have left


class Left:
    """Calls that a dead process has left, and the tools of the one that finds them."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.tools = Toolset()
        self.runs: list[int] = []
        self.again: set[CallId] = set()

    async def started(self, arguments: str = '{"room": 7}', owner: str = "dead") -> CallId:
        call = CallId("s", 0, "c1")
        await self.journal.claim(call, "book", arguments, owner)
        return call

    def book(self, **options: Any) -> None:
        async def book(room: int, caller: str = "") -> str:
            self.runs.append(room)
            return "booked"

        self.tools.tool(book, **options)

    async def recover(self, check: CheckOutcome | None = None, owner: str = "me") -> tuple[Recovered, ...]:
        tools = {name: dataclasses.replace(tool, check_outcome=check) for name, tool in self.tools.items()}
        return await recover(self.journal, tools, owner, dead=lambda name: name == "dead", again=self.again)


@pytest.fixture
async def left(journal: Journal) -> Left:
    return Left(journal)


async def test_sessions_are_looked_after_side_by_side_and_their_calls_in_order(left: Left) -> None:
    calls = [CallId(session, 0, f"c{number}") for number in (1, 2) for session in ("s", "t")]
    both, seen = asyncio.Event(), list[str]()

    async def check(arguments: Mapping[str, Any], ticket: str) -> str:
        seen.append(ticket)
        if len(seen) == 2:
            both.set()
        await both.wait()
        return ticket

    left.book()
    for number, call in enumerate(calls):
        left.journal._clock = lambda number=number: float(number)  # type: ignore[misc]
        await left.journal.claim(call, "book", '{"room": 7}', "dead")
    recovered = await left.recover(check)
    assert [each.claimed.call for each in recovered] == calls
    assert sorted(seen[:2]) == ["s.0.c1", "t.0.c1"]


async def test_what_a_journal_that_fails_leaves_is_brought_to_an_end_by_the_next_recovery(left: Left) -> None:
    left.book()
    for session in ("s", "t"):
        await left.journal.claim(CallId(session, 0, "c1"), "book", '{"room": 7}', "dead")
    left.journal.broken = {"settle"}
    with pytest.raises(JournalError, match="the disk is full"):
        await left.recover()
    left.journal.broken = set()
    assert [each.found for each in await left.recover()] == [Found.FINISHED] * 2
    assert await left.journal.claims() == ()


@pytest.mark.parametrize("fault", ["claim", "conclude", "settle"])
async def test_a_call_that_was_taken_over_when_the_journal_failed_is_brought_to_an_end_by_the_next_recovery(
    left: Left, fault: str
) -> None:
    left.book(idempotent=True)
    await left.started()
    if fault == "claim":
        left.journal.late = {fault}
    else:
        left.journal.broken = {fault}
    with pytest.raises(JournalError):
        await left.recover()
    assert (await left.journal.state()).owner == "me"
    left.journal.late = left.journal.broken = set()
    (recovered,) = await left.recover()
    assert (recovered.outcome, await left.journal.claims()) == ("ok", ())
    assert await left.recover() == ()
    assert left.again == set()


async def test_a_call_that_was_taken_over_by_somebody_who_lives_is_left_to_him(left: Left) -> None:
    left.book(idempotent=True)
    call = await left.started()
    left.journal.broken = {"claim"}
    with pytest.raises(JournalError):
        await left.recover()
    left.journal.broken = set()
    await left.journal.claim(call, "book", '{"room": 7}', "another", instead_of="dead")
    assert (await left.recover(), left.runs) == ((), [])


async def test_a_call_that_may_have_happened_is_told_of_and_not_run(left: Left) -> None:
    left.book()
    await left.started()
    (recovered,) = await left.recover()
    assert (recovered.found, recovered.outcome, left.runs) == (Found.UNKNOWN, NOT_KNOWN, [])
    claimed = await left.journal.state()
    assert (claimed.state, claimed.outcome) == (State.ORPHANED, NOT_KNOWN)
    assert claimed.result is not None
    assert claimed.result.is_error
    assert "may or may not have happened" in claimed.result.output
    assert await left.recover() == ()


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_repeatable_call_runs_again_under_the_same_key(left: Left, blocking: bool) -> None:
    left.book(idempotent=True)
    if blocking:
        left.tools = Toolset()

        @left.tools.tool(idempotent=True)
        def book(room: int) -> str:
            left.runs.append(room)
            return "booked"

    await left.started()
    (recovered,) = await left.recover()
    assert (recovered.found, recovered.outcome, left.runs) == (Found.REPEATED, "ok", [7])
    assert recovered.result is not None
    assert recovered.result.output == '"booked"'


async def test_a_repeatable_call_is_run_again_by_one_of_those_who_find_it(left: Left) -> None:
    left.book(idempotent=True)
    await left.started()
    both = await asyncio.gather(left.recover(owner="one"), left.recover(owner="other"))
    assert (left.runs, sum(map(len, both))) == ([7], 1)


async def test_a_tool_that_can_look_is_asked_and_not_run(left: Left) -> None:
    async def look(arguments: Mapping[str, Any], ticket: str) -> object:
        return {"room": arguments["room"], "ticket": ticket}

    left.book(idempotent=True)
    await left.started()
    (recovered,) = await left.recover(look)
    assert (recovered.found, recovered.outcome, left.runs) == (Found.CHECKED, "ok", [])
    assert recovered.result is not None
    assert json.loads(recovered.result.output) == {"room": 7, "ticket": "s.0.c1"}


@pytest.mark.parametrize(
    ("error", "found", "outcome"),
    [
        (ToolError("it was not booked"), Found.CHECKED, "error"),
        (ConnectionError("secret"), Found.UNKNOWN, NOT_KNOWN),
        (TimeoutError(), Found.UNKNOWN, NOT_KNOWN),
    ],
)
async def test_a_look_that_fails_says_that_it_failed_or_that_nobody_knows(
    left: Left, error: Exception, found: Found, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(arguments: Mapping[str, Any], ticket: str) -> object:
        raise error

    left.book()
    await left.started()
    (recovered,) = await left.recover(look)
    assert (recovered.found, recovered.outcome) == (found, outcome)
    assert "secret" not in caplog.text


@pytest.mark.parametrize("why", ["the tool is gone", "its arguments do not fit", "hidden", "left open"])
async def test_a_repeatable_call_that_cannot_be_made_again_is_not_known(left: Left, why: str) -> None:
    match why:
        case "its arguments do not fit":
            left.book(idempotent=True)
            await left.started('{"house": 7}')
        case "hidden":
            left.book(idempotent=True, hidden={"caller": "phone"})
            await left.started()
        case "left open":

            @left.tools.tool(idempotent=True)
            async def book(room: int) -> Parked:
                return Parked()

            await left.started()
        case _:
            await left.started()
    (recovered,) = await left.recover()
    assert (recovered.outcome, left.runs) == (NOT_KNOWN, [])


async def test_a_result_that_was_owed_is_orphaned_and_listed_with_its_outcome(left: Left) -> None:
    call = await left.started()
    await left.journal.conclude(call, RESULT, "ok")
    (recovered,) = await left.recover()
    assert (recovered.found, recovered.outcome, recovered.result) == (Found.FINISHED, "ok", RESULT)
    assert (await left.journal.state()).state is State.ORPHANED


@pytest.mark.parametrize("owner", ["me", "alive"])
async def test_what_belongs_to_the_living_is_left_alone(left: Left, owner: str) -> None:
    left.book()
    await left.started(owner=owner)
    assert await left.recover() == ()
    assert (await left.journal.state()).state is State.STARTED


def test_a_process_of_this_machine_is_known_to_be_dead_or_alive() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    mine = owner_of_this_life()
    host, pid, life = mine.rsplit("/", 2)
    assert died_here(f"{host}/{process.pid}/{life}", mine)
    assert died_here(f"{host}/{pid}/another-life", mine)  # this process has the number now
    assert not died_here(mine, mine)
    assert not died_here(f"{host}/{os.getppid()}/{life}", mine)
    assert not died_here(f"elsewhere/{process.pid}/{life}", mine)
    assert not died_here("a name of your own", mine)
