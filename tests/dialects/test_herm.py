"""What is particular to Herm: what of a history is news, names that are not documented, and messages over HTTP."""

from __future__ import annotations

import pytest
from hypothesis import given

from bridge.core.dialect import Message
from bridge.core.events import OutcomesOwed, SetupAccepted, ToolCall, ToolCalled, ToolResult, ToolResults, ToolSpec
from bridge.core.http import Heard, Outcome, Request
from bridge.dialects.herm import HERM, HermDialect, Payloads

from .cases.herm import envelope, idle, post, result, said, use
from .conformance import JSON, patient

CREATE = {"create": {"agent_id": "agent/1", "title": "Film"}}
ATTACH = {"attach": "session_7"}
ANSWER = post(result(), call="custom_toolu_9")
FINAL = post(result())
MESSAGE = post({"type": "user.message", "content": said("Go on.")})
DIALECT = HermDialect()


def running(sequence: int) -> Message:
    return envelope("session.status_running", sequence)


def answered(call_id: str, sequence: int, status: str = "completed") -> Message:
    return envelope("user.custom_tool_result", sequence, tool_use_id=call_id, status=status)


# --------------------------------------------------------------------------------------------- reading the history


def seen(*history: object) -> tuple[Message, ...]:
    return HERM.seen({"data": list(history)}).messages


def test_of_a_history_the_latest_step_is_told_without_its_answered_calls() -> None:
    first = [running(1), use("one", 2), answered("one", 3)]
    step = [running(4), use("two", 5), use("three", 6), idle({"type": "requires_action"}, 7), answered("three", 8)]
    assert seen(*first, *step) == (step[0], step[1], step[3], {"type": "history", "waiting": ["two"]})


def test_a_call_that_was_said_to_be_running_does_not_wait() -> None:
    told = seen(running(1), use("one", 2), answered("one", 3, "running"), idle({"type": "end_turn"}, 4))
    assert [message["type"] for message in told] == ["session.status_running", "session.status_idle", "history"]
    assert told[-1] == {"type": "history", "waiting": [], "running": ["one"]}


def test_outcomes_are_owed_to_calls_of_all_steps_that_were_said_to_be_running() -> None:
    earlier = [running(1), use("one", 2), answered("one", 3, "running"), use("two", 4), answered("two", 5)]
    later = [running(6), use("three", 7), answered("three", 8, "running"), answered("three", 9)]
    message = seen(*earlier, *later)[-1]
    assert message["running"] == ["one"]
    assert tuple(HERM.decode_server(message)) == (OutcomesOwed(("one",)),)


def test_a_history_is_read_in_the_order_of_its_numbers() -> None:
    assert seen(use("one", 2), {"type": "odd"}, 1, running(1)) == (
        running(1),
        use("one", 2),
        {"type": "history", "waiting": ["one"]},
    )


def test_an_approval_that_is_asked_for_is_told_again_and_words_are_not() -> None:
    asked = envelope("agent.approval_request", 3, tool_use_id="one")
    spoken = envelope("agent.message", 2, content=said("Hello."))
    assert seen(running(1), spoken, asked) == (running(1), asked, {"type": "history", "waiting": []})


@pytest.mark.parametrize("after", [envelope("user.tool_confirmation", 4, tool_use_id="one"), answered("one", 4)])
def test_an_approval_that_was_decided_is_told_no_more(after: Message) -> None:
    asked = envelope("agent.approval_request", 3, tool_use_id="one")
    assert seen(running(1), asked, after) == (running(1), {"type": "history", "waiting": []})


def test_a_call_that_was_approved_waits() -> None:
    asked = envelope("agent.approval_request", 3, tool_use_id="one")
    decided = envelope("user.tool_confirmation", 4, tool_use_id="one")
    history = {"type": "history", "waiting": ["one"]}
    assert seen(running(1), asked, decided, use("one", 5)) == (running(1), use("one", 5), history)


@pytest.mark.parametrize(
    "end", [idle({"type": "end_turn"}, 4), idle({"type": "error"}, 4), envelope("user.interrupt", 4)]
)
def test_what_nobody_waits_for_since_the_turn_has_ended_is_told_no_more(end: Message) -> None:
    asked = envelope("agent.approval_request", 3, tool_use_id="two")
    assert seen(running(1), use("one", 2), asked, end) == (running(1), end, {"type": "history", "waiting": []})


def test_an_empty_history_says_that_nothing_waits() -> None:
    assert seen() == ({"type": "history", "waiting": []},)


def test_an_event_of_the_stream_is_told_as_it_is() -> None:
    assert HERM.seen(use(), "any") == Heard((use(),))
    assert HERM.seen({}) == Heard(({},))


@patient
@given(history=JSON)
def test_whatever_a_history_holds_is_read(history: object) -> None:
    for message in HERM.seen({"data": history}).messages:
        assert tuple(HERM.decode_server(message))
        HERM.pending(message)


@pytest.mark.parametrize(
    ("message", "waiting"),
    [
        ({"type": "history", "waiting": ["one", 2]}, {"one"}),
        (idle({"type": "end_turn"}), set()),
        (idle({"type": "error"}), set()),
        (idle({"type": "requires_action", "event_ids": ["one"]}), None),
        (running(1), None),
        (use(), None),
    ],
)
def test_a_message_says_which_calls_wait(message: Message, waiting: set[str] | None) -> None:
    assert HERM.pending(message) == waiting


# -------------------------------------------------------------------------------------- names that are not documented


