"""Facts to JSON and back: a class name, and its fields by name.

A field that is missing has its default, so entries of an older version can be read. A class, a field or a word that is
not known comes from a later version: that entry is kept as it is, as `Foreign`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import orjson

from ..core.events import AgentAudio, Fact, ToolResult
from . import Begun, Foreign, Lost, Record

__all__ = ["KINDS", "decode", "encode", "escaped", "indexed", "result_from", "result_text", "unescaped"]

KINDS: Final[Mapping[str, type]] = MappingProxyType(
    {kind.__name__: kind for kind in (*get_args(Fact), Begun, Lost) if kind is not AgentAudio}
)
"""Everything that can be written, by its name. A caller's voice cannot."""


_LONGEST: Final = 2_000
"""Characters of the names that stand in one row of an index; PostgreSQL takes about 2,700."""


class _Misfit(ValueError):
    """Not what the class says."""


def encode(record: Record) -> tuple[str, bytes]:
    """The name of its kind, and its fields as JSON. Raises `ValueError` for a voice."""
    if isinstance(record, Foreign):
        return record.kind, record.body
    kind = type(record).__name__
    if kind not in KINDS:
        raise ValueError(f"{kind} cannot be written into a journal")
    return kind, _dumped(_plain(record))


def decode(kind: str, body: bytes) -> Record:
    """What `encode` was given; `Foreign` if this version does not know it."""
    try:
        record: Record = _reader(KINDS[kind])(_loaded(body))
    except (KeyError, ValueError):
        return Foreign(kind, body)
    return record


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.name
        case tuple():
            return [_plain(each) for each in value]
        case str() | int() | float() | None:
            return value
        case _:
            kind: type = type(value)
            return {name: _plain(getattr(value, name)) for name in _names(kind)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    # What is no part of a fact's identity is the provider's own message, which may hold words.
    return tuple(each.name for each in fields(kind) if each.compare)


# ------------------------------------------------------------------------------------------------------- reading back

_Reader = Callable[[Any], Any]


@cache
def _reader(hint: Any) -> _Reader:
    """Reads what `_plain` made of a value of this type. Raises `TypeError` for a type that no fact may have."""
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is UnionType and NoneType in arguments and len(arguments) == 2:
            return _optional(_reader(next(each for each in arguments if each is not NoneType)))
        case origin if origin is tuple and arguments[-1] is Ellipsis:
            return _list_of(_reader(arguments[0]))
        case origin if origin is tuple:
            return _fixed(tuple, [_reader(each) for each in arguments])
    if not isinstance(hint, type):
        raise TypeError(f"a fact cannot hold {hint}")
    if issubclass(hint, Enum):
        return hint.__getitem__
    if is_dataclass(hint):
        return _fields_of(hint)
    if issubclass(hint, tuple):
        types = get_type_hints(hint).values()
        return _fixed(lambda values: hint(*values), [_reader(each) for each in types])
    if hint in (str, int, float, bool):
        return _exactly(hint)
    raise TypeError(f"a fact cannot hold {hint}")


def _exactly(kind: type) -> _Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Misfit(value)
        return value

    return read


def _optional(inner: _Reader) -> _Reader:
    return lambda value: None if value is None else inner(value)


def _list_of(inner: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _Misfit(value)
        return tuple([inner(each) for each in value])

    return read


def _fixed(make: Callable[[list[Any]], Any], readers: list[_Reader]) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise _Misfit(value)
        return make([reader(each) for reader, each in zip(readers, value, strict=True)])

    return read


def _fields_of(kind: type) -> _Reader:
    hints = get_type_hints(kind)
    readers = {name: _reader(hints[name]) for name in _names(kind)}
    required = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}

    def read(value: Any) -> Any:
        if not isinstance(value, dict) or not required <= value.keys() <= readers.keys():
            raise _Misfit(value)
        return kind(**{name: readers[name](each) for name, each in value.items()})

    return read


# --------------------------------------------------------------------------------------------------------- JSON, text


def result_text(result: ToolResult) -> bytes:
    """A result, as it is stored beside its claim."""
    return _dumped(_plain(result))


def result_from(text: bytes) -> ToolResult:
    """What `result_text` was given. Raises `ValueError` if it is not that."""
    result: ToolResult = _reader(ToolResult)(_loaded(text))
    return result


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        # Half of a surrogate pair: no text that can be sent, but what came must not be lost.
        return json.dumps(value, separators=(",", ":")).encode()


def _loaded(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def escaped(name: str) -> str:
    """A name as every database takes it: printable ASCII as it is, anything else as in JSON."""
    return name if name.isascii() and name.isprintable() and "\\" not in name else json.dumps(name)[1:-1]


def indexed(*names: str) -> tuple[str, ...]:
    """Names, as `escaped`, that stand together in an index. Raises `ValueError` if they are too long for that."""
    made = tuple(map(escaped, names))
    if (length := sum(map(len, made))) > _LONGEST:
        raise ValueError(f"the names of a session and its call have {length} characters, and {_LONGEST} can be kept")
    return made


def unescaped(name: str) -> str:
    """What `escaped` was given."""
    return str(json.loads(f'"{name}"')) if "\\" in name else name
