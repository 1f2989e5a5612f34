"""What came of calls that an earlier process has said would go on, told by the one that attaches after its death.

The provider says which outcomes it still waits for, and the journal what they are. Only those are told that have lost
their session: a call that still runs somewhere, or whose process may yet tell, is left to it. One that somebody outside
works on is looked after until its outcome is there, whichever process is told of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from ..core.conversation import Step
from ..core.dialect import Dialect, Message
from ..core.events import FollowUp, OutcomesOwed, ReplyStarted, SessionEnded, ToolResult
from ..errors import JournalError, TransportError
from ..journal import UNFINISHED, CallId, Claimed, Journal, State
from ..journal.stored import soon
from ..tools.encode import encode

__all__ = ["Outcomes"]

logger = logging.getLogger("bridge.journal")

_LOOK: Final = 1.0
_NOT_KEPT: Final = encode(
    {"error": "This was done, but its result is not kept any more. Do not call the tool again for this."}
)


class Served(Protocol):
    """A session, as far as it matters here."""

    @property
    def id(self) -> str: ...

    async def send(self, message: Mapping[str, Any]) -> None: ...


@dataclass(slots=True, eq=False)
class _Telling:
    """What one session is told."""

    dialect: Dialect
    told: set[CallId] = field(default_factory=set)
    """Here, without the journal's knowing it yet."""
    wanted: frozenset[str] = frozenset()
    """The calls whose outcome the provider has last said that it waits for."""
    waits: bool = False
    """Was one of them still to come at the last look?"""


class Outcomes:
    """Those of the calls of a process's sessions, from this journal. What `observer` returns sees a session's steps."""

    def __init__(self, journal: Journal, *, look: float = _LOOK) -> None:
        """`look`: seconds between two looks for an outcome that is still to come."""
        self._journal = journal
        self._look = look
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def observer(self, dialect: Dialect) -> Callable[[Served, Step], None]:
        """An observer of one session, which speaks this."""
        return partial(self._observe, _Telling(dialect))

    async def aclose(self) -> None:
        """Wait for what is being told and written down; what is still to come is left to whoever attaches next."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _observe(self, telling: _Telling, session: Served, step: Step) -> None:
        for event in step.events:
            match event:
                case OutcomesOwed(call_ids):
                    telling.wanted = frozenset(call_ids)
                    self._start(self._tell(telling, session, telling.wanted))
                case ReplyStarted() if telling.told:
                    self._start(self._heard(telling.told, session))
                case SessionEnded():
                    telling.wanted = frozenset()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, telling: _Telling, session: Served, wanted: Collection[str]) -> None:
        """The provider waits for the outcomes of these calls: tell those that are known, and the others when they are.

        Until it says anew for which it waits, or the session ends.
        """
        with suppress(TransportError):
            while await self._tell_known(telling, session, wanted):
                await soon(self._closing, self._look)
                if self._closing.is_set() or telling.wanted is not wanted:
                    return

    async def _tell_known(self, telling: _Telling, session: Served, wanted: Collection[str]) -> bool:
        """Tell what is known. Is any of it still to come, from somebody outside?"""
        try:
            claims = await self._journal.claims(session=session.id, states=(*UNFINISHED, State.ORPHANED))
        except JournalError as error:
            logger.warning("session %s: what came of earlier calls is told later: %s", session.id, error)
            return telling.waits
        asked = [each for each in claims if each.call.call_id in wanted]
        for claimed in asked:
            if claimed.outcome and claimed.state is State.ORPHANED and claimed.call not in telling.told:
                telling.told.add(claimed.call)
                for message in _messages(telling.dialect, claimed):
                    await session.send(message)
        telling.waits = any(each.state in UNFINISHED and each.until is not None for each in asked)
        return telling.waits

    async def _heard(self, told: set[CallId], session: Served) -> None:
        """The agent goes on with what it was told: write that down."""
        calls = tuple(told)
        try:
            await self._journal.settle(calls, State.SENT)
        except JournalError as error:
            logger.warning("session %s: that outcomes were told is written down later: %s", session.id, error)
        else:
            told.difference_update(calls)


def _messages(dialect: Dialect, claimed: Claimed) -> Iterator[Message]:
    result = claimed.result or ToolResult(claimed.call.call_id, _NOT_KEPT, is_error=True, name=claimed.tool)
    yield from dialect.encode_client(FollowUp(claimed.call.key, result))