def test_names_that_are_not_documented_can_be_changed() -> None:
    dialect = HermDialect(Payloads(name="tool", input="arguments", decision="verdict", allow="yes", custom="client"))
    called = envelope("agent.custom_tool_use", tool_use_id="one", tool="transcode", arguments={"a": 1})
    assert tuple(dialect.decode_server(called)) == (ToolCalled(ToolCall("one", "transcode", '{"a":1}')),)
    assert dialect.decision("one", allowed=True)["events"][0]["verdict"] == "yes"
    assert dialect.agent({}, [ToolSpec("transcode")])["tools"][0]["type"] == "client"


def test_an_approval_is_answered_with_a_confirmation() -> None:
    told = {"type": "user.tool_confirmation", "tool_use_id": "one", "result": "deny"}
    assert DIALECT.decision("one", allowed=False) == {"events": [told]}


def test_an_agent_declares_our_tools_beside_its_own() -> None:
    spec = ToolSpec("transcode", "Makes it smaller.", extra=(("permissionPolicy", '{"type":"always_ask"}'),))
    declared = DIALECT.agent({"name": "clerk", "tools": [{"type": "agent_toolset"}]}, [spec, ToolSpec("any", "", "1")])
    assert declared == {
        "name": "clerk",
        "tools": [
            {"type": "agent_toolset"},
            {
                "type": "custom",
                "name": "transcode",
                "description": "Makes it smaller.",
                "input_schema": {"type": "object", "properties": {}},
                "permissionPolicy": {"type": "always_ask"},
            },
            {"type": "custom", "name": "any", "description": "", "input_schema": 1},
        ],
    }


# ---------------------------------------------------------------------------------------------------------- over HTTP


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        (CREATE, Request("POST", "/agents/agent%2F1/sessions", {"title": "Film"})),
        (ATTACH, Request("GET", "/sessions/session_7")),
        (ANSWER, Request("POST", "/sessions/a%2Fb/events", {"events": [result()]})),
        ({"leave": {}}, None),
    ],
)
def test_a_message_is_sent_by(message: Message, request_: Request | None) -> None:
    assert HERM.request("a/b", message) == request_


def test_the_session_is_listened_to_and_its_history_looked_at() -> None:
    assert HERM.read("session_7", "") == Request("GET", "/sessions/session_7/events/stream", streams=True)
    assert HERM.look("session_7") == Request("GET", "/sessions/session_7/events")


@pytest.mark.parametrize(
    ("message", "status", "outcome"),
    [
        (ANSWER, 202, Outcome.DELIVERED),
        (ANSWER, 410, Outcome.ANSWERED),
        (ANSWER, 404, Outcome.OVER),
        (ANSWER, 429, Outcome.RETRY),
        (ANSWER, 0, Outcome.CONFIRM),
        (ANSWER, 503, Outcome.CONFIRM),
        (ANSWER, 400, Outcome.REFUSED),
        (FINAL, 0, Outcome.RETRY),
        (FINAL, 503, Outcome.RETRY),
        (MESSAGE, 503, Outcome.CONFIRM),
        (MESSAGE, 409, Outcome.LATER),
        (CREATE, 404, Outcome.REFUSED),
        (CREATE, 503, Outcome.RETRY),
        (ATTACH, 404, Outcome.OVER),
        ({}, 0, Outcome.RETRY),
    ],
)
def test_an_answer_means(message: Message, status: int, outcome: Outcome) -> None:
    assert HERM.judge(message, status, {}) is outcome


def test_a_session_that_was_created_or_found_is_told() -> None:
    body = {"id": "session_7", "agentId": "agent_1"}
    for message in (CREATE, ATTACH):
        assert HERM.answered(message, 201, body) == Heard((body,), session_id="session_7")
    assert HERM.answered(CREATE, 201, {}) == Heard()
    assert HERM.answered(ANSWER, 202, {}) == Heard()


def test_a_refusal_is_told_in_words_of_the_provider() -> None:
    body = {"error": {"code": "invalid_request", "message": "No.", "retryable": False}}
    told = {"status": 400, "code": "invalid_request", "message": "No.", "setup": False}
    assert HERM.answered(ANSWER, 400, body) == Heard(({"refused": told},))
    bare = {"status": 400, "code": "", "message": "", "setup": True}
    assert HERM.answered(CREATE, 400, {"error": "No."}) == Heard(({"refused": bare},), over=True)


def test_leaving_is_the_end_of_what_is_heard() -> None:
    assert HERM.answered({"leave": {}}, 200, {}) == Heard(({"leave": {}},), over=True)


def test_in_place_of_a_refused_result_its_call_is_answered_with_a_failure() -> None:
    other = HERM.instead(ANSWER)
    assert other is not None
    assert (other["call"], other["events"][0]["status"]) == ("custom_toolu_9", "failed")
    assert HERM.instead(other) is None
    assert HERM.instead(FINAL) is None


def test_an_answer_is_known_by_its_call_and_an_outcome_is_not() -> None:
    (answer,) = HERM.encode_client(ToolResults((ToolResult("custom_toolu_9", '{"size":3}'),)))
    assert answer == ANSWER
    assert HERM.answers(answer) == "custom_toolu_9"
    assert HERM.answers(FINAL) == ""


def test_tools_that_are_served_from_now_on_are_nobodys_business_but_ours() -> None:
    serving: Message = {"serve": ["a"]}
    assert HERM.answered(serving, 200, {}) == Heard((serving,))
    assert tuple(HERM.decode_server(serving)) == (SetupAccepted(message=serving),)


def test_reading_the_session_tells_what_was_missed() -> None:
    assert HERM.missed("s1") is None
