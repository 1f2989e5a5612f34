"""What the provider says, told to whomever in the session it concerns, and to the host."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ..core.events import (
    AgentAudio,
    ApprovalWanted,
    Failure,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ReplyDone,
    ServerEvent,
    SessionReady,
    SetupAccepted,
)
from .clock import Ear
from .consent import Consent
from .dialogue import Dialogue
from .refusals import refused
from .standing import Standing
from .updates import Updates

__all__ = ["Hearing"]

logger = logging.getLogger("bridge.session")

_MALFORMED_LOGGED = 10


@dataclass(slots=True, eq=False)
class Hearing:
    """Takes the events of one session in."""

    standing: Standing
    dialogue: Dialogue
    ear: Ear
    consent: Consent
    updates: Updates
    deliver: Callable[[ServerEvent], None]
    """To the host."""
    stop: Callable[[str, Exception | None], None]
    """The session is over, for this reason."""
    _malformed: int = 0

    def hear(self, event: ServerEvent) -> None:
        """Tell everybody whom this concerns; the host last, unless it is about an attempt to connect."""
        self.ear.heard(event)
        match event:
            case AgentAudio():
                pass  # nearly every event ends here
            case ReplyDone():
                self.consent.over()
            case ApprovalWanted(call):
                self.consent.asked(call, self.updates.versions.find(call.name))
            case SessionReady():
                self.dialogue.peer.is_ready(event)
                self.dialogue.connection.answers(event)
            case SetupAccepted():
                self.updates.accepted(event)
            case ProviderFailed() | ProviderEnded() if self.dialogue.is_down:
                self.dialogue.connection.answers(event)  # the end of a try, and no more
                return
            case ProviderFailed():
                self._failed(event)
            case ProviderEnded():
                self.deliver(event)
                self.stop("the provider ended it", None)
                return
            case Malformed(reason):
                self._broken(reason)
        self.deliver(event)

    def _failed(self, event: ProviderFailed) -> None:
        said = event.code or "an error"
        session = self.standing.id
        logger.warning("session %s: the provider reports %s %s: %.200s", session, said, event.param, event.text)
        if self.dialogue.connection.opens:
            # Nothing survives an error in answer to the first message; the provider closes next, or hangs.
            self.standing.refusal = event
            self.stop("refused", refused(event, self.dialogue.peer.agent.api_key_env))
        elif event.kind is Failure.SETUP and self.updates.refused(refused(event)):
            return  # whoever asked for the change is told
        elif event.fatal:
            self.standing.refusal = event

    def _broken(self, reason: str) -> None:
        self._malformed += 1
        if self._malformed <= _MALFORMED_LOGGED:
            logger.warning("session %s: the provider sent something broken: %s", self.standing.id, reason)
