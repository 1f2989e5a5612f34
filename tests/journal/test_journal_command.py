"""`journal list|show|verify|export|erase`, over a file and over a database."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli.journal import journal_command
from bridge.core.dialect import Delivery
from bridge.core.events import LinkLost, ReplyDone, ReplyStarted, ToolCalled, ToolFinished
from bridge.core.turn import TurnMachine
from bridge.journal import Begun, Entry, Lost, Part, State
from bridge.journal.opening import open_journal
from bridge.journal.payloads import Payloads
from bridge.journal.sealing import Seal

from .making import CALL, ID, RESULT, entry

KEY = bytes(range(32))

Journal = Callable[..., Result]


def session(name: str) -> list[Entry]:
    """A session as a recorder writes it."""
    machine = TurnMachine(Delivery())
    entries = [entry(Begun(machine.delivery), name)]
    for event in (ReplyStarted("r1"), ToolCalled(CALL), ToolFinished(ID.key, RESULT), ReplyDone(False, "r1")):
        machine, outputs = machine.handle(event)
        entries += [entry(event, name), *(entry(output, name, part=Part.DECIDED) for output in outputs)]
    return entries


async def fill(address: str, seal: Seal | None = None) -> None:
    journal = open_journal(address, payloads=Payloads(seal=seal or Seal()))
    await journal.append([*session("s1"), *session("s2")])
    await journal.claim(ID, "order", CALL.arguments, "me")
    await journal.claim(ID._replace(session="s2"), "order", CALL.arguments, "me")
    await journal.conclude(ID._replace(session="s2"), RESULT, "ok")
    await journal.settle([ID._replace(session="s2")], State.SENT)
    await journal.aclose()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = str(tmp_path / "journal.db")
    if request.param == "postgres":
        found = request.getfixturevalue("url")
    asyncio.run(fill(found))
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    asyncio.run(fill(str(tmp_path / "file.db")))
    return tmp_path / "file.db"


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(journal_command, list(map(str, arguments)), env=environment, catch_exceptions=False)


def test_sessions_are_listed_with_what_is_not_finished(address: str) -> None:
    ran = run("list", address)
    assert ran.exit_code == 0
    sessions, unfinished = ran.output.split("Unfinished calls")
    assert [line.split()[1] for line in sessions.splitlines() if line.startswith("| s")] == ["s1", "s2"]
    assert "2023-11-14 22:13:20.000" in sessions
    assert "s1" in unfinished
    assert "c1@1" in unfinished
    assert "started" in unfinished
    assert "s2" not in unfinished
    assert len(run("list", address, "--limit", 1).output.split("Unfinished")[0].splitlines()) < len(
        sessions.splitlines()
    )


def test_a_call_that_somebody_outside_works_on_is_listed_with_the_end_of_its_time(path: Path) -> None:
    async def leave(until: float) -> None:
        journal = open_journal(str(path))
        await journal.leave(ID, until)
        await journal.aclose()

    asyncio.run(leave(4_102_444_800.0))
    assert "waits until 2100-01-01" in " ".join(run("list", path).output.split())
    asyncio.run(leave(1.0))
    assert "waits" not in run("list", path).output


def test_a_session_is_shown_with_its_calls(address: str) -> None:
    shown = run("show", address, "s2").output
    assert shown.count("\n") > len(session("s2"))
    assert '"arguments":"{\\"pizza\\"' in shown
    assert "ToolCalled" in shown
    assert "decided" in shown
    assert "sent" in shown.split("Calls")[1]
    assert "not known" in run("show", address, "s1").output


def test_every_session_is_replayed(address: str) -> None:
    ran = run("verify", address)
    assert (ran.exit_code, ran.output) == (
        0,
        "2 sessions: 2 the same, 0 that cannot be followed to the end, 0 different\n",
    )
    one = run("verify", address, "s1")
    assert one.output.startswith("s1: same, 3 decisions\n1 session: ")


def test_a_difference_is_an_exit_code(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM bridge_entries WHERE session = 's2' AND kind = 'Run'")
        database.commit()
    ran = run("verify", path)
    assert ran.exit_code == 1
    assert "s2: DIFFERENT, 0 decisions, up to entry" in ran.output
    assert "decided Run c1@1, stored Hold c1@1" in ran.output
    assert "2 sessions: 1 the same, 0 that cannot be followed to the end, 1 different" in ran.output


def test_what_was_lost_is_no_difference(path: Path) -> None:
    async def lose() -> None:
        journal = open_journal(str(path))
        await journal.append([entry(Lost(3), "s2"), entry(LinkLost(), "s2")])
        await journal.aclose()

    asyncio.run(lose())
    ran = run("verify", path)
    assert ran.exit_code == 0
    assert "s2: the same so far, 3 decisions, up to entry" in ran.output
    assert "3 entries are missing" in ran.output


def test_an_export_is_lines_of_json(address: str) -> None:
    lines = [json.loads(line) for line in run("export", address).output.splitlines()]
    entries = [line for line in lines if line["kind"] != "call"]
    assert [line["kind"] for line in entries] == [type(each.fact).__name__ for each in session("s1")] * 2
    assert entries[1] == {
        "id": entries[1]["id"],
        "at": 1_700_000_000.0,
        "session": "s1",
        "part": "heard",
        "kind": "ReplyStarted",
        "fact": {"reply_id": "r1"},
    }
    calls = [line for line in lines if line["kind"] == "call"]
    assert [(call["session"], call["state"], call["outcome"]) for call in calls] == [
        ("s1", "started", ""),
        ("s2", "sent", "ok"),
    ]
    assert calls[1]["result"]["output"] == RESULT.output
    assert {json.loads(line)["session"] for line in run("export", address, "s2").output.splitlines()} == {"s2"}


def test_a_session_is_erased_after_a_question(address: str) -> None:
    asked = CliRunner().invoke(journal_command, ["erase", address, "s1"], input="n\n")
    assert asked.exit_code == 1
    assert "Erase everything about session s1?" in asked.output
    assert run("erase", address, "s1", "--yes").output == "Erased session s1.\n"
    assert "s1" not in run("export", address).output
    again = run("erase", address, "s1", "--yes")
    assert again.exit_code == 2
    assert "knows no session s1; see 'journal list'" in again.output


def test_a_file_that_is_written_can_be_looked_at_and_not_erased_from(path: Path) -> None:
    async def meanwhile() -> tuple[Result, Result]:
        journal = open_journal(str(path))
        looked = await asyncio.to_thread(run, "list", path)
        erased = await asyncio.to_thread(run, "erase", path, "s1", "--yes")
        await journal.aclose()
        return looked, erased

    looked, erased = asyncio.run(meanwhile())
    assert looked.exit_code == 0
    assert "s1" in looked.output
    assert erased.exit_code == 2
    assert "written by another process" in erased.output


@pytest.mark.parametrize("command", ["list", "show", "verify", "export", "erase"])
def test_what_is_not_there_is_said(command: str, tmp_path: Path) -> None:
    about = () if command in ("list", "verify", "export") else ("s1",)
    ran = run(command, tmp_path / "none.db", *about, *(("--yes",) if command == "erase" else ()))
    assert ran.exit_code == 2
    assert "there is no such file" in ran.output
    assert not list(tmp_path.iterdir())


def test_a_session_that_is_not_there_is_said(path: Path) -> None:
    for command in ("show", "verify", "export"):
        ran = run(command, path, "s9")
        assert ran.exit_code == 2
        assert "knows no session s9" in ran.output


def test_an_encrypted_journal_is_read_with_its_key(tmp_path: Path) -> None:
    path, key_file = tmp_path / "sealed.db", tmp_path / "key"
    asyncio.run(fill(str(path), Seal(KEY)))
    key_file.write_text(KEY.hex())
    assert "ToolCalled" in run("show", path, "s1", "--key-file", key_file).output
    assert "ToolCalled" in run("show", path, "s1", BRIDGE_JOURNAL_KEY=base64.b64encode(KEY).decode()).output
    without = run("list", path, BRIDGE_JOURNAL_KEY="")
    assert without.exit_code == 2
    assert "was begun with a key" in without.output
    wrong = run("list", path, BRIDGE_JOURNAL_KEY="no key")
    assert "openssl rand -base64 32" in wrong.output
    missing = run("list", path, "--key-file", tmp_path / "nowhere")
    assert "the key cannot be read" in missing.output


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bridge.journal.postgres", None)
    ran = run("list", "postgresql://me@localhost/x")
    assert ran.exit_code == 2
    assert "pip install 'voice-tool-bridge[postgres]'" in ran.output


def test_a_result_of_a_later_version_does_not_hinder(path: Path) -> None:
    async def add() -> None:
        journal = open_journal(str(path))
        later = replace(entry(LinkLost(), "s3"), part=Part.NOTED)
        await journal.append([later])
        await journal.aclose()

    asyncio.run(add())
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE bridge_entries SET kind = 'Tomorrow' WHERE session = 's3'")
        database.commit()
    assert "Tomorrow" in run("show", path, "s3").output
    assert run("verify", path).exit_code == 0
