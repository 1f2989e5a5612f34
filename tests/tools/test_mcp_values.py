"""What can be said about an MCP server, the tools that become of its list, and the values of its results."""

from __future__ import annotations

import json
import tomllib
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bridge.core.events import Deliver, Start
from bridge.errors import ConfigError, ToolError
from bridge.tools.mcp import McpServer
from bridge.tools.mcp.offer import tools_of
from bridge.tools.mcp.results import value_of
from bridge.tools.mcp.stderr import Lines
from bridge.tools.policy import Dedupe, Example, Rate
from bridge.tools.tool import CallContext, Tool

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


async def call(name: str, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> object:
    raise AssertionError("nothing is called here")


def offered(server: McpServer, *definitions: Any) -> dict[str, Tool]:
    """Definitions are names, or mappings."""
    listed = [{"name": each, "inputSchema": SCHEMA} if isinstance(each, str) else each for each in definitions]
    return {tool.spec.name: tool for tool in tools_of(server, listed, call)}


def server(**more: Any) -> McpServer:
    return McpServer(name="shop", command="shop-mcp", **more)


def hinted(**hints: bool) -> dict[str, Any]:
    return {"name": "order", "inputSchema": SCHEMA, "annotations": hints}


# ------------------------------------------------------------------------------------------------------ the declaration


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "set either command or url"),
        ({"command": "x", "url": "http://x/mcp"}, "set either command or url"),
        ({"command": "x", "headers_env": {"A": "PATH"}}, "headers_env does not go with command"),
        ({"url": "http://x/mcp", "args": ["a"]}, "args does not go with url"),
        ({"url": "http://x/mcp", "cwd": "/"}, "cwd does not go with url"),
        ({"url": "ftp://x/mcp"}, "streamable HTTP"),
        ({"url": "http://me:secret@x/mcp"}, "must not hold credentials"),
        (
            {"url": "http://x", "headers_env": {"A": "NOT_SET_ANYWHERE"}},
            "must name an environment variable that is set",
        ),
        ({"command": "x", "env_pass": ["NOT_SET_ANYWHERE"]}, "must name an environment variable that is set"),
        ({"command": "x", "options": {"timout": 3}}, "timout: no such option of a tool; there are timeout, "),
        ({"command": "x", "options": {"strict": True}}, "strict: no such option"),
        ({"command": "x", "options": {"effect": "reed"}}, "effect: must be 'read', 'write' or 'terminal'"),
        ({"command": "x", "options": {"rate": 3}}, "rate: "),
        ({"command": "x", "options": {"dedupe": {"seconds": -1}}}, "dedupe: seconds must be a number"),
        ({"command": "x", "options": {"name": "y"}}, r"set it in tool\.<name>"),
        ({"command": "x", "tool": {"order": {"timeout": "soon"}}}, "timeout: must be a valid number"),
        ({"command": "x", "connect_timeout": 0}, "greater than 0"),
        ({"command": "x", "colour": "red"}, "McpServer: colour is unknown"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        McpServer(name="shop", **table)


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "http://me:hush@x/mcp"},
        {"url": "https://x/mcp", "headers": {"Authorization": "Bearer hush"}},
        {"url": "https://x/mcp", "headers_env": {"Authorization": "Bearer hush"}},
        {"command": "x", "env_pass": ["hush"]},
        {"command": "x", "env": {"KEY": ["hush"]}},
        {"command": "x", "args": "hush"},
        {"command": "x", "url": "https://x/hush"},
    ],
)
def test_no_value_of_a_declaration_that_cannot_be_is_quoted(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        McpServer(name="shop", **fields)
    assert "hush" not in str(raised.value)
    assert raised.value.__cause__ is raised.value.__context__ is None


# ------------------------------------------------------------------------------------------------- from list to tools


def test_of_a_definition_only_what_we_know_is_taken() -> None:
    definition = {"name": "order", "description": "Order it.", "inputSchema": SCHEMA, "title": "T", "_meta": {"x": 1}}
    spec = offered(server(), definition)["order"].spec
    assert (spec.name, spec.description, json.loads(spec.parameters)) == ("order", "Order it.", SCHEMA)
    assert spec.extra == ()


def test_options_are_those_of_all_tools_and_of_single_ones() -> None:
    options = {"timeout": 3, "filler": "One moment.", "rate": "10/minute", "dedupe": 60}
    single = {"pay": {"timeout": 30, "rate": None, "name": "pay_now", "description": "Pay.", "reply": False}}
    tools = offered(server(options=options, tool=single), "order", "pay")
    order, pay = tools["order"], tools["pay_now"]
    assert (order.timeout, order.filler, order.rate, order.dedupe) == (3, "One moment.", Rate(10, 60.0), Dedupe(60))
    assert (pay.timeout, pay.filler, pay.rate, pay.spec.description) == (30, "One moment.", None, "Pay.")
    assert (order.spec.reply, pay.spec.reply) == (True, False)
    assert order.source == "MCP server shop"


def test_options_of_toml_become_what_a_tool_takes() -> None:
    options = {
        "dedupe": {"seconds": 5, "scope": "process"},
        "examples": [{"arguments": {"text": "a"}, "result": 1}],
        "redact": ["a"],
    }
    tool = offered(server(options=options), "order")["order"]
    assert tool.dedupe == Dedupe(5, "process")
    assert tool.examples == (Example({"text": "a"}, 1),)
    assert tool.redact == ("a",)


def test_a_hidden_parameter_is_not_shown() -> None:
    tool = offered(server(options={"hidden": {"text": "caller"}}), "order")["order"]
    assert json.loads(tool.spec.parameters)["properties"] == {}


def test_what_is_hidden_in_all_tools_need_not_be_in_each_but_in_the_one_that_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = offered(server(options={"hidden": {"caller": "phone"}}), "order")
    assert tools["order"].hidden == {}
    assert not offered(server(tool={"order": {"hidden": {"caler": "phone"}}}), "order")
    assert "order: hidden names caler, which is no parameter; there are text" in caplog.text


def test_when_a_tool_starts_and_delivers_follows_from_its_effect() -> None:
    tools = offered(
        server(
            tool={"end": {"effect": "terminal"}, "slow": {"hold": True}, "odd": {"start": "now", "effect": "terminal"}}
        ),
        *("end", "slow", "odd", "plain"),
    )
    when = {name: (tool.spec.start, tool.spec.deliver) for name, tool in tools.items()}
    assert when == {
        "end": (Start.AFTER_REPLY, Deliver.AFTER_REPLY),
        "slow": (Start.NOW, Deliver.BETWEEN_REPLIES),
        "odd": (Start.NOW, Deliver.AFTER_REPLY),
        "plain": (Start.NOW, Deliver.AFTER_REPLY),
    }


def test_names_are_made_such_that_providers_take_them() -> None:
    assert list(offered(server(), "files/read.text")) == ["files_read_text"]
    assert list(offered(server(prefix="shop"), "order")) == ["shop_order"]


def test_tools_are_included_and_excluded_by_the_servers_names() -> None:
    assert list(offered(server(include=("b/c", "a")), "a", "b/c", "d")) == ["a", "b_c"]
    assert list(offered(server(exclude=("a",)), "a", "b")) == ["b"]


def test_a_tool_that_cannot_be_used_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    circle = {"name": "circle", "inputSchema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}
    tools = offered(server(tool={"odd": {"name": "no name"}}), "a/b", "a.b", circle, "odd", "last")
    assert list(tools) == ["a_b", "last"]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "MCP server shop: its tool 'a.b' is left out: another tool is called a_b already" in lines[0]
    assert "its tool 'circle' is left out" in lines[1]
    assert "'no name' is no tool name" in lines[2]


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "a{99999999999999999999}"}}},
        {"properties": {"a": {"pattern": "(" * 3000 + ")" * 3000}}},
        {"$schema": {}},
        {"$schema": 5},
        {"$schema": "http://json-schema.org/draft-03/schema#", "required": True},
        {"properties": {"a": {"type": "strng"}}},
        {"properties": []},
    ],
    ids=range(7),
)
def test_no_schema_of_one_tool_costs_the_others(schema: dict[str, Any]) -> None:
    assert "last" in offered(server(), {"name": "odd", "inputSchema": schema}, "last")


