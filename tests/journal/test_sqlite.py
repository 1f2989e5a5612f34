"""One file, one process: what only a file has to do."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from bridge.core.events import LinkLost
from bridge.errors import ConfigError, JournalError
from bridge.journal import CallId, Granted, Journal, State
from bridge.journal.payloads import Keep, Payloads
from bridge.journal.sealing import Seal
from bridge.journal.sqlite import open_sqlite
from bridge.journal.stored import StoredJournal
from bridge.journal.tables import Write

from .killing import kill_a_writer, nothing_is_missing_or_torn
from .making import FINISHED, ID, RUN, entry, fill_up, told, tool_called

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@asynccontextmanager
async def opened(path: Path, **options: Any) -> AsyncIterator[StoredJournal]:
    journal = open_sqlite(path, **options)
    try:
        yield journal
    finally:
        await journal.aclose()


async def fill(journal: Journal) -> None:
    await journal.append([entry(tool_called()), entry(RUN), entry(FINISHED)])
    await journal.claim(ID, "order", "{}", "me")


async def count(journal: Journal) -> int:
    return len([each async for each in journal.read()])


# ------------------------------------------------------------------------------------------------- one writer at a time


async def test_a_file_that_this_process_writes_is_not_opened_again(path: Path) -> None:
    async with opened(path):
        with pytest.raises(JournalError, match="written by another process"):
            open_sqlite(path)
    async with opened(path) as journal:
        await fill(journal)


@pytest.mark.slow
@pytest.mark.slow
def test_a_file_that_another_process_writes_is_refused_until_that_dies(path: Path) -> None:
    command = [sys.executable, "-m", "tests.journal.writer", str(path), "other"]
    other = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(JournalError, match="give each process a file of its own"):
            open_sqlite(path)
    finally:
        other.kill()
        other.communicate()
    asyncio.run(open_sqlite(path).aclose())


async def test_a_file_is_for_its_owner_only(path: Path) -> None:
    async with opened(path) as journal:
        await fill(journal)
        modes = {each.name: each.stat().st_mode & 0o777 for each in sorted(path.parent.iterdir())}
    assert set(modes) >= {"journal.db", "journal.db-wal", "journal.db.lock"}
    assert set(modes.values()) == {0o600}


async def test_a_file_that_is_written_can_be_read(path: Path) -> None:
    async with opened(path) as writing, opened(path, read_only=True, poll=0.02) as reading:
        await fill(writing)
        assert await count(reading) == 3
        following = reading.read(after=3, follow=True)
        later = asyncio.create_task(anext(following))
        await writing.append([entry(LinkLost())])
        async with asyncio.timeout(20):
            assert (await later)[1].fact == LinkLost()
        await following.aclose()
        with pytest.raises(JournalError, match="for reading only"):
            await reading.append([entry(LinkLost())])


# ------------------------------------------------------------------------------------------------- sharing, killing


async def test_callers_share_transactions(path: Path) -> None:
    """32 callers at once need far fewer commits than 32 each: that is what makes a synced disk bearable."""
    async with opened(path) as journal:
        commits = 0

        def counted(work: Any) -> list[Any]:
            nonlocal commits
            commits += 1
            return write(work)

        write, journal._databases[0].write = journal._databases[0].write, counted  # type: ignore[method-assign]
        for turn in range(10):
            calls = [CallId("s1", turn, str(n)) for n in range(32)]
            answers = await asyncio.gather(*(journal.claim(call, "order", "{}", "me") for call in calls))
            assert answers == [Granted()] * 32
        assert commits <= 40
        assert len(await journal.claims()) == 320


async def test_each_commit_is_synced(path: Path) -> None:
    """A loss of power cannot be tried here, so the settings that outlive one are looked at."""
    async with opened(path) as journal:
        for _ in range(2):
            await fill(journal)
            connection = journal._databases[0]._connection  # type: ignore[attr-defined]
            assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            journal._databases[0].close()  # it is opened anew


async def kills(path: Path, times: int) -> None:
    chance = random.Random(times)
    for number in range(times):
        owner = f"w{number}"
        confirmed = kill_a_writer(str(path), owner, chance)
        async with opened(path) as journal:
            await nothing_is_missing_or_torn(journal, owner, confirmed)
            assert await journal.prune(1e12) > 0 or not confirmed.get("appended")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
@pytest.mark.slow
async def test_what_was_confirmed_survives_kills(path: Path) -> None:
    await kills(path, 4)


# --------------------------------------------------------------------------------------------------------- trouble

# Files of this process cannot grow for a while.
FULL_DISK = """
import asyncio, resource, signal, sys
from bridge.errors import JournalError
from bridge.journal import CallId, Granted
from bridge.journal.sqlite import open_sqlite

