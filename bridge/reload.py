"""Reads the settings of a running sidecar again, and puts into force what can change without ending a session.

Tools, their sources, and routes change for new sessions and for those that run. What is broken changes nothing.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import anyio.to_thread

from .advice import unknown_names
from .attach.sidecar import Attachments
from .config import Layer, Sidecar, read
from .errors import ConfigError
from .relay.server import Relay
from .settings import Settings

__all__ = ["Reloader"]

logger = logging.getLogger("bridge.serve")

_AT_START = ("listen", "admin", "session", "limits", "journal", "log")
"""The tables that count from the start of the process."""


class Reloader:
    """To be awaited with the relay, as often as the settings are to be read again. Raises nothing."""

    def __init__(self, path: Path | None, overrides: Layer, before: Sidecar) -> None:
        self._read = partial(read, path, overrides, fresh=True)
        self._started_with = before.settings

    async def __call__(self, relay: Relay) -> None:
        try:
            sidecar = await anyio.to_thread.run_sync(self._read)
            await relay.replace(sidecar.routes, sidecar.tools, sidecar.sources)
            if isinstance(relay.beside, Attachments):
                await relay.beside.replace(sidecar.attach)
        except ConfigError as error:
            reasons = "; ".join(str(error).splitlines())
            logger.error("the settings cannot be used, and those from before stay in force: %s", reasons)
            return
        off = frozenset(sidecar.settings.tools.off)
        relay.guards.switch(off=off, on=relay.guards.off - off)
        logger.info("the settings have been read again: %s", f"off are {', '.join(sorted(off))}" if off else "none off")
        for line in unknown_names(off, relay.tools):
            logger.warning(line)
        if later := _changed(self._started_with, sidecar.settings):
            logger.warning("a change of %s counts after a restart only", ", ".join(later))


def _changed(before: Settings, after: Settings) -> list[str]:
    return [
        f"{table}.{name}"
        for table in _AT_START
        for name in type(getattr(before, table)).model_fields
        if getattr(getattr(before, table), name) != getattr(getattr(after, table), name)
    ]
