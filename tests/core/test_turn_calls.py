"""The table of the turn machine, row by row: calls, results, and when they are released."""

from __future__ import annotations

from itertools import product

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import (
    CallKey,
    Run,
    ToolCall,
    ToolResult,
    ToolResults,
)
from bridge.core.turn import Stage

from .script import Story, story

WHOLE = Delivery(whole_turn=True)
AT_ONCE = Delivery(hold=False)
UNASKED = Delivery(asks=False)
ALL_DELIVERIES = tuple(Delivery(*switches) for switches in product((True, False), repeat=4))

# ---------------------------------------------------------------------------------------------------- a call arrives


def test_a_call_runs_at_once() -> None:
    call = ToolCall("c1", "tool")
    assert Story().outputs("call c1") == [Run(CallKey(0, "c1"), call)]


def test_the_epoch_of_a_call_is_the_number_of_replies_before() -> None:
    s = story("reply r1", "call c1", "done r1", "reply r2", "call c2")
    assert (s.owed("c1").key, s.owed("c2").key) == (CallKey(1, "c1"), CallKey(2, "c2"))


def test_a_call_whose_id_never_comes_again_has_the_same_key_in_every_turn_and_process() -> None:
    s = story("reply r1", "call c1", "reply r2", "call c2", delivery=Delivery(hold=False, asks=False, unique_ids=True))
    assert (s.owed("c1").key, s.owed("c2").key) == (CallKey(0, "c1"), CallKey(0, "c2"))
    s("end c1", "sent c1", "reply r3", "done r3")
    assert not s.changes("call c1")


@pytest.mark.parametrize(("kind", "turn"), [("call", 1), ("held", 0)])
def test_a_call_belongs_to_the_open_reply_or_in_hold_mode_to_none(kind: str, turn: int) -> None:
    s = story("reply r1", f"{kind} c1")
    assert s.owed("c1").turn == turn
    assert s.owed("c1").reply_id == ("r1" if turn else "")


def test_a_call_after_a_reply_belongs_to_the_next_one() -> None:
    assert story("reply r1", "done r1", "call c1").owed("c1").turn == 2


def test_a_careful_call_that_arrives_while_the_caller_speaks_is_not_run() -> None:
    s = story("reply r1", "speech")
    assert s("careful c1") == ["hold c1: reply"]
    assert s.owed("c1").stage is Stage.READY


def test_a_call_that_arrives_twice_runs_once() -> None:
    s = story("reply r1", "call c1")
    assert not s.changes("call c1")
    s("done r1", "reply r2")
    assert not s.changes("call c1")


def test_an_id_settled_in_this_turn_is_a_repeat_and_in_a_later_one_a_new_call() -> None:
    s = story("reply r1", "call c1", "end c1", "done r1", "sent c1")
    assert not s.changes("call c1")
    assert s("reply r2", "call c1") == ["run c1"]
    assert s.owed("c1").key == CallKey(2, "c1")


@pytest.mark.parametrize("end", ["done r2", "cut r2"])
def test_an_id_of_the_past_is_a_repeat_in_the_first_turn_after_a_resume(end: str) -> None:
    s = story("reply r1", "call c1", "end c1", "done r1", "sent c1", "lost", "resumed", "reply r2")
    assert not s.changes("call c1")
    assert s(end, "call c1") == ["run c1"]


def test_only_the_latest_ids_are_remembered() -> None:
    s = story("reply r1")
    s.machine = s.machine._replace(settled=tuple(f"c{n}" for n in range(256)))
    s("eager new", "end new", "sent new")
    assert len(s.machine.settled) == 256
    assert s.machine.settled[-1] == "new"
    s("done r1", "reply r2", "eager d1", "end d1", "sent d1", "reply r3")
    assert len(s.machine.past) == 256
    assert s.machine.past[-1] == "d1"


# ------------------------------------------------------------------------------------------------------ a tool ends


