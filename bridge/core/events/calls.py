"""Tools, calls and results, as everything that is said about them has them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

__all__ = [
    "CallKey",
    "Deliver",
    "Start",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
]


class Start(Enum):
    """When a tool may begin to run."""

    NOW = "now"
    AFTER_REPLY = "after_reply"
    """Only once the reply that asked for it has ended uninterrupted and has been heard."""


class Deliver(Enum):
    """When the result of a tool may be sent."""

    AFTER_REPLY = "after_reply"
    """Into the open window: the latest thing that happened is the end of a reply that was not interrupted."""
    BETWEEN_REPLIES = "between_replies"
    """While no reply is in flight and the user is not speaking: what a silent hold mode needs."""
    NOW = "now"
    """At once, also inside a reply. Gives up the promise that an interruption discards the result."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told about it, and as the turn treats it."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    """JSON Schema of the arguments, as text."""
    timeout: float | None = None
    """Seconds the provider should be told to wait, where it can be told."""
    hold: bool = False
    """Use the provider's silent mode for slow tools, where it has one."""
    extra: tuple[tuple[str, str], ...] = ()
    """Further fields of the provider's definition: names, and values as JSON text."""
    start: Start = Start.NOW
    deliver: Deliver = Deliver.AFTER_REPLY
    reply: bool = True
    """Shall the agent speak about the result?"""


class CallKey(NamedTuple):
    """What tells one call of a session from every other. Providers may use a `call_id` again in a later turn."""

    epoch: int
    call_id: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request by the agent to run a tool."""

    call_id: str
    name: str
    arguments: str = "{}"
    """JSON text, exactly as received."""
    expects_result: bool = True
    echo: tuple[tuple[str, str], ...] = ()
    """Opaque fields that the provider wants back with the result."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call."""

    call_id: str
    output: str
    """JSON text."""
    is_error: bool = False
    interim: bool = False
    """Says "still working"; a `FollowUp` comes later."""
    name: str = ""
    echo: tuple[tuple[str, str], ...] = ()
