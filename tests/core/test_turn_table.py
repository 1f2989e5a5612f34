"""The table of the turn machine, row by row: replies and the caller."""

from __future__ import annotations

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import (
    GraceExpired,
    ToolResults,
)
from bridge.core.turn import Reply, Stage, User

from .script import Story, story

QUIET = Delivery(void=False)

# ---------------------------------------------------------------------------------------------------- a reply starts


def test_nothing_is_in_the_way_at_first() -> None:
    assert Story().machine.window_open


def test_a_reply_that_starts_closes_the_window() -> None:
    s = story("reply r1")
    assert s.machine.reply is Reply.SPEAKING
    assert s.machine.reply_id == "r1"
    assert not s.machine.window_open


def test_a_start_that_is_said_twice_is_one_reply() -> None:
    assert not story("reply r1").changes("reply r1")


def test_a_start_without_an_id_is_a_reply_of_its_own() -> None:
    assert story("reply", "reply").machine.turn == 2


def test_an_id_that_was_used_before_is_a_reply_of_its_own() -> None:
    assert story("reply r1", "done r1", "reply r1").machine.turn == 2


def test_a_call_without_a_reply_belongs_to_the_next_one() -> None:
    s = story("call c1", "reply r1")
    assert (s.owed("c1").turn, s.owed("c1").reply_id) == (1, "r1")
    assert s("cut r1") == ["discard c1: interruption"]


def test_what_went_out_before_a_reply_does_not_belong_to_it() -> None:
    s = story("reply r1", "done r1", "call c1", "end c1", "reply r2")
    assert s.owed("c1").turn == 0
    assert s("cut r2") == []
    assert not s.owed("c1").lapsed


def test_a_call_of_an_earlier_reply_stays_with_it() -> None:
    s = story("reply r1", "call c1", "done r1", "reply r2")
    assert (s.owed("c1").turn, s.owed("c1").reply_id) == (1, "r1")


def test_a_reply_that_starts_within_another_leaves_the_older_one_its_grace() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "reply r2")
    assert GraceExpired(1) in s.machine.timers()
    assert s("grace 1", "done r2") == ["send c1"]


def test_a_grace_that_ran_out_before_the_reply_began_is_given_anew() -> None:
    s = story("call c1", "call c2", "end c1", "grace 1", "sent c1", "reply r1", "call c3")
    assert s.machine.graced == frozenset()
    assert s("end c3", "done r1") == ["hold c3: reply"]
    assert s("grace 1") == ["send c3"]


def test_the_reply_that_was_asked_for_is_the_one_that_starts() -> None:
    s = story("say hello", "reply r1")
    assert s.machine.asked is None
    assert s.machine.sayings == ()
    assert s("done r1") == []


def test_an_eager_result_that_waited_for_the_ask_goes_when_the_reply_starts() -> None:
    s = story("requested", "eager c1", "end c1")
    assert s("reply r1") == ["send c1"]


# ------------------------------------------------------------------------------------------------------ a reply ends


def test_the_end_of_a_reply_opens_the_window_and_sends() -> None:
    s = story("reply r1", "call c1", "end c1")
    assert s("done r1") == ["send c1"]
    assert s.machine.reply_id == ""


def test_an_end_that_is_said_twice_changes_nothing() -> None:
    assert not story("reply r1", "done r1").changes("done r1")


def test_an_end_without_a_reply_changes_nothing() -> None:
    assert not Story().changes("done")


def test_the_end_of_another_reply_changes_nothing() -> None:
    s = story("reply r1", "call c1", "end c1", "reply r2")
    assert not s.changes("done r1")
    assert not s.changes("done r9")


@pytest.mark.parametrize("ids", ["reply r1|done", "reply|done r1", "reply|done", "reply r1|done r1"])
def test_an_id_that_is_missing_matches_any(ids: str) -> None:
    start, end = ids.split("|")
    assert story(start, end).machine.window_open


def test_a_caller_who_still_speaks_keeps_the_window_closed() -> None:
    s = story("reply r1", "call c1", "end c1", "speech")
    assert s("done r1") == []
    assert s.machine.user is User.SPEAKING


def test_a_caller_who_has_spoken_since_before_the_reply_still_speaks_after_it() -> None:
    assert story("speech", "reply r1", "done r1").machine.user is User.SPEAKING


def test_a_reply_answers_what_was_said_before_it() -> None:
    assert story("speech", "silence", "reply r1", "done r1").machine.user is User.QUIET


def test_a_reply_answers_what_was_begun_before_it() -> None:
    assert story("speech", "reply r1", "silence", "done r1").machine.user is User.QUIET


def test_a_reply_does_not_answer_what_was_said_since_it_began() -> None:
    s = story("reply r1", "call c1", "end c1", "speech", "words i1", "silence")
    assert s("done r1") == []
    assert s.machine.user is User.HEARD
    assert s("reply r2", "done r2") == ["send c1"]


