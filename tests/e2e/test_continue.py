"""After a process has died: its session goes on in another one, or another session is told of what it has left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge import (
    AssemblyAI,
    AtCapacity,
    Bridge,
    ConfigError,
    ConnectionResumed,
    Herm,
    ProviderError,
    Resumable,
    Session,
    SessionOptions,
    SessionReady,
    Step,
    Toolset,
    TransportError,
)
from bridge.core.dialect import Delivery
from bridge.core.events import (
    CallKey,
    Discard,
    DiscardedBy,
    FollowUp,
    ReplyStarted,
    Run,
    Sent,
    ToolCall,
    ToolFinished,
    ToolResult,
    ToolResults,
)
from bridge.core.turn import TurnMachine
from bridge.errors import JournalError
from bridge.journal import Begun, CallId, Entry, Part, State
from bridge.journal.memory import MemoryJournal
from bridge.journal.payloads import Payloads
from bridge.journal.replay import Replayed, replay
from bridge.journal.sqlite import open_sqlite
from bridge.metrics import Metrics
from bridge.runner.orphans import Due, Left, Orphans, Past, account
from bridge.runner.parking import Verdict
from bridge.session.inherited import Inherited, seeded
from bridge.tools.tool import Parked
from tests.relay.rig import PATIENCE, Provider, Providers, providing, until

pytestmark = pytest.mark.anyio

ONE_LIFE = SessionOptions(reconnect_timeout=0, owed_timeout=0.1, end_timeout=0.05)
OLD = "old"
KEY = CallKey(0, "c1")


def call_id(number: int = 1) -> CallId:
    return CallId(OLD, 3, f"c{number}")


async def orphan(journal: Any, number: int = 1, output: str = '"booked"', *, is_error: bool = False) -> None:
    """A result that a session of a process that is gone has left."""
    call = call_id(number)
    await journal.claim(call, "book", "{}", "gone")
    await journal.conclude(call, ToolResult(call.call_id, output, is_error, name="book"), "error" if is_error else "ok")
    await journal.settle([call], State.ORPHANED)


async def states(journal: Any, session: str | None = OLD) -> list[State]:
    return [each.state for each in await journal.claims(session=session, states=tuple(State))]


def booking(**options: Any) -> tuple[Toolset, list[str]]:
    """A tool `book`, and its runs."""
    tools, runs = Toolset(), list[str]()

    @tools.tool(**options)
    async def book() -> str:
        runs.append("book")
        return "booked"

    return tools, runs


async def configured(provider: Provider, token: str = "t1") -> str:
    """Accept a setup; the prompt in it."""
    update = await provider.hear("session.update")
    names = [{"name": tool["name"]} for tool in update["session"].get("tools", [])]
    await provider.say("session.updated", config={"tools": names})
    await provider.say("session.ready", session_id="sess_1", resume_token=token)
    return str(update["session"].get("system_prompt", ""))


async def prompted(bridge: Bridge, providers: Providers, **options: Any) -> str:
    """The prompt that a session of this bridge is begun with."""

    async def host() -> None:
        agent = AssemblyAI(url=providers.url, system_prompt="Be kind.")
        async with bridge.session(agent, api_key="k", options=ONE_LIFE, **options):
            pass

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        group.create_task(host())
        return await configured(await providers.next())
    raise AssertionError("unreachable")


# -------------------------------------------------------------------------------------------------- a session after it


async def test_what_an_earlier_session_has_left_is_told_to_the_agent_of_the_next_once() -> None:
    journal = MemoryJournal()
    await orphan(journal, 1)
    await orphan(journal, 2, '{"error":"no such table"}', is_error=True)
    async with providing() as providers, Bridge(journal=journal) as bridge:
        prompt = await prompted(bridge, providers, earlier=OLD)
        assert prompt.startswith("Be kind.\n\n")
        assert '- book finished: "booked"\n- book failed: {"error":"no such table"}' in prompt
        assert await states(journal) == [State.SENT] * 2
        assert await prompted(bridge, providers, earlier=OLD) == "Be kind."


async def test_nothing_is_told_of_a_session_that_the_host_does_not_name() -> None:
    journal = MemoryJournal()
    await orphan(journal)
    async with providing() as providers, Bridge(journal=journal) as bridge:
        assert await prompted(bridge, providers) == "Be kind."
        assert await prompted(bridge, providers, earlier="another") == "Be kind."
        assert await states(journal) == [State.ORPHANED]


async def test_of_two_sessions_that_name_the_same_one_only_one_is_told(tmp_path: Path) -> None:
    journal = open_sqlite(tmp_path / "calls.db")
    await orphan(journal)
    async with providing() as providers, Bridge(journal=journal) as bridge, Bridge(journal=journal) as other:
        prompts = await asyncio.gather(*(prompted(each, providers, earlier=OLD) for each in (bridge, other)))
        assert sorted("booked" in prompt for prompt in prompts) == [False, True]
    await journal.aclose()


async def test_what_the_journal_does_not_keep_for_good_is_not_told() -> None:
    journal = MemoryJournal(payloads=Payloads(redact=lambda tool: ["card"]))
    await orphan(journal, 1, '{"card":"4111"}')
    await orphan(journal, 2)
    async with providing() as providers, Bridge(journal=journal) as bridge:
        prompt = await prompted(bridge, providers, earlier=OLD)
        assert ("card" in prompt, prompt.count("- book finished")) == (False, 1)


async def test_what_could_not_be_told_since_there_was_no_session_is_told_to_the_next() -> None:
    journal = MemoryJournal()
    await orphan(journal)
    async with providing() as providers, Bridge(journal=journal) as bridge:

        async def refused() -> None:
            with pytest.raises(AtCapacity):
                async with bridge.session(AssemblyAI(url=providers.url), api_key="k", earlier=OLD):
                    pass

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            group.create_task(refused())
            provider = await providers.next()
            assert "booked" in str(await provider.hear("session.update"))
            await provider.say("session.error", code="at_capacity", message="full")
        assert "booked" in await prompted(bridge, providers, earlier=OLD)
        assert await prompted(bridge, providers, earlier=OLD) == "Be kind."


class Moody(MemoryJournal):
    """Says for a while that it cannot be read, or waits, once results have been taken."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.taken, self.gate = asyncio.Event(), asyncio.Event()

    async def settle(self, calls: Any, state: Any) -> frozenset[CallId]:
        news = await super().settle(calls, state)
        if state is State.SENT:
            self.taken.set()
            await self.gate.wait()
        return news

    async def claims(self, **options: Any) -> Any:
        if self.broken and self.taken.is_set():
            raise JournalError("out of order")
        return await super().claims(**options)


