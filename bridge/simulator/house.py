"""What goes on in a simulator, in a task of its own."""

from __future__ import annotations

import asyncio

import anyio
from anyio.abc import TaskGroup

__all__ = ["House"]


class House:
    """A task group that one task may open and another close, which a task group by itself does not allow."""

    tasks: TaskGroup
    """What goes on, from `open` to `aclose`."""

    async def open(self) -> None:
        """Must be called once."""
        self.closing = anyio.Event()
        """Set when it begins to close."""
        opened = anyio.Event()
        self._home = asyncio.create_task(self._keep(opened))
        await opened.wait()

    async def aclose(self) -> None:
        """Cancel what goes on, and wait until all of it has ended."""
        self.closing.set()
        await self._home

    async def _keep(self, opened: anyio.Event) -> None:
        async with anyio.create_task_group() as self.tasks:
            opened.set()
            await self.closing.wait()
            self.tasks.cancel_scope.cancel()
