"""A session that another process has begun: what its turn machine is told, so that it owes what that one owed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ..core.conversation import Event, Step
from ..core.events import CallConcluded, CallKey, LinkLost, ToolCalled, ToolFinished, ToolResult, TurnOutput
from ..core.turn import TurnMachine
from ..runner.orphans import Due, Past
from .reconnect import Resumable

__all__ = ["Inherited", "inherited_key", "seeded"]


@dataclass(frozen=True, slots=True)
class Inherited:
    """A session that goes on here, under the name that it has had from its beginning."""

    resumable: Resumable
    past: Past = field(default_factory=Past)


def seeded(machine: TurnMachine, inherited: Inherited) -> tuple[TurnMachine, Step]:
    """The machine without a connection, and with these calls; and what it was told, for those who observe.

    Its turns go on where those before have ended, so that no two calls have one key. It was told in events, as always,
    so that a replay decides the same. None of the calls is to be run.
    """
    machine = machine._replace(turn=inherited.past.turn)
    events = tuple(_events(machine, inherited))
    outputs: list[TurnOutput] = []
    for event in events:
        machine, decided = machine.handle(event)
        outputs.extend(decided)
    return machine, Step(events, tuple(outputs), ())


def inherited_key(machine: TurnMachine, inherited: Inherited, call_id: str) -> CallKey:
    """Under which key the machine knows a call that was begun before."""
    return CallKey(0 if machine.delivery.unique_ids else inherited.past.turn, call_id)


def _events(machine: TurnMachine, inherited: Inherited) -> Iterator[Event]:
    known = {each.call.call_id: each for each in inherited.past.calls}  # of an id that came again, the latest
    yield LinkLost()
    for call_id, each in known.items():
        # One that has been answered is known, so that a repeat of it is, and comes to its end without a word.
        answered = each.due is not Due.RESULT
        yield ToolCalled(replace(each.call, expects_result=False) if answered else each.call)
        key = inherited_key(machine, inherited, call_id)
        yield ToolFinished(key, each.result or ToolResult(call_id, "null"))
        if each.due is Due.OUTCOME and each.result is not None:
            yield CallConcluded(key, each.result)
