"""What a relay can tell the metrics when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from ..metrics import Reading, Source, of_runner
from ..relay.figures import Counters, Traffic
from ..relay.server import Relay

__all__ = ["relay_source"]

_ATTEMPTS = 5


def relay_source(relay: Relay) -> Source:
    """Frames, bytes, refusals and threads of this relay: `metrics.add_source(relay_source(relay))`.

    It adds up the counters of all sessions in the thread of the scrape, while the relay goes on. A session that ends
    meanwhile may be missing from a sum for a moment; a counter that fell would look like a restart, so none does.
    """
    told: dict[tuple[str, tuple[str, ...]], float] = {}

    def read() -> Iterable[Reading]:
        for name, labels, value in _counted(_counters(relay)):
            told[name, labels] = max(value, told.get((name, labels), 0))
        yield from (Reading(name, labels, value) for (name, labels), value in told.items())
        yield from of_runner(relay.runner)

    return read


def _counters(relay: Relay) -> Counters | None:
    """Its counters; None if sessions come and go so fast that they cannot be added up now."""
    for _ in range(_ATTEMPTS):
        with suppress(RuntimeError):  # the sessions changed while they were looked through
            return relay.counters
    return None


def _counted(counters: Counters | None) -> Iterator[Reading]:
    if counters is None:
        return
    yield from _passed("from_application", counters.from_application)
    yield from _passed("from_provider", counters.from_provider)
    yield Reading("bridge_sessions_without_setup_total", (), counters.without_setup)
    yield Reading("bridge_dropped_media_total", (), counters.dropped)
    for outcome, times in counters.lost.items():
        yield Reading("bridge_provider_losses_total", (outcome,), times)
    for status, times in counters.refused.items():
        yield Reading("bridge_refused_connections_total", (str(status),), times)


def _passed(direction: str, traffic: Traffic) -> Iterator[Reading]:
    yield Reading("bridge_frames_total", (direction, "media"), traffic.media)
    yield Reading("bridge_frames_total", (direction, "message"), traffic.messages)
    yield Reading("bridge_frames_total", (direction, "control"), traffic.control)
    yield Reading("bridge_bytes_total", (direction, "media"), traffic.media_bytes)
    yield Reading("bridge_bytes_total", (direction, "other"), traffic.bytes - traffic.media_bytes)
    yield Reading("bridge_slow_looks_total", (direction,), traffic.slow_looks)
