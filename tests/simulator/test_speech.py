"""The agent's voice and ear, and conversations that are driven by the energy of real audio."""

from __future__ import annotations

import asyncio
import math
from array import array
from base64 import b64decode, b64encode
from typing import Any

import pytest

from bridge.simulator import AwaitResults, Call, Fate, Noise, Reply, ReplyEnd, Rules, Say, Scenario, Simulator, UserSays
from bridge.simulator.speech import Ear, Edge, Format, Sound, audio
from tests.simulator.raw import TOOL, Raw, dial


def voice(seconds: float, peak: int = 8000) -> bytes:
    """PCM of a loud tone."""
    return array("h", [round(peak * math.sin(n / 10)) for n in range(round(seconds * 24_000))]).tobytes()


def silence(seconds: float) -> bytes:
    return bytes(round(seconds * 24_000) * 2)


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("sound", [Sound.TONE, Sound.SILENCE])
def test_pieces_of_audio_join_without_a_seam(form: Format, sound: Sound) -> None:
    whole = audio(form, sound, 0.0, 0.5)
    assert len(whole) == form.rate * form.width // 2
    assert whole == audio(form, sound, 0.0, 0.123) + audio(form, sound, 0.123, 0.377)


@pytest.mark.parametrize("form", list(Format))
def test_the_ear_hears_the_tone_in_every_format_and_not_the_silence(form: Format) -> None:
    ear = Ear(form, silence=0.2, threshold=300)
    assert ear.hear(audio(form, Sound.SILENCE, 0.0, 1.0)) == []
    assert ear.hear(audio(form, Sound.TONE, 0.0, 0.04)) == []
    assert ear.hear(audio(form, Sound.TONE, 0.0, 0.02)) == [Edge.STARTED]
    assert ear.hear(audio(form, Sound.TONE, 0.0, 1.0)) == []
    assert ear.hear(audio(form, Sound.SILENCE, 0.0, 0.18)) == []
    assert ear.hear(audio(form, Sound.SILENCE, 0.0, 0.02)) == [Edge.STOPPED]


def test_the_ear_does_not_mind_how_audio_is_cut() -> None:
    sound = silence(0.5) + voice(0.5) + silence(0.5)
    whole, pieces = Ear(Format.PCM, 0.2), Ear(Format.PCM, 0.2)
    heard = [edge for at in range(0, len(sound), 700) for edge in pieces.hear(sound[at : at + 700])]
    assert heard == whole.hear(sound) == [Edge.STARTED, Edge.STOPPED]


def test_a_short_pause_does_not_end_speech() -> None:
    assert Ear(Format.PCM, 0.2).hear(voice(0.3) + silence(0.1) + voice(0.3)) == [Edge.STARTED]


def test_companded_samples_are_those_of_the_standard() -> None:
    loudest = {Format.MU_LAW: 32124, Format.A_LAW: 32256}
    for form, peak in loudest.items():
        assert Ear(form, 0.2)._loudness(bytes([0x80 if form is Format.MU_LAW else 0xAA]) * 160) == peak


async def speak(raw: Raw, sound: bytes) -> None:
    await raw.say("input.audio", audio=b64encode(sound).decode())


@pytest.mark.anyio
async def test_without_a_script_every_turn_calls_the_first_tool() -> None:
    async with Simulator(pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure(tools=[TOOL])
        await speak(raw, voice(0.5) + silence(1.0))
        call = await raw.until("tool.call")
        await raw.until("reply.done")
        await raw.answer(call, '"rain"')
        await raw.until("transcript.agent", text="get_weather says: rain.")
        assert call["arguments"] == {"city": "example"}
        assert raw.order[2:6] == [
            "input.speech.started",
            "transcript.user.delta",
            "input.speech.stopped",
            "transcript.user",
        ]


@pytest.mark.anyio
async def test_without_tools_every_turn_is_answered() -> None:
    async with Simulator(pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure()
        for _ in range(2):
            await speak(raw, voice(0.5) + silence(1.0))
            await raw.until("reply.done")
        assert [reply.text for reply in sim.ledger.replies] == ["I hear you."] * 2


@pytest.mark.anyio
async def test_a_script_waits_for_real_speech_and_lends_it_its_words() -> None:
    steps = (UserSays("Weather?"), Noise(), Reply("Let me look.", (Call("get_weather"),)), AwaitResults(), Say("Bye."))
    scenario = Scenario("test", "", steps)
    async with Simulator(scenario, pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)
        await speak(raw, voice(0.5) + silence(1.0))
        await raw.answer(await raw.until("tool.call"))
        await raw.until("transcript.agent", text="Bye.")
        assert (sim.ledger.user_turns, sim.ledger.call("get_weather").fate) == (["Weather?"], Fate.TOLD)


@pytest.mark.anyio
async def test_real_speech_cuts_a_reply() -> None:
    scenario = Scenario("test", "", (Reply("Let me look at it all.", (Call("get_weather"),), 40.0),))
    async with Simulator(scenario, pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.audio")
        await speak(raw, voice(0.5))
        await raw.until("reply.done", status="interrupted")
        assert (sim.ledger.replies[0].end, sim.ledger.calls[0].fate) == (ReplyEnd.INTERRUPTED, Fate.ABANDONED)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("session", "rules"),
    [({}, Rules(silence=0.3)), ({"input": {"turn_detection": {"min_silence": 300}}}, Rules(silence=9.0))],
)
async def test_the_pause_that_ends_a_turn_comes_from_the_session_or_the_rules(
    session: dict[str, Any], rules: Rules
) -> None:
    async with Simulator(rules, pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure(**session)
        await speak(raw, voice(0.5) + silence(0.28))
        await raw.until("input.speech.started")
        assert not sim.ledger.user_turns
        await speak(raw, silence(0.02))
        await raw.until("input.speech.stopped")


@pytest.mark.anyio
async def test_the_ear_listens_in_the_format_of_the_input() -> None:
    formats = {"input": {"format": {"encoding": "audio/pcmu"}}, "output": {"format": {"encoding": "audio/pcma"}}}
    async with Simulator(pace=0.05, turn_detection="energy") as sim, dial(sim.url) as raw:
        await raw.configure(**formats)
        await speak(raw, bytes([0x00, 0x80]) * 2000 + b"\xff" * 8000)
        await raw.until("input.speech.stopped")
        await raw.until("reply.done")
        assert sim.ledger.violations == []
        data = b"".join(b64decode(event["data"]) for event in raw.heard("reply.audio"))
        assert data.startswith((b"\xd5", b"\x55"))
