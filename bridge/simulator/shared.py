"""What the parts of one session share."""

from __future__ import annotations

from dataclasses import dataclass

from anyio.abc import TaskGroup

from bridge.simulator.ledger import Ledger
from bridge.simulator.rules import Rules
from bridge.simulator.waiting import Changes, Clock
from bridge.simulator.wire import Wire

__all__ = ["Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """Made once per session, and handed to each of its parts."""

    rules: Rules
    ledger: Ledger
    wire: Wire
    changes: Changes
    clock: Clock
    tasks: TaskGroup
