"""A process that serves calls behind a journal until it is killed, and leaves lines in a file that tell what it did.

`python -m tests.e2e.victim` is a nursery: everything is imported there once, and each line of JSON on its standard
input, a `Life`, is a child of it, whose process number it prints. So a thousand of them can be born in a minute.

A life opens the journal in its directory, takes sessions of the provider at its address, one after the other in a few
lanes, embedded or behind the sidecar's relay, and runs tools of every kind for them. First it goes on with those that
it is to `resume`. With a `point` it kills itself when it comes there for the `number`th time; else it goes on until
somebody else does.

What it does is in `log`, a line each, written at once: `effect TOOL TICKET`, `asked TICKET`, `approved TICKET`,
`sent TICKET`, `told TICKET`, `serves PROVIDERS-ID OUR-ID`, `resumable ...` with what it takes to go on with a session,
`resumed OUR-ID` and `refused OUR-ID` once that was tried, and `failed ...` if something went wrong that should not.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg  # noqa: F401 - so that a journal in PostgreSQL need not import it
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from bridge import AssemblyAI, Bridge, Delivery, ProviderError, Resumable, Toolset, TransportError
from bridge.core.conversation import Step
from bridge.core.events import FollowUp, Sent, SessionReady, ToolResult, ToolResults
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.errors import ToolError
from bridge.journal import CallId, Claim, Concluded, Entry, Fate, Journal
from bridge.journal.opening import open_journal
from bridge.journal.recorder import Recorder
from bridge.relay import Listen, Relay, Route, Upstream
from bridge.runner.approvals import ApprovalRequest, Approvals, Resolved
from bridge.runner.runner import Runner
from bridge.tools import CallContext
from bridge.tools.tool import Parked
from bridge.transports.websocket import WebSocketTransport

__all__ = ["LANES", "ONCE", "POINTS", "RECOVERING", "SENDING", "TOOLS", "Life", "Notes", "Trap", "ticket_of", "toolset"]

SENDING = ("before the send", "during the send", "after the send, before its record")
POINTS = (
    "before the intent",
    "after the intent",
    "in the tool, before its effect",
    "in the tool, after its effect",
    "before the outcome",
    "after the outcome",
    *SENDING,
    "before it is settled",
    "after it is settled",
    "before entries are written",
    "after entries are written",
    "while approval is asked for",
    "while the call is parked",
)
RECOVERING = tuple(
    f"recovering: {point}"
    for point in POINTS
    if point not in SENDING and "entries" not in point and "approval" not in point and "parked" not in point
)
"""The same, in what a new process does about the old one's calls."""

ONCE = ("book", "pay", "parcel", "courier", "refund")
"""Tools that must not have their effect twice."""
TOOLS = ("look", "note", *ONCE)
LANES = 3
"""Sessions at once."""
PACE = 0.02
BRISK = Delivery(grace=0.4 * PACE)
_DIES_WITH_PARENT = 1
"""An option of Linux: `PR_SET_PDEATHSIG`."""

_recovering: ContextVar[bool] = ContextVar("recovering", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What a victim is to do."""

    address: str
    """Of the journal."""
    owner: str
    directory: str
    url: str
    """Of the provider."""
    relay: bool = False
    recover: bool = False
    """Is it to look after what the one before has left?"""
    resume: Sequence[Mapping[str, str]] = ()
    """Sessions of the one before that it is to go on with, each a `Resumable`."""
    point: str = ""
    number: int = 1

    def is_dead(self, owner: str) -> bool:
        """A journal is used by one life after the other."""
        return owner != self.owner

    @property
    def line(self) -> str:
        """For the nursery."""
        return json.dumps(asdict(self))


def ticket_of(call: CallId) -> str:
    return CallContext(session_id=call.session, key=call.key, tool="").ticket


class Trap:
    """Kills this process at one point, the nth time."""

    def __init__(self, point: str = "", number: int = 1) -> None:
        self._point = point
        self._left = number

    def at(self, point: str) -> None:
        if self.next(point):
            kill()

    def next(self, point: str) -> bool:
        """Is this the end?"""
        self._left -= self._point == (f"recovering: {point}" if _recovering.get() else point)
        return self._left == 0 and bool(self._point)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Trapped:
    """A journal with traps before and behind what writes."""

    def __init__(self, journal: Journal, trap: Trap) -> None:
        self._journal = journal
        self._trap = trap
        self.read, self.claims, self.check = journal.read, journal.claims, journal.check

    async def append(self, entries: Sequence[Entry]) -> None:
        self._trap.at("before entries are written")
        await self._journal.append(entries)
        self._trap.at("after entries are written")

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        self._trap.at("before the intent")
        claim = await self._journal.claim(call, tool, arguments, owner, instead_of=instead_of)
        self._trap.at("after the intent")
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
    """A file of lines, each written at once, by any number of processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)

    def write(self, *words: str) -> None:
        os.write(self._file, (" ".join(words) + "\n").encode())

    def __contains__(self, line: str) -> bool:
        return f"\n{line}\n" in f"\n{self._path.read_text()}"

    def close(self) -> None:
        os.close(self._file)


