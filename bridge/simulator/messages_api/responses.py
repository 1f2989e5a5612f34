"""OpenAI Responses over HTTP, as far as tool calls go: https://platform.openai.com/docs/api-reference/responses

| rule | known from |
|---|---|
| every call in the context has an output | reports of the error |
| every output has a call in the context | reports of the error |
| one output for a call | a guess: not documented |
| `previous_response_id` names a stored response; several may continue it | documented |
| `strict` counts as true where a function does not say | documented |
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.simulator.messages_api.ledger import Ledger, Refused, Result
from bridge.simulator.messages_api.openai import check_function, error_body, words
from bridge.simulator.messages_api.script import Reply

__all__ = ["ResponsesRules"]

Item = dict[str, Any]
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


@dataclass(slots=True)
class ResponsesRules:
    """The responses of one simulator."""

    ledger: Ledger
    stored: dict[str, list[Item]] = field(default_factory=dict)
    """The whole context up to a response, and its output, by the id of the response."""
    turns: dict[str, int] = field(default_factory=dict)
    """Which turn a call or an item belongs to, by its id."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def history(self, body: Item) -> list[Item]:
        sent = body["input"]
        items = [{"role": "user", "content": sent}] if isinstance(sent, str) else list(sent)
        before = body.get("previous_response_id")
        if "conversation" in body:
            raise Refused("the offline provider keeps no conversations", param="conversation")
        if before is None:
            return items
        if before not in self.stored:
            told = f"Previous response with id '{before}' not found."
            raise Refused(told, param="previous_response_id", code="previous_response_not_found")
        return [*self.stored[before], *items]

    def check(self, body: Item, history: Sequence[Item]) -> None:
        for tool in body.get("tools", ()):
            check_function(tool, strict=tool.get("strict", True) is not False)
        asked = {item["call_id"]: item for item in history if item.get("type") in _CALLS}
        answered = [item["call_id"] for item in history if item.get("type") in _OUTPUTS]
        for call_id, call in asked.items():
            if call_id not in answered and not call.get("async"):
                raise Refused(f"No tool output found for function call {call_id}.", param="input")
        for place, call_id in enumerate(answered):
            if call_id not in asked:
                told = f"No tool call found for function call output with call_id {call_id}."
                raise Refused(told, param="input")
            if call_id in answered[:place]:
                raise Refused(f"Duplicate tool output for function call {call_id}.", param="input")

    def turn(self, history: Sequence[Item]) -> int:
        own = (
            self.turns[each] for item in history for each in (item.get("id"), item.get("call_id")) if each in self.turns
        )
        return max(own, default=-1) + 1

    def results(self, history: Sequence[Item]) -> dict[str, Result]:
        outputs = {item["call_id"]: words(item["output"]) for item in history if item.get("type") in _OUTPUTS}
        return {call_id: Result(text, text.startswith("ERROR: ")) for call_id, text in outputs.items()}

    def answer(self, body: Item, history: list[Item], reply: Reply) -> Item:
        output = [self._stamped(item, self.turn(history)) for item in _output(reply)]
        response_id = f"resp_{next(self.numbers)}"
        if body.get("store", True):
            self.stored[response_id] = [*history, *output]
        return {
            "id": response_id,
            "object": "response",
            "created_at": 0,
            "status": reply.stop or "completed",
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": body.get("tools", []),
        }

    def error(self, status: int, message: str, refused: Refused | None = None) -> Item:
        return error_body(status, message, refused)

    def _stamped(self, item: Item, turn: int) -> Item:
        item["id"] = f"{item['type'][:2]}_{next(self.numbers)}"
        self.turns[item["id"]] = turn
        if "call_id" in item:
            item["call_id"] = item["call_id"] or f"call_{next(self.numbers)}"
            self.turns[item["call_id"]] = turn
        return item


def _output(reply: Reply) -> list[Item]:
    """The items of a reply, without their ids."""
    items: list[Item] = []
    if reply.thinking:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reply.thinking}]})
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": [part]})
    for call in reply.calls:
        status = "incomplete" if call.cut else "completed"
        items.append(
            {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.text,
                "status": status,
            }
        )
    return items
