"""What parent and worker say to each other over a socket pair: JSON values, each after its length in four bytes.

worker   {"started": port} or {"failed": why}            once
parent   {"id": 7, "ask": "drain", "seconds": 30}        also ready, sessions, calls, pending, settle, decide, ...
worker   {"id": 7, "said": 0}                            in any order, or never
worker   {"event": "fact", "data": {...}}                once it was asked to `follow` or to `attend`
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any, Final, Self

from ..admin.plain import dumped

__all__ = ["Channel", "packed"]

_LENGTH: Final = 4


def packed(message: object) -> bytes:
    """A message as it travels."""
    text = dumped(message)
    return len(text).to_bytes(_LENGTH) + text


class Channel:
    """One end of the pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Use this end of a pair, and close it with the channel."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: object) -> None:
        """Send it soon. Raises `ConnectionError` if that is known to be useless."""
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(packed(message))

    async def flush(self) -> None:
        """Wait until the other end has taken most of what was sent. Raises `ConnectionError` if it has gone."""
        await self._writer.drain()

    async def receive(self) -> Any:
        """The next message; None if the other end has closed."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH))
            return json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        self._writer.close()
