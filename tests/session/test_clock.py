"""The clock of a turn: when its provider was heard, and when the timers of its machine run out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import (
    AgentAudio,
    AskExpired,
    CallKey,
    GraceExpired,
    HoldExpired,
    Malformed,
    ReplyDone,
    ReplyHeard,
    ReplyRequested,
    ReplyStarted,
    SpeechStarted,
    Start,
    Timer,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
)
from bridge.core.turn import TurnMachine
from bridge.session.clock import Ear, TurnClock
from bridge.testing.clock import VirtualClock

pytestmark = pytest.mark.anyio

NEVER = 1000.0
FINISHING = ToolCalled(ToolCall("c1", "get_weather"))
FINISHED = ToolFinished(CallKey(1, "c1"), ToolResult("c1", "1"))
HELD = ToolCalled(ToolCall("c1", "hang_up"), start=Start.AFTER_REPLY)


@pytest.fixture(autouse=True)
async def _virtual() -> AsyncIterator[None]:
    with VirtualClock.borrowed():
        yield


@dataclass
class Voice:
    last: float
    heard_until: float = 0.0


class Clockwork:
    """A turn with its clock, and what has run out."""

    def __init__(self, delivery: Delivery, *, last: float) -> None:
        self.now = asyncio.get_running_loop().time()
        self.voice = Voice(self.now + last)
        self.clock = TurnClock(TurnMachine(delivery), self.voice, self._is_up)
        self.up: asyncio.Queue[Timer] = asyncio.Queue()

    def _is_up(self, timer: Timer) -> None:
        self.up.put_nowait(timer)

    def hears(self, *events: object, asked: bool = False) -> None:
        machine = self.clock.machine
        for event in events:
            machine, _ = machine.handle(event)
        self.clock.follow(machine, asked=asked)

    async def first(self) -> tuple[Timer, float]:
        """What runs out first, and how many seconds after the beginning."""
        async with asyncio.timeout(NEVER / 2):
            timer = await self.up.get()
        return timer, round(asyncio.get_running_loop().time() - self.now, 1)


async def test_a_provider_that_has_been_silent_for_too_long_counts_as_stuck() -> None:
    clockwork = Clockwork(Delivery(max_hold=3.0, max_speech=NEVER), last=-1.0)
    clockwork.hears(ReplyStarted("r1"), HELD)
    assert await clockwork.first() == (HoldExpired(), 2.0)


async def test_speech_that_is_never_said_to_stop_counts_for_a_while_only() -> None:
    clockwork = Clockwork(Delivery(max_hold=NEVER, max_speech=10.0), last=-1.0)
    clockwork.hears(ReplyStarted("r1"), FINISHING, SpeechStarted(), FINISHED)
    assert await clockwork.first() == (HoldExpired(), 9.0)


async def test_a_reply_counts_as_heard_once_its_voice_has_come_to_its_end() -> None:
    clockwork = Clockwork(Delivery(), last=0.0)
    clockwork.voice.heard_until = clockwork.now + 2.5
    clockwork.hears(ReplyStarted("r1"), HELD, ReplyDone())
    assert await clockwork.first() == (ReplyHeard(1), 2.5)


async def test_siblings_have_their_grace() -> None:
    clockwork = Clockwork(Delivery(grace=0.4, max_hold=NEVER), last=0.0)
    slower = ToolCalled(ToolCall("c2", "get_time"))
    clockwork.hears(ReplyStarted("r1"), FINISHING, slower, FINISHED, ReplyDone())
    assert await clockwork.first() == (GraceExpired(1), 0.4)


async def test_every_ask_has_its_full_time() -> None:
    clockwork = Clockwork(Delivery(ask_timeout=2.0), last=0.0)
    clockwork.hears(ReplyRequested(), asked=True)
    await asyncio.sleep(1.5)
    clockwork.hears(asked=True)
    assert await clockwork.first() == (AskExpired(), 3.5)


async def test_what_asks_for_nothing_gives_an_ask_no_more_time() -> None:
    clockwork = Clockwork(Delivery(ask_timeout=2.0), last=0.0)
    clockwork.hears(ReplyRequested(), asked=True)
    await asyncio.sleep(1.5)
    clockwork.hears(asked=False)
    assert await clockwork.first() == (AskExpired(), 2.0)


async def test_a_clock_that_is_stopped_lets_nothing_run_out() -> None:
    clockwork = Clockwork(Delivery(), last=0.0)
    clockwork.hears(ReplyStarted("r1"), HELD)
    clockwork.clock.stop()
    await asyncio.sleep(NEVER)
    assert clockwork.up.empty()


async def test_nobody_has_been_speaking_since_the_voice_came_to_its_end_or_the_last_sign_of_life() -> None:
    clockwork = Clockwork(Delivery(), last=5.0)
    quiet, _ = clockwork.clock.machine.handle(ReplyStarted("r1"))
    assert clockwork.clock.silent_since(quiet) is None
    quiet, _ = quiet.handle(ReplyDone())
    assert clockwork.clock.silent_since(quiet) == clockwork.voice.last
    clockwork.voice.heard_until = clockwork.voice.last + 1
    assert clockwork.clock.silent_since(quiet) == clockwork.voice.heard_until


# ------------------------------------------------------------------------------------------------------------ the ear


async def test_an_ear_counts_the_agents_voice_and_forgets_it_when_it_is_cut_short() -> None:
    ear = Ear((2, 24_000))
    began = ear.last
    ear.heard(AgentAudio(bytes(48_000)))
    assert ear.last >= began
    assert ear.heard_until == pytest.approx(ear.last + 1)
    ear.heard(ReplyDone())
    assert ear.heard_until > began
    ear.heard(ReplyDone(interrupted=True))
    assert ear.heard_until < began


async def test_only_signs_of_life_count_as_such() -> None:
    ear = Ear((2, 24_000))
    ear.last = 0.0
    ear.heard(Malformed("no"))
    assert ear.last == 0.0
    ear.heard(SpeechStarted())
    assert ear.last > 0.0
    ear.last = 0.0
    assert ear.is_back() == ear.last > 0.0
