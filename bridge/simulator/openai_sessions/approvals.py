"""Calls that the agent makes itself, at an MCP server, and for which it asks first.

What is documented: the entry in the list of required actions, the answer to it, and that `cancel` drops the request and
not the turn. What becomes of an answer that nobody waits for is not: it is taken or refused like a tool result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.simulator.openai_sessions import objects
from bridge.simulator.openai_sessions.ledger import ApprovalRecord, Fate
from bridge.simulator.openai_sessions.messages import Approval, Refused
from bridge.simulator.openai_sessions.objects import Turn
from bridge.simulator.openai_sessions.script import AskApproval

if TYPE_CHECKING:
    from bridge.simulator.openai_sessions.session import Session

__all__ = ["Approvals"]


class Approvals:
    """All that one session asks for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns: dict[ApprovalRecord, Turn] = {}

    @property
    def open(self) -> list[ApprovalRecord]:
        """What the session waits for."""
        return [asked for asked in self._session.ledger.approvals if asked.fate is Fate.OPEN]

    def required(self) -> list[dict[str, Any]]:
        """Their part of the list of required actions."""
        return [objects.required_approval(asked) for asked in self.open]

    def ask(self, turn: Turn, step: AskApproval) -> None:
        """From now on a decision is waited for."""
        request_id = self._session.new_id("mcpr")
        asked = ApprovalRecord(turn.id, request_id, step.server, step.name, step.arguments, step.message)
        self._turns[asked] = turn
        self._session.ledger.approvals.append(asked)

    def abandon(self) -> None:
        """The turn has ended: what is undecided stays so."""
        for asked in self.open:
            asked.fate = Fate.ABANDONED

    def check(self, answer: Approval) -> None:
        """May this be taken? Raises `Refused`."""
        asked = self._find(answer)
        if asked is None:
            raise Refused(400, "invalid_request_error", f"Unknown pending request: {answer.request_id}")
        if asked.fate is not Fate.OPEN and asked.decision != answer.response.decision:
            raise Refused(409, "conflict_error", f"Request {answer.request_id} waits no more.")

    def apply(self, answer: Approval) -> bool:
        """Take a decision; false if that changes nothing any more."""
        asked = self._find(answer)
        if asked is None or asked.fate is not Fate.OPEN:
            return False
        asked.fate, asked.decision = Fate.ANSWERED, answer.response.decision
        if asked.decision == "approve":
            turn = self._turns[asked]
            index, turn.outputs = turn.outputs, turn.outputs + 1
            self._session.add_item(turn, objects.mcp_item(asked, self._session.new_id("item")), index)
        return True

    def _find(self, answer: Approval) -> ApprovalRecord | None:
        every = self._session.ledger.approvals
        return next((asked for asked in every if asked.request_id == answer.request_id), None)
