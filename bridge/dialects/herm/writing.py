"""What is said to Herm: results, and the custom tools of an agent."""

from __future__ import annotations

from typing import Any, Final

from bridge.core.dialect import Message
from bridge.core.events import ToolResult, ToolSpec

from ..results import error_text
from ..schemas import PROFILES, declared
from .payloads import Payloads

__all__ = ["TOOLS", "entry", "failure", "result_event"]

TOOLS: Final = PROFILES["herm"]
"""Which tools the provider takes."""
_BLOCK: Final = 20_000
_BLOCKS: Final = 100


def result_event(call_id: str, result: ToolResult) -> Message:
    """A `user.custom_tool_result`, in text blocks of a length that is taken."""
    status = "running" if result.interim else "failed" if result.is_error else "completed"
    said = error_text(result) if result.is_error else result.output
    if len(said) > _BLOCK * _BLOCKS:
        return failure(call_id, f"The result is larger than {_BLOCK * _BLOCKS:,} characters, and cannot be delivered.")
    return _event(call_id, said, status)


def failure(call_id: str, said: str) -> Message:
    """The same for a call that has failed."""
    return _event(call_id, said, "failed")


def _event(call_id: str, said: str, status: str) -> Message:
    starts = range(0, len(said), _BLOCK) if said else (0,)
    return {
        "type": "user.custom_tool_result",
        "tool_use_id": call_id,
        "content": [{"type": "text", "text": said[start : start + _BLOCK]} for start in starts],
        "status": status,
        "is_error": status == "failed",
    }


def entry(spec: ToolSpec, names: Payloads) -> dict[str, Any]:
    """A tool as an agent declares it. Raises `ConfigError` if its JSON text is broken."""
    parameters, extra = declared(spec, TOOLS)
    told = {"type": names.custom, "name": spec.name, "description": spec.description, names.schema: parameters}
    return told | {key: value for key, value in extra.items() if key not in told}
