"""What a tool returns, as JSON text: strict JSON in UTF-8, encoded once, the same for every source of tools.

| value | JSON |
|---|---|
| `None`, `""`, `0`, `False`, `{}`, `[]` | exactly that |
| `nan`, `inf`, `Decimal("NaN")` | `null`: JSON has no such numbers |
| text with lone surrogates | the surrogates become U+FFFD |
| `datetime`, `date`, `time` | text, ISO 8601 |
| `timedelta` | text, ISO 8601 duration (`"PT1H30M"`) |
| `Decimal` | text: `"12.50"` keeps its digits |
| `UUID`, `Path` | text |
| `Enum` | its value |
| dataclass, named tuple, pydantic model | object of its fields; those of a dataclass that begin with `_` are left out |
| `set`, `frozenset`, views of dict keys | array, sorted |
| `tuple`, `deque`, `range`, other sequences | array |
| `bytes`, `bytearray`, `memoryview` | text, base64 |
| other mappings | object; keys that are not text become the text of their JSON form |
| anything with `tolist()`: arrays and scalars of numpy | what that returns |

Any other type is refused by its name: a `repr` would show addresses and secrets.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

import orjson
from pydantic import BaseModel

from ..core.messages import decode
from ..errors import ToolError

__all__ = ["TooLarge", "Unencodable", "decode", "encodable", "encode"]


class Unencodable(ToolError):
    """The value has no JSON form."""


class TooLarge(ToolError):
    """The JSON text is longer than the limit."""


def encode(value: object, limit: int | None = None) -> str:
    """The value as JSON text of at most `limit` bytes in UTF-8.

    Raises `Unencodable`, and `TooLarge`: half a JSON text would be none.
    """
    try:
        data = orjson.dumps(value, default=_simpler)
    except TypeError:
        data = _slowly(value)
    if limit is not None and len(data) > limit:
        raise TooLarge(f"the result has {len(data)} bytes, and at most {limit} can be sent")
    return data.decode()


def encodable(value: object) -> object:
    """The value, or its text if it has no JSON form."""
    try:
        encode(value)
    except Unencodable:
        return str(value)
    return value


def _slowly(value: object) -> bytes:
    """What the fast encoder will not take: surrogates, keys that are not text, integers of any size, deep nesting."""
    try:
        text = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except Unencodable:
        raise
    except RecursionError:
        raise Unencodable("the result contains itself, or is nested too deeply") from None
    except Exception as error:  # a property or serialiser of the value's own failed
        raise Unencodable(f"a result of type {type(value).__qualname__} could not be encoded") from error
    return text.encode()


def _plain(value: Any) -> Any:
    """The value built of the types that JSON knows, all the way down."""
    match value:
        case None | bool():
            return value
        case Enum():
            return _plain(value.value)
        case str():
            return _whole_characters(value)
        case int():
            return int(value)
        case float():
            return float(value) if math.isfinite(value) else None
        case dict():
            return {_key(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case date():  # a datetime is one too
            return value.isoformat()
        case UUID():
            return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if not f.name.startswith("_")}
    return _plain(_simpler(value))


def _simpler(value: Any) -> Any:
    """One step from a type that JSON does not know towards one that it does."""
    match value:
        case Decimal():
            return str(value) if value.is_finite() else None
        case float():
            return float(value)
        case timedelta():
            return _duration(value)
        case time():
            return value.isoformat()
        case PurePath():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return b64encode(value).decode()
        case BaseModel():
            return value.model_dump(mode="json", fallback=_simpler)
        case tuple() if hasattr(value, "_asdict"):
            return value._asdict()
        case Mapping():
            return dict(value)
        case Set():
            return _in_order(value)
        case Sequence():
            return list(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    raise Unencodable(f"the result holds a value of type {type(value).__qualname__}, which has no JSON form")


def _whole_characters(text: str) -> str:
    """Text that UTF-8 can carry; two surrogates that belong together become the character they mean."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _key(key: object) -> str:
    plain = _plain(key)
    match plain:
        case str():
            return plain
        case None | bool() | int() | float():
            return json.dumps(plain)
    raise Unencodable(f"the result has a key of type {type(key).__qualname__}, which cannot be text")


def _in_order(values: Set[Any]) -> list[Any]:
    """Sorted by value where they can be compared, else by their JSON text, so that equal sets look equal."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=encode)


def _duration(value: timedelta) -> str:
    """ISO 8601, as in `-P1DT2H3.5S`."""
    sign, left = ("-", -value) if value < timedelta() else ("", value)
    minutes, seconds = divmod(left.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{left.microseconds:06}".rstrip("0") if left.microseconds else ""
    days = f"{left.days}D" if left.days else ""
    parts = [f"{number}{unit}" for number, unit in ((hours, "H"), (minutes, "M")) if number]
    if seconds or fraction:
        parts.append(f"{seconds}{fraction}S")
    clock = "T" + "".join(parts) if parts else ""
    return f"{sign}P{days}{clock or ('' if days else 'T0S')}"
