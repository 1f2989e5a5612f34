"""How the parts of a session wait: for something to change, and for time to pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

__all__ = ["Changes", "Clock"]


class Changes:
    """Lets coroutines wait until something is true, and wakes them when anything has changed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Something has changed: everybody looks again."""
        self._event.set()
        self._event = anyio.Event()

    async def until(self, true: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until this is true, at most so long; is it?"""
        with anyio.move_on_after(seconds):
            while not true():
                await self._event.wait()
        return true()


class Clock:
    """Time since the session began, and durations multiplied by the pace."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self._start = anyio.current_time()

    @property
    def now(self) -> float:
        """Seconds since the session began, as they pass for the client."""
        return anyio.current_time() - self._start

    async def sleep(self, seconds: float) -> None:
        """Wait so many of the provider's seconds."""
        await anyio.sleep(seconds * self.pace)
