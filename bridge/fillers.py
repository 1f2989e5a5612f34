"""No dead air: what an agent is asked to say while a tool takes its time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from .core.events import CallKey, ToolCall
from .errors import InvalidArguments
from .tools.tool import Tool

__all__ = ["Fillers"]

logger = logging.getLogger("bridge.tools")


class Fillers:
    """One filler a call, after so many seconds in which nobody has spoken.

    `speak` tries to have it said, and tells whether that was possible. `silent_since` tells since when nobody has been
    speaking, on the event loop's clock, or None while somebody is.
    """

    def __init__(self, speak: Callable[[CallKey, str], bool], silent_since: Callable[[], float | None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._speak = speak
        self._silent_since = silent_since
        self._waiting: dict[CallKey, asyncio.TimerHandle] = {}

    def start(self, key: CallKey, tool: Tool, call: ToolCall) -> None:
        """The call has begun to run."""
        self._again(key, tool, call, self._loop.time() + tool.filler_after)

    def stop(self, key: CallKey) -> None:
        """Its result is there, or nobody wants it."""
        handle = self._waiting.pop(key, None)
        if handle is not None:
            handle.cancel()

    def stop_all(self) -> None:
        for key in list(self._waiting):
            self.stop(key)

    def _again(self, key: CallKey, tool: Tool, call: ToolCall, when: float) -> None:
        self._waiting[key] = self._loop.call_at(when, self._due, key, tool, call)

    def _due(self, key: CallKey, tool: Tool, call: ToolCall) -> None:
        now = self._loop.time()
        since = self._silent_since()
        if since is not None and now < since + tool.filler_after:
            self._again(key, tool, call, since + tool.filler_after)
            return
        text = _text(tool, call)
        if text and not self._speak(key, text):
            self._again(key, tool, call, now + tool.filler_after)


def _text(tool: Tool, call: ToolCall) -> str:
    if not callable(tool.filler):
        return tool.filler or ""
    try:
        return tool.filler(**tool.check(call.arguments))
    except InvalidArguments:
        return ""  # the call is being refused for the same reason
    except Exception as error:
        logger.warning("the filler of tool %s failed: %s", tool.spec.name, type(error).__name__)
        return ""
