"""What the model says, turn by turn, and when the provider fails."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "Failure", "Reply"]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A text may be broken JSON: it is passed on as it is where the API has text."""
    call_id: str = ""
    """Empty: one that is not used again."""
    cut: bool = False
    """Did the reply end in the middle of it?"""

    @property
    def text(self) -> str:
        """The arguments as JSON text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn of the model. `{}` in its text stands for the latest results."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    stop: str = ""
    """Why it ended, in the API's own word; empty: as it goes with the calls."""
    thinking: str = ""
    """Where the API shows that."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that is answered with an error status, once, before the same turn is tried again."""

    status: int = 503
    retry_after: str = "0.01"
    """Seconds, for the header."""
    done: bool = False
    """Was the turn made all the same, and its answer lost?"""
