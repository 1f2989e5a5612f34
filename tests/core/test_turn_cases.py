"""Failures that voice agents are known for, each with the outcome that is right here."""

from __future__ import annotations

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import CallKey, HoldExpired, ToolResults

from .script import Story, story

# --------------------------------------------------------------------------------------- interruption while a tool runs


def test_a_terminal_call_of_an_interrupted_reply_never_runs() -> None:
    s = Story()
    assert s("reply r1", "careful c1", "speech", "cut r1") == ["hold c1: reply", "discard c1: interruption"]
    assert s("heard 1", "silence", "reply r2", "done r2", "heard 2") == []


def test_a_terminal_call_interrupted_before_the_speech_is_noticed_never_runs() -> None:
    s = Story()
    assert s("reply r1", "careful c1", "cut r1") == ["discard c1: interruption"]
    assert s("heard 1") == []


def test_a_terminal_call_does_not_run_when_the_caller_speaks_while_the_reply_is_still_heard() -> None:
    s = Story()
    s("reply r1", "careful c1", "done r1")
    assert s("speech") == ["hold c1: user"]
    assert s("heard 1") == []
    assert s("silence", "reply r2", "done r2") == ["send c1"]


def test_a_call_cancelled_before_it_was_begun_leaves_nothing_behind() -> None:
    s = Story()
    s("reply r1", "call c1", "cut r1")
    assert s.machine.owed == ()
    assert s("end c1") == []
    assert s.machine.timers() == frozenset()


def test_an_interruption_discards_a_finished_result() -> None:
    s = Story()
    assert s("reply r1", "call c1", "end c1", "speech", "cut r1") == [
        "run c1",
        "hold c1: reply",
        "discard c1: interruption",
    ]
    assert s("silence", "reply r2", "done r2") == []


def test_a_result_of_an_interrupted_reply_that_comes_late_is_not_sent_into_an_open_window() -> None:
    s = Story()
    s("reply r1", "call c1", "cut r1", "reply r2", "done r2")
    assert s.machine.window_open
    assert s("end c1") == []


def test_a_call_milliseconds_after_an_interruption_survives_it() -> None:
    s = Story()
    s("reply r1", "speech", "cut r1")
    assert s("call c2", "end c2") == ["run c2", "hold c2: user"]
    assert s("silence", "cut r1", "reply r2", "done r2") == ["send c2"]


def test_a_call_of_the_next_reply_survives_a_repeated_interruption() -> None:
    s = Story()
    s("reply r1", "call c1", "cut r1", "reply r2", "call c2")
    assert s("cut r1") == []
    assert s("end c2", "done r2") == ["hold c2: reply", "send c2"]


def test_a_cough_does_not_discard() -> None:
    s = Story()
    assert s("reply r1", "call c1", "speech") == ["run c1"]
    assert s("end c1", "silence") == ["hold c1: reply"]
    assert s("done r1") == ["send c1"]


def test_words_that_nobody_answers_do_not_hold_for_ever() -> None:
    s = Story()
    s("reply r1", "call c1", "speech", "words i1", "end c1", "silence", "done r1")
    assert HoldExpired() in s.machine.timers()
    assert s("hold expired") == ["send c1"]


def test_trailing_words_do_not_cancel_the_look_up() -> None:
    s = Story()
    s("words i1", "final i1", "reply r1", "call c1")
    assert s("words i1", "final i1", "end c1") == ["hold c1: reply"]
    assert s("done r1") == ["send c1"]


def test_a_stale_interruption_leaves_the_newer_reply_alone() -> None:
    s = Story()
    s("reply r1", "done r1", "reply r2", "call c1", "end c1")
    assert s("cut r1") == []
    assert s("done r2") == ["send c1"]


# ------------------------------------------------------------------------------------------- too early, too late, never


def test_a_fast_result_is_held_until_the_reply_is_done() -> None:
    s = Story()
    assert s("reply r1", "call c1", "end c1") == ["run c1", "hold c1: reply"]
    assert s("done r1") == ["send c1"]


def test_a_fast_result_announced_before_the_transition_phrase_is_held_until_that_is_over() -> None:
    s = Story()
    assert s("call c1", "reply r1", "end c1") == ["run c1", "hold c1: reply"]
    assert s("done r1") == ["send c1"]


