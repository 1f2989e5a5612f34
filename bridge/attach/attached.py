"""Serves the tools of sessions that run already, of one provider: each until it ends, and none touching another.

async with Attached(bridge, Provider(dialect="hcompany")) as attached:
    attached.add("0b0c6a1e-...")
    await attached.idle()

named --a place is free--> opening --> served --> over (an `Ending`)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from ..core.dialect import Agent
from ..errors import (
    AtCapacity,
    AuthenticationFailed,
    BridgeError,
    ConfigError,
    ProviderError,
    SessionClosed,
    TransportError,
)
from ..journal.line import Line
from ..session.dialing import http_transport
from ..session.options import SessionOptions
from ..session.running import ToolSettled, ToolStarted
from ..session.session import Session
from ..transports.patience import Patience
from .providers import Provider

__all__ = ["Attached", "AttachedSnapshot", "End", "Ending", "House"]

logger = logging.getLogger("bridge.attach")

_T = TypeVar("_T")

_MAX_OPENING: Final = 32
"""Sessions that are being attached to at once."""
_MAX_WAITING: Final = 10_000
"""Sessions that may wait for a place."""
_LAST_WORDS: Final = 1.0
"""Seconds that a session has to send what has just become ready, when it is left."""
_MAX_ANSWER: Final = 64 << 20
"""Bytes of an answer. The first one may hold all that a long session has gone through, pictures included."""
_STOPPED: Final = "we were stopped"
_MARGIN: Final = 5.0
"""Seconds beyond those for what is owed, within which a session must have been left."""


class House(Protocol):
    """Where sessions live: a `Bridge`, or the sidecar."""

    @property
    def line(self) -> Line | None:
        """Where its process stands in line to serve a session; None where there can be no others."""
        ...

    def begin(
        self,
        agent: Agent,
        *,
        api_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
    ) -> AbstractAsyncContextManager[Session]:
        """As `Bridge.begin`."""
        ...


class End(Enum):
    """How an attachment came to its end."""

    ENDED = "ended"
    """The session is over."""
    REFUSED = "refused"
    """There is no such session, or it may not be served with this key."""
    LOST = "lost"
    """The provider could not be reached for too long; the session may go on."""
    LEFT = "left"
    """We were stopped; the session goes on, and waits for nothing of ours."""
    OWING = "owing"
    """We were stopped while calls had no answer yet; the session goes on, and waits."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one attachment. `session` is the provider's name for it."""

    session: str
    end: End
    why: str = ""

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.end.value}: {self.why}" if self.why else self.end.value


@dataclass(frozen=True, slots=True)
class AttachedSnapshot:
    """A session as it is now."""

    id: str
    """Our name for it; while it waits or is being opened, the provider's."""
    provider_session_id: str
    dialect: str
    route: str
    """Always `attach`: beside the sessions of a relay, which have the route's path here."""
    seconds: float
    owed: int
    """Calls without an answer."""
    link: str
    """`waiting`, and `up` once it is served."""


