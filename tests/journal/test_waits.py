"""Calls that outlive their process: somebody outside goes on with the work, and the next one takes the outcome."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from bridge.core.events import CallKey, ToolCall, ToolResult
from bridge.errors import JournalError
from bridge.journal import CallId, Claimed, Concluded, Journal, State
from bridge.journal.memory import MemoryJournal
from bridge.runner.leftovers import NOT_KNOWN, Found
from bridge.runner.parking import Answer, Completion, Verdict
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.tools import CallContext, Toolset
from bridge.tools.tool import Parked

pytestmark = pytest.mark.anyio

LIMIT = 20.0
"""Seconds after which a test that waits has failed."""
CALL = CallId("s", 3, "c1")
TICKET = "s.3.c1"
DONE = Answer('{"frames":90}')
HOUR = 3600.0

Life = Callable[..., Runner]


@pytest.fixture
async def life(journal: Journal) -> AsyncIterator[Life]:
    """A process after the others, which have died."""
    lives: list[Runner] = []

    def begin(name: str = "next") -> Runner:
        lives.append(Runner(journal=journal, owner=f"elsewhere/{len(lives)}/{name}"))
        return lives[-1]

    yield begin
    for each in lives:
        await each.aclose(1)
        each.close()


def rendering(**options: Any) -> tuple[Toolset, list[str]]:
    """A tool that hands its work to somebody outside, and its runs."""
    tools, runs = Toolset(), list[str]()

    @tools.tool(**{"timeout": HOUR} | options)
    async def render(film: str = "") -> Parked:
        runs.append(film)
        return Parked()

    return tools, runs


TOOLS, _ = rendering()


def everybody(owner: str) -> bool:
    return True


async def left(journal: Journal, seconds: float = HOUR, *, call: CallId = CALL) -> None:
    """A call whose tool has left it open, in a process that is dead."""
    await journal.claim(call, "render", '{"film":"a"}', "elsewhere/0/dead")
    await journal.leave(call, time.time() + seconds)


async def known(journal: Journal, call: CallId = CALL) -> Claimed:
    return next(each for each in await journal.claims(states=tuple(State)) if each.call == call)


async def until(said: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT):
        while not await said():  # noqa: ASYNC110 - a store says nothing by itself
            await asyncio.sleep(0.005)


async def orphaned(journal: Journal) -> Claimed:
    async def so() -> bool:
        return (await known(journal)).state is State.ORPHANED

    await until(so)
    return await known(journal)


# ------------------------------------------------------------------------------------------------------- it waits on


async def test_a_call_that_somebody_outside_works_on_goes_on_waiting(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    assert await runner.recover(TOOLS, dead=everybody) == ()
    (waiting,) = runner.left_open
    claimed = await known(journal)
    assert (waiting.ticket, waiting.session_id, waiting.tool) == (TICKET, "s", "render")
    assert (claimed.state, claimed.owner) == (State.STARTED, "elsewhere/0/next")
    assert await runner.is_over(TICKET) is not True


async def test_its_outcome_is_accepted_once_and_stands(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    await runner.recover(TOOLS, dead=everybody)
    assert await runner.settle(TICKET, {"frames": 90}) == Completion(Verdict.ACCEPTED, DONE)
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.REPEATED
    assert (await runner.settle(TICKET, {"frames": 91})).verdict is Verdict.CONFLICT
    claimed = await orphaned(journal)
    assert (claimed.outcome, claimed.result) == ("ok", ToolResult("c1", '{"frames":90}', name="render"))
    assert runner.left_open == ()
    assert await runner.is_over(TICKET) is True


async def test_work_that_came_to_nothing_is_known_as_that(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    await runner.recover(TOOLS, dead=everybody)
    assert (await runner.settle(TICKET, error="No disk.")).verdict is Verdict.ACCEPTED
    claimed = await orphaned(journal)
    assert claimed.outcome == "error"
    assert claimed.result is not None
    assert claimed.result.output == '{"error":"No disk."}'


async def test_what_was_said_before_is_recognised_in_any_later_life(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    await runner.recover(TOOLS, dead=everybody)
    await runner.settle(TICKET, {"frames": 90, "size": 1})
    await orphaned(journal)
    later = life("later")
    same = await later.settle(TICKET, {"size": 1, "frames": 90})
    assert same.verdict is Verdict.REPEATED
    other = await later.settle(TICKET, {"frames": 91})
    assert other.verdict is Verdict.CONFLICT
    assert (await later.settle("s.3.c2", 1)).verdict is Verdict.UNKNOWN


async def test_an_outcome_that_comes_before_the_recovery_stands(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED
    await runner.recover(TOOLS, dead=everybody)
    claimed = await orphaned(journal)
    assert (claimed.outcome, runner.left_open) == ("ok", ())
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.REPEATED
    assert (await runner.settle(TICKET, {"frames": 91})).verdict is Verdict.CONFLICT


async def test_a_process_that_ends_meanwhile_leaves_it_to_the_next(journal: Journal, life: Life) -> None:
    await left(journal)
    for name in ("second", "third"):
        runner = life(name)
        await runner.recover(TOOLS, dead=everybody)
        assert len(runner.left_open) == 1
        await runner.aclose(1)
        assert (await known(journal)).state is State.STARTED
    last = life()
    await last.recover(TOOLS, dead=everybody)
    assert (await last.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED
    assert (await orphaned(journal)).outcome == "ok"


async def test_a_recovery_that_is_repeated_waits_once(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    for _ in range(3):
        assert await runner.recover(TOOLS, dead=everybody) == ()
    assert len(runner.left_open) == 1
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED
    assert (await orphaned(journal)).outcome == "ok"


async def test_of_a_process_that_may_live_nothing_is_taken(journal: Journal, life: Life) -> None:
    await left(journal)
    runner = life()
    assert await runner.recover(TOOLS, dead=lambda owner: False) == ()
    assert (runner.left_open, (await known(journal)).owner) == ((), "elsewhere/0/dead")


# -------------------------------------------------------------------------------------------------- its time is over


async def test_a_call_whose_time_ends_while_it_waits_here_is_not_known(journal: Journal, life: Life) -> None:
    await left(journal, 0.05)
    runner = life()
    await runner.recover(TOOLS, dead=everybody)
    assert (await orphaned(journal)).outcome == NOT_KNOWN
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.EXPIRED
    assert await runner.is_over(TICKET) is True


async def test_a_call_whose_time_was_over_before_is_not_known_and_never_handed_out_again(
    journal: Journal, life: Life
) -> None:
    await left(journal, -1)
    tools, runs = rendering(idempotent=True)
    runner = life()
    assert (await runner.settle(TICKET, {"frames": 90})).verdict in (Verdict.EXPIRED, Verdict.ACCEPTED)
    (recovered,) = await runner.recover(tools, dead=everybody)
    assert (recovered.claimed.call, runs) == (CALL, [])


async def test_a_tool_that_can_look_is_asked_when_the_time_is_over(journal: Journal, life: Life) -> None:
    async def look(arguments: Mapping[str, Any], ticket: str) -> dict[str, str]:
        return {"film": arguments["film"], "ticket": ticket}

    await left(journal, 0.05)
    tools = {name: dataclasses.replace(tool, check_outcome=look) for name, tool in TOOLS.items()}
    runner = life()
    await runner.recover(tools, dead=everybody)
    claimed = await orphaned(journal)
    assert claimed.result is not None
    assert claimed.result.output == '{"film":"a","ticket":"s.3.c1"}'


async def test_a_call_whose_tool_runs_is_not_over(journal: Journal, life: Life) -> None:
    runner = life()
    await journal.claim(CALL, "render", "{}", "elsewhere/0/next")
    assert await runner.is_over(TICKET) is not True


async def test_an_outcome_for_a_call_that_never_waited_comes_too_late(journal: Journal, life: Life) -> None:
    runner = life()
    await journal.claim(CALL, "render", "{}", "elsewhere/0/dead")
    (recovered,) = await runner.recover(TOOLS, dead=everybody)
    assert recovered.found is Found.UNKNOWN
    assert (await runner.settle(TICKET, 1)).verdict is Verdict.EXPIRED
    assert await runner.is_over(TICKET) is True


# ------------------------------------------------------------------------------------------------ while its process is


async def parked(runner: Runner, tools: Toolset) -> asyncio.Future[Finished]:
    """A call that waits; its end."""
    told, over = asyncio.Event(), asyncio.get_running_loop().create_future()
    key = CallKey(3, "c1")
    context = CallContext(session_id="s", key=key, tool="render")
    calls = runner.session()
    call = ToolCall("c1", "render", '{"film":"a"}')
    calls.start(key, call, tools["render"], tools, context, over.set_result, interim=lambda *_: told.set())
    await told.wait()
    await calls.aclose(1)  # its session ends, and it goes on
    return over


async def test_a_call_is_known_to_wait_before_the_agent_hears_that_it_goes_on(journal: Journal, life: Life) -> None:
    runner = life()
    over = await parked(runner, TOOLS)
    claimed = await known(journal)
    assert claimed.waits(time.time() + HOUR - 60)
    assert not claimed.waits(time.time() + HOUR)
    await runner.settle(TICKET, {"frames": 90})
    assert (await over).result.output == DONE.output
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.REPEATED


async def test_a_call_that_waits_when_its_process_ends_in_good_order_waits_on(journal: Journal, life: Life) -> None:
    runner = life("first")
    await parked(runner, TOOLS)
    await runner.aclose(1)
    after = life()
    assert await after.recover(TOOLS, dead=everybody) == ()
    assert (await after.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED
    assert (await orphaned(journal)).outcome == "ok"


# -------------------------------------------------------------------------------------------------- in one store only


class Broken(MemoryJournal):
    """It fails at one thing, while it is told to."""

    failing = ""

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        self._fail("conclude")
        return await super().conclude(call, result, outcome)

    async def leave(self, call: CallId, until: float) -> None:
        self._fail("leave")
        await super().leave(call, until)

    async def claims(self, **which: Any) -> tuple[Claimed, ...]:
        self._fail("claims")
        return await super().claims(**which)

    async def claim(self, *what: Any, **options: Any) -> Any:
        claim = await super().claim(*what, **options)
        self._fail("claim")
        return claim

    def _fail(self, what: str) -> None:
        if what == self.failing:
            raise JournalError("the disk is full")


@pytest.fixture
async def broken() -> AsyncIterator[tuple[Broken, Runner]]:
    journal = Broken()
    runner = Runner(journal=journal, owner="elsewhere/0/next")
    assert runner.waits is not None
    runner.waits._retry = 0.01
    yield journal, runner
    journal.failing = ""
    await runner.aclose(1)
    runner.close()


async def test_an_outcome_that_cannot_be_written_is_written_once_the_journal_works(
    broken: tuple[Broken, Runner], caplog: pytest.LogCaptureFixture
) -> None:
    journal, runner = broken
    await left(journal)
    await runner.recover(TOOLS, dead=everybody)
    journal.failing = "conclude"
    assert runner.complete(TICKET, {"frames": 90}).verdict is Verdict.ACCEPTED

    async def complained() -> bool:
        return "what came of it is not in the journal yet, and waits: the disk is full" in caplog.text

    await until(complained)
    journal.failing = ""
    assert (await orphaned(journal)).outcome == "ok"


async def test_an_outcome_that_nothing_could_keep_is_not_accepted_and_may_be_sent_again(
    broken: tuple[Broken, Runner],
) -> None:
    journal, runner = broken
    await left(journal)
    await runner.recover(TOOLS, dead=everybody)
    journal.failing = "conclude"
    with pytest.raises(JournalError):
        await runner.settle(TICKET, {"frames": 90})
    journal.failing = ""
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED
    assert (await orphaned(journal)).outcome == "ok"


async def test_while_the_journal_does_not_say_whose_call_it_is_the_outcome_may_be_sent_again(
    broken: tuple[Broken, Runner],
) -> None:
    journal, runner = broken
    await left(journal)
    journal.failing = "claims"
    with pytest.raises(JournalError):
        await runner.settle(TICKET, {"frames": 90})
    journal.failing = ""
    assert (await runner.settle(TICKET, {"frames": 90})).verdict is Verdict.ACCEPTED


async def test_a_call_that_was_taken_over_when_the_journal_failed_is_waited_for_after_the_next_recovery(
    broken: tuple[Broken, Runner],
) -> None:
    journal, runner = broken
    await left(journal)
    journal.failing = "claim"
    with pytest.raises(JournalError):
        await runner.recover(TOOLS, dead=everybody)
    assert runner.left_open == ()
    journal.failing = ""
    await runner.recover(TOOLS, dead=everybody)
    assert len(runner.left_open) == 1


async def test_a_call_of_which_the_journal_does_not_know_that_it_waits_ends_with_its_process(
    broken: tuple[Broken, Runner], caplog: pytest.LogCaptureFixture
) -> None:
    journal, runner = broken
    journal.failing = "leave"
    over = await parked(runner, TOOLS)
    assert "its outcome is not known if this process dies: the disk is full" in caplog.text
    await runner.aclose(1)
    assert (await over).outcome is Outcome.CANCELLED


async def test_more_calls_than_may_wait_are_left_to_the_next_recovery(caplog: pytest.LogCaptureFixture) -> None:
    journal = MemoryJournal()
    runner = Runner(journal=journal, owner="elsewhere/0/next", max_parked=1)
    for number in range(2):
        await left(journal, call=CallId("s", 3, f"c{number}"))
    await runner.recover(TOOLS, dead=everybody)
    assert len(runner.left_open) == 1
    assert "too many calls wait" in caplog.text
    assert {each.state for each in await journal.claims()} == {State.STARTED}
    await runner.aclose(1)
    runner.close()
