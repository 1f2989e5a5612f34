"""OpenAI Chat Completions: https://platform.openai.com/docs/api-reference/chat

The model's turn is one assistant message. Each of its `tool_calls` is answered by a message with the role `tool`, right
after it. Of several choices the first counts.

There is no mark for a failure, so its text begins with `ERROR: `, and there are no images. Calls run if the choice
ended with `tool_calls`, or with `stop`, as it does where a function was forced, or as a bare message says nothing about
it; else the calls are answered with an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.events import ToolCall, ToolResult, ToolSpec
from ..dialects.schemas import PROFILES, shape
from .api import INTERRUPTED, Asked, Json, Reading, failed, members, plain, tool_call
from .content import parts_of, sentence_of, text_of
from .strict import strict_form

__all__ = ["OpenAIChat"]

_WELL: Final = (None, "tool_calls", "stop")


class OpenAIChat:
    """See the module."""

    def recognises(self, response: Json) -> bool:
        return "tool_calls" in response or isinstance(response.get("choices"), list) or _is_bare_text(response)

    def speaks(self, messages: Sequence[Json]) -> bool:
        return any(each.get("role") == "tool" or "tool_calls" in each for each in messages)

    def read(self, response: Json) -> Reading:
        choice = next(iter(members(response.get("choices"))), {"message": response})
        stop = choice.get("finish_reason")
        why = "" if stop in _WELL else f"the call was not run, because the reply ended with {stop}"
        calls = [call for message in members([choice.get("message")]) for call in _calls(message)]
        return Reading(str(response.get("id") or ""), tuple(Asked(each, why) for each in calls))

    def answer(self, results: Sequence[ToolResult]) -> list[Json]:
        return [{"role": "tool", "tool_call_id": each.call_id, "content": _content(each)} for each in results]

    def complete(self, messages: Sequence[Any]) -> list[Any]:
        done: list[Any] = []
        missing: dict[str, ToolResult] = {}
        for message in messages:
            shown = plain(message)
            if shown.get("role") == "tool":
                missing.pop(shown.get("tool_call_id"), None)
            else:
                done += self.answer(list(missing.values()))
                missing = {call.call_id: failed(call, INTERRUPTED) for call in _calls(shown)}
            done.append(message)
        return [*done, *self.answer(list(missing.values()))]

    def define(self, spec: ToolSpec) -> Json:
        schema, _ = shape(spec.parameters, PROFILES["openai_realtime"])
        strict = strict_form(schema)
        how = {"parameters": schema} if strict is None else {"parameters": strict, "strict": True}
        return {"type": "function", "function": {"name": spec.name, "description": spec.description, **how}}


def _is_bare_text(message: Json) -> bool:
    return message.get("role") == "assistant" and not isinstance(message.get("content"), list)


def _calls(message: Json) -> list[ToolCall]:
    return [_call(each) for each in members(message.get("tool_calls"))]


def _call(item: Json) -> ToolCall:
    match item:
        case {"custom": {"name": name, "input": text}}:
            return tool_call(item.get("id"), name, text)
        case {"function": {"name": name, **more}}:
            return tool_call(item.get("id"), name, more.get("arguments"))
        case _:
            return tool_call(item.get("id"), "", "")


def _content(result: ToolResult) -> str | list[Json]:
    if result.is_error:
        return f"ERROR: {sentence_of(result)}"
    return [_part(each) for each in parts_of(result)] or text_of(result)


def _part(part: Json) -> Json:
    return part if part["type"] == "text" else {"type": "text", "text": "(an image, which cannot be shown here)"}
