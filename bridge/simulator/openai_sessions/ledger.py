"""What the provider saw: the account that tests assert on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bridge.simulator.account import keep, newest

__all__ = ["Answer", "ApprovalRecord", "CallRecord", "Fate", "Ledger", "Post", "Request", "Verdict"]


class Verdict(Enum):
    """How the provider took a tool result."""

    ACCEPTED = auto()
    REPEATED = auto()
    """The call has this very result already: taken without effect."""
    CONFLICT = auto()
    """The call has another result already."""
    LATE = auto()
    """Its turn had ended."""
    WRONG_TURN = auto()
    """The call belongs to another turn."""
    UNKNOWN = auto()
    """Nobody made this call, or it is not registered yet."""
    LOST = auto()
    """Accepted, and forgotten: a fault."""
    WITH_OTHERS = auto()
    """Another result of its post was refused, and so the whole post."""
    ONCE_MORE = auto()
    """The same post came under this idempotency key before: taken without effect."""


class Fate(Enum):
    """What became of a call."""

    ANNOUNCED = auto()
    """Its item has been sent, a result is not taken yet."""
    OPEN = auto()
    ANSWERED = auto()
    ABANDONED = auto()
    """Its turn ended without a result."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool result. `at` counts seconds since the session began."""

    turn_id: str
    call_id: str
    at: float
    success: bool
    output: Any
    error: str | None
    verdict: Verdict


@dataclass(slots=True, eq=False)
class CallRecord:
    """One function call, and every answer to it."""

    turn_id: str
    call_id: str
    name: str
    arguments: Any
    asked_at: float
    fate: Fate = Fate.ANNOUNCED
    result: Answer | None = None
    """The answer that was accepted."""
    answers: list[Answer] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ApprovalRecord:
    """A call at an MCP server that waits to be approved, and what became of that."""

    turn_id: str
    request_id: str
    server: str
    name: str | None
    arguments: Any
    message: str
    fate: Fate = Fate.OPEN
    decision: str = ""
    """`approve`, `deny` or `cancel`; empty until there is one."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, whatever became of it. A status of 0: the connection was broken instead of an answer."""

    method: str
    path: str
    status: int


@dataclass(frozen=True, slots=True)
class Post:
    """One post of input events, by their types, and the status of its answer."""

    at: float
    types: tuple[str, ...]
    key: str
    status: int
    verdicts: tuple[Verdict, ...] = ()


@dataclass(slots=True)
class Ledger:
    """The account of one session."""

    session_id: str = ""
    calls: list[CallRecord] = field(default_factory=list)
    approvals: list[ApprovalRecord] = field(default_factory=list)
    strays: list[Answer] = field(default_factory=list)
    """Answers to calls that nobody made."""
    posts: list[Post] = field(default_factory=list)
    streams: int = 0
    """Event streams that were opened."""
    listening: int = 0
    """Event streams that are open."""
    reads: int = 0
    """How often the session itself was read."""
    messages: list[str] = field(default_factory=list)
    """What users wrote, turns and steering alike."""
    said: list[str] = field(default_factory=list)
    """What the agent wrote."""
    turns: dict[str, str] = field(default_factory=dict)
    """The state of every turn, by its id."""
    violations: list[str] = field(default_factory=list)
    """Breaches of the documentation that the provider took without an error."""
    timeline: list[str] = field(default_factory=list)
    """Types of events (`<-`) and of input events (`->`), in order; pieces of messages are left out."""

    def note(self, entry: str) -> None:
        """Add to the timeline, as long as there is room."""
        keep(self.timeline, entry)

    def violated(self, what: str) -> None:
        """Add a breach of the documentation."""
        keep(self.violations, what)

    def post(self, post: Post) -> None:
        """Add a post, as long as there is room."""
        keep(self.posts, post)

    def find(self, turn_id: str, call_id: str) -> CallRecord | None:
        """The call with this key."""
        return next((call for call in self.calls if (call.turn_id, call.call_id) == (turn_id, call_id)), None)

    def call(self, name: str) -> CallRecord:
        """The newest call of this function. Raises `LookupError` if there is none."""
        return newest(self.calls, name)

    @property
    def answers(self) -> list[Answer]:
        """All answers, in the order of their calls; strays left out."""
        return [answer for call in self.calls for answer in call.answers]
