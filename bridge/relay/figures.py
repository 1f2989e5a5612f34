"""What a relay shows of itself: its sessions, and what has passed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from .walker import Walker

__all__ = ["Counters", "SessionSnapshot", "Traffic"]


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """One session as it is now. Sizes are those that came from each side."""

    id: str
    provider_session_id: str
    correlation: str
    dialect: str
    route: str
    seconds: float
    owed: int
    link: str
    reply: str
    user: str
    bytes_from_application: int
    bytes_from_provider: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """What came from one side."""

    bytes: int = 0
    media: int = 0
    media_bytes: int = 0
    messages: int = 0
    control: int = 0
    slow_looks: int = 0
    """Media that were not recognised at the first look."""

    @classmethod
    def of(cls, walker: Walker) -> Self:
        return cls(*(getattr(walker, each.name) for each in fields(cls)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the start."""

    from_application: Traffic
    from_provider: Traffic
    sessions: int
    refused: Mapping[int, int]
    """Connections that became no session, by HTTP status."""
    without_setup: int
    resumed: int
    """Sessions that an application has come back to."""
    lost: Mapping[str, int]
    """Sessions that stayed when the connection to their provider was lost, by what became of them: see `Outcome`."""
    dropped: int
    """Media of applications that came in the meantime."""
