"""The way back after a drop: another connection, the session resumed over it or begun afresh, and when to give up.

    lost --> dial, resume --refused--> forget, dial, set up afresh
               ^  |                              ^  |
               +--+ failed: pause                +--+ failed: pause

All of it within one limit, which begins anew only after a connection that has lasted. What a session is and owes is the
session's own business: see `Survivor`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, assert_never

from ..core.events import Failure, ProviderEnded, ProviderFailed, SessionReady
from ..errors import AuthenticationFailed, BridgeError, TransportError
from .connection import Answer, Opening
from .options import SessionOptions
from .reconnect import Outage, pauses, persist
from .refusals import refused

__all__ = ["Held", "Recovery", "Survivor"]

logger = logging.getLogger("bridge.session")

_LOST = frozenset({Failure.RESUME, Failure.CREDENTIALS, Failure.SETUP})
"""Kinds of refusals that no other try to resume would change; where something else is to blame, a setup will tell."""
_BOUNDARY = 30.0
"""Seconds for which a planned reconnect waits until nobody speaks."""


class Held(Protocol):
    """What is asked of a connection that is held."""

    def abort(self) -> None:
        """Break it off without a word."""
        ...

    async def aclose(self) -> None:
        """Close it. Never raises."""
        ...


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, slots=True)
class Survivor(Generic[H]):
    """What is asked of a session that survives its connection."""

    session_id: str
    connect: Callable[[Opening], Awaitable[H]]
    """Make a connection with the credentials for this. Raises `BridgeError`."""
    link_lost: Callable[[TransportError], None]
    """There is no connection now."""
    resumable: Callable[[], bool]
    """Can its protocol ask for a resume?"""
    open_on: Callable[[H, Opening], None]
    """Take this connection, and say the first message on it."""
    answered: Callable[[], Awaitable[Answer]]
    """The answer to that. Raises `TransportError`, also if it does not come in time."""
    leave_connection: Callable[[], Awaitable[None]]
    """Close the connection, which is of no use."""
    forgotten: Callable[[], Awaitable[None]]
    """The provider has lost the session. Raises `SessionClosed` if there is to be no fresh one."""
    quiet: Callable[[float], Awaitable[bool]]
    """Wait for so many seconds at most until nobody speaks; is it under way, and its connection up?"""
    give_up: Callable[[BridgeError], None]
    """There will be no other connection."""
    failed: Callable[[Exception], None]
    """A fault in this file, or in what it asks of the session."""


class Recovery(Generic[H]):
    """Looks after the connection of one session, beginning with this one; None if that is lost already."""

    def __init__(self, survivor: Survivor[H], line: H | None, options: SessionOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self._survivor = survivor
        self._line = line
        self._spare: H | None = None
        """One more, made in time for a planned reconnect."""
        self._limit = options.reconnect_timeout
        self._age = options.reconnect_after
        self._outage: Outage | None = None
        self._up_since = self._loop.time()
        self._search: asyncio.Task[None] | None = None
        """Looks for another connection, now or when the present one is old."""
        self._tasks: set[asyncio.Task[None]] = set()

    def is_up(self) -> None:
        """The session is under way on the present connection."""
        self._up_since = self._loop.time()
        self._search = None  # it has found one
        if self._age is not None:
            self._look(self._go_over(self._age))

    def lost(self, lost: TransportError) -> None:
        """The connection has dropped: look for another."""
        self.stop()
        self._outage = Outage.after(
            self._outage, up_since=self._up_since, now=self._loop.time(), limit=self._limit, random=random.random
        )
        logger.warning("session %s: %s; reconnecting", self._survivor.session_id, lost)
        self._survivor.link_lost(lost)
        self._look(self._reconnect(self._outage, lost))

    def _look(self, search: Coroutine[Any, Any, None]) -> None:
        self._search = task = self._loop.create_task(search)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Look for no other connection any more."""
        if self._search is not None and self._search is not asyncio.current_task():
            self._search.cancel()

    async def aclose(self) -> None:
        """Stop, and release what is left."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._spare is not None:
            await self._spare.aclose()

    async def _reconnect(self, outage: Outage, lost: TransportError) -> None:
        try:
            async with asyncio.timeout_at(outage.deadline):
                await self._survivor.leave_connection()
                if not await self._resume(outage):
                    await self._begin_again(outage)
        except TimeoutError:
            why = outage.trouble or "each one breaks"
            gone = f"{lost}; there was no other within {self._limit:g} s: {why}"
            self._survivor.give_up(TransportError(gone, close_code=lost.close_code))
        except BridgeError as final:
            self._survivor.give_up(final)
        except Exception as fault:
            self._survivor.failed(fault)

    async def _resume(self, outage: Outage) -> bool:
        """Go on with the session. False if the provider does not know it any more."""

        async def attempt() -> bool:
            try:
                answer = await self._open(Opening.RESUME)
            except AuthenticationFailed:
                return False  # what it was to be resumed with is worth nothing any more
            match answer:
                case ProviderFailed(kind=kind) if kind not in _LOST:
                    raise refused(answer)
                case ProviderFailed() | ProviderEnded():
                    why = answer.code if isinstance(answer, ProviderFailed) else "it has ended"
                    logger.warning("session %s: the provider has lost it (%s)", self._survivor.session_id, why)
                    return False
                case SessionReady():
                    return True
                case _:
                    assert_never(answer)

        return self._survivor.resumable() and await persist(attempt, outage.pauses, self._troubled)

    async def _begin_again(self, outage: Outage) -> None:
        """A fresh session takes the place of the one that the provider has lost."""
        await self._survivor.forgotten()

        async def attempt() -> None:
            match await self._open(Opening.SETUP):
                case ProviderFailed() as failed:
                    raise refused(failed)
                case ProviderEnded():
                    raise TransportError("the provider ended the session before it was ready")

        await persist(attempt, pauses(random.random), self._troubled)

    async def _open(self, opening: Opening) -> Answer:
        """One try: what the provider answers on a new connection, which is left unless it is ready."""
        line, self._spare = self._spare, None
        self._line = line = line or await self._survivor.connect(opening)
        answer: Answer | None = None
        try:
            self._survivor.open_on(line, opening)
            answer = await self._survivor.answered()
        finally:
            if not isinstance(answer, SessionReady):
                await self._survivor.leave_connection()
        return answer

    def _troubled(self, error: BridgeError) -> None:
        if self._outage is not None:
            self._outage.trouble = error
        logger.info("session %s: no connection yet: %s", self._survivor.session_id, error)

    async def _go_over(self, age: float) -> None:
        """A planned reconnect: the next connection is there before the present one is given up."""
        await asyncio.sleep(age)
        with suppress(BridgeError):  # whatever is final is told in the end, when the present one is lost
            self._spare = await persist(self._spare_line, pauses(random.random), self._troubled)
            if await self._survivor.quiet(_BOUNDARY) and self._line is not None:
                self._line.abort()
                self.lost(TransportError("the connection is given up before it is too old"))

    async def _spare_line(self) -> H:
        return await self._survivor.connect(Opening.RESUME)
