"""The typed settings: what they send, what they refuse, what they warn about."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.agents.assemblyai import AssemblyAI, TurnDetection, Webhook
from bridge.core.dialect import Agent
from bridge.dialects import DIALECTS
from bridge.errors import ConfigError

PCM = {"encoding": "audio/pcm", "sample_rate": 24_000}


def made(**settings: Any) -> AssemblyAI:
    """An agent of settings that a type checker would refuse, or cannot know."""
    return AssemblyAI(**settings)


def refusal(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(**settings)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ what is sent


def test_an_agent_without_settings_sends_its_formats_and_nothing_else() -> None:
    session = {"input": {"format": PCM}, "output": {"format": PCM}}
    assert AssemblyAI().setup() == {"type": "session.update", "session": session}


def test_every_setting_is_sent_where_the_provider_expects_it() -> None:
    agent = AssemblyAI(
        system_prompt="Book tables.",
        greeting="Good evening!",
        voice="anna",
        input_format="audio/pcmu",
        output_format="audio/pcma",
        keyterms=["Osteria Lume"],
        language_codes=("en", "it"),
        transcription_mode="balanced",
        transcription_prompt="Names of dishes.",
        voice_focus="far-field",
        voice_focus_threshold=0.5,
        continuous_partials=True,
        turn_detection=TurnDetection(min_silence=500, max_silence=900, interrupt_response=False),
        volume=70,
        webhook=Webhook(url="https://example.com/hook", events=["session.ended"], secret="w"),
    )
    assert agent.setup()["session"] == {
        "system_prompt": "Book tables.",
        "greeting": "Good evening!",
        "input": {
            "format": {"encoding": "audio/pcmu"},
            "keyterms": ["Osteria Lume"],
            "language_codes": ["en", "it"],
            "transcription_mode": "balanced",
            "transcription_prompt": "Names of dishes.",
            "voice_focus": "far-field",
            "voice_focus_threshold": 0.5,
            "continuous_partials": True,
            "turn_detection": {"min_silence": 500, "max_silence": 900, "interrupt_response": False},
        },
        "output": {"format": {"encoding": "audio/pcma"}, "voice": "anna", "volume": 70},
        "webhook": {"url": "https://example.com/hook", "events": ["session.ended"], "secret": "w"},
    }


def test_what_is_none_is_left_out() -> None:
    assert AssemblyAI(greeting=None, turn_detection=None).setup() == AssemblyAI().setup()


def test_a_turn_detection_with_every_setting_is_sent_whole() -> None:
    detection = {
        "type": "semantic_vad",
        "vad_threshold": 0.4,
        "min_silence": 100,
        "max_silence": 200,
        "interrupt_response": True,
        "interruption_delay": 0,
        "uninterruptible_turns": ["greeting"],
    }
    assert made(turn_detection=detection).setup()["session"]["input"]["turn_detection"] == detection


def test_extra_is_merged_at_every_depth_and_wins() -> None:
    extra = {"input": {"format": {"sample_rate": 48_000}, "new": [1]}, "voice": {"id": 1}, "greeting": None}
    session = AssemblyAI(greeting="Hi", keyterms=["a"], extra=extra).setup()["session"]
    assert session == {
        "greeting": None,
        "input": {"format": {"encoding": "audio/pcm", "sample_rate": 48_000}, "keyterms": ["a"], "new": [1]},
        "output": {"format": PCM},
        "voice": {"id": 1},
    }
    assert AssemblyAI().setup()["session"]["input"]["format"] == PCM


def test_a_stored_agent_is_named_alone() -> None:
    agent = AssemblyAI(agent_id="agent_1", output_format="audio/pcmu", greeting=None)
    assert agent.setup() == {"type": "session.update", "session": {"agent_id": "agent_1"}}
    assert agent.output_rate == (1, 8_000)


def test_a_stored_agent_takes_extra_fields() -> None:
    assert AssemblyAI(agent_id="agent_1", extra={"new": 1}).setup()["session"] == {"agent_id": "agent_1", "new": 1}


def test_the_settings_are_an_agent() -> None:
    agent: Agent = AssemblyAI(url="wss://agents.eu.assemblyai.com/v1/ws")
    assert agent.dialect is DIALECTS["assemblyai"]
    assert agent.url == "wss://agents.eu.assemblyai.com/v1/ws"
    assert agent.api_key_env == "ASSEMBLYAI_API_KEY"


@pytest.mark.parametrize(
    ("format", "rate"), [("audio/pcm", (2, 24_000)), ("audio/pcmu", (1, 8_000)), ("audio/pcma", (1, 8_000))]
)
def test_each_format_has_its_rate(format: str, rate: tuple[int, int]) -> None:
    assert made(input_format=format).input_rate == rate
    assert made(output_format=format).output_rate == rate


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        AssemblyAI().voice = "anna"


def test_secrets_do_not_show() -> None:
    webhook = Webhook(url="https://example.com", secret="s3cret")
    agent = AssemblyAI(webhook=webhook, url="wss://x/?token=s3cret", extra={"key": "s3cret"})
    assert "s3cret" not in repr(agent)


def test_every_setting_says_what_it_is_for() -> None:
    for settings_class in (AssemblyAI, TurnDetection, Webhook):
        for name, field in settings_class.model_fields.items():
            assert field.description, name


# --------------------------------------------------------------------------------------------------- what is refused


def test_all_faults_are_told_at_once() -> None:
    text = refusal(system_prompt=5, keyterms=["a", 3], volume=True, greting="Hi")
    assert text.splitlines() == [
        "AssemblyAI cannot be used like this:",
        "  system_prompt: must be a valid string; found int 5",
        "  keyterms.1: must be a valid string; found int 3",
        "  volume: must be a valid number; found bool True",
        "  greting is no known setting; did you mean greeting? What the provider has added since goes into `extra` "
        "of the agent.",
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"zzz": 1}, "zzz is no known setting. What the provider has added since goes into `extra`"),
        ({"keyterms": "one"}, "keyterms: 'str' instances are not allowed"),
        ({"input_format": "audio/opus"}, "input_format: must be 'audio/pcm', 'audio/pcmu' or 'audio/pcma'"),
        ({"turn_detection": 3}, "turn_detection: must be a valid dictionary or instance of TurnDetection; found int 3"),
        ({"turn_detection": {"min_silense": 3}}, "min_silense is no known setting; did you mean min_silence?"),
        ({"webhook": {"secret": "w"}}, "url is missing"),
        ({"extra": {"a": {1}}}, "extra: must hold nothing but JSON values; found dict"),
        ({"url": "https://example.com"}, "url: must begin with wss:// or ws://; found str"),
        ({"voice": "x" * 100, "volume": "y" * 100}, "volume: must be a valid number; found str 'yyy"),
    ],
)
def test_a_fault_is_named(settings: dict[str, Any], words: str) -> None:
    assert words in refusal(**settings)


def test_a_long_value_is_not_repeated_in_full() -> None:
    assert len(refusal(volume="y" * 1000)) < 200


@pytest.mark.parametrize(
    "settings", [{"url": "https://x/?token=s3cret"}, {"extra": {"s3cret": {1}}}, {"key": "s3cret"}]
)
def test_a_refusal_keeps_secrets(settings: dict[str, Any]) -> None:
    assert "s3cret" not in refusal(**settings)


def test_a_refused_webhook_keeps_its_secret() -> None:
    with pytest.raises(ConfigError, match="secret: must be a valid string; found bytes") as caught:
        made(webhook={"url": "https://example.com", "secret": b"s3cret"})
    assert "s3cret" not in str(caught.value)


def test_a_stored_agent_with_settings_of_its_own_is_refused() -> None:
    assert refusal(agent_id="agent_1", greeting="Hi", volume=3) == (
        "AssemblyAI: agent_id names a stored agent; the provider refuses it together with greeting, volume"
    )


@pytest.mark.parametrize("max_silence", [400, 500])
def test_a_longest_silence_that_is_not_longer_is_refused(max_silence: int) -> None:
    with pytest.raises(ConfigError, match="max_silence must be more than min_silence"):
        TurnDetection(min_silence=500, max_silence=max_silence)


# ---------------------------------------------------------------------------------------------- what is warned about


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"volume": 101.5}, "AssemblyAI: volume=101.5 is sent, but 0 to 100 is documented"),
        ({"voice_focus_threshold": -0.1}, "voice_focus_threshold=-0.1 is sent, but 0 to 1 is documented"),
        ({"voice_focus": "mid-field"}, "voice_focus='mid-field' is sent, but one of near-field, far-field"),
        ({"transcription_mode": "fast"}, "transcription_mode='fast' is sent, but one of min_latency, balanced"),
        ({"transcription_prompt": "x" * 1751}, "is sent, but up to 1750 characters is documented"),
        ({"keyterms": ["a"] * 101}, "is sent, but up to 100 terms of up to 50 characters is documented"),
        ({"keyterms": ["a" * 51]}, "is sent, but up to 100 terms of up to 50 characters is documented"),
    ],
)
def test_a_value_beyond_the_documented_is_warned_about_and_sent(settings: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning, match="is sent") as caught:
        agent = made(**settings)
    assert [words in str(warning.message) for warning in caught] == [True]
    assert caught[0].filename == __file__
    sent = agent.setup()["session"]
    (name,) = settings
    assert settings[name] in (sent["input"].get(name), sent["output"].get(name))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_silence": 49}, "TurnDetection: min_silence=49 is sent, but 50 to 10000 ms is documented"),
        ({"max_silence": 10_001}, "max_silence=10001 is sent, but 50 to 10000 ms is documented"),
        ({"vad_threshold": 2}, "vad_threshold=2.0 is sent, but 0 to 1 is documented"),
        ({"interruption_delay": 1001}, "interruption_delay=1001 is sent, but 0 to 1000 ms is documented"),
        ({"type": "vad"}, "type='vad' is sent, but one of semantic_vad, server_vad is documented"),
        ({"uninterruptible_turns": ["greeting", "x"]}, "is sent, but some of greeting, dtmf_prompt, tool_refused_ask"),
    ],
)
def test_a_turn_detection_beyond_the_documented_is_warned_about_once(settings: dict[str, Any], words: str) -> None:
    with pytest.warns(UserWarning, match="is sent") as caught:
        AssemblyAI(turn_detection=TurnDetection(**settings))
    assert [words in str(warning.message) for warning in caught] == [True]


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={"volume": st.integers(0, 100), "voice_focus_threshold": st.floats(0, 1)}))
def test_documented_values_are_taken_without_a_word(values: dict[str, Any]) -> None:
    made(**values)  # a warning would be an error


# ------------------------------------------------------------------------------------------ changes while it runs


def test_an_update_holds_the_changes_and_nothing_else() -> None:
    message = AssemblyAI.update_message(
        system_prompt="Be brief.",
        keyterms=["Lume"],
        language_codes=["en"],
        transcription_mode="min_latency",
        transcription_prompt="Dishes.",
        turn_detection=TurnDetection(interrupt_response=False),
        volume=30,
        extra={"output": {"new": 1}},
    )
    assert message == {
        "type": "session.update",
        "session": {
            "system_prompt": "Be brief.",
            "input": {
                "keyterms": ["Lume"],
                "language_codes": ["en"],
                "transcription_mode": "min_latency",
                "transcription_prompt": "Dishes.",
                "turn_detection": {"interrupt_response": False},
            },
            "output": {"volume": 30, "new": 1},
        },
    }


@pytest.mark.parametrize("name", ["greeting", "voice", "input_format", "agent_id", "webhook", "url"])
def test_a_fixed_setting_cannot_be_updated(name: str) -> None:
    changes: Any = {name: "x", "volume": 3}
    with pytest.raises(ConfigError, match=f"{name} cannot change after the session is ready"):
        AssemblyAI.update_message(**changes)


def test_an_update_is_checked_like_the_settings() -> None:
    changes: Any = {"volumee": 3}
    with pytest.raises(ConfigError, match="did you mean volume"):
        AssemblyAI.update_message(**changes)
