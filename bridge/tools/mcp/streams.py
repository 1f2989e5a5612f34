"""The SDK's streams, looked at on their way: it tells nobody that a server has ended while no call is in flight, and
takes or refuses a list of tools as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

__all__ = ["Observed", "Received", "Streams"]

Received = SessionMessage | Exception
Streams = tuple[ReadStream[Received], WriteStream[SessionMessage]]


class Observed:
    """A stream of messages as it was, but for an event that is set at its end, and `seen`, which sees each first."""

    def __init__(self, stream: ReadStream[Received], ended: asyncio.Event, seen: Callable[[Received], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._seen = seen

    @property
    def last_context(self) -> Any:
        """Of the latest message: the SDK looks for it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Received:
        message = await self._stream.receive()
        self._seen(message)
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        try:
            message = await self._stream.__anext__()
        except StopAsyncIteration:
            self._ended.set()
            raise
        self._seen(message)
        return message

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
