"""A session's run as data: what the agent does, step by step.

The agent begins with its first message and goes on by itself. It stops where it asks for custom tools, until each call
has its result, and after an answer, until the next message. A script that has run out ends with an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Answer", "Ask", "Call", "Fail", "OwnTool", "Scenario", "Step", "Work"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a custom tool. An `id` that is empty is made up; None stays null, and a used one comes again."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """The agent calls these custom tools in one step, and waits."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class OwnTool:
    """The agent calls a tool of its environment. The log shows it; nobody else may run it."""

    call: Call
    result: Any = None


@dataclass(frozen=True, slots=True)
class Work:
    """The agent is busy for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent answers. Without an `answer` of its own it tells the results it has got."""

    answer: str | Mapping[str, Any] | None = None
    outcome: str = "success"


@dataclass(frozen=True, slots=True)
class Fail:
    """The session fails."""

    error: str = "the environment went away"
    code: str = "environment_error"


Step: TypeAlias = Ask | OwnTool | Work | Answer | Fail


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the agent of every session does, from its start."""

    steps: tuple[Step, ...] = ()
