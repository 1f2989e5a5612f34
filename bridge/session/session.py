"""One conversation with a provider, as its host has it: opened, iterated over, spoken to, changed and ended.

A session puts its parts together, and has little to decide itself. What a frame or an event comes to is the business of
its conversation, which is performed in `performing`; what the provider says is passed on in `hearing`; what time means
is in `clock`; what the host changes is in `updates`.

How far it has come is in `standing`. Once it is under way the connection may drop: see `survival`. Another one is made:
the session is resumed over it, or, if the provider has lost the session, a fresh one is configured like the first. What
is left of an old connection touches nothing, since it bears another number than the present one. How the session ends
is in `ending`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from ..core.conversation import Conversation, Step
from ..core.dialect import Agent, Delivery
from ..core.events import (
    CallConcluded,
    CallKey,
    Frame,
    LocalEvent,
    ProviderEnded,
    ProviderFailed,
    SayAsked,
    Sent,
    ServerEvent,
    SessionReady,
    Setup,
    ToolResult,
)
from ..core.messages import encode
from ..errors import ApplicationTooSlow, ProviderError
from ..tools.tool import CallContext, Tool
from ..transports import Line, Transport
from .audio import Microphone
from .clock import Ear, TurnClock
from .connection import Connection, Opening
from .consent import Asking, Consent
from .dialogue import Dialogue
from .ending import Ending
from .hearing import Hearing
from .inherited import Inherited, inherited_key
from .observers import Observers
from .options import SessionOptions
from .peer import Peer
from .performing import Performer
from .queue import EventQueue
from .reconnect import ConnectionEvent, Resumable
from .refusals import refused
from .running import CallsHere, Host, Running, ToolEvent
from .standing import Phase, Standing
from .survival import Survival
from .updates import Updates

__all__ = ["AgentEvent", "Session", "SessionOptions"]

logger = logging.getLogger("bridge.session")


AgentEvent = ServerEvent | ToolEvent | ConnectionEvent
"""What a host iterates over."""


class Session:
    """Iterate over it for what happens; call its methods to speak, to change it, to end it.

    Made by `connect` and by `Bridge.session`.
    """

    def __init__(
        self,
        agent: Agent,
        tools: Mapping[str, Tool],
        calls: CallsHere,
        *,
        observers: tuple[Callable[[Session, Step], None], ...],
        metadata: Mapping[str, Any],
        delivery: Delivery | None,
        options: SessionOptions,
        approvals: Asking | None = None,
        inherited: Inherited | None = None,
    ) -> None:
        self.metadata = metadata
        self._options = options
        self._approvals = approvals
        self._inherited = inherited
        """The session of another process that goes on here."""
        self._standing = Standing(inherited.resumable.session if inherited else secrets.token_hex(8))
        self._peer = Peer(agent, options, inherited.resumable if inherited else None)
        specs = tuple(tool.spec for tool in tools.values())
        self._conversation = Conversation(agent.dialect, specs, delivery=delivery)
        self._delivery = self._conversation.machine.delivery
        watching = (partial(observer, self) for observer in observers)
        self._observers = Observers(self._standing, watching, waiting=agent.dialect.delivery.unique_ids)
        self._microphone = Microphone(*agent.input_rate)
        self._tools = tools
        self._calls = calls

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def id(self) -> str:
        """Our name for this session, in logs and for tools.

        Where calls keep their keys across processes, so must it: then it is made of the provider's own, once it is
        known.
        """
        return self._standing.id

    @property
    def provider_session_id(self) -> str:
        """The provider's name for it."""
        return self._peer.session_id

    @property
    def delivery(self) -> Delivery:
        """How the provider wants its results: the dialect's switches, or the ones given instead."""
        return self._delivery

    @property
    def resumable(self) -> Resumable:
        """What another process needs to go on with this session should this one die; new after every connection."""
        return Resumable(self.id, self._peer.session_id, self._peer.resume_token)

    # ------------------------------------------------------------------------------------------- its beginning

    @asynccontextmanager
    async def open(self, api_key: str) -> AsyncIterator[Self]:
        """Connect and configure; end the session properly on leaving. For `Bridge`."""
        self._peer.api_key = api_key
        transport = await self._peer.dial(self._opening)
        # Only what runs through one connection drops with it; over HTTP a transport finds its way back by itself.
        replaced = self._options.reconnect_timeout > 0
        async with self._living(transport, transport if replaced and isinstance(transport, Line) else None):
            yield self

    @asynccontextmanager
    async def over(self, transport: Transport) -> AsyncIterator[Self]:
        """The same over a connection that is there already; it is closed on leaving, and not replaced if it drops."""
        async with self._living(transport, None):
            yield self

    @asynccontextmanager
    async def _living(self, transport: Transport, replaceable: Line | None) -> AsyncIterator[None]:
        # It runs in tasks, not in a task group: what the host raises in its block must reach it as it is.
        self._put_together()
        if replaceable is not None:
            self._survival.cover(replaceable)
        self._connection.take(transport, self._opening)
        try:
            await self._configure()
            yield
            await self.end("the host left")
        finally:
            await self._ending.aclose()
        if self._standing.failure is not None:
            raise self._standing.failure

    @property
    def _opening(self) -> Opening:
        return Opening.SETUP if self._inherited is None else Opening.RESUME

    def _put_together(self) -> None:
        options, standing, conversation = self._options, self._standing, self._conversation
        self._loop = asyncio.get_running_loop()
        self._events: EventQueue[AgentEvent] = EventQueue(options.max_events)
        self._connection = Connection(self._heard, self._sent, lambda lost: self._survival.lost(lost))
        self._dialogue = dialogue = Dialogue(conversation, self._peer, self._connection)
        ear = Ear(self._peer.agent.output_rate)
        self._clock = clock = TurnClock(conversation.machine, ear, lambda timer: self._performer.time_is_up(timer))
        running = Running(self._calls, self._host(), self._tools)
        consent = Consent(self._approvals, self._call_context, lambda answer: self._performer.decided(answer))
        self._updates = updates = Updates(standing, dialogue, running.versions, self._perform, options.update_timeout)
        hearing = Hearing(standing, dialogue, ear, consent, updates, self._deliver, self._stop)
        self._performer = performer = Performer(
            standing, dialogue, self._observers, running, consent, clock, updates, hearing
        )
        self._survival = survival = Survival(
            standing, dialogue, performer, self._microphone, options, self._deliver, self._stop, self._failed
        )
        self._ending = Ending(standing, dialogue, performer, survival, self._events, options)

    async def _configure(self) -> None:
        if self._inherited is None:
            self._performer.say(self._peer.setup())
        else:
            self._survival.take_up(self._inherited)
        answer = await self._connection.answered(self._options.ready_timeout)
        match answer:
            case ProviderFailed():
                raise refused(answer, self._peer.agent.api_key_env)
            case ProviderEnded():  # in answer to a resume; else it has ended this session already
                raise ProviderError("the session cannot go on here: the provider has ended it")
        if self._standing.phase is Phase.OPENING:
            self._standing.phase = Phase.READY
        if self._inherited is None:
            self._survival.is_up()
        logger.info("session %s started: dialect %s", self.id, self._peer.dialect.name)

    # ------------------------------------------------------------------------------------------- its end

    async def end(self, reason: str = "") -> None:
        """End the session: results that are owed are waited for, the provider is told; all within bounds.

        May be called at any time, by tools too (which then must not wait for it: see `CallContext.end_session`).
        """
        await asyncio.shield(self._ending.soon(reason))

    # ------------------------------------------------------------------------------------------- what the host hears

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        try:
            return await self._events.take()
        except StopAsyncIteration:
            failure, self._standing.failure = self._standing.failure, None
            if failure is not None:
                raise failure from None
            raise

    async def run(self) -> None:
        """Let the session go on until it ends, for hosts that do not care about its events."""
        async for _ in self:
            pass

    def _deliver(self, event: AgentEvent) -> None:
        """To the host, which must not keep the reader waiting."""
        if not self._events.put(event):
            many = self._options.max_events
            slow = ApplicationTooSlow(f"{many} events were not taken: iterate over the session, or run() it")
            self._standing.failure = slow
            self._events.close()
            self._end_soon("")

    # ------------------------------------------------------------------------------------------- what the host says

    async def send_audio(self, data: bytes) -> None:
        """Send a piece of the user's voice, in whole samples of the session's input format, at the pace it is spoken.

        Waits while the provider does not read. While there is no connection the audio is dropped, and its length told
        in `ConnectionResumed`: what was said into the gap would only delay what is said after it. Raises `ValueError`
        for half samples, `SessionClosed` after the end.
        """
        warning = self._microphone.sends(len(data), self._loop.time())
        if warning:
            logger.warning("session %s: %s", self.id, warning)
        await self._room()
        if self._dialogue.is_down:
            self._microphone.drops(len(data))
        else:
            self._connection.outbox.put((self._peer.dialect.encode_audio(data),))

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a message of the provider's own protocol, for what this class has no method for.

        Waits for a connection. What a fresh session is to be told of it again is the host's to say: see
        `ConnectionResumed`. Raises `SessionClosed` after the end.
        """
        await self._room()
        await self._standing.until(lambda: not self._dialogue.is_down, self._options.reconnect_timeout)
        self._standing.refuse_if_over()
        frame = encode(message)
        if any(isinstance(event, Setup) for event in self._peer.dialect.decode_client(message)):
            self._updates.repeat(frame)
        else:
            self._performer.say(frame)

    async def _room(self) -> None:
        await self._connection.outbox.room()
        self._standing.refuse_if_over()

    def say(self, instructions: str) -> None:
        """Ask the agent to speak about this, as soon as that talks over nobody. Does not wait."""
        self._standing.refuse_if_closing()
        self._here(SayAsked(instructions))

    async def update(self, *, tools: Mapping[str, Tool] | None = None, **changes: Any) -> None:
        """Change settings, or replace the tools, of the running session; returns when the provider has agreed.

        New tools are announced as soon as nobody speaks; of several changes that wait for that, only the last is. Calls
        that run go on under the definition they were called with. Raises `ConfigError` for what cannot change,
        `ConfigurationRefused` if the provider does not agree; everything is then as it was.
        """
        self._standing.refuse_if_closing()
        if changes:
            await self._updates.change(changes)
        if tools is not None:
            await self._updates.replace(tools)

    def offer(self, tools: Mapping[str, Tool]) -> None:
        """The same for tools alone, without waiting; what the provider does not agree to is logged. For `Bridge`."""
        if self._standing.is_open:
            self._updates.offer(tools)

    def concluded(self, call_id: str, result: ToolResult) -> None:
        """What came of a call that another process has begun, and that was still waiting for it. For `Bridge`."""
        if self._inherited is not None and self._standing.is_open:
            key = inherited_key(self._conversation.machine, self._inherited, call_id)
            self._here(CallConcluded(key, result))

    # ------------------------------------------------------------------------------------------- what its parts ask for

    def _heard(self, frame: Frame) -> None:
        try:
            step = self._conversation.from_provider(frame)
            self._performer.perform(step)
            if self._dialogue.is_down and any(isinstance(event, SessionReady) for event in step.events):
                self._survival.resumed()
        except Exception as fault:
            self._failed(fault)

    def _sent(self, keys: tuple[CallKey, ...]) -> None:
        self._performer.here(Sent(keys))

    def _here(self, event: LocalEvent) -> bool:
        return self._performer.here(event)

    def _end_soon(self, reason: str) -> None:
        self._ending.soon(reason)

    def _stop(self, reason: str, failure: Exception | None) -> None:
        self._ending.stop(reason, failure)

    def _failed(self, fault: Exception) -> None:
        self._ending.failed(fault)

    def _perform(self, step: Step) -> None:
        self._performer.perform(step)

    def _host(self) -> Host:
        return Host(
            self.id,
            self.metadata,
            self._here,
            self._deliver,
            self._standing.refuse_if_closing,
            self._end_soon,
            lambda: self._clock.silent_since(self._conversation.machine),
        )

    def _call_context(self, key: CallKey, name: str) -> CallContext:
        return CallContext(session_id=self.id, key=key, tool=name, metadata=self.metadata)
