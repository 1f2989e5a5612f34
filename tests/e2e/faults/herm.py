"""Herm: the cases, the loop of its documentation (the vendor has no helper for Python), and ours."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import httpx2

from bridge.agents.herm import Herm
from bridge.simulator.herm import (
    Answer,
    Ask,
    Call,
    End,
    Fate,
    Result,
    Rules,
    Scenario,
    Simulator,
    Step,
    Verdict,
    Work,
)
from bridge.simulator.herm import Fault as Trouble
from tests.simulator.herm.documented_loop import DocumentedLoop, LongRunning, Raw, raw

from .table import (
    DATETIME,
    ISO,
    NAN,
    SURROGATE,
    TWO,
    UNKNOWN,
    VOID,
    Case,
    Desk,
    Fault,
    Outcome,
    end_of_turn,
    ended_by,
    killed,
    never,
    serving,
)

BOOK: Final = Ask((Call("book", {"no": "77"}, "one"),))
TURN: Final = (BOOK, Answer("Done."))
AGAIN: Final = (Ask((Call("book", {"no": "77"}, "two"),)), Answer("Done."))
DENIED: Final = "HTTPStatusError"
TOOL: Final = {
    "name": "book",
    "description": "Book a parcel.",
    "input_schema": {"type": "object", "properties": {"no": {"type": "string"}}},
}


def case(fault: Fault, *steps: Step, **told: Any) -> Case:
    return Case(fault, steps or TURN, **told)


def post(**fault: Any) -> Trouble:
    """Of what is posted once the tool runs."""
    return Trouble(operation="send", **fault)


async def cut(sim: Simulator, no: str) -> None:
    """Break the streams, and wait until there is another one."""
    before = streams(sim)
    sim.cut_streams()
    await sim.agenda.until(lambda: streams(sim) > before)


def arm(*faults: Trouble) -> Callable[[Simulator, str], Awaitable[None]]:
    """From when the tool has had its effect the streams are broken, and the next requests have these faults."""

    async def armed(sim: Simulator, no: str) -> None:
        sim.faults.extend(faults)
        sim.cut_streams()

    return armed


def streams(sim: Simulator) -> int:
    return sum(each.operation == "stream" for each in sim.exchanges)


async def work_unheard(sim: Simulator) -> None:
    """The agent works until the streams have been cut, and goes on before there can be others."""
    await sim.agenda.until(lambda: bool(sim.sessions) and sim.session.status == "running")
    sim.cut_streams()
    sim.agenda.advance(60)


async def too_long(sim: Simulator, no: str) -> None:
    sim.agenda.advance(301)


async def started(sim: Simulator, no: str) -> None:
    """Until the agent has been told that it runs."""
    await sim.agenda.until(lambda: bool(sim.ledger.results))


async def outcome_is_cut(sim: Simulator, no: str) -> None:
    """Once the agent has been told that it runs, the next post breaks."""
    await started(sim, no)
    sim.faults.append(post(end=End.CUT))


async def interrupt(sim: Simulator, no: str) -> None:
    async with raw(sim) as client:
        await client.send({"type": "user.interrupt"})


async def fast_is_told(sim: Simulator, no: str) -> None:
    if no == "slow":
        await sim.agenda.until(lambda: bool(sim.ledger.results))


def told(results: Sequence[Result]) -> tuple[str, ...]:
    """The results that count, in the order in which they came."""
    final = (Verdict.ANSWERED, Verdict.FINAL, Verdict.APPENDED)
    return tuple("!" if each.status == "failed" else each.text for each in results if each.verdict in final)


CASES: Final = (
    case(Fault.CUT_BEFORE, faults=(post(end=End.CUT),), vendor=Outcome(told=(), ended="ReadError")),
    case(Fault.CUT_AFTER, faults=(post(end=End.CUT, done=True),), vendor=Outcome(ended="ReadError")),
    case(Fault.DENIED_BEFORE, faults=(post(end=End.REFUSED),), vendor=Outcome(told=(), ended=DENIED)),
    case(Fault.DENIED_AFTER, faults=(post(end=End.REFUSED, done=True),), vendor=Outcome(ended=DENIED)),
    case(
        Fault.BUSY,
        faults=(post(end=End.REFUSED, status=429, retry_after="0.05"),),
        vendor=Outcome(told=(), ended=DENIED),
    ),
    case(Fault.UNHEARD, Work(50), *TURN, beside=work_unheard, vendor=Outcome(0, (), ended="ReadError")),
    case(Fault.DEAF, meanwhile=cut, in_vain=0.2, vendor=Outcome(ended="ReadError")),
    case(Fault.TOLD_TWICE, rules={"events_sent": 2}, vendor=Outcome(2, doubles=1, ended=DENIED)),
    case(
        Fault.IDLE_TWICE,
        *TURN,
        *AGAIN,
        rules={"events_sent": 2},
        says=2,
        right=TWO,
        vendor=None,
    ),
    case(Fault.ENDED, meanwhile=interrupt, right=VOID, vendor=Outcome(told=(), ended=DENIED)),
    case(Fault.EXPIRED, meanwhile=too_long, right=VOID, vendor=Outcome(told=(), ended=DENIED)),
    case(
        Fault.KICKOFF,
        meanwhile=started,
        faults=(post(end=End.CUT, done=True),),
        answer_within=0.01,
        vendor=Outcome(0, (), ended="ReadError"),
    ),
    case(
        Fault.OUTCOME,
        meanwhile=outcome_is_cut,
        answer_within=0.01,
        vendor=Outcome(told=(), ended="ReadError"),
    ),
    case(Fault.NAN, result=NAN, right=Outcome(told=('{"x":null}',)), vendor=None),
    case(Fault.SURROGATE, result=SURROGATE, right=Outcome(told=('{"x":"\ufffd"}',)), vendor=None),
    case(Fault.DATETIME, result=DATETIME, right=Outcome(told=(ISO,)), vendor=None),
    case(Fault.UNKNOWN, Ask((Call("nobody"),)), Answer("Done."), right=Outcome(0, ("!",)), vendor=None),
    case(
        Fault.SLOW,
        Ask((Call("book", {"no": "slow"}), Call("book", {"no": "fast"}))),
        Answer("Done."),
        meanwhile=fast_is_told,
        in_vain=0.2,
        right=Outcome(2, ('{"booked":"fast"}', '{"booked":"slow"}')),
        vendor=Outcome(2, ('{"booked":"slow"}', '{"booked":"fast"}')),
    ),
    case(Fault.KILLED, *TURN, *AGAIN, right=UNKNOWN, vendor=Outcome(told=(), ended=DENIED), meanwhile=never),
)


POSTS: Final = {
    "cut before": post(end=End.CUT),
    "cut after": post(end=End.CUT, done=True),
    "denied before": post(end=End.REFUSED, status=500),
    "denied after": post(end=End.REFUSED, done=True),
    "not now": post(end=End.REFUSED, status=429, retry_after="0.01"),
}
READS: Final = {
    "history denied": (Trouble(operation="events", end=End.REFUSED, times=2),),
    "history cut": (Trouble(operation="events", end=End.CUT, times=2),),
    "no stream": (Trouble(operation="stream", end=End.REFUSED, times=2),),
}
LONG: Final = case(
    Fault.DEAF,
    Ask((Call("book", {"no": "1"}), Call("book", {"no": "2"}))),
    Ask((Call("book", {"no": "3"}), Call("book", {"no": "4"}))),
    Answer("Done."),
)


def offline(case: Case) -> Simulator:
    return Simulator(Scenario(case.steps), rules=Rules(**case.rules))


def came_of(ran: int, sim: Simulator, ended: str = "") -> Outcome:
    """What the provider and the tool say of it."""
    results = [(call, result) for call in sim.ledger.calls for result in call.results]
    doubles = [
        result
        for call, result in results
        if result.verdict is Verdict.REPEATED
        or (result.verdict is Verdict.EXPIRED and call.fate in (Fate.CLOSED, Fate.RUNNING))
    ]
    return Outcome(ran, told(sim.ledger.results), len(doubles), ended)


def desk_of(case: Case, sim: Simulator) -> Desk:
    """Messages are posted like results, so the faults are there only once the tool runs."""

    async def meanwhile(sim: Simulator, no: str) -> None:
        sim.faults.extend(case.faults)
        await case.meanwhile(sim, no)

    return replace(case, meanwhile=meanwhile).desk(sim)


class Client(Raw):
    """A client that does not go on when it is denied something. The faults are those of its results."""

    def __init__(self, sim: Simulator, http: httpx2.AsyncClient, faults: Sequence[Trouble]) -> None:
        super().__init__(sim, http)
        self._faults = list(faults)

    async def send(self, *events: dict[str, Any]) -> httpx2.Response:
        if events[0]["type"] == "user.custom_tool_result":
            self.sim.faults.extend(self._faults)
            self._faults.clear()
        return (await super().send(*events)).raise_for_status()


async def vendor(case: Case) -> Outcome:
    """What the loop of the documentation makes of it."""

    async def lives() -> None:
        async with raw(sim) as client:
            await client.create(TOOL)
        if case.fault is Fault.KILLED:
            await killed(talk, desk)
            await sim.agenda.until(lambda: sim.session.history.streams == 0)
        await talk()

    async def talk() -> None:
        async with raw(sim) as plain:
            client = Client(sim, plain.http, case.faults)
            await DocumentedLoop(client, {"book": tool}).converse("Book it.")

    async def book(arguments: Mapping[str, Any]) -> str:
        return json.dumps(await desk.book(**arguments), separators=(",", ":"))

    async with offline(case) as sim:
        desk = case.desk(sim, case.in_vain)
        tool = book if case.answer_within is None else LongRunning("It has begun.", book)
        ended = await ended_by(lives, case, sim, sim.agenda.until)
        return came_of(len(desk.effects), sim, ended)


async def ours(case: Case) -> Outcome:
    """What this package makes of it."""
    async with offline(case) as sim, raw(sim) as client:
        desk = desk_of(case, sim)
        agent = Herm(session_id=await client.create(TOOL), url=sim.url, **case.settings)
        async with serving(agent, desk, case, sim, sim.api_key) as session:
            for _ in range(case.says):
                session.say("Book it.")
                await end_of_turn(session)
            if case.answer_within is not None:
                await end_of_turn(session)
        return came_of(len(desk.effects), sim)


# ------------------------------------------------------------------------------------------- for more lives than one

TWO_TURNS: Final = CASES[-1]


async def begin(sim: Simulator, tool: str = "book") -> str:
    """A session that waits for a message; its id."""
    async with raw(sim) as client:
        return await client.create(TOOL | {"name": tool})


def turns_over(sim: Simulator) -> int:
    return sum(bool(turn.ended) for turn in sim.ledger.turns)
