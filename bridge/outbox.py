"""Frames on their way to the provider, in the order of the decisions, written by one writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .core.events import CallKey, Frame
from .errors import SessionClosed, TransportError
from .transports import Transport

__all__ = ["Outbox"]

_ROOM = 64
"""Frames that may wait before the host has to."""


class Outbox:
    """`sent` hears of the keys of results once the transport has taken them."""

    def __init__(self, transport: Transport, sent: Callable[[tuple[CallKey, ...]], None]) -> None:
        self._transport = transport
        self._sent = sent
        self._queue: deque[tuple[tuple[Frame, ...], tuple[CallKey, ...]]] = deque()
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    def put(self, frames: tuple[Frame, ...], keys: tuple[CallKey, ...] = ()) -> None:
        """Never waits: for what we decide ourselves, which is little."""
        if self._closed:
            return
        self._queue.append((frames, keys))
        self._filled.set()
        self._drained.clear()
        if len(self._queue) >= _ROOM:
            self._room.clear()

    async def room(self) -> None:
        """Wait until the host may send more: the provider has to read, too. Raises `SessionClosed`."""
        if not self._room.is_set():
            await self._room.wait()
        if self._closed:
            raise SessionClosed("the session has ended: nothing can be sent any more")

    async def drained(self) -> None:
        """Wait until the transport has taken everything, or is gone."""
        await self._drained.wait()

    async def run(self) -> None:
        """Write until the transport is gone; that it is gone is the reader's news."""
        try:
            while True:
                while self._queue:
                    frames, keys = self._queue.popleft()
                    for frame in frames:
                        await self._transport.send(frame)
                    if keys:
                        self._sent(keys)
                    if len(self._queue) < _ROOM:
                        self._room.set()
                self._drained.set()
                self._filled.clear()
                await self._filled.wait()
        except TransportError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Take nothing more; whoever waits goes on."""
        self._closed = True
        self._queue.clear()
        self._room.set()
        self._drained.set()
