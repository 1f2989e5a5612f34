"""The client of the provider's documentation, written out. There is none for Python to hold the simulator to.

It opens the stream before it sends its message, answers each `agent.custom_tool_use`, and is done when a turn ends
with nothing left to answer. A long-running tool is answered `running` first, and with its outcome when there is one.
Patches of earlier events are applied as they come.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2

from bridge.simulator.herm import Simulator

PATIENCE = 20.0

Tool = Callable[[Mapping[str, Any]], Awaitable[str]]


@dataclass(frozen=True)
class LongRunning:
    """A tool whose outcome comes later."""

    kickoff: str
    outcome: Tool


class Raw:
    """Requests to one provider, about its newest session."""

    def __init__(self, sim: Simulator, http: httpx2.AsyncClient) -> None:
        self.sim = sim
        self.http = http

    async def create(self, *tools: dict[str, Any]) -> str:
        """Create an agent with these custom tools, and a session; its id."""
        entries = [{"type": "custom", "input_schema": {"type": "object"}, **tool} for tool in tools]
        agent = await self.http.post("agents", json={"name": "clerk", "tools": entries})
        assert agent.status_code == 201, agent.text
        session = await self.http.post(f"agents/{agent.json()['id']}/sessions", json={"userId": "u1"})
        assert session.status_code == 201, session.text
        session_id: str = session.json()["id"]
        return session_id

    async def send(self, *events: dict[str, Any]) -> httpx2.Response:
        return await self.http.post(f"sessions/{self.sim.session.id}/events", json={"events": events})

    async def say(self, text: str = "Please.") -> httpx2.Response:
        return await self.send({"type": "user.message", "content": [{"type": "text", "text": text}]})

    async def history(self) -> list[dict[str, Any]]:
        """All events so far."""
        answer = await self.http.get(f"sessions/{self.sim.session.id}/events")
        events: list[dict[str, Any]] = answer.json()["data"]
        return events

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of the stream, from its opening on."""
        path = f"sessions/{self.sim.session.id}/events/stream"
        before = self.sim.session.history.streams
        async with self.http.stream("GET", path) as answer:
            await self.sim.agenda.until(lambda: self.sim.session.history.streams > before)
            yield _events(answer)


def result(tool_use_id: str, text: str = "fine", status: str = "completed") -> dict[str, Any]:
    """A result as the documentation has it."""
    return {
        "type": "user.custom_tool_result",
        "tool_use_id": tool_use_id,
        "status": status,
        "is_error": status == "failed",
        "content": [{"type": "text", "text": text}],
    }


@asynccontextmanager
async def raw(sim: Simulator) -> AsyncIterator[Raw]:
    """A client of this provider, with a bound on all that the test does."""
    headers = {"x-api-key": sim.api_key}
    async with httpx2.AsyncClient(base_url=f"{sim.url}/v1/", headers=headers, trust_env=False, verify=False) as http:
        with anyio.fail_after(PATIENCE):
            yield Raw(sim, http)


@dataclass
class DocumentedLoop:
    """One conversation; `events` is what the stream told, patches applied."""

    client: Raw
    tools: Mapping[str, Tool | LongRunning]
    events: list[dict[str, Any]] = field(default_factory=list)

    async def converse(self, text: str) -> list[dict[str, Any]]:
        """Say this and answer calls until all is done; the events."""
        async with self.client.stream() as stream, anyio.create_task_group() as jobs:
            await self.client.say(text)
            running = 0
            async for event in stream:
                payload = event["payload"]
                match event["type"]:
                    case "session.tool_updated":
                        self._patch(payload)
                        continue
                    case "agent.custom_tool_use":
                        tool = self.tools[payload["name"]]
                        if isinstance(tool, LongRunning):
                            running += 1
                            await self.client.send(result(payload["tool_use_id"], tool.kickoff, "running"))
                            jobs.start_soon(self._answer, tool.outcome, payload)
                        else:
                            await self._answer(tool, payload)
                self.events.append(event)
                if event["type"] == "session.status_idle" and payload["stop_reason"]["type"] == "end_turn":
                    if running == 0:
                        return self.events
                    running -= 1
        raise AssertionError("the stream has ended")

    async def _answer(self, tool: Tool, payload: Mapping[str, Any]) -> None:
        try:
            answer = result(payload["tool_use_id"], await tool(payload["input"]))
        except ValueError as error:
            answer = result(payload["tool_use_id"], str(error), "failed")
        await self.client.send(answer)

    def _patch(self, patch: Mapping[str, Any]) -> None:
        for event in self.events:
            if event["id"] == patch["event_id"]:
                event["payload"] = patch["payload"]


async def _events(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    kind = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            assert event["type"] == event["payload"]["type"] == kind
            yield event
