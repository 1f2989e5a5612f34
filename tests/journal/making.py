"""Short words for the values of a journal."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

from bridge.core.dialect import Delivery
from bridge.core.events import CallKey, Run, ToolCall, ToolCalled, ToolFinished, ToolResult
from bridge.journal import Begun, CallId, Entry, Part, Record

__all__ = ["AT", "ID", "begun", "entry", "fill_up", "told", "tool_called"]

AT = 1_700_000_000.0
ID = CallId("s1", 1, "c1")
KEY = CallKey(1, "c1")
CALL = ToolCall("c1", "order", '{"pizza": "salami", "card": "4711"}')
RUN = Run(KEY, CALL)
RESULT = ToolResult("c1", '{"ok": true, "card": "4711"}', name="order")
FINISHED = ToolFinished(KEY, RESULT)

_marks = itertools.count(1)


def entry(record: Record, session: str = "s1", *, part: Part = Part.HEARD, at: float = AT) -> Entry:
    """An entry that no other is like."""
    return Entry(at, session, record, part, next(_marks))


def begun() -> Begun:
    return Begun(Delivery())


def tool_called(call_id: str = "c1") -> ToolCalled:
    return ToolCalled(ToolCall(call_id, "order", CALL.arguments))


def told(text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult("c1", text, is_error, name="order")


def fill_up(place: Path) -> None:
    """Not a byte is left."""
    with (place / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
