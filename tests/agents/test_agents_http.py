"""The typed settings of H Company and Herm."""

from __future__ import annotations

from typing import Any

import pytest

from bridge import Agent, HCompany, Herm, ToolSpec
from bridge.core.events import ApprovalAnswer
from bridge.dialects.hcompany import HCOMPANY
from bridge.dialects.herm import HERM, HermDialect, Payloads
from bridge.errors import ConfigError

KINDS: dict[str, Any] = {"HCompany": HCompany, "Herm": Herm}
every_kind = pytest.mark.parametrize("name", KINDS)


def test_every_setting_of_h_company_is_sent_where_the_provider_expects_it() -> None:
    agent = HCompany(
        agent={"name": "clerk"},
        messages="Count.",
        idle_timeout_s=60,
        max_steps=5,
        max_time_s=120.0,
        queue=False,
        timezone="Europe/Paris",
        extra={"group_id": "g", "agent": {"instructions": "Be brief."}},
    )
    assert agent.setup() == {
        "create": {
            "agent": {"name": "clerk", "instructions": "Be brief."},
            "messages": "Count.",
            "idle_timeout_s": 60,
            "max_steps": 5,
            "max_time_s": 120.0,
            "queue": False,
            "timezone": "Europe/Paris",
            "group_id": "g",
        }
    }


def test_an_agent_of_the_catalogue_is_named() -> None:
    assert HCompany(agent="h/web").setup() == {"create": {"agent": "h/web"}}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"agent": {"name": "a"}}, {"agent": {"name": "a", "instructions": "Booked."}}),
        (
            {"agent": {"name": "a"}, "extra": {"agent": {"instructions": "Be brief."}}},
            {"agent": {"name": "a", "instructions": "Be brief.\n\nBooked."}},
        ),
        ({"agent": "h/web", "messages": "Count."}, {"agent": "h/web", "messages": "Booked.\n\nCount."}),
        (
            {"agent": "h/web", "messages": [{"type": "user_message", "message": "Count."}]},
            {
                "agent": "h/web",
                "messages": [
                    {"type": "user_message", "message": "Booked."},
                    {"type": "user_message", "message": "Count."},
                ],
            },
        ),
    ],
)
def test_an_agent_of_h_company_is_told_of_an_earlier_session(settings: dict[str, Any], told: dict[str, Any]) -> None:
    assert HCompany(**settings).informed("Booked.").setup() == {"create": told}


@pytest.mark.parametrize("settings", [{"session_id": "s"}, {"agent": "h/web"}])
def test_an_agent_of_h_company_without_instructions_and_task_cannot_be_told_anything(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="only an agent that is described"):
        HCompany(**settings).informed("Booked.")


def test_every_setting_of_herm_is_sent_where_the_provider_expects_it() -> None:
    agent = Herm(agent_id="agent_1", user_id="u1", title="Film", metadata={"a": 1}, extra={"metadata": {"b": 2}})
    body = {"agent_id": "agent_1", "userId": "u1", "title": "Film", "metadata": {"a": 1, "b": 2}}
    assert agent.setup() == {"create": body}


def test_an_agent_of_herm_is_declared_with_our_tools() -> None:
    told = Herm.declaration({"name": "clerk"}, [ToolSpec("look", "Look.")], Payloads(custom="client"))
    assert told == HermDialect(Payloads(custom="client")).agent({"name": "clerk"}, [ToolSpec("look", "Look.")])
    assert told["tools"][0]["type"] == "client"
    assert Herm.declaration({}, [ToolSpec("look")])["tools"][0]["type"] == "custom"


def test_the_names_that_herm_leaves_open_are_those_of_its_dialect() -> None:
    agent = Herm(session_id="session_7", names=Payloads(decision="verdict"))
    assert agent.dialect != HERM
    (said,) = agent.dialect.encode_client(ApprovalAnswer("one", allowed=True))
    assert said["events"][0]["verdict"] == "allow"


@every_kind
def test_a_session_that_runs_is_attached_to(name: str) -> None:
    assert KINDS[name](session_id="s", url="http://x").setup() == {"attach": "s"}


@every_kind
def test_a_session_that_runs_has_its_settings_already(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: session_id names a session that exists; leave out extra"):
        KINDS[name](session_id="s", extra={"a": 1})


@every_kind
def test_without_an_agent_or_a_session_there_is_nothing_to_connect_to(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: give .*session_id"):
        KINDS[name]().setup()


@every_kind
@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"sesion_id": "s"}, "did you mean session_id"),
        ({"session_id": 1}, "session_id"),
        ({"url": "wss://x"}, "must begin with https://"),
        ({"extra": {"a": {1, 2}}}, "nothing but JSON values"),
    ],
)
def test_what_cannot_be_is_refused(name: str, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        KINDS[name](**settings)


@every_kind
def test_nothing_changes_once_the_session_exists(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: title cannot change"):
        KINDS[name].update_message(title="x")


def test_they_are_agents() -> None:
    for agent in (HCompany(agent="h/web"), Herm(agent_id="agent_1")):
        taken: Agent = agent
        assert taken.input_rate == taken.output_rate
    assert HCompany(agent="h/web").dialect is HCOMPANY
    assert (HCompany.api_key_env, Herm.api_key_env) == ("HAI_API_KEY", "HERM_API_KEY")
