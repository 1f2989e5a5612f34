"""Calls behind a journal, from the agent's call to the result that it was given: embedded, and behind the sidecar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from bridge import AssemblyAI, Bridge, Toolset
from bridge.cli import cli
from bridge.config import read
from bridge.core.events import LinkLost, ToolResult
from bridge.errors import JournalError
from bridge.journal import CallId, Claimed, Entry, State
from bridge.journal.memory import MemoryJournal
from bridge.journal.replay import Replayed, replay
from bridge.journal.sqlite import open_sqlite
from bridge.journal.stored import StoredJournal
from bridge.relay.server import Relay
from bridge.runner.leftovers import NOT_KNOWN, Found
from bridge.serve import serving
from bridge.simulator import BargeIn, Call, HangUp, Reply, Simulator, Step, Until, Wait
from bridge.simulator.ledger import Answer, CallRecord, Ledger, Phase, Verdict
from tests.bench.breaches import Did, breaches, left_over
from tests.bench.kills import kill_many, places
from tests.e2e.conftest import BRISK, PACE, script, tidily
from tests.journal.sidecars import configured, served
from tests.postgres import needed
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
        async with asyncio.timeout(30), serving(read(None, overrides)) as served:
            relay = served.relay
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
        await provider.call("book", card="4111111111111111")
        await provider.say("reply.started", reply_id="r1")
        await provider.say("reply.done", reply_id="r1")
        answer = json.loads((await provider.hear("tool.result"))["result"])
        assert answer == {"booked": True, "card": "4111111111111111"}
    journal = open_sqlite(tmp_path / "calls.db", read_only=True)
    (claimed,) = await journal.claims(states=tuple(State))
    entries = [entry async for _, entry in journal.read()]
    await journal.aclose()
    assert (claimed.tool, claimed.state, claimed.outcome) == ("book", State.SENT, "ok")
    assert "4111111111111111" not in repr(entries) + repr(claimed)


async def test_behind_the_sidecar_a_result_whose_session_ends_before_it_is_sent_is_orphaned(tmp_path: Path) -> None:
    async with sidecar(tmp_path) as (relay, provider):
        await provider.say("reply.started", reply_id="r1")
        await provider.call("book", card="4111111111111111")
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
        await provider.call("book", card="4111111111111111")
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
        await journal.claim(CallId("s", 0, f"c{number}"), "book", '{"card": "4111111111111111"}', "dead")
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
        await until(lambda: "left unfinished is looked after again in 60 s: the disk is full" in caplog.text)
        await until(lambda: "could not be pruned, which is tried again in an hour: the disk is full" in caplog.text)


async def test_what_the_one_before_has_left_is_brought_to_an_end_once_the_journal_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    well = StoredJournal.claims

    async def fail(*_: Any, **__: Any) -> Any:
        raise JournalError("the disk is full; make room, and it goes on by itself")

    await left_unfinished(tmp_path / "calls.db")
    monkeypatch.setattr("bridge.serve._BETWEEN_RECOVERIES", 0.01)
    monkeypatch.setattr(StoredJournal, "claims", fail)
    async with sidecar(tmp_path):
        await until(lambda: "is looked after again" in caplog.text)
        monkeypatch.setattr(StoredJournal, "claims", well)
        await until(lambda: "call 'c2' of session s, was finished, but not told: ok" in caplog.text)


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
    assert "4111111111111111" not in first.output
    again = await asyncio.to_thread(CliRunner().invoke, cli, run)
    assert again.output == "0 calls brought to an end.\n"


# ------------------------------------------------------------------------------------------------- killed at any point


def claimed(tool: str = "book", state: State = State.SENT, outcome: str = "ok") -> Claimed:
    result = ToolResult("c1", '"s.0.c1"') if outcome == "ok" else None
    return Claimed(CallId("s", 0, "c1"), tool, "dead", 0.0, state, None, result, outcome)


DONE = "serves p s\neffect book s.0.c1\nsent s.0.c1\n"


def heard(*answers: str) -> Ledger:
    """What a provider has heard of its call of `book`."""
    timely = [Answer("c1", 0.0, Phase.IDLE, text, False, Verdict.ACCEPTED) for text in answers]
    return Ledger("p", [CallRecord("c1", "book", {}, 0.0, answers=timely)])


@pytest.mark.parametrize(
    ("claims", "notes", "ledger", "words"),
    [
        ([claimed()], DONE + "effect book s.0.c1\n", heard('"s.0.c1"'), "happened 2 times"),
        ([], DONE, heard(), "the journal does not know of it"),
        ([claimed("refund")], "effect refund s.0.c1\nsent s.0.c1\n", heard(), "nobody has approved it"),
        ([claimed()], DONE + "told s.0.c1\ntold s.0.c1\n", heard('"s.0.c1"'), "was told 2 times"),
        ([claimed()], "serves p s\neffect book s.0.c1\n", heard('"s.0.c1"'), "is recorded as sent, and was not"),
        ([claimed()], "serves p s\nsent s.0.c1\n", heard('"s.0.c1"'), "is recorded as done, and did not happen"),
        ([claimed()], DONE, heard('"s.0.c1"', '"s.0.c1"'), "was answered 2 times"),
        ([claimed(state=State.STARTED, outcome="")], DONE, heard('"s.0.c1"'), "before its outcome was in the journal"),
        ([claimed()], DONE, heard(), "is recorded as sent, and never came"),
        ([claimed()], DONE + "failed Boom\n", heard('"s.0.c1"'), "a life failed: Boom"),
    ],
)
def test_what_a_kill_must_not_do_is_noticed(claims: Sequence[Claimed], notes: str, ledger: Ledger, words: str) -> None:
    (found,) = breaches(claims, Did.of(notes), [ledger], receipts=True)
    assert words in found


def test_what_a_kill_may_do_is_no_breach() -> None:
    assert [*breaches([claimed()], Did.of(DONE), [heard('{"status": "pending"}', '"s.0.c1"')], receipts=True)] == []


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (claimed(state=State.OWED), "is forgotten: owed"),
        (claimed("note", State.ORPHANED, NOT_KNOWN), "is not known, and could have been"),
        (claimed("book", State.ORPHANED, NOT_KNOWN), "its result does not say so"),
        (claimed("pay", State.ORPHANED, "ok"), "is recorded as ok: happened is False"),
    ],
)
def test_what_a_recovery_must_not_leave_is_noticed(claim: Claimed, words: str) -> None:
    assert words in " ".join(left_over([claim], Did.of(DONE), ()))


@pytest.mark.slow
@pytest.mark.parametrize(("store", "kills"), [("sqlite", 20), ("postgres", 10)])
async def test_kills_at_any_point_double_and_forget_nothing(store: str, kills: int, tmp_path: Path) -> None:
    with needed(), places(store, tmp_path) as place:
        tally = await kill_many(kills, 5, place, tmp_path, lives=5)
    assert tally.failures == []
    assert tally.kills.total() == kills
    assert tally.effects > kills
    assert tally.unfinished > 0


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


@pytest.mark.slow
async def test_a_sidecar_that_was_killed_in_a_tool_says_after_its_restart_that_nobody_knows(tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    async with providing() as providers:
        configured(tmp_path, providers.url, STUCK)
        async with served(tmp_path) as (process, at), dial(f"{at}/v1/ws", close_timeout=0.1) as application:
            provider = await providers.next()
            await application.send(json.dumps({"type": "session.update", "session": {}}))
            await provider.ready()
            await provider.call("book")
            await until(lambda: effects.exists() and effects.read_text() == "booked\n")
            process.kill()
            await process.wait()
        async with served(tmp_path) as (process, _):
            assert process.stderr is not None
            async with asyncio.timeout(20):
                async for line in process.stderr:
                    if b"left unfinished" in line:
                        break
            assert b"tool book, call 'c1' of session" in line
            assert b"may or may not have happened: not_known" in line
    assert effects.read_text() == "booked\n"
