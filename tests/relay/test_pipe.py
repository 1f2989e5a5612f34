"""What passes between the two connections, what does not, and how they end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

from bridge.metrics import Metrics
from bridge.relay import OnLoss, Pings, Relay
from bridge.relay.frames import Opcode, close_payload, frame
from tests.relay.rig import BRIEF, PATIENCE, Provider, Providers, address, providing, relaying, tool, until, weather
from tests.simulator.raw import Raw, dial

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def talking(tools: Any = (), **options: Any) -> AsyncIterator[tuple[Raw, Provider, Relay, Providers]]:
    """An application and a provider with the relay in between."""
    async with (
        providing() as providers,
        relaying(providers.url, tools, **options) as relay,
        dial(address(relay)) as app,
    ):
        yield app, await providers.next(), relay, providers


async def ready(app: Raw, provider: Provider) -> dict[str, Any]:
    """The session is configured; the setup as the provider saw it."""
    await app.say("session.update", session={})
    update = await provider.ready()
    await app.until("session.ready")
    return update


async def closed(socket: Connection) -> tuple[int | None, str | None]:
    """Listen until the connection is closed; its code and reason."""
    async with asyncio.timeout(PATIENCE):
        with suppress(ConnectionClosed):
            while True:
                await socket.recv()
    return socket.close_code, socket.close_reason


# ------------------------------------------------------------------------------------------------------------- messages


async def test_what_is_not_ours_passes_byte_for_byte_both_ways() -> None:
    strange: list[str] = [
        '{ "type" : "x", "n": 1e400, "é":"\\ud800" }',
        "no json",
        "[1, 2]",
        '{"type":"transcript.agent"}',
        "{}",
    ]
    async with talking([weather()]) as (app, provider, relay, _):
        messages: list[str | bytes] = [*strange, b"\x00\xff binary"]
        for text in messages:
            await app.socket.send(text)
            assert await provider.socket.recv() == text
            await provider.socket.send(text)
            assert await app.socket.recv() == text
        assert relay.counters.from_application.messages == len(strange)


async def test_our_tools_are_added_to_a_setup_which_is_else_the_same() -> None:
    theirs = {"type": "function", "name": "theirs", "parameters": {}, "x": 1.50}
    async with talking([weather()]) as (app, provider, _, _):
        session = {"system_prompt": 'Zürich "1"', "tools": [theirs], "new": {"a": None}}
        await app.say("session.update", session=session)
        update = await provider.hear()
    tools = update["session"].pop("tools")
    assert update == {"type": "session.update", "session": {k: v for k, v in session.items() if k != "tools"}}
    assert [entry["name"] for entry in tools] == ["theirs", "get_weather"]
    assert tools[0] == theirs


async def test_a_setup_with_half_a_surrogate_pair_is_added_to_as_well() -> None:
    async with talking([weather()]) as (app, provider, _, _):
        await app.say("session.update", session={"system_prompt": "Smile \ud83d"})
        session = (await provider.hear())["session"]
    assert session["system_prompt"] == "Smile \ud83d"
    assert [entry["name"] for entry in session["tools"]] == ["get_weather"]


async def test_a_call_of_ours_is_hidden_run_and_answered_and_a_call_of_theirs_is_not() -> None:
    async with talking([weather()]) as (app, provider, _, _):
        await app.say("session.update", session={"tools": [{"type": "function", "name": "theirs", "parameters": {}}]})
        await provider.ready()
        await provider.say("reply.started", reply_id="r1")
        await provider.call("get_weather", "c1")
        await provider.call("theirs", "c2")
        await provider.say("reply.done", reply_id="r1", status="completed")
        result = await provider.hear("tool.result")
        assert (result["call_id"], json.loads(result["result"])) == ("c1", {"sky": "rain", "city": "Oslo"})
        call = await app.until("tool.call")
        await app.until("reply.done")
        assert [event["call_id"] for event in app.heard("tool.call")] == ["c2"]
        await app.answer(call)
        assert (await provider.hear())["call_id"] == "c2"


async def test_calls_of_ours_can_be_shown_and_an_answer_to_one_is_swallowed() -> None:
    async with talking([weather()], show_calls=True) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call()
        await app.answer(await app.until("tool.call"), "mine")
        await app.say("after")
        assert (await provider.hear("after"))["type"] == "after"
        await provider.say("reply.done")
        assert json.loads((await provider.hear())["result"])["sky"] == "rain"
        assert [message["type"] for message in provider.heard] == ["session.update", "after", "tool.result"]


async def test_a_name_on_nobodys_list_is_answered_by_us_with_an_error() -> None:
    async with talking([weather()]) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call("tell_joke")
        await provider.say("reply.done")
        result = await provider.hear("tool.result")
        assert (result["is_error"], "get_weather" in result["result"]) == (True, True)


async def test_a_result_waits_for_the_reply_that_the_application_asked_for() -> None:
    gate = asyncio.Event()
    here = asyncio.get_running_loop()

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "done"

    async with talking([tool("get_weather", invoke)]) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        await app.until("reply.done")
        await app.say("reply.create")
        await provider.hear("reply.create")
        gate.set()
        await provider.say("reply.started")
        await provider.say("marker")
        await app.until("marker")
        await app.say("marker")
        await provider.hear("marker")
        assert "tool.result" not in {message["type"] for message in provider.heard}
        await provider.say("reply.done")
        await provider.hear("tool.result")


async def test_ours_are_injected_between_messages_even_if_one_comes_in_pieces() -> None:
    async with talking([weather()]) as (app, provider, _, _):
        await ready(app, provider)
        writer = app.socket.transport
        first = frame(Opcode.TEXT, b'{"type":"input.audio","audio":"AAAA', masked=True)
        rest = frame(Opcode.CONTINUATION, b'AAAA"}', masked=True)
        cut = len(rest) // 2
        writer.write(bytes([first[0] & 0x7F]) + first[1:] + rest[:cut])
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        assert (await provider.hear())["type"] == "tool.result"
        writer.write(rest[cut:])
        assert (await provider.hear())["audio"] == "AAAAAAAA"


async def test_a_large_message_passes_whole() -> None:
    async with talking() as (app, provider, _, _):
        text = json.dumps({"type": "note", "text": "x" * 1_000_000})
        await app.socket.send(text)
        assert await provider.socket.recv() == text
        await provider.socket.send(text)
        assert await app.socket.recv() == text


async def test_silence_is_filled_while_a_tool_takes_its_time() -> None:
    gate, here = asyncio.Event(), asyncio.get_running_loop()

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "done"

    slow = tool("get_weather", invoke, filler="One moment.", filler_after=0.05)
    async with talking([slow]) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("input.speech.started")
        await provider.say("input.speech.stopped")
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.audio", data="A" * 216)
        await provider.say("reply.done")
        assert await provider.hear() == {"type": "reply.create", "instructions": "One moment."}
        gate.set()
        await provider.say("reply.started")
        await provider.say("reply.done")
        assert (await provider.hear())["type"] == "tool.result"


# ----------------------------------------------------------------------------------------------------------- pings


async def test_pings_go_from_end_to_end() -> None:
    async with talking() as (app, provider, relay, _):
        listening = [asyncio.create_task(end.recv()) for end in (app.socket, provider.socket)]
        for end in (app.socket, provider.socket):
            await asyncio.wait_for(await end.ping(b"anyone?"), PATIENCE)
        counters = relay.counters
        assert (counters.from_application.control, counters.from_provider.control) == (2, 2)
        for task in listening:
            task.cancel()


async def test_pings_can_be_answered_here() -> None:
    async with talking(pings=Pings.ANSWER) as (app, provider, relay, _):
        listening = [asyncio.create_task(end.recv()) for end in (app.socket, provider.socket)]
        for end in (app.socket, provider.socket):
            await asyncio.wait_for(await end.ping(b"anyone?"), PATIENCE)
        counters = relay.counters
        assert (counters.from_application.control, counters.from_provider.control) == (1, 1)
        for task in listening:
            task.cancel()


async def test_a_provider_that_no_longer_answers_is_given_up() -> None:
    limits = replace(BRIEF, ping_interval=0.05, ping_timeout=0.1)
    async with talking(limits=limits) as (app, provider, relay, _):
        provider.socket.transport.pause_reading()
        assert await closed(app.socket) == (1013, "the provider does not answer")
        await until(lambda: relay.sessions == [])


async def test_peers_that_answer_our_pings_are_kept_and_see_none_of_each_others() -> None:
    async with talking(limits=replace(BRIEF, ping_interval=0.05, ping_timeout=0.05)) as (app, provider, relay, _):
        tasks = [asyncio.create_task(end.recv()) for end in (app.socket, provider.socket)]
        await until(lambda: relay.counters.from_provider.control >= 3 and relay.counters.from_application.control >= 3)
        await provider.say("still here")
        assert "still here" in str(await tasks[0])
        tasks[1].cancel()


# ------------------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize(("code", "reason"), [(1000, ""), (1001, "bye"), (4321, "our own"), (1008, "x" * 123)])
async def test_a_close_of_either_side_is_carried_with_code_and_reason(code: int, reason: str) -> None:
    async with talking() as (app, provider, relay, _):
        await asyncio.gather(app.socket.close(code, reason), closed(provider.socket))
        assert (provider.socket.close_code, provider.socket.close_reason) == (code, reason)
        await until(lambda: relay.sessions == [])
    async with talking() as (app, provider, relay, _):
        await asyncio.gather(provider.socket.close(code, reason), closed(app.socket))
        assert (app.socket.close_code, app.socket.close_reason) == (code, reason)
        await until(lambda: relay.sessions == [])


async def test_a_close_without_a_code_is_carried_as_such() -> None:
    async with talking() as (app, provider, _, _):
        app.socket.transport.write(frame(Opcode.CLOSE, b"", masked=True))
        assert await closed(provider.socket) == (1005, "")


async def test_what_the_provider_still_says_after_the_close_of_the_application_is_carried() -> None:
    async with talking() as (app, provider, _, _):
        app.socket.transport.write(frame(Opcode.CLOSE, close_payload(1000), masked=True))
        provider.socket.transport.write(frame(Opcode.TEXT, b'{"type":"session.ended"}', masked=False))
        await app.until("session.ended")


async def test_a_provider_that_does_not_answer_a_close_is_cut_off() -> None:
    async with talking() as (app, provider, relay, _):
        provider.socket.transport.pause_reading()
        await app.socket.close()
        await until(lambda: relay.sessions == [])


async def test_a_provider_that_drops_is_an_abort_for_the_application() -> None:
    async with talking() as (app, provider, relay, _):
        provider.socket.transport.abort()
        assert (await closed(app.socket))[0] == 1006
        await until(lambda: relay.sessions == [])


async def test_an_application_that_vanishes_has_its_session_ended() -> None:
    async with talking() as (app, provider, relay, _):
        app.socket.transport.abort()
        assert (await provider.hear())["type"] == "session.end"
        await provider.socket.close(1000)
        await until(lambda: relay.sessions == [])


async def test_a_session_that_the_provider_does_not_end_is_closed_by_us() -> None:
    async with talking() as (app, provider, relay, _):
        app.socket.transport.abort()
        assert await closed(provider.socket) == (1001, "the session has ended")
        await until(lambda: relay.sessions == [])


async def test_an_application_that_closes_half_of_its_connection_has_vanished() -> None:
    async with talking() as (app, provider, _, _):
        app.socket.transport.write_eof()
        assert (await provider.hear())["type"] == "session.end"


async def test_a_tool_may_end_the_session_once_its_result_is_sent() -> None:
    async def invoke(arguments: Any, context: Any) -> str:
        context.end_session("goodbye")
        return "ended"

    async with talking([tool("get_weather", invoke)]) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        assert [(await provider.hear())["type"] for _ in range(2)] == ["tool.result", "session.end"]
        await provider.say("session.ended")
        await app.until("session.ended")
        await provider.socket.close(1000, "done")
        assert await closed(app.socket) == (1000, "done")


async def test_nothing_is_sent_for_calls_of_a_session_that_is_over() -> None:
    gate, here = asyncio.Event(), asyncio.get_running_loop()

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "late"

    async with talking([tool("get_weather", invoke)]) as (app, provider, _, _):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        await provider.say("session.ended")
        await app.until("session.ended")
        gate.set()
        await app.say("marker")
        await provider.hear("marker")
        assert [message["type"] for message in provider.heard] == ["session.update", "marker"]


# ----------------------------------------------------------------------------------------------------------- bad frames

BAD_FRAMES = {
    "unmasked": (frame(Opcode.TEXT, b"{}", masked=False), 1002),
    "compressed": (b"\xc1" + frame(Opcode.TEXT, b"{}", masked=True)[1:], 1002),
    "bad opcode": (b"\x83" + frame(Opcode.TEXT, b"{}", masked=True)[1:], 1002),
    "bad utf-8": (frame(Opcode.TEXT, b'{"a":"\xff"}', masked=True), 1007),
    "too long": (b"\x81\xff\x00\x00\x00\x00\x10\x00\x00\x00", 1009),
    "two types": (frame(Opcode.TEXT, b'{"type":"input.audio","type":"tool.result"}', masked=True), 1008),
    "garbage": (b"\xff" * 4000, 1002),
    "a request": (b"GET / HTTP/1.1\r\n\r\n", 1002),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
async def test_an_application_that_breaks_the_protocol_is_told_and_nobody_else_notices(name: str) -> None:
    data, code = BAD_FRAMES[name]
    async with talking() as (app, provider, relay, providers), dial(address(relay)) as other:
        app.socket.transport.write(data + b"\x00" * 100_000)
        assert (await closed(app.socket))[0] == code
        assert (await provider.hear())["type"] == "session.end"
        await (await providers.next()).say("still here")
        await other.until("still here")
        await until(lambda: len(relay.sessions) == 1)


async def test_what_either_side_says_after_the_end_passes_and_opens_no_session_again() -> None:
    metrics = Metrics()
    async with talking(observers=(metrics,)) as (app, provider, relay, _):
        await app.say("session.update", session={})
        await provider.hear("session.update")
        app.socket.transport.write(BAD_FRAMES["garbage"][0])
        await provider.hear("session.end")
        await provider.say("session.ready", session_id="s")
        await provider.say("session.error", code="late", message="no")
        await provider.socket.close(1000)
        await until(lambda: not relay.sessions)
    page = metrics.render().decode()
    assert "bridge_sessions_open 0.0" in page
    assert 'code="late"' not in page


BAD_SERVER_FRAMES = {
    "masked": (frame(Opcode.TEXT, b"{}", masked=True), 1002),
    "compressed": (b"\xc1\x02{}", 1002),
    "bad utf-8": (b"\x81\x01\xff", 1007),
    "too long": (b"\x81\x7f\x00\x00\x00\x00\x10\x00\x00\x00", 1009),
    "two types": (frame(Opcode.TEXT, b'{"type":"reply.audio","type":"tool.call"}', masked=False), 1008),
    "no frame": (b"HTTP/1.1 200 OK\r\n\r\n", 1002),
}


@pytest.mark.parametrize("name", BAD_SERVER_FRAMES)
async def test_a_provider_that_breaks_the_protocol_is_told_and_so_is_the_application(name: str) -> None:
    data, code = BAD_SERVER_FRAMES[name]
    async with talking() as (app, provider, relay, _):
        provider.socket.transport.write(data)
        seen, reason = await closed(app.socket)
        assert (seen, str(reason).startswith("the provider broke the protocol")) == (1014, True)
        assert (await closed(provider.socket))[0] == code
        await until(lambda: relay.sessions == [])


# -------------------------------------------------------------------------------------------------------- back-pressure


def full_of(kind: str, key: str, size: int) -> str:
    return json.dumps({"type": kind, key: "A" * size})


@asynccontextmanager
async def narrow(relay: Relay) -> AsyncIterator[ClientConnection]:
    """An application with a small receive buffer, that has yet to read."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", relay.port))
    app = await connect("ws://localhost/v1/ws", sock=plain, compression=None, max_size=None, max_queue=1)
    try:
        yield app
    finally:
        app.transport.abort()
        await app.wait_closed()


