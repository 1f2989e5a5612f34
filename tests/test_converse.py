from __future__ import annotations

import asyncio
import io
import math
import time
import wave
from array import array
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bridge.agents.assemblyai import AssemblyAI
from bridge.converse import Track, converse, read_wav, write_wav
from bridge.demo.timeline import Kind, Timeline
from bridge.errors import ConfigError, ProviderError, TransportError
from bridge.simulator import BargeIn, Call, Fail, HangUp, Reply, Rules, Say, Scenario, Simulator, UserSays
from bridge.tools.tool import Toolset

RATE = 24_000
tools = Toolset()


@tools.tool(effect="read")
async def list_invoices() -> dict[str, int]:
    """All invoices."""
    return {"invoices": 27}


@tools.tool(effect="read")
async def look_up(order: str) -> str:
    """State of an order."""
    await anyio.sleep(0.1)
    return "shipped"


def speech(seconds: float, rate: int = RATE) -> array[int]:
    """Loud as a voice, in bursts as syllables are."""
    return array(
        "h",
        (
            round(9000 * math.sin(2 * math.pi * 220 * n / rate) * (0.7 + 0.3 * math.sin(2 * math.pi * 4 * n / rate)))
            for n in range(round(seconds * rate))
        ),
    )


def silence(seconds: float, rate: int = RATE) -> array[int]:
    return array("h", bytes(2 * round(seconds * rate)))


def plain() -> Console:
    return Console(file=io.StringIO(), width=100)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def voices(pcm: bytes) -> list[tuple[float, float]]:
    """When somebody is to be heard in a recording, to a hundredth of a second."""
    samples, size = array("h", pcm), RATE // 100
    loud = [max(map(abs, samples[at : at + size])) > 100 for at in range(0, len(samples), size)]
    edges = [at for at in range(1, len(loud)) if loud[at] != loud[at - 1]]
    if loud[0]:
        edges.insert(0, 0)
    if len(edges) % 2:
        edges.append(len(loud))
    return [(edges[n] / 100, edges[n + 1] / 100) for n in range(0, len(edges), 2)]


def speeches(timeline: Timeline, kind: Kind) -> list[tuple[float, float]]:
    return [(speech.begin, speech.end or 0.0) for speech in timeline.speech if speech.kind is kind]


# ------------------------------------------------------------------------------------------------ the conversation

QUICK = Rules(startup=0.05, silence=0.14, thinking=0.05, gap=0.05, answer_lag=0.01, interruption_lag=0.15, word=0.05)


@pytest.mark.anyio
async def test_a_spoken_turn_is_answered_and_both_recordings_line_up() -> None:
    scenario = Scenario(
        "", "", (UserSays("Where is it?"), Reply("One moment.", (Call("look_up", {"order": "7"}),), 0.2)), rules=QUICK
    )
    pcm = (silence(0.1) + speech(0.3) + silence(0.3)).tobytes()
    console = plain()
    async with Simulator(scenario, turn_detection="energy") as provider:
        agent = AssemblyAI(url=provider.url)
        voice, timeline = await converse(console, pcm, agent, tools, api_key="k", patience=0.3)
        ledger = await provider.session_over()
    assert ledger.call("look_up").answered == 1
    assert timeline.call("look_up").fate is Kind.SENT
    assert len(voice) >= len(pcm)
    [(begins, ends)] = speeches(timeline, Kind.CALLER)
    assert begins == pytest.approx(0.16, abs=0.1)
    heard, spoken = voices(voice), speeches(timeline, Kind.AGENT)
    assert heard[0][0] > ends
    assert heard[0][0] == pytest.approx(spoken[0][0], abs=0.06)
    assert heard[-1][1] == pytest.approx(spoken[-1][1], abs=0.1)
    assert "look_up          result sent" in written(console)


