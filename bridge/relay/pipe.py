"""Two connections and what passes between them: audio as the bytes that came, messages by way of the session.

Nothing here waits. A `Leg` is one connection, and passes on what may pass; the rest it hands to the `Pipe`, which knows
about closing, keeping alive, and who waits for whom.

* **Close** frames are carried with their codes and reasons. A connection that is lost without one becomes an abort of
  the other, as it would be without us in between.
* **Back-pressure** goes both ways: a peer that does not read stops the other from being read. While the provider is not
  read from, no result is released; when reading goes on, a ping of our own marks the point up to which everything has
  been read once its pong is there. Nothing is dropped, and no peer may stall the other for ever.
* **An application that vanishes** must not leave the provider's session open and billed: see `OnLoss`.
* **A provider that is lost** is lost to the application, too, unless there is a way back to it: see `lifeline`.

One coarse timer of the relay's calls `sweep`: there is no timer, task or future per call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..core.events import ReadingPaused, ReadingResumed
from ..errors import TransportError
from .figures import Traffic
from .frames import Broken, Control, Message, Opcode, Piece
from .handshake import Opening
from .leg import WRITABLE, BufferedLeg, Closing, Leg, LegOwner, Side
from .lifeline import Lifeline, WayBack
from .session import RelaySession
from .settings import OnLoss, Pings

__all__ = ["Pipe", "PipeSettings"]

_OURS: Final = os.urandom(8)
"""How the payload of our own pings begins: their pongs are not for the other side."""
_NO_CODE: Final = 1005
_DROPPED: Final = 1006
"""Close codes that stand for a close without one, and for an end without a close (RFC 6455, section 7.4.1)."""


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


class _Point(NamedTuple):
    """A point in the conversation with the provider: the number of a ping, and when it was sent."""

    number: int
    since: float


class Pipe:
    """Both connections of a session. `closed` is told when both are gone."""

    __slots__ = (
        "_barrier",
        "_before",
        "_closed",
        "_deadline",
        "_lifeline",
        "_loop",
        "_next_ping",
        "_pings",
        "_receipts",
        "_way_back",
        "application",
        "provider",
        "session",
        "settings",
    )

    def __init__(
        self,
        session: RelaySession,
        settings: PipeSettings,
        closed: Callable[[Pipe], None],
        way_back: WayBack | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        kind = BufferedLeg if isinstance(loop, asyncio.BaseEventLoop) else Leg
        self.session = session
        self.settings = settings
        media, max_message = settings.media, settings.max_message
        self.application = kind(Side.APPLICATION, self, media=media, max_message=max_message)
        self.provider = kind(Side.PROVIDER, self, media=media, max_message=max_message)
        self.application.peer, self.provider.peer = self.provider, self.application
        self._closed = closed
        self._loop = loop
        self._deadline: float | None = None
        self._next_ping = loop.time() + settings.ping_interval
        self._pings = 0
        self._barrier: _Point | None = None
        """What the provider has said before this has yet to be read, before results are released again."""
        self._receipts: list[tuple[_Point, Callable[[], None]]] = []
        self._way_back = way_back
        self._lifeline: Lifeline | None = None
        """There is one from the first loss of the provider on."""
        self._before = Traffic()
        """What has come over connections to the provider before the present one."""

    def start(self, application: Opening, provider: Opening) -> None:
        """Both handshakes are done."""
        self.application.take_over(application, self.settings.stall_timeout)
        self.provider.take_over(provider, self.settings.stall_timeout)
        self._join(self.session)
        self.provider.begin(provider.early)
        self.application.begin(application.early)

    def adopt(self, session: RelaySession) -> None:
        """From now on this is the session: an application has come back to it."""
        self.session = session
        self._join(session)

    def _join(self, session: RelaySession) -> None:
        session.voice.comes_through(self.provider.walker)
        self.provider.media_came = session.voice.came
        session.attach(self)

    # ------------------------------------------------------------------------------------------- what the session does

    @property
    def provider_congested(self) -> bool:
        """Does the provider not take what is sent to it?"""
        return self.provider.paused_since is not None

    def to_application(self, data: bytes) -> None:
        self.application.write(data)

    def to_provider(self, data: bytes) -> None:
        self.provider.write(data)

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Where a lost connection is the end anyway, it is enough that it has been written; else a pong confirms it."""
        if self._way_back is None:
            tell()
        else:
            self._receipts.append((self._mark(), tell))

    def finish(self) -> None:
        """Ask the provider to end the session. If it does not, end it ourselves."""
        self._look_no_longer()
        self.provider.write(self.session.end_frames())
        self._deadline = self._loop.time() + self.settings.end_timeout
        if self.provider.closing is Closing.LOST:
            self.application.close(1001, "the session has ended")
            self._deadline = self._loop.time() + self.settings.close_timeout

    # ------------------------------------------------------------------------------------------- what the peers say

    def take(self, leg: Leg, piece: Piece) -> None:
        """A piece that does not simply pass."""
        match piece:
            case Message() if leg.side is Side.PROVIDER:
                self.session.provider_said(piece)
            case Message() if self._lifeline is not None and self._lifeline.searches:
                self._lifeline.hold(piece)
            case Message():
                self.session.application_said(piece)
            case Control(Opcode.CLOSE):
                self._close_heard(leg, piece)
            case Control(Opcode.PONG, payload) if payload.startswith(_OURS):
                self._our_pong(payload)
            case Control(Opcode.PING, payload) if self._answers_pings:
                leg.write(leg.framed(Opcode.PONG, payload))
            case Control():
                leg.peer.write(piece.raw)
            case Broken(code, reason):
                self._broken(leg, code, reason)

    @property
    def _answers_pings(self) -> bool:
        """Are they answered here? That is so, too, where nobody else is there."""
        return self.settings.pings is Pings.ANSWER or self.provider.closing is Closing.LOST

    def _close_heard(self, leg: Leg, close: Control) -> None:
        code = int.from_bytes(close.payload[:2], "big")
        if leg.side is Side.PROVIDER and self._may_go_on(code or _NO_CODE):
            leg.send_close(leg.framed(Opcode.CLOSE, close.payload))
            self._search(f"the provider closed the connection ({code or 'without a code'})", code or _NO_CODE)
            return
        leg.closing = Closing.HEARD if leg.closing is Closing.OPEN else Closing.BOTH
        self._end(f"the {leg.side.value} closed ({code or 'without a code'})")
        if leg.peer.closing in WRITABLE:
            leg.peer.send_close(close.raw)
        else:
            leg.send_close(leg.framed(Opcode.CLOSE, close.payload))
        self._deadline = self._loop.time() + self.settings.close_timeout
        # The server side closes the connection: we towards the application, the provider towards us.
        if self.application.closing is Closing.BOTH:
            self.application.transport.close()

    def _broken(self, leg: Leg, code: int, reason: str) -> None:
        """The peer broke the protocol. It is told, and so is the other side, in its own terms."""
        self._end(f"the {leg.side.value} broke the protocol ({code}): {reason}")
        leg.close(code, reason)
        if leg.transport.can_write_eof():
            leg.transport.write_eof()  # what it still sends is read and dropped, or the reason might never arrive
        self._deadline = self._loop.time() + self.settings.close_timeout
        if leg.side is Side.PROVIDER:
            self.application.close(1014, f"the provider broke the protocol: {reason}")
        else:
            self.finish()

    def lost(self, leg: Leg, before: Closing) -> None:
        """A connection is gone."""
        other = leg.peer
        if leg.paused_since is not None:
            leg.paused_since = None
            other.read_on()  # what is for nobody still has to be taken
        if other.closing is Closing.LOST:
            if self._lifeline is not None and self._lifeline.searches:
                self._look_no_longer()
                self._leave("the application vanished")
            self._closed(self)
        elif leg.side is Side.PROVIDER:
            self._provider_lost(before)
        elif not self.session.ended:
            self._application_lost()

    def _provider_lost(self, before: Closing) -> None:
        if self.application.closing in (Closing.SENT, Closing.BOTH):
            return  # it has been told why, and closes next
        if before is Closing.OPEN and self._may_go_on(_DROPPED):
            self._search("the connection to the provider dropped", _DROPPED)
            return
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

    def _end(self, reason: str) -> None:
        self.session.end(reason)
        self._look_no_longer()

    # ------------------------------------------------------------------------------------------- the provider is gone

    @property
    def from_provider(self) -> Traffic:
        """What has come from the provider, over all connections."""
        return self._before + Traffic.of(self.provider.walker)

    def _may_go_on(self, code: int) -> bool:
        """Does the session outlive a connection to the provider that ends like this?"""
        stays = self._way_back is not None and self.application.closing is Closing.OPEN and self._deadline is None
        return stays and self.session.survives(code)

    def _search(self, why: str, code: int) -> None:
        """Look for another connection; what the old one has to say is for nobody from now on."""
        assert self._way_back is not None
        self.provider.retire()
        if self.provider.paused_since is not None:
            self.provider.paused_since = None
            self.application.read_on()  # what is for nobody still has to be taken
        self._barrier = None
        self._receipts.clear()
        if self._lifeline is None:
            self._lifeline = Lifeline(self, self._way_back)
        self._lifeline.search(TransportError(why, close_code=code))

    def new_leg(self, owner: LegOwner) -> Leg:
        """A connection to the provider that is still the owner's; what it says that is not for the owner is dropped."""
        media, max_message = self.settings.media, self.settings.max_message
        leg = type(self.application)(Side.PROVIDER, owner, media=media, max_message=max_message)
        leg.peer = self.provider  # which is retired
        return leg

    def go_on(self, leg: Leg, held: Sequence[Message]) -> None:
        """The session is resumed on this connection; `held` is what the application has said meanwhile."""
        self._before += Traffic.of(self.provider.walker)
        self.provider = self.application.peer = leg
        leg.belongs_to(self, self.application)
        self._join(self.session)
        # Theirs comes first: what asks for a reply is seen before results are sent that ask for one, too.
        for message in held:
            self.session.application_said(message)
        self.session.goes_on()
        if self.application.paused_since is not None:
            self.pause(self.application)

    def give_up(self, why: str) -> None:
        """There will be no other connection. The application owns the configuration: it can begin another session."""
        self.session.end(why)
        self.application.close(1014, "the connection to the provider is lost, and its session cannot be resumed")
        self.application.read_on()
        self._deadline = self._loop.time() + self.settings.close_timeout

    def _look_no_longer(self) -> None:
        if self._lifeline is not None:
            self._lifeline.stop()

    async def aclose(self) -> None:
        """Wait until nothing of this goes on. To be called when both connections are gone."""
        if self._lifeline is not None:
            await self._lifeline.aclose()

    # ------------------------------------------------------------------------------------------- who waits for whom

    def pause(self, leg: Leg) -> None:
        """The peer of this connection does not read."""
        if not leg.peer.transport.is_closing():
            leg.peer.transport.pause_reading()
        if leg.side is Side.APPLICATION:
            self._barrier = None
            self.session.here(ReadingPaused())

    def resume(self, leg: Leg) -> None:
        """It does again."""
        leg.peer.read_on()
        if leg.side is Side.PROVIDER:
            self.session.provider_drained()
            return
        self._barrier = self._mark()

    def _mark(self) -> _Point:
        """Ping the provider. At the pong it has all we had sent before, and we have all it had said before."""
        self._pings += 1
        _ping(self.provider, self._pings.to_bytes(8, "big"))
        return _Point(self._pings, self._loop.time())

    def _our_pong(self, payload: bytes) -> None:
        self._reached(int.from_bytes(payload[len(_OURS) :], "big"))

    def _reached(self, number: int) -> None:
        """All has been exchanged up to this ping."""
        while self._receipts and self._receipts[0][0].number <= number:
            self._receipts.pop(0)[1]()
        if self._barrier is not None and self._barrier.number <= number:
            self._barrier = None
            self.session.here(ReadingResumed())

    def lag(self, now: float) -> float:
        """For how many seconds what waits for the slower peer has been waiting."""
        application, provider = self.application.paused_since, self.provider.paused_since
        if application is None and provider is None:
            return 0.0
        return now - min(since for since in (application, provider) if since is not None)

    # ------------------------------------------------------------------------------------------- time

    def sweep(self, now: float) -> None:
        """Look after whatever has a deadline."""
        if self._deadline is not None and now >= self._deadline:
            self._overdue(now)
        elif now >= self._next_ping:
            self._next_ping = now + self.settings.ping_interval
            for leg in (self.application, self.provider):
                if leg.closing is Closing.OPEN:
                    leg.pinged_at = leg.pinged_at or (now, leg.walker.bytes)
                    _ping(leg, b"")
        for leg in (self.application, self.provider):
            self._look_after(leg, now)
        awaited = [point for point, _ in self._receipts] if self._barrier is None else [self._barrier]
        if awaited and now - awaited[0].since > self.settings.ping_timeout:
            self._reached(awaited[0].number)  # it does not answer pings

    def _look_after(self, leg: Leg, now: float) -> None:
        if leg.closing is Closing.LOST:
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
            if leg.closing is Closing.OPEN and self._may_go_on(_DROPPED):
                self._search(f"the provider {why}", _DROPPED)
                return
            self.session.end(f"the provider {why}")
            self.application.close(1013, f"the provider {why}")
            self.application.read_on()
            self._deadline = self._loop.time() + self.settings.close_timeout
        leg.transport.abort()

    def _overdue(self, now: float) -> None:
        """What should have ended by itself has not: close it, then cut it off."""
        self._deadline = now + self.settings.close_timeout
        for leg in (self.application, self.provider):
            if leg.closing is Closing.OPEN:
                leg.close(1001, "the session has ended")
            elif leg.closing is not Closing.LOST:
                leg.transport.abort()

    def abort(self) -> None:
        """Cut both connections off."""
        self._look_no_longer()
        for leg in (self.application, self.provider):
            if leg.closing is not Closing.LOST:
                leg.transport.abort()


def _ping(leg: Leg, payload: bytes) -> None:
    leg.write(leg.framed(Opcode.PING, _OURS + payload))
