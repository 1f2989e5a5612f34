"""The command line: one function per command, each of which says in its help what it is for."""

from __future__ import annotations

import asyncio
import difflib
import importlib.metadata
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import click
import orjson
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .agents import AssemblyAI
from .converse import converse, offline, read_wav, write_wav
from .core.events import Start
from .demo import demo
from .drawing import say
from .errors import BridgeError, ConfigError
from .scenarios import SCENARIOS
from .simulator import Ended, Fate, Ledger, ReplyEnd, Scenario, Simulator
from .timeline import Kind, Timeline
from .toolfile import ToolFile, ToolFileUnreadable, advice, definitions, load
from .tools.tool import Tool, Toolset

__all__ = ["cli"]


class _Unusable(click.ClickException):
    """What was passed cannot be used; one line says why."""

    exit_code = 2


def _version() -> str:
    try:
        return importlib.metadata.version("voice-tool-bridge")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _console() -> Console:
    """Drawn as wide as the terminal; what is not a terminal gets a hundred columns."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="voice-tool-bridge", message="%(prog)s %(version)s")
def cli() -> None:
    """Tools for realtime voice agents: run, held, and sent at the right moment.

    New here? Begin with `voice-tool-bridge demo`: it needs no account.
    """


# ------------------------------------------------------------------------------------------------------------- demo


@cli.command("demo")
def demo_command() -> None:
    """Watch a call to a support line: offline, a quarter of a minute.

    A simulated provider calls six tools, and a real session answers. The closing table says what the provider's own
    account of the call proves. The exit code is 1 if one of its claims does not hold.
    """
    # The tool that fails is part of the show; the drawing tells it.
    logging.getLogger("bridge").addHandler(logging.NullHandler())
    if not asyncio.run(demo(_console())):
        raise SystemExit(1)


# --------------------------------------------------------------------------------------------------------- converse


@cli.command("converse")
@click.option("--wav", type=click.Path(path_type=Path), required=True, help="The caller: WAV, 16 bit, any rate.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where to write what the agent says.")
@click.option("--tools", "tools_file", type=click.Path(path_type=Path), required=True, help="A Python file with tools.")
@click.option("--live", is_flag=True, help="Talk to the real AssemblyAI service; the key is ASSEMBLYAI_API_KEY.")
@click.option("--url", default="", metavar="URL", help="Talk to the provider at this address, such as wss://...")
@click.option("--prompt", default="You are a friendly voice on the phone. Use your tools.", help="What the agent is.")
def converse_command(wav: Path, out: Path, tools_file: Path, live: bool, url: str, prompt: str) -> None:
    """Hold one conversation: a WAV file is the caller.

    Without --live or --url the provider is simulated and offline. It understands no words: loud audio is a turn of the
    caller, and at each turn it calls your first tool. The agent's voice is then a tone.

    Both files begin at the same moment, so that they line up when they are laid side by side.
    """
    if live and url:
        raise _Unusable("--live and --url exclude each other: either the real service, or the address you name")
    if not out.absolute().parent.is_dir():
        raise _Unusable(f"{out}: there is no such folder to write it to")
    tools = _usable(_load(tools_file))
    console = _console()
    try:
        pcm = read_wav(wav)
        voice, timeline = asyncio.run(_converse(console, pcm, tools, live, url, prompt))
        write_wav(out, voice)
    except OSError as error:
        raise _Unusable(f"{error.filename or wav}: {error.strerror or error}") from None
    except ConfigError as error:
        raise _Unusable(str(error)) from None
    except BridgeError as error:
        raise click.ClickException(str(error)) from None
    say(console, f"{_calls(timeline)}. {out}: {len(voice) / 48_000:.1f} s, beginning with {wav}.")


async def _converse(
    console: Console, pcm: bytes, tools: Toolset, live: bool, url: str, prompt: str
) -> tuple[bytes, Timeline]:
    async with AsyncExitStack() as stack:
        api_key = None
        if live:
            say(console, "The provider is AssemblyAI's live service.\n")
        elif url:
            say(console, f"The provider is at {url}.\n")
        else:
            url, api_key = await stack.enter_async_context(offline()), "offline"
            first = f"calls {next(iter(tools))}" if tools else "just answers"
            say(
                console,
                "The provider is simulated, offline. It understands no words: it takes loud audio for a turn of the "
                f"caller, and {first} at each one.\n",
            )
        agent = AssemblyAI(url=url, system_prompt=prompt)
        return await converse(console, pcm, agent, tools, api_key=api_key)


def _calls(timeline: Timeline) -> str:
    fates = [trace.fate for trace in timeline.calls]
    sent = fates.count(Kind.SENT) + fates.count(Kind.FAILED)
    return f"{_count(len(fates), 'call')}: {sent} answered, {fates.count(Kind.DISCARDED)} discarded"


# ------------------------------------------------------------------------------------------------------------ tools


@cli.command("tools")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print exactly what would be sent, as JSON.")
def tools_command(file: Path, as_json: bool) -> None:
    """Show the tools of a Python FILE as the provider would see them.

    The file makes a Toolset called `tools`. Warnings tell what will work, but not well. The exit code is 1 if a tool
    cannot work; all of them are named.
    """
    loaded = _load(file)
    if as_json:
        click.echo(orjson.dumps(definitions(loaded.tools), option=orjson.OPT_INDENT_2))
    else:
        _print_tools(_console(), loaded.tools)
    for line in advice(loaded.tools):
        click.secho(f"warning: {line}", fg="yellow", err=True)
    for line in loaded.errors:
        click.secho(f"error: {line}", fg="red", err=True)
    if loaded.errors:
        raise SystemExit(1)


def _load(path: Path) -> ToolFile:
    try:
        return load(path)
    except ToolFileUnreadable as error:
        raise _Unusable(str(error)) from None


def _usable(loaded: ToolFile) -> Toolset:
    if loaded.errors:
        raise _Unusable("\n".join(loaded.errors))
    return loaded.tools


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


# ------------------------------------------------------------------------------------------------------------ serve


@cli.command("serve")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--tools", "tools", multiple=True, metavar="FILE", help="Tools: a Python file or module; may be repeated."
)
@click.option("--upstream", default="", metavar="DIALECT", help="The provider, such as assemblyai.")
@click.option("--url", default="", metavar="URL", help="The provider's address, instead of its dialect's own.")
@click.option("--port", type=int, default=None, help="Where applications connect; 8787 if nothing else is set.")
@click.option("--admin-port", type=int, default=None, help="Where metrics and health are; 9090 if nothing else is set.")
@click.option("--print-config", is_flag=True, help="Print the settings in force, secrets masked, and end.")
def serve_command(
    config: Path | None,
    tools: tuple[str, ...],
    upstream: str,
    url: str,
    port: int | None,
    admin_port: int | None,
    print_config: bool,
) -> None:
    """Run the sidecar: a proxy between your telephony stack and the provider, which adds tools to the agent.

    CONFIG is a TOML file; everything in it can also be set in the environment, as BRIDGE_LISTEN__PORT=8787. Without a
    file the options do. SIGTERM lets running sessions come to their end; the exit code is 1 if any had to be ended.
    """
    try:
        from .config import read
        from .serve import run
    except ImportError as missing:
        raise _Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar]'") from None
    overrides = _given(
        {
            "tools": {"python": tools or None},
            "upstream": {"dialect": upstream or None, "url": url or None},
            "listen": {"port": port},
            "admin": {"port": admin_port},
        }
    )
    try:
        sidecar = read(config, overrides)
        if print_config:
            return click.echo(sidecar.settings.text())
        logging.basicConfig(
            level=sidecar.settings.log.level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
        )
        listen = sidecar.settings.listen

        def started(at: int, admin_at: int) -> None:
            click.echo(f"Applications connect to ws://{listen.host}:{at}; admin at port {admin_at} (Ctrl-C ends it)")

        left = run(sidecar, started)
    except ConfigError as error:
        raise _Unusable(str(error)) from None
    if left:
        raise click.ClickException(f"{_count(left, 'session')} had to be ended")


def _given(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Only what was said."""
    said = {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}
    return {table: keys for table, keys in said.items() if keys}


