"""How a session survives its connection: what becomes of it when that drops, while there is none, and on another one.

The conversation, the tools that run and the host go on meanwhile. When to try again, and when to give up, is decided in
`recovery`; here is what the session does about it.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from ..core.events import LinkLost, LinkResumed, SessionLost
from ..errors import BridgeError, SessionClosed, TransportError
from ..transports import Line
from .audio import Microphone
from .connection import Answer, Opening
from .dialogue import Dialogue
from .inherited import Inherited, seeded
from .options import SessionOptions
from .performing import Performer
from .reconnect import ConnectionEvent, ConnectionLost, ConnectionResumed, LostSession, described, is_drop, lost_calls
from .recovery import Recovery, Survivor
from .refusals import refused
from .standing import Phase, Standing

__all__ = ["Survival"]

logger = logging.getLogger("bridge.session")


@dataclass(slots=True, eq=False)
class Survival:
    """Looks after the gaps between the connections of one session."""

    standing: Standing
    dialogue: Dialogue
    performer: Performer
    microphone: Microphone
    options: SessionOptions
    deliver: Callable[[ConnectionEvent], None]
    """To the host."""
    stop: Callable[[str, Exception | None], None]
    """The session is over, for this reason."""
    failed: Callable[[Exception], None]
    """So it is, by a fault of ours."""
    _recovery: Recovery[Line] | None = None
    """Looks for other connections, if there are to be any."""
    _lost_at: float = 0.0

    # ------------------------------------------------------------------------------------- its life

    def cover(self, line: Line) -> None:
        """Should this connection drop, another takes its place."""
        self._recovery = Recovery(self._survivor(), line, self.options)

    def is_up(self) -> None:
        """The session is under way on the present connection."""
        if self._recovery is not None:
            self._recovery.is_up()

    def stop_searching(self) -> None:
        """The session is over: no other connection is wanted."""
        if self._recovery is not None:
            self._recovery.stop()

    async def aclose(self) -> None:
        """Stop, and release what is left."""
        if self._recovery is not None:
            await self._recovery.aclose()

    def take_up(self, inherited: Inherited) -> None:
        """Resume a session that another process has begun. It was configured there: here the setup is only read."""
        self._lost_at = asyncio.get_running_loop().time()
        conversation = self.dialogue.conversation
        conversation.from_app(self.dialogue.peer.setup())
        conversation.machine, step = seeded(conversation.machine, inherited)
        self.performer.clock.machine = conversation.machine
        self.performer.observers.tell(step)
        self.dialogue.ask_for_resume()

    # ------------------------------------------------------------------------------------- what happens to it

    def lost(self, lost: TransportError) -> None:
        """The present connection has broken by itself."""
        if self.standing.over.is_set():
            return
        if self.dialogue.is_down:
            self.dialogue.connection.fails(lost)  # so much for this try; the recovery makes the next
            return
        if self._recovery is not None and self._survives(lost):
            self._recovery.lost(lost)
            return
        self.performer.here(LinkLost())
        failure: BridgeError | None = None if self.standing.ending else lost
        if refusal := self.standing.refusal:
            failure = refused(refusal, self.dialogue.peer.agent.api_key_env)
        self.stop("the provider closed the connection", failure)

    def _survives(self, lost: TransportError) -> bool:
        under_way = self.standing.phase in (Phase.READY, Phase.SETTLING)
        return under_way and self.standing.refusal is None and is_drop(lost.close_code)

    def resumed(self) -> None:
        """The session goes on. Changes come first, so that they are answered in the order of their line."""
        gap = self.performer.hearing.ear.is_back() - self._lost_at
        self.performer.updates.resumed()
        self.performer.here(LinkResumed())
        lost = self.microphone.take_dropped()
        opening = self.dialogue.connection.opening
        logger.info("session %s goes on after %.1f s, %s", self.standing.id, gap, opening.value)
        self.deliver(ConnectionResumed(opening is Opening.SETUP, gap, lost))
        self.is_up()

    # ------------------------------------------------------------------------------------- for the recovery

    def _survivor(self) -> Survivor[Line]:
        return Survivor(
            self.standing.id,
            self._connect,
            self._link_lost,
            self._resumable,
            self._open_on,
            self._answered,
            self._leave_connection,
            self._forgotten,
            self._quiet,
            self._give_up,
            self.failed,
        )

    async def _connect(self, opening: Opening) -> Line:
        line = await self.dialogue.peer.dial(opening)
        assert isinstance(line, Line), "only a line is replaced"
        return line

    def _link_lost(self, lost: TransportError) -> None:
        """Without a connection, everything but the provider goes on."""
        self.dialogue.connection.mute()
        self._lost_at = asyncio.get_running_loop().time()
        self.performer.updates.connection_lost()
        self.deliver(ConnectionLost(lost.close_code))
        self.performer.here(LinkLost())
        self.standing.moved()

    def _resumable(self) -> bool:
        return bool(self.dialogue.peer.frames(self.dialogue.peer.resume))

    def _open_on(self, line: Line, opening: Opening) -> None:
        """Say the first message on a new connection."""
        self.dialogue.connection.take(line, opening)
        match opening:
            case Opening.RESUME:
                self.dialogue.ask_for_resume()
            case Opening.SETUP:
                self.performer.perform(self.dialogue.conversation.begin_again(self.dialogue.peer.setup()))
            case _:
                assert_never(opening)

    async def _answered(self) -> Answer:
        return await self.dialogue.connection.answered(self.options.ready_timeout)

    async def _leave_connection(self) -> None:
        self.performer.updates.connection_lost()
        await self.dialogue.connection.aclose()

    async def _forgotten(self) -> None:
        """The provider has lost the session; the next one is described as the host wants it."""
        if self.standing.ending is not None:
            raise SessionClosed("the session has ended")
        peer, changes = self.dialogue.peer, self.performer.updates.changes
        lost = LostSession(peer.session_id, changes.settings, lost_calls(self.performer.clock.machine.owed))
        self.performer.here(SessionLost())
        limit = self.options.ready_timeout
        agent = await described(self.options.afresh, lost, peer.agent, limit, self.standing.id)
        if agent is not None:
            peer.agent, changes.settings = agent, {}
        elif lost.changes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # whoever changed it has been warned
                changes.repeat(peer.update(lost.changes))

    async def _quiet(self, seconds: float) -> bool:
        """Wait until nobody speaks, for so long at most. Is the session still under way?"""
        await self.standing.until(lambda: self.performer.clock.machine.window_open or not self._is_ready(), seconds)
        return self._is_ready() and not self.dialogue.is_down

    def _is_ready(self) -> bool:
        return self.standing.phase is Phase.READY

    def _give_up(self, failure: BridgeError) -> None:
        if not self.standing.over.is_set():
            self.stop("the connection was lost", None if self.standing.ending else failure)
