"""The provider's objects as they go over the wire, built from what the simulator knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from bridge.simulator.openai_sessions.ledger import ApprovalRecord, CallRecord
from bridge.simulator.openai_sessions.messages import AgentSettings, CreateSession, OtherTool, ToolResult, UserMessage

__all__ = [
    "ENDED",
    "Item",
    "Turn",
    "agent_of",
    "environment_of",
    "page",
    "required_action",
    "required_approval",
    "turn_object",
]

Item: TypeAlias = dict[str, Any]
TurnStatus: TypeAlias = Literal["queued", "in_progress", "waiting", "completed", "failed", "cancelled"]

ENDED: Final = frozenset({"completed", "failed", "cancelled"})


@dataclass(slots=True, eq=False)
class Turn:
    """One turn: from a message to an idle session until that has been dealt with."""

    id: str
    number: int
    created_at: int
    status: TurnStatus = "queued"
    started_at: int | None = None
    completed_at: int | None = None
    error: dict[str, str] | None = None
    items: list[Item] = field(default_factory=list)
    outputs: int = 0
    """Output items so far."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED


def turn_object(turn: Turn, session_id: str, *, waits: bool) -> dict[str, Any]:
    """A turn; `waits`: it is held up by a call, which no event announces."""
    return {
        "id": turn.id,
        "object": "agent.session.turn",
        "session_id": session_id,
        "agent_id": "agent_root",
        "subagent_id": None,
        "status": "waiting" if waits and not turn.has_ended else turn.status,
        "error": turn.error,
        "created_at": turn.created_at,
        "started_at": turn.started_at,
        "completed_at": turn.completed_at,
        "usage": None,  # it fills in later
    }


def required_action(call: CallRecord, arguments: Any) -> dict[str, Any]:
    """A call that waits for its result."""
    return {
        "type": "function_call",
        "turn_id": call.turn_id,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": arguments,
    }


def required_approval(asked: ApprovalRecord) -> dict[str, Any]:
    """A call at an MCP server that waits to be approved."""
    request = {
        "type": "mcp_tool_call",
        "server_label": asked.server,
        "name": asked.name,
        "arguments": asked.arguments,
        "message": asked.message,
    }
    return {
        "type": "mcp_approval_request",
        "turn_id": asked.turn_id,
        "request_id": asked.request_id,
        "request": request,
    }


def mcp_item(asked: ApprovalRecord, item_id: str) -> Item:
    """The item of such a call that was approved, and made."""
    made = {"server_label": asked.server, "name": asked.name or "", "arguments": asked.arguments}
    done = {"output": "done", "error": None, "status": "completed"}
    return {"id": item_id, "type": "mcp_call", "turn_id": asked.turn_id, **made, **done}


def call_item(call: CallRecord, item_id: str, arguments: Any) -> Item:
    """The item that announces a call."""
    return {**required_action(call, arguments), "id": item_id, "status": "in_progress"}


def output_item(result: ToolResult, item_id: str) -> Item:
    """The item of a result that has been applied."""
    body = result.model_dump(include={"turn_id", "call_id", "output", "error"})
    return {"id": item_id, "type": "function_call_output", "status": "completed", **body}


def user_item(message: UserMessage, item_id: str, turn: Turn) -> Item:
    """A user message."""
    content = [part.model_dump() for part in message.content]
    return _message(item_id, turn, "user", content, "completed", None)


def assistant_item(item_id: str, turn: Turn, phase: str) -> Item:
    """A message of the agent, still without words."""
    return _message(item_id, turn, "assistant", [], "in_progress", phase)


def _message(
    item_id: str, turn: Turn, role: str, content: Sequence[Mapping[str, Any]], status: str, phase: str | None
) -> Item:
    return {
        "id": item_id,
        "type": "message",
        "turn_id": turn.id,
        "role": role,
        "content": list(content),
        "status": status,
        "phase": phase,
    }


def agent_of(settings: AgentSettings) -> dict[str, Any]:
    """The agent in a session's snapshot. `tool_search` is taken, and not listed."""
    given = settings.model_dump(exclude_none=True, exclude={"tools"})
    return {
        "id": "agent_root",
        "name": None,
        "instructions": None,
        "model": "saved",
        "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
        "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        **given,
        "reasoning": {"effort": None, "summary": None, **(given.get("reasoning") or {})},
        "tools": [
            tool.model_dump(by_alias=True, exclude_none=True)
            for tool in settings.tools or ()
            if not (isinstance(tool, OtherTool) and tool.type == "tool_search")
        ],
    }


def environment_of(create: CreateSession) -> dict[str, Any]:
    """The environment in a session's snapshot."""
    match create.environment.type:
        case "none":
            return {"type": "none"}
        case "openai_hosted":
            network = {"access": "disabled", "allowed_domains": []}
            packages: dict[str, list[str]] = {"npm": [], "python": [], "system": []}
            empty: dict[str, Any] = {"capability_directories": [], "files": [], "plugins": [], "skills": []}
            return {"type": "openai_hosted", "id": "env_1", "network": network, "packages": packages, **empty}
        case "self_hosted":
            place = {"remote_url": "wss://127.0.0.1/env_1", "workspace_directory": "/workspace"}
            return {"type": "self_hosted", "id": "env_1", "capability_directories": [], **place}


def page(entries: Sequence[Mapping[str, Any]], after: str, limit: int, order: str) -> dict[str, Any]:
    """One page of a list. `after` is the id of the last entry that the client has seen."""
    listed = list(entries) if order == "asc" else list(reversed(entries))
    ids = [entry["id"] for entry in listed]
    start = ids.index(after) + 1 if after in ids else 0
    data = listed[start : start + limit]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, "has_more": start + limit < len(listed), **ends}
