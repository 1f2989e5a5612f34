"""Tools of a phone line whose work is done by workers: imported by the line, and by each worker."""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path

import procrastinate

from bridge import CallContext, ToolError, Toolset
from bridge.jobs import Jobs

URL = os.environ["LINE_DATABASE"]
DONE = Path(os.environ["LINE_DONE"])

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
jobs = Jobs(app, URL, key=bytes.fromhex(os.environ["LINE_KEY"]))
tools = Toolset()


def note_down(text: str) -> None:
    with DONE.open("a") as file:
        file.write(f"{text}\n")


@jobs.tool(tools, timeout=60)
async def report(day: date, note: str, context: CallContext) -> dict[str, object]:
    """A report that takes its time."""
    note_down(f"{context.ticket} {day.isoformat()} {note}")
    return {"weekday": day.strftime("%A")}


@jobs.tool(tools, timeout=60)
def plain(text: str) -> str:
    """A plain function, in a thread."""
    return text.upper()


@jobs.tool(tools, timeout=60)
async def refuse() -> None:
    """Says why not."""
    raise ToolError("There is no such month.")


@jobs.tool(tools, timeout=60)
async def fail() -> None:
    """Breaks."""
    raise ValueError("a secret of the caller")


@jobs.tool(tools, timeout=60, result_limit=10)
async def too_large() -> str:
    """Says too much."""
    return "x" * 100


@jobs.tool(tools, timeout=5)
def hang() -> None:
    """Never comes back."""
    note_down("hang")
    time.sleep(60)


@jobs.tool(tools, timeout=0.2)
async def hasty() -> None:
    """Has no time."""
