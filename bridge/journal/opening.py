"""Which store, by its address."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import ConfigError
from . import Retention
from .payloads import Payloads
from .sqlite import open_sqlite
from .stored import StoredJournal

__all__ = ["is_postgres", "open_journal"]


def is_postgres(address: str) -> bool:
    """Is this the address of a PostgreSQL database, rather than the path of a file?"""
    return address.startswith(("postgresql://", "postgres://"))


def open_journal(
    address: str,
    *,
    payloads: Payloads | None = None,
    retention: Retention | None = None,
    limit: float = 5.0,
    poll: float = 1.0,
    clock: Callable[[], float] = time.time,
) -> StoredJournal:
    """The journal in this file, or in this PostgreSQL database (`postgresql://...`).

    See `open_sqlite` and `open_postgres`. Blocks for up to `limit` seconds. Raises `ConfigError`, too, if the
    `postgres` extra is missing.
    """
    if not is_postgres(address):
        return open_sqlite(address, payloads=payloads, retention=retention, limit=limit, poll=poll, clock=clock)
    try:
        from .postgres import open_postgres
    except ImportError:
        raise ConfigError(
            "a journal in PostgreSQL needs the postgres extra: pip install 'voice-tool-bridge[postgres]'"
        ) from None
    return open_postgres(address, payloads=payloads, retention=retention, limit=limit, poll=poll, clock=clock)
