"""Results, messages and tool definitions, as the provider wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bridge.core.dialect import Message
from bridge.core.events import ToolResult, ToolSpec

from ..results import error_text, parsed
from ..schemas import PROFILES, declared

__all__ = ["APPROVAL", "TOOLS", "decision", "entries", "result_event", "user_message"]

TOOLS: Final = PROFILES["openai_sessions"]
APPROVAL: Final = "agent.session.input.mcp_approval_request_result"


def user_message(text: str) -> Message:
    """A message of the user: it begins a turn, or steers the one that runs."""
    part = {"type": "input_text", "text": text}
    message = {"type": "message", "role": "user", "content": [part]}
    return {"events": [{"type": "agent.session.input.message", "input": [message]}]}


def decision(request_id: str, *, allowed: bool) -> Message:
    """The answer to an approval that the session waits for."""
    said = {"type": "mcp_tool_call", "decision": "approve" if allowed else "deny"}
    return {"events": [{"type": APPROVAL, "request_id": request_id, "response": said}]}


def result_event(result: ToolResult) -> dict[str, Any]:
    turn_id = dict(result.echo).get("turn_id", "")
    call_id = result.call_id.removeprefix(f"{turn_id}/")
    event = {"type": "agent.session.input.tool_result", "turn_id": turn_id, "call_id": call_id}
    if result.is_error:
        return {**event, "success": False, "error": error_text(result)}
    return {**event, "success": True, "output": _output(result.output)}


def _output(text: str) -> Any:
    """Text as it is, content parts as a list, and everything else as JSON text, which is how objects are to be sent."""
    value = parsed(text)
    match value:
        case str():
            return value
        case [{"type": "input_text" | "input_image"}, *_] if all(map(_is_part, value)):
            return value
    return text


def _is_part(value: object) -> bool:
    match value:
        case {"type": "input_text", "text": str()} | {"type": "input_image", "image_url": str()}:
            return True
    return False


def entries(listed: Sequence[Any], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Our entries for a list: without names that are taken, and with a search if one of them is only found by it."""
    taken = [tool.get("name") for tool in listed if isinstance(tool, Mapping)]
    ours = [_entry(spec) for spec in {spec.name: spec for spec in tools if spec.name not in taken}.values()]
    searched = any(isinstance(tool, Mapping) and tool.get("type") == "tool_search" for tool in listed)
    if any(entry.get("defer_loading") is True for entry in ours) and not searched:
        ours.append({"type": "tool_search"})
    return ours


def _entry(spec: ToolSpec) -> dict[str, Any]:
    parameters, extra = declared(spec, TOOLS)
    entry = {"type": "function", "name": spec.name, "description": spec.description, "parameters": parameters}
    return entry | {key: value for key, value in extra.items() if key not in entry}
