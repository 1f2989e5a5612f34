"""What the provider saw: the account that tests assert on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bridge.simulator.account import keep, newest

__all__ = ["CallRecord", "Fate", "Ledger", "Result", "Verdict"]


class Verdict(Enum):
    """What a result that was accepted with 202 came to."""

    ON_ITS_WAY = auto()
    """Accepted, and without effect so far, or for ever."""
    SETTLED = auto()
    """It settled its call."""
    REPEATED = auto()
    """Its call was settled already."""
    STRAY = auto()
    """No pending call answers to its id; the session goes on waiting."""
    OVERTAKEN = auto()
    """The session ended before it took effect."""


class Fate(Enum):
    """What became of a call."""

    PENDING = auto()
    SETTLED = auto()
    RESOLVED_BY_SERVER = auto()
    """The session ended first."""


@dataclass(slots=True, eq=False)
class Result:
    """One result, of a post of its own or of a batch. `value` is the result or the text of the error."""

    at: float
    tool_req: Mapping[str, Any]
    value: Any
    is_error: bool
    verdict: Verdict = Verdict.ON_ITS_WAY


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call of a custom tool, and every result that was meant for it.

    `step` is the index of the event that first listed it: what tells calls with the same id apart.
    """

    step: int
    id: str | None
    name: str
    args: Mapping[str, Any]
    fate: Fate = Fate.PENDING
    results: list[Result] = field(default_factory=list)

    @property
    def request(self) -> dict[str, Any]:
        """The call as the wire has it."""
        return {"tool_name": self.name, "args": dict(self.args), "id": self.id}

    @property
    def settled_with(self) -> Any:
        """The value that settled it. Raises `LookupError` if none has."""
        for result in self.results:
            if result.verdict is Verdict.SETTLED:
                return result.value
        raise LookupError(f"{self.name} is not settled")


@dataclass(slots=True)
class Ledger:
    """The account of one session.

    `violations` are what the provider took without an error, although its documentation asks for something else.
    """

    session_id: str
    calls: list[CallRecord] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    """All results that were accepted, in the order they came."""
    statuses: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def call(self, name: str) -> CallRecord:
        """The newest call of this tool. Raises `LookupError` if there is none."""
        return newest(self.calls, name)

    def came(self, result: Result) -> None:
        """A result came in."""
        keep(self.results, result)

    def violated(self, what: str) -> None:
        """Something was not as documented."""
        keep(self.violations, what)
