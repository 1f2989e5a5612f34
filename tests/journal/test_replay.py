"""A fresh machine is told what the first one was told, and must decide the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import pytest

from bridge.core.dialect import Delivery
from bridge.core.events import (
    CallConcluded,
    CallKey,
    FollowUp,
    LinkLost,
    ReplyDone,
    ReplyStarted,
    Run,
    SpeechStarted,
    Start,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
)
from bridge.core.turn import TurnMachine
from bridge.journal import MARK_BITS, Begun, Entry, Foreign, Lost, Part, Record
from bridge.journal.payloads import Keep, Payloads
from bridge.journal.replay import Replayed, replay

from .making import entry

Numbered = list[tuple[int, Entry]]

KEY = CallKey(1, "c1")
RESULT = ToolResult("c1", '{"ok": 1}', name="order")
EVENTS: list[Record] = [
    ReplyStarted("r1"),
    ToolCalled(ToolCall("c1", "order", '{"card": "4711"}')),
    ToolCalled(ToolCall("c2", "leave"), Start.AFTER_REPLY),
    ToolFinished(KEY, RESULT),
    SpeechStarted(),
    ReplyDone(True, "r1"),
    ReplyStarted("r2"),
    ReplyDone(False, "r2"),
    ReplyStarted("r3"),
    ToolCalled(ToolCall("c3", "order")),
    ToolFinished(CallKey(3, "c3"), replace(RESULT, call_id="c3")),
    ToolCalled(ToolCall("c4", "leave"), Start.AFTER_REPLY),
    ReplyDone(False, "r3"),
    CallConcluded(CallKey(3, "c3"), RESULT),
    LinkLost(),
]


def told(*events: Record, delivery: Delivery | None = None) -> Numbered:
    """What a recorder would have written: each event, and what a machine made of it."""
    machine = TurnMachine(delivery or Delivery())
    entries = [entry(Begun(machine.delivery))]
    for event in events:
        machine, outputs = machine.handle(event)
        entries += [entry(event), *(entry(output, part=Part.DECIDED) for output in outputs)]
    return list(enumerate(entries, 1))


def kept(entries: Numbered, payloads: Payloads) -> Numbered:
    return [(number, replace(each, fact=payloads.kept(each.fact))) for number, each in entries]


def of(entries: Numbered, kind: type) -> int:
    """Where the first of this kind stands."""
    return next(index for index, (_, each) in enumerate(entries) if isinstance(each.fact, kind))


@pytest.mark.parametrize("delivery", [Delivery(), Delivery(void=False), Delivery(hold=False, asks=False)])
@pytest.mark.parametrize("keep", Keep)
def test_what_was_decided_is_decided_again_whatever_is_kept_of_it(delivery: Delivery, keep: Keep) -> None:
    entries = told(*EVENTS, delivery=delivery)
    decided = sum(each.part is Part.DECIDED for _, each in entries)
    assert decided >= 6
    replayed = replay(kept(entries, Payloads(keep, lambda tool: ("card", "ok"))))
    assert (replayed.outcome, replayed.decisions, replayed.why) == (Replayed.SAME, decided, "")


def test_nothing_is_the_same_as_nothing() -> None:
    assert replay([]).outcome is Replayed.SAME


def test_a_decision_that_was_not_made_is_a_difference() -> None:
    entries = told(*EVENTS)
    at = of(entries, Run)
    entries.insert(at, entries[at])
    replayed = replay(entries)
    assert (replayed.outcome, replayed.at) == (Replayed.DIFFERENT, entries[at][0])
    assert replayed.why == "decided nothing, stored Run c1@1"


def test_a_decision_that_is_missing_is_a_difference() -> None:
    entries = told(*EVENTS[:3])
    del entries[of(entries, Run)]
    replayed = replay(entries)
    assert (replayed.outcome, replayed.decisions) == (Replayed.DIFFERENT, 0)
    assert replayed.at == entries[-1][0]
    assert replayed.why == "decided Run c1@1, stored nothing"


def written(entries: Numbered, writer: int, first: int = 1) -> list[Entry]:
    """As one of several writers would have written it."""
    return [replace(each, mark=(writer << MARK_BITS) + n) for n, (_, each) in enumerate(entries, first)]


def test_what_two_processes_have_written_at_once_is_compared_writer_by_writer() -> None:
    one, other = written(told(*EVENTS), 1), written(told(*EVENTS[:7]), 2)
    both = [each for pair in zip_longest(one, other) for each in pair if each is not None]
    decided = sum(each.part is Part.DECIDED for each in both)
    replayed = replay(enumerate(both, 1))
    assert (replayed.outcome, replayed.decisions, replayed.why) == (Replayed.SAME, decided, "")
    del both[next(at for at, each in enumerate(both) if isinstance(each.fact, Run) and each.writer == 2)]
    assert replay(enumerate(both, 1)).outcome is Replayed.DIFFERENT


def test_a_decision_that_is_missing_before_the_machine_begins_anew_is_a_difference() -> None:
    entries = told(*EVENTS[:3])
    del entries[of(entries, Run)]
    assert replay([*entries, *told(*EVENTS)]).outcome is Replayed.DIFFERENT


def test_another_decision_is_a_difference() -> None:
    entries = told(*EVENTS)
    at = of(entries, Run)
    number, changed = entries[at]
    assert isinstance(changed.fact, Run)
    entries[at] = number, replace(changed, fact=Run(KEY, replace(changed.fact.call, arguments="{}")))
    replayed = replay(entries)
    assert (replayed.outcome, replayed.at) == (Replayed.DIFFERENT, number)
    assert replayed.why == "decided Run c1@1, stored Run c1@1"


@pytest.mark.parametrize("kind", [ToolResults, FollowUp])
def test_a_result_that_is_not_the_one_the_tool_gave_is_a_difference(kind: type) -> None:
    concluded = CallConcluded(KEY, RESULT)
    entries = told(*EVENTS[:2], EVENTS[3], ReplyDone(False, "r1"), *EVENTS[6:8], concluded)
    assert replay(entries).outcome is Replayed.SAME
    at = of(entries, kind)
    number, changed = entries[at]
    other = replace(RESULT, output="2")
    fact: Record = ToolResults((other,), keys=(KEY,)) if kind is ToolResults else FollowUp(KEY, other)
    entries[at] = number, replace(changed, fact=fact)
    assert replay(entries).outcome is Replayed.DIFFERENT


def test_what_is_only_noted_is_not_told_to_the_machine() -> None:
    entries = told(*EVENTS)
    noted = entry(ToolCalled(ToolCall("theirs", "x")), part=Part.NOTED)
    assert replay([entries[0], (0, noted), *entries[1:]]).outcome is Replayed.SAME


def test_a_session_may_have_had_several_machines() -> None:
    replayed = replay([*told(*EVENTS), *told(*EVENTS)])
    assert replayed.outcome is Replayed.SAME


@pytest.mark.parametrize(
    ("fact", "why"),
    [(Lost(3), "3 entries are missing"), (Foreign("Tomorrow", b"{}"), "Tomorrow is not known to this version")],
)
def test_what_cannot_be_followed_is_the_same_up_to_there(fact: Record, why: str) -> None:
    entries = told(*EVENTS)
    at = of(entries, SpeechStarted)
    entries.insert(at, (99, entry(fact)))
    replayed = replay(entries)
    assert (replayed.outcome, replayed.at, replayed.why) == (Replayed.PARTLY, 99, why)
    assert replayed.decisions > 0


def test_a_session_without_its_beginning_cannot_be_followed() -> None:
    replayed = replay(told(*EVENTS)[1:])
    assert (replayed.outcome, replayed.why) == (Replayed.PARTLY, "its beginning is missing")
