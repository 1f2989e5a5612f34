from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection, serve

from bridge.core.dialect import Endpoint
from bridge.transports.websocket import WebSocketTransport

pytestmark = pytest.mark.anyio


async def test_whoever_is_cancelled_while_it_closes_leaves_no_connection_behind() -> None:
    closing, gone = asyncio.Event(), asyncio.Event()

    async def deaf(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await closing.wait()
        connection.transport.resume_reading()
        await connection.wait_closed()
        gone.set()

    async with asyncio.timeout(20), serve(deaf, "127.0.0.1", 0) as server:
        host, port = next(iter(server.sockets)).getsockname()
        transport = await WebSocketTransport.open(Endpoint(f"ws://{host}:{port}"), timeout=10, max_size=1024)
        ending = asyncio.create_task(transport.aclose())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait([ending])
        assert ending.cancelled()
        assert transport._connection.transport.is_closing()
        closing.set()
        await gone.wait()
