"""The relay: applications connect here instead of to their provider, and their agents have tools.

    async with Relay([Route(upstream=Upstream(dialect=ASSEMBLYAI))], tools) as relay:
        await relay.start(Listen(port=8787))
        ...
        left = await relay.drain(30)

What the door lets in is two sockets and a `Pipe`, without a task.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ..catalogue import Catalogue
from ..errors import ConfigError
from ..journal import Journal
from ..runner.approvals import Approvals, Decision
from ..runner.guards import Guards
from ..runner.leftovers import Recovered
from ..runner.parking import Completion
from ..runner.runner import Finished, Runner
from ..tools.source import Source
from ..tools.tool import CallContext, Tool
from .admission import correlation, metadata, refuse_open_door
from .door import Door, Guest
from .figures import Counters, SessionSnapshot, Traffic
from .lifeline import Outcome, WayBack
from .pipe import Pipe
from .session import Observer, RelaySession
from .settings import Limits, Listen, OnProviderLoss, Route
from .tool_thread import FarCalls, ToolThread
from .upstream import Target, redial, target_of

__all__ = ["Beside", "Relay"]

logger = logging.getLogger("bridge.relay")

_SWEEP: Final = 0.25
"""Seconds between two looks at all deadlines."""
_SWITCH_INTERVAL: Final = 0.0005
"""Seconds for which a thread may compute before audio goes on; the interpreter's own 5 ms are too long."""
_BACKLOG: Final = 4096
"""Connections that the kernel keeps until we take them."""


# ------------------------------------------------------------------------------------------------------------ the relay


class _State(Enum):
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class _Call:
    """A session that is open."""

    pipe: Pipe
    target: Target
    since: float


class Beside(Protocol):
    """Sessions of this process that are not relayed: they are shown, and drained, with those that are."""

    @property
    def sessions(self) -> list[SessionSnapshot]: ...

    async def drain(self, seconds: float) -> int: ...

    def offer(self) -> None:
        """The tools have changed."""
        ...


