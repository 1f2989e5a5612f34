"""Event streams: who listens, and what a listener gets. What happens while nobody listens is never sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import orjson

from bridge.simulator.openai_sessions.rules import Rules

__all__ = ["Stream", "Streams"]

_PADDING: Final = "k3Jw9qLx2m"
_LAST: Final = frozenset({"agent.session.idle", "agent.session.failed"})


class Stream:
    """One listener. It is a source of bytes, and ends when it is closed."""

    def __init__(self, rules: Rules, *, padded: bool, until_idle: bool) -> None:
        self._rules = rules
        self._padded = padded
        self._until_idle = until_idle
        self._queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self.ended = False
        self.broken = False

    def put(self, event: Mapping[str, Any]) -> None:
        """Send an event; that of a session's creation ends with the first that says idle or failed. Reported."""
        self._queue.put_nowait(event)
        if self._until_idle and event["type"] in _LAST:
            self.close()

    def close(self, *, broken: bool = False) -> None:
        """End it after what has been put; or break it."""
        self.broken = self.broken or broken
        self.ended = True
        self._queue.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async with asyncio.timeout(self._rules.keepalive):
                    event = await self._queue.get()
            except TimeoutError:
                yield b": keepalive\n\n"
                continue
            if event is None:
                return
            yield self._framed(event)

    def _framed(self, event: Mapping[str, Any]) -> bytes:
        data = orjson.dumps({**event, "obfuscation": _PADDING} if self._padded else event)
        names = f"event: {event['type']}\nid: {event.get('event_id', '')}\n" if self._rules.named_events else ""
        return names.encode() + b"data: " + data + b"\n\n"


class Streams:
    """All listeners of one session."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: list[Stream] = []

    def open(self, *, padded: bool, until_idle: bool = False) -> Stream:
        """A listener from now on."""
        stream = Stream(self._rules, padded=padded, until_idle=until_idle)
        self._open.append(stream)
        return stream

    def drop(self, stream: Stream) -> None:
        """Its client has gone."""
        stream.close()
        if stream in self._open:
            self._open.remove(stream)

    def put(self, event: Mapping[str, Any]) -> None:
        """To everybody who listens."""
        for stream in self._open:
            stream.put(event)
        self._open = [stream for stream in self._open if not stream.ended]

    def close(self, *, broken: bool) -> None:
        """End or break them all."""
        for stream in self._open:
            stream.close(broken=broken)
        self._open.clear()

    def __len__(self) -> int:
        return len(self._open)
