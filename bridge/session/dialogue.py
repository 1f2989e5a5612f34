"""A conversation, who it is with, and the connection that carries it at present."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.conversation import Conversation
from ..core.events import EndSession, Resume
from ..core.turn import Link
from .connection import Connection
from .peer import Peer

__all__ = ["Dialogue"]


@dataclass(frozen=True, slots=True, eq=False)
class Dialogue:
    """What is said between a session and its provider goes through here."""

    conversation: Conversation
    peer: Peer
    connection: Connection

    @property
    def is_down(self) -> bool:
        """Is there no connection on which the session is under way?"""
        return self.conversation.machine.link is Link.DOWN

    def ask_for_resume(self) -> None:
        """Ask for the session to go on over the present connection."""
        self._say(self.peer.resume)

    def say_goodbye(self) -> None:
        """Ask the provider to end the session."""
        self._say(EndSession())

    def _say(self, event: Resume | EndSession) -> None:
        self.connection.outbox.put(self.peer.frames(event))
