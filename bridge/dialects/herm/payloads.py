"""Names on Herm's wire that its public documentation does not give."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Payloads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Every such name, by analogy with a sibling protocol. Whoever knows better makes a `HermDialect` with another."""

    custom: str = "custom"
    """`type` of a custom tool in an agent's `tools`."""
    schema: str = "input_schema"
    """Field of such a tool with the JSON Schema of its arguments."""
    name: str = "name"
    """Field of `agent.custom_tool_use` and `agent.approval_request` with the tool's name."""
    input: str = "input"
    """Their field with the arguments."""
    decision: str = "result"
    """Field of `user.tool_confirmation` with the decision."""
    allow: str = "allow"
    deny: str = "deny"
    listed: str = "data"
    """Field of a page that lists its items."""
    error: str = "error"
    """Field of an error's body that holds its `code` and `message`."""
