"""What the agent does in each turn, as data.

Every message to an idle session begins the next turn of the scenario; once they are used up, or without a scenario, the
agent calls the first function it was given and tells the result. Steps are taken in order. A turn completes when all
its steps have been taken and all its calls are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bridge.simulator.openai_sessions.rules import Fault, Rules

__all__ = [
    "Ask",
    "AskApproval",
    "AwaitResults",
    "Call",
    "Cancel",
    "Cut",
    "Fail",
    "FailSession",
    "Raw",
    "Repeat",
    "Say",
    "Scenario",
    "Steer",
    "Step",
    "Tell",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One function call. `arguments` may be any JSON value; without an `id` one is made up."""

    name: str
    arguments: Any = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """The agent calls these functions at once, and goes on with the next step."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class AskApproval:
    """The agent wants to call a tool of an MCP server, asks whether it may, and goes on with the next step.

    Seen: the name and the arguments can be null; the message is then all that tells what is asked.
    """

    server: str
    name: str | None = None
    arguments: Any = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class AwaitResults:
    """The agent waits until every call of the turn is answered, and every approval decided."""


@dataclass(frozen=True, slots=True)
class Say:
    """The agent writes a message."""

    text: str
    phase: Literal["commentary", "final_answer"] = "final_answer"


@dataclass(frozen=True, slots=True)
class Tell:
    """The agent waits for the results of the turn, and says them."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes: `seconds` of the provider, multiplied by the pace."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Repeat:
    """The present state of the session is announced once more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """All event streams of the session break; the session goes on."""


@dataclass(frozen=True, slots=True)
class Steer:
    """Somebody else adds a user message to the running turn."""

    text: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody else cancels the turn."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The turn fails with this code; the session is idle again."""

    code: str = "server_error"


@dataclass(frozen=True, slots=True)
class FailSession:
    """The turn fails, and the session with it, for good."""

    code: str = "internal_error"


@dataclass(frozen=True, slots=True)
class Raw:
    """Send this event as it is."""

    event: Mapping[str, Any]


Step: TypeAlias = (
    Ask | AskApproval | AwaitResults | Say | Tell | Wait | Repeat | Cut | Steer | Cancel | Fail | FailSession | Raw
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The turns of a session, the rules under which they take place, and the faults of the requests meanwhile."""

    turns: tuple[tuple[Step, ...], ...] = ()
    rules: Rules = field(default_factory=Rules)
    faults: tuple[Fault, ...] = ()
