"""The table of the turn machine, row by row: asking to speak, time, and the link."""

from __future__ import annotations

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import (
    AskExpired,
    GraceExpired,
    HoldExpired,
    ReplyHeard,
    SessionOpened,
    SetupLeftAlone,
    Timer,
    ToolResults,
)
from bridge.core.turn import Link, Reply, User

from .script import Story, story

AT_ONCE = Delivery(hold=False)
UNASKED = Delivery(asks=False)
QUIET = Delivery(void=False)

# ---------------------------------------------------------------------------------------------------- asking to speak


def test_what_the_application_asks_for_closes_the_window() -> None:
    s = story("requested")
    assert s.machine.reply is Reply.ASKED
    assert not s.machine.window_open
    assert not s.changes("requested")
    assert s("reply r1", "done r1") == []
    assert s.machine.window_open


def test_what_the_application_asks_for_inside_a_reply_changes_nothing() -> None:
    assert not story("reply r1").changes("requested")


def test_something_to_say_is_asked_for_at_once_if_nobody_speaks() -> None:
    s = Story()
    assert s("say hello") == ["ask: hello"]
    assert s.machine.reply is Reply.ASKED


@pytest.mark.parametrize("busy", ["reply r1", "speech", "requested", "lost", "paused"])
def test_something_to_say_waits_while_somebody_speaks(busy: str) -> None:
    s = story(busy)
    assert s("say hello") == []
    assert [saying.tries for saying in s.machine.sayings] == [0]


def test_something_to_say_waits_behind_results() -> None:
    s = story("reply r1", "call c1", "say hello", "end c1")
    assert s("done r1") == ["send c1"]
    assert s("reply r2", "done r2") == ["ask: hello"]


def test_something_to_say_waits_while_a_result_waits_for_its_siblings() -> None:
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1")
    assert s("say hello") == []
    assert s("end c2", "reply r2", "done r2") == ["send c1,c2", "ask: hello"]


def test_several_things_are_said_one_after_the_other() -> None:
    s = story("reply r1", "say one", "concluded c1", "say two")
    assert s("done r1") == ["ask: one"]
    assert s("reply r2", "done r2") == ["follow up c1"]
    assert s("reply r3", "done r3") == ["ask: two"]
    assert s("reply r4", "done r4") == []


def test_what_nobody_begins_to_say_is_asked_for_once_more_and_then_given_up() -> None:
    s = story("reply r1", "say one", "say two", "done r1")
    assert s("ask expired") == ["ask: one"]
    assert s("ask expired") == ["ask: two"]
    assert len(s.machine.sayings) == 1
    assert s("reply r2", "done r2") == []


def test_a_follow_up_is_told_again_if_no_reply_starts() -> None:
    s = Story()
    assert s("concluded c1", "ask expired") == ["follow up c1", "follow up c1"]
    assert s("reply r1") == []
    assert s.machine.sayings == ()


def test_a_follow_up_that_makes_nobody_speak_is_told_once() -> None:
    s = Story(UNASKED)
    assert s("concluded c1") == ["follow up c1"]
    assert s.machine.sayings == ()
    assert s.machine.window_open


def test_a_reply_asked_for_in_words_is_waited_for_by_every_provider() -> None:
    s = Story(UNASKED)
    assert s("say hello") == ["ask: hello"]
    assert s.machine.reply is Reply.ASKED


@pytest.mark.parametrize(
    ("delivery", "lines"),
    [
        (UNASKED, "reply r1|concluded c1|concluded c2|done r1"),
        (UNASKED, "call c1|reply r1|say hello|end c1|done r1|sent c1"),
        (QUIET, "reply r1|call c1|cut r1|lost|say hello|end c1|resumed|sent c1"),
    ],
)
def test_what_is_left_to_say_is_said_or_waited_for(delivery: Delivery, lines: str) -> None:
    m = story(*lines.split("|"), delivery=delivery).machine
    assert not m.sayings or m.timers()


def test_an_ask_that_runs_out_lets_others_go() -> None:
    s = story("call c1", "requested", "end c1")
    assert s("ask expired") == ["send c1"]


@pytest.mark.parametrize("lines", ["reply r1", "reply r1|done r1"])
def test_an_ask_that_was_answered_cannot_run_out(lines: str) -> None:
    assert not story(*lines.split("|")).changes("ask expired")


