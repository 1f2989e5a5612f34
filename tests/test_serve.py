"""The `serve` command, as an operator runs it: a process of its own, in front of the offline provider."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from websockets.asyncio.client import ClientConnection, connect

from bridge.cli import cli
from bridge.cli.serve import _started
from bridge.config import read
from bridge.errors import ConfigError
from bridge.relay.server import Relay
from bridge.scenarios import SCENARIOS
from bridge.serve import run, serving
from bridge.settings import ListenTable, Settings
from bridge.simulator import Simulator, Verdict

TOOLS = '''
from bridge import Toolset

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> dict:
    """Current weather in a city."""
    return {"city": city, "sky": "clear"}
'''


ANYWHERE = {"listen": {"port": 0}}


@pytest.fixture
def tools_file(tmp_path: Path) -> Path:
    path = tmp_path / "weather.py"
    path.write_text(TOOLS)
    return path


@contextmanager
def command(*arguments: str, limit: str = "", **environment: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """The command, with the addresses of its two ports; `limit` is what `ulimit` takes."""
    words = [sys.executable, "-m", "bridge", "serve", "--port", "0", "--admin-port", "0", *arguments]
    if limit:
        words = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *words]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"(ws://\S+:\d+); admin at port (\d+)", line)
        assert found, line + process.communicate(timeout=20)[1]
        yield found[1], f"http://127.0.0.1:{found[2]}", process
    finally:
        process.kill()
        process.communicate()


async def fetched(url: str) -> str:
    def fetch() -> str:
        with urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(fetch)


async def until(socket: ClientConnection, kind: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            message: dict[str, object] = json.loads(await socket.recv())
            if message["type"] == kind:
                return message


@pytest.mark.anyio
async def test_an_agent_behind_the_sidecar_has_tools_and_the_operator_sees_it(tools_file: Path) -> None:
    async with Simulator(SCENARIOS["weather"], pace=0.1) as sim:
        with command("--tools", str(tools_file), "--upstream", "assemblyai", "--url", sim.url) as (url, admin, process):
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
            assert await asyncio.to_thread(process.wait, 20) == 0


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_second_signal_ends_the_sessions_at_once_and_the_exit_code_tells(tools_file: Path) -> None:
    async with Simulator(pace=0.1) as sim:
        with command("--tools", str(tools_file), "--url", sim.url) as (url, admin, process):
            async with connect(f"{url}/v1/ws") as application:
                await application.send('{"type":"session.update","session":{}}')
                await until(application, "session.ready")
                process.send_signal(signal.SIGINT)
                while (await asyncio.to_thread(_ready, admin)) == 200:
                    pass
                process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(process.wait, 20) == 1


def _ready(admin: str) -> int:
    try:
        with urlopen(f"{admin}/readyz", timeout=20) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


@pytest.mark.slow
def test_a_stop_while_it_starts_is_heeded_also_by_the_first_process_of_a_container(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text('import sys, time\nprint("loading", flush=True)\ntime.sleep(60)\n' + TOOLS)
    words = [sys.executable, "-m", "bridge", "serve", "--tools", str(tmp_path / "tools.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("host", "tls", "said"),
    [
        ("127.0.0.1", False, "ws://127.0.0.1:5"),
        ("::1", False, "ws://[::1]:5"),
        ("localhost", True, "wss://localhost:5"),
    ],
)
def test_the_address_that_is_said_is_one_to_connect_to(
    capsys: pytest.CaptureFixture[str], host: str, tls: bool, said: str
) -> None:
    listen = ListenTable.model_construct(host=host, certificate=Path("cert.pem") if tls else None)
    _started(replace(read(None), settings=Settings.model_construct(listen=listen)), 5, 6)
    assert capsys.readouterr().out == f"Applications connect to {said}; admin at port 6 (Ctrl-C ends it)\n"


SLOW_TOOL = """
from bridge import Toolset

tools = Toolset()

@tools.tool(timeout=900)
async def slow() -> None:
    pass
