"""`simulate`: an offline provider, for others to talk to."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import click
from rich.console import Console

from ..demo.drawing import say
from ..scenarios import SCENARIOS
from ..simulator import Ended, Fate, Ledger, ReplyEnd, Scenario, Simulator, script
from ..simulator.named import Account, Offline, Running, Where
from ..simulator.reading import read_file, read_rules, read_steps, refuse_others
from ..simulator.rules import Rules
from .terminal import Unusable, count, finite, terminal

__all__ = ["simulate_command"]

_DIALECTS: Final = ("assemblyai", "openai-sessions", "hcompany", "herm", "anthropic", "openai")


@click.command("simulate")
@click.option("--dialect", default="assemblyai", show_default=True, metavar="NAME", help="Which provider; see above.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Where to listen; 0 takes any free port.",
)
@click.option(
    "--scenario",
    default="",
    metavar="NAME|FILE",
    help="What every session plays: one of --list, or a TOML or JSON file of steps.",
)
@click.option("--list", "list_them", is_flag=True, help="List the scenarios of the dialect, and end.")
@click.option(
    "--turn-detection",
    type=click.Choice(["scripted", "energy"]),
    default="scripted",
    show_default=True,
    help="assemblyai: does the scenario say when the caller speaks, or the loudness of your audio?",
)
@click.option(
    "--pace",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    default=1.0,
    show_default=True,
    help="assemblyai: multiplies all durations.",
)
@click.option(
    "--api-key", default=None, metavar="KEY", help="Let nobody in without it; by default see what is printed."
)
def simulate_command(
    dialect: str,
    host: str,
    port: int,
    scenario: str,
    list_them: bool,
    turn_detection: Literal["scripted", "energy"],
    pace: float,
    api_key: str | None,
) -> None:
    """Run a provider offline, for your own client to talk to.

    It listens on a port of this computer, serves any number of sessions, and holds clients to its protocol: what it
    took although it should not have been sent is among the broken rules of a session's summary, which is printed
    whenever the session rests. Ctrl-C ends it.

    \b
    assemblyai       voice agents on a WebSocket: turns, barge-in, when a result may come, one answer a call
    openai-sessions  agent sessions: calls are open once they are required; an event stream repeats nothing; a second,
                     different result is a conflict; idempotency keys
    hcompany         agent sessions that are polled: ids that come again, results that count later, 409 after the end,
                     signed webhooks
    herm             agent sessions: a call waits for five minutes, then 410; one "running" and one final result
    anthropic        the Messages API: every call has its result in the next message, and nothing comes before it
    openai           the Responses and Chat Completions APIs: every call has its output, by its id

    \b
    A scenario in a file is a list of steps, each a table with one key (for openai-sessions, turns = [[...], ...]):
      [[steps]]
      ask = { calls = [{ name = "get_weather", args = { city = "Oslo" } }] }
      [[steps]]
      answer = {}
    """
    console = terminal()
    offline = _offline(dialect, turn_detection)
    if list_them:
        return _print_scenarios(console, offline)
    if pace != 1.0 and not offline.paced:
        raise Unusable(f"{dialect} has no pace: its scenarios say how long things take")
    played = _scenario(offline, scenario)
    try:
        asyncio.run(_simulate(console, offline.start(Where(host, port, api_key, pace), played)))
    except OSError as error:
        raise Unusable(f"{host}, port {port}: {error.strerror}") from None
    except KeyboardInterrupt:
        say(console, "Ended.")


# ------------------------------------------------------------------------------------------------- which, and what


def _offline(dialect: str, turn_detection: Literal["scripted", "energy"]) -> Offline:
    """The provider of this name. The ones over HTTP need packages that the first does without."""
    if dialect not in _DIALECTS:
        near = difflib.get_close_matches(dialect, _DIALECTS, n=1)
        raise Unusable(f"there is no dialect {dialect}; {_guess(near, f'there are {_listed(_DIALECTS)}')}")
    if dialect == "assemblyai":
        scenarios = {name: (each.about, each) for name, each in SCENARIOS.items()}
        return Offline(_read_assemblyai, partial(_assemblyai, turn_detection), scenarios, paced=True)
    try:
        from ..simulator.offline import OFFLINE
    except ImportError as missing:
        raise Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar,http]'") from None
    return OFFLINE[dialect]


def _scenario(offline: Offline, name: str) -> Any:
    """The scenario of this name or in this file; None if none is named."""
    if not name:
        return None
    if name in offline.scenarios:
        return offline.scenarios[name][1]
    if not name.endswith((".toml", ".json")):
        near = difflib.get_close_matches(name, offline.scenarios, n=1)
        raise Unusable(f"there is no scenario called {name}; {_guess(near, 'see --list')}")
    try:
        return offline.read(read_file(Path(name)))
    except OSError as error:
        raise Unusable(f"{name}: {error.strerror}") from None
    except ValueError as error:
        raise Unusable(f"{name}: {error}") from None


def _guess(near: list[str], otherwise: str) -> str:
    return f"did you mean {near[0]}?" if near else otherwise


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def _print_scenarios(console: Console, offline: Offline) -> None:
    for name, (about, _) in offline.scenarios.items():
        say(console, f"{name:27}{about}")


# --------------------------------------------------------------------------------------------------------- running it


async def _simulate(console: Console, opening: AbstractAsyncContextManager[Running]) -> None:
    async with opening as running:
        say(console, f"A provider is waiting at {running.url} (Ctrl-C ends it)")
        for line in running.try_it:
            click.echo(f"  {line}")
        told: dict[str, str] = {}
        try:
            while True:
                _report(console, told, (each for each in running.accounts() if each.rests))
                await asyncio.sleep(0.1)
        finally:
            _report(console, told, running.accounts())


def _report(console: Console, told: dict[str, str], accounts: Iterable[Account]) -> None:
    """Say what is new."""
    for each in accounts:
        if told.get(each.name) != each.text:
            told[each.name] = each.text
            say(console, f"{each.name}: {each.text}")


# --------------------------------------------------------------------------------------------------------- AssemblyAI


@asynccontextmanager
async def _assemblyai(
    turn_detection: Literal["scripted", "energy"], where: Where, scenario: Scenario | None
) -> AsyncIterator[Running]:
    async with Simulator(
        scenario,
        host=where.host,
        port=where.port,
        pace=where.pace,
        api_key=where.api_key,
        turn_detection=turn_detection,
    ) as sim:

        def accounts() -> Iterable[Account]:
            for ledger in sim.ledgers:
                yield Account(ledger.session_id[:13], _summary(ledger), rests=ledger.ended is not Ended.OPEN)

        yield Running(sim.url, where.api_key or "any", (), accounts)


def _read_assemblyai(tables: Mapping[str, Any]) -> Scenario:
    s = script
    refuse_others(tables, "steps", "rules")
    spoken = (s.UserSays, s.BargeIn, s.Noise, s.Say, s.Reply)
    other = (s.Wait, s.Until, s.AwaitResults, s.Raw, s.Drop, s.Fail, s.HangUp)
    steps = read_steps(tables.get("steps", ()), *spoken, *other)
    return Scenario("", "From a file.", steps, rules=read_rules(tables.get("rules", {}), Rules))


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
        f"{ended}; {count(len(ledger.replies), 'reply', 'replies')}, {cut} cut short; "
        f"{count(len(ledger.calls), 'call')}: {answered} answered, {abandoned} given up; "
        f"answers at the wrong moment: {untimely}, repeated or unknown: {unwanted}; "
        f"broken rules: {', '.join(dict.fromkeys(breaches)) or 'none'}"
    )
