"""What a tool may say about how it is to be called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from bridge.core.events import CallKey
from bridge.errors import ConfigError, InvalidArguments, ToolUnavailable
from bridge.tools import CallContext, Tool, Toolset
from bridge.tools.policy import Dedupe, Rate


def made(**options: Any) -> Tool:
    tools = Toolset()

    @tools.tool(name="book", **options)
    async def book(room: int, caller: str, note: str = "") -> None: ...

    return tools["book"]


def context(**metadata: Any) -> CallContext:
    return CallContext(session_id="s1", key=CallKey(3, "c1"), tool="book", metadata=metadata)


@pytest.mark.parametrize("text", ["", "10", "minute", "0/minute", "3/0 seconds", "-1/minute", "10/fortnight"])
def test_a_rate_that_cannot_be_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="'10/minute'"):
        made(rate=text)


@pytest.mark.parametrize(("seconds", "scope"), [(0, "session"), (-1, "session"), (float("nan"), "session"), (1, "all")])
def test_a_dedupe_that_cannot_be_is_refused(seconds: float, scope: Any) -> None:
    with pytest.raises(ConfigError, match=r"^dedupe: "):
        Dedupe(seconds, scope)


@pytest.mark.parametrize("limit", ["concurrency", "session_concurrency", "result_limit"])
@pytest.mark.parametrize("value", [0, 1.5, "3"])
def test_a_limit_of_nothing_or_of_parts_is_refused(limit: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"tool book: {limit} must be a whole number greater than 0"):
        made(**{limit: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hidden": {"calller": "phone"}}, "hidden names calller, which is no parameter; there are room, caller, note"),
        ({"dedupe": Dedupe(60, fields=("rom",))}, "dedupe names rom, which is no parameter; there are room, "),
    ],
)
def test_a_misspelled_parameter_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^tool book: {words}"):
        made(**options)


def test_what_is_hidden_may_be_what_makes_calls_the_same() -> None:
    tool = made(hidden={"caller": "phone"}, dedupe=Dedupe(60, fields=("caller",)))
    assert replace(tool, timeout=3).dedupe == Dedupe(60, fields=("caller",))


@pytest.mark.parametrize("limit", ["answer_within", "follow_up_within", "approval_timeout"])
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), "3"])
def test_a_time_that_cannot_be_is_refused(limit: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"tool book: {limit} must be a number greater than 0"):
        made(**{limit: value})


@pytest.mark.parametrize(("choice", "choices"), [("on_session_end", "finish, cancel"), ("approval", "always_allow, ")])
def test_a_word_that_is_none_of_the_choices_is_refused_with_what_there_is(choice: str, choices: str) -> None:
    with pytest.raises(ConfigError, match=f"tool book: {choice} must be one of {choices}"):
        made(**{choice: "perhaps"})


@pytest.mark.parametrize(
    ("options", "choice"),
    [({}, "finish"), ({"effect": "read"}, "cancel"), ({"effect": "read", "on_session_end": "finish"}, "finish")],
)
def test_what_becomes_of_a_parked_call_at_the_end_of_its_session_follows_from_the_effect(
    options: dict[str, Any], choice: str
) -> None:
    assert made(**options).on_session_end == choice


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 10 + 5 + 1),
        ({"timeout": 3600, "answer_within": 2}, 2 + 1),
        ({"approval": "always_ask"}, 60 + 10 + 5 + 1),
        ({"approval": lambda arguments, call: "always_allow", "approval_timeout": 20}, 20 + 10 + 5 + 1),
        ({"approval": "always_ask", "answer_within": 2}, 2 + 1),
    ],
)
def test_the_provider_is_told_to_wait_as_long_as_an_answer_can_take(options: dict[str, Any], seconds: float) -> None:
    assert made(**options).spec.timeout == seconds


def test_words_and_numbers_will_do() -> None:
    tool = made(rate="10/minute", dedupe=60)
    assert (tool.rate, tool.dedupe) == (Rate(10, 60), Dedupe(60))
    kept = made(rate=Rate(1, 2), dedupe=Dedupe(3, "process", ("room",)))
    assert (kept.rate, kept.dedupe) == (Rate(1, 2), Dedupe(3, "process", ("room",)))


@pytest.mark.parametrize(
    ("options", "repeatable"),
    [
        ({}, False),
        ({"effect": "read"}, True),
        ({"idempotent": True}, True),
        ({"effect": "read", "idempotent": False}, False),
    ],
)
def test_what_may_be_run_again_follows_from_the_effect(options: dict[str, Any], repeatable: bool) -> None:
    assert made(**options).repeatable is repeatable


def test_a_hidden_parameter_is_not_shown_to_the_model() -> None:
    schema = orjson.loads(made(hidden={"caller": "phone"}).spec.parameters)
    assert (list(schema["properties"]), schema["required"]) == (["room", "note"], ["room"])
    assert "required" not in orjson.loads(made(hidden={"caller": "phone", "room": "room"}).spec.parameters)


@pytest.mark.parametrize("sent", ['{"room":7}', '{"room":7,"caller":"the model\'s idea"}'])
def test_a_hidden_parameter_is_filled_in_by_us_whatever_the_model_sends(sent: str) -> None:
    tool = made(hidden={"caller": "phone"})
    assert tool.arguments(sent, context(phone="+4912345")) == {"room": 7, "caller": "+4912345"}


def test_a_hidden_parameter_may_be_a_fact_about_the_call() -> None:
    tool = made(hidden={"caller": "session_id", "note": "call_id"})
    assert tool.arguments('{"room":7}', context()) == {"room": 7, "caller": "s1", "note": "c1"}


def test_a_refusal_does_not_tell_what_is_hidden() -> None:
    with pytest.raises(InvalidArguments) as raised:
        made(hidden={"caller": "phone"}).arguments('{"room":"x"}', context(phone="1"))
    assert str(raised.value).endswith(". Expected: room (integer), note (string, optional)")


def test_a_hidden_parameter_without_a_value_is_told_to_the_log_and_not_to_the_model() -> None:
    tool = made(hidden={"caller": "phone", "note": "nothing"})
    with pytest.raises(ToolUnavailable, match=r"^book is not available now$") as raised:
        tool.arguments('{"room":7}', context())
    why = "hidden parameters cannot be filled from the session's metadata: caller is missing"
    assert str(raised.value.__cause__) == why
    assert "note" not in tool.arguments('{"room":7}', context(phone="1"))


def test_of_several_faults_the_model_is_told_its_own() -> None:
    tool = made(hidden={"caller": "phone"})
    with pytest.raises(InvalidArguments, match=r"^room: should be a valid integer[^;]*\. Expected: room"):
        tool.arguments('{"room":"x"}', context())


def test_a_hidden_value_that_does_not_fit_is_not_the_models_fault() -> None:
    with pytest.raises(ToolUnavailable, match=r"^book is not available now$") as raised:
        made(hidden={"room": "room"}).arguments('{"caller":"x"}', context(room="hunter2"))
    assert "room: should be a valid integer" in str(raised.value.__cause__)
    assert "hunter2" not in str(raised.value.__cause__)


def test_a_hidden_value_may_be_anything() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    tool = made(hidden={"caller": "phone", "room": "room"})
    assert tool.arguments("", context(phone=Odd(), room=2**70)) == {"room": 2**70, "caller": "odd"}


def test_a_number_that_is_sent_beside_a_hidden_value_keeps_its_digits() -> None:
    sent = '{"room":12345678901234567890123}'
    assert made(hidden={"caller": "phone"}).arguments(sent, context(phone="1"))["room"] == 12345678901234567890123


@pytest.mark.parametrize(
    ("sent", "reason"),
    [("{", "not valid JSON"), ("[]", "not a JSON object"), ("", "room is missing"), ("null", "room is missing")],
)
def test_broken_arguments_are_refused_as_ever(sent: str, reason: str) -> None:
    with pytest.raises(InvalidArguments, match=reason):
        made(hidden={"caller": "phone"}).arguments(sent, context(phone="1"))
