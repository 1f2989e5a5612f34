"""A network between a session and its provider: it can be cut, be away, and be too slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.sockets import connected, listening

__all__ = ["Cable"]


class Cable:
    """Leads from its own `url` to the WebSocket at another."""

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str) -> AsyncIterator[Cable]:
        """A cable that leads there."""
        cable = cls(int(url.split(":")[2].split("/")[0]))
        async with listening(cable._carry) as port:
            cable.url = f"ws://127.0.0.1:{port}/v1/ws"
            yield cable

    def __init__(self, port: int) -> None:
        self.url = ""
        self._port = port
        self._lines: set[asyncio.StreamWriter] = set()
        self._torn = False
        self._turned_away = asyncio.Semaphore(0)
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self) -> None:
        """Every connection breaks; new ones can be made."""
        self._flows.set()
        for line in list(self._lines):
            line.transport.abort()

    def tear(self) -> None:
        """Every connection breaks, and so does every new one until it is mended."""
        self._torn = True
        self.cut()

    async def turns_away(self, times: int) -> None:
        """Wait until so many new connections have broken."""
        for _ in range(times):
            await self._turned_away.acquire()

    def mend(self) -> None:
        self._torn = False

    def jam(self) -> None:
        """Nothing of what the session sends gets through, until it is cut."""
        self._flows.clear()

    async def _carry(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        if self._torn:
            self._turned_away.release()
            near.transport.abort()
            return
        async with connected(self._port) as (far_reader, far):
            self._lines |= {near, far}
            try:
                await asyncio.gather(self._pump(near_reader, far, self._flows), self._pump(far_reader, near))
            finally:
                self._lines -= {near, far}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flows: asyncio.Event | None = None
    ) -> None:
        try:
            while True:
                data = await reader.read(65_536)
                if not data:
                    break
                if flows is not None:
                    await flows.wait()
                writer.write(data)
                await writer.drain()
        except (OSError, RuntimeError):  # as uvloop says that it is closed
            pass
        writer.transport.abort()
