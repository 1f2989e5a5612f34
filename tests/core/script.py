"""Stories for the turn machine, in words: what happens goes in, what comes of it comes out.

    story = Story()
    assert story("reply r1", "call c1", "end c1") == ["run c1", "hold c1: reply"]
    assert story("done r1") == ["send c1"]

A line is a verb and what it is about. `call`, `careful`, `held`, `eager`, ... are calls of tools with those choices;
`end c1` ends a tool, `park c1` has it go on after an interim result (`c1?`), and `concluded c1` is its outcome then;
`cut r1` interrupts a reply, `words i1` and `final i1` are the caller's words.
"""

from __future__ import annotations

from typing import assert_never

from bridge.core import events
from bridge.core.dialect import Delivery
from bridge.core.turn import Owed, TurnMachine

from .walk import (
    BETWEEN,
    CAREFUL,
    CAREFUL_EAGER,
    CAREFUL_SILENT,
    EAGER,
    HELD,
    PLAIN,
    RECORD,
    SILENT,
    Choice,
)

__all__ = ["HOLDING", "Story", "story", "worded"]

HOLDING = Delivery()
"""A provider that speaks after results, and voids those of an interrupted reply."""

_KINDS = {
    "call": PLAIN,
    "careful": CAREFUL,
    "held": HELD,
    "eager": EAGER,
    "between": BETWEEN,
    "silent": SILENT,
    "record": RECORD,
    "careful-silent": CAREFUL_SILENT,
    "careful-eager": CAREFUL_EAGER,
    "careful-held": HELD._replace(start=CAREFUL.start),
}


class Story:
    """A machine that is told what happens, line by line."""

    def __init__(self, delivery: Delivery = HOLDING) -> None:
        self.machine = TurnMachine(delivery)
        self.keys: dict[str, events.CallKey] = {}

    def __call__(self, *lines: str) -> list[str]:
        """What came of these lines, in words."""
        return [worded(output) for output in self.outputs(*lines)]

    def outputs(self, *lines: str) -> list[events.TurnOutput]:
        """What came of these lines."""
        came: list[events.TurnOutput] = []
        for line in lines:
            self.machine, outputs = self.machine.handle(self._event(line))
            self.keys |= {o.key.call_id: o.key for o in self.machine.owed}
            came += outputs
        return came

    def changes(self, line: str) -> bool:
        """Does this line change anything?"""
        before = self.machine
        return bool(self(line)) or self.machine is not before

    def owed(self, call_id: str) -> Owed:
        """The call with this id; raises `LookupError` if it is not owed."""
        found = self.machine.find(self.keys[call_id])
        if found is None:
            raise LookupError(call_id)
        return found

    def _event(self, line: str) -> object:
        verb, _, about = line.partition(" ")
        if verb in _KINDS:
            return _called(about, _KINDS[verb])
        match verb:
            case "reply":
                return events.ReplyStarted(about)
            case "done" | "cut":
                return events.ReplyDone(verb == "cut", about)
            case "words" | "final":
                return events.Transcript("user", "words", verb == "final", about)
            case "agent-words":
                return events.Transcript("agent", "words", False, about)
            case "end":
                return events.ToolFinished(self._key(about), events.ToolResult(about.partition("@")[0], "1"))
            case "park":
                return events.ToolFinished(self._key(about), events.ToolResult(about, "0", interim=True))
            case "sent":
                return events.Sent(tuple(map(self._key, about.split(","))))
            case "cancel":
                return events.CallsCancelled(tuple(about.split(",")))
            case "concluded":
                return events.CallConcluded(self._key(about), events.ToolResult(about, "1"))
            case "say":
                return events.SayAsked(about)
            case "filler":
                return events.FillerDue(self._key(about), "one moment")
            case "grace":
                return events.GraceExpired(int(about))
            case "heard":
                return events.ReplyHeard(int(about))
        return _PLAIN[line]

    def _key(self, name: str) -> events.CallKey:
        """`c1` is the latest call of that id, `c1@2` the one of epoch 2."""
        call_id, _, epoch = name.partition("@")
        return events.CallKey(int(epoch), call_id) if epoch else self.keys.get(call_id, events.CallKey(99, call_id))


def story(*lines: str, delivery: Delivery = HOLDING) -> Story:
    """A story that has come this far."""
    told = Story(delivery)
    told(*lines)
    return told


_PLAIN = {
    "speech": events.SpeechStarted(),
    "silence": events.SpeechStopped(),
    "requested": events.ReplyRequested(),
    "ask expired": events.AskExpired(),
    "hold expired": events.HoldExpired(),
    "lost": events.LinkLost(),
    "forgotten": events.SessionLost(),
    "resumed": events.LinkResumed(),
    "paused": events.ReadingPaused(),
    "unpaused": events.ReadingResumed(),
    "agent paused": events.AgentPaused(),
    "agent resumed": events.AgentResumed(),
    "over": events.SessionEnded("over"),
}


def _called(call_id: str, choice: Choice) -> events.ToolCalled:
    call = events.ToolCall(call_id, "tool", expects_result=choice.expects_result)
    return events.ToolCalled(call, choice.start, choice.deliver, choice.hold, choice.reply)


def worded(output: events.TurnOutput) -> str:
    """An output in words."""
    match output:
        case events.Run(key):
            return f"run {key.call_id}"
        case events.Discard(key, reason):
            return f"discard {key.call_id}: {reason.name.lower()}"
        case events.Hold(key, reason):
            return f"hold {key.call_id}: {reason.name.lower()}"
        case events.ToolResults(results, quiet):
            return f"send{' quietly' * quiet} {','.join(r.call_id + '?' * r.interim for r in results)}"
        case events.FollowUp(key):
            return f"follow up {key.call_id}"
        case events.ReplyRequest(instructions):
            return f"ask: {instructions}"
        case _:
            assert_never(output)
