"""The typed settings of an AssemblyAI voice agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypedDict, Unpack

from pydantic import Field, field_validator, model_validator

from bridge.core.dialect import Dialect, Message
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.errors import ConfigError

from .settings import Documented, Extra, Settings, between, merged, one_of, some_of

__all__ = ["AssemblyAI", "AssemblyAIChanges", "AudioFormat", "TurnDetection", "Webhook"]

AudioFormat = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
"""16-bit little-endian PCM at 24 kHz, or G.711 mu-law or A-law at 8 kHz; always one channel."""


class TurnDetection(Settings):
    """When the user's turn ends, and what interrupts the agent.

    Without this object the provider paces itself by what is said; setting any of it switches that off for the session.
    """

    type: Annotated[str | None, one_of("semantic_vad", "server_vad")] = None
    """Kind of detection: `semantic_vad` or `server_vad`."""
    vad_threshold: Annotated[float | None, between(0, 1)] = None
    """How sure the voice detection must be, 0 to 1. The provider's default is 0.5."""
    min_silence: Annotated[int | None, between(50, 10_000, "ms")] = None
    """Milliseconds of silence that end a turn which sounds complete, 50 to 10000. The provider's default is 1000."""
    max_silence: Annotated[int | None, between(50, 10_000, "ms")] = None
    """Milliseconds of silence that end any turn, 50 to 10000, above `min_silence`. The provider's default is 3000."""
    interrupt_response: bool | None = None
    """False: the user cannot interrupt the agent."""
    interruption_delay: Annotated[int | None, between(0, 1000, "ms")] = None
    """Milliseconds of speech before the agent is interrupted, 0 to 1000."""
    uninterruptible_turns: Annotated[Sequence[str] | None, some_of("greeting", "dtmf_prompt", "tool_refused_ask")] = (
        None
    )
    """Agent turns that run to their end: `greeting`, `dtmf_prompt`, `tool_refused_ask`. Speech meanwhile is lost."""

    @model_validator(mode="after")
    def _silences_in_order(self) -> Self:
        if self.min_silence is not None and self.max_silence is not None and self.max_silence <= self.min_silence:
            found = f"found {self.max_silence} and {self.min_silence} (milliseconds)"
            raise ConfigError(f"TurnDetection: max_silence must be more than min_silence; {found}")
        return self


class Webhook(Settings):
    """Where the provider reports what happens in the session, by signed requests."""

    url: str
    """Address that receives the reports."""
    events: Sequence[str] | None = None
    """Names of the events to report."""
    secret: str | None = Field(default=None, repr=False)
    """Key for the signature of the reports."""


class AssemblyAIChanges(TypedDict, total=False):
    """The settings that may change while a session runs; see `AssemblyAI`."""

    system_prompt: str
    keyterms: Sequence[str]
    language_codes: Sequence[str]
    transcription_mode: str
    transcription_prompt: str
    turn_detection: TurnDetection
    volume: float
    extra: dict[str, Any]


