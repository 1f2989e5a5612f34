"""Until when the agent's voice is heard, told from what passes by."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from bridge import CallContext, Start
from bridge.core.events import AgentAudio, SessionEnded
from bridge.metrics import Metrics
from bridge.relay.frames import Opcode, frame
from bridge.relay.voice import Voice
from bridge.relay.walker import Walker
from tests.relay.rig import address, providing, relaying, tool, until, weather
from tests.simulator.raw import dial

SECOND = "A" * 64_000
"""Of 16 bits at 24,000 Hz, as base64."""


class Wire:
    """A voice, the walker that it comes through, and a clock."""

    def __init__(self, *, measured: bool = True) -> None:
        self.now = 100.0
        self.voice = Voice(lambda: self.now, measured=measured)
        self.walker = self.joined()

    def joined(self) -> Walker:
        walker = Walker(masked=False, media=frozenset({"reply.audio"}), max_size=1_000_000)
        self.voice.comes_through(walker)
        return walker

    def send(self, data: str, walker: Walker | None = None) -> None:
        text = json.dumps({"type": "reply.audio", "reply_id": "r1", "data": data}).encode()
        (walker or self.walker).feed(frame(Opcode.TEXT, text, masked=False))
        self.voice.came()


def test_what_has_come_is_heard_one_piece_after_the_other() -> None:
    wire = Wire()
    for _ in range(3):
        wire.send(SECOND)
    assert wire.voice.heard_until == pytest.approx(103.0, abs=0.001)
    wire.now = 110.0
    wire.send(SECOND[:32_000])
    assert wire.voice.last == 110.0
    assert wire.voice.heard_until == pytest.approx(110.5, abs=0.001)


def test_an_interruption_ends_what_would_have_been_heard() -> None:
    wire = Wire()
    wire.send(SECOND)
    wire.voice.flush()
    assert wire.voice.heard_until < 100.0


def test_a_voice_may_matter_only_later() -> None:
    wire = Wire(measured=False)
    wire.voice.measure()  # before anything has come through
    wire = Wire(measured=False)
    wire.voice.is_encoded((1, 8_000))
    wire.send(SECOND)
    assert wire.voice.heard_until == 0.0
    wire.voice.measure()
    wire.voice.measure()
    wire.send(SECOND)
    assert wire.voice.heard_until == pytest.approx(106.0, abs=0.001)


def test_a_voice_that_comes_through_nothing_yet_can_be_measured() -> None:
    voice = Voice(lambda: 1.0, measured=False)
    voice.measure()
    voice.came()
    assert voice.heard_until < 1.0


@pytest.mark.parametrize(("rate", "seconds"), [(None, 1.0), ((2, 24_000), 1.0), ((1, 8_000), 6.0)])
def test_its_seconds_are_counted_as_it_is_encoded(rate: tuple[int, int] | None, seconds: float) -> None:
    wire = Wire()
    wire.voice.is_encoded((2, 24_000))
    wire.voice.is_encoded(rate)
    wire.send(SECOND)
    assert wire.voice.heard_until == pytest.approx(100 + seconds, abs=0.01)


def test_on_another_connection_it_is_counted_from_there() -> None:
    wire = Wire()
    wire.send(SECOND)
    again = wire.joined()
    wire.send(SECOND, again)
    assert wire.voice.heard_until == pytest.approx(102.0, abs=0.001)


def test_a_voice_that_need_not_be_measured_is_only_noticed() -> None:
    wire = Wire(measured=False)
    wire.now = 101.0
    wire.voice.is_encoded((1, 8_000))
    wire.send(SECOND)
    wire.voice.flush()
    assert (wire.voice.last, wire.voice.heard_until) == (101.0, 0.0)


def test_whoever_waits_for_it_is_told_once() -> None:
    wire, told = Wire(), list[str]()
    wire.voice.await_next(lambda: told.append("given up"))
    wire.voice.await_next(lambda: told.append("came"))
    wire.send(SECOND)
    wire.send(SECOND)
    assert told == ["came"]
    wire.voice.await_next(lambda: told.append("given up"))
    wire.voice.await_next(None)
    wire.send(SECOND)
    assert told == ["came"]


MULAW = {"output": {"format": {"encoding": "audio/pcmu"}}}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "echoed", "seconds"), [(MULAW, {}, 0.6), ({}, MULAW, 0.6), ({}, {}, 0.1)], ids=["asked", "echoed", "-"]
)
async def test_a_session_follows_the_format_that_is_asked_for_or_echoed(
    asked: Mapping[str, Any], echoed: Mapping[str, Any], seconds: float
) -> None:
    invoked: list[float] = []

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> str:
        invoked.append(time.monotonic())
        return "ended"

    ends = tool("end_call", invoke, spec={"start": Start.AFTER_REPLY}, effect="terminal")
    async with providing() as providers, relaying(providers.url, [ends]) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await app.say("session.update", session=asked)
        update = await provider.hear("session.update")
        await provider.say("session.updated", config={"tools": update["session"]["tools"], **echoed})
        await provider.say("session.ready", session_id="sess_1")
        await app.until("session.ready")
        await provider.say("reply.started")
        await provider.call("end_call")
        began = time.monotonic()
        await provider.say("reply.audio", data=SECOND[:6400])  # 4,800 bytes
        await provider.say("reply.done")
        await until(lambda: bool(invoked))
    assert seconds <= invoked[0] - began < seconds + 0.45


@pytest.mark.anyio
async def test_the_silence_before_a_reply_ends_with_its_first_audio_and_not_with_its_first_words() -> None:
    metrics = Metrics()

    def waits(what: str) -> float | None:
        return metrics.registry.get_sample_value(f"bridge_{what}_to_audio_seconds_count")

    async with (
        providing() as providers,
        relaying(providers.url, [weather()], observers=(metrics,)) as relay,
        dial(address(relay)) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await provider.say("input.speech.started")
        await provider.say("input.speech.stopped")
        await provider.say("reply.started", reply_id="r1")
        await provider.call()
        await provider.say("transcript.agent", reply_id="r1", text="One moment.")
        await app.until("transcript.agent")
        assert (waits("speech"), waits("call")) == (0, 0)
        await provider.say("reply.audio", reply_id="r1", data="AAAA")
        await app.until("reply.audio")
        assert (waits("speech"), waits("call")) == (1, 0)
        await provider.say("reply.done", reply_id="r1")
        await provider.hear("tool.result")
        await provider.say("reply.audio", data="AAAA")  # of no reply
        await app.until("reply.audio")
        await provider.say("reply.started", reply_id="r2")
        await app.until("reply.started")
        assert waits("call") == 0
        for _ in range(2):
            await provider.say("reply.audio", reply_id="r2", data="AAAA")
            await app.until("reply.audio")
        assert (waits("speech"), waits("call")) == (1, 1)


@pytest.mark.anyio
async def test_audio_that_comes_after_the_end_of_a_session_is_told_to_nobody() -> None:
    seen: list[object] = []
    observers = (lambda session, step: seen.extend(step.events),)
    async with (
        providing() as providers,
        relaying(providers.url, observers=observers) as relay,
        dial(address(relay)) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await provider.say("reply.started", reply_id="r1")
        await provider.say("session.ended")
        await provider.say("reply.audio", reply_id="r1", data="AAAA")
        await app.until("reply.audio")
    assert any(isinstance(event, SessionEnded) for event in seen)
    assert not any(isinstance(event, AgentAudio) for event in seen)
