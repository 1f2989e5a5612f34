"""Long sessions against a model that is as simple as the provider's documentation.

The rule: results are sent when the latest of `reply.started`, `input.speech.started` and `reply.done` is `reply.done`,
and an interrupted reply takes its results with it. The model keeps a list of what happened and goes through it from the
start each time it is asked. What it adds to the rule is said where it adds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bridge.core.events import (
    AskExpired,
    CallKey,
    Discard,
    GraceExpired,
    HoldExpired,
    ReplyDone,
    ReplyStarted,
    Run,
    Sent,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
)
from bridge.core.turn import TurnMachine

from .script import HOLDING

CALLS = 6
numbers = st.integers(0, CALLS - 1)


@dataclass
class Call:
    """What the model remembers of a call."""

    name: str
    key: CallKey
    began: int
    """How many things had happened when it arrived."""
    ended: bool = False
    out: bool = False
    arrived: bool = False
    discarded: bool = False


class Model:
    """Lists of what happened, and the rule."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.calls: list[Call] = []
        self.waited_for: set[str] = set()

    def live(self) -> list[Call]:
        """The calls that have neither arrived nor been discarded."""
        return [call for call in self.calls if not call.arrived and not call.discarded]

    def edges(self, *kinds: str) -> list[str]:
        return [line for line in self.log if line.split()[0] in kinds]

    def open_reply(self) -> str:
        """The name of the reply that has started and not ended."""
        latest = self.edges("started", "done", "cut", "stuck")[-1:]
        return latest[0].split()[1] if latest and latest[0].startswith("started") else ""

    def speaking(self) -> bool:
        return self.edges("speech", "silence", "stuck")[-1:] == ["speech"]

    def reply_of(self, call: Call) -> str:
        """The reply that was open when the call arrived, or else the first one that started afterwards."""
        before = Model()
        before.log = self.log[: call.began]
        later = [line.split()[1] for line in self.log[call.began :] if line.startswith("started")]
        return before.open_reply() or (later[0] if later else "the next one")

    def answered(self) -> bool:
        """The documented rule, and: speech that a reply has not heard in full is not answered by that reply."""
        log = self.log
        ends = [n for n, line in enumerate(log) if line.split()[0] in ("done", "cut", "stuck")]
        if not ends:
            return not self.edges("speech", "started")
        end = ends[-1]
        if log[end].startswith("cut") or any(line == "speech" for line in log[end:]):
            return False
        if log[end] == "stuck":
            return True
        begin = max(n for n, line in enumerate(log[:end]) if line.startswith("started"))
        within = log[begin:end]
        heard_within = "speech" in within and "word" in within[within.index("speech") :]
        before = Model()
        before.log = log[:end]
        return not heard_within and not before.speaking()

    def asked_by(self) -> str:
        """Whose results asked for a reply that has not started; sending two turns would make two replies collide."""
        for line in reversed(self.log):
            kind, _, reply = line.partition(" ")
            if kind == "sent":
                return reply
            if kind in ("started", "unasked", "stuck"):
                return ""
        return ""

    def due(self) -> list[list[Call]]:
        """The results that are to be sent now, turn by turn."""
        releases = []
        live = self.live()
        for call in live:
            reply = self.reply_of(call)
            turn = [c for c in live if self.reply_of(c) == reply]
            ready = [c for c in turn if c.ended and not c.out]
            complete = all(c.ended for c in turn) or reply in self.waited_for
            if call in ready and complete and self.may_send(reply):
                releases.append(ready)
                for c in ready:
                    c.out = True
                if not self.asked_by():
                    self.log.append(f"sent {reply}")
        return releases

    def may_send(self, reply: str) -> bool:
        if self.open_reply():
            return False
        if self.asked_by():
            # The provider may be waiting for the rest of this turn.
            return self.asked_by() == reply and not self.speaking()
        return self.answered() and not self.speaking()


