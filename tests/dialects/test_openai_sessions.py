"""What is particular to OpenAI Agent Sessions: how messages go over HTTP, and what the answers mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.core.dialect import Message
from bridge.core.events import (
    ApprovalAnswer,
    ProviderMessage,
    ReplyDone,
    ReplyStarted,
    ServerEvent,
    SetupAccepted,
    ToolResult,
    ToolResults,
    ToolSpec,
)
from bridge.core.http import Heard, Outcome, Request
from bridge.dialects.openai_sessions import OPENAI_SESSIONS, user_message

from .conformance import JSON, patient

CREATE = {"create": {"environment": {"type": "none"}}}
ATTACH = {"attach": "sess_9"}
UPDATE = {"agent": {"tools": []}}
MESSAGE = user_message("Hello")
CANCEL = {"events": [{"type": "agent.session.input.cancel"}]}
(RESULT,) = OPENAI_SESSIONS.encode_client(
    ToolResults((ToolResult("turn_4/c1", '{"a":1}', echo=(("turn_id", "turn_4"),)),))
)
(DECISION,) = OPENAI_SESSIONS.encode_client(ApprovalAnswer("r1", allowed=True))
SESSION = {"object": "agent.session", "id": "sess_9", "status": "requires_action"}


def error(code: str = "conflict_error", message: str = "No.") -> Message:
    return {"error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("message", "request_"),
    [
        (CREATE, Request("POST", "/agents/sessions", CREATE["create"])),
        (ATTACH, Request("GET", "/agents/sessions/sess_9")),
        (UPDATE, Request("POST", "/agents/sessions/a%2Fb", UPDATE)),
        (MESSAGE, Request("POST", "/agents/sessions/a%2Fb/events", MESSAGE, keyed=True)),
        ({"leave": {}}, None),
        ({"serve": ["a"]}, None),
    ],
)
def test_a_message_is_sent_by(message: Message, request_: Request | None) -> None:
    assert OPENAI_SESSIONS.request("a/b", message) == request_


def test_the_session_is_listened_to_and_looked_at_by_its_id() -> None:
    path = "/agents/sessions/sess_9"
    assert OPENAI_SESSIONS.look("sess_9") == Request("GET", path)
    assert OPENAI_SESSIONS.read("sess_9", "") == Request(
        "GET", f"{path}/events?include_obfuscation=false", streams=True
    )


RACE = error("invalid_request_error", "Unknown pending tool call: c1")


@pytest.mark.parametrize(
    ("message", "status", "body", "outcome"),
    [
        (RESULT, 202, {}, Outcome.DELIVERED),
        ({}, 200, SESSION, Outcome.DELIVERED),
        # Unknown: a result is confirmed first, a message comes again under its key.
        (RESULT, 0, {}, Outcome.CONFIRM),
        (RESULT, 503, error(), Outcome.CONFIRM),
        (RESULT, 409, error("idempotency_conflict"), Outcome.CONFIRM),
        (RESULT, 400, RACE, Outcome.CONFIRM),
        (MESSAGE, 0, {}, Outcome.RETRY),
        (CANCEL, 500, error(), Outcome.RETRY),
        ({"events": [*RESULT["events"], *RESULT["events"]]}, 0, {}, Outcome.RETRY),
        ({}, 0, {}, Outcome.RETRY),
        # Not taken.
        (RESULT, 429, error(), Outcome.RETRY),
        (CREATE, 429, error(), Outcome.RETRY),
        (RESULT, 408, {}, Outcome.RETRY),
        (RESULT, 401, {}, Outcome.RETRY),
        # Wanted no more.
        (RESULT, 409, error(), Outcome.ANSWERED),
        (RESULT, 409, {}, Outcome.ANSWERED),
        (DECISION, 409, error(), Outcome.ANSWERED),
        (DECISION, 503, error(), Outcome.CONFIRM),
        # Refused.
        (RESULT, 400, error("invalid_request_error"), Outcome.REFUSED),
        (RESULT, 413, {}, Outcome.REFUSED),
        (MESSAGE, 409, error(), Outcome.REFUSED),
        (UPDATE, 400, error("invalid_request_error"), Outcome.REFUSED),
        (CREATE, 503, error(), Outcome.REFUSED),
        (CREATE, 0, {}, Outcome.REFUSED),
        (ATTACH, 404, error("not_found_error"), Outcome.REFUSED),
        # Over.
        (RESULT, 404, error("not_found_error"), Outcome.OVER),
        ({}, 401, error("unauthorized"), Outcome.OVER),
        ({}, 403, {}, Outcome.OVER),
        ({}, 400, {}, Outcome.OVER),
    ],
)
def test_an_answer_means(message: Message, status: int, body: Message, outcome: Outcome) -> None:
    assert OPENAI_SESSIONS.judge(message, status, body) is outcome


@pytest.mark.parametrize(
    ("message", "status", "body", "heard"),
    [
        (CREATE, 200, SESSION, Heard(({"type": "agent.session.created", "session": SESSION},), "sess_9")),
        (ATTACH, 200, SESSION, Heard(({"type": "agent.session.created", "session": SESSION},), "sess_9")),
        (
            {**ATTACH, "serve": ["a"]},
            200,
            SESSION,
            Heard(({"type": "agent.session.created", "session": SESSION, "serve": ["a"]},), "sess_9"),
        ),
        ({"serve": ["a"]}, 200, {}, Heard(({"type": "agent.session.served"},))),
        (UPDATE, 200, SESSION, Heard(({"type": "agent.session.updated", "session": SESSION},))),
        (MESSAGE, 202, {}, Heard()),
        ({"leave": {}}, 200, {}, Heard(({"type": "agent.session.left"},), over=True)),
        (CREATE, 400, error(), Heard(({"type": "error", **error(), "about": "setup"},))),
        (MESSAGE, 409, error(), Heard(({"type": "error", **error(), "about": "input"},))),
        ({}, 404, error(), Heard(({"type": "error", **error(), "about": "session"},))),
    ],
)
def test_an_answer_tells(message: Message, status: int, body: Message, heard: Heard) -> None:
    assert OPENAI_SESSIONS.answered(message, status, body) == heard


@pytest.mark.parametrize(("status", "code"), [(0, "no_answer"), (502, "http_502")])
def test_an_answer_without_an_error_is_told_by_its_status(status: int, code: str) -> None:
    (message,) = OPENAI_SESSIONS.answered(CREATE, status, {}).messages
    assert message["error"]["code"] == code


def test_a_session_that_is_read_tells_what_its_event_would() -> None:
    assert OPENAI_SESSIONS.seen(SESSION) == Heard(({"type": "agent.session.requires_action", "session": SESSION},))
    event = {"type": "agent.session.idle", "session": {}}
    assert OPENAI_SESSIONS.seen(event) == Heard((event,))


def test_that_a_session_reads_as_idle_says_nothing_about_its_turn() -> None:
    idle = {**SESSION, "status": "idle"}
    (message,) = OPENAI_SESSIONS.seen(idle).messages
    assert tuple(OPENAI_SESSIONS.decode_server(message)) == (ProviderMessage("agent.session.read"),)


@pytest.mark.parametrize(
    ("status", "meant"),
    [
        ("queued", ReplyStarted("turn_4")),
        ("waiting", ReplyStarted("turn_4")),
        ("in_progress", ReplyStarted("turn_4")),
        ("completed", ReplyDone(reply_id="turn_4")),
        ("cancelled", ReplyDone(True, "turn_4")),
    ],
)
def test_the_latest_turn_is_read_on_every_new_stream_and_tells_how_it_stands(status: str, meant: ServerEvent) -> None:
    request = OPENAI_SESSIONS.missed("sess_9")
    assert request == Request("GET", "/agents/sessions/sess_9/turns?limit=1&order=desc")
    latest = {"object": "list", "data": [{"id": "turn_4", "status": status, "subagent_id": None}]}
    (message,) = OPENAI_SESSIONS.seen(latest).messages
    assert tuple(OPENAI_SESSIONS.decode_server(message)) == (meant,)
    assert OPENAI_SESSIONS.seen({"object": "list", "data": []}) == Heard()


def function(name: str, **fields: object) -> Message:
    return {"type": "function", "name": name, **fields}


OTHER, DEFERRED, MCP = function("b"), function("c", defer_loading=True), {"type": "mcp", "server_label": "m"}
SEARCH = {"type": "tool_search"}


@pytest.mark.parametrize(
    ("listed", "kept"),
    [
        ([function("a"), OTHER, MCP, 1], [OTHER, MCP, 1]),
        ([function("a"), DEFERRED], [DEFERRED, SEARCH]),
        ([SEARCH, DEFERRED], [SEARCH, DEFERRED]),
        ([function("a", defer_loading=True)], []),
    ],
)
def test_the_tools_of_a_session_that_was_running_stay_when_ours_are_replaced(
    listed: list[Any], kept: list[Any]
) -> None:
    created = {"type": "agent.session.created", "session": {"agent": {"tools": listed}}, "serve": ["a"]}
    accepted = next(iter(OPENAI_SESSIONS.decode_server(created)))
    assert isinstance(accepted, SetupAccepted)
    assert accepted.setup == {"agent": {"tools": kept}}
    replacement = OPENAI_SESSIONS.replace_tools(accepted.setup, [ToolSpec("a", "New.")])
    assert replacement is not None
    *theirs, ours = replacement["agent"]["tools"]
    assert (theirs, ours["name"], ours["description"]) == (kept, "a", "New.")


@pytest.mark.parametrize("session", [{}, {"agent": {}}, {"agent": {"tools": "all"}}])
def test_a_session_that_does_not_list_its_tools_keeps_them(session: Message) -> None:
    created = {"type": "agent.session.created", "session": session, "serve": ["a"]}
    accepted = next(iter(OPENAI_SESSIONS.decode_server(created)))
    assert isinstance(accepted, SetupAccepted)
    assert accepted.setup is None


def test_nothing_follows_when_a_session_has_failed() -> None:
    assert OPENAI_SESSIONS.seen({**SESSION, "status": "failed"}).over
    assert OPENAI_SESSIONS.seen({"type": "agent.session.failed"}).over


def test_a_post_answers_the_call_of_its_only_result() -> None:
    assert OPENAI_SESSIONS.answers(RESULT) == "turn_4/c1"
    assert OPENAI_SESSIONS.answers({"events": RESULT["events"] * 2}) == ""
    assert OPENAI_SESSIONS.answers(MESSAGE) == ""
    assert OPENAI_SESSIONS.answers(DECISION) == "approval/r1"


def test_the_calls_that_wait_are_those_of_the_required_actions() -> None:
    call = {"type": "function_call", "turn_id": "turn_4", "call_id": "c1"}
    actions: list[Any] = [call, {"type": "mcp_approval_request", "request_id": "r1"}, {"type": "other"}, 1]
    event = {"type": "agent.session.requires_action", "session": {"required_actions": actions}}
    assert OPENAI_SESSIONS.pending(event) == {"turn_4/c1", "approval/r1"}
    assert OPENAI_SESSIONS.pending({"type": "agent.session.turn.created"}) is None


def test_in_place_of_a_refused_result_a_failure_is_sent_once() -> None:
    other = OPENAI_SESSIONS.instead(RESULT)
    assert other is not None
    assert OPENAI_SESSIONS.answers(other) == OPENAI_SESSIONS.answers(RESULT)
    assert other["events"][0]["success"] is False
    assert OPENAI_SESSIONS.instead(other) is None
    assert OPENAI_SESSIONS.instead(MESSAGE) is None


@patient
@given(
    st.dictionaries(
        st.sampled_from(["events", "create", "attach", "session", "error", "type", "status", "object", "data"]), JSON
    )
)
@example({"attach": "\ud800"})
def test_whatever_comes_over_http_is_read(body: dict[str, Any]) -> None:
    for message in (body, RESULT, {}):
        for status in (0, 200, 400, 409, 500):
            assert OPENAI_SESSIONS.judge(message, status, body)
            OPENAI_SESSIONS.answered(message, status, body)
        OPENAI_SESSIONS.request("s", message)
    OPENAI_SESSIONS.seen(body)
    OPENAI_SESSIONS.answers(body)
    OPENAI_SESSIONS.pending(body)
    OPENAI_SESSIONS.instead(body)


def test_of_a_setup_that_names_no_agent_no_tools_can_be_replaced() -> None:
    assert OPENAI_SESSIONS.replace_tools({}, [ToolSpec("a", "New.")]) is None
