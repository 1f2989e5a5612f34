"""A session's turns as data: what the agent does, step by step.

A turn begins with a message of the user, or with the outcome of a long-running tool, and ends with an answer. It stops
where it asks for custom tools, until each call has been answered, started, or has expired. Each turn goes on where the
one before has stopped; a script that has run out answers with what the turn is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Answer", "Ask", "Call", "Fail", "Scenario", "Step", "Work"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a custom tool. An empty `id` is made up."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """The agent calls these custom tools, and waits for all of them."""

    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """The agent is busy for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent says this, and the turn ends. Without a text of its own it tells the results it has got."""

    text: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """The turn ends with an error."""

    message: str = "the model went away"


Step: TypeAlias = Ask | Work | Answer | Fail


@dataclass(frozen=True, slots=True)
class Scenario:
    """What the agent of every session does, from its first turn on."""

    steps: tuple[Step, ...] = ()
