"""What a client says to the provider."""

from __future__ import annotations

from dataclasses import dataclass, field

from .calls import CallKey, ToolResult

__all__ = [
    "ApprovalAnswer",
    "ClientEvent",
    "EndSession",
    "FollowUp",
    "ReplyRequest",
    "Resume",
    "Setup",
    "ToolResults",
]


@dataclass(frozen=True, slots=True)
class Setup:
    """The message that configures a session: the tools it lists, or None where it lists none (the old ones stay)."""

    tools: tuple[str, ...] | None
    stored_agent: bool = False
    """It names an agent stored at the provider, and nothing may be added to it."""
    output_rate: tuple[int, int] | None = None
    """Bytes per sample and samples per second that it wants of the agent's voice, if it says so."""


@dataclass(frozen=True, slots=True)
class ToolResults:
    """Results of one turn, in call order. `quiet`: for the record, no reply wanted."""

    results: tuple[ToolResult, ...]
    quiet: bool = False
    keys: tuple[CallKey, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The outcome of a call whose interim result went out earlier."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """Ask the agent to speak now; `instructions` say about what."""

    instructions: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a session on a new link."""

    session_id: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The decision about a call that the provider has asked about (`ApprovalWanted`)."""

    call_id: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the session for good."""


ClientEvent = Setup | ToolResults | FollowUp | ReplyRequest | ApprovalAnswer | Resume | EndSession
