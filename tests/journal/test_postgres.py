"""What only a database that several processes share has to do."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import psycopg
import pytest

from bridge.core.events import LinkLost
from bridge.errors import ConfigError, JournalError
from bridge.journal import Concluded, Granted, State, Verdict
from bridge.journal.opening import open_journal
from bridge.journal.payloads import Payloads
from bridge.journal.postgres import _begun, _sql, open_postgres
from bridge.journal.sealing import Seal
from bridge.journal.stored import StoredJournal
from bridge.journal.tables import Tables

from ..postgres import Server
from .killing import kill_a_writer, nothing_is_missing_or_torn
from .making import ID, RUN, entry, told
from .proxy import Mood, Proxy, proxy

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OpenIt = Callable[..., StoredJournal]

IN_VAIN = r"is away|within"


@pytest.fixture
async def open_it(url: str) -> AsyncIterator[OpenIt]:
    """Opens the same journal as often as wanted: each time another replica."""
    async with AsyncExitStack() as opened:

        def open_one(address: str = url, **options: Any) -> StoredJournal:
            journal = open_postgres(address, **options)
            opened.push_async_callback(journal.aclose)
            return journal

        yield open_one


@pytest.fixture
def between(server: Server) -> Iterator[Proxy]:
    with proxy(server.port) as running:
        yield running


@pytest.fixture
def through(between: Proxy, server: Server, database: str, schema: str) -> str:
    """The address of the journal behind the proxy."""
    return server.url(database, port=between.port, search_path=schema)


async def count(journal: StoredJournal) -> int:
    return len([each async for each in journal.read()])


# ------------------------------------------------------------------------------------------------- several processes


async def test_of_two_replicas_one_is_granted_the_call(open_it: OpenIt) -> None:
    one, other = open_it(), open_it()
    for turn in range(20):
        call = ID._replace(epoch=turn)
        answers = await asyncio.gather(one.claim(call, "order", "{}", "one"), other.claim(call, "order", "{}", "other"))
        assert sorted(type(each).__name__ for each in answers) == ["Granted", "Unknown"]


async def test_of_two_outcomes_at_two_replicas_one_stands_and_both_say_which(open_it: OpenIt) -> None:
    one, other = open_it(), open_it()
    for turn in range(20):
        call = ID._replace(epoch=turn)
        await one.claim(call, "order", "{}", "one")
        answers = await asyncio.gather(one.conclude(call, told("1"), "ok"), other.conclude(call, told("2"), "ok"))
        assert {each.verdict for each in answers} == {Verdict.RECORDED, Verdict.CONFLICT}
        assert answers[0].result == answers[1].result


async def test_an_entry_of_another_replica_is_told_at_once(open_it: OpenIt) -> None:
    one, other = open_it(), open_it(poll=60.0)
    async with aclosing(other.read(follow=True)) as following, asyncio.timeout(10):
        first = asyncio.create_task(anext(following))
        await one.append([entry(RUN)])
        await first
        for _ in range(3):
            later = asyncio.create_task(anext(following))
            await one.append([entry(LinkLost())])
            assert (await later)[1].fact == LinkLost()


async def test_an_entry_whose_notice_is_lost_is_found_all_the_same(open_it: OpenIt) -> None:
    one, other = open_it(), open_it(poll=0.05)
    other._closing()  # nobody listens any more
    async with aclosing(other.read(follow=True)) as following, asyncio.timeout(10):
        later = asyncio.create_task(anext(following))
        await one.append([entry(RUN)])
        assert (await later)[1].fact == RUN


async def test_a_listener_that_is_cut_off_comes_back(open_it: OpenIt, between: Proxy, through: str) -> None:
    one, other = open_it(), open_it(through, poll=0.05)
    async with aclosing(other.read(follow=True)) as following, asyncio.timeout(10):
        for mood in (Mood.WELL, Mood.AWAY, Mood.WELL):
            between.become(mood)
            await one.append([entry(RUN)])
        assert [(await anext(following))[1].fact for _ in range(3)] == [RUN] * 3


async def test_a_follower_misses_nothing_that_commits_late(open_it: OpenIt, url: str) -> None:
    """Somebody has a number and has not committed: whoever comes later gets a higher one, and is seen later."""
    journal, late, early = open_it(), entry(RUN, "late"), entry(RUN, "early")
    taken = Tables(Payloads()).append([late])
    with psycopg.connect(url, autocommit=True) as slow, psycopg.connect(url, autocommit=True) as watching:
        _begun(slow, [(taken, taken.statements())])
        appending = asyncio.create_task(journal.append([early]))
        await asyncio.to_thread(until, lambda: appending.done() or waits_for_a_lock(watching))
        assert await count(journal) == 0
        slow.execute("COMMIT")
        await appending
    assert [each.session async for _, each in journal.read()] == ["late", "early"]


def until(happens: Callable[[], bool]) -> None:
    """Wait in a thread for what nobody tells."""
    deadline = time.monotonic() + 5
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def waits_for_a_lock(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
    ).fetchone()
    return bool(found and found[0])


async def test_replicas_that_append_at_once_do_not_wait_for_each_other_for_ever(open_it: OpenIt) -> None:
    journals = [open_it() for _ in range(3)]
    names = [f"s{number}" for number in range(6)]

    async def work(journal: StoredJournal, chance: random.Random) -> None:
        for _ in range(15):
            await journal.append([entry(RUN, name) for name in chance.sample(names, 4)])

    await asyncio.gather(*(work(each, random.Random(n)) for n, each in enumerate(journals)))
    assert await count(journals[0]) == 3 * 15 * 4


@pytest.mark.slow
async def test_a_process_that_freezes_while_it_appends_does_not_hold_up_the_others(open_it: OpenIt) -> None:
    frozen, other = open_it(), open_it(limit=8.0)
    write = Tables(Payloads()).append([entry(RUN, "frozen")])
    connection = frozen._databases[0]._open()  # type: ignore[attr-defined]
    _begun(connection, [(write, write.statements())])
    await other.append([entry(RUN, "other")])
    assert [each.session async for _, each in other.read()] == ["other"]
    await frozen.append([entry(RUN, "thawed")])


# --------------------------------------------------------------------------------------------------- unknown commits


@pytest.mark.parametrize("mood", [Mood.LOSES_ANSWER, Mood.LOSES_COMMIT])
async def test_a_commit_without_an_answer_is_asked_after(
    open_it: OpenIt, between: Proxy, through: str, mood: Mood
) -> None:
    """Whether it was committed or not, the claim is granted, the outcome recorded and the entry appended once."""
    journal = open_it(through)
    for turn in range(2):
        call = ID._replace(epoch=turn)
        between.become(mood)
        assert await journal.claim(call, "order", "{}", "me") == Granted()
        between.become(mood)
        assert await journal.conclude(call, told("1"), "ok") == Concluded(Verdict.RECORDED, told("1"), "ok")
        between.become(mood)
        await journal.append([entry(RUN)])
        between.become(mood)
        await journal.append([entry(LinkLost()), entry(RUN)])
        between.become(mood)
        await journal.settle([call], State.SENT)
        assert between.mood is Mood.WELL, "no commit was lost"
    assert await count(journal) == 6
    assert len(await journal.claims(states=(State.SENT,))) == 2


async def test_a_commit_that_cannot_be_asked_after_in_time_is_an_error_and_never_a_second_effect(
    open_it: OpenIt, between: Proxy, through: str
) -> None:
    journal, other = open_it(through, limit=0.5), open_it()
    once = entry(RUN)
    between.become(Mood.LOSES_ANSWER)
    appending = asyncio.create_task(journal.append([once]))
    await asyncio.to_thread(until, lambda: between.mood is not Mood.LOSES_ANSWER)
    between.become(Mood.AWAY)
    with pytest.raises(JournalError):
        await appending
    between.become(Mood.WELL)
    assert await count(other) == 1
    await journal.append([once])
    assert await count(other) == 1


# ---------------------------------------------------------------------------------------------------------- trouble


async def test_a_database_that_is_away_is_waited_for(open_it: OpenIt, between: Proxy, through: str) -> None:
    journal = open_it(through)
    await journal.append([entry(RUN)])
    between.become(Mood.AWAY)
    appending = asyncio.create_task(journal.append([entry(RUN)]))
    reading = asyncio.create_task(count(journal))
    await asyncio.sleep(0)
    threading.Timer(0.3, between.become, (Mood.WELL,)).start()
    await appending
    assert await reading >= 1
    assert await count(journal) == 2


async def test_a_database_that_stays_away_is_an_error_within_bounds(
    open_it: OpenIt, between: Proxy, through: str
) -> None:
    journal = open_it(through, limit=0.4)
    between.become(Mood.AWAY)
    began = time.monotonic()
    with pytest.raises(JournalError, match=IN_VAIN):
        await journal.claim(ID, "order", "{}", "me")
    with pytest.raises(JournalError, match=IN_VAIN):
        await count(journal)
    assert time.monotonic() - began < 5
    between.become(Mood.WELL)
    answer = await journal.claim(ID, "order", "{}", "me")
    assert answer == Granted()


async def test_a_database_that_freezes_is_an_error_within_bounds_and_heals(
    open_it: OpenIt, between: Proxy, through: str
) -> None:
    journal = open_it(through, limit=0.4)
    await journal.append([entry(RUN)])
    between.become(Mood.FROZEN)
    for _ in range(2):
        with pytest.raises(JournalError, match=IN_VAIN):
            await journal.append([entry(LinkLost())])
        with pytest.raises(JournalError, match=IN_VAIN):
            await count(journal)
    between.become(Mood.WELL)
    async with asyncio.timeout(10):
        while not await tried(journal.append([entry(RUN, "s2")])):
            pass
    assert await count(journal) >= 2


async def test_a_follower_waits_for_a_database_that_is_away(
    open_it: OpenIt, between: Proxy, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = open_it(), open_it(through, limit=0.2, poll=0.05)
    async with aclosing(other.read(follow=True)) as following:
        between.become(Mood.AWAY)
        later = asyncio.create_task(anext(following))
        await asyncio.to_thread(until, lambda: "following the journal waits" in caplog.text)
        between.become(Mood.WELL)
        await one.append([entry(RUN)])
        async with asyncio.timeout(20):
            assert (await later)[1].fact == RUN


async def test_a_transaction_that_is_undone_again_and_again_is_an_error(open_it: OpenIt, url: str) -> None:
    """A constraint that is looked at with the commit: nothing of ours is like that, but a database can be changed."""
    journal = open_it(limit=0.3)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "ALTER TABLE bridge_claims ADD CONSTRAINT strange FOREIGN KEY (owner)"
            " REFERENCES bridge_meta (name) DEFERRABLE INITIALLY DEFERRED"
        )
    with pytest.raises(JournalError, match=r"undone a transaction|within"):
        await journal.claim(ID, "order", "{}", "me")
    assert await journal.claims() == ()


async def tried(what: Any) -> bool:
    try:
        await what
    except JournalError:
        return False
    return True


async def test_a_server_process_that_is_stopped_is_left_for_another(open_it: OpenIt) -> None:
    journal = open_it(limit=0.4)
    pid = journal._databases[0]._open().info.backend_pid  # type: ignore[attr-defined]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(JournalError, match="within"):
            await journal.claim(ID, "order", "{}", "me")
        async with asyncio.timeout(10):
            while not await tried(journal.claim(ID._replace(epoch=2), "order", "{}", "me")):
                pass
    finally:
        os.kill(pid, signal.SIGCONT)
    # The first was never committed, or it stands: in neither case is it granted to two.
    answers = [await journal.claim(ID, "order", "{}", f"owner {n}") for n in range(2)]
    assert answers.count(Granted()) <= 1


async def test_a_connection_that_the_server_ends_is_made_anew(open_it: OpenIt, url: str) -> None:
    journal = open_it()
    for _ in range(3):
        await journal.append([entry(RUN)])
        with psycopg.connect(url, autocommit=True) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
    assert await count(journal) == 3


@pytest.mark.parametrize(("setting", "then"), [("off", "on"), ("local", "local"), ("remote_write", "remote_write")])
async def test_what_is_committed_is_on_a_disk(
    open_it: OpenIt, server: Server, database: str, schema: str, setting: str, then: str
) -> None:
    journal = open_it(server.url(database, search_path=schema, synchronous_commit=setting))
    connection = journal._databases[0]._open()  # type: ignore[attr-defined]
    assert connection.execute("SHOW synchronous_commit").fetchone() == (then,)


async def test_a_database_that_refuses_says_why_without_values(open_it: OpenIt, url: str) -> None:
    journal = open_it()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ALTER TABLE bridge_entries RENAME TO away")
    with pytest.raises(JournalError, match="refuses: UndefinedTable") as refused:
        await journal.append([entry(RUN, "a-secret-name")])
    assert "secret" not in str(refused.value)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ALTER TABLE away RENAME TO bridge_entries")
    await journal.append([entry(RUN)])


def test_an_address_that_is_none_is_refused_without_quoting_it() -> None:
    with pytest.raises(ConfigError, match="none that PostgreSQL knows") as refused:
        open_postgres("postgresql://me:pass word@host:port:port/x?secret=1")
    assert "secret" not in str(refused.value)


def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(JournalError, match="is away"):
        open_postgres("postgresql://nobody@127.0.0.1:1/none", limit=0.1)


async def test_another_key_and_a_later_version_are_refused(open_it: OpenIt, url: str) -> None:
    open_it()
    with pytest.raises(ConfigError, match="begun with no key"):
        open_it(payloads=Payloads(seal=Seal(bytes(32))))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(_sql("UPDATE bridge_meta SET value = '3' WHERE name = 'schema'"))
    with pytest.raises(JournalError, match="a later version"):
        open_it()


async def test_a_journal_of_the_first_version_is_brought_up_to_date_while_others_use_it(
    open_it: OpenIt, url: str
) -> None:
    before = open_it()
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(_sql("ALTER TABLE bridge_claims DROP COLUMN until"))
        other.execute(_sql("UPDATE bridge_meta SET value = '1' WHERE name = 'schema'"))
    for journal in (open_it(), open_it(), before):
        await journal.claim(ID, "order", "{}", "me")
        await journal.leave(ID, 100)
        assert [each.until for each in await journal.claims()] == [100]


async def test_many_replicas_may_begin_at_once(url: str) -> None:
    opened = await asyncio.gather(*(asyncio.to_thread(open_journal, url) for _ in range(6)))
    for number, journal in enumerate(opened):
        await journal.append([entry(RUN, f"s{number}")])
    assert await count(opened[0]) == 6
    for journal in opened:
        await journal.aclose()


# ----------------------------------------------------------------------------------------------------------- killing


async def kills(open_it: OpenIt, url: str, times: int) -> None:
    chance, journal = random.Random(times), open_it(limit=20.0)
    for number in range(times):
        owner = f"w{number}"
        confirmed = await asyncio.to_thread(kill_a_writer, url, owner, chance)
        await nothing_is_missing_or_torn(journal, owner, confirmed)
        await journal.prune(1e12)


async def test_what_was_confirmed_survives_a_kill(open_it: OpenIt, url: str) -> None:
    await kills(open_it, url, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_was_confirmed_survives_two_hundred_kills(open_it: OpenIt, url: str) -> None:
    await kills(open_it, url, 200)
