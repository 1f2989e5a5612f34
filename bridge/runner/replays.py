"""Calls that are made again: the first success is given again, and what runs at this moment is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

__all__ = ["Replays"]

_KEPT = 10_000
"""Successes that are remembered at most; the oldest go first."""


@dataclass(frozen=True, slots=True)
class _Success:
    output: str
    until: float


class Replays:
    """First successes of calls, by what makes them the same; those of one session, or of a process."""

    __slots__ = ("_clock", "_kept", "_running")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kept: dict[Hashable, _Success] = {}
        self._running: dict[Hashable, asyncio.Future[None]] = {}

    async def once(self, key: Hashable, seconds: float, run: Callable[[], Awaitable[str]]) -> tuple[str, bool]:
        """What `run` comes to, and whether that was had before. A failure is forgotten, so that the next call runs."""
        while True:
            if (output := self._success(key)) is not None:
                return output, True
            if (running := self._running.get(key)) is None:
                break
            await asyncio.shield(running)
        self._running[key] = over = asyncio.get_running_loop().create_future()
        try:
            output = await run()
            self._keep(key, _Success(output, self._clock() + seconds))
            return output, False
        finally:
            del self._running[key]
            over.set_result(None)

    def _success(self, key: Hashable) -> str | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if self._clock() < found.until:
            return found.output
        del self._kept[key]
        return None

    def _keep(self, key: Hashable, success: _Success) -> None:
        self._kept.pop(key, None)
        self._kept[key] = success
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
