"""Schemas and names of tools that come from elsewhere: an MCP server, a table of the settings.

The schema is JSON Schema of any draft; what models are told is the same plain form as for functions. What arrives is
checked by one validator made at registration, and forgiven as for functions:

* `""`, `null` or blank arguments count as `{}`;
* a number or a boolean may come as a string (`"3"`, `"true"`), an integer as `3.0`, where nothing else is allowed;
* arguments that the schema does not know are dropped, and counted in a warning. It is told with `additionalProperties`
  what to do instead: with `false` they are refused, with `true` or a schema they are kept.

A property that is left out gets its default, if the schema allows that. Formats are not checked: whoever runs the tool
knows better what it takes. Error texts name parameters and what is expected of them, never a value or a name that was
sent.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from ..errors import ConfigError, InvalidArguments
from .encode import decode
from .plain import plain
from .schema import EXPECTED, SHOWN, UNKNOWN, Parameters, expected, kind_of, property_names, report_dropped

__all__ = ["accept", "safe_name"]

_LONGEST_NAME: Final = 64


def accept(schema: Mapping[str, Any], *, name: str, own: bool = False) -> Parameters:
    """What a model is told about these arguments, and their check. `name` is the tool's, for error texts.

    Raises `ConfigError` for a schema that is none, describes no object, contains itself or leads out of itself. A
    pattern that cannot be checked is left out with a warning; in a schema of the user's `own` it is refused.
    """
    shape = plain(schema, name=name, own=own)
    validator = _validator(shape, schema.get("$schema"), name)
    description = shape.pop("description", "")
    return Parameters(description, orjson.dumps(shape).decode(), functools.partial(_check, validator, name), None)


def _validator(shape: dict[str, Any], draft: object, name: str) -> Any:
    try:
        from .validator import validator
    except ImportError:
        raise ConfigError(f"tool {name}: jsonschema is missing: pip install 'voice-tool-bridge[http]'") from None
    return validator(shape, draft, name=name)


def safe_name(name: str) -> str:
    """A name that every provider takes: 1 to 64 of `A-Z a-z 0-9 _ -`.

    Others become `_`, and what is too long, or has nothing left, ends in a hash of the whole. Equal names give equal
    ones; different names may give the same, which a `Toolset` refuses.
    """
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    if len(safe) <= _LONGEST_NAME and safe.strip("_"):
        return safe
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{safe.strip('_')[: _LONGEST_NAME - len(digest) - 1] or 'tool'}_{digest}"


# ------------------------------------------------------------------------------------------------ checking arguments


def _check(validator: Any, name: str, text: str) -> dict[str, Any]:
    schema: Mapping[str, Any] = validator.schema
    arguments = _fitted(_known(_object(text, schema), schema, name), schema, validator)
    if faults := list(itertools.islice(validator.iter_errors(arguments), SHOWN)):
        raise _refusal("; ".join(_faults(faults, schema)), schema)
    result: dict[str, Any] = arguments
    return result


def _object(text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if text.strip() in ("", "null"):
        text = "{}"
    try:
        arguments = decode(text)
    except json.JSONDecodeError as error:
        # The chain would carry what was sent into logs.
        raise _refusal(f"the arguments are not valid JSON ({error.msg})", schema) from None
    if not isinstance(arguments, dict):
        raise _refusal("the arguments are not a JSON object", schema)
    return arguments


def _refusal(what: str, schema: Mapping[str, Any]) -> InvalidArguments:
    return InvalidArguments(f"{what}{EXPECTED}{expected(schema)}")


def _known(arguments: dict[str, Any], schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Without what the schema does not know, unless it says what is to become of that."""
    if any("additionalProperties" in each or "patternProperties" in each for each in _layers(schema)):
        return arguments
    names = frozenset[str]().union(*(each.get("properties", ()) for each in _layers(schema)))
    if extras := arguments.keys() - names:
        report_dropped(name, len(extras), names)
    return {key: value for key, value in arguments.items() if key in names}


def _layers(schema: Any) -> Iterator[Mapping[str, Any]]:
    """The schema, and those in it that are about the same value."""
    if isinstance(schema, Mapping):
        yield schema
        beside = [schema[key] for key in ("if", "then", "else") if key in schema]
        for each in (*beside, *(each for key in ("allOf", "anyOf", "oneOf") for each in schema.get(key, ()))):
            yield from _layers(each)


# ------------------------------------------------------------------------------------ forgiving and filling in


