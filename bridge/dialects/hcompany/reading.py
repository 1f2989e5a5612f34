"""What the messages of a session mean: its states, its calls, and requests that were refused."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from bridge.core.dialect import Message
from bridge.core.events import (
    Failure,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyStarted,
    ServerEvent,
    ToolCall,
    ToolCalled,
)

from ..results import json_text

__all__ = ["calls", "index", "refusal", "session_status", "state"]


def state(message: Message) -> Iterator[ServerEvent]:
    """What an `ActiveStateChangeEvent` means."""
    match message.get("data"):
        case {"state": "awaiting_tool_results"} if message.get("past") is True:
            yield ProviderMessage("ActiveStateChangeEvent", message=message)
        case {"state": "awaiting_tool_results", "pending_tool_calls": [_, *_] as pending}:
            yield from calls(pending, message)
        case {"state": "awaiting_tool_results"}:
            yield Malformed("calls are waited for and not listed", message=message)
        case {"state": "running"}:
            yield ReplyStarted(index(message), message=message)
        case {"state": "idle"}:
            yield ReplyDone(message=message)
        case {"state": str()}:
            yield ProviderMessage("ActiveStateChangeEvent", message=message)
        case _:
            yield Malformed("a change of state without a state", message=message)


def session_status(message: Message) -> Iterator[ServerEvent]:
    """What a status means. What the log says as well is harmless to hear twice; what it has lost is heard here."""
    match message.get("status"):
        case "completed":
            yield ReplyDone(message=message)
            yield ProviderEnded(message=message)
        case "failed" | "timed_out" | "interrupted" as ended:
            if ended != "interrupted":
                code, text = message.get("error_code"), message.get("error")
                code, text = code if isinstance(code, str) else ended, text if isinstance(text, str) else ""
                kind = Failure.CAPACITY if code == "insufficient_credit" else Failure.OTHER
                yield ProviderFailed(code, text, fatal=True, kind=kind, message=message)
            yield ReplyDone(True, message=message)
            yield ProviderEnded(message=message)
        case str():
            yield ProviderMessage("SessionStatus", message=message)
        case _:
            yield Malformed("a status that says nothing", message=message)


def refusal(refused: Message, message: Message) -> ProviderFailed:
    """A request that came to nothing, in words of the provider."""
    code, text = refused.get("status"), refused.get("message")
    setup = refused.get("setup") is True
    kind = Failure.OTHER
    match code:
        case 401 | 403:
            kind = Failure.CREDENTIALS
        case 402 | 429:
            kind = Failure.CAPACITY
        case 404:
            kind = Failure.RESUME
        case 400 | 413 | 422 if setup:
            kind = Failure.SETUP
    fatal = setup or kind is not Failure.OTHER
    return ProviderFailed(f"http_{code}", text if isinstance(text, str) else "", fatal, kind=kind, message=message)


def calls(pending: Sequence[Any], message: Message) -> Iterator[ServerEvent]:
    """A call for each entry. Equal ones are counted: their results are as good for the one as for the other."""
    seen: Counter[str] = Counter()
    for entry in pending:
        match entry:
            case {"tool_name": str(name)} if name:
                key = _key(message.get("step"), entry)
                seen[key] += 1
                call_id = key if seen[key] == 1 else f"{key}:{seen[key]}"
                arguments = json_text(entry.get("args"), absent="{}")
                echo = (("tool_req", json_text(entry, absent="")),)
                yield ToolCalled(ToolCall(call_id, name, arguments, echo=echo), message=message)
            case _:
                yield Malformed("a call without the name of its tool", message=message)


def _key(step: object, entry: Message) -> str:
    """What tells this call from all others: its step, its id, and what it asks for.

    The last is hashed, since the id of a call may be written to a log and its arguments may not.
    """
    call_id, asked = entry.get("id"), [entry.get("tool_name"), entry.get("args") or {}]
    try:
        about = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # as in `json_text`
        about = b""
    digest = hashlib.sha256(about).hexdigest()[:12]
    return f"{step}:{call_id if isinstance(call_id, str) else ''}:{digest}"


def index(message: Message) -> str:
    """The place of an event in the log, as text."""
    return str(message.get("index", ""))
