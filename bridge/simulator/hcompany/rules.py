"""How the simulated provider behaves where the real one varies, is undocumented, or leaves room. Seconds throughout."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Duplicates", "Rules"]


class Duplicates(Enum):
    """What becomes of a second result for a settled call. Either way it is accepted with 202; the rest is unknown."""

    DROPPED = auto()
    LOGGED = auto()
    """It shows in the event log, and changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All switches; what is left out is as documented."""

    startup: float = 0.0
    """From the creation of a session to its run."""
    apply_after: float = 0.0
    """From a 202 to the moment its results count. The real provider relays them some time later."""
    duplicates: Duplicates = Duplicates.DROPPED
    lists_pending: bool = True
    """Does `/status` list the pending calls? Versions up to the middle of 2026 do not."""
    states_sent: int = 1
    """How often the log tells each change of what the agent does."""
    kept_events: int | None = None
    """How many events the log keeps; older ones are evicted. None: all."""
    capacity: int | None = None
    """How many sessions may run at once; more are queued, or refused with 429."""
    webhook_attempts: int = 1
    """How often a delivery is tried. The documentation has said both: once, and with retries."""
    webhook_copies: int = 1
    """How often the same delivery is sent, as after a lost answer."""
