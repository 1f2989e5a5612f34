"""What OpenAI's two APIs have in common: functions, their strict form, and errors."""

from __future__ import annotations

import re
from typing import Any

from bridge.simulator.messages_api.ledger import Refused

__all__ = ["check_function", "error_body", "words"]


def check_function(function: dict[str, Any], *, strict: bool) -> None:
    """Raises `Refused` for a definition that the API does not take."""
    name, schema = function["name"], function["parameters"]
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", name):
        raise Refused(f"Invalid function name: {name}", param="tools")
    if schema.get("type") != "object" or "anyOf" in schema:
        raise Refused(f"Invalid schema for function '{name}': it must be an object", param="tools")
    if strict and (fault := _strict_fault(schema)):
        raise Refused(
            f"Invalid schema for function '{name}': {fault}", param="tools", code="invalid_function_parameters"
        )


def _strict_fault(schema: dict[str, Any]) -> str:
    """What strict mode refuses in it: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas"""
    for refused in ("default", "allOf", "oneOf", "not", "if", "patternProperties", "minLength", "maxLength"):
        if refused in schema:
            return f"'{refused}' is not permitted."
    if "type" not in schema and "anyOf" not in schema:
        return "schema must have a 'type' key."
    properties = schema.get("properties", {})
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return "'additionalProperties' is required to be supplied and to be false."
        if set(schema.get("required", ())) != set(properties):
            return "'required' is required to be supplied and to be an array including every key in properties."
    inner = [*properties.values(), *schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else ())]
    return next(filter(None, map(_strict_fault, inner)), "")


def error_body(status: int, message: str, refused: Refused | None = None) -> dict[str, Any]:
    kind = "invalid_request_error" if status == 400 else "server_error"
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": refused.param if refused else None,
            "code": refused.code if refused else None,
        }
    }


def words(content: Any) -> str:
    """A result as the model reads it."""
    if isinstance(content, str):
        return content
    return " ".join(each.get("text", f"({each['type']})") for each in content)