@pytest.mark.parametrize("line", ["end c9", "end c1@7", "end c2"])
def test_a_result_that_nobody_waits_for_changes_nothing(line: str) -> None:
    s = story("reply r1", "call c1", "careful c2")
    assert not s.changes(line)


def test_a_second_result_changes_nothing() -> None:
    assert not story("reply r1", "call c1", "end c1").changes("end c1")


def test_a_result_that_is_ready_while_the_window_is_open_goes_at_once() -> None:
    assert story("reply r1", "call c1", "done r1")("end c1") == ["send c1"]


def test_a_call_that_needs_no_answer_leaves_when_it_ends() -> None:
    s = story("reply r1", "silent c1", "call c2")
    assert s("end c1") == []
    assert [o.key.call_id for o in s.machine.owed] == ["c2"]
    assert not s.changes("silent c1")


def test_nobody_waits_for_a_sibling_that_needs_no_answer() -> None:
    s = story("reply r1", "silent c1", "call c2", "end c2")
    assert s("done r1") == ["send c2"]


def test_a_result_is_announced_once() -> None:
    s = story("reply r1", "call c1", "call c2")
    assert s("end c1") == ["hold c1: reply"]
    assert s("end c2", "speech", "silence") == ["hold c2: reply"]


HELD_BY = [
    ("reply r1|call c1", "reply"),
    ("call c1|speech", "user"),
    ("call c1|speech|silence", "user"),
    ("call c1|requested", "asked"),
    ("call c1|call c2", "siblings"),
    ("call c1|lost", "link"),
    ("call c1|paused", "link"),
    ("reply r1|call c1|speech", "reply"),
    ("call c1|requested|speech", "asked"),
]


@pytest.mark.parametrize(("lines", "reason"), HELD_BY)
def test_it_is_said_what_a_result_waits_for(lines: str, reason: str) -> None:
    assert story(*lines.split("|"))("end c1") == [f"hold c1: {reason}"]


# ---------------------------------------------------------------------------------------------------------- release


def test_results_of_a_turn_go_together_in_the_order_of_the_calls() -> None:
    s = story("reply r1", "call c1", "call c2", "call c3", "end c3", "end c1", "end c2")
    (results,) = s.outputs("done r1")
    assert results == ToolResults(
        tuple(ToolResult(c, "1") for c in ("c1", "c2", "c3")), False, tuple(CallKey(1, c) for c in ("c1", "c2", "c3"))
    )


def test_results_of_two_turns_go_one_after_the_other() -> None:
    s = story("reply r1", "call c1", "reply r2", "call c2", "end c2", "end c1")
    assert s("done r2") == ["send c1"]
    assert s("sent c1", "reply r3") == []
    assert s("done r3") == ["send c2"]


def test_a_provider_that_is_not_made_to_speak_gets_all_turns_at_once() -> None:
    s = story("reply r1", "call c1", "reply r2", "call c2", "end c2", "end c1", delivery=UNASKED)
    assert s("done r2") == ["send c1", "send c2"]
    assert s.machine.window_open


def test_a_turn_waits_for_slower_siblings_during_a_grace() -> None:
    s = story("reply r1", "call c1", "call c2", "end c2")
    assert s("done r1") == []
    assert s("grace 1") == ["send c2"]
    assert s("end c1") == ["send c1"]


def test_the_last_sibling_ends_the_wait() -> None:
    s = story("reply r1", "call c1", "call c2", "end c2", "done r1")
    assert s("end c1") == ["send c1,c2"]


def test_a_turn_may_go_whose_siblings_are_slow_while_another_waits() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "reply r2", "call c3", "end c3")
    assert s("done r2") == ["send c3"]


def test_no_grace_runs_inside_a_reply() -> None:
    s = story("reply r1", "call c1", "call c2", "end c2")
    assert not s.changes("grace 1")


