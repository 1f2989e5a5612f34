"""What is said to the provider: results, and the tools of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridge.core.dialect import Message
from bridge.core.events import ToolResult, ToolSpec

from ..results import error_text, parsed
from ..schemas import PROFILES, declared

__all__ = ["TOOLS", "added", "error_body", "listed", "names", "place", "result_body"]

_OVERRIDE: Final = "agent.tools"
TOOLS: Final = PROFILES["hcompany"]
"""Which tools the provider takes."""


def place(body: Message) -> tuple[str, str] | None:
    """The two keys under which a creation lists the agent's tools; None if what is there cannot be added to."""
    match body:
        case {"overrides": Mapping() as overrides} if overrides.get(_OVERRIDE) is not None:
            return ("overrides", _OVERRIDE) if isinstance(overrides[_OVERRIDE], list) else None
        case {"agent": Mapping() as agent}:
            return ("agent", "tools") if isinstance(agent.get("tools"), list | None) else None
        case {"agent": str()} if isinstance(body.get("overrides"), Mapping | None):
            return "overrides", _OVERRIDE
    return None


def listed(body: Message) -> tuple[str, ...]:
    """The names of the tools in a creation."""
    outer, key = place(body) or ("agent", "tools")
    about = body.get(outer)
    return names(about.get(key)) if isinstance(about, Mapping) else ()


def names(tools: object) -> tuple[str, ...]:
    """The names in a list of tools, or of names."""
    entries = tools if isinstance(tools, list) else []
    found = (entry.get("name") if isinstance(entry, Mapping) else entry for entry in entries)
    return tuple(name for name in found if isinstance(name, str))


def result_body(result: ToolResult) -> dict[str, Any]:
    """A result as it is posted, with its whole call."""
    call = parsed(dict(result.echo).get("tool_req", ""))
    if result.is_error:
        return error_body(error_text(result), call)
    return {"kind": "tool_result", "tool_req": call, "result": parsed(result.output)}


def error_body(words: str, call: object) -> dict[str, Any]:
    """A failure as it is posted; `call` is the provider's own."""
    return {"kind": "error_event", "error": words, "origin": "custom_tools", "tool_req": call}


def added(entries: Sequence[Any], tools: Sequence[ToolSpec]) -> list[Any] | None:
    """The list with our tools, as far as their names are free; None if none is."""
    taken = names(entries)
    ours = {spec.name: spec for spec in tools if spec.name not in taken}
    return [*entries, *map(_tool_entry, ours.values())] if ours else None


def _tool_entry(spec: ToolSpec) -> dict[str, Any]:
    parameters, extra = declared(spec, TOOLS)
    # An empty description is refused.
    entry = {"name": spec.name, "description": spec.description or spec.name, "input_schema": parameters}
    return entry | {key: value for key, value in extra.items() if key not in entry}
