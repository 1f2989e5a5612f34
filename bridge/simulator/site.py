"""A provider's HTTP side on a loopback port, and the ways in which it can fail."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import anyio.lowlevel
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from bridge.simulator.agenda import Agenda

__all__ = ["Body", "End", "Exchange", "Fault", "Refused", "Site", "json_answer"]

_RESET: Final = struct.pack("ii", 1, 0)
"""`SO_LINGER` of no time: the socket is closed with a reset."""


class End(Enum):
    """How a request with a fault ends for the client."""

    ANSWERED = auto()
    """With its proper answer: only the effect is at fault."""
    REFUSED = auto()
    """With an error status."""
    CUT = auto()
    """With a reset connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to the next requests of one operation, instead of what should."""

    operation: str
    """Name of the operation; the simulator lists them."""
    end: End = End.ANSWERED
    status: int = 503
    """Of a request that is refused."""
    retry_after: str = ""
    """Its `Retry-After`, if it is to have one."""
    empty: bool = False
    """Is it refused without a body?"""
    done: bool = False
    """Is a request that is refused or cut carried out all the same?"""
    delay: float = 0.0
    """Seconds after which what was accepted takes effect; `math.inf`: never."""
    times: int = 1
    """How many requests it happens to."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the status of its answer; 0 where the connection was cut instead."""

    at: float
    operation: str
    status: int


class Refused(Exception):
    """A request that the provider refuses with this status and JSON body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Body:
    """What an operation is given: the request, its whole body, and its fault if it has one."""

    request: Request
    data: bytes
    fault: Fault | None

    @property
    def delay(self) -> float:
        """Seconds after which what it asks for takes effect."""
        return 0.0 if self.fault is None else self.fault.delay


Operation: TypeAlias = Callable[[Body], Awaitable[Response]]


def json_answer(value: Any, status: int = 200) -> Response:
    """An answer with a JSON body."""
    return Response(orjson.dumps(value), status, media_type="application/json")


class Site:
    """Operations on an address of their own, each request noted, and any of them made to fail by `faults`."""

    def __init__(self, agenda: Agenda, *, host: str, port: int, error: Callable[[int], Any]) -> None:
        """`error` makes the JSON body of a status that a fault asks for."""
        self.agenda = agenda
        self.faults: list[Fault] = []
        self.exchanges: list[Exchange] = []
        self._host = host
        self._port = port
        self._error = error
        self._state = ServerState()

    @property
    def url(self) -> str:
        """The site's address, without a path."""
        return f"http://{self._host}:{self._port}"

    def route(self, method: str, path: str, name: str, operation: Operation) -> Route:
        """Serve this operation here, under the name by which faults and exchanges call it."""

        async def serve(request: Request) -> Response:
            body = Body(request, await request.body(), self._next_fault(name))
            answer = await self._answer(body, operation)
            self.exchanges.append(Exchange(self.agenda.now, name, 0 if answer is None else answer.status_code))
            self.agenda.notify()
            if answer is None:
                self.cut(request)
                await anyio.lowlevel.checkpoint()  # until the server knows that nobody is there any more
                return Response()
            return answer

        return Route(path, serve, methods=[method])

    async def open(self, routes: Sequence[Route]) -> None:
        """Begin to listen. Raises `OSError` if the port is taken."""
        loop = asyncio.get_running_loop()
        config = Config(Starlette(routes=list(routes)), lifespan="off", log_config=None, access_log=False)
        config.load()
        # The protocol without `uvicorn.Server`: that one looks every tenth of a second whether it should stop.
        self._server = await loop.create_server(
            lambda: H11Protocol(config=config, server_state=self._state, app_state={}), self._host, self._port
        )
        self._port = self._server.sockets[0].getsockname()[1]
        self._keeper = asyncio.create_task(self.agenda.keep())

    async def aclose(self) -> None:
        """Stop the clock, end every connection, and listen no more."""
        self.agenda.stop()
        self._server.close()
        for line in list(self._state.connections):
            line.transport.abort()
        tasks = list(self._state.tasks)
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._keeper

    def cut(self, request: Request) -> None:
        """Reset the connection on which this request came."""
        for line in list(self._state.connections):
            if isinstance(line, H11Protocol) and line.client == request.scope["client"]:
                peer: socket.socket = line.transport.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                line.transport.abort()

    def _next_fault(self, name: str) -> Fault | None:
        place = next((place for place, fault in enumerate(self.faults) if fault.operation == name), None)
        if place is None:
            return None
        fault = self.faults.pop(place)
        if fault.times > 1:
            self.faults.insert(place, replace(fault, times=fault.times - 1))
        return fault

    async def _answer(self, body: Body, operation: Operation) -> Response | None:
        """The answer of this request; None if the connection is to be cut."""
        fault = body.fault
        if fault is None or fault.end is End.ANSWERED:
            return await _proper(body, operation)
        if fault.done:
            await _proper(body, operation)
        if fault.end is End.CUT:
            return None
        content = b"" if fault.empty else orjson.dumps(self._error(fault.status))
        headers = {"retry-after": fault.retry_after} if fault.retry_after else {}
        return Response(content, fault.status, headers, media_type="application/json")


async def _proper(body: Body, operation: Operation) -> Response:
    try:
        return await operation(body)
    except Refused as refused:
        return json_answer(refused.body, refused.status)
