"""From steps to entries: an observer that never waits, and a task that writes what it has seen."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakSet

from ..core.conversation import Step
from ..core.dialect import Delivery
from ..core.events import AgentAudio, Run, Start, ToolCalled, Transcript
from ..errors import JournalError
from . import MARK_BITS, Begun, Entry, Journal, Lost, Part, Record

__all__ = ["Recorder", "Watched"]

logger = logging.getLogger("bridge.journal")

_BATCH = 500
"""Entries that are written together, about: a step is never torn."""


class Watched(Protocol):
    """What a recorder wants to know about a session."""

    @property
    def id(self) -> str: ...

    @property
    def delivery(self) -> Delivery:
        """As its turn machine has it."""
        ...


class Recorder:
    """Writes every step of the sessions that it watches into a journal.

        async with Recorder(journal) as recorder, Bridge(tools, observers=(recorder,)) as bridge: ...

    A journal that is out of order is tried again every `retry` seconds. Meanwhile up to `max_waiting` entries wait;
    beyond that, steps are lost. They are counted, and the journal says where they are missing. Sessions may be on any
    event loop; the recorder is entered and closed on one.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        max_waiting: int = 10_000,
        retry: float = 0.5,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lost = 0
        """Entries that could not be written."""
        self.waiting = 0
        """Entries that wait to be written."""
        self._journal = journal
        self._max_waiting = max_waiting
        self._retry = retry
        self._clock = clock
        self._queue: deque[list[Entry]] = deque()
        self._known: WeakSet[Watched] = WeakSet()
        self._missing: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        # Marks grow, and no other recorder has the same: 31 random bits, and a number.
        self._mark = secrets.randbits(31) << MARK_BITS
        self._lock = threading.Lock()
        self._filled = asyncio.Event()
        self._written = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Are steps being lost at this moment?"""
        return self.waiting >= self._max_waiting

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ---------------------------------------------------------------------------------------------- what is watched

    def __call__(self, session: Watched, step: Step) -> None:
        """The observer of a `Bridge`, of `connect`, and of the relay. Does not wait."""
        if len(step.events) == 1 and isinstance(step.events[0], AgentAudio):
            return  # nearly every step ends here
        records = list(_records(step))
        if not records:
            return
        with self._lock:
            if session not in self._known:
                self._known.add(session)
                records.insert(0, (Begun(session.delivery, self._turns.pop(session.id, 0)), Part.HEARD))
            if self.full:
                self._lose(session.id, len(records))
            else:
                self._tell_of_the_lost()
                self._put(session.id, records)

    def goes_on(self, session: str, turn: int) -> None:
        """Another process has begun this session, which is seen here next: with the number of its latest reply."""
        self._turns[session] = turn

    def _put(self, session: str, records: Sequence[tuple[Record, Part]]) -> None:
        now, first = self._clock(), self._mark + 1
        self._mark += len(records)
        self.waiting += len(records)
        self._queue.append(
            [Entry(now, session, record, part, mark) for mark, (record, part) in enumerate(records, first)]
        )
        # Before it is entered, what has been seen just waits.
        if self._task is not None and not self._filled.is_set():
            with suppress(RuntimeError):  # the loop is closed, and with it everything
                self._loop.call_soon_threadsafe(self._filled.set)

    def _lose(self, session: str, entries: int) -> None:
        if not self._missing:
            logger.error(
                "the journal cannot keep up: %d entries wait, and what comes now is lost; see to its disk or database",
                self.waiting,
            )
        self._missing[session] = self._missing.get(session, 0) + entries
        self.lost += entries

    def _tell_of_the_lost(self) -> None:
        missing, self._missing = self._missing, {}
        for session, entries in missing.items():
            self._put(session, [(Lost(entries), Part.HEARD)])

    # ---------------------------------------------------------------------------------------------- what is written

    async def _run(self) -> None:
        while True:
            if not self._queue:
                self._written.set()
                await self._filled.wait()
            self._filled.clear()
            self._written.clear()
            if batch := self._take():
                await self._write(batch)
                with self._lock:
                    self.waiting -= len(batch)
                    if not self.full:
                        self._tell_of_the_lost()

    def _take(self) -> list[Entry]:
        batch: list[Entry] = []
        while self._queue and len(batch) < _BATCH:
            batch += self._queue.popleft()
        return batch

    async def _write(self, batch: list[Entry]) -> None:
        troubled = False
        while True:
            try:
                await self._journal.append(batch)
            except JournalError as error:
                if not troubled:
                    logger.warning("what happens is not in the journal yet, and waits: %s", error)
                troubled = True
                await asyncio.sleep(self._retry)
            except Exception:
                logger.exception("%d entries cannot be written into the journal, and are lost", len(batch))
                self.lost += len(batch)
                return
            else:
                if troubled:
                    logger.info("the journal has caught up: %d entries lost so far", self.lost)
                return

    async def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything seen so far is in the journal. False if that takes longer than `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.waiting:
                    self._written.clear()
                    self._filled.set()
                    await self._written.wait()
        return not self.waiting

    async def aclose(self, timeout: float = 5.0) -> None:
        """Write what waits, for at most `timeout` seconds. What cannot be written by then is lost, and counted."""
        task = self._task
        if task is None:
            return
        if not await self.flush(timeout):
            logger.error(
                "the journal ends with %d entries that could not be written in time, and are lost", self.waiting
            )
            self.lost += self.waiting
        self._task = None
        task.cancel()
        await asyncio.wait([task])


def _records(step: Step) -> Iterator[tuple[Record, Part]]:
    """What of a step is worth remembering: all but audio, and words of the agent, which change nothing."""
    run = {output.call.call_id for output in step.outputs if isinstance(output, Run)}
    for event in step.events:
        match event:
            case AgentAudio() | Transcript(speaker="agent"):
                pass
            case ToolCalled(call, Start.NOW) if call.call_id not in run:
                yield event, Part.NOTED  # nobody runs it, so it is the application's or the provider's own
            case _:
                yield event, Part.HEARD
    for output in step.outputs:
        yield output, Part.DECIDED
