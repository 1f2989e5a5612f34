"""What is left in the mailbox of a fleet, as text: answers to calls, requests for approval, and decisions. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict

from ..core.events import CallKey, ToolResult
from ..journal import Claimed
from ..journal.mailbox import Posted, Receipt
from ..tools.encode import encode
from .approvals import AlreadyDecided, ApprovalRequest, Decided, Decision, Expired, Resolution, Resolved, Unknown
from .durable import may_have_run
from .leftovers import NOT_KNOWN
from .parking import Answer, Waiting

__all__ = [
    "answer_of",
    "answer_text",
    "decision_of",
    "read_answer",
    "read_request",
    "read_waiting",
    "request_text",
    "resolution_text",
    "result_of",
    "ticket_of",
    "waiting_text",
]


def answer_text(answer: Answer) -> str:
    """The outcome of a call."""
    return json.dumps({"output": json.loads(answer.output), "error": answer.error})


def read_answer(text: str) -> Answer:
    """What `answer_text` was given."""
    value = json.loads(text)
    return Answer(encode(value["output"]), value["error"])


def ticket_of(claimed: Claimed) -> str:
    """What a call is answered by."""
    return ".".join(map(str, claimed.call))


def answer_of(result: ToolResult) -> Answer:
    """A result that was found out for somebody who is dead, as an answer."""
    return Answer(error=json.loads(result.output)["error"]) if result.is_error else Answer(result.output)


def result_of(claimed: Claimed, answer: Answer) -> tuple[ToolResult, str]:
    """The result of a call that was answered so, and how it ended."""
    if not answer.error:
        return ToolResult(claimed.call.call_id, answer.output, name=claimed.tool), "ok"
    result = ToolResult(claimed.call.call_id, encode({"error": answer.error}), is_error=True, name=claimed.tool)
    # So somebody has found, and has died before it was in the journal.
    found = answer.error == may_have_run(claimed.tool)
    return result, NOT_KNOWN if found else "error"


def waiting_text(call: Waiting) -> str:
    """A call that waits for its outcome."""
    return json.dumps(asdict(call))


def read_waiting(text: str) -> Waiting:
    """What `waiting_text` was given."""
    return Waiting(**json.loads(text))


def resolution_text(how: Resolution, by: str, reason: str) -> str:
    """What became of a request, and by whom."""
    return json.dumps({"how": how.value, "by": by, "reason": reason})


def request_text(request: ApprovalRequest, arguments: str) -> str:
    """A request, with those arguments that may be shown."""
    return json.dumps(
        {
            "id": request.id,
            "session_id": request.session_id,
            "key": list(request.key),
            "tool": request.tool,
            "arguments": arguments,
            "fingerprint": request.fingerprint,
            "asked": request.asked,
            "seconds": request.seconds,
        }
    )


def read_request(text: str) -> ApprovalRequest:
    """What `request_text` was given."""
    value = json.loads(text)
    return ApprovalRequest(**{**value, "key": CallKey(*value["key"])})


def decision_of(receipt: Receipt) -> Decision:
    """What becomes of a decision about a request of another process."""
    if not receipt.about:
        return Unknown()  # its own process has forgotten it
    request = read_request(receipt.about)
    if not receipt.answer:
        return Expired(Resolved(request, Resolution.EXPIRED))
    answer = json.loads(receipt.answer)
    resolved = Resolved(request, Resolution(answer["how"]), answer["by"], answer["reason"])
    match receipt.posted:
        case Posted.ACCEPTED:
            return Decided(resolved)
        case Posted.OVER:
            return Expired(resolved)
        case _:
            return AlreadyDecided(resolved)
