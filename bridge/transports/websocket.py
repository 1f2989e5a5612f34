"""A provider behind a WebSocket."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from ..core.dialect import Endpoint
from ..core.events import Frame
from ..errors import AtCapacity, AuthenticationFailed, ConfigError, TransportError

__all__ = ["WebSocketTransport"]

_CLOSE_TIMEOUT = 2.0
"""Seconds for the close handshake; after that the connection is cut off."""
_PING_EVERY = 5.0
_PING_TIMEOUT = 10.0
"""Seconds without an answer to a ping. A network that is gone without a word is noticed after 15 at most: early enough
for a provider that keeps a lost session for 30."""
_TOO_BIG = 1009
"""Close code of whoever was sent a frame beyond its limit."""
_UNHEARD = logging.Logger("unheard", logging.CRITICAL)
"""At level DEBUG the library would log every header and frame, and with them the key, arguments and results."""


class WebSocketTransport:
    """Made by `open`."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    @classmethod
    async def open(cls, endpoint: Endpoint, *, timeout: float, max_size: int) -> WebSocketTransport:
        """Connect within `timeout` seconds; frames beyond `max_size` bytes end the connection.

        Raises `AuthenticationFailed` or `AtCapacity` where the handshake already says so, else `TransportError`.
        """
        try:
            connection = await connect(
                endpoint.url,
                additional_headers=dict(endpoint.headers),
                compression=None,  # base64 audio hardly shrinks, and deflating costs more than all the rest
                open_timeout=timeout,
                close_timeout=_CLOSE_TIMEOUT,
                ping_interval=_PING_EVERY,
                ping_timeout=_PING_TIMEOUT,
                max_size=max_size,
                max_queue=64,
                logger=_UNHEARD,
            )
        except InvalidURI:
            raise ConfigError("the provider's url must be a WebSocket address: wss://host/path") from None
        except InvalidStatus as refused:
            raise _refusal(refused.response.status_code) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise TransportError(f"cannot connect to the provider: {_reason(error)}") from error
        return cls(connection)

    async def receive(self) -> Frame:
        try:
            return await self._connection.recv()
        except ConnectionClosed as closed:
            raise _lost(closed) from None

    async def send(self, frame: Frame) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as closed:
            raise _lost(closed) from None

    async def receipt(self) -> Awaitable[object]:
        # Frames are answered in their order, so that a pong confirms all that was sent before its ping.
        try:
            return await self._connection.ping()
        except ConnectionClosed as closed:
            raise _lost(closed) from None

    def abort(self) -> None:
        self._connection.transport.abort()

    async def aclose(self) -> None:
        try:
            with anyio.move_on_after(_CLOSE_TIMEOUT), contextlib.suppress(Exception):
                await self._connection.close()
        finally:
            self.abort()


def _refusal(status: int) -> Exception:
    match status:
        case 401 | 403:
            hint = "check the API key, and that the account may use this product and region"
            said = f"the provider refused the connection (HTTP {status}): {hint}"
            return AuthenticationFailed(said, code=str(status))
        case 429 | 503:
            return AtCapacity(f"the provider has no room now (HTTP {status}): try again later", code=str(status))
        case _:
            return TransportError(f"the provider refused the connection (HTTP {status}): check the url")


def _lost(closed: ConnectionClosed) -> TransportError:
    received = closed.rcvd
    if closed.sent is not None and closed.sent.code == _TOO_BIG:
        return TransportError(
            "the provider sent a frame that is too big: see SessionOptions.max_frame", close_code=_TOO_BIG
        )
    if received is None:
        return TransportError("the connection to the provider dropped", close_code=1006)
    reason = f": {received.reason}" if received.reason else ""
    return TransportError(f"the provider closed the connection ({received.code}){reason}", close_code=received.code)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
