"""A replica as a process: a bridge with a simulated provider, told by lines of JSON what to do, and saying what came.

python -m tests.e2e.fleet_process ADDRESS OWNER

`{"do": "talk", "tool": ...}` begins a conversation in which the agent calls the tool. It says `{"ticket": ...}` once
the agent has been told that the work goes on, and at the end what the agent was asked to tell. The others are one
answer each.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from bridge import AssemblyAI, Bridge, CallContext, Session, Toolset
from bridge.core.conversation import Step
from bridge.core.events import FollowUp
from bridge.journal.postgres import open_postgres
from bridge.runner.approvals import Unknown
from bridge.simulator import Call, HangUp, Reply, Simulator, Until
from bridge.tools.tool import Parked
from tests.e2e.conftest import BRISK, PACE, script

__all__: list[str] = []

LEASE = 1.2


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def toolset(tickets: list[str]) -> Toolset:
    tools = Toolset()

    @tools.tool(timeout=60)
    async def book(call: CallContext) -> object:
        tickets.append(call.ticket)
        return Parked()

    @tools.tool(approval="always_ask", answer_within=0.01)
    async def pay() -> str:
        say(ran="pay")
        return "paid"

    return tools


class Told:
    """What the agent was asked to tell, as an observer of sessions sees it."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def __call__(self, session: Session, step: Step) -> None:
        self.results += [each.result.output for each in step.outputs if isinstance(each, FollowUp)]


async def talk(bridge: Bridge, told: Told, tickets: list[str], tool: str) -> None:
    steps = (Reply("One moment.", (Call(tool),), 0.4), Until("reply.create"), HangUp())
    async with Simulator(script(*steps), pace=PACE) as sim:
        async with bridge.session(AssemblyAI(url=sim.url), api_key="offline", delivery=BRISK) as session:
            running = asyncio.create_task(session.run())
            while not (calls := sim.ledger.calls) or not calls[0].answers:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            say(ticket="".join(tickets))
            await running
        say(told=told.results)


async def obey(bridge: Bridge, order: dict[str, Any]) -> None:
    runner = bridge.runner
    match order["do"]:
        case "settle":
            say(verdict=(await runner.settle(order["ticket"], order["value"])).verdict.value)
        case "requests":
            say(requests=[each.id for each in await runner.requests_elsewhere()])
        case "decide":
            decision = await runner.decide(order["id"], approve=True, by="ann")
            by = "" if isinstance(decision, Unknown) else decision.resolved.by
            say(decision=type(decision).__name__, by=by)
        case "recover":
            left = await bridge.recover()
            say(recovered=[[each.found.name, each.result and each.result.output] for each in left])


async def main(address: str, owner: str) -> None:
    loop = asyncio.get_running_loop()
    journal = open_postgres(address, lease=LEASE)
    told, tickets = Told(), list[str]()
    options: dict[str, Any] = {"journal": journal, "owner": owner, "observers": (told,)}
    async with Bridge(toolset(tickets), **options) as bridge, asyncio.TaskGroup() as group:
        bridge.runner.begin()
        with bridge.approvals.attached(lambda told: None):
            say(open=True)
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                order = json.loads(line)
                if order["do"] == "talk":
                    group.create_task(talk(bridge, told, tickets, order["tool"]))
                else:
                    await obey(bridge, order)
    await journal.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
