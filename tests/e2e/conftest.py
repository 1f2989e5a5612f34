"""What the end-to-end tests share: tools made from sketches, a played scenario, and ways to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import anyio
import orjson
from websockets.asyncio.server import ServerConnection, serve

from bridge import (
    AgentAudio,
    AgentEvent,
    AssemblyAI,
    CallContext,
    Deliver,
    Delivery,
    InvalidArguments,
    ProviderMessage,
    Session,
    Start,
    Tool,
    ToolError,
    Toolset,
    ToolSettled,
    ToolSpec,
    Transcript,
    connect,
)
from bridge.simulator import Ledger, Rules, Scenario, Simulator, Step, ToolSketch

PACE = 0.05
PATIENCE = 20.0
BRISK = Delivery(grace=0.4 * PACE)
"""The dialect's own delivery, with the grace at the pace of the simulator."""

_E = TypeVar("_E")


@asynccontextmanager
async def tidily() -> AsyncIterator[None]:
    """Nothing takes for ever, and no task is left behind."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(PATIENCE):
        yield
        assert asyncio.all_tasks() - before == set()


# ------------------------------------------------------------------------------------------------------- conversations


def script(*steps: Step, rules: Rules | None = None) -> Scenario:
    """A conversation that only one test needs."""
    return Scenario("", "", steps, rules=rules or Rules())


@asynccontextmanager
async def call(
    scenario: Scenario | Rules, tools: Mapping[str, Tool] | None = None, *, pace: float = PACE, **options: Any
) -> AsyncIterator[tuple[Simulator, Session]]:
    """A session with a simulated provider; `options` are those of `connect`. Ends with the test's patience."""
    options.setdefault("delivery", BRISK)
    async with tidily(), Simulator(scenario, pace=pace) as sim:
        agent = options.pop("agent", AssemblyAI)(url=sim.url)
        async with connect(agent, tools=tools, api_key="offline", **options) as session:
            yield sim, session


@asynccontextmanager
async def provider(behave: Callable[[ServerConnection], Awaitable[None]]) -> AsyncIterator[str]:
    """A provider that does just this with every connection; where it listens."""
    async with tidily(), serve(behave, "127.0.0.1", 0, compression=None, close_timeout=0.2) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}"


async def until(session: Session, kind: type[_E], true: Callable[[_E], bool] = lambda event: True) -> _E:
    """The next event of this kind for which this is true."""
    async for event in session:
        if isinstance(event, kind) and true(event):
            return event
    raise AssertionError(f"the session ended without {kind.__name__}")


async def take_all(session: Session, take: Callable[[AgentEvent], object]) -> None:
    """Take every event, as far as it goes."""
    async for event in session:
        take(event)


async def eventually(true: Callable[[], bool]) -> None:
    """Wait until the provider's account says so; accounts cannot be waited for."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def fence(session: Session) -> None:
    """Whatever we have sent so far has been taken by the provider once this returns."""
    await session.update(volume=50.0)


def sent(ledger: Ledger) -> list[str]:
    """What the client sent, in order."""
    return [entry[3:] for entry in ledger.timeline if entry.startswith("->")]


def seconds_of(events: Sequence[AgentAudio]) -> float:
    """How long this audio takes to be heard."""
    width, rate = AssemblyAI().output_rate
    return sum(len(event.data) for event in events) / width / rate


# ----------------------------------------------------------------------------------------------------------- scenarios


@dataclass(frozen=True)
class Invoked:
    """A tool began to run: when, and what the provider had said by then."""

    name: str
    at: float
    timeline: tuple[str, ...]


@dataclass
class Played:
    """A scenario that was played: what the provider saw, what the host saw and when, and which tools ran."""

    ledger: Ledger = field(default_factory=Ledger)
    events: list[tuple[float, AgentEvent]] = field(default_factory=list)
    invoked: list[Invoked] = field(default_factory=list)
    failure: Exception | None = None

    def of(self, kind: type[_E]) -> list[_E]:
        """The events of this kind."""
        return [cast(_E, event) for _, event in self.events if isinstance(event, kind)]

    @property
    def settled(self) -> list[tuple[str, str]]:
        """How each call that was run ended, in that order: tool, and how."""
        return [(event.name, event.how) for event in self.of(ToolSettled)]

    @property
    def order(self) -> list[str]:
        """The events that are not media, by the names of their types."""
        return [
            type(e).__name__ for _, e in self.events if not isinstance(e, AgentAudio | Transcript | ProviderMessage)
        ]


async def play(scenario: Scenario, *, pace: float = PACE, delivery: Delivery = BRISK, patience: float = 0.75) -> Played:
    """Play a scenario to its end, with tools as it sketches them.

    `patience`: the tools' own limit, as a share of the time that the provider is told to wait.
    """
    played = Played()
    loop = asyncio.get_running_loop()
    async with tidily(), Simulator(scenario, pace=pace) as sim:

        def note(name: str) -> None:
            played.invoked.append(Invoked(name, loop.time(), tuple(sim.ledger.timeline)))

        tools = Toolset(sketched(sketch, pace, patience, note) for sketch in scenario.tools)
        try:
            async with connect(AssemblyAI(url=sim.url), tools=tools, api_key="offline", delivery=delivery) as session:
                async for event in session:
                    played.events.append((loop.time(), event))
        except Exception as failure:
            played.failure = failure
        played.ledger = sim.ledger
    return played


def sketched(sketch: ToolSketch, pace: float, patience: float, note: Callable[[str], None]) -> Tool:
    """The tool that a scenario expects the client to have."""

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> Any:
        note(sketch.name)
        await anyio.sleep(sketch.seconds * pace)
        if sketch.fails:
            raise ToolError(sketch.fails)
        return sketch.result

    spec = ToolSpec(
        sketch.name,
        sketch.description,
        orjson.dumps(sketch.parameters).decode(),
        timeout=sketch.timeout_seconds,
        hold=sketch.hold,
        start=Start.AFTER_REPLY if sketch.terminal else Start.NOW,
        deliver=Deliver.BETWEEN_REPLIES if sketch.hold else Deliver.AFTER_REPLY,
    )
    return Tool(spec=spec, invoke=invoke, check=_object, timeout=sketch.timeout_seconds * pace * patience)


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        raise InvalidArguments("the arguments are not JSON") from None
    if not isinstance(value, dict):
        raise InvalidArguments("the arguments are no object")
    return value
