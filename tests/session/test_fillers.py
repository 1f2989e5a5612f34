"""Fillers: one a call, and only after a silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from bridge import CallContext, CallKey, Tool, ToolCall, Toolset
from bridge.session.fillers import Fillers
from bridge.simulator import AwaitResults, BargeIn, Call, HangUp, Phase, Reply, Rules, Say, Until
from tests.e2e.conftest import call, script

pytestmark = pytest.mark.anyio

KEY = CallKey(1, "c1")
CALL = ToolCall("c1", "look", '{"city":"Oslo"}')
CONTEXT = CallContext(session_id="s", key=KEY, tool="look")
AFTER = 0.02


def tool(filler: str | Callable[..., str] | None, **options: Any) -> Tool:
    tools = Toolset()

    async def look(city: str) -> None:
        """Look something up."""

    tools.tool(look, filler=filler, filler_after=AFTER, **options)
    return tools["look"]


class Stage:
    """Somebody speaks or not, and what fillers have tried to say."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.loop = asyncio.get_running_loop()
        self.silent_since: float | None = self.loop.time()
        self.refusals = refusals
        self.tried: list[tuple[float, str]] = []
        self.news = asyncio.Event()
        self.asked = asyncio.Event()
        self.fillers = Fillers(self.speak, self.since, lambda function, tell: tell(function()))

    def since(self) -> float | None:
        self.asked.set()
        return self.silent_since

    def speak(self, key: CallKey, text: str) -> bool:
        assert key == KEY
        self.tried.append((self.loop.time(), text))
        self.news.set()
        return len(self.tried) > self.refusals

    async def next(self) -> None:
        """Wait until something is tried."""
        async with asyncio.timeout(20):
            await self.news.wait()
        self.news.clear()


async def test_a_filler_is_tried_after_its_time_and_once_if_it_is_spoken() -> None:
    stage = Stage()
    began = stage.loop.time()
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    await stage.next()
    ((at, text),) = stage.tried
    assert text == "One moment."
    assert at - began >= AFTER - 0.001
    stage.fillers.stop_all()


async def test_a_filler_that_could_not_be_spoken_is_tried_again() -> None:
    stage = Stage(refusals=2)
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    for _ in range(3):
        await stage.next()
    times = [at for at, _ in stage.tried]
    assert len(times) == 3
    assert all(later - earlier >= AFTER - 0.001 for earlier, later in pairwise(times))


async def test_a_filler_waits_until_it_has_been_silent_for_its_time() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    stage.silent_since = stage.loop.time() + 0.03
    await stage.next()
    assert stage.tried[0][0] >= stage.silent_since + AFTER - 0.001


async def test_a_filler_leaves_it_to_the_turn_whether_somebody_speaks() -> None:
    stage = Stage(refusals=1)
    stage.silent_since = None
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    await stage.next()
    await stage.next()
    assert len(stage.tried) == 2


async def test_a_filler_is_not_tried_once_the_result_is_there() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    stage.fillers.stop(KEY)
    stage.fillers.stop(KEY)  # the call is settled, too
    other = Stage()
    other.fillers.start(KEY, tool("Later."), CALL, CONTEXT)
    await other.next()
    assert stage.tried == []


async def test_no_filler_is_tried_after_the_end() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool("One moment."), CALL, CONTEXT)
    stage.fillers.stop_all()
    other = Stage()
    other.fillers.start(KEY, tool("Later."), CALL, CONTEXT)
    await other.next()
    assert stage.tried == []


async def test_a_filler_may_be_a_function_of_the_arguments() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool(lambda city: f"Looking up {city}."), CALL, CONTEXT)
    await stage.next()
    assert stage.tried[0][1] == "Looking up Oslo."


@pytest.mark.parametrize(
    ("filler", "arguments", "logged"),
    [
        (lambda city: "", '{"city":"Oslo"}', False),
        (lambda city: f"Looking up {city}.", "{}", False),
        (lambda city: city + 1, '{"city":"Oslo"}', True),
    ],
    ids=["says nothing", "arguments do not fit", "fails"],
)
async def test_a_filler_that_has_nothing_to_say_is_not_tried(
    filler: Callable[..., str], arguments: str, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool(filler), ToolCall("c1", "look", arguments), CONTEXT)
    async with asyncio.timeout(20):
        await stage.asked.wait()
    assert stage.tried == []
    assert ("the filler of tool look failed: TypeError" in caplog.messages) is logged
    assert "Oslo" not in caplog.text


async def test_progress_is_spoken_as_often_as_the_tool_allows() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool(None, spoken_progress=2), CALL, CONTEXT)
    for text in ("one", "two"):
        stage.fillers.progress(KEY, text)
        await stage.next()
    stage.fillers.progress(KEY, "three")
    stage.fillers.stop(KEY)
    stage.fillers.start(KEY, tool("fence"), CALL, CONTEXT)
    await stage.next()
    assert [text for _, text in stage.tried] == ["one", "two", "fence"]


