"""One of the two connections of a session: what comes is passed on as it is, or handed to the owner.

Nothing here waits. Nearly every read comes to one `feed` and one `write` of the same bytes; there is no task, future or
timer per frame.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, Protocol, cast

from .frames import Opcode, Piece, close_payload, frame
from .handshake import Opening
from .walker import Walker

__all__ = ["WRITABLE", "BufferedLeg", "Closing", "Leg", "LegOwner", "Side"]

_HIGH_WATER: Final = 16 * 1024
"""Bytes that may wait for a peer before the other is not read from: about a second of telephony audio."""


class Side(Enum):
    APPLICATION = "application"
    PROVIDER = "provider"


class Closing(Enum):
    """How far a connection has come in being closed."""

    OPEN = "open"
    SENT = "we have sent a close frame"
    HEARD = "the peer has sent one"
    BOTH = "both have"
    LOST = "the connection is gone"


WRITABLE: Final = (Closing.OPEN, Closing.HEARD)


class LegOwner(Protocol):
    """Who knows what to do with what does not simply pass."""

    def take(self, leg: Leg, piece: Piece) -> None:
        """A message or a control frame came, or something that is neither."""
        ...

    def pause(self, leg: Leg) -> None:
        """The peer does not take what is written to it."""
        ...

    def resume(self, leg: Leg) -> None:
        """It does again."""
        ...

    def lost(self, leg: Leg, before: Closing) -> None:
        """The connection is gone; `before` is how far it had come in being closed."""
        ...


def _discard(data: bytes) -> None:
    """Where what is for a closed connection goes."""


class _Nobody:
    """Whom a retired connection belongs to."""

    def take(self, leg: Leg, piece: Piece) -> None: ...

    def pause(self, leg: Leg) -> None: ...

    def resume(self, leg: Leg) -> None: ...

    def lost(self, leg: Leg, before: Closing) -> None: ...


class Leg(asyncio.Protocol):
    """One connection. `peer` is the other, and gets what passes."""

    __slots__ = (
        "_now",
        "_owner",
        "closing",
        "media_came",
        "paused_since",
        "peer",
        "pinged_at",
        "side",
        "transport",
        "walker",
        "write",
    )

    def __init__(self, side: Side, owner: LegOwner, *, media: frozenset[str], max_message: int) -> None:
        self.side = side
        self.peer: Leg = self
        self.transport: asyncio.Transport
        self.walker = Walker(masked=side is Side.APPLICATION, media=media, max_size=max_message)
        self.write: Callable[[bytes], None] = _discard
        self.closing = Closing.OPEN
        self.paused_since: float | None = None
        """Since when the peer of this connection has not taken what is written to it."""
        self.pinged_at: tuple[float, int] | None = None
        """When the ping was sent that is not answered yet, and how many bytes had come by then."""
        self.media_came: Callable[[], None] | None = None
        """To be called after every read with media in it, if anybody wants to know."""
        self._owner = owner
        self._now = asyncio.get_running_loop().time

    def take_over(self, opening: Opening, stall_timeout: float) -> None:
        """The handshake is done: this connection is read by us from now on. It is paused until `begin`."""
        self.transport = opening.transport
        opening.hand_over(self)
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        _tune(self.transport.get_extra_info("socket"), stall_timeout)

    def belongs_to(self, owner: LegOwner, peer: Leg) -> None:
        """From now on this is the owner, and that is the other connection."""
        self._owner, self.peer = owner, peer

    def retire(self) -> None:
        """Break it off. Whatever it still says or does touches nobody: it is its own peer, and takes nothing."""
        self.belongs_to(_Nobody(), self)
        self.closing, self.write, self.media_came = Closing.LOST, _discard, None
        self.transport.abort()

    def begin(self, early: bytes) -> None:
        """Read on, after what came with the handshake."""
        if early:
            self.data_received(early)
        self.read_on()

    def read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    # ------------------------------------------------------------------------------------------- what the loop says

    def data_received(self, data: bytes) -> None:
        pieces = self.walker.feed(data)
        if pieces is not None:
            self._take(pieces)
            return
        # Attributes that are functions are fetched before they are called: for slots that is quicker.
        media_came, write = self.media_came, self.peer.write
        if media_came is not None:
            media_came()
        write(data)

    def _take(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if not isinstance(piece, bytes):
                self._owner.take(self, piece)
                continue
            if self.media_came is not None:
                self.media_came()
            self.peer.write(piece)

    def pause_writing(self) -> None:
        self.paused_since = self._now()
        self._owner.pause(self)

    def resume_writing(self) -> None:
        self.paused_since = None
        self._owner.resume(self)

    def connection_lost(self, error: Exception | None) -> None:
        before, self.closing, self.write = self.closing, Closing.LOST, _discard
        self._owner.lost(self, before)

    # ------------------------------------------------------------------------------------------- what the owner wants

    def send_close(self, data: bytes) -> None:
        """Write this close frame; nothing may be written after it."""
        if self.closing in WRITABLE:
            self.write(data)
            self.write = _discard
            self.closing = Closing.SENT if self.closing is Closing.OPEN else Closing.BOTH

    def close(self, code: int, reason: str) -> None:
        """Close with this code, unless that has been done."""
        self.send_close(self.framed(Opcode.CLOSE, close_payload(code, reason)))

    def framed(self, opcode: Opcode, payload: bytes) -> bytes:
        """A frame for the peer of this connection."""
        return frame(opcode, payload, masked=self.side is Side.PROVIDER)


class BufferedLeg(Leg, asyncio.BufferedProtocol):
    """For the standard event loop, which without a buffer of ours would map and unmap memory at every read.

    One buffer serves all connections, since what is read is copied out at once.
    """

    __slots__ = ()

    _buffer = memoryview(bytearray(64 * 1024))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._buffer[:nbytes]))


def _tune(sock: socket.socket | None, stall_timeout: float) -> None:
    """Let the kernel find out about peers that are gone, later than we do, and keep little unsent."""
    if sock is None:
        return
    options = (("TCP_USER_TIMEOUT", int(stall_timeout * 2000)), ("TCP_NOTSENT_LOWAT", _HIGH_WATER))
    for name, value in options:
        if hasattr(socket, name):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, cast(int, getattr(socket, name)), value)
