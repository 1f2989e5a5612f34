"""From the result of an MCP tool to a value that every dialect can carry.

| in the result | value |
|---|---|
| structured content | exactly that |
| one text | the text; what it means, if it is a JSON object or array |
| several parts | a list of them |
| nothing | `None` |
| an image, a sound, a file | words that say what there is, and that it cannot be shown |
| a link to a resource | its address, name and description |
| a resource that is text | the text |

Protocol: the result of `tools/call`, https://modelcontextprotocol.io/specification/2025-11-25/server/tools
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ToolError

__all__ = ["Interrupted", "NotRun", "value_of"]

_SHOWN = 1000
"""Characters of an error text that are taken."""


class NotRun(Exception):
    """There is no result: the server does not know our session any more, and has not looked at the call."""


class Interrupted(Exception):
    """There is no result, and nobody knows whether the call was run. The text is what was said instead."""


def value_of(result: Mapping[str, Any]) -> object:
    """The value of a result as it came over the wire. Raises `ToolError` if the tool says that it failed."""
    content: Sequence[Mapping[str, Any]] = result.get("content") or ()
    if result.get("isError"):
        raise ToolError(_complaint(content) or "the tool failed and does not say why")
    structured = result.get("structuredContent")
    if structured is not None:  # the texts beside it say the same once more
        content = [part for part in content if part.get("type") != "text"]
    parts = [_part(part) for part in content]
    match parts if structured is None else [structured, *parts]:
        case []:
            return None
        case [single]:
            return single
        case several:
            return several


def _complaint(content: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text")[:_SHOWN]


def _part(part: Mapping[str, Any]) -> object:
    match part:
        case {"type": "text", "text": str(text)}:
            return _meaning(text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return f"an image ({kind}, {_size(data)}), which cannot be shown here"
        case {"type": "audio", "data": str(data), "mimeType": str(kind)}:
            return f"a sound ({kind}, {_size(data)}), which cannot be played here"
        case {"type": "resource", "resource": {"text": str(text)}}:
            return _meaning(text)
        case {"type": "resource", "resource": {"blob": str(data), "uri": uri, **more}}:
            return f"a file ({more.get('mimeType') or 'binary'}, {_size(data)}) at {uri}, which cannot be shown here"
        case {"type": "resource_link"}:
            return {field: part[field] for field in ("uri", "name", "description") if part.get(field)}
        case _:
            return f"something of the kind {str(part.get('type'))[:64]!r}, which cannot be shown here"


def _meaning(text: str) -> object:
    """Objects and arrays only: read as a number, a long one would lose digits and a telephone number its zeros."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _size(data: str) -> str:
    """Of what the base64 text stands for."""
    count = len(data) * 3 // 4 - data[-2:].count("=")
    return f"{count} bytes" if count < 1024 else f"{count / 1024:.0f} KiB"
