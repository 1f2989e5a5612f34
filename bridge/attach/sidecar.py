"""Attached sessions in a sidecar: those of every `[[attach]]`, beside the ones that are relayed.

They have the relay's tools, runner, journal and observers; it shows them among its own, and drains them with those.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from ..core.dialect import Agent, Dialect
from ..errors import BridgeError, ConfigError
from ..journal import Journal
from ..journal.line import line_of
from ..metrics import Metrics, Reading
from ..relay.figures import SessionSnapshot
from ..relay.server import Relay
from ..runner.outcomes import Outcomes
from ..session.options import SessionOptions
from ..session.session import Session
from ..tools.tool import Tool
from .attached import Attached, AttachedSnapshot, End
from .plan import Plan
from .providers import expressible
from .webhook import taking

__all__ = ["Attachments", "RelayHouse", "attaching"]

logger = logging.getLogger("bridge.attach")


class RelayHouse:
    """Has sessions live beside those of a relay, with its tools, its runner and its observers.

    What their tools do runs where those of the relay's sessions run, and waits there to be approved. No session begins
    before `recovered` is set: until then earlier processes may have left calls of it unfinished. The `journal` is the
    relay's.
    """

    def __init__(self, relay: Relay, recovered: asyncio.Event, journal: Journal | None) -> None:
        durable = relay.runner.durable
        self.line = line_of(journal, "" if durable is None else durable.owner)
        self._relay = relay
        self._outcomes = None if journal is None else Outcomes(journal)
        self._recovered = recovered
        self._tools: Mapping[str, Tool] = {}
        self._fitting: dict[str, dict[str, Tool]] = {}
        """By dialect: those of `_tools` that its sessions can have."""
        self._open: dict[Session, Dialect] = {}

    @asynccontextmanager
    async def begin(
        self,
        agent: Agent,
        *,
        api_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        options: SessionOptions | None = None,
    ) -> AsyncIterator[Session]:
        """As `Bridge.begin`."""
        await self._recovered.wait()
        began_with = self._relay.tools
        telling = () if self._outcomes is None else (self._outcomes.observer(agent.dialect),)
        session = Session(
            agent,
            self._tools_for(agent.dialect),
            self._relay.calls(),
            observers=(*self._relay.observers, *telling),
            metadata=metadata or {},
            delivery=None,
            options=options or SessionOptions(),
            approvals=self._relay,
        )
        async with session.open(api_key or ""):
            self._open[session] = agent.dialect
            try:
                if self._relay.tools is not began_with:  # they have changed meanwhile
                    session.offer(self._tools_for(agent.dialect))
                yield session
            finally:
                del self._open[session]

    async def aclose(self) -> None:
        """Wait for what is being written down. No session is open any more."""
        if self._outcomes is not None:
            await self._outcomes.aclose()

    def offer(self) -> None:
        """The relay's tools have changed: those of the sessions that go on do, too."""
        for session, dialect in self._open.items():
            session.offer(self._tools_for(dialect))

    def _tools_for(self, dialect: Dialect) -> dict[str, Tool]:
        if self._relay.tools is not self._tools:
            self._tools, self._fitting = self._relay.tools, {}
        if dialect.name not in self._fitting:
            self._fitting[dialect.name] = expressible(dialect, self._tools)
        return self._fitting[dialect.name]


@asynccontextmanager
async def attaching(
    relay: Relay,
    plans: Sequence[Plan],
    metrics: Metrics,
    recovered: asyncio.Event,
    journal: Journal | None = None,
) -> AsyncIterator[Attachments]:
    """Serve what the plans name beside the relay's sessions, while the block runs. Raises `ConfigError`.

    The `journal` is the relay's.
    """
    async with Attachments(RelayHouse(relay, recovered, journal)) as attachments:
        metrics.add_source(attachments.read)
        relay.beside = attachments
        await attachments.replace(plans)
        yield attachments


