"""What the provider saw: the account that tests assert on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bridge.simulator.account import keep, newest

__all__ = [
    "Answer",
    "CallRecord",
    "Ended",
    "Fate",
    "Ledger",
    "Phase",
    "ReplyEnd",
    "ReplyRecord",
    "RequestRecord",
    "Verdict",
]


class Phase(Enum):
    """What the provider was doing when a message came in."""

    REPLYING = auto()
    USER_SPEAKING = auto()
    USER_HEARD = auto()
    """The user has spoken, and the reply has not begun."""
    HOLDING = auto()
    """Silent, until a hold tool is answered."""
    WAITING = auto()
    """A reply was the last to happen, and calls are open."""
    IDLE = auto()


_WINDOW_OPEN = frozenset({Phase.HOLDING, Phase.WAITING, Phase.IDLE})


class Verdict(Enum):
    """How the provider took a `tool.result`."""

    ACCEPTED = auto()
    IGNORED = auto()
    """It came before the end of its reply, under a rule that loses such results."""
    LATE = auto()
    """Its call had timed out."""
    VOID = auto()
    """Its call had been abandoned: the reply was interrupted."""
    REPEATED = auto()
    UNKNOWN = auto()
    SERVER_RUN = auto()
    """The provider runs this tool by itself; nobody asked the client."""


class Fate(Enum):
    """What became of a call, as the provider sees it."""

    OPEN = auto()
    ANSWERED = auto()
    """There is a result, and no reply has told it yet."""
    TOLD = auto()
    """A reply that knew the result has begun."""
    LOST = auto()
    """There was a result, and no reply will tell it."""
    TIMED_OUT = auto()
    ABANDONED = auto()
    """Its reply was interrupted before there was a result."""


class ReplyEnd(Enum):
    """How a reply ended."""

    OPEN = auto()
    COMPLETED = auto()
    INTERRUPTED = auto()
    DROPPED = auto()
    """A result that came too early ended it."""
    LINK_LOST = auto()


class Ended(Enum):
    """How a session ended."""

    OPEN = auto()
    BY_CLIENT = auto()
    """A `session.end`."""
    BY_PROVIDER = auto()
    GRACE_OVER = auto()
    """The connection was lost, or closed without a `session.end`, and not resumed in time."""
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Answer:
    """One `tool.result`. `at` counts seconds since the session began."""

    call_id: str
    at: float
    phase: Phase
    text: str
    is_error: bool
    verdict: Verdict

    @property
    def timely(self) -> bool:
        """Did it come when results are welcome: after the end of a reply, and before anything newer?"""
        return self.phase in _WINDOW_OPEN


@dataclass(slots=True, eq=False)
class CallRecord:
    """One `tool.call`, and every answer to it. `reply_id` is empty if it belongs to no reply."""

    call_id: str
    name: str
    arguments: Mapping[str, Any] | str
    asked_at: float
    reply_id: str = ""
    hold: bool = False
    server_run: bool = False
    fate: Fate = Fate.OPEN
    result: str = ""
    is_error: bool = False
    answers: list[Answer] = field(default_factory=list)

    @property
    def answered(self) -> int:
        """How often the client answered."""
        return len(self.answers)


@dataclass(slots=True, eq=False)
class ReplyRecord:
    """One reply of the agent: its words, the calls it made, and the calls whose results it told."""

    reply_id: str
    text: str = ""
    calls: list[str] = field(default_factory=list)
    knows: list[str] = field(default_factory=list)
    end: ReplyEnd = ReplyEnd.OPEN


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One `reply.create`, and whether it was taken or swallowed."""

    at: float
    phase: Phase
    taken: bool


@dataclass(slots=True)
class Ledger:
    """The account of one session.

    `timeline` holds the types of all messages but audio, in order: `<-` from the provider, `->` from the client.
    `violations` are breaches of the protocol that the provider took without an error, `errors` the codes it sent.
    """

    session_id: str = ""
    calls: list[CallRecord] = field(default_factory=list)
    strays: list[Answer] = field(default_factory=list)
    """Answers to calls that nobody made."""
    replies: list[ReplyRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    user_turns: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    timeline: list[str] = field(default_factory=list)
    audio_bytes: int = 0
    resumes: int = 0
    ended: Ended = Ended.OPEN

    def note(self, entry: str) -> None:
        """Add to the timeline."""
        keep(self.timeline, entry)

    def violated(self, what: str) -> None:
        """Add a breach of the protocol."""
        keep(self.violations, what)

    def find(self, call_id: str) -> CallRecord | None:
        """The newest call with this id."""
        return next((call for call in reversed(self.calls) if call.call_id == call_id), None)

    def call(self, name: str) -> CallRecord:
        """The newest call of this tool. Raises `LookupError` if there is none."""
        return newest(self.calls, name)

    @property
    def answers(self) -> list[Answer]:
        """All answers to calls, call by call; strays left out."""
        return [answer for call in self.calls for answer in call.answers]

    @property
    def cut(self) -> list[ReplyRecord]:
        """The replies that did not come to their end."""
        return [reply for reply in self.replies if reply.end not in (ReplyEnd.OPEN, ReplyEnd.COMPLETED)]
