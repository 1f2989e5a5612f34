"""Runs a sidecar: the relay, its admin port, and what signals do to both."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress

from .admin import admin, listening, relay_source
from .config import Sidecar
from .metrics import Metrics
from .relay.server import Relay

__all__ = ["run"]

logger = logging.getLogger("bridge.serve")


def run(sidecar: Sidecar, started: Callable[[int, int], None]) -> int:
    """Serve until SIGTERM or SIGINT; returns how many sessions had to be ended before their time.

    `started` hears of the two ports. SIGTERM, or the first SIGINT, lets the running sessions come to their end for
    `drain_seconds`; a second signal ends them at once. Runs on uvloop where that is installed. Raises `ConfigError`.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_serve(sidecar, started))
    return uvloop.run(_serve(sidecar, started))


async def _serve(sidecar: Sidecar, started: Callable[[int, int], None]) -> int:
    metrics = Metrics()
    relay = Relay(sidecar.routes, sidecar.tools, limits=sidecar.limits, observers=(metrics,), finished=metrics.finished)
    port = sidecar.settings.admin
    async with relay:
        metrics.add_source(relay_source(relay))
        await relay.start(sidecar.listen)
        async with listening(admin(relay, metrics, token=port.token), port.host, port.port) as admin_port:
            watching = asyncio.create_task(metrics.watch_loop())
            started(relay.port, admin_port)
            try:
                return await _until_stopped(relay, sidecar.settings.session.drain_seconds)
            finally:
                watching.cancel()


async def _until_stopped(relay: Relay, drain_seconds: float) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, signals.put_nowait, each)
    first = await signals.get()
    open_now = len(relay.sessions)
    logger.info("%s: no new sessions; %d are open and have %g s", first.name, open_now, drain_seconds)
    draining = asyncio.create_task(relay.drain(drain_seconds))
    again = asyncio.create_task(signals.get())
    await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        logger.warning("%s again: %d sessions are ended now", again.result().name, len(relay.sessions))
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        return await relay.drain(0)
    again.cancel()
    return draining.result()
