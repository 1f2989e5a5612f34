"""MCP servers that have an address: real sockets on the loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import ConfigError, ToolError, ToolUnavailable
from bridge.tools.mcp import McpServer

from .mcp_servers.desk import Desk, opened, until
from .mcp_servers.serving import App, Older, Refusing, free_port, serving
from .mcp_servers.shop import make_shop

pytestmark = pytest.mark.anyio


def at(port: int, **more: Any) -> McpServer:
    return McpServer(name="shop", url=f"http://127.0.0.1:{port}/mcp", **more)


def app() -> App:
    return make_shop().streamable_http_app()


@asynccontextmanager
async def shop(served: App, **more: Any) -> AsyncIterator[Desk]:
    port = free_port()
    async with serving(served, port), opened(at(port, **more)) as desk:
        yield desk


async def test_tools_are_called_in_the_newer_protocol() -> None:
    async with shop(app()) as desk:
        assert await desk.call("find_order", order_id="17") == {"order_id": "17", "paid": True}
        assert await desk.call("count", to=3) == {"result": 3}
        assert sorted(desk.progress) == ["1 of 3", "step 2", "step 3"]
        await desk.call("grow")
        await until(lambda: "second_more" in desk.tools)


async def test_tools_are_called_in_the_older_protocol_and_the_session_is_ended() -> None:
    older = Older(app())
    async with shop(older) as desk:
        assert await desk.call("find_order", order_id="17") == {"order_id": "17", "paid": True}
        assert older.methods[:2] == ["server/discover", "initialize"]
        assert "mcp-session-id" in older.headers
        await desk.call("grow")
        await until(lambda: "second_more" in desk.tools)


async def test_a_subscription_that_is_cut_is_taken_out_again_and_disturbs_no_call() -> None:
    newer = Older(app())
    newer.hides_the_newer = False
    async with shop(newer) as desk:
        await until(lambda: "subscriptions/listen" in newer.methods)
        newer.cut.set()
        assert await desk.call("greet") == "Hello, you!"
        newer.cut.clear()
        await until(lambda: newer.methods.count("subscriptions/listen") > 1)
        await desk.call("grow")
        await until(lambda: "second_more" in desk.tools)


async def test_headers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_AUTHORIZATION", "Bearer 123")
    older = Older(app())
    async with shop(older, headers_env={"Authorization": "SHOP_AUTHORIZATION"}):
        assert older.headers["authorization"] == "Bearer 123"


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
async def test_a_server_is_asked_whether_it_is_there(older: bool) -> None:
    counting = Older(app())
    counting.hides_the_newer = older
    async with shop(counting, ping_interval=0.02) as desk:
        asked = "ping" if older else "server/discover"
        await until(lambda: counting.methods.count(asked) > 2)
        assert desk.source.reason == ""


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
async def test_a_cancelled_call_stops_at_the_server(older: bool, tmp_path: Path) -> None:
    counting = Older(app())
    counting.hides_the_newer = older
    async with shop(counting) as desk:
        started, cancelled = tmp_path / "started", tmp_path / "cancelled"
        call = asyncio.create_task(desk.call("wait", started=str(started), cancelled=str(cancelled)))
        await until(started.exists)
        call.cancel()
        await until(cancelled.exists)
        assert await desk.call("greet") == "Hello, you!"


@pytest.mark.parametrize("older", [True, False], ids=["older", "newer"])
async def test_calls_go_on_after_the_server_has_been_started_again(older: bool) -> None:
    port = free_port()
    first, second = Older(app()), Older(app())
    first.hides_the_newer = second.hides_the_newer = older
    async with AsyncExitStack() as stack, AsyncExitStack() as running:
        await running.enter_async_context(serving(first, port))
        desk = await stack.enter_async_context(opened(at(port)))
        assert await desk.call("greet") == "Hello, you!"
        await running.aclose()
        async with serving(second, port):
            assert await desk.call("greet", name="Ada") == "Hello, Ada!"
            await stack.aclose()


async def test_a_session_that_the_server_has_forgotten_is_made_anew_and_the_call_is_run_once() -> None:
    older = Older(app())
    async with shop(older) as desk:
        assert await desk.call("greet") == "Hello, you!"
        older.forgets = True
        assert await desk.call("greet", name="Ada") == "Hello, Ada!"
        assert older.methods.count("initialize") == 2


async def test_a_server_that_knows_no_session_at_all_is_not_asked_for_ever() -> None:
    older = Older(app())
    async with shop(older, options={"timeout": 1}) as desk:
        older.forgets_always = True
        with pytest.raises(ToolUnavailable, match="greet is not available now"):
            await desk.call("greet")


async def test_a_forgotten_session_is_noticed_without_a_call() -> None:
    older = Older(app())
    async with shop(older, ping_interval=0.02) as desk:
        older.forgets = True
        await until(lambda: older.methods.count("initialize") == 2)
        assert await desk.call("greet") == "Hello, you!"


async def test_a_call_that_the_server_fails_on_is_an_error_with_its_status() -> None:
    older = Older(app())
    async with shop(older) as desk:
        older.fails_with = 503
        with pytest.raises(ToolError, match="HTTP status 503"):
            await desk.call("greet")
        older.fails_with = 0
        assert await desk.call("greet") == "Hello, you!"


async def test_a_server_that_dies_is_a_reason_to_take_no_sessions() -> None:
    port = free_port()
    async with AsyncExitStack() as running:
        await running.enter_async_context(serving(app(), port))
        async with opened(at(port, ping_interval=0.05, options={"timeout": 0.5})) as desk:
            await running.aclose()
            await until(lambda: desk.source.reason)
            with pytest.raises(ToolUnavailable):
                await desk.call("greet")


@pytest.mark.parametrize("status", [401, 500])
async def test_a_required_server_that_refuses_us_is_an_error_with_its_status(status: int) -> None:
    with pytest.raises(ConfigError, match=f"MCP server shop: HTTP status {status}"):
        async with shop(Refusing(status)):
            pytest.fail("it has been opened")


async def test_a_required_server_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1 cannot be reached"):
        async with opened(at(free_port())):
            pytest.fail("it has been opened")
