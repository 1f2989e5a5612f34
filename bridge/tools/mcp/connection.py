"""One connection to an MCP server, from its start to its end: the only file that knows the SDK.

Whoever enters a connection leaves it, in the same task. Calls may be made by any task: a call that is cancelled sends
the protocol's own `notifications/cancelled`, and does nothing else to the connection.

What a server asks of its clients (to ask the user something, to run a model, for its file roots) is not offered to it,
and refused when it asks all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, Implementation, JSONRPCResponse, ToolListChangedNotification
from mcp_types.methods import parse_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from ...errors import ToolError
from .declaration import McpServer
from .results import Interrupted, NotRun
from .stderr import logged
from .streams import Observed, Received, Streams

__all__ = ["Connection"]

logger = logging.getLogger("bridge.tools.mcp")

_PAGES: Final = 100
"""Of a list of tools. A server whose list never ends must not keep us."""
_LISTEN_AGAIN: Final = 1.0
"""Seconds until a subscription that has ended is taken out again."""
_SHOWN: Final = 500
"""Characters of a text of the server's that are taken into an error."""


@dataclass(slots=True, eq=False)
class _Request:
    """What HTTP says about one request. It is made by a task of the SDK's, which has our context variables."""

    status: int = 0
    session_unknown: bool = False


_request: ContextVar[_Request] = ContextVar("_request")


