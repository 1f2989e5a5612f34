"""`calls`: which calls wait for a result from outside, and what came of them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import click

from .remote import Remote, draw, shown, url_option
from .terminal import Unusable

__all__ = ["calls_command"]


@click.group("calls")
def calls_command() -> None:
    """Say what came of calls that wait for it, in a running sidecar.

    The token comes from BRIDGE_ADMIN_TOKEN. The first answer to a call stands; the same again is fine.
    """


@calls_command.command("list")
@url_option
def list_command(url: str) -> None:
    """List the calls that wait for a result from outside."""
    waiting = Remote(url).get("v1", "calls")["calls"]
    if not waiting:
        return click.echo("No call waits for a result.")
    draw("Calls that wait for a result", ("Key", "Tool", "Session", "Since (UTC)"), map(_row, waiting))


@calls_command.command("complete")
@click.argument("key")
@click.argument("output")
@url_option
def complete_command(key: str, output: str, url: str) -> None:
    """Complete the call KEY with this OUTPUT, which is JSON.

    `-` reads it from the standard input.
    """
    text = sys.stdin.read() if output == "-" else output
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Unusable(f"the output is not JSON: {error}; a text has to be quoted, as in '\"done\"'") from None
    _say(url, key, {"status": "completed", "output": value})


@calls_command.command("fail")
@click.argument("key")
@click.argument("sentence")
@url_option
def fail_command(key: str, sentence: str, url: str) -> None:
    """Say that nothing came of the call KEY.

    The SENTENCE is for the agent, who is told it.
    """
    _say(url, key, {"status": "failed", "error": sentence})


def _say(url: str, key: str, result: dict[str, Any]) -> None:
    said = Remote(url).post(result, "v1", "calls", key, "result")
    before = ", as had been said before" if said["repeated"] else ""
    click.echo(f"{shown(said['key'])}: {said['status']}{before}.")


def _row(call: dict[str, Any]) -> tuple[str, ...]:
    since = datetime.fromtimestamp(call["since"], UTC).strftime("%Y-%m-%d %H:%M:%S") if call["since"] else ""
    return shown(call["key"]), shown(call["tool"]), shown(call["session"]), since