async def flooded(provider: Provider) -> int:
    """Send audio until nobody takes it any more; how many messages that were."""
    sent, text = 0, full_of("reply.audio", "data", 50_000)
    while True:
        try:
            async with asyncio.timeout(0.3):
                await provider.socket.send(text)
        except TimeoutError:
            return sent + 1
        sent += 1


async def test_an_application_that_does_not_read_stops_the_provider_and_loses_nothing() -> None:
    async with providing() as providers, relaying(providers.url) as relay, narrow(relay) as app:
        provider = await providers.next()
        app.transport.pause_reading()
        sent = await flooded(provider)
        assert sent < 400
        app.transport.resume_reading()
        async with asyncio.timeout(PATIENCE):
            for _ in range(sent):
                assert len(await app.recv()) > 50_000


async def test_the_lag_is_how_long_the_slowest_peer_has_taken_nothing_and_none_while_all_do() -> None:
    metrics, lags = Metrics(), list[float]()

    def lag(seconds: float) -> None:
        lags.append(seconds)
        metrics.relay_lag(seconds)

    async with providing() as providers, relaying(providers.url, lag=lag) as relay, narrow(relay) as app:
        provider = await providers.next()
        await until(lambda: len(lags) > 0)
        app.transport.pause_reading()
        sent = await flooded(provider)
        await until(lambda: lags[-1] > 0.3)
        app.transport.resume_reading()
        async with asyncio.timeout(PATIENCE):
            for _ in range(sent):
                await app.recv()
        await until(lambda: lags[-1] == 0.0)
    assert lags[0] == 0.0
    registry, name = metrics.registry, "bridge_relay_lag_seconds"
    assert registry.get_sample_value(f"{name}_count") == len(lags)
    assert registry.get_sample_value(f"{name}_sum") == pytest.approx(sum(lags))
    assert registry.get_sample_value(f"{name}_bucket", {"le": "0.0"}) == lags.count(0.0)


