"""What a tool sees of the call it serves, and what it may return instead of a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..core.events import CallKey

__all__ = ["CallContext", "EndSession", "Parked"]


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
