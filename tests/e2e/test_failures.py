"""What goes wrong, by whose fault, and what the host is told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from bridge import (
    AgentEvent,
    ApplicationTooSlow,
    AssemblyAI,
    AtCapacity,
    AuthenticationFailed,
    BridgeError,
    ConfigError,
    ConfigurationRefused,
    Malformed,
    ProviderError,
    ProviderFailed,
    ReplyDone,
    ReplyStarted,
    Session,
    SessionOptions,
    SetupAccepted,
    Step,
    Toolset,
    ToolSettled,
    ToolStarted,
    TransportError,
    connect,
)
from bridge.core.events import ToolFinished
from bridge.simulator import AwaitResults, Call, Ended, Fail, Raw, Reply, Rules, Say, Simulator
from tests.e2e.conftest import PACE, call, provider, script, sent, take_all, tidily, until
from tests.sockets import listening

pytestmark = pytest.mark.anyio

READY = json.dumps({"type": "session.ready", "session_id": "s1"})
NO_OTHER = SessionOptions(reconnect_timeout=0)
"""A connection that drops is not replaced."""


async def refused(agent: AssemblyAI, **options: Any) -> BridgeError:
    """What the host is told when there will be no session."""
    with pytest.raises(BridgeError) as raised:
        async with connect(agent, **options):
            raise AssertionError("there is a session")
    return raised.value


# ------------------------------------------------------------------------------------------------------- at the start


async def test_a_wrong_key_is_said_to_be_wrong_and_not_shown() -> None:
    async with tidily(), Simulator(pace=PACE, api_key="right") as sim:
        error = await refused(AssemblyAI(url=sim.url), api_key="my-wrong-key")
        assert sim.refusals == ["unauthorized"]
    assert isinstance(error, AuthenticationFailed)
    assert error.code == "unauthorized"
    assert "API key was not accepted" in str(error)
    assert "my-wrong-key" not in repr(error)


async def test_the_right_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSEMBLYAI_API_KEY", "right")
    async with tidily(), Simulator(pace=PACE, api_key="right") as sim, connect(AssemblyAI(url=sim.url)) as session:
        assert session.provider_session_id


async def test_without_a_key_nothing_connects_to_the_providers_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSEMBLYAI_API_KEY", raising=False)
    error = await refused(AssemblyAI())
    assert isinstance(error, ConfigError)
    assert "set the environment variable ASSEMBLYAI_API_KEY" in str(error)


@pytest.mark.parametrize("url", ["ws://", "ws://:80:90/", "wss://exa mple/"])
async def test_an_address_that_is_none_is_a_wrong_setting(url: str) -> None:
    assert isinstance(await refused(AssemblyAI(url=url), api_key="k"), ConfigError | TransportError)


async def test_a_setting_that_the_provider_refuses_is_named() -> None:
    async with tidily(), Simulator(pace=PACE) as sim:
        error = await refused(AssemblyAI(url=sim.url, extra={"colour": "green"}), api_key="k")
    assert isinstance(error, ConfigurationRefused)
    assert (error.code, error.param) == ("invalid_format", "session.colour")
    assert "session.colour" in str(error)


@pytest.mark.parametrize("code", ["at_capacity", "concurrency_exceeded"])
async def test_a_provider_without_room_may_be_tried_again(code: str) -> None:
    async with tidily(), Simulator(Rules(refuse_with=code), pace=PACE) as sim:
        error = await refused(AssemblyAI(url=sim.url), api_key="k")
    assert isinstance(error, AtCapacity)
    assert error.code == code


async def test_an_error_of_another_kind_at_the_start_is_a_provider_error() -> None:
    async with tidily(), Simulator(Rules(refuse_with="internal_error"), pace=PACE) as sim:
        error = await refused(AssemblyAI(url=sim.url), api_key="k")
    assert type(error) is ProviderError


async def test_a_provider_that_never_becomes_ready_is_given_up() -> None:
    options = SessionOptions(ready_timeout=0.1)
    async with tidily(), Simulator(Rules(omitted=frozenset({"session.ready"})), pace=PACE) as sim:
        error = await refused(AssemblyAI(url=sim.url), api_key="k", options=options)
        ledger = await sim.session_over()
    assert isinstance(error, TransportError)
    assert "did not become ready within 0.1 s" in str(error)
    assert sent(ledger) == ["session.update", "session.end"]


async def test_a_provider_that_closes_before_it_is_ready_is_named_with_its_code() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.close(1011, "deploying")

    async with provider(behave) as url:
        error = await refused(AssemblyAI(url=url), api_key="k")
    assert isinstance(error, TransportError)
    assert error.close_code == 1011
    assert "(1011): deploying" in str(error)


@asynccontextmanager
async def http(answer: str) -> AsyncIterator[str]:
    """A server that answers every request with this, or with nothing at all."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer:
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        else:
            await reader.read()

    async with tidily(), listening(behave) as port:
        yield f"ws://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        ("401 Unauthorized", AuthenticationFailed, "check the API key"),
        ("403 Forbidden", AuthenticationFailed, "check the API key"),
        ("429 Too Many Requests", AtCapacity, "try again later"),
        ("503 Service Unavailable", AtCapacity, "try again later"),
        ("404 Not Found", TransportError, "check the url"),
    ],
)
async def test_a_refusal_by_http_is_told_apart_by_its_status(answer: str, kind: type[BridgeError], said: str) -> None:
    async with http(answer) as url:
        error = await refused(AssemblyAI(url=url), api_key="my-key")
    assert type(error) is kind
    assert f"(HTTP {answer[:3]})" in str(error)
    assert said in str(error)
    assert "my-key" not in repr(error)


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    async with http("") as url:
        error = await refused(AssemblyAI(url=url), api_key="k", options=SessionOptions(connect_timeout=0.1))
    assert type(error) is TransportError
    assert "cannot connect to the provider" in str(error)


