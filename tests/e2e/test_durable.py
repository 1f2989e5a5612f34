"""Calls behind a journal, from the agent's call to the result that it was given: embedded, and behind the sidecar."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from bridge import AssemblyAI, Bridge, Toolset
from bridge.cli import cli
from bridge.config import read
from bridge.core.events import LinkLost, ToolCall, ToolResult
from bridge.errors import JournalError
from bridge.journal import UNFINISHED, CallId, Claimed, Entry, Journal, State
from bridge.journal.memory import MemoryJournal
from bridge.journal.opening import open_journal
from bridge.journal.replay import Replayed, replay
from bridge.journal.sqlite import open_sqlite
from bridge.journal.stored import StoredJournal
from bridge.relay.server import Relay
from bridge.runner.leftovers import Found, recover
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.serve import serving
from bridge.simulator import BargeIn, Call, HangUp, Reply, Simulator, Step, Until, Wait
from tests.e2e.conftest import BRISK, PACE, script, tidily
from tests.e2e.victim import LANES, POINTS, Notes, Trap, context_of, toolset
from tests.postgres import NoPostgres, Server, postgres
from tests.relay.rig import Provider, address, providing, until

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

ONE_CALL = Reply("One moment.", (Call("book"),), 0.4)


def booking(**options: Any) -> tuple[Toolset, list[str]]:
    """A tool `book`, and its runs."""
    tools, runs = Toolset(), list[str]()

    @tools.tool(**options)
    async def book() -> str:
        runs.append("book")
        return "booked"

    return tools, runs


async def played(journal: MemoryJournal, tools: Toolset, *steps: Step) -> Simulator:
    """A conversation of an embedded session, to its end; everything is in the journal."""
    async with tidily(), Simulator(script(*steps), pace=PACE) as sim:
        async with Bridge(tools, journal=journal, owner="me") as bridge:
            agent = AssemblyAI(url=sim.url)
            async with bridge.session(agent, api_key="offline", delivery=BRISK) as session:
                await session.run()
        return sim


# --------------------------------------------------------------------------------------------------------- embedded


async def test_a_result_that_was_sent_is_in_the_journal_as_sent_and_the_session_can_be_replayed() -> None:
    journal, (tools, runs) = MemoryJournal(), booking()
    sim = await played(journal, tools, ONE_CALL, Until("tool.result"), HangUp())
    (claimed,) = await journal.claims(states=tuple(State))
    assert (claimed.tool, claimed.owner, claimed.state, claimed.outcome) == ("book", "me", State.SENT, "ok")
    assert ([each.result for each in sim.ledger.calls], runs) == (['"booked"'], ["book"])
    (stored,) = await journal.sessions()
    assert stored.session == claimed.call.session
    assert replay([each async for each in journal.read(stored.session)]).outcome is Replayed.SAME


async def test_a_call_whose_reply_was_interrupted_is_in_the_journal_as_discarded() -> None:
    journal, (tools, _) = MemoryJournal(), booking()
    steps = (Reply("One moment, please.", (Call("book"),), 20), BargeIn("Stop!", after=0.5), Wait(0.5), HangUp())
    await played(journal, tools, *steps)
    (claimed,) = await journal.claims(states=tuple(State))
    assert (claimed.state, claimed.outcome) == (State.DISCARDED, "ok")


async def test_a_tool_that_reads_leaves_no_claim() -> None:
    journal, (tools, runs) = MemoryJournal(), booking(effect="read")
    await played(journal, tools, ONE_CALL, Until("tool.result"), HangUp())
    assert (await journal.claims(states=tuple(State)), runs) == ((), ["book"])


# -------------------------------------------------------------------------------------------------- behind the sidecar

BOOKING = '''
from bridge import Toolset

tools = Toolset()

@tools.tool(redact=["card"])
async def book(card: str) -> dict:
    """Book it."""
    return {"booked": True, "card": card}
'''


@asynccontextmanager
async def sidecar(directory: Path) -> AsyncIterator[tuple[Relay, Provider]]:
    """A sidecar with a journal, and a session whose provider has said that it is ready."""
    (directory / "booking_tools.py").write_text(BOOKING)
    async with providing() as providers:
        overrides = {
            "listen": {"port": 0},
            "upstream": {"url": providers.url},
            "tools": {"python": [str(directory / "booking_tools.py")]},
            "journal": {"address": str(directory / "calls.db")},
        }
        async with asyncio.timeout(8), serving(read(None, overrides)) as (relay, _):
            async with dial(address(relay)) as application:
                provider = await providers.next()
                await application.send(json.dumps({"type": "session.update", "session": {}}))
                await provider.ready()
                yield relay, provider
                with suppress(ConnectionClosed):
                    await provider.say("session.ended")
                providers.over.set()
            await until(lambda: not relay.sessions)


async def test_behind_the_sidecar_a_call_is_claimed_sent_and_masked(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as (_, provider):
        await provider.call("book", card="4111")
        await provider.say("reply.started", reply_id="r1")
        await provider.say("reply.done", reply_id="r1")
        assert json.loads((await provider.hear("tool.result"))["result"]) == {"booked": True, "card": "4111"}
    journal = open_sqlite(tmp_path / "calls.db", read_only=True)
    (claimed,) = await journal.claims(states=tuple(State))
    entries = [entry async for _, entry in journal.read()]
    await journal.aclose()
    assert (claimed.tool, claimed.state, claimed.outcome) == ("book", State.SENT, "ok")
    assert "4111" not in repr(entries) + repr(claimed)


async def test_behind_the_sidecar_a_result_whose_session_ends_before_it_is_sent_is_orphaned(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as (relay, provider):
        await provider.say("reply.started", reply_id="r1")
        await provider.call("book", card="4111")
        journal = open_sqlite(tmp_path / "calls.db", read_only=True)
        while not await journal.claims(states=[State.OWED]):  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.005)
        provider.socket.transport.abort()
        await until(lambda: not relay.sessions)
    (claimed,) = await journal.claims(states=tuple(State))
    await journal.aclose()
    assert (claimed.state, claimed.outcome) == (State.ORPHANED, "ok")


async def test_behind_the_sidecar_without_a_journal_that_works_readiness_says_so_and_sessions_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sidecar(tmp_path) as (relay, provider):
        durable = relay.runner.durable
        assert durable is not None
        assert relay.ready == ""
        gone = MemoryJournal()
        await gone.aclose()
        monkeypatch.setattr(durable, "_journal", gone)
        await provider.call("book", card="4111")
        result = json.loads((await provider.hear("tool.result"))["result"])
        assert result == {"error": "book is not available now, and was not run"}
        assert relay.ready == "the journal is out of order: the journal is closed"
        async with dial(address(relay)):
            await until(lambda: len(relay.sessions) == 2)


# ---------------------------------------------------------------------------------------------------- left unfinished


async def left_unfinished(path: Path) -> None:
    """A process that died has left a call that was started, and one whose result was owed."""
    journal = open_sqlite(path)
    for number in (1, 2):
        await journal.claim(CallId("s", 0, f"c{number}"), "book", '{"card": "4111"}', "dead")
    await journal.conclude(CallId("s", 0, "c2"), ToolResult("c2", '"booked"'), "ok")
    await journal.aclose()


async def test_the_sidecar_brings_to_an_end_what_the_one_before_has_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await left_unfinished(tmp_path / "calls.db")
    async with sidecar(tmp_path):
        await until(lambda: "call 'c2' of session s, was finished, but not told: ok" in caplog.text)
    assert "tool book, call 'c1' of session s, may or may not have happened: not_known" in caplog.text
    journal = open_sqlite(tmp_path / "calls.db", read_only=True)
    assert [each.state for each in await journal.claims(states=tuple(State))] == [State.ORPHANED] * 2
    await journal.aclose()


async def test_what_the_sidecar_cannot_do_about_its_journal_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise JournalError("the disk is full; make room, and it goes on by itself")

    monkeypatch.setattr(StoredJournal, "claims", fail)
    monkeypatch.setattr(StoredJournal, "prune", fail)
    async with sidecar(tmp_path):
        await until(lambda: "try 'journal recover': the disk is full" in caplog.text)
        await until(lambda: "could not be pruned, which is tried again in an hour: the disk is full" in caplog.text)


async def test_the_sidecar_removes_sessions_that_are_too_old_when_it_starts(tmp_path: Path) -> None:
    journal = open_sqlite(tmp_path / "calls.db")
    await journal.append([Entry(1.0, "long ago", LinkLost())])
    await journal.aclose()
    async with sidecar(tmp_path):
        journal = open_sqlite(tmp_path / "calls.db", read_only=True)
        while "long ago" in [each.session for each in await journal.sessions()]:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        await journal.aclose()


async def test_a_bridge_brings_to_an_end_what_the_one_before_has_left() -> None:
    journal, (tools, runs) = MemoryJournal(), booking(idempotent=True)
    await journal.claim(CallId("s", 0, "c1"), "book", "{}", "dead")
    async with Bridge(tools, journal=journal) as bridge:
        assert await bridge.recover() == ()  # nobody knows that it is dead
        (recovered,) = await bridge.recover(dead=lambda owner: True)
    assert (recovered.found, runs) == (Found.REPEATED, ["book"])
    async with Bridge(tools) as bridge:
        assert await bridge.recover() == ()


async def test_the_command_recovers_once_and_lists_what_nobody_was_told(tmp_path: Path) -> None:
    path, tools = tmp_path / "calls.db", tmp_path / "booking_tools.py"
    tools.write_text(BOOKING)
    await left_unfinished(path)
    run = ["journal", "recover", str(path), "--tools", str(tools)]
    first = await asyncio.to_thread(CliRunner().invoke, cli, run)
    assert first.exit_code == 0
    assert "2 calls brought to an end." in first.output
    assert "may or may not have happened" in first.output
    assert "was finished, but not told" in first.output
    assert "4111" not in first.output
    again = await asyncio.to_thread(CliRunner().invoke, cli, run)
    assert again.output == "0 calls brought to an end.\n"


# ------------------------------------------------------------------------------------------------- killed at any point


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A PostgreSQL for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    try:
        with postgres(shared, "fsync=off", "max_connections=200") as running:
            yield running
    except NoPostgres as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {error}")


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty journal."""
    if request.param == "sqlite":
        return str(tmp_path / "calls.db")
    running: Server = request.getfixturevalue("server")
    name = f"durable_{secrets.token_hex(6)}"
    with psycopg.connect(running.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return running.url(name)


async def killed(address: str, owner: str, directory: Path, *point: str, after: float | None = None) -> None:
    """A process that ran tools until it was killed: at a point, or so many seconds after it had begun."""
    command = [sys.executable, "-m", "tests.e2e.victim", address, owner, str(directory), *point]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(30):
            assert process.stdout is not None
            assert await process.stdout.readline() == b"open\n"
            if after is not None:
                await asyncio.sleep(after)
                process.kill()
            assert await process.wait() == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def nothing_is_doubled_or_forgotten(address: str, owner: str, directory: Path) -> int:
    """Find what the dead process has left, as its successor does, and hold it against what it did; how many calls."""
    journal = open_journal(address)
    try:
        found = {each.call: each for each in await journal.claims(owner=owner, states=tuple(State))}
        effects, sent = lines(directory / "effects"), dict(line.split() for line in lines(directory / "sent"))
        of_this = [ticket for ticket in sent if ticket.startswith(owner)]
        by_ticket = {context_of(call, "").ticket: each for call, each in found.items()}
        # Nothing happened, and nothing was told, that the journal did not know before.
        assert {each for each in effects if each.startswith(owner)} <= by_ticket.keys()
        assert all(by_ticket[ticket].outcome == "ok" for ticket in of_this)
        assert all(ticket in sent for ticket, each in by_ticket.items() if each.state is State.SENT)

        await ask_again([each for each in found.values() if each.state is State.STARTED], journal, directory)
        left = await recover(
            journal, toolset(Notes(directory / "effects"), Trap()), f"after {owner}", dead=owner.__eq__
        )
        unfinished = [each.call for each in found.values() if each.state in UNFINISHED]
        taken_over = [each.call for each in await journal.claims(owner=f"asked of {owner}", states=tuple(State))]
        assert {each.claimed.call for each in left} | set(taken_over) == set(unfinished)
        assert [each for each in await journal.claims() if each.owner == owner] == []
        books = [ticket for ticket, each in by_ticket.items() if each.tool == "book"]
        times = Counter(lines(directory / "effects"))
        assert {ticket: times[ticket] for ticket in books if times[ticket] > 1} == {}
        return len(found)
    finally:
        await journal.aclose()


async def ask_again(calls: Sequence[Claimed], journal: Journal, directory: Path) -> None:
    """The provider announces the calls again to whoever goes on: what may not run twice is refused."""
    for each in calls[::2]:
        runner = Runner(journal=journal, owner=f"asked of {each.owner}")
        tools = toolset(Notes(directory / "effects"), Trap())
        over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        call = ToolCall(each.call.call_id, each.tool, "{}")
        session = runner.session()
        session.start(each.call.key, call, tools[each.tool], tools, context_of(each.call, each.tool), over.set_result)
        finished = await over
        assert finished.outcome is (Outcome.OK if each.tool == "note" else Outcome.ERROR)
        await runner.aclose(1)
        runner.close()


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=[pytest.mark.slow] if n % 4 else []) for n, p in enumerate(POINTS)]
)
async def test_whatever_point_the_process_is_killed_at_nothing_runs_twice_or_is_forgotten(
    point: str, where: str, tmp_path: Path
) -> None:
    await killed(where, "first", tmp_path, point, "7")
    assert await nothing_is_doubled_or_forgotten(where, "first", tmp_path) >= LANES


