"""Work that is handed out and decisions of people, over HTTP, while a caller waits: with real processes."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect

from bridge.simulator import AwaitResults, Call, Reply, Scenario, Simulator, UserSays, Wait
from tests.admin.rig import Port, Stream, result_of
from tests.test_workers import command

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOOLS = '''
from bridge import Parked, Toolset

tools = Toolset()


@tools.tool(timeout=60)
async def order(item: str) -> Parked:
    """Order something from the warehouse."""
    return Parked("The warehouse is being asked.")


@tools.tool(timeout=60, approval="always_ask", answer_within=0.1, redact=("card",))
async def refund(amount: int, card: str) -> dict:
    """Give money back."""
    return {"refunded": amount}
'''

CALLS = (Call("order", {"item": "lamp"}, "a/b"), Call("refund", {"amount": 7, "card": "4711"}, "c"))
SCENARIO = Scenario("", "", (UserSays("Both."), Reply("One moment.", CALLS), AwaitResults(), Wait(3600)))


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_caller_hears_what_was_completed_and_approved_over_http(tmp_path: Path, workers: int) -> None:
    (tmp_path / "shop.py").write_text(TOOLS)
    words = ("--tools", str(tmp_path / "shop.py"), "--workers", str(workers))
    environment = {"SHOP_TOKEN": "all-of-it", "BRIDGE_ADMIN__TOKEN_ENV": "SHOP_TOKEN", "BRIDGE_ADMIN__APPROVALS": "1"}
    with anyio.fail_after(50):
        async with Simulator(SCENARIO, pace=0.03) as sim, command(*words, "--url", sim.url, **environment) as sidecar:
            await sidecar.address()
            port = Port(sidecar.admin, sidecar.client, "all-of-it")
            async with connect(sidecar.url) as application, port.stream("/v1/facts") as facts:
                await application.send('{"type":"session.update","session":{}}')
                key = await parked(facts, "order")
                await parked(facts, "refund")
                await complete(port, key)
                await heard(application, "on its way")
                await approve(port)
                await heard(application, '"refunded":7')
            async with port.stream("/v1/approvals/stream") as stream:
                sidecar.process.send_signal(signal.SIGTERM)
                await stream.block()
            assert await sidecar.ended() == 0
            assert [call.is_error for call in sim.ledger.calls] == [False, False]


async def parked(facts: Stream, tool: str) -> str:
    """The key of the call of this tool, once the agent has been told that it goes on."""
    while True:
        _, data, _ = await facts.next()
        if data.get("tool") == tool and data.get("outcome") == "interim":
            return str(data["key"])


async def complete(port: Port, key: str) -> None:
    (call,) = (await port.get("/v1/calls")).json()["calls"]
    assert (call["key"], call["tool"], key.endswith(".a/b")) == (key, "order", True)
    result: dict[str, Any] = {"status": "completed", "output": "It is on its way."}
    answers = [await port.post(result_of(key), body) for body in ({"status": "running"}, result, result)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert (await port.post(result_of(key), {**result, "output": "It is lost."})).status_code == 409
    assert (await port.post(result_of("s.1.c"), result)).status_code == 404


async def approve(port: Port) -> None:
    (request,) = (await port.get("/v1/approvals")).json()["approvals"]
    assert (request["tool"], request["arguments"]) == ("refund", {"amount": 7, "card": "(masked)"})
    decided = await port.post(f"/v1/approvals/{request['id']}", {"decision": "approve", "by": "Ann"})
    assert (decided.status_code, decided.json()["by"]) == (200, "Ann")
    assert (await port.post(f"/v1/approvals/{request['id']}", {"decision": "deny"})).status_code == 409


async def heard(application: ClientConnection, words: str) -> None:
    """Wait until the agent has said this."""
    async with asyncio.timeout(20):
        while True:
            message = json.loads(await application.recv())
            if message["type"] == "transcript.agent" and words in message["text"]:
                return