def test_a_noise_is_owed_no_reply() -> None:
    s = story("reply r1", "call c1", "end c1", "speech", "silence")
    assert s("done r1") == ["send c1"]


@pytest.mark.parametrize("words", ["words i1|silence", "final", "silence|final i1", "words i1|silence|speech|silence"])
def test_words_since_the_reply_began_are_owed_one_of_their_own(words: str) -> None:
    s = story("reply r1", "call c1", "end c1", "speech", *words.split("|"))
    assert s("done r1") == []
    assert s.machine.user is User.HEARD


def test_the_next_reply_answers_it() -> None:
    s = story("reply r1", "speech", "words i1", "silence", "reply r2", "done r2")
    assert s.machine.user is User.QUIET


def test_a_reply_asked_for_inside_a_reply_is_waited_for_after_it() -> None:
    s = story("reply r1", "eager c1", "call c2", "end c1")
    assert s("end c2", "done r1") == ["hold c2: reply", "send c2"]
    assert s.machine.reply is Reply.ASKED
    assert not s.machine.window_open


def test_a_reply_asked_for_inside_a_reply_keeps_other_turns_waiting() -> None:
    s = story("reply r1", "call c1", "reply r2", "eager c2", "end c2", "end c1")
    assert s("done r2") == []
    assert s("ask expired") == ["send c1"]


# ------------------------------------------------------------------------------------------------- it is interrupted


def test_an_interruption_discards_the_calls_of_its_reply_finished_or_not() -> None:
    s = story("reply r1", "call c1", "careful c2", "call c3", "end c1")
    assert s("cut r1") == ["discard c1: interruption", "discard c2: interruption", "discard c3: interruption"]
    assert s.machine.owed == ()


def test_an_interruption_leaves_the_calls_of_other_replies() -> None:
    s = story("reply r1", "call c1", "done r1", "reply r2", "call c2", "held c3")
    assert s("cut r2") == ["discard c2: interruption"]
    assert {o.key.call_id for o in s.machine.owed} == {"c1", "c3"}


def test_after_an_interruption_the_caller_is_owed_a_reply() -> None:
    s = story("reply r1", "call c1", "done r1", "reply r2", "end c1")
    assert s("cut r2") == []
    assert (s.machine.user, s.machine.reply) == (User.HEARD, Reply.NONE)
    assert s("reply r3", "done r3") == ["send c1"]


def test_after_an_interruption_where_nobody_speaks_something_is_said_at_once() -> None:
    s = story("reply r1", "call c1", "say hello", delivery=Delivery(hold=False, asks=False, speech=False))
    assert s("cut r1") == ["discard c1: interruption", "ask: hello"]
    assert s.machine.user is User.QUIET


WRITTEN = Delivery(hold=False, asks=False, speech=False)


def test_what_is_to_be_said_to_a_paused_agent_waits_until_it_goes_on() -> None:
    s = story("agent paused", "concluded c9", "say hello", delivery=WRITTEN)
    assert not s.machine.window_open
    assert s.machine.timers() == frozenset()
    assert s("agent resumed") == ["follow up c9", "ask: hello"]


def test_an_agent_that_is_paused_inside_its_reply_is_not_stuck_and_takes_results() -> None:
    s = story("reply r1", "call c1", "say hello", "agent paused", delivery=WRITTEN)
    assert s("end c1") == ["send c1"]
    s("sent c1")
    assert s.machine.timers() == frozenset()
    assert s("hold expired") == []
    assert s("agent resumed") == ["ask: hello"]


def test_a_pause_and_its_end_are_heard_once() -> None:
    s = story(delivery=WRITTEN)
    assert [s.changes(line) for line in ("agent resumed", "agent paused", "agent paused")] == [False, True, False]


def test_a_paused_agent_hears_no_filler() -> None:
    assert story("call c1", "agent paused", delivery=WRITTEN)("filler c1") == []


def test_an_interruption_while_the_caller_speaks_leaves_him_speaking() -> None:
    assert story("reply r1", "speech", "cut r1").machine.user is User.SPEAKING


def test_an_interruption_forgets_what_was_asked_for_inside_the_reply() -> None:
    s = story("reply r1", "eager c1", "end c1", "cut r1")
    assert s.machine.asked is None
    assert s.machine.reply is Reply.NONE


def test_speech_inside_an_interrupted_reply_is_answered_by_the_next_one() -> None:
    s = story("reply r1", "speech", "cut r1", "silence", "reply r2", "done r2")
    assert s.machine.window_open


def test_an_interruption_that_comes_late_takes_the_calls_of_its_own_reply() -> None:
    s = story("reply r1", "call c1", "done r1", "reply r2", "call c2")
    assert s("cut r1") == ["discard c1: interruption"]
    assert s.machine.reply is Reply.SPEAKING
    assert not s.changes("cut r1")


