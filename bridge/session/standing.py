"""Where a session stands: what it is called, how far it has come, and how it ended.

OPENING --ready--> READY --end--> SETTLING --nothing is owed--> PARTING --> OVER
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from ..core.events import ProviderFailed
from ..errors import SessionClosed

__all__ = ["Phase", "Standing"]


class Phase(Enum):
    """See above. In READY and SETTLING a session outlives its connection."""

    OPENING = "the provider is not ready yet"
    READY = "under way"
    SETTLING = "ending: what is owed is waited for"
    PARTING = "the provider has been told of the end"
    OVER = "over"


class Standing:
    """What the parts of one session need to know of it as a whole."""

    def __init__(self, name: str) -> None:
        self.id = name
        """Our name for the session."""
        self.phase = Phase.OPENING
        self.over = asyncio.Event()
        """Set once nothing is performed any more, which is a little later than the phase says so."""
        self.ending: asyncio.Task[None] | None = None
        """Brings the session to its end, from the moment that it has been asked for."""
        self.failure: Exception | None = None
        """What the host has not been told yet."""
        self.refusal: ProviderFailed | None = None
        """What the provider will not go on after."""
        self._moved = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """May anything new be begun?"""
        return self.phase in (Phase.OPENING, Phase.READY)

    def refuse_if_closing(self) -> None:
        """Raises `SessionClosed` once the session is closing."""
        if not self.is_open:
            raise SessionClosed("the session is closing")

    def refuse_if_over(self) -> None:
        """Raises `SessionClosed` once the session is over."""
        if self.over.is_set():
            raise SessionClosed("the session has ended: nothing can be sent any more")

    def moved(self) -> None:
        """The turn, the connection or the session is not what it was: tell whoever waits for that."""
        self._moved.set()

    async def until(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait until the session has come so far, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    self._moved.clear()
                    await self._moved.wait()