async def test_what_was_taken_when_the_journal_failed_is_told_to_the_next() -> None:
    journal = Moody()
    journal.gate.set()
    journal.broken = True
    await orphan(journal)
    async with providing() as providers, Bridge(journal=journal) as bridge:
        for _ in range(2):
            with pytest.raises(JournalError):
                async with bridge.session(AssemblyAI(url=providers.url), api_key="k", earlier=OLD):
                    pass
        journal.broken = False
        assert "booked" in await prompted(bridge, providers, earlier=OLD)
        assert await prompted(bridge, providers, earlier=OLD) == "Be kind."


async def test_what_was_taken_when_its_caller_hung_up_is_told_to_the_next() -> None:
    journal = Moody()
    await orphan(journal)
    orphans = Orphans(journal, "me")
    async with asyncio.timeout(PATIENCE):
        taking = asyncio.ensure_future(orphans.take(OLD))
        await journal.taken.wait()
        taking.cancel()
        await asyncio.wait([taking])
        journal.gate.set()
        await orphans.aclose(PATIENCE)
        assert [each.call for each in await orphans.take(OLD)] == [call_id()]
        assert await orphans.take(OLD) == ()


async def test_an_agent_whose_prompt_cannot_be_added_to_is_refused_and_nothing_is_lost() -> None:
    journal = MemoryJournal()
    await orphan(journal)
    async with providing() as providers, Bridge(journal=journal) as bridge:
        for agent, why in ((AssemblyAI(agent_id="agent_1"), "own prompt"), (Herm(agent_id="agent_1"), "of herm")):
            with pytest.raises(ConfigError, match=why):
                async with bridge.session(agent, api_key="k", earlier=OLD):  # type: ignore[arg-type]  # of two classes
                    pass
        assert "booked" in await prompted(bridge, providers, earlier=OLD)