def test_an_interruption_that_comes_late_and_without_an_id_changes_nothing() -> None:
    s = story("reply", "call c1", "done")
    assert not s.changes("cut")


def test_an_interruption_that_comes_late_lets_go_what_waited_behind_its_results() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1", "say hello")
    assert s("cut r1") == ["discard c1: interruption", "discard c2: interruption", "ask: hello"]


def test_what_is_on_its_way_cannot_be_discarded_but_is_never_sent_again() -> None:
    s = story("reply r1", "eager c1", "end c1")
    assert s("cut r1") == []
    assert s.owed("c1").lapsed
    assert s("lost") == ["discard c1: interruption"]
    assert s("resumed") == []


def test_a_result_for_the_record_goes_at_once_and_is_not_spoken_about() -> None:
    s = story("reply r1", "record c1")
    assert s("end c1") == ["send quietly c1"]
    assert s("sent c1", "done r1") == []


def test_nobody_waits_for_what_is_for_the_record() -> None:
    s = story("reply r1", "record c1", "call c2", "end c2")
    assert s("done r1") == ["send c2"]
    assert s("end c1") == ["send quietly c1"]


def test_where_nothing_is_void_an_interruption_makes_results_quiet() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", delivery=QUIET)
    assert s("cut r1") == ["send quietly c1"]
    assert s("speech", "end c2") == ["send quietly c2"]


def test_where_nothing_is_void_what_had_not_begun_is_answered_quietly() -> None:
    s = story("reply r1", "careful c1", delivery=QUIET)
    (results,) = s.outputs("cut r1")
    assert isinstance(results, ToolResults)
    assert results.quiet
    assert results.results[0].is_error
    assert "interrupted" in results.results[0].output


def test_where_nothing_is_void_what_needs_no_answer_is_discarded() -> None:
    s = story("reply r1", "silent c1", delivery=QUIET)
    assert s("cut r1") == ["discard c1: interruption"]


def test_where_nothing_is_void_what_is_on_its_way_is_repeated_quietly() -> None:
    s = story("reply r1", "eager c1", "end c1", "cut r1", "lost", delivery=QUIET)
    assert not s.owed("c1").lapsed
    assert s("resumed") == ["send quietly c1"]


def test_quiet_results_ask_for_nothing() -> None:
    s = story("reply r1", "call c1", "end c1", "cut r1", delivery=QUIET)
    assert s.machine.reply is Reply.NONE


# ------------------------------------------------------------------------------------------- the reply has been heard


def test_a_careful_call_runs_once_its_reply_has_ended_and_been_heard() -> None:
    s = Story()
    assert s("reply r1", "careful c1") == []
    assert not s.changes("heard 1")
    assert s("done r1") == []
    assert s.owed("c1").stage is Stage.STANDS
    assert s("heard 1") == ["run c1"]
    assert not s.changes("heard 1")
    assert s("end c1") == ["send c1"]


def test_only_the_calls_of_the_reply_that_was_heard_run() -> None:
    s = story("reply r1", "careful c1", "done r1", "reply r2", "careful c2", "done r2")
    assert s("heard 2") == ["run c2"]
    assert s("heard 1") == ["run c1"]


def test_the_end_of_a_reply_makes_only_its_own_calls_stand() -> None:
    s = story("reply r1", "careful c1", "reply r2", "careful c2", "done r2")
    assert (s.owed("c1").stage, s.owed("c2").stage) == (Stage.WAITING, Stage.STANDS)


def test_nothing_starts_while_we_do_not_read() -> None:
    s = story("reply r1", "careful c1", "done r1", "paused")
    assert not s.changes("heard 1")
    assert s("unpaused", "heard 1") == ["run c1"]


def test_an_interruption_that_comes_late_stops_what_stands() -> None:
    s = story("reply r1", "careful c1", "done r1")
    assert s("cut r1") == ["discard c1: interruption"]
    assert s("heard 1") == []


# ------------------------------------------------------------------------------------------------------- the caller


def test_speech_closes_the_window_and_discards_nothing() -> None:
    s = story("call c1", "speech")
    assert not s.machine.window_open
    assert s("end c1") == ["hold c1: user"]


def test_speech_that_is_said_twice_changes_nothing() -> None:
    s = story("speech")
    assert not s.changes("speech")
    assert s.machine.user is User.SPEAKING


def test_silence_without_speech_changes_nothing() -> None:
    assert not Story().changes("silence")
    assert not story("speech", "silence").changes("silence")


def test_after_speech_a_reply_is_owed() -> None:
    s = story("call c1", "speech", "silence")
    assert s.machine.user is User.HEARD
    assert s("end c1") == ["hold c1: user"]


