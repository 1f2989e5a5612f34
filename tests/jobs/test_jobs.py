"""Calls whose work is done by workers, with a real PostgreSQL and a worker in a process of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from procrastinate.schema import SchemaManager

from bridge import CallContext, CallKey, ToolCall
from bridge.journal.postgres import open_postgres
from bridge.runner.runner import Calls, Finished, Outcome, Runner

from ..postgres import Server
from ..relay.rig import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LINE = Path(__file__).with_name("line.py")
LIMIT = 30


@pytest.fixture
def place(server: Server, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database with the tables of procrastinate, known to this process and to workers."""
    name = f"jobs_{secrets.token_hex(4)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    monkeypatch.setenv("LINE_DATABASE", server.url(name))
    monkeypatch.setenv("LINE_DONE", str(tmp_path / "done"))
    monkeypatch.setenv("LINE_KEY", "07" * 32)
    with psycopg.connect(server.url(name), autocommit=True) as connection:
        connection.execute(SchemaManager.get_schema().encode())
    return tmp_path


@asynccontextmanager
async def worker(log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    command = [sys.executable, "-m", "procrastinate", "-v", "--app=tests.jobs.line.app", "worker"]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(*command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), LIMIT)


@pytest.fixture
def line(place: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("line_of_this_test", LINE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def answering(line: ModuleType) -> AsyncIterator[Calls]:
    """The process that has the caller."""
    async with aclosing(open_postgres(os.environ["LINE_DATABASE"])) as journal, aclosing(line.jobs):
        runner = Runner(journal=journal, owner=f"line-{secrets.token_hex(4)}")
        try:
            yield runner.session()
        finally:
            await runner.aclose(1)
            runner.close()


async def called(calls: Calls, line: ModuleType, name: str, call_id: str, **arguments: object) -> Finished:
    key, over = CallKey(0, call_id), asyncio.get_running_loop().create_future()
    context = CallContext(session_id="s1", key=key, tool=name)
    call = ToolCall(call_id, name, json.dumps(arguments))
    calls.start(key, call, line.tools[name], line.tools, context, over.set_result)
    async with asyncio.timeout(LIMIT):
        return await over


async def test_a_worker_does_the_work_and_the_caller_hears_the_outcome(place: Path, line: ModuleType) -> None:
    async with worker(place / "log"), answering(line) as calls:
        done = await called(calls, line, "report", "c1", day="2026-11-30", note="a secret of the caller")
        shouted = await called(calls, line, "plain", "c2", text="loud")
    assert (json.loads(done.result.output), done.result.is_error) == ({"weekday": "Monday"}, False)
    assert json.loads(shouted.result.output) == "LOUD"
    assert (place / "done").read_text() == "s1.0.c1 2026-11-30 a secret of the caller\n"
    log = (place / "log").read_text()
    assert "report" in log
    assert "secret" not in log


async def test_what_goes_wrong_in_a_worker_is_told_without_its_details(place: Path, line: ModuleType) -> None:
    async with worker(place / "log"), answering(line) as calls:
        sentences = [
            json.loads((await called(calls, line, name, name)).result.output)["error"]
            for name in ("refuse", "fail", "too_large")
        ]
    assert sentences[0] == "There is no such month."
    assert sentences[1] == "the tool fail failed"
    assert "10" in sentences[2]
    log = (place / "log").read_text()
    assert "tool fail failed in its worker: ValueError at line.py" in log
    assert "secret" not in log


async def test_a_call_made_while_no_worker_runs_waits_for_one(place: Path, line: ModuleType) -> None:
    async with answering(line) as calls:
        waiting = asyncio.ensure_future(called(calls, line, "plain", "c1", text="later"))
        with psycopg.connect(os.environ["LINE_DATABASE"], autocommit=True) as connection:
            await until(lambda: bool(connection.execute("SELECT 1 FROM procrastinate_jobs").fetchall()))
        async with worker(place / "log"):
            assert json.loads((await waiting).result.output) == "LATER"


async def test_a_job_whose_worker_dies_is_not_run_again(place: Path, line: ModuleType) -> None:
    async with answering(line) as calls:
        async with worker(place / "log") as first:
            waiting, done = asyncio.ensure_future(called(calls, line, "hang", "c1")), place / "done"
            await until(lambda: done.exists() and done.read_text() == "hang\n")
            first.kill()
        async with worker(place / "log"):
            assert json.loads((await called(calls, line, "plain", "c2", text="next")).result.output) == "NEXT"
            finished = await waiting
        assert (finished.outcome, done.read_text()) == (Outcome.TIMEOUT, "hang\n")


async def test_a_queue_that_cannot_be_reached_is_said_and_nothing_waits(place: Path, line: ModuleType) -> None:
    async with answering(line) as calls:
        with psycopg.connect(os.environ["LINE_DATABASE"], autocommit=True) as connection:
            connection.execute("DROP TABLE procrastinate_jobs CASCADE")
        finished = await called(calls, line, "plain", "c1", text="x")
    assert json.loads(finished.result.output) == {"error": "plain is not available now"}


async def test_an_outcome_for_a_call_that_is_over_is_noted_and_left(place: Path, line: ModuleType) -> None:
    async with answering(line) as calls:
        finished = await called(calls, line, "hasty", "c1")
        assert finished.outcome is Outcome.TIMEOUT
        async with worker(place / "log"):
            await until(lambda: "its caller is not told" in (place / "log").read_text())