def test_no_grace_runs_out_twice() -> None:
    s = story("reply r1", "call c1", "call c2", "end c2", "done r1", "grace 1")
    assert not s.changes("grace 1")


def test_no_grace_runs_for_a_silent_hold_mode() -> None:
    assert not story("held c1", "held c2", "end c1").changes("grace 0")


def test_the_grace_of_a_turn_is_forgotten_with_its_last_call() -> None:
    s = story("reply r1", "call c1", "call c2", "end c2", "done r1", "grace 1", "end c1")
    assert s.machine.graced == {1}
    s("sent c1,c2")
    assert s.machine.graced == frozenset()


def test_what_was_asked_for_by_one_turn_is_followed_only_by_results_of_the_same_turn() -> None:
    s = story("reply r1", "call c1", "reply r2", "call c2", "call c3", "end c2", "done r2", "grace 2")
    assert s.machine.asked == 2
    assert s("end c1") == ["hold c1: asked"]
    assert s("end c3") == ["send c3"]


def test_results_of_the_same_turn_do_not_follow_while_the_caller_speaks() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1", "grace 1", "speech")
    assert s("end c2") == ["hold c2: asked"]
    assert s("ask expired") == []
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1", "grace 1", "speech", "silence")
    assert s("end c2") == ["send c2"]


def test_an_eager_result_goes_inside_the_reply() -> None:
    s = story("reply r1", "eager c1", "call c2")
    assert s("end c1") == ["send c1"]
    assert s("speech", "end c2", "eager c3", "end c3") == ["hold c2: reply", "run c3", "send c3"]


def test_an_eager_result_waits_for_a_reply_that_others_asked_for() -> None:
    assert story("reply r1", "done r1", "requested", "eager c1")("end c1") == ["hold c1: asked"]


@pytest.mark.parametrize("kind", ["held", "between"])
def test_a_result_between_replies_does_not_wait_for_an_owed_reply(kind: str) -> None:
    assert story(f"{kind} c1", "speech", "silence")("end c1") == ["send c1"]
    assert story(f"{kind} c1", "speech")("end c1") == ["hold c1: user"]
    assert story(f"{kind} c1", "reply r1")("end c1") == ["hold c1: reply"]
    assert story(f"{kind} c1", "requested")("end c1") == ["hold c1: asked"]


def test_calls_of_a_silent_hold_mode_do_not_wait_for_each_other() -> None:
    s = story("held c1", "held c2")
    assert s("end c2") == ["send c2"]
    assert s("end c1") == ["send c1"]


def test_a_whole_turn_waits_for_its_last_call_and_for_no_grace() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1", delivery=WHOLE)
    assert s.machine.timers() == frozenset()
    assert s("grace 1") == []
    assert s("end c2") == ["send c1,c2"]


def test_a_whole_turn_waits_for_the_gate_of_each_of_its_results() -> None:
    s = story("reply r1", "eager c1", "call c2", "end c1", delivery=WHOLE)
    assert s("end c2") == ["hold c2: reply"]
    assert s("done r1") == ["send c1,c2"]


def test_a_whole_turn_does_not_bind_calls_of_no_turn() -> None:
    assert story("held c1", "held c2", delivery=WHOLE)("end c1") == ["send c1"]


def test_where_nothing_is_held_results_go_as_they_come() -> None:
    s = story("reply r1", "call c1", "call c2", "speech", delivery=AT_ONCE)
    assert s("end c2") == ["send c2"]
    assert s("end c1") == ["send c1"]


def test_where_nothing_is_held_a_whole_turn_still_waits_for_its_siblings() -> None:
    s = story("reply r1", "call c1", "call c2", delivery=Delivery(hold=False, whole_turn=True))
    assert s("end c2")[0].startswith("hold c2")
    assert s("end c1") == ["send c1,c2"]