def test_names_that_the_server_does_not_offer_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    offered(server(exclude=("oder",), tool={"pya": {"timeout": 3}}), "order", "pay")
    assert "exclude names oder, which it does not offer; it offers order, pay" in caplog.text
    assert "tool names pya" in caplog.text


@pytest.mark.parametrize(
    ("declared", "hints", "effect", "repeatable"),
    [
        ({}, {}, "write", False),
        ({}, {"readOnlyHint": True}, "write", False),
        ({}, {"idempotentHint": True}, "write", False),
        ({"trusted": True}, {"readOnlyHint": True}, "read", True),
        ({"trusted": True}, {"readOnlyHint": True, "idempotentHint": False}, "read", True),
        ({"trusted": True}, {"idempotentHint": True}, "write", True),
        ({"trusted": True, "options": {"effect": "write"}}, {"readOnlyHint": True}, "write", False),
        ({"trusted": True, "options": {"idempotent": False}}, {"idempotentHint": True}, "write", False),
        ({"trusted": True}, {"readOnlyHint": True, "destructiveHint": True}, "write", False),
        ({"options": {"effect": "read"}}, {}, "read", True),
        ({"options": {"effect": "read"}}, {"destructiveHint": True}, "write", False),
        ({"options": {"effect": "read"}}, {"readOnlyHint": False}, "write", False),
        ({"options": {"effect": "terminal"}}, {"destructiveHint": True}, "terminal", False),
        ({"options": {"idempotent": True}}, {"destructiveHint": True}, "write", False),
        ({"options": {"idempotent": True}}, {"idempotentHint": False}, "write", False),
        ({"tool": {"order": {"idempotent": True}}}, {"idempotentHint": True}, "write", True),
    ],
)
def test_hints_make_a_tool_stricter_and_trusted_ones_less_strict(
    declared: dict[str, Any], hints: dict[str, bool], effect: str, repeatable: bool
) -> None:
    tool = offered(server(**declared), hinted(**hints))["order"]
    assert (tool.effect, tool.repeatable) == (effect, repeatable)


