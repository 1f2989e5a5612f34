"""All tools of a process: those that are written down, and those of sources, which are opened and may change.

    async with Catalogue(tools, [McpSource(...)]) as catalogue:
        catalogue.tools         # what there is now
        await catalogue.replace(tools, sources)

It lives on the event loop on which tools run. A source that stays the same over a replacement stays open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from .errors import ConfigError
from .tools.source import Source
from .tools.tool import Tool, Toolset

__all__ = ["Catalogue"]

logger = logging.getLogger("bridge.tools")


@dataclass(slots=True, eq=False)
class _Open:
    """A source that is open: a task of its own enters and leaves it."""

    source: Source
    tools: tuple[Tool, ...] = ()
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] = field(init=False)


class Catalogue:
    """See the module. `changed` is told, on this event loop, of every change after the start.

    Entering it raises `ConfigError` with everything that is wrong, a line each.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool] | None = None,
        sources: Sequence[Source] = (),
        *,
        changed: Callable[[Mapping[str, Tool]], None] = lambda tools: None,
    ) -> None:
        self._written: Mapping[str, Tool] = {} if tools is None else tools
        self._sources = tuple(sources)
        self._changed = changed
        self._open: list[_Open] = []
        self._tools: Mapping[str, Tool] = dict(self._written)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """A snapshot; a change makes another one."""
        return self._tools if self._open else dict(self._written)

    @property
    def reason(self) -> str:
        """Why no session should be taken now; empty if one may be."""
        return next((each.source.reason for each in self._open if each.source.reason), "")

    async def __aenter__(self) -> Self:
        opened = await self._opened(self._sources)
        try:
            self._tools = _together(self._written, opened)
        except ConfigError:
            await _close(opened)
            raise
        self._open = opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._open = self._open, []
        await _close(opened)

    async def replace(self, tools: Mapping[str, Tool], sources: Sequence[Source]) -> None:
        """From now on the tools are these. Raises `ConfigError`, and everything stays as it was, if they cannot be."""
        kept = [each for each in self._open if each.source in sources]
        fresh = await self._opened([source for source in sources if all(source != each.source for each in kept)])
        try:
            together = _together(tools, [*kept, *fresh])
        except ConfigError:
            await _close(fresh)
            raise
        gone = [each for each in self._open if each not in kept]
        self._written, self._sources, self._open, self._tools = tools, tuple(sources), [*kept, *fresh], together
        self._changed(together)
        await _close(gone)

    async def _opened(self, sources: Iterable[Source]) -> list[_Open]:
        """Open them all side by side; none, if any cannot be."""
        opened = [_Open(source) for source in sources]
        try:
            failures = await asyncio.gather(*(self._enter(each) for each in opened))
        except asyncio.CancelledError:
            for each in opened:
                each.task.cancel()
            raise
        faults = [line for lines in failures for line in lines]
        if faults:
            await _close(opened)
            raise ConfigError("\n".join(faults))
        return opened

    async def _enter(self, each: _Open) -> list[str]:
        """Open one; what is wrong, a line each."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        each.task = asyncio.create_task(self._hold(each, ready), name=f"source {each.source.name}")
        await asyncio.wait([each.task, ready], return_when=asyncio.FIRST_COMPLETED)
        if ready.done():
            each.task.add_done_callback(partial(_ended, each))
            return []
        error = each.task.exception()
        if isinstance(error, ConfigError):
            return str(error).splitlines()
        return [f"{each.source.name} could not be opened: {type(error).__name__}"]

    async def _hold(self, each: _Open, ready: asyncio.Future[None]) -> None:
        def changed(tools: Sequence[Tool]) -> None:
            each.tools = tuple(tools)
            if each in self._open:
                self._tools = _as_far_as_possible(self._written, self._open)
                self._changed(self._tools)

        async with each.source.open(changed) as tools:
            each.tools = each.tools or tuple(tools)
            ready.set_result(None)
            await each.stop.wait()


def _ended(each: _Open, task: asyncio.Task[None]) -> None:
    if not each.stop.is_set() and not task.cancelled():
        logger.error(
            "%s has failed (%s), and its tools with it: reload the configuration, or restart",
            each.source.name,
            type(task.exception()).__name__,
        )


async def _close(opened: Sequence[_Open]) -> None:
    for each in opened:
        each.stop.set()
    if opened:
        await asyncio.wait([each.task for each in opened])
    for each in opened:
        if not each.task.cancelled() and (error := each.task.exception()) and not isinstance(error, ConfigError):
            logger.warning("%s could not be closed properly: %s", each.source.name, type(error).__name__)


def _together(written: Mapping[str, Tool], opened: Sequence[_Open]) -> Mapping[str, Tool]:
    """All of them; raises `ConfigError` with every name that is there twice."""
    tools = Toolset(written.values())
    faults: list[str] = []
    for tool in _tools(opened):
        try:
            tools.add(tool)
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))
    return dict(tools)


def _as_far_as_possible(written: Mapping[str, Tool], opened: Sequence[_Open]) -> Mapping[str, Tool]:
    """A source has changed by itself: a name that is taken is left out, and the rest goes on."""
    tools = Toolset(written.values())
    for tool in _tools(opened):
        try:
            tools.add(tool)
        except ConfigError as error:
            logger.warning("a tool is left out: %s", error)
    return dict(tools)


def _tools(opened: Iterable[_Open]) -> Iterable[Tool]:
    return (tool for each in opened for tool in each.tools)
