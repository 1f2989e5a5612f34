"""Runs a sidecar: the relay, its admin port, and what signals and a lack of file descriptors do to them.

One process here; several that share a port are in `bridge.workers`, each of which is `serving` just the same.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskStatus

from .admin import Access, Desk, Readers, Scope, Subject, Token, app_of, listening, relay_source, told
from .advice import NO_TOOLS, for_provider, spelled, unknown_names
from .attach.sidecar import attaching
from .config import JournalPlan, Sidecar
from .errors import JournalError
from .journal import Journal
from .journal.recorder import Recorder
from .metrics import Metrics
from .ports import refuse_taken
from .relay.server import Relay
from .settings import AdminTable, is_loopback

__all__ = [
    "Reload",
    "Serving",
    "access_of",
    "at_each_hangup",
    "log_to_stderr",
    "run",
    "run_loop",
    "serving",
    "until_stopped",
]

logger = logging.getLogger("bridge.serve")

_T = TypeVar("_T")

Reload = Callable[[Relay], Awaitable[None]]
"""Reads the settings again, and gives a relay that is running what may change in it; what SIGHUP asks for."""


def run(sidecar: Sidecar, started: Callable[[int, int], None], *, reload: Reload | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns how many sessions had to be ended before their time.

    `started` hears of the two ports. SIGTERM, or the first SIGINT, lets the running sessions come to their end for
    `drain_seconds`; a second signal ends them at once. SIGHUP is for `reload`. Raises `ConfigError`.
    """
    refuse_taken(sidecar.settings.listen, sidecar.settings.admin)
    return run_loop(_serve(sidecar, started, reload))


def run_loop(main: Coroutine[Any, Any, _T]) -> _T:
    """Run this to its end, on uvloop where that is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def log_to_stderr(level: str, worker: int | None = None) -> None:
    """One line for each thing that happens; with the number of the worker, if there are several."""
    who = f" worker {worker}" if worker else ""
    logging.basicConfig(level=level.upper(), format=f"%(asctime)s %(levelname)s{who} %(name)s: %(message)s")
    if level != "debug":
        logging.getLogger("httpx2").setLevel("WARNING")  # it has a line for each request
        logging.getLogger("stamina").setLevel("ERROR")  # and that for each repetition, without a word on what, or why


class Serving(NamedTuple):
    """A relay that takes sessions, what is counted of them, and what can be asked of it."""

    relay: Relay
    metrics: Metrics
    desk: Desk


@asynccontextmanager
async def serving(sidecar: Sidecar, worker: int = 1) -> AsyncIterator[Serving]:
    """Take sessions while the block runs. Raises `ConfigError` if that is impossible.

    `worker` is the number of this process among those that share the port.
    """
    files = _Files(2 * sidecar.limits.max_sessions + _OTHER_FILES)
    files.make_room()
    metrics, masks = Metrics(), _Masks()
    async with AsyncExitStack() as stack:
        stack.enter_context(_loop_tells(files.loop_failed))  # first, so that it hears of the end of all the rest
        journal, recorders = await stack.enter_async_context(_recording(sidecar.journal, worker, masks))
        relay = Relay(
            sidecar.routes,
            sidecar.tools,
            sources=sidecar.sources,
            limits=sidecar.limits,
            observers=(metrics, *recorders),
            finished=metrics.finished,
            lag=metrics.relay_lag,
            journal=journal,
        )
        async with relay:
            masks.watch(relay)
            relay.guards.switch(off=sidecar.settings.tools.off)
            metrics.add_source(relay_source(relay))
            desk, recovered = Desk(relay), asyncio.Event()
            for recorder in recorders:
                metrics.watch_recorder(recorder)
            await relay.start(sidecar.listen)
            if worker == 1:
                _say_what_there_is(relay, sidecar)
            alone = sidecar.journal is None or sidecar.journal.single
            recovering = _recover(relay, recovered, alone=alone)
            decided = relay.approvals.attached(_nobody) if sidecar.settings.admin.approvals else nullcontext()
            beside = _beside(metrics.watch_loop(), files.watch(), recovering)
            # What runs at a provider is served by one process, however many share the port.
            attached = attaching(relay, sidecar.attach, metrics, recovered, journal) if worker == 1 else nullcontext()
            with beside, decided, closing(desk):
                async with attached:
                    yield Serving(relay, metrics, desk)


def _say_what_there_is(relay: Relay, sidecar: Sidecar) -> None:
    upstreams = [each.upstream for each in sidecar.routes]
    hosts = {each.dialect.endpoint(each.url, "").url: each.dialect.name for each in upstreams}
    named = (f"{spelled(name)} at {urlsplit(url).hostname}" for url, name in hosts.items())
    logger.info("tools: %d; upstream: %s", len(relay.tools), ", ".join(named))
    if not relay.tools:
        logger.warning(NO_TOOLS)
    profiles = {spelled(each.dialect.name): each.dialect.tool_schema for each in upstreams}
    for name, profile in profiles.items():
        for line in for_provider(relay.tools, profile):
            logger.warning("%s: %s", name, line)
    for line in unknown_names(sidecar.settings.tools.off, relay.tools):
        logger.warning(line)


def _nobody(_: object) -> None:
    """Who decides over the port comes to ask what there is."""


def access_of(table: AdminTable) -> Access:
    """Who is let in. Raises `ConfigError` for tokens that cannot be."""
    first = (Token("admin", table.token),) if table.token else ()
    tokens = (*first, *(Token(each.name, each.token, frozenset(map(Scope, each.scopes))) for each in table.tokens))
    alone = is_loopback(table.host)
    own = ("localhost", "127.0.0.1", "[::1]", table.host) if alone else ()
    readers = Readers.ANYBODY if alone and not tokens else Readers.WITH_TOKEN
    hosts = tuple(host.lower() for host in table.hosts or own)
    return Access(tokens, readers, hosts, table.origins)


async def until_stopped(subject: Subject, drain_seconds: float) -> int:
    """Wait for SIGTERM or SIGINT, drain, and say how many sessions had to be ended; a second one ends them at once."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        first = await anext(signals)
        open_now = len(await told(subject.sessions))
        logger.info("%s: no new sessions; %d are open and have %g s", first.name, open_now, drain_seconds)
        draining = asyncio.create_task(subject.drain(drain_seconds))
        again = asyncio.ensure_future(anext(signals))
        await asyncio.wait((draining, again), return_when=asyncio.FIRST_COMPLETED)
        if not again.done():
            again.cancel()
            return await draining
        logger.warning("%s again: %d sessions are ended now", again.result().name, len(await told(subject.sessions)))
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        return await subject.drain(0)


