"""Two connections and what passes between them: audio as the bytes that came, messages by way of the session.

Nothing here waits. A `Leg` is one connection; what its walker gives is passed on, or handed to the `Pipe`, which knows
about closing, keeping alive, and who waits for whom. Nearly every read comes to one `feed` and one `write`.

* **Close** frames are carried with their codes and reasons. A connection that is lost without one becomes an abort of
  the other, as it would be without us in between.
* **Back-pressure** goes both ways: a peer that does not read stops the other from being read. While the provider is not
  read from, no result is released; when reading goes on, a ping of our own marks the point up to which everything has
  been read once its pong is there. Nothing is dropped, and no peer may stall the other for ever.
* **An application that vanishes** must not leave the provider's session open and billed: see `OnLoss`.

One coarse timer of the relay's calls `sweep`: there is no timer, task or future per call.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from ..core.events import ReadingPaused, ReadingResumed
from .frames import Broken, Control, Message, Opcode, Piece, Walker, close_payload, frame
from .handshake import Opening
from .session import RelaySession

__all__ = ["BufferedLeg", "Leg", "OnLoss", "Pings", "Pipe", "PipeSettings", "Side"]

_OURS: Final = os.urandom(8)
"""How the payload of our own pings begins: their pongs are not for the other side."""
_HIGH_WATER: Final = 16 * 1024
"""Bytes that may wait for a peer before the other is not read from: about a second of telephony audio."""


class Side(Enum):
    APPLICATION = "application"
    PROVIDER = "provider"


class OnLoss(Enum):
    """What becomes of the provider's session when the application vanishes."""

    END = "end"
    """It is ended."""
    KEEP = "keep"
    """It is left to be resumed, for as long as the provider and we allow."""


