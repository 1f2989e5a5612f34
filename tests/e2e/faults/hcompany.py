"""H Company: the cases, the vendor's helper (`start_session` and `wait_for_completion`), and ours."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from bridge.agents.hcompany import HCompany
from bridge.simulator.hcompany import (
    Answer,
    Ask,
    Call,
    End,
    Result,
    Rules,
    Scenario,
    Simulator,
    Step,
    Verdict,
)
from bridge.simulator.hcompany import Fault as Trouble
from tests.simulator.hcompany.client import raw

from .table import (
    DATETIME,
    ISO,
    NAN,
    SURROGATE,
    TWO,
    UNKNOWN,
    VOID,
    WAITS,
    Case,
    Fault,
    Outcome,
    end_of_turn,
    ended_by,
    killed,
    never,
    serving,
)

AGENT: Final = {"name": "clerk", "description": "Knows the parcels.", "environments": []}
BOOK: Final = Ask((Call("book", {"no": "77"}, "xml_0"),))
TURN: Final = (BOOK, Answer("Done."))
PYTHON: Final = "{'x': datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)}"
IDLE: Final = {"idle_timeout_s": 60}


def case(fault: Fault, *steps: Step, **told: Any) -> Case:
    return Case(fault, steps or TURN, **told)


def post(**fault: Any) -> Trouble:
    return Trouble(operation="tool_results", **fault)


def arm(*faults: Trouble) -> Callable[[Simulator, str], Awaitable[None]]:
    """From when the tool has had its effect, the next requests have these faults."""

    async def armed(sim: Simulator, no: str) -> None:
        sim.faults.extend(faults)

    return armed


async def pause(sim: Simulator, no: str) -> None:
    sim.session.pause()


async def resume(sim: Simulator) -> None:
    """As soon as the paused session has its result."""
    await sim.agenda.until(lambda: bool(sim.sessions) and bool(sim.ledger.results))
    assert sim.session.status.value == "paused"
    sim.session.resume()


async def cancel(sim: Simulator, no: str) -> None:
    sim.session.interrupt()


async def too_long(sim: Simulator, no: str) -> None:
    sim.agenda.advance(61)


async def fast_is_told(sim: Simulator, no: str) -> None:
    if no == "slow":
        await sim.agenda.until(lambda: bool(sim.ledger.results))


def looked(sim: Simulator) -> bool:
    """The session was read while it waited."""
    statuses = [each.operation for each in sim.exchanges]
    return bool(sim.sessions) and sim.session.status.value == "awaiting_tool_results" and "status" in statuses


def told(results: Sequence[Result]) -> tuple[str, ...]:
    """The results that count, in the order in which they came."""
    return tuple("!" if each.is_error else _text(each.value) for each in results if each.verdict is Verdict.SETTLED)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


CASES: Final = (
    case(Fault.CUT_BEFORE, faults=(post(end=End.CUT),), vendor=Outcome(2, ended="ReadError")),
    case(Fault.CUT_AFTER, faults=(post(end=End.CUT, done=True),), settings=IDLE, vendor=Outcome(ended="ReadError")),
    case(Fault.DENIED_BEFORE, faults=(post(end=End.REFUSED),)),
    case(Fault.DENIED_AFTER, faults=(post(end=End.REFUSED, done=True),), settings=IDLE, vendor=Outcome(doubles=1)),
    case(Fault.BUSY, faults=(post(end=End.REFUSED, status=429, retry_after="0.05"),)),
    case(Fault.LATE, faults=(post(delay=0.05),)),
    case(
        Fault.NEVER,
        faults=(post(delay=math.inf),),
        vendor=Outcome(told=(), ended=WAITS),
        stuck=lambda sim: bool(sim.sessions) and bool(sim.ledger.results),
    ),
    case(Fault.UNHEARD, faults=(Trouble(operation="changes", end=End.CUT),), vendor=Outcome(ended="ReadError")),
    case(Fault.DEAF, meanwhile=arm(Trouble(operation="changes", end=End.CUT)), vendor=Outcome(ended="ReadError")),
    case(Fault.TOLD_TWICE, rules={"states_sent": 2}),
    case(Fault.IDLE_TWICE, *TURN, *TURN, rules={"states_sent": 2}, settings=IDLE, says=2, right=TWO, vendor=TWO),
    case(Fault.REUSED_ID, BOOK, BOOK, Answer("Done."), right=TWO, vendor=TWO),
    case(
        Fault.NULL_ID,
        Ask((Call("book", {"no": "77"}, None), Call("book", {"no": "77"}, None))),
        Answer("Done."),
        right=TWO,
        vendor=TWO,
    ),
    case(Fault.EVICTED, rules={"kept_events": 0}, vendor=Outcome(0, (), ended=WAITS), stuck=looked),
    case(Fault.PAUSED, meanwhile=pause, beside=resume),
    case(Fault.ENDED, meanwhile=cancel, right=VOID, vendor=VOID),
    case(Fault.EXPIRED, meanwhile=too_long, settings={"max_time_s": 60}, right=VOID, vendor=VOID),
    case(
        Fault.NAN,
        result=NAN,
        right=Outcome(told=('{"x":null}',)),
        vendor=Outcome(told=(), ended="ValueError"),
    ),
    case(
        Fault.SURROGATE,
        result=SURROGATE,
        right=Outcome(told=('{"x":"\ufffd"}',)),
        vendor=Outcome(told=(), ended="UnicodeEncodeError"),
    ),
    case(Fault.DATETIME, result=DATETIME, right=Outcome(told=(ISO,)), vendor=Outcome(told=(PYTHON,))),
    case(
        Fault.UNKNOWN,
        Ask((Call("nobody"),)),
        Answer("Done."),
        right=Outcome(0, ("!",)),
        vendor=Outcome(0, ("!",)),
    ),
    case(
        Fault.SLOW,
        Ask((Call("book", {"no": "slow"}), Call("book", {"no": "fast"}))),
        Answer("Done."),
        meanwhile=fast_is_told,
        in_vain=0.2,
        right=Outcome(2, ('{"booked":"fast"}', '{"booked":"slow"}')),
        vendor=Outcome(2, ('{"booked":"slow"}', '{"booked":"fast"}')),
    ),
    case(Fault.KILLED, *TURN, *TURN, right=UNKNOWN, vendor=VOID, meanwhile=never),
)


POSTS: Final = {
    "cut before": post(end=End.CUT),
    "cut after": post(end=End.CUT, done=True),
    "denied before": post(end=End.REFUSED, status=500),
    "denied after": post(end=End.REFUSED, done=True),
    "not now": post(end=End.REFUSED, status=429, retry_after="0.01"),
    "late": post(delay=0.05),
    "never": post(delay=math.inf),
}
READS: Final = {
    "status denied": (Trouble(operation="status", end=End.REFUSED, times=2),),
    "status cut": (Trouble(operation="status", end=End.CUT, times=2),),
    "poll cut": (Trouble(operation="changes", end=End.CUT, times=2),),
    "poll denied": (Trouble(operation="changes", end=End.REFUSED, status=401, empty=True, times=2),),
}
LONG: Final = case(
    Fault.DEAF,
    Ask((Call("book", {"no": "1"}), Call("book", {"no": "2"}))),
    Ask((Call("book", {"no": "3"}), Call("book", {"no": "4"}))),
    Answer("Done."),
)


def offline(case: Case) -> Simulator:
    sim = Simulator(Scenario(case.steps), rules=Rules(**case.rules))
    sim.faults.extend(case.faults)
    return sim


def came_of(ran: int, sim: Simulator, ended: str = "") -> Outcome:
    """What the provider and the tool say of it."""
    doubles = sum(each.verdict is Verdict.REPEATED for each in sim.ledger.results)
    return Outcome(ran, told(sim.ledger.results), doubles, ended)


async def vendor(case: Case) -> Outcome:
    """What the vendor's helper makes of it."""
    hai_agents = pytest.importorskip("hai_agents")
    httpx = pytest.importorskip("httpx")

    async def lives() -> None:
        if case.fault is Fault.KILLED:
            await killed(talk, desk)
            async with client_of() as client:  # a handle of a session that is there takes no tools
                await client.session(sim.session.id).wait_for_completion(wait_for_seconds=1)
        else:
            await talk()

    @asynccontextmanager
    async def client_of() -> AsyncIterator[Any]:
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            yield hai_agents.AsyncClient(base_url=sim.url, api_key=sim.api_key, httpx_client=http)

    async def talk() -> None:
        async with client_of() as client:
            handle = await client.start_session(agent=AGENT, messages="Count.", tools=[desk.book], **case.settings)
            try:
                await handle.wait_for_completion(wait_for_seconds=1)
                for _ in range(1, case.says):
                    await handle.send_message("Again.")
                    await handle.wait_for_completion(wait_for_seconds=1)
            except httpx.ReadError:
                await handle.wait_for_completion(wait_for_seconds=1)  # the second chance that its handle gives
                raise

    async with offline(case) as sim:
        desk = case.desk(sim, case.in_vain)
        ended = await ended_by(lives, case, sim, sim.agenda.until)
        return came_of(len(desk.effects), sim, ended)


async def ours(case: Case) -> Outcome:
    """What this package makes of it."""
    async with offline(case) as sim:
        desk = case.desk(sim)
        agent = HCompany(agent=AGENT, messages="Count.", url=sim.url, **case.settings)
        async with serving(agent, desk, case, sim, sim.api_key) as session:
            await end_of_turn(session)
            for _ in range(1, case.says):
                session.say("Again.")
                await end_of_turn(session)
        return came_of(len(desk.effects), sim)


# ------------------------------------------------------------------------------------------- for more lives than one

TWO_TURNS: Final = CASES[-1]


async def begin(sim: Simulator) -> str:
    """A session that has its task; its id."""
    async with raw(sim) as client:
        agent = AGENT | {"tools": [{"name": "book", "description": "Book a parcel."}]}
        return str((await client.create(agent=agent, **IDLE))["id"])


def turns_over(sim: Simulator) -> int:
    return sim.ledger.statuses.count("idle")
