"""What time means for the turn of one session: when its provider was heard, and when its machine's timers run out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ..core.events import (
    AgentAudio,
    AskExpired,
    GraceExpired,
    HoldExpired,
    ReplyDone,
    ReplyHeard,
    ReplyStarted,
    ServerEvent,
    SpeechStarted,
    SpeechStopped,
    Timer,
    ToolCalled,
    Transcript,
)
from ..core.turn import TurnMachine, User
from .audio import PlaybackClock
from .timers import Timers

__all__ = ["Ear", "Heard", "TurnClock"]

_SIGNS_OF_LIFE = (Transcript, ToolCalled, ReplyStarted, ReplyDone, SpeechStarted, SpeechStopped)
"""Beside the agent's audio."""


class Heard(Protocol):
    """What is known of the provider's voice, in seconds on the event loop's clock."""

    @property
    def last(self) -> float:
        """When there was the latest sign of life."""
        ...

    @property
    def heard_until(self) -> float:
        """When all that the agent has said will have been heard."""
        ...


class Ear:
    """Knows that from the provider's events. `output_rate`: bytes per sample and samples per second of the voice."""

    def __init__(self, output_rate: tuple[int, int]) -> None:
        self._now = asyncio.get_running_loop().time
        self._playback = PlaybackClock(*output_rate)
        self.last = self._now()

    def heard(self, event: ServerEvent) -> None:
        """The provider said this."""
        if isinstance(event, AgentAudio):
            self.last = now = self._now()
            self._playback.add(len(event.data), now)
        elif isinstance(event, _SIGNS_OF_LIFE):
            self.last = self._now()
            if isinstance(event, ReplyDone) and event.interrupted:
                self._playback.flush()

    def is_back(self) -> float:
        """The provider is there again; returns the time."""
        self.last = self._now()
        return self.last

    @property
    def heard_until(self) -> float:
        return self._playback.end


class TurnClock:
    """Runs the timers that a turn machine asks for; `is_up` is told when the time of one has come."""

    __slots__ = ("_delivery", "_heard", "_timers", "machine")

    def __init__(self, machine: TurnMachine, heard: Heard, is_up: Callable[[Timer], None]) -> None:
        self.machine = machine
        """As it was when the timers were last looked after."""
        self._delivery = machine.delivery
        self._heard = heard
        self._timers = Timers(self._deadline, is_up)

    def follow(self, machine: TurnMachine, *, asked: bool) -> None:
        """The machine has changed; `asked` if something has been sent that asks for a reply."""
        self.machine = machine
        if asked:
            self._timers.stop(AskExpired())  # every ask has its full time
        self._timers.keep(machine.timers())

    def silent_since(self, machine: TurnMachine) -> float | None:
        """Since when nobody has been speaking; None while somebody is."""
        return max(self._heard.last, self._heard.heard_until) if machine.window_open else None

    def stop(self) -> None:
        """No timer runs any more."""
        self._timers.stop_all()

    def _deadline(self, timer: Timer, since: float) -> float:
        match timer:
            case GraceExpired():
                return since + self._delivery.grace
            case AskExpired():
                return since + self._delivery.ask_timeout
            case ReplyHeard():
                return max(since, self._heard.heard_until)
            case HoldExpired():
                speaking = self.machine.user is User.SPEAKING
                return self._heard.last + (self._delivery.max_speech if speaking else self._delivery.max_hold)
