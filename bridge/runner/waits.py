"""Calls that outlive their process: whoever works on them outside goes on, and so does the wait for what comes of it.

A call that its tool has left open is written down with the time by which its outcome has to come. When its process has
died, the one that recovers it takes it over, and it waits here as it had there. What comes is recorded once, and the
call is orphaned: its session is gone, unless it goes on somewhere, which then reads the outcome in the journal.

The journal also knows what came of calls that no process waits for any more, and so answers who says it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from ..errors import JournalError, ToolBusy, ToolError
from ..journal import CallId, Claimed, Granted, Journal, State
from ..journal import Verdict as Recorded
from ..journal.mailbox import calls_of
from ..tools.tool import Tool
from .leftovers import Stands, recover
from .letters import answer_of, result_of, ticket_of
from .parking import Answer, Completion, Parking, Verdict

__all__ = ["Waits"]

logger = logging.getLogger("bridge.journal")

_RETRY = 0.5
"""Seconds between two attempts to write an outcome down."""
_RESULT_LIMIT = 32 * 1024
"""Bytes of a result of a tool that is not known here: what a tool has by default."""
_FROM_OUTSIDE = ("ok", "error")
"""How a call ends that was left open, if somebody says what came of it."""


class Waits:
    """Those of one process. `parking` is its own, and `owner` its name. Used on the event loop of the tools."""

    def __init__(self, journal: Journal, owner: str, parking: Parking, *, retry: float = _RETRY) -> None:
        self._journal = journal
        self._owner = owner
        self._parking = parking
        self._retry = retry
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._asked: set[CallId] = set()
        """Calls that were asked for, and may be ours although the journal could not say so."""

    def __contains__(self, ticket: str) -> bool:
        """Does it wait here, or is its outcome being written down?"""
        return ticket in self._tasks

    async def take(
        self,
        tools: Mapping[str, Tool],
        dead: Callable[[str], bool],
        *,
        session: str | None = None,
        stands: Stands | None = None,
    ) -> frozenset[str]:
        """Wait here for what was left open by the dead, in one session or in all. Returns who had it before.

        `stands`: as for `recover`, which ends a call whose time is over. Raises `JournalError`; then do it again.
        """
        owners: set[str] = set()
        for claimed in await self._journal.claims(session=session, states=(State.STARTED,)):
            if not claimed.waits(time.time()) or self._parking.has(ticket_of(claimed)):
                continue
            if await self._taken_over(claimed, dead):
                owners.add(claimed.owner)
                self._begin(claimed, tools, stands)
        await asyncio.sleep(0)  # from now on they can be seen to wait
        return frozenset(owners)

    async def _taken_over(self, claimed: Claimed, dead: Callable[[str], bool]) -> bool:
        if claimed.owner == self._owner:
            return claimed.call in self._asked
        if not dead(claimed.owner):
            return False
        self._asked.add(claimed.call)
        text = claimed.arguments or ""
        claim = await self._journal.claim(claimed.call, claimed.tool, text, self._owner, instead_of=claimed.owner)
        return isinstance(claim, Granted)

    def _begin(self, claimed: Claimed, tools: Mapping[str, Tool], stands: Stands | None) -> None:
        self._asked.discard(claimed.call)
        ticket, tool = ticket_of(claimed), tools.get(claimed.tool)
        self._parking.open(ticket, _RESULT_LIMIT if tool is None else tool.result_limit)
        self._tasks[ticket] = task = asyncio.get_running_loop().create_task(self._wait(claimed, tools, stands))
        task.add_done_callback(lambda _: self._tasks.pop(ticket, None))

    async def _wait(self, claimed: Claimed, tools: Mapping[str, Tool], stands: Stands | None) -> None:
        ticket = ticket_of(claimed)
        try:
            answer = await self._answer(claimed, ticket)
        except ToolBusy as error:
            words = "call %.64r of session %s is left to the next recovery: %s"
            logger.error(words, claimed.call.call_id, claimed.call.session, error)
            self._asked.add(claimed.call)
            return
        finally:
            self._parking.close(ticket)
        again = {claimed.call}

        async def over() -> None:
            """Nobody has said in time what came of it."""
            session = claimed.call.session
            await recover(self._journal, tools, self._owner, dead=_nobody, session=session, stands=stands, again=again)

        await self._written(claimed.call, over if answer is None else lambda: self._conclude(claimed, answer))

    async def _answer(self, claimed: Claimed, ticket: str) -> Answer | None:
        """What somebody says; None if that is too late. Raises `ToolBusy` if too many calls wait already."""
        assert claimed.until is not None
        try:
            async with asyncio.timeout(claimed.until - time.time()):
                return await self._parking.leave(ticket, claimed.call.session, claimed.tool, claimed.since)
        except ToolBusy:
            raise  # nobody has said that
        except ToolError as error:
            return Answer(error=str(error))
        except TimeoutError:
            return self._parking.close(ticket)  # it may have come in this moment

    async def _conclude(self, claimed: Claimed, answer: Answer) -> Completion:
        """Record what came of a call whose session is gone, as far as is known here."""
        completion = await self._recorded(claimed, answer)
        await self._journal.settle([claimed.call], State.ORPHANED)
        return completion

    async def _recorded(self, claimed: Claimed, answer: Answer) -> Completion:
        """Have this as its outcome, unless there is one."""
        concluded = await self._journal.conclude(claimed.call, *result_of(claimed, answer))
        match concluded.verdict:
            case Recorded.RECORDED:
                return Completion(Verdict.ACCEPTED, answer)
            case Recorded.REPEATED:
                return Completion(Verdict.REPEATED, answer)
            case _ if concluded.outcome in _FROM_OUTSIDE:
                stands = None if concluded.result is None else answer_of(concluded.result)
                return Completion(Verdict.CONFLICT, stands)
            case _:
                return Completion(Verdict.EXPIRED)

    async def _written(self, call: CallId, write: Callable[[], Awaitable[object]]) -> None:
        troubled = False
        while True:
            try:
                await write()
                return
            except JournalError as error:
                if not troubled:
                    words = "call %.64r of session %s: what came of it is not in the journal yet, and waits: %s"
                    logger.warning(words, call.call_id, call.session, error)
                troubled = True
            await asyncio.sleep(self._retry)

    # ---------------------------------------------------------------------------------------- what the journal knows

    async def find(self, ticket: str) -> Claimed | None:
        """The call with this ticket, as the journal knows it. Raises `JournalError`."""
        for call in calls_of(ticket):
            for claimed in await self._journal.claims(session=call.session, states=tuple(State)):
                if claimed.call == call:
                    return claimed
        return None

    async def settle(self, ticket: str, answer: Answer) -> Completion:
        """An outcome, where no other process can have the call: it is durable before it is told. Raises `JournalError`
        where nobody can say now whose it is, or where nothing but the journal could keep it.
        """
        known = self._parking.heard(ticket, answer)
        if known is not None and known.verdict is not Verdict.EXPIRED:
            return known
        here = self._parking.has(ticket)
        try:
            claimed = await self.find(ticket)
            if claimed is None:
                return self._parking.give(ticket, answer)
            if not here:
                return await self.stored(claimed, answer)
            recorded = await self._recorded(claimed, answer)
            if recorded.verdict in (Verdict.CONFLICT, Verdict.EXPIRED):
                return recorded
        except JournalError:
            if not here or ticket in self:
                raise
        return self._parking.give(ticket, answer)

    async def stored(self, claimed: Claimed, answer: Answer) -> Completion:
        """What becomes of an outcome for a call that no process waits for. Raises `JournalError`."""
        if claimed.waits(time.time()) and claimed.owner != self._owner:
            return await self._conclude(claimed, answer)
        if claimed.outcome and claimed.until is not None:
            return await self._recorded(claimed, answer)
        over = claimed.outcome or claimed.until is not None
        return Completion(Verdict.EXPIRED if over else Verdict.UNKNOWN)

    async def aclose(self) -> None:
        """Wait no longer: they are there for whoever comes next."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _nobody(owner: str) -> bool:
    return False
