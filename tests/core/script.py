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

from bridge.core.dialect import Delivery
from bridge.core.events import (
    AskExpired,
    CallConcluded,
    CallKey,
    CallsCancelled,
    Discard,
    FillerDue,
    FollowUp,
    GraceExpired,
    Hold,
    HoldExpired,
    LinkLost,
    LinkResumed,
    ReadingPaused,
    ReadingResumed,
    ReplyDone,
    ReplyHeard,
    ReplyRequest,
    ReplyRequested,
    ReplyStarted,
    Run,
    SayAsked,
    Sent,
    SessionEnded,
    SessionLost,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
    TurnOutput,
)
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
        self.keys: dict[str, CallKey] = {}

    def __call__(self, *lines: str) -> list[str]:
        """What came of these lines, in words."""
        return [worded(output) for output in self.outputs(*lines)]

    def outputs(self, *lines: str) -> list[TurnOutput]:
        """What came of these lines."""
        came: list[TurnOutput] = []
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
                return ReplyStarted(about)
            case "done" | "cut":
                return ReplyDone(verb == "cut", about)
            case "words" | "final":
                return Transcript("user", "words", verb == "final", about)
            case "agent-words":
                return Transcript("agent", "words", False, about)
            case "end":
                return ToolFinished(self._key(about), ToolResult(about.partition("@")[0], "1"))
            case "park":
                return ToolFinished(self._key(about), ToolResult(about, "0", interim=True))
            case "sent":
                return Sent(tuple(map(self._key, about.split(","))))
            case "cancel":
                return CallsCancelled(tuple(about.split(",")))
            case "concluded":
                return CallConcluded(self._key(about), ToolResult(about, "1"))
            case "say":
                return SayAsked(about)
            case "filler":
                return FillerDue(self._key(about), "one moment")
            case "grace":
                return GraceExpired(int(about))
            case "heard":
                return ReplyHeard(int(about))
        return _PLAIN[line]

    def _key(self, name: str) -> CallKey:
        """`c1` is the latest call of that id, `c1@2` the one of epoch 2."""
        call_id, _, epoch = name.partition("@")
        return CallKey(int(epoch), call_id) if epoch else self.keys.get(call_id, CallKey(99, call_id))


def story(*lines: str, delivery: Delivery = HOLDING) -> Story:
    """A story that has come this far."""
    told = Story(delivery)
    told(*lines)
    return told


_PLAIN = {
    "speech": SpeechStarted(),
    "silence": SpeechStopped(),
    "requested": ReplyRequested(),
    "ask expired": AskExpired(),
    "hold expired": HoldExpired(),
    "lost": LinkLost(),
    "forgotten": SessionLost(),
    "resumed": LinkResumed(),
    "paused": ReadingPaused(),
    "unpaused": ReadingResumed(),
    "over": SessionEnded("over"),
}


def _called(call_id: str, choice: Choice) -> ToolCalled:
    call = ToolCall(call_id, "tool", expects_result=choice.expects_result)
    return ToolCalled(call, choice.start, choice.deliver, choice.hold, choice.reply)


def worded(output: TurnOutput) -> str:
    """An output in words."""
    match output:
        case Run(key):
            return f"run {key.call_id}"
        case Discard(key, reason):
            return f"discard {key.call_id}: {reason.name.lower()}"
        case Hold(key, reason):
            return f"hold {key.call_id}: {reason.name.lower()}"
        case ToolResults(results, quiet):
            return f"send{' quietly' * quiet} {','.join(r.call_id + '?' * r.interim for r in results)}"
        case FollowUp(key):
            return f"follow up {key.call_id}"
        case ReplyRequest(instructions):
            return f"ask: {instructions}"
        case _:
            assert_never(output)
