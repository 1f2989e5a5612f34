"""Several processes that attach to the same session, with one PostgreSQL between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import psycopg
import pytest

from bridge import Bridge, HCompany, Herm, Toolset, ToolSettled, connect
from bridge.attach import Attached, Provider
from bridge.errors import JournalError
from bridge.journal.line import Line, line_of
from bridge.journal.mailbox import Kind, Open
from bridge.journal.memory import MemoryJournal
from bridge.journal.postgres import open_postgres
from bridge.journal.replay import Replayed, replay
from bridge.simulator.hcompany import Answer, Ask, Call

from .attach_rig import Rig, hai, herm_rig
from .postgres import Server, needed, postgres

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TWICE = (Ask((Call("book"),)), Answer(), Ask((Call("book"),)), Answer())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with needed(), postgres(tmp_path_factory.getbasetemp(), "fsync=off", "max_connections=200") as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    return server.url(server.new_database())


class Desk:
    """A tool that writes down who has run it, and waits for the gate."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()

    def of(self, owner: str) -> Toolset:
        """As this process has it."""
        tools = Toolset()

        @tools.tool(effect="write", timeout=30)
        async def book(no: str = "77") -> str:
            """Book a parcel."""
            self.done.append(owner)
            self.begun.set()
            await self.gate.wait()
            return f"booked by {owner}"

        return tools


@asynccontextmanager
async def process(url: str, rig: Rig, desk: Desk, owner: str) -> AsyncIterator[Attached]:
    journal = open_postgres(url, lease=60.0)
    provider = Provider(dialect=rig.dialect, url=rig.url, api_key=rig.api_key)
    try:
        async with (
            Bridge(desk.of(owner), journal=journal, owner=owner) as bridge,
            Attached(bridge, provider) as attached,
        ):
            yield attached
    finally:
        await journal.aclose()


