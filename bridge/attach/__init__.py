"""Serves the tools of agent sessions that somebody else has begun, over the providers' HTTP session APIs."""

from __future__ import annotations

from .attached import Attached, AttachedSnapshot, End, Ending, House
from .providers import ATTACHABLE, Provider, expressible, known_dialect

__all__ = [
    "ATTACHABLE",
    "Attached",
    "AttachedSnapshot",
    "End",
    "Ending",
    "House",
    "Provider",
    "expressible",
    "known_dialect",
]
