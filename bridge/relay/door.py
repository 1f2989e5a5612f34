"""The door: from a connection to a session that can begin, or to a refusal.

A connection is admitted (Origin, Host, route, token, room), its provider is dialled, and only then is it answered. A
task exists for it until then, and none afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from websockets.http11 import Request, Response

from .admission import admit
from .handshake import Opening, Refusal, accept, read_request
from .settings import Limits, Listen
from .upstream import Target, dial

__all__ = ["Door", "Guest"]

logger = logging.getLogger("bridge.relay")

_SILENT = "look for a client that connects and says nothing, such as a check of the port"


@dataclass(frozen=True, slots=True)
class Guest:
    """Who has been let in: both connections, with their handshakes done."""

    target: Target
    request: Request
    path: str
    """At the provider, query included."""
    application: Opening
    provider: Opening


class _State(Enum):
    OPEN = "open"
    SHUT = "shut"


class Door:
    """`closed` says why nobody is let in now, else nothing; `welcome` takes over who is."""

    def __init__(self, limits: Limits, closed: Callable[[], str], welcome: Callable[[Guest], None]) -> None:
        self.listen = Listen()
        self.targets: Sequence[Target] = ()
        """The first whose prefix fits counts."""
        self.dials = asyncio.Semaphore(limits.max_dials)
        self.inside = 0
        """Who has been admitted and has not left, whether the provider has answered yet or not."""
        self.refused: Counter[int] = Counter()
        """Connections that became no session, by HTTP status."""
        self._limits = limits
        self._closed = closed
        self._welcome = welcome
        self._state = _State.OPEN
        self._openings: set[asyncio.Task[None]] = set()

    def knock(self) -> asyncio.Protocol:
        """For a connection that the loop has accepted. It is asked for nothing before its TLS handshake is done."""
        return self._opening() if self.listen.tls is None else _Accepted(self._accepted)

    def _opening(self) -> Opening:
        return Opening(self._limits.max_head, self._made)

    def left(self) -> None:
        """Somebody who was let in has gone."""
        self.inside -= 1

    async def clear(self) -> None:
        """Give up the connections that are not let in yet."""
        for opening in list(self._openings):
            opening.cancel()
        if self._openings:
            await asyncio.wait(self._openings)

    async def shut(self) -> None:
        """The same, and those that the loop has accepted by now are broken off without a word."""
        self._state = _State.SHUT
        await self.clear()

    def _made(self, opening: Opening) -> None:
        if self._state is _State.SHUT:
            opening.abort()
            return
        opening.lost = self._begin(self._open(opening)).cancel

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._openings.add(task)
        task.add_done_callback(self._openings.discard)
        return task

    def _accepted(self, sock: socket.socket) -> None:
        if self._state is _State.SHUT:
            sock.close()
        else:
            # Who is sent away before the handshake has begun has nobody yet to close the socket.
            self._begin(self._encrypt(sock)).add_done_callback(lambda task: sock.close() if task.cancelled() else None)

    async def _encrypt(self, sock: socket.socket) -> None:
        """The TLS handshake. A loop that is left to do it keeps to itself that one has failed."""
        seconds, loop = self._limits.handshake_timeout, asyncio.get_running_loop()
        try:
            peer = sock.getpeername()
            await loop.connect_accepted_socket(self._opening, sock, ssl=self.listen.tls, ssl_handshake_timeout=seconds)
        except ssl.SSLError as fault:
            why = (fault.reason or str(fault)).replace("_", " ").lower()
            remedy = "use wss:// and TLS 1.2 or later, and have the client trust the certificate"
            self._tell(peer, Refusal(400, f"the TLS handshake failed ({why})", remedy))
        except ConnectionAbortedError:
            self._tell(peer, Refusal(408, "the TLS handshake did not come in time", _SILENT))
        except OSError:
            sock.close()  # it went away

    async def _open(self, opening: Opening) -> None:
        try:
            guest, answer = await self._let_in(opening)
        except Refusal as refusal:
            self._tell(opening.transport.get_extra_info("peername"), refusal)
            opening.refuse(refusal)
        except ConnectionError:
            pass  # it went away
        except asyncio.CancelledError:
            if opening.is_open:
                opening.refuse(Refusal(503, "no session now: draining"))
            raise
        except Exception:
            logger.exception("refused a connection: 500, a fault of our own")
            self.refused[500] += 1
            opening.refuse(Refusal(500, "no session: a fault of the relay, whose log has the reason"))
        else:
            opening.transport.write(answer)
            self._welcome(guest)

    async def _let_in(self, opening: Opening) -> tuple[Guest, bytes]:
        """Who may begin a session, and the answer that says so."""
        request, response = await self._read(opening)
        target, path = self._admit(opening, request)
        self.inside += 1
        try:
            provider, subprotocol = await dial(target, path, request, self._limits, self.dials)
            return Guest(target, request, path, opening, provider), accept(response, subprotocol)
        except BaseException:
            self.inside -= 1
            raise

    async def _read(self, opening: Opening) -> tuple[Request, Response]:
        try:
            async with asyncio.timeout(self._limits.handshake_timeout):
                return read_request(await opening.head())
        except TimeoutError:
            raise Refusal(408, "the request did not come in time", _SILENT) from None

    def _admit(self, opening: Opening, request: Request) -> tuple[Target, str]:
        peer = opening.transport.get_extra_info("peername")
        target, path = admit(request, peer, self.listen, self.targets)
        if reason := self._closed():
            raise Refusal(503, f"no session now: {reason}", "raise max_sessions, or add a worker, if it is full")
        return target, path

    def _tell(self, peer: Any, refusal: Refusal) -> None:
        self.refused[refusal.status.value] += 1
        remedy = f"; {refusal.remedy}" if refusal.remedy else ""
        logger.warning("refused %s: %d, %s%s", _shown(peer), refusal.status, refusal.reason, remedy)


class _Accepted(asyncio.Protocol):
    """A connection of which nothing has been read: `take` gets its socket, and the loop keeps nothing of it."""

    def __init__(self, take: Callable[[socket.socket], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        try:
            sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:
            return  # no descriptor is left, which is noticed elsewhere
        finally:
            cast(asyncio.Transport, transport).abort()
        sock.setblocking(False)
        self._take(sock)


def _shown(peer: Any) -> str:
    return f"{peer[0]}:{peer[1]}" if peer else "a connection"
