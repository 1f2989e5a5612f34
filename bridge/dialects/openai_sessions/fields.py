"""Fields of the provider's messages, read without trust."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.core.dialect import Message
from bridge.core.messages import written

__all__ = ["approval_key", "call_key", "functions", "json_text", "others", "part", "text", "waiting_key"]


def functions(agent: Message) -> tuple[str, ...] | None:
    """The names of an agent's functions, if they are listed."""
    tools = agent.get("tools")
    if not isinstance(tools, list):
        return None
    names = (tool.get("name") for tool in tools if isinstance(tool, Mapping) and tool.get("type") == "function")
    return tuple(name for name in names if isinstance(name, str))


def others(agent: Message, ours: object) -> Message | None:
    """A setup with the tools that an agent has beside ours; None if it does not list its tools, or none can be ours."""
    listed = agent.get("tools")
    if not isinstance(listed, list) or not isinstance(ours, list):
        return None
    tools = [tool for tool in listed if not _is_one_of(tool, ours)]
    # Documented: a session that is read does not list its search, and a list is replaced as a whole.
    deferred = any(isinstance(tool, Mapping) and tool.get("defer_loading") is True for tool in tools)
    searched = any(isinstance(tool, Mapping) and tool.get("type") == "tool_search" for tool in tools)
    return {"agent": {"tools": [*tools, {"type": "tool_search"}] if deferred and not searched else tools}}


def _is_one_of(tool: object, names: list[Any]) -> bool:
    return isinstance(tool, Mapping) and tool.get("type") == "function" and tool.get("name") in names


def waiting_key(action: object) -> str:
    """What tells a required action from all others, if it can be answered here."""
    match action:
        case Mapping() if action.get("type") == "function_call":
            return call_key(action)
        case {"type": "mcp_approval_request", "request_id": str(request_id)}:
            return approval_key(request_id)
    return ""


def approval_key(request_id: str) -> str:
    return f"approval/{request_id}"


def call_key(call: Message) -> str:
    return f"{text(call, 'turn_id')}/{text(call, 'call_id')}"


def part(message: Message, key: str) -> Message:
    """The object in a field; empty if there is none or it is something else."""
    value = message.get(key)
    return value if isinstance(value, Mapping) else {}


def text(message: Message, key: str) -> str:
    """The text in a field; empty if there is none or it is something else."""
    value = message.get(key)
    return value if isinstance(value, str) else ""


def json_text(value: object, *, absent: str = "{}") -> str:
    """A payload as JSON text; arguments that are text are taken for it already, as the vendor's client does."""
    match value:
        case None:
            return absent
        case str():
            return value
    return written(value)
