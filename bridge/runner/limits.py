"""What bounds the calls of a process: places, threads for plain functions, a breaker against endless repetition."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from ..core.events import ToolCall
from ..errors import ToolError
from ..tools.encode import decode

__all__ = ["LoopBreaker", "Looping", "Slots", "Threads", "take_all"]

logger = logging.getLogger("bridge.tools")

_MINUTE = 60.0


class Looping(ToolError):
    """The model repeats itself."""


class Slots:
    """A number of places, given out in the order of asking. Unlike a semaphore it can be tried without waiting."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[asyncio.Future[None]] = []  # an empty deque is ten times as large, in every session

    def take(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        if self.take():
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it came in the same moment
                self.give()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    def give(self) -> None:
        """Give a place back: to the next in the queue, if there is one."""
        while self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


def take_all(wanted: Sequence[Slots]) -> bool:
    """One place of each, or none of any."""
    for index, slots in enumerate(wanted):
        if not slots.take():
            for taken in wanted[:index]:
                taken.give()
            return False
    return True


class LoopBreaker:
    """Notices a model that repeats itself: refused calls count too, so it stays refused until it does otherwise."""

    def __init__(self, repeat_limit: int, calls_per_minute: int) -> None:
        self._repeat_limit = repeat_limit
        self._most = calls_per_minute
        self._times: list[float] = []
        """Of the latest calls, oldest first; not more than `most`."""
        self._latest: tuple[str, str] = ("", "")
        self._in_a_row = 0

    def count(self, call: ToolCall, now: float) -> None:
        """Raises `Looping` if this call is one too many."""
        calm = not self._times or now - self._times[-1] >= _MINUTE
        crowded = len(self._times) == self._most and now - self._times[0] < _MINUTE
        self._times = [*self._times, now][-self._most :]
        this = (call.name, call.arguments)
        self._in_a_row = self._in_a_row + 1 if not calm and _same(this, self._latest) else 1
        self._latest = this
        if self._in_a_row > self._repeat_limit:
            raise Looping("the same call has been made too often in a row and was not run; do not repeat it")
        if crowded:
            raise Looping("too many calls have been made in the last minute; this one was not run")


def _same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Do two calls ask for the same, however their arguments are spelled?"""
    return one == other or (one[0] == other[0] and _canonical(one[1]) == _canonical(other[1]))


def _canonical(arguments: str) -> object:
    try:
        return decode(arguments)
    except ValueError:
        return arguments


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], object]
    variables: contextvars.Context
    done: asyncio.Future[tuple[object, BaseException | None]]


class Threads:
    """A bounded pool of daemon threads, which a process that ends does not wait for.

    Counters belong to the event loop's thread. A job whose caller has gone keeps its thread, and counts as abandoned.
    """

    def __init__(self, limit: int) -> None:
        self.slots = Slots(limit)
        """One is to be taken before `run`; released when the job has ended, not when its caller has."""
        self.busy = 0
        self.abandoned = 0
        self._limit = limit
        self._started = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    @property
    def hopeless(self) -> bool:
        """Do abandoned jobs hold all threads, so that waiting for one is vain?"""
        return self.abandoned >= self._limit

    async def run(self, function: Callable[[], object], name: str, session: str) -> object:
        """What the function returns. `name` is the tool's, `session` what the log calls its session."""
        job = _Job(function, contextvars.copy_context(), asyncio.get_running_loop().create_future())
        self.busy += 1
        if self.busy > self._started:
            self._started += 1
            threading.Thread(target=self._work, name=f"bridge-tool-{self._started}", daemon=True).start()
        self._jobs.put(job)
        try:
            value, error = await job.done
        except asyncio.CancelledError:
            if job.done.cancelled():  # else it ended in the same moment
                self.abandoned += 1
                logger.warning(
                    "tool %s goes on in its thread, although its call has ended, in session %s", name, session
                )
            raise
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome: tuple[object, BaseException | None]
            try:
                outcome = job.variables.run(job.function), None
            except BaseException as error:
                outcome = None, error
            with suppress(RuntimeError):  # the loop has closed, and all that counted there with it
                job.done.get_loop().call_soon_threadsafe(self._ended, job, outcome)
            del job, outcome  # while it waits, a thread keeps nothing alive

    def _ended(self, job: _Job, outcome: tuple[object, BaseException | None]) -> None:
        self.busy -= 1
        self.slots.give()
        if job.done.cancelled():
            self.abandoned -= 1
        else:
            job.done.set_result(outcome)
