"""What tests of HTTP tools need: an endpoint on a real socket that answers what it is told, and calls to it."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bridge.core.events import CallKey, ToolCall
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext, Tool
from bridge.tools.webhook import HttpSource, HttpTool
from tests.sockets import listening


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


Answering = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Endpoint:
    answering: Answering
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                seen = await _request(reader, number)
                self.seen.append(seen)
                await self.answering(seen, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


async def _request(reader: asyncio.StreamReader, connection: int) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("utf-8").split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, target, headers, body, connection)


@asynccontextmanager
async def endpoint(
    answering: Answering, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Endpoint]:
    """An HTTP server that answers every request by writing to its connection."""
    rig = Endpoint(answering)
    async with listening(rig.serve, host, ssl=tls) as rig.port:
        yield rig


def reply(value: object = None, status: int = 200, **headers: str) -> bytes:
    """An answer: bytes as they are, anything else as JSON."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): text for name, text in headers.items()}
    head = "".join(f"{name}: {text}\r\n" for name, text in fields.items() if text)
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + body


def saying(*answers: bytes) -> Answering:
    """Answers in turn, and the last one ever after."""
    left = list(answers)

    async def answering(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    return answering


def declared(rig: Endpoint, path: str = "/", **fields: Any) -> HttpTool:
    """A tool of this endpoint."""
    return HttpTool(**{"name": "lookup", "url": rig.url + path, "private_hosts": ("127.0.0.1",), **fields})


def call_context(call_id: str = "c1", session_id: str = "s1", epoch: int = 0) -> CallContext:
    return CallContext(session_id=session_id, key=CallKey(epoch, call_id), tool="lookup")


@asynccontextmanager
async def opened(*tools: HttpTool) -> AsyncIterator[tuple[Tool, ...]]:
    async with HttpSource(tools).open(lambda changed: None) as made:
        yield tuple(made)


async def called(tool: HttpTool, arguments: object = None, call_id: str = "c1") -> Finished:
    """One call on its way through the runner."""
    runner = Runner()
    done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    async with opened(tool) as (made,):
        calls = runner.session()
        call = ToolCall(call_id, tool.name, json.dumps(arguments or {}))
        key = CallKey(0, call_id)
        calls.start(key, call, made, [tool.name], call_context(call_id), done.set_result)
        try:
            return await asyncio.wait_for(done, 10)
        finally:
            await calls.aclose(1.0)
            runner.close()


def output(finished: Finished) -> Any:
    return json.loads(finished.result.output)


def error(finished: Finished) -> str:
    assert finished.result.is_error
    text: str = output(finished)["error"]
    return text