async def test_nothing_is_released_while_the_provider_is_not_read_from() -> None:
    gate, here = asyncio.Event(), asyncio.get_running_loop()
    steps: list[Any] = []

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "done"

    def observe(session: Any, step: Any) -> None:
        steps.extend(map(type, step.events))

    tools = [tool("get_weather", invoke)]
    async with (
        providing() as providers,
        relaying(providers.url, tools, observers=(observe,)) as relay,
        narrow(relay) as app,
    ):
        provider = await providers.next()
        await app.send('{"type":"session.update","session":{}}')
        await provider.ready()
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        await until(lambda: relay.sessions[0].owed == 1)
        app.transport.pause_reading()
        await flooded(provider)
        assert relay.sessions[0].link == "paused"
        # The user speaks, but that has not been read; the result must not go out on what was known before.
        speech = asyncio.create_task(provider.say("input.speech.started"))
        gate.set()
        await until(lambda: "ToolFinished" in {kind.__name__ for kind in steps})
        await app.send('{"type":"marker"}')
        await provider.hear("marker")
        assert "tool.result" not in {message["type"] for message in provider.heard}
        app.transport.resume_reading()
        async with asyncio.timeout(PATIENCE):
            while "speech" not in str(await app.recv())[:40]:
                pass
        await speech
        await until(lambda: "ReadingResumed" in {kind.__name__ for kind in steps})
        await app.send('{"type":"marker"}')
        await provider.hear("marker")
        assert "tool.result" not in {message["type"] for message in provider.heard}
        # Only after the reply to that.
        await provider.say("input.speech.stopped")
        await provider.say("reply.started")
        await provider.say("reply.done")
        await provider.hear("tool.result")


