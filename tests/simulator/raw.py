"""A client without any rules of its own: it says what a test tells it to, and keeps everything it hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PATIENCE = 20.0

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Raw:
    """One connection. `events` holds all messages heard so far."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def configure(self, **session: Any) -> dict[str, Any]:
        """Send the first `session.update`; the `session.ready` that answers it."""
        await self.say("session.update", session=session)
        return await self.until("session.ready")

    async def answer(self, call: dict[str, Any], result: str = '"fine"', **fields: Any) -> None:
        await self.say("tool.result", call_id=call["call_id"], result=result, **fields)

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Listen until a message of this type with these fields comes."""
        async with asyncio.timeout(PATIENCE):
            while True:
                event: dict[str, Any] = json.loads(await self.socket.recv())
                self.events.append(event)
                if event["type"] == kind and all(event.get(key) == value for key, value in fields.items()):
                    return event

    async def closed(self) -> int | None:
        """Listen until the connection is closed; its close code."""
        async with asyncio.timeout(PATIENCE):
            try:
                while True:
                    self.events.append(json.loads(await self.socket.recv()))
            except ConnectionClosed:
                return self.socket.close_code

    def heard(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def order(self) -> list[str]:
        """The types of all messages but audio and words."""
        return [
            event["type"] for event in self.events if event["type"] not in ("reply.audio", "transcript.agent.delta")
        ]


@asynccontextmanager
async def dial(url: str, **headers: str) -> AsyncIterator[Raw]:
    """Connect; a socket that the test leaves open is closed without ceremony."""
    socket = await connect(url, compression=None, additional_headers=headers, max_queue=None, close_timeout=0.5)
    try:
        yield Raw(socket)
    finally:
        socket.transport.abort()
        await socket.wait_closed()
