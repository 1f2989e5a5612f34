"""A provider that is lost, and an application that does not notice: the session is resumed over another connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.frames import Opcode
from websockets.http11 import Request, Response

from bridge.admin.sources import relay_source
from bridge.relay import Limits, OnLoss, OnProviderLoss, Relay, server
from bridge.relay.leg import Closing, Leg, Side
from bridge.session import reconnect
from tests.cable import Cable
from tests.relay.rig import BRIEF, PATIENCE, Provider, Providers, address, providing, relaying, tool, until, weather
from tests.simulator.raw import Raw, dial

pytestmark = pytest.mark.anyio

STAYING: Any = {"on_provider_loss": OnProviderLoss.RESUME}
NOT_FOUND = {"code": "session_not_found", "message": "gone"}


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "_FIRST", 0.01)


@asynccontextmanager
async def talking(
    tools: Any = (), limits: Limits = BRIEF, headers: Any = (), path: str = "/v1/ws", **options: Any
) -> AsyncIterator[tuple[Raw, Provider, Providers, Relay, Cable]]:
    """An application whose session is ready; a cable leads from the relay to the provider."""
    async with (
        providing() as providers,
        Cable.to(providers.url) as cable,
        relaying(cable.url, tools, limits=limits, **STAYING, **options) as relay,
        dial(address(relay, path), **dict(headers)) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await app.until("session.ready")
        yield app, provider, providers, relay, cable


async def resumed(providers: Providers, token: str = "") -> Provider:
    """The next connection asks for the session, and gets it."""
    provider = await providers.next()
    assert await provider.hear() == {"type": "session.resume", "session_id": "sess_1"}
    await provider.say("session.ready", session_id="sess_1", **({"resume_token": token} if token else {}))
    return provider


async def asked(provider: Provider) -> None:
    """The agent has called its tool, and fallen silent."""
    await provider.say("reply.started", reply_id="r1")
    await provider.call()
    await provider.say("reply.done", reply_id="r1", status="completed")


def gated(gate: asyncio.Event) -> Any:
    """A tool that ends when it is let."""
    here = asyncio.get_running_loop()

    async def invoke(arguments: Any, context: Any) -> str:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(gate.wait(), here))
        return "done"

    return tool("get_weather", invoke)


# ------------------------------------------------------------------------------------------------------ it is resumed


async def test_the_application_does_not_notice_that_its_provider_was_lost() -> None:
    async with talking() as (app, provider, providers, relay, cable):
        cable.cut()
        provider = await resumed(providers)
        await provider.say("hello")
        await app.until("hello")
        await app.say("anybody?")
        assert (await provider.hear())["type"] == "anybody?"
        assert app.order == ["session.updated", "session.ready", "hello"]
        assert (relay.counters.lost, relay.counters.dropped) == ({"resumed": 1}, 0)
        assert [(each.link, each.provider_session_id) for each in relay.sessions] == [("up", "sess_1")]


async def test_a_result_of_the_gap_is_sent_once_when_the_session_goes_on() -> None:
    gate = asyncio.Event()
    async with talking([gated(gate)]) as (app, provider, providers, relay, cable):
        await asked(provider)
        await until(lambda: relay.sessions[0].owed == 1)
        cable.tear()
        await cable.turns_away(1)
        gate.set()
        await cable.turns_away(1)
        cable.mend()
        provider = await resumed(providers)
        result = await provider.hear()
        assert (result["type"], result["call_id"], json.loads(result["result"])) == ("tool.result", "c1", "done")
        await app.say("fence")
        assert (await provider.hear())["type"] == "fence"


async def test_a_result_that_was_on_its_way_is_sent_again() -> None:
    async with talking([weather()]) as (_, provider, providers, relay, cable):
        cable.jam()
        await asked(provider)
        await until(lambda: relay.sessions[0].reply == "asked")
        cable.cut()
        provider = await resumed(providers)
        assert (await provider.hear())["call_id"] == "c1"
        await until(lambda: relay.sessions[0].owed == 0)
        assert len(provider.heard) == 2


async def test_a_result_that_has_arrived_is_not_sent_again() -> None:
    async with talking([weather()]) as (app, provider, providers, relay, cable):
        await asked(provider)
        assert (await provider.hear())["type"] == "tool.result"
        await until(lambda: relay.sessions[0].owed == 0)
        cable.cut()
        provider = await resumed(providers)
        await app.say("fence")
        assert (await provider.hear())["type"] == "fence"


@pytest.mark.slow
async def test_a_provider_that_answers_no_pings_is_believed_to_have_what_it_was_sent() -> None:
    limits = replace(BRIEF, ping_interval=30.0, ping_timeout=0.1)
    async with talking([weather()], limits=limits) as (_, provider, _, relay, _):
        send = provider.socket.protocol.send_frame
        provider.socket.protocol.send_frame = lambda each: None if each.opcode is Opcode.PONG else send(each)  # type: ignore[method-assign]  # it is to be rude
        await asked(provider)
        assert (await provider.hear())["type"] == "tool.result"
        await until(lambda: relay.sessions[0].owed == 0)


@pytest.mark.parametrize("code", [1001, 1011, 1012])
async def test_a_provider_that_goes_away_with_a_word_is_looked_for_as_well(code: int) -> None:
    async with talking() as (app, provider, providers, relay, _):
        async with asyncio.timeout(PATIENCE):
            await provider.socket.close(code, "restart")
        assert provider.socket.close_code == code
        await (await resumed(providers)).say("hello")
        await app.until("hello")
        assert relay.counters.lost == {"resumed": 1}


@pytest.mark.slow
async def test_a_provider_that_answers_no_more_is_looked_for_as_well() -> None:
    limits = replace(BRIEF, ping_interval=0.05, ping_timeout=0.1)
    async with talking(limits=limits) as (app, provider, providers, _, _):
        provider.socket.transport.pause_reading()
        await (await resumed(providers)).say("hello")
        await app.until("hello")


@pytest.mark.slow
async def test_a_provider_that_reads_no_more_is_looked_for_as_well() -> None:
    async with talking(limits=replace(BRIEF, stall_timeout=0.2)) as (app, provider, providers, relay, _):
        provider.socket.transport.pause_reading()
        text = json.dumps({"type": "input.audio", "audio": "A" * 50_000})
        flooding = asyncio.create_task(_pour(app, text))
        provider = await resumed(providers)
        await provider.say("hello")
        await app.until("hello")
        flooding.cancel()
        await app.say("fence")
        assert (await provider.hear("fence"))["type"] == "fence"
        assert relay.counters.dropped > 0


async def _pour(app: Raw, text: str) -> None:
    """As much as anybody takes."""
    while True:
        await app.socket.send(text)


@pytest.mark.slow
async def test_a_provider_that_dies_again_while_it_resumes_is_tried_again() -> None:
    async with talking() as (app, provider, providers, relay, cable):
        cable.cut()
        for _ in range(2):
            provider = await providers.next()
            assert (await provider.hear())["type"] == "session.resume"
            cable.cut()
        for code in (1011, 1000):
            provider = await providers.next()
            assert (await provider.hear())["type"] == "session.resume"
            await provider.socket.close(code)
        provider = await providers.next()
        await provider.say("session.error", code="at_capacity", message="full")
        provider = await resumed(providers)
        await provider.say("hello")
        await app.until("hello")
        assert relay.counters.lost == {"resumed": 1}
        assert app.heard("session.error") == []


@pytest.mark.slow
async def test_a_provider_that_is_silent_when_asked_is_asked_again() -> None:
    async with talking(limits=replace(BRIEF, dial_timeout=0.2)) as (app, _, providers, _, cable):
        cable.cut()
        assert (await (await providers.next()).hear())["type"] == "session.resume"
        await (await resumed(providers)).say("hello")
        await app.until("hello")


async def test_what_an_attempt_says_before_it_answers_is_for_nobody() -> None:
    async with talking() as (app, _, providers, _, cable):
        cable.cut()
        broken = await providers.next()
        await broken.hear("session.resume")
        broken.socket.transport.write(b"\xff\x00")
        provider = await providers.next()
        await provider.hear("session.resume")
        async with asyncio.timeout(PATIENCE):
            await (await provider.socket.ping())
        await provider.say("transcript.user", text="Hello?")
        await provider.say("reply.audio", data="AAAA")
        await provider.say("session.ready", session_id="sess_1")
        await provider.say("hello")
        await app.until("hello")
        assert app.order == ["session.updated", "session.ready", "hello"]


async def test_a_fault_of_our_own_in_the_gap_is_the_end_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def faulty(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(server, "redial", faulty)
    async with talking() as (app, _, _, relay, cable):
        cable.cut()
        assert await app.closed() == 1014
        assert relay.counters.lost == {"given_up": 1}


async def test_what_became_of_lost_providers_is_among_the_metrics() -> None:
    async with talking() as (app, _, providers, relay, cable):
        cable.cut()
        await (await resumed(providers)).say("hello")
        await app.until("hello")
        told = {(each.name, each.labels): each.value for each in relay_source(relay)()}
    assert told["bridge_provider_losses_total", ("resumed",)] == 1
    assert told["bridge_dropped_media_total", ()] == 0


async def test_it_is_lost_and_resumed_again_and_again() -> None:
    async with talking() as (app, _, providers, relay, cable):
        for number in range(3):
            cable.cut()
            await (await resumed(providers)).say("hello", number=number)
            await app.until("hello", number=number)
        assert relay.counters.lost == {"resumed": 3}
        # What has come over all of the connections is counted: six answers to a setup or a resume, and three of these.
        assert relay.counters.from_provider.messages == 2 + 3 * 2


# ---------------------------------------------------------------------------------------------------- the credentials


async def shown(app: Raw, providers: Providers, cable: Cable, token: str = "") -> tuple[str | None, str]:
    """What the relay shows when it comes back: its credentials, and the path."""
    cable.cut()
    provider = await resumed(providers, token)
    await provider.say("hello", token=token)
    await app.until("hello", token=token)
    request = provider.socket.request
    assert request is not None
    return request.headers.get("Authorization"), request.path


async def test_each_resume_shows_the_latest_token_of_the_provider_and_nothing_else() -> None:
    path = "/v1/ws?a=1&token=theirs"
    async with talking(headers={"Authorization": "Bearer theirs", "X-Trace": "7"}, path=path) as (
        app,
        provider,
        providers,
        _,
        cable,
    ):
        await provider.say("session.ready", session_id="sess_1", resume_token="t1")
        await app.until("session.ready")
        assert await shown(app, providers, cable, "t2") == ("Bearer t1", "/v1/ws?a=1")
        assert await shown(app, providers, cable, "t3") == ("Bearer t2", "/v1/ws?a=1")


async def test_without_a_token_of_the_provider_the_credentials_are_those_of_the_application() -> None:
    path = "/v1/ws?token=theirs"
    async with talking(headers={"Authorization": "Bearer theirs"}, path=path) as (app, _, providers, _, cable):
        assert await shown(app, providers, cable) == ("Bearer theirs", path)


async def test_or_the_key_of_the_relay() -> None:
    async with talking(api_key="ours") as (app, _, providers, _, cable):
        assert await shown(app, providers, cable) == ("Bearer ours", "/v1/ws")


# ---------------------------------------------------------------------------------------------------------- the gap


async def test_audio_of_the_gap_is_dropped_and_counted_and_messages_are_held_in_their_order() -> None:
    async with talking() as (app, _, providers, relay, cable):
        cable.tear()
        await cable.turns_away(1)
        before = relay.counters.from_application
        await app.say("first")
        for _ in range(5):
            await app.say("input.audio", audio="AAAA")
        await app.say("second")
        await until(lambda: relay.counters.from_application.messages == before.messages + 2)
        cable.mend()
        provider = await resumed(providers)
        await until(lambda: relay.counters.lost == {"resumed": 1})
        await app.say("input.audio", audio="BBBB")
        kinds = [await provider.hear() for _ in range(3)]
        assert [each["type"] for each in kinds] == ["first", "second", "input.audio"]
        assert kinds[-1]["audio"] == "BBBB"
        assert relay.counters.dropped == 5


async def test_a_reply_that_the_application_asked_for_in_the_gap_comes_before_our_results() -> None:
    gate = asyncio.Event()
    async with talking([gated(gate)]) as (app, provider, providers, relay, cable):
        await asked(provider)
        await until(lambda: relay.sessions[0].owed == 1)
        cable.tear()
        await cable.turns_away(1)
        before = relay.counters.from_application.messages
        await app.say("reply.create")
        await until(lambda: relay.counters.from_application.messages == before + 1)
        gate.set()
        cable.mend()
        provider = await resumed(providers)
        assert (await provider.hear())["type"] == "reply.create"
        await app.say("fence")
        assert (await provider.hear())["type"] == "fence"
        await provider.say("reply.started", reply_id="r2")
        await provider.say("reply.done", reply_id="r2")
        assert (await provider.hear())["type"] == "tool.result"


async def test_an_application_that_says_more_than_is_held_loses_its_session() -> None:
    async with talking() as (app, _, _, relay, cable):
        cable.tear()
        await cable.turns_away(1)
        for _ in range(5):
            await app.say("much", text="x" * 16_000)
        assert await app.closed() == 1014
        await until(lambda: relay.sessions == [])
        assert relay.counters.lost == {"given_up": 1}


async def test_pings_of_the_application_are_answered_while_the_provider_is_away() -> None:
    async with talking() as (app, _, providers, _, cable):
        cable.tear()
        await cable.turns_away(1)
        async with asyncio.timeout(PATIENCE):
            await (await app.socket.ping())
        cable.mend()
        await (await resumed(providers)).say("hello")
        await app.until("hello")


async def _flood(provider: Provider, text: str) -> None:
    """Until nobody takes it any more."""
    with suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.2):
                await provider.socket.send(text)


@pytest.mark.slow
async def test_an_application_that_reads_late_hears_what_was_said_before_the_gap_and_after_it() -> None:
    async with talking([weather()]) as (app, provider, providers, relay, cable):
        app.socket.transport.pause_reading()
        await _flood(provider, json.dumps({"type": "reply.audio", "data": "A" * 50_000}))
        await until(lambda: relay.sessions[0].link == "paused")
        cable.cut()
        app.socket.transport.resume_reading()
        provider = await resumed(providers)
        await asked(provider)
        assert (await provider.hear("tool.result"))["call_id"] == "c1"
        await app.until("reply.done")
        assert app.heard("reply.audio")


# ------------------------------------------------------------------------------------------------------------ the end


async def test_an_application_whose_session_the_provider_does_not_resume_is_closed() -> None:
    async with talking() as (app, provider, providers, relay, cable):
        cable.cut()
        provider = await providers.next()
        await provider.hear("session.resume")
        await provider.say("session.error", **NOT_FOUND)
        assert await app.closed() == 1014
        assert app.order == ["session.updated", "session.ready"]
        await until(lambda: relay.sessions == [])
        assert relay.counters.lost == {"refused": 1}
        assert await closed(provider) == 1006


async def closed(provider: Provider) -> int | None:
    """How the relay leaves this connection."""
    async with asyncio.timeout(PATIENCE):
        await provider.socket.wait_closed()
    return provider.socket.close_code


async def test_credentials_that_count_no_more_are_not_tried_again() -> None:
    def judge(socket: ServerConnection, request: Request) -> Response | None:
        asked.append(request.headers.get("Authorization"))
        return socket.respond(HTTPStatus.UNAUTHORIZED, "no") if len(asked) > 1 else None

    asked: list[str | None] = []
    async with (
        providing(process_request=judge) as providers,
        relaying(providers.url, api_key="ours", **STAYING) as relay,
        dial(address(relay)) as app,
    ):
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.ready()
        await app.until("session.ready")
        provider.socket.transport.abort()
        assert await app.closed() == 1014
        assert (asked, relay.counters.lost) == (["Bearer ours"] * 2, {"refused": 1})


@pytest.mark.slow
async def test_a_provider_that_does_not_come_back_in_time_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with talking(limits=replace(BRIEF, resume_timeout=0.2)) as (app, _, _, relay, cable):
        cable.tear()
        assert await app.closed() == 1014
        await until(lambda: relay.sessions == [])
        assert relay.counters.lost == {"given_up": 1}
    assert "without its provider, then given up" in caplog.text
    assert "there was no other within 0.2 s: the provider closed the connection during the handshake" in caplog.text


VERDICTS = {"a normal end": 1000, "a broken rule": 1008, "its own": 3007}


@pytest.mark.parametrize("code", VERDICTS.values(), ids=VERDICTS)
async def test_a_close_that_is_a_verdict_is_the_applications_too(code: int) -> None:
    async with talking() as (app, provider, _, relay, _):
        await provider.socket.close(code)
        assert await app.closed() == code
        assert relay.counters.lost == {}


async def test_an_error_that_nothing_survives_is_not_outlived() -> None:
    async with talking() as (app, provider, _, relay, cable):
        await provider.say("session.error", code="internal_error", message="oops")
        await app.until("session.error")
        cable.cut()
        assert await app.closed() == 1006
        assert relay.counters.lost == {}


async def test_a_session_that_the_application_has_ended_is_not_looked_for() -> None:
    async with talking() as (app, provider, _, relay, cable):
        await app.say("session.end")
        await provider.hear("session.end")
        cable.cut()
        assert await app.closed() == 1006
        assert relay.counters.lost == {}


async def test_a_session_that_was_never_ready_is_not_looked_for() -> None:
    async with providing() as providers, relaying(providers.url, **STAYING) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        await app.say("session.update", session={})
        await provider.hear("session.update")
        provider.socket.transport.abort()
        assert await app.closed() == 1006


@pytest.mark.parametrize("how", ["vanishes", "closes"])
async def test_an_application_that_leaves_in_the_gap_ends_the_search(how: str) -> None:
    async with talking([weather()]) as (app, _, providers, relay, cable):
        cable.tear()
        await cable.turns_away(1)
        if how == "vanishes":
            app.socket.transport.abort()
        else:
            async with asyncio.timeout(PATIENCE):
                await app.socket.close(1000)
            assert app.socket.close_code == 1000
        await until(lambda: relay.sessions == [])
        assert relay.counters.lost == {"left": 1}
        cable.mend()
        async with dial(address(relay)) as other:
            fence = await providers.next()
            await other.say("fence")
            assert (await fence.hear())["type"] == "fence"
            assert providers.all.empty()


async def test_an_application_that_vanishes_in_the_gap_may_come_back_to_its_session() -> None:
    gate = asyncio.Event()
    options = {"on_application_loss": OnLoss.KEEP}
    async with talking([gated(gate)], **options) as (app, provider, providers, relay, cable):
        await asked(provider)
        await until(lambda: relay.sessions[0].owed == 1)
        cable.tear()
        await cable.turns_away(1)
        app.socket.transport.abort()
        await until(lambda: relay.sessions == [])
        cable.mend()
        gate.set()
        async with dial(address(relay)) as again:
            provider = await providers.next()
            await again.say("session.resume", session_id="sess_1")
            await provider.hear("session.resume")
            await provider.say("session.ready", session_id="sess_1")
            assert json.loads((await provider.hear("tool.result"))["result"]) == "done"
            await again.until("session.ready")
            assert (relay.counters.resumed, relay.counters.lost) == (1, {"left": 1})


@pytest.mark.parametrize("owed", [False, True], ids=["with nothing owed", "with a result owed"])
async def test_a_relay_that_stops_in_the_gap_ends_the_session(owed: bool) -> None:
    async with talking([gated(asyncio.Event())]) as (app, provider, _, relay, cable):
        if owed:
            await asked(provider)
            await until(lambda: relay.sessions[0].owed == 1)
        cable.tear()
        await cable.turns_away(1)
        ended = asyncio.create_task(app.closed())
        assert await relay.drain(0.0) == 1
        assert await ended == 1001
        assert relay.counters.lost == {"left": 1}


async def test_a_session_is_resumed_while_the_relay_drains() -> None:
    async with talking() as (app, _, providers, relay, cable):
        cable.tear()
        await cable.turns_away(1)
        draining = asyncio.create_task(relay.drain(PATIENCE))
        await until(lambda: relay.ready == "draining")
        cable.mend()
        provider = await resumed(providers)
        await provider.say("session.ended")
        await provider.socket.close(1000)
        assert await app.closed() == 1000
        assert await draining == 0


@pytest.mark.slow
async def test_many_sessions_come_back_at_once() -> None:
    many = 24
    async with (
        providing() as providers,
        Cable.to(providers.url) as cable,
        relaying(cable.url, limits=replace(BRIEF, max_dials=3), **STAYING) as relay,
        AsyncExitStack() as stack,
    ):
        apps = [await stack.enter_async_context(dial(address(relay))) for _ in range(many)]
        for number, app in enumerate(apps):
            provider = await providers.next()
            await provider.say("session.ready", session_id=f"sess_{number}")
            await app.until("session.ready")
        cable.cut()
        for _ in apps:
            provider = await providers.next()
            session_id = (await provider.hear("session.resume"))["session_id"]
            await provider.say("session.ready", session_id=session_id)
            await provider.say("hello", to=session_id)
        for number, app in enumerate(apps):
            assert (await app.until("hello"))["to"] == f"sess_{number}"
        assert relay.counters.lost == {"resumed": many}


async def test_a_retired_connection_touches_nobody() -> None:
    class Owner:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"it was told: {name}")

    class Wire:
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    leg = Leg(Side.PROVIDER, Owner(), media=frozenset({"a"}), max_message=1000)
    other = Leg(Side.APPLICATION, Owner(), media=frozenset({"a"}), max_message=1000)
    heard: list[bytes] = []
    leg.peer, leg.transport, other.write = other, Wire(), heard.append  # type: ignore[assignment]  # a wire without a socket
    leg.retire()
    for said in (b'\x81\x0c{"type":"a"}', b'\x81\x0c{"type":"b"}', b"\x88\x00", b"\xff"):
        leg.data_received(said)
    leg.pause_writing()
    leg.resume_writing()
    leg.connection_lost(None)
    assert (leg.closing, leg.transport.aborted, heard) == (Closing.LOST, 1, [])  # type: ignore[attr-defined]  # of the wire
