"""The providers' protocols, one file each, and the table of them by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bridge.core.dialect import Dialect

from .assemblyai import ASSEMBLYAI

__all__ = ["DIALECTS"]

DIALECTS: Final[Mapping[str, Dialect]] = MappingProxyType({dialect.name: dialect for dialect in (ASSEMBLYAI,)})
