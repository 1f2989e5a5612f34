"""The calls of one session while they run: what the host hears of them, and what they may ask of the session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from ..core.conversation import Step
from ..core.events import (
    CallConcluded,
    CallKey,
    FillerDue,
    FollowUp,
    LocalEvent,
    Run,
    SayAsked,
    Sent,
    SessionEnded,
    ToolCall,
    ToolFinished,
    ToolResult,
    ToolResults,
)
from ..runner.runner import Finished
from ..tools.tool import CallContext, Tool
from ..tools.versions import Versions
from .fillers import Fillers

__all__ = ["CallsHere", "Running", "ToolEvent", "ToolParked", "ToolProgress", "ToolSettled", "ToolStarted"]


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
class ToolParked:
    """The agent has been told that nothing has happened yet, and goes on; the call does, too."""

    key: CallKey
    name: str


@dataclass(frozen=True, slots=True)
class ToolSettled:
    """A call is over for good: its result was sent (`sent`), or will never be (`interrupted`, `cancelled`, `ended`,
    `orphaned`: the provider has lost its session, and knows nothing of the call).

    The outcome of a parked call is told (`told`), or came when it was not worth telling any more (`kept`).
    """

    key: CallKey
    name: str
    how: str
    outcome: str = ""
    """How the tool ended, as in the metrics: `ok`, `error`, `timeout` ...; empty if it has not ended yet."""


ToolEvent = ToolStarted | ToolProgress | ToolParked | ToolSettled


class CallsHere(Protocol):
    """The calls of one session, as they look from its own event loop: `runner.Calls`, or what runs them elsewhere."""

    def start(
        self,
        key: CallKey,
        call: ToolCall,
        tool: Tool | None,
        known: Iterable[str],
        context: CallContext,
        report: Callable[[Finished], None],
        *,
        interim: Callable[[CallKey, ToolResult], None] | None = None,
    ) -> None: ...

    def discard(self, key: CallKey) -> None: ...

    def aside(self, function: Callable[[], str], tell: Callable[[str], None]) -> None:
        """Run a tool's own quick function where tools run, and tell on this loop what came of it."""
        ...

    async def aclose(self, timeout: float) -> None: ...


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


class _Told(Enum):
    """What the agent knows of a call."""

    NOTHING = "nothing yet"
    PENDING = "that it goes on"
    RESULT = "its result"


@dataclass(slots=True)
class _Live:
    name: str
    tool: Tool | None
    outcome: str = ""
    parked: float | None = None
    """When its interim result was there."""
    told: _Told = _Told.NOTHING


class Running:
    """Starts calls, and reports each one to the host once it has begun and once it is settled."""

    __slots__ = ("_calls", "_fillers", "_host", "_live", "_loop", "versions")

    def __init__(self, calls: CallsHere, host: Host, tools: Mapping[str, Tool]) -> None:
        self.versions = Versions(tools)
        self._loop = asyncio.get_running_loop()
        self._calls = calls
        self._host = host
        self._live: dict[CallKey, _Live] = {}
        self._fillers = Fillers(lambda key, text: host.here(FillerDue(key, text)), host.silent_since, calls.aside)

    def named(self, session_id: str) -> None:
        """This is the session's name from now on."""
        self._host = replace(self._host, session_id=session_id)

    def start(self, command: Run, known: Iterable[str], *, forbidden: bool = False) -> None:
        """Run a call. `known` are the names that the agent may use. What is forbidden is only answered so."""
        key, call = command.key, command.call
        tool = self.versions.find(call.name)
        if forbidden and tool is not None:
            tool = replace(tool, approval="always_deny", dedupe=None, filler=None)
        name = call.name if tool is not None else ""
        self._live[key] = _Live(name, tool)
        context = self._context(key, name)
        if tool is not None:
            self._fillers.start(key, tool, call, context)
        tell = self._parked if call.expects_result else None
        self._calls.start(key, call, tool, known, context, self._finished, interim=tell)
        self._host.deliver(ToolStarted(key, name))

    def discard(self, key: CallKey, why: str) -> None:
        """The result will never be sent."""
        self._calls.discard(key)
        self.settled(key, why)

    def saw(self, step: Step) -> None:
        """What the agent is told of calls, and what becomes of parked ones."""
        for output in step.outputs:
            match output:
                case ToolResults(results, keys=keys):
                    for key, result in zip(keys, results, strict=True):
                        if live := self._live.get(key):
                            live.told = _Told.PENDING if result.interim else _Told.RESULT
                case FollowUp(key):
                    self.settled(key, "told")
        for event in step.events:
            match event:
                case Sent(keys):
                    for key in keys:
                        self._sent(key)
                case SessionEnded():
                    for key in [key for key, live in self._live.items() if live.told is _Told.PENDING]:
                        self.settled(key, "ended")

    def _sent(self, key: CallKey) -> None:
        live = self._live.get(key)
        if live is not None and live.told is _Told.PENDING:
            self._host.deliver(ToolParked(key, live.name))
        else:
            self.settled(key, "sent")

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
        key = finished.key
        self._fillers.stop(key)
        live = self._live.get(key)
        if live is not None:
            live.outcome = finished.outcome.value
        if live is None or live.parked is None:
            self._host.here(ToolFinished(key, finished.result))
        elif live.told is _Told.PENDING and not self._worth_telling(live, live.parked):
            self.settled(key, "kept")
        else:
            self._host.here(CallConcluded(key, finished.result))

    def _parked(self, key: CallKey, result: ToolResult) -> None:
        self._fillers.stop(key)
        if live := self._live.get(key):
            live.parked = self._loop.time()
            self._host.here(ToolFinished(key, result))

    def _worth_telling(self, live: _Live, since: float) -> bool:
        if live.tool is None or not live.tool.spec.reply:
            return False
        within = live.tool.follow_up_within
        return within is None or self._loop.time() - since <= within

    def _context(self, key: CallKey, name: str) -> CallContext:
        host = self._host
        return CallContext(
            session_id=host.session_id,
            key=key,
            tool=name,
            metadata=host.metadata,
            progress=lambda text: self._ask(self._progress, ToolProgress(key, name, text)),
            say=lambda text: self._ask(host.here, SayAsked(text)),
            end_session=lambda reason="": self._ask(host.end_soon, reason),
        )

    def _progress(self, progress: ToolProgress) -> None:
        self._host.deliver(progress)
        self._fillers.progress(progress.key, progress.text)

    def _ask(self, action: Callable[[Any], object], argument: object) -> None:
        """What a tool asks of the session, from the loop or from a thread: it never waits for it."""
        self._host.refuse_if_closing()
        self._loop.call_soon_threadsafe(action, argument)
