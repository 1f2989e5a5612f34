"""What the tests of a fleet share: a database, and replicas of a process that share it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from bridge import CallContext, Toolset
from bridge.core.events import CallKey, ToolCall
from bridge.journal.postgres import open_postgres
from bridge.journal.stored import StoredJournal
from bridge.runner.approvals import ApprovalRequest, Approvals, Approver
from bridge.runner.post import Post
from bridge.runner.runner import Finished, Runner
from bridge.tools.tool import Parked

__all__ = ["Replica", "eventually", "mail", "replica"]

_owners = itertools.count(1)
_calls = itertools.count(1)


class Replica:
    """One process of a fleet, as far as calls go: a runner and its journal, named like a process of another machine."""

    def __init__(self, journal: StoredJournal, approver: Approver | None = None) -> None:
        self.journal = journal
        self.owner = f"elsewhere-{next(_owners)}/1/x"
        self.runner = Runner(journal=journal, owner=self.owner, approvals=Approvals(approver))
        self.tickets: asyncio.Queue[str] = asyncio.Queue()
        """Of the calls that have been parked."""
        self.gate = asyncio.Event()
        """Opens what `hand_over` and `note` wait for."""
        self.runs: list[str] = []
        self.tools = Toolset()
        self._session = self.runner.session(max_concurrent=100, calls_per_minute=10**6, repeat_limit=10**6)
        self._looking, self._look = asyncio.Lock(), self.post._look
        self.post._look = self._look_alone  # type: ignore[method-assign]
        self._add_tools()

    def _add_tools(self) -> None:
        async def park(call: CallContext) -> object:
            self.runs.append(call.tool)
            self.tickets.put_nowait(call.ticket)
            return Parked()

        async def hand_over(call: CallContext) -> object:
            self.tickets.put_nowait(call.ticket)
            await self.gate.wait()
            self.runs.append(call.tool)
            return Parked() if call.tool == "hand_over" else "noted"

        async def said() -> str:
            return "found out"

        async def run(call: CallContext, amount: int = 0, card: str = "") -> str:
            self.runs.append(call.tool)
            return "done"

        self.tools.tool(park, name="book", description="Book it.", timeout=60)
        self.tools.tool(park, name="look_up", description="Look it up.", timeout=60, effect="read")
        self.tools.tool(park, name="hurry", description="Do it soon.", timeout=0.05)
        self.tools.tool(park, name="brief", description="Do it briefly.", timeout=60, result_limit=100)
        self.tools.tool(hand_over, name="hand_over", description="Hand it over.", timeout=60)
        self.tools.tool(
            hand_over,
            name="look_into",
            description="Do it.",
            timeout=60,
            check_outcome=lambda arguments, ticket: said(),
        )
        self.tools.tool(hand_over, name="note", description="Note it.", timeout=60, idempotent=True)
        self.tools.tool(run, name="pay", description="Pay.", approval="always_ask", redact=["card"])
        self.tools.tool(run, name="write", description="Write it.")
        self.tools.tool(run, name="read", description="Read it.", effect="read")

    @property
    def post(self) -> Post:
        assert self.runner.post is not None
        return self.runner.post

    def call(self, tool: str, arguments: str = "{}") -> asyncio.Future[Finished]:
        """Its end."""
        over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        key = CallKey(0, f"c{next(_calls)}")
        made = ToolCall(key.call_id, tool, arguments)
        about = CallContext(session_id="s1", key=key, tool=tool)
        self._session.start(key, made, self.tools[tool], self.tools, about, over.set_result)
        return over

    async def parked(self, tool: str = "book") -> tuple[str, asyncio.Future[Finished]]:
        """The ticket of a call that waits, and its end."""
        over = self.call(tool)
        return await self.tickets.get(), over

    async def look(self) -> None:
        """Do now what is done every few seconds; never at the same time as the replica itself does."""
        async with self._looking:
            self.post._beat_due = None
            await self._look()

    async def _look_alone(self) -> None:
        async with self._looking:
            await self._look()

    async def seen(self, number: int = 1) -> tuple[ApprovalRequest, ...]:
        """So many requests that wait elsewhere, once they can be seen."""
        while len(requests := await self.runner.requests_elsewhere()) < number:  # noqa: ASYNC110 - as below
            await asyncio.sleep(0.005)
        return requests


@asynccontextmanager
async def replica(url: str, approver: Approver | None = None, **options: Any) -> AsyncIterator[Replica]:
    journal = open_postgres(url, **options)
    try:
        made = Replica(journal, approver)
        yield made
        await made._session.aclose(1)
        await made.runner.aclose(1)
        made.runner.close()
    finally:
        await journal.aclose()


def mail(url: str) -> list[tuple[Any, ...]]:
    """Every row of the mailbox: kind, name, state, what it is about, and its answer."""
    with psycopg.connect(url) as connection:
        return connection.execute(
            "SELECT kind, name, state, about, answer FROM bridge_mail ORDER BY changed"
        ).fetchall()


async def eventually(true: Callable[[], bool]) -> None:
    """Wait for what a database does not tell, as long as the test's patience."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
