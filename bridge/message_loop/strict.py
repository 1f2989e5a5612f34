"""OpenAI's strict mode, in which the model's arguments are bound to fit the schema. PURE.

It takes a part of JSON Schema only, in which every object is closed and requires all of its properties:
https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from .api import Json

__all__ = ["strict_form"]

_KEYWORDS: Final = frozenset(
    {"type", "description", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"}
    | {"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems"}
)
_FORMATS: Final = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
_DEEPEST: Final = 5
"""How many objects may lie in each other."""


def strict_form(schema: Json) -> Json | None:
    """The same schema with its objects closed. None where strict mode could not be told what it means.

    Nothing is lost by closing them: what no parameter takes is dropped before a tool runs anyway.
    """
    return _closed(schema) if "anyOf" not in schema and _is_fit(schema, _DEEPEST) else None


def _is_fit(schema: Any, depth: int) -> bool:
    """Is it in the part of JSON Schema that strict mode takes, with at most so many objects in each other?"""
    if not isinstance(schema, dict) or schema.keys() - _KEYWORDS or not schema.keys() & {"type", "anyOf"}:
        return False
    if schema.get("format", _FORMATS[0]) not in _FORMATS:
        return False
    if _is_object(schema):
        names, closed = schema.get("properties"), schema.get("additionalProperties", False) is False
        if names is None or set(names) != set(schema.get("required", ())) or not closed or not depth:
            return False
        depth -= 1
    return all(_is_fit(each, depth) for each in _inner(schema))


def _closed(schema: Json) -> Json:
    closed = dict(schema)
    if _is_object(schema):
        properties = {name: _closed(each) for name, each in schema["properties"].items()}
        closed |= {"properties": properties, "required": list(properties), "additionalProperties": False}
    if "items" in schema:
        closed["items"] = _closed(schema["items"])
    if "anyOf" in schema:
        closed["anyOf"] = [_closed(each) for each in schema["anyOf"]]
    return closed


def _is_object(schema: Json) -> bool:
    kind = schema.get("type", ())
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _inner(schema: Json) -> Iterable[Any]:
    """The schemas right inside of it."""
    items = (schema["items"],) if "items" in schema else ()
    return (*schema.get("properties", {}).values(), *items, *schema.get("anyOf", ()))