def test_a_filler_is_said_while_a_tool_runs() -> None:
    s = story("reply r1", "call c1", "done r1")
    assert s("filler c1") == ["ask: one moment"]
    assert s.machine.reply is Reply.ASKED
    assert s("end c1") == ["hold c1: asked"]
    assert s("reply r2", "done r2") == ["send c1"]


@pytest.mark.parametrize(
    "lines",
    [
        "call c1|end c1",
        "reply r1|careful c1|done r1",
        "call c1|reply r1",
        "call c1|requested",
        "call c1|speech",
        "call c1|speech|silence",
        "between c1|speech",
        "call c1|paused",
        "call c1|end c1|sent c1",
    ],
)
def test_no_filler_where_it_would_talk_over_somebody_or_has_come_too_late(lines: str) -> None:
    assert not story(*lines.split("|")).changes("filler c1")


def test_a_filler_of_a_silent_hold_mode_does_not_wait_for_an_owed_reply() -> None:
    assert story("held c1", "speech", "silence")("filler c1") == ["ask: one moment"]


# ------------------------------------------------------------------------------------------------------------- time


def test_a_provider_that_is_stuck_gets_the_result_all_the_same() -> None:
    assert story("reply r1", "call c1", "end c1")("hold expired") == ["send c1"]
    assert story("call c1", "speech", "end c1")("hold expired") == ["send c1"]


def test_a_provider_that_is_stuck_ends_every_grace() -> None:
    s = story("call c1", "call c2", "end c1", "speech")
    assert s("hold expired") == ["send c1"]
    s = story("reply r1", "call c1", "call c2", "end c1", "done r1", "speech")
    assert s("hold expired") == ["send c1"]
    assert s.machine.graced == {1}


def test_what_never_began_because_no_reply_ended_is_answered() -> None:
    s = story("reply r1", "careful c1")
    (results,) = s.outputs("hold expired")
    assert isinstance(results, ToolResults)
    assert results.results[0].is_error
    assert "did not come to an end" in results.results[0].output


def test_what_stands_still_runs_when_its_reply_has_been_heard() -> None:
    s = story("reply r1", "careful c1", "done r1")
    assert s("hold expired", "heard 1") == ["run c1"]


def test_speech_before_a_stuck_reply_was_given_up_is_owed_nothing_more() -> None:
    s = story("reply r1", "speech", "silence", "hold expired", "reply r2", "done r2")
    assert s.machine.window_open


def test_a_hold_that_runs_out_takes_back_what_was_asked_for() -> None:
    s = story("say hello", "speech")
    assert s("hold expired") == ["ask: hello"]
    assert s("hold expired") == []
    assert s.machine.sayings == ()


@pytest.mark.parametrize("link", ["lost", "paused"])
def test_no_hold_runs_out_while_the_provider_is_not_heard(link: str) -> None:
    assert not story("reply r1", "call c1", "end c1", link).changes("hold expired")


TIMERS: list[tuple[str, set[Timer]]] = [
    ("reply r1", set()),
    ("speech", set()),
    ("reply r1|call c1", set()),
    ("reply r1|call c1|end c1", {HoldExpired()}),
    ("reply r1|call c1|done r1", set()),
    ("call c1|end c1|speech", {AskExpired()}),
    ("call c1|speech|end c1", {HoldExpired()}),
    ("call c1|speech|silence|end c1", {HoldExpired()}),
    ("call c1|requested|end c1", {AskExpired()}),
    ("requested", {AskExpired()}),
    ("say hello", {AskExpired()}),
    ("reply r1|say hello", {HoldExpired()}),
    ("speech|say hello", {HoldExpired()}),
    ("reply r1|careful c1", {HoldExpired()}),
    ("careful c1", {HoldExpired()}),
    ("reply r1|careful c1|done r1", {ReplyHeard(1)}),
    ("reply r1|careful c1|call c2|end c2|done r1", {ReplyHeard(1), GraceExpired(1)}),
    ("reply r1|call c1|call c2|end c1|done r1", {GraceExpired(1)}),
    ("reply r1|call c1|call c2|end c1|done r1|grace 1", {AskExpired()}),
    ("reply r1|call c1|call c2|done r1", {GraceExpired(1)}),
    ("reply r1|call c1|call c2|done r1|paused", set()),
    ("reply r1|call c1|end c1|lost", set()),
    ("requested|lost", set()),
    ("held c1|held c2", set()),
]


