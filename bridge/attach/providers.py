"""The providers to whose running sessions one can attach, and which of our tools they take."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from ..agents.hcompany import HCompany
from ..agents.herm import Herm
from ..agents.openai_sessions import OpenAISessions
from ..core.dialect import Agent, Dialect, refuse_inexpressible
from ..errors import ConfigError
from ..tools.tool import Tool

__all__ = ["ATTACHABLE", "Provider", "expressible", "known_dialect", "left_out"]

logger = logging.getLogger("bridge.attach")

ATTACHABLE: Final[Mapping[str, Callable[..., Agent]]] = MappingProxyType(
    {"openai-sessions": OpenAISessions, "hcompany": HCompany, "herm": Herm}
)
"""By name: what makes the agent that attaches, from `session_id` and `url`."""


def known_dialect(name: str) -> str:
    """The name as it stands in `ATTACHABLE`. Raises `ConfigError`, with the nearest, for one that does not."""
    usual = name.replace("_", "-")
    if usual in ATTACHABLE:
        return usual
    near = difflib.get_close_matches(usual, ATTACHABLE, n=1)
    guess = f"did you mean {near[0]}?" if near else f"there are {', '.join(ATTACHABLE)}"
    raise ConfigError(f"{name!r} has no sessions to attach to; {guess}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """Where sessions run, and the key with which they are served."""

    dialect: str
    """A name from `ATTACHABLE`."""
    url: str = field(default="", repr=False)
    """Instead of the provider's own address."""
    api_key: str | None = field(default=None, repr=False)
    """None: from the environment variable that the provider's own clients use."""

    @property
    def key(self) -> str:
        """The key. Raises `ConfigError` if there is none, and the address is the provider's own."""
        variable = self.agent("any").api_key_env
        key = os.environ.get(variable, "") if self.api_key is None else self.api_key
        if not key and not self.url:
            raise ConfigError(f"no API key for {self.dialect}: set the environment variable {variable}")
        return key

    def agent(self, session_id: str) -> Agent:
        """What attaches to this session. Raises `ConfigError` for an address that cannot be."""
        return ATTACHABLE[self.dialect](session_id=session_id, url=self.url)


def expressible(dialect: Dialect, tools: Mapping[str, Tool]) -> dict[str, Tool]:
    """The tools that this provider's sessions can have; each one that is left out is logged, with the reason.

    A process may have tools for other providers, too, such as one that hangs up.
    """
    left = left_out(dialect, tools)
    for reason in left.values():
        logger.warning("left out of the sessions of %s: %s", dialect.name, reason)
    return {name: tool for name, tool in tools.items() if name not in left}


def left_out(dialect: Dialect, tools: Mapping[str, Tool]) -> dict[str, str]:
    """The tools that its sessions cannot have, by name, each with the reason."""
    reasons: dict[str, str] = {}
    for name, tool in tools.items():
        try:
            refuse_inexpressible(dialect, (tool.spec,))
        except ConfigError as error:
            reasons[name] = str(error)
    return reasons
