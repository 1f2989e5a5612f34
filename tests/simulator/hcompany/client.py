"""A client without any rules of its own: it posts what a test tells it to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2

from bridge.simulator.hcompany import Simulator

PATIENCE = 20.0
AGENT = {
    "name": "clerk",
    "description": "Knows the stock.",
    "environments": [],
    "tools": [{"name": "stock_level", "description": "How many there are."}],
}


class Raw:
    """Requests to one provider, about its newest session."""

    def __init__(self, sim: Simulator, http: httpx2.AsyncClient) -> None:
        self.sim = sim
        self.http = http

    async def create(self, **fields: Any) -> dict[str, Any]:
        """Create a session; its envelope."""
        answer = await self.http.post("sessions", json={"agent": AGENT, "messages": "Count.", **fields})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def post(self, what: str, body: Any = None) -> httpx2.Response:
        return await self.http.post(f"sessions/{self.sim.session.id}/{what}", json=body)

    async def get(self, what: str, **params: Any) -> httpx2.Response:
        return await self.http.get(f"sessions/{self.sim.session.id}/{what}", params=params)

    async def pending(self) -> list[dict[str, Any]]:
        """The calls the session waits for."""
        calls: list[dict[str, Any]] = (await self.get("status")).json()["pending_tool_calls"]
        return calls

    async def answer(self, request: dict[str, Any], result: Any = "fine") -> httpx2.Response:
        return await self.post("tool_results", success(request, result))


def success(request: dict[str, Any], result: Any = "fine") -> dict[str, Any]:
    return {"kind": "tool_result", "tool_req": request, "result": result}


def failure(request: dict[str, Any], text: str = "no such thing") -> dict[str, Any]:
    return {"kind": "error_event", "tool_req": request, "error": text, "origin": "test"}


@asynccontextmanager
async def raw(sim: Simulator) -> AsyncIterator[Raw]:
    """A client of this provider, with a bound on all that the test does."""
    headers = {"authorization": f"Bearer {sim.api_key}"}
    async with httpx2.AsyncClient(
        base_url=f"{sim.url}/api/v2/", headers=headers, trust_env=False, verify=False
    ) as http:
        with anyio.fail_after(PATIENCE):
            yield Raw(sim, http)
