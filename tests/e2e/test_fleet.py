"""Several processes that share a journal: answers that come to the wrong one reach the call, and count once."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from bridge import Bridge, CallContext
from bridge.core.events import CallKey, ToolCall
from bridge.errors import JournalError
from bridge.journal import CallId, Granted, State
from bridge.journal.mailbox import Kind, Open
from bridge.journal.postgres import open_postgres
from bridge.metrics import Metrics
from bridge.runner.approvals import AlreadyDecided, ApprovalRequest, Decided, Expired, Resolution, Unknown
from bridge.runner.leftovers import NOT_KNOWN, Found
from bridge.runner.parking import Answer, Completion, Verdict
from bridge.runner.post import Way
from bridge.runner.run import Finished, Outcome
from tests.e2e.fleet import Replica, eventually, mail, replica
from tests.postgres import Server, needed, postgres

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

DONE = Answer('{"done":1}')
LEASE = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with needed(), postgres(tmp_path_factory.getbasetemp(), "fsync=off", "max_connections=200") as running:
        yield running


@pytest.fixture(scope="module")
def database(server: Server) -> str:
    return server.url(server.new_database())


@pytest.fixture
def url(database: str) -> str:
    """The address of an empty journal."""
    with psycopg.connect(database, autocommit=True) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (name,) in found:
            connection.execute(f"DROP TABLE {name}".encode())
    return database


@pytest.fixture
async def pair(url: str) -> AsyncIterator[tuple[Replica, Replica]]:
    async with asyncio.timeout(20), replica(url, lease=LEASE) as one, replica(url, lease=LEASE) as other:
        one.runner.begin()
        other.runner.begin()
        await one.look()
        await other.look()
        yield one, other


def outlived(url: str, owner: str) -> None:
    """The lease of this process has run out long ago."""
    with psycopg.connect(url, autocommit=True) as connection:
        changed = connection.execute("UPDATE bridge_leases SET until = until - 1000 WHERE owner = %s", (owner,))
        assert changed.rowcount == 1


# ------------------------------------------------------------------------------------------------------ completions


@pytest.mark.parametrize("tool", ["book", "look_up"])
async def test_an_outcome_that_comes_to_another_replica_ends_the_call_once(
    pair: tuple[Replica, Replica], url: str, tool: str
) -> None:
    one, other = pair
    ticket, over = await one.parked(tool)
    if tool == "look_up":  # no claim tells of it
        await eventually(lambda: len(mail(url)) == 1)
    assert await other.runner.settle(ticket, {"done": 1}) == Completion(Verdict.ACCEPTED, DONE)
    assert (await over).result.output == DONE.output
    assert await other.runner.settle(ticket, {"done": 1}) == Completion(Verdict.REPEATED, DONE)
    assert (await other.runner.settle(ticket, {"done": 2})).verdict is Verdict.CONFLICT
    assert await one.runner.settle(ticket, {"done": 1}) == Completion(Verdict.REPEATED, DONE)
    assert await one.runner.settle(ticket, {"done": 2}) == Completion(Verdict.CONFLICT, DONE)
    assert sum(one.post.taken.values()) == 1
    await one.look()
    assert mail(url) == [("call", ticket, "taken", None, None)], "what is taken is not kept"


async def test_a_failure_that_comes_to_another_replica_is_told_as_one(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    ticket, over = await one.parked()
    await other.runner.settle(ticket, error="No table is free.")
    finished = await over
    assert (finished.outcome, json.loads(finished.result.output)) == (Outcome.ERROR, {"error": "No table is free."})
    assert (await other.runner.settle(ticket, error="No table is free.")).verdict is Verdict.REPEATED


async def test_an_outcome_that_comes_to_its_own_replica_is_known_to_the_others(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    ticket, over = await one.parked()
    assert await one.runner.settle(ticket, {"done": 1}) == Completion(Verdict.ACCEPTED, DONE)
    assert (await over).result.output == DONE.output
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.REPEATED
    assert (await other.runner.settle(ticket, {"done": 2})).verdict is Verdict.CONFLICT
    assert one.post.taken == {}


async def test_of_two_outcomes_at_two_replicas_at_once_one_wins_and_is_told(pair: tuple[Replica, Replica]) -> None:
    for turn in range(20):
        ticket, over = await pair[0].parked()
        values = [turn, -1 - turn]
        both = await asyncio.gather(*(each.runner.settle(ticket, v) for each, v in zip(pair, values, strict=True)))
        assert sorted(each.verdict.value for each in both) == ["accepted", "conflict"]
        (winner,) = [v for v, each in zip(values, both, strict=True) if each.verdict is Verdict.ACCEPTED]
        assert (await over).result.output == str(winner)


async def test_the_same_outcome_at_two_replicas_at_once_is_accepted_once(pair: tuple[Replica, Replica]) -> None:
    for _ in range(10):
        ticket, over = await pair[0].parked()
        both = await asyncio.gather(*(each.runner.settle(ticket, "same") for each in pair))
        assert sorted(each.verdict.value for each in both) == ["accepted", "repeated"]
        assert (await over).outcome is Outcome.OK


async def test_an_outcome_that_is_said_again_in_another_order_is_the_same_everywhere(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    ticket, over = await one.parked()
    said = {"parcels": 1, "weight": 2}
    assert (await other.runner.settle(ticket, said)).verdict is Verdict.ACCEPTED
    assert (await over).result.output == '{"parcels":1,"weight":2}'
    for each in pair:
        assert (await each.runner.settle(ticket, dict(reversed(said.items())))).verdict is Verdict.REPEATED


async def test_an_outcome_that_comes_after_the_end_is_too_late_everywhere(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    ticket, over = await one.parked("hurry")
    assert (await over).outcome is Outcome.TIMEOUT
    assert await other.runner.settle(ticket, 1) == Completion(Verdict.EXPIRED)
    assert await one.runner.settle(ticket, 1) == Completion(Verdict.EXPIRED)


async def test_an_outcome_of_what_nobody_knows_is_refused(pair: tuple[Replica, Replica]) -> None:
    for ticket in ("s1.0.nobody", "nobody", "", "s1.x.c1", "s1.99999999999999999999.c1"):
        assert await pair[1].runner.settle(ticket, 1) == Completion(Verdict.UNKNOWN)


async def test_an_outcome_that_is_too_large_for_the_tool_becomes_a_failure(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    ticket, over = await one.parked("brief")
    await other.runner.settle(ticket, "x" * 200)
    assert json.loads((await over).result.output) == {"error": "its result is larger than 100 bytes"}


async def test_an_outcome_that_comes_before_the_tool_has_returned_is_kept_for_it(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    ticket, over = await one.parked("hand_over")
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED
    await one.look()
    one.gate.set()
    assert (await over).result.output == DONE.output


async def test_an_outcome_for_a_call_that_does_not_wait_for_one_is_taken_and_its_own_result_stands(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    ticket, over = await one.parked("note")
    await other.runner.settle(ticket, "from outside")
    await one.look()
    one.gate.set()
    assert (await over).result.output == '"noted"'


async def test_an_outcome_that_is_overtaken_by_another_is_not_used(
    pair: tuple[Replica, Replica], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it looks when it is told to
    ticket, over = await one.parked()
    await other.runner.settle(ticket, "from outside")
    one.runner.complete(ticket, "from inside")
    assert (await over).result.output == '"from inside"'
    await one.look()
    assert mail(url) == [("call", ticket, "late", None, None)]
    assert "came too late, and is not used" in caplog.text
    assert await other.runner.settle(ticket, "from outside") == Completion(Verdict.EXPIRED)


async def test_an_outcome_for_a_call_that_was_claimed_and_never_begun_is_kept_once_more_and_then_given_up(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it looks when it is told to
    await one.journal.claim(CallId("s1", 0, "about-to"), "book", "{}", one.owner)
    await other.runner.settle("s1.0.about-to", 1)
    states = []
    for _ in range(2):
        await one.look()
        states += [state for _, _, state, *_ in mail(url)]
    assert states == ["posted", "late"]


@pytest.mark.parametrize("tool", ["book", "look_up"])
async def test_a_call_that_waits_is_seen_at_another_replica_until_it_is_over(
    pair: tuple[Replica, Replica], url: str, tool: str
) -> None:
    one, other = pair
    ticket, over = await one.parked(tool)
    while not (seen := await other.runner.calls_elsewhere()):  # noqa: ASYNC110 - as a database has it
        await asyncio.sleep(0.005)
    ((call,), session) = seen, "s1"
    assert (call.ticket, call.session_id, call.tool) == (ticket, session, tool)
    assert await one.runner.calls_elsewhere() == ()
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED
    assert (await over).result.output == DONE.output
    await one.look()
    assert await other.runner.calls_elsewhere() == ()


async def test_a_call_that_waits_at_a_dead_replica_is_not_seen_any_more(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    await one.parked()
    while not await other.runner.calls_elsewhere():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.005)
    outlived(url, one.owner)
    assert await other.runner.calls_elsewhere() == ()


async def test_a_call_whose_id_has_dots_is_erased_with_its_session(pair: tuple[Replica, Replica], url: str) -> None:
    one, other = pair
    over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    key = CallKey(0, "call.1.a")
    about = CallContext(session_id="s1", key=key, tool="look_up")
    made = ToolCall(key.call_id, "look_up", "{}")
    one._session.start(key, made, one.tools["look_up"], one.tools, about, over.set_result)
    ticket = await one.tickets.get()
    await eventually(lambda: len(mail(url)) == 1)
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED
    await over
    await one.look()
    assert await one.journal.erase("s1")
    assert mail(url) == []


# -------------------------------------------------------------------------------------------------------- approvals


async def asked(one: Replica, other: Replica) -> tuple[ApprovalRequest, asyncio.Future[Any]]:
    """A request of one replica, as the other sees it."""
    one.runner.approvals.attended_elsewhere = True
    over = one.call("pay", '{"amount": 5, "card": "4111111111111111"}')
    (request,) = await other.seen()
    return request, over


async def test_a_request_is_seen_masked_and_decided_at_another_replica(pair: tuple[Replica, Replica], url: str) -> None:
    one, other = pair
    request, over = await asked(one, other)
    assert (request,) == one.runner.approvals.pending
    assert json.loads(request.arguments) == {"amount": 5, "card": "(masked)"}
    assert await one.runner.requests_elsewhere() == ()
    decided = await other.runner.decide(request.id, approve=True, by="ann", reason="a regular")
    assert isinstance(decided, Decided)
    assert (decided.resolved.request, decided.resolved.how) == (request, Resolution.APPROVED)
    assert ((await over).result.output, one.runs) == ('"done"', ["pay"])
    for each in pair:
        again = await each.runner.decide(request.id, approve=False, by="bob")
        assert isinstance(again, AlreadyDecided)
        assert (again.resolved.how, again.resolved.by) == (Resolution.APPROVED, "ann")
    assert await other.runner.decide("nobody", approve=True, by="bob") == Unknown()
    await one.look()
    ((_, _, state, about, _),) = mail(url)
    assert (state, b"4111111111111111" in about, b"amount" in about) == ("taken", False, False)
    assert await other.runner.requests_elsewhere() == ()


async def test_what_is_denied_at_another_replica_is_not_run(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    request, over = await asked(one, other)
    await other.runner.decide(request.id, approve=False, by="ann")
    assert ((await over).outcome, one.runs) == (Outcome.DENIED, [])


async def test_of_two_decisions_at_two_replicas_at_once_one_counts(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    for turn in range(10):
        request, over = await asked(one, other)
        both = await asyncio.gather(
            one.runner.decide(request.id, approve=turn % 2 == 0, by="one"),
            other.runner.decide(request.id, approve=turn % 2 == 1, by="other"),
        )
        assert sorted(type(each).__name__ for each in both) == ["AlreadyDecided", "Decided"]
        (counts,) = {(each.resolved.how, each.resolved.by) for each in both if not isinstance(each, Unknown)}
        approved = counts[0] is Resolution.APPROVED
        assert ((await over).outcome is Outcome.OK) is approved
        await one.look()


async def test_a_decision_at_another_replica_and_that_of_the_approver_are_one(url: str) -> None:
    consulted, answer = asyncio.Event(), asyncio.Event()
    told: list[Any] = []

    async def approver(request: ApprovalRequest) -> bool:
        consulted.set()
        await answer.wait()
        return True

    async with asyncio.timeout(20), replica(url, approver) as one, replica(url) as other:
        over = one.call("pay")
        (request,) = await other.seen()
        await consulted.wait()
        assert isinstance(await other.runner.decide(request.id, approve=False, by="ann"), Decided)
        answer.set()
        assert (await over).outcome is Outcome.DENIED

        with one.runner.approvals.attached(told.append):
            over = one.call("pay")
            await eventually(lambda: bool(told))
        assert (await over).outcome is Outcome.OK
        await one.look()
        late = await other.runner.decide(told[0].id, approve=False, by="ann")
        assert isinstance(late, AlreadyDecided)
        assert late.resolved.by == "approver"


async def test_a_decision_about_a_call_that_is_not_wanted_any_more_is_too_late(pair: tuple[Replica, Replica]) -> None:
    one, other = pair
    request, over = await asked(one, other)
    one._session.discard(request.key)
    await over
    await one.look()
    for each in pair:
        late = await each.runner.decide(request.id, approve=True, by="ann")
        assert isinstance(late, Expired)
        assert late.resolved.how is Resolution.REVOKED
    assert one.runs == []


async def test_a_decision_about_a_request_that_its_owner_has_forgotten_is_not_kept_for_ever(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    request, over = await asked(one, other)
    one._session.discard(request.key)
    await over
    await one.look()
    assert other.journal.mailbox is not None
    mailbox, (_, text) = other.journal.mailbox, mail(url)[0][2:4]
    await mailbox.announce(Open(Kind.APPROVAL, "forgotten", "s1", one.owner, text.decode(), 60.0))
    for _ in range(2):
        assert await other.runner.decide("forgotten", approve=True, by="ann") == Unknown()
    assert [state for _, name, state, *_ in mail(url) if name == "forgotten"] == ["late"]
    assert one.runs == []


async def test_a_decision_about_a_request_of_a_dead_replica_is_too_late(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    request, over = await asked(one, other)
    outlived(url, one.owner)
    late = await other.runner.decide(request.id, approve=True, by="ann")
    assert isinstance(late, Expired)
    assert late.resolved.request == request
    assert await other.runner.requests_elsewhere() == ()
    over.cancel()


async def test_a_call_is_asked_about_where_only_another_replica_has_somebody_to_decide(
    pair: tuple[Replica, Replica],
) -> None:
    one, other = pair
    assert (await one.call("pay")).outcome is Outcome.DENIED
    with other.runner.approvals.attached(lambda told: None):
        await other.look()
        await one.look()
        over = one.call("pay")
        (request,) = await other.seen()
        await other.runner.decide(request.id, approve=True, by="ann")
        assert (await over).outcome is Outcome.OK
    await other.look()
    await one.look()
    assert (await one.call("pay")).outcome is Outcome.DENIED


# ---------------------------------------------------------------------------------------------------------- the dead


async def test_an_outcome_that_was_left_for_a_dead_replica_is_found_by_whoever_recovers(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    (well, _), (failed, _), (nothing, _) = [await one.parked(tool) for tool in ("book", "book", "hand_over")]
    assert (await other.runner.settle(well, {"done": 1})).verdict is Verdict.ACCEPTED
    assert (await other.runner.settle(failed, error="No table is free.")).verdict is Verdict.ACCEPTED
    assert await other.runner.recover(other.tools) == (), "it lives"
    outlived(url, one.owner)
    other.post._mailbox.lease = 0.6
    recovered = {each.claimed.call.call_id: each for each in await other.runner.recover(other.tools)}
    finished, broken, unknown = (recovered[each.rpartition(".")[2]] for each in (well, failed, nothing))
    assert (finished.found, finished.outcome) == (Found.FINISHED, "ok")
    assert (broken.found, broken.outcome) == (Found.FINISHED, "error")
    assert (unknown.found, unknown.outcome) == (Found.UNKNOWN, NOT_KNOWN)
    assert finished.result is not None
    assert finished.result.output == DONE.output
    assert (await other.runner.settle(well, {"done": 1})).verdict is Verdict.REPEATED
    assert (await other.runner.settle(nothing, 1)).verdict is Verdict.EXPIRED
    assert await other.runner.recover(other.tools) == ()


@pytest.mark.parametrize("tool", ["hand_over", "note", "look_into"])
async def test_an_outcome_that_is_left_while_others_recover_the_call_is_what_stands(
    pair: tuple[Replica, Replica], tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after they have looked for one, and before they would say what they have found out themselves."""
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    other.gate.set()
    ticket, _ = await one.parked(tool)
    look = other.post.conclude

    async def look_and_be_told(*about: Any, **more: Any) -> None:
        await look(*about, **more)
        assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED

    monkeypatch.setattr(other.post, "conclude", look_and_be_told)
    (recovered,) = await other.runner.recover(other.tools, dead=lambda owner: owner == one.owner)
    assert (recovered.found, recovered.outcome) == (Found.FINISHED, "ok")
    assert recovered.result is not None
    assert recovered.result.output == DONE.output
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.REPEATED