async def test_the_latest_progress_is_what_is_said_also_instead_of_the_filler() -> None:
    stage = Stage()
    stage.silent_since = stage.loop.time() + 0.03
    stage.fillers.start(KEY, tool("One moment.", spoken_progress=1), CALL, CONTEXT)
    stage.fillers.progress(KEY, "half")
    stage.fillers.progress(KEY, "nearly")
    await stage.next()
    assert [text for _, text in stage.tried] == ["nearly"]
    stage.fillers.stop_all()


async def test_progress_that_comes_while_a_filler_is_made_is_said_after_it() -> None:
    stage = Stage()
    made: list[Callable[[], None]] = []
    stage.fillers = Fillers(stage.speak, stage.since, lambda function, tell: made.append(lambda: tell(function())))
    stage.fillers.start(KEY, tool(lambda city: city, spoken_progress=1), CALL, CONTEXT)
    async with asyncio.timeout(20):
        await stage.asked.wait()
    stage.fillers.progress(KEY, "half")
    made[0]()
    await stage.next()
    stage.silent_since = stage.loop.time()
    if len(stage.tried) < 2:
        await stage.next()
    assert [text for _, text in stage.tried] == ["Oslo", "half"]


async def test_progress_of_a_tool_that_speaks_none_is_only_for_observers() -> None:
    stage = Stage()
    stage.fillers.start(KEY, tool(None), CALL, CONTEXT)
    stage.fillers.progress(KEY, "half")
    stage.fillers.start(KEY, tool("fence"), CALL, CONTEXT)
    await stage.next()
    assert [text for _, text in stage.tried] == ["fence"]
    stage.fillers.stop_all()


# --------------------------------------------------------------------------------------------------------- in a session


def slow(seconds: float, **options: Any) -> Toolset:
    async def look(city: str) -> str:
        """Look something up."""
        await asyncio.sleep(seconds)
        return city

    tools = Toolset()
    tools.tool(look, filler_after=0.05, **options)
    return tools


ASK_OSLO = Reply("", (Call("look", {"city": "Oslo"}),), 0.0)
SHORT = Rules(gap=0.2, word=0.05)


async def test_a_filler_is_spoken_once_into_the_silence_before_the_result() -> None:
    scenario = script(ASK_OSLO, AwaitResults(), HangUp(), rules=SHORT)
    async with call(scenario, slow(0.4, filler="Still looking.")) as (sim, session):
        await session.run()
        assert [(request.phase, request.taken) for request in sim.ledger.requests] == [(Phase.WAITING, True)]
        assert [reply.text for reply in sim.ledger.replies] == ["", "Still looking.", "look says: Oslo."]
        assert sim.ledger.call("look").answers[0].timely


async def test_no_filler_is_spoken_when_the_result_is_there() -> None:
    scenario = script(ASK_OSLO, AwaitResults(), HangUp(), rules=SHORT)
    async with call(scenario, slow(0.0, filler="Still looking.")) as (sim, session):
        await session.run()
        assert sim.ledger.requests == []


async def test_a_filler_can_be_made_of_the_arguments() -> None:
    scenario = script(ASK_OSLO, AwaitResults(), HangUp(), rules=SHORT)
    async with call(scenario, slow(0.3, filler=lambda city: f"Looking up {city}.")) as (sim, session):
        await session.run()
        assert sim.ledger.replies[1].text == "Looking up Oslo."


async def test_a_filler_waits_until_nobody_speaks() -> None:
    scenario = script(
        ASK_OSLO, Until("reply.done"), BargeIn("Hurry.", 0.2, 3.0), Say("Yes."), AwaitResults(), HangUp(), rules=SHORT
    )
    async with call(scenario, slow(0.6, filler="Still looking.")) as (sim, session):
        await session.run()
        assert [request.phase for request in sim.ledger.requests] == [Phase.WAITING]
        assert [reply.text for reply in sim.ledger.replies] == ["", "Yes.", "Still looking.", "look says: Oslo."]


async def test_a_filler_that_cannot_be_made_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def broken(city: str) -> str:
        raise RuntimeError(city)

    scenario = script(ASK_OSLO, AwaitResults(), HangUp(), rules=SHORT)
    async with call(scenario, slow(0.2, filler=broken)) as (sim, session):
        await session.run()
        assert sim.ledger.requests == []
        assert sim.ledger.call("look").result == '"Oslo"'
    assert "the filler of tool look failed: RuntimeError" in caplog.messages
    assert "Oslo" not in caplog.text
