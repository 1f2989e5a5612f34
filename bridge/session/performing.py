"""The heart of a session: performs what its conversation decides.

Synchronous: between a decision and its commands nothing else can happen. It is reached from a frame of the provider,
from the host, and from what happens here (a tool ends, a timer runs out, results have been sent, the link drops).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ..core.conversation import Step
from ..core.events import (
    ApprovalAnswer,
    Discard,
    Frame,
    FromProvider,
    HoldExpired,
    LocalEvent,
    ProviderEnded,
    Run,
    Send,
    SessionReady,
    Timer,
)
from ..core.turn import Link
from .clock import TurnClock
from .consent import Consent
from .dialogue import Dialogue
from .hearing import Hearing
from .observers import Observers
from .running import Running
from .standing import Standing
from .updates import Updates

__all__ = ["Performer"]

logger = logging.getLogger("bridge.session")


@dataclass(slots=True, eq=False)
class Performer:
    """Takes the steps of one session."""

    standing: Standing
    dialogue: Dialogue
    observers: Observers
    running: Running
    consent: Consent
    clock: TurnClock
    updates: Updates
    hearing: Hearing

    def here(self, event: LocalEvent) -> bool:
        """Something happened on our side; true if anything was decided."""
        step = self.dialogue.conversation.from_here(event)
        self.perform(step)
        return bool(step.outputs)

    def say(self, frame: Frame) -> None:
        """A message of the host, or of ours as if it were the host's."""
        self.perform(self.dialogue.conversation.from_app(frame))

    def time_is_up(self, timer: Timer) -> None:
        """A timer of the turn machine has run out."""
        if isinstance(timer, HoldExpired):
            session, waiting = self.standing.id, len(self.clock.machine.owed)
            logger.warning("session %s: the provider is silent while %d calls wait: going on", session, waiting)
        self.here(timer)

    def decided(self, answer: ApprovalAnswer) -> None:
        """The provider is told whether a call may be made that it has asked about."""
        if not self.standing.over.is_set():
            for frame in self.dialogue.peer.frames(answer):
                self.say(frame)

    def perform(self, step: Step) -> None:
        """Tell everybody what happened, then do what was decided."""
        if self.observers.waiting:
            self._name(step)
        self.observers.saw(step)
        self.running.saw(step)
        if self.updates.changes.tools_wait:
            self.updates.performed()
        for event in step.events:
            if isinstance(event, FromProvider) and not isinstance(event, ProviderEnded):
                self.hearing.hear(event)
            elif isinstance(event, ApprovalAnswer):
                self.consent.answered(event)
        if self.standing.over.is_set():
            return
        asked = self._obey(step)
        machine = self.dialogue.conversation.machine
        if machine is not self.clock.machine:
            self.clock.follow(machine, asked=asked)
            self.standing.moved()
        for event in step.events:
            if isinstance(event, ProviderEnded):
                self.hearing.hear(event)  # what has become of its calls is told before

    def _obey(self, step: Step) -> bool:
        """Carry out the commands; true if anything has been sent."""
        asked = False
        for command in step.commands:
            if isinstance(command, Send):
                asked = True
                self.dialogue.connection.outbox.put(command.frames, command.keys)
            elif isinstance(command, Run):
                forbidden = self.consent.forbids(command.call)
                self.running.start(command, self.dialogue.conversation.tools, forbidden=forbidden)
            elif isinstance(command, Discard):
                self.running.discard(command.key, command.reason.value)
        return asked

    def _name(self, step: Step) -> None:
        """A session whose name is made of the provider's own has it now, or has ended without one."""
        named = next((event.session_id for event in step.events if isinstance(event, SessionReady)), "")
        if named:
            self.standing.id = f"{self.dialogue.peer.dialect.name}:{named}"
            self.running.named(self.standing.id)
        if named or self.dialogue.conversation.machine.link is Link.ENDED:
            self.observers.begin()
