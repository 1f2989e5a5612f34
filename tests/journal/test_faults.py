"""A sidecar whose journal's disk fails it: audio goes on, nothing is claimed that is not durable, and all heals."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from bridge.config import read
from bridge.core.events import LinkLost
from bridge.errors import ConfigError
from bridge.journal import CallId, Granted, Retention, State
from bridge.journal.replay import Replayed, replay
from bridge.journal.sqlite import open_sqlite
from bridge.runner.leftovers import recover
from bridge.serve import Serving, serving
from tests.relay.rig import address, providing, until

from .making import entry, fill_up, told
from .sidecars import Phone, configured, served, slowly

pytestmark = pytest.mark.anyio

TOOLS = '''
from bridge import Toolset

tools = Toolset()

@tools.tool(effect="read")
async def look(number: int) -> str:
    """Look."""
    return "seen"

@tools.tool(idempotent=True)
async def note(number: int) -> str:
    """Any number of times."""
    return "noted"

@tools.tool
async def book(number: int) -> str:
    """Once."""
    return "booked"
'''
REFUSED = {"error": "book is not available now, and was not run"}


class Line:
    """A phone call through a sidecar in this process, whose journal is about to be in trouble."""

    def __init__(self, served: Serving, phone: Phone) -> None:
        self.relay, self.metrics, self.phone = served.relay, served.metrics, phone

    def lose_connection(self) -> None:
        """The file is opened anew, as after any fault: SQLite knows by heart what it has read."""
        journal = self.relay.runner.durable._journal  # type: ignore[union-attr]
        journal._databases[0].close()  # type: ignore[attr-defined]

    async def refused(self) -> None:
        """What changes something is not run; all else goes on, and whoever looks is told."""
        for _ in range(200):  # in what is left of the file's pages there may be room for a few
            if (result := await self.phone.call("book")) != "booked":
                break
        assert result == REFUSED
        await self.phone.talk()
        assert await self.phone.call("look") == "seen"
        assert await self.phone.call("note") == "noted"
        assert self.relay.ready.startswith("the journal is out of order: ")
        assert b"bridge_journal_claims_refused_total 1.0" in self.metrics.render()

    async def healed(self) -> None:
        """It takes sessions again, and runs what changes something."""
        await until(lambda: self.relay.ready == "")
        assert await self.phone.call("book") == "booked"


@asynccontextmanager
async def line(directory: Path, scripts: Path) -> AsyncIterator[Line]:
    """With the journal in this directory."""
    (scripts / "fault_tools.py").write_text(TOOLS)
    async with providing() as providers:
        overrides = {
            "listen": {"port": 0},
            "upstream": {"url": providers.url},
            "tools": {"python": [str(scripts / "fault_tools.py")]},
            "journal": {"address": str(directory / "calls.db")},
        }
        async with asyncio.timeout(45), serving(read(None, overrides)) as served:
            async with Phone.through(address(served.relay), providers) as phone:
                yield Line(served, phone)
            await until(lambda: not served.relay.sessions)


async def replays(path: Path) -> set[Replayed]:
    """What comes of the replays of all sessions in a file."""
    journal = open_sqlite(path, read_only=True)
    try:
        sessions = await journal.sessions()
        return {replay([each async for each in journal.read(stored.session)]).outcome for stored in sessions}
    finally:
        await journal.aclose()


def remove(path: Path) -> None:
    """A journal, with its log and its lock."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


