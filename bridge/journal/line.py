"""Of several processes that attach to one session, one serves it: the others stand in line, and take its place.

The journal that they share is asked who came first, and who lives. The first of those who live serves; whoever comes
next does so once the first has left, or its lease has run out. A journal of one process knows no line.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from ..errors import JournalError
from . import Journal
from .mailbox import Kind, Mailbox, Open, State, WithMailbox

__all__ = ["Line", "line_of"]

logger = logging.getLogger("bridge.journal")


def line_of(journal: Journal | None, owner: str) -> Line | None:
    """The line in which this process, called `owner`, stands; None where there can be no others."""
    mailbox = journal.mailbox if isinstance(journal, WithMailbox) else None
    return None if mailbox is None else Line(mailbox, owner)


class Line:
    """Where this process stands, for each session."""

    def __init__(self, mailbox: Mailbox, owner: str) -> None:
        self._mailbox = mailbox
        self._owner = owner
        self._leaving: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        self._looked = float("-inf")
        self._first: dict[str, str] = {}
        """Whose turn it was then, by session."""

    @asynccontextmanager
    async def turn(self, session: str) -> AsyncIterator[None]:
        """Wait until it is our turn to serve this session, which it stays while the block runs."""
        async with self._place(session) as mine:
            await self._until_first(mine)
            yield

    @asynccontextmanager
    async def kept(self, session: str) -> AsyncIterator[None]:
        """We have made this session, and serve it already: while the block runs, whoever comes stands behind us."""
        async with self._place(session) as mine:
            standing = asyncio.create_task(self._until_first(mine))
            try:
                yield
            finally:
                standing.cancel()
                await asyncio.wait((standing,))

    @asynccontextmanager
    async def _place(self, session: str) -> AsyncIterator[Open]:
        mine = Open(Kind.SESSION, f"{session} {secrets.token_hex(8)}", session, self._owner)
        try:
            yield mine
        finally:
            # Whoever is cancelled, by a scope again and again, must not stay in line: nobody would get past it.
            leaving = asyncio.create_task(self._leave(mine))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            await asyncio.shield(leaving)

    async def _leave(self, mine: Open) -> None:
        with suppress(JournalError):  # then the others wait for the end of our lease
            await self._mailbox.close(mine, State.CLOSED)

    async def _until_first(self, mine: Open) -> None:
        told = False
        while True:
            try:
                await self._mailbox.announce(mine)  # once more does no harm
                first = await self._whose_turn(mine.session, time.monotonic())
            except JournalError as error:
                logger.warning("session %s: whose turn it is is asked again: %s", mine.session, error)
                first = ""
            if first == mine.name:
                return
            if first and not told:
                told = True
                logger.info("session %s is served elsewhere: its place is taken when that ends", mine.session)
            await asyncio.sleep(self._mailbox.poll)

    async def _whose_turn(self, session: str, since: float) -> str:
        """As of this time at the earliest: one look is enough for all who wait. Empty if nobody's, so far."""
        async with self._looking:
            if self._looked < since:
                self._looked = time.monotonic()
                waiting = await self._mailbox.waiting(Kind.SESSION)
                self._first = {each.session: each.name for each in reversed(waiting)}
        return self._first.get(session, "")
