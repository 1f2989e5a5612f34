"""What a server writes to its standard error, as lines of our log: at level debug, shortened, and not too many."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TextIO

__all__ = ["Lines", "logged"]

logger = logging.getLogger("bridge.tools.mcp")

_LINE = 300
"""Characters of a line that are shown, and of one without an end that are kept."""
_PER_SECOND = 20
_LAST_WORDS = 0.2
"""Seconds for what a server that has ended wrote last. A child of it may keep the pipe open for ever."""


class Lines:
    """Cuts bytes into lines, and lets so many of them pass a second."""

    def __init__(self, per_second: int = _PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._rest = b""
        self._second = 0
        self._passed = 0
        self._dropped = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes, as far as they may pass."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE]
        for line in lines:
            if text := line.decode(errors="replace").strip():
                yield from self._limited(text)

    def _limited(self, text: str) -> Iterator[str]:
        if (second := int(self._clock())) != self._second:
            if self._dropped:
                yield f"({self._dropped} more lines)"
            self._second, self._passed, self._dropped = second, 0, 0
        if self._passed < self._per_second:
            self._passed += 1
            yield text[:_LINE]
        else:
            self._dropped += 1


@asynccontextmanager
async def logged(name: str) -> AsyncIterator[TextIO]:
    """A file for a program to write its standard error to. Close it once the program has it. `name` is the server's."""
    readable, writable = os.pipe()
    with os.fdopen(writable, "w") as file:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(readable, "rb", 0)
        )
        reading = asyncio.create_task(_log(reader, name))
        try:
            yield file
        finally:
            file.close()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS):
                        await asyncio.shield(reading)
            finally:
                reading.cancel()
                transport.close()


async def _log(reader: asyncio.StreamReader, name: str) -> None:
    lines = Lines()
    while data := await reader.read(4096):
        for line in lines.feed(data):
            logger.debug("MCP server %s: %s", name, line)
