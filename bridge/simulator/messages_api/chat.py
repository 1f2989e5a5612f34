"""OpenAI Chat Completions, as far as tool calls go: https://platform.openai.com/docs/api-reference/chat

| rule | known from |
|---|---|
| a message with calls is followed by a tool message for each, before anything else | reports of the error |
| a tool message answers a call of the message before | reports of the error |
| one tool message for a call | a guess: not documented |
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.simulator.messages_api.ledger import Ledger, Refused, Result
from bridge.simulator.messages_api.openai import check_function, error_body, words
from bridge.simulator.messages_api.script import Reply

__all__ = ["ChatRules"]

Message = dict[str, Any]


@dataclass(slots=True)
class ChatRules:
    """The completions of one simulator."""

    ledger: Ledger
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def history(self, body: Message) -> list[Message]:
        return list(body["messages"])

    def check(self, body: Message, history: Sequence[Message]) -> None:
        for tool in body.get("tools", ()):
            check_function(tool["function"], strict=tool["function"].get("strict") is True)
        asked: set[str] = set()
        left: set[str] = set()
        for number, message in enumerate(history):
            if message["role"] == "tool":
                call_id = message["tool_call_id"]
                if call_id not in asked:
                    told = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
                    raise Refused(told, param=f"messages.[{number}].role")
                if call_id not in left:
                    raise Refused(f"Duplicate tool message for {call_id}.", param=f"messages.[{number}].role")
                left.discard(call_id)
                continue
            _refuse_unanswered(left, number)
            asked = {call["id"] for call in message.get("tool_calls") or ()}
            left = set(asked)
        _refuse_unanswered(left, len(history))

    def turn(self, history: Sequence[Message]) -> int:
        return sum(message["role"] == "assistant" for message in history)

    def results(self, history: Sequence[Message]) -> dict[str, Result]:
        told = {each["tool_call_id"]: words(each["content"]) for each in history if each["role"] == "tool"}
        return {call_id: Result(text, text.startswith("ERROR: ")) for call_id, text in told.items()}

    def answer(self, body: Message, history: list[Message], reply: Reply) -> Message:
        calls = [
            {
                "id": call.call_id or f"call_{next(self.numbers)}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in reply.calls
        ]
        message: Message = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        stop = reply.stop or ("tool_calls" if calls else "stop")
        return {
            "id": f"chatcmpl-{next(self.numbers)}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": stop, "logprobs": None, "message": message}],
        }

    def error(self, status: int, message: str, refused: Refused | None = None) -> Message:
        return error_body(status, message, refused)


def _refuse_unanswered(left: set[str], number: int) -> None:
    if left:
        told = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
        missing = f"The following tool_call_ids did not have response messages: {', '.join(sorted(left))}"
        raise Refused(f"{told} 'tool_call_id'. {missing}", param=f"messages.[{number}].role")
