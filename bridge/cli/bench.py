"""`bench`: what this machine carries."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from ..benchmark import Delays, Direction, Report, Unmeasurable, Verdict, benchmark
from ..demo.drawing import say
from ..errors import ConfigError
from .terminal import Unusable, finite, terminal

__all__ = ["bench_command"]

_STYLES = {Verdict.CARRIED: "green", Verdict.FULL: "yellow", Verdict.OVERLOADED: "red", Verdict.DISTURBED: "yellow"}


@click.command("bench")
@click.option("--calls", type=click.IntRange(min=2), default=100, show_default=True, help="Calls at once.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 600),
    callback=finite,
    default=5.0,
    show_default=True,
    help="How long to measure: through the sidecar, and once more without it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench_command(calls: int, seconds: float, as_json: bool) -> None:
    """Measure how many calls with audio this machine carries.

    They go through a real sidecar. Each call sends 50 frames a second, of 20 ms of telephony audio, each way. The
    callers talk to a provider through the sidecar, then directly: what is called added is the difference. Everything
    happens on this machine, without an account; a machine with other work gives poor figures.

    Calls per core are extrapolated: what a frame costs now, at 60 % of a core. A frame costs less the more calls there
    are, so measure near the number that you plan for.

    The exit code is 1 if there are no figures, because the callers or the provider could not keep the pace.
    """
    console = terminal()
    if not as_json:
        say(console, f"{calls} calls, {seconds:g} s through the sidecar and {seconds:g} s without it ...")
    try:
        report = asyncio.run(_benchmark(calls, seconds))
    except ConfigError as error:
        raise Unusable(str(error)) from None
    except Unmeasurable as reason:
        raise click.ClickException(f"no figures: {reason}") from None
    if as_json:
        click.echo(orjson.dumps(_figures(report), option=orjson.OPT_INDENT_2))
    else:
        _print(console, report)


async def _benchmark(calls: int, seconds: float) -> Report:
    # SIGTERM would leave the processes behind that were started: it counts as Ctrl-C.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    return await benchmark(calls, seconds)


def _figures(report: Report) -> dict[str, Any]:
    return {
        "calls": report.calls,
        "seconds": report.seconds,
        "verdict": report.verdict.value,
        "words": report.words,
        "to_provider": _direction(report.to_provider),
        "to_caller": _direction(report.to_caller),
        "cpu_us_per_frame": round(report.cpu_us_per_frame, 2),
        "cpu_share": round(report.cpu_share, 4),
        "calls_per_core": report.calls_per_core,
        "memory_kib_per_call": round(report.memory_kib_per_call, 2),
    }


def _direction(direction: Direction) -> dict[str, Any]:
    return {
        "direct_ms": _milliseconds(direction.direct.delays),
        "relayed_ms": _milliseconds(direction.relayed.delays),
        "added_ms": _milliseconds(direction.added),
        "frames_sent": direction.relayed.sent.frames,
        "frames_arrived": direction.relayed.arrived,
    }


def _milliseconds(delays: Delays) -> dict[str, float]:
    return {"p50": round(delays.p50, 4), "p99": round(delays.p99, 4)}


def _print(console: Console, report: Report) -> None:
    console.print(_delays(console, report))
    say(console, f"CPU per relayed frame    {report.cpu_us_per_frame:.1f} us")
    say(console, f"CPU of the sidecar       {report.cpu_share:.0%} of a core")
    say(console, f"Calls per core           {report.calls_per_core} (extrapolated, at 60 % of a core)")
    say(console, f"Memory per call          {report.memory_kib_per_call:.0f} KiB")
    say(console, f"\n{report.words}", _STYLES[report.verdict])


def _delays(console: Console, report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2)
    table.add_column("Delay of audio, ms", style="bold")
    for heading in ("direct", "relayed", "added"):
        table.add_column(heading, justify="right")
    for name, direction in (("to the provider", report.to_provider), ("to the caller", report.to_caller)):
        delays = (direction.direct.delays, direction.relayed.delays, direction.added)
        table.add_row(f"{name}, p50", *(f"{each.p50:.2f}" for each in delays))
        table.add_row(f"{name}, p99", *(f"{each.p99:.2f}" for each in delays))
    return table