async def test_a_provider_that_does_not_read_stops_the_application_and_loses_nothing() -> None:
    async with talking() as (app, provider, _, _):
        text, sent = full_of("input.audio", "audio", 100_000), 0
        provider.socket.transport.pause_reading()
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.3):
                    await app.socket.send(text)
                sent += 1
        provider.socket.transport.resume_reading()
        for _ in range(sent):
            await provider.hear("input.audio")


async def test_an_application_that_reads_nothing_for_too_long_is_given_up() -> None:
    limits = replace(BRIEF, stall_timeout=0.2, end_timeout=2.0)
    async with (
        providing() as providers,
        relaying(providers.url, limits=limits) as relay,
        narrow(relay) as app,
    ):
        provider = await providers.next()
        app.transport.pause_reading()
        sending = asyncio.create_task(send_for_ever(provider.socket, full_of("reply.audio", "data", 100_000)))
        assert (await provider.hear())["type"] == "session.end"
        sending.cancel()
        await provider.socket.close()
        await until(lambda: relay.sessions == [])


async def test_a_provider_that_reads_nothing_for_too_long_is_given_up() -> None:
    async with talking(limits=replace(BRIEF, stall_timeout=0.2)) as (app, provider, _, _):
        provider.socket.transport.pause_reading()
        sending = asyncio.create_task(send_for_ever(app.socket, full_of("input.audio", "audio", 100_000)))
        assert await closed(app.socket) == (1013, "the provider does not read")
        await asyncio.wait([sending])
        assert isinstance(sending.exception(), ConnectionClosed)


