"""`tools`: what a file of tools comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..core.events import Start
from ..toolfile import ToolFile, ToolFileUnreadable, advice, definitions, load
from ..tools.tool import Tool, Toolset
from .terminal import Unusable, terminal

__all__ = ["loaded", "tools_command", "usable"]


@click.command("tools")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print exactly what would be sent, as JSON.")
def tools_command(file: Path, as_json: bool) -> None:
    """Show the tools of a Python FILE as the provider would see them.

    The file makes a Toolset called `tools`. Warnings tell what will work, but not well. The exit code is 1 if a tool
    cannot work; all of them are named.
    """
    found = loaded(file)
    if as_json:
        click.echo(orjson.dumps(definitions(found.tools), option=orjson.OPT_INDENT_2))
    else:
        _print_tools(terminal(), found.tools)
    for line in advice(found.tools):
        click.secho(f"warning: {line}", fg="yellow", err=True)
    for line in found.errors:
        click.secho(f"error: {line}", fg="red", err=True)
    if found.errors:
        raise SystemExit(1)


def loaded(path: Path) -> ToolFile:
    """The tools of this file, and what is wrong with them."""
    try:
        return load(path)
    except ToolFileUnreadable as error:
        raise Unusable(str(error)) from None


def usable(found: ToolFile) -> Toolset:
    """Only tools with which nothing is wrong will do."""
    if found.errors:
        raise Unusable("\n".join(found.errors))
    return found.tools


def _print_tools(console: Console, tools: Toolset) -> None:
    entries = {entry["name"]: entry for entry in definitions(tools)}
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.ASCII2, show_lines=not console.is_terminal)
    for heading in ("Tool", "For", "Parameters", "Runs"):
        table.add_column(heading, style="bold" if heading == "Tool" else "")
    for name, tool in tools.items():
        entry = entries[name]
        table.add_row(Text(name), Text(entry["description"]), Text(_parameters(entry["parameters"])), Text(_runs(tool)))
    console.print(table)


def _parameters(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return "\n".join(
        f"{name}{'' if name in required else '?'}: {each.get('type', 'any')}"
        for name, each in schema["properties"].items()
    )


def _runs(tool: Tool) -> str:
    where = "thread" if tool.blocking else "async"
    start = "at once" if tool.spec.start is Start.NOW else "after the reply"
    return f"{where}, up to {tool.timeout:g} s\n{tool.effect}, {start}"
