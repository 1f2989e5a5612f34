"""The connection to the provider is lost, the one to the application is not: another is made, and the session resumed.

When to try, how often and for how long is decided as for an embedded session (`bridge.session.recovery`). Here is what
is the relay's own: who stands in for the provider meanwhile.

* The application's **audio is dropped**, and counted: what was said into the gap would only delay what is said later.
* Its **messages are held**, up to a bound, and sent once the session goes on. Nothing is answered in between but pings.
* The provider's **answer to the resume is hidden**: the application has had its `session.ready`.
* A session that **cannot be resumed** is over: the application is told by a close, and begins another if it likes. We
  do not begin one for it: it would greet the caller once more, and know nothing of what was said.

A connection that is given up is retired, and so is an attempt that fails: neither can touch what came after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ..core.events import SessionReady
from ..errors import AuthenticationFailed, BridgeError, ProviderError, SessionClosed, TransportError
from ..session.connection import Answer
from ..session.connection import Opening as Asking
from ..session.options import SessionOptions
from ..session.recovery import Recovery, Survivor
from .frames import Broken, Control, Message, Opcode, Piece
from .handshake import Opening, Refusal
from .leg import Closing, Leg, LegOwner
from .session import RelaySession

__all__ = ["Lifeline", "Outcome", "WayBack"]

logger = logging.getLogger("bridge.relay")

_ROOM: Final = 64 * 1024
"""Bytes of messages that are held for the provider in one gap."""


class Outcome(Enum):
    """What becomes of a session whose connection to the provider is lost."""

    RESUMED = "resumed"
    REFUSED = "refused"
    """The provider does not go on with it."""
    GIVEN_UP = "given_up"
    """The provider was not reached in time, or the application said more than is held for it."""
    LEFT = "left"
    """Nobody waited for it any more: the application has left, or the relay stops."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """How a lost provider is reached again. Times in seconds."""

    dial: Callable[[str], Awaitable[Opening]]
    """Make a connection for a session that is to be resumed with this token, if it has one. Raises `Refusal`."""
    limit: float
    """For all attempts together."""
    answer_timeout: float
    """For the answer to one resume."""
    stall_timeout: float
    told: Callable[[Outcome, int], None]
    """What came of it, and how many media of the application were dropped meanwhile."""


class Stayed(Protocol):
    """What is left of a session's two connections."""

    @property
    def session(self) -> RelaySession: ...

    @property
    def application(self) -> Leg: ...

    def new_leg(self, owner: LegOwner) -> Leg:
        """A connection to the provider that is still the owner's."""
        ...

    def go_on(self, leg: Leg, held: Sequence[Message]) -> None:
        """The session is resumed on this connection; `held` is what the application has said meanwhile."""
        ...

    def give_up(self, why: str) -> None:
        """There will be no other connection."""
        ...

    def finish(self) -> None:
        """The session has ended."""
        ...


class _State(Enum):
    CALM = "the session is under way, or over"
    SEARCHING = "another connection is being looked for"