@pytest.mark.anyio
async def test_a_caller_who_cuts_in_silences_the_agent_and_the_result_is_discarded() -> None:
    scenario = Scenario(
        "",
        "",
        (
            UserSays("How much did I pay?"),
            Reply("I am going through all of them.", (Call("list_invoices"),), 3.0),
            BargeIn("Never mind."),
            Say("All right.", 0.2),
        ),
        rules=QUICK,
    )
    pcm = (speech(0.2) + silence(0.4) + speech(0.35) + silence(0.1)).tobytes()
    async with Simulator(scenario, turn_detection="energy") as provider:
        agent = AssemblyAI(url=provider.url)
        voice, timeline = await converse(plain(), pcm, agent, tools, api_key="k", patience=0.3)
        ledger = await provider.session_over()
    assert ledger.call("list_invoices").answered == 0
    assert timeline.call("list_invoices").fate is Kind.DISCARDED
    assert [reply.text for reply in ledger.cut]
    cuts_in = speeches(timeline, Kind.CALLER)[1][0]
    first, *_, last = voices(voice)
    assert first[0] < cuts_in
    assert first[1] == pytest.approx(cuts_in, abs=0.25)
    assert last[0] > speeches(timeline, Kind.CALLER)[1][1]


@pytest.mark.anyio
async def test_a_provider_that_hangs_up_ends_the_conversation_early() -> None:
    scenario = Scenario("", "", (UserSays("Hello?"), Say("Goodbye.", 0.1), HangUp()), rules=QUICK)
    pcm = (speech(0.2) + silence(30.0)).tobytes()
    async with Simulator(scenario, turn_detection="energy") as provider:
        with anyio.fail_after(5):
            voice, timeline = await converse(plain(), pcm, AssemblyAI(url=provider.url), tools, api_key="k")
    assert [line.text for line in timeline.lines] == ['"Hello?"', '"Goodbye."']
    assert len(voice) == len(pcm)


@pytest.mark.anyio
async def test_a_provider_that_fails_is_an_error() -> None:
    scenario = Scenario("", "", (UserSays("Hello?"), Fail()), rules=QUICK)
    async with Simulator(scenario, turn_detection="energy") as provider:
        with anyio.fail_after(5), pytest.raises(ProviderError, match="internal_error"):
            await converse(plain(), (speech(0.2) + silence(9.0)).tobytes(), AssemblyAI(url=provider.url), tools)


@pytest.mark.anyio
async def test_an_address_where_nobody_answers_is_an_error() -> None:
    async with Simulator() as provider:
        url = provider.url
    with pytest.raises(TransportError):
        await converse(plain(), silence(0.1).tobytes(), AssemblyAI(url=url), tools, api_key="k")


@pytest.mark.anyio
async def test_without_a_script_the_first_tool_is_called_and_a_terminal_shows_how_far_the_recording_is() -> None:
    pcm = (speech(0.2) + silence(0.1)).tobytes()
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    async with Simulator(turn_detection="energy", pace=0.1) as provider:
        with anyio.fail_after(10):
            _, timeline = await converse(console, pcm, AssemblyAI(url=provider.url), tools, api_key="k", patience=0.3)
    assert [trace.name for trace in timeline.calls] == ["list_invoices"]
    assert timeline.call("list_invoices").fate is Kind.SENT
    assert "recording" in written(console)


@pytest.mark.anyio
async def test_a_recording_of_silence_ends_when_patience_does() -> None:
    async with Simulator(turn_detection="energy", pace=0.1) as provider:
        # Everything stands still for longer than patience lasts, soon after the conversation has begun.
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.3)
        with anyio.fail_after(20):
            voice, timeline = await converse(
                plain(), silence(0.1).tobytes(), AssemblyAI(url=provider.url), tools, api_key="k", patience=0.2
            )
    assert timeline.lines == []
    assert 0.3 < len(voice) / 2 / RATE < 0.45
    assert not any(voice)


@pytest.mark.anyio
async def test_a_conversation_that_does_not_come_to_rest_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.converse._LONGEST", 0.2)
    async with Simulator(turn_detection="energy", pace=0.1) as provider:
        with anyio.fail_after(5):
            voice, _ = await converse(
                plain(), silence(0.1).tobytes(), AssemblyAI(url=provider.url), tools, api_key="k", patience=60.0
            )
    assert len(voice) / 2 / RATE == pytest.approx(0.32, abs=0.05)


