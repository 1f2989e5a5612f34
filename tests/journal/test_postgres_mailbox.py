"""The mailbox of a journal that several processes share: its rows, its notices, and its leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import psycopg
import pytest

from bridge.errors import JournalError
from bridge.journal import CallId
from bridge.journal.mailbox import Beat, Kind, Letter, Mailbox, Open, Posted, Receipt, WithMailbox, calls_of
from bridge.journal.mailbox import State as MailState
from bridge.journal.memory import MemoryJournal
from bridge.journal.payloads import Payloads
from bridge.journal.postgres import open_postgres
from bridge.journal.sealing import Seal
from bridge.journal.stored import StoredJournal

from .making import ID, RUN, entry, told

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TICKET = "s1.1.c1"
REQUEST = Open(Kind.APPROVAL, "r1", "s1", "me", '"shown"', 60.0)


class Office:
    """A journal, and its mailbox."""

    def __init__(self, journal: StoredJournal) -> None:
        assert journal.mailbox is not None
        self.journal = journal
        self.mailbox: Mailbox = journal.mailbox


OpenOffice = Callable[..., Office]


@pytest.fixture
async def open_office(url: str) -> AsyncIterator[OpenOffice]:
    async with AsyncExitStack() as opened:

        def open_one(**options: Any) -> Office:
            office = Office(open_postgres(url, **options))
            opened.push_async_callback(office.journal.aclose)
            return office

        yield open_one


@pytest.fixture
async def office(open_office: OpenOffice) -> Office:
    return open_office()


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def change(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute(sql.encode()).rowcount == 1


# ------------------------------------------------------------------------------------------------------------ tickets


@pytest.mark.parametrize(
    ("ticket", "calls"),
    [
        ("s.0.c", [CallId("s", 0, "c")]),
        ("a.b.3.c", [CallId("a.b", 3, "c")]),
        ("s.1.2.c", [CallId("s", 1, "2.c"), CallId("s.1", 2, "c")]),
        ("s.c", []),
        ("s.x.c", []),
        ("s.\u0663.c", []),
        ("s.-1.c", []),
        (f"s.{10**18}.c", []),
        ("", []),
    ],
)
async def test_a_ticket_names_a_call(ticket: str, calls: list[CallId]) -> None:
    assert list(calls_of(ticket)) == calls


async def test_a_ticket_that_could_mean_two_calls_means_the_one_that_is_there(office: Office) -> None:
    for call in (CallId("s", 1, "2.c"), CallId("s.1", 3, "c")):
        await office.journal.claim(call, "order", "{}", "me")
    for ticket in ("s.1.2.c", "s.1.3.c"):
        assert (await office.mailbox.post(Kind.CALL, ticket, "1")).posted is Posted.ACCEPTED
    assert [each.name for each in await office.mailbox.take("me")] == ["s.1.2.c", "s.1.3.c"]


# ------------------------------------------------------------------------------------------------------------ answers


async def test_a_call_is_answered_from_its_claim_to_its_outcome(office: Office) -> None:
    post = office.mailbox.post
    assert await post(Kind.CALL, TICKET, "1") == Receipt(Posted.UNKNOWN)
    await office.journal.claim(ID, "order", "{}", "me")
    await office.mailbox.announce(Open(Kind.CALL, TICKET, "s1", "me"))
    assert (await post(Kind.CALL, TICKET, "1")).posted is Posted.ACCEPTED
    assert await office.mailbox.take("me") == (Letter(Kind.CALL, TICKET, "1"),)
    assert await office.mailbox.take("other") == ()
    assert (await post(Kind.CALL, TICKET, " 1")).posted is Posted.REPEATED
    assert await post(Kind.CALL, TICKET, "2") == Receipt(Posted.CONFLICT, "", "1", MailState.POSTED)
    second = ID._replace(call_id="c2")
    await office.journal.claim(second, "order", "{}", "me")
    await office.journal.conclude(second, told("1"), "ok")
    assert await post(Kind.CALL, "s1.1.c2", "1") == Receipt(Posted.OVER)


async def test_an_answer_and_the_end_of_its_call_at_once_come_in_some_order(open_office: OpenOffice) -> None:
    """Nothing is accepted after the end, and what was accepted before it is there."""
    one, other = open_office(), open_office()
    for turn in range(20):
        call = ID._replace(epoch=turn)
        await one.journal.claim(call, "order", "{}", "me")
        receipt, _ = await asyncio.gather(
            other.mailbox.post(Kind.CALL, f"s1.{turn}.c1", "1"), one.journal.conclude(call, told("1"), "ok")
        )
        assert receipt.posted in (Posted.ACCEPTED, Posted.OVER)
        taken = [each.name for each in await one.mailbox.take("me")]
        assert (f"s1.{turn}.c1" in taken) is (receipt.posted is Posted.ACCEPTED)


async def test_what_is_announced_and_answered_at_once_is_accepted_or_unknown_and_never_too_late(
    open_office: OpenOffice,
) -> None:
    one, other = open_office(), open_office()
    await one.mailbox.beat("me", attended=False)
    for turn in range(20):
        item = Open(Kind.APPROVAL, f"r{turn}", "s1", "me", '"shown"', 60.0)
        poster = (one, other)[turn % 2].mailbox
        receipt, _ = await asyncio.gather(poster.post(Kind.APPROVAL, item.name, "1"), one.mailbox.announce(item))
        assert receipt.posted in (Posted.ACCEPTED, Posted.UNKNOWN)


async def test_what_is_announced_is_seen_until_its_time_or_its_owner_is_over(office: Office, url: str) -> None:
    mailbox = office.mailbox
    await mailbox.announce(REQUEST)
    assert await mailbox.waiting(Kind.APPROVAL) == (), "nobody knows its owner"
    await mailbox.beat("me", attended=False)
    (seen,) = await mailbox.waiting(Kind.APPROVAL)
    assert (seen.name, seen.session, seen.owner, seen.about) == ("r1", "s1", "me", '"shown"')
    assert seen.seconds is not None
    assert 0 < seen.seconds <= 60
    change(url, "UPDATE bridge_mail SET until = until - 100")
    assert await mailbox.waiting(Kind.APPROVAL) == ()
    assert await mailbox.post(Kind.APPROVAL, "r1", "1") == Receipt(Posted.OVER, '"shown"', state=MailState.OPEN)
    change(url, "UPDATE bridge_mail SET until = NULL")
    await mailbox.resign("me")
    assert await mailbox.waiting(Kind.APPROVAL) == ()


async def test_what_is_closed_keeps_what_it_is_told_to_and_does_not_change_any_more(office: Office) -> None:
    mailbox = office.mailbox
    await mailbox.beat("me", attended=False)
    await mailbox.announce(REQUEST)
    await mailbox.announce(REQUEST)
    await mailbox.close(Open(Kind.APPROVAL, "r1", "s1", "somebody else"), MailState.TAKEN)
    assert (await mailbox.post(Kind.APPROVAL, "r1", '"no"')).posted is Posted.ACCEPTED
    await mailbox.close(REQUEST, MailState.CLOSED)
    assert len(await mailbox.take("me")) == 1
    await mailbox.close(Open(Kind.APPROVAL, "r1", "s1", "me", '"gone"'), MailState.LATE, '"yes"')
    await mailbox.close(REQUEST, MailState.TAKEN)
    assert await mailbox.post(Kind.APPROVAL, "r1", '"no"') == Receipt(Posted.OVER, '"gone"', '"yes"', MailState.LATE)
    assert await mailbox.take("me") == ()


async def test_a_claimed_call_that_waits_is_only_shown_and_by_whoever_has_it_now(office: Office, url: str) -> None:
    mailbox, journal = office.mailbox, office.journal
    waits = Open(Kind.CALL, TICKET, "s1", "me", '"first"')
    await journal.claim(ID, "order", "{}", "me")
    for owner in ("me", "other"):
        await mailbox.beat(owner, attended=False)
    await mailbox.announce(waits)
    await journal.claim(ID, "order", "{}", "other", instead_of="me")
    await mailbox.announce(Open(Kind.CALL, TICKET, "s1", "other", '"second"'))
    await mailbox.close(waits, MailState.CLOSED)
    (seen,) = await mailbox.waiting(Kind.CALL)
    assert (seen.kind, seen.name, seen.owner, seen.about) == (Kind.CALL, TICKET, "other", '"second"')
    await journal.conclude(ID, told("1"), "ok")
    assert (await mailbox.post(Kind.CALL, TICKET, "1")).posted is Posted.OVER, "its row is not to be answered"
    await mailbox.close(Open(Kind.CALL, TICKET, "", "other"), MailState.CLOSED)
    await mailbox.announce(waits)
    assert rows(url, "SELECT * FROM bridge_mail") == []


async def test_it_is_known_of_a_call_whether_an_answer_would_come_too_late(office: Office) -> None:
    mailbox, journal = office.mailbox, office.journal
    await mailbox.beat("me", attended=False)
    over: list[bool] = []
    for step in (
        lambda: journal.claim(ID, "order", "{}", "me"),
        lambda: journal.conclude(ID, told("1"), "ok"),
    ):
        over.append(await mailbox.over(Kind.CALL, TICKET))
        await step()
    over.append(await mailbox.over(Kind.CALL, TICKET))
    assert over == [False, False, True]
    reads = Open(Kind.CALL, "s1.2.c2", "s1", "me")
    await mailbox.announce(reads)
    assert not await mailbox.over(Kind.CALL, reads.name)
    await mailbox.post(Kind.CALL, reads.name, "1")
    assert await mailbox.over(Kind.CALL, reads.name)
    two = [CallId("s", 1, "2.c"), CallId("s.1", 2, "c")]
    for call in two:
        await journal.claim(call, "order", "{}", "me")
    await journal.conclude(two[0], told("1"), "ok")
    assert not await mailbox.over(Kind.CALL, "s.1.2.c"), "it may mean the other"
    await journal.conclude(two[1], told("1"), "ok")
    assert await mailbox.over(Kind.CALL, "s.1.2.c")
    assert not await mailbox.over(Kind.APPROVAL, "nobody's")


async def test_with_a_key_nothing_in_a_row_can_be_read(open_office: OpenOffice, url: str) -> None:
    office = open_office(payloads=Payloads(seal=Seal(bytes(32))))
    await office.mailbox.beat("me", attended=False)
    await office.mailbox.announce(REQUEST)
    await office.mailbox.post(Kind.APPROVAL, "r1", '"4111111111111111"')
    ((about, answer),) = rows(url, "SELECT about, answer FROM bridge_mail")
    assert (b"shown" in about, b"4111111111111111" in answer) == (False, False)
    assert await office.mailbox.take("me") == (Letter(Kind.APPROVAL, "r1", '"4111111111111111"'),)


async def test_what_is_moved_to_another_row_cannot_be_read_there(open_office: OpenOffice, url: str) -> None:
    office = open_office(payloads=Payloads(seal=Seal(bytes(32))))
    await office.mailbox.beat("me", attended=False)
    await office.mailbox.announce(REQUEST)
    change(url, "UPDATE bridge_mail SET name = 'r2'")
    with pytest.raises(JournalError, match="not sealed with this key"):
        await office.mailbox.waiting(Kind.APPROVAL)


async def test_strange_names_are_kept_as_they_are(office: Office) -> None:
    call = CallId("s\ud800\n\0", 0, "c\\ü")
    await office.journal.claim(call, "order", "{}", "me")
    ticket = f"{call.session}.0.{call.call_id}"
    assert (await office.mailbox.post(Kind.CALL, ticket, '"\ud800"')).posted is Posted.ACCEPTED
    assert await office.mailbox.take("me") == (Letter(Kind.CALL, ticket, '"\ud800"'),)


async def test_an_erased_session_leaves_nothing_in_the_mailbox(office: Office, url: str) -> None:
    await office.journal.append([entry(RUN)])
    await office.journal.claim(ID, "order", "{}", "me")
    await office.mailbox.post(Kind.CALL, TICKET, "1")
    assert await office.journal.erase("s1")
    assert rows(url, "SELECT * FROM bridge_mail") == []


async def test_answers_are_forgotten_after_a_day_unless_their_owner_may_take_them(office: Office, url: str) -> None:
    for number in range(2):
        await office.journal.claim(ID._replace(call_id=f"c{number}"), "order", "{}", f"owner{number}")
        await office.mailbox.post(Kind.CALL, f"s1.1.c{number}", "1")
    for owner in ("owner0", "idle"):
        await office.mailbox.beat(owner, attended=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE bridge_mail SET changed = changed - 90000")
        connection.execute("UPDATE bridge_leases SET until = until - 90000")
    await office.mailbox.beat("me", attended=False)
    assert rows(url, "SELECT owner FROM bridge_mail") == [("owner0",)]
    assert rows(url, "SELECT owner FROM bridge_leases ORDER BY owner") == [("me",), ("owner0",)]
    await office.mailbox.close(Open(Kind.CALL, "s1.1.c0", "s1", "owner0"), MailState.TAKEN)
    change(url, "UPDATE bridge_mail SET changed = changed - 90000")
    await office.mailbox.beat("me", attended=False)
    assert rows(url, "SELECT owner FROM bridge_mail") == []


# ------------------------------------------------------------------------------------------------ notices, and leases


async def test_a_notice_comes_to_the_owner_and_to_nobody_else(open_office: OpenOffice) -> None:
    one, other = open_office(), open_office()
    rung: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def ring(name: str) -> Callable[[], None]:
        return lambda: loop.call_soon_threadsafe(rung.put_nowait, name)

    with one.mailbox.rings("a", ring("a")), one.mailbox.rings("b", ring("b")):
        async with asyncio.timeout(10):
            assert {await rung.get(), await rung.get()} == {"a", "b"}, "whoever begins to listen has missed something"
            assert one.mailbox.listening
            for number, owner in enumerate(("b", "a", "b")):
                await other.journal.claim(ID._replace(call_id=f"c{number}"), "order", "{}", owner)
                await other.mailbox.post(Kind.CALL, f"s1.1.c{number}", "1")
                assert await rung.get() == owner
    assert not other.mailbox.listening


async def test_a_lease_runs_out_by_the_databases_clock_and_can_be_taken_up_again(office: Office, url: str) -> None:
    mailbox = office.mailbox
    assert await mailbox.beat("me", attended=False) == Beat(lapsed=True, attended=False)
    assert await mailbox.beat("me", attended=True) == Beat(lapsed=False, attended=False)
    assert await mailbox.beat("other", attended=False) == Beat(lapsed=True, attended=True)
    await office.journal.claim(ID, "order", "{}", "me")
    assert await leases(mailbox) == ({"me", "other"}, set())
    change(url, "UPDATE bridge_leases SET until = until - 100 WHERE owner = 'me'")
    assert await leases(mailbox) == ({"other"}, {"me"})
    assert await mailbox.beat("other", attended=False) == Beat(lapsed=False, attended=False)
    assert await mailbox.beat("me", attended=False) == Beat(lapsed=True, attended=False)
    await mailbox.resign("other")
    assert await leases(mailbox) == ({"me"}, set()), "what has nothing unfinished is nobody's concern"


async def leases(mailbox: Mailbox) -> tuple[set[str], set[str]]:
    """Who lives, and whose lease has run out."""
    found = await mailbox.leases()
    return set(found.live), set(found.lapsed)


async def test_a_journal_of_one_process_has_no_mailbox(tmp_path: Any) -> None:
    assert not isinstance(MemoryJournal(), WithMailbox)


async def test_a_mailbox_that_is_closed_says_so(office: Office) -> None:
    await office.journal.aclose()
    with pytest.raises(JournalError, match="closed"):
        await office.mailbox.take("me")
