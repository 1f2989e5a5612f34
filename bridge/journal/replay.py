"""Pure: what a session's turn machine was told is told to a fresh one, which must decide the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from ..core.events import CallConcluded, CallKey, FollowUp, ToolFinished, ToolResult, ToolResults, TurnOutput
from ..core.turn import TurnMachine
from . import Begun, Entry, Foreign, Lost, Part

__all__ = ["Replay", "Replayed", "replay"]


class Replayed(Enum):
    """What came of a replay."""

    SAME = "same"
    DIFFERENT = "different"
    PARTLY = "partly"
    """As far as the entries can be followed, it is the same."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A session, compared."""

    outcome: Replayed
    decisions: int
    """That were the same."""
    at: int | None = None
    """Number of the entry where it stops being the same, or cannot be followed any more."""
    why: str = ""


@dataclass(slots=True)
class _Machine:
    """A machine, what it has decided and nobody has seen yet, and the results that it was told."""

    state: TurnMachine
    ahead: deque[TurnOutput] = field(default_factory=deque)
    told: dict[CallKey, ToolResult] = field(default_factory=dict)

    def hear(self, event: object) -> None:
        match event:
            case ToolFinished(key, result) | CallConcluded(key, result):
                self.told.setdefault(key, result)
        self.state, outputs = self.state.handle(event)
        self.ahead.extend(outputs)

    def comparable(self, output: object) -> object:
        """Without the texts of results that are the machine's own: those may have been stored in part."""
        match output:
            case ToolResults(results, _, keys):
                pairs = zip(results, keys, strict=True)
                return replace(output, results=tuple([self._told(each, key) for each, key in pairs]))
            case FollowUp(key, result):
                return replace(output, result=self._told(result, key))
            case _:
                return output

    def _told(self, result: ToolResult, key: CallKey) -> ToolResult:
        return result if key in self.told else replace(result, output="")


def replay(entries: Iterable[tuple[int, Entry]]) -> Replay:
    """Compare the entries of one session, with their numbers and in their order.

    Two processes may have had it, one after the other or at once: what each has written is compared by itself.
    """
    machines: dict[int | None, _Machine] = {}
    decisions, last = 0, None
    for number, entry in entries:
        machine = machines.get(entry.writer)
        if entry.part is Part.NOTED:
            continue
        match entry.fact:
            case Lost(missing):
                return Replay(Replayed.PARTLY, decisions, number, f"{missing} entries are missing")
            case Foreign(kind):
                return Replay(Replayed.PARTLY, decisions, number, f"{kind} is not known to this version")
            case Begun(delivery, turn):
                if machine is not None and machine.ahead:
                    return _missing(machine, decisions, number)
                machines[entry.writer] = _Machine(TurnMachine(delivery, turn=turn))
            case _ if machine is None:
                return Replay(Replayed.PARTLY, decisions, number, "its beginning is missing")
            case fact if entry.part is Part.DECIDED:
                expected = machine.ahead.popleft() if machine.ahead else None
                if expected is None or machine.comparable(expected) != machine.comparable(fact):
                    return Replay(Replayed.DIFFERENT, decisions, number, _difference(expected, fact))
                decisions += 1
            case event:
                machine.hear(event)
        last = number
    for machine in machines.values():
        if machine.ahead:
            return _missing(machine, decisions, last)
    return Replay(Replayed.SAME, decisions)


def _missing(machine: _Machine, decisions: int, number: int | None) -> Replay:
    return Replay(Replayed.DIFFERENT, decisions, number, _difference(machine.ahead[0], None))


def _difference(expected: TurnOutput | None, stored: object) -> str:
    """In names of kinds and calls; never with what they carry."""
    return f"decided {_named(expected)}, stored {_named(stored)}"


def _named(fact: object) -> str:
    keys = getattr(fact, "keys", None) or ((fact.key,) if hasattr(fact, "key") else ())
    names = " ".join(f"{key.call_id}@{key.epoch}" for key in keys)
    return "nothing" if fact is None else f"{type(fact).__name__} {names}".strip()