async def main():
    journal = open_sqlite(sys.argv[1])
    await journal.claim(CallId("s", 0, "before"), "t", "{}", "me")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
    refused = 0
    for n in range(100):
        try:
            await journal.claim(CallId("s", 1, str(n)), "t", '"' + "x" * 4000 + '"', "me")
        except JournalError as error:
            refused += 1
            print(error)
    assert refused > 50, refused
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await journal.claim(CallId("s", 2, "after"), "t", "{}", "me") == Granted()
    print(len(await journal.claims()) - 2 + refused)
    await journal.aclose()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.slow
def test_a_full_disk_is_told_and_forgotten_when_there_is_room(path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", FULL_DISK, str(path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    *told_of, total = ran.stdout.splitlines()
    assert total == "100", "each was either written or refused"
    assert all("goes on by itself" in each for each in told_of)


async def test_a_file_without_room_says_what_to_do(path: Path) -> None:
    async with opened(path) as journal:
        await fill(journal)
        connection = journal._databases[0]._connection  # type: ignore[attr-defined]
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        with pytest.raises(JournalError, match="the disk is full; make room"):
            await journal.append([entry(RUN) for _ in range(1000)])
        await journal.append([entry(RUN)])


@pytest.mark.slow
async def test_a_check_finds_out_whether_there_is_room(path: Path, small_disk: Path) -> None:
    async with opened(small_disk / "journal.db") as journal:
        await journal.check()
        fill_up(small_disk)

        async def fail() -> None:
            for _ in range(200):  # in what is left of the file's pages there may be room for a few
                await journal.check()

        with pytest.raises(JournalError, match="the disk is full; make room"):
            await fail()
        (small_disk / "filler").unlink()
        await journal.check()
        assert await journal.claims(states=tuple(State)) == ()
        assert await journal.sessions() == ()


async def test_a_file_that_may_not_be_written_says_so(path: Path) -> None:
    async with opened(path) as journal:
        await fill(journal)
        connection = journal._databases[0]._connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(JournalError, match="read-only; let this user write"):
            await fill(journal)
        await journal.append([entry(RUN)])


async def test_a_damaged_file_says_so(path: Path) -> None:
    async with opened(path) as journal:
        for _ in range(10):
            await journal.append([entry(RUN) for _ in range(100)])
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(JournalError, match="damaged; stop the process"):
        async with opened(path) as journal:
            await count(journal)


async def test_a_file_that_is_removed_is_told_and_begun_anew(path: Path) -> None:
    async with opened(path) as journal:
        await fill(journal)
        for file in path.parent.iterdir():
            file.unlink()
        with pytest.raises(JournalError, match=r"was removed, and with it what was known of earlier calls"):
            await journal.claim(ID, "order", "{}", "me")
        assert await journal.claim(ID, "order", "{}", "me") == Granted()
        assert [each.call for each in await journal.claims()] == [ID]
        assert os.stat(path).st_mode & 0o777 == 0o600
        with pytest.raises(JournalError, match="written by another process"):
            open_sqlite(path)
    async with opened(path) as journal:
        assert len(await journal.claims()) == 1


async def test_another_file_in_its_place_is_not_touched(path: Path, tmp_path: Path) -> None:
    async with opened(tmp_path / "other.db") as other:
        await fill(other)
    async with opened(path) as journal:
        await fill(journal)
        (tmp_path / "other.db").rename(path)
        for _ in range(2):
            with pytest.raises(JournalError, match="another file lies in its place; stop the process"):
                await journal.append([entry(RUN)])
    async with opened(path) as journal:
        assert await count(journal) == 3


async def test_a_directory_that_was_away_for_a_while_is_used_again(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "here", tmp_path / "there"
    place.mkdir()
    async with opened(place / "journal.db") as journal:
        await fill(journal)
        place.rename(elsewhere)
        with pytest.raises(JournalError, match="cannot be opened"):
            await journal.append([entry(RUN)])
        elsewhere.rename(place)
        await journal.append([entry(RUN)])
        assert await count(journal) == 4


async def test_a_lock_that_was_removed_is_taken_again_unless_somebody_else_has_it(path: Path) -> None:
    async with opened(path) as journal:
        lock = path.with_name("journal.db.lock")
        lock.unlink()
        await fill(journal)
        with pytest.raises(JournalError, match="written by another process"):
            open_sqlite(path)
        lock.unlink()
        async with opened(path):
            with pytest.raises(JournalError, match="written by another process"):
                await fill(journal)
        await fill(journal)


def test_a_file_that_is_no_journal_says_so(path: Path) -> None:
    path.write_bytes(b"something else, and long enough to be looked at " * 100)
    with pytest.raises(JournalError, match="no journal; is the path right"):
        open_sqlite(path)


def test_a_directory_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened"):
        open_sqlite(tmp_path / "nowhere" / "journal.db")
    with pytest.raises(JournalError, match="cannot be opened"):
        open_sqlite(tmp_path / "nothing.db", read_only=True)


async def test_after_a_refusal_the_lock_is_free(path: Path) -> None:
    async with opened(path, payloads=Payloads(seal=Seal(bytes(32)))):
        pass
    with pytest.raises(ConfigError, match="begun with a key"):
        open_sqlite(path)
    async with opened(path, payloads=Payloads(seal=Seal(bytes(32)))) as journal:
        await fill(journal)


async def test_somebody_who_keeps_the_file_locked_is_named_as_the_cause(path: Path) -> None:
    async with opened(path, limit=0.4) as journal:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(JournalError, match="keeps it locked"):
                await fill(journal)
        await fill(journal)


class Stall:
    """A write that the disk takes its time for."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()
        self.write: Write[None] = Write(list, lambda changed, fetch: self._take_time())

    def _take_time(self) -> None:
        self.begun.set()
        assert self.over.wait(10)

    async def begin(self, journal: StoredJournal) -> asyncio.Task[Any]:
        """Ask for it, and return once it has begun."""
        asking = asyncio.create_task(journal._done(self.write))
        await asyncio.to_thread(self.begun.wait, 5)
        return asking


async def test_a_slow_disk_is_waited_for_within_bounds(path: Path) -> None:
    async with opened(path, limit=0.2) as journal:
        stall = Stall()
        stalled = await stall.begin(journal)
        with pytest.raises(JournalError, match=r"within 0\.2 s: see to its disk"):
            await journal.append([entry(RUN)])
        with pytest.raises(JournalError, match=r"within 0\.2 s"):
            await stalled
        stall.over.set()
        await journal.append([entry(LinkLost())])
        # Nobody waited for the first any more when its turn came.
        assert [each.fact async for _, each in journal.read()] == [LinkLost()]


async def test_closing_does_not_wait_for_a_disk_for_ever(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, stall = open_sqlite(path, limit=0.1), Stall()
    stalled = await stall.begin(journal)
    with pytest.raises(JournalError, match="within"):
        await stalled
    async with asyncio.timeout(20):
        await journal.aclose()
    assert "does not come to an end" in caplog.text
    stall.over.set()
    await asyncio.to_thread(journal._writer._thread.join)
    journal._databases[0].close()


async def test_what_one_caller_asks_in_vain_is_not_the_others_matter(path: Path) -> None:
    async with opened(path) as journal:

        def broken() -> list[Any]:
            raise ValueError("no words for it")

        def unreadable(changed: Any, fetch: Any) -> None:
            raise JournalError("not to be read")

        answers = await asyncio.gather(
            journal._done(Write(broken, lambda changed, fetch: None)),
            journal._done(Write(list, unreadable)),
            journal.append([entry(RUN)]),
            return_exceptions=True,
        )
        assert [str(each) for each in answers] == ["no words for it", "not to be read", "None"]
        assert await count(journal) == 1


async def test_too_many_who_wait_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.journal.worker._WAITING", 2)
    async with opened(path) as journal:
        stall = Stall()
        stalled = await stall.begin(journal)
        waiting = [asyncio.create_task(journal.append([entry(RUN)])) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(JournalError, match="2 callers wait"):
            await journal.append([entry(RUN)])
        stall.over.set()
        await asyncio.gather(stalled, *waiting)


async def test_a_caller_that_gives_up_before_its_turn_leaves_no_claim(path: Path) -> None:
    async with opened(path) as journal:
        stall = Stall()
        stalled = await stall.begin(journal)
        claiming = asyncio.create_task(journal.claim(ID, "order", "{}", "me"))
        await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        stall.over.set()
        await stalled
        assert await journal.claims() == ()


async def test_a_journal_may_be_used_from_several_event_loops(path: Path) -> None:
    async with opened(path) as journal:
        await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, journal.append([entry(RUN)])) for _ in range(4)),
            journal.append([entry(RUN)]),
        )
        assert await count(journal) == 5


# ------------------------------------------------------------------------------------------------- versions and keys


async def test_a_file_of_the_first_version_is_brought_up_to_date_by_whoever_writes_it(path: Path) -> None:
    async with opened(path) as journal:
        await journal.claim(ID, "order", "{}", "me")
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE bridge_claims DROP COLUMN until")
        database.execute("UPDATE bridge_meta SET value = '1' WHERE name = 'schema'")
        database.commit()
    with pytest.raises(JournalError, match="of an earlier version, and was opened for reading only"):
        open_sqlite(path, read_only=True)
    for _ in range(2):
        async with opened(path) as journal:
            await journal.leave(ID, 100)
            assert [each.until for each in await journal.claims()] == [100]


async def test_a_file_of_a_later_version_is_refused(path: Path) -> None:
    async with opened(path):
        pass
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE bridge_meta SET value = '3' WHERE name = 'schema'")
        database.commit()
    with pytest.raises(JournalError, match=r"a later version \(schema 3, this one knows 2\)"):
        open_sqlite(path)


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [(None, 1, "with no key"), (1, None, "with a key"), (1, 2, "with another key")],
)
async def test_another_key_is_refused(path: Path, first: int | None, then: int | None, words: str) -> None:
    def payloads(key: int | None) -> Payloads:
        return Payloads(seal=Seal(None if key is None else bytes([key] * 32)))

    async with opened(path, payloads=payloads(first)) as journal:
        await fill(journal)
    with pytest.raises(ConfigError, match=f"begun {words}"):
        open_sqlite(path, payloads=payloads(then))
    async with opened(path, payloads=payloads(first)) as journal:
        assert await count(journal) == 3


# ------------------------------------------------------------------------------------------------------- what is left

SECRET = "the-card-4711-0815"


def left(path: Path) -> bytes:
    """All bytes of the journal, its log included."""
    return b"".join(each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")))


async def secrets(journal: Journal, chance: random.Random, sessions: int = 30) -> None:
    """Sessions that come in between each other, with arguments and results of all sizes."""
    for _ in range(100):
        await secret_call(journal, f"caller-{chance.randrange(sessions)}.", chance)


async def secret_call(journal: Journal, session: str, chance: random.Random) -> None:
    call = CallId(session, chance.randrange(10**9), f"call-of-{session}")
    text = f'"{SECRET} of {session} {"x" * chance.choice((1, 50, 3000, 9000))}"'
    await journal.claim(call, "order", text, "me")
    await journal.append([entry(FINISHED, session), entry(RUN, session)])
    await journal.conclude(call, told(text), "ok")
    if chance.random() < 0.5:
        await journal.settle([call], State.SENT)


@pytest.mark.slow
async def test_an_erased_session_leaves_no_byte_in_the_file(path: Path) -> None:
    """With this seed, deleting alone leaves copies of rows from the time when pages were rearranged."""
    chance = random.Random(2)
    async with opened(path, payloads=Payloads(Keep.FULL)) as journal:
        await secrets(journal, chance, sessions=60)
        names = [f"caller-{number}." for number in range(60)]
        chance.shuffle(names)
        stay = [name for name in names[20:] if name.encode() in left(path)]
        assert len(stay) > 20
        for name in names[:20]:
            await journal.erase(name)
            assert name.encode() not in left(path)
        assert all(name.encode() in left(path) for name in stay)


async def test_with_a_key_nothing_is_readable_in_the_file(path: Path) -> None:
    payloads = Payloads(Keep.FULL, seal=Seal(bytes(32)))
    async with opened(path, payloads=payloads) as journal:
        await secrets(journal, random.Random(6), sessions=10)
        assert SECRET.encode() not in left(path)
        assert b"salami" not in left(path)
        ((_, first), *_) = [each async for each in journal.read()]
        assert first.fact == FINISHED


async def test_a_settled_result_is_gone_from_the_file_once_its_log_is_folded(path: Path) -> None:
    async with opened(path, payloads=Payloads(Keep.NONE)) as journal:
        await journal.claim(ID, "order", f'"{SECRET}"', "me")
        await journal.conclude(ID, told(f'"{SECRET}"'), "ok")
        assert SECRET.encode() in left(path)
        await journal.settle([ID], State.SENT)
    assert SECRET.encode() not in left(path)


async def test_what_is_written_together_with_an_erasure_in_vain_is_written(path: Path) -> None:
    async with opened(path) as journal:
        await fill(journal)
        connection = journal._databases[0]._connection  # type: ignore[attr-defined]
        stall = Stall()
        stalled = await stall.begin(journal)
        together = asyncio.gather(journal.erase("s1"), journal.append([entry(RUN, "s2")]), return_exceptions=True)
        await asyncio.sleep(0)
        connection.set_authorizer(lambda action, *about: action == sqlite3.SQLITE_ATTACH)
        stall.over.set()
        await stalled
        failed, written = await together
        assert "traces stay in the file" in str(failed)
        assert written is None
        assert [each.session async for _, each in journal.read()] == ["s2"]


async def test_erasing_says_so_when_a_reader_keeps_the_log(path: Path) -> None:
    async with opened(path, limit=0.4) as journal:
        await fill(journal)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM bridge_entries").fetchone()
            with pytest.raises(JournalError, match="traces stay in the log"):
                await journal.erase("s1")
        assert await count(journal) == 0
        await journal.erase("s1")
        assert b"salami" not in left(path)