async def test_a_connection_that_is_refused_is_a_transport_error() -> None:
    async with http("200 OK") as url:
        pass
    error = await refused(AssemblyAI(url=url), api_key="k")
    assert type(error) is TransportError
    assert error.close_code is None


# ----------------------------------------------------------------------------------------------------- in the middle


async def test_a_link_that_drops_ends_the_iteration_with_its_close_code() -> None:
    async with call(script(Say("Hello.", 10.0)), options=NO_OTHER) as (sim, session):
        await until(session, ReplyStarted)
        sim.drop()
        with pytest.raises(TransportError, match="dropped") as lost:
            await session.run()
        assert lost.value.close_code == 1006


async def test_a_link_that_drops_is_told_on_leaving_to_a_host_that_does_not_iterate() -> None:
    async def host() -> None:
        async with call(script(), options=NO_OTHER) as (sim, session):
            sim.drop()
            with pytest.raises(TransportError):
                await keep_talking(session)

    with pytest.raises(TransportError, match="dropped"):
        await host()


async def keep_talking(session: Session) -> None:
    while True:
        await session.send_audio(bytes(48))
        await asyncio.sleep(0.001)


async def test_a_link_that_drops_settles_the_calls_that_run() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    tools = Toolset()
    tools.tool(work)
    events: list[AgentEvent] = []
    async with call(script(Reply("", (Call("work"),))), tools, options=NO_OTHER) as (sim, session):
        await until(session, ToolStarted)
        sim.drop()
        with pytest.raises(TransportError):
            await take_all(session, events.append)
    assert [event.how for event in events if isinstance(event, ToolSettled)] == ["ended"]


async def test_a_fatal_error_is_first_an_event_and_then_the_end() -> None:
    events: list[AgentEvent] = []
    async with call(script(Fail("agent_timeout", 1011))) as (_, session):
        with pytest.raises(ProviderError) as failed:
            await take_all(session, events.append)
    assert [event.code for event in events if isinstance(event, ProviderFailed)] == ["agent_timeout"]
    assert failed.value.code == "agent_timeout"


async def test_a_frame_that_is_too_big_ends_the_session() -> None:
    scenario = script(Raw({"type": "flood", "data": "x" * 20_000}))
    async with call(scenario, options=SessionOptions(max_frame=10_000)) as (_, session):
        with pytest.raises(TransportError):
            await session.run()


@asynccontextmanager
async def neglected() -> AsyncIterator[tuple[Simulator, Session]]:
    """A session whose host has let more events pile up than it may."""
    piled_up = asyncio.Event()
    heard: list[Step] = []

    def count(session: Session, step: Step) -> None:
        heard.append(step)
        if len(heard) > 30:
            piled_up.set()

    scenario, options = script(Say("Blah " * 50, 1.0)), SessionOptions(max_events=20)
    async with call(scenario, options=options, observers=(count,)) as (sim, session):
        await piled_up.wait()
        yield sim, session


