"""Plain sockets for tests: every connection, made or accepted, is closed and gone before its block ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

__all__ = ["Play", "connected", "listening"]

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
"""What a server does with one connection."""

_ENDS = (OSError, EOFError, asyncio.CancelledError)
"""How a connection may end that somebody else has ended."""
_ACCEPTED_IN = 4
"""Rounds of the loop from a connection that the kernel has accepted to the server's being told of it, and one more."""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to this port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        await _cut(writer)


@asynccontextmanager
async def listening(play: Play, host: str = "127.0.0.1", **options: Any) -> AsyncIterator[int]:
    """A server that does `play` with every connection, then closes it: its port. `options` are of `start_server`.

    At the end whatever goes on is cut off. What `play` raises, other than for the end of its connection, is raised.
    """
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await play(reader, writer)
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        tasks.append(asyncio.get_running_loop().create_task(serve(reader, writer)))

    server = await asyncio.start_server(accepted, host, 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(_ACCEPTED_IN):
            await asyncio.sleep(0)
        faults = await _stopped(tasks)
        for writer in writers:
            await _cut(writer)
    if faults:
        raise faults[0]


async def _stopped(tasks: Sequence[asyncio.Task[None]]) -> list[BaseException]:
    """What they have raised, once all are over."""
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    return [end for end in ends if isinstance(end, BaseException) and not isinstance(end, _ENDS)]


async def _cut(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