class Lifeline:
    """Stands in for the provider of one session whenever the connection to it is lost."""

    def __init__(self, ends: Stayed, way: WayBack) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends = ends
        self._way = way
        self._state = _State.CALM
        self._leg: Leg | None = None
        """The connection that is tried."""
        self._answer: asyncio.Future[Answer] = self._loop.create_future()
        self._held: list[Message] = []
        self._room = _ROOM
        self._lost_at, self._media = 0.0, 0
        survivor = Survivor(
            ends.session.name,
            self._connect,
            self._link_lost,
            lambda: bool(ends.session.resume_frames()),
            self._open_on,
            self._answered,
            self._leave_connection,
            self._forgotten,
            self._quiet,
            self._give_up,
            self._failed,
        )
        self._recovery = Recovery(survivor, None, SessionOptions(reconnect_timeout=way.limit))

    # ------------------------------------------------------------------------------------------- what its owner does

    @property
    def searches(self) -> bool:
        """Is there no connection to the provider, and another looked for?"""
        return self._state is _State.SEARCHING

    def search(self, lost: TransportError) -> None:
        """The connection to the provider is lost: look for another."""
        self._state = _State.SEARCHING
        self._held, self._room = [], _ROOM
        self._lost_at, self._media = self._loop.time(), self._ends.application.walker.media
        self._recovery.lost(lost)

    def hold(self, message: Message) -> None:
        """The application says this meanwhile."""
        self._room -= len(message.payload)
        if self._room >= 0:
            self._held.append(message)
            return
        much = f"the application said more than {_ROOM} bytes while the provider was away"
        self._recovery.stop()
        self._give_up(TransportError(much))

    def stop(self) -> None:
        """Look no longer: the session is over, or its application is gone."""
        if self.searches:
            self._recovery.stop()
            self._over(Outcome.LEFT)

    async def aclose(self) -> None:
        """Stop, and wait until nothing of this goes on."""
        self.stop()
        await self._recovery.aclose()

    # ------------------------------------------------------------------------------------------- for the session

    @property
    def provider_congested(self) -> bool:
        return False

    def to_application(self, data: bytes) -> None:
        """What an attempt brings is not for the application."""

    def to_provider(self, data: bytes) -> None:
        """Nothing is sent while there is no session to send it to."""

    def when_taken(self, tell: Callable[[], None]) -> None:
        """It never is."""

    def finish(self) -> None:
        self._ends.finish()

    # ------------------------------------------------------------------------------------------- an attempt

    def take(self, leg: Leg, piece: Piece) -> None:
        match piece:
            case Message():
                self._hear(leg, piece)
            case Control(Opcode.PING, payload):
                leg.write(leg.framed(Opcode.PONG, payload))
            case Control(Opcode.CLOSE, payload):
                code = int.from_bytes(payload[:2], "big")
                self._fail(f"the provider closed the connection ({code or 'without a code'})")
            case Broken(code, reason):
                self._fail(f"the provider broke the protocol ({code}): {reason}")

    def pause(self, leg: Leg) -> None: ...

    def resume(self, leg: Leg) -> None: ...

    def lost(self, leg: Leg, before: Closing) -> None:
        self._fail("the connection dropped")

    def _hear(self, leg: Leg, message: Message) -> None:
        answer = self._ends.session.answered(message)
        if answer is None or self._answer.done():
            return
        self._answer.set_result(answer)
        if isinstance(answer, SessionReady):
            self._resumed(leg)

    def _fail(self, why: str) -> None:
        if not self._answer.done():
            self._answer.set_exception(TransportError(why))
            self._answer.exception()  # somebody may wait for it, nobody must

    # ------------------------------------------------------------------------------------------- for the recovery

    async def _connect(self, asking: Asking) -> Opening:
        try:
            return await self._way.dial(self._ends.session.resume_token)
        except Refusal as refusal:
            if refusal.status in (401, 403):
                raise AuthenticationFailed(refusal.reason, code=str(refusal.status.value)) from None
            raise TransportError(refusal.reason) from None

    def _link_lost(self, lost: TransportError) -> None:
        self._ends.session.detach()
        self._ends.session.attach(self)

    def _open_on(self, opening: Opening, asking: Asking) -> None:
        self._answer = self._loop.create_future()
        self._leg = leg = self._ends.new_leg(self)
        leg.take_over(opening, self._way.stall_timeout)
        leg.write(self._ends.session.resume_frames())
        leg.begin(opening.early)

    async def _answered(self) -> Answer:
        try:
            async with asyncio.timeout(self._way.answer_timeout):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            limit = f"{self._way.answer_timeout:g} s"
            raise TransportError(f"the provider did not answer to the resume within {limit}") from None

    async def _leave_connection(self) -> None:
        self._retire()

    async def _forgotten(self) -> None:
        raise SessionClosed("the provider does not go on with it")

    async def _quiet(self, seconds: float) -> bool:
        return False  # before a connection is too old it is the application that has to see to that

    def _give_up(self, failure: BridgeError) -> None:
        refused = isinstance(failure, SessionClosed | ProviderError)
        self._over(Outcome.REFUSED if refused else Outcome.GIVEN_UP)
        self._ends.give_up(f"the connection to the provider was lost: {failure}")

    def _failed(self, fault: Exception) -> None:
        logger.exception("session %s: a fault of our own", self._ends.session.name, exc_info=fault)
        self._give_up(TransportError("a fault of our own"))

    # ------------------------------------------------------------------------------------------- the end of a gap

    def _resumed(self, leg: Leg) -> None:
        self._leg = None  # it is the session's own now
        held, self._held = self._held, []
        self._over(Outcome.RESUMED)
        self._ends.go_on(leg, held)
        self._recovery.is_up()

    def _over(self, outcome: Outcome) -> None:
        self._state = _State.CALM
        self._held = []
        self._retire()
        dropped = self._ends.application.walker.media - self._media
        logger.log(
            logging.INFO if outcome in (Outcome.RESUMED, Outcome.LEFT) else logging.WARNING,
            "session %s: %.1f s without its provider, then %s; %d pieces of the caller's voice were dropped",
            self._ends.session.name,
            self._loop.time() - self._lost_at,
            outcome.value.replace("_", " "),
            dropped,
        )
        self._way.told(outcome, dropped)

    def _retire(self) -> None:
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.retire()
