"""Routes on a port of their own, and the connections on which requests come."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

__all__ = ["Listener", "cut", "hang_up"]

_RESET: Final = struct.pack("ii", 1, 0)
"""`SO_LINGER` of no time: the socket is closed with a reset."""
_GOODBYE: Final = 1.0
"""Seconds in which requests may come to their end when the port is closed."""


class Listener:
    """A port that is served from `open` to `aclose`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        """Once it is open, the one that was found where 0 was given."""
        self._state = ServerState()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{self.host}:{self.port}"

    async def open(self, routes: Sequence[Route]) -> None:
        """Begin to listen. Raises `OSError` if the port is taken."""
        config = Config(Starlette(routes=list(routes)), lifespan="off", log_config=None, access_log=False)
        config.load()
        # The protocol without `uvicorn.Server`: that one looks every tenth of a second whether it should stop.
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Protocol(config=config, server_state=self._state, app_state={}), self.host, self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def aclose(self) -> None:
        """Break every connection, and listen no more."""
        self._server.close()
        for line in list(self._state.connections):
            line.transport.abort()
        with anyio.CancelScope(shield=True):
            if tasks := list(self._state.tasks):
                _, late = await asyncio.wait(tasks, timeout=_GOODBYE)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)


def cut(request: Request) -> None:
    """Reset the connection on which this request came."""
    line: asyncio.Transport = request.state.line
    if not line.is_closing():
        peer: socket.socket = line.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        line.abort()


def hang_up(request: Request) -> None:
    """Close the connection on which this request came, after what has been said on it."""
    line: asyncio.Transport = request.state.line
    line.close()


class _Protocol(H11Protocol):
    """Lets a request reach its own connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app_state = {**self.app_state, "line": transport}
