"""Offline providers with sessions that somebody else has begun, for what attaches to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from bridge.simulator import hcompany, herm, openai_sessions

__all__ = ["PROVIDERS", "Rig", "hai", "herm_rig"]

_SCHEMA = {"type": "object", "properties": {"no": {"type": "string"}}}
_NAMED = {"name": "book", "description": "Book a parcel."}


class Rig(Protocol):
    """A provider that is running."""

    @property
    def dialect(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def api_key(self) -> str: ...

    async def begin(self) -> str:
        """Begin a session whose agent calls `book`; its id."""
        ...

    async def ask(self, session_id: str) -> None:
        """Say something to it, if it waits for that before it calls."""
        ...

    async def go_on(self, session_id: str) -> None:
        """Say something to it after it has answered, so that it calls once more, if it has that to do."""
        ...

    async def answered(self, session_id: str) -> list[Any]:
        """Wait until every call of the session has its answer; these."""
        ...

    async def end(self, session_id: str) -> None:
        """Somebody ends the session."""
        ...


@dataclass
class _Hai:
    sim: hcompany.Simulator
    client: httpx2.AsyncClient
    dialect: str = "hcompany"

    @property
    def url(self) -> str:
        return self.sim.url

    @property
    def api_key(self) -> str:
        return self.sim.api_key

    async def begin(self, idle: int | None = 600) -> str:
        tool = {**_NAMED, "input_schema": _SCHEMA}
        agent = {"name": "a", "description": "Books.", "environments": [], "tools": [tool]}
        body = {"agent": agent, "messages": "77?", "idle_timeout_s": idle}
        answer = await self.client.post("/api/v2/sessions", json=body)
        return str(answer.json()["id"])

    async def ask(self, session_id: str) -> None:
        pass

    async def go_on(self, session_id: str) -> None:
        calls = self.sim.sessions[session_id].ledger.calls
        many = len(calls)
        await self.sim.reached("idle")
        message = {"type": "user_message", "message": "And now?"}
        await self.client.post(f"/api/v2/sessions/{session_id}/messages", json=message)
        await self.sim.agenda.until(lambda: len(calls) > many)

    async def answered(self, session_id: str) -> list[Any]:
        calls = self.sim.sessions[session_id].ledger.calls
        await self.sim.agenda.until(lambda: bool(calls) and all(c.fate is hcompany.Fate.SETTLED for c in calls))
        return [call.settled_with for call in calls]

    async def end(self, session_id: str) -> None:
        await self.client.delete(f"/api/v2/sessions/{session_id}")


@dataclass
class _OpenAI:
    sim: openai_sessions.Simulator
    client: httpx2.AsyncClient
    dialect: str = "openai-sessions"
    api_key: str = "k"

    @property
    def url(self) -> str:
        return self.sim.url

    async def begin(self) -> str:
        tool = {"type": "function", **_NAMED, "parameters": _SCHEMA}
        body = {"environment": {"type": "none"}, "agent": {"model": "m", "tools": [tool]}, "input": "77?"}
        answer = await self.client.post("/v1/agents/sessions", json=body)
        return str(answer.json()["id"])

    async def ask(self, session_id: str) -> None:
        pass

    async def go_on(self, session_id: str) -> None:
        part = {"type": "input_text", "text": "And now?"}
        message = {"type": "message", "role": "user", "content": [part]}
        events = [{"type": "agent.session.input.message", "input": [message]}]
        turns = len(self.sim.ledger.turns)
        await self.client.post(f"/v1/agents/sessions/{session_id}/events", json={"events": events})
        await self.sim.until(lambda ledger: len(ledger.turns) > turns)

    async def answered(self, session_id: str) -> list[Any]:
        ledger = await self.sim.turn_over(max(len(self.sim.ledger.turns), 1))
        return [call.result.output for call in ledger.calls if call.result is not None]

    async def end(self, session_id: str) -> None:
        await self.client.delete(f"/v1/agents/sessions/{session_id}")


@dataclass
class _Herm:
    sim: herm.Simulator
    client: httpx2.AsyncClient
    dialect: str = "herm"

    @property
    def url(self) -> str:
        return self.sim.url

    @property
    def api_key(self) -> str:
        return self.sim.api_key

    async def begin(self, policy: str = "always_allow") -> str:
        tool = {"type": "custom", **_NAMED, "input_schema": _SCHEMA, "permissionPolicy": {"type": policy}}
        agent = await self.client.post("/v1/agents", json={"name": "a", "tools": [tool]})
        answer = await self.client.post(f"/v1/agents/{agent.json()['id']}/sessions", json={})
        return str(answer.json()["id"])

    async def ask(self, session_id: str) -> None:
        message = {"type": "user.message", "content": [{"type": "text", "text": "77?"}]}
        await self.client.post(f"/v1/sessions/{session_id}/events", json={"events": [message]})

    async def go_on(self, session_id: str) -> None:
        await self.ask(session_id)

    async def answered(self, session_id: str) -> list[Any]:
        ledger = self.sim.sessions[session_id].ledger
        await self.sim.agenda.until(lambda: bool(ledger.turns) and all(turn.ended for turn in ledger.turns))
        return [call.text for call in ledger.calls]

    async def end(self, session_id: str) -> None:
        await self.client.delete(f"/v1/sessions/{session_id}")


@asynccontextmanager
async def hai(steps: tuple[Any, ...] = (), **rules: Any) -> AsyncIterator[_Hai]:
    """H Company, with sessions that play these steps."""
    async with hcompany.Simulator(hcompany.Scenario(steps), rules=hcompany.Rules(**rules)) as sim:
        headers = {"authorization": f"Bearer {sim.api_key}"}
        async with httpx2.AsyncClient(base_url=sim.url, headers=headers, trust_env=False) as client:
            yield _Hai(sim, client)


@asynccontextmanager
async def _openai() -> AsyncIterator[_OpenAI]:
    headers = {"authorization": "Bearer k", "openai-beta": "agents=v1"}
    async with openai_sessions.Simulator(api_key="k", pace=0.1) as sim, AsyncExitStack() as stack:
        base = sim.url.removesuffix("/v1")
        client = httpx2.AsyncClient(base_url=base, headers=headers, trust_env=False)
        yield _OpenAI(sim, await stack.enter_async_context(client))


@asynccontextmanager
async def herm_rig() -> AsyncIterator[_Herm]:
    async with herm.Simulator() as sim:
        headers = {"x-api-key": sim.api_key}
        async with httpx2.AsyncClient(base_url=sim.url, headers=headers, trust_env=False) as client:
            yield _Herm(sim, client)


PROVIDERS: dict[str, Callable[[], AbstractAsyncContextManager[Rig]]] = {
    "hcompany": hai,
    "openai-sessions": _openai,
    "herm": herm_rig,
}
