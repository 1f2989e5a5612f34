"""One conversation with a provider: performs what a `Conversation` decides.

A session owns a transport, a conversation, the calls that run, and an outbox with one writer. Its heart is `_perform`,
which is synchronous: between a decision and its commands nothing else can happen. It is reached from a frame of the
provider, from the host, and from what happens here (a tool ends, a timer runs out, results have been sent).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

import anyio
import orjson

from .audio import AudioMeter, PlaybackClock
from .core.conversation import Conversation, Step
from .core.dialect import Agent, Delivery
from .core.events import (
    AgentAudio,
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
    LocalEvent,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ReplyDone,
    ReplyHeard,
    ReplyStarted,
    Run,
    SayAsked,
    Send,
    Sent,
    ServerEvent,
    SessionReady,
    Setup,
    SetupAccepted,
    SpeechStarted,
    SpeechStopped,
    Timer,
    ToolCalled,
    Transcript,
)
from .core.turn import User
from .errors import (
    ApplicationTooSlow,
    BridgeError,
    ConfigurationRefused,
    ProviderError,
    SessionClosed,
    TransportError,
)
from .outbox import Outbox
from .queue import EventQueue
from .refusals import refused
from .runner import Calls
from .running import Host, Running, ToolEvent
from .timers import Timers
from .tools.tool import Tool
from .transports import Transport
from .transports.websocket import WebSocketTransport

__all__ = ["AgentEvent", "Session", "SessionOptions"]

logger = logging.getLogger("bridge.session")


AgentEvent = ServerEvent | ToolEvent
"""What a host iterates over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Limits of one session. Times in seconds."""

    connect_timeout: float = 10.0
    """For the connection."""
    ready_timeout: float = 15.0
    """For the provider to become ready; it is documented to take up to 10."""
    update_timeout: float = 10.0
    """For the provider to acknowledge a change of settings."""
    owed_timeout: float = 5.0
    """On leaving: for results that are still owed."""
    end_timeout: float = 2.0
    """On leaving: for the provider to say that the session has ended."""
    max_events: int = 10_000
    """Events the host may leave untaken; beyond that the session ends with `ApplicationTooSlow`."""
    max_frame: int = 4 * 1024 * 1024
    """Bytes of a frame of the provider."""


_MALFORMED_LOGGED = 10
_SIGNS_OF_LIFE = (AgentAudio, Transcript, ToolCalled, ReplyStarted, ReplyDone, SpeechStarted, SpeechStopped)


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """A change that the provider has not answered yet."""

    sent: asyncio.Future[None]
    answer: asyncio.Future[SetupAccepted]


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
    ) -> None:
        self.id = secrets.token_hex(8)
        """Our name for this session, in logs and for tools."""
        self.provider_session_id = ""
        """The provider's name for it."""
        self.metadata = metadata
        self._agent = agent
        self._tools = tools
        self._calls = calls
        self._observers = observers
        self._options = options
        specs = tuple(tool.spec for tool in tools.values())
        self._conversation = Conversation(agent.dialect, specs, delivery=delivery)
        self._machine = self._conversation.machine
        """As it was when the timers were last looked after."""
        self._delivery = self._machine.delivery
        self._meter = AudioMeter(*agent.input_rate)
        self._sample_width = agent.input_rate[0]
        self._playback = PlaybackClock(*agent.output_rate)
        self._changes: deque[_Change] = deque()
        self._replacement: _Change | None = None
        """The change of our tools that waits for nobody to speak."""
        self._offers: set[asyncio.Task[None]] = set()
        self._malformed = 0

    # ------------------------------------------------------------------------------------------- life

    @asynccontextmanager
    async def open(self, api_key: str) -> AsyncIterator[Self]:
        """Connect and configure; end the session properly on leaving. For `Bridge`."""
        endpoint = self._agent.dialect.endpoint(self._agent.url, api_key)
        transport = await WebSocketTransport.open(
            endpoint, timeout=self._options.connect_timeout, max_size=self._options.max_frame
        )
        async with self.over(transport):
            yield self

    @asynccontextmanager
    async def over(self, transport: Transport) -> AsyncIterator[Self]:
        """The same over a connection that is there already; it is closed on leaving."""
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._outbox = Outbox(transport, self._sent)
        self._timers = Timers(self._deadline, self._time_is_up)
        self._running = Running(self._calls, self._host(), self._tools)
        self._events: EventQueue[AgentEvent] = EventQueue(self._options.max_events)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._over = asyncio.Event()
        self._settled = asyncio.Event()
        self._failure: Exception | None = None
        self._refusal: ProviderFailed | None = None
        self._closing = False
        self._ending: asyncio.Task[None] | None = None
        self._last_life = self._loop.time()
        # Tasks, not a task group: what the host raises in its block must reach it as it is.
        tasks = [self._loop.create_task(self._read()), self._loop.create_task(self._outbox.run())]
        try:
            await self._configure()
            yield self
            await self.end("the host left")
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(tasks)
        if self._failure is not None:
            raise self._failure

    async def _configure(self) -> None:
        self._perform(self._conversation.from_app(_encode(self._agent.setup())))
        try:
            async with asyncio.timeout(self._options.ready_timeout):
                await self._ready
        except TimeoutError:
            late = f"the provider did not become ready within {self._options.ready_timeout:g} s"
            raise TransportError(late) from None
        logger.info("session %s started: dialect %s", self.id, self._agent.dialect.name)

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
        self._closing = True
        if not self._over.is_set():
            await self._owed_settled()
            ends = self._agent.dialect.encode_client(EndSession())
            self._outbox.put(tuple(_encode(message) for message in ends))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.end_timeout):
                    await self._over.wait()
        self._stop(reason, self._failure)

    async def _owed_settled(self) -> None:
        """Wait, within bounds, until every call has its answer: a close must not race a result."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.owed_timeout):
                while self._machine.owed and not self._over.is_set():
                    self._settled.clear()
                    await self._settled.wait()

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
        self._closing = True
        self._perform(self._conversation.end(reason or str(failure)))
        self._outbox.close()
        self._over.set()
        self._settled.set()
        gone = failure or SessionClosed("the session has ended")
        changes = [*self._changes, *([self._replacement] if self._replacement else [])]
        waiting: list[asyncio.Future[Any]] = [self._ready, *(each for c in changes for each in (c.sent, c.answer))]
        for future in waiting:
            if not future.done():
                future.set_exception(gone)
                future.exception()
        self._events.close()

    async def _close(self, tasks: list[asyncio.Task[None]]) -> None:
        """Release everything, whatever happened before."""
        if self._ending is None and not self._over.is_set():
            # Left by an exception: nothing is waited for, but the provider must not go on billing.
            self._outbox.put(tuple(map(_encode, self._agent.dialect.encode_client(EndSession()))))
            with anyio.move_on_after(self._options.end_timeout):
                await self._outbox.drained()
            self._stop("the host failed", None)
        if self._ending is not None:
            await asyncio.wait([self._ending])
        await self._running.aclose()
        await self._transport.aclose()
        for task in (*tasks, *self._offers):
            task.cancel()
        await asyncio.wait([*tasks, *self._offers])
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

        Waits while the provider does not read. Raises `ValueError` for half samples, `SessionClosed` after the end.
        """
        if len(data) % self._sample_width:
            raise ValueError(
                f"{len(data)} bytes of audio are not whole samples of {self._sample_width} bytes: "
                "everything after the cut would be noise"
            )
        warning = self._meter.add(len(data), self._loop.time())
        if warning:
            logger.warning("session %s: %s", self.id, warning)
        await self._outbox.room()
        self._outbox.put((self._agent.dialect.encode_audio(data),))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message of the provider's own protocol, for what this class has no method for."""
        await self._outbox.room()
        step = self._conversation.from_app(_encode(message))
        if any(isinstance(event, Setup) for event in step.events):
            self._changes.append(self._change())
        self._perform(step)

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
            message = self._agent.update_message(**changes)
            step = self._conversation.from_app(_encode(message))
            self._changes.append(change := self._change())
            self._perform(step)
            await self._acknowledged(change)
        if tools is not None:
            await self._replace(tools)

    def offer(self, tools: Mapping[str, Tool]) -> None:
        """The same for tools alone, without waiting; what the provider does not agree to is logged. For `Bridge`."""
        if not self._closing:
            offering = self._loop.create_task(self._replace(tools))
            self._offers.add(offering)
            offering.add_done_callback(self._offered)

    def _offered(self, offering: asyncio.Task[None]) -> None:
        self._offers.discard(offering)
        if not offering.cancelled() and isinstance(error := offering.exception(), BridgeError) and not self._closing:
            logger.warning("session %s: its tools could not be replaced: %s", self.id, error)

    async def _replace(self, tools: Mapping[str, Tool]) -> None:
        step = self._conversation.replace_tools(tuple(tool.spec for tool in tools.values()))
        if not step.commands and not self._conversation.replacement_waits:
            raise ConfigurationRefused("the tools of this agent are configured at the provider and cannot be replaced")
        self._running.versions.offer(tools)
        self._replacement = change = self._replacement or self._change()
        self._perform(step)
        await asyncio.shield(change.sent)
        accepted = await self._acknowledged(change)
        wanted = {spec.name for spec in self._conversation.versions[-1]} & tools.keys()
        missing = wanted - set(wanted if accepted.tools is None else accepted.tools)
        if missing:
            raise ConfigurationRefused(f"the provider did not take these tools: {', '.join(sorted(missing))}")

    async def _acknowledged(self, change: _Change) -> SetupAccepted:
        try:
            async with asyncio.timeout(self._options.update_timeout):
                return await asyncio.shield(change.answer)
        except TimeoutError:
            limit = f"{self._options.update_timeout:g} s"
            raise ProviderError(f"the provider did not acknowledge the change within {limit}") from None

    def _change(self) -> _Change:
        """The provider answers changes in their order, so that one stays in line even if nobody waits for it."""
        change = _Change(self._loop.create_future(), self._loop.create_future())
        for future in (change.sent, change.answer):
            future.add_done_callback(lambda done: done.exception())  # somebody may ask for it, nobody has to
        return change

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
        if self._closing:
            raise SessionClosed("the session is closing")

    # ------------------------------------------------------------------------------------------- the heart

    async def _read(self) -> None:
        try:
            while True:
                self._perform(self._conversation.from_provider(await self._transport.receive()))
        except TransportError as lost:
            self._link_lost(lost)
        except Exception as fault:
            logger.exception("session %s: a fault of its own", self.id)
            self._stop("a fault of its own", fault)

    def _link_lost(self, lost: TransportError) -> None:
        if self._over.is_set():
            return
        self._here(LinkLost())
        failure = lost if self._refusal is None else refused(self._refusal)
        ending = self._ending is not None and self._refusal is None
        self._stop("the provider closed the connection", None if ending else failure)

    def _here(self, event: LocalEvent) -> bool:
        """Something happened on our side; true if anything was decided."""
        step = self._conversation.from_here(event)
        self._perform(step)
        return bool(step.outputs)

    def _sent(self, keys: tuple[CallKey, ...]) -> None:
        self._here(Sent(keys))

    def _perform(self, step: Step) -> None:
        self._observe(step)
        if self._replacement is not None and not self._conversation.replacement_waits:
            self._changes.append(self._replacement)
            self._replacement.sent.set_result(None)
            self._replacement = None
        for event in step.events:
            if isinstance(event, FromProvider):
                self._hear(event)
            elif isinstance(event, Sent):
                for key in event.keys:
                    self._running.settled(key, "sent")
        if self._over.is_set():
            return
        asked = False
        for command in step.commands:
            if isinstance(command, Send):
                asked = True
                self._outbox.put(command.frames, command.keys)
            elif isinstance(command, Run):
                self._running.start(command, self._conversation.tools)
            elif isinstance(command, Discard):
                self._running.discard(command.key, command.reason.value)
        if self._conversation.machine is not self._machine:
            self._machine = self._conversation.machine
            self._turn_changed(asked)

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
            case ReplyDone(interrupted=True):
                self._playback.flush()
            case SessionReady(session_id):
                self.provider_session_id = session_id
                if not self._ready.done():
                    self._ready.set_result(None)
            case SetupAccepted():
                self._running.versions.keep(self._conversation.versions)
                if self._changes:
                    self._changes.popleft().answer.set_result(event)
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

    def _provider_failed(self, event: ProviderFailed) -> None:
        said = event.code or "an error"
        logger.warning("session %s: the provider reports %s %s: %.200s", self.id, said, event.param, event.text)
        if not self._ready.done():
            # Nothing survives an error in the first message; the provider closes next, or hangs.
            self._refusal = event
            self._stop("refused", refused(event))
        elif event.kind is Failure.SETUP and self._changes:
            self._running.versions.keep(self._conversation.versions)
            self._changes.popleft().answer.set_exception(refused(event))
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
        if not self._machine.owed:
            self._settled.set()

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