@pytest.mark.parametrize("delivery", ALL_DELIVERIES, ids=str)
def test_a_single_call_is_answered_after_its_reply_by_every_delivery(delivery: Delivery) -> None:
    s = Story(delivery)
    outputs = s("reply r1", "call c1", "end c1", "done r1", "sent c1")
    assert outputs.count("send c1") == 1
    assert s.machine.owed == ()


# ------------------------------------------------------------------------------------------------ sent and cancelled


def test_what_arrived_is_settled() -> None:
    s = story("call c1", "end c1", "call c2")
    s("sent c1,c2")
    assert [o.key.call_id for o in s.machine.owed] == ["c2"]
    assert s.machine.settled == ("c1",)


def test_only_what_arrived_is_settled() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "end c2", "done r1", "sent c2")
    assert s("lost", "resumed") == ["hold c1: link", "send c1"]


def test_what_has_not_been_released_cannot_have_been_sent() -> None:
    s = story("reply r1", "call c1", "end c1", "sent c1")
    assert s("done r1") == ["send c1"]


def test_a_cancelled_call_is_discarded() -> None:
    s = story("reply r1", "call c1", "careful c2", "call c3")
    assert s("cancel c1,c2,c9") == ["discard c1: cancellation", "discard c2: cancellation"]
    assert s("end c1", "done r1", "heard 1") == []
    assert s("end c3") == ["send c3"]


def test_a_cancelled_call_that_comes_again_in_its_turn_is_a_repeat() -> None:
    assert not story("reply r1", "call c1", "cancel c1").changes("call c1")


def test_a_cancelled_call_is_waited_for_no_longer() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1")
    assert s("cancel c2") == ["discard c2: cancellation", "send c1"]


def test_a_cancelled_call_that_is_on_its_way_is_not_sent_again() -> None:
    s = story("call c1", "end c1")
    assert s("cancel c1") == []
    assert s.owed("c1").lapsed
    assert s("lost") == ["discard c1: cancellation"]


# ------------------------------------------------------------------------------------------------------- parked calls


def test_an_interim_result_waits_for_its_moment_like_any_other() -> None:
    s = story("reply r1", "call c1")
    assert s("park c1") == ["hold c1: reply"]
    assert s("done r1") == ["send c1?"]


def test_the_outcome_of_a_parked_call_is_told_in_an_open_window() -> None:
    s = story("reply r1", "call c1", "park c1", "done r1", "sent c1", "reply r2")
    assert s("concluded c1") == []
    assert s("speech", "silence", "done r2") == ["follow up c1"]
    assert s("reply r3", "done r3") == []


def test_an_outcome_that_comes_before_the_interim_result_has_gone_is_sent_instead() -> None:
    s = story("reply r1", "call c1", "call c2", "park c1", "park c2")
    assert s("concluded c1") == []
    assert s("done r1") == ["send c1,c2?"]
    assert s("reply r2", "done r2") == []


def test_an_outcome_that_comes_while_the_interim_result_is_on_its_way_is_told() -> None:
    s = story("reply r1", "call c1", "park c1", "done r1")
    assert s("concluded c1", "sent c1") == []
    assert s("reply r2", "done r2") == ["follow up c1"]


def test_an_interim_result_that_was_lost_with_the_link_is_not_sent_again_once_there_is_an_outcome() -> None:
    s = story("reply r1", "call c1", "park c1", "done r1", "lost")
    assert s("concluded c1", "resumed") == ["send c1"]


def test_an_interruption_discards_a_parked_call_as_long_as_nobody_has_been_told() -> None:
    assert story("reply r1", "call c1", "park c1")("cut r1") == ["discard c1: interruption"]
    assert story("reply r1", "call c1", "park c1", "done r1", "sent c1", "reply r2")("cut r2") == []


def test_an_outcome_takes_the_place_of_no_result() -> None:
    s = story("reply r1", "call c1", "end c1")
    s("concluded c1")
    assert s("done r1", "reply r2", "done r2") == ["send c1", "follow up c1"]
