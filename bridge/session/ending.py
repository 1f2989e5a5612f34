"""How a session ends: what is owed is waited for, the provider is told, everything is released; all within bounds."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from ..errors import SessionClosed
from .dialogue import Dialogue
from .options import SessionOptions
from .performing import Performer
from .queue import EventQueue
from .standing import Phase, Standing
from .survival import Survival

__all__ = ["Ending"]

logger = logging.getLogger("bridge.session")


@dataclass(slots=True, eq=False)
class Ending:
    """Brings one session to its end, once, whoever asks for it."""

    standing: Standing
    dialogue: Dialogue
    performer: Performer
    survival: Survival
    events: EventQueue[Any]
    """On their way to the host."""
    options: SessionOptions

    def soon(self, reason: str) -> asyncio.Task[None]:
        """End it in good order; done when it is over."""
        if self.standing.ending is None:
            self.standing.ending = asyncio.get_running_loop().create_task(self._end(reason))
        return self.standing.ending

    async def _end(self, reason: str) -> None:
        standing, clock = self.standing, self.performer.clock
        if not standing.over.is_set():
            standing.phase = Phase.SETTLING
            # A close must not race a result, nor cut off a tool in the middle of what it does.
            owed = self.options.owed_timeout
            await standing.until(lambda: not clock.machine.owed or standing.over.is_set(), owed)
        if standing.phase is Phase.SETTLING and not self.dialogue.is_down:
            standing.phase = Phase.PARTING
            self.dialogue.say_goodbye()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.end_timeout):
                    await standing.over.wait()
        self.stop(reason, standing.failure)

    def failed(self, fault: Exception) -> None:
        """It is over by a fault of ours."""
        logger.exception("session %s: a fault of its own", self.standing.id, exc_info=fault)
        self.stop("a fault of its own", fault)

    def stop(self, reason: str, failure: Exception | None) -> None:
        """It is over, well or not: nothing is sent any more, and the host's iteration ends.

        That happens once; what is told later can only add the failure that the host has not been told yet.
        """
        standing = self.standing
        standing.failure = standing.failure or failure
        if standing.over.is_set():
            return
        level = logging.INFO if failure is None else logging.WARNING
        logger.log(level, "session %s ended: %s", standing.id, failure or reason or "asked for")
        standing.phase = Phase.OVER
        self.performer.perform(self.dialogue.conversation.end(reason or str(failure)))
        self.dialogue.connection.outbox.close()
        self.survival.stop_searching()
        self.performer.consent.over()
        standing.over.set()
        standing.moved()
        gone = failure or SessionClosed("the session has ended")
        self.performer.updates.changes.fail(gone)
        self.dialogue.connection.fails(gone)
        self.events.close()

    async def aclose(self) -> None:
        """Release everything, whatever happened before. Who is cancelled meanwhile hears of it when that is done."""
        closing = asyncio.get_running_loop().create_task(self._release())
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):  # against scopes; `asyncio.timeout` and its kind do not ask for one
            while not closing.done():
                try:
                    await asyncio.wait([closing])
                except asyncio.CancelledError as meanwhile:
                    cancelled = meanwhile
        if cancelled is not None:
            raise cancelled
        closing.result()

    async def _release(self) -> None:
        standing, connection = self.standing, self.dialogue.connection
        if standing.ending is None and not standing.over.is_set():
            # Left by an exception: nothing is waited for, but the provider must not go on billing.
            self.dialogue.say_goodbye()
            with anyio.move_on_after(self.options.end_timeout):
                await connection.outbox.drained()
            self.stop("the host failed", None)
        if standing.ending is not None:
            await asyncio.wait([standing.ending])
        await self.performer.consent.aclose()
        await self.performer.running.aclose()
        await self.survival.aclose()
        await self.performer.updates.aclose()
        await connection.aclose()
        self.performer.clock.stop()
