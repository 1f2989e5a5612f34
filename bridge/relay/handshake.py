"""Both opening handshakes: the application's request in, the provider's answer out.

The provider is dialled before the application is answered, so that a refusal reaches the application as what it is.
What passes: path and query, subprotocols, and all headers that are neither hop-by-hop nor part of the handshake itself.
What does not: extensions. Compression is negotiated off on both sides, since audio in base64 hardly shrinks, and frames
that are compressed could not be told apart.

`websockets` writes and judges the handshakes (RFC 6455, section 4); nothing of it is used once they are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import unquote_plus

from websockets.client import ClientProtocol
from websockets.datastructures import Headers
from websockets.headers import parse_subprotocol
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.uri import WebSocketURI

__all__ = ["TOKEN", "Ask", "Opening", "Refusal", "accept", "carried", "parameter", "read_request", "without_token"]

TOKEN: Final = "token"
"""The query parameter that may carry a credential, for applications that cannot set headers."""

_UNHEARD: Final = logging.Logger("unheard", logging.CRITICAL)
"""There is one line per refusal, and it is ours."""
_END: Final = b"\r\n\r\n"
_TLS: Final = b"\x16\x03"
"""How a TLS handshake begins (RFC 8446, section 5.1); no HTTP message does."""
_REMEDY: Final = "connect with a WebSocket client"
_SHORTER: Final = "have the application send less in its handshake"
_EARLY: Final = 64 * 1024
"""Bytes that a peer may send ahead of the end of the handshake before it is made to wait."""
_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "upgrade",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "content-length",
        "proxy-authorization",
        "proxy-authenticate",
        "proxy-connection",
    }
)


class Refusal(Exception):
    """There will be no session: the HTTP status and the reason for the application, and for the log what to do."""

    def __init__(self, status: int, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.status = HTTPStatus(status)
        self.reason = reason
        self.remedy = remedy
        self.headers = Headers()

    def response(self) -> bytes:
        """The HTTP response that says so."""
        body = f"{self.reason}\n".encode()
        self.headers["Connection"] = "close"
        self.headers["Content-Type"] = "text/plain; charset=utf-8"
        self.headers["Content-Length"] = str(len(body))
        return Response(self.status.value, self.status.phrase, self.headers, body).serialize()


class Opening(asyncio.Protocol):
    """A connection until it speaks WebSocket. It keeps what comes: one head, and whatever follows it.

    `made` is told when there is a connection, which with TLS is not before its handshake.
    """

    def __init__(self, max_head: int, made: Callable[[Opening], object] = lambda opening: None) -> None:
        self.transport: asyncio.Transport
        self.lost: Callable[[], object] = lambda: None
        """Told when the connection ends before it is handed over."""
        self.early = b""
        """What has come after the head."""
        self._max_head = max_head
        self._buffer = bytearray()
        self._head: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._made = made

    @property
    def is_open(self) -> bool:
        """Can something be said to the peer?"""
        return not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._head.done():
            self.early += data
            if len(self.early) > _EARLY:
                self.transport.pause_reading()
            return
        searched = max(0, len(self._buffer) - len(_END) + 1)
        self._buffer += data
        end = self._buffer.find(_END, searched)
        if self._buffer.startswith(_TLS):
            self._fail(Refusal(400, "this is TLS, which is not spoken here", "use ws://, or set certificate and key"))
        elif (len(self._buffer) if end < 0 else end) > self._max_head:
            said = f"the head of the handshake is longer than {self._max_head} bytes"
            self._fail(Refusal(431, said, "raise max_head if it has to be"))
        elif end >= 0:
            head = bytes(self._buffer[: end + len(_END)])
            self.early = bytes(self._buffer[len(head) :])
            self._buffer.clear()
            self._head.set_result(head)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionResetError("the connection ended during the handshake"))
        self.lost()

    async def head(self) -> bytes:
        """The head, up to its blank line. Raises `Refusal` if it is too long, `ConnectionError` if none comes."""
        return await self._head

    def hand_over(self, successor: asyncio.Protocol | asyncio.BufferedProtocol) -> None:
        """From now on the connection is the successor's; it is not read from until somebody says so."""
        self.transport.pause_reading()
        self.transport.set_protocol(successor)

    def abort(self) -> None:
        """Break it off without a word."""
        self.transport.abort()

    async def aclose(self) -> None:
        """The same: whoever has only agreed to the handshake is owed no word."""
        self.abort()

    def refuse(self, refusal: Refusal) -> None:
        """Answer with the refusal, and close."""
        self.transport.write(refusal.response())
        self.transport.close()

    def _fail(self, error: Exception) -> None:
        if not self._head.done():
            self._head.set_exception(error)
            self._head.exception()  # somebody may wait for it, nobody has to


