"""The agent's tool calls: asked, answered or not, and told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import orjson

from bridge.simulator.account import keep
from bridge.simulator.ledger import Answer, CallRecord, Fate, Phase, Verdict
from bridge.simulator.messages import ToolResult
from bridge.simulator.rules import EarlyResults, Joining, LateResults, ServerTool
from bridge.simulator.script import Call
from bridge.simulator.shared import Shared

__all__ = ["Calls", "told"]

_TOLD_CHARACTERS = 200


class Calls:
    """Knows every call the agent still cares about, and judges every result that comes in."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._rules = shared.rules
        self._numbers = itertools.count(1)
        self._live: list[CallRecord] = []
        self.tools: dict[str, dict[str, Any]] = {}
        self.timed_out: list[CallRecord] = []
        """Calls for which the agent has not yet apologised."""

    def is_hold(self, name: str) -> bool:
        """Was this tool declared as one that keeps the agent silent?"""
        return self.tools.get(name, {}).get("execution_mode") == "hold"

    def ask(self, calls: Sequence[Call], reply_id: str = "") -> list[CallRecord]:
        """Ask the client for these tools."""
        return [self._ask(call, reply_id) for call in calls]

    def _ask(self, call: Call, reply_id: str) -> CallRecord:
        number = next(self._numbers)
        record = CallRecord(
            call.id or f"chatcmpl-tool-{number:04d}",
            call.name,
            call.args,
            self._shared.clock.now,
            reply_id,
            hold=self.is_hold(call.name),
        )
        self._shared.ledger.calls.append(record)
        self._live.append(record)
        own = next((tool for tool in self._rules.server_tools if tool.name == call.name), None)
        if own is None:
            self._shared.tasks.start_soon(self._time, record)
        else:
            record.server_run = True
            self._shared.tasks.start_soon(self._run_here, record, own)
        self._announce(record)
        return record

    def _announce(self, record: CallRecord) -> None:
        """Send the call. Where the parameters keep a `$schema` key, the real provider sends empty arguments."""
        parameters = self.tools.get(record.name, {}).get("parameters", {})
        self._shared.wire.tool_call(record, emptied="$schema" in parameters)

    def announce_again(self) -> None:
        """Send all open calls once more."""
        for record in self._live:
            if record.fate is Fate.OPEN:
                self._announce(record)

    async def _time(self, record: CallRecord) -> None:
        told = self.tools.get(record.name, {}).get("timeout_seconds", 120.0)
        limit = self._rules.tool_timeout or told
        if not await self._shared.changes.until(lambda: record.fate is not Fate.OPEN, limit * self._shared.clock.pace):
            self._leave(record, Fate.TIMED_OUT)
            self.timed_out.append(record)
            self._shared.changes.notify()

    async def _run_here(self, record: CallRecord, tool: ServerTool) -> None:
        await self._shared.clock.sleep(tool.seconds)
        if record.fate is Fate.OPEN:
            record.result, record.fate = tool.result, Fate.ANSWERED
            self._shared.changes.notify()

    def answer(self, message: ToolResult, phase: Phase, reply_id: str | None) -> Verdict:
        """Take a result that came in this phase, while this reply was in flight (None: no reply)."""
        record = self._shared.ledger.find(message.call_id)
        verdict = Verdict.UNKNOWN if record is None else self._judge(record, reply_id)
        answer = Answer(message.call_id, self._shared.clock.now, phase, message.result, message.is_error, verdict)
        if record is None:
            keep(self._shared.ledger.strays, answer)
            return verdict
        keep(record.answers, answer)
        if verdict is Verdict.ACCEPTED or (verdict is Verdict.LATE and self._rules.late_results is LateResults.SPOKEN):
            record.result, record.is_error, record.fate = message.result, message.is_error, Fate.ANSWERED
            if record not in self._live:
                self._live.append(record)
        elif verdict is Verdict.IGNORED:
            self._leave(record, Fate.LOST)
        return verdict

    def _judge(self, record: CallRecord, reply_id: str | None) -> Verdict:
        if record.server_run:
            return Verdict.SERVER_RUN
        if record.answers:
            return Verdict.REPEATED
        if record.fate is Fate.ABANDONED:
            return Verdict.VOID
        if record.fate is Fate.TIMED_OUT:
            return Verdict.LATE
        waited_for = self._rules.kept_open and record.reply_id == reply_id
        if reply_id is not None and not waited_for and self._rules.early_results is EarlyResults.IGNORED:
            return Verdict.IGNORED
        return Verdict.ACCEPTED

    def abandon(self, reply_id: str) -> None:
        """This reply was interrupted: its calls are void."""
        for record in [record for record in self._live if record.reply_id == reply_id]:
            self._leave(record, Fate.ABANDONED if record.fate is Fate.OPEN else Fate.LOST)

    def tell(self, records: Sequence[CallRecord]) -> None:
        """A reply that knows these results has begun."""
        for record in records:
            self._leave(record, Fate.TOLD)

    def batch(self) -> list[CallRecord]:
        """The results that the next reply would tell."""
        ready = [record for record in self._live if record.fate is Fate.ANSWERED]
        match self._rules.joining:
            case Joining.MERGED:
                return ready
            case Joining.ALL:
                waiting = {record.reply_id for record in self._live if record.fate is Fate.OPEN}
                return [record for record in ready if record.reply_id not in waiting]
            case Joining.EACH:
                return ready[:1]

    @property
    def holding(self) -> bool:
        """Does a call keep the agent silent?"""
        return any(record.hold and record.fate is Fate.OPEN for record in self._live)

    @property
    def pending(self) -> bool:
        """Is there a call whose result has not been told, and still may be?"""
        return bool(self._live)

    def _leave(self, record: CallRecord, fate: Fate) -> None:
        record.fate = fate
        if record in self._live:
            self._live.remove(record)


def told(record: CallRecord) -> str:
    """What the agent says about a result: the words of a flat JSON object, or else the text as it is."""
    said = "failed" if record.is_error else "says"
    return f"{record.name} {said}: {_plain(record.result)[:_TOLD_CHARACTERS].rstrip('.')}."


def _plain(result: str) -> str:
    try:
        value = orjson.loads(result)
    except ValueError:
        return result
    match value:
        case dict():
            return ", ".join(f"{key} {item}" for key, item in value.items())
        case str():
            return value
        case _:
            return result
