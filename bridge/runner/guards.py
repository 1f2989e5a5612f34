"""What may keep a tool from being called at all: a switch, a circuit breaker, and how often it may be called.

The state is the process's, by the tool's name: all sessions share it, and a tool that is replaced keeps it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from ..errors import ToolError, ToolUnavailable
from ..tools.tool import Tool

__all__ = ["Guards", "Health", "TooOften"]

logger = logging.getLogger("bridge.tools")


class TooOften(ToolError):
    """The tool has been called as often as its rate allows."""


class Health(Enum):
    """What a run says about the tool."""

    WELL = "well"
    """It gave an answer; "no such order" is one."""
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It was stopped before it could do either."""


class _Circuit(Enum):
    CLOSED = "called as usual"
    OPEN = "not called for a while"
    PROBING = "one call is let through to see"


@dataclass(slots=True)
class _State:
    """What is known of one tool."""

    circuit: _Circuit = _Circuit.CLOSED
    failures: int = 0
    """In a row."""
    until: float = 0.0
    """When an open circuit lets the next call through."""
    times: deque[float] = field(default_factory=deque)
    """Of the calls that its rate still counts."""


class Guards:
    """One for all calls of a process. Switches may be set from any thread; the rest is of the tools' event loop."""

    def __init__(self, *, max_failures: int, pause: float, clock: Callable[[], float]) -> None:
        self.paused: Counter[str] = Counter()
        """How often a tool was not called for a while, since it kept failing."""
        self._max_failures = max_failures
        self._pause = pause
        self._clock = clock
        self._states: dict[str, _State] = {}
        self._off: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    @property
    def off(self) -> frozenset[str]:
        """The tools that somebody has switched off."""
        return self._off

    @property
    def unavailable(self) -> frozenset[str]:
        """The tools that are not called now, for whatever reason."""
        circuits = list(self._states.items())
        return self._off | {name for name, state in circuits if state.circuit is not _Circuit.CLOSED}

    def switch(self, *, off: Iterable[str] = (), on: Iterable[str] = ()) -> None:
        """Calls of tools that are off are answered "not available now"; runs that have begun go on."""
        with self._lock:
            self._off = (self._off | frozenset(off)) - frozenset(on)

    def admit(self, tool: Tool) -> None:
        """Call this right before every run. Raises `ToolUnavailable` or `TooOften` if there shall be none."""
        name = tool.spec.name
        if name in self._off:
            raise ToolUnavailable(f"{name} is not available now")
        state = self._states.get(name)
        if state is not None and self._rests(state):
            raise ToolUnavailable(f"{name} is not available now; try again later")
        if tool.rate is not None:
            self._count(tool.rate.calls, tool.rate.seconds, self._state(name).times, name)
        if state is not None and state.circuit is _Circuit.OPEN:
            state.circuit = _Circuit.PROBING

    def _rests(self, state: _State) -> bool:
        match state.circuit:
            case _Circuit.CLOSED:
                return False
            case _Circuit.OPEN:
                return self._clock() < state.until
            case _Circuit.PROBING:
                return True
            case _:
                assert_never(state.circuit)

    def ended(self, name: str, health: Health) -> None:
        """A run that was admitted is over, or has taken too long."""
        match health:
            case Health.WELL:
                self._well(name)
            case Health.FAILED:
                self._failed(self._state(name), name)
            case Health.UNKNOWN:
                state = self._state(name)
                if state.circuit is _Circuit.PROBING:
                    state.circuit = _Circuit.OPEN
            case _:
                assert_never(health)

    def _state(self, name: str) -> _State:
        return self._states.setdefault(name, _State())

    def _well(self, name: str) -> None:
        state = self._states.get(name)
        if state is None:
            return
        if state.circuit is not _Circuit.CLOSED:
            logger.warning("tool %s works again, and is called as usual", name)
        state.circuit, state.failures = _Circuit.CLOSED, 0

    def _failed(self, state: _State, name: str) -> None:
        state.failures += 1
        if state.failures < self._max_failures:
            return
        if state.circuit is _Circuit.CLOSED:
            self.paused[name] += 1
            logger.error(
                "tool %s has failed %d times in a row; it is not called for %g s, then once: see the warnings above",
                name,
                state.failures,
                self._pause,
            )
        state.circuit, state.until = _Circuit.OPEN, self._clock() + self._pause

    def _count(self, calls: int, seconds: float, times: deque[float], name: str) -> None:
        now = self._clock()
        while times and now - times[0] >= seconds:
            times.popleft()
        if len(times) >= calls:
            raise TooOften(f"{name} was not run, because it has been called too often; try again later")
        times.append(now)
