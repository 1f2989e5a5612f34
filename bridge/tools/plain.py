"""JSON Schemas made plain: everything in place, nothing to look up, nothing that only tools for programmers read.

Keywords are handled where a schema stands, and nowhere else: a parameter may be called `title` or `$ref`, and a default
value may hold such keys.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson

from ..errors import ConfigError
from .patterns import is_light, is_matchable

__all__ = ["plain"]

logger = logging.getLogger("bridge.tools")

_DEEPEST: Final = 32
"""How many schemas may lie in each other."""
_LARGEST: Final = 64 * 1024
"""Bytes of JSON that a schema may come to; references that are followed again and again make a small one huge."""

_LEFT_OUT: Final = frozenset(
    {
        *("$schema", "$id", "$anchor", "$comment", "$defs", "$vocabulary", "definitions", "discriminator", "title"),
        "dependencies",  # no draft since 2019 has it, and hardly anybody used it
        "unevaluatedProperties",  # its check would match patterns that may take for ever
    }
)
_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE: Final = frozenset(
    {
        *("items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "propertyNames"),
        *("not", "if", "then", "else"),
    }
)
_WORDS: Final = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"})
"""Keywords that allow and forbid nothing."""


def plain(document: Mapping[str, Any], *, name: str, own: bool = False) -> dict[str, Any]:
    """The schema of a tool's arguments with its references inlined, without titles, identifiers and definitions.

    Its `type` is `object`, and it has `properties`. A pattern that cannot be matched (see `patterns`) is left out with
    a warning, or refused where the user can mend it, since the schema is the user's `own`. Raises `ConfigError` for
    that, and for a schema that contains itself, refers to something outside of it, is too large or too deep, or
    describes anything but an object. `name` is the tool's, for the texts.
    """
    try:
        schema = _Reader(document, name, own).read(document)
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise ConfigError(f"tool {name}: its arguments must be an object: the schema's type has to be 'object'")
        result: dict[str, Any] = orjson.loads(orjson.dumps({"type": "object", "properties": {}} | schema))
    except TypeError as error:
        raise ConfigError(f"tool {name}: its schema cannot be written as JSON: {error}") from None
    return result


@dataclass(slots=True)
class _Reader:
    """One walk over one document."""

    document: Mapping[str, Any]
    name: str
    own: bool
    size: int = 0

    def read(self, schema: Any, inside: tuple[str, ...] = (), depth: int = 0) -> Any:
        """`inside`: the references being followed."""
        if isinstance(schema, bool):  # `additionalProperties: false`
            return schema
        if not isinstance(schema, Mapping):
            raise self._wrong(f"a {type(schema).__name__} stands where a schema should")
        if depth > _DEEPEST:
            raise self._wrong(f"more than {_DEEPEST} schemas lie in each other; flatten it")
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise self._wrong("a dynamic reference is for schemas that contain themselves, which no model can be told")
        if "$ref" in schema:
            return self._inlined(schema, inside, depth)
        return {key: self._value(key, value, inside, depth) for key, value in schema.items() if self._kept(key, value)}

    def _kept(self, key: str, value: Any) -> bool:
        return key not in _LEFT_OUT and (key != "pattern" or self._matchable(value))

    def _matchable(self, pattern: Any) -> bool:
        if (self.own or is_light(pattern)) and is_matchable(pattern):
            return True
        what = f"the pattern {pattern!r:.80} cannot be matched: no look-around, back-references or huge repetitions"
        if self.own:
            raise self._wrong(what)
        logger.warning("tool %s: a pattern is left out: %s", self.name, what)
        return False

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        self._spend(len(key) + 4)
        match key, value:
            case key, Mapping() if key in _BY_NAME:
                self._spend(sum(map(len, value)))
                kept = [name for name in value if key != "patternProperties" or self._matchable(name)]
                return {name: self.read(value[name], inside, depth + 1) for name in kept}
            case (key, list()) if key in _LISTS or key == "items":  # a list of items: drafts before 2020
                return [self.read(each, inside, depth + 1) for each in value]
            case (key, _) if key in _BY_NAME or key in _LISTS:
                raise self._wrong(f"{key} must be {'a table of schemas' if key in _BY_NAME else 'a list of schemas'}")
            case (key, _) if key in _SINGLE:
                return self.read(value, inside, depth + 1)
            case _:
                self._spend(len(orjson.dumps(value)))
                return value

    def _inlined(self, schema: Mapping[str, Any], inside: tuple[str, ...], depth: int) -> Any:
        reference = schema["$ref"]
        if reference in inside:
            what = f"the type {reference.rpartition('/')[2]}" if "/" in reference else "it"
            raise self._wrong(f"{what} contains itself, which no model can be told; flatten it")
        target = self.read(self._target(reference), (*inside, reference), depth + 1)
        beside = self.read({key: value for key, value in schema.items() if key != "$ref"}, inside, depth)
        if not isinstance(target, dict) or (target.keys() & beside.keys()) - _WORDS:
            return {**beside, "allOf": [*beside.get("allOf", ()), target]}
        return {**target, **beside}

    def _target(self, reference: Any) -> Any:
        """What a JSON pointer into the document points at."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise self._wrong(f"the reference {reference!r:.80} leads out of it; put what it names into its $defs")
        found: Any = self.document
        for step in reference.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key) if isinstance(found, list) else key]
            except (LookupError, TypeError, ValueError):
                raise self._wrong(f"the reference {reference!r:.80} points at nothing") from None
        return found

    def _spend(self, size: int) -> None:
        self.size += size
        if self.size > _LARGEST:
            raise self._wrong(f"it comes to more than {_LARGEST // 1024} KiB; describe less of it")

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"tool {self.name}: its schema cannot be used: {what}")
