"""The example of a worker outside: its tool in a sidecar, itself as a process, and what it does when told no."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import anyio
import httpx2
import pytest
from stamina import set_testing
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from websockets.asyncio.client import connect

from bridge import CallContext, CallKey, Parked
from bridge.admin import listening
from bridge.simulator import AwaitResults, Call, Reply, Scenario, Simulator, UserSays, Wait
from tests.admin.rig import ALL, Port, desk, served
from tests.e2e.test_admin_port import heard, parked
from tests.test_workers import command

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "external_worker.py"
JOB = {"order": "A-1001"}


@pytest.fixture
def example(tmp_path: Path) -> Iterator[ModuleType]:
    """The example, with a database of its own, and no pauses between tries."""
    spec = importlib.util.spec_from_file_location("external_worker", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DATABASE = str(tmp_path / "work.db")  # type: ignore[attr-defined]  # it is there
    with set_testing(True, attempts=5):
        yield module


async def worked(example: ModuleType, url: str) -> None:
    """What the worker does until nothing is left."""

    def work() -> None:
        with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {ALL}"}, trust_env=False) as client:
            example.work(client)

    await asyncio.to_thread(work)


def context(call_id: str) -> CallContext:
    return CallContext(session_id="s1", key=CallKey(1, call_id), tool="pack_order")


async def test_the_tool_starts_the_work_once_however_often_it_runs(example: ModuleType) -> None:
    for _ in range(2):
        left = example.pack_order("A-1001", context("c1"))
        assert isinstance(left, Parked)
    assert list(example.unreported()) == [("s1.1.c1", JOB)]


@pytest.mark.slow
async def test_the_worker_completes_what_is_wanted_and_gives_up_what_is_not(
    example: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    async with desk(at=served) as (host, port):
        key, empty, late = await host.parked("a/b"), await host.parked("c2"), await host.parked("c3", timeout=0.01)
        await host.over(late)
        for each, job in (key, JOB), (empty, {"order": " "}), (late, JOB), ("s1.1.nobody", JOB):
            example.start(each, job)
        await worked(example, port.url)
        assert (await host.over(key)).result.output == '{"packed":"A-1001","parcels":1}'
        assert "There is no such order." in (await host.over(empty)).result.output
    assert list(example.unreported()) == []
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == [f"{key}: told", f"{empty}: told"]
    assert [line.split(": ")[1] for line in said[2:]] == ["it is not wanted any more"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ((200, 200), "told"),
        ((503, 200, 429, 408, 200), "told"),
        ((200, 410), "too late: the caller has gone, or its time was over"),
        ((200, 500, 409), "another answer has been given before, and stands"),
        ((410,), "it is not wanted any more"),
    ],
)
async def test_the_worker_tries_again_only_where_that_helps(
    example: ModuleType, capsys: pytest.CaptureFixture[str], statuses: tuple[int, ...], said: str
) -> None:
    coming = iter(statuses)

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({}, next(coming))

    example.start("k", JOB)
    app = Starlette(routes=[Route("/v1/calls/k/result", answer, methods=["POST"])])
    async with listening(app, "127.0.0.1", 0) as number:
        await worked(example, f"http://127.0.0.1:{number}")
    assert list(coming) == []
    assert capsys.readouterr().out == f"k: {said}\n"


@pytest.mark.slow
async def test_a_wrong_token_ends_the_worker_and_loses_no_work(example: ModuleType) -> None:
    example.start("k", JOB)
    async with desk(at=served) as (_, port):
        url = port.url
        with httpx2.Client(base_url=url, trust_env=False) as client, pytest.raises(httpx2.HTTPStatusError, match="401"):
            await asyncio.to_thread(example.work, client)
    assert list(example.unreported()) == [("k", JOB)]


@pytest.mark.slow
async def test_a_caller_hears_what_a_worker_in_another_process_has_done(tmp_path: Path) -> None:
    environment = {**os.environ, "WORK_DATABASE": str(tmp_path / "work.db"), "BRIDGE_ADMIN_TOKEN": ALL}
    ask = Reply("One moment.", (Call("pack_order", JOB),))
    scenario = Scenario("", "", (UserSays("Pack it."), ask, AwaitResults(), Wait(3600)))
    serving = {**environment, "BRIDGE_ADMIN__TOKEN_ENV": "BRIDGE_ADMIN_TOKEN"}
    with anyio.fail_after(50):
        async with (
            Simulator(scenario, pace=0.03) as sim,
            command("--tools", str(EXAMPLE), "--url", sim.url, **serving) as sidecar,
        ):
            await sidecar.address()
            port = Port(sidecar.admin, sidecar.client, ALL)
            async with connect(sidecar.url) as application, port.stream("/v1/facts") as facts:
                await application.send('{"type":"session.update","session":{}}')
                await parked(facts, "pack_order")
                words = [sys.executable, str(EXAMPLE), "--once", "--url", sidecar.admin]
                pipe = asyncio.subprocess.PIPE
                worker = await asyncio.create_subprocess_exec(*words, env=environment, stdout=pipe)
                said, _ = await worker.communicate()
                assert (worker.returncode, said.decode().endswith(": told\n")) == (0, True)
                await heard(application, '"packed":"A-1001"')