"""


@pytest.mark.anyio
async def test_what_there_is_stands_in_the_log_at_the_start(tools_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.serve")
    async with serving(read(None, {**ANYWHERE, "tools": {"python": [str(tools_file)]}})):
        assert caplog.messages == ["tools: 1; upstream: assemblyai at agents.assemblyai.com"]


@pytest.mark.anyio
async def test_that_there_are_no_tools_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(read(None, ANYWHERE)):
        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.message.startswith("there are no tools, so sessions go on as without the bridge: name some")


@pytest.mark.anyio
async def test_what_will_not_work_well_is_a_warning_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TOOL)
    async with serving(read(None, {**ANYWHERE, "tools": {"python": [str(tmp_path / "slow.py")], "off": ["slwo"]}})):
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "assemblyai: slow: it may take 905 s, its wait for a free slot included; the provider waits 300 s",
        "[tools] off: no tool is called slwo, so this switches nothing off",
    ]


def test_everything_that_is_wrong_is_said_at_once_and_nothing_starts(tmp_path: Path) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[listen]\nprot = 1\n[upstream]\ndialect = "assemblyay"\n')
    ended = CliRunner().invoke(cli, ["serve", str(config)])
    assert ended.exit_code == 2
    assert isinstance(ended.exception, SystemExit)  # what is said is all that is shown
    assert "port" in ended.output
    assert "assemblyai" in ended.output


@pytest.mark.parametrize("workers", ["1", "2"])
def test_both_ports_are_named_if_both_are_taken(workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, admin_port = (str(each.getsockname()[1]) for each in (one, other))
        ports = ("--port", port, "--admin-port", admin_port, "--workers", workers)
        ended = CliRunner().invoke(cli, ["serve", *ports])
    assert ended.exit_code == 2
    assert ended.stderr == (
        f"Error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another port\n"
        f"the admin port cannot listen on 127.0.0.1:{admin_port}: Address already in use; choose another port\n"
    )


# ------------------------------------------------------------------------------------------------------- a hangup


def hung_up(times: int, hears: list[Relay]) -> int:
    """What `run` returns if it gets so many SIGHUPs, and then SIGTERM."""
    sidecar = read(None, {"listen": {"port": 0}, "admin": {"port": 0}})

    async def reload(relay: Relay) -> None:
        hears.append(relay)
        os.kill(os.getpid(), signal.SIGHUP if len(hears) < times else signal.SIGTERM)
        if len(hears) == 1:
            raise ConfigError("listen.port must be a number")

    return run(sidecar, lambda port, admin_port: os.kill(os.getpid(), signal.SIGHUP), reload=reload)


def test_each_hangup_reloads_and_one_that_fails_does_not_end_the_next(caplog: pytest.LogCaptureFixture) -> None:
    relays: list[Relay] = []
    assert hung_up(3, relays) == 0
    assert len(relays) == 3
    assert len(set(map(id, relays))) == 1
    assert "the settings could not be read again" in caplog.text


def test_a_hangup_ends_nothing_where_there_is_nothing_to_reload() -> None:
    sidecar = read(None, {"listen": {"port": 0}, "admin": {"port": 0}})

    def started(port: int, admin_port: int) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGTERM)

    assert run(sidecar, started) == 0


# ------------------------------------------------------------------------------------------------ file descriptors


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_without_file_descriptors_one_line_says_so_and_sessions_are_taken_again_later(
    tools_file: Path, tmp_path: Path, loop: str
) -> None:
    if loop == "asyncio":
        (tmp_path / "uvloop.py").write_text("raise ImportError")
    with command("--tools", str(tools_file), limit="-n 40", PYTHONPATH=str(tmp_path)) as (url, admin, process):
        assert process.stderr is not None
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        applications = [socket.create_connection(address, timeout=20) for _ in range(60)]
        said = [process.stderr.readline()]
        while "no file descriptors are left, so new connections are not taken" not in said[-1]:
            assert said[-1], said
            said.append(process.stderr.readline())
        for application in applications:
            application.close()
        while _ready(admin) != 200:
            pass
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=20)[1]
        assert process.returncode == 0
    assert "max_sessions needs 2064 file descriptors, and only 40 are allowed: raise LimitNOFILE" in "".join(said)
    assert "no file descriptors" not in rest
    assert "Traceback" not in "".join(said) + rest


@pytest.mark.slow
def test_the_limit_of_file_descriptors_is_raised_to_what_the_sessions_need(tools_file: Path) -> None:
    with command("--tools", str(tools_file), limit="-S -n 100", BRIDGE_LIMITS__MAX_SESSIONS="200") as (_, _, process):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] == 2 * 200 + 64


@pytest.mark.anyio
async def test_a_port_that_is_closed_before_the_loop_accepts_again_ends_in_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as closed:
        pass
    async with serving(read(None, {"listen": {"port": 0}})):
        loop.call_soon(getattr(loop, "_start_serving"), asyncio.Protocol, closed)  # noqa: B009  # as the loop does it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.anyio
async def test_a_connection_that_cannot_be_accepted_is_said_once_and_other_faults_in_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    async with serving(read(None, {"listen": {"port": 0}})):
        for _ in range(2):
            fault = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": fault})
        loop.call_exception_handler({"message": "a task went wrong", "exception": ValueError("of the test")})
    assert loop.get_exception_handler() is before
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.name for record in errors] == ["bridge.serve", "asyncio"]
    assert "raise LimitNOFILE (ulimit -n) to 2064, or lower max_sessions" in errors[0].getMessage()
    assert "a task went wrong" in errors[1].getMessage()
