"""A bridge inside another application: looked after by the same app, mounted there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from bridge import AssemblyAI, Bridge, Parked, SessionClosed, Toolset, ToolSettled
from bridge.admin import admin
from bridge.journal import CallId
from bridge.journal.memory import MemoryJournal
from bridge.metrics import Metrics
from bridge.session.running import ToolParked
from bridge.simulator import AwaitResults, Call, HangUp, Reply, Scenario, Simulator, UserSays, Wait
from tests.admin.rig import ALL, GUARDED, Port, result_of
from tests.e2e.conftest import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def mounted(bridge: Bridge) -> AsyncIterator[Port]:
    """The port of a bridge, below a path of a plain Starlette app."""
    app = Starlette(routes=[Mount("/bridge", admin(bridge, Metrics(), GUARDED))])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as client:
        yield Below("http://localhost/bridge", client, ALL)


class Below(Port):
    """Answers are those of the app itself."""

    def check(self, method: str, path: str, answer: httpx2.Response) -> None:
        super().check(method, path.removeprefix("/bridge"), answer)


def talking(scenario: Scenario) -> Simulator:
    return Simulator(scenario, pace=0.05)


def tools() -> Toolset:
    made = Toolset()

    @made.tool(timeout=60)
    async def order(item: str) -> Parked:
        """Order something."""
        return Parked()

    return made


async def test_a_call_of_an_embedded_session_is_completed_through_a_mounted_app() -> None:
    ask = Reply("One moment.", (Call("order", {"item": "lamp"}, "a/b"),))
    scenario = Scenario("", "", (UserSays("A lamp."), ask, Wait(2), AwaitResults(), HangUp()))
    async with (
        asyncio.timeout(20),
        Bridge(tools()) as bridge,
        mounted(bridge) as port,
        Simulator(scenario, pace=0.05) as sim,
    ):
        assert (await port.get("/readyz")).json() == {"ready": True, "reason": ""}
        async with bridge.session(AssemblyAI(url=sim.url), api_key="k") as session:
            (shown,) = (await port.get("/v1/sessions")).json()["sessions"]
            assert shown.pop("seconds") > 0
            assert shown == {
                "id": session.id,
                "provider_session_id": session.provider_session_id,
                "dialect": "assemblyai",
            }
            parked = await until(session, ToolParked)
            (call,) = (await port.get(f"/v1/sessions/{session.id}/calls")).json()["calls"]
            assert (call["tool"], call["state"], call["key"]) == (
                "order",
                "waiting",
                f"{session.id}.{parked.key.epoch}.a/b",
            )
            done = await port.post(result_of(call["key"]), {"status": "completed", "output": "it is on its way"})
            assert done.status_code == 200
            settled = await until(session, ToolSettled)
            assert (settled.how, settled.outcome) == ("told", "ok")
        assert (await port.get("/v1/sessions")).json() == {"sessions": []}
        (call,) = (await port.get(f"/v1/sessions/{session.id}/calls")).json()["calls"]
        assert (call["state"], call["outcome"]) == ("sent", "ok")


async def test_a_bridge_that_is_drained_takes_no_sessions_and_ends_those_that_stay() -> None:
    async with asyncio.timeout(20), Bridge() as bridge, mounted(bridge) as port, Simulator(pace=0.05) as sim:
        agent = AssemblyAI(url=sim.url)
        async with bridge.session(agent, api_key="k") as session:
            assert (await port.post("/drain?seconds=0")).json() == {"left": 1}
            assert [event async for event in session][-1:] != []
        assert (await port.get("/readyz")).json() == {"ready": False, "reason": "draining"}
        with pytest.raises(SessionClosed, match="draining"):
            async with bridge.session(agent, api_key="k"):
                pass
        assert (await port.post("/drain?seconds=5")).json() == {"left": 0}


async def test_a_drain_waits_for_sessions_that_end_by_themselves() -> None:
    async with asyncio.timeout(20), Bridge() as bridge, Simulator(pace=0.05) as sim:
        async with bridge.session(AssemblyAI(url=sim.url), api_key="k"):
            draining = asyncio.create_task(bridge.drain(5))
            while not bridge.ready:  # noqa: ASYNC110 - what is waited for is no event of ours
                await asyncio.sleep(0)
        assert await draining == 0


async def test_a_call_that_an_earlier_process_has_left_open_is_listed_and_completed() -> None:
    journal = MemoryJournal()
    await journal.claim(CallId("s.1", 3, "c1"), "order", '{"item":"lamp"}', "elsewhere/1/dead")
    await journal.leave(CallId("s.1", 3, "c1"), math.inf)
    key, done = "s.1.3.c1", {"status": "completed", "output": "sent"}
    async with asyncio.timeout(20), Bridge(tools(), journal=journal) as bridge, mounted(bridge) as port:
        assert (await port.post(result_of(key), {"status": "running"})).json()["status"] == "running"
        await bridge.recover(dead=lambda owner: True)
        for path in ("/v1/calls", "/v1/sessions/s.1/calls"):
            (call,) = (await port.get(path)).json()["calls"]
            assert (call["key"], call["session"], call["tool"], call["state"]) == (key, "s.1", "order", "waiting")
        for repeated in (False, True):
            answer = await port.post(result_of(key), done)
            assert (answer.status_code, answer.json()) == (200, {"key": key, **done, "repeated": repeated})
        assert (await port.get("/v1/calls")).json()["calls"] == []
        assert (await port.post(result_of(key), {"status": "running"})).status_code == 410


async def test_while_the_journal_does_not_say_whether_a_call_waits_it_may_be_asked_again() -> None:
    journal = MemoryJournal()
    async with asyncio.timeout(20), Bridge(tools(), journal=journal) as bridge, mounted(bridge) as port:
        await journal.aclose()
        for said in ({"status": "running"}, {"status": "completed", "output": 1}):
            answer = await port.post(result_of("s.1.c1"), said)
            assert (answer.status_code, answer.json()["retryable"]) == (503, True)
