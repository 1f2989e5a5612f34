"""`check`: a sidecar's configuration, before it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..advice import PROVIDERS, spelled
from ..errors import ConfigError
from ..tools.schema import kind_of
from .terminal import Unusable, count, terminal

if TYPE_CHECKING:
    from ..check import Report, View

__all__ = ["check_command"]


class _Spelled(click.Choice[str]):
    """With an underscore instead of a hyphen it is understood, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(spelled(value), param, ctx)


@click.command("check")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--provider", "providers", multiple=True, type=_Spelled(sorted(PROVIDERS)), help="As whom to look at the tools."
)
@click.option("--all", "everybody", is_flag=True, help="Look at the tools as every provider that is known.")
@click.option("--offline", is_flag=True, help="Connect to nobody.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
def check_command(
    config: Path | None, providers: tuple[str, ...], everybody: bool, offline: bool, as_json: bool
) -> None:
    """Look over the CONFIG of a sidecar, without serving.

    Shows every tool as the configured providers will see it, or others, and warns of what will not work well. Sources
    of tools are opened, and upstreams are connected to, but no session begins. The exit code is 1 if there are errors.
    """
    report = _report(config, tuple(PROVIDERS) if everybody else providers, offline)
    if as_json:
        click.echo(orjson.dumps(_as_json(report), option=orjson.OPT_INDENT_2))
    else:
        for view in report.views:
            _print(terminal(), view)
        for kind, lines, color in (("warning", report.warnings, "yellow"), ("error", report.errors, "red")):
            for line in lines:
                click.secho(f"{kind}: {line}", fg=color, err=True)
        click.echo(f"{count(len(report.errors), 'error')}, {count(len(report.warnings), 'warning')}")
    if report.errors:
        raise SystemExit(1)


def _report(config: Path | None, providers: Sequence[str], offline: bool) -> Report:
    try:
        from ..check import Report, check
        from ..config import read
    except ImportError as missing:
        raise Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar]'") from None
    try:
        sidecar = read(config)
    except ConfigError as error:
        return Report(errors=str(error).splitlines())
    parts = (sidecar.tools, sidecar.routes, sidecar.limits, sidecar.sources, sidecar.attach)
    checked = check(*parts, providers=providers, offline=offline)
    return asyncio.run(checked)


def _as_json(report: Report) -> dict[str, Any]:
    views = {view.provider: {"bytes": view.size, "tools": view.tools} for view in report.views}
    return {"errors": report.errors, "warnings": report.warnings, "providers": views}


def _print(console: Console, view: View) -> None:
    title = f"{view.provider}: {count(len(view.tools), 'tool')}, {view.size:,} bytes"
    style = box.SIMPLE_HEAD if console.is_terminal else box.ASCII2
    table = Table(title=title, title_justify="left", box=style, show_lines=not console.is_terminal)
    for heading in ("Tool", "For", "Parameters", "Waits"):
        table.add_column(heading, style="bold" if heading == "Tool" else "")
    for tool in view.tools:
        wait = "" if tool["wait_seconds"] is None else f"{tool['wait_seconds']:g} s"
        table.add_row(*map(Text, (tool["name"], tool["description"], _parameters(tool["parameters"]), wait)))
    console.print(table)


def _parameters(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    return "\n".join(
        f"{name}{'' if name in required else '?'}: {kind_of(each)}" for name, each in schema["properties"].items()
    )
