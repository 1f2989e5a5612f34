"""What Herm's events mean, and what of a session's history is news after a reconnect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from bridge.core.dialect import Message
from bridge.core.events import (
    ApprovalAnswer,
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
from .payloads import Payloads

__all__ = ["CONFIRMATION", "host_input", "idle", "payload", "refusal", "text", "unsettled", "words"]

CONFIRMATION: Final = "user.tool_confirmation"
_SETTLED_BY: Final = {
    "agent.custom_tool_use": ("user.custom_tool_result",),
    "agent.approval_request": (CONFIRMATION, "agent.custom_tool_use", "user.custom_tool_result"),
}


def unsettled(history: Sequence[Any]) -> tuple[Message, ...]:
    """What still matters of a list of all events: the latest step, without its words, its answered calls, and what it
    asked and was told.

    A stream says nothing of what came before it. Whatever ran in earlier steps has been answered or is waited for no
    more, as has what came before the end of this one; and what was heard of it already is a repeat. The last message is
    of our own: it lists the calls that have no answer, and in `running`, of all steps, those that have no
    outcome yet.
    """
    events = sorted((event for event in history if isinstance(event, Mapping)), key=_sequence)
    step = events[max(_latest(events, _begins), 0) :]
    ended = _latest(step, _ends)
    known = {(event.get("type"), text(payload(event), "tool_use_id")) for event in step}
    told = [event for at, event in enumerate(step) if _is_news(event, known, after_all=at > ended)]
    calls = [text(payload(event), "tool_use_id") for event in told if event["type"] == "agent.custom_tool_use"]
    running = _running(events)
    return (*told, {"type": "history", "waiting": calls} | ({"running": running} if running else {}))


def _running(events: Sequence[Message]) -> list[str]:
    """The calls that were said to be running, and no more. Documented: the outcome takes the place of that."""
    latest = {
        text(payload(event), "tool_use_id"): payload(event).get("status")
        for event in events
        if event.get("type") == "user.custom_tool_result"
    }
    return [call for call, status in latest.items() if call and status == "running"]


def _is_news(event: Message, known: set[tuple[Any, str]], *, after_all: bool) -> bool:
    """`known`: what the step has, by type and call. `after_all`: it has not ended since."""
    kind, call_id = event.get("type"), text(payload(event), "tool_use_id")
    match kind:
        case "session.status_running" | "session.status_idle" | "user.interrupt":
            return True
        case "agent.custom_tool_use" | "agent.approval_request":
            return after_all and not any((each, call_id) in known for each in _SETTLED_BY[kind])
    return False


def _latest(events: Sequence[Message], true: Callable[[Message], bool]) -> int:
    """The place of the latest of these events; -1 if there is none."""
    return max((at for at, event in enumerate(events) if true(event)), default=-1)


def _begins(event: Message) -> bool:
    return event.get("type") == "session.status_running"


def _ends(event: Message) -> bool:
    match event:
        case {"type": "session.status_idle", "payload": {"stop_reason": {"type": "requires_action"}}}:
            return False
        case {"type": "session.status_idle" | "user.interrupt"}:
            return True
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


def host_input(event: object, names: Payloads) -> Iterator[ClientEvent]:
    """What an event of a client means."""
    match event:
        case {"type": "user.tool_confirmation", "tool_use_id": str(call_id), **decided}:
            yield ApprovalAnswer(call_id, decided.get(names.decision) == names.allow)
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
