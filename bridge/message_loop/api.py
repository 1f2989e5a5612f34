"""What `MessageLoop` has to know of a message API, and what the APIs have in common.

In all of them the client sends a conversation, the model's turn may hold tool calls, and every call has to be answered
once, by its id, right after that turn. PURE: values in, values out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import orjson
from pydantic import BaseModel

from ..core.events import ToolCall, ToolResult, ToolSpec

__all__ = [
    "INTERRUPTED",
    "ApiName",
    "Asked",
    "Json",
    "MessageApi",
    "Reading",
    "failed",
    "members",
    "plain",
    "tool_call",
]

Json = dict[str, Any]
ApiName = Literal["anthropic", "responses", "chat"]

INTERRUPTED: Final = "the call was interrupted before it ended; whether it took effect is not known"
"""What a model is told of a call that has no result and will have none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A tool call in the model's turn."""

    call: ToolCall
    unfit: str = ""
    """Why it must not be run: a sentence for the model. Empty if it may be."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a response asks for, in the order of its calls."""

    response_id: str
    """Empty where there is none, as in a bare message."""
    asked: tuple[Asked, ...]


class MessageApi(Protocol):
    """One API. Reading is total: what it does not know it passes by, and it raises nothing."""

    def recognises(self, response: Json) -> bool:
        """Is this a response, or a message of the model, of this API?"""
        ...

    def speaks(self, messages: Sequence[Json]) -> bool:
        """Does this history hold calls or results of this API?"""
        ...

    def read(self, response: Json) -> Reading:
        """The calls of a response that the client has to answer."""
        ...

    def answer(self, results: Sequence[ToolResult]) -> list[Json]:
        """What is to be appended to the conversation."""
        ...

    def complete(self, messages: Sequence[Any]) -> list[Any]:
        """A history in which every call has an answer. What had them all is the very same object."""
        ...

    def define(self, spec: ToolSpec) -> Json:
        """A tool in the list of tools of a request."""
        ...


def plain(value: Any) -> Any:
    """The value built of dicts and lists all the way down; a vendor's objects become what was received."""
    match value:
        case BaseModel():
            return value.model_dump(by_alias=True, exclude_unset=True, warnings=False)
        case Mapping():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return value


def members(value: Any) -> list[Json]:
    """The objects in a list; nothing if it is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def tool_call(call_id: object, name: object, arguments: object, **echo: object) -> ToolCall:
    """A call as it was received. Arguments that are no text yet become JSON text, broken as they may be.

    NaN and lone surrogates stay in it, so that they are refused where arguments are checked.
    """
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    text = text.encode("utf-8", "backslashreplace").decode()  # inside of JSON that is an escape
    back = tuple((field, orjson.dumps(value).decode()) for field, value in echo.items() if value is not None)
    return ToolCall(_text(call_id), _text(name), text, echo=back)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def failed(call: ToolCall, sentence: str) -> ToolResult:
    """The answer to a call that was not run, or whose result is not known."""
    output = orjson.dumps({"error": sentence}).decode()
    return ToolResult(call.call_id, output, is_error=True, name=call.name, echo=call.echo)
