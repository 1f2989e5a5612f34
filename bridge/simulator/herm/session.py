"""One session: its turns, the calls they wait for, and the outcomes that start new ones."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, assert_never

from bridge.simulator.agenda import Agenda
from bridge.simulator.herm.bodies import (
    Confirmation,
    CustomToolResult,
    Event,
    Interrupt,
    Steer,
    UserMessage,
    error,
)
from bridge.simulator.herm.history import History
from bridge.simulator.herm.ledger import CallRecord, Fate, Ledger, Policy, Result, TurnRecord, Verdict
from bridge.simulator.herm.rules import LateFinals, Repeats, Rules
from bridge.simulator.herm.script import Answer, Ask, Call, Fail, Scenario, Step, Work
from bridge.simulator.player import fitting
from bridge.simulator.site import Refused

__all__ = ["Declared", "Session"]


@dataclass(frozen=True, slots=True)
class Declared:
    """A custom tool of an agent: who decides whether it may run, and the JSON Schema of its arguments."""

    policy: Policy
    schema: Mapping[str, Any]


class _State(Enum):
    IDLE = auto()
    RUNNING = auto()
    WAITING = auto()
    """Said to be idle, within a turn that needs an answer."""
    ARCHIVED = auto()


class Session:
    """Lives from its creation to its archiving. `tools` are the agent's custom ones."""

    def __init__(self, tools: Mapping[str, Declared], scenario: Scenario, rules: Rules, agenda: Agenda) -> None:
        self.id = f"session_{secrets.token_hex(6)}"
        self.created_at = agenda.stamp
        self.ledger = Ledger(self.id)
        self.history = History(self.id, agenda)
        self._tools = tools
        self._rules = rules
        self._names = rules.payloads
        self._agenda = agenda
        self._scripted = bool(scenario.steps)
        self._script: list[Step] = list(scenario.steps)
        self._state = _State.IDLE
        self._queue: list[TurnRecord] = []
        """Turns that begin when the one that runs has ended."""
        self._step: list[CallRecord] = []
        self._works: object = None
        """What the agent is busy with; None: nothing that takes time."""

    @property
    def status(self) -> str:
        """As the session's resource tells it."""
        return {_State.RUNNING: "running", _State.ARCHIVED: "archived"}.get(self._state, "idle")

    @property
    def waits_for(self) -> list[str]:
        """Ids of the calls that the agent is blocked on."""
        return [call.id for call in self._step if call.waits]

    # What clients send

    def take(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        """Accept these events; their envelopes. Raises `Refused` for one of them: those before it count."""
        if self._state is _State.ARCHIVED:
            raise self._refused(409, "session_archived", "the session is archived")
        if len(events) > 1 and any(isinstance(event, UserMessage) for event in events):
            raise self._refused(400, "invalid_request", "a user.message comes alone")
        results = [event for event in events if isinstance(event, CustomToolResult)]
        if len(results) > 1 and not self._rules.several_results:
            raise self._refused(400, "invalid_request", "one user.custom_tool_result at a time")
        try:
            return [self._take(event) for event in events]
        finally:
            self._go_on()

    def archive(self) -> None:
        """Take nothing any more."""
        self._void(Fate.INTERRUPTED)
        self._state = _State.ARCHIVED

    def _take(self, event: Event) -> dict[str, Any]:
        match event:
            case UserMessage():
                if self._state is not _State.IDLE:
                    raise self._refused(409, "session_busy", "a turn is running")
                self._queue.append(TurnRecord("\n".join(block.text for block in event.content)))
                return self.history.add(event.model_dump())
            case Steer():
                return self.history.add(event.model_dump())
            case Interrupt():
                added = self.history.add(event.model_dump())
                self._interrupt()
                return added
            case Confirmation():
                return self._decide(event)
            case CustomToolResult():
                return self._judge(event)
            case _:
                assert_never(event)

    def _interrupt(self) -> None:
        """What becomes of the calls is not documented: here they are void."""
        if self._state in (_State.RUNNING, _State.WAITING):
            self._void(Fate.INTERRUPTED)
            self._works = None
            self._end_turn({"type": "end_turn"})

    def _void(self, fate: Fate) -> None:
        for call in self._step:
            if call.waits:
                call.fate = fate

    def _refused(self, status: int, code: str, message: str) -> Refused:
        return Refused(status, error(code, message, self._names))

    # Approvals

    def _decide(self, event: Confirmation) -> dict[str, Any]:
        call = self.ledger.find(event.tool_use_id)
        decision = (event.model_extra or {}).get(self._names.decision)
        if call is None or call.fate is not Fate.ASKED_FOR:
            raise self._refused(409, "no_approval_pending", "no approval is asked for under this id")
        if decision not in (self._names.allow, self._names.deny):
            raise self._refused(400, "invalid_request", f"{self._names.decision}: neither allowed nor denied")
        added = self.history.add(event.model_dump())
        if decision == self._names.allow:
            self._call(call)
            self._require_action()
        else:
            call.fate = Fate.DENIED
            self._settled()
        return added

    # Results

    def _judge(self, event: CustomToolResult) -> dict[str, Any]:
        if event.status is None:
            self.ledger.violated("a result without a status")
        call = self.ledger.find(event.tool_use_id)
        final = event.says != "running"
        if call is None:
            return self._unknown(event)
        match call.fate:
            case Fate.PENDING:
                return self._answer(call, event)
            case Fate.RUNNING if final:
                return self._finish(call, event)
            case Fate.CLOSED if final and any(result.verdict is Verdict.STARTED for result in call.results):
                return self._repeated(call, event)
            case Fate.RUNNING | Fate.CLOSED:
                return self._once_more(call, event)
            case Fate.EXPIRED if final and self._rules.late_finals is LateFinals.APPENDED:
                return self._append(call, event)
            case _:
                raise self._expired(call, event)

    def _answer(self, call: CallRecord, event: CustomToolResult) -> dict[str, Any]:
        """The answer the turn waits for: an outcome, or that there will be one."""
        running = event.says == "running"
        self._stands(call, event, Verdict.STARTED if running else Verdict.ANSWERED)
        call.fate = Fate.RUNNING if running else Fate.CLOSED
        call.event = added = self.history.add(event.model_dump())
        self._settled()
        return added

    def _finish(self, call: CallRecord, event: CustomToolResult) -> dict[str, Any]:
        """The outcome of what was said to be running takes its place, and starts a turn."""
        self._stands(call, event, Verdict.FINAL)
        call.fate = Fate.CLOSED
        added = self._event_of(call)
        self.history.replace(added, event.model_dump(), call.id)
        self._queue.append(TurnRecord(event.text, call.id))
        return added

    def _append(self, call: CallRecord, event: CustomToolResult) -> dict[str, Any]:
        self._stands(call, event, Verdict.APPENDED)
        call.fate = Fate.CLOSED
        call.event = added = self.history.add(event.model_dump())
        self._queue.append(TurnRecord(event.text, call.id))
        return added

    def _unknown(self, event: CustomToolResult) -> dict[str, Any]:
        """A final without a kickoff starts a turn, documented. That something unknown is running is refused."""
        self.ledger.violated("a result for a call that nobody made")
        if event.says == "running":
            raise self._refused(404, "not_found", "no such call")
        call = CallRecord(event.tool_use_id, "", {}, Policy.ALWAYS_ALLOW)
        self.ledger.calls.append(call)
        return self._append(call, event)

    def _repeated(self, call: CallRecord, event: CustomToolResult) -> dict[str, Any]:
        self._came(call, event, Verdict.REPEATED)
        if event.text != call.text:
            self.ledger.violated(f"two different outcomes of {call.name}")
        return self._event_of(call)

    def _once_more(self, call: CallRecord, event: CustomToolResult) -> dict[str, Any]:
        """A kickoff or an immediate answer for the second time: nobody knows."""
        match self._rules.repeats:
            case Repeats.EXPIRED:
                raise self._expired(call, event)
            case Repeats.RETURNED:
                return self._repeated(call, event)
            case Repeats.APPENDED:
                self._came(call, event, Verdict.REPEATED)
                return self.history.add(event.model_dump())

    def _expired(self, call: CallRecord, event: CustomToolResult) -> Refused:
        self._came(call, event, Verdict.EXPIRED)
        return self._refused(410, "response_expired", "the session has stopped waiting for this call")

    def _stands(self, call: CallRecord, event: CustomToolResult, verdict: Verdict) -> None:
        call.text, call.is_error = event.text, event.is_error
        self._came(call, event, verdict)

    def _came(self, call: CallRecord, event: CustomToolResult, verdict: Verdict) -> None:
        result = Result(self._agenda.now, call.id, event.says, event.text, verdict)
        call.results.append(result)
        self.ledger.came(result)

    @staticmethod
    def _event_of(call: CallRecord) -> dict[str, Any]:
        assert isinstance(call.event, dict), "a call with a result has its event"
        return call.event

    # Turns

    def _go_on(self) -> None:
        """Take steps until something has to be waited for; then the turns that are queued."""
        while self._works is None:
            if self._state is _State.RUNNING:
                self._take_step(self._script.pop(0) if self._script else Answer())
            elif self._state is _State.IDLE and self._queue:
                self._begin_turn(self._queue.pop(0))
            else:
                return

    def _begin_turn(self, turn: TurnRecord) -> None:
        self.ledger.turns.append(turn)
        self._step = []
        self._state = _State.RUNNING
        self.history.add({"type": "session.status_running"})
        if not self._scripted and self._tools and not turn.started_by:
            name, declared = next(iter(self._tools.items()))
            self._script = [Ask((Call(name, fitting(declared.schema)),)), Answer()]

    def _take_step(self, step: Step) -> None:
        match step:
            case Ask(calls):
                self._ask(calls)
            case Work(seconds):
                self._works = step
                self._agenda.after(seconds, partial(self._worked, step))
            case Answer(text):
                blocks = [{"type": "text", "text": text or self._told()}]
                self.history.add({"type": "agent.message", "content": blocks, "delta": False})
                self._end_turn({"type": "end_turn"})
            case Fail(message):
                self._end_turn({"type": "error", "message": message})
            case _:
                assert_never(step)

    def _worked(self, work: Work) -> None:
        if self._works is work:
            self._works = None
            self._go_on()

    def _told(self) -> str:
        told = [f"{call.name}: {call.text}" for call in self._step if call.text]
        return "; ".join(told) or self.ledger.turns[-1].prompt

    def _end_turn(self, reason: Mapping[str, Any]) -> None:
        self.ledger.turns[-1].ended = reason["type"]
        self._state = _State.IDLE
        for _ in range(self._rules.events_sent):
            self.history.add({"type": "session.status_idle", "stop_reason": reason})

    # Calls

    def _ask(self, calls: Sequence[Call]) -> None:
        for call in calls:
            declared = self._tools.get(call.name)
            policy = Policy.ALWAYS_ALLOW if declared is None else declared.policy
            record = CallRecord(call.id or f"custom_toolu_{secrets.token_hex(4)}", call.name, call.input, policy)
            self.ledger.calls.append(record)
            self._step.append(record)
            match policy:
                case Policy.ALWAYS_ALLOW:
                    self._call(record)
                case Policy.ALWAYS_ASK:
                    record.fate = Fate.ASKED_FOR
                    self._announce("agent.approval_request", record)
                case Policy.ALWAYS_DENY:
                    record.fate = Fate.DENIED
        if self.waits_for:
            self._require_action()

    def _call(self, record: CallRecord) -> None:
        record.fate = Fate.PENDING
        self._announce("agent.custom_tool_use", record)
        self._agenda.after(self._rules.wait, partial(self._expire, record))

    def _announce(self, kind: str, record: CallRecord) -> None:
        named = {self._names.name: record.name, self._names.input: dict(record.input)}
        for _ in range(self._rules.events_sent):
            self.history.add({"type": kind, "tool_use_id": record.id, **named})

    def _expire(self, call: CallRecord) -> None:
        if call.fate is Fate.PENDING:
            call.fate = Fate.EXPIRED
            self._settled()
            self._go_on()

    def _require_action(self) -> None:
        self._state = _State.WAITING
        reason = {"type": "requires_action", "event_ids": self.waits_for}
        self.history.add({"type": "session.status_idle", "stop_reason": reason})

    def _settled(self) -> None:
        """One call is no longer waited for: say which still are, or go on with the turn."""
        if self.waits_for:
            self._require_action()
        elif any(call.fate is Fate.EXPIRED for call in self._step):
            self._end_turn({"type": "error", "message": "a custom tool was not answered in time"})
        else:
            self._state = _State.RUNNING
            self.history.add({"type": "session.status_running"})
