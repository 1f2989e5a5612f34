"""Frames on their way to the provider, in the order of the decisions, written by one writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..core.events import CallKey, Frame
from ..errors import TransportError
from ..transports import Line, Transport

__all__ = ["Outbox"]

_ROOM = 64
"""Frames that may wait before the host has to."""


class Outbox:
    """`sent` hears of the keys of results once they have arrived, or, if that cannot be known, have been taken."""

    def __init__(self, transport: Transport, sent: Callable[[tuple[CallKey, ...]], None]) -> None:
        self._transport = transport
        self._line = transport if isinstance(transport, Line) else None
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
        """Wait until more may be sent, since the provider has to read, too; or until nothing is taken any more."""
        if not self._room.is_set():
            await self._room.wait()

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
                        await self._confirm(keys)
                    if len(self._queue) < _ROOM:
                        self._room.set()
                self._drained.set()
                self._filled.clear()
                await self._filled.wait()
        except TransportError:
            pass
        finally:
            self.close()

    async def _confirm(self, keys: tuple[CallKey, ...]) -> None:
        """Nothing waits for a receipt but the news of it: audio goes on meanwhile."""
        if self._line is None:
            self._sent(keys)
            return
        receipt = asyncio.ensure_future(await self._line.receipt())
        receipt.add_done_callback(lambda done: done.cancelled() or done.exception() or self._sent(keys))

    def close(self) -> None:
        """Take nothing more; whoever waits goes on."""
        self._closed = True
        self._queue.clear()
        self._room.set()
        self._drained.set()
