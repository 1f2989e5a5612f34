"""Settings that are read again while a sidecar runs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from bridge.config import read
from bridge.relay.server import Relay
from bridge.reload import Reloader
from bridge.serve import serving
from bridge.simulator import AwaitResults, Call, HangUp, Reply, Say, Simulator, Until
from tests.e2e.conftest import script

pytestmark = pytest.mark.anyio

TOOLS = '''
from bridge import Toolset

tools = Toolset()


@tools.tool
async def {name}() -> str:
    """Does something."""
    return "{result}"
'''

CONFIG = """
[listen]
port = 0
[upstream]
url = "{url}"
[tools]
python = ["my_tools.py"]
{more}
"""


class Files:
    """A configuration and its tools, to be edited."""

    def __init__(self, folder: Path, url: str) -> None:
        self.path = folder / "bridge.toml"
        self.tools = folder / "my_tools.py"
        self.url = url
        self.write()

    def write(self, name: str = "look", result: str = "old", more: str = "") -> None:
        self.tools.write_text(TOOLS.format(name=name, result=result))
        self.path.write_text(CONFIG.format(url=self.url, more=more))


@asynccontextmanager
async def running(files: Files) -> AsyncIterator[tuple[Relay, Reloader]]:
    sidecar = read(files.path)
    async with serving(sidecar) as (relay, *_):
        yield relay, Reloader(files.path, {}, sidecar)


async def talk(relay: Relay, reload_at: str = "", reload: object = None) -> list[str]:
    """Be an application: what the provider said, and at one of its messages something happens."""
    heard: list[str] = []
    async with connect(f"ws://127.0.0.1:{relay.port}", compression=None) as socket:
        await socket.send(json.dumps({"type": "session.update", "session": {"system_prompt": "Be kind."}}))
        async for text in socket:
            heard.append(json.loads(text)["type"])
            if heard[-1] == reload_at and callable(reload):
                await reload(relay)
                reload = None
    return heard


def ask(name: str) -> Reply:
    return Reply("One moment.", (Call(name, {}),))


async def test_a_session_that_runs_gets_the_new_tools_and_goes_on(tmp_path: Path) -> None:
    scenario = script(
        Say("Hello."), Until("session.updated"), ask("book"), AwaitResults(), ask("look"), AwaitResults(), HangUp()
    )
    async with Simulator(scenario, pace=0.1) as sim:
        files = Files(tmp_path, sim.url)
        async with running(files) as (relay, reload):
            files.write("book", "new")
            heard = await talk(relay, "reply.done", reload)
        assert [call.result for call in sim.ledger.calls] == ['"new"', '{"error":"look is not available now"}']
        assert heard.count("session.updated") <= 1


async def test_a_broken_file_changes_nothing_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scenario = script(Say("Hello."), ask("look"), AwaitResults(), HangUp())
    async with Simulator(scenario, pace=0.1) as sim:
        files = Files(tmp_path, sim.url)
        async with running(files) as (relay, reload):
            files.tools.write_text("def broken(:")
            files.path.write_text(files.path.read_text() + "[listn]\n")
            await talk(relay, "reply.done", reload)
        assert [call.result for call in sim.ledger.calls] == ['"old"']
    (line,) = [line for line in caplog.messages if "stay in force" in line]
    assert "listn is unknown; did you mean listen?" in line
    assert "my_tools.py: this is not Python: invalid syntax" in line


async def test_a_tool_can_be_switched_off_and_on_again(tmp_path: Path) -> None:
    scenario = script(ask("look"), AwaitResults(), HangUp())
    async with Simulator(scenario, pace=0.1) as sim:
        files = Files(tmp_path, sim.url)
        files.write(more='off = ["look"]')
        async with running(files) as (relay, reload):
            await talk(relay)
            files.write()
            await reload(relay)
            await talk(relay)
        assert [call.result for ledger in sim.ledgers for call in ledger.calls] == [
            '{"error":"look is not available now"}',
            '"old"',
        ]


async def test_a_name_that_switches_nothing_off_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files(tmp_path, "ws://127.0.0.1:1")
    async with running(files) as (relay, reload):
        files.write(more='off = ["lok"]')
        await reload(relay)
    assert "[tools] off: no tool is called lok, so this switches nothing off" in caplog.messages


async def test_what_counts_after_a_restart_only_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    files = Files(tmp_path, "ws://127.0.0.1:1")
    async with running(files) as (relay, reload):
        files.write(more="[limits]\nmax_sessions = 7\n[log]\nlevel = 'debug'")
        await reload(relay)
    assert "the settings have been read again: none off" in caplog.messages
    assert "a change of limits.max_sessions, log.level counts after a restart only" in caplog.messages


async def test_routes_can_change(tmp_path: Path) -> None:
    async with Simulator(script(HangUp()), pace=0.1) as sim:
        files = Files(tmp_path, sim.url)
        async with running(files) as (relay, reload):
            files.write(more=f"[[route]]\npath = '/tenant'\nurl = '{sim.url}'")
            await reload(relay)
            async with connect(f"ws://127.0.0.1:{relay.port}/tenant", compression=None):
                assert [each.route for each in relay.sessions] == ["/tenant"]
