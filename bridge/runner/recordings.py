"""The calls of one session that the journal has to know of: each is claimed before it runs, and its end is written."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from ..core.events import CallKey, ToolResult
from ..journal import CallId
from ..tools.tool import CallContext, Tool
from .durable import Durable

__all__ = ["Recordings", "to_its_end"]


class Recordings:
    """The calls of one session that the journal has to know of, each from its claim to its outcome."""

    __slots__ = ("_claimed", "_durable", "_outcomes")

    def __init__(self, durable: Durable | None) -> None:
        self._durable = durable
        self._claimed: dict[CallKey, CallId] = {}
        self._outcomes: dict[CallKey, asyncio.Task[None]] = {}

    def __contains__(self, key: CallKey) -> bool:
        """Is the outcome of this call being written?"""
        return key in self._outcomes and not self._outcomes[key].done()

    async def claim(self, context: CallContext, tool: Tool, arguments: str) -> None:
        """Have the journal know of a tool that changes something before it runs. Raises what `Durable.claim` does.

        Who is cancelled meanwhile goes on, and has to look for that.
        """
        if self._durable is None or tool.effect == "read":
            return
        call = CallId.of(context.session_id, context.key)
        asking = asyncio.ensure_future(self._durable.claim(call, tool, arguments))
        # The claim may come to stand whatever becomes of this task, and somebody has to know.
        await to_its_end(asking)
        if asking.result():
            self._claimed[context.key] = call

    async def leave(self, key: CallKey, until: float) -> bool:
        """Its tool has left the call open, and its outcome comes from outside by then. False if nobody could go on with
        that should this process die.
        """
        call = self._claimed.get(key)
        return self._durable is not None and call is not None and await self._durable.leave(call, until)

    def outcome(self, key: CallKey, result: ToolResult, outcome: str) -> asyncio.Task[None] | None:
        """Writes how the call ended; None if nobody waits for that. The first outcome stands, and is written once."""
        call = self._claimed.get(key)
        if self._durable is None or call is None:
            return None
        if key not in self._outcomes:
            work = self._durable.conclude(call, result, outcome)
            self._outcomes[key] = asyncio.get_running_loop().create_task(work)
        return self._outcomes[key]

    def forget(self, key: CallKey) -> None:
        """The task of the call has ended."""
        self._claimed.pop(key, None)
        self._outcomes.pop(key, None)

    async def written(self, timeout: float) -> None:
        """Wait for what is being written, for up to `timeout` seconds."""
        if self._outcomes:
            await asyncio.wait(list(self._outcomes.values()), timeout=timeout)


async def to_its_end(task: asyncio.Future[Any]) -> None:
    """Wait for this also if the one that waits is cancelled meanwhile."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
