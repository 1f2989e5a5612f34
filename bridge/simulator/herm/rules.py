"""How the simulated provider behaves where the real one is undocumented. Seconds throughout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["LateFinals", "Payloads", "Repeats", "Rules"]


class Repeats(Enum):
    """What becomes of a kickoff, or of an immediate result, that comes once more. Finals are safe to repeat."""

    EXPIRED = auto()
    """410: nothing waits for it any more."""
    RETURNED = auto()
    """The event of the first one is returned."""
    APPENDED = auto()
    """It is a second event in the history."""


class LateFinals(Enum):
    """What becomes of a final result for a call that has expired, and was never said to be running."""

    EXPIRED = auto()
    """410, as for an immediate result."""
    APPENDED = auto()
    """A new event that starts a turn, as for a final without a kickoff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Every name on the wire that is not in the public documentation, by analogy with a sibling protocol.

    Who knows better says so here; the rest of the simulator asks this table.
    """

    custom: str = "custom"
    """`type` of a custom tool in an agent's `tools`."""
    schema: str = "input_schema"
    """Field of such a tool with the JSON Schema of its arguments."""
    policy: str = "permissionPolicy"
    """Field of such a tool with its permission policy."""
    name: str = "name"
    """Field of `agent.custom_tool_use` and `agent.approval_request` with the tool's name."""
    input: str = "input"
    """Their field with the arguments."""
    decision: str = "result"
    """Field of `user.tool_confirmation` with the decision."""
    allow: str = "allow"
    deny: str = "deny"
    error: str = "error"
    """Field of an error's body that holds `code`, `message` and `retryable`."""
    accepted: str = "events"
    """Field of a 202 that lists the accepted events."""
    listed: str = "data"
    """Field of a page that lists its items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All switches; what is left out is as documented, or by analogy where that is silent."""

    wait: float = 300.0
    """How long a call waits for its answer, or for the word that it is running."""
    repeats: Repeats = Repeats.EXPIRED
    late_finals: LateFinals = LateFinals.EXPIRED
    events_sent: int = 1
    """How often each call, and each end of a turn, is told."""
    several_results: bool = True
    """May one request hold more than one result?"""
    payloads: Payloads = Payloads()
