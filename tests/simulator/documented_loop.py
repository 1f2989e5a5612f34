"""The client of the provider's documentation, written out: the first client the simulator has to serve.

The early edition of the tool calling page sends all results inside `reply.done`, and throws them away if that one was
interrupted. The current one sends a result at once when `reply.done` is the latest of the three turn events. On the
page the tool is awaited in the receive loop; many applications start it in the background, and else do the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bridge.simulator import ToolSketch

TURN_EVENTS = frozenset({"reply.started", "input.speech.started", "reply.done"})


class Edition(Enum):
    EARLY = auto()
    CURRENT = auto()


class Running(Enum):
    """Where a tool runs."""

    IN_LOOP = auto()
    IN_BACKGROUND = auto()


@dataclass
class DocumentedLoop:
    """One conversation; `events` is what was heard, `ran` which tools were run."""

    tools: Sequence[ToolSketch]
    pace: float
    edition: Edition = Edition.EARLY
    running: Running = Running.IN_BACKGROUND
    events: list[dict[str, Any]] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    close_code: int | None = None
    _pending: list[str] = field(default_factory=list)
    _latest: str = ""

    async def converse(self, url: str, **session: Any) -> DocumentedLoop:
        """Talk until the provider closes."""
        async with connect(url, compression=None, max_queue=None) as socket:
            update = {"type": "session.update", "session": {"tools": [*map(entry, self.tools)], **session}}
            await socket.send(json.dumps(update))
            await self._listen(socket)
            self.close_code = socket.close_code
        return self

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of this type."""
        return [event for event in self.events if event["type"] == kind]

    async def _listen(self, socket: ClientConnection) -> None:
        background: list[asyncio.Task[None]] = []
        try:
            async for frame in socket:
                event = json.loads(frame)
                self.events.append(event)
                if event["type"] in TURN_EVENTS:
                    self._latest = event["type"]
                if event["type"] == "tool.call":
                    background.append(asyncio.create_task(self._run(event, socket)))
                    if self.running is Running.IN_LOOP:
                        await background[-1]
                elif event["type"] == "reply.done":
                    await self._turn_ends(event, socket)
        except ConnectionClosed:
            pass
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    async def _turn_ends(self, event: dict[str, Any], socket: ClientConnection) -> None:
        pending, self._pending = self._pending, []
        if event.get("status") != "interrupted":
            for message in pending:
                await socket.send(message)

    async def _run(self, event: dict[str, Any], socket: ClientConnection) -> None:
        self.ran.append(event["name"])
        tool = next((tool for tool in self.tools if tool.name == event["name"]), None)
        message = {"type": "tool.result", "call_id": event["call_id"]}
        if tool is None:
            message |= {"result": "no such tool", "is_error": True}
        else:
            await asyncio.sleep(tool.seconds * self.pace)
            message |= {"result": tool.fails, "is_error": True} if tool.fails else {"result": json.dumps(tool.result)}
        if self.edition is Edition.CURRENT and self._latest == "reply.done":
            await socket.send(json.dumps(message))
        else:
            self._pending.append(json.dumps(message))


def entry(tool: ToolSketch) -> dict[str, Any]:
    """The tool as an entry of `session.tools`."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "execution_mode": "hold" if tool.hold else "interactive",
        "timeout_seconds": tool.timeout_seconds,
    }