async def test_without_a_journal_there_is_no_earlier_session() -> None:
    async with Bridge() as bridge:
        with pytest.raises(ConfigError, match="pass journal"):
            async with bridge.session(AssemblyAI(), api_key="k", earlier=OLD):
                pass


async def test_what_is_told_is_bounded_and_no_result_is_cut() -> None:
    journal = MemoryJournal()
    for number in range(1, 7):
        await orphan(journal, number, json.dumps("x" * 1_800))
    await orphan(journal, 7, json.dumps("y" * 3_000))
    await orphan(journal, 8)
    text = account(await journal.claims(states=(State.ORPHANED,)))
    assert text.count('"' + "x" * 1_800 + '"') == 4
    assert (text.count("too long to be repeated"), "y" in text.partition("instruction:")[2]) == (3, False)
    assert '"booked"' in text
    assert account(()) == ""


# ------------------------------------------------------------------------------------------ the same session, elsewhere


class Finished:
    """An observer that waits until so many tools have ended."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, session: Session, step: Step) -> None:
        self.seen += sum(isinstance(event, ToolFinished) for event in step.events)


Play = Callable[[Provider, Bridge], Any]


async def died(journal: Any, providers: Providers, tools: Toolset, play: Play, **options: Any) -> Resumable:
    """A session that has come so far, and has lost its connection: what it takes to go on with it."""
    found: list[Resumable] = []

    async def host(bridge: Bridge) -> None:
        with suppress(TransportError):
            async with bridge.session(AssemblyAI(url=providers.url), api_key="k", options=ONE_LIFE) as session:
                found.append(session.resumable)
                await session.run()

    finished = Finished()
    async with asyncio.timeout(PATIENCE), Bridge(tools, journal=journal, owner="a", observers=(finished,)) as bridge:
        talking = asyncio.create_task(host(bridge))
        provider = await providers.next()
        await configured(provider)
        await play(provider, bridge)
        await until(lambda: finished.seen == options.get("finished", 1))
        provider.socket.transport.abort()
        await talking
    return found[0]


@asynccontextmanager
async def elsewhere(
    journal: Any, providers: Providers, tools: Toolset, resume: Resumable, hosts: list[Bridge] | None = None
) -> AsyncIterator[tuple[Provider, Session]]:
    """The session goes on in another bridge, one of the `hosts`; the provider has agreed to that."""
    ready: asyncio.Queue[Session] = asyncio.Queue()
    over = asyncio.Event()

    async def host(bridge: Bridge) -> None:
        agent = AssemblyAI(url=providers.url, greeting="Hello!")
        async with bridge.session(agent, api_key="k", resume=resume, options=ONE_LIFE) as session:
            ready.put_nowait(session)
            await over.wait()

    async with asyncio.timeout(PATIENCE), Bridge(tools, journal=journal, owner=resume.token) as bridge:
        if hosts is not None:
            hosts.append(bridge)
        talking = asyncio.create_task(host(bridge))
        provider = await providers.next()
        request = provider.socket.request
        assert request is not None
        assert request.headers["Authorization"] == f"Bearer {resume.token}"
        assert await provider.hear() == {"type": "session.resume", "session_id": "sess_1"}
        await provider.say("session.ready", session_id="sess_1", resume_token="t2")
        yield provider, await ready.get()
        over.set()
        await talking


async def mid_reply(provider: Provider, bridge: Bridge) -> None:
    """The agent has called its tool, and goes on speaking: the result has to wait."""
    await provider.say("reply.started", reply_id="r1")
    await provider.call("book", "c1")


@pytest.mark.slow
async def test_a_session_goes_on_in_another_process_with_the_result_that_was_not_sent(tmp_path: Path) -> None:
    journal, (tools, runs) = open_sqlite(tmp_path / "calls.db"), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        assert (resume.provider_session_id, resume.token, "t1" in repr(resume)) == ("sess_1", "t1", False)
        async with elsewhere(journal, providers, tools, resume) as (provider, session):
            result = await provider.hear()
            assert (result["type"], result["call_id"], json.loads(result["result"])) == ("tool.result", "c1", "booked")
            await settled(journal, resume.session)
            assert session.resumable == Resumable(session.id, "sess_1", "t2")
            assert [type(await anext(session)) for _ in range(2)] == [SessionReady, ConnectionResumed]
        assert [message["type"] for message in provider.heard] == ["session.resume", "tool.result"]
    assert runs == ["book"]
    for name in (resume.session, session.id):
        assert replay([each async for each in journal.read(name)]).outcome is Replayed.SAME
    await journal.aclose()


async def settled(journal: Any, session: str) -> None:
    """Wait until the journal knows that all results of this session have been sent."""
    await reached(journal, session, State.SENT)


async def reached(journal: Any, session: str | None, state: State, call: str = "") -> None:
    """Wait until all calls, of this session or of any, or those with this id, are in this state."""

    async def there() -> bool:
        claims = await journal.claims(session=session, states=tuple(State))
        return {each.state for each in claims if call in ("", each.call.call_id)} == {state}

    async with asyncio.timeout(PATIENCE):
        while not await there():  # noqa: ASYNC110 - what is waited for is no event of ours
            await asyncio.sleep(0.002)


def rendering() -> Toolset:
    """A tool `book` that hands its work to somebody outside."""
    tools = Toolset()

    @tools.tool(timeout=60)
    async def book() -> Parked:
        return Parked()

    return tools


async def that_it_goes_on(provider: Provider, bridge: Bridge) -> None:
    """The agent has called its tool, and knows that it takes longer."""
    await mid_reply(provider, bridge)
    await provider.say("reply.done", reply_id="r1")
    assert "pending" in (await provider.hear("tool.result"))["result"]


async def told_outside(bridge: Bridge, value: object = None, *, error: str = "") -> None:
    """Somebody outside says what came of the call that waits there."""
    (ticket,) = bridge.runner.waiting
    assert (await bridge.settle(ticket, value, error=error)).verdict is Verdict.ACCEPTED


@pytest.mark.slow
async def test_the_outcome_of_work_outside_is_told_in_the_session_that_goes_on() -> None:
    journal, tools, hosts = MemoryJournal(), rendering(), list[Bridge]()
    async with providing() as providers:
        resume = await died(journal, providers, tools, that_it_goes_on)
        async with elsewhere(journal, providers, tools, resume, hosts) as (provider, _):
            await told_outside(hosts[0], "booked")
            told = await provider.hear()
            assert (told["type"], '"booked"' in told["instructions"]) == ("reply.create", True)
            await provider.say("reply.started", reply_id="r2")
            await settled(journal, resume.session)


@pytest.mark.slow
async def test_an_agent_that_had_not_heard_that_work_goes_on_outside_hears_that_first() -> None:
    journal, tools, hosts = MemoryJournal(), rendering(), list[Bridge]()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume, hosts) as (provider, _):
            result = await provider.hear()
            assert (result["call_id"], json.loads(result["result"])["status"]) == ("c1", "pending")
            await provider.say("reply.started", reply_id="r2")
            await provider.say("reply.done", reply_id="r2")
            await told_outside(hosts[0], error="No table is free.")
            assert "No table is free." in (await provider.hear())["instructions"]
            await provider.say("reply.started", reply_id="r3")
            await settled(journal, resume.session)


async def test_what_was_sent_there_is_not_sent_again_by_a_third() -> None:
    journal, (tools, _) = MemoryJournal(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, session):
            await provider.hear("tool.result")
            await settled(journal, resume.session)
            again = session.resumable
        async with elsewhere(journal, providers, tools, Resumable(resume.session, "sess_1", again.token)) as (third, _):
            pass
        assert [message["type"] for message in third.heard] == ["session.resume"]


async def test_what_was_answered_before_or_there_is_not_answered_again_by_a_third() -> None:
    """The first has answered `c1` and was refused `c2`, the second has answered `c3` and `c4`."""
    tools, runs = booking()
    tools.tool(lambda: "refunded", name="refund", description="Refund.", approval="always_deny")

    async def answered(provider: Provider, bridge: Bridge) -> None:
        await provider.say("reply.started", reply_id="r1")
        await provider.call("book", "c1")
        await provider.call("refund", "c2")
        await provider.say("reply.done", reply_id="r1")
        await provider.hear("tool.result")
        await provider.hear("tool.result")
        await reached(journal, None, State.SENT)

    journal = MemoryJournal()
    async with providing() as providers:
        resume = await died(journal, providers, tools, answered, finished=2)
        async with elsewhere(journal, providers, tools, resume) as (provider, second):
            assert second.id == resume.session
            await provider.say("reply.started", reply_id="r2")
            await provider.call("book", "c3")
            await provider.call("refund", "c4")
            await provider.say("reply.done", reply_id="r2")
            await provider.hear("tool.result")
            await provider.hear("tool.result")
            await settled(journal, resume.session)
        for token in ("t2", "t3"):
            async with elsewhere(journal, providers, tools, replace(resume, token=token)) as (later, _):
                for number in range(1, 5):
                    await later.call("book" if number % 2 else "refund", f"c{number}")  # announced again
                await later.call("nobodys", f"fence of {token}")
                assert (await later.hear("tool.result"))["call_id"] == f"fence of {token}"
            assert [message["type"] for message in later.heard] == ["session.resume", "tool.result"]
    assert runs == ["book", "book"]
    assert replay([each async for each in journal.read(resume.session)]).outcome is Replayed.SAME


async def test_what_the_second_could_not_send_any_more_is_sent_by_a_third() -> None:
    journal, (tools, runs) = MemoryJournal(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            await provider.hear("tool.result")
            await settled(journal, resume.session)
            await provider.say("reply.started", reply_id="r2")
            await provider.call("book", "c2")
            await reached(journal, None, State.OWED, call="c2")
        async with elsewhere(journal, providers, tools, replace(resume, token="t2")) as (third, _):
            result = await third.hear("tool.result")
            assert (result["call_id"], json.loads(result["result"])) == ("c2", "booked")
            await settled(journal, resume.session)
    assert runs == ["book", "book"]


async def test_an_id_that_comes_again_after_the_session_went_on_is_a_new_call() -> None:
    """Also in a turn with the same number, counted from the beginning of each connection."""
    journal, (tools, runs) = MemoryJournal(), booking()

    async def answered(provider: Provider, bridge: Bridge) -> None:
        await asked(provider)
        await provider.say("reply.done", reply_id="r1")
        await provider.hear("tool.result")
        await reached(journal, None, State.SENT)

    async with providing() as providers:
        resume = await died(journal, providers, tools, answered)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            for reply in ("r2", "r3"):
                await provider.say("reply.started", reply_id=reply)
                await provider.say("reply.done", reply_id=reply)
            await provider.say("reply.started", reply_id="r4")
            await provider.call("book", "c1")
            await provider.say("reply.done", reply_id="r4")
            result = await provider.hear("tool.result")
            assert (result["call_id"], json.loads(result["result"])) == ("c1", "booked")
    assert runs == ["book", "book"]


async def test_a_tool_is_called_in_the_session_that_goes_on_and_answered_there() -> None:
    journal, (tools, runs) = MemoryJournal(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            await provider.hear("tool.result")
            await provider.say("reply.started", reply_id="r2")
            await provider.call("book", "c1")  # announced again
            await provider.call("book", "c2")
            await provider.say("reply.done", reply_id="r2")
            assert (await provider.hear("tool.result"))["call_id"] == "c2"
        assert runs == ["book", "book"]


async def test_a_call_that_nobody_wants_to_hear_of_any_more_is_not_run_again_when_it_is_repeated() -> None:
    async def interrupted(provider: Provider, bridge: Bridge) -> None:
        await mid_reply(provider, bridge)
        await reached(journal, None, State.OWED)
        await provider.say("reply.done", reply_id="r1", status="interrupted")
        await reached(journal, None, State.DISCARDED)

    journal, (tools, runs) = MemoryJournal(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, interrupted)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            await provider.call("book", "c1")
            await provider.call("nobodys", "c2")
            assert (await provider.hear("tool.result"))["call_id"] == "c2"
        assert runs == ["book"]


async def test_of_a_tool_that_only_reads_it_is_said_that_its_call_was_lost() -> None:
    journal, (tools, _) = MemoryJournal(), booking(effect="read")
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            result = await provider.hear("tool.result")
            assert (result["call_id"], result["is_error"]) == ("c1", True)
            assert "was lost with the process that ran it" in result["result"]


async def test_of_a_call_that_was_answered_without_the_journals_knowing_it_nothing_is_said_that_contradicts() -> None:
    class Late(MemoryJournal):
        """As it is when its process dies before it is written that results have been sent."""

        async def append(self, entries: Any) -> None:
            await super().append([each for each in entries if not isinstance(each.fact, Sent)])

    async def answered(provider: Provider, bridge: Bridge) -> None:
        await mid_reply(provider, bridge)
        await provider.say("reply.done", reply_id="r1")
        assert json.loads((await provider.hear("tool.result"))["result"]) == "booked"

    journal, (tools, _) = Late(), booking(effect="read")
    async with providing() as providers:
        resume = await died(journal, providers, tools, answered)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            result = await provider.hear("tool.result")
            assert json.loads(result["result"])["error"].startswith("Unless its result has been given before, ")


async def test_of_a_tool_that_had_not_begun_since_its_reply_had_not_been_heard_the_same_is_said() -> None:
    journal, (tools, runs) = MemoryJournal(), booking(effect="terminal")
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply, finished=0)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            result = await provider.hear("tool.result")
            assert (result["call_id"], "Nothing has been changed" in result["result"]) == ("c1", True)
    assert runs == []


@pytest.mark.parametrize(
    ("options", "words"),
    [({"effect": "write"}, "Nothing has been changed"), ({"idempotent": True}, "It may have been carried out")],
)
async def test_that_nothing_has_been_changed_is_said_only_where_that_is_certain(
    options: dict[str, Any], words: str
) -> None:
    """A call without a claim has not run; but a tool that may run twice does so while the journal is out of order."""
    left = await inherited(booking(**options)[0])
    assert (left.due, words in left.result.output) == (Due.RESULT, True)


async def test_of_a_tool_that_is_not_known_any_more_nothing_is_promised() -> None:
    assert "nobody knows" in (await inherited({})).result.output


@pytest.mark.parametrize(("options", "words"), [({}, "nobody knows"), ({"idempotent": True}, "does no harm")])
async def test_of_a_call_that_somebody_else_is_bringing_to_an_end_it_is_not_waited_for(
    options: dict[str, Any], words: str
) -> None:
    journal, tools = MemoryJournal(), booking(**options)[0]
    await journal.claim(call_id(), "book", "{}", "me")  # `recover` in this process does it at this moment
    (left,) = (await Orphans(journal, "me").left(OLD, tools)).calls
    assert left.due is Due.RESULT
    assert words in left.result.output  # type: ignore[union-attr]  # it has one


async def inherited(tools: Any) -> Any:
    """What is left of a call of `book` that was to be run, and has no claim."""
    journal, call = MemoryJournal(), ToolCall("c1", "book", "{}")
    await journal.append([Entry(0.0, OLD, fact, Part.DECIDED, mark) for mark, fact in enumerate([Run(KEY, call)])])
    (left,) = (await Orphans(journal, "me").left(OLD, tools)).calls
    return left


async def test_what_a_later_process_has_told_counts_for_the_call_of_the_first() -> None:
    """With the outcome that was told, the one whose reply was interrupted, and the one whose session was lost."""
    calls = [CallKey(1, f"c{number}") for number in range(1, 5)]
    journal = MemoryJournal()
    facts: list[Any] = [Begun(Delivery()), *(Run(key, ToolCall(key.call_id, "book", "{}")) for key in calls)]
    facts += [ToolResults((ToolResult("c1", "{}", interim=True),), keys=(calls[0],)), Sent((calls[0],))]
    again = [CallKey(2, key.call_id) for key in calls]
    facts += [Begun(Delivery(), 2), FollowUp(again[0], ToolResult("c1", "1")), ReplyStarted("r1")]
    facts += [Discard(again[1]), Discard(again[2], DiscardedBy.ORPHANED), Discard(again[3], DiscardedBy.END)]
    await journal.append([Entry(0.0, OLD, fact, Part.HEARD, mark) for mark, fact in enumerate(facts)])
    for key in calls:
        await journal.claim(CallId.of(OLD, key), "book", "{}", "gone")
        await journal.conclude(CallId.of(OLD, key), ToolResult(key.call_id, "1", name="book"), "ok")
    orphans = Orphans(journal, "me")
    past = await orphans.left(OLD, booking()[0])
    dues = {each.call.call_id: each.due for each in past.calls}
    assert dues == {"c1": Due.NOTHING, "c2": Due.NOTHING, "c3": Due.NOTHING, "c4": Due.RESULT}
    assert past.turn > 2
    await orphans.aclose(PATIENCE)
    assert await states(journal) == [State.SENT, State.DISCARDED, State.ORPHANED, State.ORPHANED]


async def test_a_call_that_was_settled_before_is_counted_no_second_time() -> None:
    told, waiting = ToolCall("c1", "book", "{}"), ToolCall("c2", "book", "{}")
    past = Past((Left(told, Due.NOTHING), Left(waiting, Due.OUTCOME, ToolResult("c2", "1"))), 3)
    machine, step = seeded(TurnMachine(Delivery()), Inherited(Resumable(OLD, "sess_1", "t1"), past))
    assert (machine.turn, machine.owed, len(machine.sayings)) == (3, (), 1)
    assert {type(output) for output in step.outputs} == {Run}
    metrics = Metrics()
    metrics(Named(OLD), step)
    for name in ("bridge_results_discarded_total", "bridge_results_sent_total"):
        assert sum(each.value for each in samples(metrics, name)) == 0


class Named(NamedTuple):
    id: str


def samples(metrics: Metrics, name: str) -> list[Any]:
    return [each for family in metrics.registry.collect() for each in family.samples if each.name == name]


async def test_a_session_that_the_provider_does_not_resume_is_none_and_its_results_stay() -> None:
    journal, (tools, _) = MemoryJournal(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)

        async def refused(bridge: Bridge) -> None:
            with pytest.raises(ProviderError, match="session_not_found"):
                async with bridge.session(AssemblyAI(url=providers.url), api_key="k", resume=resume, options=ONE_LIFE):
                    pass

        async with asyncio.timeout(PATIENCE), Bridge(tools, journal=journal, owner="b") as bridge:
            async with asyncio.TaskGroup() as group:
                group.create_task(refused(bridge))
                provider = await providers.next()
                await provider.hear("session.resume")
                await provider.say("session.error", code="session_not_found", message="gone")
            assert await states(journal, resume.session) == [State.ORPHANED]
            assert "booked" in await prompted(bridge, providers, earlier=resume.session)


async def test_without_a_journal_a_session_goes_on_with_nothing_owed() -> None:
    async with providing() as providers:
        async with elsewhere(None, providers, Toolset(), Resumable("a", "sess_1", "t1")) as (provider, session):
            assert isinstance(session, Session)
        assert [message["type"] for message in provider.heard] == ["session.resume"]


@pytest.mark.slow
async def test_that_a_result_was_told_is_written_once_the_journal_works_again() -> None:
    class Weak(MemoryJournal):
        failures = 0

        async def settle(self, calls: Any, state: Any) -> frozenset[CallId]:
            if state is State.SENT and self.failures < 1:
                self.failures += 1
                raise JournalError("out of order")
            return await super().settle(calls, state)

    journal, (tools, _) = Weak(), booking()
    async with providing() as providers:
        resume = await died(journal, providers, tools, mid_reply)
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            await provider.hear("tool.result")
            await settled(journal, resume.session)
        assert journal.failures == 1


# -------------------------------------------------------------------------------------------------- killed, in earnest

VICTIM = """
import asyncio, json, os, sys
from bridge import AssemblyAI, Bridge, Toolset, ToolStarted
from bridge.core.events import ToolFinished
from bridge.journal.sqlite import open_sqlite

