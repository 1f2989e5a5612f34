"""What can go wrong with a call over HTTP, and how an outcome is written down and put into words.

A case plays one fault against one provider. Its `vendor` is what the vendor's helper makes of it, its `right` what has
to come of it; both are compared with what the provider's account and the tool's own count say. The README's table is
made of the same cases.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import anyio

from bridge import ReplyDone, Session, SessionOptions, Toolset, connect
from bridge.core.dialect import Agent
from bridge.transports.patience import Patience

__all__ = ["BOOKED", "WAITS", "Case", "Desk", "Fault", "Outcome", "ended_by", "readme"]

BOOKED: Final = '{"booked":"77"}'
"""The result of the tool, as a provider has it."""
WAITS: Final = "waits"
"""How a helper ends that never does."""
NAN: Final = lambda no: {"x": math.nan}  # noqa: E731
SURROGATE: Final = lambda no: {"x": "\ud800"}  # noqa: E731
DATETIME: Final = lambda no: {"x": datetime(2026, 1, 2, tzinfo=UTC)}  # noqa: E731
ISO: Final = '{"x":"2026-01-02T00:00:00+00:00"}'
QUICK: Final = Patience(first_pause=0.01, longest_pause=0.05, give_up=15.0, confirm_after=0.15)
_STILL: Final = 0.3
"""Seconds after which a helper counts as waiting for ever, once nothing is left for it to do or to hear."""
_PATIENCE: Final = 20.0


class Fault(Enum):
    """The rows of the table: what happens, and what is right then."""

    CUT_BEFORE = "connection cut before the result counts", "sent again"
    CUT_AFTER = "connection cut after the result counts", "counts once"
    DENIED_BEFORE = "503 before the result counts", "sent again"
    DENIED_AFTER = "503 after the result counts", "counts once"
    BUSY = "429 with `Retry-After`", "sent again after that"
    LATE = "202, and it counts later", "waits for that"
    NEVER = "202, and it never counts", "sent again"
    UNHEARD = "the call comes while nobody listens", "found, run"
    DEAF = "connection lost while the tool runs", "runs once"
    TOLD_TWICE = "the same call is announced twice", "runs once"
    IDLE_TWICE = "the end of the turn is announced twice", "nothing"
    REUSED_ID = "an id comes again in a later step", "both run"
    NULL_ID = "two equal calls without an id", "both run"
    EVICTED = "the call has gone from the log", "found, run"
    PAUSED = "paused while the tool runs, then resumed", "counts once"
    ENDED = "cancelled while the tool runs", "told as void"
    EXPIRED = "the result comes too late", "told as void"
    KICKOFF = "the answer to `running` is lost", "outcome told once"
    OUTCOME = "the outcome of a long call is cut off", "outcome told once"
    NAN = "NaN in the result", "`null`"
    SURROGATE = "half a character in the result", "replaced"
    DATETIME = "a date in the result", "ISO 8601"
    UNKNOWN = "a tool that nobody has", "error result"
    KILLED = "process killed after the effect, then another one", "told that nobody knows (with a journal)"
    SLOW = "a slow tool before a fast one", "side by side"

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def ours(self) -> str:
        return self.value[1]


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    ran: int = 1
    """How often the tool had its effect."""
    told: tuple[str, ...] = (BOOKED,)
    """The results that the provider holds, in the order in which they came; an error is `!`."""
    doubles: int = 0
    """Results that came once more for a call that had one."""
    ended: str = ""
    """The exception with which it ended; empty if it came to the agent's last words."""

    def against(self, right: Outcome) -> str:
        """In a few words, what is wrong with it."""
        wrong = []
        if self.ended:
            wrong.append("waits for ever" if self.ended == WAITS else f"raises `{self.ended}`")
        if self.ran > right.ran:
            wrong.append("runs twice")
        elif self.ran < right.ran:
            wrong.append("not run")
        elif len(self.told) < len(right.told):
            wrong.append("result lost")
        if self.doubles:
            wrong.append("sent twice")
        if len(self.told) == len(right.told) and self.told != right.told:
            wrong.append("one by one" if sorted(self.told) == sorted(right.told) else _shown(self.told[0]))
        return ", ".join(wrong) or "✓"


VOID: Final = Outcome(told=())
"""Nobody wants the result any more."""
TWO: Final = Outcome(2, (BOOKED, BOOKED))
"""One tool, twice."""
UNKNOWN: Final = Outcome(told=("!",))
"""The agent is told that nobody knows whether it happened."""


def _shown(told: str) -> str:
    if told == "!":
        return "error result"
    return f"`{told[:24]}`..." if len(told) > 24 else f"`{told}`"


