from __future__ import annotations

import pytest

from bridge.admin import shown
from bridge.admin.shown import Calls, State, ticket_of
from bridge.core.events import CallKey, Run, SessionEnded, ToolCall


def began(calls: Calls, session: str, number: int) -> str:
    """A call of this session has begun; its ticket."""
    key = CallKey(1, f"c{number}")
    calls.note(session, Run(key, ToolCall(key.call_id, "look", "{}")), float(number))
    return ticket_of(session, key)


def test_the_calls_of_a_session_are_known_oldest_first() -> None:
    calls = Calls()
    mine = [began(calls, "mine", 1), began(calls, "mine", 2)]
    began(calls, "other", 1)
    assert calls.of("mine") == mine
    assert calls.of("nobody") == []


def test_the_end_of_a_session_is_the_end_of_its_calls_only() -> None:
    calls = Calls()
    mine, other = began(calls, "mine", 1), began(calls, "other", 1)
    calls.note("mine", SessionEnded("hung up"), 2.0)
    states = [known.state for known in map(calls.find, (mine, other)) if known is not None]
    assert states == [State.ENDED, State.RUNNING]


def test_only_the_latest_calls_are_remembered_in_whichever_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_REMEMBERED", 3)
    calls = Calls()
    first, second = began(calls, "a", 1), began(calls, "b", 2)
    later = [began(calls, "a", 3), began(calls, "a", 4), began(calls, "a", 5)]
    assert (calls.find(first), calls.find(second)) == (None, None)
    assert (calls.of("a"), calls.of("b")) == (later, [])
    calls.note("b", SessionEnded("hung up"), 6.0)


def test_a_call_that_begins_again_is_one_call() -> None:
    calls = Calls()
    ticket = began(calls, "mine", 1)
    assert began(calls, "mine", 1) == ticket
    assert calls.of("mine") == [ticket]
