"""What providers are told about tools, and what of it will work, but not well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson

from .core.dialect import SchemaProfile
from .core.events import CallKey, Deliver, Start
from .dialects import DIALECTS
from .dialects.assemblyai import ASSEMBLYAI
from .dialects.schemas import PROFILES, shape
from .errors import InvalidArguments, ToolUnavailable
from .tools.tool import CallContext, Tool, Toolset

__all__ = ["NO_TOOLS", "PROVIDERS", "advice", "definitions", "for_models", "for_provider", "spelled", "unknown_names"]


def spelled(dialect: str) -> str:
    """A dialect's name as commands and settings spell it: `openai-sessions`."""
    return dialect.replace("_", "-")


PROVIDERS: Final[Mapping[str, SchemaProfile]] = MappingProxyType(
    {
        **{spelled(name): profile for name, profile in PROFILES.items()},
        **{spelled(name): dialect.tool_schema for name, dialect in DIALECTS.items()},
    }
)
"""The providers of which it is known what they take, by name."""

NO_TOOLS: Final = "there are no tools, so sessions go on as without the bridge: name some in [tools], or by --tools"

_MANY: Final = 10
"""Tools beyond which models choose worse."""
_HEAVY: Final = 16 * 1024
"""Bytes of definitions beyond which a model is slow to begin: it reads all of them before each reply."""


def definitions(tools: Toolset) -> list[dict[str, Any]]:
    """The entries of `session.tools`, as they would be sent to AssemblyAI."""
    update = {"type": "session.update", "session": {}}
    entries: list[dict[str, Any]] = ASSEMBLYAI.add_tools(update, tools.specs())["session"].get("tools", [])
    return entries


def advice(tools: Toolset) -> list[str]:
    """What will work with AssemblyAI, but not well."""
    return [*for_models(tools), *for_provider(tools, ASSEMBLYAI.tool_schema)]


def unknown_names(off: Iterable[str], tools: Mapping[str, Tool]) -> list[str]:
    """Names that switch nothing off, since no tool has them."""
    unknown = sorted(set(off) - tools.keys())
    return [f"[tools] off: no tool is called {name}, so this switches nothing off" for name in unknown]


# ---------------------------------------------------------------------------------------------- whatever the provider


def for_models(tools: Toolset) -> list[str]:
    """What will not work well with any model."""
    found = [line for tool in tools.values() for line in _of_tool(tool)]
    if len(tools) > _MANY:
        found.append(f"{len(tools)} tools: beyond {_MANY}, models choose worse; offer fewer at a time")
    size = sum(len(each.name) + len(each.description) + len(each.parameters) for each in tools.specs())
    if size > _HEAVY:
        found.append(f"the definitions come to {size / 1024:.0f} KiB, read before each reply; shorten them")
    return found


def _of_tool(tool: Tool) -> Iterator[str]:
    name = tool.spec.name
    if not tool.spec.description.strip():
        yield f"{name}: no description: the model has to guess what it is for; write a docstring"
    for parameter, schema in orjson.loads(tool.spec.parameters).get("properties", {}).items():
        if not schema.get("description"):
            yield f"{name}: parameter {parameter} has no description"
    if tool.effect == "terminal" and tool.spec.start is Start.NOW:
        yield f"{name}: cannot be undone, but starts before its reply has been heard"
    if tool.spec.deliver is Deliver.NOW:
        yield f"{name}: its result is sent at once, even if the caller cuts in"
    for number, example in enumerate(tool.examples, 1):
        try:
            tool.arguments(orjson.dumps(dict(example.arguments), default=str).decode(), _nobody(tool))
        except InvalidArguments as error:
            yield f"{name}: example {number} does not fit: {error}"
        except ToolUnavailable:
            continue  # what is hidden is known in a session only


def _nobody(tool: Tool) -> CallContext:
    """A session about which as much is known as the tool's hidden parameters ask for."""
    known = dict.fromkeys(tool.hidden.values(), "")
    return CallContext(session_id="", key=CallKey(0, ""), tool=tool.spec.name, metadata=known)


# ----------------------------------------------------------------------------------------------------- one provider


def for_provider(tools: Mapping[str, Tool], profile: SchemaProfile) -> list[str]:
    """What this provider does not take, or takes in part only."""
    return [line for tool in tools.values() for line in _of_tool_there(tool, profile)]


def _of_tool_there(tool: Tool, profile: SchemaProfile) -> Iterator[str]:
    name, longest = tool.spec.name, tool.longest
    window = profile.window(tool.spec.timeout or longest)
    if window is not None and window < longest:
        yield f"{name}: it may take {longest:g} s, its wait for a free slot included; the provider waits {window:g} s"
    for lost in shape(tool.spec.parameters, profile)[1]:
        yield f"{name}: {lost}"
