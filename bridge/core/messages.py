"""Frames to messages and back. Frames that pass through are never written anew; this is for those that change."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import Any, Final, NoReturn

import orjson

from .dialect import Message
from .events import Frame

__all__ = [
    "decode",
    "encode",
    "encode_exactly",
    "is_text",
    "outline",
    "parse",
    "parse_leniently",
    "read_exactly",
    "written",
]

_TEXT: Final = r'"(?:[^"\\]++|\\.)*+"'
# A member that is a text, any other text, a bracket, or a text without an end.
_PIECES: Final = re.compile(rf'({_TEXT})\s*+:\s*+({_TEXT})|{_TEXT}|[{{\[]|[}}\]]|"', re.DOTALL)
# A frame of some megabytes would take seconds, in which no other session goes on.
_READ: Final = 256 * 1024


def parse(frame: Frame) -> dict[str, Any] | None:
    """The message in this frame; None where it is no JSON object."""
    try:
        message = decode(frame)
    except json.JSONDecodeError:
        return None
    return message if isinstance(message, dict) else None


def decode(text: str | bytes | bytearray) -> Any:
    """What JSON text says, to the last digit. Raises `json.JSONDecodeError`, also for half a character."""
    value = orjson.loads(text)
    for each in _parts(value):
        if isinstance(each, float) and abs(each) >= 2**63:
            break  # the fast decoder makes floats of integers of more than 64 bits
    else:
        return value
    try:
        return json.loads(text)
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None


def _parts(value: object) -> list[object]:
    """The value, and all that are in it. Every message passes here, so it is quick rather than short."""
    parts = [value]
    for each in parts:
        if isinstance(each, dict):
            parts.extend(each.values())
        elif isinstance(each, list):
            parts.extend(each)
    return parts


def written(value: object) -> str:
    """A part of a provider's message as JSON text, with every number as it was.

    What cannot be written, being nested too deeply or with half a surrogate pair, becomes text that is no JSON: a call
    with such arguments is refused, and so answered, where they are checked.
    """
    with suppress(TypeError):
        return orjson.dumps(value).decode()
    if any(isinstance(each, int) and each.bit_length() > 63 for each in _parts(value)):
        with suppress(RecursionError):
            return json.dumps(value, separators=(",", ":"))
    return "<cannot be written as JSON>"


def parse_leniently(frame: Frame) -> dict[str, Any] | None:
    """NaN and numbers beyond all bounds are no JSON, but it can be told what they stand in."""
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def outline(frame: Frame) -> dict[str, str]:
    """The texts in the outermost object of a frame that no reader takes, being nested too deeply or broken.

    What cannot be read is left out, and so is all that comes after the end of the object, after a text without one, or
    after 256 KiB.
    """
    begin = frame[:_READ]
    text = begin if isinstance(begin, str) else begin.decode(errors="surrogateescape")
    members: dict[str, str] = {}
    if not text.lstrip().startswith("{"):
        return members
    depth = 0
    for piece in _PIECES.finditer(text):
        match piece.group():
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if depth == 0:
                    break
            case '"':
                break
            case _ if depth == 1 and piece.lastindex:
                key, value = _unquoted(piece[1]), _unquoted(piece[2])
                if key is not None and value is not None:
                    members[key] = value
    return members


def _unquoted(text: str) -> str | None:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return None


def is_text(text: str) -> bool:
    """Can this be sent? Half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(message: Message) -> str:
    """A message that we have made ourselves, as a frame.

    Half a surrogate pair, such as a tool leaves where it cuts a text within an emoji, becomes U+FFFD.
    """
    try:
        return orjson.dumps(message).decode()
    except TypeError:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encode_exactly(message: Message) -> str:
    """A message of the application, as a frame, with every number as it was."""
    # Numbers beyond 64 bits are the application's right; only the standard library writes them as they were. So is half
    # a surrogate pair, such as a text that was cut within an emoji ends with: as an escape it can be sent.
    return json.dumps(message, separators=(",", ":"))


def read_exactly(frame: Frame) -> dict[str, Any]:
    """A message that is to be sent on with changes: raises `ValueError` for what would not survive that."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) != len(items):
            raise ValueError("it has the same key twice")
        return found

    def constant(name: str) -> NoReturn:
        raise ValueError(f"it holds {name}, which is not JSON")

    def number(text: str) -> float:
        value = float(text)
        if math.isinf(value):
            raise ValueError("it holds a number that is out of range")
        return value

    message: dict[str, Any] = json.loads(frame, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    return message
