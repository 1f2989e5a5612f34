"""Time that a test may advance, and what is to happen at which moment of it."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heappop, heappush

from bridge.simulator.waiting import Changes

__all__ = ["Agenda"]


class Agenda:
    """The clock of an offline provider. It goes at its usual pace, and jumps when it is advanced.

    `keep` has to be running for anything to happen by itself; `advance` does what falls due on its way at once.
    """

    def __init__(self) -> None:
        self._ahead = 0.0
        self._changes = Changes()
        self._numbers = itertools.count()
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._stopped = False

    @property
    def now(self) -> float:
        """Unix time, in seconds."""
        return time.time() + self._ahead

    @property
    def stamp(self) -> str:
        """The same as RFC 3339 text, in UTC and milliseconds."""
        return datetime.fromtimestamp(self.now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do this so many seconds from now; at once if there are none, and never if they are infinite."""
        if seconds <= 0:
            action()
        elif math.isfinite(seconds):
            heappush(self._entries, (self.now + seconds, next(self._numbers), action))
            self.notify()

    def advance(self, seconds: float) -> None:
        """Let time jump. What falls due on the way happens in order, each at its moment."""
        end = self.now + seconds
        while self._next <= end:
            self._ahead += max(0.0, self._next - self.now)
            heappop(self._entries)[2]()
        self._ahead += max(0.0, end - self.now)
        self.notify()

    def notify(self) -> None:
        """Something has changed: everybody who waits looks again."""
        self._changes.notify()

    async def until(self, true: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until this is true, at most so long by this clock; is it? Returns early when the clock stops."""
        end = self.now + seconds
        while not true() and not self._stopped and self.now < end:
            await self._changes.until(lambda: true() or self._stopped or self.now >= end, end - self.now)
        return true()

    async def keep(self) -> None:
        """Do everything at its time, until the clock stops."""
        while not self._stopped:
            await self._until_earlier(self._next)
            self.advance(0.0)

    def stop(self) -> None:
        """Stop the clock: nothing happens any more, and nobody waits any longer."""
        self._stopped = True
        self._entries.clear()
        self.notify()

    async def _until_earlier(self, due: float) -> None:
        """Wait until this moment, or until something is to happen before it."""
        await self.until(lambda: self._next < due, due - self.now)

    @property
    def _next(self) -> float:
        return self._entries[0][0] if self._entries else math.inf
