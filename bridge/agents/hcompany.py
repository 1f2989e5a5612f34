"""The typed settings of a session with an H Company agent: one that is created, or one that runs already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, Self

from pydantic import Field

from bridge.core.dialect import Dialect, Message
from bridge.dialects.hcompany import HCOMPANY
from bridge.errors import ConfigError

from .settings import HttpSettings, HttpUrl, joined, merged

__all__ = ["HCompany"]


class HCompany(HttpSettings):
    """A session with an H Company agent, created by these settings, or attached to by `session_id`.

    Our tools become the agent's custom tools; they replace those that an agent of the catalogue has. A session that is
    attached to keeps its own, of which we serve what has the names of ours. Every setting may be left out; the provider
    then uses its own default. Raises `ConfigError` for an unknown name, a wrong type, or settings that exclude each
    other. There is no audio: speak by `session.say(text)`. Leaving ends nothing at the provider: a session goes on
    until it is done, or its `idle_timeout_s` is over. Settings: the provider's pages on sessions and agents.
    """

    api_key_env: ClassVar[str] = "HAI_API_KEY"

    agent: str | dict[str, Any] | None = None
    """Name of an agent of the catalogue, `h/...`, or a description of one. Needed to create a session."""
    messages: str | list[dict[str, Any]] | None = None
    """The task. Without one the session is idle until something is said, and over if it may not be idle."""
    idle_timeout_s: int | None = None
    """Seconds for which the session stays open after each answer; without it the first answer ends it."""
    max_steps: int | None = None
    """Steps that the agent may take."""
    max_time_s: float | None = None
    """Seconds that an answer may take; tools take part of them."""
    queue: bool | None = None
    """False: be refused at once, rather than wait, if there is no room for another session."""
    timezone: str | None = None
    """IANA name, such as `Europe/Paris`; the provider's default is UTC."""
    url: HttpUrl = Field(default="", repr=False)
    """Where to connect instead of the provider's own address in the EU: `https://...`, without `/api/v2`."""

    @property
    def dialect(self) -> Dialect:
        return HCOMPANY

    def setup(self) -> Message:
        """The body that creates the session, or the session to attach to, without our tools.

        Raises `ConfigError` if there is neither an agent nor a session.
        """
        if self.session_id is not None:
            return {"attach": self.session_id}
        if self.agent is None:
            raise ConfigError("HCompany: give an agent (its name or a description), or a session (session_id)")
        body = self.model_dump(mode="json", exclude={"session_id", "url", "extra"}, exclude_none=True)
        return {"create": merged(body, self.extra)}

    def informed(self, text: str) -> Self:
        """The same agent, with this in its instructions, or, for an agent of the catalogue, before its task.

        Raises `ConfigError` where there is neither.
        """
        match self.setup():
            case {"create": {"agent": Mapping() as agent}}:
                told: dict[str, Any] = {"agent": {"instructions": joined(agent.get("instructions"), text)}}
            case {"create": {"messages": str(task)}}:
                told = {"messages": joined(text, task)}
            case {"create": {"messages": list(messages)}}:
                told = {"messages": [{"type": "user_message", "message": text}, *messages]}
            case _:
                raise ConfigError(
                    "HCompany: only an agent that is described (agent={...}) or given a task (messages) can be told "
                    "what an earlier session has left"
                )
        return self.model_copy(update={"extra": merged(self.extra, told)})

    @classmethod
    def update_message(cls, **changes: Any) -> NoReturn:
        """Raises `ConfigError`: nothing can change once the session exists."""
        raise ConfigError(f"HCompany: {', '.join(changes)} cannot change once the session exists")
