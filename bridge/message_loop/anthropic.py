"""Anthropic Messages: https://docs.anthropic.com/en/api/messages

The model's turn is one assistant message. Its `tool_use` blocks are answered by `tool_result` blocks, all of them in
the next user message, and first in it. Blocks of tools that Anthropic runs itself (`server_tool_use`), and those of a
toolset of Anthropic's (with a `toolset_name`), are not ours.

| `stop_reason` | calls |
|---|---|
| `tool_use`, or none, as in a bare message | are run |
| `pause_turn`, `compaction` | are passed by: the turn is sent back as it is |
| any other: cut off, refused, or not known | are not run, and answered with an error |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from ..core.events import ToolResult, ToolSpec
from ..dialects.schemas import PROFILES, shape
from .api import INTERRUPTED, Asked, Json, Reading, failed, members, plain, tool_call
from .content import parts_of, sentence_of, text_of

__all__ = ["AnthropicMessages"]

_PROFILE: Final = replace(PROFILES["openai_realtime"], provider="anthropic")
"""The whole of JSON Schema, but no unions at its top."""
_NOT_OVER: Final = ("pause_turn", "compaction")


class AnthropicMessages:
    """See the module."""

    def recognises(self, response: Json) -> bool:
        return response.get("role") == "assistant" and isinstance(response.get("content"), list)

    def speaks(self, messages: Sequence[Json]) -> bool:
        return any(_calls(each) or _results(each) for each in messages)

    def read(self, response: Json) -> Reading:
        stop = response.get("stop_reason")
        if stop in _NOT_OVER:
            return Reading(str(response.get("id") or ""), ())
        why = "" if stop in (None, "tool_use") else f"the call was not run, because the reply ended with {stop}"
        return Reading(str(response.get("id") or ""), tuple(Asked(_call(each), why) for each in _calls(response)))

    def answer(self, results: Sequence[ToolResult]) -> list[Json]:
        return [{"role": "user", "content": [_block(each) for each in results]}] if results else []

    def complete(self, messages: Sequence[Any]) -> list[Any]:
        shown = [plain(each) for each in messages]
        done: list[Any] = []
        missing: list[ToolResult] = []
        for place, message in enumerate(messages):
            if missing and shown[place].get("role") == "user":
                done.append(_completed(shown[place], missing))
            else:
                done += [*self.answer(missing), message]
            missing = _missing(shown[place], shown[place + 1 :])
        return [*done, *self.answer(missing)]

    def define(self, spec: ToolSpec) -> Json:
        schema, _ = shape(spec.parameters, _PROFILE)
        return {"name": spec.name, "description": spec.description, "input_schema": schema}


def _calls(message: Json) -> list[Json]:
    if message.get("role") != "assistant":
        return []
    blocks = members(message.get("content"))
    return [each for each in blocks if each.get("type") == "tool_use" and not each.get("toolset_name")]


def _results(message: Json) -> list[Json]:
    return [each for each in members(message.get("content")) if each.get("type") == "tool_result"]


def _call(block: Json) -> Any:
    return tool_call(block.get("id"), block.get("name"), block.get("input"))


def _block(result: ToolResult) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": result.call_id}
    if result.is_error:
        return block | {"content": sentence_of(result), "is_error": True}
    return block | {"content": [_part(each) for each in parts_of(result)] or text_of(result)}


def _part(part: Json) -> Json:
    if part["type"] == "text":
        return part
    return {"type": "image", "source": {"type": "base64", "media_type": part["mimeType"], "data": part["data"]}}


def _missing(message: Json, following: Iterable[Json]) -> list[ToolResult]:
    """Answers to those calls of a message that the user's messages right after it do not answer."""
    calls = [_call(each) for each in _calls(message)]
    answered: set[Any] = set()
    for each in following if calls else ():
        if each.get("role") != "user":
            break
        answered |= {result.get("tool_use_id") for result in _results(each)}
    return [failed(call, INTERRUPTED) for call in dict.fromkeys(calls) if call.call_id not in answered]


def _completed(message: Json, missing: Sequence[ToolResult]) -> Json:
    """A user's message with these results as well; results come first."""
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else members(content)
    results = _results(message)
    others = [each for each in blocks if each not in results]
    return {**message, "content": [*map(_block, missing), *results, *others]}
