"""An open source, and calls of its tools as the runner makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bridge.core.events import CallKey
from bridge.tools.mcp import McpServer, McpSource
from bridge.tools.tool import CallContext, Tool

__all__ = ["LIMIT", "Desk", "opened", "until"]

LIMIT = 30.0
"""Seconds after which a test that waits has failed."""


class Desk:
    def __init__(self, source: McpSource) -> None:
        self.source = source
        self.tools: dict[str, Tool] = {}
        self.changes = 0
        self.progress: list[str] = []

    def changed(self, tools: Sequence[Tool]) -> None:
        self.take(tools)
        self.changes += 1

    def take(self, tools: Sequence[Tool]) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}

    async def call(self, name: str, /, **arguments: Any) -> object:
        context = CallContext(session_id="s", key=CallKey(0, "c1"), tool=name, progress=self.progress.append)
        result: Any = self.tools[name].invoke(arguments, context)
        return await result


@asynccontextmanager
async def opened(server: McpServer) -> AsyncIterator[Desk]:
    desk = Desk(McpSource(server))
    async with asyncio.timeout(LIMIT), desk.source.open(desk.changed) as tools:
        desk.take(tools)
        yield desk


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():  # noqa: ASYNC110 - what is waited for is no event of ours
            await asyncio.sleep(0.005)
