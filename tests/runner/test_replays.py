"""Calls that are made again."""

from __future__ import annotations

import asyncio

import pytest

from bridge.runner.replays import Replays

pytestmark = pytest.mark.anyio


class Work:
    """What runs, and how often it has."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs = 0
        self.replays = Replays(lambda: self.now)

    async def run(self) -> str:
        self.runs += 1
        return f"run {self.runs}"

    async def once(self, key: str = "k", seconds: float = 10) -> tuple[str, bool]:
        return await self.replays.once(key, seconds, self.run)


async def test_the_first_success_is_given_again_within_its_time() -> None:
    work = Work()
    assert await work.once() == ("run 1", False)
    work.now = 9.9
    assert await work.once() == ("run 1", True)
    work.now = 10
    assert await work.once() == ("run 2", False)


async def test_another_call_runs() -> None:
    work = Work()
    await work.once("a")
    assert await work.once("b") == ("run 2", False)


async def test_a_failure_is_never_given_again() -> None:
    work = Work()

    async def fail() -> str:
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        await work.replays.once("k", 10, fail)
    assert await work.once() == ("run 1", False)


async def test_the_same_call_at_the_same_time_waits_for_the_first() -> None:
    work, gate = Work(), asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return await work.run()

    first = asyncio.create_task(work.replays.once("k", 10, slow))
    await asyncio.sleep(0)
    second = asyncio.create_task(work.once())
    await asyncio.sleep(0)
    assert work.runs == 0
    gate.set()
    assert await first == ("run 1", False)
    assert await second == ("run 1", True)


@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "failed"])
async def test_whoever_waits_for_a_call_that_fails_runs_itself(cancelled: bool) -> None:
    work, gate = Work(), asyncio.Event()

    async def fail() -> str:
        await gate.wait()
        raise ValueError

    first = asyncio.create_task(work.replays.once("k", 10, fail))
    await asyncio.sleep(0)
    second = asyncio.create_task(work.once())
    await asyncio.sleep(0)
    if cancelled:
        first.cancel()
    gate.set()
    assert await second == ("run 1", False)
    with pytest.raises(asyncio.CancelledError if cancelled else ValueError):
        await first


async def test_a_waiting_call_that_is_cancelled_leaves_the_first_alone() -> None:
    work, gate = Work(), asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return await work.run()

    first = asyncio.create_task(work.replays.once("k", 10, slow))
    await asyncio.sleep(0)
    second = asyncio.create_task(work.once())
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    assert await first == ("run 1", False)


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.runner.replays._KEPT", 2)
    work = Work()
    for key in "abc":
        await work.once(key)
    assert await work.once("c") == ("run 3", True)
    assert await work.once("a") == ("run 4", False)
