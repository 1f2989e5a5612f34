"""The values of which the state of a turn is made."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from .events import CallKey, Deliver, DiscardedBy, FollowUp, ReplyRequest, ToolCall, ToolResult

__all__ = [
    "NOBODY",
    "NO_REPLY",
    "UNFINISHED",
    "UNSTARTED",
    "Link",
    "Owed",
    "Reply",
    "Saying",
    "Stage",
    "User",
    "Work",
]


class Reply(Enum):
    """Where the agent's reply stands."""

    NONE = "none"
    ASKED = "asked"
    """Something was sent that makes the agent speak, and it has not begun."""
    SPEAKING = "speaking"


class User(Enum):
    """Where the user stands."""

    QUIET = "quiet"
    SPEAKING = "speaking"
    HEARD = "heard"
    """Has spoken, and the provider owes a reply to that."""


class Work(Enum):
    """Whether the agent may be made to go on with its work."""

    GOES_ON = "goes on"
    PAUSED = "paused"
    """By somebody who is to say when it goes on: what would make it speak waits, however long that lasts."""


class Link(Enum):
    """Where the connection to the provider stands."""

    UP = "up"
    PAUSED = "paused"
    """Up, but not read from: what the provider says meanwhile is unknown, so nothing may be decided on it."""
    DOWN = "down"
    ENDED = "ended"


class Stage(Enum):
    """How far a call has come."""

    WAITING = "waiting"
    """Must not run before its reply has ended uninterrupted."""
    STANDS = "stands"
    """Its reply has; it runs once that has been heard."""
    RUNNING = "running"
    READY = "ready"
    """Has its result."""
    RELEASED = "released"
    """Its result is on its way to the provider."""


UNFINISHED: Final = (Stage.WAITING, Stage.STANDS, Stage.RUNNING)
UNSTARTED: Final = (Stage.WAITING, Stage.STANDS)

NO_REPLY: Final = 0
"""The turn of calls that belong to no reply: those of a silent hold mode."""
NOBODY: Final = -1
"""A reply was asked for, but not by the results of a turn."""
REMEMBERED: Final = 256
"""Ids of settled calls that are kept to recognise repeats after a resume."""


class Owed(NamedTuple):
    """A call that has not been settled: neither sent nor discarded."""

    key: CallKey
    turn: int
    stage: Stage
    call: ToolCall
    deliver: Deliver = Deliver.AFTER_REPLY
    result: ToolResult | None = None
    reply_id: str = ""
    quiet: bool = False
    """Its reply was interrupted, and the provider wants the result for the record only."""
    lapsed: DiscardedBy | None = None
    """Nobody wanted it any more after its result had been released: never send it again."""
    uncertain: bool = False
    """The link dropped after its release: whether it was delivered is unknown."""


class Saying(NamedTuple):
    """Something the agent is to be asked to say, when that talks over nobody."""

    what: ReplyRequest | FollowUp
    tries: int = 0
    out: bool = False
    """Asked for, and not begun."""
