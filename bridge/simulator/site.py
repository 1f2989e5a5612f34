"""A provider's HTTP side on a loopback port, and the ways in which it can fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, TypeAlias

import anyio.lowlevel
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bridge.simulator.agenda import Agenda
from bridge.simulator.listener import Listener, cut

__all__ = ["Body", "End", "Exchange", "Fault", "Refused", "Site", "json_answer"]


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
        self._listener = Listener(host, port)
        self._error = error

    @property
    def url(self) -> str:
        """The site's address, without a path."""
        return self._listener.url

    def route(self, method: str, path: str, name: str, operation: Operation) -> Route:
        """Serve this operation here, under the name by which faults and exchanges call it."""

        async def serve(request: Request) -> Response:
            body = Body(request, await request.body(), self._next_fault(name))
            answer = await self._answer(body, operation)
            self.exchanges.append(Exchange(self.agenda.now, name, 0 if answer is None else answer.status_code))
            self.agenda.notify()
            if answer is None:
                cut(request)
                await anyio.lowlevel.checkpoint()  # until the server knows that nobody is there any more
                return Response()
            return answer

        return Route(path, serve, methods=[method])

    async def open(self, routes: Sequence[Route]) -> None:
        """Begin to listen. Raises `OSError` if the port is taken."""
        await self._listener.open(routes)
        self._keeper = asyncio.create_task(self.agenda.keep())

    async def aclose(self) -> None:
        """Stop the clock, end every connection, and listen no more."""
        self.agenda.stop()
        await self._listener.aclose()
        with anyio.CancelScope(shield=True):
            await self._keeper

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
