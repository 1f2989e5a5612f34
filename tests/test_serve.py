"""The `serve` command, as an operator runs it: a process of its own, in front of the offline provider."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from websockets.asyncio.client import ClientConnection, connect

from bridge.scenarios import SCENARIOS
from bridge.simulator import Simulator, Verdict

TOOLS = '''
from bridge import Toolset

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> dict:
    """Current weather in a city."""
    return {"city": city, "sky": "clear"}
'''


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "weather.py"
    path.write_text(TOOLS)
    return path


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """The command, with the addresses of its two ports."""
    command = [sys.executable, "-m", "bridge", "serve", "--port", "0", "--admin-port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(ws://\S+:\d+); admin at port (\d+)", line)
        assert found, line + process.communicate(timeout=5)[1]
        yield found[1], f"http://127.0.0.1:{found[2]}", process
    finally:
        process.kill()
        process.communicate()


async def fetched(url: str) -> str:
    def fetch() -> str:
        with urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(fetch)


async def until(socket: ClientConnection, kind: str) -> dict[str, object]:
    async with asyncio.timeout(10):
        while True:
            message: dict[str, object] = json.loads(await socket.recv())
            if message["type"] == kind:
                return message


@pytest.mark.anyio
async def test_an_agent_behind_the_sidecar_has_tools_and_the_operator_sees_it(tools_file: Path) -> None:
    async with Simulator(SCENARIOS["weather"], pace=0.1) as sim:
        with serving("--tools", str(tools_file), "--upstream", "assemblyai", "--url", sim.url) as (url, admin, process):
            async with connect(f"{url}/v1/ws") as application:
                await application.send('{"type":"session.update","session":{"greeting":"Hello"}}')
                await until(application, "session.ready")
                assert json.loads(await fetched(f"{admin}/sessions"))
                await until(application, "session.ended")
            (call,) = sim.ledger.calls
            assert [answer.verdict for answer in call.answers] == [Verdict.ACCEPTED]
            assert json.loads(call.result or "") == {"city": "Oslo", "sky": "clear"}
            metrics = await fetched(f"{admin}/metrics")
            assert 'bridge_tool_calls_total{outcome="ok",tool="get_weather"} 1.0' in metrics
            assert "bridge_sessions_open 0.0" in metrics
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 10) == 0


@pytest.mark.anyio
async def test_a_second_signal_ends_the_sessions_at_once_and_the_exit_code_tells(tools_file: Path) -> None:
    async with Simulator(pace=0.1) as sim:
        with serving("--tools", str(tools_file), "--url", sim.url) as (url, admin, process):
            async with connect(f"{url}/v1/ws") as application:
                await application.send('{"type":"session.update","session":{}}')
                await until(application, "session.ready")
                process.send_signal(signal.SIGINT)
                while (await asyncio.to_thread(_ready, admin)) == 200:
                    pass
                process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(process.wait, 15) == 1


def _ready(admin: str) -> int:
    try:
        with urlopen(f"{admin}/readyz", timeout=5) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


def test_everything_that_is_wrong_is_said_at_once_and_nothing_starts(tmp_path: Path) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[listen]\nprot = 1\n[upstream]\ndialect = "assemblyay"\n')
    command = [sys.executable, "-m", "bridge", "serve", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert "port" in ended.stderr
    assert "assemblyai" in ended.stderr
    assert "Traceback" not in ended.stderr
