"""An MCP server as a source of tools: one connection is kept to it, and made anew when it is lost.

One task enters and leaves all connections to a server, one after the other, as long as the source is open. The calls
run in their own tasks and share the connection that is there. While there is none, they wait for the next one, which
is made once for all of them.

What becomes of a call that was under way when the connection was lost: a tool that may be repeated (`effect="read"` or
`idempotent`) is called once more; any other is answered with an error, since nobody knows whether it ran.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from ...errors import ConfigError, SessionClosed, ToolError, ToolUnavailable
from ..source import Changed
from ..tool import CallContext, Tool
from .declaration import McpServer
from .offer import tools_of
from .results import Interrupted, NotRun, value_of

if TYPE_CHECKING:
    from .connection import Connection

__all__ = ["McpSource"]

logger = logging.getLogger("bridge.tools.mcp")

_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts to connect: doubled every time, unless a connection has lasted longer than the pause."""
_COALESCE: Final = 0.1
"""Seconds after the news of a changed list, for more of them."""
_CLOSE: Final = 5.0
"""Seconds for a server to end the session, before it is left."""
_MARGIN: Final = 0.9
"""Of a tool's time may be spent on waiting for a connection; after that it says so, rather than be cut off."""


class _State(Enum):
    CONNECTING = "it has not been connected yet"
    UP = "it is connected"
    DOWN = "the connection was lost, or never came"
    CLOSED = "the source is not open"


