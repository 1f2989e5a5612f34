"""The toolsets of one session, while they change."""

from __future__ import annotations

import pytest

from bridge.core.events import CallKey, ToolSpec
from bridge.errors import ToolUnavailable
from bridge.tools import CallContext, Tool, Toolset
from bridge.tools.versions import Versions

CONTEXT = CallContext(session_id="s", key=CallKey(0, "c"), tool="t", metadata={"phone": "1"})


def toolset(*names: str, description: str = "") -> Toolset:
    tools = Toolset()
    for name in names:

        async def run(caller: str = "") -> str:
            return description

        tools.tool(run, name=name, description=description, hidden={"caller": "phone"}, filler="One moment.")
    return tools


def specs(tools: Toolset) -> tuple[ToolSpec, ...]:
    return tools.specs()


def available(tool: Tool | None) -> bool:
    assert tool is not None
    try:
        tool.arguments("{}", CONTEXT)
    except ToolUnavailable:
        return False
    return True


def test_a_call_is_for_the_version_in_force_until_the_next_one_is() -> None:
    old, new = toolset("look", description="old"), toolset("look", description="new")
    versions = Versions(old)
    versions.offer(new)
    assert versions.find("look") is old["look"]
    versions.keep((specs(new),))
    assert versions.find("look") is new["look"]


def test_a_tool_that_is_on_its_way_can_be_called() -> None:
    versions = Versions(toolset("look"))
    versions.offer(new := toolset("look", "book"))
    assert versions.find("book") is new["book"]


def test_a_tool_that_was_taken_away_says_that_it_is_not_available() -> None:
    versions = Versions(old := toolset("look", "book"))
    versions.offer(new := toolset("look"))
    versions.keep((specs(old), specs(new)))
    assert available(versions.find("book"))
    versions.keep((specs(new),))
    gone = versions.find("book")
    assert gone is not None
    with pytest.raises(ToolUnavailable, match=r"^book is not available now$"):
        gone.arguments("not even JSON", CONTEXT)
    assert gone.filler is None


def test_a_tool_that_comes_back_can_be_called() -> None:
    versions = Versions(old := toolset("look", "book"))
    for tools in (toolset("look"), old):
        versions.offer(tools)
        versions.keep((specs(tools),))
    assert available(versions.find("book"))


def test_of_two_versions_that_look_alike_to_the_agent_the_later_counts() -> None:
    versions = Versions(toolset("look"))
    versions.offer(new := toolset("look"))
    versions.keep((specs(new),))
    assert versions.find("look") is new["look"]


def test_a_version_that_was_refused_is_forgotten() -> None:
    versions = Versions(old := toolset("look"))
    versions.offer(toolset("book"))
    versions.keep((specs(old),))
    assert available(versions.find("look"))
    assert not available(versions.find("book"))


def test_a_name_that_never_was_is_nobodys() -> None:
    assert Versions(toolset("look")).find("cook") is None
