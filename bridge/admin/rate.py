"""How often somebody may ask for something: a bucket that fills by the second."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

__all__ = ["Rate"]

_REMEMBERED = 1024
"""Buckets at most: of whoever has asked longest ago nothing is remembered."""


class Rate:
    """At most `burst` at once, and `per_second` in the long run, for each who asks."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What is left in each, and when that was so."""

    def take(self, who: str) -> float:
        """Take one: 0. Or, if none is left, the seconds until there is."""
        now = self._clock()
        left, since = self._buckets.pop(who, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._per_second)
        wait = 0.0 if left >= 1 else (1 - left) / self._per_second
        self._buckets[who] = (left if wait else left - 1, now)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return wait
