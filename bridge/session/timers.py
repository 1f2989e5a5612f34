"""The timers a turn machine asks for, run on the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..core.events import Timer

__all__ = ["Timers"]

_SLACK = 0.001
"""Seconds by which a clock may be early."""


class Timers:
    """Keeps exactly the wanted timers running, each with a deadline on the event loop's clock.

    `deadline` is asked when a timer starts, and again when its time has come: deadlines may move away meanwhile, as
    every sign of life puts off the moment at which a provider counts as stuck. `fire` is told when one is over.

    Nearly every timer is stopped before its time, once a turn. So one wake-up serves them all, and is left to pass when
    nothing waits for it any more.
    """

    __slots__ = ("_deadline", "_fire", "_loop", "_since", "_wake")

    def __init__(self, deadline: Callable[[Timer, float], float], fire: Callable[[Timer], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._fire = fire
        self._since: dict[Timer, float] = {}
        self._wake: asyncio.TimerHandle | None = None

    def keep(self, wanted: frozenset[Timer]) -> None:
        """Start what is wanted and does not run; stop what runs and is not wanted."""
        since = self._since
        if since:
            for timer in [t for t in since if t not in wanted]:
                del since[timer]
        for timer in wanted:
            if timer not in since:
                since[timer] = now = self._loop.time()
                self._wake_at(self._deadline(timer, now))

    def stop(self, timer: Timer) -> None:
        """Forget this timer; wanted again, it starts anew."""
        self._since.pop(timer, None)

    def stop_all(self) -> None:
        """Forget all of them."""
        self._since.clear()
        if self._wake is not None:
            self._wake.cancel()

    def _wake_at(self, when: float) -> None:
        if self._wake is not None:
            if self._wake.when() <= when:
                return
            self._wake.cancel()
        self._wake = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._wake = None
        for timer, since in list(self._since.items()):
            when = self._deadline(timer, since)
            if when > self._loop.time() + _SLACK:
                self._wake_at(when)
            elif self._since.pop(timer, None) is not None:
                self._fire(timer)
