"""A session that another process has begun: what its turn machine is told, so that it owes what that one owed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..core.conversation import Event, Step
from ..core.events import CallConcluded, CallKey, CallsCancelled, LinkLost, ToolCalled, ToolFinished, TurnOutput
from ..core.turn import TurnMachine
from ..runner.orphans import Due, Left
from .reconnect import Resumable

__all__ = ["Inherited", "seeded"]

_EPOCH: Final = 0
"""Of the calls before the first turn."""


@dataclass(frozen=True, slots=True)
class Inherited:
    """A session that goes on here."""

    resumable: Resumable
    calls: tuple[Left, ...] = ()


def seeded(machine: TurnMachine, calls: Sequence[Left]) -> tuple[TurnMachine, Step]:
    """The machine without a connection, and with these calls; and what it was told, for those who observe.

    It was told in events, as always, so that a replay decides the same. None of the calls is to be run.
    """
    events = tuple(_events(calls))
    outputs: list[TurnOutput] = []
    for event in events:
        machine, decided = machine.handle(event)
        outputs.extend(decided)
    return machine, Step(events, tuple(outputs), ())


def _events(calls: Sequence[Left]) -> Iterator[Event]:
    known = {each.call.call_id: each for each in calls}  # of an id that came again, the latest
    yield LinkLost()
    for each in known.values():
        yield ToolCalled(each.call)
    if answered := tuple(call_id for call_id, each in known.items() if each.due is not Due.RESULT):
        yield CallsCancelled(answered)
    for call_id, each in known.items():
        match each.due, each.result:
            case Due.RESULT, result if result is not None:
                yield ToolFinished(CallKey(_EPOCH, call_id), result)
            case Due.OUTCOME, result if result is not None:
                yield CallConcluded(CallKey(_EPOCH, call_id), result)
