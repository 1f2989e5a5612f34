"""Tools that change while sessions go through the relay, and what it knows of a session for them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from bridge import CallContext, ConfigError, Tool, Toolset
from bridge.relay import Limits, Listen, Relay, Route
from tests.relay.rig import Provider, Providers, address, providing, tool, upstream

pytestmark = pytest.mark.anyio


def tools(*names: str) -> Toolset:
    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> object:
        return threading.current_thread().name

    return Toolset(tool(name, invoke) for name in names)


class Shelf:
    """A source that a test has in hand; where it was opened and closed."""

    name = "the shelf"

    def __init__(self, *names: str) -> None:
        self.names = names
        self.reason = ""
        self.threads: list[str] = []
        self.change: Callable[[Sequence[Tool]], None] = lambda tools: None

    @asynccontextmanager
    async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
        loop = asyncio.get_running_loop()
        self.change = lambda tools: loop.call_soon_threadsafe(changed, tools) and None
        self.threads.append(threading.current_thread().name)
        yield tuple(tools(*self.names).values())
        self.threads.append(threading.current_thread().name)


@asynccontextmanager
async def session(relay: Relay, providers: Providers) -> AsyncIterator[tuple[ClientConnection, Provider]]:
    """An application and its provider, which have agreed on a setup."""
    async with connect(address(relay), compression=None) as application:
        provider: Provider = await providers.next()
        await application.send(json.dumps({"type": "session.update", "session": {"tools": []}}))
        setup = await provider.hear("session.update")
        await provider.say("session.updated", config={"tools": setup["session"]["tools"]})
        await application.recv()
        yield application, provider


@asynccontextmanager
async def relaying(source: Shelf) -> AsyncIterator[tuple[Relay, Providers]]:
    """A relay with this source of tools, and its providers."""
    async with providing() as providers, Relay([Route(upstream=upstream(providers.url))], sources=[source]) as relay:
        await relay.start(Listen(port=0))
        yield relay, providers


def names(update: dict[str, Any]) -> list[str]:
    return [each["name"] for each in update["session"]["tools"]]


async def test_a_source_is_opened_where_tools_run_and_its_changes_reach_sessions() -> None:
    source = Shelf("look")
    async with relaying(source) as (relay, providers), session(relay, providers) as (application, provider):
        source.change(tuple(tools("book").values()))
        assert names(await provider.hear("session.update")) == ["book"]
        await provider.say("session.updated", config={"tools": [{"name": "book"}]})
        await provider.say("tool.call", call_id="c1", name="book", arguments={})
        result = await provider.hear("tool.result")
        assert json.loads(result["result"]) == "bridge-tools"
        await provider.say("reply.started", reply_id="r9")
        # What the provider said to what was not asked by the application was not for it.
        assert json.loads(await application.recv())["type"] == "reply.started"
    assert source.threads == ["bridge-tools"] * 2


async def test_a_source_that_is_down_and_needed_means_no_new_sessions() -> None:
    source = Shelf("look")
    async with relaying(source) as (relay, providers):
        source.reason = "the shelf has fallen down"
        assert relay.ready == "the shelf has fallen down"
        with pytest.raises(InvalidStatus) as refused:
            await connect(address(relay))
        assert refused.value.response.status_code == 503
        source.reason = ""
        async with session(relay, providers):
            assert len(relay.sessions) == 1


async def test_a_relay_whose_source_cannot_be_opened_does_not_start() -> None:
    class Broken(Shelf):
        @asynccontextmanager
        async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
            raise ConfigError("the shelf is empty")
            yield ()

    with pytest.raises(ConfigError, match="the shelf is empty"):
        async with Relay([Route(upstream=upstream("ws://127.0.0.1:1"))], sources=[Broken()]):
            pass


async def test_a_replacement_that_cannot_be_leaves_everything_as_it_was() -> None:
    async with providing() as providers:
        route = Route(upstream=upstream(providers.url))
        async with Relay([route], tools("look")) as relay:
            await relay.start(Listen(port=0))
            for routes, new in (([Route(upstream=upstream("http://127.0.0.1:1"))], tools("book")), ([route], None)):
                with pytest.raises(ConfigError):
                    await relay.replace(routes, new, [_Refused()])
            async with session(relay, providers) as (_, provider):
                await provider.say("tool.call", call_id="c1", name="look", arguments={})
                assert not (await provider.hear("tool.result")).get("is_error")


class _Refused(Shelf):
    @asynccontextmanager
    async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
        raise ConfigError("no")
        yield ()


async def test_tools_that_come_up_with_a_name_that_the_provider_refuses_are_not_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Shelf("look")
    async with relaying(source) as (relay, providers), session(relay, providers) as (_, provider):
        source.change(tuple(tools("aai_pre_connect_context").values()))
        source.change(tuple(tools("book").values()))
        assert names(await provider.hear("session.update")) == ["book"]
    assert "sessions keep those from before: tool aai_pre_connect_context" in caplog.text


async def test_tools_of_a_route_stay_its_own_when_those_of_the_relay_change() -> None:
    source = Shelf("look")
    async with providing() as providers:
        own = Route(upstream=upstream(providers.url), tools=tools("mine"))
        async with Relay([own], sources=[source]) as relay:
            await relay.start(Listen(port=0))
            async with session(relay, providers) as (application, provider):
                source.change(tuple(tools("book").values()))
                await asyncio.to_thread(lambda: None)
                await application.send(json.dumps({"type": "session.update", "session": {"tools": []}}))
                assert names(await provider.hear("session.update")) == ["mine"]


async def test_a_tool_knows_what_the_applications_request_says_of_the_caller() -> None:
    async def invoke(arguments: Mapping[str, Any], context: CallContext) -> object:
        return [arguments, dict(context.metadata)]

    spec = {"parameters": '{"type":"object","properties":{"phone":{"type":"string"}},"required":["phone"]}'}
    who = tool("who", invoke, spec=spec, hidden={"phone": "caller"})
    listen = Listen(port=0, metadata_headers={"caller": "X-Caller", "tenant": "X-Tenant"}, correlation_header="X-Call")
    async with providing() as providers:
        route = Route(upstream=upstream(providers.url), prefix="/shop")
        async with Relay([route], Toolset([who]), limits=Limits()) as relay:
            await relay.start(listen)
            headers = {"X-Caller": "+49 123", "X-Call": "CA1"}
            async with connect(address(relay, "/shop/v1/ws"), compression=None, additional_headers=headers) as one:
                provider = await providers.next()
                await one.send(json.dumps({"type": "session.update", "session": {"tools": []}}))
                (told,) = (await provider.hear("session.update"))["session"]["tools"]
                assert told["parameters"]["properties"] == {}
                await provider.say("session.updated", config={"tools": [told]})
                await provider.say("tool.call", call_id="c1", name="who", arguments={"phone": "0"})
                result = json.loads((await provider.hear("tool.result"))["result"])
    assert result == [{"phone": "+49 123"}, {"caller": "+49 123", "correlation": "CA1", "route": "/shop"}]
