"""A fleet whose database is cut off, frozen, or starts anew: what goes on meanwhile, and that all of it heals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from bridge import AgentAudio, AssemblyAI, Bridge
from bridge.errors import JournalError
from bridge.journal import State
from bridge.journal.mailbox import Kind, Open, Posted
from bridge.journal.mailbox import State as MailState
from bridge.journal.postgres import open_postgres
from bridge.runner.approvals import AlreadyDecided, Decided, Resolution
from bridge.runner.parking import Verdict
from bridge.runner.run import Outcome
from bridge.simulator import Call, HangUp, Reply, Simulator, Until
from tests.e2e.conftest import BRISK, PACE, script
from tests.e2e.fleet import Replica, eventually, mail, replica
from tests.journal.proxy import Mood, Proxy, proxy
from tests.postgres import OwnServer, needed

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

T = TypeVar("T")

LIMIT = 0.6
"""Seconds that a journal waits for its database."""
IN_VAIN = r"is away|within"


@pytest.fixture(scope="module")
def own() -> Iterator[OwnServer]:
    """A server that may be frozen and stopped."""
    with needed(), OwnServer() as running:
        yield running


@pytest.fixture
def between(own: OwnServer) -> Iterator[Proxy]:
    with proxy(own.server.port) as running:
        yield running


@pytest.fixture
def database(own: OwnServer) -> str:
    return own.server.new_database()


@asynccontextmanager
async def pair(own: OwnServer, database: str, between: Proxy | None = None) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two replicas; the first behind the proxy, if there is one."""
    port = between.port if between is not None else None
    options: dict[str, Any] = {"limit": LIMIT, "poll": 0.05}
    async with (
        asyncio.timeout(40),
        replica(own.server.url(database), **options) as other,
        replica(own.server.url(database, port=port), **options) as one,
    ):
        one.runner.begin()
        other.runner.begin()
        await eventually(lambda: one.post.listening and other.post.listening)
        yield one, other
        assert not one.post.trouble, "it has not healed"


async def at_last(what: Callable[[], Awaitable[T]]) -> T:
    """Try again and again, as whoever is told to try again does."""
    while True:
        try:
            return await what()
        except JournalError:
            await asyncio.sleep(0.01)


# ----------------------------------------------------------------------------------------------------- unknown commits


@pytest.mark.parametrize("mood", [Mood.LOSES_ANSWER, Mood.LOSES_COMMIT])
async def test_a_commit_without_an_answer_leaves_exactly_one_row(
    own: OwnServer, between: Proxy, database: str, mood: Mood
) -> None:
    """The answer is accepted once, whether its commit was done or not, and so is everything else in the mailbox."""
    journal = open_postgres(own.server.url(database, port=between.port))
    mailbox = journal.mailbox
    assert mailbox is not None
    asked = Open(Kind.APPROVAL, "r1", "s1", "me", '"shown"', 60.0)
    try:
        async with asyncio.timeout(20):
            between.become(mood)
            await mailbox.beat("me", attended=True)
            for step in (mailbox.announce(asked), mailbox.close(asked, MailState.LATE, '"over"')):
                between.become(mood)
                await step
            for number in range(2):
                name = f"r{number + 2}"
                await mailbox.announce(Open(Kind.APPROVAL, name, "s1", "me", '"shown"', 60.0))
                between.become(mood)
                receipt = await mailbox.post(Kind.APPROVAL, name, '"yes"')
                assert (receipt.posted, receipt.about, receipt.answer) == (Posted.ACCEPTED, '"shown"', '"yes"')
            between.become(mood)
            await mailbox.resign("me")
            assert between.mood is Mood.WELL, "no commit was lost"
        states = [(name, state) for _, name, state, *_ in mail(own.server.url(database))]
        assert sorted(states) == [("r1", "late"), ("r2", "posted"), ("r3", "posted")]
    finally:
        await journal.aclose()


@pytest.mark.parametrize("mood", [Mood.LOSES_ANSWER, Mood.LOSES_COMMIT])
async def test_an_outcome_whose_commit_had_no_answer_is_told_once(
    own: OwnServer, between: Proxy, database: str, mood: Mood
) -> None:
    async with pair(own, database, between) as (one, other):
        ticket, over = await other.parked()
        between.become(mood)
        assert (await one.runner.settle(ticket, 1)).verdict is Verdict.ACCEPTED
        assert (await over).result.output == "1"
        assert (await one.runner.settle(ticket, 1)).verdict is Verdict.REPEATED
        assert len(mail(own.server.url(database))) == 1


# ---------------------------------------------------------------------------------------------------------- cut off


