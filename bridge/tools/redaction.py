"""What of a call may be shown: in a log only what is opted in; where it is stored, all but some."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from .encode import decode, encodable, encode

__all__ = ["masked", "shown"]

_MASK = "(masked)"
_SHOWN = 200
"""Characters of a value that a log line holds at most."""


def shown(arguments: Mapping[str, Any], fields: Collection[str], redact: Collection[str] = ()) -> str:
    """These arguments and no others, as JSON text for a log line or a trace; empty if there are none.

    What is to be redacted is masked in them, too.
    """
    chosen = {name: encodable(_short(arguments[name])) for name in fields if name in arguments}
    return masked(encode(chosen), redact) if chosen else ""


def masked(text: str, fields: Collection[str]) -> str:
    """JSON text in which the values of these keys, at any depth, are masked. What is no JSON is masked as a whole."""
    if not fields:
        return text
    try:
        value = decode(text)
    except json.JSONDecodeError:
        return encode(_MASK)
    return encode(_masked(value, fields))


def _masked(value: Any, fields: Collection[str]) -> Any:
    match value:
        case dict():
            return {key: _MASK if key in fields else _masked(each, fields) for key, each in value.items()}
        case list():
            return [_masked(each, fields) for each in value]
        case _:
            return value


def _short(value: Any) -> Any:
    return f"{value[:_SHOWN]}..." if isinstance(value, str) and len(value) > _SHOWN else value