# ------------------------------------------------------------------------------------------------------ the application


def read_request(head: bytes) -> tuple[Request, Response]:
    """The application's request, and the response that would accept it. Raises `Refusal`."""
    protocol = ServerProtocol(logger=_UNHEARD)
    protocol.receive_data(head)
    events = protocol.events_received()
    if not events:
        written = b"".join(protocol.data_to_send())
        # What is too long has been answered already, with 414 or 431; what is no request has not.
        raise _unreadable(int(written.split(b" ", 2)[1]) if written else 400)
    request = cast(Request, events[0])
    response = protocol.accept(request)
    if response.status_code != 101:
        said = "this is an address for WebSocket clients: the handshake is not valid"
        refusal = Refusal(response.status_code, said, _REMEDY)
        for name in ("Upgrade", "Allow"):
            if name in response.headers:
                refusal.headers[name] = response.headers[name]
        raise refusal
    return request, response


def _unreadable(status: int) -> Refusal:
    match status:
        case 414:
            return Refusal(status, "the request line is too long", _SHORTER)
        case 431:
            return Refusal(status, "the headers are too many, or one is too long", _SHORTER)
        case _:
            return Refusal(status, "this is no valid WebSocket handshake", _REMEDY)


def accept(response: Response, subprotocol: str | None) -> bytes:
    """The response to the application, once the provider has agreed."""
    if subprotocol is not None:
        response.headers["Sec-WebSocket-Protocol"] = subprotocol
    return response.serialize()


def carried(headers: Headers, dropped: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The headers of the application that go on to the provider."""
    named = ",".join(headers.get_all("Connection")).lower().split(",")
    gone = _HOP_BY_HOP | {name.strip() for name in named} | {name.lower() for name in dropped}
    return [
        (name, value)
        for name, value in headers.raw_items()
        if name.lower() not in gone and not name.lower().startswith("sec-websocket-")
    ]


def parameter(part: str) -> str:
    """The name of a parameter, from a part of a query."""
    return unquote_plus(part.partition("=")[0])


def without_token(path: str) -> str:
    """A path with its query, without the credential that may be in it."""
    path, _, query = path.partition("?")
    query = "&".join(part for part in query.split("&") if parameter(part) != TOKEN)
    return f"{path}?{query}" if query else path


# --------------------------------------------------------------------------------------------------------- the provider


class Ask:
    """The request to the provider, and its answer. `application` are the headers of a request that has been read."""

    def __init__(self, uri: WebSocketURI, path: str, headers: Iterable[tuple[str, str]], application: Headers) -> None:
        offers = application.get_all("Sec-WebSocket-Protocol")
        subprotocols = [each for offer in offers for each in parse_subprotocol(offer)]
        self._protocol = ClientProtocol(uri, subprotocols=subprotocols or None, logger=_UNHEARD)
        self._request = self._protocol.connect()
        self._request.path = path
        for name, value in headers:
            self._request.headers[name] = value

    def request(self) -> bytes:
        """What to send."""
        self._protocol.send_request(self._request)
        return b"".join(self._protocol.data_to_send())

    def agreed(self, head: bytes) -> str | None:
        """The subprotocol the provider chose, if any. Raises `Refusal` if it did not agree."""
        status = _status(head)
        if status != 101:
            raise _refused(status)
        self._protocol.receive_data(head)
        if self._protocol.handshake_exc is not None:
            raise Refusal(502, "the provider's handshake is not valid", "check that the url is a WebSocket address")
        return self._protocol.subprotocol


def _status(head: bytes) -> int:
    parts = head.split(b" ", 2)
    if len(parts) < 3 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        raise Refusal(502, "the provider does not speak HTTP", "check the url of the upstream")
    return int(parts[1])


def _refused(status: int) -> Refusal:
    said = f"the provider refused the connection (HTTP {status})"
    match status:
        case 401 | 403:
            return Refusal(status, said, "check the API key, and that the account may use this product and region")
        case 404:
            return Refusal(status, said, "check the path of the url")
        case 429 | 503:
            return Refusal(status, said, "the provider has no room now: try again later")
        case _ if 300 <= status < 400:
            return Refusal(502, said, "redirects are not followed: set the url to where it leads")
        case _ if 400 <= status < 600 and status in set(HTTPStatus):
            return Refusal(status, said, "the provider may be failing: try again later")
        case _:
            return Refusal(502, said, "check the url of the upstream")
