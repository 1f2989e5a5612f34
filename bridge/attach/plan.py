"""What a sidecar is to attach to. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .providers import Provider

__all__ = ["NOTIFYING", "Plan", "Webhook"]

NOTIFYING: Final = frozenset({"hcompany"})
"""The providers whose notifications we can verify, by their names in `ATTACHABLE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Where notifications are taken."""

    host: str = "127.0.0.1"
    port: int = 0
    secrets: tuple[str, ...] = field(repr=False)
    """Any of them may have signed: while one takes the place of another, there are two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One `[[attach]]`: which sessions are to be served, and where others are named while it runs."""

    provider: Provider
    sessions: tuple[str, ...] = ()
    webhook: Webhook | None = None
    max_sessions: int = 1000
    owed_timeout: float = 10.0
    give_up: float = 300.0
