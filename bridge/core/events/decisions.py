"""What is decided about a call, and what is to be done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .calls import CallKey, ToolCall
from .client import FollowUp, ReplyRequest, ToolResults

__all__ = [
    "Command",
    "Discard",
    "DiscardedBy",
    "Forward",
    "Frame",
    "HeldBy",
    "Hold",
    "Run",
    "Send",
    "TurnOutput",
]


class HeldBy(Enum):
    """What a finished result is waiting for."""

    REPLY = "the agent is speaking"
    USER = "the caller is speaking, or is owed a reply"
    ASKED = "another reply has been asked for"
    SIBLINGS = "other calls of its turn"
    LINK = "the connection"


class DiscardedBy(Enum):
    """Why a call is no longer owed an answer."""

    INTERRUPTION = "interrupted"
    CANCELLATION = "cancelled"
    ORPHANED = "orphaned"
    """The provider has lost the session that it belongs to."""
    END = "ended"


@dataclass(frozen=True, slots=True)
class Run:
    """Start this call."""

    key: CallKey
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Discard:
    """The result of this call will not be sent. What has not been invoked must not be invoked any more."""

    key: CallKey
    reason: DiscardedBy = DiscardedBy.INTERRUPTION


@dataclass(frozen=True, slots=True)
class Hold:
    """A finished result waits."""

    key: CallKey
    reason: HeldBy = HeldBy.REPLY


TurnOutput = Run | Discard | Hold | ToolResults | FollowUp | ReplyRequest

Frame = str | bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Give these frames to the provider, together and in this order; then report `Sent(keys)`."""

    frames: tuple[Frame, ...]
    keys: tuple[CallKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """Give this frame to the application."""

    frame: Frame


Command = Run | Discard | Hold | Send | Forward
