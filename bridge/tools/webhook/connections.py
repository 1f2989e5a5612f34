"""Connections that are kept open between calls.

Each takes one request at a time, and a new one is made whenever none is free: how many calls run at once is limited
elsewhere, and a limit here would let one slow host block all others. Which one is taken does not depend on how many
there are, as it does in the pool of httpcore2, where each of 200 calls at once looks at 200 connections.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpcore2

from .guard import Guard

__all__ = ["Connections"]

_IDLE: Final = 4.0
"""Seconds that an idle connection is kept: many servers close theirs after 5, maybe just while we write."""

_Key = tuple[str, frozenset[str]]
"""Scheme, host and port, and who is listed."""


class Connections:
    """To all hosts. A connection to one that is listed is used again only where it is listed, too."""

    def __init__(self) -> None:
        self._tls = httpcore2.default_ssl_context()
        self._idle: defaultdict[_Key, deque[httpcore2.AsyncHTTPConnection]] = defaultdict(deque)

    async def aclose(self) -> None:
        """Close those that are idle."""
        for waiting in self._idle.values():
            while waiting:
                await waiting.pop().aclose()

    @asynccontextmanager
    async def request(self, request: httpcore2.Request, listed: frozenset[str]) -> AsyncIterator[httpcore2.Response]:
        """Send a request, and yield the answer, whose body is still to be read.

        `listed`: hosts that may be on any address, see `Guard`. Raises `Forbidden` and the exceptions of httpcore2.
        """
        key = str(request.url.origin), listed
        await self._swept()
        connection = await self._taken(key) or self._made(request.url.origin, listed)
        try:
            answer = await connection.handle_async_request(request)
            try:
                yield answer
            finally:
                await answer.aclose()
        finally:
            if connection.is_idle() and not connection.is_closed():
                self._idle[key].append(connection)
            else:
                await connection.aclose()

    async def _swept(self) -> None:
        """Close those that have been idle for too long, also to hosts that nobody may ever ask for anything again."""
        for idle in list(self._idle.values()):
            while idle and idle[0].has_expired():
                await idle.popleft().aclose()
        for key in [key for key, idle in self._idle.items() if not idle]:
            del self._idle[key]

    async def _taken(self, key: _Key) -> httpcore2.AsyncHTTPConnection | None:
        """The one that was used last. Those that the server has closed meanwhile are closed here, too."""
        idle = self._idle[key]
        while idle:
            connection = idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    def _made(self, origin: httpcore2.Origin, listed: frozenset[str]) -> httpcore2.AsyncHTTPConnection:
        return httpcore2.AsyncHTTPConnection(
            origin, ssl_context=self._tls, keepalive_expiry=_IDLE, network_backend=Guard(listed)
        )