def test_a_slow_result_is_sent_at_once_after_the_reply() -> None:
    assert Story()("call c1", "reply r1", "done r1", "end c1") == ["run c1", "send c1"]


def test_a_slow_result_is_held_while_the_caller_speaks() -> None:
    s = Story()
    s("call c1", "reply r1", "done r1", "speech")
    assert s("end c1") == ["hold c1: user"]
    assert s("silence", "reply r2") == []
    assert s("done r2") == ["send c1"]


def test_new_words_without_a_speech_start_hold_a_slow_result() -> None:
    s = Story()
    s("words i1", "final i1", "call c1", "reply r1", "done r1", "words i2")
    assert s("end c1") == ["hold c1: user"]
    assert s("final i2", "reply r2", "done r2") == ["send c1"]


def test_two_results_are_one_release_in_call_order() -> None:
    s = Story()
    s("reply r1", "call c1", "call c2", "end c2", "end c1")
    assert s("done r1") == ["send c1,c2"]
    assert s("sent c1,c2", "reply r2", "done r2") == []


def test_a_failed_call_keeps_its_place_beside_its_sibling() -> None:
    s = Story()
    s("reply r1", "careful c1", "call c2", "end c2", "speech", "silence")
    (results,) = s.outputs("done r1", "reply r2", "done r2")
    assert isinstance(results, ToolResults)
    assert [(r.call_id, r.is_error) for r in results.results] == [("c1", True), ("c2", False)]


def test_fast_siblings_wait_for_a_slow_one_for_a_grace_and_it_follows_without_a_new_reply() -> None:
    s = Story()
    s("reply r1", "call c1", "call c2", "call c3", "end c2", "end c3")
    assert s("done r1") == []
    assert s("grace 1") == ["send c2,c3"]
    assert s("end c1") == ["send c1"]


def test_a_slow_sibling_follows_after_the_answer_if_it_comes_inside_it() -> None:
    s = Story()
    s("reply r1", "call c1", "call c2", "end c2", "done r1", "grace 1", "sent c2", "reply r2")
    assert s("end c1") == ["hold c1: reply"]
    assert s("done r2") == ["send c1"]


def test_a_hold_mode_call_is_answered_with_no_reply_in_flight() -> None:
    assert Story()("held c1", "end c1") == ["run c1", "send c1"]


def test_a_hold_mode_call_is_answered_though_the_caller_has_spoken_meanwhile() -> None:
    s = Story()
    assert s("speech", "silence", "held c1", "end c1") == ["run c1", "send c1"]


def test_a_hold_mode_call_survives_the_interruption_of_a_reply() -> None:
    s = Story()
    s("reply r1", "held c1")
    assert s("cut r1") == []
    assert s("end c1") == ["send c1"]


def test_where_no_reply_ever_ends_the_hold_limit_sends() -> None:
    s = Story()
    s("reply r1", "call c1", "end c1")
    assert s.machine.timers() == {HoldExpired()}
    assert s("hold expired") == ["send c1"]
    assert s("done r1") == []


def test_where_no_reply_ever_starts_the_result_goes_at_once() -> None:
    assert Story()("call c1", "end c1") == ["run c1", "send c1"]


def test_a_terminal_call_whose_reply_never_ends_is_answered_and_not_run() -> None:
    s = Story()
    s("reply r1", "careful c1")
    assert s("hold expired") == ["send c1"]
    assert s("done r1", "heard 1") == []


def test_a_result_is_never_sent_twice() -> None:
    s = Story()
    s("reply r1", "call c1", "end c1", "done r1")
    assert s("done r1", "end c1", "sent c1", "reply r2", "done r2", "end c1", "hold expired", "ask expired") == []


def test_two_turns_that_are_ready_together_do_not_collide() -> None:
    s = Story()
    s("reply r1", "call c1", "done r1", "reply r2", "call c2", "end c2", "end c1")
    assert s("done r2") == ["send c1"]
    assert s("sent c1") == []
    assert s("reply r3", "done r3") == ["send c2"]


def test_the_bridge_asks_for_no_reply_of_its_own_accord() -> None:
    s = Story()
    came = s("reply r1", "call c1", "end c1", "done r1", "sent c1", "reply r2", "done r2", "speech", "silence")
    assert not [line for line in came if line.startswith("ask")]


