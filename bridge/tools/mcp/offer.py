"""From what an MCP server lists to tools.

Of a server's definition only the name, the description, the schema of the arguments and the hints are read. What the
hints say may make a tool stricter than it was declared; only those of a trusted server may make it less strict.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from ...errors import ConfigError
from ..foreign import accept, safe_name
from ..schema import Parameters
from ..tool import CallContext, Tool, make_tool
from .declaration import McpServer

__all__ = ["Call", "tools_of"]

logger = logging.getLogger("bridge.tools.mcp")

Call = Callable[[str, Tool, Mapping[str, Any], CallContext], Awaitable[object]]
"""The server's own name of a tool, our definition of it, checked arguments, and the call that is served."""


def tools_of(server: McpServer, listed: Sequence[Mapping[str, Any]], call: Call) -> tuple[Tool, ...]:
    """The tools that can be used, in the server's order. `listed` are definitions as they came over the wire.

    A tool that cannot be used is left out with a warning: it must not cost the others.
    """
    tools: dict[str, Tool] = {}
    for definition in listed:
        foreign = str(definition["name"])
        if foreign in server.exclude or (server.include and foreign not in server.include):
            continue
        try:
            tool = _tool(server, foreign, definition, call)
            if tool.spec.name in tools:
                raise ConfigError(f"another tool is called {tool.spec.name} already; set tool.{foreign!r}.name")
        except ConfigError as error:
            logger.warning("MCP server %s: its tool %.64r is left out: %s", server.name, foreign, error)
        else:
            tools[tool.spec.name] = tool
    _report_missing(server, {str(definition["name"]) for definition in listed})
    return tuple(tools.values())


def _report_missing(server: McpServer, offered: set[str]) -> None:
    """Nobody sees a misspelled name otherwise."""
    for field, names in (("include", server.include), ("exclude", server.exclude), ("tool", server.tool)):
        if missing := [name for name in names if name not in offered]:
            line = "MCP server %s: %s names %s, which it does not offer; it offers %.500s"
            logger.warning(line, server.name, field, ", ".join(missing), ", ".join(sorted(offered)) or "nothing")


def _tool(server: McpServer, foreign: str, definition: Mapping[str, Any], call: Call) -> Tool:
    options: dict[str, Any] = {**server.options, **server.tool.get(foreign, {})}
    _weigh(options, definition.get("annotations") or {}, server.trusted)
    name = options.pop("name", None) or safe_name(f"{server.prefix}_{foreign}" if server.prefix else foreign)
    description = options.pop("description", None) or definition.get("description") or ""
    parameters = accept(definition["inputSchema"], name=name)
    if "hidden" not in server.tool.get(foreign, {}):  # what is hidden in all tools need not be in each
        options["hidden"] = _taken(options.get("hidden", {}), parameters)

    def invoke(arguments: Mapping[str, Any], context: CallContext) -> Awaitable[object]:
        return call(foreign, tool, arguments, context)

    tool = make_tool(name, description, parameters, invoke, source=f"MCP server {server.name}", **options)
    return tool


def _taken(hidden: Mapping[str, str], parameters: Parameters) -> dict[str, str]:
    known = orjson.loads(parameters.schema)["properties"]
    return {name: source for name, source in hidden.items() if name in known}


def _weigh(options: dict[str, Any], hints: Mapping[str, Any], trusted: bool) -> None:
    """Let a tool's hints change what is declared about it."""
    if trusted:
        if hints.get("readOnlyHint") is True:
            options.setdefault("effect", "read")
        if hints.get("idempotentHint") is True:
            options.setdefault("idempotent", True)
    reads = options.get("effect") == "read"
    destroys = hints.get("destructiveHint") is True
    if reads and (destroys or hints.get("readOnlyHint") is False):
        options["effect"] = "write"
    if destroys or (hints.get("idempotentHint") is False and hints.get("readOnlyHint") is not True):
        options["idempotent"] = False
