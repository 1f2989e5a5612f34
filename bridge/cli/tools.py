"""`tools`: what files of tools come to, and what one of them does when it is called."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..advice import advice, definitions
from ..catalogue import Catalogue
from ..core.events import Start
from ..errors import ConfigError
from ..loading import Loaded, load
from ..runner.runner import Finished, Outcome
from ..testing.calling import Asked, run_tool
from ..tools.encode import decode
from ..tools.source import Source
from ..tools.tool import Tool, Toolset
from .terminal import Unusable, terminal

__all__ = ["loaded", "tools_command", "usable"]


class _ListByDefault(click.Group):
    """`tools FILE` is short for `tools list FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = {*self.commands, *self.get_help_option_names(ctx)}
        return super().parse_args(ctx, ["list", *args] if args and args[0] not in known else args)


@click.group("tools", cls=_ListByDefault)
def tools_command() -> None:
    """Look at tools, and try them, without a voice agent.

    \b
    voice-tool-bridge tools my_tools.py          short for: tools list my_tools.py
    voice-tool-bridge tools call opening_hours '{"day": "friday"}' --tools my_tools.py
    """


# ---------------------------------------------------------------------------------------------------------------- list


@tools_command.command("list")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print exactly what would be sent, as JSON.")
def list_command(files: tuple[Path, ...], as_json: bool) -> None:
    """Show the tools of Python FILEs as the provider would see them.

    Each file makes a Toolset, or several. Warnings tell what will work, but not well. The exit code is 1 if a tool
    cannot work; all of them are named.
    """
    found = loaded(*files)
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


def loaded(*files: Path) -> Loaded:
    """The tools of these files, and what is wrong with them."""
    found = load(map(str, files), Path.cwd())
    if found.unusable:
        raise Unusable("\n".join(found.errors))
    return found


def usable(found: Loaded) -> Toolset:
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


# ---------------------------------------------------------------------------------------------------------------- call

_ASKED = {"progress": "progress", "say": "to be said", "end": "to end the session"}


@tools_command.command("call")
@click.argument("name")
@click.argument("arguments", default="{}")
@click.option("--tools", "tools_file", type=click.Path(path_type=Path), help="A Python file with tools.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Settings of the sidecar: its tools.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="What the tool finds in its CallContext; repeat.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing before it.")
def call_command(
    name: str,
    arguments: str,
    tools_file: Path | None,
    config_file: Path | None,
    metadata: tuple[str, ...],
    as_json: bool,
) -> None:
    """Call the tool NAME with ARGUMENTS (JSON), as a session would.

    Its arguments are checked, its limits kept, its result encoded; what it reports and wants said is shown as it comes.
    It really runs: what it books is booked. The exit code is 0 if it ended well, 1 if it did not, and 2 if what was
    passed cannot be used.

    \b
    voice-tool-bridge tools call book_table '{"day": "friday", "hour": 20}' --tools my_tools.py
    """
    tools, sources = _tools_from(tools_file, config_file)
    _refuse_what_is_no_json(arguments)
    told: list[tuple[Asked, str]] = []

    def asked(what: Asked, text: str) -> None:
        told.append((what, text))
        if not as_json:
            click.echo(f"{_ASKED[what]}: {text}")

    async def call() -> Finished:
        async with Catalogue(tools, sources) as catalogue:
            _refuse_unknown(name, catalogue.tools)
            return await run_tool(catalogue.tools, name, arguments, metadata=_metadata(metadata), asked=asked)

    try:
        finished = asyncio.run(call())
    except ConfigError as error:
        raise Unusable(str(error)) from None
    if as_json:
        _print_json(finished, told)
    else:
        _print_finished(finished)
    sys.exit(0 if finished.outcome in (Outcome.OK, Outcome.REPLAYED) else 1)


def _tools_from(tools_file: Path | None, config_file: Path | None) -> tuple[Toolset, tuple[Source, ...]]:
    """Where the tools are that can be called: those of a file, or all that the sidecar would have."""
    if tools_file is not None and config_file is None:
        return usable(loaded(tools_file)), ()
    if config_file is None or tools_file is not None:
        raise Unusable("say where the tools are: --tools my_tools.py, or --config bridge.toml")
    try:
        from ..config import read
    except ImportError as missing:
        raise Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar]'") from None
    try:
        sidecar = read(config_file)
    except ConfigError as error:
        raise Unusable(str(error)) from None
    return sidecar.tools, sidecar.sources


def _refuse_unknown(name: str, tools: Mapping[str, Tool]) -> None:
    if name in tools:
        return
    near = difflib.get_close_matches(name, tools, n=1)
    guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(tools) or 'none'}"
    raise Unusable(f"there is no tool called {name}; {guess}")


def _refuse_what_is_no_json(arguments: str) -> None:
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError as error:
        hint = """write them like '{"city": "Oslo"}', in single quotes"""
        raise Unusable(f"the arguments are not JSON ({error}); {hint}") from None


def _metadata(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise Unusable(f"--metadata {pair}: write it as KEY=VALUE")
        found[key] = value
    return found


def _print_finished(finished: Finished) -> None:
    click.echo(f"{finished.outcome.value}, after {finished.seconds:.3f} s")
    click.echo(_indented(decode(finished.result.output)))


def _print_json(finished: Finished, told: list[tuple[Asked, str]]) -> None:
    account = {
        "outcome": finished.outcome.value,
        "seconds": round(finished.seconds, 6),
        "result": decode(finished.result.output),
        "asked": [{"what": what, "text": text} for what, text in told],
    }
    click.echo(_indented(account))


def _indented(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
