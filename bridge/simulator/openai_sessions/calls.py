"""The calls of a session: announced, open, answered or abandoned, and the judgement of every result that comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from bridge.simulator.openai_sessions import objects
from bridge.simulator.openai_sessions.ledger import Answer, CallRecord, Fate, Verdict
from bridge.simulator.openai_sessions.messages import Input, Refused, ToolResult
from bridge.simulator.openai_sessions.objects import Item, Turn
from bridge.simulator.openai_sessions.rules import LateResults, Repetition
from bridge.simulator.openai_sessions.script import Call

if TYPE_CHECKING:
    from bridge.simulator.openai_sessions.session import Session

__all__ = ["Calls"]

_TAKEN: Final = frozenset({Verdict.ACCEPTED, Verdict.REPEATED})


class Calls:
    """All calls of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._items: dict[CallRecord, tuple[Turn, Item, int]] = {}
        self.last_verdicts: tuple[Verdict, ...] = ()
        """Of the latest post."""

    @property
    def open(self) -> list[CallRecord]:
        """What the session waits for."""
        return [call for call in self._session.ledger.calls if call.fate is Fate.OPEN]

    @property
    def unanswered(self) -> list[CallRecord]:
        """The same, with what has only been announced."""
        return [call for call in self._session.ledger.calls if call.fate in (Fate.ANNOUNCED, Fate.OPEN)]

    def required(self) -> list[dict[str, Any]]:
        """The list of required actions."""
        return [objects.required_action(call, self._arguments(call)) for call in self.open]

    # ------------------------------------------------------------------------------------------- asking

    def announce(self, turn: Turn, call: Call) -> None:
        """Send the item of a call. Seen: it proves nothing, a result is not taken before the call is registered."""
        session = self._session
        call_id = call.id or session.new_id("call")
        record = CallRecord(turn.id, call_id, call.name, call.arguments, session.clock.now)
        session.ledger.calls.append(record)
        item = objects.call_item(record, session.new_id("item"), self._arguments(record))
        self._items[record] = (turn, item, turn.outputs)
        session.add_item(turn, item, turn.outputs)
        turn.outputs += 1

    def register(self) -> None:
        """From now on results are taken for all that has been announced."""
        for call in self.unanswered:
            call.fate = Fate.OPEN

    def abandon(self) -> None:
        """The turn has ended: what is unanswered stays so."""
        for call in self.unanswered:
            call.fate = Fate.ABANDONED
            self._items[call][1]["status"] = "incomplete"

    def _arguments(self, call: CallRecord) -> Any:
        return orjson.dumps(call.arguments).decode() if self._session.rules.arguments_as_text else call.arguments

    # ------------------------------------------------------------------------------------------- answers

    def judge(self, results: Sequence[ToolResult]) -> tuple[Verdict, ...]:
        """Accept the results of one post. Raises `Refused`, and none is accepted, if one of them cannot be."""
        verdicts: list[Verdict] = []
        for number, result in enumerate(results):
            earlier = next((each for each in results[:number] if _key(each) == _key(result)), None)
            verdicts.append(self._judge(result, earlier))
        self.last_verdicts = tuple(verdicts)
        judged = list(zip(results, verdicts, strict=True))
        refusal = next((refused for pair in judged if (refused := self._refusal(*pair)) is not None), None)
        for result, verdict in judged:
            self._keep(result, Verdict.WITH_OTHERS if refusal and verdict in _TAKEN else verdict)
        if refusal is not None:
            raise refusal
        return self.last_verdicts

    def _judge(self, result: ToolResult, earlier: ToolResult | None) -> Verdict:
        ledger = self._session.ledger
        call = ledger.find(*_key(result))
        if call is None:
            known = any(call.call_id == result.call_id for call in ledger.calls)
            return Verdict.WRONG_TURN if known else Verdict.UNKNOWN
        if earlier is not None:
            return Verdict.REPEATED if earlier == result else Verdict.CONFLICT
        match call.fate:
            case Fate.ANNOUNCED:
                return Verdict.UNKNOWN
            case Fate.ABANDONED if call.result is None:
                return Verdict.LATE
            case Fate.OPEN if call.result is None:
                return Verdict.ACCEPTED
            case _:
                return Verdict.REPEATED if _same(call.result, result) else Verdict.CONFLICT

    def _refusal(self, result: ToolResult, verdict: Verdict) -> Refused | None:
        rules = self._session.rules
        unknown = Refused(400, "invalid_request_error", f"Unknown pending tool call: {result.call_id}")
        match verdict:
            case Verdict.UNKNOWN | Verdict.WRONG_TURN:
                return unknown
            case Verdict.CONFLICT if rules.other_results is Repetition.CONFLICT:
                return Refused(409, "conflict_error", f"Tool call {result.call_id} has another result already.")
            case Verdict.LATE if rules.late_results is LateResults.CONFLICT:
                return Refused(409, "conflict_error", f"The turn of tool call {result.call_id} has ended.")
            case Verdict.LATE if rules.late_results is LateResults.UNKNOWN:
                return unknown
            case _:
                return None

    def lose(self, events: Sequence[Input]) -> tuple[Verdict, ...]:
        """What has just been accepted is forgotten."""
        for event in events:
            call = self._session.ledger.find(*_key(event)) if isinstance(event, ToolResult) else None
            if call is not None and call.result is not None and call.answers[-1] is call.result:
                call.result = None
                call.answers[-1] = replace(call.answers[-1], verdict=Verdict.LOST)
        return tuple(Verdict.LOST for _ in events)

    def apply(self, result: ToolResult) -> bool:
        """Take a result; false if that changes nothing any more."""
        call = self._session.ledger.find(*_key(result))
        if call is None or call.fate is not Fate.OPEN:
            return False
        call.fate = Fate.ANSWERED
        turn, item, index = self._items[call]
        item["status"] = "completed" if result.success else "failed"
        self._session.add_item(turn, objects.output_item(result, self._session.new_id("item")))
        self._session.emit("agent.session.turn.item.done", turn_id=turn.id, item=dict(item), output_index=index)
        return True

    def _keep(self, result: ToolResult, verdict: Verdict) -> None:
        ledger = self._session.ledger
        call = ledger.find(*_key(result))
        output = result.model_dump()["output"]
        at = self._session.clock.now
        answer = Answer(result.turn_id, result.call_id, at, result.success, output, result.error, verdict)
        (ledger.strays if call is None else call.answers).append(answer)
        if call is not None and verdict is Verdict.ACCEPTED:
            call.result = answer
        if result.success and result.error is not None:
            ledger.violated(f"the result of {result.call_id} is a success with an error")
        if not result.success and not result.error:
            ledger.violated(f"the result of {result.call_id} is a failure that says nothing")


def _key(result: ToolResult) -> tuple[str, str]:
    return result.turn_id, result.call_id


def _same(before: Answer | None, result: ToolResult) -> bool:
    body = result.model_dump()
    return before is not None and (before.success, before.output, before.error) == (
        body["success"],
        body["output"],
        body["error"],
    )
