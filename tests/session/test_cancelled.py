"""A host that is cancelled: wherever it waits at that moment, nothing of its session is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from bridge import AssemblyAI, Toolset, connect
from bridge.simulator import AwaitResults, Call, Drop, HangUp, Reply, Rules, Say, Scenario, Simulator, Until, UserSays

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

BOTH = Reply("Let me look.", (Call("get_weather", {"city": "Oslo"}), Call("get_time", {"city": "Oslo"})), 0.2)
SCENARIO = Scenario(
    "",
    "",
    (UserSays("Oslo?", 0.2), BOTH, AwaitResults(), Until("reply.done"), Drop(), Say("So long.", 0.2), HangUp()),
    rules=Rules(thinking=0.05, gap=0.05),
)
NEVER = 10**9

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> str:
    """Weather now."""
    await asyncio.sleep(0.01)
    return "rain"


@tools.tool(effect="read")
def get_time(city: str) -> str:
    """Time now."""
    return "noon"


class Step:
    """Awaits something, and has its task cancelled so many times, beginning where it waits for the nth time."""

    def __init__(self, work: Coroutine[Any, Any, None], nth: int, times: int) -> None:
        self.waits = 0
        self._work = work
        self._when = range(nth, nth + times)

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        resume, with_what = self._work.send, None
        while True:
            try:
                awaited = resume(with_what)  # type: ignore[operator]  # `send` or `throw`, each with its own
            except StopIteration:
                return
            self.waits += 1
            if self.waits in self._when:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                resume, with_what = self._work.send, (yield awaited)
            except BaseException as thrown:
                resume, with_what = self._work.throw, thrown  # type: ignore[assignment]  # as above


async def talk(url: str) -> None:
    async with connect(AssemblyAI(url=url), tools=tools, api_key="offline") as session:
        await session.update(volume=3.0)
        await session.send_audio(bytes(480))
        session.say("Hello.")
        await session.run()


async def waits(nth: int = NEVER, times: int = 1) -> int:
    """Play the conversation, and look for what is left of it; how often its host has waited."""
    async with Simulator(SCENARIO, pace=0.05) as provider:
        theirs, threads = asyncio.all_tasks(), threading.active_count()
        step = Step(talk(provider.url), nth, times)

        async def host() -> None:
            await step

        hosting = asyncio.create_task(host())
        async with asyncio.timeout(20):
            await asyncio.wait([hosting])
            left = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - theirs}  # type: ignore[union-attr]  # all have one
            assert {name for name in left if name.partition(".")[0] in OURS} == set()
            while threading.active_count() > threads:  # noqa: ASYNC110  # a thread ends when its function does
                await asyncio.sleep(0.01)
        assert hosting.cancelled() or hosting.exception() is None
    return step.waits


OURS = {"Bridge", "Calls", "Connection", "Ending", "Outbox", "Recovery", "Runner", "Session", "Survival", "Updates"}


@pytest.mark.parametrize("times", [1, 4])
async def test_wherever_a_host_is_cancelled_nothing_of_its_session_is_left(times: int) -> None:
    for nth in range(1, await waits() + 1):
        await waits(nth, times)
