"""OpenAI Responses: https://platform.openai.com/docs/api-reference/responses

The model's turn is a list of output items. `function_call` and `custom_tool_call` are answered by an input item each,
matched by `call_id` (not by the item's `id`) over the whole context. Items of tools that are built in are not ours,
also where the client runs them (`computer_call`, `shell_call`, approvals).

There is no mark for a failure, so its text begins with `ERROR: `. A call of a response that is incomplete or failed
runs only if its own item is complete; else it is answered with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from ..core.events import ToolCall, ToolResult, ToolSpec
from ..dialects.schemas import PROFILES, shape
from .api import INTERRUPTED, Asked, Json, Reading, failed, members, plain, tool_call
from .content import parts_of, sentence_of, text_of
from .strict import strict_form

__all__ = ["OpenAIResponses"]

_CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_CUT_OFF: Final = "the call was not run, because the reply was cut off before it was complete"


class OpenAIResponses:
    """See the module."""

    def recognises(self, response: Json) -> bool:
        return isinstance(response.get("output"), list)

    def speaks(self, messages: Sequence[Json]) -> bool:
        return any(each.get("type") in (*_CALLS, *_OUTPUTS) for each in messages)

    def read(self, response: Json) -> Reading:
        whole = response.get("status") in (None, "completed")
        fit = ("completed", None) if whole else ("completed",)
        items = [each for each in members(response.get("output")) if each.get("type") in _CALLS]
        asked = (Asked(_call(each), "" if each.get("status") in fit else _CUT_OFF) for each in items)
        return Reading(str(response.get("id") or ""), tuple(asked))

    def answer(self, results: Sequence[ToolResult]) -> list[Json]:
        return [_item(each) for each in results]

    def complete(self, messages: Sequence[Any]) -> list[Any]:
        shown = [plain(each) for each in messages]
        answered = {each.get("call_id") for each in shown if each.get("type") in _OUTPUTS}
        done: list[Any] = []
        missing: list[ToolResult] = []
        for message, item in zip(messages, shown, strict=True):
            if not _is_the_models(item):
                done += self.answer(missing)
                missing = []
            done.append(message)
            if item.get("type") in _CALLS and not item.get("async") and item.get("call_id") not in answered:
                answered.add(item.get("call_id"))
                missing.append(failed(_call(item), INTERRUPTED))
        return [*done, *self.answer(missing)]

    def define(self, spec: ToolSpec) -> Json:
        schema, _ = shape(spec.parameters, PROFILES["openai_realtime"])
        strict = strict_form(schema)
        # Left out, `strict` would count as true.
        how = {"parameters": schema, "strict": False} if strict is None else {"parameters": strict, "strict": True}
        return {"type": "function", "name": spec.name, "description": spec.description, **how}


def _call(item: Json) -> ToolCall:
    if item["type"] == "custom_tool_call":
        kind = "custom_tool_call_output"
        return tool_call(item.get("call_id"), item.get("name"), item.get("input"), type=kind, caller=item.get("caller"))
    back = {field: item.get(field) for field in ("caller", "namespace")}
    return tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), **back)


def _item(result: ToolResult) -> Json:
    item: Json = {"type": "function_call_output", "call_id": result.call_id, "output": _output(result)}
    return item | {field: orjson.loads(value) for field, value in result.echo}


def _output(result: ToolResult) -> str | list[Json]:
    if result.is_error:
        return f"ERROR: {sentence_of(result)}"
    return [_part(each) for each in parts_of(result)] or text_of(result)


def _part(part: Json) -> Json:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    address = f"data:{part['mimeType']};base64,{part['data']}"
    return {"type": "input_image", "image_url": address, "detail": "auto"}


def _is_the_models(item: Json) -> bool:
    """Is it part of the model's turn, so that an answer to a call before it can come after it?"""
    if item.get("type", "message") == "message":
        return item.get("role") == "assistant"
    return not str(item["type"]).endswith("_output")
