"""OpenAI Agent Sessions: the cases, the vendor's helper (`beta.agents.sessions.stream`), and ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import httpx2
import pytest

from bridge.agents.openai_sessions import OpenAISessions
from bridge.simulator.openai_sessions import (
    Ask,
    AwaitResults,
    Call,
    Cut,
    Effect,
    On,
    Repeat,
    Rules,
    Say,
    Scenario,
    Simulator,
    Step,
    Tell,
    Verdict,
    Wait,
)
from bridge.simulator.openai_sessions import Fault as Trouble

from .table import (
    BOOKED,
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

BOOK: Final = Ask((Call("book", {"no": "77"}, "a"),))
TURN: Final = (BOOK, Tell())
CUT: Final = "APIConnectionError"
HALF: Final = r'{"x":"\ud800"}'


def case(fault: Fault, *steps: Step, **told: Any) -> Case:
    return Case(fault, (steps or TURN,), **told)


async def cut(sim: Simulator, no: str) -> None:
    """Break the streams, and wait until there is another one."""
    before = sim.ledger.streams
    sim.cut()
    await sim.until(lambda ledger: ledger.streams > before)


def arm(*faults: Trouble) -> Callable[[Simulator, str], Awaitable[None]]:
    """From when the tool has had its effect the streams are broken, and the next requests have these faults."""

    async def armed(sim: Simulator, no: str) -> None:
        sim.fail(*faults)
        sim.cut()

    return armed


def client_of(sim: Simulator) -> httpx2.AsyncClient:
    headers = {"authorization": "Bearer k", "openai-beta": "agents=v1"}
    return httpx2.AsyncClient(base_url=sim.url, headers=headers, trust_env=False, verify=False)


async def cancel(sim: Simulator, no: str) -> None:
    """Somebody else cancels the turn."""
    async with client_of(sim) as http:
        cancelled = {"events": [{"type": "agent.session.input.cancel"}]}
        await http.post(f"/agents/sessions/{sim.ledger.session_id}/events", json=cancelled)
    await sim.turn_over()


async def old_news(sim: Simulator, no: str) -> None:
    """What a new stream tells waits for the session to be read; then the answer to what that told is lost."""
    if no == "77":
        sim.fail(Trouble(on=On.READ, times=2))
        await cut(sim, no)
    else:
        sim.fail(Trouble(status=202, delay=0.1))


async def fast_is_told(sim: Simulator, no: str) -> None:
    if no == "slow":
        await sim.until(lambda ledger: len(told(ledger.calls)) > 0)


def posted(sim: Simulator) -> bool:
    return any("tool_result" in post.types for post in sim.ledger.posts)


def told(calls: Sequence[Any]) -> tuple[str, ...]:
    """The results that count, in the order in which they came."""
    results = sorted((call.result for call in calls if call.result is not None), key=lambda result: result.at)
    return tuple(str(result.output) if result.success else "!" for result in results)


CASES: Final = (
    case(Fault.CUT_BEFORE, faults=(Trouble(status=0),)),
    case(Fault.CUT_AFTER, faults=(Trouble(status=0, effect=Effect.NOW),)),
    case(Fault.DENIED_BEFORE, faults=(Trouble(),)),
    case(
        Fault.DENIED_BEFORE,
        faults=(Trouble(status=401, code=""),),
        vendor=Outcome(told=(), ended="AuthenticationError"),
        name="an empty 401",
    ),
    case(Fault.DENIED_AFTER, faults=(Trouble(effect=Effect.NOW),)),
    case(Fault.BUSY, faults=(Trouble(status=429, retry_after=0.05),)),
    case(Fault.LATE, faults=(Trouble(status=202, effect=Effect.LATE, seconds=0.05),)),
    case(Fault.NEVER, faults=(Trouble(status=202),), vendor=Outcome(told=(), ended=WAITS), stuck=posted),
    case(Fault.UNHEARD, Cut(), BOOK, Tell(), vendor=Outcome(0, (), ended=CUT)),
    case(
        Fault.UNHEARD,
        BOOK,
        AwaitResults(),
        Ask((Call("book", {"no": "78"}),)),
        Tell(),
        meanwhile=old_news,
        right=Outcome(2, (BOOKED, '{"booked":"78"}')),
        vendor=None,
        name="an older event is heard after a newer list of calls",
    ),
    case(
        Fault.UNHEARD,
        Cut(),
        BOOK,
        Tell(),
        faults=(Trouble(on=On.STREAM, times=3, retry_after=0.01), Trouble(on=On.READ)),
        vendor=Outcome(0, (), ended="InternalServerError"),
        name="streams that do not open",
    ),
    case(Fault.DEAF, meanwhile=cut, in_vain=0.2, vendor=Outcome(ended=CUT)),
    case(Fault.DEAF, BOOK, AwaitResults(), Cut(), Say("Done."), vendor=Outcome(ended=CUT), name="cut after the result"),
    case(
        Fault.DEAF,
        *(Cut(), BOOK, Cut(), AwaitResults(), Cut(), Wait(0.05), Cut(), Say("Done.")),
        vendor=Outcome(0, (), ended=CUT),
        name="cut all the time",
    ),
    case(Fault.TOLD_TWICE, BOOK, Repeat(), Tell(), rules={"required_actions_sent": 2}),
    Case(Fault.IDLE_TWICE, (TURN, TURN), TWO, TWO, says=2, rules={"idle_sent": 2}),
    Case(Fault.REUSED_ID, (TURN, TURN), TWO, TWO, says=2),
    case(Fault.ENDED, meanwhile=cancel, right=VOID, vendor=Outcome(told=(), ended="ConflictError")),
    case(Fault.NAN, result=NAN, right=Outcome(told=('{"x":null}',)), vendor=Outcome(told=('{"x":NaN}',))),
    case(Fault.SURROGATE, result=SURROGATE, right=Outcome(told=('{"x":"\ufffd"}',)), vendor=Outcome(told=(HALF,))),
    case(Fault.DATETIME, result=DATETIME, right=Outcome(told=(ISO,)), vendor=Outcome(told=("!",))),
    case(
        Fault.UNKNOWN,
        Ask((Call("nobody"),)),
        Tell(),
        right=Outcome(0, ("!",)),
        vendor=Outcome(0, (), ended=WAITS),
        stuck=lambda sim: bool(sim.ledger.calls),
    ),
    case(
        Fault.SLOW,
        Ask((Call("book", {"no": "slow"}), Call("book", {"no": "fast"}))),
        Tell(),
        meanwhile=fast_is_told,
        in_vain=0.2,
        right=Outcome(2, ('{"booked":"fast"}', '{"booked":"slow"}')),
        vendor=Outcome(2, ('{"booked":"slow"}', '{"booked":"fast"}')),
    ),
    Case(Fault.KILLED, (TURN, TURN), UNKNOWN, Outcome(1, (), ended="ValueError"), meanwhile=never),
)


POSTS: Final = {
    "cut before": Trouble(status=0),
    "cut after": Trouble(status=0, effect=Effect.NOW),
    "denied before": Trouble(status=500),
    "denied after": Trouble(effect=Effect.NOW),
    "not now": Trouble(status=429, retry_after=0.01),
    "late": Trouble(status=202, effect=Effect.LATE, seconds=0.05),
    "never": Trouble(status=202),
}
READS: Final = {
    "session denied": (Trouble(on=On.READ, times=2),),
    "session cut": (Trouble(on=On.READ, status=0, times=2),),
    "no stream": (Trouble(on=On.STREAM, times=2),),
}
LONG: Final = case(
    Fault.DEAF,
    Ask((Call("book", {"no": "1"}), Call("book", {"no": "2"}))),
    AwaitResults(),
    Ask((Call("book", {"no": "3"}), Call("book", {"no": "4"}))),
    Tell(),
)


def offline(case: Case) -> Simulator:
    return Simulator(Scenario(case.steps, rules=Rules(**{"thinking": 0.0} | case.rules), faults=case.faults))


def came_of(ran: int, sim: Simulator, ended: str = "") -> Outcome:
    """What the provider and the tool say of it."""
    answers = [answer for ledger in sim.ledgers for answer in (*ledger.answers, *ledger.strays)]
    again = [answer for answer in answers if answer.verdict in (Verdict.REPEATED, Verdict.CONFLICT)]
    calls = [call for ledger in sim.ledgers for call in ledger.calls]
    return Outcome(ran, told(calls), len(again), ended)


async def vendor(case: Case) -> Outcome:
    """What the vendor's helper makes of it."""
    openai = pytest.importorskip("openai")
    pytest.importorskip("openai.resources.beta.agents.sessions")  # it is imported late, which takes seconds

    async def lives() -> None:
        if case.fault is Fault.KILLED:
            await killed(talk, desk)
            await talk(sim.ledger.session_id)
        else:
            await talk()

    async def talk(session_id: str = "") -> None:
        async with openai.AsyncOpenAI(base_url=sim.url, api_key="k") as client:
            sessions = client.beta.agents.sessions
            if not session_id:
                session_id = (await sessions.create(environment={"type": "openai_hosted"}, agent=AGENT)).id
            for _ in range(case.says):
                async with sessions.stream(session_id, input="Book it.", tool_handlers={"book": book}) as stream:
                    await stream.until_done()

    async def book(arguments: dict[str, Any]) -> Any:
        return await desk.book(**arguments)

    async with offline(case) as sim:
        desk = case.desk(sim, case.in_vain)
        ended = await ended_by(lives, case, sim, lambda true: sim.until(lambda ledger: true()))
        return came_of(len(desk.effects), sim, ended)


AGENT: Final[Any] = {
    "model": "m",
    "tools": [{"type": "function", "name": "book", "description": "Book.", "parameters": {"type": "object"}}],
}


async def ours(case: Case) -> Outcome:
    """What this package makes of it."""
    async with offline(case) as sim:
        desk = case.desk(sim)
        agent = OpenAISessions(model="m", environment="openai_hosted", url=sim.url, **case.settings)
        async with serving(agent, desk, case, sim) as session:
            for number in range(case.says):
                session.say("Book it.")
                await sim.turn_over(number + 1)
                await end_of_turn(session)
        return came_of(len(desk.effects), sim)


# ------------------------------------------------------------------------------------------- for more lives than one

TWO_TURNS: Final = CASES[-1]


async def begin(sim: Simulator) -> str:
    """A session that waits for a message; its id."""
    async with client_of(sim) as http:
        created = await http.post("/agents/sessions", json={"environment": {"type": "openai_hosted"}, "agent": AGENT})
    return str(created.json()["id"])


def turns_over(sim: Simulator) -> int:
    return list(sim.ledger.turns.values()).count("completed")
