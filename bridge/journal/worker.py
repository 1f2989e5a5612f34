"""A thread with a queue: whatever waits in it is taken at once, so that many callers share one trip to the disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..errors import JournalError

__all__ = ["Job", "Worker"]

T = TypeVar("T")

_BATCH = 256
"""Jobs that are done together at most."""
_WAITING = 10_000
"""Jobs that wait at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Job(Generic[T]):
    """Something to be done, and who waits for it."""

    what: T
    done: Future[Any] = field(default_factory=Future)


class Worker(Generic[T]):
    """Does jobs in the order in which they came. Callers may be on any event loop.

    `work` gets all that waits, and gives each job its result or its exception. `limit`: seconds for which a caller
    waits. `late` is called when one has waited in vain and the work itself has taken half of that: it may shake it.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Job[T]]], None],
        *,
        limit: float,
        late: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = work
        self._limit = limit
        self._late = late
        self._jobs: deque[Job[T]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._began: float | None = None
        # Nobody waits at the end of the process for a thread that a dead disk holds.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def do(self, what: T, hopeless: str, *, limit: float | None = None) -> Any:
        """Have it done. Raises `JournalError` with `hopeless` if that takes too long; then it may be done all the same,
        unless it has not been begun. `limit`: seconds, for what takes longer than most.
        """
        limit = self._limit if limit is None else limit
        job = Job(what)
        with self._changed:
            if self._closed:
                raise JournalError("the journal is closed")
            if len(self._jobs) >= _WAITING:
                raise JournalError(f"{hopeless}: {_WAITING} callers wait for it already")
            self._jobs.append(job)
            self._changed.notify()
        try:
            async with asyncio.timeout(limit):
                return await asyncio.wrap_future(job.done)
        except TimeoutError:
            if self._began is not None and time.monotonic() - self._began >= limit / 2:
                self._late()
            raise JournalError(f"{hopeless} within {limit:g} s: see to its disk or its database") from None

    def _run(self) -> None:
        while jobs := self._take():
            self._began = time.monotonic()
            try:
                self._work(jobs)
            except BaseException as error:  # nobody may wait for ever
                for job in jobs:
                    if not job.done.done():
                        job.done.set_exception(_again(error))
            finally:
                self._began = None

    def _take(self) -> list[Job[T]]:
        """What waits and is still wanted; nothing once the worker is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return []
                taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), _BATCH))]
            if wanted := [job for job in taken if job.done.set_running_or_notify_cancel()]:
                return wanted

    async def aclose(self) -> bool:
        """Do what waits, and end. False if that takes longer than a caller would wait: then it is left behind."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, self._limit)
        if self._thread.is_alive():
            self._late()
        return not self._thread.is_alive()


def _again(error: BaseException) -> BaseException:
    """Callers do not share an exception: each adds its own way to it."""
    return JournalError(str(error)) if isinstance(error, JournalError) else error
