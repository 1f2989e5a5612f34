"""`approvals`: which calls wait for somebody to allow them, and that they may run, or not."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from .remote import Remote, draw, shown, url_option

__all__ = ["approvals_command"]


@click.group("approvals")
def approvals_command() -> None:
    """Decide which calls may run, in a running sidecar.

    The token comes from BRIDGE_ADMIN_TOKEN. A decision counts once, and the first one stands.
    """


_by = click.option("--by", default="", help="Who decides; by default the name of the token.")
_reason = click.option("--reason", default="", help="For the record: the agent does not hear it.")


@approvals_command.command("list")
@url_option
def list_command(url: str) -> None:
    """List the calls that wait to be approved."""
    waiting = Remote(url).get("v1", "approvals")["approvals"]
    if not waiting:
        return click.echo("No call waits to be approved.")
    draw("Calls that wait to be approved", ("Id", "Tool", "Arguments", "Session", "Left"), map(_row, waiting))


@approvals_command.command("approve")
@click.argument("request_id", metavar="ID")
@_by
@_reason
@url_option
def approve_command(request_id: str, by: str, reason: str, url: str) -> None:
    """Let the call run that asks under this ID."""
    _decide(url, request_id, {"decision": "approve", "by": by, "reason": reason})


@approvals_command.command("deny")
@click.argument("request_id", metavar="ID")
@_by
@_reason
@url_option
def deny_command(request_id: str, by: str, reason: str, url: str) -> None:
    """Do not let the call run that asks under this ID."""
    _decide(url, request_id, {"decision": "deny", "by": by, "reason": reason})


def _decide(url: str, request_id: str, decision: dict[str, str]) -> None:
    said = Remote(url).post(decision, "v1", "approvals", request_id)
    word = "approved" if said["decision"] == "approve" else "denied"
    click.echo(f"{shown(said['id'])} is {word}, by {shown(said['by'])}.")


def _row(request: dict[str, Any]) -> tuple[str, ...]:
    left = max(0.0, request["asked"] + request["seconds"] - time.time())
    arguments = json.dumps(request["arguments"])
    return request["id"], shown(request["tool"]), arguments, shown(request["session"]), f"{left:.0f} s"
