"""What happens on our side: a tool ends, a timer runs out, the link drops."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .calls import CallKey, ToolResult

__all__ = [
    "AskExpired",
    "CallConcluded",
    "FillerDue",
    "GraceExpired",
    "HoldExpired",
    "Ignored",
    "LinkLost",
    "LinkResumed",
    "LocalEvent",
    "Passed",
    "ReadingPaused",
    "ReadingResumed",
    "ReplyHeard",
    "ReplyRequested",
    "SayAsked",
    "Sent",
    "SessionEnded",
    "SessionLost",
    "SessionOpened",
    "SetupLeftAlone",
    "Timer",
    "ToolFinished",
    "ToolsNotTaken",
]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    dialect: str
    mode: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool ended, one way or another."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ReplyRequested:
    """The application has sent something that makes the agent speak."""


@dataclass(frozen=True, slots=True)
class SayAsked:
    """The host wants the agent to speak, as soon as that talks over nobody."""

    instructions: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FillerDue:
    """A tool has been running for a while: say something if nobody is speaking and its result is not there yet."""

    key: CallKey
    instructions: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """The transport took the results of these calls."""

    keys: tuple[CallKey, ...]


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to the provider dropped."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The provider knows the session no more: a fresh one will take its place, to which the old calls mean nothing."""


@dataclass(frozen=True, slots=True)
class LinkResumed:
    """The session goes on over a new connection."""


@dataclass(frozen=True, slots=True)
class ReadingPaused:
    """We have stopped reading from the provider (back-pressure): what it says meanwhile is unknown."""


@dataclass(frozen=True, slots=True)
class ReadingResumed:
    """Everything the provider said meanwhile has been read."""


@dataclass(frozen=True, slots=True)
class GraceExpired:
    """The results of this turn have waited long enough for their slower siblings."""

    turn: int


@dataclass(frozen=True, slots=True)
class AskExpired:
    """We asked for a reply and none began."""


@dataclass(frozen=True, slots=True)
class HoldExpired:
    """The provider has been silent for too long while something waits for it: it is stuck."""


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """The audio of this reply has been played to its end, as far as its length tells."""

    turn: int


@dataclass(frozen=True, slots=True)
class CallConcluded:
    """A call whose interim result went out earlier has its outcome."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class SetupLeftAlone:
    """The application's setup was passed on without our tools."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToolsNotTaken:
    """The provider agrees to a setup, but leaves out these tools of ours."""

    names: tuple[str, ...]


class Ignored(Enum):
    """Why something that looks as if it mattered changes nothing."""

    REPEATED_CALL = "repeated_call"
    CALL_CHANGED = "repeated_call_with_other_arguments"
    LATE_RESULT = "late_result"
    APPLICATION_ANSWER = "answer_of_the_application"
    REPEATED_EVENT = "repeated_event"


@dataclass(frozen=True, slots=True)
class Passed:
    """Something that was noticed, and that changes nothing."""

    why: Ignored
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    reason: str


LocalEvent = (
    SessionOpened
    | ToolFinished
    | ReplyRequested
    | SayAsked
    | FillerDue
    | Sent
    | LinkLost
    | SessionLost
    | LinkResumed
    | ReadingPaused
    | ReadingResumed
    | GraceExpired
    | AskExpired
    | HoldExpired
    | ReplyHeard
    | CallConcluded
    | SetupLeftAlone
    | ToolsNotTaken
    | Passed
    | SessionEnded
)

Timer = GraceExpired | AskExpired | HoldExpired | ReplyHeard
