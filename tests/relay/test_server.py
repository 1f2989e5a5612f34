"""The relay as a whole: how many, how long, what it shows, and what tools cannot do to it."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from bridge import CallContext, Start, Tool, Toolset
from bridge.core.events import SessionEnded, SessionOpened
from bridge.relay import Listen, Relay, Route
from bridge.runner.runner import Finished, Outcome
from bridge.simulator import AudioPace, AwaitResults, Call, HangUp, Reply, Rules, Scenario, Simulator, UserSays
from tests.relay.rig import BRIEF, PATIENCE, address, ask, brisk, providing, relaying, tool, until, upstream, weather
from tests.simulator.raw import dial
from tests.sockets import connected

pytestmark = pytest.mark.anyio


# ------------------------------------------------------------------------------------------------------- how many


async def test_no_more_sessions_than_allowed_and_room_again_when_one_ends() -> None:
    limits = replace(BRIEF, max_sessions=2)
    async with providing() as providers, relaying(providers.url, limits=limits) as relay:
        async with dial(address(relay)), dial(address(relay)):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(address(relay))
            assert refusal.value.response.status_code == 503
            assert relay.ready == "full"
        await until(lambda: relay.ready == "")
        async with dial(address(relay)):
            pass
        assert (relay.counters.sessions, dict(relay.counters.refused)) == (3, {503: 1})


async def test_hundreds_of_calls_at_once_all_get_through() -> None:
    async with providing() as providers, relaying(providers.url) as relay:
        sockets: list[ClientConnection] = []

        async def call() -> None:
            sockets.append(await connect(address(relay), compression=None, open_timeout=60))

        try:
            async with asyncio.TaskGroup() as calls:
                for _ in range(200):
                    calls.create_task(call())
            assert (relay.counters.sessions, len(relay.sessions)) == (200, 200)
        finally:
            for each in sockets:
                each.transport.abort()


# ------------------------------------------------------------------------------------------------------- how long


async def test_while_draining_running_sessions_go_on_and_new_ones_are_refused() -> None:
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        draining = asyncio.create_task(relay.drain(PATIENCE))
        await until(lambda: relay.ready == "draining")
        with pytest.raises(InvalidStatus) as refusal:
            await connect(address(relay))
        assert refusal.value.response.status_code == 503
        await provider.say("hello")
        await app.until("hello")
        await app.socket.close()
        assert await draining == 0


async def test_what_is_left_after_draining_is_ended_with_its_results_sent() -> None:
    async with providing() as providers, relaying(providers.url, [weather()]) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await provider.say("reply.started")
        await provider.call()
        await until(lambda: relay.sessions[0].owed == 1)
        draining = asyncio.create_task(relay.drain(0.0))
        await provider.say("reply.done")
        assert [(await provider.hear())["type"] for _ in range(2)] == ["tool.result", "session.end"]
        await provider.say("session.ended")
        await provider.socket.close(1000)
        assert await draining == 1
        assert await app.closed() == 1000


async def test_whoever_drains_at_the_same_time_hears_of_the_same_sessions() -> None:
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)):
        await providers.next()
        assert await asyncio.gather(relay.drain(0.0), relay.drain(0.1)) == [1, 1]


async def test_a_provider_that_does_not_end_its_session_does_not_hold_up_the_end() -> None:
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        provider.socket.transport.pause_reading()
        assert await relay.drain(0.0) == 1
        assert await app.closed() == 1001


async def test_connections_that_are_being_made_are_given_up_at_the_end() -> None:
    async with relaying("ws://127.0.0.1:9/v1/ws") as relay, connected(relay.port) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\n")
        assert b" 426 " in await ask(relay, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")  # so both have been taken
        assert await relay.drain(0.0) == 0
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")


# ------------------------------------------------------------------------------------------------------- what is shown


async def test_the_open_sessions_can_be_looked_at() -> None:
    listen = Listen(port=0, correlation_header="X-Call-Sid")
    async with (
        providing() as providers,
        relaying(providers.url, [weather()], listen=listen) as relay,
        dial(address(relay), **{"X-Call-Sid": "CA\t42" + "x" * 200}) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await app.until("session.ready")
        (shown,) = relay.sessions
    assert (shown.provider_session_id, shown.dialect, shown.route) == ("sess_1", "assemblyai", "/")
    assert shown.correlation == "CA42" + "x" * 124
    assert (shown.owed, shown.link, shown.reply, shown.user) == (0, "up", "none", "quiet")
    assert 0 <= shown.seconds < PATIENCE
    assert min(shown.bytes_from_application, shown.bytes_from_provider) > 40


async def test_the_operators_own_name_for_a_call_is_in_every_line_and_known_to_tools(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "bridge.relay")
    caplog.set_level(logging.DEBUG, "bridge.tools")
    known: list[Mapping[str, Any]] = []

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> None:
        known.append(context.metadata)

    listen = Listen(port=0, correlation_header="X-Call-Sid")
    async with providing() as providers, relaying(providers.url, [tool("get_weather", invoke)], listen=listen) as relay:
        async with dial(address(relay), **{"X-Call-Sid": "CA42"}) as app:
            provider = await providers.next()
            await app.say("session.update", session={})
            await provider.ready()
            await provider.call()
            await provider.say("session.error", code="server_error", message="oops")
            await provider.say("reply.audio")
            await provider.say("tool.call")
            await app.until("tool.call")
            await until(lambda: bool(known))
        await until(lambda: relay.sessions == [])
    assert known == [{"correlation": "CA42"}]
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("session")]
    assert len(lines) == 4
    assert all("[CA42]" in line for line in lines)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bridge.tools"]
    assert line.startswith("tool get_weather: call ")
    assert "[CA42]" in line


async def test_traffic_is_counted_by_side_and_kind_and_kept_when_sessions_end() -> None:
    async with providing() as providers, relaying(providers.url) as relay:
        async with dial(address(relay)) as app:
            provider = await providers.next()
            await app.say("input.audio", audio="AAAA")
            await app.socket.send('{"audio":"AAAA","type":"input.audio"}')
            await app.say("session.update", session={})
            await provider.ready()
            await app.until("session.ready")
            before = relay.counters
            await app.socket.close()
        await until(lambda: relay.sessions == [])
        after = relay.counters
    up = before.from_application
    assert (up.media, up.messages, up.slow_looks, up.control) == (2, 1, 1, 0)
    assert up.bytes > up.media_bytes > 70
    assert before.from_provider.messages == 2
    assert after.from_application.bytes > up.bytes
    assert (after.from_application.control, after.from_provider.control) == (1, 1)


async def test_an_application_that_configures_nothing_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    limits = replace(BRIEF, setup_timeout=0.05)
    async with providing() as providers, relaying(providers.url, limits=limits) as relay, dial(address(relay)) as app:
        await providers.next()
        await until(lambda: relay.counters.without_setup == 1)
        async with dial(address(relay)) as other:
            provider = await providers.next()
            await other.say("session.update", session={})
            await provider.ready()
            await until(lambda: len([s for s in relay.sessions if s.seconds > 0.6]) == 2)
        assert relay.counters.without_setup == 1
        del app
    assert len([r for r in caplog.records if "no setup" in r.getMessage()]) == 1


async def test_a_setup_that_names_a_stored_agent_is_left_alone_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    setup = '{"type":"session.update","session":{"agent_id":"agent_1"}}'
    async with providing() as providers, relaying(providers.url, [weather()]) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await app.socket.send(setup)
        assert await provider.socket.recv() == setup
    assert "agent stored at the provider" in caplog.text


async def test_what_the_provider_complains_of_is_logged_in_one_line_each_and_not_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await provider.say("session.error", code="bad_frame", message="line one\nline two" + "x" * 1000)
        for _ in range(50):
            await provider.say("session.error", code="bad_frame", message="again")
        await provider.say("that is all")
        await app.until("that is all")
    lines = [line for line in caplog.text.splitlines() if "the provider reports" in line]
    assert len(lines) == 10
    assert "line one line two" in lines[0]
    assert len(lines[0]) < 400
    assert lines[-1].endswith("again (more of this session is counted only)")


async def test_observers_see_every_session_and_one_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[object] = []
    outcomes: list[Finished] = []

    def failing(session: Any, step: Any) -> None:
        raise RuntimeError

    def observe(session: Any, step: Any) -> None:
        seen.extend((session.id, event) for event in step.events)

    async with providing() as providers:
        route = Route(upstream=upstream(providers.url))
        relay = Relay(
            [route],
            {"get_weather": weather()},
            limits=BRIEF,
            observers=(failing, observe),
            finished=outcomes.append,
        )
        async with asyncio.timeout(PATIENCE), relay:
            await relay.start(Listen(port=0))
            async with dial(address(relay)) as app:
                provider = await providers.next()
                await app.say("session.update", session={})
                await provider.ready()
                await provider.call()
                await provider.say("reply.started")
                await provider.say("reply.done")
                await provider.hear("tool.result")
                name = relay.sessions[0].id
                await app.socket.close()
            await until(lambda: relay.sessions == [])
    assert seen[0] == (name, SessionOpened("assemblyai", "relay"))
    assert seen[-1] == (name, SessionEnded("the application closed (1000)"))
    assert [(each.name, each.outcome) for each in outcomes] == [("get_weather", Outcome.OK)]
    assert "an observer failed" in caplog.text


# ------------------------------------------------------------------------------------------------ what tools cannot do


def spinning(seconds: float) -> Tool:
    """A coroutine that computes, and so holds its loop."""

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> int:
        end, rounds = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            rounds += sum(range(200)) > 0
        return rounds

    return tool("get_weather", invoke, timeout=10.0)


async def test_a_tool_that_spins_for_a_second_does_not_delay_audio() -> None:
    async with (
        providing() as providers,
        relaying(providers.url, [spinning(1.0)]) as relay,
        dial(address(relay)) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await app.until("session.ready")
        await provider.call()
        await provider.say("reply.started")
        await provider.say("reply.done")
        await app.until("reply.done")
        delays = []
        while relay.sessions[0].owed:
            sent = time.perf_counter()
            await provider.say("reply.audio", data="A" * 216)
            await app.socket.recv()
            delays.append(time.perf_counter() - sent)
            await asyncio.sleep(0.01)
        result = await provider.hear("tool.result")
    assert json.loads(result["result"]) > 0
    assert len(delays) > 20
    # The tool and this test share one interpreter, so the audio waits for turns: never for the tool.
    assert sorted(delays)[len(delays) // 2] < 0.05
    assert max(delays) < 0.5


async def test_a_tool_that_holds_its_loop_does_not_hold_up_the_end() -> None:
    async with providing() as providers, relaying(providers.url, [spinning(1.0)]) as relay:
        async with dial(address(relay)) as app:
            provider = await providers.next()
            await app.say("session.update", session={})
            await provider.ready()
            await provider.call()
            await until(lambda: relay.sessions[0].owed == 1)
        began = time.perf_counter()
        await until(lambda: relay.sessions == [])
        assert time.perf_counter() - began < 0.9


async def test_plain_functions_run_in_threads_which_are_counted() -> None:
    tools = Toolset()
    began, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    @tools.tool
    def get_weather(city: str) -> str:
        """Weather."""
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return city

    async with providing() as providers, relaying(providers.url, tools) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await provider.call()
        await began.wait()
        assert (relay.runner.threads_busy, relay.runner.threads_abandoned) == (1, 0)
        go_on.set()
        await provider.say("reply.started")
        await provider.say("reply.done")
        assert (await provider.hear("tool.result"))["result"] == '"Oslo"'


async def test_what_is_there_at_the_start_is_out_of_the_collectors_way_until_the_end() -> None:
    interval = sys.getswitchinterval()
    gc.unfreeze()
    async with relaying("ws://127.0.0.1:9/v1/ws"):
        assert gc.get_freeze_count() > 10_000
        assert sys.getswitchinterval() == pytest.approx(0.0005)
    assert gc.get_freeze_count() == 0
    assert sys.getswitchinterval() == pytest.approx(interval)


async def test_what_somebody_else_keeps_out_of_the_collectors_way_stays_there() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    async with relaying("ws://127.0.0.1:9/v1/ws"):
        pass
    assert gc.get_freeze_count() >= before - 1000


# ------------------------------------------------------------------------------------------ when a reply has been heard


async def test_what_cannot_be_undone_waits_until_the_voice_has_been_heard() -> None:
    """A burst of audio: the reply is done before it has been heard."""
    invoked: list[float] = []

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> str:
        invoked.append(time.monotonic())
        return "ended"

    ends = tool("end_call", invoke, spec={"start": Start.AFTER_REPLY}, effect="terminal")
    rules = Rules(audio_pace=AudioPace.BURST)
    steps = (UserSays("That was all."), Reply("Goodbye.", (Call("end_call"),), 0.8), AwaitResults(), HangUp())
    scenario = Scenario("", "", steps, rules=rules)
    async with (
        Simulator(scenario, pace=0.5) as sim,
        relaying(sim.url, [ends], delivery=brisk(0.5)) as relay,
        dial(address(relay)) as app,
    ):
        await app.say("session.update", session={})
        await app.until("reply.audio")
        began = time.monotonic()
        await app.until("reply.done")
        assert time.monotonic() - began < 0.3
        heard = sum(len(event["data"]) * 3 / 4 for event in app.heard("reply.audio")) / 48_000
        await app.closed()
    assert heard == pytest.approx(0.4, abs=0.05)
    assert invoked[0] - began == pytest.approx(heard, abs=0.15)