SERVED = """
[listen]
port = 0
[admin]
port = 0
[upstream]
url = "{url}"
[tools]
python = ["booking_tools.py"]
[journal]
address = "calls.db"
"""

STUCK = '''
from pathlib import Path
import threading
from bridge import Toolset

tools = Toolset()

@tools.tool(timeout=60)
def book() -> None:
    """Book it."""
    with Path(__file__).with_name("effects").open("a") as effects:
        effects.write("booked\\n")
    threading.Event().wait()
'''


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The sidecar's command, where applications connect, until it is killed."""
    command = [sys.executable, "-m", "bridge", "serve", str(directory / "bridge.toml")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(20):
            assert process.stdout is not None
            started = (await process.stdout.readline()).decode()
            yield process, started.split(" to ")[1].split(";")[0]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.slow
async def test_a_sidecar_that_was_killed_in_a_tool_says_after_its_restart_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "booking_tools.py").write_text(STUCK)
    async with providing() as providers:
        (tmp_path / "bridge.toml").write_text(SERVED.format(url=providers.url))
        async with served(tmp_path) as (process, at), dial(f"{at}/v1/ws", close_timeout=0.1) as application:
            provider = await providers.next()
            await application.send(json.dumps({"type": "session.update", "session": {}}))
            await provider.ready()
            await provider.call("book")
            await until((tmp_path / "effects").exists)
            process.kill()
            await process.wait()
        async with served(tmp_path) as (process, _):
            assert process.stderr is not None
            async for line in process.stderr:
                if b"left unfinished" in line:
                    break
            assert b"tool book, call 'c1' of session" in line
            assert b"may or may not have happened: not_known" in line
    assert lines(tmp_path / "effects") == ["booked"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_many_kills_at_random_moments_double_and_forget_nothing(where: str, tmp_path: Path) -> None:
    chance = random.Random(5)
    kills = int(os.environ.get("BRIDGE_TEST_KILLS", "60"))
    calls = 0
    for number in range(kills):
        point = () if number % 2 else (chance.choice(POINTS), str(chance.randint(1, 60)))
        await killed(where, f"life{number}", tmp_path, *point, after=None if point else chance.random() / 4)
        calls += await nothing_is_doubled_or_forgotten(where, f"life{number}", tmp_path)
    print(f"{kills} kills, {calls} calls, {len(lines(tmp_path / 'effects'))} effects, none doubled, none lost")
    assert calls > kills