# -------------------------------------------------------------------------------------------------------- the track


def test_a_late_piece_joins_the_one_before_so_that_nothing_clicks() -> None:
    track = Track()
    track.add(b"\1\1" * 240, 1.0)
    track.add(b"\2\2" * 240, 1.05)
    assert track.finish(0).lstrip(b"\0") == b"\1\1" * 240 + b"\2\2" * 240


def test_a_new_reply_begins_when_it_is_heard() -> None:
    track = Track()
    track.add(b"\1\1" * 240, 0.0)
    track.begin_reply()
    track.add(b"\2\2" * 240, 0.05)
    assert track.finish(0.1) == b"\1\1" * 240 + bytes(2 * 960) + b"\2\2" * 240 + bytes(2 * 960)


def test_audio_that_comes_all_at_once_is_played_in_turn_and_cut_where_the_caller_cuts_in() -> None:
    track = Track()
    track.add(b"\1\1" * RATE, 0.0)
    track.add(b"\2\2" * RATE, 0.01)
    track.cut(1.5)
    assert track.finish(3.0) == b"\1\1" * RATE + b"\2\2" * (RATE // 2) + bytes(3 * RATE)


@given(
    st.lists(st.tuples(st.floats(0, 0.4), st.integers(1, 500), st.sampled_from(["add", "cut", "reply"])), max_size=12)
)
def test_a_track_never_splits_a_sample_and_never_plays_anything_before_it_came(
    events: list[tuple[float, int, str]],
) -> None:
    track, now = Track(), 0.0
    for wait, samples, what in events:
        now += wait
        before = len(track.finish(0))
        match what:
            case "add":
                track.add(b"\1\1" * samples, now)
                assert len(track.finish(0)) >= before + 2 * samples
            case "cut":
                track.cut(now)
                assert len(track.finish(0)) <= 2 * round(now * RATE)
            case _:
                track.begin_reply()
        assert len(track.finish(0)) % 2 == 0


# ----------------------------------------------------------------------------------------------------------- WAV files


def wav(path: Path, data: bytes, *, rate: int = RATE, channels: int = 1, width: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


def test_a_recording_in_the_right_format_is_taken_as_it_is(tmp_path: Path) -> None:
    pcm = speech(0.1).tobytes()
    assert read_wav(wav(tmp_path / "a.wav", pcm)) == pcm


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    pcm = speech(0.1).tobytes()
    write_wav(tmp_path / "a.wav", pcm)
    assert read_wav(tmp_path / "a.wav") == pcm


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 44_100, 48_000])
def test_any_other_rate_sounds_the_same(tmp_path: Path, rate: int) -> None:
    pcm = array("h", read_wav(wav(tmp_path / "a.wav", speech(0.2, rate).tobytes(), rate=rate)))
    expected = speech(0.2)
    assert abs(len(pcm) - len(expected)) <= 3
    assert max(abs(pcm[n] - expected[n]) for n in range(len(pcm) - 3)) < 200


def test_two_channels_become_one(tmp_path: Path) -> None:
    both = array("h", [1000, 3000, -2000, 0])
    assert array("h", read_wav(wav(tmp_path / "a.wav", both.tobytes(), channels=2))) == array("h", [2000, -1000])


@pytest.mark.parametrize("width", [1, 3, 4])
def test_other_sample_widths_are_refused_with_the_command_that_helps(tmp_path: Path, width: int) -> None:
    with pytest.raises(ConfigError, match=r"sox a\.wav -b 16 -c 1 -r 24000 converted\.wav"):
        read_wav(wav(tmp_path / "a.wav", bytes(12), width=width))


@pytest.mark.parametrize("content", [b"", b"ID3 this is music", b"RIFF\x04\0\0\0WAVE"])
def test_what_is_no_wav_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(ConfigError, match=r"a\.wav: .+; convert it"):
        read_wav(tmp_path / "a.wav")


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no audio"):
        read_wav(wav(tmp_path / "a.wav", b""))
