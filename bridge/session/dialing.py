"""The first step of every session: a transport to where its provider is served."""

from __future__ import annotations

from ..core.dialect import Dialect
from ..core.http import HttpDialect
from ..errors import ConfigError
from ..transports import Transport
from ..transports.websocket import WebSocketTransport
from .options import SessionOptions

__all__ = ["dial"]


async def dial(dialect: Dialect, url: str, credentials: str, options: SessionOptions) -> Transport:
    """Over a WebSocket, or over HTTP, as the dialect says. Raises `ConfigError` and `TransportError`.

    Over HTTP nothing is asked before the setup is sent.
    """
    endpoint = dialect.endpoint(url, credentials)
    if not isinstance(dialect, HttpDialect):
        return await WebSocketTransport.open(endpoint, timeout=options.connect_timeout, max_size=options.max_frame)
    try:
        from ..transports.http import HttpTransport  # needs the `http` extra
    except ImportError:
        raise ConfigError(f"{dialect.name} is served over HTTP: pip install 'voice-tool-bridge[http]'") from None
    return HttpTransport(endpoint, dialect, patience=options.patience, max_size=options.max_frame)
