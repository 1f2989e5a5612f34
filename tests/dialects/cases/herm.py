"""The tables for Herm. They rest on reading alone: there is no client for Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.core.dialect import Endpoint, Message
from bridge.core.events import (
    ApprovalAnswer,
    ApprovalWanted,
    CallKey,
    EndSession,
    Failure,
    FollowUp,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    Resume,
    SessionReady,
    Setup,
    ToolCall,
    ToolCalled,
    ToolResult,
    ToolResults,
    ToolSpec,
    Transcript,
)
from bridge.dialects.herm import HERM

from ..conformance import Asks, Cases, Means, Says


def envelope(kind: str, sequence: int = 7, **payload: object) -> Message:
    return {
        "id": f"evt_{sequence}",
        "type": kind,
        "sessionId": "session_7",
        "sequence": sequence,
        "payload": {"type": kind, **payload},
    }


def use(call_id: object = "custom_toolu_9", sequence: int = 7, **fields: object) -> Message:
    told = {"name": "transcode", "input": {"file": "a.mov"}, **fields}
    return envelope("agent.custom_tool_use", sequence, tool_use_id=call_id, **told)


def idle(reason: object, sequence: int = 7) -> Message:
    return envelope("session.status_idle", sequence, stop_reason=reason)


def said(text: str) -> list[Message]:
    return [{"type": "text", "text": text}]


def _refused(status: object, **fields: object) -> Message:
    return {"refused": {"status": status, "code": "", "message": "No.", **fields}}


_BROKEN = (Malformed("agent.custom_tool_use without its id or its tool"),)

SERVER: Means = {
    "a session": ({"id": "session_7", "agentId": "agent_1", "status": "idle"}, (SessionReady("session_7"),)),
    "a turn begins, or goes on": (envelope("session.status_running"), (ReplyStarted("evt_7"),)),
    "a tool is called": (use(), (ToolCalled(ToolCall("custom_toolu_9", "transcode", '{"file":"a.mov"}')),)),
    "a tool is called without arguments": (
        use(input=None),
        (ToolCalled(ToolCall("custom_toolu_9", "transcode", "{}")),),
    ),
    "a tool is called with arguments that cannot be written": (
        use(input="\ud800"),
        (ToolCalled(ToolCall("custom_toolu_9", "transcode", "<cannot be written as JSON>")),),
    ),
    "a call without an id": (use(None), _BROKEN),
    "a call without a tool": (use(name=None), _BROKEN),
    "a call without a payload": ({"type": "agent.custom_tool_use"}, _BROKEN),
    "a turn waits": (
        idle({"type": "requires_action", "event_ids": ["custom_toolu_9"]}),
        (ProviderMessage("session.status_idle"),),
    ),
    "a turn ends": (idle({"type": "end_turn"}), (ReplyDone(),)),
    "a turn ends for a reason nobody knows": (idle({"type": "tired"}), (ReplyDone(),)),
    "a turn fails": (
        idle({"type": "error", "message": "no model"}),
        (ProviderFailed("turn_failed", "no model"), ReplyDone(True)),
    ),
    "a turn ends without a reason": (idle(None), (Malformed("session.status_idle without a stop_reason"),)),
    "a turn is interrupted": (envelope("user.interrupt"), (ReplyDone(True),)),
    "words of the agent": (
        envelope("agent.message", content=[*said("Hel"), 1, *said("lo.")], delta=False),
        (Transcript("agent", "Hello.", final=True, item_id="evt_7"),),
    ),
    "a piece of the agent's words": (
        envelope("agent.message", content=said("Hel"), delta=True),
        (Transcript("agent", "Hel", item_id="evt_7"),),
    ),
    "no words at all": (envelope("agent.message"), (Transcript("agent", "", final=True, item_id="evt_7"),)),
    "an approval is asked for, which is no order": (
        envelope("agent.approval_request", tool_use_id="custom_toolu_9", name="transcode", input={"file": "a.mov"}),
        (ApprovalWanted(ToolCall("custom_toolu_9", "transcode", '{"file":"a.mov"}')),),
    ),
    "an approval is asked for, of nothing": (
        envelope("agent.approval_request", tool_use_id="custom_toolu_9"),
        (Malformed("agent.approval_request without its id or its tool"),),
    ),
    "a patch": (
        {"type": "session.tool_updated", "sessionId": "session_7", "payload": {"event_id": "evt_3"}},
        (ProviderMessage("session.tool_updated"),),
    ),
    "the calls that wait": ({"type": "history", "waiting": ["custom_toolu_9"]}, (ProviderMessage("history"),)),
    "a key that is not accepted": (
        _refused(401, code="unauthorized", setup=True),
        (ProviderFailed("unauthorized", "No.", fatal=True, kind=Failure.CREDENTIALS),),
    ),
    "no room": (_refused(429), (ProviderFailed("http_429", "No.", fatal=True, kind=Failure.CAPACITY),)),
    "no such session": (_refused(404), (ProviderFailed("http_404", "No.", fatal=True, kind=Failure.RESUME),)),
    "a setup that is refused": (
        _refused(400, setup=True),
        (ProviderFailed("http_400", "No.", fatal=True, kind=Failure.SETUP),),
    ),
    "a message that is refused": (_refused(409, code="session_busy"), (ProviderFailed("session_busy", "No."),)),
    "a session that was left": ({"leave": {}}, (ProviderEnded(),)),
    "no event at all": ({"id": 3}, (Malformed("the message is neither an event nor a session"),)),
}


def result(text: str = '{"size":3}', status: str = "completed") -> Message:
    return {
        "type": "user.custom_tool_result",
        "tool_use_id": "custom_toolu_9",
        "content": said(text),
        "status": status,
        "is_error": status == "failed",
    }


def post(*events: Message, **fields: str) -> Message:
    return {"events": list(events), **fields}


CLIENT: Asks = {
    "a session under an agent": ({"create": {"agent_id": "agent_1"}, "serve": ["a", 1]}, (Setup(("a",)),)),
    "a session that is there": ({"attach": "session_7"}, (Setup(()),)),
    "a result": (
        post(result("done"), 1),  # type: ignore[arg-type]  # what an application may say, too
        (ToolResults((ToolResult("custom_toolu_9", '"done"'),)),),
    ),
    "a failure": (
        post(result("no", "failed")),
        (ToolResults((ToolResult("custom_toolu_9", '"no"', is_error=True),)),),
    ),
    "a kickoff": (
        post(result("begun", "running")),
        (ToolResults((ToolResult("custom_toolu_9", '"begun"', interim=True),)),),
    ),
    "a message": (post({"type": "user.message", "content": said("Go on.")}), (ReplyRequest("Go on."),)),
    "a decision": (
        post({"type": "user.tool_confirmation", "tool_use_id": "one", "result": "allow"}),
        (ApprovalAnswer("one", allowed=True),),
    ),
    "a decision that nobody understands": (
        post({"type": "user.tool_confirmation", "tool_use_id": "one", "verdict": "allow"}),
        (ApprovalAnswer("one", allowed=False),),
    ),
    "a word for the turn that runs": (post({"type": "user.steer", "message": "Left."}), ()),
    "other tools to be served": ({"serve": ["a"]}, (Setup(("a",)),)),
    "leaving": ({"leave": {}}, (EndSession(),)),
    "anything else": ({"archive": {}}, ()),
}


def _answer(answer: ToolResult, event: Message) -> tuple[ToolResults, tuple[Message, ...]]:
    return ToolResults((answer,)), (post(event, call="custom_toolu_9"),)


_LONG = "x" * 20_000
_TOO_LONG = "The result is larger than 2,000,000 characters, and cannot be delivered."

SAID: Says = {
    "an approval": (
        ApprovalAnswer("one", allowed=True),
        (post({"type": "user.tool_confirmation", "tool_use_id": "one", "result": "allow"}),),
    ),
    "a refusal": (
        ApprovalAnswer("one", allowed=False),
        (post({"type": "user.tool_confirmation", "tool_use_id": "one", "result": "deny"}),),
    ),
    "results, one by one": (
        ToolResults((ToolResult("custom_toolu_9", '{"size":3}'), ToolResult("other", ""))),
        (
            post(result(), call="custom_toolu_9"),
            post({**result(""), "tool_use_id": "other"}, call="other"),
        ),
    ),
    "a failure": _answer(
        ToolResult("custom_toolu_9", '{"error":"no codec"}', is_error=True), result("no codec", "failed")
    ),
    "that it is running": _answer(ToolResult("custom_toolu_9", '"begun"', interim=True), result('"begun"', "running")),
    "a long result": _answer(
        ToolResult("custom_toolu_9", _LONG + "y"), {**result(), "content": [*said(_LONG), *said("y")]}
    ),
    "a result that is too long": _answer(ToolResult("custom_toolu_9", "x" * 2_000_001), result(_TOO_LONG, "failed")),
    "an outcome": (
        FollowUp(CallKey(3, "custom_toolu_9"), ToolResult("custom_toolu_9", '{"size":3}')),
        (post(result()),),
    ),
    "an outcome that is a failure": (
        FollowUp(CallKey(3, "custom_toolu_9"), ToolResult("custom_toolu_9", '"no codec"', is_error=True)),
        (post(result("no codec", "failed")),),
    ),
    "a request to speak": (
        ReplyRequest("Say hello."),
        (post({"type": "user.message", "content": said("Say hello.")}),),
    ),
    "a request to speak about nothing": (ReplyRequest(), ()),
    "going on": (Resume("session_7"), ()),
    "a setup": (Setup(("a",)), ()),
    "the end": (EndSession(), ({"leave": {}},)),
}

_PLAIN = ToolSpec("plain", "A plain tool.")
_CREATE = {"create": {"agent_id": "agent_1", "title": "Film"}}

SETUPS: dict[str, tuple[Message, Sequence[ToolSpec], Message]] = {
    "a session under an agent": (_CREATE, [_PLAIN, _PLAIN], {**_CREATE, "serve": ["plain"]}),
    "a session that is there": (
        {"attach": "session_7", "serve": ["theirs", "plain"]},
        [_PLAIN, ToolSpec("more")],
        {"attach": "session_7", "serve": ["theirs", "plain", "more"]},
    ),
    "nothing to add": (_CREATE, [], _CREATE),
    "a list that is none": ({**_CREATE, "serve": "all"}, [_PLAIN], {**_CREATE, "serve": "all"}),
    "no setup": ({"leave": {}}, [_PLAIN], {"leave": {}}),
}

REPLACEMENTS: dict[str, tuple[Message, Sequence[ToolSpec], Message | None]] = {
    "a session keeps the version of its agent": (_CREATE, [_PLAIN], None),
    "a session that was there is served by others": ({"attach": "session_7"}, [_PLAIN], {"serve": ["plain"]}),
}

_KEY = (("x-api-key", "key"),)

ENDPOINTS = {
    "the provider's own address": ("", "key", Endpoint("https://api.herm.run/v1", _KEY, "http")),
    "another address": ("http://127.0.0.1:1/", "key", Endpoint("http://127.0.0.1:1/v1", _KEY, "http")),
    "no key": ("http://127.0.0.1:1", "", Endpoint("http://127.0.0.1:1/v1", (), "http")),
}


def _setup_with(entries: Sequence[Any]) -> Message:
    return {"odd": None, "create": {"agent_id": "agent_1", "odd": [1]}, "serve": list(entries), "last": {}}


CASES = Cases(
    dialect=HERM,
    server=SERVER,
    client=CLIENT,
    said=SAID,
    setups=SETUPS,
    replacements=REPLACEMENTS,
    endpoints=ENDPOINTS,
    audio=None,
    setup_with=_setup_with,
    entry=lambda name: name,
    tools_of=lambda setup: setup["serve"],
)