class Attachments:
    """See the module. `replace` tells what is to be served; it may be called again at any time."""

    def __init__(self, house: RelayHouse) -> None:
        self._house = house
        self._parts: dict[Plan, _Part] = {}
        """By their plans without the sessions that those name: where only these change, nothing is begun anew."""
        self._past: Counter[tuple[str, End]] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(part.stop() for part in self._parts.values()))
        await self._house.aclose()

    async def replace(self, plans: Iterable[Plan]) -> None:
        """From now on these are served: what is new is attached to, and what is gone is left once it owes nothing.

        Raises `ConfigError`, and nothing has changed, if a webhook cannot be listened to.
        """
        wanted = {replace(plan, sessions=()): plan.sessions for plan in plans}
        fresh = {place: _Part(self._house, place) for place in wanted if place not in self._parts}
        try:
            for part in fresh.values():
                await part.start()
        except ConfigError:
            await asyncio.gather(*(part.stop() for part in fresh.values()))
            raise
        gone = [self._parts.pop(place) for place in list(self._parts) if place not in wanted]
        self._parts |= fresh
        for place, sessions in wanted.items():
            self._parts[place].serve(sessions)
        for part in gone:
            await part.stop()
            self._past.update({(part.dialect, end): many for end, many in part.attached.endings.items()})

    @property
    def sessions(self) -> list[SessionSnapshot]:
        """As the relay shows its own."""
        return [_shown(each) for part in self._parts.values() for each in part.attached.sessions]

    def offer(self) -> None:
        """The tools of the house have changed."""
        self._house.offer()

    async def drain(self, seconds: float) -> int:
        """Leave all sessions; how many were left with calls unanswered. See `Attached.drain`."""
        return sum(await asyncio.gather(*(part.attached.drain(seconds) for part in self._parts.values())))

    def read(self) -> Iterable[Reading]:
        """What is counted: for `Metrics.add_source`."""
        parts = list(self._parts.values())
        open_now = Counter({dialect: 0 for dialect, _ in self._past})
        for part in parts:
            open_now[part.dialect] += part.attached.open
        ends = self._past + Counter({(p.dialect, e): n for p in parts for e, n in dict(p.attached.endings).items()})
        yield from (Reading("bridge_attached_sessions_open", (dialect,), many) for dialect, many in open_now.items())
        yield from (Reading("bridge_attaches_total", (dialect, end.value), n) for (dialect, end), n in ends.items())


class _Part:
    """One plan that is in force."""

    def __init__(self, house: RelayHouse, place: Plan) -> None:
        self.dialect = place.provider.dialect
        self.attached = Attached(
            house,
            place.provider,
            max_sessions=place.max_sessions,
            owed_timeout=place.owed_timeout,
            give_up=place.give_up,
        )
        self._place = place
        self._named: frozenset[str] = frozenset()
        """Those that the plan names; others are named by notifications."""
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Raises `ConfigError` if notifications cannot be taken."""
        if self._place.webhook is not None:
            await self._stack.enter_async_context(taking(self._place.webhook, self.attached.add))

    def serve(self, sessions: Sequence[str]) -> None:
        """The plan names these now. Those that were refused or lost before are tried again."""
        for session_id in self._named.difference(sessions):
            self.attached.remove(session_id, "it is not named any more")
        self._named = frozenset(sessions)
        for session_id in sessions:
            try:
                self.attached.add(session_id)
            except BridgeError as error:
                logger.error("session %s of %s cannot be served: %s", session_id, self.dialect, error)

    async def stop(self) -> None:
        """Hear nothing more, and leave all sessions once they owe nothing."""
        await self._stack.aclose()
        await self.attached.drain(math.inf)


def _shown(each: AttachedSnapshot) -> SessionSnapshot:
    return SessionSnapshot(
        id=each.id,
        provider_session_id=each.provider_session_id,
        correlation="",
        dialect=each.dialect,
        route=each.route,
        seconds=each.seconds,
        owed=each.owed,
        link=each.link,
        reply="",
        user="",
        bytes_from_application=0,
        bytes_from_provider=0,
    )
