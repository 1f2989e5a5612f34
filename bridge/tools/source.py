"""Where tools come from that has a lifetime: something is opened, kept, and may change what it offers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from .tool import Tool

__all__ = ["Changed", "Source"]

Changed = Callable[[Sequence[Tool]], None]
"""Told, on the event loop on which the source was opened, all tools of a source that has changed its list."""


class Source(Protocol):
    """A source of tools. It is opened on the event loop on which its tools are called."""

    @property
    def name(self) -> str:
        """For errors, logs and readiness."""
        ...

    @property
    def reason(self) -> str:
        """Why its tools cannot be called now, where that is a reason to take no sessions; else empty."""
        ...

    def open(self, changed: Changed, /) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open it, and yield its tools as they are now. Raises `ConfigError` if it is needed and cannot be opened."""
        ...
