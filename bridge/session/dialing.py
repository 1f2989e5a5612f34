"""The first step of every session: a transport to where its provider is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.dialect import Dialect
from ..core.http import HttpDialect
from ..errors import ConfigError
from ..transports import Transport
from ..transports.websocket import WebSocketTransport
from .options import SessionOptions

if TYPE_CHECKING:
    from ..transports.http import HttpTransport

__all__ = ["dial", "http_transport"]


async def dial(dialect: Dialect, url: str, credentials: str, options: SessionOptions) -> Transport:
    """Over a WebSocket, or over HTTP, as the dialect says. Raises `ConfigError` and `TransportError`.

    Over HTTP nothing is asked before the setup is sent.
    """
    endpoint = dialect.endpoint(url, credentials)
    if not isinstance(dialect, HttpDialect):
        return await WebSocketTransport.open(endpoint, timeout=options.connect_timeout, max_size=options.max_frame)
    transport = http_transport(dialect.name)
    return transport(endpoint, dialect, patience=options.patience, max_size=options.max_frame)


def http_transport(dialect: str) -> type[HttpTransport]:
    """What carries this dialect, which is served over HTTP. Raises `ConfigError` without the `http` extra."""
    try:
        from ..transports.http import HttpTransport
    except ImportError:
        raise ConfigError(f"{dialect} is served over HTTP: pip install 'voice-tool-bridge[http]'") from None
    return HttpTransport
