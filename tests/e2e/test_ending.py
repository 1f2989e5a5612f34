"""How a session ends: by the host, by a tool, by the provider; well, badly, and never too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from bridge import (
    AssemblyAI,
    Bridge,
    CallContext,
    ProviderEnded,
    ReplyDone,
    ReplyStarted,
    Session,
    SessionClosed,
    SessionOptions,
    SessionReady,
    Toolset,
    ToolSettled,
    ToolStarted,
    connect,
)
from bridge.simulator import AwaitResults, Call, Ended, Ending, HangUp, Ledger, Reply, Rules, Say, Simulator, UserSays
from bridge.transports import websocket
from tests.e2e.conftest import BRISK, PACE, call, provider, script, sent, tidily, until

pytestmark = pytest.mark.anyio

ASK = Reply("One moment.", (Call("work"),), 0.4)


def working(function: Any, **options: Any) -> Toolset:
    tools = Toolset()
    tools.tool(function, name="work", **options)
    return tools


@asynccontextmanager
async def no_longer_than(seconds: float) -> AsyncIterator[None]:
    async with asyncio.timeout(seconds):
        yield


# -------------------------------------------------------------------------------------------------------- by the host


async def test_leaving_the_block_ends_the_session_in_good_order() -> None:
    async with call(script(UserSays("Hello."), Say("Hello."))) as (sim, session):
        await until(session, ReplyDone)
    assert sim.ledger.timeline[-2:] == ["-> session.end", "<- session.ended"]
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_results_that_are_owed_are_waited_for_before_the_end() -> None:
    async def work() -> str:
        await asyncio.sleep(0.1)
        return "done"

    async with call(script(ASK), working(work)) as (sim, session):
        await until(session, ToolStarted)
    assert sent(sim.ledger) == ["session.update", "tool.result", "session.end"]
    assert sim.ledger.call("work").result == '"done"'


async def test_a_result_that_never_comes_does_not_keep_the_host() -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    settled: list[ToolSettled] = []
    options = SessionOptions(owed_timeout=0.05)
    async with no_longer_than(1.0), call(script(ASK), working(work), options=options) as (sim, session):
        await until(session, ToolStarted)
        await session.end()
        settled = [event async for event in session if isinstance(event, ToolSettled)]
    assert stopped.is_set()
    assert [(event.how, event.outcome) for event in settled] == [("ended", "")]
    assert sent(sim.ledger) == ["session.update", "session.end"]


async def test_leaving_the_iteration_leaves_the_session_going() -> None:
    async with call(script(Say("One."), Say("Two."))) as (sim, session):
        async for event in session:
            if isinstance(event, ReplyDone):
                break
        await until(session, ReplyDone)
        assert "session.end" not in sent(sim.ledger)
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_ending_twice_ends_once() -> None:
    async with call(script()) as (sim, session):
        await asyncio.gather(session.end("first"), session.end("second"))
        await session.end("third")
    assert sent(sim.ledger).count("session.end") == 1


async def test_after_the_end_nothing_can_be_asked_of_a_session() -> None:
    async with call(script()) as (_, session):
        await session.end()
        with pytest.raises(SessionClosed):
            session.say("Hello?")
        with pytest.raises(SessionClosed):
            await session.update(volume=1.0)
        assert all(not isinstance(event, ReplyDone) for event in [event async for event in session])


async def test_after_the_end_nothing_can_be_sent() -> None:
    async with call(script()) as (_, session):
        await session.end()
        with pytest.raises(SessionClosed):
            await session.send_audio(bytes(960))
        with pytest.raises(SessionClosed):
            await session.send({"type": "reply.create"})


async def test_the_end_can_be_waited_for_in_parts() -> None:
    """Cancelling one who waits for the end does not cancel the end."""
    async with call(Rules(ending=Ending.NEVER), options=SessionOptions(end_timeout=0.1)) as (_, session):
        waiting = asyncio.create_task(session.end())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await session.run()


# ----------------------------------------------------------------------------------------------------- by an exception


class OutOfInk(Exception):
    pass


async def test_an_exception_in_the_block_comes_out_as_it_is_and_the_provider_is_told() -> None:
    error = OutOfInk()
    with pytest.raises(OutOfInk) as raised:
        async with call(script()) as (sim, _):
            raise error
    assert raised.value is error
    assert raised.value.__cause__ is None
    assert sent(sim.ledger) == ["session.update", "session.end"]
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_an_exception_in_the_block_does_not_wait_for_results() -> None:
    accounts: list[Ledger] = []

    async def work() -> None:
        await asyncio.Event().wait()

    async def host() -> None:
        async with call(script(ASK), working(work)) as (sim, session):
            accounts.append(sim.ledger)
            await until(session, ToolStarted)
            raise OutOfInk

    async with no_longer_than(1.0):
        with pytest.raises(OutOfInk):
            await host()
    assert sent(accounts[0]) == ["session.update", "session.end"]


async def test_a_host_that_is_cancelled_ends_its_session() -> None:
    inside = asyncio.Event()

    async def host(url: str) -> None:
        async with connect(AssemblyAI(url=url), api_key="k"):
            inside.set()
            await asyncio.Event().wait()

    async with tidily(), Simulator(pace=PACE) as sim:
        task = asyncio.create_task(host(sim.url))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ledger = await sim.session_over()
        assert sent(ledger) == ["session.update", "session.end"]


async def test_a_host_that_is_cancelled_while_it_leaves_still_closes_in_time() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    left = asyncio.Event()

    async def host(url: str) -> None:
        options = SessionOptions(owed_timeout=0.1)
        async with connect(AssemblyAI(url=url), tools=working(work), api_key="k", options=options) as session:
            await until(session, ToolStarted)
            left.set()

    async with tidily(), Simulator(script(ASK), pace=PACE) as sim:
        task = asyncio.create_task(host(sim.url))
        await left.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sent(await sim.session_over()) == ["session.update", "session.end"]


# ---------------------------------------------------------------------------------------------------------- by a tool


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_tool_can_end_the_session_and_its_own_result_goes_out_before_that(where: str) -> None:
    async def in_loop(context: CallContext) -> str:
        context.end_session("all is said")
        return "ended"

    def in_thread(context: CallContext) -> str:
        context.end_session("all is said")
        return "ended"

    tools = working({"loop": in_loop, "thread": in_thread}[where], effect="terminal")
    async with call(script(ASK, AwaitResults()), tools) as (sim, session):
        await session.run()
        ledger = sim.ledger
    assert sent(ledger) == ["session.update", "tool.result", "session.end"]
    assert (ledger.call("work").result, ledger.ended) == ('"ended"', Ended.BY_CLIENT)


async def test_a_tool_that_asks_for_something_while_the_session_closes_is_told_at_once() -> None:
    told: list[type[Exception]] = []

    async def work(context: CallContext) -> str:
        context.end_session()
        try:
            while True:
                context.say("One more thing.")
                await asyncio.sleep(0)
        except SessionClosed as closed:
            told.append(type(closed))
        for ask in (context.say, context.progress, context.end_session):
            with pytest.raises(SessionClosed):
                ask("too late")
        return "done"

    async with no_longer_than(2.0), call(script(ASK), working(work)) as (sim, session):
        await session.run()
    assert told == [SessionClosed]
    assert sim.ledger.call("work").result == '"done"'


async def test_a_tool_that_ignores_its_cancellation_does_not_keep_the_host(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    async def work() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    options = SessionOptions(owed_timeout=0.01)
    async with asyncio.timeout(20.0), Simulator(script(ASK), pace=PACE) as sim:
        async with connect(AssemblyAI(url=sim.url), tools=working(work), api_key="k", options=options) as session:
            await until(session, ToolStarted)
        release.set()
        name = session.id
    assert f"tool work ignores its cancellation and is abandoned, in session {name}" in caplog.messages


# ---------------------------------------------------------------------------------------------------- by the provider


async def test_the_end_by_the_provider_ends_the_iteration_and_raises_nothing() -> None:
    async with call(script(Say("Goodbye."), HangUp())) as (sim, session):
        events = [event async for event in session]
        assert isinstance(events[-1], ProviderEnded)
    assert sim.ledger.ended is Ended.BY_PROVIDER
    assert "session.end" not in sent(sim.ledger)


async def test_results_that_are_owed_when_the_provider_ends_are_never_sent() -> None:
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with call(script(ASK, HangUp()), working(work)) as (sim, session):
        settled = [event async for event in session if isinstance(event, ToolSettled)]
    assert [event.how for event in settled] == ["ended"]
    assert stopped.is_set()
    assert sent(sim.ledger) == ["session.update"]


async def test_a_close_handshake_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CLOSE_TIMEOUT", 0.1)
    async with no_longer_than(1.0), call(Rules(ending=Ending.HANGING)) as (sim, _):
        pass
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_an_end_that_the_provider_does_not_confirm_is_not_waited_for_for_ever() -> None:
    options = SessionOptions(end_timeout=0.05)
    async with no_longer_than(1.0), call(Rules(ending=Ending.NEVER), options=options) as (sim, _):
        pass
    assert sent(sim.ledger) == ["session.update", "session.end"]


async def test_a_connection_that_breaks_while_the_host_leaves_is_no_failure() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"type": "session.ready", "session_id": "s1"}')
        assert await socket.recv() == '{"type":"session.end"}'
        socket.transport.abort()

    async with no_longer_than(1.0), provider(behave) as url, connect(AssemblyAI(url=url), api_key="k") as session:
        await until(session, SessionReady)


# ------------------------------------------------------------------------------------------------------ many sessions


async def test_the_end_of_one_session_leaves_the_others_of_its_process_alone() -> None:
    async def work() -> str:
        return "done"

    async with tidily(), Simulator(script(ASK, AwaitResults()), pace=PACE) as sim, Bridge(working(work)) as bridge:

        async def talk() -> Session:
            async with bridge.session(AssemblyAI(url=sim.url), api_key="k", delivery=BRISK) as session:
                await until(session, ReplyStarted)
                await until(session, ToolSettled)
                return session

        async with bridge.session(AssemblyAI(url=sim.url), api_key="k", delivery=BRISK) as longest:
            others = await asyncio.gather(*(talk() for _ in range(4)))
            await until(longest, ToolSettled)
            await longest.send_audio(bytes(960))
        assert len({session.provider_session_id for session in (longest, *others)}) == 5
        assert [ledger.call("work").result for ledger in sim.ledgers] == ['"done"'] * 5
