"""The `session` object: what a client may configure, when, and within which limits.

Unknown keys are refused at every depth. A later update replaces the keys it names, those of `input` and `output` one
by one.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from bridge.simulator.messages import Refused, refusal
from bridge.simulator.rules import Rules, WrongRate

__all__ = ["check_session", "has_wrong_rate"]

_RATES: Final = {"audio/pcm": 24_000, "audio/pcmu": 8_000, "audio/pcma": 8_000}
_RESERVED: Final = frozenset({"aai_credit_card_luhn_check", "aai_pre_connect_context"})
_FIXED: Final = frozenset({"greeting", "webhook"})
_FIXED_INPUT: Final = frozenset({"type", "format", "voice_focus", "voice_focus_threshold", "continuous_partials"})
_FIXED_OUTPUT: Final = frozenset({"type", "format", "voice"})
_Voice = Literal[
    "alba", "anna", "charles", "estelle", "eve", "george", "giovanni", "iris", "jane", "jean", "juergen", "lola",
    "mary", "michael", "paul", "rafael", "reid", "vera",
]  # fmt: skip
_Share = Annotated[float, Field(ge=0, le=1)]
_Silence = Annotated[int, Field(ge=50, le=10_000)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Format(_Part):
    encoding: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    sample_rate: int = 0


class _TurnDetection(_Part):
    type: Literal["semantic_vad", "server_vad"] | None = None
    vad_threshold: _Share = 0.5
    min_silence: _Silence = 1000
    max_silence: _Silence = 3000
    interrupt_response: bool = True
    interruption_delay: Annotated[int, Field(ge=0, le=1000)] = 0
    uninterruptible_turns: list[Literal["greeting", "dtmf_prompt", "tool_refused_ask"]] = Field(default_factory=list)

    @model_validator(mode="after")
    def _silences_in_order(self) -> _TurnDetection:
        if self.max_silence <= self.min_silence:
            raise PydanticCustomError("invalid_value", "max_silence must exceed min_silence")
        return self


class _Input(_Part):
    type: Literal["audio", "text"] = "audio"
    format: _Format = _Format()
    keyterms: Annotated[list[str], Field(max_length=100)] = Field(default_factory=list)
    language_codes: list[str] = Field(default_factory=list)
    transcription_mode: Literal["min_latency", "balanced", "max_accuracy"] = "balanced"
    transcription_prompt: Annotated[str, Field(max_length=1750)] = ""
    voice_focus: Literal["near-field", "far-field"] = "near-field"
    voice_focus_threshold: _Share = 0.85
    continuous_partials: bool = False
    turn_detection: _TurnDetection = _TurnDetection()


class _Output(_Part):
    type: Literal["audio", "text"] = "audio"
    voice: _Voice = "anna"
    format: _Format = _Format()
    volume: Annotated[float, Field(ge=0, le=100)] | None = None


class _Instructions(_Part):
    success: Annotated[str, Field(max_length=500)] = ""
    error: Annotated[str, Field(max_length=500)] = ""


class _Tool(_Part):
    type: Literal["function"]
    name: str
    description: str = ""
    parameters: dict[str, Any]
    execution_mode: Literal["interactive", "hold"] = "interactive"
    timeout_seconds: Annotated[float, Field(ge=1, le=300)] = 120
    response_instructions: _Instructions = _Instructions()
    http: dict[str, Any] = Field(default_factory=dict)
    dtmf_collected_arguments: list[Any] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_a_socket(self) -> _Tool:
        if not isinstance(self.parameters.get("properties", {}), dict):
            raise PydanticCustomError("invalid_format", "parameters.properties must be an object")
        if self.name in _RESERVED:
            raise PydanticCustomError("invalid_value", "the name is reserved")
        if "http" in self.model_fields_set:
            raise PydanticCustomError("invalid_value", "http tools belong to stored agents")
        if "dtmf_collected_arguments" in self.model_fields_set:
            raise PydanticCustomError("invalid_value", "keypad arguments exist on telephony only")
        return self


class _Webhook(_Part):
    url: str
    events: list[str]
    secret: str


class _Session(_Part):
    agent_id: Annotated[str, Field(pattern=r"^(agent_[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$")] = ""
    system_prompt: str = ""
    greeting: str = ""
    input: _Input = _Input()
    output: _Output = _Output()
    tools: list[_Tool] = Field(default_factory=list)
    llm: list[Any] = Field(default_factory=list)
    webhook: _Webhook | None = None
    pre_connect_requests: list[Any] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits_a_socket(self) -> _Session:
        for key in ("llm", "pre_connect_requests"):
            if key in self.model_fields_set:
                raise PydanticCustomError("invalid_config", "{key} is not for inline sessions", {"key": key})
        return self


def check_session(update: dict[str, Any], current: dict[str, Any] | None, rules: Rules) -> dict[str, Any]:
    """The configuration after an update; `current` is None for the first one. Raises `Refused`."""
    merged = _merge(current or {}, update)
    if "agent_id" in update and (current is not None or len(update) > 1):
        raise Refused("agent_id_not_first", "agent_id comes first and alone", "session.agent_id")
    try:
        _Session.model_validate(merged)
    except ValidationError as error:
        raise refusal(error, "session") from None
    if merged.get("agent_id", "") not in {"", *rules.stored_agents}:
        raise Refused("agent_not_found", "no such agent", "session.agent_id")
    if current is not None:
        _check_fixed(merged, current)
    if rules.wrong_rate is WrongRate.REFUSED and has_wrong_rate(merged):
        raise Refused("invalid_value", "the encoding has another sample rate", "session.input.format.sample_rate")
    return merged


def has_wrong_rate(session: dict[str, Any]) -> bool:
    """Does it declare a sample rate that its encoding does not have?"""
    formats = [session.get(side, {}).get("format", {}) for side in ("input", "output")]
    return any("sample_rate" in form and form["sample_rate"] != _rate(form) for form in formats)


def _rate(form: dict[str, Any]) -> int:
    return _RATES[form.get("encoding", "audio/pcm")]


def _merge(current: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    merged = current | update
    for side in ("input", "output"):
        before, after = current.get(side), update.get(side)
        if isinstance(before, dict) and isinstance(after, dict):
            merged[side] = before | after
    return merged


def _check_fixed(merged: dict[str, Any], current: dict[str, Any]) -> None:
    fields: list[tuple[str, dict[str, Any], dict[str, Any], frozenset[str]]] = [
        ("session", merged, current, _FIXED),
        ("session.input", merged.get("input", {}), current.get("input", {}), _FIXED_INPUT),
        ("session.output", merged.get("output", {}), current.get("output", {}), _FIXED_OUTPUT),
    ]
    for prefix, after, before, fixed in fields:
        for key in sorted(fixed):
            if after.get(key) != before.get(key):
                raise Refused("immutable_field", "fixed once the session is ready", f"{prefix}.{key}")
