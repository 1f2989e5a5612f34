"""A process that runs tools behind a journal until it is killed, and leaves two files that tell what it did.

python -m tests.e2e.victim ADDRESS OWNER DIRECTORY [POINT NUMBER]

Each effect of a tool is a line of DIRECTORY/effects, each result that was sent a line of DIRECTORY/sent. With a POINT
it kills itself when it comes there for the NUMBERth time; else it goes on until somebody else does.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bridge.core.conversation import Step
from bridge.core.events import CallKey, Sent, ToolCall, ToolResult
from bridge.journal import CallId, Claim, Concluded, Fate, Journal
from bridge.journal.opening import open_journal
from bridge.runner.durable import Durable
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext, Toolset

__all__ = ["LANES", "POINTS", "Notes", "Trap", "context_of", "toolset"]

POINTS = (
    "before the claim",
    "after the claim",
    "in the tool, before its effect",
    "in the tool, after its effect",
    "before the outcome",
    "after the outcome",
    "before the send",
    "after the send",
    "before it is settled",
    "after it is settled",
)
LANES = 4
"""Calls that are made at once."""


class Trap:
    """Kills this process at one point, the nth time."""

    def __init__(self, point: str = "", number: int = 1) -> None:
        self._point = point
        self._left = number

    def at(self, point: str) -> None:
        self._left -= point == self._point
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Trapped:
    """The part of a journal that calls use, with traps before and behind."""

    def __init__(self, journal: Journal, trap: Trap) -> None:
        self._journal = journal
        self._trap = trap

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        self._trap.at("before the claim")
        claim = await self._journal.claim(call, tool, arguments, owner, instead_of=instead_of)
        self._trap.at("after the claim")
        return claim

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        self._trap.at("before the outcome")
        concluded = await self._journal.conclude(call, result, outcome)
        self._trap.at("after the outcome")
        return concluded

    async def settle(self, calls: Sequence[CallId], state: Fate) -> None:
        self._trap.at("before it is settled")
        await self._journal.settle(calls, state)
        self._trap.at("after it is settled")


class Notes:
    """A file of lines, each written at once."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


def toolset(effects: Notes, trap: Trap) -> Toolset:
    """A tool that must not run twice, and one that may."""
    tools = Toolset()

    async def act(call: CallContext) -> str:
        trap.at("in the tool, before its effect")
        effects.write(call.ticket)
        trap.at("in the tool, after its effect")
        await asyncio.sleep(0)
        return call.ticket

    tools.tool(act, name="book", description="Once.")
    tools.tool(act, name="note", description="Any number of times.", idempotent=True)
    return tools


def context_of(call: CallId, tool: str) -> CallContext:
    return CallContext(session_id=call.session, key=call.key, tool=tool)


class Lane:
    """A session that makes one call after the other."""

    def __init__(self, session: str, runner: Runner, tools: Toolset, sent: Notes, trap: Trap) -> None:
        self.id = session
        assert runner.durable is not None
        self._durable: Durable = runner.durable
        self._calls = runner.session(calls_per_minute=10**9)
        self._tools = tools
        self._sent = sent
        self._trap = trap

    async def run(self) -> None:
        for number in itertools.count():
            call = CallId(self.id, 0, f"c{number}")
            name = "note" if number % 3 == 2 else "book"
            over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
            made = ToolCall(call.call_id, name, "{}")
            context = context_of(call, name)
            self._calls.start(call.key, made, self._tools[name], self._tools, context, over.set_result)
            finished = await over
            self._trap.at("before the send")
            self._sent.write(f"{context.ticket} {finished.outcome.value}")
            self._trap.at("after the send")
            self._durable(self, Step((Sent((CallKey(0, call.call_id),)),)))
            await asyncio.sleep(0)


async def main(address: str, owner: str, directory: str, point: str = "", number: str = "1") -> None:
    trap = Trap(point, int(number))
    effects, sent = Notes(Path(directory, "effects")), Notes(Path(directory, "sent"))
    journal = Trapped(open_journal(address), trap)
    runner = Runner(journal=journal, owner=owner)  # type: ignore[arg-type]  # calls use no more of it
    tools = toolset(effects, trap)
    print("open", flush=True)
    async with asyncio.timeout(60), asyncio.TaskGroup() as lanes:
        for lane in range(LANES):
            lanes.create_task(Lane(f"{owner}-{lane}", runner, tools, sent, trap).run())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
