"""What events, and messages of the host, mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from bridge.core.dialect import Message
from bridge.core.events import (
    ApprovalAnswer,
    ApprovalWanted,
    Failure,
    Malformed,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    ServerEvent,
    ToolCall,
    ToolCalled,
    ToolResult,
    ToolResults,
    Transcript,
)

from .fields import call_key, json_text, part, text
from .writing import APPROVAL

__all__ = ["failed", "host_input", "required", "served", "transcript", "turn"]

_KINDS: Final = {
    "unauthorized": Failure.CREDENTIALS,
    "forbidden": Failure.CREDENTIALS,
    "server_is_overloaded": Failure.CAPACITY,
    "service_unavailable_error": Failure.CAPACITY,
    "rate_limit_exceeded": Failure.CAPACITY,
}


def required(message: Message) -> Iterator[ServerEvent]:
    """What waits: calls, and approvals of calls that the provider makes by itself, of tools of an MCP server.

    What else may be required (an environment, something that a browser asks for) is the host's business.
    """
    actions = part(message, "session").get("required_actions")
    if not isinstance(actions, list):
        yield Malformed("requires_action without a list of actions", message=message)
        return
    asked = [event for event in (_asked(action, message) for action in actions) if event is not None]
    yield from asked or (ProviderMessage("agent.session.requires_action", message=message),)


def _asked(action: object, message: Message) -> ServerEvent | None:
    if not isinstance(action, Mapping):
        return None
    match action.get("type"):
        case "function_call":
            return _call(action, message)
        case "mcp_approval_request":
            return _approval(action, message)
    return None


def _call(action: Message, message: Message) -> ToolCalled | Malformed:
    name, turn_id, call_id = (text(action, key) for key in ("name", "turn_id", "call_id"))
    if not (name and turn_id and call_id):
        return Malformed("a required call without its name or ids", message=message)
    # Documented: everything is keyed by turn and call together.
    call = ToolCall(call_key(action), name, json_text(action.get("arguments")), echo=(("turn_id", turn_id),))
    return ToolCalled(call, message=message)


def _approval(action: Message, message: Message) -> ApprovalWanted | Malformed:
    request_id, asked = text(action, "request_id"), part(action, "request")
    server, name = text(asked, "server_label"), text(asked, "name")
    if not request_id:
        return Malformed("a required approval without its id", message=message)
    # Seen: the name and the arguments can be null. The message is then all there is to decide by.
    arguments = asked.get("arguments")
    if arguments is None and (said := text(asked, "message")):
        arguments = {"message": said}
    # With the server's name it cannot be taken for a tool of ours.
    call = ToolCall(request_id, f"{server}.{name or '(not named)'}", json_text(arguments))
    return ApprovalWanted(call, message=message)


def turn(message: Message, interrupted: bool | None) -> ReplyStarted | ReplyDone | Malformed | ProviderMessage:
    """A turn begins (None), or ends. Turns of subagents are part of one."""
    told = part(message, "turn")
    turn_id = text(message, "turn_id") or text(told, "id")
    if not turn_id:
        return Malformed(f"{message['type']} without the turn's id", message=message)
    if told.get("subagent_id") is not None:
        return ProviderMessage(message["type"], message=message)
    if interrupted is None:
        return ReplyStarted(turn_id, message=message)
    return ReplyDone(interrupted, turn_id, message=message)


def transcript(message: Message) -> Transcript | Malformed:
    """Words of the agent: a piece, or all of a message."""
    final = message["type"].endswith(".done")
    words = message.get("text" if final else "delta")
    if not isinstance(words, str):
        return Malformed(f"{message['type']} without text", message=message)
    return Transcript("agent", words, final=final, item_id=text(message, "item_id"), message=message)


def failed(message: Message) -> ProviderFailed:
    """An error the provider tells of, or a request that it refused; `about` is the transport's word for what."""
    error = part(message, "error")
    code = text(error, "code") or text(error, "type")
    kind = _KINDS.get(code, Failure.SETUP if message.get("about") == "setup" else Failure.OTHER)
    fatal = kind is Failure.CREDENTIALS or message.get("about") == "session"
    return ProviderFailed(code, text(error, "message"), fatal, text(error, "param"), kind, message=message)


def host_input(event: object) -> Iterator[ToolResults | ApprovalAnswer | ReplyRequest]:
    """One of the events that a host posts by itself."""
    if not isinstance(event, Mapping):
        return
    match event:
        case {"type": "agent.session.input.tool_result", "turn_id": str(), "call_id": str()}:
            success = event.get("success") is True
            output = json_text(event.get("output" if success else "error"), absent="null")
            yield ToolResults((ToolResult(call_key(event), output, is_error=not success),))
        case {"type": str(kind), "request_id": str(request_id), "response": {"decision": decision}} if kind == APPROVAL:
            yield ApprovalAnswer(request_id, decision == "approve")
        case {"type": "agent.session.input.message"}:
            yield ReplyRequest()


def served(listed: tuple[str, ...] | None, setup: Message) -> tuple[str, ...] | None:
    """The names that a setup lists, with those that are served without being listed at the provider by it."""
    names = setup.get("serve")
    if not isinstance(names, list):
        return listed
    return (*(listed or ()), *(name for name in names if isinstance(name, str)))