@dataclass(slots=True, eq=False)
class _One:
    """One attachment."""

    session_id: str
    since: float
    task: asyncio.Task[Ending] = field(init=False)
    session: Session | None = None
    owed: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while it owes nothing."""
    abandoned: int = 0
    """Calls that had no answer when the session was left."""
    reason: str = ""
    """Why it is to be left."""

    def __post_init__(self) -> None:
        self.settled.set()

    @property
    def left(self) -> End:
        """Its end, if we have left it."""
        return End.OWING if self.owed or self.abandoned else End.LEFT


def logged(ending: Ending) -> None:
    """One line in the log."""
    level = logging.INFO if ending.end in (End.ENDED, End.LEFT) else logging.WARNING
    logger.log(level, "attached session %s: %s", ending.session, ending.text)


class Attached:
    """See the module. `told` hears of every end, as it happens; by default the log does.

    At most `max_sessions` are served at once, further ones wait. Whoever is told to stop leaves a session once it owes
    nothing any more, after `owed_timeout` seconds at the latest. A provider that is gone for `give_up` seconds counts
    as lost. Of several processes that share a journal, one serves a session, and the others wait behind it.
    """

    def __init__(
        self,
        house: House,
        provider: Provider,
        *,
        told: Callable[[Ending], None] = logged,
        max_sessions: int = 1000,
        owed_timeout: float = 10.0,
        give_up: float = 300.0,
    ) -> None:
        http_transport(provider.dialect)  # without it, no session could be served
        self.provider = provider
        self.endings: Counter[End] = Counter()
        """How attachments ended, since the start."""
        self._house = house
        self._told = told
        self._max_sessions = max_sessions
        self._owed_timeout = owed_timeout
        self._options = SessionOptions(
            owed_timeout=_LAST_WORDS, patience=Patience(give_up=give_up), max_frame=_MAX_ANSWER
        )
        self._places = asyncio.Semaphore(max_sessions)
        self._openings = asyncio.Semaphore(_MAX_OPENING)
        self._all: dict[str, _One] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._closed = ""
        """Why no session is taken any more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(0)
        if self._tasks:
            await asyncio.wait(self._tasks)  # what is being written down

    # ------------------------------------------------------------------------------------------- which

    def add(self, session_id: str) -> bool:
        """Serve this session from now on; false if it is served already.

        Raises `ConfigError` without an id, `AtCapacity` if too many wait for a place, and `SessionClosed` once we have
        been told to stop.
        """
        if self._closed:
            raise SessionClosed(f"no session is taken any more: {self._closed}")
        if not session_id:
            raise ConfigError("the id of a session is missing")
        if session_id in self._all:
            return False
        if len(self._all) >= self._max_sessions + _MAX_WAITING:
            raise AtCapacity(f"{_MAX_WAITING} sessions wait for a place already: raise max_sessions, or serve fewer")
        if len(self._all) >= self._max_sessions:
            logger.warning("session %s waits: %d are served, which is max_sessions", session_id, self._max_sessions)
        self._all[session_id] = one = _One(session_id, _now())
        self._emptied.clear()
        one.task = self._start(self._serve(one))
        one.task.add_done_callback(partial(self._over, one))
        return True

    def remove(self, session_id: str, why: str) -> None:
        """Leave this session, if it is served, once it owes nothing or its time is over. Does not wait."""
        one = self._all.get(session_id)
        if one is not None and not one.reason:
            one.reason = why
            if one.session is None:
                one.task.cancel()
            else:
                self._start(self._leave(one, one.session))

    async def idle(self) -> None:
        """Wait until no session is served, nor waits to be."""
        await self._emptied.wait()

    async def drain(self, seconds: float) -> int:
        """Take no more sessions, and leave those there are; how many of them were left with calls unanswered.

        `seconds` bounds that beside `owed_timeout`; 0 leaves them at once.
        """
        self._closed = "draining"
        owing = self.endings[End.OWING]
        if seconds:
            for session_id in list(self._all):
                self.remove(session_id, _STOPPED)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds if seconds < self._owed_timeout else self._owed_timeout + _MARGIN):
                    await self.idle()
        for one in self._all.values():
            one.reason = one.reason or _STOPPED
            one.task.cancel()
        await self.idle()
        return self.endings[End.OWING] - owing

    @property
    def sessions(self) -> list[AttachedSnapshot]:
        """The sessions that are served or wait to be, oldest first."""
        now = _now()
        return [self._snapshot(one, now) for one in self._all.values()]

    @property
    def open(self) -> int:
        """How many sessions are served."""
        return sum(one.session is not None for one in list(self._all.values()))

    def _snapshot(self, one: _One, now: float) -> AttachedSnapshot:
        ours, link = (one.session_id, "waiting") if one.session is None else (one.session.id, "up")
        return AttachedSnapshot(ours, one.session_id, self.provider.dialect, "attach", now - one.since, one.owed, link)

    # ------------------------------------------------------------------------------------------- one of them

    async def _serve(self, one: _One) -> Ending:
        """From its name to its end."""
        try:
            end, why = await self._to_its_end(one)
        except BridgeError as error:
            end, why = _failed(error, one), str(error)
        except Exception as fault:
            logger.exception("session %s: a fault of its own", one.session_id)
            end, why = End.LOST, f"a fault of its own: {type(fault).__name__}"
        return Ending(one.session_id, end, why)

    async def _to_its_end(self, one: _One) -> tuple[End, str]:
        async with self._places, self._turn(one.session_id), AsyncExitStack() as stack:
            async with self._openings:
                one.session = await stack.enter_async_context(self._session(one.session_id))
            async for event in one.session:
                match event:
                    case ToolStarted():
                        one.owed += 1
                        one.settled.clear()
                    case ToolSettled(how=how):
                        one.owed = max(one.owed - 1, 0)
                        one.abandoned += how == "ended"
                        if not one.owed:
                            one.settled.set()
        return (one.left, one.reason) if one.reason else (End.ENDED, "")

    def _session(self, session_id: str) -> AbstractAsyncContextManager[Session]:
        provider = self.provider
        return self._house.begin(
            provider.agent(session_id),
            api_key=provider.key,
            metadata={"provider_session_id": session_id},
            options=self._options,
        )

    def _turn(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Ours to serve this session, by its name in the journal."""
        name = f"{self.provider.agent('any').dialect.name}:{session_id}"
        return nullcontext() if self._house.line is None else self._house.line.turn(name)

    async def _leave(self, one: _One, session: Session) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._owed_timeout):
                await one.settled.wait()
        if not one.task.done():
            await session.end(one.reason)

    def _start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        # Tasks of their own, not those of a group: sessions begin and end by the word of many, at any time.
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _over(self, one: _One, task: asyncio.Task[Ending]) -> None:
        ending = Ending(one.session_id, one.left, one.reason) if task.cancelled() else task.result()
        del self._all[one.session_id]
        self.endings[ending.end] += 1
        one.settled.set()
        if not self._all:
            self._emptied.set()
        self._told(ending)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _failed(error: BridgeError, one: _One) -> End:
    """What an error means. Once a session has been served, a word of the provider's against it is its end."""
    match error:
        case TransportError():
            return End.LOST
        case ProviderError() if one.session is not None and not isinstance(error, AuthenticationFailed):
            return End.ENDED
        case _:
            return End.REFUSED
