"""What the tests of the relay share: a relay in front of something, providers that do as they are told, and tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from websockets.asyncio.server import ServerConnection, serve

from bridge import CallContext, Deliver, Delivery, InvalidArguments, Start, Tool, ToolError, ToolSpec
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.relay import Limits, Listen, Relay, Route, Upstream
from bridge.simulator import ToolSketch
from tests.sockets import Play, connected, listening

PATIENCE = 20.0
BRIEF = Limits(owed_timeout=0.2, end_timeout=0.05, close_timeout=0.2)
"""For ends that nobody waits for."""


def upstream(url: str, **options: Any) -> Upstream:
    return Upstream(dialect=ASSEMBLYAI, url=url, **options)


@asynccontextmanager
async def relaying(
    url: str,
    tools: Mapping[str, Tool] | Sequence[Tool] = (),
    *,
    limits: Limits | None = None,
    listen: Listen | None = None,
    routes: Sequence[Route] = (),
    observers: tuple[Callable[[Any, Any], None], ...] = (),
    lag: Callable[[float], None] | None = None,
    **options: Any,
) -> AsyncIterator[Relay]:
    """A relay in front of this address; `options` are those of its upstream. Nothing takes for ever."""
    named = tools if isinstance(tools, Mapping) else {tool.spec.name: tool for tool in tools}
    routes = routes or [Route(upstream=upstream(url, **options))]
    running = Relay(routes, named, limits=limits or BRIEF, observers=observers, lag=lag)
    async with asyncio.timeout(PATIENCE), running as relay:
        await relay.start(listen or Listen(port=0))
        yield relay


def address(relay: Relay, path: str = "/v1/ws") -> str:
    return f"ws://127.0.0.1:{relay.port}{path}"


async def until(true: Callable[[], bool]) -> None:
    """Wait until this is so, looking often."""
    async with asyncio.timeout(PATIENCE):
        while not true():  # noqa: ASYNC110 - what is waited for is no event of ours
            await asyncio.sleep(0.002)


async def ask(relay: Relay, head: bytes) -> bytes:
    """Send these bytes to the relay; everything it answers until it closes."""
    async with connected(relay.port) as (reader, writer):
        writer.write(head)
        return await reader.read()


def request(path: str = "/v1/ws", *headers: str, host: str = "localhost") -> bytes:
    """The head of a handshake."""
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        *headers,
    )
    return "\r\n".join([*lines, "", ""]).encode()


# ------------------------------------------------------------------------------------------------------------ providers


class Provider:
    """The provider's end of one session: it says what a test tells it to, and keeps what it hears."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.heard: list[Any] = []

    async def say(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def hear(self, kind: str = "") -> dict[str, Any]:
        """The next message, or the next of this type."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message: dict[str, Any] = json.loads(await self.socket.recv())
                self.heard.append(message)
                if kind in ("", message["type"]):
                    return message

    async def ready(self) -> dict[str, Any]:
        """Accept the setup; what it was."""
        update = await self.hear("session.update")
        await self.say("session.updated", config={"tools": update["session"].get("tools", [])})
        await self.say("session.ready", session_id="sess_1")
        return update

    async def call(self, name: str = "get_weather", call_id: str = "c1", **arguments: Any) -> None:
        await self.say("tool.call", call_id=call_id, name=name, arguments=arguments or {"city": "Oslo"})


class Providers:
    """All sessions of a server, in the order in which they began."""

    def __init__(self) -> None:
        self.url = ""
        self.all: asyncio.Queue[Provider] = asyncio.Queue()
        self.over = asyncio.Event()

    async def next(self) -> Provider:
        async with asyncio.timeout(PATIENCE):
            return await self.all.get()


@asynccontextmanager
async def providing(**options: Any) -> AsyncIterator[Providers]:
    """A server whose sessions the test plays itself."""
    providers = Providers()

    async def take(socket: ServerConnection) -> None:
        providers.all.put_nowait(Provider(socket))
        await providers.over.wait()
        socket.transport.abort()

    options = {"compression": None, "ping_interval": None, "close_timeout": 1, "max_size": None} | options
    async with serve(take, "127.0.0.1", 0, **options) as server:
        providers.url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/ws"
        try:
            yield providers
        finally:
            providers.over.set()


@asynccontextmanager
async def serving_bytes(play: Play) -> AsyncIterator[str]:
    """A server that does whatever `play` does with a connection."""
    async with listening(play) as port:
        yield f"ws://127.0.0.1:{port}/v1/ws"


# ---------------------------------------------------------------------------------------------------------------- tools


def tool(
    name: str,
    invoke: Callable[[Mapping[str, Any], CallContext], Any],
    *,
    spec: Mapping[str, Any] | None = None,
    **options: Any,
) -> Tool:
    """A tool of a function that takes all arguments, and the context."""
    return Tool(spec=ToolSpec(name, **(spec or {})), invoke=invoke, check=_object, **options)


def weather() -> Tool:
    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> object:
        return {"sky": "rain", "city": arguments.get("city")}

    return tool("get_weather", invoke)


def sketched(sketch: ToolSketch, pace: float) -> Tool:
    """The tool that a scenario expects the client to have."""

    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> object:
        await asyncio.sleep(sketch.seconds * pace)
        if sketch.fails:
            raise ToolError(sketch.fails)
        return sketch.result

    spec = {
        "parameters": orjson.dumps(sketch.parameters).decode(),
        "timeout": sketch.timeout_seconds,
        "hold": sketch.hold,
        "start": Start.AFTER_REPLY if sketch.terminal else Start.NOW,
        "deliver": Deliver.BETWEEN_REPLIES if sketch.hold else Deliver.AFTER_REPLY,
    }
    return tool(sketch.name, invoke, spec=spec, timeout=sketch.timeout_seconds * pace / 2)


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        raise InvalidArguments("the arguments are not JSON") from None
    if not isinstance(value, dict):
        raise InvalidArguments("the arguments are no object")
    return value


def brisk(pace: float) -> Delivery:
    """The dialect's own delivery, with the grace at the pace of the simulator."""
    return Delivery(grace=0.4 * pace)
