"""What the offline provider was sent, and what it said to that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Exchange", "Ledger", "Refused", "Result"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request."""

    path: str
    body: Any
    status: int
    error: str = ""
    """Why it was refused."""


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one call, as the model reads it."""

    text: str
    is_error: bool


@dataclass(slots=True)
class Ledger:
    """Of one simulator."""

    exchanges: list[Exchange] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)
    """By call id, as they stand in the latest request that was accepted."""
    remarks: list[str] = field(default_factory=list)
    """What was accepted although a client should not do it."""

    @property
    def refusals(self) -> list[str]:
        """Why requests were refused."""
        return [each.error for each in self.exchanges if each.error]


class Refused(Exception):
    """A request that is not taken."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
