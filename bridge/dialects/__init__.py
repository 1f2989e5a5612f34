"""The providers' protocols, one part each, and the tables of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bridge.core.dialect import Dialect
from bridge.core.http import HttpDialect

from .assemblyai import ASSEMBLYAI
from .hcompany import HCOMPANY
from .herm import HERM
from .openai_sessions import OPENAI_SESSIONS

__all__ = ["DIALECTS", "HTTP_DIALECTS"]

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in (ASSEMBLYAI,)})
"""Spoken over a WebSocket: those that can stand behind the relay."""

HTTP_DIALECTS: Final[Mapping[str, HttpDialect]] = MappingProxyType(
    {dialect.name: dialect for dialect in (OPENAI_SESSIONS, HCOMPANY, HERM)}
)
"""Spoken over plain HTTP, by embedded sessions only."""
