"""Events on their way to the host: the reader puts them in without waiting, the host takes them one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

__all__ = ["EventQueue"]

T = TypeVar("T")


class EventQueue(Generic[T]):
    """A bounded queue for one event loop; several may take from it. Taking what is there does not go to the loop."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def put(self, item: T) -> bool:
        """False if there is no room. After `close` it does nothing."""
        if self._closed:
            return True
        if len(self._items) >= self._size:
            return False
        self._items.append(item)
        self._wake()
        return True

    async def take(self) -> T:
        """The next item; raises `StopAsyncIteration` once the queue is closed and empty."""
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            except asyncio.CancelledError:
                if waiting.done() and not waiting.cancelled():
                    self._wake()  # the item this was meant for is somebody else's now
                raise
        return self._items.popleft()

    def close(self) -> None:
        """What is in the queue can still be taken."""
        self._closed = True
        while self._waiting:
            self._wake()

    def _wake(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
