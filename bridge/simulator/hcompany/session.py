"""One session: its agent, its event log, its pending calls, and its end."""

from __future__ import annotations

import itertools
import secrets
import uuid
from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Any, Final, assert_never

from bridge.simulator.agenda import Agenda
from bridge.simulator.hcompany.bodies import CreateSession, ErrorEvent, ToolResult, error
from bridge.simulator.hcompany.ledger import CallRecord, Fate, Ledger, Result, Verdict
from bridge.simulator.hcompany.log import Log
from bridge.simulator.hcompany.rules import Duplicates, Rules
from bridge.simulator.hcompany.script import Answer, Ask, Call, Fail, OwnTool, Scenario, Step, Work
from bridge.simulator.player import fitting
from bridge.simulator.site import Refused

__all__ = ["Session", "Status"]


class Status(Enum):
    """What a session is doing."""

    QUEUED = "queued"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    IDLE = "idle"
    AWAITING = "awaiting_tool_results"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"


_OVER: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.TIMED_OUT, Status.INTERRUPTED})
_REASONS: Final = {Status.COMPLETED: "finished", Status.INTERRUPTED: "stopped", Status.TIMED_OUT: "timed_out"}


class _Mode(Enum):
    GOING = auto()
    PAUSED = auto()


class Session:
    """Lives from its creation to its end. `turned` hears of every change of status: the session, and what it was."""

    def __init__(
        self,
        request: CreateSession,
        scenario: Scenario,
        rules: Rules,
        agenda: Agenda,
        turned: Callable[[Session, Status], None],
    ) -> None:
        self.id = str(uuid.uuid4())
        self.request = request
        self.created_at = agenda.stamp
        self.started_at: str | None = None
        self.finished_at: str | None = None
        self.ledger = Ledger(self.id)
        self.log = Log(agenda, rules.kept_events)
        self.answer: Any = None
        self.outcome: str | None = None
        self.failure: tuple[str, str] | None = None
        """Text and code of what ended it."""
        self.steps = 0
        self._rules = rules
        self._agenda = agenda
        self._turned = turned
        self._script = iter(_script(scenario, request))
        self._doing = Status.QUEUED
        self._mode = _Mode.GOING
        self._pending: list[CallRecord] = []
        self._step: list[CallRecord] = []
        self._works: object = None
        """What the agent is busy with; None: nothing that takes time."""
        self._spells = itertools.count()
        self._spell = next(self._spells)
        """Number of the time limit that runs; an older one that expires means nothing."""

    # What can be seen

    @property
    def status(self) -> Status:
        """A pause covers what the agent would be doing."""
        return Status.PAUSED if self._mode is _Mode.PAUSED and not self.is_over else self._doing

    @property
    def is_over(self) -> bool:
        return self._doing in _OVER

    @property
    def pending(self) -> list[CallRecord]:
        """The calls it is blocked on, also while it is paused."""
        return list(self._pending)

    # What clients ask for

    def start(self) -> None:
        """Leave the queue, and run."""
        self._turn(Status.PENDING)
        self._agenda.after(self._rules.startup, self._begin)

    def message(self, text: str, caller: str = "user") -> None:
        """The user says something: it wakes an idle session and resumes a paused one. Raises `Refused`."""
        self._refuse_if_over()
        self.resume()
        self._said(text, caller)
        if self._doing is Status.IDLE:
            self._run()

    def take(self, results: Sequence[ToolResult | ErrorEvent], delay: float) -> None:
        """Accept results, which take effect `delay` seconds later than by the rules. Raises `Refused`."""
        self._refuse_if_over()
        came = [_result(self._agenda.now, each) for each in results]
        for result in came:
            self.ledger.came(result)
        self._agenda.after(self._rules.apply_after + delay, partial(self._apply, came))

    def pause(self) -> None:
        """Stop after what is being done. Raises `Refused`."""
        self._refuse_if_over()
        if self._mode is _Mode.GOING:
            self._event("flow_event", flow="pause", origin="user")
            self._turn(mode=_Mode.PAUSED)
            self.log.add("AgentRunStatusChangeEvent", {"status": "paused"})

    def resume(self) -> None:
        """Go on; on a running session nothing. Raises `Refused`."""
        self._refuse_if_over()
        if self._mode is _Mode.PAUSED:
            self._event("flow_event", flow="resume", origin="user")
            self._turn(mode=_Mode.GOING)
            self.log.add("AgentRunStatusChangeEvent", {"status": "running"})
            self._go_on()

    def force_answer(self) -> None:
        """Skip to the next answer; pending calls are waited for first. Raises `Refused`."""
        self._refuse_if_over()
        self._event("flow_event", flow="force_answer", origin="user")
        self._script = iter([step for step in self._script if isinstance(step, Answer)])
        self._works = None
        self._go_on()

    def interrupt(self) -> None:
        """End it. Raises `Refused`."""
        self._refuse_if_over()
        self._end(Status.INTERRUPTED)

    def _refuse_if_over(self) -> None:
        if self.is_over:
            raise Refused(409, error(409, f"the session is over: {self._doing.value}"))

    # The agent

    def _begin(self) -> None:
        if self.is_over:
            return
        self.started_at = self._agenda.stamp
        self.log.add("RequestStartEvent", {})
        self.log.add("AgentStartedEvent", {})
        for words in self.request.words:
            self._said(words, "user")
        if self.request.words:
            self._run()
        else:
            self._state(Status.IDLE)

    def _run(self) -> None:
        self._spell = next(self._spells)
        if self.request.max_time_s is not None:
            self._agenda.after(self.request.max_time_s, partial(self._time_is_up, self._spell))
        self._state(Status.RUNNING)
        self._go_on()

    def _go_on(self) -> None:
        """Take steps until one of them waits for something."""
        while self._doing is Status.RUNNING and self._mode is _Mode.GOING and self._works is None:
            self._take_step(next(self._script, Answer()))

    def _take_step(self, step: Step) -> None:
        self.steps += 1
        match step:
            case Work(seconds):
                self._works = step
                self._agenda.after(seconds, partial(self._worked, step))
            case OwnTool(call, result):
                request = {"tool_name": call.name, "args": dict(call.args), "id": call.id or _made_up()}
                self._event("policy_event", tool_reqs=[request])
                self._event("tool_result", tool_req=request, result=result)
            case Ask(calls):
                self._ask(calls)
            case Answer(answer, outcome):
                self._answer(self._told() if answer is None else answer, outcome)
            case Fail(text, code):
                self.failure = (text, code)
                self.log.add("AgentErrorEvent", {"error": text})
                self._end(Status.FAILED)
            case _:
                assert_never(step)

    def _worked(self, work: Work) -> None:
        if self._works is work:
            self._works = None
            self._go_on()

    def _answer(self, answer: Any, outcome: str) -> None:
        self.answer, self.outcome = answer, outcome
        self._spell = next(self._spells)  # the limit is for the work toward each answer
        self._event("answer_event", answer=answer, outcome=outcome)
        if self.request.idle_timeout_s is None:
            self._end(Status.COMPLETED)
        else:
            self._state(Status.IDLE)
            self._agenda.after(self.request.idle_timeout_s, partial(self._idle_too_long, self._spell))

    def _told(self) -> str:
        results = [f"{call.name}: {call.settled_with}" for call in self._step if call.fate is Fate.SETTLED]
        return "; ".join(results) or "Done."

    def _idle_too_long(self, spell: int) -> None:
        if self._doing is Status.IDLE and spell == self._spell:
            self._end(Status.COMPLETED)

    def _time_is_up(self, spell: int) -> None:
        if not self.is_over and spell == self._spell:
            self.failure = ("the session took too long", "timeout")
            self._end(Status.TIMED_OUT)

    def _end(self, status: Status) -> None:
        """Its pending calls are resolved here, since nobody else may any more."""
        for call in self._pending:
            call.fate = Fate.RESOLVED_BY_SERVER
            self._event("error_event", error="the session ended", origin="server", tool_req=call.request)
        self._pending.clear()
        self.finished_at = self._agenda.stamp
        if status in _REASONS:
            self.log.add("AgentCompletionEvent", {"reason": _REASONS[status]})
        self._turn(status)

    # Custom tools

    def _ask(self, calls: Sequence[Call]) -> None:
        step = len(self.log) + 1  # the event after the policy's, which lists them
        self._step = [
            CallRecord(step, _made_up() if call.id == "" else call.id, call.name, call.args) for call in calls
        ]
        self.ledger.calls.extend(self._step)
        self._pending = list(self._step)
        self._event("policy_event", tool_reqs=[call.request for call in self._step])
        self._state(Status.AWAITING)

    def _apply(self, results: Sequence[Result]) -> None:
        for result in results:
            if self.is_over:
                result.verdict = Verdict.OVERTAKEN
            else:
                self._settle(result)
        self._go_on()

    def _settle(self, result: Result) -> None:
        call = self._meant(self._pending, result)
        if call is None:
            self._settles_nothing(result)
            return
        if result.tool_req != call.request:
            self.ledger.violated(f"the result for {call.name} does not echo its call")
        call.fate, result.verdict = Fate.SETTLED, Verdict.SETTLED
        call.results.append(result)
        self._pending.remove(call)
        self._logged(result)
        self._state(Status.AWAITING if self._pending else Status.RUNNING)

    def _settles_nothing(self, result: Result) -> None:
        settled = self._meant(self._step, result)
        if settled is None:
            result.verdict = Verdict.STRAY
            self.ledger.violated("a result for a call that nobody made")
            return
        result.verdict = Verdict.REPEATED
        settled.results.append(result)
        self.ledger.violated(f"a second result for {settled.name}")
        if self._rules.duplicates is Duplicates.LOGGED:
            self._logged(result)

    @staticmethod
    def _meant(calls: Sequence[CallRecord], result: Result) -> CallRecord | None:
        """The call with the id of this result; without an id the first that is the same in all else."""
        request = result.tool_req
        if (given := request.get("id")) is not None:
            return next((call for call in calls if call.id == given), None)
        return next((call for call in calls if call.request == request), None)

    # The log

    def _said(self, text: str, caller: str) -> None:
        self._event("message_event", caller_id=caller, content=[{"type": "text", "text": text}])

    def _logged(self, result: Result) -> None:
        if result.is_error:
            self._event("error_event", error=result.value, origin="client", tool_req=dict(result.tool_req))
        else:
            self._event("tool_result", tool_req=dict(result.tool_req), result=result.value)

    def _event(self, kind: str, **fields: Any) -> None:
        self.log.add("AgentEvent", {"kind": kind, **fields})

    def _state(self, status: Status) -> None:
        """Publish what the agent does now; while it waits, with the calls that remain."""
        self._turn(status)
        calls = [call.request for call in self._pending]
        data = {"state": status.value}
        for _ in range(self._rules.states_sent):
            self.log.add("ActiveStateChangeEvent", {**data, "pending_tool_calls": calls} if calls else data)

    def _turn(self, doing: Status | None = None, *, mode: _Mode | None = None) -> None:
        before = self.status
        self._doing, self._mode = doing or self._doing, mode or self._mode
        if self.status is not before:
            self.ledger.statuses.append(self.status.value)
            self._turned(self, before)
        self._agenda.notify()


def _script(scenario: Scenario, request: CreateSession) -> tuple[Step, ...]:
    """The scenario's steps; without any, the agent calls the client's first tool once, with arguments that fit."""
    if scenario.steps or not request.tools:
        return scenario.steps
    first = request.tools[0]
    return (Ask((Call(first.name, fitting(first.input_schema or {})),)), Answer())


def _result(at: float, body: ToolResult | ErrorEvent) -> Result:
    request = body.tool_req.model_dump() if body.tool_req else {}
    if isinstance(body, ErrorEvent):
        return Result(at, request, body.error, is_error=True)
    return Result(at, request, body.result, is_error=False)


def _made_up() -> str:
    return f"call_{secrets.token_hex(4)}"