class Desk:
    """The application: a tool that counts its effects, and has something else happen before it returns."""

    def __init__(self, result: Callable[[str], Any], meanwhile: Callable[[str], Awaitable[object]]) -> None:
        self.effects: list[str] = []
        self.began = anyio.Event()
        self._result = result
        self._meanwhile = meanwhile

    async def book(self, no: str = "77") -> Any:
        """Book a parcel."""
        self.effects.append(no)
        self.began.set()
        await self._meanwhile(no)
        return self._result(no)


async def never(*_: object) -> None:
    """What happens meanwhile, where somebody dies of it."""
    await anyio.sleep_forever()


async def _nothing(*_: object) -> None:
    """What happens meanwhile, in most cases."""


@dataclass(frozen=True)
class Case:
    """One fault, played against one provider. `S` below is that provider's simulator."""

    fault: Fault
    steps: tuple[Any, ...]
    right: Outcome = Outcome()
    vendor: Outcome | None = Outcome()
    """None: the vendor has nothing to compare with."""
    says: int = 1
    """How many messages the user says, each one once the agent has answered the one before."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the session."""
    rules: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Any, ...] = ()
    """Of the requests that follow."""
    result: Callable[[str], Any] = lambda no: {"booked": no}
    meanwhile: Callable[[Any, str], Awaitable[object]] = _nothing
    """What happens while the tool runs, after its effect: of `S` and the tool's argument."""
    in_vain: float = math.inf
    """Seconds for which the tool waits for that where the vendor's helper has it never happen."""
    answer_within: float | None = None
    beside: Callable[[Any], Coroutine[Any, Any, None]] = _nothing
    """What happens at the same time as all of it."""
    name: str = ""
    """In reports of tests, if not that of the fault."""
    stuck: Callable[[Any], bool] = bool
    """For a helper that waits for ever: has it done all that it will do, as far as `S` can see?"""

    def desk(self, sim: Any, patience: float = math.inf) -> Desk:
        async def meanwhile(no: str) -> None:
            with anyio.move_on_after(patience):
                await self.meanwhile(sim, no)

        return Desk(self.result, meanwhile)

    def __str__(self) -> str:
        return self.name or self.fault.name.lower()

    @property
    def words(self) -> str:
        """What the vendor's helper makes of it."""
        return "-" if self.vendor is None else self.vendor.against(self.right)


async def killed(life: Callable[[], Coroutine[Any, Any, None]], desk: Desk) -> None:
    """Run this until its tool has had its effect, and no further."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life)
        await desk.began.wait()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(agent: Agent, desk: Desk, case: Case, sim: Any, key: str = "k") -> AsyncIterator[Session]:
    """A session of ours with the desk's tool, beside whatever the case has in store for it."""
    tools = Toolset()
    tools.tool(desk.book, answer_within=case.answer_within)
    options = SessionOptions(patience=QUICK)
    with anyio.fail_after(_PATIENCE):
        async with anyio.create_task_group() as tasks:
            async with connect(agent, tools=tools, api_key=key, options=options) as session:
                tasks.start_soon(case.beside, sim)
                yield session
            tasks.cancel_scope.cancel()


async def end_of_turn(session: Session) -> None:
    """Wait until the session has heard of it."""
    async for event in session:
        if isinstance(event, ReplyDone):
            return


async def ended_by(
    helper: Callable[[], Awaitable[object]],
    case: Case,
    sim: Any,
    until: Callable[[Callable[[], bool]], Awaitable[object]],
) -> str:
    """How a helper ends, beside whatever the case has in store for it.

    One that is to wait for ever is given up once it is stuck. `until` waits for something to be true of the provider.
    """
    ended = ""

    async def run() -> None:
        nonlocal ended
        try:
            await helper()
        except Exception as error:
            ended = type(_only(error)).__name__
        done.set()

    done = anyio.Event()
    with anyio.fail_after(_PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            tasks.start_soon(case.beside, sim)
            if case.vendor is not None and case.vendor.ended == WAITS:
                await until(lambda: case.stuck(sim))
                with anyio.move_on_after(_STILL):
                    await done.wait()
                ended = ended if done.is_set() else WAITS
                tasks.cancel_scope.cancel()
    return ended


def _only(error: Exception) -> BaseException:
    """What is in a group of one."""
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


def readme(*systems: Sequence[Case]) -> str:
    """The table as Markdown: a row for each fault, by its first cases, a column for each vendor's helper, and us."""
    columns = [{case.fault: case for case in reversed(cases)} for cases in systems]
    rows = []
    for fault in Fault:
        cells = ["-" if (case := column.get(fault)) is None else case.words for column in columns]
        rows.append(f"| {fault.words} | {' | '.join(cells)} | {fault.ours} |")
    return "\n".join(rows)