url, path, log, how = sys.argv[1:]
tools = Toolset()

@tools.tool(timeout=60, answer_within=0.05 if how == "parked" else None)
async def book() -> str:
    os.write(os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY), b"book\\n")
    if how == "running":
        print("there", flush=True)
        await asyncio.sleep(60)
    if how == "parked":
        await asyncio.sleep(0.3)
    return "booked"

def observe(session, step):
    if any(isinstance(event, ToolFinished) for event in step.events) and how == "finished":
        print("there", flush=True)
    if any(type(event).__name__ == "CallConcluded" for event in step.events):
        print("there", flush=True)

async def main():
    journal = open_sqlite(path)
    async with Bridge(tools, journal=journal, observers=(observe,)) as bridge:
        async with bridge.session(AssemblyAI(url=url), api_key="k") as session:
            known = session.resumable
            print(json.dumps([known.session, known.provider_session_id, known.token]), flush=True)
            await session.run()

asyncio.run(main())
"""


async def killed(tmp_path: Path, providers: Providers, how: str, play: Callable[[Provider], Any]) -> Resumable:
    """A process that has a session, and is killed when it has come so far."""
    arguments = (providers.url, str(tmp_path / "calls.db"), str(tmp_path / "log"), how)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, *arguments, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert victim.stdout is not None
    try:
        provider = await providers.next()
        await configured(provider)
        known = Resumable(*json.loads(await victim.stdout.readline()))
        await play(provider)
        assert await victim.stdout.readline() == b"there\n"
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        await victim.wait()
    return known


async def asked(provider: Provider) -> None:
    await provider.say("reply.started", reply_id="r1")
    await provider.call("book", "c1")


async def parked(provider: Provider) -> None:
    """The agent knows that it takes longer, and goes on speaking: the outcome has to wait."""
    await asked(provider)
    await provider.say("reply.done", reply_id="r1")
    assert (await provider.hear("tool.result"))["call_id"] == "c1"
    await provider.say("reply.started", reply_id="r2")


@pytest.mark.slow
async def test_the_result_of_a_killed_process_is_sent_by_another_once(tmp_path: Path) -> None:
    async with providing() as providers:
        resume = await killed(tmp_path, providers, "finished", asked)
        journal, (tools, runs) = open_sqlite(tmp_path / "calls.db"), booking()
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            result = await provider.hear()
            assert (result["call_id"], result["result"]) == ("c1", '"booked"')
            await settled(journal, resume.session)
        await journal.aclose()
    assert (runs, (tmp_path / "log").read_text()) == ([], "book\n")


@pytest.mark.slow
async def test_of_a_tool_that_was_killed_while_it_ran_it_is_said_that_nobody_knows(tmp_path: Path) -> None:
    async with providing() as providers:
        resume = await killed(tmp_path, providers, "running", asked)
        journal, (tools, runs) = open_sqlite(tmp_path / "calls.db"), booking()
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            result = await provider.hear()
            assert (result["call_id"], result["is_error"]) == ("c1", True)
            assert "may" in result["result"]
            await settled(journal, resume.session)
        await journal.aclose()
    assert (runs, (tmp_path / "log").read_text()) == ([], "book\n")


@pytest.mark.slow
async def test_what_came_of_a_call_that_took_longer_is_told_and_not_given_as_a_second_result(tmp_path: Path) -> None:
    async with providing() as providers:
        resume = await killed(tmp_path, providers, "parked", parked)
        journal, (tools, _) = open_sqlite(tmp_path / "calls.db"), booking()
        async with elsewhere(journal, providers, tools, resume) as (provider, _):
            told = await provider.hear()
            assert (told["type"], '"booked"' in told["instructions"]) == ("reply.create", True)
            await provider.say("reply.started", reply_id="r3")
            await settled(journal, resume.session)
        await journal.aclose()


@pytest.mark.slow
async def test_a_session_after_a_killed_one_is_told_of_its_result(tmp_path: Path) -> None:
    async with providing() as providers:
        resume = await killed(tmp_path, providers, "finished", asked)
        journal, (tools, _) = open_sqlite(tmp_path / "calls.db"), booking()
        async with Bridge(tools, journal=journal) as bridge:
            await bridge.recover()
            assert '- book finished: "booked"' in await prompted(bridge, providers, earlier=resume.session)
            assert await prompted(bridge, providers, earlier=resume.session) == "Be kind."
        await journal.aclose()
