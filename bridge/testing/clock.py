"""Time that passes only while nothing happens, and then at once.

A tool waits with `asyncio.sleep`, and so do its time-out and every timer of a session: all of them ask the event loop.
So it is the loop's clock that has to be virtual; one that is handed to our own parts would leave the tool waiting. A
loop made for the purpose would have to be set up in each test runner in another way, and a loop in a thread of its own
would part a tool from the clients and locks that its test has made. So the loop that runs the test lends its clock:
while it is borrowed, its `time` is ours, and so is the `select` by which it waits. There the loop itself says that
nothing is ready, and how long until something is: the moment, and the only one, at which time may jump.

Time goes at its usual pace while somebody outside the loop may be at work: a thread that runs a plain function (or a
job of `asyncio.to_thread` or `anyio.to_thread`), or, while a call runs, the other end of a socket or a pipe. Nobody can
know how long they take. Code that runs takes no time at all. Only the loop's clock is virtual: `time.time()` is not.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from selectors import BaseSelector, SelectorKey
from time import monotonic
from typing import Any

import anyio.to_thread

from ..errors import ConfigError
from ..runner.runner import Calls, Runner

__all__ = ["VirtualClock"]

_PATIENCE = 0.5
"""Real seconds that whoever works outside the loop gets to be done, before a moment counts as over."""

_Events = list[tuple[SelectorKey, int]]


class VirtualClock:
    """The clock of the running event loop, as long as it is borrowed. Made by `borrowed`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, selector: BaseSelector) -> None:
        self._loop = loop
        self._selector = selector
        self._now = loop.time()
        self._wait = selector.select
        self._execute: Callable[..., asyncio.Future[Any]] = loop.run_in_executor
        self._jobs: set[asyncio.Future[Any]] = set()
        self._limiter = anyio.to_thread.current_default_thread_limiter()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._borrowers = 0
        self._watched: list[tuple[Runner, Calls]] = []

    @classmethod
    @contextmanager
    def borrowed(cls) -> Iterator[VirtualClock]:
        """Borrow the clock of the running loop; several may do so at once, and then share it.

        Raises `ConfigError` if the loop is not one of asyncio's own that waits with a selector.
        """
        loop = asyncio.get_running_loop()
        selector = getattr(loop, "_selector", None)
        if not isinstance(selector, BaseSelector):
            raise ConfigError(f"a {type(loop).__name__} lends no clock: run this test on asyncio.SelectorEventLoop")
        clock = getattr(selector.select, "__self__", None)
        if not isinstance(clock, VirtualClock):
            clock = cls(loop, selector)
            clock._take()
        clock._borrowers += 1
        try:
            yield clock
        finally:
            clock._borrowers -= 1
            if not clock._borrowers:
                clock._give_back()

    @contextmanager
    def watching(self, runner: Runner, calls: Calls) -> Iterator[None]:
        """Time must not jump while one of these calls may be waiting for somebody outside the loop."""
        self._watched.append((runner, calls))
        try:
            yield
        finally:
            self._watched.remove((runner, calls))

    def time(self) -> float:
        """Seconds, as the loop counts them."""
        return self._now

    async def rest(self) -> None:
        """Return once all that can happen at this moment has happened. No time passes."""
        moment = self._loop.create_future()
        self._resting.append(moment)
        await moment

    def _take(self) -> None:
        vars(self._selector)["select"] = self._select
        vars(self._loop)["time"] = self.time
        vars(self._loop)["run_in_executor"] = self._run_in_executor

    def _give_back(self) -> None:
        """Time never goes back: if it has jumped, the loop stays ahead by that much."""
        del vars(self._selector)["select"], vars(self._loop)["run_in_executor"], vars(self._loop)["time"]
        real = self._loop.time
        ahead = self._now - real()
        if ahead > 0:
            vars(self._loop)["time"] = lambda: real() + ahead

    def _select(self, timeout: float | None = None) -> _Events:
        """How the loop waits. `timeout`: seconds until its next timer, or None if there is none."""
        events = self._wait(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        while self._resting:
            if self._somebody_works() and (events := self._wait(_PATIENCE)):
                return events
            moment = self._resting.popleft()
            if not moment.done():
                moment.set_result(None)
                return []
        if timeout is None or self._somebody_works():
            began = monotonic()
            events = self._wait(timeout)
            self._now += monotonic() - began
            return events
        # Rounded up: a timer that is missed by a hair would have the loop ask again and again.
        self._now = math.nextafter(self._now + timeout, math.inf)
        return []

    def _somebody_works(self) -> bool:
        """Is anybody outside the loop at work?"""
        threads = sum(runner.threads_busy - runner.threads_abandoned for runner, _ in self._watched)
        if self._jobs or self._limiter.borrowed_tokens or threads:
            return True
        # The loop keeps one entry for itself, by which threads wake it.
        sockets = len(self._selector.get_map()) - 1
        return sockets > 0 and any(calls.running for _, calls in self._watched)

    def _run_in_executor(self, *arguments: Any) -> asyncio.Future[Any]:
        job = self._execute(*arguments)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job