class Connection:
    """A connection to one server. It is opened once; for another one, make another."""

    def __init__(self, server: McpServer) -> None:
        self.lost = asyncio.Event()
        """Set once the server cannot be reached over this connection any more."""
        self.stale = asyncio.Event()
        """Set when the server says that its list of tools has changed. Whoever reads the list again clears it."""
        self._server = server
        self._status = 0
        self._calls = 0
        self._reported_noise = False
        self._client = Client(
            self._streams(),
            message_handler=self._heard,
            client_info=Implementation(name="voice-tool-bridge", version=version("voice-tool-bridge")),
            cache=None,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the server, or reach it, and agree on a protocol. Raises whatever goes wrong: see `explain`.

        It takes as long as it takes; whoever opens it sets a limit.
        """
        try:
            async with self._client:
                yield
        finally:
            self.lost.set()

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[Streams]:
        server = self._server
        if server.command:
            environment = {name: os.environ[name] for name in server.env_pass if name in os.environ}
            program = StdioServerParameters(
                command=server.command, args=list(server.args), env={**environment, **server.env}, cwd=server.cwd
            )
            async with logged(server.name) as errors, stdio_client(program, errors) as (read, write):
                errors.close()  # the program has it now, and its end is to be seen
                yield Observed(read, self.lost, self._mended), write
        else:
            headers = {header: os.environ.get(name, "") for header, name in server.headers_env.items()}
            # The limits of a call are its own. A pool that is exhausted must not end the connection.
            patience = httpx2.Timeout(server.connect_timeout, read=None, pool=None)
            hooks = {"response": [self._noticed]}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=patience, event_hooks=hooks) as http,
                streamable_http_client(server.url, http_client=http) as (read, write),
            ):
                yield Observed(read, self.lost, self._mended), write

    def explain(self, error: BaseException) -> str:
        """Why it could not be opened, or was lost, in words that quote nothing secret."""
        match _first(error):
            case FileNotFoundError():
                return f"the program {self._server.command!r} was not found, or its directory was not"
            case httpx2.TransportError() as cause:
                return f"{urlsplit(self._server.url).hostname} cannot be reached ({type(cause).__name__})"
            case OSError() as cause:
                return f"the program cannot be started: {cause.strerror}"
            case MCPError(code=code) if code == CONNECTION_CLOSED and self._server.command:
                return "the program ended, or closed its output; at log level debug you see what it wrote"
            case MCPError() as cause:
                return self._said(cause, self._status)
            case cause:
                return f"it does not keep to the protocol ({type(cause).__name__})"

    @staticmethod
    def _said(error: MCPError, status: int) -> str:
        """The server's words, or those of the SDK; of a failure over HTTP these do not tell enough."""
        return f"HTTP status {status}: {error.message[:_SHOWN]}" if status >= 400 else error.message[:_SHOWN]

    # ------------------------------------------------------------------------------------------- what it is there for

    async def tools(self) -> list[dict[str, Any]]:
        """All tools that the server offers: what we read of their definitions. Raises what the SDK raises."""
        read = {"name", "description", "input_schema", "annotations"}
        definitions: list[dict[str, Any]] = []
        cursor = None
        for _ in range(_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            definitions += [each.model_dump(mode="json", by_alias=True, include=read) for each in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return definitions
        line = "MCP server %s: its list of tools has more than %d pages; the rest is left out"
        logger.warning(line, self._server.name, _PAGES)
        return definitions

    def _mended(self, message: Received) -> None:
        """Take the tools that break the protocol out of a list: the SDK would refuse all of it, and not say why."""
        match message:
            case SessionMessage(message=JSONRPCResponse(result={"tools": list(tools)} as result)):
                broken = self._broken(result)
                result["tools"] = [tool for number, tool in enumerate(tools) if number not in broken]
                for number, field in broken.items():
                    name = tools[number].get("name") if isinstance(tools[number], dict) else None
                    line = "MCP server %s: its tool %.64r is left out: it breaks the protocol%s"
                    logger.warning(line, self._server.name, name, field and f" at {field:.200}")

    def _broken(self, result: dict[str, Any]) -> dict[int, str]:
        """By their places in a list, the tools that are none, with the first field that makes them so."""
        try:
            parse_server_result("tools/list", self._client.protocol_version, result)
        except ValidationError as error:
            places = [fault["loc"] for fault in reversed(error.errors(include_url=False, include_input=False))]
            return {int(place[1]): ".".join(map(str, place[2:])) for place in places if len(place) > 1}
        except (KeyError, ValueError, RuntimeError):  # no protocol has been agreed on: this is no list of tools
            pass
        return {}

    async def call(self, name: str, arguments: Mapping[str, Any], progress: ProgressFnT) -> dict[str, Any]:
        """The result of a tool as it came over the wire.

        Raises `NotRun`, `Interrupted`, and `ToolError` with what the server says instead of a result.
        """
        request = _Request()
        mark = _request.set(request)
        self._calls += 1
        try:
            result = await self._client.call_tool(name, dict(arguments), progress_callback=progress)
            return result.model_dump(mode="json", by_alias=True, exclude_unset=True)
        except MCPError as error:
            if request.session_unknown:
                self.lost.set()
                raise NotRun from error
            if error.code == CONNECTION_CLOSED:
                raise Interrupted(error.message[:_SHOWN]) from error
            raise ToolError(f"the tool failed: {self._said(error, request.status)}") from error
        except (ValidationError, RuntimeError) as error:
            # The SDK's words would quote the result.
            raise ToolError("the tool's answer is not what it declares, or not what the protocol allows") from error
        finally:
            self._calls -= 1
            _request.reset(mark)

    # ---------------------------------------------------------------------------------------------- is it still there?

    async def watch(self) -> None:
        """Ask from time to time whether the server is there, until cancelled."""
        while True:
            await anyio.sleep(self._server.ping_interval)
            if not self._calls:
                await self.check()

    async def check(self) -> None:
        """Ask whether the server is there. If not, the connection is lost; but one that runs calls need not answer."""
        try:
            async with asyncio.timeout(self._server.ping_timeout):
                await self._ping()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.lost.set()
        except TimeoutError:
            if not self._calls:
                line = "MCP server %s has not answered for %g s, and is given up"
                logger.warning(line, self._server.name, self._server.ping_timeout)
                self.lost.set()

    async def _ping(self) -> None:
        """The newer protocol has no ping, but a question that every server answers."""
        request = _Request()
        mark = _request.set(request)
        try:
            if self._is_modern:
                await self._client.session.send_discover(self._client.protocol_version)
            else:
                await self._client.session.send_ping()
        finally:
            _request.reset(mark)
            if request.session_unknown:
                self.lost.set()

    @property
    def _is_modern(self) -> bool:
        return self._client.protocol_version in MODERN_PROTOCOL_VERSIONS

    # ----------------------------------------------------------------------------------------- what it says by itself

    async def listen(self) -> None:
        """Hear of changes of the list, until cancelled. In the older protocol they come without being asked for."""
        offered = self._client.server_capabilities.tools
        if not self._is_modern or offered is None or not offered.list_changed:
            return
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as changes:
                    self.stale.set()  # there may have been some before
                    async for _ in changes:
                        self.stale.set()
            except (SubscriptionLost, MCPError):
                await self.check()
            await anyio.sleep(_LISTEN_AGAIN)

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.stale.set()
        elif isinstance(message, Exception) and not self._reported_noise:
            self._reported_noise = True
            line = "MCP server %s sends what is no message of the protocol; a program must log to its standard error"
            logger.warning(line, self._server.name)

    async def _noticed(self, answer: httpx2.Response) -> None:
        self._status = answer.status_code
        if request := _request.get(None):
            request.status = answer.status_code
            request.session_unknown = answer.status_code == 404 and "mcp-session-id" in answer.request.headers


def _first(error: BaseException) -> BaseException:
    """What went wrong first, out of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _quieten() -> None:
    """What the libraries log quotes arguments, results and addresses. What matters of it reaches us as exceptions."""
    for name in ("mcp.client", "mcp.shared"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # A name that others use, too.
    logging.getLogger("client").addFilter(lambda record: f"{os.sep}mcp{os.sep}client{os.sep}" not in record.pathname)
    if (http := logging.getLogger("httpx2")).level == logging.NOTSET:
        http.setLevel(logging.WARNING)


_quieten()
