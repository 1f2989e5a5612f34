"""What a client may configure: one row for every rule."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.simulator.messages import Refused, read
from bridge.simulator.player import fitting
from bridge.simulator.rules import Rules
from bridge.simulator.settings import check_session, has_wrong_rate

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def tools(**changes: Any) -> dict[str, Any]:
    return {"tools": [TOOL | changes]}


def turns(**fields: Any) -> dict[str, Any]:
    return {"input": {"turn_detection": fields}}


def sound(side: str, **form: Any) -> dict[str, Any]:
    return {side: {"format": form}}


@pytest.mark.parametrize(
    "session",
    [
        {},
        {"system_prompt": "Be brief.", "greeting": "Hello."},
        {"input": {"keyterms": ["Osteria"], "language_codes": ["en"], "transcription_mode": "min_latency"}},
        {"input": {"voice_focus": "far-field", "voice_focus_threshold": 0, "continuous_partials": True}},
        {"output": {"voice": "vera", "volume": None}},
        sound("input", encoding="audio/pcm", sample_rate=24_000),
        sound("output", encoding="audio/pcmu", sample_rate=8_000),
        sound("output", encoding="audio/pcma"),
        turns(type="server_vad", min_silence=50, max_silence=51, uninterruptible_turns=["greeting"]),
        turns(min_silence=1000, interrupt_response=False, interruption_delay=1000),
        tools(description="Weather.", execution_mode="hold", timeout_seconds=300),
        tools(timeout_seconds=1.5, response_instructions={"success": "Be glad."}),
        {"webhook": {"url": "https://example.com", "events": ["ended"], "secret": "s"}},
    ],
)
def test_a_proper_session_is_taken(session: dict[str, Any]) -> None:
    assert check_session(session, None, Rules()) == session
    assert not has_wrong_rate(session)


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"voice": "anna"}, "invalid_format", "session.voice"),
        ({"greeting": None}, "invalid_format", "session.greeting"),
        ({"input": None}, "invalid_format", "session.input"),
        ({"input": {"vad": 1}}, "invalid_format", "session.input.vad"),
        ({"input": {"keyterms": ["x"] * 101}}, "invalid_value", "session.input.keyterms"),
        ({"input": {"transcription_prompt": "x" * 1751}}, "invalid_value", "session.input.transcription_prompt"),
        ({"input": {"voice_focus_threshold": 1.1}}, "invalid_value", "session.input.voice_focus_threshold"),
        ({"input": {"continuous_partials": "yes"}}, "invalid_format", "session.input.continuous_partials"),
        ({"output": {"voice": "ivy"}}, "invalid_value", "session.output.voice"),
        ({"output": {"volume": 101}}, "invalid_value", "session.output.volume"),
        (sound("input", encoding="audio/mp3"), "invalid_value", "session.input.format.encoding"),
        (sound("input", sample_rate="24000"), "invalid_format", "session.input.format.sample_rate"),
        (turns(min_silence=49), "invalid_value", "session.input.turn_detection.min_silence"),
        (turns(max_silence=10_001), "invalid_value", "session.input.turn_detection.max_silence"),
        (turns(min_silence=700, max_silence=700), "invalid_value", "session.input.turn_detection"),
        (turns(min_silence=3000), "invalid_value", "session.input.turn_detection"),
        (turns(prefix_padding_ms=300), "invalid_format", "session.input.turn_detection.prefix_padding_ms"),
        ({"tools": [{"type": "function", "function": TOOL}]}, "invalid_format", "session.tools.0.name"),
        (tools(type="webhook"), "invalid_value", "session.tools.0.type"),
        (tools(parameters=None), "invalid_format", "session.tools.0.parameters"),
        (tools(parameters={"properties": []}), "invalid_format", "session.tools.0"),
        (tools(execution_mode="silent"), "invalid_value", "session.tools.0.execution_mode"),
        (tools(timeout_seconds=0.5), "invalid_value", "session.tools.0.timeout_seconds"),
        (tools(timeout_seconds=301), "invalid_value", "session.tools.0.timeout_seconds"),
        (tools(strict=True), "invalid_format", "session.tools.0.strict"),
        (tools(name="aai_pre_connect_context"), "invalid_value", "session.tools.0"),
        (tools(http={"url": "https://example.com"}), "invalid_value", "session.tools.0"),
        (tools(dtmf_collected_arguments=["pin"]), "invalid_value", "session.tools.0"),
        (
            tools(response_instructions={"error": "x" * 501}),
            "invalid_value",
            "session.tools.0.response_instructions.error",
        ),
        ({"llm": [{}]}, "invalid_config", "session"),
        ({"pre_connect_requests": []}, "invalid_config", "session"),
        ({"webhook": {"url": "https://example.com"}}, "invalid_format", "session.webhook.events"),
        ({"agent_id": "mine"}, "invalid_value", "session.agent_id"),
    ],
)
def test_a_fault_is_named_by_its_code_and_field(session: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(Refused) as caught:
        check_session(session, None, Rules())
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("before", "update", "param"),
    [
        ({"greeting": "Hello."}, {"greeting": "Hi."}, "session.greeting"),
        ({}, {"output": {"voice": "vera"}}, "session.output.voice"),
        ({}, sound("output", encoding="audio/pcmu"), "session.output.format"),
        (sound("input", encoding="audio/pcmu"), sound("input", encoding="audio/pcm"), "session.input.format"),
        ({"input": {}}, {"input": {"voice_focus": "far-field"}}, "session.input.voice_focus"),
    ],
)
def test_a_fixed_field_cannot_change_later(before: dict[str, Any], update: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as caught:
        check_session(update, before, Rules())
    assert (caught.value.code, caught.value.param) == ("immutable_field", param)


def test_a_later_update_replaces_what_it_names_and_may_repeat_what_is_fixed() -> None:
    before = {"greeting": "Hello.", "input": {"type": "audio", "keyterms": ["a"]}, **tools()}
    update = {"greeting": "Hello.", "input": {"keyterms": ["b"]}, "tools": []}
    assert check_session(update, before, Rules()) == {
        "greeting": "Hello.",
        "input": {"type": "audio", "keyterms": ["b"]},
        "tools": [],
    }


def test_a_stored_agent_is_for_the_first_update_only() -> None:
    with pytest.raises(Refused) as caught:
        check_session({"agent_id": "agent_" + "0" * 32}, {}, Rules())
    assert caught.value.code == "agent_id_not_first"


def test_a_wrong_rate_is_seen_on_either_side() -> None:
    assert has_wrong_rate(sound("input", encoding="audio/pcm", sample_rate=16_000))
    assert has_wrong_rate(sound("output", encoding="audio/pcmu", sample_rate=24_000))


@pytest.mark.parametrize(
    "frame",
    [
        b"{}",
        "",
        "[]",
        "null",
        '{"type":"input.commit"}',
        '{"type":"session.update"}',
        '{"type":"session.update","session":{},"extra":1}',
        '{"type":"input.audio","audio":5}',
        '{"type":"tool.result","call_id":7,"result":"x"}',
        '{"type":"tool.result","call_id":"c","result":{"sky":"rain"}}',
        '{"type":"tool.result","call_id":"c","result":"x","is_error":"true"}',
        '{"type":"tool.result","call_id":"c","result":"x","name":"get_weather"}',
        '{"type":"reply.create","instructions":null}',
        '{"type":"conversation.message","role":"assistant","content":"x"}',
        '{"type":"session.resume"}',
    ],
)
def test_a_frame_that_is_no_documented_message_is_refused(frame: str | bytes) -> None:
    with pytest.raises(Refused) as caught:
        read(frame)
    assert caught.value.code == "invalid_format"


def test_a_refusal_shows_no_value() -> None:
    with pytest.raises(Refused) as caught:
        read('{"type":"tool.result","call_id":"c","result":["secret"]}')
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "example"),
        ({"type": "string", "enum": ["red", "green"]}, "red"),
        ({"type": "integer", "minimum": 3}, 3),
        ({"type": "number"}, 1),
        ({"type": "boolean"}, True),
        ({"type": "array"}, []),
        ({"type": "null"}, None),
        ({"default": 5, "type": "integer"}, 5),
        ({}, {}),
        (
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "c"]},
            {"a": "example"},
        ),
    ],
)
def test_improvised_arguments_fit_their_schema(schema: dict[str, Any], value: Any) -> None:
    assert fitting(schema) == value
