"""The cases of the Autobahn test suite through the relay, from either side of it.

pip install --no-deps --target .autobahn autobahntestsuite
PYTHONPATH=.autobahn python -m pytest -m slow tests/relay/test_autobahn.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosed
from websockets.utils import accept_key

from bridge.relay import Limits, Listen, Relay, Route
from tests.relay.autobahn import Fuzzer, cases, folder
from tests.relay.rig import address, request, upstream
from tests.sockets import connected, listening

WHERE = folder()

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(WHERE is None, reason="autobahntestsuite is not installed"),
]

AT_ONCE = 12
GOOD = ("OK", "NON-STRICT", "INFORMATIONAL")
LIMITS = Limits(max_message=2**25, close_timeout=2.0, end_timeout=1.0)


async def echo(socket: Any) -> None:
    try:
        async for message in socket:
            await socket.send(message)
    except ConnectionClosed:
        pass


@asynccontextmanager
async def relaying_to(url: str) -> AsyncIterator[Relay]:
    async with Relay([Route(upstream=upstream(url))], limits=LIMITS) as relay:
        await relay.start(Listen(port=0))
        yield relay


async def at_once(names: list[str], play: Callable[[str], Awaitable[Any]]) -> dict[str, str]:
    """Play these cases, some at a time: those that are not passed, and why."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Any:
        async with turns, asyncio.timeout(150):
            return await play(name)

    played = zip(names, await asyncio.gather(*map(one, names)), strict=True)
    return {
        name: f"{case.behavior}: {case.result} / {case.behaviorClose}: {case.resultClose}"
        for name, case in played
        if case.behavior not in GOOD or case.behaviorClose not in GOOD
    }


async def test_an_application_may_do_what_it_likes() -> None:
    known = cases(WHERE or Path())

    async def play(name: str) -> Any:
        async with connected(relay.port) as (reader, writer):
            writer.write(request())
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            return await Fuzzer(reader, writer, server=False).play(known[name])

    async with (
        serve(echo, "127.0.0.1", 0, compression=None, max_size=None) as provider,
        relaying_to(f"ws://127.0.0.1:{provider.sockets[0].getsockname()[1]}/") as relay,
    ):
        assert await at_once(list(known), play) == {}


async def test_a_provider_may_do_what_it_likes() -> None:
    known = cases(WHERE or Path())
    played: dict[str, asyncio.Future[Any]] = {}

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        key = head.partition("Sec-WebSocket-Key: ")[2].partition("\r\n")[0]
        agreed = "HTTP/1.1 101 OK\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        writer.write(f"{agreed}Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode())
        name = head.split()[1].strip("/")
        played[name].set_result(await Fuzzer(reader, writer, server=True).play(known[name]))

    async def play(name: str) -> Any:
        played[name] = asyncio.get_running_loop().create_future()
        async with connect(address(relay, f"/{name}"), compression=None, max_size=None) as application:
            await echo(application)
        return await played[name]

    async with listening(take, limit=2**25) as port, relaying_to(f"ws://127.0.0.1:{port}/") as relay:
        assert await at_once(list(known), play) == {}
