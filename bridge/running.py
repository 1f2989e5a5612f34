"""The calls of one session while they run: what the host hears of them, and what they may ask of the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .core.events import CallKey, FillerDue, LocalEvent, Run, SayAsked, ToolFinished
from .fillers import Fillers
from .runner import Calls, Finished
from .tools.tool import CallContext, Tool

__all__ = ["Running", "ToolEvent", "ToolProgress", "ToolSettled", "ToolStarted"]


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A call is given to its tool. `name` is empty if no tool has the name the agent used."""

    key: CallKey
    name: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A tool says how far it has come."""

    key: CallKey
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolSettled:
    """A call is over for good: its result was sent (`sent`), or will never be (`interrupted`, `cancelled`, `ended`)."""

    key: CallKey
    name: str
    how: str
    outcome: str = ""
    """How the tool ended, as in the metrics: `ok`, `error`, `timeout` ...; empty if it has not ended yet."""


ToolEvent = ToolStarted | ToolProgress | ToolSettled


@dataclass(frozen=True, slots=True)
class Host:
    """What the calls of a session need of it."""

    session_id: str
    metadata: Mapping[str, Any]
    here: Callable[[LocalEvent], bool]
    """Something happened on our side; true if anything was decided."""
    deliver: Callable[[ToolEvent], None]
    refuse_if_closing: Callable[[], None]
    """Raises `SessionClosed` once the session is closing."""
    end_soon: Callable[[str], None]
    silent_since: Callable[[], float | None]


@dataclass(slots=True)
class _Live:
    name: str
    outcome: str = ""


class Running:
    """Starts calls, and reports each one to the host once it has begun and once it is settled."""

    def __init__(self, calls: Calls, host: Host) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._host = host
        self._live: dict[CallKey, _Live] = {}
        self._fillers = Fillers(lambda key, text: host.here(FillerDue(key, text)), host.silent_since)

    def start(self, command: Run, tool: Tool | None, known: Iterable[str]) -> None:
        """Run a call. `tool` is None if none has its name; `known` are the names there are."""
        key, call = command.key, command.call
        name = call.name if tool is not None else ""
        self._live[key] = _Live(name)
        self._calls.start(key, call, tool, known, self._context(key, name), self._finished)
        self._host.deliver(ToolStarted(key, name))
        if tool is not None and tool.filler is not None:
            self._fillers.start(key, tool, call)

    def discard(self, key: CallKey, why: str) -> None:
        """The result will never be sent."""
        self._calls.discard(key)
        self.settled(key, why)

    def settled(self, key: CallKey, how: str) -> None:
        """The call is over for good."""
        self._fillers.stop(key)
        live = self._live.pop(key, None)
        if live is not None:
            self._host.deliver(ToolSettled(key, live.name, how, live.outcome))

    async def aclose(self) -> None:
        """Stop what is left."""
        self._fillers.stop_all()
        await self._calls.aclose(1.0)

    def _finished(self, finished: Finished) -> None:
        self._fillers.stop(finished.key)
        if live := self._live.get(finished.key):
            live.outcome = finished.outcome.value
        self._host.here(ToolFinished(finished.key, finished.result))

    def _context(self, key: CallKey, name: str) -> CallContext:
        host = self._host
        return CallContext(
            session_id=host.session_id,
            key=key,
            tool=name,
            metadata=host.metadata,
            progress=lambda text: self._ask(host.deliver, ToolProgress(key, name, text)),
            say=lambda text: self._ask(host.here, SayAsked(text)),
            end_session=lambda reason="": self._ask(host.end_soon, reason),
        )

    def _ask(self, action: Callable[[Any], object], argument: object) -> None:
        """What a tool asks of the session, from the loop or from a thread: it never waits for it."""
        self._host.refuse_if_closing()
        self._loop.call_soon_threadsafe(action, argument)
