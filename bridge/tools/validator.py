"""JSON Schema's validator for schemas of others, without what could keep it for ever. The only file with `jsonschema`.

Some keywords are checked here instead: those with regular expressions (see `patterns`), and `uniqueItems`, for which
each item of a list would be compared with all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import jsonschema
from jsonschema.exceptions import best_match

from ..errors import ConfigError
from .patterns import additional, matches

__all__ = ["nearest", "validator"]

_Errors = Iterator[jsonschema.ValidationError]

_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": jsonschema.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
}
"""By `$schema`; what names none of these is taken for the latest, 2020-12."""


def validator(shape: Mapping[str, Any], draft: object, *, name: str) -> Any:
    """The validator of a schema, which has to be a plain one. `draft` is what its author's says of its language.

    Raises `ConfigError` for a schema that is none. `name` is the tool's.
    """
    known = _DRAFTS.get(draft.rstrip("#")) if isinstance(draft, str) else None
    kind: Any = known or jsonschema.Draft202012Validator
    try:
        kind.check_schema(shape, format_checker=None)
    except jsonschema.SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "its top"
        raise ConfigError(f"tool {name}: its schema is not valid at {where}: {error.message:.200}") from None
    return _bounded(kind)(shape)


def nearest(error: jsonschema.ValidationError) -> Any:
    """Of a union, the fault where the value comes nearest to being taken; any other is its own."""
    return best_match([error])


@cache
def _bounded(kind: Any) -> Any:
    instead = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    return jsonschema.validators.extend(kind, instead)  # type: ignore[no-untyped-call]  # the stubs leave it so


def _pattern(validator: Any, pattern: str, value: Any, schema: Mapping[str, Any]) -> _Errors:
    if isinstance(value, str) and not matches(pattern, value):
        yield jsonschema.ValidationError("it does not match the pattern")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], value: Any, schema: Mapping[str, Any]) -> _Errors:
    for pattern, each in patterns.items() if isinstance(value, dict) else ():
        for key in value:
            if matches(pattern, key):
                yield from validator.descend(value[key], each, path=key, schema_path=pattern)


def _additional_properties(validator: Any, other: Any, value: Any, schema: Mapping[str, Any]) -> _Errors:
    extras = list(additional(value, schema)) if isinstance(value, dict) else []
    if extras and other is False:
        yield jsonschema.ValidationError("it has properties that nobody knows")
        return
    for key in extras:
        yield from validator.descend(value[key], other, path=key)


def _unique_items(validator: Any, unique: bool, value: Any, schema: Mapping[str, Any]) -> _Errors:
    if unique and isinstance(value, list) and len({json.dumps(each, sort_keys=True) for each in value}) < len(value):
        yield jsonschema.ValidationError("it has equal items")
