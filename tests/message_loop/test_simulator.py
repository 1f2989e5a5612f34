"""The offline provider of message APIs refuses what the real ones refuse, and says so as they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from bridge.simulator.messages_api import Call, Failure, MessagesSimulator, Reply

HELLO: Any = {"role": "user", "content": "Hello."}


@pytest.fixture
def provider() -> Iterator[MessagesSimulator]:
    with MessagesSimulator(
        [Reply("Hi.", (Call("find", call_id="c1"), Call("find", call_id="c2"))), Reply("{}")]
    ) as one:
        yield one


# --------------------------------------------------------------------------------------------------------- Anthropic


@pytest.fixture
def messages(provider: MessagesSimulator) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=provider.url, api_key="any", max_retries=0) as client:
        yield client


def use(call_id: str) -> Any:
    return {"type": "tool_use", "id": call_id, "name": "find", "input": {}}


def result(call_id: str, content: Any = "found") -> Any:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def model(*blocks: Any) -> Any:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> Any:
    return {"role": "user", "content": list(blocks)}


TEXT = {"type": "text", "text": "Well?"}


@pytest.mark.parametrize(
    ("history", "error"),
    [
        (
            [model(use("c1"))],
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: c1",
        ),
        ([model(use("c1"), use("c2")), user(result("c2"))], "immediately after: c1"),
        ([model(use("c1")), user(TEXT, result("c1"))], "immediately after: c1"),
        ([model(use("c1")), HELLO, user(result("c1"))], "immediately after: c1"),
        (
            [model(use("c1")), user(result("c1"), result("c2"))],
            "unexpected `tool_use_id` found in `tool_result` blocks: c2",
        ),
        ([user(result("c1"))], "unexpected `tool_use_id`"),
        ([model(use("c1")), user(result("c1"), result("c1"))], "each tool_use must have a single result."),
        ([model(use("c1"), use("c1")), user(result("c1"))], "messages.1.content.1: `tool_use` ids must be unique"),
        ([model(use("c1")), user(result("c1", {"a": 1}))], "Input should be a valid list"),
    ],
)
def test_anthropics_rules_of_pairing(
    provider: MessagesSimulator, messages: anthropic.Anthropic, history: list[Any], error: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        messages.messages.create(model="m", max_tokens=10, messages=[HELLO, *history])
    assert error in str(refused.value)
    assert error in provider.ledger.refusals[0]


def test_results_in_several_messages_are_taken_but_remarked_on(
    provider: MessagesSimulator, messages: anthropic.Anthropic
) -> None:
    history = [HELLO, model(use("c1"), use("c2")), user(result("c1")), user(result("c2"))]
    messages.messages.create(model="m", max_tokens=10, messages=history)
    assert provider.ledger.remarks == ["two messages of the user in a row"]


@pytest.mark.parametrize(
    ("name", "schema"), [("a b", {"type": "object"}), ("a", {"type": "object", "anyOf": []}), ("a", {"type": "string"})]
)
def test_anthropic_refuses_a_tool_that_it_cannot_take(
    messages: anthropic.Anthropic, name: str, schema: dict[str, Any]
) -> None:
    tool: Any = {"name": name, "input_schema": schema}
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        messages.messages.create(model="m", max_tokens=10, messages=[HELLO], tools=[tool])


def held(client: anthropic.Anthropic, thread: Any, *history: Any) -> Any:
    return client.beta.messages.create(
        model="m", max_tokens=10, messages=list(history), thread=thread, betas=["message-threads-2026-08-12"]
    )


def test_a_held_thread_is_continued_once_with_the_results_alone(messages: anthropic.Anthropic) -> None:
    first = held(messages, {"type": "create"}, HELLO)
    on = {"type": "continue", "previous_message_id": first.id}
    assert held(messages, on, user(result("c1"), result("c2", "too"))).content[0].text == "found; too"
    with pytest.raises(anthropic.BadRequestError, match="thread_already_continued"):
        held(messages, on, user(result("c1"), result("c2")))
    with pytest.raises(anthropic.NotFoundError, match="thread_not_found"):
        held(messages, {"type": "continue", "previous_message_id": "msg_x"}, user(result("c1")))


def test_a_result_may_hold_parts(provider: MessagesSimulator, messages: anthropic.Anthropic) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    history = [HELLO, model(use("c1")), user(result("c1", [TEXT, image]))]
    messages.messages.create(model="m", max_tokens=10, messages=history)
    assert provider.ledger.results["c1"].text == "Well? (image)"


def test_what_is_no_json_is_refused(provider: MessagesSimulator, messages: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="not valid JSON"):
        messages.post("/v1/messages", body=None, cast_to=object, content=b'{"a": NaN}')
    with pytest.raises(anthropic.BadRequestError, match="does not stream"):
        messages.messages.create(model="m", max_tokens=10, messages=[HELLO], stream=True)


def test_a_failure_happens_once_and_the_same_turn_follows() -> None:
    script: list[Reply | Failure] = [
        Failure(529, retry_after="0.01"),
        Reply("Hi.", thinking="Hm."),
        Failure(done=True, retry_after=""),
    ]
    with (
        MessagesSimulator(script) as provider,
        anthropic.Anthropic(base_url=provider.url, api_key="any") as client,
    ):
        first = client.messages.create(model="m", max_tokens=10, messages=[HELLO])
        again = client.messages.create(model="m", max_tokens=10, messages=[HELLO])
        assert [block.type for block in first.content] == ["thinking", "text"]
        assert first.content == again.content
        end = client.messages.create(model="m", max_tokens=10, messages=[HELLO, model(TEXT), HELLO])
    assert [block.text for block in end.content if block.type == "text"] == ["The end."]
    assert [each.status for each in provider.ledger.exchanges] == [529, 200, 200, 503, 200]


# ------------------------------------------------------------------------------------------------------------ OpenAI


@pytest.fixture
def client(provider: MessagesSimulator) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client:
        yield client


def function(call_id: str) -> Any:
    return {"type": "function_call", "call_id": call_id, "name": "find", "arguments": "{}"}


def output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "found"}


@pytest.mark.parametrize(
    ("items", "error"),
    [
        ([function("c1")], "No tool output found for function call c1."),
        ([output("c1")], "No tool call found for function call output with call_id c1."),
        ([function("c1"), output("c1"), output("c1")], "Duplicate tool output for function call c1."),
    ],
)
def test_the_rules_of_pairing_of_responses(client: openai.OpenAI, items: list[Any], error: str) -> None:
    with pytest.raises(openai.BadRequestError, match=error) as refused:
        client.responses.create(model="m", input=[HELLO, *items])
    assert refused.value.param == "input"


def test_a_conversation_is_not_taken_for_none(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="keeps no conversations"):
        client.responses.create(model="m", input="Hello", conversation="conv_1")


def test_a_stored_response_is_continued_with_the_outputs_alone_and_may_fork(client: openai.OpenAI) -> None:
    first = client.responses.create(model="m", input="Hello.")
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    for _ in range(2):
        on = client.responses.create(model="m", previous_response_id=first.id, input=[output("c1"), output("c2")])
        assert on.output_text == "found; found"
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call c2"):
        client.responses.create(model="m", previous_response_id=first.id, input=[output("c1")])
    unstored = client.responses.create(model="m", input="Hello.", store=False)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", previous_response_id=unstored.id, input=[])
    assert refused.value.code == "previous_response_not_found"


def chat_model(*ids: str) -> Any:
    calls = [{"id": each, "type": "function", "function": {"name": "find", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool(call_id: str) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": "found"}]}


@pytest.mark.parametrize(
    ("history", "error", "param"),
    [
        ([chat_model("c1", "c2"), tool("c2")], "did not have response messages: c1", "messages.[3].role"),
        ([chat_model("c1"), HELLO, tool("c1")], "did not have response messages: c1", "messages.[2].role"),
        ([tool("c1")], "must be a response to a preceding message with 'tool_calls'", "messages.[1].role"),
        ([chat_model("c1"), tool("c2")], "must be a response to a preceding message", "messages.[2].role"),
        ([chat_model("c1"), tool("c1"), tool("c1")], "Duplicate tool message for c1", "messages.[3].role"),
    ],
)
def test_the_rules_of_pairing_of_a_chat(client: openai.OpenAI, history: list[Any], error: str, param: str) -> None:
    with pytest.raises(openai.BadRequestError, match=error) as refused:
        client.chat.completions.create(model="m", messages=[HELLO, *history])
    assert refused.value.param == param


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (CLOSED, ""),
        ({**CLOSED, "additionalProperties": True}, "'additionalProperties' is required"),
        ({**CLOSED, "required": []}, "'required' is required"),
        ({**CLOSED, "properties": {"a": {"type": "string", "default": "x"}}}, "'default' is not permitted"),
        ({**CLOSED, "properties": {"a": {}}}, "must have a 'type' key"),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": {"anyOf": [{}]}}}}, "must have a 'type' key"),
        ({"type": "string"}, "must be an object"),
    ],
)
def test_strict_functions_are_checked(client: openai.OpenAI, schema: dict[str, Any], error: str) -> None:
    kinds: list[Any] = [
        {"type": "function", "name": "find", "parameters": schema},  # here strict is the default
        {"type": "function", "function": {"name": "find", "parameters": schema, "strict": True}},
    ]

    def both() -> None:
        client.responses.create(model="m", input="Hello.", tools=[kinds[0]])
        client.chat.completions.create(model="m", messages=[HELLO], tools=[kinds[1]])

    if not error:
        both()
        return
    with pytest.raises(openai.BadRequestError, match=error):
        both()


def test_a_function_needs_a_proper_name(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "a b", "parameters": CLOSED, "strict": False}
    with pytest.raises(openai.BadRequestError, match="Invalid function name"):
        client.responses.create(model="m", input="Hello.", tools=[tool])
