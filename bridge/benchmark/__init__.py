"""What a machine carries: paced calls through a real sidecar, and the same calls without it.

    report = await benchmark(calls=100, seconds=5)
    print(report.words)

Four processes take part: the sidecar, as `serve` runs it; the callers; the provider; and this one, which only watches.
Every frame of audio carries the time at which it was sent, so that its delay is known where it arrives: the monotonic
clock is the same in all processes. The callers talk to the provider through the sidecar first, then directly. What is
reported as added is the difference.

* `figures`: what is reported, and how it follows from what was measured. Pure.
* `load`: the callers and the provider, as lean as Python allows, and without a line of the relay's.
* `run`: starts the processes, and measures.
"""

from __future__ import annotations

from .figures import Delays, Direction, Report, Unmeasurable, Verdict
from .run import benchmark

__all__ = ["Delays", "Direction", "Report", "Unmeasurable", "Verdict", "benchmark"]
