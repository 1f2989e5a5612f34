"""The callers and the provider, each a process that is told what to do on its standard input, line by line.

    python -m bridge.benchmark.load provider 100                             {"port": 41234}
    python -m bridge.benchmark.load callers 100 ws://127.0.0.1:41234/v1/ws   {"open": 1}  <go on>  {"open": 100}

Both are then told when to begin and when to end, in nanoseconds of the monotonic clock: `{"begin": ..., "end": ...}`.
From that moment they send audio, and they count what is sent from the beginning to the end. Last they say what they
sent and what arrived. They leave when their input is closed.

Nothing but the handshakes is done by a WebSocket library: one loop, one clock, one frame that only changes in the time
it carries. Frame n is that of call n modulo the number of calls, and all are evenly spread over the 20 ms of a frame.
"""

from __future__ import annotations

import base64
import gc
import json
import selectors
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from .figures import AUDIO_BYTES, FRAMES_PER_SECOND, percentile

__all__ = ["main"]

_PERIOD: Final = 1_000_000_000 // FRAMES_PER_SECOND
"""Nanoseconds between two frames of a call."""
_AFTERWARDS: Final = 250_000_000
"""Nanoseconds for which audio goes on when the measurement is over: for what is still under way."""
_PATIENCE: Final = 20.0
"""Seconds within which a connection must be made, and its handshake be done."""
_READ: Final = 16 * 1024

_SETUP: Final = json.dumps(
    {
        "type": "session.update",
        "session": {
            "system_prompt": "You are a benchmark.",
            "input": {"format": {"encoding": "audio/pcmu"}},
            "output": {"format": {"encoding": "audio/pcmu"}},
        },
    }
).encode()
_READY: Final = (b'{"type":"session.ready","session_id":"bench"}', b'{"type":"reply.started","reply_id":"bench"}')


# ----------------------------------------------------------------------------------------------------------- the audio


class Audio:
    """A frame of audio whose first sixteen characters are the time at which it is sent, in hexadecimal digits.

    `before` is the message up to its audio. A client's frames are masked (RFC 6455, section 5.3): with a key of zeros,
    which leaves the text as it is, and costs whoever reads it the same as any other.
    """

    def __init__(self, before: str, *, masked: bool) -> None:
        rest = base64.b64encode(bytes(range(AUDIO_BYTES)))[16:] + b'"}'
        size = len(before) + 16 + len(rest)
        mask_bit, key = (0x80, bytes(4)) if masked else (0, b"")
        self.head = bytes((0x81, mask_bit | 126)) + size.to_bytes(2, "big") + key + before.encode()
        self.size = len(self.head) + 16 + len(rest)
        self._form = self.head + b"%016x" + rest

    def at(self, now: int) -> bytes:
        """The frame that is sent now."""
        return self._form % now

    def sent_at(self, data: bytes, start: int) -> int:
        """When the frame that starts there was sent. Raises `ValueError` if it is another one."""
        if not data.startswith(self.head, start):
            raise ValueError("something other than audio arrived")
        digits = start + len(self.head)
        return int(data[digits : digits + 16], 16)


FROM_CALLER: Final = Audio('{"type":"input.audio","audio":"', masked=True)
FROM_PROVIDER: Final = Audio('{"type":"reply.audio","reply_id":"bench","data":"', masked=False)


# --------------------------------------------------------------------------------------------------------------- a call


class Call:
    """One end of a call that has been set up; it never waits."""

    __slots__ = ("_held", "_unsent", "socket")

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._held = b""
        self._unsent = b""

    def send(self, data: bytes) -> None:
        """What the connection does not take now goes ahead of the next frame."""
        data = self._unsent + data
        try:
            taken = self.socket.send(data)
        except BlockingIOError:
            taken = 0
        self._unsent = data[taken:]

    def receive(self, audio: Audio) -> list[int]:
        """When the frames that have arrived were sent. Raises `OSError` or `ValueError` if the call is over."""
        fresh = self.socket.recv(_READ)
        if not fresh:
            raise ConnectionError("a call was cut off")
        data, at = self._held + fresh, 0
        times = []
        while (end := at + _length(data, at, audio)) <= len(data):
            if data[at] & 0x0F < 8:
                times.append(audio.sent_at(data, at))
            at = end
        self._held = data[at:]
        return times


def _length(data: bytes, at: int, audio: Audio) -> int:
    """Of the frame that starts there. Control frames are small, and pings need no pong while there is audio."""
    if len(data) - at < 2:
        return 2
    if data[at] & 0x0F < 8:
        return audio.size
    return 2 + (data[at + 1] & 0x7F) + (4 if data[at + 1] & 0x80 else 0)


