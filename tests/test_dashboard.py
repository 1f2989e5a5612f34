"""What operators are given: no panel and no alert asks for a metric that is not exported, no example for a setting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.metrics import METRICS, Kind, Metrics
from bridge.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
ALERTS = (EXAMPLES / "alerts.yml").read_text()
# What Prometheus knows by itself, or puts on everything that it scrapes.
SCRAPED_LABELS = {"job", "instance"}
DEPLOYMENTS = [ROOT / "Dockerfile", *(EXAMPLES / n for n in ("compose.yaml", "kubernetes.yaml"))]
DEPLOYMENTS.append(EXAMPLES / "voice-tool-bridge.service")


def exported() -> set[str]:
    """The names of all samples that can be asked for."""
    families = list(text_string_to_metric_families(Metrics().render().decode()))
    names = {sample.name for family in families for sample in family.samples}
    names |= {f"{f.name}_total" if f.type == "counter" else f.name for f in families if f.type != "histogram"}
    return names | {
        f"{s.name}{end}" for s in METRICS if s.kind is Kind.HISTOGRAM for end in ("_bucket", "_count", "_sum")
    }


def asked(expression: str) -> set[str]:
    """The metrics that an expression in PromQL names."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(by|without) \([^)]*\)', "", expression)
    return set(re.findall(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b(?!\s*\()|\bup\b", bare))


def labels(expression: str) -> set[str]:
    grouped = re.findall(r"\b(?:by|without) \(([^)]*)\)", expression)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    return {name.strip() for group in grouped for name in group.split(",")} | set(matched)


def panels() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alerts() -> list[tuple[str, str]]:
    found = re.findall(r"- alert: (\w+)\n\s+expr: (?:\|\n)?(.*?)\n\s+(?:for|labels):", ALERTS, flags=re.DOTALL)
    assert len(found) == ALERTS.count("- alert:")
    return found


EXPRESSIONS = [*panels(), *alerts()]


def test_the_reader_of_expressions_finds_names_and_labels() -> None:
    expression = 'histogram_quantile(0.9, sum by (le, job) (rate(bridge_x_seconds_bucket{job=~"a_b"}[5m]))) > up'
    assert asked(expression) == {"bridge_x_seconds_bucket", "up"}
    assert labels(expression) == {"le", "job"}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_nothing_is_asked_for_that_is_not_exported(where: str, expression: str) -> None:
    assert asked(expression)
    assert asked(expression) <= exported() | {"up"}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_nothing_is_grouped_by_a_label_that_is_not_there(where: str, expression: str) -> None:
    known = SCRAPED_LABELS | {"le"}
    for series in METRICS:
        if any(name.startswith(series.name) for name in asked(expression)):
            known |= set(series.labels)
    assert labels(expression) <= known


def test_the_readme_lists_every_metric_with_its_labels() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    listed = re.findall(r"^\| `(bridge_\w+)` \| (.*?) \|", readme, re.MULTILINE)
    assert listed == [(series.name, ", ".join(f"`{label}`" for label in series.labels)) for series in METRICS]


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {name for _, expression in panels() for name in asked(expression)}
    for series in METRICS:
        assert any(re.fullmatch(rf"{series.name}(_bucket|_sum|_count)?", name) for name in shown), series.name


@pytest.mark.parametrize(
    "metric",
    [
        "bridge_speech_to_audio_seconds_bucket",
        "bridge_results_discarded_total",
        "bridge_hold_expired_total",
        "bridge_threads_abandoned",
    ],
)
def test_what_hurts_has_an_alert(metric: str) -> None:
    assert metric in {name for _, expression in alerts() for name in asked(expression)}


def test_panels_are_placed_side_by_side_and_named_once() -> None:
    taken: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_every_alert_says_what_to_do() -> None:
    assert ALERTS.count("- alert:") == ALERTS.count("remedy:") == ALERTS.count("summary:")


# ----------------------------------------------------------------------------------------------------- deployments


@pytest.mark.parametrize("file", DEPLOYMENTS, ids=lambda file: file.name)
def test_deployments_set_only_what_can_be_set(file: Path) -> None:
    found = set(re.findall(rf"\b{PREFIX}([A-Z]+)__([A-Z_]+[A-Z])\b", file.read_text()))
    assert found
    for table, key in found:
        assert key.lower() in Settings.model_fields[table.lower()].annotation.model_fields  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["alerts.yml", "prometheus.yml", "compose.yaml", "kubernetes.yaml"])
def test_examples_in_yaml_can_be_read(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    assert isinstance(yaml.safe_load((EXAMPLES / name).read_text()), dict)


def test_files_that_the_compose_file_mounts_are_there() -> None:
    for name in re.findall(r"- \./([\w.-]+):", (EXAMPLES / "compose.yaml").read_text()):
        assert name == "my_tools.py" or (EXAMPLES / name).is_file()


def test_time_to_stop_is_longer_than_the_drain() -> None:
    drain = Settings.model_fields["session"].annotation.model_fields["drain_seconds"].default  # type: ignore[union-attr]
    for name, pattern in (
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("voice-tool-bridge.service", r"TimeoutStopSec=(\d+)"),
        ("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)"),
    ):
        (seconds,) = re.findall(pattern, (EXAMPLES / name).read_text())
        assert int(seconds) > drain
