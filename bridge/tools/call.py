"""What a tool sees of the call it serves, and what it may return instead of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.events import CallKey

__all__ = ["CallContext", "EndSession", "Parked", "served", "serving", "session_of"]

_served: ContextVar[CallContext | None] = ContextVar("_served", default=None)


class EndSession(Protocol):
    def __call__(self, reason: str = "", /) -> None: ...


def _nowhere(text: str = "", /) -> None:
    """What a tool says when no session listens."""


@dataclass(slots=True, kw_only=True, eq=False)
class CallContext:
    """What a tool may know of the call it serves: it takes one by a parameter of this type, hidden from the model.

    The three functions only put something into a queue: they never wait, may be called from any thread, and raise
    `SessionClosed` once the session is closing. Made by hand, as in a test of a tool, they do nothing.
    """

    session_id: str
    key: CallKey
    tool: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the host passed when it opened the session."""
    progress: Callable[[str], None] = _nowhere
    """Note how far the work has come, for observers. Does not extend the timeout."""
    say: Callable[[str], None] = _nowhere
    """Have the agent say something as soon as that talks over nobody."""
    end_session: EndSession = _nowhere
    """End the session once what is owed has been sent."""

    @property
    def ticket(self) -> str:
        """Names this call among those of all sessions, always the same: for whoever is to complete it from outside."""
        return f"{self.session_id}.{self.key.epoch}.{self.key.call_id}"


@dataclass(frozen=True, slots=True)
class Parked:
    """Return this from a tool that has handed its work to something outside, together with the call's `ticket`.

    The call stays open until `Runner.complete` or `Runner.fail` is told its outcome, or until the tool's timeout is
    over, which goes on to count from the start of the tool. Meanwhile the agent is told that nothing has happened yet.
    """

    interim: str = ""
    """What the agent is told meanwhile, instead of the tool's own `interim`."""


# ------------------------------------------------------------------------------------------------------- for the log


def session_of(context: CallContext) -> str:
    """Its session as the log names it: with the telephony stack's own name for the call, if there is one."""
    correlation = context.metadata.get("correlation", "")
    return f"{context.session_id} [{correlation!s:.200}]" if correlation else context.session_id


@contextmanager
def serving(context: CallContext) -> Iterator[None]:
    """What is checked in this block is checked for this call."""
    before = _served.set(context)
    try:
        yield
    finally:
        _served.reset(before)


def served() -> str:
    """Where a call is served, as the end of a line of the log; empty where there is none."""
    context = _served.get()
    return "" if context is None else f", in session {session_of(context)}"