# --------------------------------------------------------------------------------------------------------- simulate


@cli.command("simulate")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", default=8765, show_default=True, help="Where to listen; 0 takes any free port.")
@click.option("--scenario", default="", metavar="NAME", help="The conversation every session plays; see --list.")
@click.option("--list", "list_them", is_flag=True, help="List the scenarios, and end.")
@click.option(
    "--turn-detection",
    type=click.Choice(["scripted", "energy"]),
    default="scripted",
    show_default=True,
    help="Does the scenario say when the caller speaks, or the loudness of your audio?",
)
@click.option("--pace", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Multiplies all durations.")
@click.option("--api-key", default=None, metavar="KEY", help="Let nobody in without it. By default any key will do.")
def simulate_command(
    host: str,
    port: int,
    scenario: str,
    list_them: bool,
    turn_detection: Literal["scripted", "energy"],
    pace: float,
    api_key: str | None,
) -> None:
    """Run a provider offline, for your own client to talk to.

    It speaks the protocol of AssemblyAI's voice agents, on a WebSocket of this computer, and serves any number of
    sessions. Each one's ledger is summed up when it is over. Ctrl-C ends it.
    """
    console = _console()
    if list_them:
        return _print_scenarios(console)
    simulator = Simulator(
        _scenario(scenario), host=host, port=port, pace=pace, api_key=api_key, turn_detection=turn_detection
    )
    try:
        asyncio.run(_simulate(console, simulator))
    except OSError as error:
        raise _Unusable(f"{host}, port {port}: {error.strerror}") from None
    except KeyboardInterrupt:
        say(console, "Ended.")


def _print_scenarios(console: Console) -> None:
    for name, scenario in SCENARIOS.items():
        say(console, f"{name:27}{scenario.about}")


def _scenario(name: str) -> Scenario | None:
    if name and name not in SCENARIOS:
        near = difflib.get_close_matches(name, SCENARIOS, n=1)
        guess = f"did you mean {near[0]}?" if near else "see --list"
        raise _Unusable(f"there is no scenario called {name}; {guess}")
    return SCENARIOS.get(name)


async def _simulate(console: Console, simulator: Simulator) -> None:
    reported: set[str] = set()

    def report(*, all_of_them: bool) -> None:
        for ledger in simulator.ledgers:
            if ledger.session_id not in reported and (all_of_them or ledger.ended is not Ended.OPEN):
                reported.add(ledger.session_id)
                say(console, _summary(ledger))

    async with simulator:
        say(console, f"A provider is waiting at {simulator.url} (Ctrl-C ends it)")
        try:
            while True:
                report(all_of_them=False)
                await asyncio.sleep(0.1)
        finally:
            report(all_of_them=True)


def _summary(ledger: Ledger) -> str:
    """What one session came to, in a line or two."""
    answered = sum(call.answered > 0 for call in ledger.calls)
    abandoned = sum(call.fate is Fate.ABANDONED for call in ledger.calls)
    cut = sum(reply.end is ReplyEnd.INTERRUPTED for reply in ledger.replies)
    untimely = sum(not answer.timely for answer in ledger.answers)
    unwanted = len(ledger.strays) + sum(max(call.answered - 1, 0) for call in ledger.calls)
    breaches = [*ledger.violations, *ledger.errors]
    ended = "still open" if ledger.ended is Ended.OPEN else f"ended {ledger.ended.name.lower().replace('_', ' ')}"
    return (
        f"{ledger.session_id[:13]}: {ended}; {_count(len(ledger.replies), 'reply', 'replies')}, {cut} cut short; "
        f"{_count(len(ledger.calls), 'call')}: {answered} answered, {abandoned} given up; "
        f"answers at the wrong moment: {untimely}, repeated or unknown: {unwanted}; "
        f"broken rules: {', '.join(dict.fromkeys(breaches)) or 'none'}"
    )


# ------------------------------------------------------------------------------------------------------------ words


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
