"""A journal over a database: many callers on any event loops, one thread that writes, one that reads."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from ..core.events import ToolResult
from ..errors import JournalError
from . import (
    UNFINISHED,
    CallId,
    Claim,
    Claimed,
    Concluded,
    Entry,
    Fate,
    Retention,
    State,
    Stored,
)
from .payloads import Payloads
from .tables import Age, Rows, Statement, Tables, Write
from .worker import Job, Worker

if TYPE_CHECKING:
    from .shared import SharedMailbox

__all__ = ["Bell", "Database", "StoredJournal", "beyond", "soon"]

logger = logging.getLogger("bridge.journal")

_PAGE = 500
"""Entries that are read at once."""
_PATIENCE = 60
"""How many times longer an erasure may take than anything else: a whole file is written anew."""
_AT_ONCE = 50
"""Sessions that are removed in one transaction."""

Prepared = tuple[Write[Any], Sequence[Statement]]


class Database(Protocol):
    """One connection, used by one thread. Raises `JournalError`, and comes back by itself when what it needs does."""

    def write(self, work: Sequence[Prepared]) -> list[Any]:
        """Run all of it in one transaction; durable on return. One answer, or exception, for each."""
        ...

    def read(self, statement: Statement) -> Rows: ...

    def shake(self) -> None:
        """From another thread: end what takes too long, if that can be."""
        ...

    def close(self) -> None: ...


class Bell:
    """Rings on every event loop on which somebody listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def ring(self) -> None:
        """From any thread."""
        with self._lock:
            for loop, heard in self._listeners:
                with suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(heard.set)

    @contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        """An event that each ring sets."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._listeners.discard(listener)


class StoredJournal:
    """The `Journal` of both databases. Made by `open_sqlite` and `open_postgres`.

    `writer` and `reader` are connections of their own, so that reading never waits for writing. `follow` is called when
    somebody begins to follow. `limit`: seconds that a caller waits at most. `poll`: seconds after which a follower
    looks by itself. `closing` is called at the end.
    """

    def __init__(
        self,
        writer: Database,
        reader: Database,
        *,
        payloads: Payloads,
        retention: Retention,
        bell: Bell,
        limit: float,
        poll: float,
        clock: Callable[[], float] = time.time,
        follow: Callable[[], None] = lambda: None,
        closing: Callable[[], None] = lambda: None,
        mailbox: SharedMailbox | None = None,
    ) -> None:
        self._tables = Tables(payloads)
        self._retention = retention
        self._bell = bell
        self._limit = limit
        self._poll = poll
        self._clock = clock
        self._follow = follow
        self._closing = closing
        self.mailbox = mailbox
        self._closed = False
        self._databases = (writer, reader)
        self._writer = Worker("journal writer", self._write, limit=limit, late=writer.shake)
        self._reader = Worker("journal reader", self._read, limit=limit, late=reader.shake)

    # ------------------------------------------------------------------------------------------------- writing

    async def append(self, entries: Sequence[Entry]) -> None:
        """See `Journal`. Raises `ValueError` for what cannot be written."""
        if entries:
            await self._done(self._tables.append(tuple(entries)))

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        """See `Journal`."""
        if owner == instead_of:
            raise ValueError(f"{owner} cannot take over from itself: an owner is one process in one life")
        claim: Claim = await self._done(self._tables.claim(call, tool, arguments, owner, self._clock(), instead_of))
        return claim

    async def leave(self, call: CallId, until: float) -> None:
        """See `Journal`."""
        await self._done(self._tables.leave(call, until))

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        """See `Journal`. Raises `ValueError` for an outcome without a name."""
        if not outcome:
            raise ValueError("an outcome needs a name")
        concluded: Concluded = await self._done(self._tables.conclude(call, result, outcome))
        return concluded

    async def settle(self, calls: Sequence[CallId], state: Fate) -> frozenset[CallId]:
        """See `Journal`."""
        if not calls:
            return frozenset()
        news: frozenset[CallId] = await self._done(self._tables.settle(tuple(calls), state))
        return news

    async def erase(self, session: str) -> bool:
        """See `Journal`."""
        write = self._tables.erase([session], thoroughly=True)
        erased: bool = await self._done(write, limit=self._limit * _PATIENCE)
        return erased

    async def prune(self, now: float) -> int:
        """See `Journal`."""
        oldest = list(map(self._tables.age, await self._rows(self._tables.ages())))
        gone = list(beyond(self._retention, oldest, now))
        for first in range(0, len(gone), _AT_ONCE):
            await self._done(self._tables.erase(gone[first : first + _AT_ONCE], thoroughly=False))
        if self._retention.max_age is not None:
            await self._done(self._tables.forget_claims(now - self._retention.max_age))
        return len(gone)

    async def check(self) -> None:
        """See `Journal`."""
        await self._done(self._tables.check(self._clock()))

    async def _done(self, write: Write[Any], *, limit: float | None = None) -> Any:
        return await self._writer.do(write, "nothing could be written into the journal", limit=limit)

    def _write(self, jobs: Sequence[Job[Write[Any]]]) -> None:
        """In the writer's thread: all jobs in one transaction, except those that cannot even be put into words."""
        work: list[tuple[Job[Write[Any]], Prepared]] = []
        for job in jobs:
            try:
                work.append((job, (job.what, job.what.statements())))
            except Exception as error:
                job.done.set_exception(error)
        answers = self._databases[0].write([prepared for _, prepared in work])
        for (job, _), answer in zip(work, answers, strict=True):
            if isinstance(answer, Exception):
                job.done.set_exception(answer)
            else:
                job.done.set_result(answer)
        if any(job.what.appends for job, _ in work):
            self._bell.ring()

    # ------------------------------------------------------------------------------------------------- reading

    async def claims(
        self, *, session: str | None = None, owner: str | None = None, states: Collection[State] = UNFINISHED
    ) -> tuple[Claimed, ...]:
        """See `Journal`."""
        rows = await self._rows(self._tables.claims(session, owner, states))
        return tuple(map(self._tables.claimed, rows))

    async def read(
        self, session: str | None = None, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, Entry]]:
        """See `Journal`."""
        if follow:
            self._follow()
        with self._bell.heard() as heard:
            while not (follow and self._closed):
                heard.clear()
                rows = await self._page(session, after, follow)
                for row in rows:
                    number, entry = self._tables.entry(row)
                    yield number, entry
                    after = number
                if len(rows) == _PAGE:
                    continue
                if not follow:
                    return
                await soon(heard, self._poll)

    async def _page(self, session: str | None, after: int, follow: bool) -> Rows:
        try:
            return await self._rows(self._tables.page(session, after, _PAGE))
        except JournalError as error:
            if not follow:
                raise
            if not self._closed:
                logger.warning("following the journal waits: %s", error)
            return ()

    async def sessions(self, *, limit: int | None = None) -> tuple[Stored, ...]:
        """See `Journal`."""
        return tuple(map(self._tables.stored, await self._rows(self._tables.sessions(limit))))

    async def _rows(self, statement: Statement) -> Rows:
        rows: Rows = await self._reader.do(statement, "the journal could not be read")
        return rows

    def _read(self, jobs: Sequence[Job[Statement]]) -> None:
        """In the reader's thread."""
        for job in jobs:
            try:
                job.done.set_result(self._databases[1].read(job.what))
            except Exception as error:
                job.done.set_exception(error)

    # ------------------------------------------------------------------------------------------------- the end

    async def aclose(self) -> None:
        """See `Journal`."""
        self._closed = True
        self._bell.ring()
        ended = [await worker.aclose() for worker in (self._writer, self._reader)]
        for database, over in zip(self._databases, ended, strict=True):
            if over:
                database.close()
            else:
                logger.error("the journal does not come to an end: see to its disk or its database")
        if self.mailbox is not None:
            await self.mailbox.aclose()
        self._closing()


def beyond(retention: Retention, oldest: Sequence[Age], now: float) -> Iterator[str]:
    """The sessions that are not kept: none with unfinished calls, since a clock may be wrong, and a call is not."""
    excess = sum(each.size for each in oldest) - (math.inf if retention.max_size is None else retention.max_size)
    for each in oldest:
        too_old = retention.max_age is not None and each.latest < now - retention.max_age
        if (too_old or excess > 0) and not each.unfinished:
            excess -= each.size
            yield each.session


async def soon(heard: asyncio.Event, seconds: float | None) -> None:
    """Wait for this, but not for longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await heard.wait()
