"""A sidecar that is killed while somebody outside works on a call: the work goes on, and its outcome counts once."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest

from bridge.journal import Claimed, State
from bridge.journal.opening import open_journal
from bridge.journal.sqlite import open_sqlite
from tests.journal.sidecars import ROOT, Phone
from tests.postgres import Server, needed, postgres
from tests.relay.rig import Providers, providing

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LIMIT = 120.0
TOKEN = "only-for-this-test"

CONFIG = """
[listen]
port = 0
[admin]
port = 0
token_env = "ADMIN_TOKEN_OF_THE_TEST"
[upstream]
url = "{url}"
[tools]
python = ["film_tools.py"]
[journal]
address = "{journal}"
"""

TOOLS = """
from bridge import Toolset
from bridge.tools.tool import Parked

tools = Toolset()


@tools.tool(timeout={timeout})
async def render() -> Parked:
    return Parked()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with needed(), postgres(tmp_path_factory.getbasetemp(), "fsync=off", "max_connections=200") as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "calls.db")
    running: Server = request.getfixturevalue("server")
    return running.url(running.new_database())


class Sidecar(NamedTuple):
    """A process, where applications connect, and where results go."""

    process: asyncio.subprocess.Process
    at: str
    port: str

    async def say(self, key: str, result: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """What somebody outside says of a call, and what is answered."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(headers=headers, timeout=LIMIT) as client:
            answer = await client.post(f"{self.port}/v1/calls/{quote(key, safe='')}/result", json=result)
        return answer.status_code, answer.json()

    async def waiting(self) -> list[dict[str, Any]]:
        """The calls that wait for a result, once there are any."""
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=LIMIT) as client:
            while not (calls := (await client.get(f"{self.port}/v1/calls")).json()["calls"]):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.02)
        listed: list[dict[str, Any]] = calls
        return listed

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[Sidecar]:
    command = [sys.executable, "-m", "bridge", "serve", str(directory / "bridge.toml")]
    environment = {**os.environ, "ADMIN_TOKEN_OF_THE_TEST": TOKEN, "BRIDGE_ADMIN_TOKEN": TOKEN}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=environment
    )
    try:
        assert process.stdout is not None
        started = (await process.stdout.readline()).decode()
        found = re.search(r"(ws://\S+:\d+); admin at port (\d+)", started)
        assert found, started
        yield Sidecar(process, found[1], f"http://127.0.0.1:{found[2]}")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def configured(directory: Path, providers: Providers, journal: str, timeout: float = 3600) -> None:
    (directory / "bridge.toml").write_text(CONFIG.format(url=providers.url, journal=journal))
    (directory / "film_tools.py").write_text(TOOLS.format(timeout=timeout))


async def killed(directory: Path, providers: Providers) -> str:
    """A sidecar dies after its tool has handed its work to somebody outside; the key of that call."""
    async with served(directory) as sidecar, Phone.through(f"{sidecar.at}/v1/ws", providers) as phone:
        assert (await phone.call("render"))["status"] == "pending"
        (call,) = await sidecar.waiting()
        await sidecar.kill()
    key: str = call["key"]
    return key


async def listed(sidecar: Sidecar) -> str:
    """What `calls list` prints."""
    command = [sys.executable, "-m", "bridge", "calls", "list", "--url", sidecar.port]
    environment = {**os.environ, "BRIDGE_ADMIN_TOKEN": TOKEN, "COLUMNS": "200"}
    listing = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, env=environment)
    printed, _ = await listing.communicate()
    return printed.decode()


async def in_the_journal(address: str) -> Claimed:
    """The call, in the journal of a sidecar."""
    journal = open_journal(address) if "://" in address else open_sqlite(address, read_only=True)
    try:
        (claimed,) = await journal.claims(states=tuple(State))
        return claimed
    finally:
        await journal.aclose()


async def test_an_outcome_that_comes_after_the_sidecar_was_killed_counts_once_in_every_later_life(
    tmp_path: Path, journal: str
) -> None:
    done, other = {"status": "completed", "output": {"frames": 90}}, {"status": "completed", "output": None}
    async with asyncio.timeout(LIMIT), providing() as providers:
        configured(tmp_path, providers, journal)
        key = await killed(tmp_path, providers)
        async with served(tmp_path) as sidecar:
            (call,) = await sidecar.waiting()
            assert (call["key"], call["tool"], call["state"]) == (key, "render", "waiting")
            assert "render" in await listed(sidecar)
            assert await sidecar.say(key, {"status": "running"}) == (200, {"key": key, "status": "running"})
            assert await sidecar.say(key, done) == (200, {"key": key, **done, "repeated": False})
            await sidecar.kill()  # nobody has been promised more than is on the disk
        async with served(tmp_path) as sidecar:
            assert await sidecar.say(key, done) == (200, {"key": key, **done, "repeated": True})
            assert (await sidecar.say(key, other))[0] == 409
            assert (await sidecar.say(f"{key}x", done))[0] == 404
            assert (await sidecar.say(key, {"status": "running"}))[0] == 410
            await sidecar.kill()
    claimed = await in_the_journal(journal)
    assert claimed.outcome in ("ok", "")  # a fleet may find it in the mailbox later
    if claimed.outcome:
        assert claimed.result is not None
        assert claimed.result.output == '{"frames":90}'


async def test_an_outcome_that_comes_after_the_time_of_its_tool_is_too_late(tmp_path: Path, journal: str) -> None:
    async with asyncio.timeout(LIMIT), providing() as providers:
        configured(tmp_path, providers, journal, timeout=4)
        key = await killed(tmp_path, providers)
        async with served(tmp_path) as sidecar:
            while (await sidecar.say(key, {"status": "running"}))[0] == 200:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
            status, said = await sidecar.say(key, {"status": "completed", "output": 1})
            assert (status, said["retryable"]) == (410, False)
            while not (claimed := await in_the_journal(journal)).outcome:  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)
            assert claimed.outcome == "not_known"
