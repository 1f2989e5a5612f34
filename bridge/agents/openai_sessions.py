"""The typed settings of an OpenAI agent session: one that is created, or one that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, TypedDict, Unpack

from pydantic import Field

from bridge.core.dialect import Dialect, Message
from bridge.dialects.openai_sessions import OPENAI_SESSIONS
from bridge.errors import ConfigError

from .settings import HttpSettings, HttpUrl, joined, merged

__all__ = ["OpenAISessions", "OpenAISessionsChanges"]


class OpenAISessionsChanges(TypedDict, total=False):
    """The settings that may change while a session runs; see `OpenAISessions`."""

    model: str
    reasoning_effort: str
    service_tier: str
    metadata: dict[str, str]
    extra: dict[str, Any]


class OpenAISessions(HttpSettings):
    """An OpenAI agent session (beta), created by these settings, or attached to by `session_id`.

    Every setting may be left out; the provider then uses its own default. Raises `ConfigError` for an unknown name, a
    wrong type, or settings that exclude each other. There is no audio: speak by `session.say(text)`, or send messages
    of the provider's with `session.send`. Leaving ends nothing at the provider: a turn that runs goes on.
    Settings: https://developers.openai.com/api/docs/guides/agents-api (sessions).
    """

    api_key_env: ClassVar[str] = "OPENAI_API_KEY"

    model: str | None = None
    """Name of the model; needed without `agent_id`. May change while the session runs."""
    instructions: str | None = None
    """What the agent is and does."""
    agent_id: str | None = None
    """A saved agent. It keeps its own functions; those that have the names of ours are served by them."""
    input: str | None = None
    """The first message of the user. Needed where `environment` is `none`."""
    environment: Literal["none", "openai_hosted", "self_hosted"] = "none"
    """Where the agent can run commands, if anywhere. Details of it go into `extra`."""
    reasoning_effort: str | None = None
    """How long the model thinks, such as `low` or `high`. May change while the session runs."""
    service_tier: str | None = None
    """Price and speed, such as `flex` or `priority`. May change while the session runs."""
    metadata: dict[str, str] | None = None
    """Up to 16 pairs of your own; keys up to 64, values up to 512 characters. May change while the session runs."""
    url: HttpUrl = Field(default="", repr=False)
    """Where to connect instead of the provider's own address: `https://...`, for another region or a test."""

    @property
    def dialect(self) -> Dialect:
        return OPENAI_SESSIONS

    def setup(self) -> Message:
        """The body that creates the session, or the session to attach to, without tools.

        Raises `ConfigError` where the provider would refuse it.
        """
        if self.session_id is not None:
            return {"attach": self.session_id}
        if not (self.model or self.agent_id):
            raise ConfigError("OpenAISessions: give a model, a saved agent (agent_id), or a session (session_id)")
        if self.environment == "none" and not self.input:
            raise ConfigError("OpenAISessions: input is missing: without an environment the provider wants it at once")
        body: dict[str, Any] = {"environment": {"type": self.environment}, "agent": self._agent()}
        named = {"agent_id": self.agent_id, "input": self.input, "metadata": self.metadata}
        body |= {key: value for key, value in named.items() if value is not None}
        return {"create": merged(body, self.extra)}

    def informed(self, text: str) -> Self:
        """The same agent, with this in its instructions, or, for a saved one, before the first message.

        Raises `ConfigError` where there is neither.
        """
        match self.setup():
            case {"create": {"agent_id": _, "input": str(words)}}:
                told: dict[str, Any] = {"input": joined(text, words)}
            case {"create": {"agent": Mapping() as agent, **rest}} if "agent_id" not in rest:
                told = {"agent": {"instructions": joined(agent.get("instructions"), text)}}
            case _:
                raise ConfigError(
                    "OpenAISessions: only an agent with a model, or a saved one with a first message (input), can be "
                    "told what an earlier session has left"
                )
        return self.model_copy(update={"extra": merged(self.extra, told)})

    @classmethod
    def update_message(cls, **changes: Unpack[OpenAISessionsChanges]) -> Message:
        """The body that changes these settings of a running session, and no others.

        Raises `ConfigError` for a setting that cannot change once the session exists.
        """
        fixed = [name for name in changes if name not in OpenAISessionsChanges.__annotations__]
        if fixed:
            raise ConfigError(f"OpenAISessions: {', '.join(fixed)} cannot change once the session exists")
        changed = cls(**changes)
        body: dict[str, Any] = {"agent": agent} if (agent := changed._agent()) else {}
        if changed.metadata is not None:
            body["metadata"] = changed.metadata
        return merged(body, changed.extra)

    def _agent(self) -> dict[str, Any]:
        effort = None if self.reasoning_effort is None else {"effort": self.reasoning_effort}
        named = {
            "model": self.model,
            "instructions": self.instructions,
            "reasoning": effort,
            "service_tier": self.service_tier,
        }
        return {key: value for key, value in named.items() if value is not None}