@pytest.mark.parametrize("mood", [Mood.AWAY, Mood.FROZEN])
async def test_a_replica_without_its_database_goes_on_with_what_it_may_and_takes_the_rest_up_later(
    own: OwnServer, between: Proxy, database: str, mood: Mood
) -> None:
    async with pair(own, database, between) as (one, other):
        waiting, over = await one.parked()
        mine, my_end = await one.parked()
        elsewhere, its_end = await other.parked()
        between.become(mood)
        began = time.monotonic()
        assert (await other.runner.settle(waiting, {"done": 1})).verdict is Verdict.ACCEPTED
        with pytest.raises(JournalError, match=IN_VAIN):
            await one.runner.settle(elsewhere, 1)
        with pytest.raises(JournalError, match=IN_VAIN):
            await one.runner.decide("whose", approve=True, by="ann")
        assert (await one.call("read")).outcome is Outcome.OK
        refused = await one.call("write")
        assert refused.outcome is Outcome.UNAVAILABLE
        assert json.loads(refused.result.output) == {"error": "write is not available now, and was not run"}
        assert (await one.runner.settle(mine, 2)).verdict is Verdict.ACCEPTED, "it is its own"
        assert (await my_end).result.output == "2"
        assert time.monotonic() - began < 15
        durable = one.runner.durable
        assert durable is not None
        assert (durable.refused, bool(durable.trouble), bool(one.post.trouble)) == (1, True, True)
        assert not over.done()

        between.become(Mood.WELL)
        assert (await over).result.output == '{"done":1}'
        # What could not be said to be done may have been done when the database thawed: then it is the same.
        assert (await at_last(lambda: one.runner.settle(elsewhere, 1))).verdict in (Verdict.ACCEPTED, Verdict.REPEATED)
        assert (await its_end).result.output == "1"
        await eventually(lambda: not durable.trouble and not one.post.trouble and one.post.listening)
        assert (await one.call("write")).outcome is Outcome.OK
        assert one.runs.count("write") == 1


async def test_a_request_that_was_made_without_the_database_is_shown_when_it_is_back(
    own: OwnServer, between: Proxy, database: str
) -> None:
    async with pair(own, database, between) as (one, other):
        between.become(Mood.AWAY)
        with one.runner.approvals.attached(lambda told: None):
            over = one.call("pay")
            await eventually(lambda: bool(one.post.trouble))
            between.become(Mood.WELL)
            (request,) = await other.seen()
            assert isinstance(await other.runner.decide(request.id, approve=True, by="ann"), Decided)
            assert (await over).outcome is Outcome.OK


async def test_a_replica_that_knows_that_its_database_is_away_answers_its_own_calls_at_once(
    own: OwnServer, between: Proxy, database: str
) -> None:
    async with pair(own, database, between) as (one, _):
        ticket, over = await one.parked("look_up")
        with one.runner.approvals.attached(lambda told: None):
            paid = one.call("pay")
            await eventually(lambda: bool(one.runner.approvals.pending))
            between.become(Mood.AWAY)
            await eventually(lambda: bool(one.post.trouble))
            assert (await one.runner.settle(ticket, 1)).verdict is Verdict.ACCEPTED
            assert (await over).result.output == "1"
            (request,) = one.runner.approvals.pending
            assert isinstance(await one.runner.decide(request.id, approve=False, by="ann"), Decided)
            assert (await paid).outcome is Outcome.DENIED
        between.become(Mood.WELL)
        await eventually(lambda: not one.post.trouble)


