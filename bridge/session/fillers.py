"""No dead air: what an agent is asked to say while a tool takes its time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..core.events import CallKey, ToolCall
from ..errors import InvalidArguments, ToolUnavailable
from ..tools.tool import CallContext, Tool

__all__ = ["Fillers"]

logger = logging.getLogger("bridge.tools")


@dataclass(slots=True)
class _Line:
    """What is to be said for one call."""

    tool: Tool
    left: int
    """How many texts of its progress may still be said."""
    next: str | Callable[[], str] | None = None
    cost: int = 0
    """How many of these the next text is: none if it is the filler."""
    handle: asyncio.TimerHandle | None = None


class Fillers:
    """For each call its filler, then what it reports as its progress: each after so many seconds of silence.

    `speak` tries to have it said, and tells whether that was possible. `silent_since` tells since when nobody has been
    speaking, on the event loop's clock, or None while somebody is. `aside` runs a tool's own function where tools run.
    """

    __slots__ = ("_aside", "_lines", "_loop", "_silent_since", "_speak")

    def __init__(
        self,
        speak: Callable[[CallKey, str], bool],
        silent_since: Callable[[], float | None],
        aside: Callable[[Callable[[], str], Callable[[str], None]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._speak = speak
        self._silent_since = silent_since
        self._aside = aside
        self._lines: dict[CallKey, _Line] = {}

    def start(self, key: CallKey, tool: Tool, call: ToolCall, context: CallContext) -> None:
        """The call has begun to run."""
        if not tool.filler and not tool.spoken_progress:
            return
        self._lines[key] = line = _Line(tool, tool.spoken_progress)
        if tool.filler:
            text = partial(_text, tool, call, context) if callable(tool.filler) else tool.filler
            self._put(key, line, text, 0, self._loop.time() + tool.filler_after)

    def progress(self, key: CallKey, text: str) -> None:
        """It says how far it has come, which is better than whatever else waits to be said."""
        line = self._lines.get(key)
        if line is not None and line.left:
            self._put(key, line, text, 1, self._loop.time())

    def stop(self, key: CallKey) -> None:
        """Its result is there, or nobody wants it."""
        line = self._lines.pop(key, None)
        if line is not None and line.handle is not None:
            line.handle.cancel()

    def stop_all(self) -> None:
        for key in list(self._lines):
            self.stop(key)

    def _put(self, key: CallKey, line: _Line, text: str | Callable[[], str], cost: int, when: float) -> None:
        line.next, line.cost = text, cost
        if line.handle is None:
            line.handle = self._loop.call_at(when, self._due, key, line)

    def _due(self, key: CallKey, line: _Line) -> None:
        after, since = line.tool.filler_after, self._silent_since()
        if since is not None and self._loop.time() < since + after:
            line.handle = self._loop.call_at(since + after, self._due, key, line)
            return
        text, cost = line.next, line.cost
        line.next = line.handle = None
        if callable(text):
            self._aside(text, lambda made: self._say(key, line, made, cost))
        else:
            self._say(key, line, text or "", cost)

    def _say(self, key: CallKey, line: _Line, text: str, cost: int) -> None:
        if self._lines.get(key) is not line or not text:
            return
        if self._speak(key, text):
            line.left -= cost
        elif line.next is None:
            self._put(key, line, text, cost, self._loop.time() + line.tool.filler_after)


def _text(tool: Tool, call: ToolCall, context: CallContext) -> str:
    assert callable(tool.filler)
    try:
        return tool.filler(**tool.arguments(call.arguments, context))
    except (InvalidArguments, ToolUnavailable):
        return ""  # the call is being refused for the same reason
    except Exception as error:
        logger.warning("the filler of tool %s failed: %s", tool.spec.name, type(error).__name__)
        return ""
