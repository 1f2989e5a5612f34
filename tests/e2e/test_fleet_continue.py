"""Several processes that share a database: what one leaves that dies is taken up by the others, without being asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from bridge import AssemblyAI, Bridge, connect
from bridge.cli import cli
from bridge.config import read
from bridge.errors import JournalError
from bridge.journal import CallId, Claimed, State
from bridge.journal.postgres import open_postgres
from bridge.journal.stored import StoredJournal
from bridge.relay.tool_thread import ToolThread
from bridge.runner.leftovers import NOT_KNOWN
from bridge.runner.parking import Verdict
from bridge.runner.runner import Runner
from bridge.serve import serving
from tests.e2e.fleet import eventually
from tests.e2e.test_continue import ONE_LIFE, booking, configured, died, elsewhere, mid_reply, settled
from tests.postgres import Server, needed, postgres
from tests.relay.rig import PATIENCE, providing

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CALL = CallId("s1", 0, "c1")
TICKET = "s1.0.c1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with needed(), postgres(tmp_path_factory.getbasetemp(), "fsync=off", "max_connections=200") as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """The address of an empty journal."""
    return server.url(server.new_database())


@pytest.fixture
async def journal(url: str) -> AsyncIterator[StoredJournal]:
    opened = open_postgres(url)
    yield opened
    await opened.aclose()


def alive(url: str) -> list[str]:
    """The owners that have a lease."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT to_regclass('bridge_leases')").fetchone()
        if found == (None,):
            return []
        return [owner for (owner,) in connection.execute("SELECT owner FROM bridge_leases").fetchall()]


async def claims(journal: StoredJournal) -> list[Claimed]:
    return [*await journal.claims(states=tuple(State))]


async def answered_elsewhere(journal: StoredJournal, ticket: str, value: object) -> None:
    """Its outcome comes to another process than the one that had it."""
    runner = Runner(journal=journal, owner="elsewhere")
    assert (await runner.settle(ticket, value)).verdict is Verdict.ACCEPTED
    runner.close()


# ---------------------------------------------------------------------------------------- sessions that go on elsewhere


async def test_a_session_goes_on_in_another_process_and_then_in_a_third(journal: StoredJournal) -> None:
    tools, runs = booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, second):
            result = await provider.hear("tool.result")
            assert (result["call_id"], json.loads(result["result"])) == ("c1", "booked")
            await settled(journal, resume.session)
            again = second.resumable
        async with elsewhere(journal, providers, tools, again) as (provider, _):
            await provider.call("book", "c1")
            await provider.call("book", "c2")
            assert (await provider.hear("tool.result"))["call_id"] == "c2"
    assert runs == ["book", "book"]


async def test_an_outcome_that_was_left_for_a_dead_process_is_what_the_session_goes_on_with(
    journal: StoredJournal,
) -> None:
    tools, _ = booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        (claimed,) = await claims(journal)
        begun = claimed.call._replace(call_id="c2")  # as a process leaves it that is killed
        await journal.claim(begun, "book", "{}", "killed")
        await answered_elsewhere(journal, ".".join(map(str, begun)), "table 4")
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            while (result := await provider.hear("tool.result"))["call_id"] != "c2":
                pass
            assert json.loads(result["result"]) == "table 4"
            await settled_call(journal, begun)


async def settled_call(journal: StoredJournal, call: CallId) -> None:
    """Wait until the journal knows that its result has been sent."""
    async with asyncio.timeout(PATIENCE):
        while [each.state for each in await claims(journal) if each.call == call] != [State.SENT]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_single_session_goes_on_or_is_told_of_an_earlier_one(journal: StoredJournal) -> None:
    tools, _ = booking()
    async with asyncio.timeout(PATIENCE), providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)

        async def going_on() -> None:
            agent = AssemblyAI(url=providers.url)
            async with connect(
                agent, tools=tools, api_key="k", journal=journal, resume=resume, options=ONE_LIFE
            ) as session:
                assert session.id == resume.session

        async def told() -> None:
            agent = AssemblyAI(url=providers.url)
            async with connect(agent, api_key="k", journal=journal, earlier="earlier", options=ONE_LIFE):
                pass

        async with asyncio.TaskGroup() as group:
            group.create_task(going_on())
            provider = await providers.next()
            await provider.hear("session.resume")
            await provider.say("session.ready", session_id="sess_1", resume_token="t2")
        async with asyncio.TaskGroup() as group:
            group.create_task(told())
            assert await configured(await providers.next()) == ""


