"""The `type` of a message, by as quick a look as is safe. Pure.

* A long text that names one type only: its first key (head rule) or its last key (tail rule) is that type.
* Anything else is parsed.

A message with two types is refused: which of them counts depends on the reader, so it could be one thing to us and a
tool's result to somebody else.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

__all__ = ["DoubleType", "type_of"]

_SMALL: Final = 1024
"""Bytes up to which parsing is cheaper than looking."""
_KEY: Final = b'"type"'
_HEAD: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"]*)"\s*[,}]')
_TAIL: Final = re.compile(rb',\s*"type"\s*:\s*"([^"]*)"\s*\}\s*$')
_TAIL_LENGTH: Final = 128


class DoubleType(ValueError):
    """A message has more than one `type`."""


def type_of(payload: bytes) -> str | None:
    """The `type` of a JSON object; None if it has none, or is no JSON object.

    Raises `DoubleType`, and `UnicodeDecodeError` for what is no UTF-8.
    """
    # Without escapes the key can only be spelled in one way, and found once it is there once, at whatever depth.
    if b"\\" in payload or payload.count(_KEY) > 1:
        return _exact_type(payload)
    if len(payload) > _SMALL:
        found = _HEAD.match(payload) or _TAIL.search(payload, len(payload) - _TAIL_LENGTH)
        if found:
            payload.decode()
            return found[1].decode()
    try:
        message = orjson.loads(payload)
    except orjson.JSONDecodeError:
        payload.decode()
        return None
    return _text(message.get("type")) if isinstance(message, dict) else None


def _exact_type(payload: bytes) -> str | None:
    """By a parser that shows every key, for texts in which the key might occur twice in one object."""
    top: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        top[:] = pairs  # the outermost object is the last to be complete

    text = payload.decode()
    try:
        json.loads(text, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        return None
    if not text.lstrip().startswith("{"):
        return None
    types = [value for key, value in top if key == "type"]
    if len(types) > 1:
        raise DoubleType("a message has more than one type")
    return _text(types[0]) if types else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
