"""What calls, answers, tools and histories look like in each API, without any of them being run."""

from __future__ import annotations

import copy
from typing import Any, Literal

import pytest
from anthropic.types import Message, TextBlock, ThinkingBlock, ToolUseBlock, Usage
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

from bridge import ToolCall, ToolResult, Toolset
from bridge.core.events import ToolSpec
from bridge.message_loop import ApiName, MessageLoop
from bridge.message_loop.anthropic import AnthropicMessages
from bridge.message_loop.api import MessageApi, Reading
from bridge.message_loop.chat import OpenAIChat
from bridge.message_loop.responses import OpenAIResponses

from .rig import APIS

KINDS: dict[ApiName, MessageApi] = {
    "anthropic": AnthropicMessages(),
    "responses": OpenAIResponses(),
    "chat": OpenAIChat(),
}
LOST = "the call was interrupted before it ended; whether it took effect is not known"

# ------------------------------------------------------------------------------------------------------------- calls


def asked(reading: Reading) -> dict[str, str]:
    """By id, why a call must not be run."""
    return {each.call.call_id: each.unfit for each in reading.asked}


def use(call_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "find", "input": {}, **more}


def function(call_id: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": "find",
        "arguments": "{}",
        **more,
    }


def chat_call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "find", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (None, ""),
        ("tool_use", ""),
        ("max_tokens", "the call was not run, because the reply ended with max_tokens"),
        ("refusal", "the call was not run, because the reply ended with refusal"),
        ("something_new", "the call was not run, because the reply ended with something_new"),
    ],
)
def test_anthropics_calls_are_run_only_if_the_reply_ended_because_of_them(stop: str | None, why: str) -> None:
    message = {"role": "assistant", "content": [use("c1")], "stop_reason": stop}
    assert asked(AnthropicMessages().read(message)) == {"c1": why}


@pytest.mark.parametrize("stop", ["pause_turn", "compaction"])
def test_a_turn_that_goes_on_is_sent_back_without_results(stop: str) -> None:
    message = {"role": "assistant", "content": [use("c1")], "stop_reason": stop}
    assert asked(AnthropicMessages().read(message)) == {}


def test_what_is_no_call_for_the_client_is_passed_by() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "text", "text": "Let me look."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        use("t1", toolset_name="browser"),
        use("c1", toolset_name=None),
        "no block at all",
    ]
    assert asked(AnthropicMessages().read({"role": "assistant", "content": blocks})) == {"c1": ""}
    kinds = ("reasoning", "message", "web_search_call", "computer_call", "mcp_call", "mcp_approval_request")
    items = [*({"type": kind, "call_id": kind} for kind in kinds), function("c1")]
    assert asked(OpenAIResponses().read({"output": items})) == {"c1": ""}


@pytest.mark.parametrize(
    ("response", "item", "runs"),
    [
        ("completed", "completed", True),
        ("completed", None, True),
        (None, "completed", True),
        ("completed", "incomplete", False),
        ("incomplete", "completed", True),
        ("incomplete", None, False),
        ("incomplete", "in_progress", False),
        ("failed", "completed", True),
    ],
)
def test_of_a_response_that_is_cut_off_only_whole_calls_are_run(
    response: str | None, item: str | None, runs: bool
) -> None:
    why = "" if runs else "the call was not run, because the reply was cut off before it was complete"
    reading = OpenAIResponses().read({"status": response, "output": [function("c1", status=item)]})
    assert asked(reading) == {"c1": why}


@pytest.mark.parametrize(("stop", "runs"), [("tool_calls", True), ("stop", True), ("length", False)])
def test_chat_calls_are_not_run_if_the_reply_was_cut_off(stop: str, runs: bool) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [chat_call("c1")]}
    choices = [{"finish_reason": stop, "message": message}, {"message": {"tool_calls": [chat_call("c2")]}}]
    why = "" if runs else "the call was not run, because the reply ended with length"
    assert asked(OpenAIChat().read({"id": "chatcmpl-1", "choices": choices})) == {"c1": why}


def test_arguments_and_what_has_to_be_given_back_come_with_the_call() -> None:
    caller = {"type": "program", "caller_id": "p1"}
    item = function("c1", caller=caller, namespace="crm")
    (one,) = OpenAIResponses().read({"id": "resp_1", "output": [item]}).asked
    echo = (("caller", '{"type":"program","caller_id":"p1"}'), ("namespace", '"crm"'))
    assert one.call == ToolCall("c1", "find", "{}", echo=echo)
    (answer,) = OpenAIResponses().answer([ToolResult("c1", "1", echo=echo)])
    assert answer == {
        "type": "function_call_output", "call_id": "c1", "output": "1", "caller": caller, "namespace": "crm"
    }  # fmt: skip


