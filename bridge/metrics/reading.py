"""What is read only when somebody asks: it costs nothing before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..runner.runner import Runner
from .table import METRICS, Kind, Series

__all__ = ["READ", "Read", "Reading", "Source", "of_runner", "page"]

_BY_NAME: Final = {series.name: series for series in METRICS}

READ: Final = frozenset(
    {
        "bridge_provider_losses_total",
        "bridge_dropped_media_total",
        "bridge_frames_total",
        "bridge_bytes_total",
        "bridge_slow_looks_total",
        "bridge_refused_connections_total",
        "bridge_sessions_without_setup_total",
        "bridge_worker_restarts_total",
        "bridge_api_requests_total",
        "bridge_tool_pauses_total",
        "bridge_approvals_total",
        "bridge_journal_entries_lost_total",
        "bridge_journal_claims_refused_total",
        "bridge_journal_unrecorded_total",
        "bridge_mailbox_taken_total",
        "bridge_attaches_total",
    }
    | {series.name for series in METRICS if series.kind is Kind.GAUGE}
)
"""Metrics whose numbers come from sources."""


class Reading(NamedTuple):
    """What a source says: a name from `METRICS`, the values of its labels in that order, and a number."""

    name: str
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Reading]]
"""Read at every scrape, in the thread of the scrape."""


def of_runner(runner: Runner) -> Iterator[Reading]:
    """What a runner says about its threads and its tools."""
    yield Reading("bridge_threads_busy", (), runner.threads_busy)
    yield Reading("bridge_threads_abandoned", (), runner.threads_abandoned)
    yield Reading("bridge_calls_parked", (), runner.parked)
    yield Reading("bridge_approvals_pending", (), len(runner.approvals.pending))
    for resolution, times in dict(runner.approvals.resolved).items():
        yield Reading("bridge_approvals_total", (resolution.value,), times)
    if runner.durable is not None:
        yield Reading("bridge_journal_claims_refused_total", (), runner.durable.refused)
        yield Reading("bridge_journal_unrecorded_total", (), runner.durable.unrecorded)
    if runner.post is not None:
        yield Reading("bridge_mailbox_listening", (), runner.post.listening)
        for way, times in dict(runner.post.taken).items():
            yield Reading("bridge_mailbox_taken_total", (way.value,), times)
    unavailable, paused = runner.guards.unavailable, dict(runner.guards.paused)
    for tool in unavailable | paused.keys():
        yield Reading("bridge_tool_unavailable", (tool,), tool in unavailable)
    yield from (Reading("bridge_tool_pauses_total", (tool,), times) for tool, times in paused.items())


def page(readings: Iterable[Reading]) -> bytes:
    """These numbers alone in the text format of Prometheus, for a process that has no sessions to count."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Read([lambda: readings]))
    return generate_latest(registry)


class Read(Collector):
    """Asks the sources, and adds up what they say of the same thing."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sums: dict[str, dict[tuple[str, ...], float]] = {series.name: {} for series in self._series()}
        for source in self._sources:
            for name, labels, value in source():
                sums[name][labels] = sums[name].get(labels, 0) + value
        for name, values in sums.items():
            family = self._family(_BY_NAME[name])
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterator[Metric]:
        """The names alone, so that nothing is read only because it is registered."""
        return map(self._family, self._series())

    def _series(self) -> Iterator[Series]:
        return (series for series in METRICS if series.name in READ)

    def _family(self, series: Series) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
        return kind(series.name, series.tells, labels=series.labels)
