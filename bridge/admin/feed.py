"""What happens, for whoever reads along: kept for a while, so that a reader that comes back misses nothing.

Writing never waits for a reader. One that falls behind by more than is kept has lost what it did not read, and is told.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

__all__ = ["End", "Event", "Feed", "Reader"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as plain values."""

    number: int
    name: str
    data: Mapping[str, Any]


class End(Enum):
    """What a reader finds instead of an event."""

    LOST = "what should come next is kept no longer; reading goes on with the oldest that is"
    CLOSED = "there will be no more"


class Feed:
    """The latest `keep` events. They may be put in from any thread; each reader is on the loop that reads."""

    def __init__(self, keep: int = 10_000) -> None:
        self.life = secrets.token_hex(4)
        """Tells the numbers of this feed from those of another, such as the one before a restart."""
        self._kept: deque[Event] = deque(maxlen=keep)
        self._number = 0
        self._readers: set[Reader] = set()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, name: str, data: Mapping[str, Any]) -> None:
        """It has happened."""
        with self._lock:
            self._number += 1
            self._kept.append(Event(self._number, name, data))
            readers = tuple(self._readers)
        for reader in readers:
            reader.wake()

    def reader(self, after: int | None = None) -> Reader:
        """Reads what comes after the event of this number; what comes from now on, if there is none."""
        with self._lock:
            reader = Reader(self, self._number if after is None else after)
            self._readers.add(reader)
        return reader

    def close(self) -> None:
        """There will be no more: readers come to their end."""
        with self._lock:
            self._closed = True
            readers = tuple(self._readers)
        for reader in readers:
            reader.wake()

    def next_after(self, number: int) -> Event | End | None:
        """The event after this one; None if there is none yet."""
        with self._lock:
            if number == self._number:
                return End.CLOSED if self._closed else None
            ahead = number + 1 - self._kept[0].number if self._kept else -1
            return next(islice(self._kept, ahead, None), End.LOST) if ahead >= 0 else End.LOST

    @property
    def oldest(self) -> int:
        """The number after which all is kept."""
        with self._lock:
            return self._kept[0].number - 1 if self._kept else self._number

    def leave(self, reader: Reader) -> None:
        """It reads no more."""
        with self._lock:
            self._readers.discard(reader)


class Reader:
    """One who reads along, from `Feed.reader`. To be closed."""

    def __init__(self, feed: Feed, after: int) -> None:
        self._feed = feed
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    async def next(self) -> Event | End:
        """The next event, as soon as there is one. It may be given up waiting for without losing any."""
        while True:
            self._woken.clear()
            match self._feed.next_after(self._after):
                case None:
                    await self._woken.wait()
                case Event() as event:
                    self._after = event.number
                    return event
                case end:
                    self._after = self._feed.oldest
                    return end

    def wake(self) -> None:
        """There is something new. From any thread."""
        if self._woken.is_set():
            return  # it has not looked yet
        with suppress(RuntimeError):  # its loop is closed, and with it everything
            self._loop.call_soon_threadsafe(self._woken.set)

    def close(self) -> None:
        """Read no more."""
        self._feed.leave(self)