def toolset(notes: Notes, trap: Trap, complete: Callable[[str], object] = lambda ticket: None) -> Toolset:
    """Tools of every kind, each of which does one thing: a line in the notes. All of them return their ticket."""
    tools = Toolset()

    async def act(call: CallContext, number: int = 0) -> str:
        trap.at("in the tool, before its effect")
        notes.write("effect", call.tool, call.ticket)
        trap.at("in the tool, after its effect")
        await asyncio.sleep(0)
        return call.ticket

    async def act_slowly(call: CallContext, number: int = 0) -> str:
        done = await act(call)
        await asyncio.sleep(0.06)
        trap.at("while the call is parked")
        return done

    async def hand_over(call: CallContext, number: int = 0) -> Parked:
        await act(call)

        def answered() -> None:
            trap.at("while the call is parked")
            complete(call.ticket)

        asyncio.get_running_loop().call_later(0.02, answered)
        return Parked()

    async def look_after(arguments: Mapping[str, Any], ticket: str) -> str:
        if f"effect pay {ticket}" not in notes:
            raise ToolError("it was not paid")
        return ticket

    def look(call: CallContext, number: int = 0) -> str:
        return call.ticket

    tools.tool(look, description="Look.", effect="read")
    tools.tool(act, name="note", description="Any number of times.", idempotent=True)
    tools.tool(act, name="book", description="Once.")
    tools.tool(act, name="pay", description="Once, and it can be looked after.", check_outcome=look_after)
    tools.tool(act, name="refund", description="Once, if somebody approves it.", approval="always_ask")
    tools.tool(act_slowly, name="parcel", description="Once, and slowly.", answer_within=0.03)
    tools.tool(hand_over, name="courier", description="Once, and somebody else tells the outcome.")
    return tools


class Spy:
    """An observer that sees what is sent before the journal does."""

    def __init__(self, notes: Notes, trap: Trap) -> None:
        self.notes = notes
        self._trap = trap
        self._interim: set[tuple[str, object]] = set()

    def __call__(self, session: Any, step: Step) -> None:
        for output in step.outputs:
            match output:
                case ToolResults(results, keys=keys):
                    self._trap.at("before the send")
                    self._interim |= {(session.id, key) for key, r in zip(keys, results, strict=True) if r.interim}
                case FollowUp(key):
                    self.notes.write("told", ticket_of(CallId.of(session.id, key)))
        for event in step.events:
            if isinstance(event, SessionReady):
                self.notes.write("serves", event.session_id, session.id)
                known = Resumable(session.id, event.session_id, event.resume_token)
                self.notes.write("resumable", json.dumps(asdict(known)))
            elif isinstance(event, Sent):
                self._trap.at("after the send, before its record")
                for key in event.keys:
                    if (session.id, key) not in self._interim:
                        self.notes.write("sent", ticket_of(CallId.of(session.id, key)))
                    self._interim.discard((session.id, key))