def test_custom_calls_are_answered_in_their_own_form() -> None:
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"}
    (one,) = OpenAIResponses().read({"output": [item]}).asked
    assert (one.call.name, one.call.arguments) == ("sql", "select 1")
    (answer,) = OpenAIResponses().answer([ToolResult("c1", "1", echo=one.call.echo)])
    assert answer == {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"}
    call = {"id": "c2", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    (other,) = OpenAIChat().read({"role": "assistant", "tool_calls": [call]}).asked
    assert other.call == ToolCall("c2", "sql", "select 1")


def test_a_call_that_lacks_its_parts_is_still_one_to_be_answered() -> None:
    empty = ToolCall("c1", "", "")
    for strange in ({"id": "c1"}, {"id": "c1", "function": None}, {"id": "c1", "custom": {"name": "sql"}}):
        (one,) = OpenAIChat().read({"tool_calls": [strange]}).asked
        assert one.call == empty
    (one,) = AnthropicMessages().read({"role": "assistant", "content": [{"type": "tool_use", "id": "c1"}]}).asked
    assert one.call == ToolCall("c1", "", "null")
    assert OpenAIChat().read({"choices": [{"message": "none"}]}).asked == ()


KEYS = ("id", "role", "type", "content", "output", "choices", "message", "tool_calls", "function", "custom", "name")
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_reading_never_raises(response: dict[str, Any]) -> None:
    for api in KINDS.values():
        api.recognises(response)
        for each in api.read(response).asked:
            assert isinstance(each.call.call_id, str)


@given(st.text(st.characters(categories=["Cs", "Lu"]), max_size=5))
def test_whatever_characters_arguments_have_they_can_be_written_as_utf_8(text: str) -> None:
    for arguments in (text, {"ref": text}):
        call = {**chat_call("c1"), "function": {"name": "find", "arguments": arguments}}
        (one,) = OpenAIChat().read({"tool_calls": [call]}).asked
        one.call.arguments.encode()


# ----------------------------------------------------------------------------------------------------------- answers

PARTS = (
    '[{"type":"text","text":"A map."},{"type":"image","data":"AAAA","mimeType":"image/png"}]',
    {
        "anthropic": [
            {"type": "text", "text": "A map."},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        ],
        "responses": [
            {"type": "input_text", "text": "A map."},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"},
        ],
        "chat": [
            {"type": "text", "text": "A map."},
            {"type": "text", "text": "(an image, which cannot be shown here)"},
        ],
    },
)


def content(api: ApiName, output: str, *, is_error: bool = False) -> Any:
    (message,) = KINDS[api].answer([ToolResult("c1", output, is_error=is_error)])
    match api:
        case "anthropic":
            return message["content"][0]["content"]
        case "responses":
            return message["output"]
        case "chat":
            return message["content"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("output", "text"),
    [
        ('"shipped"', "shipped"),
        ('""', ""),
        ("null", "null"),
        ("0", "0"),
        ("false", "false"),
        ("{}", "{}"),
        ("[]", "[]"),
        ('{"at":"12:00"}', '{"at":"12:00"}'),
        ("[1]", "[1]"),
        ('[{"type":"person","text":"A"}]', '[{"type":"person","text":"A"}]'),
        ('[{"type":"text","text":"A","by":"B"}]', '[{"type":"text","text":"A","by":"B"}]'),
        ('[{"type":"text","text":"A"},1]', '[{"type":"text","text":"A"},1]'),
    ],
)
def test_text_is_given_as_it_is_and_anything_else_as_json(api: ApiName, output: str, text: str) -> None:
    assert content(api, output) == text


@pytest.mark.parametrize("api", APIS)
def test_parts_become_those_of_the_api(api: ApiName) -> None:
    output, parts = PARTS
    assert content(api, output) == parts[api]


@pytest.mark.parametrize("api", APIS)
def test_a_failure_is_a_sentence(api: ApiName) -> None:
    prefix = "" if api == "anthropic" else "ERROR: "
    assert content(api, '{"error":"No such order."}', is_error=True) == f"{prefix}No such order."
    assert content(api, '"strange"', is_error=True) == f'{prefix}"strange"'


def test_anthropics_results_are_one_message_and_failures_are_marked() -> None:
    results = [ToolResult("c2", "1"), ToolResult("c1", '{"error":"No."}', is_error=True)]
    assert AnthropicMessages().answer(results) == [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c2", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c1", "content": "No.", "is_error": True},
            ],
        }
    ]


