"""Hears from the provider which sessions wait for tools: its signed notifications, on a port of our own.

What they are, and how they are signed, is in `bridge.dialects.hcompany.notifications`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..admin import listening
from ..dialects.hcompany.notifications import Notification, Rejected, receive
from ..errors import AtCapacity, ConfigError, SessionClosed
from .plan import Webhook

__all__ = ["receiver", "taking"]

logger = logging.getLogger("bridge.attach")

_MAX_BODY: Final = 64 * 1024
_REMEDY: Final = "check the webhook's secret, and this machine's clock"
_RETRY_AFTER: Final = {"retry-after": "10"}


def receiver(
    secrets: Sequence[str], named: Callable[[str], object], *, clock: Callable[[], float] = time.time
) -> Starlette:
    """The ASGI app. `named` is told of every session that is not over; it may raise `AtCapacity`, `SessionClosed`."""

    async def notified(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return Response(f"over {_MAX_BODY} bytes", 413)
        match receive(request.headers, body, secrets, clock()):
            case Rejected() as rejected:
                logger.warning("a notification was refused (%s): %s", rejected.name, _REMEDY)
                return Response(rejected.name, rejected.value)
            case Notification(session_id=""):
                return Response(status_code=204)  # a ping
            case Notification(session_id=session_id, over=over):
                return Response(status_code=204) if over else _answer(named, session_id)

    return Starlette(routes=[Route("/{path:path}", notified, methods=["POST"])])


@asynccontextmanager
async def taking(webhook: Webhook, named: Callable[[str], object]) -> AsyncIterator[int]:
    """Take notifications while the block runs; yields the port. Raises `ConfigError` if it cannot listen there."""
    async with AsyncExitStack() as stack:
        app = receiver(webhook.secrets, named)
        try:
            port = await stack.enter_async_context(listening(app, webhook.host, webhook.port))
        except ConfigError as error:
            raise ConfigError(f"the webhook port cannot listen{str(error).partition('cannot listen')[2]}") from None
        logger.info("notifications are taken at http://%s:%d", webhook.host, port)
        yield port


async def _body(request: Request) -> bytes | None:
    """None if it is too long to be read."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY:
            return None
    return bytes(data)


def _answer(named: Callable[[str], object], session_id: str) -> Response:
    try:
        named(session_id)
    except (AtCapacity, SessionClosed) as full:
        return Response(str(full), 503, _RETRY_AFTER)
    return Response(status_code=204)
