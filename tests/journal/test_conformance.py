"""What every store does, whatever it is made of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from bridge.core.events import LinkLost, ToolCall, ToolCalled
from bridge.errors import JournalError
from bridge.journal import (
    CallId,
    Claimed,
    Concluded,
    Conflict,
    Entry,
    Finished,
    Granted,
    Journal,
    Part,
    Retention,
    State,
    Stored,
    Unknown,
    Verdict,
)
from bridge.journal.payloads import Keep, Payloads

from .conftest import Open
from .making import AT, CALL, FINISHED, ID, RESULT, RUN, begun, entry, told

pytestmark = pytest.mark.anyio

ALL = tuple(State)
ASKED = CALL.arguments


async def all_of(entries: AsyncIterator[tuple[int, Entry]]) -> list[Entry]:
    return [each async for _, each in entries]


async def claim(journal: Journal, call: CallId = ID, owner: str = "me") -> object:
    return await journal.claim(call, "order", ASKED, owner)


async def only(journal: Journal) -> Claimed:
    (claimed,) = await journal.claims(states=ALL)
    return claimed


# ---------------------------------------------------------------------------------------------------------- entries


async def test_what_was_appended_is_read_in_its_order(journal: Journal) -> None:
    entries = [entry(begun()), entry(RUN, part=Part.DECIDED), entry(FINISHED, "s2"), entry(LinkLost())]
    await journal.append(entries[:1])
    await journal.append(entries[1:])
    assert await all_of(journal.read()) == entries
    assert await all_of(journal.read("s1")) == [entries[0], entries[1], entries[3]]
    assert await all_of(journal.read("s3")) == []


async def test_an_entry_that_is_appended_again_is_there_once(journal: Journal) -> None:
    first, second = entry(begun()), entry(RUN)
    await journal.append([first])
    await journal.append([first, second])
    assert await all_of(journal.read()) == [first, second]


async def test_the_same_mark_in_another_session_is_another_entry(journal: Journal) -> None:
    one = entry(RUN)
    await journal.append([one, replace(one, session="s2")])
    assert len(await all_of(journal.read())) == 2


async def test_entries_without_a_mark_may_be_alike(journal: Journal) -> None:
    note = Entry(AT, "s1", LinkLost())
    await journal.append([note, note])
    assert await all_of(journal.read()) == [note, note]


async def test_appending_nothing_is_nothing(journal: Journal) -> None:
    await journal.append([])
    assert await all_of(journal.read()) == []


async def test_reading_goes_on_after_a_number(journal: Journal) -> None:
    entries = [entry(LinkLost()) for _ in range(5)]
    await journal.append(entries)
    numbers = [number async for number, _ in journal.read()]
    assert numbers == sorted(set(numbers))
    assert await all_of(journal.read(after=numbers[2])) == entries[3:]


async def test_more_than_a_page_is_read_to_the_end(journal: Journal) -> None:
    entries = [entry(LinkLost()) for _ in range(1201)]
    await journal.append(entries)
    assert await all_of(journal.read()) == entries


async def test_a_follower_sees_what_comes_later(journal: Journal) -> None:
    entries = [entry(LinkLost()) for _ in range(3)]
    await journal.append(entries[:1])
    async with asyncio.timeout(20), contextlib.aclosing(journal.read(follow=True)) as following:
        assert (await anext(following))[1] == entries[0]
        later = asyncio.create_task(anext(following))
        await journal.append(entries[1:])
        assert (await later)[1] == entries[1]
        assert (await anext(following))[1] == entries[2]


async def test_a_follower_of_one_session_sees_no_other(journal: Journal) -> None:
    async with asyncio.timeout(20), contextlib.aclosing(journal.read("s2", follow=True)) as following:
        later = asyncio.create_task(anext(following))
        await journal.append([entry(LinkLost(), "s1"), entry(RUN, "s2")])
        assert (await later)[1].session == "s2"


async def test_following_ends_when_the_journal_is_closed(journal: Journal) -> None:
    following = asyncio.create_task(all_of(journal.read(follow=True)))
    await journal.append([entry(RUN)])
    await journal.aclose()
    async with asyncio.timeout(20):
        assert len(await following) <= 1


async def test_names_may_be_anything_a_provider_sends(journal: Journal) -> None:
    strange = "a\0b\\ \ud800 \"ü\" 'x'"
    call = CallId(strange, 3, strange)
    await journal.append([entry(ToolCalled(ToolCall(strange, strange, "{")), strange)])
    assert await journal.claim(call, strange, strange, strange) == Granted()
    assert [each.session for each in await all_of(journal.read(strange))] == [strange]
    claimed = await only(journal)
    assert (claimed.call, claimed.tool, claimed.owner, claimed.arguments) == (call, strange, strange, strange)
    assert await journal.conclude(call, told(strange), "ok") == Concluded(Verdict.RECORDED, told(strange), "ok")
    assert (await only(journal)).result == told(strange)


@pytest.mark.parametrize("at", [float("nan"), float("inf")])
def test_an_entry_is_made_at_some_time(at: float) -> None:
    with pytest.raises(ValueError, match="cannot have been made at"):
        entry(RUN, at=at)


# ----------------------------------------------------------------------------------------------------------- claims


async def test_a_claim_is_granted_once(journal: Journal) -> None:
    answers = await asyncio.gather(*(claim(journal, owner=f"owner {n}") for n in range(8)))
    assert answers.count(Granted()) == 1
    winner = (await only(journal)).owner
    assert {each.owner for each in answers if isinstance(each, Unknown)} == {winner}


async def test_the_same_id_in_another_epoch_or_session_is_another_call(journal: Journal) -> None:
    for call in (ID, ID._replace(epoch=2), ID._replace(session="s2")):
        assert await claim(journal, call) == Granted()


async def test_an_unfinished_claim_tells_since_when_and_whose(open_store: Open) -> None:
    journal = open_store(clock=lambda: AT)
    await claim(journal)
    assert await claim(journal, owner="you") == Unknown(AT, "me")


async def test_a_claim_of_a_finished_call_tells_its_result(journal: Journal) -> None:
    await claim(journal)
    await journal.conclude(ID, RESULT, "ok")
    assert await claim(journal, owner="you") == Finished(RESULT, "ok", State.OWED)


async def test_arguments_that_are_spelled_differently_are_the_same(journal: Journal) -> None:
    await journal.claim(ID, "order", '{"a": 1, "b": 2}', "me")
    assert isinstance(await journal.claim(ID, "order", '{"b":2,"a":1}', "me"), Unknown)


async def test_another_call_with_the_same_id_is_a_conflict(journal: Journal) -> None:
    await claim(journal)
    assert await journal.claim(ID, "order", "{}", "me") == Conflict("order")
    assert await journal.claim(ID, "cancel", ASKED, "me") == Conflict("order")
    assert await journal.claim(ID, "order", "{}", "you", instead_of="me") == Conflict("order")


async def test_what_a_dead_owner_has_started_is_granted_again_to_one(journal: Journal) -> None:
    await claim(journal, owner="dead")
    takers = [journal.claim(ID, "order", ASKED, f"owner {n}", instead_of="dead") for n in range(4)]
    answers = await asyncio.gather(*takers)
    assert answers.count(Granted()) == 1
    assert (await only(journal)).owner.startswith("owner")


async def test_what_somebody_else_has_started_is_not_taken_over(journal: Journal) -> None:
    await claim(journal, owner="alive")
    answer = await journal.claim(ID, "order", ASKED, "me", instead_of="dead")
    assert isinstance(answer, Unknown)
    assert answer.owner == "alive"


async def test_what_is_finished_is_not_taken_over(journal: Journal) -> None:
    await claim(journal, owner="dead")
    await journal.conclude(ID, RESULT, "ok")
    answer = await journal.claim(ID, "order", ASKED, "me", instead_of="dead")
    assert answer == Finished(RESULT, "ok", State.OWED)


@pytest.mark.parametrize("state", [State.DISCARDED, State.ORPHANED])
async def test_what_nobody_wants_any_more_is_not_taken_over(journal: Journal, state: State) -> None:
    await claim(journal, owner="dead")
    await journal.settle([ID], state)
    answer = await journal.claim(ID, "order", ASKED, "me", instead_of="dead")
    assert isinstance(answer, Unknown)


@pytest.mark.parametrize("session", [True, False])
async def test_a_name_that_is_too_long_for_an_index_is_refused_and_costs_nobody_else_anything(
    journal: Journal, session: bool
) -> None:
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 600)))  # six characters each, as they are written
    call = CallId(long, 0, "c1") if session else CallId("s1", 0, long)
    answers = await asyncio.gather(claim(journal, call), claim(journal), return_exceptions=True)
    assert (type(answers[0]), answers[1]) == (ValueError, Granted())
    assert await claim(journal, CallId("s1", 0, long[:300])) == Granted()
    with pytest.raises(ValueError, match="3600 characters"):
        await journal.append([entry(begun(), long)])


async def test_nobody_takes_over_from_itself(journal: Journal) -> None:
    with pytest.raises(ValueError, match="one process in one life"):
        await journal.claim(ID, "order", ASKED, "me", instead_of="me")


async def test_the_first_outcome_stands(journal: Journal) -> None:
    await claim(journal)
    assert await journal.conclude(ID, RESULT, "ok") == Concluded(Verdict.RECORDED, RESULT, "ok")
    assert await journal.conclude(ID, RESULT, "ok") == Concluded(Verdict.REPEATED, RESULT, "ok")
    assert await journal.conclude(ID, told("no"), "error") == Concluded(Verdict.CONFLICT, RESULT, "ok")
    assert (await only(journal)).result == RESULT


async def test_of_two_outcomes_at_once_one_stands(journal: Journal) -> None:
    await claim(journal)
    answers = await asyncio.gather(*(journal.conclude(ID, told(str(n)), "ok") for n in range(8)))
    verdicts = [each.verdict for each in answers]
    assert verdicts.count(Verdict.RECORDED) == 1
    assert verdicts.count(Verdict.CONFLICT) == 7
    assert {each.result for each in answers} == {(await only(journal)).result}


async def test_an_error_and_a_result_with_the_same_text_are_a_conflict(journal: Journal) -> None:
    await claim(journal)
    await journal.conclude(ID, told("1"), "ok")
    assert (await journal.conclude(ID, told("1", is_error=True), "ok")).verdict is Verdict.CONFLICT


async def test_an_outcome_of_a_call_that_nobody_has_claimed_is_not_recorded(journal: Journal) -> None:
    assert await journal.conclude(ID, RESULT, "ok") == Concluded(Verdict.UNCLAIMED)
    assert await journal.claims(states=ALL) == ()


async def test_an_outcome_needs_a_name(journal: Journal) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        await journal.conclude(ID, RESULT, "")


async def test_what_a_process_has_left_behind_is_found(journal: Journal) -> None:
    for n in range(4):
        await claim(journal, ID._replace(call_id=f"c{n}"), owner="dead" if n < 3 else "alive")
    await journal.conclude(ID._replace(call_id="c1"), RESULT, "ok")
    await journal.conclude(ID._replace(call_id="c2"), RESULT, "ok")
    await journal.settle([ID._replace(call_id="c2")], State.SENT)
    left = await journal.claims(owner="dead")
    assert [(each.call.call_id, each.state) for each in left] == [("c0", State.STARTED), ("c1", State.OWED)]
    assert left[0].arguments == ASKED
    assert left[1].result == RESULT
    assert left[1].arguments is None


async def test_calls_are_found_by_session(journal: Journal) -> None:
    await claim(journal)
    await claim(journal, ID._replace(session="s2"))
    assert [each.call.session for each in await journal.claims(session="s2")] == ["s2"]
    assert await journal.claims(states=()) == ()


# --------------------------------------------------------------------------------------------------------- the states


async def test_of_several_who_settle_the_same_one_is_told_that_it_is_news(journal: Journal) -> None:
    other = ID._replace(call_id="c2")
    for call in (ID, other):
        await journal.claim(call, "order", ASKED, "me")
    await journal.conclude(ID, RESULT, "ok")
    assert await journal.settle([ID, other], State.SENT) == {ID}
    assert await journal.settle([ID, other], State.SENT) == frozenset()
    assert await journal.settle([other], State.ORPHANED) == {other}


async def settled(journal: Journal, *states: State) -> Claimed:
    for state in states:
        if state is State.STARTED:
            await claim(journal)
        elif state is State.OWED:
            await journal.conclude(ID, RESULT, "ok")
        else:
            await journal.settle([ID], state)
    return await only(journal)


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ("STARTED OWED SENT", "SENT"),
        ("STARTED OWED DISCARDED", "DISCARDED"),
        ("STARTED OWED ORPHANED", "ORPHANED"),
        ("STARTED OWED ORPHANED SENT", "SENT"),
        ("STARTED OWED SENT DISCARDED", "SENT"),
        ("STARTED OWED DISCARDED SENT", "DISCARDED"),
        ("STARTED OWED SENT ORPHANED", "SENT"),
        ("STARTED SENT", "STARTED"),
        ("STARTED DISCARDED", "DISCARDED"),
        ("STARTED ORPHANED", "ORPHANED"),
        ("STARTED DISCARDED OWED", "DISCARDED"),
        ("STARTED ORPHANED OWED", "ORPHANED"),
    ],
)
async def test_a_call_goes_from_state_to_state_and_not_back(journal: Journal, steps: str, state: str) -> None:
    claimed = await settled(journal, *(State[step] for step in steps.split()))
    assert claimed.state is State[state]
    assert claimed.outcome == ("ok" if "OWED" in steps else "")


async def test_settling_what_is_not_there_is_nothing(journal: Journal) -> None:
    await journal.settle([], State.SENT)
    await journal.settle([ID], State.SENT)
    assert await journal.claims(states=ALL) == ()


@pytest.mark.parametrize("state", [State.SENT, State.DISCARDED])
async def test_a_result_that_is_no_longer_owed_is_only_kept_if_nothing_of_it_is_secret(
    open_store: Open, state: State
) -> None:
    journal = open_store(payloads=Payloads(redact=lambda tool: ("card",) if tool == "order" else ()))
    claimed = await settled(journal, State.STARTED, State.OWED)
    assert claimed.result == RESULT
    assert (await settled(journal, state)).result is None
    assert await claim(journal) == Finished(None, "ok", state)
    assert (await journal.conclude(ID, RESULT, "ok")).verdict is Verdict.REPEATED

    harmless = CallId("s2", 1, "c1")
    await claim(journal, harmless)
    await journal.conclude(harmless, told("1"), "ok")
    await journal.settle([harmless], state)
    assert await claim(journal, harmless) == Finished(told("1"), "ok", state)


async def test_an_orphaned_result_stays_whole(open_store: Open) -> None:
    journal = open_store(payloads=Payloads(Keep.NONE))
    assert (await settled(journal, State.STARTED, State.OWED, State.ORPHANED)).result == RESULT
    assert (await settled(journal, State.SENT)).result is None


async def test_an_outcome_that_comes_after_the_discard_is_noted_without_its_secrets(open_store: Open) -> None:
    journal = open_store(payloads=Payloads(Keep.NONE))
    claimed = await settled(journal, State.STARTED, State.DISCARDED)
    assert claimed.arguments is None
    claimed = await settled(journal, State.OWED)
    assert (claimed.result, claimed.outcome) == (None, "ok")


# --------------------------------------------------------------------------------------------------------- sessions


async def test_sessions_are_listed_the_latest_first(journal: Journal) -> None:
    await journal.append([entry(RUN, "old", at=1.0), entry(RUN, "old", at=2.0), entry(RUN, "new", at=1.5)])
    await journal.append([entry(RUN, "new", at=9.0)])
    new, old = await journal.sessions()
    assert replace(new, size=0) == Stored("new", 1.5, 9.0, 2, 0)
    assert replace(old, size=0) == Stored("old", 1.0, 2.0, 2, 0)
    assert new.size > 100
    assert await journal.sessions(limit=1) == (new,)


async def test_an_erased_session_leaves_nothing_and_others_stay(journal: Journal) -> None:
    await journal.append([entry(RUN, "s1"), entry(RUN, "s2")])
    await claim(journal)
    await claim(journal, ID._replace(session="s2"))
    assert await journal.erase("s1")
    assert {each.session for each in await all_of(journal.read())} == {"s2"}
    assert [each.call.session for each in await journal.claims(states=ALL)] == ["s2"]
    assert [each.session for each in await journal.sessions()] == ["s2"]
    assert not await journal.erase("s1")


async def test_numbers_are_not_used_again_after_an_erasure(journal: Journal) -> None:
    await journal.append([entry(RUN)])
    ((last, _),) = [each async for each in journal.read()]
    await journal.erase("s1")
    await journal.append([entry(RUN, "s2")])
    assert len(await all_of(journal.read(after=last))) == 1


async def test_old_sessions_are_pruned(open_store: Open) -> None:
    journal = open_store(retention=Retention(max_age=100.0), clock=lambda: 10.0)
    await journal.append([entry(RUN, "old", at=10.0), entry(RUN, "long", at=10.0), entry(RUN, "long", at=60.0)])
    await claim(journal, CallId("old", 1, "c1"))
    await claim(journal, CallId("long", 1, "c1"))
    await claim(journal, CallId("silent", 1, "c1"))
    await journal.settle([CallId("old", 1, "c1"), CallId("silent", 1, "c1")], State.DISCARDED)
    assert await journal.prune(111.0) == 1
    assert [each.session for each in await journal.sessions()] == ["long"]
    assert [each.call.session for each in await journal.claims(states=ALL)] == ["long"]


async def test_the_oldest_sessions_are_pruned_until_the_rest_is_small_enough(open_store: Open) -> None:
    journal = open_store(retention=Retention(max_age=None, max_size=1500))
    for n in range(5):
        await journal.append([entry(RUN, f"s{n}", at=float(n)) for _ in range(4)])
    assert await journal.prune(1e12) > 0
    kept = await journal.sessions()
    assert 0 < sum(each.size for each in kept) <= 1500
    assert [each.session for each in kept] == [f"s{4 - n}" for n in range(len(kept))]
    assert await journal.prune(1e12) == 0


@pytest.mark.parametrize("retention", [Retention(max_age=None, max_size=0), Retention(max_age=1.0)])
async def test_a_session_with_unfinished_calls_is_not_pruned(open_store: Open, retention: Retention) -> None:
    journal = open_store(retention=retention)
    await journal.append([entry(RUN, "s1"), entry(RUN, "s2")])
    await claim(journal)
    await journal.prune(1e12)
    assert [each.session for each in await journal.sessions()] == ["s1"]
    await journal.conclude(ID, RESULT, "ok")
    await journal.settle([ID], State.SENT)
    await journal.prune(1e12)
    assert await journal.sessions() == ()


# -------------------------------------------------------------------------------------------------------------- end


async def test_a_check_leaves_nothing_that_anybody_sees(journal: Journal) -> None:
    for _ in range(2):
        await journal.check()
    assert await all_of(journal.read()) == []
    assert (await journal.sessions(), await journal.claims(states=ALL)) == ((), ())


async def test_a_closed_journal_says_so(journal: Journal) -> None:
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(JournalError, match="closed"):
        await journal.append([entry(RUN)])
    with pytest.raises(JournalError, match="closed"):
        await claim(journal)
    with pytest.raises(JournalError, match="closed"):
        await journal.check()
    with pytest.raises(JournalError, match="closed"):
        await all_of(journal.read())


async def test_what_was_written_is_there_after_opening_it_again(store: str, open_store: Open) -> None:
    if store == "memory":
        return
    journal = open_store()
    written = entry(RUN)
    await journal.append([written])
    await claim(journal)
    await journal.conclude(ID, RESULT, "ok")
    await journal.aclose()
    again = open_store()
    assert await all_of(again.read()) == [written]
    assert await claim(again) == Finished(RESULT, "ok", State.OWED)


# ---------------------------------------------------------------------------------------------------- left to others


async def test_a_call_that_was_left_open_waits_until_its_time_is_over_whoever_has_it(journal: Journal) -> None:
    await claim(journal, owner="dead")
    assert not (await only(journal)).waits(0)
    await journal.leave(ID, 100.5)
    assert await journal.claim(ID, "order", ASKED, "me", instead_of="dead") == Granted()
    claimed = await only(journal)
    assert (claimed.until, claimed.waits(100), claimed.waits(100.5)) == (100.5, True, False)
    await journal.conclude(ID, RESULT, "ok")
    claimed = await only(journal)
    assert (claimed.until, claimed.waits(100)) == (100.5, False)


async def test_what_has_its_outcome_or_was_never_claimed_is_not_left_open(journal: Journal) -> None:
    await journal.leave(ID, 100)
    await claim(journal)
    await journal.conclude(ID, RESULT, "ok")
    await journal.leave(ID, 100)
    assert (await only(journal)).until is None
