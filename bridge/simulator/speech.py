"""Sound in both directions: a quiet tone for the agent's voice, and an ear that finds speech by its energy."""

from __future__ import annotations

import math
import sys
from array import array
from dataclasses import dataclass
from enum import Enum, auto
from operator import mul
from typing import Final

__all__ = ["Ear", "Edge", "Format", "Sound", "audio"]

_TONE_HZ: Final = 400
_TONE_PEAK: Final = 1200
_FRAME_SECONDS: Final = 0.02
_SPEECH_SECONDS: Final = 0.06


class Format(Enum):
    """The three encodings of the protocol; the value is encoding, samples a second, bytes a sample."""

    PCM = ("audio/pcm", 24_000, 2)
    MU_LAW = ("audio/pcmu", 8_000, 1)
    A_LAW = ("audio/pcma", 8_000, 1)

    @property
    def rate(self) -> int:
        return self.value[1]

    @property
    def width(self) -> int:
        return self.value[2]

    @classmethod
    def of(cls, encoding: str) -> Format:
        """The format with this wire name."""
        return next(form for form in cls if form.value[0] == encoding)


class Sound(Enum):
    """What a stretch of a reply sounds like."""

    TONE = auto()
    SILENCE = auto()
    NOTHING = auto()
    """No audio is sent."""


class Edge(Enum):
    """A change between speech and silence."""

    STARTED = auto()
    STOPPED = auto()


def _mu_law(byte: int) -> int:
    """One mu-law byte as a sample (G.711)."""
    byte = ~byte & 0xFF
    size = (((byte & 0x0F) << 3) + 0x84 << ((byte & 0x70) >> 4)) - 0x84
    return -size if byte & 0x80 else size


def _a_law(byte: int) -> int:
    """One A-law byte as a sample (G.711)."""
    byte ^= 0x55
    segment = (byte & 0x70) >> 4
    size = ((byte & 0x0F) << 4) + 8
    if segment:
        size = size + 0x100 << segment - 1
    return size if byte & 0x80 else -size


_SAMPLES: Final = {
    Format.MU_LAW: tuple(map(_mu_law, range(256))),
    Format.A_LAW: tuple(map(_a_law, range(256))),
}


def _encode(form: Format, samples: list[int]) -> bytes:
    if form is Format.PCM:
        return b"".join(sample.to_bytes(2, "little", signed=True) for sample in samples)
    table = _SAMPLES[form]
    return bytes(min(range(256), key=lambda byte: abs(table[byte] - sample)) for sample in samples)


def _period(form: Format, peak: int) -> bytes:
    count = form.rate // _TONE_HZ
    return _encode(form, [round(peak * math.sin(2 * math.pi * n / count)) for n in range(count)])


_PERIODS: Final = {
    (form, sound): _period(form, _TONE_PEAK if sound is Sound.TONE else 0)
    for form in Format
    for sound in (Sound.TONE, Sound.SILENCE)
}


def audio(form: Format, sound: Sound, start: float, seconds: float) -> bytes:
    """Audio from `start` on, so that pieces in a row join without a click."""
    first, last = round(start * form.rate), round((start + seconds) * form.rate)
    period = _PERIODS[form, sound]
    offset = first * form.width % len(period)
    wanted = (last - first) * form.width
    return (period * (wanted // len(period) + 2))[offset : offset + wanted]


@dataclass(slots=True)
class Ear:
    """Finds the beginnings and ends of speech in audio, by the clock of the audio itself.

    Speech begins after 60 ms above the threshold (in 16-bit steps), and ends after `silence` seconds below it.
    """

    form: Format
    silence: float
    threshold: int = 500
    _rest: bytes = b""
    _loud: float = 0.0
    _quiet: float = 0.0
    _last: Edge = Edge.STOPPED

    def hear(self, data: bytes) -> list[Edge]:
        """Take audio; the edges in it, in order."""
        size = round(self.form.rate * _FRAME_SECONDS) * self.form.width
        data = self._rest + data
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        edges = (self._step(self._loudness(data[at : at + size])) for at in range(0, whole, size))
        return [edge for edge in edges if edge is not None]

    def _step(self, loudness: float) -> Edge | None:
        loud = loudness >= self.threshold
        self._loud = self._loud + _FRAME_SECONDS if loud else 0.0
        self._quiet = 0.0 if loud else self._quiet + _FRAME_SECONDS
        match self._last:
            case Edge.STOPPED if self._loud >= _SPEECH_SECONDS - 1e-9:
                self._last = Edge.STARTED
            case Edge.STARTED if self._quiet >= self.silence - 1e-9:
                self._last = Edge.STOPPED
            case _:
                return None
        return self._last

    def _loudness(self, frame: bytes) -> float:
        if self.form is Format.PCM:
            samples = array("h", frame)
            if sys.byteorder == "big":
                samples.byteswap()
        else:
            samples = array("h", map(_SAMPLES[self.form].__getitem__, frame))
        return math.sqrt(sum(map(mul, samples, samples)) / len(samples))
