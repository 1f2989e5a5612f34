"""The typed settings of a Herm session: one that is created, or one that runs already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from pydantic import Field

from bridge.core.dialect import Dialect, Message
from bridge.core.events import ToolSpec
from bridge.dialects.herm import HermDialect, Payloads
from bridge.errors import ConfigError

from .settings import HttpSettings, HttpUrl, merged

__all__ = ["Herm"]


class Herm(HttpSettings):
    """A Herm session, created under an agent by these settings, or attached to by `session_id`.

    Tools cannot be added to a session: its agent has declared them before (see `declaration`), and of those we serve
    what has the names of ours. Raises `ConfigError` for an unknown name, a wrong type, or settings that exclude each
    other. There is no audio: speak by `session.say(text)`. Leaving ends nothing at the provider.
    Settings: the provider's pages on sessions; what they leave open is in `names`.
    """

    api_key_env: ClassVar[str] = "HERM_API_KEY"
    beside_session_id: ClassVar[frozenset[str]] = frozenset({"session_id", "url", "names"})

    agent_id: str | None = None
    """The agent to create a session under. Needed for that; its present version stays that of the session."""
    user_id: str | None = None
    """Whom the session is for, in words of your own."""
    title: str | None = None
    """What the session is about."""
    metadata: dict[str, Any] | None = None
    """Fields of your own."""
    names: Payloads = Payloads()
    """Names on the wire that the provider's documentation does not give; change what turns out to be wrong."""
    url: HttpUrl = Field(default="", repr=False)
    """Where to connect instead of the provider's own address: `https://...`, without `/v1`."""

    @property
    def dialect(self) -> Dialect:
        return HermDialect(self.names)

    def setup(self) -> Message:
        """The body that creates the session, or the session to attach to.

        Raises `ConfigError` if there is neither an agent nor a session.
        """
        if self.session_id is not None:
            return {"attach": self.session_id}
        if self.agent_id is None:
            raise ConfigError("Herm: give the agent to create a session under (agent_id), or a session (session_id)")
        told = {"agent_id": self.agent_id, "userId": self.user_id, "title": self.title, "metadata": self.metadata}
        body = {key: value for key, value in told.items() if value is not None}
        return {"create": merged(body, self.extra)}

    @classmethod
    def update_message(cls, **changes: Any) -> NoReturn:
        """Raises `ConfigError`: nothing can change once the session exists."""
        raise ConfigError(f"Herm: {', '.join(changes)} cannot change once the session exists")

    @staticmethod
    def declaration(agent: Message, tools: Sequence[ToolSpec], names: Payloads | None = None) -> Message:
        """The body of `POST /v1/agents` for this agent with our tools declared, to be posted once, by yourself.

        `agent` holds what the provider wants of it, such as `name`, `model` and `instructions`. Raises `ConfigError`
        for a tool whose JSON text is broken.
        """
        return HermDialect(names or Payloads()).agent(agent, tools)
