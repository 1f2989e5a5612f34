"""An offline Herm: stateful, on a real port, and strict about what is known of its protocol.

Needs Starlette and uvicorn (the `sidecar` extra).
"""

from bridge.simulator.herm.ledger import CallRecord, Fate, Ledger, Policy, Result, TurnRecord, Verdict
from bridge.simulator.herm.provider import Simulator
from bridge.simulator.herm.rules import LateFinals, Payloads, Repeats, Rules
from bridge.simulator.herm.script import Answer, Ask, Call, Fail, Scenario, Step, Work
from bridge.simulator.herm.session import Session
from bridge.simulator.site import End, Exchange, Fault

__all__ = [
    "Answer",
    "Ask",
    "Call",
    "CallRecord",
    "End",
    "Exchange",
    "Fail",
    "Fate",
    "Fault",
    "LateFinals",
    "Ledger",
    "Payloads",
    "Policy",
    "Repeats",
    "Result",
    "Rules",
    "Scenario",
    "Session",
    "Simulator",
    "Step",
    "TurnRecord",
    "Verdict",
    "Work",
]
