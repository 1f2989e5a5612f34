"""Limits of one session."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..transports.patience import Patience
from .reconnect import Afresh

__all__ = ["SessionOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Limits of one session. Times in seconds."""

    connect_timeout: float = 10.0
    """For the connection."""
    ready_timeout: float = 15.0
    """For the provider to become ready; it is documented to take up to 10."""
    update_timeout: float = 10.0
    """For the provider to acknowledge a change of settings."""
    owed_timeout: float = 5.0
    """On leaving: for results that are still owed."""
    end_timeout: float = 2.0
    """On leaving: for the provider to say that the session has ended."""
    max_events: int = 10_000
    """Events the host may leave untaken; beyond that the session ends with `ApplicationTooSlow`."""
    max_frame: int = 4 * 1024 * 1024
    """Bytes of a frame of the provider."""
    reconnect_timeout: float = 30.0
    """For another connection after a drop, before the session ends with `TransportError`; 0 ends it at once."""
    reconnect_after: float | None = None
    """Go over to a new connection at this age of the present one, for providers that limit it.

    That happens when nobody speaks, 30 seconds later at the latest; tools that run go on.
    """
    patience: Patience = field(default_factory=Patience)
    """For providers over HTTP: how long they are waited for, and how often they are tried again."""
    afresh: Afresh | None = None
    """Describes the agent of a fresh session when the provider has lost the one before.

    An async function from a `LostSession` to an agent with the same audio formats, whose prompt may tell what has been
    said so far; its `url` does not count. Without it the agent is described as at the start, its greeting included, and
    then told what `update` has changed since.
    """