# ----------------------------------------------------------------------------------------------- from results to values


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


IMAGE = {"type": "image", "data": b64encode(bytes(12 * 1024)).decode(), "mimeType": "image/png"}
IMAGE_IN_WORDS = "an image (image/png, 12 KiB), which cannot be shown here"


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": []}, None),
        ({"content": [text("Hello")]}, "Hello"),
        ({"content": [text("")]}, ""),
        ({"content": [text(' {"a": [1]}')]}, {"a": [1]}),
        ({"content": [text("[]")]}, []),
        ({"content": [text("0049301234567")]}, "0049301234567"),
        ({"content": [text("{broken")]}, "{broken"),
        ({"content": [text("[" * 100_000)]}, "[" * 100_000),
        ({"content": [text("a"), text("b")]}, ["a", "b"]),
        ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, {"a": 1}),
        ({"content": [], "structuredContent": {}}, {}),
        ({"content": [text("x")], "structuredContent": None}, "x"),
        ({"content": [text("x"), IMAGE], "structuredContent": {"a": 1}}, [{"a": 1}, IMAGE_IN_WORDS]),
        ({"content": [IMAGE]}, IMAGE_IN_WORDS),
        (
            {"content": [{"type": "audio", "data": b64encode(bytes(100)).decode(), "mimeType": "audio/wav"}]},
            "a sound (audio/wav, 100 bytes), which cannot be played here",
        ),
        ({"content": [{"type": "resource", "resource": {"uri": "a://b", "text": "words"}}]}, "words"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "a://b", "blob": "AAAA"}}]},
            "a file (binary, 3 bytes) at a://b, which cannot be shown here",
        ),
        (
            {"content": [{"type": "resource_link", "uri": "a://b", "name": "b", "description": None, "size": 3}]},
            {"uri": "a://b", "name": "b"},
        ),
        ({"content": [{"type": "smell"}]}, "something of the kind 'smell', which cannot be shown here"),
    ],
)
def test_a_result_becomes_a_value(result: dict[str, Any], value: object) -> None:
    assert value_of(result) == value


def test_a_failure_is_told_in_the_tools_own_words_up_to_a_limit() -> None:
    with pytest.raises(ToolError, match=r"^no such order\nask again$"):
        value_of({"isError": True, "content": [text("no such order"), IMAGE, text("ask again")]})
    with pytest.raises(ToolError) as raised:
        value_of({"isError": True, "content": [text("x" * 5000)]})
    assert len(str(raised.value)) == 1000


def test_a_failure_without_words_has_some() -> None:
    with pytest.raises(ToolError, match="does not say why"):
        value_of({"isError": True, "content": []})


# ------------------------------------------------------------------------------------------------- the standard error


def test_bytes_are_cut_into_lines() -> None:
    lines = Lines()
    assert list(lines.feed(b"one\ntw")) == ["one"]
    assert list(lines.feed(b"o\n\n\xff\n")) == ["two", "�"]


def test_long_lines_are_shortened_and_one_without_an_end_is_not_kept() -> None:
    lines = Lines()
    for _ in range(100):
        assert list(lines.feed(b"x" * 1000)) == []
    assert [len(line) for line in lines.feed(b"\n")] == [300]


def test_only_so_many_lines_a_second_pass_and_the_others_are_counted() -> None:
    now = [10.0]
    lines = Lines(per_second=2, clock=lambda: now[0])
    assert list(lines.feed(b"a\nb\nc\nd\n")) == ["a", "b"]
    now[0] = 11.0
    assert list(lines.feed(b"e\n")) == ["(2 more lines)", "e"]


# -------------------------------------------------------------------------------------------------------- the example


def test_the_example_is_a_declaration() -> None:
    table = tomllib.loads((Path(__file__).parents[2] / "examples" / "mcp_tools.toml").read_text())
    for each in table["tools"]["mcp"]:
        McpServer(**each)
