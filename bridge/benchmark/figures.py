"""What is reported, and how it follows from what was measured. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

__all__ = [
    "AUDIO_BYTES",
    "FRAMES_PER_SECOND",
    "MAX_LATENESS",
    "Delays",
    "Direction",
    "Reading",
    "Report",
    "Sent",
    "Trip",
    "Unmeasurable",
    "Verdict",
    "percentile",
    "report",
]

FRAMES_PER_SECOND: Final = 50
"""Each way, in every call: telephony audio comes in pieces of 20 ms."""
AUDIO_BYTES: Final = 160
"""In one frame: 20 ms of mu-law at 8 kHz."""
MAX_LATENESS: Final = 10.0
"""Milliseconds by which 1 % of the frames may be sent late, which is half the time between two of them."""
_CARRIED: Final = 5.0
"""Added milliseconds at the 99th percentile up to which callers do not notice."""
_FULL: Final = 0.6
"""Of a core: what is planned for. Delays grow from three quarters on, and the rest is for tools and for peaks."""


class Unmeasurable(Exception):
    """There are no figures: says why, and what to do."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The least of the values, which are in order, that at least this share of them does not exceed (nearest rank)."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


# -------------------------------------------------------------------------------------------------- what was measured


@dataclass(frozen=True, slots=True)
class Sent:
    """What one side sent: how many frames, and how late 1 % of them or more were, in milliseconds."""

    frames: int
    late: float


@dataclass(frozen=True, slots=True)
class Delays:
    """From sending to arrival, in milliseconds."""

    p50: float
    p99: float

    def __sub__(self, other: Delays) -> Delays:
        return Delays(self.p50 - other.p50, self.p99 - other.p99)


@dataclass(frozen=True, slots=True)
class Trip:
    """One direction of all calls together: what was sent, how much of that arrived, and when."""

    sent: Sent
    arrived: int
    delays: Delays


@dataclass(frozen=True, slots=True)
class Direction:
    """The same trip through the relay, and without it."""

    relayed: Trip
    direct: Trip

    @property
    def added(self) -> Delays:
        """What the relay adds; below nothing where chance was greater."""
        return self.relayed.delays - self.direct.delays

    @property
    def missing(self) -> int:
        """Frames that had not come through the relay when the measurement was over."""
        return self.relayed.sent.frames - self.relayed.arrived


@dataclass(frozen=True, slots=True)
class Reading:
    """A look at the relay's process: seconds on the clock, seconds of CPU (user and system), resident KiB."""

    at: float
    cpu: float
    kib: int


# --------------------------------------------------------------------------------------------------- what is reported


class Verdict(Enum):
    """How this machine took it."""

    CARRIED = "carried"
    FULL = "full"
    OVERLOADED = "overloaded"
    DISTURBED = "disturbed"
    """Audio was late, but not for want of CPU in the relay."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the relay costs at so many calls."""

    calls: int
    seconds: float
    to_provider: Direction
    to_caller: Direction
    cpu_share: float
    """Of one core."""
    cpu_us_per_frame: float
    """Microseconds for one frame in one direction."""
    memory_kib_per_call: float

    @property
    def added_p99(self) -> float:
        """Milliseconds, of the slower direction."""
        return max(self.to_provider.added.p99, self.to_caller.added.p99)

    @property
    def missing(self) -> int:
        """Frames that did not arrive."""
        return self.to_provider.missing + self.to_caller.missing

    @property
    def calls_per_core(self) -> int:
        """How many calls would use 60 % of a core, at what a frame costs now."""
        return round(_FULL / (self.cpu_us_per_frame / 1e6 * 2 * FRAMES_PER_SECOND))

    @property
    def verdict(self) -> Verdict:
        full = self.cpu_share > _FULL
        if self.missing or self.added_p99 > _CARRIED:
            return Verdict.OVERLOADED if full else Verdict.DISTURBED
        return Verdict.FULL if full else Verdict.CARRIED

    @property
    def words(self) -> str:
        """The verdict, and what to do."""
        verdict = self.verdict
        delay = f"1 % of the audio is delayed by {max(self.added_p99, 0):.1f} ms or more"
        lost = f", {self.missing} frames did not arrive in time" if self.missing else ""
        measured = f"{delay}{lost}, and the relay uses {self.cpu_share:.0%} of a core"
        plan = f"Plan for {self.calls_per_core} calls a core"
        match verdict:
            case Verdict.CARRIED if self.calls_per_core > 2 * self.calls:
                more = f"Measure with more (--calls {self.calls_per_core}): a frame costs less then"
                return f"{self.calls} calls are carried with ease: {measured}. {more}."
            case Verdict.CARRIED:
                return f"{self.calls} calls are carried: {measured}. {plan}."
            case Verdict.FULL:
                return f"{self.calls} calls leave no room for peaks and tools: {measured}. {plan}, and add workers."
            case Verdict.OVERLOADED:
                return f"{self.calls} calls are too many for a core: {measured}. {plan}, and add workers."
            case Verdict.DISTURBED:
                cause = "It was kept waiting by the load itself, or by something else on this machine"
                remedy = "Use fewer calls (--calls), or stop what else is running"
                return f"{self.calls} calls were disturbed: {measured}, so it is not at its limit. {cause}. {remedy}."
        assert_never(verdict)


def report(
    calls: int, seconds: float, relayed: tuple[Trip, Trip], direct: tuple[Trip, Trip], readings: Sequence[Reading]
) -> Report:
    """Puts it together.

    Trips are those to the provider and to the caller. `readings` were taken when the first call had been set up, at the
    beginning of the measured seconds, and at their end. Raises `Unmeasurable` if the load itself was late: delays would
    be those of the load.
    """
    late = max(trip.sent.late for trip in (*relayed, *direct))
    if late > MAX_LATENESS:
        raise Unmeasurable(
            f"the load itself could not keep the pace of {calls} calls: 1 % of its frames were sent {late:.1f} ms late "
            f"or more, where {MAX_LATENESS:g} ms are allowed. Use fewer calls (--calls), or stop what else is running"
        )
    first, begin, end = readings
    share = (end.cpu - begin.cpu) / (end.at - begin.at)
    frames = sum(trip.arrived for trip in relayed) / seconds
    return Report(
        calls=calls,
        seconds=seconds,
        to_provider=Direction(relayed[0], direct[0]),
        to_caller=Direction(relayed[1], direct[1]),
        cpu_share=share,
        cpu_us_per_frame=share / frames * 1e6,
        memory_kib_per_call=(end.kib - first.kib) / (calls - 1),
    )
