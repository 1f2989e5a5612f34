"""One page of metrics for several worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

__all__ = ["merge"]


def merge(rendered: Mapping[str, bytes]) -> bytes:
    """One text of several: what the processes with these names rendered, each sample with the label `worker`.

    The counters of several processes are not added up here: when one of them starts again, the sum would fall.
    Prometheus adds up their rates correctly, as in `sum without (worker) (rate(...))`. Nothing is kept of a process
    that has gone: its series end, and those of its replacement, under the same name, begin at 0.
    """
    families: dict[str, Metric] = {}
    for worker, text in rendered.items():
        for family in text_string_to_metric_families(text.decode()):
            whole = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.samples.append(sample._replace(labels={**sample.labels, "worker": worker}))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    """Metrics that have been collected elsewhere."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