@pytest.mark.parametrize("lines", ["reply r1|careful c1", "reply r1|careful c1|done r1"])
def test_speech_refuses_what_had_not_begun(lines: str) -> None:
    s = story(*lines.split("|"))
    assert s("speech")[0].startswith("hold c1")
    result = s.owed("c1").result
    assert result is not None
    assert (result.call_id, result.name, result.is_error) == ("c1", "tool", True)
    assert "spoke" in result.output
    assert s("heard 1") == []


def test_speech_discards_what_had_not_begun_and_needs_no_answer() -> None:
    s = story("reply r1", "careful-silent c1")
    assert s("speech") == ["discard c1: interruption"]
    assert not s.changes("careful-silent c1")


def test_speech_refuses_an_eager_careful_call_at_once() -> None:
    assert story("reply r1", "careful-eager c1")("speech") == ["send c1"]


def test_speech_leaves_what_is_running() -> None:
    s = story("reply r1", "call c1", "speech")
    assert s.owed("c1").stage is Stage.RUNNING


@pytest.mark.parametrize(
    "lines",
    [
        "held c1|speech|end c1|silence",
        "held c1|words i1|end c1|final i1",
        "reply r1|call c1|call c2|end c2|done r1|grace 1|speech|end c1|silence",
    ],
)
def test_what_waited_only_for_silence_goes_when_the_caller_stops(lines: str) -> None:
    *before, last = lines.split("|")
    assert story(*before)(last) == ["send c1"]


WORDS = [
    # what happened before | what is said | the user afterwards | the item afterwards
    ("", "words i1", User.SPEAKING, "i1"),
    ("", "words", User.QUIET, ""),
    ("", "final i1", User.QUIET, "i1"),
    ("", "final", User.QUIET, ""),
    ("", "agent-words i1", User.QUIET, ""),
    ("speech", "words i1", User.SPEAKING, "i1"),
    ("speech", "words", User.SPEAKING, ""),
    ("speech", "final i1", User.HEARD, "i1"),
    ("speech", "final", User.HEARD, "-"),
    ("speech|words i1", "words i1", User.SPEAKING, "i1"),
    ("speech|words i1", "final i1", User.HEARD, "i1"),
    ("speech|words i1", "final", User.HEARD, "i1"),
    ("speech|words i1", "words i2", User.SPEAKING, "i2"),
    ("speech|words i2", "final i1", User.SPEAKING, "i2"),
    ("speech|words i1|silence", "words i1", User.HEARD, "i1"),
    ("speech|words i1|silence", "final i1", User.HEARD, "i1"),
    ("speech|words i1|silence", "words i2", User.SPEAKING, "i2"),
    ("speech|silence", "words i1", User.HEARD, "i1"),
    ("speech|silence", "final i1", User.HEARD, "i1"),
    ("words i1|final i1|reply r1|done r1", "final i1", User.QUIET, "i1"),
    ("words i1|final i1|reply r1|done r1", "words i1", User.QUIET, "i1"),
    ("words i1|final i1|reply r1|done r1", "final", User.QUIET, "i1"),
    ("words i1|final i1|reply r1|done r1", "final i2", User.HEARD, "i2"),
    ("words i1|final i1|reply r1|done r1", "words i2", User.SPEAKING, "i2"),
    ("words i1|final i1|reply r1|done r1|speech", "words i2", User.SPEAKING, "i2"),
    ("words i1|final i1|lost|resumed", "words i1", User.SPEAKING, "i1"),
]


@pytest.mark.parametrize(("before", "line", "user", "item"), WORDS)
def test_words(before: str, line: str, user: User, item: str) -> None:
    s = story(*filter(None, before.split("|")))
    s(line)
    assert (s.machine.user.name, s.machine.item) == (user.name, item)


def test_new_words_without_a_speech_start_close_the_window() -> None:
    assert story("call c1", "words i1")("end c1") == ["hold c1: user"]


def test_new_words_inside_a_reply_are_owed_a_reply_of_their_own() -> None:
    s = story("reply r1", "words i1", "final i1", "done r1")
    assert s.machine.user is User.HEARD


def test_final_words_that_come_alone_are_speech_and_refuse_what_had_not_begun() -> None:
    s = story("words i1", "final i1", "reply r1", "careful c1", "done r1")
    assert s("final i2") == ["hold c1: user"]
    assert s.machine.user is User.HEARD


def test_words_of_a_second_utterance_inside_a_reply_keep_it_owed() -> None:
    s = story("reply r1", "speech", "words i1", "words i2", "silence", "done r1")
    assert s.machine.user is User.HEARD


def test_words_that_go_on_over_the_start_of_a_reply_are_answered_by_it() -> None:
    s = story("speech", "words i1", "reply r1", "words i2", "final i2", "done r1")
    assert s.machine.user is User.QUIET
