"""The typed settings of an OpenAI agent session."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.agents.openai_sessions import OpenAISessions
from bridge.core.dialect import Agent
from bridge.dialects.openai_sessions import OPENAI_SESSIONS
from bridge.errors import ConfigError


def made(**settings: Any) -> OpenAISessions:
    """An agent of settings that a type checker would refuse, or cannot know."""
    return OpenAISessions(**settings)


def test_every_setting_is_sent_where_the_provider_expects_it() -> None:
    agent = OpenAISessions(
        model="m",
        instructions="Find parcels.",
        input="Hello",
        reasoning_effort="low",
        service_tier="flex",
        metadata={"a": "b"},
        extra={"review": "auto_review", "agent": {"text": {"verbosity": "low"}}},
    )
    described = {
        "model": "m",
        "instructions": "Find parcels.",
        "reasoning": {"effort": "low"},
        "service_tier": "flex",
        "text": {"verbosity": "low"},
    }
    assert agent.setup() == {
        "create": {
            "environment": {"type": "none"},
            "agent": described,
            "input": "Hello",
            "metadata": {"a": "b"},
            "review": "auto_review",
        }
    }


def test_a_saved_agent_is_named() -> None:
    setup = OpenAISessions(agent_id="agent_1", environment="openai_hosted").setup()
    assert setup == {"create": {"environment": {"type": "openai_hosted"}, "agent": {}, "agent_id": "agent_1"}}


def test_a_session_that_runs_is_attached_to() -> None:
    assert OpenAISessions(session_id="sess_9", url="http://x").setup() == {"attach": "sess_9"}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"session_id": "sess_9", "model": "m", "input": "Hi"}, "leave out input, model"),
        ({"modle": "m"}, "did you mean model"),
        ({"model": 1}, "model"),
        ({"url": "wss://x"}, "must begin with https://"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        made(**settings)


@pytest.mark.parametrize(
    ("settings", "fault"), [({"input": "Hi"}, "give a model"), ({"model": "m"}, "input is missing")]
)
def test_what_the_provider_would_refuse_is_refused_before(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        made(**settings).setup()


def test_settings_change_while_the_session_runs() -> None:
    message = OpenAISessions.update_message(model="n", reasoning_effort="high", metadata={}, extra={"review": "none"})
    assert message == {"agent": {"model": "n", "reasoning": {"effort": "high"}}, "metadata": {}, "review": "none"}
    assert OpenAISessions.update_message(metadata={"a": "b"}) == {"metadata": {"a": "b"}}


def test_other_settings_do_not_change() -> None:
    changes: Any = {"instructions": "Be brief."}
    with pytest.raises(ConfigError, match="instructions cannot change"):
        OpenAISessions.update_message(**changes)


def test_it_is_an_agent() -> None:
    agent: Agent = OpenAISessions(model="m")
    assert agent.dialect is OPENAI_SESSIONS
    assert agent.input_rate == agent.output_rate
    assert agent.api_key_env == "OPENAI_API_KEY"


def test_an_agent_is_told_of_an_earlier_session_in_its_instructions() -> None:
    agent = OpenAISessions(model="m", instructions="Find parcels.", input="Hello").informed("Booked.")
    assert agent.setup()["create"]["agent"]["instructions"] == "Find parcels.\n\nBooked."
    assert agent.setup()["create"]["input"] == "Hello"


def test_a_saved_agent_is_told_of_an_earlier_session_before_the_first_message() -> None:
    told = OpenAISessions(agent_id="agent_1", input="Hello").informed("Booked.").setup()["create"]
    assert (told["input"], told["agent"]) == ("Booked.\n\nHello", {})


@pytest.mark.parametrize("settings", [{"session_id": "s"}, {"agent_id": "a", "environment": "openai_hosted"}])
def test_where_there_are_neither_instructions_nor_a_message_nothing_can_be_told(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="only an agent with a model"):
        made(**settings).informed("Booked.")
