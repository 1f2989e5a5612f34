"""One conversation from a recording: a WAV file is the caller, and what the agent says is written into another.

Both files begin at the same moment, so that they line up when they are laid side by side.
"""

from __future__ import annotations

import asyncio
import wave
from array import array
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from .agents.assemblyai import AssemblyAI
from .core.conversation import Step
from .core.events import AgentAudio, ReplyStarted, SpeechStarted
from .demo.drawing import drawn
from .demo.timeline import Timeline
from .errors import ConfigError, SessionClosed
from .host import connect
from .session.session import Session
from .simulator import Simulator
from .tools.tool import Tool

__all__ = ["Track", "converse", "offline", "read_wav", "write_wav"]

RATE: Final = 24_000
"""Samples per second on both sides: 16 bit, one channel."""
_WIDTH: Final = 2
_PIECE: Final = 0.02
"""Seconds of audio that are sent at a time."""
_JITTER: Final = 0.2
"""Audio that comes late by less than this goes on where the piece before it ended."""
_LONGEST: Final = 60.0
"""Seconds of silence after the recording, whatever happens."""


# ------------------------------------------------------------------------------------------------------- recordings


def read_wav(path: Path) -> bytes:
    """The samples of a WAV file as 16-bit PCM, 24 kHz, one channel.

    Any rate and any number of channels will do. Raises `ConfigError` for other encodings, and `OSError`.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            data = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ConfigError(f"{path}: {str(error) or 'the file ends too early'}; {_advice(path)}") from None
    if width != _WIDTH or not channels or not rate:
        raise ConfigError(f"{path}: {8 * width} bits per sample, but 16 are needed; {_advice(path)}")
    samples = array("h", data[: len(data) - len(data) % (_WIDTH * channels)])
    if not samples:
        raise ConfigError(f"{path}: there is no audio in it")
    return _resampled(_mixed(samples, channels), rate).tobytes()


def _advice(path: Path) -> str:
    return f"convert it: sox {path.name} -b 16 -c 1 -r {RATE} converted.wav"


def _mixed(samples: array[int], channels: int) -> array[int]:
    """One channel of several."""
    if channels == 1:
        return samples
    sides = (samples[channel::channels] for channel in range(channels))
    return array("h", (sum(frame) // channels for frame in zip(*sides, strict=True)))


def _resampled(samples: array[int], rate: int) -> array[int]:
    """By straight lines between samples: plain, and good enough for speech."""
    if rate == RATE:
        return samples
    last = len(samples) - 1
    result = array("h")
    for position in range(len(samples) * RATE // rate):
        at, part = divmod(position * rate, RATE)
        here, there = samples[at], samples[min(at + 1, last)]
        result.append(here + (there - here) * part // RATE)
    return result


def write_wav(path: Path, pcm: bytes) -> None:
    """Write 16-bit PCM, 24 kHz, one channel. Raises `OSError`."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(_WIDTH)
        file.setframerate(RATE)
        file.writeframes(pcm)


class Track:
    """The agent's voice as the caller hears it: each piece when it is played, and nothing after the caller cuts in."""

    def __init__(self) -> None:
        self._pcm = bytearray()
        self._speaking_until: float | None = None

    def begin_reply(self) -> None:
        """What comes next does not belong to the voice before."""
        self._speaking_until = None

    def add(self, data: bytes, at: float) -> None:
        """A piece arrived, so many seconds after the beginning."""
        begin = _bytes(at)
        follows = self._speaking_until is not None and at < self._speaking_until + _JITTER
        if not follows and begin > len(self._pcm):
            self._pcm.extend(bytes(begin - len(self._pcm)))
        self._pcm.extend(data)
        self._speaking_until = len(self._pcm) / (_WIDTH * RATE)

    def cut(self, at: float) -> None:
        """What has not been played by then never is."""
        del self._pcm[_bytes(at) :]
        self._speaking_until = None

    def finish(self, seconds: float) -> bytes:
        """All of it, with silence up to this length."""
        return bytes(self._pcm.ljust(_bytes(seconds), b"\0"))


def _bytes(seconds: float) -> int:
    """Where in a recording this moment is; always between two samples."""
    return max(0, round(seconds * RATE)) * _WIDTH


# ---------------------------------------------------------------------------------------------------- the conversation


@asynccontextmanager
async def offline() -> AsyncIterator[str]:
    """The address of a simulated provider that takes loud audio for speech."""
    async with Simulator(turn_detection="energy") as simulator:
        yield simulator.url


async def converse(
    console: Console,
    pcm: bytes,
    agent: AssemblyAI,
    tools: Mapping[str, Tool],
    *,
    api_key: str | None = None,
    patience: float = 4.0,
) -> tuple[bytes, Timeline]:
    """Speak a recording to the agent at the pace of speech; its voice, and what happened.

    Silence follows the recording until nothing has happened for `patience` seconds. `agent` must use `audio/pcm` both
    ways. Raises what `connect` raises, and `BridgeError` if the session fails.
    """
    timeline = Timeline(agent.output_rate)
    track = Track()
    sent = 0.0
    seconds = len(pcm) / (_WIDTH * RATE)

    def record(session: Session, step: Step) -> None:
        for event in step.events:
            match event:
                case AgentAudio(data):
                    track.add(data, timeline.now)
                case ReplyStarted():
                    track.begin_reply()
                case SpeechStarted():
                    track.cut(timeline.now)

    def progress() -> RenderableType:
        return _progress(min(sent, seconds), seconds)

    def count(position: float) -> None:
        nonlocal sent
        sent = position

    async with (
        drawn(console, timeline, seconds=seconds + patience, footer=progress),
        connect(agent, tools=tools, api_key=api_key, observers=(timeline.watch, record)) as session,
    ):
        listening = asyncio.create_task(session.run())
        try:
            await _speak(session, pcm, timeline, patience, count)
            await session.end("the recording is over")
            await listening
        finally:
            listening.cancel()
    return track.finish(max(seconds, sent)), timeline


async def _speak(
    session: Session, pcm: bytes, timeline: Timeline, patience: float, count: Callable[[float], None]
) -> None:
    """Send the recording, and then silence for as long as there is something to wait for.

    What counts is how much has been sent, so that a machine that stands still for a while cuts nothing short.
    """
    size = _bytes(_PIECE)
    seconds = len(pcm) / (_WIDTH * RATE)
    loop = asyncio.get_running_loop()
    start, position = loop.time(), 0
    try:
        while True:
            at = position * _PIECE
            if at > max(timeline.last_event, seconds) + patience and timeline.is_quiet():
                return
            if at > seconds + _LONGEST:
                return
            await session.send_audio(pcm[position * size : (position + 1) * size].ljust(size, b"\0"))
            count(at + _PIECE)
            position += 1
            await asyncio.sleep(start + position * _PIECE - loop.time())
    except SessionClosed:
        pass  # the other side has ended it; if it failed, the session says so itself


def _progress(done: float, seconds: float) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_row("recording", ProgressBar(seconds, done, width=40), f"{done:.1f} of {seconds:.1f} s")
    return grid