@pytest.mark.parametrize(("lines", "timers"), TIMERS)
def test_timers(lines: str, timers: set[Timer]) -> None:
    assert story(*lines.split("|")).machine.timers() == timers


def test_where_nothing_is_held_nobody_waits_for_siblings() -> None:
    s = story("reply r1", "call c1", "call c2", "done r1", delivery=AT_ONCE)
    assert s.machine.timers() == frozenset()


# --------------------------------------------------------------------------------------------------------- the link


def test_a_lost_link_holds_everything() -> None:
    s = story("reply r1", "call c1", "lost")
    m = s.machine
    assert (m.link, m.reply, m.user, m.reply_id) == (Link.DOWN, Reply.NONE, User.HEARD, "")
    assert s("end c1") == ["hold c1: link"]
    assert s("resumed") == ["send c1"]
    assert s("sent c1", "reply r2", "done r2") == []


def test_a_link_that_is_lost_twice_is_lost_once() -> None:
    assert not story("lost").changes("lost")


def test_what_was_on_its_way_is_owed_again() -> None:
    s = story("call c1", "end c1")
    assert s("lost") == ["hold c1: link"]
    assert s.owed("c1").uncertain
    assert s("resumed") == ["send c1"]


def test_what_was_held_once_is_announced_again_when_it_is_owed_again() -> None:
    s = story("reply r1", "call c1", "end c1", "done r1")
    assert s("lost") == ["hold c1: link"]


def test_what_had_arrived_is_not_sent_again() -> None:
    s = story("call c1", "end c1", "sent c1")
    assert s("lost", "resumed", "reply r1", "done r1") == []


def test_a_lost_link_refuses_what_had_not_begun() -> None:
    s = story("reply r1", "careful c1", "reply r2", "careful-silent c2", "done r2")
    assert s("lost") == ["discard c2: interruption", "hold c1: link"]
    result = s.owed("c1").result
    assert result is not None
    assert "dropped" in result.output
    assert s("resumed", "heard 1") == ["send c1"]


def test_after_a_resume_the_window_is_open() -> None:
    s = story("reply r1", "speech", "lost", "resumed")
    assert s.machine.window_open
    assert s("reply r2", "done r2") == []
    assert s.machine.window_open


def test_a_resume_without_a_loss_changes_nothing() -> None:
    assert not Story().changes("resumed")
    assert not story("paused").changes("resumed")


def test_a_reply_that_was_asked_for_is_forgotten_with_the_link() -> None:
    s = story("say hello", "lost")
    assert s.machine.reply is Reply.NONE
    assert s("resumed") == ["ask: hello"]


def test_nothing_is_sent_while_we_do_not_read() -> None:
    s = story("call c1", "paused")
    assert not s.machine.window_open
    assert s("end c1") == ["hold c1: link"]
    assert not s.changes("paused")
    assert s("unpaused") == ["send c1"]
    assert not s.changes("unpaused")


def test_a_pause_of_reading_remembers_who_speaks() -> None:
    s = story("reply r1", "call c1", "end c1", "paused")
    assert s("unpaused") == []
    assert s("done r1") == ["send c1"]


def test_a_link_that_is_lost_in_a_pause_is_lost() -> None:
    s = story("call c1", "paused", "lost")
    assert s.machine.link is Link.DOWN
    assert not s.changes("unpaused")
    assert not s.changes("paused")


def test_the_end_discards_everything_and_nothing_follows_it() -> None:
    s = story("reply r1", "call c1", "eager c2", "careful c3", "end c1", "end c2", "say hello")
    assert s("over") == ["discard c1: end", "discard c3: end"]
    assert (s.machine.owed, s.machine.sayings, s.machine.timers()) == ((), (), frozenset())
    assert s("done r1", "call c4", "end c1", "lost", "resumed", "over") == []
    assert s.machine.link is Link.ENDED


@pytest.mark.parametrize("event", [SessionOpened("d", "m"), SetupLeftAlone("why"), "no event at all"])
def test_what_has_no_row_changes_nothing(event: object) -> None:
    m = Story().machine
    after, outputs = m.handle(event)
    assert after is m
    assert outputs == ()
