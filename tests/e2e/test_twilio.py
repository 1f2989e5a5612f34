"""The telephony example: a phone call from Twilio's side to the agent, and back to the caller's ear."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import importlib.util
import json
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bridge import Toolset
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.relay import Listen, Relay, Route, Upstream
from bridge.scenarios import SCENARIOS
from bridge.simulator import (
    AudioPace,
    AwaitResults,
    BargeIn,
    Call,
    Ended,
    HangUp,
    Reply,
    Rules,
    Say,
    Scenario,
    Simulator,
    Step,
    UserSays,
    Wait,
)
from bridge.simulator.speech import Ear, Edge, Format

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC_URL = "wss://voice.example.com/media"
TOKEN = "a token of the test"
LOUD, QUIET = bytes([0x90, 0x10] * 80), b"\xff" * 160


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


twilio = _load("twilio_media_streams")


@asynccontextmanager
async def phone_line(agent_url: str, **settings: Any) -> AsyncIterator[str]:
    """The example, taking calls for this agent."""
    async with await twilio.listen(twilio.Settings(agent_url, **settings), "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/media"


@asynccontextmanager
async def sidecar(sim: Simulator) -> AsyncIterator[str]:
    """The relay in front of this provider, with a tool."""
    tools = Toolset()

    @tools.tool
    async def get_weather(city: str) -> str:
        """Weather now."""
        return f"rain in {city}"

    upstream = Upstream(dialect=ASSEMBLYAI, url=sim.url)
    async with Relay([Route(upstream=upstream)], tools) as relay:
        await relay.start(Listen(port=0))
        yield f"ws://127.0.0.1:{relay.port}/v1/ws"


def simulated(*steps: Step, **rules: Any) -> Simulator:
    return Simulator(Scenario("call", "A phone call.", steps, rules=Rules(**rules)), pace=0.1)


class Caller:
    """Twilio's side of one call, as its documentation describes it. Nothing is played: marks come back when told."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.heard: list[dict[str, Any]] = []

    async def begin(self) -> None:
        await self.say({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "streamSid": "MZ1",
            "accountSid": "AC1",
            "callSid": "CA1",
            "tracks": ["inbound"],
            "customParameters": {},
        }
        await self.say({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": start})

    async def say(self, message: dict[str, Any]) -> None:
        await self.socket.send(json.dumps(message))

    async def until(self, event: str) -> dict[str, Any]:
        async for frame in self.socket:
            self.heard.append(json.loads(frame))
            assert self.heard[-1]["streamSid"] == "MZ1"
            if self.heard[-1]["event"] == event:
                return self.heard[-1]
        raise AssertionError(f"no {event} came")

    async def rest(self) -> list[str]:
        try:
            async for frame in self.socket:
                self.heard.append(json.loads(frame))
        except ConnectionClosed:
            pass
        return [message["event"] for message in self.heard]

    async def mark(self, name: str) -> None:
        await self.say({"event": "mark", "streamSid": "MZ1", "mark": {"name": name}})


@asynccontextmanager
async def calling(url: str) -> AsyncIterator[Caller]:
    async with connect(url, compression=None, max_queue=None) as socket:
        caller = Caller(socket)
        await caller.begin()
        yield caller


@asynccontextmanager
async def phone_call(sim: Simulator, **settings: Any) -> AsyncIterator[Caller]:
    async with asyncio.timeout(20), sim, phone_line(sim.url, **settings) as url, calling(url) as caller:
        yield caller


async def test_the_voice_of_the_agent_reaches_the_caller_as_it_is() -> None:
    sim = simulated(Say("Good day.", 1.0), HangUp())
    async with phone_call(sim, greeting="") as caller:
        mark = await caller.until("mark")
        await caller.mark(mark["mark"]["name"])
        await caller.rest()
    voice = b"".join(base64.b64decode(m["media"]["payload"]) for m in caller.heard if m["event"] == "media")
    assert len(voice) == 800  # a tenth of a second at the simulator's pace, 8000 bytes a second
    assert Ear(Format.MU_LAW, 0.2).hear(voice) == [Edge.STARTED]
    assert sim.ledger.violations == []


async def test_the_caller_hears_the_last_words_before_the_line_is_closed() -> None:
    sim = simulated(Say("Goodbye.", 0.5), HangUp())
    async with phone_call(sim, greeting="") as caller:
        mark = await caller.until("mark")
        await sim.session_over()
        caller.socket.close_timeout = 1
        await caller.socket.ping()  # still there
        await caller.mark(mark["mark"]["name"])
        await caller.rest()
    assert caller.socket.close_code == 1000


async def test_playback_is_cleared_when_the_caller_cuts_in_and_the_cut_reply_falls_silent() -> None:
    steps = (
        Say("A long story.", 10.0),
        BargeIn("Stop.", after=1.0, seconds=1.0),
        Say("Yes?", 0.5),
        Wait(1.0),
        HangUp(),
    )
    sim = simulated(*steps)
    async with phone_call(sim, greeting="") as caller:
        await caller.until("clear")
        cleared_at = len(caller.heard)
        mark = await caller.until("mark")
        await caller.mark(mark["mark"]["name"])
        events = await caller.rest()
    assert "media" in events[cleared_at:]
    assert events.count("mark") == 1  # the cut reply has none: nobody has heard its end


async def test_a_reply_that_came_in_one_burst_is_cleared_although_the_provider_calls_it_done() -> None:
    steps = (Say("A long story.", 5.0), BargeIn("Stop.", after=1.0, seconds=0.5), HangUp())
    sim = simulated(*steps, audio_pace=AudioPace.BURST)
    async with phone_call(sim, greeting="") as caller:
        await caller.until("mark")
        await caller.until("clear")
        # Twilio sends the outstanding marks back after a clear; that ends nothing and is no error.
        await caller.mark("reply-1")
        events = await caller.rest()
    assert events.count("clear") == 1


async def test_hanging_up_ends_the_session_at_the_provider() -> None:
    async with simulated(Say("Hello.", 0.5), Wait(1000.0)) as sim, phone_line(sim.url) as url:
        async with asyncio.timeout(20):
            async with calling(url) as caller:
                await caller.until("media")
                await caller.say({"event": "stop", "streamSid": "MZ1", "stop": {"accountSid": "AC1", "callSid": "CA1"}})
                await caller.rest()
            ledger = await sim.session_over()
    assert ledger.ended is Ended.BY_CLIENT


async def test_a_lost_phone_line_ends_the_session_at_the_provider() -> None:
    async with simulated(Say("Hello.", 0.5), Wait(1000.0)) as sim, phone_line(sim.url) as url:
        async with asyncio.timeout(20):
            async with calling(url) as caller:
                await caller.until("media")
                caller.socket.transport.abort()
            ledger = await sim.session_over()
    assert ledger.ended is Ended.BY_CLIENT


async def test_no_audio_is_sent_before_the_agent_is_ready() -> None:
    sim = simulated(Say("Hello.", 0.5), HangUp(), startup=2.0)
    async with phone_call(sim) as caller:
        for _ in range(20):
            media = {
                "track": "inbound",
                "chunk": "1",
                "timestamp": "5",
                "payload": base64.b64encode(QUIET).decode(),
            }
            await caller.say({"event": "media", "streamSid": "MZ1", "media": media})
        await caller.until("media")
    assert sim.ledger.violations == []


async def test_an_agent_that_cannot_be_reached_closes_the_line(caplog: pytest.LogCaptureFixture) -> None:
    async with phone_line("ws://127.0.0.1:9/nothing") as url, asyncio.timeout(20), calling(url) as caller:
        assert await caller.rest() == []
    assert "no call" in caplog.text


async def test_a_refused_session_closes_the_line(caplog: pytest.LogCaptureFixture) -> None:
    sim = simulated(refuse_with="at_capacity")
    async with phone_call(sim) as caller:
        assert await caller.rest() == []
    assert "the agent reports at_capacity" in caplog.text


async def test_a_connection_without_a_start_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twilio, "START_SECONDS", 0.05)
    async with simulated() as sim, phone_line(sim.url) as url, asyncio.timeout(20), connect(url) as socket:
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert sim.ledgers == []


async def test_the_agent_on_the_phone_uses_the_tools_of_the_sidecar() -> None:
    sim = Simulator(SCENARIOS["weather"], pace=0.1)
    async with asyncio.timeout(20), sim, sidecar(sim) as agent, phone_line(agent, greeting="") as url:
        async with calling(url) as caller:
            for _ in range(2):  # what it says before the result, and what it says of the result
                mark = await caller.until("mark")
                await caller.mark(mark["mark"]["name"])
            await caller.rest()
        ledger = await sim.session_over()
    assert ledger.call("get_weather").result == '"rain in Oslo"'
    assert ledger.call("get_weather").answered == 1
    assert ledger.violations == []


# ------------------------------------------------------------------------------------------------------- signatures


def signature(url: str, token: str = TOKEN) -> str:
    return base64.b64encode(hmac.new(token.encode(), url.encode(), hashlib.sha1).digest()).decode()


@pytest.mark.parametrize(
    ("url", "accepted"),
    [
        ("wss://voice.example.com/media", True),
        ("wss://voice.example.com:443/media", True),
        ("wss://voice.example.com/media/", False),
        ("https://voice.example.com/media", False),
        ("wss://evil.example.com/media", False),
    ],
)
async def test_only_the_signed_address_of_the_twiml_opens_the_line(url: str, accepted: bool) -> None:
    sim, headers = simulated(Say("Hello.", 0.5)), {"X-Twilio-Signature": signature(url)}
    async with asyncio.timeout(20), sim, phone_line(sim.url, public_url=PUBLIC_URL, auth_token=TOKEN) as line:
        if accepted:
            async with connect(line, additional_headers=headers) as socket:
                await Caller(socket).begin()
                assert json.loads(await socket.recv())["event"] == "media"
        else:
            with pytest.raises(InvalidStatus) as refused:
                await connect(line, additional_headers=headers)
            assert refused.value.response.status_code == 403


async def test_a_connection_without_a_signature_is_refused_before_anything_is_dialled() -> None:
    sim = simulated()
    async with asyncio.timeout(20), sim, phone_line(sim.url, public_url=PUBLIC_URL, auth_token=TOKEN) as line:
        with pytest.raises(InvalidStatus):
            await connect(line)
    assert sim.ledgers == []


def test_a_signature_of_another_token_or_no_signature_at_all_is_not_taken() -> None:
    assert not twilio.signed(PUBLIC_URL, TOKEN, signature(PUBLIC_URL, "another"))
    assert not twilio.signed(PUBLIC_URL, TOKEN, "")
    assert not twilio.signed(PUBLIC_URL, TOKEN, "é")


# ----------------------------------------------------------------------------------- somebody else's idea of Twilio


def speech(seconds: float) -> list[bytes]:
    """A loud tone in 20 ms frames."""
    tone = bytes(0x90 if math.sin(n) > 0 else 0x10 for n in range(160))
    return [tone] * round(seconds * 50)


@pytest.mark.slow
async def test_a_call_placed_by_an_independent_simulator_is_a_conversation_with_a_tool_in_it() -> None:
    api = pytest.importorskip("streamdouble.api")
    session = pytest.importorskip("streamdouble.session")
    look = Reply("One moment, I am looking.", (Call("get_weather", {"city": "Oslo"}),), 1.0)
    steps = (UserSays("What is the weather in Oslo?"), look, AwaitResults(), Wait(0.5), HangUp())
    scenario = Scenario("call", "Somebody asks, and is answered.", steps, rules=Rules(silence=0.3))
    sim = Simulator(scenario, turn_detection="energy")
    config = session.SessionConfig(response_timeout_s=5, quiet_period_s=1.5, max_drain_s=8, max_call_s=15)
    async with asyncio.timeout(25), sim, sidecar(sim) as agent, phone_line(agent, greeting="") as url:
        frames = [QUIET] * 40 + speech(0.6) + [QUIET] * 150
        report = await api.call(url, frames=frames, config=config)
        ledger = await sim.session_over()
    assert report.violations == []
    assert report.spoke
    assert len(report.result.marks_received) == 2
    assert report.result.marks_echoed == report.result.marks_received
    assert ledger.user_turns == ["What is the weather in Oslo?"]
    assert ledger.call("get_weather").answered == 1
    assert ledger.violations == []


@pytest.mark.slow
async def test_an_independent_simulator_that_interrupts_sees_its_playback_cleared() -> None:
    api = pytest.importorskip("streamdouble.api")
    session = pytest.importorskip("streamdouble.session")
    script = pytest.importorskip("streamdouble.scenario")
    steps = (Say("A story that goes on and on.", 6.0), UserSays("Stop."), Say("All right.", 0.5), HangUp())
    scenario = Scenario("call", "The caller cuts in.", steps, rules=Rules(silence=0.3))
    sim = Simulator(scenario, turn_detection="energy")
    call = script.Scenario(
        "cut in",
        [
            script.WaitFor("audio"),
            script.Wait(0.8),
            script.Say(Path("loud"), speech(0.6)),
            script.WaitFor("clear", 5.0),
            script.Expect("clear"),
            script.Wait(2.5),
        ],
    )
    config = session.SessionConfig(response_timeout_s=5, quiet_period_s=0.5, max_drain_s=5, max_call_s=15)
    async with asyncio.timeout(25), sim, phone_line(sim.url, greeting="") as url:
        report = await api.run_scenario(url, call, config=config)
        ledger = await sim.session_over()
    assert report.violations == []
    assert report.result.failed_expectations == []
    assert report.result.clears_received == 2  # at the first sound of the caller, and when the reply is cut for good
    assert len(ledger.cut) == 1
