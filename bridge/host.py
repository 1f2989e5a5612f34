"""What the sessions of a process share: tools, the runner, and who watches."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from .catalogue import Catalogue
from .core.conversation import Step
from .core.dialect import Agent, Delivery
from .errors import ConfigError, SessionClosed
from .journal import Journal
from .journal.line import line_of
from .journal.recorder import Recorder
from .runner.approvals import Approvals, Approver, Decision
from .runner.leftovers import Recovered
from .runner.orphans import Orphans, Telling, account
from .runner.outcomes import Outcomes
from .runner.parking import Completion
from .runner.runner import Runner
from .session.inherited import Inherited
from .session.reconnect import Resumable
from .session.session import Session, SessionOptions
from .tools.source import Source
from .tools.tool import Tool

if TYPE_CHECKING:
    from .metrics import Metrics

__all__ = ["Bridge", "SessionSnapshot", "connect"]

_END_TIMEOUT = 1.0
"""Seconds that parked calls have for their end."""

Observer = Callable[[Session, Step], None]
"""Sees every step of every session as it happens; must not block."""


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """One session as it is now."""

    id: str
    provider_session_id: str
    dialect: str
    seconds: float


@runtime_checkable
class Informable(Protocol):
    """An agent that can be told something from the start."""

    def informed(self, text: str) -> Agent:
        """The same agent, with this in its prompt. Raises `ConfigError` if it cannot be added to."""
        ...


class Bridge:
    """Runs the tools of any number of sessions.

        async with Bridge(tools) as bridge, bridge.session(AssemblyAI(...)) as session: ...

    `tools` are written in Python, `sources` are opened on entering, and may change what they offer while sessions run.
    At most `max_concurrent_tools` run at once in the process, and `max_concurrent_tools_per_session` in one session;
    further calls wait for a while, then are answered "busy". A tool that fails `max_tool_failures` times in a row is
    not called for `tool_pause` seconds. `approver` decides the calls that somebody has to approve; whoever is attached
    to `approvals` may, too. With a `journal`, which stays the caller's to close, what happens in sessions is written
    there, and tools whose effect is not "read" run at most once, and only while it works; `owner` names this process in
    this life. Entering it raises `ConfigError` if a source cannot be opened; leaving it cancels the calls that have
    outlived their session.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool] | None = None,
        *,
        sources: Sequence[Source] = (),
        observers: tuple[Observer, ...] = (),
        metrics: Metrics | None = None,
        approver: Approver | None = None,
        journal: Journal | None = None,
        owner: str | None = None,
        max_concurrent_tools: int = 256,
        max_concurrent_tools_per_session: int = 4,
        max_threads: int = 32,
        max_tool_failures: int = 5,
        tool_pause: float = 30.0,
    ) -> None:
        self._catalogue = Catalogue(tools, sources, changed=self._changed)
        self._sessions: dict[Session, tuple[str, float]] = {}
        """Each with its dialect, and when it began."""
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._closing = ""
        counting: tuple[Observer, ...] = () if metrics is None else (metrics,)
        self._recorder = None if journal is None else Recorder(journal)
        self._orphans: Orphans | None = None
        self._outcomes = None if journal is None else Outcomes(journal)
        self._per_session = max_concurrent_tools_per_session
        watchers = () if metrics is None else (metrics.finished,)
        self.runner = Runner(
            max_concurrent=max_concurrent_tools,
            max_threads=max_threads,
            max_failures=max_tool_failures,
            failure_pause=tool_pause,
            approvals=Approvals(approver),
            journal=journal,
            owner=owner,
            watchers=watchers,
        )
        self.line = line_of(journal, "" if self.runner.durable is None else self.runner.durable.owner)
        """Where this process stands in line to serve sessions that exist; None where there can be no others."""
        if journal is not None and self.runner.durable is not None:
            self._orphans = Orphans(journal, self.runner.durable.owner, self.runner.post, self.runner.wait_on)
        writing = tuple(each for each in (self._recorder, self.runner.durable) if each is not None)
        self._observers: tuple[Observer, ...] = (*observers, *counting, *writing)
        if metrics is not None:
            metrics.watch_runner(self.runner)
            if self._recorder is not None:
                metrics.watch_recorder(self._recorder)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What a session that begins now is given."""
        return self._catalogue.tools

    @property
    def reason(self) -> str:
        """Why no session should be begun now, such as a server that is down and needed; else empty."""
        return self._closing or self._catalogue.reason

    @property
    def ready(self) -> str:
        """The same as `reason`, for the admin port."""
        return self.reason

    @property
    def sessions(self) -> list[SessionSnapshot]:
        """The sessions that are going on, oldest first."""
        now = time.monotonic()
        return [
            SessionSnapshot(each.id, each.provider_session_id, dialect, now - since)
            for each, (dialect, since) in list(self._sessions.items())
        ]

    def observe(self, observer: Observer) -> None:
        """Have it see every step of the sessions that begin from now on, as the `observers` do."""
        self._observers = (*self._observers, observer)

    @property
    def approvals(self) -> Approvals:
        """The calls that wait to be approved, and how to decide them."""
        return self.runner.approvals

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion:
        """The outcome of a call that waits for somebody outside; see `Runner.settle`."""
        return await self.runner.settle(ticket, value, error=error)

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request for approval; see `Approvals.decide`."""
        return await self.runner.decide(request_id, approve=approve, by=by, reason=reason)

    async def drain(self, seconds: float) -> int:
        """Begin no more sessions, give those there are so long, end the rest, and say how many those were."""
        self._closing = "draining"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._emptied.wait()
        left = list(self._sessions)
        await asyncio.gather(*(session.end("draining") for session in left))
        return len(left)

    def switch(self, *, off: Iterable[str] = (), on: Iterable[str] = ()) -> None:
        """Calls of tools that are off are answered "not available now", in every session, from now on."""
        self.runner.guards.switch(off=off, on=on)

    async def replace(self, tools: Mapping[str, Tool], sources: Sequence[Source] = ()) -> None:
        """From now on the tools are these, also of the sessions that run. What runs finishes as it began.

        A source that is among the ones before stays open. Raises `ConfigError`, and nothing has changed, if they cannot
        be opened.
        """
        await self._catalogue.replace(tools, sources)

    async def recover(self, *, dead: Callable[[str], bool] | None = None) -> tuple[Recovered, ...]:
        """Bring to an end what earlier processes have left in the journal that died, and say what that was.

        To be done once, after entering. `dead` tells by the name of an owner whether it is dead: in a file that only
        this process writes, all others are; by default, those that are known to have `died_here`. Raises
        `JournalError`.
        """
        return await self.runner.recover(self.tools, dead=dead)

    async def __aenter__(self) -> Self:
        await self._catalogue.__aenter__()
        self.runner.begin()
        if self._recorder is not None:
            await self._recorder.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.runner.aclose(_END_TIMEOUT)
        if self._outcomes is not None:
            await self._outcomes.aclose()
        if self._orphans is not None:
            await self._orphans.aclose(_END_TIMEOUT)
        if self._recorder is not None:
            await self._recorder.aclose()
        await self._catalogue.__aexit__(kind, error, trace)
        self.runner.close()

    @asynccontextmanager
    async def session(
        self,
        agent: Agent,
        *,
        api_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        delivery: Delivery | None = None,
        options: SessionOptions | None = None,
        earlier: str = "",
        resume: Resumable | None = None,
    ) -> AsyncIterator[Session]:
        """Connect, configure, and yield the session once the provider is ready for audio.

        `api_key`: by default from the environment variable that the agent names. `metadata`: what tools find in their
        `CallContext`. `delivery`: instead of the dialect's. Raises `AuthenticationFailed`, `ConfigurationRefused`,
        `AtCapacity`, `ProviderError` or `TransportError` if there will be no session. On leaving, the session is ended
        properly, within bounds. Raises `SessionClosed` while this is draining.

        Two ways to go on after a process has died, both with a journal, which may raise `JournalError`:

        `earlier`: our name for a session of the same caller. Results that it has left orphaned are told to the agent of
        this one, each once, as far as the journal keeps them for good. They stand in the agent's prompt, so that it
        knows of them without being made to speak; one whose prompt cannot be added to is refused with `ConfigError`.

        `resume`: the provider's session goes on here, under the name that it has had; `agent` and the tools are to be
        the same. What was begun in it is brought to an end, as by `recover`, and its results are sent: the processes
        that had it must be gone. Raises `ProviderError` if the provider does not go on with it.

        Of several processes that share a journal, one serves a session over HTTP: where it exists at its provider
        (`session_id`), this waits while another one does, and takes its place when it leaves or its lease runs out;
        where it is made here, others that come wait behind us.
        """
        setup = {} if self.line is None else agent.setup()
        async with AsyncExitStack() as place:
            if self.line is not None and "attach" in setup:
                await place.enter_async_context(self.line.turn(f"{agent.dialect.name}:{setup['attach']}"))
            async with self.begin(
                agent,
                api_key=api_key,
                metadata=metadata,
                delivery=delivery,
                options=options,
                earlier=earlier,
                resume=resume,
            ) as session:
                if self.line is not None and "create" in setup:
                    await place.enter_async_context(self.line.kept(session.id))
                yield session

    @asynccontextmanager
    async def begin(
        self,
        agent: Agent,
        *,
        api_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        delivery: Delivery | None = None,
        options: SessionOptions | None = None,
        earlier: str = "",
        resume: Resumable | None = None,
    ) -> AsyncIterator[Session]:
        """The same for whoever stands in `line` himself, or knows that no other process serves this session."""
        if self._closing:
            raise SessionClosed("no session now: draining")
        key = _key(agent, api_key)
        with ExitStack() as undo:
            if earlier:
                agent = await self._told(agent, earlier, undo)
            inherited = None if resume is None else await self._inherited(resume)
            session = Session(
                agent,
                dict(self.tools),
                self.runner.session(max_concurrent=self._per_session),
                observers=(*self._observers, *self._telling(agent, inherited)),
                metadata=metadata or {},
                delivery=delivery,
                options=options or SessionOptions(),
                approvals=self.approvals,
                inherited=inherited,
            )
            async with session.open(key), self._going_on(session, agent), self._following(session, inherited):
                undo.pop_all()
                yield session

    @asynccontextmanager
    async def _going_on(self, session: Session, agent: Agent) -> AsyncIterator[None]:
        self._sessions[session] = agent.dialect.name, time.monotonic()
        self._emptied.clear()
        try:
            yield
        finally:
            del self._sessions[session]
            if not self._sessions:
                self._emptied.set()

    async def _told(self, agent: Agent, earlier: str, undo: ExitStack) -> Agent:
        """The agent that knows what an earlier session has left; `undo` leaves that to another one."""
        if self._orphans is None:
            raise ConfigError("an earlier session can be told of only with a journal: pass journal=...")
        if not isinstance(agent, Informable):
            raise ConfigError(f"an agent of {agent.dialect.name} cannot be told what an earlier session has left")
        taken = await self._orphans.take(earlier)
        undo.callback(self._orphans.put_back, earlier, taken)
        return agent.informed(account(taken)) if taken else agent

    async def _inherited(self, resume: Resumable) -> Inherited:
        if self._orphans is None or self._recorder is None:
            return Inherited(resume)
        past = await self._orphans.left(resume.session, self.tools)
        self._recorder.goes_on(resume.session, past.turn)
        return Inherited(resume, past)

    def _telling(self, agent: Agent, inherited: Inherited | None) -> Iterator[Observer]:
        """What sees to it that what earlier processes have left is told, and written down."""
        if self._outcomes is not None:
            yield self._outcomes.observer(agent.dialect)
        if self._orphans is not None and inherited is not None:
            yield Telling(self._orphans, inherited.past)

    def _following(self, session: Session, inherited: Inherited | None) -> AbstractAsyncContextManager[None]:
        """What comes of calls that somebody outside works on is told in the session that goes on with them."""
        if self._orphans is None or inherited is None:
            return nullcontext()
        return self._orphans.following(session, inherited.past)

    def _changed(self, tools: Mapping[str, Tool]) -> None:
        self.runner.approvals.keep(tools)
        for session in list(self._sessions):
            session.offer(tools)


@asynccontextmanager
async def connect(
    agent: Agent,
    *,
    tools: Mapping[str, Tool] | None = None,
    sources: Sequence[Source] = (),
    api_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    delivery: Delivery | None = None,
    options: SessionOptions | None = None,
    observers: tuple[Observer, ...] = (),
    approver: Approver | None = None,
    journal: Journal | None = None,
    earlier: str = "",
    resume: Resumable | None = None,
) -> AsyncIterator[Session]:
    """One session with an agent: a `Bridge` with a single session. See `Bridge.session`."""
    async with (
        Bridge(tools, sources=sources, observers=observers, approver=approver, journal=journal) as bridge,
        bridge.session(
            agent,
            api_key=api_key,
            metadata=metadata,
            delivery=delivery,
            options=options,
            earlier=earlier,
            resume=resume,
        ) as session,
    ):
        yield session


def _key(agent: Agent, api_key: str | None) -> str:
    key = api_key if api_key is not None else os.environ.get(agent.api_key_env, "")
    if not key and not agent.url:
        raise ConfigError(f"no API key: pass api_key=..., or set the environment variable {agent.api_key_env}")
    return key