async def test_an_outcome_that_is_left_while_another_takes_over_the_wait_is_what_stands(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    ticket, _ = await one.parked()
    look = other.post.conclude

    async def look_and_be_told(*about: Any, **more: Any) -> None:
        await look(*about, **more)
        assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED

    monkeypatch.setattr(other.post, "conclude", look_and_be_told)
    assert await other.runner.recover(other.tools, dead=lambda owner: owner == one.owner) == ()

    async def recorded() -> bool:
        (claimed,) = await other.journal.claims(states=tuple(State))
        return (claimed.state, claimed.outcome, claimed.owner) == (State.ORPHANED, "ok", other.owner)

    while not await recorded():  # noqa: ASYNC110 - the journal says nothing by itself
        await asyncio.sleep(0.005)
    assert (await one.runner.settle(ticket, {"done": 2})).verdict is Verdict.CONFLICT


async def test_a_call_that_another_waits_on_for_a_dead_replica_is_seen_and_answered_at_any(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    ticket, _ = await one.parked()
    async with replica(url, lease=LEASE) as third:
        third.runner.begin()
        await third.look()
        assert await other.runner.recover(other.tools, dead=lambda owner: owner == one.owner) == ()
        await other.look()
        assert [each.ticket for each in await third.runner.calls_elsewhere()] == [ticket]
        assert (await third.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED
        while other.runner.waits is not None and ticket in other.runner.waits:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)
        (claimed,) = await other.journal.claims(states=tuple(State))
        assert (claimed.state, claimed.outcome) == (State.ORPHANED, "ok")


async def test_an_outcome_that_was_taken_is_there_for_others_until_it_is_in_the_journal(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    tickets = [(await one.parked("hand_over"))[0], (await one.parked("hand_over"))[0]]
    for ticket in tickets:
        assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.ACCEPTED
    await one.look()
    assert [state for _, _, state, _, _ in mail(url)] == ["posted", "posted"]
    dead = {one.owner}
    recovered = await other.runner.recover(other.tools, dead=dead.__contains__)
    assert [(each.found, each.outcome) for each in recovered] == [(Found.FINISHED, "ok")] * 2
    one.gate.set()  # it was only frozen
    await eventually(lambda: one.runs == ["hand_over", "hand_over"])
    await eventually(lambda: {state for _, _, state, _, _ in mail(url)} == {"taken"})


@pytest.mark.parametrize("tool", ["hand_over", "note"])
async def test_after_a_call_was_recovered_an_outcome_for_it_is_too_late(
    pair: tuple[Replica, Replica], tool: str, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    other.gate.set()
    ticket, _ = await one.parked(tool)
    (recovered,) = await other.runner.recover(other.tools, dead=lambda owner: owner == one.owner)
    assert recovered.outcome == ("ok" if tool == "note" else NOT_KNOWN)
    assert (await other.runner.settle(ticket, {"done": 1})).verdict is Verdict.EXPIRED
    for each in pair:
        await each.look()
    assert [state for _, name, state, _, _ in mail(url) if name == ticket] == ["late"]
    assert "came too late" not in caplog.text


async def test_who_dies_while_it_recovers_a_call_leaves_it_to_the_next_as_it_was(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    one.post._task.cancel()  # type: ignore[union-attr]  # it takes nothing any more
    ticket, _ = await one.parked("hand_over")
    close, dead = other.post._mailbox.close, {one.owner}

    async def die(*about: Any) -> None:
        raise JournalError("the end")

    monkeypatch.setattr(other.post._mailbox, "close", die)
    with pytest.raises(JournalError):
        await other.runner.recover(other.tools, dead=dead.__contains__)
    monkeypatch.setattr(other.post._mailbox, "close", close)
    (recovered,) = await other.runner.recover(other.tools, dead=dead.__contains__)
    assert recovered.outcome == NOT_KNOWN
    assert (await other.runner.settle(ticket, 1)).verdict is not Verdict.ACCEPTED


async def test_after_the_database_was_away_nobody_who_lives_is_taken_for_dead(
    pair: tuple[Replica, Replica], url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    await one.parked()
    outlived(url, one.owner)
    mailbox, leases = other.post._mailbox, other.post._mailbox.leases

    async def leases_then_beat() -> Any:
        found = await leases()
        await one.look()
        return found

    monkeypatch.setattr(mailbox, "leases", leases_then_beat)
    monkeypatch.setattr(mailbox, "lease", 0.06)
    assert await other.runner.recover(other.tools) == ()
    one.post._beat_due = 0.0
    outlived(url, one.owner)
    await one.post._look()
    assert "others may have taken it for dead" in caplog.text


async def test_a_replica_that_was_frozen_while_others_recovered_its_calls_doubles_nothing_that_must_not_be(
    pair: tuple[Replica, Replica], url: str
) -> None:
    one, other = pair
    note, noted = await one.parked("note")
    _, handed = await one.parked("hand_over")
    outlived(url, one.owner)
    other.post._mailbox.lease = 0.6
    other.gate.set()
    recovered = {each.claimed.tool: each for each in await other.runner.recover(other.tools)}
    assert (recovered["note"].found, recovered["hand_over"].found) == (Found.REPEATED, Found.UNKNOWN)
    one.gate.set()
    assert (await noted).outcome is Outcome.OK
    await eventually(lambda: "hand_over" in one.runs)
    assert (one.runs.count("hand_over"), other.runs) == (1, ["note"])  # only what may be repeated was
    claims = {each.tool: each for each in await other.journal.claims(states=tuple(State))}
    assert {each.state for each in claims.values()} == {State.ORPHANED}
    assert claims["hand_over"].outcome == NOT_KNOWN
    assert (await other.runner.settle(note, 1)).verdict is Verdict.EXPIRED
    handed.cancel()


async def test_of_two_that_are_called_like_the_same_process_the_one_that_lives_is_left_alone(
    pair: tuple[Replica, Replica], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bridges in one process, or a container that starts anew under its old name and number."""
    one, other = pair
    ended, lives = (f"{socket.gethostname()}/{os.getpid()}/{life}" for life in ("ended", "lives"))
    mailbox, leases = other.post._mailbox, other.post._mailbox.leases
    others = one.post._mailbox
    for owner in (ended, lives):
        await others.beat(owner, attended=False)
        await other.journal.claim(CallId(owner, 0, "c1"), "hand_over", "{}", owner)

    async def leases_then_beat() -> Any:
        found = await leases()
        await others.beat(lives, attended=False)
        return found

    monkeypatch.setattr(mailbox, "leases", leases_then_beat)
    monkeypatch.setattr(mailbox, "lease", 0.06)
    monkeypatch.setattr(other.post, "_owner", f"{socket.gethostname()}/{os.getpid()}/third")
    dead = await other.post.dead()
    assert (dead(ended), dead(lives), dead(one.owner)) == (True, False, False)


async def test_a_replica_that_has_ended_is_known_to_be_dead_at_once(url: str) -> None:
    async with asyncio.timeout(20), replica(url, lease=LEASE) as other:
        async with replica(url, lease=LEASE) as one:
            one.runner.begin()
            await one.look()
            call = CallId("left", 0, "c1")
            assert await one.journal.claim(call, "hand_over", "{}", one.owner) == Granted()
        other.post._mailbox.lease = 0.06
        (left,) = await other.runner.recover(other.tools)
        assert left.claimed.call == call


# ------------------------------------------------------------------------------------------------ notices, and figures


@pytest.mark.parametrize("way", Way)
async def test_an_answer_is_found_by_its_notice_and_without_one_by_looking(url: str, way: Way) -> None:
    async with asyncio.timeout(20):
        async with replica(url, poll=60.0 if way is Way.NOTIFIED else 0.02) as one, replica(url) as other:
            if way is Way.POLLED:
                one.journal._closing()  # no notice comes any more
            ticket, over = await one.parked()
            await eventually(lambda: one.post.listening is (way is Way.NOTIFIED))
            await one.look()
            await other.runner.settle(ticket, {"done": 1})
            assert (await over).outcome is Outcome.OK
            assert one.post.taken == {way: 1}
            metrics = Metrics()
            metrics.watch_runner(one.runner)
            rendered = metrics.render().decode()
            assert f'bridge_mailbox_taken_total{{way="{way.value}"}} 1.0' in rendered
            assert f"bridge_mailbox_listening {float(way is Way.NOTIFIED)}" in rendered


async def test_a_fault_of_its_own_does_not_end_the_looking(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), replica(url, poll=0.02) as one, replica(url) as other:
        ticket, over = await one.parked()
        take, failures = one.post._mailbox.take, iter([ValueError("strange")])

        async def fail_once(owner: str) -> Any:
            for failure in failures:
                raise failure
            return await take(owner)

        monkeypatch.setattr(one.post._mailbox, "take", fail_once)
        await eventually(lambda: "ValueError: strange" in caplog.text)
        await other.runner.settle(ticket, {"done": 1})
        assert (await over).outcome is Outcome.OK


async def test_a_bridge_is_one_of_a_fleet(url: str) -> None:
    journal = open_postgres(url)
    assert journal.mailbox is not None
    async with asyncio.timeout(20), Bridge({}, journal=journal, owner="elsewhere/1/x") as bridge:
        assert bridge.runner.post is not None
        bridge.runner.begin()
        bridge.runner.begin()
        await bridge.runner.post._beat()
        assert await bridge.runner.settle("s.0.c", 1) == Completion(Verdict.UNKNOWN)
    assert not (await journal.mailbox.leases()).live
    assert await journal.mailbox.waiting(Kind.CALL) == ()
    await journal.aclose()
