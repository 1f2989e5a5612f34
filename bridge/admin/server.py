"""Serves an ASGI app on a port of its own, beside whatever else the process does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import uvicorn
from starlette.types import ASGIApp

from ..errors import ConfigError

__all__ = ["bound", "listening"]

_SHUTDOWN_SECONDS = 2
_UNREAD_SECONDS = 60
"""For how long a peer may read nothing that is sent to it; then the kernel drops it, where it can."""


@asynccontextmanager
async def listening(app: ASGIApp, host: str, port: int) -> AsyncIterator[int]:
    """Serve `app` while the block runs; yields the port. Raises `ConfigError` if it cannot listen there."""
    listener = bound(host, port)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",  # that it has started is said in words of our own
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
            await serving
        listener.close()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the business of the process, which has sessions to finish."""
        yield


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises `ConfigError` if there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what is accepted inherits it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_SECONDS * 1000)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        why = f"{error.strerror}; choose another port"
        raise ConfigError(f"the admin port cannot listen on {host}:{port}: {why}") from None
    listener.setblocking(False)
    return listener