class LongSession(RuleBasedStateMachine):
    """The turn machine beside the model."""

    @initialize()
    def begin(self) -> None:
        self.machine = TurnMachine(HOLDING)
        self.model = Model()
        self.replies = 0
        self.words = 0

    def tell(self, event: object) -> None:
        """Tell the machine, and compare what it sends with what the model would."""
        self.machine, outputs = self.machine.handle(event)
        sent = [[result.call_id for result in o.results] for o in outputs if isinstance(o, ToolResults)]
        assert sent == [[c.name for c in release] for release in self.model.due()]
        discarded = {o.key.call_id for o in outputs if isinstance(o, Discard)}
        for call in self.model.calls:
            if call.name in discarded:
                assert call.discarded

    def note(self, line: str) -> None:
        self.model.log.append(line)

    @rule(within=st.sampled_from([False, False, False, True]))
    def a_reply_starts(self, within: bool) -> None:
        if self.model.open_reply() and not within:
            return  # rare, or few replies would ever end
        self.replies += 1
        self.note(f"started r{self.replies}")
        self.model.waited_for.discard("the next one")
        self.tell(ReplyStarted(f"r{self.replies}"))

    @precondition(lambda self: self.model.open_reply())
    @rule()
    def the_reply_ends(self) -> None:
        reply = self.model.open_reply()
        self.note(f"done {reply}")
        self.tell(ReplyDone(False, reply))

    @precondition(lambda self: self.model.open_reply())
    @rule()
    def the_reply_is_interrupted(self) -> None:
        reply = self.model.open_reply()
        for call in self.model.live():
            if self.model.reply_of(call) == reply and not call.out:
                call.discarded = True
        self.note(f"cut {reply}")
        self.tell(ReplyDone(True, reply))

    @precondition(lambda self: self.replies)
    @rule(n=numbers)
    def an_earlier_end_is_repeated(self, n: int) -> None:
        reply = f"r{n % self.replies + 1}"
        if reply != self.model.open_reply():
            self.tell(ReplyDone(False, reply))

    @rule()
    def the_caller_speaks(self) -> None:
        if not self.model.speaking():
            self.note("speech")
        self.tell(SpeechStarted())

    @rule()
    def the_caller_stops(self) -> None:
        if self.model.speaking():
            self.note("silence")
        self.tell(SpeechStopped())

    @rule()
    def the_caller_says_a_word(self) -> None:
        self.the_caller_speaks()
        self.note("word")
        self.words += 1
        self.tell(Transcript("user", "word", False, f"i{self.words}"))
        self.the_caller_stops()

    @precondition(lambda self: len(self.model.live()) < CALLS)
    @rule()
    def a_call_arrives(self) -> None:
        name = f"c{len(self.model.calls)}"
        self.machine, outputs = self.machine.handle(ToolCalled(ToolCall(name, "tool")))
        (run,) = outputs
        assert isinstance(run, Run)
        self.model.calls.append(Call(name, run.key, len(self.model.log)))

    @precondition(lambda self: self.model.live())
    @rule(n=numbers)
    def a_call_is_repeated(self, n: int) -> None:
        live = self.model.live()
        self.tell(ToolCalled(ToolCall(live[n % len(live)].name, "tool")))

    @precondition(lambda self: self.model.calls)
    @rule(n=numbers)
    def a_tool_ends(self, n: int) -> None:
        call = self.model.calls[-1 - n % len(self.model.calls)]
        call.ended = True
        self.tell(ToolFinished(call.key, ToolResult(call.name, "1")))

    @precondition(lambda self: any(c.out for c in self.model.live()))
    @rule()
    def what_was_sent_arrives(self) -> None:
        arrived = [c for c in self.model.live() if c.out]
        for call in arrived:
            call.arrived = True
        self.tell(Sent(tuple(c.key for c in arrived)))

    @precondition(lambda self: any(isinstance(t, GraceExpired) for t in self.machine.timers()))
    @rule()
    def a_grace_ends(self) -> None:
        grace = next(t for t in self.machine.timers() if isinstance(t, GraceExpired))
        waiting = {o.key.call_id for o in self.machine.owed if o.turn == grace.turn}
        self.model.waited_for |= {self.model.reply_of(c) for c in self.model.live() if c.name in waiting}
        self.tell(grace)

    @precondition(lambda self: AskExpired() in self.machine.timers())
    @rule()
    def an_ask_expires(self) -> None:
        self.note("unasked")
        self.tell(AskExpired())

    @precondition(lambda self: HoldExpired() in self.machine.timers())
    @rule()
    def the_provider_is_stuck(self) -> None:
        for call in self.model.live():
            if not call.ended:
                self.model.waited_for.add(self.model.reply_of(call))
        self.note("stuck")
        self.tell(HoldExpired())

    @invariant()
    def nothing_is_forgotten(self) -> None:
        owed = {o.key.call_id for o in self.machine.owed}
        assert owed == {call.name for call in self.model.live()}

    def teardown(self) -> None:
        """When the provider is silent and every tool has ended, the timers alone bring everything out."""
        for call in self.model.live():
            self.machine, _ = self.machine.handle(ToolFinished(call.key, ToolResult(call.name, "1")))
        for _ in range(4 * CALLS):
            released = tuple(o.key for o in self.machine.owed)
            for event in (Sent(released), *self.machine.timers()):
                self.machine, _ = self.machine.handle(event)
        assert not self.machine.owed


TestLongSession = LongSession.TestCase
TestLongSession.settings = settings(
    derandomize=True, database=None, deadline=None, max_examples=40, stateful_step_count=50
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_long_sessions() -> None:
    many = settings(derandomize=True, database=None, deadline=None, max_examples=300, stateful_step_count=80)
    run_state_machine_as_test(LongSession, settings=many)