async def at_each_hangup(
    reload: Callable[[], Awaitable[None]], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Do this at each SIGHUP, until cancelled. That it fails is logged, and ends nothing."""
    with anyio.open_signal_receiver(signal.SIGHUP) as hangups:
        task_status.started()
        async for _ in hangups:
            try:
                await reload()
            except Exception:
                logger.exception("SIGHUP: the settings could not be read again, so those from before stay in force")


async def _serve(sidecar: Sidecar, started: Callable[[int, int], None], reload: Reload | None) -> int:
    port = sidecar.settings.admin
    access = access_of(port)
    async with (
        serving(sidecar) as (relay, metrics, desk),
        listening(app_of(desk, metrics, access), port.host, port.port) as admin_port,
        anyio.create_task_group() as group,
    ):

        async def reload_relay() -> None:
            if reload is not None:
                await reload(relay)

        await group.start(at_each_hangup, reload_relay)
        started(relay.port, admin_port)
        left = await until_stopped(desk, sidecar.settings.session.drain_seconds)
        desk.close()
        group.cancel_scope.cancel()
    return left


@contextmanager
def _beside(*work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """These go on while the block runs."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def _loop_tells(hears: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]) -> Iterator[None]:
    """While the block runs, this hears of what goes wrong in the loop itself."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(hears)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


# -------------------------------------------------------------------------------------------------------- the journal

_BETWEEN_PRUNINGS: Final = 3600.0
_BETWEEN_RECOVERIES: Final = 60.0
"""Twice the lease after which a process is taken for dead, by default."""


@asynccontextmanager
async def _recording(
    plan: JournalPlan | None, worker: int, masks: _Masks
) -> AsyncIterator[tuple[Journal | None, tuple[Recorder, ...]]]:
    """The journal, and what writes into it what happens; nothing if there is to be none. Raises `ConfigError`."""
    if plan is None:
        yield None, ()
        return
    journal = plan.open(worker, masks)
    try:
        async with Recorder(journal) as recorder:
            with _beside(_prune(journal)):
                yield journal, (recorder,)
    finally:
        await journal.aclose()


def _all_others(owner: str) -> bool:
    """A file is written by one process, which is this one: whoever has left something in it is dead."""
    return True


async def _recover(relay: Relay, recovered: asyncio.Event, *, alone: bool) -> None:
    """Bring to an end what others have left unfinished: in a file of its own, those before this one, once that works;
    where several share a journal, again and again, since one of them may have died.
    """
    while True:
        try:
            await _recover_now(relay, _all_others if alone else None)
            if alone:
                return
        except JournalError as error:
            again = "the journal: what others have left unfinished is looked after again in %g s: %s"
            logger.error(again, _BETWEEN_RECOVERIES, error)
        finally:
            recovered.set()
        await asyncio.sleep(_BETWEEN_RECOVERIES)


async def _recover_now(relay: Relay, dead: Callable[[str], bool] | None = None) -> None:
    """One line for each call that was brought to an end. Raises `JournalError`."""
    for each in await relay.recover(dead=dead):
        call, tool = each.claimed.call, each.claimed.tool
        told = (tool, call.call_id, call.session, each.found.value, each.outcome)
        logger.warning("left unfinished: tool %s, call %.64r of session %s, %s: %s", *told)


async def _prune(journal: Journal, every: float = _BETWEEN_PRUNINGS) -> None:
    """Remove what is kept no longer: now, and then every hour."""
    while True:
        try:
            if gone := await journal.prune(time.time()):
                logger.info("the journal: %d sessions were too old, or too much, and have been removed", gone)
        except JournalError as error:
            logger.warning("the journal could not be pruned, which is tried again in an hour: %s", error)
        await asyncio.sleep(every)


class _Masks:
    """Which fields of each tool are masked; also of one that is gone, since its calls may be written still."""

    def __init__(self) -> None:
        self._known: dict[str, Collection[str]] = {}
        self._relay: Relay | None = None

    def watch(self, relay: Relay) -> None:
        self._relay = relay
        self._known = {name: tool.redact for name, tool in relay.tools.items()}

    def __call__(self, name: str) -> Collection[str]:
        tool = None if self._relay is None else self._relay.tools.get(name)
        if tool is not None:
            self._known[name] = tool.redact
        return self._known.get(name, ())


# --------------------------------------------------------------------------------------------------- file descriptors

_OTHER_FILES: Final = 64
"""Descriptors beside the two of each session: ports, the log, the standard library's, those of a few tools."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
_QUIET_SECONDS: Final = 60.0


class _Files:
    """The file descriptors of this process, of which it needs so many."""

    def __init__(self, needed: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._needed = needed
        self._clock = clock
        self._said = -math.inf

    def make_room(self) -> None:
        """Raise the limit to what is needed, or warn that the system does not allow that."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if _covers(soft, self._needed):
            return
        allowed = self._needed if _covers(hard, self._needed) else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < self._needed:
            logger.warning(
                "max_sessions needs %d file descriptors, and only %d are allowed: %s",
                self._needed,
                allowed,
                self._remedy,
            )

    async def watch(self, every: float = 1.0) -> None:
        """Look until cancelled whether any are left: uvloop closes connections for which there is none in silence."""
        while True:
            await anyio.sleep(every)
            try:
                os.close(os.open("/", os.O_RDONLY))
            except OSError as fault:
                if fault.errno in _EXHAUSTED:
                    self._exhausted()

    def loop_failed(self, loop: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        """Told by the loop of what nobody else hears: one line for a connection that could not be accepted."""
        fault = what.get("exception")
        if isinstance(fault, OSError) and fault.errno in _EXHAUSTED and "accept" in what["message"]:
            self._exhausted()
        elif not _is_belated(fault, what["message"]):
            loop.default_exception_handler(what)

    def _exhausted(self) -> None:
        now = self._clock()
        if now - self._said >= _QUIET_SECONDS:
            self._said = now
            logger.error("no file descriptors are left, so new connections are not taken: %s", self._remedy)

    @property
    def _remedy(self) -> str:
        return f"raise LimitNOFILE (ulimit -n) to {self._needed}, or lower max_sessions"


def _is_belated(fault: object, message: str) -> bool:
    """Did the standard loop, a second after it could not accept, listen again on a port that is closed by then?"""
    return isinstance(fault, ValueError) and "_start_serving" in message


def _covers(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
