"""What a call costs in a session over HTTP, beside the vendors' own helpers: `python tests/bench/http_sessions.py`.

One session makes 50 calls, one after the other, of a tool that does nothing, against the offline providers in this very
process. `requests` are all that the provider was sent, for each call that was settled; `ms` is the median from the
moment that a call can be seen at the provider to the one at which its result has been accepted. OpenAI's helper is that
of `openai`, H Company's the `run_session` of `hai_agents`; Herm has none for Python, so the loop of its documentation
stands in. At last, what 500 sessions weigh that are attached to and waiting, in a process that does nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio
import hai_agents
import httpx
import httpx2
import openai

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bridge import Agent, Bridge, HCompany, Herm, OpenAISessions, Toolset, connect  # noqa: E402 - the tree itself is measured
from bridge.simulator import hcompany, herm, openai_sessions  # noqa: E402
from tests.simulator.herm.documented_loop import DocumentedLoop, raw  # noqa: E402

CALLS = 50
SESSIONS = 500
CLERK = {"name": "clerk", "description": "Knows the stock.", "environments": []}
STATM = Path("/proc/self/statm")

tools = Toolset()


@tools.tool(effect="read")
async def look(number: int) -> int:
    """Look."""
    return number


def row(what: str, requests: int, seconds: Sequence[float]) -> None:
    print(f"{what:30}{requests / CALLS:10.2f}{statistics.median(seconds) * 1000:10.1f}")


# ------------------------------------------------------------------------------------------------------------ OpenAI


async def openai_calls(what: str, serve: Callable[[openai_sessions.Simulator], Awaitable[object]]) -> None:
    asks = [openai_sessions.Ask((openai_sessions.Call("look", {"number": number}),)) for number in range(CALLS)]
    steps = [step for ask in asks for step in (ask, openai_sessions.AwaitResults())]
    scenario = openai_sessions.Scenario(((*steps, openai_sessions.Say("Done.")),))
    async with openai_sessions.Simulator(scenario) as sim:
        await serve(sim)
        seconds = [call.result.at - call.asked_at for call in sim.ledger.calls if call.result is not None]
        row(what, len(sim.requests), seconds)


async def our_openai(sim: openai_sessions.Simulator) -> None:
    agent = OpenAISessions(model="m", environment="openai_hosted", url=sim.url)
    async with connect(agent, tools=tools, api_key="k") as session:
        session.say("Look.")
        await sim.turn_over()


async def their_openai(sim: openai_sessions.Simulator) -> None:
    function = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}

    def talk() -> None:
        with openai.OpenAI(base_url=sim.url, api_key="k") as client:
            sessions: Any = client.beta.agents.sessions
            created = sessions.create(environment={"type": "openai_hosted"}, agent={"model": "m", "tools": [function]})
            handlers = {"look": lambda arguments: arguments["number"]}
            with sessions.stream(created.id, input="Look.", tool_handlers=handlers) as stream:
                stream.until_done()

    await anyio.to_thread.run_sync(talk)


# --------------------------------------------------------------------------------------------------------- H Company


async def hcompany_calls(what: str, serve: Callable[[hcompany.Simulator], Awaitable[object]]) -> None:
    asks = [hcompany.Ask((hcompany.Call("look", {"number": number}),)) for number in range(CALLS)]
    async with hcompany.Simulator(hcompany.Scenario((*asks, hcompany.Answer("Done.")))) as sim:
        await serve(sim)
        log, calls = sim.session.log.kept, sim.ledger.calls
        seconds = [
            call.results[0].at - datetime.fromisoformat(log[call.step]["timestamp"]).timestamp() for call in calls
        ]
        row(what, len(sim.exchanges), seconds)


async def our_hcompany(sim: hcompany.Simulator) -> None:
    async with connect(
        HCompany(agent=CLERK, messages="Look.", url=sim.url), tools=tools, api_key=sim.api_key
    ) as session:
        await session.run()


async def their_hcompany(sim: hcompany.Simulator) -> None:
    async def look(number: int) -> int:
        """Look."""
        return number

    async with httpx.AsyncClient(trust_env=False) as http:
        client: Any = hai_agents.AsyncClient(base_url=sim.url, api_key=sim.api_key, httpx_client=http)
        await client.run_session(agent=CLERK, messages="Look.", tools=[look])


# -------------------------------------------------------------------------------------------------------------- Herm


async def herm_calls(what: str, serve: Callable[[herm.Simulator], Awaitable[object]]) -> None:
    asks = [herm.Ask((herm.Call("look", {"number": number}),)) for number in range(CALLS)]
    async with herm.Simulator(herm.Scenario((*asks, herm.Answer("Done.")))) as sim:
        await serve(sim)
        used = [event for event in sim.session.history.events if event["type"] == "agent.custom_tool_use"]
        seen = {event["payload"]["tool_use_id"]: event["createdAt"] for event in used}
        made = [(datetime.fromisoformat(seen[each.tool_use_id]).timestamp(), each.at) for each in sim.ledger.results]
        row(what, len(sim.exchanges), [at - since for since, at in made])


async def our_herm(sim: herm.Simulator) -> None:
    async with raw(sim) as client:
        session_id = await client.create({"name": "look"})
        async with connect(Herm(session_id=session_id, url=sim.url), tools=tools, api_key=sim.api_key) as session:
            session.say("Look.")
            await sim.agenda.until(lambda: any(turn.ended for turn in sim.ledger.turns))


async def their_herm(sim: herm.Simulator) -> None:
    async def look(arguments: Any) -> str:
        return str(arguments["number"])

    async with raw(sim) as client:
        await client.create({"name": "look"})
        await DocumentedLoop(client, {"look": look}).converse("Look.")


# ------------------------------------------------------------------------------------------------------------ memory


async def weigh(system: str, url: str) -> None:
    """In a process of its own: attach to the sessions whose ids come in, and print the KiB that each has added."""
    logging.disable()
    ids = sys.stdin.read().split()
    kind: Callable[..., Agent] = HCompany if system == "hcompany" else OpenAISessions
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(Bridge(tools))
        sessions = [bridge.session(kind(session_id=each, url=url), api_key="hk-offline") for each in ids]
        await stack.enter_async_context(sessions[0])  # what all of them share is there after this
        before = kib()
        for session in sessions[1:]:
            await stack.enter_async_context(session)
        print((kib() - before) / (len(ids) - 1))


def kib() -> float:
    return int(STATM.read_text().split()[1]) * 4.0


async def weight(system: str, url: str, ids: Sequence[str]) -> None:
    words = [sys.executable, __file__, system, url]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate("\n".join(ids).encode())
    print(f"{system:30}{float(said):10.0f} KiB for each of {len(ids)} attached sessions")


async def weights() -> None:
    async with hcompany.Simulator(hcompany.Scenario((hcompany.Work(3600),))) as sim, httpx2.AsyncClient() as client:
        agent = {**CLERK, "tools": [{"name": "look", "description": "Look."}]}
        body, headers = {"agent": agent, "messages": "Look."}, {"authorization": f"Bearer {sim.api_key}"}
        path = f"{sim.url}/api/v2/sessions"
        ids = [(await client.post(path, json=body, headers=headers)).json()["id"] for _ in range(SESSIONS)]
        await weight("hcompany", sim.url, ids)
    async with openai_sessions.Simulator() as other, httpx2.AsyncClient() as client:
        body = {"environment": {"type": "openai_hosted"}, "agent": {"model": "m"}}
        headers = {"authorization": "Bearer k", "openai-beta": "agents=v1"}
        path = f"{other.url}/agents/sessions"
        ids = [(await client.post(path, json=body, headers=headers)).json()["id"] for _ in range(SESSIONS)]
        await weight("openai_sessions", other.url, ids)


async def main() -> None:
    logging.disable()
    print(f"{'':30}{'requests':>10}{'ms':>10}")
    await openai_calls("OpenAI: its helper", their_openai)
    await openai_calls("OpenAI: ours", our_openai)
    await hcompany_calls("H Company: its run_session", their_hcompany)
    await hcompany_calls("H Company: ours", our_hcompany)
    await herm_calls("Herm: documented loop", their_herm)
    await herm_calls("Herm: ours", our_herm)
    await weights()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    asyncio.run(weigh(*sys.argv[1:]) if sys.argv[1:] else main())
