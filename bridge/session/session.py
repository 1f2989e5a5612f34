"""One conversation with a provider: performs what a `Conversation` decides.

A session owns a conversation, the calls that run, and one connection after the other. Its heart is `_perform`, which is
synchronous: between a decision and its commands nothing else can happen. It is reached from a frame of the provider,
from the host, and from what happens here (a tool ends, a timer runs out, results have been sent, the link drops).

    OPENING --ready--> READY --end--> SETTLING --nothing is owed--> PARTING --> OVER

In READY and SETTLING the connection may drop. Another one is made: the session is resumed over it, or, if the provider
has lost the session, a fresh one is configured like the first. The conversation, the tools that run and the host go on
meanwhile; what is left of an old connection touches nothing, since it bears another number than the present one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import warnings
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Self, assert_never

import anyio
import orjson

from ..core.conversation import Conversation, Step
from ..core.dialect import Agent, Delivery
from ..core.events import (
    AgentAudio,
    ApprovalAnswer,
    ApprovalWanted,
    AskExpired,
    CallKey,
    Discard,
    EndSession,
    Failure,
    Frame,
    FromProvider,
    GraceExpired,
    HoldExpired,
    LinkLost,
    LinkResumed,
    LocalEvent,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ReplyDone,
    ReplyHeard,
    ReplyStarted,
    Resume,
    Run,
    SayAsked,
    Send,
    Sent,
    ServerEvent,
    SessionLost,
    SessionReady,
    Setup,
    SetupAccepted,
    SpeechStarted,
    SpeechStopped,
    Timer,
    ToolCalled,
    Transcript,
)
from ..core.turn import Link, User
from ..errors import (
    ApplicationTooSlow,
    BridgeError,
    ConfigurationRefused,
    ProviderError,
    SessionClosed,
    TransportError,
)
from ..runner.approvals import Approvals
from ..runner.runner import Calls
from ..tools.tool import CallContext, Tool
from ..transports import Line, Transport
from .audio import AudioMeter, PlaybackClock
from .changes import Change, Changes
from .connection import Answer, Connection, Opening
from .consent import Consent
from .dialing import dial
from .inherited import Inherited, seeded
from .options import SessionOptions
from .queue import EventQueue
from .reconnect import (
    ConnectionEvent,
    ConnectionLost,
    ConnectionResumed,
    LostSession,
    Resumable,
    described,
    is_drop,
    lost_calls,
)
from .recovery import Recovery, Survivor
from .refusals import refused
from .running import Host, Running, ToolEvent
from .timers import Timers

__all__ = ["AgentEvent", "Session", "SessionOptions"]

logger = logging.getLogger("bridge.session")


AgentEvent = ServerEvent | ToolEvent | ConnectionEvent
"""What a host iterates over."""


_MALFORMED_LOGGED = 10
_SIGNS_OF_LIFE = (AgentAudio, Transcript, ToolCalled, ReplyStarted, ReplyDone, SpeechStarted, SpeechStopped)


class _Phase(Enum):
    OPENING = "the provider is not ready yet"
    READY = "under way"
    SETTLING = "ending: what is owed is waited for"
    PARTING = "the provider has been told of the end"
    OVER = "over"


class Session:
    """Iterate over it for what happens; call its methods to speak, to change it, to end it.

    Made by `connect` and by `Bridge.session`.
    """

    def __init__(
        self,
        agent: Agent,
        tools: Mapping[str, Tool],
        calls: Calls,
        *,
        observers: tuple[Callable[[Session, Step], None], ...],
        metadata: Mapping[str, Any],
        delivery: Delivery | None,
        options: SessionOptions,
        approvals: Approvals | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        self.id = secrets.token_hex(8)
        """Our name for this session, in logs and for tools.

        Where calls keep their keys across processes, so must it: then it is made of the provider's own, once it is
        known.
        """
        self._early: list[Step] | None = [] if agent.dialect.delivery.unique_ids else None
        """What happened before that, and nobody has observed."""
        self.provider_session_id = ""
        """The provider's name for it."""
        self.metadata = metadata
        self._agent = agent
        self._tools = tools
        self._calls = calls
        self._observers = observers
        self._options = options
        self._approvals = approvals
        specs = tuple(tool.spec for tool in tools.values())
        self._conversation = Conversation(agent.dialect, specs, delivery=delivery)
        self._machine = self._conversation.machine
        """As it was when the timers were last looked after."""
        self._delivery = self._machine.delivery
        self._meter = AudioMeter(*agent.input_rate)
        self._sample_width = agent.input_rate[0]
        self._audio_lost = 0
        self._playback = PlaybackClock(*agent.output_rate)
        self._offers: set[asyncio.Task[None]] = set()
        self._malformed = 0
        self._url = agent.url
        """For every connection: another one may be in another country."""
        self._api_key = self._resume_token = ""
        self._inherited = inherited
        """The session of another process that goes on here."""
        if inherited is not None:
            self.provider_session_id = inherited.resumable.provider_session_id
            self._resume_token = inherited.resumable.token
        self._recovery: Recovery[Line] | None = None

    # ------------------------------------------------------------------------------------------- life

    @property
    def delivery(self) -> Delivery:
        """How the provider wants its results: the dialect's switches, or the ones given instead."""
        return self._delivery

    @asynccontextmanager
    async def open(self, api_key: str) -> AsyncIterator[Self]:
        """Connect and configure; end the session properly on leaving. For `Bridge`."""
        self._api_key = api_key
        transport = await self._dial(self._resume_token or api_key)
        if self._options.reconnect_timeout > 0 and isinstance(transport, Line):
            # Only what runs through one connection drops with it; over HTTP a transport finds its way back by itself.
            self._recovery = Recovery(self._survivor(), transport, self._options)
        async with self.over(transport):
            yield self

    async def _dial(self, credentials: str) -> Transport:
        return await dial(self._agent.dialect, self._url, credentials, self._options)

    @asynccontextmanager
    async def over(self, transport: Transport) -> AsyncIterator[Self]:
        """The same over a connection that is there already; it is closed on leaving, and not replaced if it drops."""
        self._loop = asyncio.get_running_loop()
        self._timers = Timers(self._deadline, self._time_is_up)
        self._running = Running(self._calls, self._host(), self._tools)
        self._consent = Consent(self._approvals, self._call_context, self._decided)
        self._events: EventQueue[AgentEvent] = EventQueue(self._options.max_events)
        self._changes = Changes()
        self._phase = _Phase.OPENING
        self._over = asyncio.Event()
        self._moved = asyncio.Event()
        self._failure: Exception | None = None
        self._refusal: ProviderFailed | None = None
        self._ending: asyncio.Task[None] | None = None
        self._last_life = self._loop.time()
        # It runs in tasks, not in a task group: what the host raises in its block must reach it as it is.
        self._connection = Connection(self._heard, self._sent, self._connection_lost)
        self._connection.take(transport, Opening.SETUP if self._inherited is None else Opening.RESUME)
        try:
            await self._configure()
            yield self
            await self.end("the host left")
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()
        if self._failure is not None:
            raise self._failure

    async def _configure(self) -> None:
        if self._inherited is None:
            self._perform(self._conversation.from_app(_encode(self._agent.setup())))
        else:
            self._take_up(self._inherited)
        answer = await self._answered()
        if isinstance(answer, ProviderFailed):
            raise refused(answer)
        if self._phase is _Phase.OPENING:
            self._phase = _Phase.READY
        if self._recovery is not None and self._inherited is None:
            self._recovery.is_up()
        logger.info("session %s started: dialect %s", self.id, self._agent.dialect.name)

    def _take_up(self, inherited: Inherited) -> None:
        """Resume a session that another process has begun. It was configured there: here the setup is only read."""
        self._lost_at = self._loop.time()
        self._conversation.from_app(_encode(self._agent.setup()))
        self._machine, step = seeded(self._conversation.machine, inherited.calls)
        self._conversation.machine = self._machine
        self._observe(step)
        self._say(Resume(self.provider_session_id, self._resume_token))

    @property
    def resumable(self) -> Resumable:
        """What another process needs to go on with this session should this one die; new after every connection."""
        return Resumable(self.id, self.provider_session_id, self._resume_token)

    async def end(self, reason: str = "") -> None:
        """End the session: results that are owed are waited for, the provider is told; all within bounds.

        May be called at any time, by tools too (which then must not wait for it: see `CallContext.end_session`).
        """
        self._end_soon(reason)
        assert self._ending is not None
        await asyncio.shield(self._ending)

    def _end_soon(self, reason: str) -> None:
        if self._ending is None:
            self._ending = self._loop.create_task(self._end(reason))

    async def _end(self, reason: str) -> None:
        if not self._over.is_set():
            self._phase = _Phase.SETTLING
            # A close must not race a result, nor cut off a tool in the middle of what it does.
            await self._until(lambda: not self._machine.owed or self._over.is_set(), self._options.owed_timeout)
        if self._phase is _Phase.SETTLING and not self._down:
            self._phase = _Phase.PARTING
            self._say(EndSession())
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.end_timeout):
                    await self._over.wait()
        self._stop(reason, self._failure)

    async def _until(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait until the turn has come so far, for so long at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true():
                    self._moved.clear()
                    await self._moved.wait()

    def _stop(self, reason: str, failure: Exception | None) -> None:
        """The session is over, well or not: nothing is sent any more, and the host's iteration ends."""
        if self._conversation.machine.link.value != "ended":
            logger.log(
                logging.INFO if failure is None else logging.WARNING,
                "session %s ended: %s",
                self.id,
                failure or reason or "asked for",
            )
        self._failure = self._failure or failure
        self._phase = _Phase.OVER
        self._perform(self._conversation.end(reason or str(failure)))
        self._connection.outbox.close()
        if self._recovery is not None:
            self._recovery.stop()
        self._consent.over()
        self._over.set()
        self._moved.set()
        gone = failure or SessionClosed("the session has ended")
        self._changes.fail(gone)
        self._connection.fails(gone)
        self._events.close()

    async def _close(self) -> None:
        """Release everything, whatever happened before."""
        if self._ending is None and not self._over.is_set():
            # Left by an exception: nothing is waited for, but the provider must not go on billing.
            self._say(EndSession())
            with anyio.move_on_after(self._options.end_timeout):
                await self._connection.outbox.drained()
            self._stop("the host failed", None)
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self._consent.aclose()
        await self._running.aclose()
        if self._recovery is not None:
            await self._recovery.aclose()
        for offering in self._offers:
            offering.cancel()
        await asyncio.gather(*self._offers, return_exceptions=True)
        await self._connection.aclose()
        self._timers.stop_all()

    # ------------------------------------------------------------------------------------------- what the host does

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        try:
            return await self._events.take()
        except StopAsyncIteration:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure from None
            raise

    async def run(self) -> None:
        """Let the session go on until it ends, for hosts that do not care about its events."""
        async for _ in self:
            pass

    async def send_audio(self, data: bytes) -> None:
        """Send a piece of the user's voice, in whole samples of the session's input format, at the pace it is spoken.

        Waits while the provider does not read. While there is no connection the audio is dropped, and its length told
        in `ConnectionResumed`: what was said into the gap would only delay what is said after it. Raises `ValueError`
        for half samples, `SessionClosed` after the end.
        """
        if len(data) % self._sample_width:
            raise ValueError(
                f"{len(data)} bytes of audio are not whole samples of {self._sample_width} bytes: "
                "everything after the cut would be noise"
            )
        warning = self._meter.add(len(data), self._loop.time())
        if warning:
            logger.warning("session %s: %s", self.id, warning)
        await self._room()
        if self._down:
            self._audio_lost += len(data)
        else:
            self._connection.outbox.put((self._agent.dialect.encode_audio(data),))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message of the provider's own protocol, for what this class has no method for.

        Waits for a connection. What a fresh session is to be told of it again is the host's to say: see
        `ConnectionResumed`. Raises `SessionClosed` after the end.
        """
        await self._room()
        await self._until(lambda: not self._down, self._options.reconnect_timeout)
        self._refuse_if_over()
        frame = _encode(message)
        if any(isinstance(event, Setup) for event in self._agent.dialect.decode_client(message)):
            self._changes.add(frame)
            self._send_changes()
        else:
            self._perform(self._conversation.from_app(frame))

    async def _room(self) -> None:
        await self._connection.outbox.room()
        self._refuse_if_over()

    def _refuse_if_over(self) -> None:
        if self._over.is_set():
            raise SessionClosed("the session has ended: nothing can be sent any more")

    def say(self, instructions: str) -> None:
        """Ask the agent to speak about this, as soon as that talks over nobody. Does not wait."""
        self._refuse_if_closing()
        self._here(SayAsked(instructions))

    async def update(self, *, tools: Mapping[str, Tool] | None = None, **changes: Any) -> None:
        """Change settings, or replace the tools, of the running session; returns when the provider has agreed.

        New tools are announced as soon as nobody speaks; of several changes that wait for that, only the last is. Calls
        that run go on under the definition they were called with. Raises `ConfigError` for what cannot change,
        `ConfigurationRefused` if the provider does not agree; everything is then as it was.
        """
        self._refuse_if_closing()
        if changes:
            change = self._changes.add(_encode(self._agent.update_message(**changes)), changes)
            self._send_changes()
            await self._acknowledged(change)
        if tools is not None:
            await self._replace(tools)

    def offer(self, tools: Mapping[str, Tool]) -> None:
        """The same for tools alone, without waiting; what the provider does not agree to is logged. For `Bridge`."""
        if self._phase in (_Phase.OPENING, _Phase.READY):
            offering = self._loop.create_task(self._replace(tools))
            self._offers.add(offering)
            offering.add_done_callback(self._offered)

    def _offered(self, offering: asyncio.Task[None]) -> None:
        self._offers.discard(offering)
        error = None if offering.cancelled() else offering.exception()
        if isinstance(error, BridgeError) and self._phase is _Phase.READY:
            logger.warning("session %s: its tools could not be replaced: %s", self.id, error)

    async def _replace(self, tools: Mapping[str, Tool]) -> None:
        step = self._conversation.replace_tools(tuple(tool.spec for tool in tools.values()))
        if not step.commands and not self._conversation.replacement_waits:
            raise ConfigurationRefused("the tools of this agent are configured at the provider and cannot be replaced")
        self._running.versions.offer(tools)
        change = self._changes.replace()
        self._perform(step)
        accepted = await self._acknowledged(change)
        wanted = {spec.name for spec in self._conversation.versions[-1]} & tools.keys()
        missing = wanted - set(wanted if accepted.tools is None else accepted.tools)
        if missing:
            raise ConfigurationRefused(f"the provider did not take these tools: {', '.join(sorted(missing))}")

    async def _acknowledged(self, change: Change) -> SetupAccepted:
        await asyncio.shield(change.sent)
        try:
            async with asyncio.timeout(self._options.update_timeout):
                return await asyncio.shield(change.answer)
        except TimeoutError:
            limit = f"{self._options.update_timeout:g} s"
            raise ProviderError(f"the provider did not acknowledge the change within {limit}") from None

    def _send_changes(self) -> None:
        """Changes of settings, in their order; without a connection they wait for one."""
        if not self._down:
            for frame in self._changes.send():
                self._perform(self._conversation.from_app(frame))

    def _host(self) -> Host:
        return Host(
            self.id,
            self.metadata,
            self._here,
            self._deliver,
            self._refuse_if_closing,
            self._end_soon,
            self._silent_since,
        )

    def _refuse_if_closing(self) -> None:
        if self._phase not in (_Phase.OPENING, _Phase.READY):
            raise SessionClosed("the session is closing")

    # ------------------------------------------------------------------------------------------- the connection

    @property
    def _down(self) -> bool:
        """Is there no connection on which the session is under way?"""
        return self._conversation.machine.link is Link.DOWN

    async def _answered(self) -> Answer:
        return await self._connection.answered(self._options.ready_timeout)

    def _say(self, event: Resume | EndSession) -> None:
        said = self._agent.dialect.encode_client(event)
        self._connection.outbox.put(tuple(_encode(message) for message in said))

    def _heard(self, frame: Frame) -> None:
        try:
            step = self._conversation.from_provider(frame)
            self._perform(step)
            if self._down and any(isinstance(event, SessionReady) for event in step.events):
                self._resumed()
        except Exception as fault:
            self._failed(fault)

    def _sent(self, keys: tuple[CallKey, ...]) -> None:
        self._here(Sent(keys))

    def _connection_lost(self, lost: TransportError) -> None:
        if self._over.is_set():
            return
        if self._down:
            self._connection.fails(lost)  # so much for this try; the recovery makes the next
            return
        if self._recovery is not None and self._survives(lost):
            self._recovery.lost(lost)
            return
        self._here(LinkLost())
        failure = refused(self._refusal) if self._refusal else None if self._ending else lost
        self._stop("the provider closed the connection", failure)

    def _survives(self, lost: TransportError) -> bool:
        under_way = self._phase in (_Phase.READY, _Phase.SETTLING)
        return under_way and self._refusal is None and is_drop(lost.close_code)

    def _failed(self, fault: Exception) -> None:
        logger.exception("session %s: a fault of its own", self.id, exc_info=fault)
        self._stop("a fault of its own", fault)

    # ------------------------------------------------------------------------------------------- another connection

    def _survivor(self) -> Survivor[Line]:
        return Survivor(
            self.id,
            self._connect,
            self._link_lost,
            self._resumable,
            self._open_on,
            self._answered,
            self._leave_connection,
            self._forgotten,
            self._quiet,
            self._give_up,
            self._failed,
        )

    async def _connect(self, opening: Opening) -> Line:
        token = self._resume_token if opening is Opening.RESUME else ""
        line = await self._dial(token or self._api_key)
        assert isinstance(line, Line), "only a line is replaced"
        return line

    def _link_lost(self, lost: TransportError) -> None:
        """Without a connection, everything but the provider goes on."""
        self._connection.mute()
        self._lost_at = self._loop.time()
        self._changes.connection_lost()
        self._deliver(ConnectionLost(lost.close_code))
        self._here(LinkLost())
        self._moved.set()

    def _resumable(self) -> bool:
        return any(self._agent.dialect.encode_client(Resume(self.provider_session_id, self._resume_token)))

    def _open_on(self, line: Line, opening: Opening) -> None:
        """Say the first message on a new connection."""
        self._connection.take(line, opening)
        match opening:
            case Opening.RESUME:
                self._say(Resume(self.provider_session_id, self._resume_token))
            case Opening.SETUP:
                self._perform(self._conversation.begin_again(_encode(self._agent.setup())))
            case _:
                assert_never(opening)

    async def _leave_connection(self) -> None:
        self._changes.connection_lost()
        await self._connection.aclose()

    async def _forgotten(self) -> None:
        """The provider has lost the session; the next one is described as the host wants it."""
        if self._ending is not None:
            raise SessionClosed("the session has ended")
        lost = LostSession(self.provider_session_id, self._changes.settings, lost_calls(self._machine.owed))
        self._here(SessionLost())
        agent = await described(self._options.afresh, lost, self._agent, self._options.ready_timeout, self.id)
        if agent is not None:
            self._agent, self._changes.settings = agent, {}
        elif lost.changes:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # whoever changed it has been warned
                self._changes.repeat(_encode(self._agent.update_message(**lost.changes)))

    async def _quiet(self, seconds: float) -> bool:
        """Wait until nobody speaks, for so long at most. Is the session still under way?"""
        await self._until(lambda: self._machine.window_open or self._phase is not _Phase.READY, seconds)
        return self._phase is _Phase.READY and not self._down

    def _give_up(self, failure: BridgeError) -> None:
        if not self._over.is_set():
            self._stop("the connection was lost", None if self._ending else failure)

    def _resumed(self) -> None:
        """The session goes on. Changes come first, so that they are answered in the order of their line."""
        self._last_life = self._loop.time()
        self._changes.taken_for_granted()
        for frame in self._changes.send():
            self._perform(self._conversation.from_app(frame))
        self._here(LinkResumed())
        gap = self._last_life - self._lost_at
        width, rate = self._agent.input_rate
        lost, self._audio_lost = self._audio_lost, 0
        opening = self._connection.opening
        logger.info("session %s goes on after %.1f s, %s", self.id, gap, opening.value)
        self._deliver(ConnectionResumed(opening is Opening.SETUP, gap, lost / width / rate))
        if self._recovery is not None:
            self._recovery.is_up()

    # ------------------------------------------------------------------------------------------- the heart

    def _here(self, event: LocalEvent) -> bool:
        """Something happened on our side; true if anything was decided."""
        step = self._conversation.from_here(event)
        self._perform(step)
        return bool(step.outputs)

    def _perform(self, step: Step) -> None:
        if self._early is None:
            self._observe(step)
        else:
            self._before_its_name(self._early, step)
        self._running.saw(step)
        if self._changes.tools_wait and not self._conversation.replacement_waits:
            self._changes.tools_sent()
        for event in step.events:
            if isinstance(event, FromProvider) and not isinstance(event, ProviderEnded):
                self._hear(event)
            elif isinstance(event, ApprovalAnswer):
                self._consent.answered(event)
        if self._over.is_set():
            return
        asked = False
        for command in step.commands:
            if isinstance(command, Send):
                asked = True
                self._connection.outbox.put(command.frames, command.keys)
            elif isinstance(command, Run):
                forbidden = self._consent.forbids(command.call)
                self._running.start(command, self._conversation.tools, forbidden=forbidden)
            elif isinstance(command, Discard):
                self._running.discard(command.key, command.reason.value)
        if self._conversation.machine is not self._machine:
            self._machine = self._conversation.machine
            self._turn_changed(asked)
        for event in step.events:
            if isinstance(event, ProviderEnded):
                self._hear(event)  # what has become of its calls is told before

    def _before_its_name(self, early: list[Step], step: Step) -> None:
        """Keep what happens until the session has its name, or has ended without one."""
        early.append(step)
        named = next((event.session_id for event in step.events if isinstance(event, SessionReady)), "")
        if named:
            self.id = f"{self._agent.dialect.name}:{named}"
            self._running = Running(self._calls, self._host(), self._tools)
        if named or self._conversation.machine.link is Link.ENDED:
            self._early = None
            for each in early:
                self._observe(each)

    def _observe(self, step: Step) -> None:
        for observer in self._observers:
            try:
                observer(self, step)
            except Exception:
                # Whoever only watches must not cost a caller the line.
                logger.exception("session %s: an observer failed and is left out from now on", self.id)
                self._observers = tuple(each for each in self._observers if each is not observer)

    def _hear(self, event: ServerEvent) -> None:
        """Something the provider said."""
        now = self._loop.time()
        if isinstance(event, _SIGNS_OF_LIFE):
            self._last_life = now
        match event:
            case AgentAudio(data):
                self._playback.add(len(data), now)
            case ReplyDone(interrupted):
                self._consent.over()
                if interrupted:
                    self._playback.flush()
            case ApprovalWanted(call):
                self._consent.asked(call, self._running.versions.find(call.name))
            case SessionReady(session_id, token):
                self.provider_session_id = session_id or self.provider_session_id
                self._resume_token = token
                self._connection.answers(event)
            case SetupAccepted():
                self._running.versions.keep(self._conversation.versions)
                self._changes.accepted(event)
            case ProviderFailed() | ProviderEnded() if self._down:
                self._connection.answers(event)  # the end of a try, and no more
                return
            case ProviderFailed():
                self._provider_failed(event)
            case ProviderEnded():
                self._deliver(event)
                self._stop("the provider ended it", None)
                return
            case Malformed(reason):
                self._malformed += 1
                if self._malformed <= _MALFORMED_LOGGED:
                    logger.warning("session %s: the provider sent something broken: %s", self.id, reason)
        self._deliver(event)

    def _call_context(self, key: CallKey, name: str) -> CallContext:
        return CallContext(session_id=self.id, key=key, tool=name, metadata=self.metadata)

    def _decided(self, answer: ApprovalAnswer) -> None:
        """The provider is told whether a call may be made that it has asked about."""
        if not self._over.is_set():
            for message in self._agent.dialect.encode_client(answer):
                self._perform(self._conversation.from_app(_encode(message)))

    def _provider_failed(self, event: ProviderFailed) -> None:
        said = event.code or "an error"
        logger.warning("session %s: the provider reports %s %s: %.200s", self.id, said, event.param, event.text)
        if self._connection.opens:
            # Nothing survives an error in answer to the first message; the provider closes next, or hangs.
            self._refusal = event
            self._stop("refused", refused(event))
        elif event.kind is Failure.SETUP and self._changes.refused(refused(event)):
            self._running.versions.keep(self._conversation.versions)
        elif event.fatal:
            self._refusal = event

    def _deliver(self, event: AgentEvent) -> None:
        """To the host, which must not keep the reader waiting."""
        if not self._events.put(event):
            many = self._options.max_events
            self._failure = ApplicationTooSlow(f"{many} events were not taken: iterate over the session, or run() it")
            self._events.close()
            self._end_soon("")

    # ------------------------------------------------------------------------------------------- time

    def _turn_changed(self, asked: bool) -> None:
        if asked:
            self._timers.stop(AskExpired())  # every ask has its full time
        self._timers.keep(self._machine.timers())
        self._moved.set()

    def _deadline(self, timer: Timer, since: float) -> float:
        match timer:
            case GraceExpired():
                return since + self._delivery.grace
            case AskExpired():
                return since + self._delivery.ask_timeout
            case ReplyHeard():
                return max(since, self._playback.end)
            case HoldExpired():
                speaking = self._machine.user is User.SPEAKING
                return self._last_life + (self._delivery.max_speech if speaking else self._delivery.max_hold)

    def _time_is_up(self, timer: Timer) -> None:
        if isinstance(timer, HoldExpired):
            waiting = len(self._machine.owed)
            logger.warning("session %s: the provider is silent while %d calls wait: going on", self.id, waiting)
        self._here(timer)

    def _silent_since(self) -> float | None:
        """Since when nobody has been speaking; None while somebody is."""
        if not self._conversation.machine.window_open:
            return None
        return max(self._last_life, self._playback.end)


def _encode(message: Mapping[str, Any]) -> Frame:
    return orjson.dumps(message).decode()
