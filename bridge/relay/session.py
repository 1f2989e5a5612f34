"""One session behind the relay: performs what a `Conversation` decides, as `bridge.session` does for an embedded host.

The relay moves bytes and hands over the messages that matter; this object asks the same `Conversation` as the embedded
session, keeps the same timers, and runs tools elsewhere. Everything here happens on the relay's loop, without waiting.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import orjson

from ..core.conversation import Conversation, Step
from ..core.dialect import Delivery, Dialect
from ..core.events import (
    AgentAudio,
    CallKey,
    ClientEvent,
    Discard,
    EndSession,
    FollowUp,
    Forward,
    FromProvider,
    HoldExpired,
    LinkLost,
    LinkResumed,
    LocalEvent,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    Resume,
    Run,
    Send,
    Sent,
    ServerEvent,
    SessionOpened,
    SessionReady,
    Setup,
    SetupAccepted,
    SetupLeftAlone,
    SpeechStarted,
    Start,
    Timer,
    ToolResults,
    ToolsNotTaken,
)
from ..core.turn import Link
from ..errors import SessionClosed
from ..session.clock import TurnClock
from ..session.connection import Answer
from ..session.observers import Observed
from ..session.reconnect import is_drop
from ..session.running import Host, Running
from ..tools.tool import Tool
from .frames import Message, Opcode, frame
from .speaking import Ends, Speaking
from .tool_thread import FarCalls
from .voice import Voice

__all__ = ["RelaySession", "SessionSettings"]

logger = logging.getLogger("bridge.relay")

_COMPLAINTS_LOGGED = 10
_TEXT_LOGGED = 200

Observer = Callable[[Observed, Step], None]
"""Sees every step of every session as it happens, of attached ones too; must not block."""


class _Setup(Enum):
    """Has the application configured the session?"""

    AWAITED = "not yet"
    OVERDUE = "not in time"
    SAID = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What a route says about its sessions."""

    dialect: Dialect
    tools: Mapping[str, Tool]
    show_calls: bool = False
    delivery: Delivery | None = None
    owed_timeout: float = 5.0
    setup_timeout: float = 5.0


