"""Tools that change while a session runs: replaced by the host, by a source, or switched off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from bridge import AssemblyAI, Bridge, ConfigError, ReplyDone, SetupAccepted, Tool, Toolset, ToolSettled
from bridge.simulator import AwaitResults, Call, HangUp, Reply, Rules, Say, Scenario, Simulator, Until
from tests.e2e.conftest import script, until

pytestmark = pytest.mark.anyio


def toolset(*names: str) -> Toolset:
    tools = Toolset()
    for name in names:

        async def run(said: str = name) -> str:
            return said

        tools.tool(run, name=name)
    return tools


class Shelf:
    """A source that a test has in hand."""

    name = "the shelf"
    reason = ""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.change: Callable[[Sequence[Tool]], None] = lambda tools: None

    @asynccontextmanager
    async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
        self.change = changed
        yield tuple(toolset(*self.names).values())


def ask(name: str) -> Reply:
    return Reply("One moment.", (Call(name, {}),))


UPDATED: Scenario = script(
    Say("Hello."), Until("session.updated"), ask("one"), AwaitResults(), ask("two"), AwaitResults(), HangUp()
)


async def test_a_source_that_changes_is_followed_by_the_sessions_that_run() -> None:
    source = Shelf("one")
    async with Simulator(UPDATED, pace=0.1) as sim, Bridge(sources=[source]) as bridge:
        assert list(bridge.tools) == ["one"]
        async with bridge.session(AssemblyAI(url=sim.url), api_key="k") as session:
            await until(session, ReplyDone)
            source.change(tuple(toolset("two").values()))
            assert (await until(session, SetupAccepted)).tools == ("two",)
            await session.run()
        assert [call.result for call in sim.ledger.calls] == ['{"error":"one is not available now"}', '"two"']


async def test_the_tools_of_a_bridge_can_be_replaced_while_sessions_run() -> None:
    async with Simulator(UPDATED, pace=0.1) as sim, Bridge(toolset("one")) as bridge:
        async with bridge.session(AssemblyAI(url=sim.url), api_key="k") as session:
            await until(session, ReplyDone)
            await bridge.replace(toolset("two"))
            assert (await until(session, SetupAccepted)).tools == ("two",)
            await session.run()
        assert list(bridge.tools) == ["two"]
        assert [call.result for call in sim.ledger.calls] == ['{"error":"one is not available now"}', '"two"']


async def test_a_tool_that_is_switched_off_is_not_run_until_it_is_on_again() -> None:
    scenario = script(ask("one"), AwaitResults(), ask("one"), AwaitResults(), HangUp())
    async with Simulator(scenario, pace=0.1) as sim, Bridge(toolset("one")) as bridge:
        bridge.switch(off=["one"])
        async with bridge.session(AssemblyAI(url=sim.url), api_key="k") as session:
            assert (await until(session, ToolSettled)).outcome == "unavailable"
            bridge.switch(on=["one"])
            assert (await until(session, ToolSettled)).outcome == "ok"
            await session.run()


async def test_tools_that_the_agent_cannot_be_given_are_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    agent_id = "agent_" + "0" * 32
    rules = Rules(stored_agents=frozenset({agent_id}))
    scenario = script(Say("Hello."), Say("Goodbye."), HangUp(), rules=rules)
    async with Simulator(scenario, pace=0.1) as sim, Bridge(toolset("one")) as bridge:
        agent = AssemblyAI(url=sim.url, agent_id=agent_id)
        async with bridge.session(agent, api_key="k") as session:
            await bridge.replace(toolset("two"))
            await session.run()
    assert "its tools could not be replaced: the tools of this agent are configured at the provider" in caplog.text


async def test_a_bridge_whose_source_cannot_be_opened_does_not_start() -> None:
    class Broken(Shelf):
        @asynccontextmanager
        async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
            raise ConfigError("the shelf is empty")
            yield ()

    with pytest.raises(ConfigError, match="the shelf is empty"):
        async with Bridge(sources=[Broken()]):
            pass


async def test_a_bridge_says_why_no_session_should_be_begun() -> None:
    source = Shelf("one")
    async with Bridge(sources=[source]) as bridge:
        assert bridge.reason == ""
        source.reason = "the shelf has fallen down"
        assert bridge.reason == "the shelf has fallen down"
