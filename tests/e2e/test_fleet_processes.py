"""Two processes with a provider each, that share a journal, as two pods behind a load balancer do."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Server, needed, postgres

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with needed(), postgres(tmp_path_factory.getbasetemp(), "fsync=off", "max_connections=200") as running:
        yield running


class Process:
    """A replica, which hears lines and says lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def do(self, what: str, **about: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **about}).encode() + b"\n")

    async def said(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return line

    async def ask(self, what: str, **about: Any) -> dict[str, Any]:
        self.do(what, **about)
        return await self.said()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def process(url: str, owner: str) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "tests.e2e.fleet_process", url, owner]
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        yield Process(running)
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.communicate()


@pytest.fixture
async def pair(server: Server) -> AsyncIterator[tuple[Process, Process]]:
    """Both named as if on other machines, so that only their leases tell whether they live."""
    url = server.url(server.new_database())
    async with asyncio.timeout(40), process(url, "pod-a/1/x") as one, process(url, "pod-b/1/x") as other:
        assert [await each.said() for each in (one, other)] == [{"open": True}] * 2
        yield one, other


async def test_an_outcome_that_comes_to_the_other_process_is_told_by_the_agent_once(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    one.do("talk", tool="book")
    ticket = (await one.said())["ticket"]
    assert await other.ask("settle", ticket=ticket, value="table 4") == {"verdict": "accepted"}
    (told,) = (await one.said())["told"]
    assert told == '"table 4"'
    assert await other.ask("settle", ticket=ticket, value="table 4") == {"verdict": "repeated"}
    assert await other.ask("settle", ticket=ticket, value="table 5") == {"verdict": "conflict"}


async def test_a_request_is_approved_at_the_other_process_and_the_tool_runs_once(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    assert "ticket" in await one.ask("talk", tool="pay")
    while not (requests := (await other.ask("requests"))["requests"]):  # noqa: ASYNC110 - it is another process
        await asyncio.sleep(0.01)
    assert await other.ask("decide", id=requests[0]) == {"decision": "Decided", "by": "ann"}
    assert await one.said() == {"ran": "pay"}
    (told,) = (await one.said())["told"]
    assert told == '"paid"'
    assert await other.ask("decide", id=requests[0]) == {"decision": "AlreadyDecided", "by": "ann"}


async def test_an_outcome_that_comes_after_its_process_was_killed_is_found_by_the_one_that_recovers(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    one.do("talk", tool="book")
    ticket = (await one.said())["ticket"]
    await one.kill()
    assert await other.ask("settle", ticket=ticket, value="table 4") == {"verdict": "accepted"}
    while not (recovered := (await other.ask("recover"))["recovered"]):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)  # until its lease has run out
    assert recovered == [["FINISHED", '"table 4"']]
    assert await other.ask("settle", ticket=ticket, value="table 4") == {"verdict": "repeated"}


async def test_a_process_that_was_frozen_until_others_took_it_for_dead_tells_the_same_outcome_once(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    one.do("talk", tool="book")
    ticket = (await one.said())["ticket"]
    one.signal(signal.SIGSTOP)
    assert await other.ask("settle", ticket=ticket, value="table 4") == {"verdict": "accepted"}
    while not (recovered := (await other.ask("recover"))["recovered"]):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    assert recovered == [["FINISHED", '"table 4"']]
    one.signal(signal.SIGCONT)
    assert await other.ask("settle", ticket=ticket, value="table 5") == {"verdict": "conflict"}
    (told,) = (await one.said())["told"]
    assert told == '"table 4"'
