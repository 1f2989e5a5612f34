"""What a tool may say about how it is to be called: how often, how many at once, and what counts as the same call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import ConfigError

__all__ = ["NOT_GIVEN", "Approval", "Dedupe", "Example", "Rate"]

Approval = Literal["always_allow", "always_ask", "always_deny"]
"""Whether a call may run: at once, once a person has approved it, or not at all."""

_UNITS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
_RATE = re.compile(r"(\d+)\s*/\s*(?:(\d+)\s*)?(second|minute|hour)s?")


NOT_GIVEN: Final = object()
"""Stands for a result that may be anything; `None` is one that has to be null."""


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many calls in so many seconds, of all sessions together."""

    calls: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Rate:
        """`10/minute`, `100/hour`, `3/10 seconds`. Raises `ConfigError` for anything else."""
        match = _RATE.fullmatch(text.strip())
        if match is None or not int(match[1]) or match[2] == "0":
            raise ConfigError(f"{text!r} is no rate; write it like '10/minute', '100/hour' or '3/10 seconds'")
        return cls(int(match[1]), float(match[2] or 1) * _UNITS[match[3]])


@dataclass(frozen=True, slots=True)
class Dedupe:
    """Calls with the same arguments within `seconds` get the first success again, and the tool does not run.

    A failure is never given again. Arguments are compared after they have been checked, hidden ones included.
    """

    seconds: float
    scope: Literal["session", "process"] = "session"
    """Among which calls: those of the same session, or of all of them."""
    fields: tuple[str, ...] = ()
    """Which arguments make a call the same; by default all."""

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ConfigError("dedupe: seconds must be a number greater than 0")
        if self.scope not in ("session", "process"):
            raise ConfigError("dedupe: scope must be session or process")


@dataclass(frozen=True, slots=True)
class Example:
    """A call for tests and checks: its arguments have to fit, and where `result` is given it has to come out."""

    arguments: Mapping[str, Any]
    result: Any = NOT_GIVEN
