"""From a tool's result, which is JSON text, to what a message can hold.

| the tool returned | content |
|---|---|
| text | the text itself |
| a list of parts, and nothing but parts | the API's own parts |
| anything else | its JSON text |
| nothing, because it failed | a sentence |

A part is `{"type": "text", "text": ...}` or `{"type": "image", "data": base64, "mimeType": ...}`, the forms of the
Model Context Protocol. PURE.
"""

from __future__ import annotations

from typing import Any

import orjson

from ..core.events import ToolResult
from .api import Json

__all__ = ["parts_of", "sentence_of", "text_of"]


def text_of(result: ToolResult) -> str:
    """The result of a tool that did not fail, as text."""
    if result.output.startswith('"'):
        text: str = orjson.loads(result.output)
        return text
    return result.output


def sentence_of(result: ToolResult) -> str:
    """What went wrong."""
    match orjson.loads(result.output):
        case {"error": str(sentence)}:
            return sentence
        case _:
            return result.output


def parts_of(result: ToolResult) -> list[Json]:
    """The parts that a tool returned; none if it returned anything else."""
    if not result.output.startswith('[{"type":'):
        return []
    parts: list[Any] = orjson.loads(result.output)
    return parts if all(map(_is_part, parts)) else []


def _is_part(value: Any) -> bool:
    match value:
        case {"type": "text", "text": str(), **more}:
            return not more
        case {"type": "image", "data": str(), "mimeType": str(), **more}:
            return not more
        case _:
            return False
