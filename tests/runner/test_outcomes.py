"""What came of calls that an earlier process has said would go on; that it is told is in tests/test_attach.py."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from bridge.core.conversation import Step
from bridge.core.events import OutcomesOwed, ReplyStarted, SessionEnded, ToolResult
from bridge.dialects.herm import HERM
from bridge.errors import JournalError, SessionClosed
from bridge.journal import CallId, State
from bridge.journal.memory import MemoryJournal
from bridge.runner.outcomes import Outcomes

pytestmark = pytest.mark.anyio

CALL = CallId("herm:s", 0, "c1")
OWED = Step((OutcomesOwed(("c1",)),), (), ())
GOES_ON = Step((ReplyStarted("r"),), (), ())


class Session:
    """It keeps what it is sent, unless it is over."""

    id = CALL.session

    def __init__(self, *, over: bool = False) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.over = over
        self.told = asyncio.Event()

    async def send(self, message: Mapping[str, Any]) -> None:
        if self.over:
            raise SessionClosed("the session is over")
        self.sent.append(message)
        self.told.set()


class Breaking(MemoryJournal):
    """It fails at one thing, while it is told to."""

    failing = ""

    def __init__(self) -> None:
        super().__init__()
        self.looks = asyncio.Semaphore(0)

    async def claims(self, **which: Any) -> Any:
        self.looks.release()
        return self._fail() if self.failing == "claims" else await super().claims(**which)

    async def settle(self, *what: Any) -> Any:
        return self._fail() if self.failing == "settle" else await super().settle(*what)

    def _fail(self) -> NoReturn:
        raise JournalError("the disk is full")


async def left() -> Breaking:
    journal = Breaking()
    await journal.claim(CALL, "book", "{}", "the-dead/1/x")
    await journal.conclude(CALL, ToolResult(CALL.call_id, '"booked"'), "ok")
    await journal.settle([CALL], State.ORPHANED)
    return journal


async def state(journal: MemoryJournal) -> State:
    (claimed,) = await journal.claims(session=CALL.session, states=tuple(State))
    return claimed.state


async def test_what_cannot_be_read_is_told_when_the_provider_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    journal, session = await left(), Session()
    outcomes = Outcomes(journal)
    observer = outcomes.observer(HERM)
    journal.failing = "claims"
    observer(session, OWED)
    await outcomes.aclose()
    assert session.sent == []
    assert "what came of earlier calls is told later: the disk is full" in caplog.text
    journal.failing = ""
    observer(session, OWED)
    await outcomes.aclose()
    assert len(session.sent) == 1


async def test_what_was_told_is_written_down_with_a_later_reply_if_it_cannot_be_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, session = await left(), Session()
    outcomes = Outcomes(journal)
    observer = outcomes.observer(HERM)
    for step in (OWED, OWED):
        observer(session, step)
        await outcomes.aclose()
    journal.failing = "settle"
    observer(session, GOES_ON)
    await outcomes.aclose()
    assert "that outcomes were told is written down later: the disk is full" in caplog.text
    assert await state(journal) is State.ORPHANED
    journal.failing = ""
    observer(session, GOES_ON)
    await outcomes.aclose()
    assert (await state(journal), len(session.sent)) == (State.SENT, 1)


async def test_a_session_that_has_ended_leaves_its_outcomes_to_the_next_one() -> None:
    journal, late, next_one = await left(), Session(over=True), Session()
    outcomes = Outcomes(journal)
    for session in (late, next_one):
        outcomes.observer(HERM)(session, OWED)
        await outcomes.aclose()
    assert (len(late.sent), len(next_one.sent)) == (0, 1)


async def waits() -> Breaking:
    """A call that another process has left open."""
    journal = Breaking()
    await journal.claim(CALL, "book", "{}", "the-dead/1/x")
    await journal.leave(CALL, math.inf)
    return journal


async def test_an_outcome_that_is_still_to_come_is_told_when_it_is_there(caplog: pytest.LogCaptureFixture) -> None:
    journal, session = await waits(), Session()
    outcomes = Outcomes(journal, look=0.001)
    outcomes.observer(HERM)(session, OWED)
    async with asyncio.timeout(20):
        await journal.looks.acquire()
        journal.failing = "claims"
        while "is told later" not in caplog.text:
            await journal.looks.acquire()
            await asyncio.sleep(0)
        journal.failing = ""
        await journal.conclude(CALL, ToolResult(CALL.call_id, '"booked"'), "ok")
        assert session.sent == []
        await journal.settle([CALL], State.ORPHANED)
        await session.told.wait()
        await outcomes.aclose()
    assert len(session.sent) == 1


async def test_a_session_that_has_ended_waits_for_no_outcome() -> None:
    journal, session = await waits(), Session()
    outcomes = Outcomes(journal, look=0.001)
    observer = outcomes.observer(HERM)
    observer(session, OWED)
    async with asyncio.timeout(20):
        await journal.looks.acquire()
        observer(session, Step((SessionEnded(""),), (), ()))
        while outcomes._tasks:
            await asyncio.wait(outcomes._tasks)
    assert session.sent == []


async def test_what_is_still_to_come_holds_up_no_end() -> None:
    journal, session = await waits(), Session()
    outcomes = Outcomes(journal, look=1000)
    outcomes.observer(HERM)(session, OWED)
    async with asyncio.timeout(20):
        await journal.looks.acquire()
        await outcomes.aclose()
    assert session.sent == []
