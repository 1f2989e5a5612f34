"""The event log of a session: an indexed list that only grows at its end, and may lose its beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.simulator.agenda import Agenda

__all__ = ["Log"]


class Log:
    """Events carry no id: the index is what tells them apart."""

    def __init__(self, agenda: Agenda, kept: int | None) -> None:
        self._agenda = agenda
        self._kept = kept
        self._events: list[dict[str, Any]] = []
        self._first = 0
        """Index of the oldest event that is kept."""

    def __len__(self) -> int:
        """How many events there have been: the index of the next one."""
        return self._first + len(self._events)

    def add(self, kind: str, data: Mapping[str, Any]) -> None:
        """Append an event."""
        self._events.append({"type": kind, "timestamp": self._agenda.stamp, "data": dict(data)})
        if self._kept is not None:
            self.evict(len(self) - self._kept)
        self._agenda.notify()

    def evict(self, before: int) -> None:
        """Lose all events before this index."""
        lost = min(max(before - self._first, 0), len(self._events))
        del self._events[:lost]
        self._first += lost

    def read(self, start: int, limit: int | None = None) -> tuple[int, list[dict[str, Any]]]:
        """The index of the first event from `start` on that is kept, and the events from there."""
        first = max(start, self._first)
        found = self._events[first - self._first :]
        return first, found if limit is None else found[:limit]

    @property
    def kept(self) -> list[dict[str, Any]]:
        """All events that are kept."""
        return list(self._events)
