"""What is particular to H Company: how far a session has been read, and how messages go over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.dialect import Message
from bridge.core.events import SetupAccepted, ToolCalled
from bridge.core.http import Heard, Outcome, Request
from bridge.dialects.hcompany import HCOMPANY
from bridge.dialects.hcompany.cursor import Reading

from .conformance import JSON, patient

CREATE = {"create": {"agent": "h/web", "messages": "Count."}}
ATTACH = {"attach": "0e4bebe1/.."}
REQUEST = {"tool_name": "stock_level", "args": {"sku": "B-17"}, "id": "xml_0"}
OTHER = {"tool_name": "stock_level", "args": {"sku": "C-02"}, "id": "xml_1"}
RESULT = {"tool_results": {"kind": "tool_result", "tool_req": REQUEST, "result": 12}, "call": "41:xml_0:x"}
MESSAGE = {"messages": {"type": "user_message", "message": "Go on."}}


def waiting(*calls: Message) -> dict[str, Any]:
    data = {"state": "awaiting_tool_results", "pending_tool_calls": list(calls)}
    return {"type": "ActiveStateChangeEvent", "data": data}


RUNNING = {"type": "ActiveStateChangeEvent", "data": {"state": "running"}}
POLICY = {"type": "AgentEvent", "data": {"kind": "policy_event"}}


def changes(first: int, *events: Any, **fields: Any) -> Message:
    return {"status": "running", "first_index": first, "new_events": list(events), **fields}


def calls_in(heard: Heard) -> list[str]:
    """Ids of the calls that the messages mean."""
    events = [event for message in heard.messages for event in HCOMPANY.decode_server(message)]
    return [event.call.call_id for event in events if isinstance(event, ToolCalled)]


# ------------------------------------------------------------------------------------------------ reading the session


def test_a_call_keeps_its_step_while_its_siblings_are_settled() -> None:
    first = HCOMPANY.seen(changes(0, RUNNING, POLICY, waiting(REQUEST, OTHER)))
    assert first.cursor == "3@2"
    second = HCOMPANY.seen(changes(3, POLICY, waiting(OTHER)), first.cursor)
    assert second.cursor == "5@2"
    assert calls_in(second) == calls_in(first)[1:]
    assert calls_in(second)[0].startswith("2:xml_1:")


def test_an_id_that_comes_again_in_a_later_step_is_another_call() -> None:
    before = HCOMPANY.seen(changes(0, waiting(REQUEST)))
    heard = HCOMPANY.seen(changes(1, RUNNING, waiting(REQUEST)), before.cursor)
    (first,), (second,) = calls_in(before), calls_in(heard)
    assert (first.split(":")[0], second.split(":")[0]) == ("0", "2")
    assert first.split(":")[1:] == second.split(":")[1:]
    assert heard.cursor == "3@2"


@pytest.mark.parametrize(
    ("log", "listed"),
    [
        ((waiting(REQUEST), RUNNING), []),
        ((waiting(REQUEST), RUNNING, waiting(OTHER)), ["2:xml_1"]),
        ((waiting(REQUEST, OTHER), waiting(OTHER)), ["0:xml_1"]),
        ((waiting(REQUEST), POLICY), ["0:xml_0"]),
    ],
)
def test_whoever_reads_a_whole_log_hears_only_of_calls_that_still_wait(log: tuple[Any, ...], listed: list[str]) -> None:
    heard = HCOMPANY.seen(changes(0, *log))
    assert [call.rpartition(":")[0] for call in calls_in(heard)] == listed
    waits = [HCOMPANY.pending(message) for message in heard.messages if message["type"] == "ActiveStateChangeEvent"]
    assert waits[:-1] == [None] * (len(waits) - 1)
    assert waits[-1] == frozenset(calls_in(heard))


def test_of_a_session_that_is_over_no_call_waits() -> None:
    heard = HCOMPANY.seen(changes(0, waiting(REQUEST), status="interrupted"))
    assert calls_in(heard) == []
    assert heard.over


def test_arguments_in_another_order_are_the_same_call() -> None:
    one, other = {"tool_name": "t", "args": {"a": 1, "b": 2}}, {"tool_name": "t", "args": {"b": 2, "a": 1}}
    assert calls_in(HCOMPANY.seen(changes(0, waiting(one)))) == calls_in(HCOMPANY.seen(changes(0, waiting(other))))


def test_events_that_were_read_before_are_left_out() -> None:
    heard = HCOMPANY.seen(changes(3, POLICY, POLICY, RUNNING), "5@2")
    assert [message["index"] for message in heard.messages] == [5]
    assert heard.cursor == "6"


def test_after_evicted_events_an_equal_call_is_taken_for_the_old_one() -> None:
    heard = HCOMPANY.seen(changes(9, POLICY, waiting(REQUEST)), "5@2")
    assert [message["index"] for message in heard.messages] == [9, 10]
    assert heard.cursor == "11@2"
    assert HCOMPANY.seen(changes(9, RUNNING, waiting(REQUEST)), "5@2").cursor == "11@10"


def test_calls_whose_event_was_evicted_are_told_by_the_poll() -> None:
    heard = HCOMPANY.seen(changes(9, POLICY, status="awaiting_tool_results", pending_tool_calls=[REQUEST]))
    assert heard.cursor == "10@10"
    assert calls_in(heard)[0].startswith("10:xml_0:")
    status = HCOMPANY.seen({"status": "awaiting_tool_results", "pending_tool_calls": [REQUEST]}, heard.cursor)
    assert HCOMPANY.pending(status.messages[0]) == set(calls_in(heard))


def test_calls_of_a_status_that_is_ahead_are_told_by_their_event() -> None:
    body = {"status": "awaiting_tool_results", "pending_tool_calls": [REQUEST]}
    ahead = HCOMPANY.seen(body, "7")
    assert (ahead.cursor, calls_in(ahead)) == ("7", [])
    heard = HCOMPANY.seen(changes(7, POLICY, waiting(REQUEST)), ahead.cursor)
    assert heard.cursor == "9@8"
    assert calls_in(heard)[0].startswith("8:xml_0:")
    assert calls_in(HCOMPANY.seen(body, heard.cursor)) == []


def test_a_pause_is_told_before_the_events_of_its_moment_and_its_end_after_them() -> None:
    begun = HCOMPANY.seen(changes(0, RUNNING, POLICY, status="paused"))
    assert (begun.messages[0], begun.cursor) == ({"pause": "begins"}, "2p")
    still = HCOMPANY.seen(changes(2, waiting(REQUEST), status="paused"), begun.cursor)
    assert ({"pause": "begins"} in still.messages, still.cursor) == (False, "3@2p")
    ended = HCOMPANY.seen(changes(3, POLICY, status="running"), still.cursor)
    assert (ended.messages[-1], ended.cursor) == ({"pause": "ends"}, "4@2")


def test_a_status_that_is_read_beside_the_log_begins_no_pause_and_ends_none() -> None:
    assert HCOMPANY.seen({"status": "idle"}, "5p").cursor == "5p"
    assert HCOMPANY.seen({"status": "paused"}, "5").cursor == "5"


def test_a_pause_in_which_the_session_ends_does_not_end() -> None:
    heard = HCOMPANY.seen(changes(5, POLICY, status="interrupted"), "5p")
    assert {"pause": "ends"} not in heard.messages
    assert heard.over


def test_a_session_that_is_over_is_told_with_its_last_events() -> None:
    heard = HCOMPANY.seen(changes(0, POLICY, status="failed", error="no browser"))
    assert [message["type"] for message in heard.messages] == ["AgentEvent", "SessionStatus"]
    assert heard.over
    assert HCOMPANY.seen({"status": "interrupted"}).over
    assert not HCOMPANY.seen({"status": "idle"}).over


def test_a_body_that_says_nothing_moves_nothing() -> None:
    assert HCOMPANY.seen({}, "5@2") == Heard(cursor="5@2")
    assert HCOMPANY.seen({"new_events": [POLICY]}, "5@2").cursor == "6@2"
    assert Reading(5, 2).changes({"new_events": None}) == (Reading(5, 2), ())


@patient
@given(index=st.integers(0), step=st.none() | st.integers(0), paused=st.booleans())
def test_a_reading_survives_as_text(index: int, step: int | None, paused: bool) -> None:
    reading = Reading(index, step, paused)
    assert Reading.at(str(reading)) == reading


@patient
@given(cursor=st.text())
def test_any_text_is_a_cursor(cursor: str) -> None:
    assert Reading.at(cursor).index >= 0


@patient
@given(body=st.dictionaries(st.sampled_from(["status", "new_events", "first_index", "pending_tool_calls"]), JSON))
def test_whatever_a_poll_answers_is_read(body: Message) -> None:
    for message in HCOMPANY.seen(body, "3").messages:
        assert tuple(HCOMPANY.decode_server(message))
        HCOMPANY.pending(message)


# ---------------------------------------------------------------------------------------------------------- over HTTP


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        (CREATE, Request("POST", "/sessions", CREATE["create"], keyed=True)),
        (ATTACH, Request("GET", "/sessions/0e4bebe1%2F..")),
        (RESULT, Request("POST", "/sessions/s1/tool_results", RESULT["tool_results"])),
        (MESSAGE, Request("POST", "/sessions/s1/messages", MESSAGE["messages"])),
        ({"leave": {}}, None),
    ],
)
def test_a_message_is_sent_by(message: Message, request_: Request | None) -> None:
    assert HCOMPANY.request("s1", message) == request_


def test_the_session_is_polled_from_the_cursor_on_and_looked_at() -> None:
    assert HCOMPANY.look("s1") == Request("GET", "/sessions/s1/status")
    assert HCOMPANY.read("s1", "").path == "/sessions/s1/changes?from_index=0&wait_for_seconds=20"
    assert HCOMPANY.read("s1", "41@38").path == "/sessions/s1/changes?from_index=41&wait_for_seconds=20"


@pytest.mark.parametrize(
    ("message", "status", "outcome"),
    [
        (RESULT, 202, Outcome.DELIVERED),
        (RESULT, 429, Outcome.RETRY),
        (RESULT, 503, Outcome.CONFIRM),
        (RESULT, 0, Outcome.CONFIRM),
        (RESULT, 404, Outcome.OVER),
        (RESULT, 409, Outcome.CONFIRM),
        (RESULT, 422, Outcome.REFUSED),
        (RESULT, 401, Outcome.RETRY),
        (MESSAGE, 0, Outcome.CONFIRM),
        (CREATE, 0, Outcome.RETRY),
        (CREATE, 503, Outcome.RETRY),
        (CREATE, 409, Outcome.RETRY),
        (CREATE, 422, Outcome.REFUSED),
        (CREATE, 404, Outcome.REFUSED),
        (ATTACH, 404, Outcome.OVER),
        ({}, 204, Outcome.DELIVERED),
        ({}, 0, Outcome.RETRY),
        ({}, 401, Outcome.RETRY),
    ],
)
def test_an_answer_means(message: Message, status: int, outcome: Outcome) -> None:
    assert HCOMPANY.judge(message, status, {}) is outcome


def test_a_session_that_was_created_or_found_is_told() -> None:
    body = {"id": "s1", "request": {}, "status": {"status": "pending"}}
    for message in (CREATE, ATTACH):
        assert HCOMPANY.answered(message, 200, body) == Heard((body,), session_id="s1")
    assert HCOMPANY.answered(CREATE, 201, {}) == Heard()


def test_a_refusal_is_told_in_words_of_the_provider() -> None:
    told = {"refused": {"status": 422, "message": "No.", "setup": True}}
    assert HCOMPANY.answered(CREATE, 422, {"message": "No.", "detail": ["secret"]}) == Heard((told,), over=True)
    assert HCOMPANY.answered(RESULT, 422, {}) == Heard(({"refused": {"status": 422, "message": "", "setup": False}},))


def test_leaving_is_the_end_of_what_is_heard() -> None:
    assert HCOMPANY.answered({"leave": {}}, 200, {}) == Heard(({"leave": {}},), over=True)
    assert HCOMPANY.answered(RESULT, 202, {}) == Heard()


def test_a_result_is_known_by_its_call_until_that_is_listed_no_more() -> None:
    heard = HCOMPANY.seen(changes(41, waiting(REQUEST, OTHER)))
    assert HCOMPANY.pending(heard.messages[0]) == set(calls_in(heard))
    assert HCOMPANY.pending(HCOMPANY.seen(changes(42, RUNNING), heard.cursor).messages[0]) == frozenset()
    assert HCOMPANY.answers(RESULT) == "41:xml_0:x"
    assert HCOMPANY.answers(MESSAGE) == ""


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status": "running", "pending_tool_calls": [], "step": 3}, frozenset()),
        ({"status": "paused", "pending_tool_calls": [1], "step": 3}, frozenset()),
        ({"status": "awaiting_tool_results", "pending_tool_calls": [REQUEST]}, frozenset()),  # not told yet
        ({"status": "running", "step": 3}, frozenset()),
        ({"status": "awaiting_tool_results", "step": 3}, None),
        ({"status": "paused", "step": 3}, None),
    ],
)
def test_a_status_says_what_is_pending_of_the_calls_told_so_far(
    status: Message, expected: frozenset[str] | None
) -> None:
    assert HCOMPANY.pending({"type": "SessionStatus", **status}) == expected
    assert HCOMPANY.pending(POLICY) is None


def test_in_place_of_a_refused_result_its_call_is_answered_with_a_failure() -> None:
    other = HCOMPANY.instead(RESULT)
    assert other is not None
    assert (other["call"], other["tool_results"]["kind"]) == ("41:xml_0:x", "error_event")
    assert other["tool_results"]["tool_req"] == REQUEST
    assert HCOMPANY.instead(other) is None


def test_tools_that_are_served_from_now_on_are_nobodys_business_but_ours() -> None:
    serving: Message = {"serve": ["a"]}
    assert HCOMPANY.answered(serving, 200, {}) == Heard((serving,))
    assert tuple(HCOMPANY.decode_server(serving)) == (SetupAccepted(message=serving),)


def test_reading_the_session_tells_what_was_missed() -> None:
    assert HCOMPANY.missed("s1") is None
