"""The agent's voice as it passes by: when it came last, and until when it will be heard. It is not decoded for that."""

from __future__ import annotations

from collections.abc import Callable

from ..session.audio import PlaybackClock
from .walker import Walker

__all__ = ["Voice"]

_UNTIL_TOLD = (2, 24_000)
"""Bytes per sample and samples per second, before anybody has said how it is encoded."""


class Voice:
    """The voice in one session. `now`: the clock. `measured`: does it matter until when it is heard?"""

    __slots__ = ("_awaited", "_clock", "_media", "_now", "_rate", "_text", "_walker", "last")

    def __init__(self, now: Callable[[], float], *, measured: bool) -> None:
        self.last = now()
        """When it came last, or there was another sign of life."""
        self._now = now
        self._rate = _UNTIL_TOLD
        self._clock = PlaybackClock(*_UNTIL_TOLD) if measured else None
        self._walker: Walker | None = None
        self._media = self._text = 0
        self._awaited: Callable[[], None] | None = None
        """Told once when it comes next."""

    def comes_through(self, walker: Walker) -> None:
        """From now on it comes this way."""
        self._walker, self._media, self._text = walker, walker.media, walker.media_bytes

    def is_encoded(self, rate: tuple[int, int] | None) -> None:
        """Somebody says in which rate it comes (bytes per sample, samples per second), or does not say."""
        if rate is not None and rate != self._rate:
            self._rate = rate
            self._clock = None if self._clock is None else PlaybackClock(*rate)

    def measure(self) -> None:
        """From now on it matters until when it is heard."""
        if self._clock is None:
            self._clock = PlaybackClock(*self._rate)
            if self._walker is not None:
                self.comes_through(self._walker)

    def came(self) -> None:
        """Some of it has just come. To be called after every read that has media in it."""
        now, clock, walker = self._now, self._clock, self._walker
        self.last = came = now()
        if self._awaited is not None:
            tell, self._awaited = self._awaited, None
            tell()
        if clock is None or walker is None:
            return
        media, text = walker.media, walker.media_bytes
        audio = text - self._text - (media - self._media) * walker.envelope
        self._media, self._text = media, text
        clock.add(audio * 3 // 4, came)  # three quarters of what is in base64

    def await_next(self, tell: Callable[[], None] | None) -> None:
        """Tell this, and whoever waited before no more, when it comes next; None: nobody waits."""
        self._awaited = tell

    def lives(self) -> None:
        """The provider has said something else."""
        self.last = self._now()

    def flush(self) -> None:
        """What has not been heard will not be: the user has cut in."""
        if self._clock is not None:
            self._clock.flush()

    @property
    def heard_until(self) -> float:
        """When all that has come will have been heard."""
        return self._clock.end if self._clock is not None else 0.0
