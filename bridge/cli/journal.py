"""`journal`: look at what has happened, check it, hand it out, forget it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
from rich import box
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError, JournalError
from ..journal import Claimed, Entry, State, Stored
from ..journal.encoding import encode
from ..journal.opening import is_postgres, open_journal
from ..journal.payloads import Payloads
from ..journal.replay import Replay, Replayed, replay
from ..journal.sealing import Seal, read_key
from ..journal.sqlite import open_sqlite
from ..journal.stored import StoredJournal
from ..runner.durable import owner_of_this_life
from ..runner.leftovers import Recovered, died_here
from ..runner.runner import Runner
from ..tools.tool import Tool
from .terminal import Unusable, count, terminal
from .tools import loaded, usable

__all__ = ["journal_command"]

KEY = "BRIDGE_JOURNAL_KEY"
"""The environment variable with the key; its name is no setting's, so that a sidecar may run with it."""

_END_TIMEOUT = 1.0
"""Seconds for telling others that this process has ended."""

T = TypeVar("T")

_CALL = ("Session", "Call", "Tool", "State", "Since (UTC)", "Owner")
_WORDS = {
    Replayed.SAME: ("same", "green"),
    Replayed.DIFFERENT: ("DIFFERENT", "red"),
    Replayed.PARTLY: ("the same so far", "yellow"),
}


@click.group("journal")
def journal_command() -> None:
    """Look into a journal: what happened, and what is unfinished.

    JOURNAL is the path of its file, or postgresql://user@host/name. An encrypted one needs its key in the environment,
    as BRIDGE_JOURNAL_KEY, or --key-file.
    """


_address = click.argument("address", metavar="JOURNAL")
_key_file = click.option(
    "--key-file", type=click.Path(path_type=Path), help="The file with the journal's key, in base64 or hex."
)


@journal_command.command("list")
@_address
@_key_file
@click.option("--limit", default=50, show_default=True, type=click.IntRange(min=1), help="Sessions at most.")
def list_command(address: str, key_file: Path | None, limit: int) -> None:
    """List the latest sessions, and the calls that are not finished."""

    async def read(journal: StoredJournal) -> tuple[tuple[Stored, ...], tuple[Claimed, ...]]:
        return await journal.sessions(limit=limit), await journal.claims()

    sessions, unfinished = _run(address, key_file, read)
    _print("Sessions", ("Session", "Began (UTC)", "Latest", "Entries", "Bytes"), map(_session_row, sessions))
    if unfinished:
        _print(
            "Unfinished calls", ("Session", "Call", "Tool", "State", "Since (UTC)", "Owner"), map(_call_row, unfinished)
        )


@journal_command.command("show")
@_address
@click.argument("session")
@_key_file
def show_command(address: str, session: str, key_file: Path | None) -> None:
    """Show what happened in a SESSION, and what became of its calls."""
    entries, calls = _run(address, key_file, lambda journal: _everything(journal, session))
    for number, entry in entries:
        kind, body = encode(entry.fact)
        click.echo(f"{number:>8}  {_time(entry.at)}  {entry.part.value:8} {kind:16} {body.decode()}")
    if calls:
        _print("Calls", (*_CALL, "Outcome"), ((*_call_row(call), call.outcome or "not known") for call in calls))


@journal_command.command("verify")
@_address
@click.argument("session", required=False)
@_key_file
def verify_command(address: str, session: str | None, key_file: Path | None) -> None:
    """Replay all sessions, or one SESSION, and compare the decisions.

    The exit code is 1 if there is a difference.
    """
    replays = _run(address, key_file, lambda journal: _replays(journal, session))
    for name, each in replays.items():
        word, color = _WORDS[each.outcome]
        where = "" if each.at is None else f", up to entry {each.at}: {each.why}"
        if each.outcome is not Replayed.SAME or session is not None:
            click.secho(f"{name}: {word}, {count(each.decisions, 'decision')}{where}", fg=color)
    tally = {outcome: sum(each.outcome is outcome for each in replays.values()) for outcome in Replayed}
    click.echo(
        f"{count(len(replays), 'session')}: {tally[Replayed.SAME]} the same, "
        f"{tally[Replayed.PARTLY]} that cannot be followed to the end, {tally[Replayed.DIFFERENT]} different"
    )
    if tally[Replayed.DIFFERENT]:
        raise SystemExit(1)


@journal_command.command("export")
@_address
@click.argument("session", required=False)
@_key_file
def export_command(address: str, session: str | None, key_file: Path | None) -> None:
    """Print entries and calls, all or of one SESSION, as lines of JSON."""

    async def export(journal: StoredJournal) -> None:
        found = 0
        async for number, entry in journal.read(session):
            click.echo(_entry_line(number, entry))
            found += 1
        for call in await journal.claims(session=session, states=tuple(State)):
            click.echo(_call_line(call))
            found += 1
        if not found and session is not None:
            raise _nobody(session)

    _run(address, key_file, export)


@journal_command.command("erase")
@_address
@click.argument("session")
@_key_file
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase_command(address: str, session: str, key_file: Path | None, yes: bool) -> None:
    """Remove everything about a SESSION. Nothing else may be writing the file, if it is one."""
    if not yes:
        click.confirm(f"Erase everything about session {session}?", abort=True)
    erased = _run(address, key_file, lambda journal: journal.erase(session), writing=True)
    if not erased:
        raise _nobody(session)
    click.echo(f"Erased session {session}.")


