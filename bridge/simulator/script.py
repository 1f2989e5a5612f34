"""A conversation as data: what the user says, what the agent says, and which tools it calls.

Steps are taken in order. `UserSays`, `Say`, `Reply`, `AwaitResults` and `HangUp` wait until the agent has finished what
it is saying; `BargeIn`, `Noise`, `Wait`, `Raw`, `Drop` and `Fail` do not. `Say` and `Reply` are over, as steps, when
the reply has begun: the next step decides whether it is cut short. Replies that tell results are not steps, the agent
makes them by itself. All durations are in seconds, and scaled by the simulator's pace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from bridge.simulator.rules import Rules

__all__ = [
    "AwaitResults",
    "BargeIn",
    "Call",
    "Drop",
    "Fail",
    "HangUp",
    "Noise",
    "Raw",
    "Reply",
    "Say",
    "Scenario",
    "Step",
    "ToolSketch",
    "Until",
    "UserSays",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. `args` that are text are sent as that text, broken or not; without an `id` one is made up."""

    name: str
    args: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class UserSays:
    """The user speaks when the agent has finished, and is owed a reply."""

    text: str
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class BargeIn:
    """The user speaks, whatever the agent is doing, `after` seconds after the step before."""

    text: str
    after: float = 0.3
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Noise:
    """A cough: speech starts and stops, but nobody has said anything and no reply is owed."""

    after: float = 0.3
    seconds: float = 0.2


@dataclass(frozen=True, slots=True)
class Say:
    """The agent gives a plain reply."""

    text: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """The agent gives a reply that calls tools, `calls_at` seconds into its words (at their end, if that is later).

    When all its tools are declared with `execution_mode` `hold`, the calls come alone: no reply, no words.
    """

    text: str
    calls: tuple[Call, ...] = ()
    seconds: float | None = None
    calls_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Time passes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait for a message of this type, in either direction, since the last step in which somebody spoke."""

    type: str


@dataclass(frozen=True, slots=True)
class AwaitResults:
    """Wait until every call is answered, abandoned or timed out, and the agent has told what it knows."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Send this message to the client as it is."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection breaks without a close frame (1006). The next step waits for a resume."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The provider fails: `session.error` with this code, then a close."""

    code: str = "internal_error"
    close_code: int = 1011


@dataclass(frozen=True, slots=True)
class HangUp:
    """The provider ends the session: `session.ended`, then close 1000."""


Step: TypeAlias = UserSays | BargeIn | Noise | Say | Reply | Wait | Until | AwaitResults | Raw | Drop | Fail | HangUp


@dataclass(frozen=True, slots=True)
class ToolSketch:
    """A tool as a scenario expects the client to have it, so that tests and the demo can make one.

    It takes `seconds` (scaled by the pace), then gives `result`, or raises with the text `fails`. With `hold` it is to
    be declared with that `execution_mode`; a `terminal` one cannot be undone and must wait until its reply stands.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    seconds: float = 0.0
    result: Any = None
    fails: str = ""
    hold: bool = False
    terminal: bool = False
    timeout_seconds: float = 12.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named conversation, the tools it calls, and the rules under which it takes place."""

    name: str
    about: str
    steps: tuple[Step, ...]
    tools: tuple[ToolSketch, ...] = ()
    rules: Rules = field(default_factory=Rules)
