"""Several processes that share a port: `voice-tool-bridge serve --workers N`.

The parent takes no sessions. It starts the workers, replaces those that die, and serves the one admin port: what it is
asked there, it asks them. Each worker is a sidecar without an admin port; which of them gets a connection is up to the
kernel (SO_REUSEPORT).

    parent ──── a socket pair for each ────► worker 1, worker 2, ...

A worker reads the settings by itself. It ends by SIGTERM, or when the parent's end of the pair closes, also because the
parent has died; its sessions have `drain_seconds` then. So a session is lost only by the death of its own worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from ..admin import app_of, listening
from ..config import Sidecar
from ..errors import ConfigError
from ..ports import refuse_taken, reserved
from ..serve import access_of, at_each_hangup, until_stopped
from .fleet import Fleet
from .worker import Order

__all__ = ["Fleet", "run"]

Overrides = Mapping[str, Mapping[str, Any]]


def run(sidecar: Sidecar, config: Path | None, overrides: Overrides, started: Callable[[int, int], None]) -> int:
    """Serve with as many workers as `listen.workers` says; otherwise as `serve.run`.

    `sidecar` is what `read(config, overrides)` gave; each worker reads the same again. SIGHUP is passed on to them.
    Raises `ConfigError` if one of them cannot start; then none does.
    """
    settings, limits = sidecar.settings, sidecar.limits
    refuse_taken(settings.listen, settings.admin)
    with reserved(settings.listen.host, settings.listen.port, shared=True) as port:
        listen = {"host": settings.listen.host, "port": port, "workers": settings.listen.workers}
        order = Order(config, {**overrides, "listen": {**overrides.get("listen", {}), **listen}})
        # What it may take to end all sessions at once, and some more.
        end_seconds = limits.owed_timeout + limits.end_timeout + 2 * limits.close_timeout + 5
        fleet = Fleet(order.command, settings.listen.workers, end_seconds=end_seconds)
        return asyncio.run(_govern(fleet, sidecar, partial(started, port)))


async def _govern(fleet: Fleet, sidecar: Sidecar, started: Callable[[int], None]) -> int:
    """The parent, until it is stopped or a worker cannot start."""
    table, left = sidecar.settings.admin, 0
    async with (
        listening(app_of(fleet, fleet, access_of(table)), table.host, table.port) as admin_port,
        anyio.create_task_group() as group,
    ):
        await group.start(at_each_hangup, fleet.reload)
        group.start_soon(fleet.keep)
        with anyio.CancelScope() as going:

            async def announce() -> None:
                if await fleet.started():
                    going.cancel()
                else:
                    started(admin_port)

            group.start_soon(announce)
            left = await until_stopped(fleet, sidecar.settings.session.drain_seconds)
        fleet.close()
        await fleet.stop()
        group.cancel_scope.cancel()
    if fleet.fault:
        raise ConfigError(fleet.fault)
    return left