def test_a_result_that_waits_inside_a_turn_is_not_held_where_the_provider_waits_for_it() -> None:
    assert Story(Delivery(hold=False))("reply r1", "call c1", "end c1") == ["run c1", "send c1"]


# ------------------------------------------------------------------------------------------------ duplicates, identity


def test_the_same_call_in_two_frames_is_run_once_and_answered_once() -> None:
    s = Story()
    assert s("reply r1", "call c1", "call c1", "end c1", "call c1", "done r1", "call c1") == [
        "run c1",
        "hold c1: reply",
        "send c1",
    ]


def test_a_duplicate_id_after_completion_is_not_run_again() -> None:
    s = Story()
    s("reply r1", "call c1", "end c1", "done r1", "sent c1")
    assert s("call c1") == []


def test_ids_that_restart_every_turn_are_new_calls() -> None:
    s = Story()
    for turn in (1, 2, 3):
        reply = f"r{turn}"
        assert s(f"reply {reply}", "call t:0", "end t:0", f"done {reply}") == ["run t:0", "hold t:0: reply", "send t:0"]
        assert s("sent t:0") == []


def test_a_result_of_an_earlier_call_with_the_same_id_is_not_taken_for_the_new_one() -> None:
    s = Story()
    s("reply r1", "call t:0", "cut r1", "reply r2", "call t:0")
    assert s("end t:0@1") == []
    assert s.owed("t:0").key == CallKey(2, "t:0")
    assert s("end t:0@2", "done r2") == ["hold t:0: reply", "send t:0"]


# -------------------------------------------------------------------------------------------- the link comes and goes


def test_a_result_in_the_gap_is_sent_once_after_the_resume() -> None:
    s = Story()
    s("reply r1", "call c1", "lost")
    assert s("end c1") == ["hold c1: link"]
    assert s("resumed") == ["send c1"]
    assert s("sent c1", "reply r2", "done r2", "lost", "resumed") == []


def test_a_result_in_the_gap_waits_for_the_window_if_the_caller_speaks_first() -> None:
    s = Story()
    s("reply r1", "call c1", "lost", "resumed", "speech")
    assert s("end c1") == ["hold c1: user"]
    assert s("silence", "reply r2", "done r2") == ["send c1"]


def test_a_call_that_is_repeated_after_a_resume_is_not_run_again() -> None:
    s = Story()
    s("reply r1", "call c1", "end c1", "done r1", "sent c1", "reply r2", "lost", "resumed")
    assert s("call c1", "reply r3", "call c1") == []


def test_running_calls_survive_two_losses() -> None:
    s = Story()
    s("reply r1", "call c1", "lost", "resumed", "lost", "end c1")
    assert s("resumed") == ["send c1"]


def test_the_calls_of_a_session_that_is_lost_are_orphaned_whatever_has_become_of_them() -> None:
    s = story("reply r1", "call c1", "call c2", "careful c3", "end c1", "done r1", "grace 1", "lost")
    assert s("forgotten") == ["discard c1: orphaned", "discard c2: orphaned", "discard c3: orphaned"]
    assert s("end c2", "resumed") == []
    assert s.machine.window_open


def test_a_session_is_lost_only_while_its_link_is_down() -> None:
    s = story("reply r1", "call c1")
    assert not s.changes("forgotten")
    assert s("end c1", "done r1") == ["hold c1: reply", "send c1"]


@pytest.mark.parametrize("after", [(), ("reply r2",)], ids=["its turn", "its past"])
def test_ids_of_a_session_that_is_lost_are_new_in_the_fresh_one(after: tuple[str, ...]) -> None:
    s = story("reply r1", "call c1", "end c1", "done r1", "sent c1", *after, "lost", "forgotten", "resumed")
    assert s("call c1") == ["run c1"]


def test_results_of_a_fresh_session_wait_for_their_siblings_as_ever() -> None:
    s = story("call c1", "grace 1", "lost", "forgotten", "resumed", "call c2", "call c3")
    assert s("end c2") == ["hold c2: siblings"]


def test_what_was_to_be_said_is_said_in_the_fresh_session() -> None:
    s = story("reply r1", "say hello", "lost", "forgotten")
    assert s("resumed") == ["ask: hello"]


def test_a_drop_ends_the_open_reply() -> None:
    s = Story()
    s("reply r1", "lost", "resumed")
    assert s.machine.window_open
    assert s("done r1") == []
