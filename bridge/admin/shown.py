"""Facts and calls as the API shows them: names, keys and outcomes; never an argument, a result, or a word."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from ..core.events import (
    CallConcluded,
    CallKey,
    CallsCancelled,
    Discard,
    Fact,
    FillerDue,
    FollowUp,
    Hold,
    Passed,
    ProviderFailed,
    ReplyDone,
    Run,
    Sent,
    SessionEnded,
    SessionOpened,
    SessionReady,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    ToolsNotTaken,
)
from ..runner.parking import Waiting
from ..tools.call import CallContext

__all__ = ["Calls", "Remembered", "State", "fact_of", "session_of", "ticket_of", "waiting_elsewhere"]

_REMEMBERED = 10_000


def ticket_of(session: str, key: CallKey) -> str:
    """How the outside names a call."""
    return CallContext(session_id=session, key=key, tool="").ticket


def session_of(ticket: str) -> str:
    """The session of the call with this ticket."""
    return ticket.partition(".")[0]


def fact_of(session: str, fact: Fact) -> dict[str, Any]:
    """What of a fact may be shown."""
    return {"session": session, "fact": type(fact).__name__, **_details(session, fact)}


def _details(session: str, fact: Fact) -> dict[str, Any]:
    match fact:
        case Run(key, call):
            return {"key": ticket_of(session, key), "tool": call.name}
        case ToolFinished(key, result) | CallConcluded(key, result) | FollowUp(key, result):
            return {"key": ticket_of(session, key), "tool": result.name, "outcome": _outcome(result)}
        case Hold(key, held):
            return {"key": ticket_of(session, key), "reason": held.name.lower()}
        case Discard(key, discarded):
            return {"key": ticket_of(session, key), "reason": discarded.value}
        case Sent(keys) | ToolResults(keys=keys):
            return {"keys": [ticket_of(session, key) for key in keys]}
        case FillerDue(key):
            return {"key": ticket_of(session, key)}
        case ToolCalled(call):
            return {"call_id": call.call_id, "tool": call.name}
        case CallsCancelled(call_ids):
            return {"call_ids": list(call_ids)}
        case _:
            return _of_session(fact)


def _of_session(fact: Fact) -> dict[str, Any]:
    match fact:
        case SessionOpened(dialect, mode):
            return {"dialect": dialect, "mode": mode}
        case SessionReady(name):
            return {"provider_session_id": name}
        case SessionEnded(reason):
            return {"reason": reason}
        case ReplyDone(interrupted):
            return {"interrupted": interrupted}
        case ProviderFailed(code, fatal=fatal):
            return {"code": code, "fatal": fatal}
        case Passed(why):
            return {"reason": why.value}
        case ToolsNotTaken(names):
            return {"tools": list(names)}
        case _:
            return {}


def _outcome(result: ToolResult) -> str:
    return "interim" if result.interim else "error" if result.is_error else "ok"


# ------------------------------------------------------------------------------------------------------------- calls


class State(Enum):
    """How far a call has come."""

    RUNNING = "running"
    WAITING = "waiting"
    """Its tool has left it open: somebody outside is to say what came of it."""
    DONE = "done"
    """It has its outcome, which the agent has not been given."""
    SENT = "sent"
    DISCARDED = "discarded"
    ENDED = "ended"
    """Its session ended first."""


@dataclass(slots=True)
class Remembered:
    """What is known of a call."""

    session: str
    tool: str
    since: float
    """When it began, in seconds since 1970."""
    state: State = State.RUNNING
    parked: bool = False
    """Has the agent been told that it goes on?"""
    outcome: str = ""


_OF_CALLS = (Run, ToolFinished, CallConcluded, FollowUp, Discard, Sent, SessionEnded)


class Calls:
    """The latest calls of all sessions by their tickets, as their facts tell."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Remembered] = OrderedDict()
        self._of: dict[str, deque[str]] = {}
        """The tickets of each session, oldest first."""
        self._lock = threading.Lock()

    def note(self, session: str, fact: Fact, now: float) -> None:
        """It has happened."""
        if not isinstance(fact, _OF_CALLS):
            return
        with self._lock:
            match fact:
                case Run(key, call):
                    self._began(ticket_of(session, key), Remembered(session, call.name, now))
                case ToolFinished(key, result) | CallConcluded(key, result):
                    self._finished(ticket_of(session, key), result)
                case FollowUp(key):
                    self._move(ticket_of(session, key), State.SENT)
                case Discard(key):
                    self._move(ticket_of(session, key), State.DISCARDED)
                case Sent(keys):
                    for ticket in [ticket_of(session, key) for key in keys]:
                        if ticket in self._known and self._known[ticket].state is State.DONE:
                            self._move(ticket, State.SENT)
                case SessionEnded():
                    for each in [self._known[ticket] for ticket in self._of.get(session, ())]:
                        if each.state in (State.RUNNING, State.DONE):
                            each.state = State.ENDED

    def find(self, ticket: str) -> Remembered | None:
        """What is known of the call with this ticket."""
        with self._lock:
            return self._known.get(ticket)

    def of(self, session: str) -> list[str]:
        """The tickets of a session, oldest first."""
        with self._lock:
            return list(self._of.get(session, ()))

    def view(self, ticket: str, waiting: Waiting | None) -> Mapping[str, Any]:
        """The call as the API shows it. `waiting`: it waits for somebody outside."""
        known = self.find(ticket)
        if waiting is None:
            return _view(ticket, known or Remembered(session_of(ticket), "", 0.0))
        return _view(ticket, _waits(waiting) if known is None else replace(known, state=State.WAITING))

    def _began(self, ticket: str, call: Remembered) -> None:
        if ticket not in self._known:
            self._of.setdefault(call.session, deque()).append(ticket)
        self._known[ticket] = call
        if len(self._known) > _REMEMBERED:
            _, oldest = self._known.popitem(last=False)
            self._of[oldest.session].popleft()
            if not self._of[oldest.session]:
                del self._of[oldest.session]

    def _finished(self, ticket: str, result: ToolResult) -> None:
        known = self._known.get(ticket)
        if known is None:
            return
        if result.interim:
            known.parked = True
        elif known.state is State.RUNNING:
            known.state = State.DONE
        if not result.interim:
            known.outcome = _outcome(result)

    def _move(self, ticket: str, state: State) -> None:
        if known := self._known.get(ticket):
            known.state = state


def waiting_elsewhere(call: Waiting) -> Mapping[str, Any]:
    """A call that waits at another process, as the API shows it."""
    return {**_view(call.ticket, _waits(call)), "elsewhere": True}


def _waits(call: Waiting) -> Remembered:
    """A call that this process, in this life, has not seen to begin."""
    return Remembered(call.session_id, call.tool, call.since, State.WAITING, parked=True)


def _view(ticket: str, known: Remembered) -> dict[str, Any]:
    return {
        "key": ticket,
        "session": known.session,
        "tool": known.tool,
        "since": known.since,
        "state": known.state.value,
        "parked": known.parked,
        "outcome": known.outcome,
    }
