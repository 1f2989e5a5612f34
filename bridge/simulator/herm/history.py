"""The events of a session: kept in order, and told to whoever listens."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from bridge.simulator.agenda import Agenda

__all__ = ["History"]


class History:
    """Streams tell what happens from their opening on, and nothing before; the history keeps what lasts."""

    def __init__(self, session_id: str, agenda: Agenda) -> None:
        self.events: list[dict[str, Any]] = []
        self._session_id = session_id
        self._agenda = agenda
        self._streams: list[list[bytes]] = []
        """For each open stream the frames that it has not sent yet."""

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def add(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Append an event with this payload; its envelope."""
        now = self._agenda.stamp
        event = {
            "id": f"evt_{secrets.token_hex(6)}",
            "type": payload["type"],
            "sessionId": self._session_id,
            "sequence": len(self.events) + 1,
            "status": "complete",
            "payload": dict(payload),
            "processedAt": now,
            "createdAt": now,
        }
        self.events.append(event)
        self._tell(event)
        return event

    def replace(self, event: dict[str, Any], payload: Mapping[str, Any], tool_use_id: str) -> None:
        """Put another payload in the place of this event's; only open streams are told."""
        event["payload"] = dict(payload)
        kind = "session.tool_updated"
        patch = {"type": kind, "tool_use_id": tool_use_id, "event_id": event["id"], "payload": dict(payload)}
        self._tell({"type": kind, "sessionId": self._session_id, "payload": patch})

    async def stream(self) -> AsyncIterator[bytes]:
        """Server-sent events, until nobody listens or the clock stops."""
        frames: list[bytes] = [b": open\n\n"]
        self._streams.append(frames)
        self._agenda.notify()
        try:
            while await self._agenda.until(lambda: bool(frames)):
                yield frames.pop(0)
        finally:
            self._streams.remove(frames)
            self._agenda.notify()

    def _tell(self, event: Mapping[str, Any]) -> None:
        frame = b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
        for frames in self._streams:
            frames.append(frame)
        self._agenda.notify()