class Pings(Enum):
    """What becomes of pings."""

    PASS = "pass"
    """They go from end to end, and so do the pongs."""
    ANSWER = "answer"
    """They are answered here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeSettings:
    """Times in seconds."""

    media: frozenset[str]
    max_message: int
    pings: Pings
    on_application_loss: OnLoss
    ping_interval: float
    ping_timeout: float
    stall_timeout: float
    close_timeout: float
    end_timeout: float


class _Closing(Enum):
    """How far a connection has come in being closed."""

    OPEN = "open"
    SENT = "we have sent a close frame"
    HEARD = "the peer has sent one"
    BOTH = "both have"
    LOST = "the connection is gone"


_WRITABLE: Final = (_Closing.OPEN, _Closing.HEARD)


def _discard(data: bytes) -> None:
    """Where what is for a closed connection goes."""


class Leg(asyncio.Protocol):
    """One connection. `peer` is the other."""

    __slots__ = (
        "_now",
        "closing",
        "last_media",
        "measure",
        "paused_since",
        "peer",
        "pinged_at",
        "pipe",
        "side",
        "transport",
        "walker",
        "write",
    )

    def __init__(self, side: Side, pipe: Pipe, settings: PipeSettings) -> None:
        self.side = side
        self.pipe = pipe
        self.peer: Leg = self
        self.transport: asyncio.Transport
        self.walker = Walker(masked=side is Side.APPLICATION, media=settings.media, max_size=settings.max_message)
        self.write: Callable[[bytes], None] = _discard
        self.closing = _Closing.OPEN
        self.paused_since: float | None = None
        """Since when the peer of this connection has not taken what is written to it."""
        self.pinged_at: tuple[float, int] | None = None
        """When the ping was sent that is not answered yet, and how many bytes had come by then."""
        self.measure: Callable[[], None] | None = None
        """To be called after every read, where it matters how much audio has come."""
        self._now = asyncio.get_running_loop().time
        self.last_media = self._now()

    def take_over(self, opening: Opening) -> None:
        """The handshake is done: this connection is read by us from now on. It is paused until `begin`."""
        self.transport = opening.transport
        opening.hand_over(self)
        self.write = self.transport.write
        self.transport.set_write_buffer_limits(high=_HIGH_WATER)
        _tune(self.transport.get_extra_info("socket"), self.pipe.settings)

    def begin(self, early: bytes) -> None:
        if early:
            self.data_received(early)
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        for piece in self.walker.feed(data):
            if type(piece) is bytes:
                self.last_media = self._now()
                self.peer.write(piece)
            else:
                self.pipe.take(self, piece)
        if self.measure is not None:
            self.measure()

    def pause_writing(self) -> None:
        self.paused_since = self._now()
        self.pipe.pause(self)

    def resume_writing(self) -> None:
        self.paused_since = None
        self.pipe.resume(self)

    def connection_lost(self, error: Exception | None) -> None:
        before, self.closing, self.write = self.closing, _Closing.LOST, _discard
        self.pipe.lost(self, before)

    def send_close(self, data: bytes) -> None:
        """Write this close frame; nothing may be written after it."""
        if self.closing in _WRITABLE:
            self.write(data)
            self.write = _discard
            self.closing = _Closing.SENT if self.closing is _Closing.OPEN else _Closing.BOTH

    def close(self, code: int, reason: str) -> None:
        """Close with this code, unless that has been done."""
        masked = self.side is Side.PROVIDER
        self.send_close(frame(Opcode.CLOSE, close_payload(code, reason), masked=masked))

    def ping(self, payload: bytes) -> None:
        self.write(frame(Opcode.PING, _OURS + payload, masked=self.side is Side.PROVIDER))


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


class Pipe:
    """Both connections of a session. `closed` is told when both are gone."""

    __slots__ = (
        "_barrier",
        "_barrier_since",
        "_closed",
        "_deadline",
        "_heard",
        "_next_ping",
        "_now",
        "application",
        "provider",
        "session",
        "settings",
    )

    def __init__(self, session: RelaySession, settings: PipeSettings, closed: Callable[[Pipe], None]) -> None:
        loop = asyncio.get_running_loop()
        kind = BufferedLeg if isinstance(loop, asyncio.BaseEventLoop) else Leg
        self.session = session
        self.settings = settings
        self.application = kind(Side.APPLICATION, self, settings)
        self.provider = kind(Side.PROVIDER, self, settings)
        self.application.peer, self.provider.peer = self.provider, self.application
        self._closed = closed
        self._now = loop.time
        self._deadline: float | None = None
        self._next_ping = self._now() + settings.ping_interval
        self._barrier = 0
        self._barrier_since: float | None = None
        self._heard = (0, 0)

    def start(self, application: Opening, provider: Opening) -> None:
        """Both handshakes are done."""
        self.application.take_over(application)
        self.provider.take_over(provider)
        self.session.attach(self)
        self._watch_audio()
        self.provider.begin(provider.early)
        self.application.begin(application.early)

    def adopt(self, session: RelaySession) -> None:
        """From now on this is the session: an application has come back to it."""
        self.session = session
        self._watch_audio()
        session.attach(self)

    # ------------------------------------------------------------------------------------------- what the session does

    @property
    def provider_congested(self) -> bool:
        """Does the provider not take what is sent to it?"""
        return self.provider.paused_since is not None

    @property
    def last_media(self) -> float:
        """When the provider last sent audio."""
        return self.provider.last_media

    def to_application(self, data: bytes) -> None:
        self.application.write(data)

    def to_provider(self, data: bytes) -> None:
        self.provider.write(data)

    def finish(self) -> None:
        """Ask the provider to end the session. If it does not, end it ourselves."""
        self.provider.write(self.session.end_frames())
        self._deadline = self._now() + self.settings.end_timeout

    # ------------------------------------------------------------------------------------------- what the peers say

    def take(self, leg: Leg, piece: Piece) -> None:
        """A piece that does not simply pass."""
        match piece:
            case Message() if leg.side is Side.PROVIDER:
                self.session.provider_said(piece)
            case Message():
                self.session.application_said(piece)
            case Control(Opcode.CLOSE):
                self._close_heard(leg, piece)
            case Control(Opcode.PONG, payload) if payload.startswith(_OURS):
                self._our_pong(payload)
            case Control(Opcode.PING, payload) if self.settings.pings is Pings.ANSWER:
                leg.write(frame(Opcode.PONG, payload, masked=leg.side is Side.PROVIDER))
            case Control():
                leg.peer.write(piece.raw)
            case Broken(code, reason):
                self._broken(leg, code, reason)

    def _close_heard(self, leg: Leg, close: Control) -> None:
        leg.closing = _Closing.HEARD if leg.closing is _Closing.OPEN else _Closing.BOTH
        code = int.from_bytes(close.payload[:2], "big")
        self.session.end(f"the {leg.side.value} closed ({code or 'without a code'})")
        if leg.peer.closing in _WRITABLE:
            leg.peer.send_close(close.raw)
        else:
            leg.send_close(frame(Opcode.CLOSE, close.payload, masked=leg.side is Side.PROVIDER))
        self._deadline = self._now() + self.settings.close_timeout
        # The server side closes the connection: we towards the application, the provider towards us.
        if self.application.closing is _Closing.BOTH:
            self.application.transport.close()

    def _broken(self, leg: Leg, code: int, reason: str) -> None:
        """The peer broke the protocol. It is told, and so is the other side, in its own terms."""
        self.session.end(f"the {leg.side.value} broke the protocol ({code}): {reason}")
        leg.close(code, reason)
        if leg.transport.can_write_eof():
            leg.transport.write_eof()  # what it still sends is read and dropped, or the reason might never arrive
        self._deadline = self._now() + self.settings.close_timeout
        if leg.side is Side.PROVIDER:
            self.application.close(1014, f"the provider broke the protocol: {reason}")
        else:
            self.finish()

    def lost(self, leg: Leg, before: _Closing) -> None:
        """A connection is gone."""
        other = leg.peer
        if leg.paused_since is not None:
            leg.paused_since = None
            _read_on(other)  # what is for nobody still has to be taken
        if other.closing is _Closing.LOST:
            self._closed(self)
        elif leg.side is Side.PROVIDER:
            self._provider_lost(before)
        elif not self.session.ended:
            self._application_lost()

    def _provider_lost(self, before: _Closing) -> None:
        if self.application.closing in (_Closing.SENT, _Closing.BOTH):
            return  # it has been told why, and closes next
        if not self.session.ended:
            self._leave("the connection to the provider was lost")
        self.application.transport.abort()

    def _application_lost(self) -> None:
        self._leave("the application vanished")
        if self.session.ended:
            self.finish()
        else:
            self.provider.transport.abort()

    def _leave(self, reason: str) -> None:
        """A connection was lost, and with it the session, unless an application may come back to it."""
        if self.settings.on_application_loss is OnLoss.KEEP and self.session.provider_session_id:
            self.session.detach()
        else:
            self.session.end(reason)

    # ------------------------------------------------------------------------------------------- who waits for whom

    def pause(self, leg: Leg) -> None:
        """The peer of this connection does not read."""
        if not leg.peer.transport.is_closing():
            leg.peer.transport.pause_reading()
        if leg.side is Side.APPLICATION:
            self._barrier_since = None
            self.session.here(ReadingPaused())

    def resume(self, leg: Leg) -> None:
        """It does again."""
        _read_on(leg.peer)
        if leg.side is Side.PROVIDER:
            self.session.provider_drained()
            return
        self._barrier += 1
        self._barrier_since = self._now()
        self.provider.ping(self._barrier.to_bytes(8, "big"))

    def _our_pong(self, payload: bytes) -> None:
        """What the provider had said before the ping reached it has been read, if this is the answer to the latest."""
        if self._barrier_since is not None and payload[len(_OURS) :] == self._barrier.to_bytes(8, "big"):
            self._caught_up()

    def _caught_up(self) -> None:
        self._barrier_since = None
        self.session.here(ReadingResumed())

    # ------------------------------------------------------------------------------------------- time

    def sweep(self, now: float) -> None:
        """Look after whatever has a deadline."""
        if self._deadline is not None and now >= self._deadline:
            self._overdue(now)
        elif now >= self._next_ping:
            self._next_ping = now + self.settings.ping_interval
            for leg in (self.application, self.provider):
                if leg.closing is _Closing.OPEN:
                    leg.pinged_at = leg.pinged_at or (now, leg.walker.bytes)
                    leg.ping(b"")
        for leg in (self.application, self.provider):
            self._look_after(leg, now)
        if self._barrier_since is not None and now - self._barrier_since > self.settings.ping_timeout:
            self._caught_up()  # it does not answer pings

    def _look_after(self, leg: Leg, now: float) -> None:
        if leg.closing is _Closing.LOST:
            return
        if leg.paused_since is not None and now - leg.paused_since > self.settings.stall_timeout:
            self._give_up(leg, "does not read")
        elif leg.pinged_at is not None:
            since, size = leg.pinged_at
            if leg.walker.bytes != size or leg.peer.paused_since is not None:
                leg.pinged_at = None  # it lives, or we do not listen
            elif now - since > self.settings.ping_timeout:
                self._give_up(leg, "does not answer")

    def _give_up(self, leg: Leg, why: str) -> None:
        if leg.side is Side.PROVIDER:
            self.session.end(f"the provider {why}")
            self.application.close(1013, f"the provider {why}")
            _read_on(self.application)
            self._deadline = self._now() + self.settings.close_timeout
        leg.transport.abort()

    def _overdue(self, now: float) -> None:
        """What should have ended by itself has not: close it, then cut it off."""
        self._deadline = now + self.settings.close_timeout
        for leg in (self.application, self.provider):
            if leg.closing is _Closing.OPEN:
                leg.close(1001, "the session has ended")
            elif leg.closing is not _Closing.LOST:
                leg.transport.abort()

    # ------------------------------------------------------------------------------------------- audio that is measured

    def _watch_audio(self) -> None:
        self.provider.measure = self._measure if self.session.playback is not None else None
        self._heard = self.provider.walker.media, self.provider.walker.media_bytes

    def _measure(self) -> None:
        """Tell the session how much audio has come. Three quarters of what is in base64 is audio."""
        walker, (media, size) = self.provider.walker, self._heard
        if walker.media > media and self.session.playback is not None:
            text = walker.media_bytes - size - (walker.media - media) * walker.envelope
            self.session.playback.add(text * 3 // 4, self._now())
            self._heard = walker.media, walker.media_bytes

    def abort(self) -> None:
        """Cut both connections off."""
        for leg in (self.application, self.provider):
            if leg.closing is not _Closing.LOST:
                leg.transport.abort()


def _read_on(leg: Leg) -> None:
    if not leg.transport.is_closing():
        leg.transport.resume_reading()


def _tune(sock: socket.socket | None, settings: PipeSettings) -> None:
    """Let the kernel find out about peers that are gone, later than we do, and keep little unsent."""
    if sock is None:
        return
    options = (("TCP_USER_TIMEOUT", int(settings.stall_timeout * 2000)), ("TCP_NOTSENT_LOWAT", _HIGH_WATER))
    for name, value in options:
        if hasattr(socket, name):
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, cast(int, getattr(socket, name)), value)
