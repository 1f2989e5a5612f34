"""An offline provider that speaks OpenAI Agent Sessions: stateful, on a real HTTP port, strict about the protocol.

Needs Starlette and uvicorn (the `sidecar` extra).
"""

from bridge.simulator.openai_sessions.ledger import (
    Answer,
    ApprovalRecord,
    CallRecord,
    Fate,
    Ledger,
    Post,
    Request,
    Verdict,
)
from bridge.simulator.openai_sessions.rules import Effect, Fault, LateResults, On, Partly, Repetition, Rules
from bridge.simulator.openai_sessions.script import (
    Ask,
    AskApproval,
    AwaitResults,
    Call,
    Cancel,
    Cut,
    Fail,
    FailSession,
    Raw,
    Repeat,
    Say,
    Scenario,
    Steer,
    Step,
    Tell,
    Wait,
)
from bridge.simulator.openai_sessions.server import Simulator

__all__ = [
    "Answer",
    "ApprovalRecord",
    "Ask",
    "AskApproval",
    "AwaitResults",
    "Call",
    "CallRecord",
    "Cancel",
    "Cut",
    "Effect",
    "Fail",
    "FailSession",
    "Fate",
    "Fault",
    "LateResults",
    "Ledger",
    "On",
    "Partly",
    "Post",
    "Raw",
    "Repeat",
    "Repetition",
    "Request",
    "Rules",
    "Say",
    "Scenario",
    "Simulator",
    "Steer",
    "Step",
    "Tell",
    "Verdict",
    "Wait",
]