async def test_a_host_that_does_not_take_its_events_is_told_so() -> None:
    with pytest.raises(ApplicationTooSlow, match="20 events were not taken"):
        async with neglected():
            pass


async def test_a_host_that_wakes_up_too_late_gets_its_events_and_then_the_reason() -> None:
    async with neglected() as (_, session):
        events: list[AgentEvent] = []
        with pytest.raises(ApplicationTooSlow):
            await take_all(session, events.append)
        assert len(events) == 20


async def test_the_provider_is_told_when_a_session_ends_by_the_fault_of_its_host() -> None:
    with pytest.raises(ApplicationTooSlow):
        async with neglected() as (sim, _):
            pass
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_frames_that_are_no_messages_are_events_and_only_the_first_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frames: list[str | bytes] = ["", "{", "[]", "3", "null", '"hello"', b"\x00\xff", '{"no":"type"}', '{"type":7}']

    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        for frame in frames * 3:
            await socket.send(frame)
        await socket.send(json.dumps({"type": "session.ended"}))
        await socket.wait_closed()

    caplog.set_level(logging.WARNING, "bridge.session")
    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k") as session:
        malformed = [event async for event in session if isinstance(event, Malformed)]
    assert len(malformed) == len(frames) * 3
    assert len(caplog.messages) == 10


async def test_a_provider_that_closes_normally_without_a_word_is_a_lost_link() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.close(1000)

    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k") as session:
        with pytest.raises(TransportError) as lost:
            await session.run()
        assert lost.value.close_code == 1000


async def test_tools_that_the_provider_leaves_out_are_named() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.recv()
        await socket.send(json.dumps({"type": "session.updated", "config": {"tools": [{"name": "one"}]}}))
        assert await socket.recv() == '{"type":"session.end"}'
        await socket.send(json.dumps({"type": "session.ended"}))

    async def work() -> None:
        """Do something."""

    tools = Toolset()
    for name in ("one", "two", "three"):
        tools.tool(work, name=name)
    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k") as session:
        with pytest.raises(ConfigurationRefused, match="did not take these tools: three, two"):
            await session.update(tools=tools)


async def test_a_call_that_follows_the_acknowledgement_in_the_same_breath_gets_the_new_tool() -> None:
    answers: list[dict[str, Any]] = []

    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.recv()
        for message in (
            {"type": "session.updated"},
            {"type": "reply.started", "reply_id": "r1"},
            {"type": "tool.call", "call_id": "c1", "name": "new", "arguments": {}},
            {"type": "reply.done", "reply_id": "r1", "status": "completed"},
        ):
            await socket.send(json.dumps(message))
        answers.append(json.loads(await socket.recv()))
        await socket.send(json.dumps({"type": "session.ended"}))
        await socket.wait_closed()

    async def new() -> str:
        return "new"

    tools = Toolset()
    tools.tool(new)
    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k") as session:
        await session.update(tools=tools)
        await session.run()
    assert answers == [{"type": "tool.result", "call_id": "c1", "result": '"new"'}]


@pytest.mark.parametrize("where", [ReplyDone, ToolFinished], ids=["of the reader", "of a tool"])
async def test_an_observer_that_fails_is_left_out_and_the_call_goes_on(
    where: type, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Step] = []

    def fail(session: Session, step: Step) -> None:
        seen.append(step)
        if any(isinstance(event, where) for event in step.events):
            raise ZeroDivisionError

    async def work() -> str:
        return "done"

    tools = Toolset()
    tools.tool(work)
    scenario = script(Reply("One moment.", (Call("work"),), 1.0), AwaitResults())
    async with call(scenario, tools, observers=(fail,)) as (sim, session):
        await sim.script_over()
    assert [record.result for record in sim.ledger.calls] == ['"done"']
    assert f"session {session.id}: an observer failed and is left out from now on" in caplog.messages
    assert any(isinstance(event, where) for event in seen[-1].events)


async def test_a_change_that_is_given_up_in_the_moment_of_its_answer_harms_nobody() -> None:
    giving_up: list[asyncio.Task[None]] = []

    def give_up(session: Session, step: Step) -> None:
        if any(isinstance(event, SetupAccepted) for event in step.events) and giving_up:
            giving_up.pop().cancel()

    async with call(script(), observers=(give_up,)) as (_, session):
        task = asyncio.create_task(session.update(volume=1.0))
        giving_up.append(task)
        with pytest.raises(asyncio.CancelledError):
            await task
        await session.update(volume=2.0)