class AssemblyAI(Settings):
    """An AssemblyAI voice agent, described here or stored at the provider.

    Every setting may be left out; the provider then uses its own default. Raises `ConfigError` for an unknown name, a
    wrong type, or a stored agent with settings of its own; warns with `UserWarning` about values beyond what is
    documented. Settings: https://www.assemblyai.com/docs/voice-agents/voice-agent-api (session configuration).
    """

    api_key_env: ClassVar[str] = "ASSEMBLYAI_API_KEY"

    system_prompt: str | None = None
    """What the agent is and does. May change while the session runs; replaces the whole prompt."""
    greeting: str | None = None
    """First words of the agent, spoken as they are written. Without one it waits for the user."""
    voice: str | None = None
    """Name of the agent's voice."""
    input_format: AudioFormat = "audio/pcm"
    """Format of the user's audio: `audio/pcm` (16 bit, 24 kHz), `audio/pcmu` or `audio/pcma` (8 bit, 8 kHz).

    With `agent_id` it is not sent: it says what the stored agent uses.
    """
    output_format: AudioFormat = "audio/pcm"
    """Format of the agent's audio: `audio/pcm` (16 bit, 24 kHz), `audio/pcmu` or `audio/pcma` (8 bit, 8 kHz).

    With `agent_id` it is not sent: it says what the stored agent uses.
    """
    keyterms: Annotated[
        Sequence[str] | None,
        Documented(
            "up to 100 terms of up to 50 characters",
            lambda terms: len(terms) <= 100 and all(len(term) <= 50 for term in terms),
        ),
    ] = None
    """Names and terms to be recognised: up to 100, of up to 50 characters each. May change while the session runs."""
    language_codes: Sequence[str] | None = None
    """Languages to expect, such as `en`; without it they are detected. May change while the session runs."""
    transcription_mode: Annotated[str | None, one_of("min_latency", "balanced", "max_accuracy")] = None
    """Speed against accuracy: `min_latency`, `balanced` or `max_accuracy`. May change while the session runs."""
    transcription_prompt: Annotated[str | None, Documented("up to 1750 characters", lambda text: len(text) <= 1750)] = (
        None
    )
    """Help for the speech recognition, up to 1750 characters. May change while the session runs."""
    voice_focus: Annotated[str | None, one_of("near-field", "far-field")] = None
    """Isolation of the user's voice: `near-field` (a headset or phone) or `far-field` (a room)."""
    voice_focus_threshold: Annotated[float | None, between(0, 1)] = None
    """How strictly other voices are left out, 0 to 1."""
    continuous_partials: bool | None = None
    """Send partial transcripts all the time."""
    turn_detection: TurnDetection | None = None
    """When the user's turn ends. May change while the session runs."""
    volume: Annotated[float | None, between(0, 100)] = None
    """Loudness of the agent, 0 to 100. May change while the session runs."""
    agent_id: str | None = None
    """A stored agent, `agent_...`. It brings its own settings: no others may be given, and no tools can be added."""
    webhook: Webhook | None = None
    """Where the provider reports what happens in the session."""
    url: str = Field(default="", repr=False)
    """Where to connect instead of the provider's own address: `wss://...`, for another region or a test."""
    extra: Extra = Field(default_factory=dict, repr=False)
    """Further fields of the provider's `session` object, merged into it; where both say something, `extra` wins."""

    @field_validator("url")
    @classmethod
    def _is_websocket(cls, url: str) -> str:
        if url and not url.startswith(("ws://", "wss://")):
            raise ValueError("must begin with wss:// or ws://")
        return url

    @model_validator(mode="after")
    def _is_stored_or_described(self) -> Self:
        described = [name for name in sorted(_DESCRIPTION) if getattr(self, name) is not None]
        if self.agent_id and described:
            names = ", ".join(described)
            raise ConfigError(
                f"AssemblyAI: agent_id names a stored agent; the provider refuses it together with {names}"
            )
        return self

    @property
    def dialect(self) -> Dialect:
        return ASSEMBLYAI

    @property
    def input_rate(self) -> tuple[int, int]:
        """Bytes per sample and samples per second of the audio to be sent."""
        return _RATES[self.input_format]

    @property
    def output_rate(self) -> tuple[int, int]:
        """Bytes per sample and samples per second of the audio received."""
        return _RATES[self.output_format]

    def informed(self, text: str) -> Self:
        """The same agent, with this in its prompt. Raises `ConfigError` for a stored one, whose prompt is not known.

        A `conversation.message` would be silent, too, but does not reach the provider's own model (seen live).
        """
        if self.agent_id:
            raise ConfigError("AssemblyAI: a stored agent (agent_id) has its own prompt, which cannot be added to")
        prompts = [prompt for prompt in (self.system_prompt, text) if prompt]
        return self.model_copy(update={"system_prompt": "\n\n".join(prompts)})

    def setup(self) -> Message:
        """The first `session.update`, without tools."""
        if self.agent_id:
            return _session_update({"agent_id": self.agent_id}, self.extra)
        formats = {"input": {"format": _FORMATS[self.input_format]}, "output": {"format": _FORMATS[self.output_format]}}
        return _session_update(merged(formats, self._described()), self.extra)

    @classmethod
    def update_message(cls, **changes: Unpack[AssemblyAIChanges]) -> Message:
        """A `session.update` that changes these settings of a running session, and no others.

        Raises `ConfigError` for a setting that cannot change once the session is ready, and as the class itself does.
        """
        fixed = [name for name in changes if name in cls.model_fields and name not in AssemblyAIChanges.__annotations__]
        if fixed:
            raise ConfigError(f"AssemblyAI: {', '.join(fixed)} cannot change after the session is ready")
        changed = cls(**changes)
        return _session_update(changed._described(), changed.extra)

    def _described(self) -> dict[str, Any]:
        """The settings that were given, where the `session` object has them."""
        given = self.model_dump(mode="json", include=set(_DESCRIPTION), exclude_none=True)
        session: dict[str, Any] = {}
        for name, value in given.items():
            group = _DESCRIPTION[name]
            (session.setdefault(group, {}) if group else session)[name] = value
        return session


# Settings that describe an agent, with the part of the `session` object that holds each of them.
_DESCRIPTION: Final = {
    "system_prompt": "",
    "greeting": "",
    "webhook": "",
    "keyterms": "input",
    "language_codes": "input",
    "transcription_mode": "input",
    "transcription_prompt": "input",
    "voice_focus": "input",
    "voice_focus_threshold": "input",
    "continuous_partials": "input",
    "turn_detection": "input",
    "voice": "output",
    "volume": "output",
}

# The rate goes with PCM only, and no other is taken.
_FORMATS: Final[Mapping[AudioFormat, Mapping[str, Any]]] = {
    "audio/pcm": {"encoding": "audio/pcm", "sample_rate": 24_000},
    "audio/pcmu": {"encoding": "audio/pcmu"},
    "audio/pcma": {"encoding": "audio/pcma"},
}
_RATES: Final[Mapping[AudioFormat, tuple[int, int]]] = {
    "audio/pcm": (2, 24_000),
    "audio/pcmu": (1, 8_000),
    "audio/pcma": (1, 8_000),
}


def _session_update(session: Mapping[str, Any], extra: Mapping[str, Any]) -> Message:
    return {"type": "session.update", "session": merged(session, extra)}