class McpSource:
    """The tools of one server, for as long as it is open. Raises `ConfigError` on opening, see `Source`."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._state = _State.CLOSED
        self._moved = asyncio.Event()
        self._why = ""
        self._connection: Connection | None = None
        self._since = math.inf
        self._listed: list[dict[str, Any]] = []
        self._tools: tuple[Tool, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Two for the same server are the same: one that is open can stand for the other."""
        return isinstance(other, McpSource) and self._server == other._server

    __hash__ = None  # type: ignore[assignment]  # what is said about a server holds tables

    @property
    def name(self) -> str:
        return f"MCP server {self._server.name}"

    @property
    def reason(self) -> str:
        """Why its tools cannot be called now, if it is a server that is required; else empty."""
        if not self._server.required or self._state is _State.UP:
            return ""
        return f"{self.name}: {self._why or self._state.value}"

    @asynccontextmanager
    async def open(self, changed: Changed, /) -> AsyncIterator[Sequence[Tool]]:
        """Connect, and yield the tools that the server offers.

        A server that is not required is waited for as well, but only once: if it is not there, there are no tools until
        it is. Raises `ConfigError` if a required one cannot be connected, or if the SDK is not installed.
        """
        sdk = await anyio.to_thread.run_sync(_sdk)  # it takes a second to import
        self._why = ""
        self._move(_State.CONNECTING)
        tried = self._moved
        owner = asyncio.create_task(self._keep(sdk, changed), name=self.name)
        try:
            await tried.wait()
            if self.reason:
                raise ConfigError(f"{self.reason}; mend that, or set required = false")
            yield self._tools
        finally:
            await self._close(owner)

    async def _close(self, owner: asyncio.Task[None]) -> None:
        if self._connection is not None:
            self._connection.lost.set()
        else:
            owner.cancel()
        self._move(_State.CLOSED)
        with anyio.CancelScope(shield=True):
            _, slow = await asyncio.wait({owner}, timeout=2 * _CLOSE)
        for task in slow:
            task.cancel()
            logger.warning("%s: it does not end, and is left to itself", self.name)

    def _move(self, state: _State, connection: Connection | None = None) -> None:
        """Whoever waits looks again."""
        self._state, self._connection = state, connection
        self._moved.set()
        self._moved = asyncio.Event()

    # ------------------------------------------------------------------------------------------ keeping a connection

    async def _keep(self, sdk: type[Connection], changed: Changed) -> None:
        """The task that owns all connections."""
        pause = _FIRST_PAUSE
        while True:
            self._since = math.inf
            self._why = await self._connect(sdk(self._server), changed)
            if self._state is _State.CLOSED:
                return
            if self._state is _State.CONNECTING and self._server.required:
                return self._move(_State.DOWN)  # whoever opens it raises
            if anyio.current_time() - self._since > pause:
                pause = _FIRST_PAUSE
            logger.warning("%s: %s; connecting again in %g s", self.name, self._why, pause)
            self._move(_State.DOWN)
            with anyio.move_on_after(pause) as nap:
                await self._moved.wait()
            if not nap.cancelled_caught:  # only closing wakes it up
                return
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connect(self, connection: Connection, changed: Changed) -> str:
        """Keep one connection until it is lost or the source closes, and say why it ended."""
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._server.connect_timeout) as limit:
                async with connection.open(), anyio.create_task_group() as watching:
                    await self._take(await connection.tools(), changed)
                    limit.deadline = math.inf
                    self._since = anyio.current_time()
                    self._move(_State.UP, connection)
                    logger.info("%s: connected, %d tools", self.name, len(self._tools))
                    for watch in (connection.watch, connection.listen):
                        watching.start_soon(watch)
                    watching.start_soon(self._follow, connection, changed)
                    await connection.lost.wait()
                    watching.cancel_scope.cancel()
                    limit.deadline = anyio.current_time() + _CLOSE
        except Exception as error:  # whatever it is, the next attempt may succeed
            return connection.explain(error)
        if self._connection is None:
            return f"it was not ready within {self._server.connect_timeout:g} s"
        return "the connection was lost"

    async def _follow(self, connection: Connection, changed: Changed) -> None:
        """Read the list again whenever it has changed."""
        while True:
            await connection.stale.wait()
            await anyio.sleep(_COALESCE)
            connection.stale.clear()
            try:
                await self._take(await connection.tools(), changed)
            except Exception as error:  # the connection may still carry calls
                line = "%s: its list of tools cannot be read again, and the old one stays: %s"
                logger.warning(line, self.name, connection.explain(error))

    async def _take(self, listed: list[dict[str, Any]], changed: Changed) -> None:
        """In a thread: schemas take time to compile, and sessions may be going on."""
        if listed == self._listed:
            return
        self._tools = await anyio.to_thread.run_sync(tools_of, self._server, listed, self._call)
        self._listed = listed
        if self._state is not _State.CONNECTING:
            changed(self._tools)

    # --------------------------------------------------------------------------------------------------------- calls

    async def _call(self, foreign: str, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> object:
        """Call it over the connection that is there, or over the next one, and once more where that is harmless."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            with suppress(SessionClosed):
                context.progress(message or f"{progress:g}" + (f" of {total:g}" if total else ""))

        until = asyncio.get_running_loop().time() + tool.timeout * _MARGIN
        for attempt in (1, 2):
            connection = await self._connected(tool, until)
            try:
                return value_of(await connection.call(foreign, arguments, report))
            except NotRun:
                continue
            except Interrupted as interrupted:
                if not connection.lost.is_set():
                    await connection.check()
                if not tool.repeatable or attempt == 2:
                    raise _failure(tool, connection, interrupted) from interrupted
        raise _unavailable(tool)

    async def _connected(self, tool: Tool, until: float) -> Connection:
        """The connection as soon as there is one. Raises `ToolUnavailable` if there is none in time."""
        try:
            async with asyncio.timeout_at(until):
                while self._state is not _State.CLOSED:
                    if self._connection is not None and not self._connection.lost.is_set():
                        return self._connection
                    await self._moved.wait()
        except TimeoutError:
            pass
        raise _unavailable(tool)


def _sdk() -> type[Connection]:
    try:
        from .connection import Connection
    except ImportError as missing:
        raise ConfigError(f"{missing.name} is missing: pip install 'voice-tool-bridge[mcp]'") from None
    return Connection


def _unavailable(tool: Tool) -> ToolUnavailable:
    return ToolUnavailable(f"{tool.spec.name} is not available now; try again later")


def _failure(tool: Tool, connection: Connection, interrupted: Interrupted) -> ToolError:
    if not connection.lost.is_set():
        return ToolError(f"the tool failed: {interrupted}")
    if tool.repeatable:
        return _unavailable(tool)
    return ToolUnavailable(
        f"the connection to {tool.spec.name} was lost while it ran, and nobody knows whether it was done; "
        "find out before you call it again"
    )