async def send_for_ever(end: Connection, text: str) -> None:
    while True:
        await end.send(text)


# -------------------------------------------------------------------------------------------------- coming back


async def test_an_application_that_comes_back_finds_its_owed_result() -> None:
    gate, here = asyncio.Event(), asyncio.get_running_loop()
    finished = asyncio.Event()

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "kept"

    def observe(session: Any, step: Any) -> None:
        if "ToolFinished" in {type(event).__name__ for event in step.events}:
            finished.set()

    options = {"on_application_loss": OnLoss.KEEP, "observers": (observe,)}
    async with talking([tool("get_weather", invoke)], **options) as (app, provider, relay, providers):
        await ready(app, provider)
        await provider.say("reply.started")
        await provider.call()
        await provider.say("reply.done")
        await until(lambda: relay.sessions[0].owed == 1)
        name = relay.sessions[0].id
        app.socket.transport.abort()
        assert (await closed(provider.socket))[0] == 1006
        await until(lambda: relay.sessions == [])
        gate.set()
        await asyncio.wait_for(finished.wait(), PATIENCE)
        async with dial(address(relay)) as again:
            provider = await providers.next()
            await again.say("session.resume", session_id="sess_1")
            await provider.hear("session.resume")
            await provider.say("session.ready", session_id="sess_1")
            assert json.loads((await provider.hear("tool.result"))["result"]) == "kept"
            await again.until("session.ready")
            assert ([session.id for session in relay.sessions], relay.counters.resumed) == ([name], 1)


async def test_a_session_that_nobody_comes_back_to_is_forgotten() -> None:
    ended: list[str] = []

    def observe(session: Any, step: Any) -> None:
        ended.extend(event.reason for event in step.events if type(event).__name__ == "SessionEnded")

    limits = replace(BRIEF, resume_timeout=0.05)
    options = {"on_application_loss": OnLoss.KEEP, "observers": (observe,)}
    async with talking(limits=limits, **options) as (app, provider, relay, providers):
        await ready(app, provider)
        provider.socket.transport.abort()
        assert (await closed(app.socket))[0] == 1006
        await until(lambda: ended == ["nobody came back to it"])
        async with dial(address(relay)) as again:
            provider = await providers.next()
            await again.say("session.resume", session_id="sess_1")
            await provider.hear("session.resume")
            assert relay.counters.resumed == 0


async def test_a_session_that_was_never_ready_is_not_kept() -> None:
    async with talking(on_application_loss=OnLoss.KEEP, limits=BRIEF) as (app, provider, _, _):
        app.socket.transport.abort()
        assert (await provider.hear())["type"] == "session.end"
