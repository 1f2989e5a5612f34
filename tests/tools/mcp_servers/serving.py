"""MCP servers over streamable HTTP on the loopback."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from .desk import until

App = Callable[..., Awaitable[None]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(app: App, port: int) -> AsyncIterator[None]:
    """Serve it until the block is left; then all connections are cut."""
    options: dict[str, Any] = {"ws": "none", "log_level": "critical", "timeout_graceful_shutdown": 0}
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, **options))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        await task


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Older:
    """A server that hides that it knows the newer protocol, notes what it is asked, and can be told to fail."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.methods: list[str] = []
        self.headers: dict[str, str] = {}
        """Of the latest request."""
        self.hides_the_newer = True
        self.forgets = False
        """Forget the next session that is shown."""
        self.forgets_always = False
        self.fails_with = 0
        """Status with which calls are answered."""
        self.cut = asyncio.Event()
        """Ends all subscriptions, also later ones, until it is cleared."""

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        first = await receive()
        method = json.loads(first["body"])["method"]
        self.methods.append(method)
        if status := self._refusal(method):
            return await _refuse(send, status)
        messages = iter([first])

        async def again() -> Any:
            return next(messages, None) or await receive()

        if method == "subscriptions/listen":
            await self._until_cut(self._app(scope, again, send))
        else:
            await self._app(scope, again, send)

    async def _until_cut(self, answering: Awaitable[None]) -> None:
        tasks = [asyncio.ensure_future(answering), asyncio.ensure_future(self.cut.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _refusal(self, method: str) -> int:
        if method == "server/discover" and self.hides_the_newer:
            return 404
        if method in ("tools/call", "ping") and (self.forgets or self.forgets_always):
            self.forgets = False
            return 404
        return self.fails_with if method == "tools/call" else 0


class Refusing:
    """A server that answers everything with one status."""

    def __init__(self, status: int) -> None:
        self._status = status

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _refuse(send, self._status)