@journal_command.command("recover")
@_address
@_key_file
@click.option("--tools", "files", multiple=True, type=click.Path(path_type=Path), help="A Python file with tools.")
@click.option("--owner", "owners", multiple=True, help="A process that is dead, as 'list' names it. In a file all are.")
def recover_command(address: str, key_file: Path | None, files: tuple[Path, ...], owners: tuple[str, ...]) -> None:
    """Bring to an end what processes have left unfinished that died.

    A call that was started is run again if its tool may be; an outcome that was left for it is recorded, and of any
    other it is recorded that nobody knows. The results that nobody was told are listed. Nothing else may be writing a
    file; in a database, the processes of this machine that live no more count as dead, and those that you name.
    """
    tools = usable(loaded(*files)) if files else {}
    mine = owner_of_this_life()

    def dead(owner: str) -> bool:
        return not is_postgres(address) or owner in owners or died_here(owner, mine)

    recovered = _run(
        address,
        key_file,
        lambda journal: _recovered(journal, tools, mine, dead),
        writing=True,
        redact=lambda name: _masked(tools, name),
    )
    if recovered:
        headings = ("Session", "Call", "Tool", "Since (UTC)", "What was done", "Outcome")
        _print("Calls that were left unfinished", headings, map(_recovered_row, recovered))
    click.echo(f"{count(len(recovered), 'call')} brought to an end.")


async def _recovered(
    journal: StoredJournal, tools: Mapping[str, Tool], owner: str, dead: Callable[[str], bool]
) -> tuple[Recovered, ...]:
    runner = Runner(journal=journal, owner=owner)
    runner.begin()  # should it die of this, others find what it has taken over
    try:
        return await runner.recover(tools, dead=dead)
    finally:
        await runner.aclose(_END_TIMEOUT)
        runner.close()


def _masked(tools: Mapping[str, Tool], name: str) -> Collection[str]:
    return tools[name].redact if name in tools else ()


# ----------------------------------------------------------------------------------------------------------- reading


def _run(
    address: str,
    key_file: Path | None,
    what: Callable[[StoredJournal], Awaitable[T]],
    *,
    writing: bool = False,
    redact: Callable[[str], Collection[str]] = lambda tool: (),
) -> T:
    async def run(journal: StoredJournal) -> T:
        try:
            return await what(journal)
        finally:
            await journal.aclose()

    try:
        return asyncio.run(run(_opened(address, key_file, redact, writing=writing)))
    except (ConfigError, JournalError) as error:
        raise Unusable(str(error)) from None


def _opened(
    address: str, key_file: Path | None, redact: Callable[[str], Collection[str]], *, writing: bool
) -> StoredJournal:
    payloads = Payloads(redact=redact, seal=Seal(_key(key_file)))
    if is_postgres(address):
        return open_journal(address, payloads=payloads)
    if not Path(address).is_file():
        raise Unusable(f"{address}: there is no such file")
    return open_sqlite(address, payloads=payloads, read_only=not writing)


def _key(key_file: Path | None) -> bytes | None:
    if key_file is None:
        text = os.environ.get(KEY)
        return read_key(text) if text else None
    try:
        return read_key(key_file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{key_file}: the key cannot be read: {error}") from None


async def _everything(journal: StoredJournal, session: str) -> tuple[list[tuple[int, Entry]], tuple[Claimed, ...]]:
    entries = [each async for each in journal.read(session)]
    calls = await journal.claims(session=session, states=tuple(State))
    if not entries and not calls:
        raise _nobody(session)
    return entries, calls


def _nobody(session: str) -> Unusable:
    return Unusable(f"the journal knows no session {session}; see 'journal list'")


async def _replays(journal: StoredJournal, session: str | None) -> dict[str, Replay]:
    names = [each.session for each in await journal.sessions()] if session is None else [session]
    return {name: replay((await _everything(journal, name))[0]) for name in names}


# ---------------------------------------------------------------------------------------------------------- printing


def _print(title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    console = terminal()
    style = box.SIMPLE_HEAD if console.is_terminal else box.ASCII2
    table = Table(*headings, title=title, title_justify="left", box=style)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _session_row(stored: Stored) -> tuple[str, ...]:
    return stored.session, _time(stored.began), _time(stored.latest), str(stored.entries), f"{stored.size:,}"


def _state(claimed: Claimed) -> str:
    if claimed.until is None or not claimed.waits(time.time()):
        return claimed.state.value
    return f"waits until {_time(claimed.until)}"


def _call_row(claimed: Claimed) -> tuple[str, ...]:
    key = claimed.call
    return (
        key.session,
        f"{key.call_id}@{key.epoch}",
        claimed.tool,
        _state(claimed),
        _time(claimed.since),
        claimed.owner,
    )


def _recovered_row(recovered: Recovered) -> tuple[str, ...]:
    claimed = recovered.claimed
    call = claimed.call
    since = _time(claimed.since)
    return call.session, f"{call.call_id}@{call.epoch}", claimed.tool, since, recovered.found.value, recovered.outcome


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _entry_line(number: int, entry: Entry) -> str:
    kind, body = encode(entry.fact)
    about = {"id": number, "at": entry.at, "session": entry.session, "part": entry.part.value, "kind": kind}
    return json.dumps({**about, "fact": json.loads(body)})


def _call_line(claimed: Claimed) -> str:
    fields: dict[str, Any] = {**asdict(claimed), **claimed.call._asdict(), "state": claimed.state.value}
    del fields["call"]
    return json.dumps({"kind": "call", **fields})