def cut_in_half(trap: Trap) -> None:
    """From now on the process may die while a result is on its way into the network."""
    whole = WebSocketTransport.send

    async def send(self: WebSocketTransport, frame: str | bytes) -> None:
        if "tool.result" in str(frame) and trap.next("during the send"):
            connection = self._connection
            connection.protocol.send_text(str(frame).encode())
            data = b"".join(connection.protocol.data_to_send())
            connection.transport.write(data[: len(data) // 2])
            kill()
        await whole(self, frame)

    WebSocketTransport.send = send  # type: ignore[method-assign]


def deciding(approvals: Approvals, notes: Notes, trap: Trap) -> Callable[[ApprovalRequest | Resolved], None]:
    """Somebody who approves three of four."""

    def tell(what: ApprovalRequest | Resolved) -> None:
        if isinstance(what, ApprovalRequest):
            ticket = ticket_of(CallId.of(what.session_id, what.key))
            trap.at("while approval is asked for")
            approve = hash(what.id) % 4 != 0
            if approve:
                notes.write("approved", ticket)
            asyncio.get_running_loop().call_soon(lambda: approvals.decide(what.id, approve=approve, by="a victim"))

    return tell


async def live(life: Life) -> None:
    """Until the end."""
    trap, notes = Trap(life.point, life.number), Notes(Path(life.directory, "log"))
    completing: list[Callable[[str], object]] = []
    tools = toolset(notes, trap, lambda ticket: completing[0](ticket))
    journal = Trapped(open_journal(life.address), trap)
    serve = behind_a_relay if life.relay else embedded
    async with serve(life, journal, tools, Spy(notes, trap)) as (runner, recover, session):
        completing.append(lambda ticket: runner.complete(ticket, ticket))
        cut_in_half(trap)
        with runner.approvals.attached(deciding(runner.approvals, notes, trap)):
            async with asyncio.TaskGroup() as lanes:
                if life.recover:
                    lanes.create_task(recovering(recover))
                for _ in range(LANES):
                    lanes.create_task(lane(session))


async def recovering(recover: Callable[[], Awaitable[object]]) -> None:
    _recovering.set(True)
    await recover()


async def lane(session: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(TransportError, ConnectionClosed, OSError):
            await session()


Serving = tuple[Runner, Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]
"""The runner, what recovers, and what goes through a session."""


@asynccontextmanager
async def embedded(life: Life, journal: Any, tools: Toolset, spy: Spy) -> AsyncIterator[Serving]:
    async with Bridge(tools, journal=journal, owner=life.owner, observers=(spy,)) as bridge:
        left = [Resumable(**each) for each in life.resume]

        async def session() -> None:
            agent, resume = AssemblyAI(url=life.url), left.pop() if left else None
            try:
                async with bridge.session(agent, api_key="offline", delivery=BRISK, resume=resume) as each:
                    if resume is not None:
                        spy.notes.write("resumed", resume.session)
                    await each.run()
            except ProviderError:
                if resume is None:
                    raise
                spy.notes.write("refused", resume.session)

        yield bridge.runner, lambda: bridge.recover(dead=life.is_dead), session


@asynccontextmanager
async def behind_a_relay(life: Life, journal: Any, tools: Toolset, spy: Spy) -> AsyncIterator[Serving]:
    route = Route(upstream=Upstream(dialect=ASSEMBLYAI, url=life.url))
    async with Recorder(journal) as recorder:
        relay = Relay([route], tools, observers=(spy, recorder), journal=journal, owner=life.owner)
        async with relay:
            await relay.start(Listen(port=0))

            async def session() -> None:
                async with dial(f"ws://127.0.0.1:{relay.port}/v1/ws") as application:
                    await application.send(json.dumps({"type": "session.update", "session": {}}))
                    async for _ in application:
                        pass

            yield relay.runner, lambda: relay.recover(dead=life.is_dead), session


# --------------------------------------------------------------------------------------------------------- the nursery


def born(life: Life) -> None:
    """In the child: live, and end without a word to the nursery, with it at the latest."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
    try:
        logging.disable(logging.CRITICAL)
        asyncio.run(live(life))
    except BaseException:
        Notes(Path(life.directory, "log")).write("failed", json.dumps(traceback.format_exc()))
    os._exit(1)


def nursery() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    gc.freeze()
    print("open", flush=True)
    for line in sys.stdin:
        life = Life(**json.loads(line))
        child = os.fork()
        if child == 0:
            born(life)
        print(child, flush=True)


if __name__ == "__main__":
    nursery()