@pytest.mark.parametrize("api", APIS)
def test_without_calls_nothing_is_answered(api: ApiName) -> None:
    assert KINDS[api].answer([]) == []


# ------------------------------------------------------------------------------------------------------------- tools


def definitions(api: ApiName, function: Any) -> dict[str, Any]:
    tools = Toolset()
    tools.tool(function)
    definition: dict[str, Any]
    (definition,) = MessageLoop(tools).definitions(api)
    return definition


def strict(ref: str, side: Literal["left", "right"], counts: list[int]) -> None:
    """All of it required."""


STRICT = {
    "type": "object",
    "properties": {
        "ref": {"type": "string"},
        "side": {"type": "string", "enum": ["left", "right"]},
        "counts": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["ref", "side", "counts"],
}


def test_a_tool_is_defined_as_each_api_wants_it() -> None:
    shared = {"name": "strict", "description": "All of it required."}
    closed = {**STRICT, "additionalProperties": False}
    assert definitions("anthropic", strict) == {**shared, "input_schema": STRICT}
    assert definitions("responses", strict) == {"type": "function", **shared, "parameters": closed, "strict": True}
    assert definitions("chat", strict) == {
        "type": "function", "function": {**shared, "parameters": closed, "strict": True}
    }  # fmt: skip


def optional(ref: str = "N-1") -> None:
    """May be left out."""


def test_what_strict_mode_cannot_be_told_is_told_without_it() -> None:
    assert definitions("responses", optional)["strict"] is False
    assert "strict" not in definitions("chat", optional)["function"]
    assert definitions("chat", optional)["function"]["parameters"]["properties"] == {
        "ref": {"type": "string", "default": "N-1"}
    }


def objects(depth: int) -> str:
    inner = objects(depth - 1) if depth > 1 else '{"type":"string"}'
    return f'{{"type":"object","properties":{{"a":{inner}}},"required":["a"]}}'


@pytest.mark.parametrize(
    ("inner", "fits"),
    [
        ('{"type":"string"}', True),
        ('{"type":["string","null"]}', True),
        ('{"anyOf":[{"type":"string"},{"type":"null"}]}', True),
        ('{"anyOf":[{"type":"string"},{}]}', False),
        ("{}", False),
        ("true", False),
        ('{"enum":["a"]}', False),
        ('{"type":"string","minLength":1}', False),
        ('{"type":"string","format":"date"}', True),
        ('{"type":"string","format":"binary"}', False),
        ('{"type":"object"}', False),
        ('{"type":["object","null"],"properties":{},"required":[]}', True),
        ('{"type":"object","properties":{},"additionalProperties":{"type":"string"}}', False),
        ('{"type":"array","items":{"type":"object","properties":{"b":{"type":"string"}}}}', False),
        (objects(4), True),
        (objects(5), False),
    ],
)
def test_strict_mode_is_used_where_the_schema_fits_it(inner: str, fits: bool) -> None:
    parameters = f'{{"type":"object","properties":{{"a":{inner}}},"required":["a"]}}'
    told = OpenAIResponses().define(ToolSpec("one", "", parameters))
    assert told["strict"] is fits


def test_a_union_at_the_top_is_laid_out_flat() -> None:
    parameters = '{"type":"object","anyOf":[{"properties":{"a":{"type":"string"}}},{"properties":{"b":{}}}]}'
    for api, field in ((AnthropicMessages(), "input_schema"), (OpenAIResponses(), "parameters")):
        assert "anyOf" not in api.define(ToolSpec("one", "", parameters))[field]


# ------------------------------------------------------------------------------------------------------------ repair

USER = {"role": "user", "content": "Are you there?"}


def result(call_id: str, text: str = "found", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, **more}


def lost(call_id: str) -> dict[str, Any]:
    return result(call_id, LOST, is_error=True)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


TWO = {"role": "assistant", "content": [text("Let me look."), use("c1"), use("c2")]}
SEEN = {"role": "assistant", "content": "It was found."}


@pytest.mark.parametrize(
    ("history", "repaired"),
    [
        ([USER, TWO], [USER, TWO, user(lost("c1"), lost("c2"))]),
        ([USER, TWO, USER], [USER, TWO, user(lost("c1"), lost("c2"), text("Are you there?"))]),
        (
            [USER, TWO, user(text("Well?"), result("c1"))],
            [USER, TWO, user(lost("c2"), result("c1"), text("Well?"))],
        ),
        ([USER, TWO, SEEN], [USER, TWO, user(lost("c1"), lost("c2")), SEEN]),
        (
            [TWO, user(result("c1"), result("c2")), TWO],
            [TWO, user(result("c1"), result("c2")), TWO, user(lost("c1"), lost("c2"))],
        ),
        ([TWO, user(result("c1")), user(result("c2"))], [TWO, user(result("c1")), user(result("c2"))]),
    ],
)
def test_anthropics_history_is_completed(history: list[Any], repaired: list[Any]) -> None:
    check_repair(history, repaired)


def output(call_id: str, text: str = "found") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
OWN = {"type": "message", "role": "assistant", "content": []}


@pytest.mark.parametrize(
    ("history", "repaired"),
    [
        ([USER, function("c1")], [USER, function("c1"), output("c1", f"ERROR: {LOST}")]),
        (
            [USER, REASONING, function("c1"), OWN, function("c2"), output("c2"), USER],
            [USER, REASONING, function("c1"), OWN, function("c2"), output("c1", f"ERROR: {LOST}"), output("c2"), USER],
        ),
        ([function("c1"), USER], [function("c1"), output("c1", f"ERROR: {LOST}"), USER]),
        ([function("c1"), USER, output("c1")], [function("c1"), USER, output("c1")]),
        ([function("c1", **{"async": True}), USER], [function("c1", **{"async": True}), USER]),
        (
            [function("c1"), function("c1"), USER],
            [function("c1"), function("c1"), output("c1", f"ERROR: {LOST}"), USER],
        ),
    ],
)
def test_the_history_of_responses_is_completed(history: list[Any], repaired: list[Any]) -> None:
    check_repair(history, repaired)


def tool(call_id: str, text: str = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


CALLS = {"role": "assistant", "content": None, "tool_calls": [chat_call("c1"), chat_call("c2")]}


@pytest.mark.parametrize(
    ("history", "repaired"),
    [
        ([USER, CALLS], [USER, CALLS, tool("c1", f"ERROR: {LOST}"), tool("c2", f"ERROR: {LOST}")]),
        ([CALLS, tool("c2"), USER], [CALLS, tool("c2"), tool("c1", f"ERROR: {LOST}"), USER]),
        ([CALLS, tool("c2"), tool("c1"), SEEN], [CALLS, tool("c2"), tool("c1"), SEEN]),
    ],
)
def test_the_history_of_a_chat_is_completed(history: list[Any], repaired: list[Any]) -> None:
    check_repair(history, repaired)


def check_repair(history: list[Any], repaired: list[Any]) -> None:
    before = copy.deepcopy(history)
    done = MessageLoop.repair(history)
    assert done == repaired
    assert history == before
    assert MessageLoop.repair(done) == done
    kept = [each for each in history if each in repaired]
    assert all(any(each is other for other in done) for each in kept)


def test_a_history_without_calls_is_left_as_it_is() -> None:
    history = [USER, SEEN]
    assert MessageLoop.repair(history) == history
    assert MessageLoop.repair(history, api="anthropic") == history
    assert MessageLoop.repair([]) == []


def test_vendors_objects_in_a_history_are_kept() -> None:
    blocks: list[Any] = [
        ThinkingBlock(type="thinking", thinking="Hm.", signature="s"),
        TextBlock(type="text", text="Let me look."),
        ToolUseBlock(type="tool_use", id="c1", name="find", input={}),
    ]
    message = Message(
        id="msg_1",
        type="message",
        role="assistant",
        model="m",
        content=blocks,
        usage=Usage(input_tokens=1, output_tokens=1),
    )
    turn = message.to_param()
    done = MessageLoop.repair([USER, turn, USER])
    assert done[1] is turn
    assert done[2] == user(lost("c1"), text("Are you there?"))

    reply = ChatCompletionMessage.model_validate(CALLS)
    assert MessageLoop.repair([reply])[0] is reply
    assert len(MessageLoop.repair([reply])) == 3

    call = ResponseFunctionToolCall.model_validate(function("c1", **{"async": True}))
    said = ResponseOutputMessage(id="msg_2", type="message", role="assistant", status="completed", content=[])
    assert MessageLoop.repair([call, said, USER]) == [call, said, USER]
