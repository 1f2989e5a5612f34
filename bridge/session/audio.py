"""Does the audio that a host sends look right? Providers go deaf without a word when it does not. Pure."""

from __future__ import annotations

__all__ = ["AudioMeter", "Microphone", "PlaybackClock"]

_WINDOW = 4.0
"""Seconds of steady sending after which its pace is judged."""
_GAP = 0.25
"""A pause of this many seconds means that the host sends speech only; its pace then tells nothing."""
_COMMON_RATES = (8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000)
_NEAR = 0.04
_TOO_FAST = 1.25


class AudioMeter:
    """Watches the pace of what is sent: `add` returns a warning when there is one, each kind once."""

    def __init__(self, sample_width: int, sample_rate: int) -> None:
        self._bytes_per_second = sample_width * sample_rate
        self._width = sample_width
        self._rate = sample_rate
        self._began = 0.0
        self._last = float("-inf")
        self._sum = 0
        self._judged = False

    def add(self, size: int, now: float) -> str | None:
        """`size` bytes are sent at `now`, in seconds of any clock."""
        if self._judged:
            return None
        if now - self._last > _GAP:
            self._began, self._sum = now, 0
        self._last = now
        elapsed = now - self._began
        if elapsed >= _WINDOW:
            self._judged = True
            return self._judge(self._sum / elapsed)
        self._sum += size
        # A burst is too fast before its window has passed.
        if self._sum > _TOO_FAST * _WINDOW * self._bytes_per_second:
            self._judged = True
            return self._judge(self._sum / max(elapsed, 0.001))
        return None

    def _judge(self, pace: float) -> str | None:
        rate = pace / self._width
        for common in _COMMON_RATES:
            if common != self._rate and abs(rate / common - 1) < _NEAR:
                return (
                    f"audio arrives like {common} Hz, but the session expects {self._rate} Hz: the agent will not "
                    "understand it. Resample it, or choose the format that fits"
                )
        return self._too_fast(pace) if pace > _TOO_FAST * self._bytes_per_second else None

    def _too_fast(self, pace: float) -> str:
        times = pace / self._bytes_per_second
        return f"audio arrives {times:.1f} times as fast as it is spoken: the provider drops what is too much"


class Microphone:
    """The user's voice as a host sends it: in whole samples, at its pace, and dropped while nobody could hear it."""

    def __init__(self, sample_width: int, sample_rate: int) -> None:
        self._meter = AudioMeter(sample_width, sample_rate)
        self._width = sample_width
        self._rate = sample_rate
        self._dropped = 0

    def sends(self, size: int, now: float) -> str | None:
        """`size` bytes at `now`; a warning, as of `AudioMeter.add`. Raises `ValueError` for half samples."""
        if size % self._width:
            raise ValueError(
                f"{size} bytes of audio are not whole samples of {self._width} bytes: "
                "everything after the cut would be noise"
            )
        return self._meter.add(size, now)

    def drops(self, size: int) -> None:
        """So many bytes reach nobody."""
        self._dropped += size

    def take_dropped(self) -> float:
        """Seconds that have been dropped since this was last asked."""
        dropped, self._dropped = self._dropped, 0
        return dropped / self._width / self._rate


class PlaybackClock:
    """When will what the agent has said have been heard? Counted from the bytes of its audio and their rate."""

    def __init__(self, sample_width: int, sample_rate: int) -> None:
        self._bytes_per_second = sample_width * sample_rate
        self._end = float("-inf")

    def add(self, size: int, now: float) -> None:
        """`size` bytes arrived at `now`; they are played after those before."""
        self._end = max(self._end, now) + size / self._bytes_per_second

    def remaining(self, now: float) -> float:
        """Seconds of audio still to be played."""
        return max(0.0, self._end - now)

    def flush(self) -> None:
        """What has not been played will not be: the user has cut in."""
        self._end = float("-inf")

    @property
    def end(self) -> float:
        return self._end