class Relay:
    """See the module. Raises `ConfigError` for routes that cannot work.

    `tools` are written in Python; `sources` are opened on entering, on the loop on which tools run, and may change what
    they offer. `observers` see every step of every session as it happens; `finished` is told how each tool call ended;
    `lag`, four times a second, for how many seconds the slowest of all peers has not taken what waits for it. They are
    called on the relay's loop, and must be quick. With a `journal`, which stays the caller's, tools whose effect is not
    "read" run at most once, and only while it works; `owner` names this process in this life. Entering raises
    `ConfigError` if a source cannot be opened.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        tools: Mapping[str, Tool] | None = None,
        *,
        sources: Sequence[Source] = (),
        limits: Limits | None = None,
        observers: tuple[Observer, ...] = (),
        finished: Callable[[Finished], None] | None = None,
        lag: Callable[[float], None] | None = None,
        journal: Journal | None = None,
        owner: str | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._finished = finished
        self._lag = lag
        self._routes = tuple(routes)
        self._catalogue = Catalogue(tools, sources, changed=self._tools_changed)
        self._door = Door(self._limits, lambda: self._closed_to_new, self._begin)
        self._door.targets = self._aimed(self._routes, self._catalogue.tools)
        self._tools = ToolThread(_runner(self._limits, journal, owner))
        durable = self._tools.runner.durable
        self._observers: tuple[Observer, ...] = (*observers, *(() if durable is None else (durable,)))
        self.beside: Beside | None = None
        """What else is going on in this process."""
        self._servers: list[asyncio.Server] = []
        self._state = _State.SERVING
        self._closings: set[asyncio.Task[None]] = set()
        self._calls: dict[Pipe, _Call] = {}
        self._kept: dict[str, tuple[RelaySession, asyncio.TimerHandle]] = {}
        self._left = 0
        """Sessions that a drain had to end; of several at once all say so."""
        self._past = (Traffic(), Traffic())
        self._sessions = self._without_setup = self._resumes = 0
        self._lost: Counter[str] = Counter()
        self._dropped = 0

    # ------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep)
        with ExitStack() as stack:
            stack.enter_context(self._tools)
            await self._tools.do(self._catalogue.__aenter__())
            self._door.targets = self._aimed(self._routes, self._catalogue.tools)
            stack.callback(sys.setswitchinterval, sys.getswitchinterval())
            sys.setswitchinterval(_SWITCH_INTERVAL)
            if not gc.get_freeze_count():  # what somebody else has frozen stays so
                stack.callback(gc.unfreeze)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._exit:
            await self._stop_all()
            self._sweeping.cancel()
            await self._tools.do(self._catalogue.__aexit__(None, None, None))

    async def start(self, listen: Listen) -> None:
        """Listen. Raises `ConfigError` if that is impossible or unsafe."""
        refuse_open_door(listen, self._door.targets)
        self._door.listen = listen
        try:
            server = await self._loop.create_server(
                self._door.knock,
                listen.host,
                listen.port,
                backlog=1,
                reuse_port=listen.reuse_port or None,
            )
        except OSError as fault:
            where = f"{listen.host}:{listen.port}"
            raise ConfigError(f"cannot listen on {where}: {fault.strerror or fault}; choose another port") from None
        # The standard loop tries to accept as often as its backlog says, also where no file descriptor is left.
        for each in server.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as listening:
                listening.listen(_BACKLOG)
        self._servers.append(server)
        # What is here now stays: the collector need not look through it again while audio flows.
        gc.collect()
        gc.freeze()
        logger.info("listening on %s:%d", listen.host, self.port)

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    def stop_listening(self) -> None:
        """Leave new connections to whoever else listens on this port; nobody is told that there is no room here."""
        for server in self._servers:
            server.close()

    async def drain(self, seconds: float) -> int:
        """Take no new sessions, let the running ones go on for so long, then end them: how many had to be ended."""
        if self.beside is None:
            return await self._drain(seconds)
        return sum(await asyncio.gather(self._drain(seconds), self.beside.drain(seconds)))

    async def _drain(self, seconds: float) -> int:
        self._state = _State.DRAINING
        await self._emptied_within(seconds)
        self._left = max(self._left, len(self._calls))
        await self._stop_all()
        return self._left

    async def _stop_all(self) -> None:
        """End whatever is open: results that are owed are sent, providers are told; all within bounds."""
        self._state = _State.DRAINING
        await self._door.clear()
        for call in list(self._calls.values()):
            call.pipe.session.end_soon("the relay stops")
            if call.pipe.session.ended:
                call.pipe.finish()
        limits = self._limits
        await self._emptied_within(limits.owed_timeout + limits.end_timeout + 2 * limits.close_timeout)
        for call in list(self._calls.values()):
            call.pipe.abort()
        for session_id in list(self._kept):
            self._forget(session_id)
        self.stop_listening()
        await self._door.shut()
        await self._emptied_within(1.0)
        while self._closings:
            await asyncio.wait(self._closings)

    async def _emptied_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._emptied.wait()
        except TimeoutError:
            pass

    # ------------------------------------------------------------------------------------------- what is shown

    @property
    def ready(self) -> str:
        """Why no session should come here now; empty if all is well."""
        durable = self.runner.durable
        return self._closed_to_new or ("" if durable is None else durable.trouble)

    @property
    def _closed_to_new(self) -> str:
        """Why it takes no sessions now. One that comes although the journal is out of order has the tools that read."""
        if not self._servers:
            return "not listening"
        if self._state is _State.DRAINING:
            return "draining"
        if self._door.inside >= self._limits.max_sessions:
            return "full"
        return self._catalogue.reason

    @property
    def sessions(self) -> list[SessionSnapshot]:
        """The open sessions, oldest first."""
        now = self._loop.time()
        others = [] if self.beside is None else self.beside.sessions
        return [*(_snapshot(call, now) for call in list(self._calls.values())), *others]

    @property
    def counters(self) -> Counters:
        """What has passed, of sessions past and present."""
        up, down = self._past
        for pipe in list(self._calls):
            up += Traffic.of(pipe.application.walker)
            down += pipe.from_provider
        sessions, refused, lost = self._sessions, dict(self._door.refused), dict(self._lost)
        return Counters(up, down, sessions, refused, self._without_setup, self._resumes, lost, self._dropped)

    @property
    def runner(self) -> Runner:
        """What runs the tools of all sessions, on a loop of its own: only to be looked at."""
        return self._tools.runner

    def observe(self, observer: Observer) -> None:
        """Have it see every step of the sessions that begin from now on, as the `observers` do."""
        self._observers = (*self._observers, observer)

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Who sees every step of a session that begins now."""
        return self._observers

    def calls(self) -> FarCalls:
        """The calls of a session that is not relayed, which are run and counted like those of all others."""
        return self._tools.session(self._limits.max_concurrent_tools_per_session, self._finished)

    # ------------------------------------------------------------------------------------------- its tools

    @property
    def tools(self) -> Mapping[str, Tool]:
        """What a session that begins now is given."""
        return self._catalogue.tools

    @property
    def approvals(self) -> Approvals:
        """The calls that wait to be approved, and how to decide them."""
        return self._tools.runner.approvals

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> None:
        """Have somebody approve a call that the provider of a session asks about; see `Approvals.ask`."""
        await self._tools.do(self.approvals.ask(tool, arguments, context))

    @property
    def guards(self) -> Guards:
        """What keeps tools from being called; a tool can be switched off and on there."""
        return self._tools.runner.guards

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion:
        """The outcome of a call that waits for somebody outside; see `Runner.settle`."""
        return await self._tools.do(self.runner.settle(ticket, value, error=error))

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request for approval; see `Approvals.decide`."""
        return await self._tools.do(self.runner.decide(request_id, approve=approve, by=by, reason=reason))

    async def recover(self, *, dead: Callable[[str], bool] | None = None) -> tuple[Recovered, ...]:
        """Bring to an end what processes have left in the journal that died; see `Runner.recover`."""
        return await self._tools.do(self.runner.recover(self.tools, dead=dead))

    async def replace(
        self, routes: Sequence[Route], tools: Mapping[str, Tool] | None = None, sources: Sequence[Source] = ()
    ) -> None:
        """From now on these count, and sessions that run get the new tools of their route. No session ends by it.

        A source that is among the ones before stays open. Raises `ConfigError`, and nothing has changed, if that is
        impossible.
        """
        written = {} if tools is None else tools
        refuse_open_door(self._door.listen, self._aimed(routes, written))
        before, self._routes = self._routes, tuple(routes)
        try:
            await self._tools.do(self._catalogue.replace(written, sources))
        except ConfigError:
            self._routes = before
            raise

    def _aimed(self, routes: Sequence[Route], tools: Mapping[str, Tool]) -> list[Target]:
        longest_first = sorted(routes, key=lambda route: len(route.prefix), reverse=True)
        return [target_of(route, tools, self._limits) for route in longest_first]

    def _tools_changed(self, tools: Mapping[str, Tool]) -> None:
        """Called on the tools' loop."""
        self.approvals.keep(tools)
        with suppress(RuntimeError):  # the relay's loop has closed
            self._loop.call_soon_threadsafe(self._take_tools, tools)

    def _take_tools(self, tools: Mapping[str, Tool]) -> None:
        try:
            self._door.targets = self._aimed(self._routes, tools)
        except ConfigError as error:
            logger.warning("the tools have changed, but sessions keep those from before: %s", error)
            return
        settings = {target.route.prefix: target.session for target in self._door.targets}
        sessions = [*(call.pipe.session for call in self._calls.values()), *(kept for kept, _ in self._kept.values())]
        for session in sessions:
            if session.route in settings:
                session.replace_tools(settings[session.route].tools)
        if self.beside is not None:
            self.beside.offer()
        logger.info("sessions have %d tools from now on", len(tools))

    # ------------------------------------------------------------------------------------------- a session

    def _way_back(self, guest: Guest) -> WayBack | None:
        """To the provider of this guest, if it is to be looked for: its credentials are kept for nothing else."""
        if guest.target.route.upstream.on_provider_loss is OnProviderLoss.CLOSE:
            return None
        limits = self._limits
        return WayBack(
            partial(redial, guest.target, guest.path, guest.request, limits, self._door.dials),
            limits.resume_timeout,
            limits.dial_timeout,
            limits.stall_timeout,
            self._found,
        )

    def _found(self, outcome: Outcome, dropped: int) -> None:
        self._lost[outcome.value] += 1
        self._dropped += dropped

    def _begin(self, guest: Guest) -> None:
        target, request, listen = guest.target, guest.request, self._door.listen
        session = RelaySession(
            target.session,
            self.calls(),
            self._observers,
            route=target.route.prefix,
            correlation=correlation(request, listen),
            metadata=metadata(request, listen),
            resumed=self._resumed,
        )
        pipe = Pipe(session, target.pipe, self._closed, self._way_back(guest))
        self._calls[pipe] = _Call(pipe, target, self._loop.time())
        self._sessions += 1
        self._emptied.clear()
        route = target.route.prefix or "/"
        logger.info("session %s started: dialect %s, route %s", session.name, session.dialect, route)
        pipe.start(guest.application, guest.provider)

    def _closed(self, pipe: Pipe) -> None:
        self._calls.pop(pipe)
        self._door.left()
        up, down = self._past
        self._past = up + Traffic.of(pipe.application.walker), down + pipe.from_provider
        self._soon(pipe.aclose())
        session = pipe.session
        if session.ended:
            self._close_soon(session)
        elif self._state is _State.DRAINING or session.provider_session_id in self._kept:
            session.end("the connection was lost")
            self._close_soon(session)
        else:
            session_id = session.provider_session_id
            expiry = self._loop.call_later(self._limits.resume_timeout, self._forget, session_id)
            self._kept[session_id] = session, expiry
            logger.info("session %s is kept: its connection was lost", session.name)
        if not self._calls:
            self._emptied.set()

    def _close_soon(self, session: RelaySession) -> None:
        self._soon(session.aclose())

    def _soon(self, closing: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(closing)
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    def _resumed(self, fresh: RelaySession, session_id: str) -> None:
        """An application asks for a session by the provider's name: if it is one that was kept, its state goes on."""
        pipe = next((pipe for pipe in self._calls if pipe.session is fresh), None)
        if pipe is None or session_id not in self._kept:
            return
        session, expiry = self._kept.pop(session_id)
        expiry.cancel()
        self._resumes += 1
        logger.info("session %s goes on as %s", fresh.name, session.name)
        fresh.end("it goes on as another")
        self._close_soon(fresh)
        pipe.adopt(session)

    def _forget(self, session_id: str) -> None:
        session, expiry = self._kept.pop(session_id)
        expiry.cancel()
        session.end("nobody came back to it")
        self._close_soon(session)

    def _sweep(self) -> None:
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep)
        now, lag = self._loop.time(), 0.0
        for pipe in list(self._calls):
            lag = max(lag, pipe.lag(now))
            pipe.sweep(now)
            if pipe.session.overdue_setup(now):
                self._without_setup += 1
        if self._lag is not None:
            self._lag(lag)


def _runner(limits: Limits, journal: Journal | None, owner: str | None) -> Runner:
    return Runner(
        max_concurrent=limits.max_concurrent_tools,
        max_threads=limits.max_threads,
        max_failures=limits.max_tool_failures,
        failure_pause=limits.tool_pause,
        journal=journal,
        owner=owner,
    )


def _snapshot(call: _Call, now: float) -> SessionSnapshot:
    session = call.pipe.session
    link, reply, user = session.state
    return SessionSnapshot(
        id=session.id,
        provider_session_id=session.provider_session_id,
        correlation=session.correlation,
        dialect=session.dialect,
        route=call.target.route.prefix or "/",
        seconds=now - call.since,
        owed=session.owed,
        link=link,
        reply=reply,
        user=user,
        bytes_from_application=call.pipe.application.walker.bytes,
        bytes_from_provider=call.pipe.from_provider.bytes,
    )
