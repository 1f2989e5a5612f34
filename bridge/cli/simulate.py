"""`simulate`: the offline provider, for others to talk to."""

from __future__ import annotations

import asyncio
import difflib
from typing import Literal

import click
from rich.console import Console

from ..demo.drawing import say
from ..scenarios import SCENARIOS
from ..simulator import Ended, Fate, Ledger, ReplyEnd, Scenario, Simulator
from .terminal import Unusable, count, terminal

__all__ = ["simulate_command"]


@click.command("simulate")
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
    console = terminal()
    if list_them:
        return _print_scenarios(console)
    simulator = Simulator(
        _scenario(scenario), host=host, port=port, pace=pace, api_key=api_key, turn_detection=turn_detection
    )
    try:
        asyncio.run(_simulate(console, simulator))
    except OSError as error:
        raise Unusable(f"{host}, port {port}: {error.strerror}") from None
    except KeyboardInterrupt:
        say(console, "Ended.")


def _print_scenarios(console: Console) -> None:
    for name, scenario in SCENARIOS.items():
        say(console, f"{name:27}{scenario.about}")


def _scenario(name: str) -> Scenario | None:
    if name and name not in SCENARIOS:
        near = difflib.get_close_matches(name, SCENARIOS, n=1)
        guess = f"did you mean {near[0]}?" if near else "see --list"
        raise Unusable(f"there is no scenario called {name}; {guess}")
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
        f"{ledger.session_id[:13]}: {ended}; {count(len(ledger.replies), 'reply', 'replies')}, {cut} cut short; "
        f"{count(len(ledger.calls), 'call')}: {answered} answered, {abandoned} given up; "
        f"answers at the wrong moment: {untimely}, repeated or unknown: {unwanted}; "
        f"broken rules: {', '.join(dict.fromkeys(breaches)) or 'none'}"
    )
