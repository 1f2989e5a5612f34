"""What Herm's events mean, and what of a session's history is news after a reconnect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bridge.core.dialect import Message
from bridge.core.events import (
    ClientEvent,
    Failure,
    Malformed,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyRequest,
    ServerEvent,
    ToolResult,
    ToolResults,
)

from ..results import json_text

__all__ = ["host_input", "idle", "payload", "refusal", "text", "unsettled", "words"]


def unsettled(history: Sequence[Any]) -> tuple[Message, ...]:
    """What still matters of a list of all events: the latest step, without its words and its answered calls.

    A stream says nothing of what came before it. Whatever ran in earlier steps has been answered or is waited for no
    more, and what was heard of this one already is a repeat. The last message is of our own: it lists the calls that
    have no answer.
    """
    events = sorted((event for event in history if isinstance(event, Mapping)), key=_sequence)
    began = max((at for at, event in enumerate(events) if event.get("type") == "session.status_running"), default=0)
    step = events[began:]
    answered = {text(payload(event), "tool_use_id") for event in step if event.get("type") == "user.custom_tool_result"}
    told = [event for event in step if _matters(event, answered)]
    calls = [text(payload(event), "tool_use_id") for event in told if event["type"] == "agent.custom_tool_use"]
    return (*told, {"type": "history", "waiting": calls})


def _matters(event: Message, answered: set[str]) -> bool:
    match event.get("type"):
        case "session.status_running" | "session.status_idle" | "agent.approval_request" | "user.interrupt":
            return True
        case "agent.custom_tool_use":
            return text(payload(event), "tool_use_id") not in answered
    return False


def _sequence(event: Message) -> int:
    number = event.get("sequence")
    return number if isinstance(number, int) else 0


def idle(message: Message) -> Iterator[ServerEvent]:
    """What `session.status_idle` means: the end of a turn, or that it waits."""
    match payload(message).get("stop_reason"):
        case {"type": "requires_action"}:
            yield ProviderMessage("session.status_idle", message=message)  # its calls have been told
        case {"type": "error", **reason}:
            yield ProviderFailed("turn_failed", text(reason, "message"), message=message)
            yield ReplyDone(True, message=message)
        case {"type": str()}:
            yield ReplyDone(message=message)
        case _:
            yield Malformed("session.status_idle without a stop_reason", message=message)


def refusal(refused: Message, message: Message) -> ProviderFailed:
    """A request that came to nothing, in words of the provider."""
    setup = refused.get("setup") is True
    kind = Failure.OTHER
    match refused.get("status"):
        case 401 | 403:
            kind = Failure.CREDENTIALS
        case 429:
            kind = Failure.CAPACITY
        case 404:
            kind = Failure.RESUME
        case 400 | 413 | 422 if setup:
            kind = Failure.SETUP
    code = text(refused, "code") or f"http_{refused.get('status')}"
    fatal = setup or kind is not Failure.OTHER
    return ProviderFailed(code, text(refused, "message"), fatal, kind=kind, message=message)


def host_input(event: object) -> Iterator[ClientEvent]:
    """What an event of a client means."""
    match event:
        case {"type": "user.custom_tool_result", "tool_use_id": str(call_id), **result}:
            output = json_text(words(result), absent="")
            interim = result.get("status") == "running"
            yield ToolResults((ToolResult(call_id, output, result.get("is_error") is True, interim),))
        case {"type": "user.message", **said}:
            yield ReplyRequest(words(said))


def payload(message: Message) -> Message:
    """The event in an envelope."""
    value = message.get("payload")
    return value if isinstance(value, Mapping) else {}


def text(message: Mapping[Any, Any], key: str) -> str:
    """The text in a field; empty if there is none."""
    value = message.get(key)
    return value if isinstance(value, str) else ""


def words(event: Mapping[Any, Any]) -> str:
    """The words of all its text blocks."""
    content = event.get("content")
    blocks = content if isinstance(content, list) else []
    return "".join(text(block, "text") for block in blocks if isinstance(block, Mapping))