def answer(connection: socket.socket) -> Call:
    """The provider's side of a setup."""
    protocol = ServerProtocol()
    for event in _events(connection, protocol):
        if isinstance(event, Request):
            protocol.send_response(protocol.accept(event))
        else:
            break
    for message in _READY:
        protocol.send_text(message)
    connection.sendall(b"".join(protocol.data_to_send()))
    return Call(connection)


def dial(url: str) -> Call:
    """The caller's side. Raises `OSError` or `WebSocketException` if there is no session to be had."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 80), _PATIENCE)
    try:
        _set_up(connection, url)
    except BaseException:
        connection.close()
        raise
    return Call(connection)


def _set_up(connection: socket.socket, url: str) -> None:
    protocol = ClientProtocol(parse_uri(url))
    protocol.send_request(protocol.connect())
    said = 0
    for event in _events(connection, protocol):
        if isinstance(event, Response):
            protocol.send_text(_SETUP)
        else:
            said += 1
        if said == len(_READY):
            return


def _events(connection: socket.socket, protocol: ClientProtocol | ServerProtocol) -> Iterable[object]:
    """What the peer says, one by one; before more is waited for, everything is sent."""
    connection.settimeout(_PATIENCE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        connection.sendall(b"".join(protocol.data_to_send()))
        data = connection.recv(_READ)
        if not data:
            raise ConnectionError("a connection was closed while it was set up")
        protocol.receive_data(data)
        if protocol.handshake_exc is not None:
            raise protocol.handshake_exc
        yield from protocol.events_received()


# ------------------------------------------------------------------------------------------------------------ all calls


def converse(calls: list[Call], ours: Audio, theirs: Audio, begin: int, end: int) -> dict[str, Any]:
    """Send and receive at the pace from now until the end, and a moment longer: what came of it, times in ms."""
    late: list[int] = []
    delays: list[int] = []
    with selectors.DefaultSelector() as selector:
        for call in calls:
            selector.register(call.socket, selectors.EVENT_READ, call)
        start, sent = time.monotonic_ns(), 0
        while (now := time.monotonic_ns()) < end + _AFTERWARDS:
            due = start + sent * _PERIOD // len(calls)
            while due <= now:
                stamp = time.monotonic_ns()
                calls[sent % len(calls)].send(ours.at(stamp))
                if begin <= stamp < end:
                    late.append(stamp - due)
                sent += 1
                due = start + sent * _PERIOD // len(calls)
            for key, _ in selector.select((due - now) / 1e9):
                times = key.data.receive(theirs)
                arrival = time.monotonic_ns()
                delays += [arrival - stamp for stamp in times if begin <= stamp < end]
    if not delays or not late:
        raise ValueError("no audio arrived")
    late.sort()
    delays.sort()
    return {
        "sent": len(late),
        "late": percentile(late, 0.99) / 1e6,
        "arrived": len(delays),
        "p50": percentile(delays, 0.50) / 1e6,
        "p99": percentile(delays, 0.99) / 1e6,
    }


# -------------------------------------------------------------------------------------------------------- two processes


def provider(calls: int) -> None:
    """Wait for so many calls, one after the other, then talk to all of them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_PATIENCE)
        _tell(port=listening.getsockname()[1])
        waiting = [answer(listening.accept()[0]) for _ in range(calls)]
    _converse_when_told(waiting, FROM_PROVIDER, FROM_CALLER)


def callers(calls: int, url: str) -> None:
    """Set up the first call, the others when we are told to, then talk in all of them."""
    first = dial(url)
    _tell(open=1)
    _hear()
    others = [dial(url) for _ in range(calls - 1)]
    _tell(open=calls)
    _converse_when_told([first, *others], FROM_CALLER, FROM_PROVIDER)


def _converse_when_told(calls: list[Call], ours: Audio, theirs: Audio) -> None:
    gc.freeze()
    gc.disable()  # what is measured should not include our own pauses; all is over in seconds
    try:
        told = _hear()
        _tell(**converse(calls, ours, theirs, told["begin"], told["end"]))
        sys.stdin.read()  # the other side may not be through yet
    finally:
        for call in calls:
            call.socket.close()


def _tell(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def _hear() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(sys.stdin.readline() or sys.exit(1))
    return told


def main(role: str, calls: str, *url: str) -> None:
    """Be one of the two."""
    try:
        if role == "callers":
            callers(int(calls), *url)
        else:
            provider(int(calls))
    except (OSError, ValueError, WebSocketException) as fault:
        _tell(fault=str(fault) or type(fault).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
