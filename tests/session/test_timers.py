"""Timers: exactly the wanted ones run, and each fires once, when its deadline has come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from bridge.core.events import AskExpired, GraceExpired, HoldExpired, Timer
from bridge.session.timers import Timers
from bridge.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio

ASK, HOLD = AskExpired(), HoldExpired()
NEVER = 1000.0


@pytest.fixture(autouse=True)
async def _virtual() -> AsyncIterator[None]:
    with VirtualClock.borrowed():
        yield


class Clockwork:
    """Timers with a length for each, and what has fired."""

    def __init__(self, **lengths: float) -> None:
        self.lengths = lengths
        self.fired: list[Timer] = []
        self.asked: list[Timer] = []
        self.timers = Timers(self.deadline, self.fire)
        self._news = asyncio.Event()

    def deadline(self, timer: Timer, since: float) -> float:
        self.asked.append(timer)
        return since + self.lengths[type(timer).__name__]

    def fire(self, timer: Timer) -> None:
        self.fired.append(timer)
        self._news.set()

    async def fires(self, times: int = 1) -> list[Timer]:
        """Wait until so many have fired; the first ones, in their order."""
        async with asyncio.timeout(20):
            while len(self.fired) < times:
                self._news.clear()
                await self._news.wait()
        return self.fired[:times]


async def test_a_timer_fires_when_its_time_has_come_and_only_once() -> None:
    clockwork = Clockwork(AskExpired=0.01, HoldExpired=0.03)
    began = asyncio.get_running_loop().time()
    clockwork.timers.keep(frozenset({ASK, HOLD}))
    assert await clockwork.fires() == [ASK]
    assert asyncio.get_running_loop().time() - began >= 0.009
    assert await clockwork.fires(2) == [ASK, HOLD] == clockwork.fired


async def test_a_timer_that_is_wanted_no_more_does_not_fire() -> None:
    clockwork = Clockwork(AskExpired=0.01, HoldExpired=0.02)
    clockwork.timers.keep(frozenset({ASK, HOLD}))
    clockwork.timers.keep(frozenset({HOLD}))
    assert await clockwork.fires() == [HOLD]


async def test_a_shorter_timer_that_comes_later_fires_first() -> None:
    clockwork = Clockwork(AskExpired=0.01, HoldExpired=0.05)
    clockwork.timers.keep(frozenset({HOLD}))
    clockwork.timers.keep(frozenset({HOLD, ASK}))
    assert await clockwork.fires() == [ASK]
    assert await clockwork.fires(2) == [ASK, HOLD]


async def test_a_deadline_that_moves_away_is_waited_for_anew() -> None:
    clockwork = Clockwork(AskExpired=0.01)
    loop = asyncio.get_running_loop()
    began = loop.time()
    clockwork.timers.keep(frozenset({ASK}))
    clockwork.lengths["AskExpired"] = 0.04
    assert await clockwork.fires() == [ASK]
    assert loop.time() - began >= 0.039
    assert clockwork.asked == [ASK, ASK, ASK]  # when it began, when its time had come, and when that had moved


async def test_keeping_a_timer_does_not_start_it_again() -> None:
    clockwork = Clockwork(AskExpired=0.02)
    for _ in range(3):
        clockwork.timers.keep(frozenset({ASK}))
    assert clockwork.asked == [ASK]


async def test_a_stopped_timer_that_is_wanted_again_has_its_full_time() -> None:
    clockwork = Clockwork(AskExpired=0.02)
    clockwork.timers.keep(frozenset({ASK}))
    clockwork.timers.stop(ASK)
    clockwork.timers.stop(HOLD)  # does not run
    clockwork.timers.keep(frozenset({ASK}))
    assert clockwork.asked == [ASK, ASK]
    assert await clockwork.fires() == [ASK]


async def test_timers_of_different_turns_are_different_timers() -> None:
    clockwork = Clockwork(GraceExpired=0.01)
    clockwork.timers.keep(frozenset({GraceExpired(1), GraceExpired(2)}))
    assert set(await clockwork.fires(2)) == {GraceExpired(1), GraceExpired(2)}


async def test_a_timer_that_fires_may_change_what_is_wanted() -> None:
    clockwork = Clockwork(AskExpired=0.01, HoldExpired=0.01)
    fired: list[Timer] = []
    done = asyncio.Event()

    def fire(timer: Timer) -> None:
        fired.append(timer)
        timers.stop_all()
        done.set()

    timers = Timers(clockwork.deadline, fire)
    timers.keep(frozenset({ASK, HOLD}))
    async with asyncio.timeout(20):
        await done.wait()
    # The second one was over in the same moment, and was stopped by the first.
    await asyncio.sleep(0.02)
    assert len(fired) == 1


async def test_after_stopping_all_nothing_fires() -> None:
    clockwork = Clockwork(AskExpired=0.005, HoldExpired=NEVER)
    clockwork.timers.keep(frozenset({ASK, HOLD}))
    clockwork.timers.stop_all()
    other = Clockwork(AskExpired=0.01)
    other.timers.keep(frozenset({ASK}))
    assert await other.fires() == [ASK]
    assert clockwork.fired == []
    clockwork.timers.stop_all()  # nothing runs any more