def _fitted(value: Any, schema: Any, validator: Any) -> Any:
    """The value as the schema wants it, as far as that is forgiven. What does not fit stays as it came."""
    if not isinstance(schema, Mapping):
        return value
    value = _converted(value, _types(schema))
    for each in schema.get("allOf", ()):
        value = _fitted(value, each, validator)
    for key in ("anyOf", "oneOf"):
        value = _fitted_to_one(value, schema.get(key, ()), validator)
    match value:
        case dict():
            return _fitted_object(value, schema, validator)
        case list():
            return _fitted_list(value, schema, validator)
        case _:
            return value


def _fitted_to_one(value: Any, choices: Iterable[Any], validator: Any) -> Any:
    """Fitted to the first schema that takes it as it came, or else to the first that takes it when fitted."""
    plain_first = sorted(choices, key=lambda each: not validator.evolve(schema=each).is_valid(value))
    fitted = ((_fitted(value, each, validator), each) for each in plain_first)
    return next((one for one, each in fitted if validator.evolve(schema=each).is_valid(one)), value)


def _fitted_object(value: dict[str, Any], schema: Mapping[str, Any], validator: Any) -> dict[str, Any]:
    properties = schema.get("properties", {})
    other = schema.get("additionalProperties")
    result = {key: _fitted(each, properties.get(key, other), validator) for key, each in value.items()}
    for key, each in properties.items():
        # Generators of schemas write a default of null where there is none.
        if key not in result and isinstance(each, Mapping) and "default" in each and _takes_default(validator, each):
            result[key] = copy.deepcopy(each["default"])
    return result


def _takes_default(validator: Any, schema: Mapping[str, Any]) -> bool:
    valid: bool = validator.evolve(schema=schema).is_valid(schema["default"])
    return valid


def _fitted_list(value: list[Any], schema: Mapping[str, Any], validator: Any) -> list[Any]:
    items, first = schema.get("items"), schema.get("prefixItems", [])
    if isinstance(items, list):  # drafts before 2020
        items, first = schema.get("additionalItems"), items
    each = [*first, *[items] * (len(value) - len(first))]
    return [_fitted(one, its, validator) for one, its in zip(value, each, strict=False)]


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = schema.get("type", ())
    return frozenset([kinds] if isinstance(kinds, str) else kinds)


def _converted(value: Any, types: frozenset[str]) -> Any:
    match value:
        case str() if types and "string" not in types:
            return _from_text(value.strip(), types)
        case float() if "integer" in types and "number" not in types and value.is_integer():
            return int(value)
        case _:
            return value


def _from_text(text: str, types: frozenset[str]) -> Any:
    """A number or a boolean that came as text; the text itself where it is neither."""
    if "boolean" in types and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if types & {"integer", "number"} and re.fullmatch(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", text):
        number = float(text)
        return int(number) if number.is_integer() and ("integer" in types or "." not in text) else number
    return text


# ------------------------------------------------------------------------------------------------- saying what is wrong


def _faults(errors: list[Any], schema: Mapping[str, Any]) -> Iterable[str]:
    """One line for each, as far as they differ."""
    from .validator import nearest

    names = property_names(schema)
    return dict.fromkeys(_fault(nearest(error), names) for error in errors)


def _fault(error: Any, names: frozenset[str]) -> str:
    """Where one value fails and what should be there. Keys of dicts count as values, and are not shown."""
    path = [str(part) for part in error.absolute_path if isinstance(part, int) or part in names]
    where = ".".join(path) or "the arguments"
    limit = error.validator_value
    match error.validator:
        case "required":
            missing = [each for each in limit if each not in error.instance]
            return "; ".join(f"{'.'.join([*path, each])} is missing" for each in missing)
        case "additionalProperties" if limit is False:
            return f"{where}: {UNKNOWN}"
        case "enum":
            return f"{where}: should be {' or '.join(repr(each) for each in limit[:SHOWN])}"
        case "const":
            return f"{where}: should be {limit!r}"
        case "type" | "anyOf" | "oneOf":
            return f"{where}: should be {kind_of(error.schema)}"
        case keyword if keyword in _LIMITS:
            return f"{where}: should {_LIMITS[keyword].format(limit)}"
        case _:
            return f"{where} {'is' if path else 'are'} not accepted"


_LIMITS: Final = {
    "minimum": "be greater than or equal to {}",
    "maximum": "be less than or equal to {}",
    "exclusiveMinimum": "be greater than {}",
    "exclusiveMaximum": "be less than {}",
    "multipleOf": "be a multiple of {}",
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "minProperties": "have at least {} properties",
    "maxProperties": "have at most {} properties",
    "pattern": "match the pattern {}",
}