async def test_a_decision_for_a_replica_that_has_decided_otherwise_without_its_database_hears_of_that(
    own: OwnServer, between: Proxy, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(own, database, between) as (one, other):
        other.post._mailbox.poll = 20.0  # two of these it waits at most
        with one.runner.approvals.attached(lambda told: None):
            paid = one.call("pay")
            (request,) = await other.seen()
            between.become(Mood.AWAY)
            await eventually(lambda: bool(one.post.trouble))
            deciding = asyncio.ensure_future(other.runner.decide(request.id, approve=True, by="bob"))
            await eventually(lambda: "posted" in [state for _, _, state, *_ in mail(own.server.url(database))])
            assert isinstance(await one.runner.decide(request.id, approve=False, by="ann"), Decided)
            assert (await paid).outcome is Outcome.DENIED
            between.become(Mood.WELL)
            decided = await deciding
            assert isinstance(decided, AlreadyDecided)
            assert (decided.resolved.how, decided.resolved.by) == (Resolution.DENIED, "ann")
            assert f"approval {request.id}: a decision that was left for it came too late" in caplog.text


async def test_a_decision_for_a_replica_that_says_nothing_counts_as_soon_as_it_has_been_waited_for(
    own: OwnServer, between: Proxy, database: str
) -> None:
    async with pair(own, database, between) as (one, other):
        with one.runner.approvals.attached(lambda told: None):
            paid = one.call("pay")
            (request,) = await other.seen()
            between.become(Mood.AWAY)
            await eventually(lambda: bool(one.post.trouble))
            decided = await other.runner.decide(request.id, approve=True, by="bob")
            assert isinstance(decided, Decided)
            assert not paid.done()
            between.become(Mood.WELL)
            assert (await paid).outcome is not Outcome.DENIED


async def test_a_replica_that_ends_without_its_database_says_how_others_will_know(
    own: OwnServer, between: Proxy, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = own.server.url(database, port=between.port)
    async with asyncio.timeout(20), replica(url, limit=LIMIT) as one:
        one.runner.begin()
        await eventually(lambda: one.post.listening)
        between.become(Mood.AWAY)
        await one.runner.aclose(0.2)
        assert "learn of the end of this one when its lease runs out" in caplog.text


async def test_a_listener_comes_back_by_itself_and_meanwhile_answers_are_found_by_looking(
    own: OwnServer, between: Proxy, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.journal.postgres._RETRY", 0.3)
    async with pair(own, database, between) as (one, other):
        ticket, over = await one.parked()
        between.become(Mood.AWAY)
        await eventually(lambda: not one.post.listening)
        between.become(Mood.WELL)
        await other.runner.settle(ticket, 1)
        assert (await over).outcome is Outcome.OK
        await eventually(lambda: one.post.listening)


# ------------------------------------------------------------------------------------------------- frozen, and anew


async def test_a_database_that_is_frozen_is_an_error_within_bounds_and_thaws(own: OwnServer, database: str) -> None:
    async with pair(own, database) as (one, other):
        ticket, over = await one.parked()
        own.freeze()
        try:
            began = time.monotonic()
            with pytest.raises(JournalError, match=IN_VAIN):
                await other.runner.settle(ticket, 1)
            assert (await one.call("read")).outcome is Outcome.OK
            assert (await one.call("write")).outcome is Outcome.UNAVAILABLE
            assert time.monotonic() - began < 10
        finally:
            own.thaw()
        # It may have been committed when the server thawed: then it is the same, and not another.
        settled = await at_last(lambda: other.runner.settle(ticket, 1))
        assert settled.verdict in (Verdict.ACCEPTED, Verdict.REPEATED)
        assert (await over).result.output == "1"
        await eventually(lambda: not one.post.trouble)
        assert len(mail(own.server.url(database))) == 1
        assert one.runs == ["book", "read"]


async def test_a_database_that_starts_anew_in_the_middle_of_calls_loses_and_doubles_nothing(
    own: OwnServer, database: str
) -> None:
    async with pair(own, database) as (one, other):
        parked = [await each.parked() for each in (one, other) for _ in range(5)]
        settling = [
            asyncio.create_task(at_last(lambda ticket=ticket, by=by: by.runner.settle(ticket, "done")))  # type: ignore[misc]
            for (ticket, _), by in zip(parked, [other] * 5 + [one] * 5, strict=True)
        ]
        writing = [one.call("write") for _ in range(5)]
        await settling[0]
        await asyncio.to_thread(own.stop)
        await asyncio.to_thread(own.start)
        verdicts = [each.verdict for each in await asyncio.gather(*settling)]
        assert set(verdicts) <= {Verdict.ACCEPTED, Verdict.REPEATED}
        assert [(await over).result.output for _, over in parked] == ['"done"'] * 10
        outcomes = [(await each).outcome for each in writing]
        assert one.runs.count("write") == outcomes.count(Outcome.OK)
        await eventually(lambda: not one.post.trouble and one.post.listening)
        claims = await at_last(lambda: one.journal.claims(states=tuple(State)))
        assert len({each.call for each in claims}) == len(claims)
        assert len(mail(own.server.url(database))) == 10


async def test_audio_and_tools_that_read_go_on_in_a_session_whose_database_has_gone(
    own: OwnServer, between: Proxy, database: str
) -> None:
    steps = [Reply("One moment.", (Call("read"), Call("write")), 0.4), Until("tool.result"), Until("tool.result")]
    journal = open_postgres(own.server.url(database, port=between.port), limit=LIMIT, poll=0.05)
    tools = Replica(journal).tools
    try:
        scenario = script(*steps, Reply("There you are.", (), 0.4), HangUp())
        async with (
            asyncio.timeout(20),
            Simulator(scenario, pace=PACE) as sim,
            Bridge(tools, journal=journal) as bridge,
        ):
            between.become(Mood.FROZEN)
            async with bridge.session(AssemblyAI(url=sim.url), api_key="offline", delivery=BRISK) as session:
                heard = [event async for event in session if isinstance(event, AgentAudio)]
            between.become(Mood.WELL)
        results = {each.name: json.loads(str(each.result)) for each in sim.ledger.calls}
        assert results == {"read": "done", "write": {"error": "write is not available now, and was not run"}}
        assert heard
    finally:
        between.become(Mood.WELL)
        await journal.aclose()
