"""Anthropic Messages, as far as tool calls go: https://docs.anthropic.com/en/api/messages

| rule | known from |
|---|---|
| every call has its result in the next message of the user | documented, and reports of the error |
| results come first in it | documented |
| a result belongs to a call of the message before, and each call has one | reports of the error |
| call ids are unique in a message | reports of the error |
| neighbouring messages of a role count as one | the vendor's SDK; remarked on |
| a held thread is continued once, from its latest reply | the vendor's SDK |
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.simulator.messages_api.ledger import Ledger, Refused, Result
from bridge.simulator.messages_api.script import Call, Reply

__all__ = ["AnthropicRules"]

Message = dict[str, Any]
_IN_RESULTS = ("text", "image", "document", "search_result")
_ERRORS = {400: "invalid_request_error", 404: "not_found_error"}
_COMBINATIONS = frozenset({"anyOf", "oneOf", "allOf"})


@dataclass(slots=True)
class AnthropicRules:
    """The conversations of one simulator."""

    ledger: Ledger
    threads: dict[str, list[Message]] = field(default_factory=dict)
    """What was said up to a reply, and that reply, by its id."""
    continued: set[str] = field(default_factory=set)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def history(self, body: Message) -> list[Message]:
        """The whole conversation. Raises `Refused`."""
        thread = body.get("thread") or {}
        if thread.get("type") != "continue":
            return list(body["messages"])
        before = thread["previous_message_id"]
        if before not in self.threads:
            raise Refused("thread: not found", code="thread_not_found", status=404)
        if before in self.continued:
            raise Refused("thread: this reply has been continued already", code="thread_already_continued")
        return [*self.threads[before], *body["messages"]]

    def check(self, body: Message, history: Sequence[Message]) -> None:
        """Raises `Refused` for what the API does not take."""
        for tool in body.get("tools", ()):
            _check_tool(tool)
        messages = self._merged(history)
        for number, message in enumerate(messages):
            following = messages[number + 1] if number + 1 < len(messages) else {"role": "", "content": []}
            _check_calls(number, message, following)
            _check_results(number, message, messages[number - 1] if number else {"role": "", "content": []})

    def turn(self, history: Sequence[Message]) -> int:
        """The number of the model's next turn."""
        return sum(message["role"] == "assistant" for message in history)

    def results(self, history: Sequence[Message]) -> dict[str, Result]:
        blocks = (block for message in history for block in _of_type(message, "tool_result"))
        return {
            each["tool_use_id"]: Result(_words(each.get("content")), each.get("is_error", False)) for each in blocks
        }

    def answer(self, body: Message, history: list[Message], reply: Reply) -> Message:
        content: list[Message] = []
        if reply.thinking:
            content.append({"type": "thinking", "thinking": reply.thinking, "signature": "signed"})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        content += map(self._block, reply.calls)
        message_id = f"msg_{next(self.numbers)}"
        if thread := body.get("thread"):
            self.threads[message_id] = [*history, {"role": "assistant", "content": content}]
            self.continued.add(thread.get("previous_message_id", ""))
        return {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": reply.stop or ("tool_use" if reply.calls else "end_turn"),
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }

    def error(self, status: int, message: str, refused: Refused | None = None) -> Message:
        kind = _ERRORS.get(status, "api_error")
        details = {"details": {"error_code": refused.code}} if refused and refused.code else {}
        return {"type": "error", "error": {"type": kind, "message": message, **details}, "request_id": "req_1"}

    def _block(self, call: Call) -> Message:
        call_id = call.call_id or f"toolu_{next(self.numbers)}"
        return {"type": "tool_use", "id": call_id, "name": call.name, "input": _input(call.text)}

    def _merged(self, history: Sequence[Message]) -> list[Message]:
        merged: list[Message] = []
        for message in history:
            blocks = message["content"]
            blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
            if merged and merged[-1]["role"] == message["role"]:
                merged[-1] = {"role": message["role"], "content": [*merged[-1]["content"], *blocks]}
                self.ledger.remarks.append(f"two messages of the {message['role']} in a row")
            else:
                merged.append({"role": message["role"], "content": blocks})
        return merged


def _input(text: str) -> Message:
    """What is no object is sent as the vendor says: https://docs.anthropic.com/en/docs/agents-and-tools/tool-use"""
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    return arguments if isinstance(arguments, dict) else {"INVALID_JSON": text}


def _check_tool(tool: Message) -> None:
    if not re.fullmatch("[A-Za-z0-9_-]{1,128}", tool["name"]):
        raise Refused("tools: a name has characters that are not allowed")
    if tool["input_schema"].get("type") != "object" or tool["input_schema"].keys() & _COMBINATIONS:
        raise Refused("tools: input_schema must be an object without unions at its top")


def _check_calls(number: int, message: Message, following: Message) -> None:
    ids = [block["id"] for block in _of_type(message, "tool_use")]
    for place, each in enumerate(ids):
        if each in ids[:place]:
            raise Refused(f"messages.{number}.content.{place}: `tool_use` ids must be unique")
    leading = itertools.takewhile(lambda block: block["type"] == "tool_result", following["content"])
    answered = {block["tool_use_id"] for block in leading}
    if missing := [each for each in ids if each not in answered]:
        told = f"`tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}"
        raise Refused(f"messages.{number}: {told}")


def _check_results(number: int, message: Message, before: Message) -> None:
    asked = {block["id"] for block in _of_type(before, "tool_use")}
    seen: set[str] = set()
    for place, block in enumerate(message["content"]):
        if block["type"] != "tool_result":
            continue
        call_id = block["tool_use_id"]
        if message["role"] != "user" or call_id not in asked:
            told = f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}"
            raise Refused(f"messages.{number}.content.{place}: {told}")
        if call_id in seen:
            told = f"Found multiple `tool_result` blocks with id: {call_id}"
            raise Refused(f"each tool_use must have a single result. {told}")
        seen.add(call_id)
        if not _is_content(block.get("content")):
            raise Refused(f"messages.{number}.content.{place}.tool_result.content: Input should be a valid list")


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(each, dict) and each.get("type") in _IN_RESULTS for each in content)
    return content is None or isinstance(content, str)


def _of_type(message: Message, kind: str) -> list[Message]:
    content = message["content"]
    return [] if isinstance(content, str) else [block for block in content if block["type"] == kind]


def _words(content: Any) -> str:
    if not isinstance(content, list):
        return content or ""
    return " ".join(each["text"] if each["type"] == "text" else f"({each['type']})" for each in content)