@pytest.mark.slow
async def test_on_a_full_disk_audio_goes_on_and_what_changes_something_waits_for_room(
    small_disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with line(small_disk, tmp_path) as call:
        assert await call.phone.call("book") == "booked"
        fill_up(small_disk)
        await call.refused()
        assert "the disk is full; make room, and it goes on by itself" in caplog.text
        (small_disk / "filler").unlink()
        await call.healed()
    assert await replays(small_disk / "calls.db") == {Replayed.SAME}


@pytest.mark.slow
async def test_while_the_file_is_held_up_audio_goes_on_and_the_call_waits(tmp_path: Path) -> None:
    async with line(tmp_path, tmp_path) as call:
        with closing(sqlite3.connect(tmp_path / "calls.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await call.phone.begin("book")
            await call.phone.talk()
            journal = open_sqlite(tmp_path / "calls.db", read_only=True)
            assert await journal.claims(states=tuple(State)) == ()
            await journal.aclose()
            other.execute("ROLLBACK")
        assert await call.phone.result() == "booked"


@pytest.mark.slow
async def test_while_the_disk_takes_its_time_audio_goes_on_and_the_call_waits(tmp_path: Path) -> None:
    gate = tmp_path / "slow"
    if (environment := slowly(tmp_path, gate, seconds=60)) is None:
        pytest.skip("no compiler")
    async with providing() as providers:
        configured(tmp_path, providers.url, TOOLS)
        async with served(tmp_path, environment) as (_, at), Phone.through(f"{at}/v1/ws", providers) as phone:
            assert await phone.call("book") == "booked"
            gate.touch()
            await phone.begin("book")
            await phone.talk()  # no result is among what the provider hears meanwhile
            gate.unlink()
            assert await phone.result() == "booked"


@pytest.mark.slow
async def test_while_somebody_keeps_the_file_locked_it_says_who_is_to_be_looked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with line(tmp_path, tmp_path) as call:
        with closing(sqlite3.connect(tmp_path / "calls.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await call.refused()
            assert "another process keeps it locked; see who has it open" in caplog.text
        await call.healed()
    assert await replays(tmp_path / "calls.db") == {Replayed.SAME}


@pytest.mark.slow
async def test_a_file_that_is_removed_under_it_is_told_and_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calls.db"
    async with line(tmp_path, tmp_path) as call:
        assert await call.phone.call("book") == "booked"
        remove(path)
        assert await call.phone.call("book") in (REFUSED, "booked")  # the first that notices need not be a call
        await call.healed()
        assert "was removed, and with it what was known of earlier calls" in caplog.text
    journal = open_sqlite(path, read_only=True)
    assert State.SENT in {each.state for each in await journal.claims(states=tuple(State))}
    await journal.aclose()


@pytest.mark.slow
async def test_a_damaged_file_is_told_until_it_is_moved_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "calls.db"
    async with line(tmp_path, tmp_path) as call:
        assert await call.phone.call("book") == "booked"
        for file in (path, tmp_path / "calls.db-wal"):
            file.write_bytes(os.urandom(64 * 1024))
        call.lose_connection()
        await call.refused()
        assert "stop the process, move the file away" in caplog.text or "it is no journal" in caplog.text
        remove(path)
        await call.healed()


@pytest.mark.slow
async def test_a_directory_that_is_away_is_told_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    async with line(place, tmp_path) as call:
        assert await call.phone.call("book") == "booked"
        place.rename(tmp_path / "away")
        await call.refused()
        assert "cannot be opened: No such file or directory" in caplog.text
        (tmp_path / "away").rename(place)
        await call.healed()
    assert await replays(place / "calls.db") == {Replayed.SAME}


@pytest.mark.slow
async def test_a_second_sidecar_on_the_same_file_does_not_start(tmp_path: Path) -> None:
    async with line(tmp_path, tmp_path) as call:
        overrides = {"upstream": {"url": "ws://127.0.0.1:9"}, "journal": {"address": str(tmp_path / "calls.db")}}
        with pytest.raises(ConfigError, match="written by another process; give each process a file of its own"):
            async with serving(read(None, overrides)):
                pass
        assert await call.phone.call("book") == "booked"


# -------------------------------------------------------------------------------------------------------------- clocks


async def test_a_wall_clock_that_jumps_back_and_forth_decides_nothing(tmp_path: Path) -> None:
    times = iter([1e9, 5.0, 4e9, 1.0, 2e9, 0.0] * 20)
    journal = open_sqlite(tmp_path / "calls.db", clock=lambda: next(times))
    calls = [CallId("s", 0, f"c{number}") for number in range(6)]
    for call in calls:
        assert await journal.claim(call, "book", "{}", "dead") == Granted()
        await journal.append([entry(LinkLost(), "s", at=next(times))])
    await journal.conclude(calls[0], told("booked"), "ok")
    left = await recover(journal, {}, "me", dead=lambda owner: True)
    assert {each.claimed.call for each in left} == set(calls)
    assert [number async for number, _ in journal.read("s")] == sorted([n async for n, _ in journal.read("s")])
    assert {each.state for each in await journal.claims(states=tuple(State))} == {State.ORPHANED}
    await journal.aclose()


async def test_a_wall_clock_that_jumps_ahead_costs_no_unfinished_call(tmp_path: Path) -> None:
    journal = open_sqlite(tmp_path / "calls.db", clock=lambda: 0.0, retention=Retention(max_age=100.0))
    with_entries, without = CallId("s", 0, "c1"), CallId("t", 0, "c1")
    for call in (with_entries, without):
        await journal.claim(call, "book", "{}", "me")
    await journal.append([entry(LinkLost(), "s", at=0.0), entry(LinkLost(), "old", at=0.0)])
    assert await journal.prune(4e9) == 1
    assert {each.call for each in await journal.claims()} == {with_entries, without}
    await journal.aclose()