async def stands(url: str, count: int) -> None:
    """Wait until so many stand in line."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while True:
            found = await connection.execute("SELECT 1 FROM bridge_mail WHERE kind = 'session' AND state = 'open'")
            if len(await found.fetchall()) == count:
                return
            await asyncio.sleep(0.01)


async def test_of_two_processes_one_serves_a_session_and_the_other_takes_its_place(url: str) -> None:
    desk = Desk()
    async with asyncio.timeout(25), herm_rig() as rig:
        session_id = await rig.begin()
        ledger = rig.sim.sessions[session_id].ledger
        async with process(url, rig, desk, "other/2/x") as other:
            async with process(url, rig, desk, "one/1/x") as one:
                one.add(session_id)
                await rig.ask(session_id)
                await desk.begun.wait()
                other.add(session_id)
                await stands(url, 2)
                assert (one.open, other.open) == (1, 0)
                desk.gate.set()
                assert await rig.answered(session_id) == ['"booked by one/1/x"']
            await rig.go_on(session_id)
            assert (await rig.answered(session_id))[-1] == '"booked by other/2/x"'
            assert (one.open, other.open) == (0, 1)
    assert desk.done == ["one/1/x", "other/2/x"]
    assert len(ledger.results) == 2
    journal = open_postgres(url)
    try:
        entries = [each async for each in journal.read(f"herm:{session_id}")]
    finally:
        await journal.aclose()
    assert len({entry.writer for _, entry in entries}) == 2
    assert replay(entries).outcome is Replayed.SAME


async def test_an_embedded_session_waits_while_another_process_serves_it(url: str) -> None:
    desk = Desk()
    desk.gate.set()
    served = asyncio.Event()

    async def embedding(rig: Rig, session_id: str) -> None:
        agent = Herm(session_id=session_id, url=rig.url)
        journal = open_postgres(url, lease=60.0)
        try:
            async with connect(agent, tools=desk.of("host"), api_key=rig.api_key, journal=journal) as session:
                served.set()
                async for event in session:
                    if isinstance(event, ToolSettled):
                        return
        finally:
            await journal.aclose()

    async with asyncio.timeout(25), herm_rig() as rig:
        session_id = await rig.begin()
        async with process(url, rig, desk, "one/1/x") as one, asyncio.TaskGroup() as group:
            one.add(session_id)
            await rig.ask(session_id)
            assert await rig.answered(session_id) == ['"booked by one/1/x"']
            group.create_task(embedding(rig, session_id))
            await stands(url, 2)
            assert not served.is_set()
            one.remove(session_id, "enough")
            await served.wait()
            await rig.go_on(session_id)
            assert (await rig.answered(session_id))[-1] == '"booked by host"'
    assert desk.done == ["one/1/x", "host"]


async def test_whoever_attaches_to_a_session_that_another_process_has_created_stands_behind_it(url: str) -> None:
    desk = Desk()
    desk.gate.set()
    async with asyncio.timeout(25), hai(TWICE) as rig, process(url, rig, desk, "other/2/x") as other:
        agent = HCompany(agent="h/clerk", messages="77?", idle_timeout_s=600, url=rig.url)
        journal = open_postgres(url, lease=60.0)
        try:
            async with connect(agent, tools=desk.of("host"), api_key=rig.api_key, journal=journal) as session:
                await stands(url, 1)
                session_id = session.provider_session_id
                other.add(session_id)
                await stands(url, 2)
                assert await rig.answered(session_id) == ["booked by host"]
                assert other.open == 0
        finally:
            await journal.aclose()
        await rig.go_on(session_id)
        assert (await rig.answered(session_id))[-1] == "booked by other/2/x"
    assert desk.done == ["host", "other/2/x"]


async def test_the_place_of_a_process_that_is_dead_is_taken_when_its_lease_has_run_out(url: str) -> None:
    journal = open_postgres(url, lease=60.0)
    try:
        box, served = journal.mailbox, asyncio.Event()
        assert box is not None
        for owner in ("dead/1/x", "heir/2/x"):
            await box.beat(owner, attended=False)
        await box.announce(Open(Kind.SESSION, "herm:s 1", "herm:s", "dead/1/x"))
        line = line_of(journal, "heir/2/x")
        assert line is not None
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            group.create_task(serve(line, served))
            await stands(url, 2)
            assert not served.is_set()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("UPDATE bridge_leases SET until = until - 1000 WHERE owner = 'dead/1/x'")
            await served.wait()
        await stands(url, 1)  # that of the dead, which nobody closes
    finally:
        await journal.aclose()


async def test_whoever_is_cancelled_by_a_scope_does_not_stay_in_line(url: str) -> None:
    journal = open_postgres(url, lease=60.0, poll=0.02)
    try:
        box = journal.mailbox
        assert box is not None
        for owner in ("one/1/x", "heir/2/x"):
            await box.beat(owner, attended=False)
        one, heir = line_of(journal, "one/1/x"), line_of(journal, "heir/2/x")
        assert one is not None
        assert heir is not None
        with anyio.CancelScope() as scope:
            async with one.turn("herm:s"):
                scope.cancel()
                await anyio.sleep_forever()
        async with asyncio.timeout(20):
            await serve(heir, asyncio.Event())
    finally:
        await journal.aclose()


async def serve(line: Line, served: asyncio.Event) -> None:
    async with line.turn("herm:s"):
        served.set()


async def test_a_database_that_is_away_is_asked_again(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = open_postgres(url, poll=0.02)
    try:
        box, served = journal.mailbox, asyncio.Event()
        assert box is not None
        await box.beat("one/1/x", attended=False)
        announce, failures = box.announce, iter([JournalError("the database is away")])

        async def fails_once(item: Open) -> None:
            for failure in failures:
                raise failure
            await announce(item)

        monkeypatch.setattr(box, "announce", fails_once)
        async with asyncio.timeout(20):
            await serve(Line(box, "one/1/x"), served)
    finally:
        await journal.aclose()
    assert "whose turn it is is asked again: the database is away" in caplog.text


async def test_where_there_can_be_no_others_there_is_no_line() -> None:
    assert line_of(None, "one") is None
    assert line_of(MemoryJournal(), "one") is None