class RelaySession:
    """What observers see of a session is in its public attributes."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_complaints",
        "_conversation",
        "_delivery",
        "_ending",
        "_final",
        "_loop",
        "_observers",
        "_opened",
        "_reason",
        "_resumed",
        "_running",
        "_settings",
        "_setup",
        "_speaking",
        "correlation",
        "dialect",
        "id",
        "metadata",
        "name",
        "provider_session_id",
        "resume_token",
        "route",
        "voice",
    )

    def __init__(
        self,
        settings: SessionSettings,
        calls: FarCalls,
        observers: tuple[Observer, ...],
        *,
        route: str = "",
        correlation: str = "",
        metadata: Mapping[str, str] | None = None,
        resumed: Callable[[RelaySession, str], None] = lambda session, session_id: None,
    ) -> None:
        self.id = secrets.token_hex(8)
        """Our name for this session, in logs and for tools."""
        self.provider_session_id = ""
        """The provider's name for it."""
        self.resume_token = ""
        """What the provider wants it to be resumed with, if anything; each one replaces the one before."""
        self.correlation = correlation
        """What the operator's own header says, such as the telephony stack's name for the call."""
        self.route = route
        """The prefix of its route."""
        known = {"correlation": correlation, "route": route}
        self.metadata: Mapping[str, str] = {**{name: each for name, each in known.items() if each}, **(metadata or {})}
        """What tools find in their `CallContext`."""
        self.dialect = settings.dialect.name
        self.name = f"{self.id} [{correlation}]" if correlation else self.id
        """For log lines."""
        self._settings = settings
        self._observers = observers
        self._resumed = resumed
        self._loop = asyncio.get_running_loop()
        specs = tuple(tool.spec for tool in settings.tools.values())
        self._conversation = Conversation(
            settings.dialect, specs, show_calls=settings.show_calls, delivery=settings.delivery
        )
        self._delivery = self._conversation.machine.delivery
        self.voice = Voice(self._loop.time, measured=_must_be_heard(settings.tools))
        self._clock = TurnClock(self._conversation.machine, self.voice, self._time_is_up)
        self._speaking = Speaking(self._sent)
        # It only starts, discards and closes, which both can; where they run is their own matter.
        self._running = Running(calls, self._host(), settings.tools)
        self._opened = self._loop.time()
        self._setup = _Setup.AWAITED
        self._complaints = 0
        self._ending: asyncio.TimerHandle | None = None
        self._reason = ""
        self._final = ""
        """What has been said that no connection is made for again: an error, or the application's goodbye."""

    # ------------------------------------------------------------------------------------------- life

    def attach(self, ends: Ends) -> None:
        """The session has these connections now."""
        self._speaking.attach(ends)
        if not self.ended and self._clock.machine.link is not Link.DOWN:
            self.here(SessionOpened(self.dialect, "relay"))

    def detach(self) -> None:
        """The connection to the provider was lost. What is owed is kept for a resume."""
        self._speaking.detach()
        if self._clock.machine.link is not Link.DOWN:
            self.here(LinkLost())

    def survives(self, close_code: int | None) -> bool:
        """Can it go on over another connection, after one to the provider that ended like this?"""
        under_way = self.provider_session_id and not self.ended and self._clock.machine.link is not Link.DOWN
        return bool(under_way) and not self._final and is_drop(close_code) and bool(self.resume_frames())

    def end(self, reason: str) -> None:
        """The session is over: nothing is sent any more. Does nothing the second time."""
        if self.ended:
            return
        self._perform(self._conversation.end(reason))
        self._clock.stop()
        self.voice.await_next(None)
        if self._ending is not None:
            self._ending.cancel()
        logger.info("session %s ended: %s", self.name, reason)

    def end_soon(self, reason: str) -> None:
        """End the session once what is owed has been sent, or a while has passed."""
        if self._ending is None and not self.ended:
            self._reason = reason or "asked for"
            self._ending = self._loop.call_later(self._settings.owed_timeout, self._finish)
            self._finish_if_settled()

    def replace_tools(self, tools: Mapping[str, Tool]) -> None:
        """From now on our tools are these. The agent is told as soon as nobody speaks; what runs goes on as it is."""
        if not self.ended:
            if _must_be_heard(tools):
                self.voice.measure()
            self._running.versions.offer(tools)
            self._perform(self._conversation.replace_tools(tuple(tool.spec for tool in tools.values())))
            self._running.versions.keep(self._conversation.versions)

    async def aclose(self) -> None:
        """Stop what still runs."""
        await self._running.aclose()

    @property
    def delivery(self) -> Delivery:
        """How its provider wants its results."""
        return self._delivery

    @property
    def ended(self) -> bool:
        """Is it over?"""
        return self._conversation.machine.link is Link.ENDED

    @property
    def owed(self) -> int:
        """Calls that are neither answered nor discarded."""
        return len(self._conversation.machine.owed)

    @property
    def state(self) -> tuple[str, str, str]:
        """Where the link, the agent's reply and the user stand, in words."""
        machine = self._conversation.machine
        return machine.link.value, machine.reply.value, machine.user.value

    def end_frames(self) -> bytes:
        """The frames that ask the provider to end the session."""
        return self._frames(EndSession())

    def resume_frames(self) -> bytes:
        """Those that ask it to resume the session; empty where its protocol has no such thing."""
        return self._frames(Resume(self.provider_session_id, self.resume_token))

    def _frames(self, event: ClientEvent) -> bytes:
        said = self._settings.dialect.encode_client(event)
        return b"".join(frame(Opcode.TEXT, orjson.dumps(message), masked=True) for message in said)

    def overdue_setup(self, now: float) -> bool:
        """Has the application said nothing that configures the session, although it had the time? True once."""
        if self._setup is not _Setup.AWAITED or now - self._opened < self._settings.setup_timeout:
            return False
        self._setup = _Setup.OVERDUE
        after = self._settings.setup_timeout
        logger.warning("session %s: no setup after %g s, so the agent does not know our tools", self.name, after)
        return True

    def _finish_if_settled(self) -> None:
        if not self._conversation.machine.owed:
            self._finish()

    def _finish(self) -> None:
        if not self.ended:
            self.end(self._reason)
            self._speaking.finish()

    # ------------------------------------------------------------------------------------------- what happens

    def provider_said(self, message: Message) -> None:
        """A message of the provider that is no medium."""
        if isinstance(self.answered(message), SessionReady) and self._clock.machine.link is Link.DOWN:
            self.goes_on()

    def answered(self, message: Message) -> Answer | None:
        """The same while there is no session on the connection; what it says of whether there will be one."""
        step = self._conversation.from_provider(message.payload)
        self._perform(step, message)
        return next((event for event in step.events if isinstance(event, Answer)), None)

    def goes_on(self) -> None:
        """The session is under way again, over another connection: what is owed is sent as soon as it may be."""
        self.here(LinkResumed())

    def application_said(self, message: Message) -> None:
        """A message of the application that is no medium."""
        step = self._conversation.from_app(message.payload)
        self._perform(step, message)
        for event in () if self.ended else step.events:
            match event:
                case Setup(output_rate=rate):
                    if self._setup is not _Setup.SAID:  # later ones cannot change the format
                        self.voice.is_encoded(rate)
                    self._setup = _Setup.SAID
                case SetupLeftAlone(reason):
                    logger.warning("session %s: the agent does not know our tools: %s", self.name, reason)
                case Resume(session_id):
                    self._setup = _Setup.SAID
                    self._resumed(self, session_id)
                case EndSession():
                    self._final = "the application has ended it"

    def here(self, event: LocalEvent) -> bool:
        """Something happened on our side; true if anything was decided."""
        step = self._conversation.from_here(event)
        self._perform(step)
        return bool(step.outputs)

    def provider_drained(self) -> None:
        """The provider takes what is sent to it again."""
        self._speaking.drained()

    # ------------------------------------------------------------------------------------------- the heart

    def _perform(self, step: Step, came: Message | None = None) -> None:
        if came is None or not self.ended:  # what is said after the end still passes, and is nobody's business
            self._notice(step)
        sent: list[CallKey] = []
        for command in step.commands:
            match command:
                case Forward(each):
                    self._speaking.to_application(each, came)
                case Send(frames, keys):
                    self._speaking.to_provider(frames, came)
                    sent += keys
                case Run():
                    self._running.start(command, self._conversation.tools)
                case Discard(key, reason):
                    self._running.discard(key, reason.value)
        if self._conversation.machine is not self._clock.machine:
            self._turn_changed(step)
        if sent:
            self._speaking.sent(tuple(sent))

    def _notice(self, step: Step) -> None:
        self._observe(step)
        self._running.saw(step)
        for event in step.events:
            if isinstance(event, FromProvider):
                self._hear(event)
            elif isinstance(event, ToolsNotTaken):
                logger.warning("session %s: the provider did not take the tools %s", self.name, ", ".join(event.names))

    def _observe(self, step: Step) -> None:
        for observer in self._observers:
            try:
                observer(self, step)
            except Exception:
                logger.exception("session %s: an observer failed", self.name)

    def _hear(self, event: ServerEvent) -> None:
        self.voice.lives()
        match event:
            case ReplyStarted():
                self.voice.await_next(self._voice_begins)
            case ReplyDone():
                self.voice.await_next(None)
            case SpeechStarted():
                self.voice.flush()
            case SessionReady(session_id, token):
                self.provider_session_id = session_id or self.provider_session_id
                self.resume_token = token
            case ProviderEnded() if self._clock.machine.link is not Link.DOWN:  # else an attempt to resume it has ended
                self.end("the provider ended it")
            case SetupAccepted(output_rate=rate):
                self.voice.is_encoded(rate)
                self._running.versions.keep(self._conversation.versions)
            case ProviderFailed(code, text, fatal):
                if fatal and self._clock.machine.link is not Link.DOWN:
                    self._final = code
                self._complain(f"the provider reports {code or 'an error'}: {text}")
            case Malformed(reason):
                self._complain(f"the provider sent something broken: {reason}")

    def _voice_begins(self) -> None:
        """Audio is not read here, so observers see that of a reply once, and empty."""
        self._observe(Step((AgentAudio(b""),)))

    def _complain(self, what: str) -> None:
        """An application that errs does so with every frame: its log must not grow by that. All are counted."""
        self._complaints += 1
        if self._complaints <= _COMPLAINTS_LOGGED:
            last = " (more of this session is counted only)" if self._complaints == _COMPLAINTS_LOGGED else ""
            line = "".join(c if c.isprintable() else " " for c in what)[:_TEXT_LOGGED]
            logger.warning("session %s: %s%s", self.name, line, last)

    def _sent(self, keys: tuple[CallKey, ...]) -> None:
        self.here(Sent(keys))

    def _host(self) -> Host:
        return Host(
            self.id,
            self.metadata,
            self.here,
            lambda event: None,
            self._refuse_if_closing,
            self.end_soon,
            self._silent_since,
        )

    def _refuse_if_closing(self) -> None:
        if self._ending is not None or self.ended:
            raise SessionClosed("the session is closing")

    # ------------------------------------------------------------------------------------------- time

    def _turn_changed(self, step: Step) -> None:
        asked = any(isinstance(output, ToolResults | FollowUp | ReplyRequest) for output in step.outputs)
        self._clock.follow(self._conversation.machine, asked=asked)
        if self._ending is not None:
            self._finish_if_settled()

    def _time_is_up(self, timer: Timer) -> None:
        if isinstance(timer, HoldExpired):
            logger.warning("session %s: the provider is silent while %d calls wait: going on", self.name, self.owed)
        self.here(timer)

    def _silent_since(self) -> float | None:
        return self._clock.silent_since(self._conversation.machine)


def _must_be_heard(tools: Mapping[str, Tool]) -> bool:
    """Does any of these tools depend on when the agent's voice has been heard?"""
    return any(
        tool.spec.start is Start.AFTER_REPLY or tool.filler is not None or tool.spoken_progress
        for tool in tools.values()
    )
