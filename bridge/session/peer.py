"""The other end of a session: the agent there, what its provider calls the session, and how it is spoken to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.dialect import Agent, Dialect
from ..core.events import ApprovalAnswer, EndSession, Frame, Resume, SessionReady
from ..core.messages import encode
from ..transports import Transport
from .connection import Opening
from .dialing import dial
from .options import SessionOptions
from .reconnect import Resumable

__all__ = ["Peer"]


class Peer:
    """Where it is, the credentials for it, and its messages as frames."""

    def __init__(self, agent: Agent, options: SessionOptions, resumable: Resumable | None) -> None:
        """`resumable` is what there is to be gone on with, if anything."""
        self.agent = agent
        """Another one in a fresh session, if the host describes it."""
        self.api_key = ""
        self.session_id = resumable.provider_session_id if resumable else ""
        """The provider's name for the session."""
        self.resume_token = resumable.token if resumable else ""
        self._url = agent.url
        """For every connection: another agent may be in another country."""
        self._options = options

    @property
    def dialect(self) -> Dialect:
        return self.agent.dialect

    async def dial(self, opening: Opening) -> Transport:
        """Connect with the credentials for this. Raises `ConfigError` and `TransportError`."""
        token = self.resume_token if opening is Opening.RESUME else ""
        return await dial(self.dialect, self._url, token or self.api_key, self._options)

    def is_ready(self, event: SessionReady) -> None:
        """It has the session, by this name, until it says another."""
        self.session_id = event.session_id or self.session_id
        self.resume_token = event.resume_token

    # ------------------------------------------------------------------------------------- what is said to it

    def setup(self) -> Frame:
        """The message that configures the session, without our tools."""
        return encode(self.agent.setup())

    def update(self, changes: Mapping[str, Any]) -> Frame:
        """The message that changes these settings. Raises `ConfigError` for what cannot change."""
        return encode(self.agent.update_message(**changes))

    @property
    def resume(self) -> Resume:
        """What asks for the session on another connection."""
        return Resume(self.session_id, self.resume_token)

    def frames(self, event: Resume | EndSession | ApprovalAnswer) -> tuple[Frame, ...]:
        """This, in its protocol; empty if that has no words for it."""
        return tuple(encode(message) for message in self.dialect.encode_client(event))