# -------------------------------------------------------------------------------------- who is there, and who is dead


async def test_whoever_is_entered_is_known_to_live_before_its_first_call(journal: StoredJournal, url: str) -> None:
    async with asyncio.timeout(PATIENCE), Bridge(journal=journal, owner="embedded"):
        await eventually(lambda: alive(url) == ["embedded"])
        with ToolThread(Runner(journal=journal, owner="sidecar")):
            await eventually(lambda: sorted(alive(url)) == ["embedded", "sidecar"])


async def test_the_command_records_an_outcome_that_was_left_for_a_dead_process(
    journal: StoredJournal, url: str
) -> None:
    await journal.claim(CALL, "book", "{}", "dead")
    await answered_elsewhere(journal, TICKET, "table 4")
    run = ["journal", "recover", url, "--owner", "dead"]
    made = await asyncio.to_thread(CliRunner().invoke, cli, run)
    assert (made.exit_code, "1 call brought to an end." in made.output) == (0, True), made.output
    (claimed,) = await claims(journal)
    assert (claimed.state, claimed.outcome) == (State.ORPHANED, "ok")
    assert claimed.result is not None
    assert claimed.result.output == '"table 4"'


LIVING_TOOL = """
import os, time
import psycopg
from bridge import Toolset

tools = Toolset()

@tools.tool(idempotent=True, timeout=10)
def book() -> int:
    while True:
        with psycopg.connect({url!r}) as connection:
            asked = "SELECT 1 FROM bridge_leases WHERE owner LIKE %s AND until > extract(epoch FROM clock_timestamp())"
            if found := connection.execute(asked, (f"%/{{os.getpid()}}/%",)).fetchall():
                return len(found)
        time.sleep(0.01)
"""


async def test_the_command_is_known_to_live_while_it_runs_a_call_again(
    journal: StoredJournal, url: str, tmp_path: Path
) -> None:
    (tmp_path / "living_tools.py").write_text(LIVING_TOOL.format(url=url))
    await journal.claim(CALL, "book", "{}", "dead")
    run = ["journal", "recover", url, "--owner", "dead", "--tools", str(tmp_path / "living_tools.py")]
    made = await asyncio.to_thread(CliRunner().invoke, cli, run)
    assert (made.exit_code, "was run again" in made.output) == (0, True), made.output
    (claimed,) = await claims(journal)
    assert (claimed.state, claimed.outcome) == (State.ORPHANED, "ok")


async def test_a_sidecar_looks_again_and_again_for_what_others_have_left_that_die(
    journal: StoredJournal, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bridge.serve._BETWEEN_RECOVERIES", 0.05)
    failures, recover = [JournalError("out of order")], Runner.recover

    async def failing_first(runner: Runner, *about: Any, **more: Any) -> Any:
        if failures:
            raise failures.pop()
        return await recover(runner, *about, **more)

    monkeypatch.setattr(Runner, "recover", failing_first)
    async with asyncio.timeout(PATIENCE), providing() as providers:
        settings = {"listen": {"port": 0}, "upstream": {"url": providers.url}, "journal": {"address": url}}
        async with serving(read(None, settings)) as running:
            post = running.relay.runner.post
            assert post is not None
            monkeypatch.setattr(post._mailbox, "lease", 0.6)
            await eventually(lambda: not failures)
            await journal.claim(CALL, "book", "{}", "dead")
            assert journal.mailbox is not None
            await journal.mailbox.beat("dead", attended=False)
            await journal.mailbox.resign("dead")
            await eventually(lambda: "left unfinished: tool book" in caplog.text)
        (claimed,) = await claims(journal)
        assert (claimed.state, claimed.outcome) == (State.ORPHANED, NOT_KNOWN)
        assert "is looked after again in 0.05 s" in caplog.text
