"""The admin port: a real server, asked over a real socket."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, TypeVar, cast

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from bridge import Toolset
from bridge.admin import Desk, admin, listening, relay_source
from bridge.admin.probe import main, probe
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.errors import ConfigError
from bridge.metrics import Metrics
from bridge.relay import Counters, Listen, Relay, Route, Traffic, Upstream
from bridge.runner.runner import Runner
from bridge.scenarios import SCENARIOS
from bridge.simulator import Simulator
from tests.admin.rig import ALL, OPEN, Host, Port, asked, desk, served

pytestmark = pytest.mark.anyio

T = TypeVar("T")


async def test_metrics_are_rendered_in_a_thread_of_their_own() -> None:
    class Slow(Metrics):
        def render(self) -> bytes:
            rendered_in.append(threading.current_thread())
            return super().render()

    rendered_in: list[threading.Thread] = []
    async with desk(OPEN, metrics=Slow(), token="") as (_, port):
        answer = await port.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "bridge_sessions_open 0.0" in answer.text
    assert rendered_in[0] is not threading.main_thread()


async def test_the_health_answers_as_long_as_the_process_does() -> None:
    async with desk(OPEN, host=Host(ready="draining")) as (_, port):
        answer = await port.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_readiness_says_why_not() -> None:
    async with desk(OPEN) as (host, port):
        assert (await port.get("/readyz")).json() == {"ready": True, "reason": ""}
        host.ready = "full"
        answer = await port.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reason": "full"})


async def test_a_subject_that_has_to_ask_others_is_waited_for() -> None:
    class Far(Desk):
        @property
        def ready(self) -> Any:
            return said("worker 1: full")

        @property
        def sessions(self) -> Any:
            return said([{"worker": 1, "id": "s1", "seconds": 2.0}])

    async with asked(Far(Host()), OPEN) as port:
        assert (await port.get("/readyz")).json() == {"ready": False, "reason": "worker 1: full"}
        assert (await port.get("/v1/sessions")).json() == {"sessions": [{"worker": 1, "id": "s1", "seconds": 2.0}]}
        assert (await port.get("/v1/sessions/s1")).json()["worker"] == 1


async def said(answer: T) -> T:
    await asyncio.sleep(0)
    return answer


@pytest.mark.parametrize("path", ["/sessions", "/v1/sessions"])
async def test_sessions_are_listed_as_plain_values(path: str) -> None:
    async with desk(OPEN, token="") as (_, port):
        answer = await port.get(path)
    assert answer.json() == {"sessions": [{"id": "s1", "state": "ready", "seconds": 1.5}]}
    assert answer.headers["cache-control"] == "no-store"


async def test_draining_takes_the_token_and_says_how_many_are_left() -> None:
    async with desk() as (host, port):
        answer = await port.post("/drain?seconds=2.5")
        assert (answer.status_code, answer.json()) == (200, {"left": 1})
        assert (await port.get("/readyz")).status_code == 503
        assert (await port.post("/drain")).status_code == 200
    assert host.drained == [2.5, 30]


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "inf"])
async def test_a_number_of_seconds_that_is_none_is_refused(seconds: str) -> None:
    async with desk() as (host, port):
        assert (await port.post(f"/drain?seconds={seconds}")).status_code == 400
    assert host.drained == []


async def test_reading_is_not_writing_and_what_is_not_there_is_said() -> None:
    async with desk() as (_, port):
        assert (await port.get("/drain")).status_code == 405
        assert (await port.post("/metrics")).status_code == 405
        answer = await port.get("/v2/sessions")
        assert (answer.status_code, answer.json()["error"]) == (404, "Not Found: /openapi.json lists what there is")


async def test_what_goes_wrong_here_is_said_as_json() -> None:
    class Broken(Desk):
        async def pending(self) -> Any:
            raise ValueError("of the test")

    async with asked(Broken(Host())) as port:
        answer = await port.client.get(port.url + "/v1/approvals", headers={"authorization": f"Bearer {ALL}"})
        page = (await port.get("/metrics")).text
    assert answer.status_code == 500
    assert answer.json() == {"error": "the request failed here: the log says where", "retryable": True}
    assert 'bridge_api_requests_total{route="other",status="500"} 1.0' in page


async def test_requests_are_counted_by_path_and_status_and_never_by_what_was_asked_for() -> None:
    async with desk() as (_, port):
        await port.get("/v1/sessions/nobody")
        await port.get("/v1/sessions/s1")
        await port.get("/v1/sessions/s1", token="wrong")
        await port.get("/somewhere")
        page = (await port.get("/metrics")).text
    assert set(re.findall(r"bridge_api_requests_total\{(.*?)\} 1.0", page)) == {
        'route="/v1/sessions/{id}",status="404"',
        'route="/v1/sessions/{id}",status="200"',
        'route="/v1/sessions/{id}",status="401"',
        'route="other",status="404"',
    }


async def test_a_port_that_is_taken_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with listening(admin(Host(), Metrics()), "127.0.0.1", port):
                pass


async def test_an_address_that_is_none_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="the admin port cannot listen"):
        async with listening(admin(Host(), Metrics()), "no.such.host.invalid", 0):
            pass


@pytest.mark.slow
async def test_signals_stay_with_the_process_and_the_port_is_free_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with desk(OPEN, at=served) as (_, port):
        await port.get("/healthz")
        assert signal.getsignal(signal.SIGTERM) is before
        number = int(port.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", number)):
        pass


# --------------------------------------------------------------------------------------------------------- the probe


@pytest.mark.slow
async def test_the_probe_is_content_with_a_healthy_process() -> None:
    async with desk(OPEN, at=served) as (_, port):
        assert await asyncio.to_thread(probe, port.url + "/healthz") == ""
        assert await asyncio.to_thread(main, [port.url + "/healthz"]) == 0


@pytest.mark.slow
async def test_the_probe_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    async with desk(OPEN, at=served, host=Host(ready="draining")) as (_, port):
        assert await asyncio.to_thread(main, [port.url + "/readyz"]) == 1
    assert "HTTP 503" in (said := capsys.readouterr().err)
    assert "draining" in said
    assert main(["http://127.0.0.1:9/healthz"]) == 1
    assert "refused" in capsys.readouterr().err
    assert main(["no address"]) == 1


@pytest.mark.slow
async def test_the_probe_is_a_command_that_finds_the_port_in_the_environment() -> None:
    async with desk(OPEN, at=served) as (_, port):
        number = port.url.rpartition(":")[2]
        command = [sys.executable, "-m", "bridge.admin.probe"]
        done = await asyncio.to_thread(
            subprocess.run, command, env={"BRIDGE_ADMIN__PORT": number}, capture_output=True, timeout=30, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


# --------------------------------------------------------------------------------------------------------- a relay


@pytest.mark.slow
async def test_a_call_through_the_relay_is_seen_by_the_admin_port() -> None:
    metrics = Metrics()
    async with Simulator(SCENARIOS["weather"], pace=0.1) as sim:
        route = Route(upstream=Upstream(dialect=ASSEMBLYAI, url=sim.url))
        async with Relay([route], weather(), observers=(metrics,)) as relay:
            metrics.add_source(relay_source(relay))
            async with served(Desk(relay), OPEN, metrics=metrics) as port:
                assert (await port.get("/readyz")).json() == {"ready": False, "reason": "not listening"}
                await relay.start(Listen(port=0))
                assert (await port.get("/readyz")).json() == {"ready": True, "reason": ""}
                async with asyncio.timeout(20):
                    sessions = await talked(f"ws://127.0.0.1:{relay.port}/v1/ws", port)
                page = (await port.get("/metrics")).text
    assert [session["dialect"] for session in sessions] == ["assemblyai"]
    assert "bridge_results_sent_total 1.0" in page
    assert "bridge_speech_to_audio_seconds_count 1.0" in page
    assert "bridge_call_to_audio_seconds_count 1.0" in page
    assert 'bridge_sessions_total{end="ended"} 1.0' in page
    assert re.search(r'bridge_frames_total\{direction="from_provider",kind="media"\} [1-9]', page)
    assert re.search(r'bridge_bytes_total\{direction="from_application",kind="other"\} [1-9]', page)


def weather() -> Toolset:
    tools = Toolset()

    @tools.tool
    async def get_weather(city: str) -> str:
        """Weather now."""
        return f"rain in {city}"

    return tools


async def talked(url: str, port: Port) -> list[dict[str, Any]]:
    """One call of an application without tools; the sessions as they were in the middle of it."""
    sessions: list[dict[str, Any]] = []
    async with connect(url, compression=None) as socket:
        await socket.send('{"type":"session.update","session":{}}')
        async for frame in socket:
            if '"session.ready"' in str(frame):
                sessions = (await port.get("/sessions")).json()["sessions"]
    return sessions


async def test_connections_that_a_relay_refuses_are_counted() -> None:
    metrics = Metrics()
    route = Route(upstream=Upstream(dialect=ASSEMBLYAI, url="ws://127.0.0.1:9/v1/ws"), prefix="/a")
    async with Relay([route]) as relay, asyncio.timeout(20):
        metrics.add_source(relay_source(relay))
        await relay.start(Listen(port=0))
        for path in ("/a/v1/ws", "/b"):
            with pytest.raises(InvalidStatus):
                await connect(f"ws://127.0.0.1:{relay.port}{path}")
        page = (await asyncio.to_thread(metrics.render)).decode()
    assert 'bridge_refused_connections_total{status="404"} 1.0' in page
    assert 'bridge_refused_connections_total{status="502"} 1.0' in page


def test_a_counter_never_falls_and_survives_sessions_that_come_and_go() -> None:
    answers: list[Counters | type[RuntimeError]] = [counters(7), counters(5), *[RuntimeError] * 5, counters(9)]

    class Busy:
        runner = Runner()

        @property
        def counters(self) -> Counters:
            answer = answers.pop(0)
            if isinstance(answer, Counters):
                return answer
            raise answer

    read = relay_source(cast(Relay, Busy()))
    seen = [{r.labels: r.value for r in read() if r.name == "bridge_frames_total"} for _ in range(4)]
    assert [each["from_provider", "media"] for each in seen] == [7, 7, 7, 9]


def counters(media: int) -> Counters:
    return Counters(
        Traffic(), Traffic(media=media), sessions=1, refused={}, without_setup=0, resumed=0, lost={}, dropped=0
    )
