"""What the provider saw: the account that tests assert on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bridge.simulator.account import keep, newest

__all__ = ["CallRecord", "Fate", "Ledger", "Policy", "Result", "TurnRecord", "Verdict"]


class Policy(Enum):
    """Who decides whether a tool may run."""

    ALWAYS_ALLOW = "always_allow"
    ALWAYS_ASK = "always_ask"
    ALWAYS_DENY = "always_deny"


class Verdict(Enum):
    """How the provider took a result."""

    ANSWERED = auto()
    """It answered the waiting call."""
    STARTED = auto()
    """It said that the call is running; the turn goes on."""
    FINAL = auto()
    """It replaced what had been said when the call was started, and starts a turn."""
    APPENDED = auto()
    """A final for a call that was never said to be running: it starts a turn all the same."""
    REPEATED = auto()
    """The first one stands."""
    EXPIRED = auto()
    """410: nobody waits for it any more."""


class Fate(Enum):
    """What became of a call."""

    ASKED_FOR = auto()
    """It waits for an approval; the application has not been called."""
    DENIED = auto()
    PENDING = auto()
    RUNNING = auto()
    """It was said to be running, and its outcome is awaited."""
    CLOSED = auto()
    EXPIRED = auto()
    """It was not answered in time."""
    INTERRUPTED = auto()


@dataclass(frozen=True, slots=True)
class Result:
    """One result. `status` is what the client said."""

    at: float
    tool_use_id: str
    status: str
    text: str
    verdict: Verdict


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call of a custom tool, and every result for it. `text` is the one that stands."""

    id: str
    name: str
    input: Mapping[str, Any]
    policy: Policy
    fate: Fate = Fate.PENDING
    text: str = ""
    is_error: bool = False
    event: Mapping[str, Any] | None = None
    """The event of its result, as it is in the history."""
    results: list[Result] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        """Is the agent blocked on it?"""
        return self.fate in (Fate.ASKED_FOR, Fate.PENDING)


@dataclass(slots=True, eq=False)
class TurnRecord:
    """One turn: what it is about, and the call whose outcome started it, if one did."""

    prompt: str
    started_by: str = ""
    ended: str = ""
    """Type of its stop reason."""


@dataclass(slots=True)
class Ledger:
    """The account of one session.

    `violations` are what the provider took without an error, although its documentation asks for something else.
    """

    session_id: str
    calls: list[CallRecord] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    """All results, refused ones too, in the order they came."""
    turns: list[TurnRecord] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def find(self, call_id: str) -> CallRecord | None:
        """The call with this id."""
        return next((call for call in self.calls if call.id == call_id), None)

    def call(self, name: str) -> CallRecord:
        """The newest call of this tool. Raises `LookupError` if there is none."""
        return newest(self.calls, name)

    def came(self, result: Result) -> None:
        """A result came in."""
        keep(self.results, result)

    def violated(self, what: str) -> None:
        """Something was not as documented."""
        keep(self.violations, what)
