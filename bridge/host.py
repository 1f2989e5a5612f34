"""What the sessions of a process share: tools, the runner, and who watches."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .core.conversation import Step
from .core.dialect import Agent, Delivery
from .errors import ConfigError
from .runner import Runner
from .session import Session, SessionOptions
from .tools.tool import Tool, Toolset

if TYPE_CHECKING:
    from .metrics import Metrics

__all__ = ["Bridge", "connect"]

Observer = Callable[[Session, Step], None]
"""Sees every step of every session as it happens; must not block."""


class Bridge:
    """Runs the tools of any number of sessions.

        async with Bridge(tools) as bridge, bridge.session(AssemblyAI(...)) as session: ...

    At most `max_concurrent_tools` run at once in the process, and `max_concurrent_tools_per_session` in one session;
    further calls wait for a while, then are answered "busy".
    """

    def __init__(
        self,
        tools: Mapping[str, Tool] | None = None,
        *,
        observers: tuple[Observer, ...] = (),
        metrics: Metrics | None = None,
        max_concurrent_tools: int = 256,
        max_concurrent_tools_per_session: int = 4,
        max_threads: int = 32,
    ) -> None:
        self.tools: Mapping[str, Tool] = Toolset() if tools is None else tools
        counting: tuple[Observer, ...] = () if metrics is None else (metrics,)
        self._observers = (*observers, *counting)
        self._per_session = max_concurrent_tools_per_session
        watchers = () if metrics is None else (metrics.finished,)
        self.runner = Runner(max_concurrent=max_concurrent_tools, max_threads=max_threads, watchers=watchers)
        if metrics is not None:
            metrics.watch_runner(self.runner)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.close()

    @asynccontextmanager
    async def session(
        self,
        agent: Agent,
        *,
        api_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        delivery: Delivery | None = None,
        options: SessionOptions | None = None,
    ) -> AsyncIterator[Session]:
        """Connect, configure, and yield the session once the provider is ready for audio.

        `api_key`: by default from the environment variable that the agent names. `metadata`: what tools find in their
        `CallContext`. `delivery`: instead of the dialect's. Raises `AuthenticationFailed`, `ConfigurationRefused`,
        `AtCapacity`, `ProviderError` or `TransportError` if there will be no session. On leaving, the session is ended
        properly, within bounds.
        """
        options = options or SessionOptions()
        session = Session(
            agent,
            dict(self.tools),
            self.runner.session(max_concurrent=self._per_session),
            observers=self._observers,
            metadata=metadata or {},
            delivery=delivery,
            options=options,
        )
        async with session.open(_key(agent, api_key)):
            yield session


@asynccontextmanager
async def connect(
    agent: Agent,
    *,
    tools: Mapping[str, Tool] | None = None,
    api_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    delivery: Delivery | None = None,
    options: SessionOptions | None = None,
    observers: tuple[Observer, ...] = (),
) -> AsyncIterator[Session]:
    """One session with an agent: a `Bridge` with a single session. See `Bridge.session`."""
    async with (
        Bridge(tools, observers=observers) as bridge,
        bridge.session(agent, api_key=api_key, metadata=metadata, delivery=delivery, options=options) as session,
    ):
        yield session


def _key(agent: Agent, api_key: str | None) -> str:
    key = api_key if api_key is not None else os.environ.get(agent.api_key_env, "")
    if not key and not agent.url:
        raise ConfigError(f"no API key: pass api_key=..., or set the environment variable {agent.api_key_env}")
    return key
