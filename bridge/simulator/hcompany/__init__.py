"""An offline H Company: stateful, on a real port, and strict about its protocol.

Needs Starlette and uvicorn (the `sidecar` extra), and httpx2 for webhooks (the `http` extra).
"""

from bridge.simulator.hcompany.ledger import CallRecord, Fate, Ledger, Result, Verdict
from bridge.simulator.hcompany.provider import Simulator
from bridge.simulator.hcompany.rules import Duplicates, Rules
from bridge.simulator.hcompany.script import Answer, Ask, Call, Fail, OwnTool, Scenario, Step, Work
from bridge.simulator.hcompany.session import Session, Status
from bridge.simulator.hcompany.webhooks import Delivery
from bridge.simulator.site import End, Exchange, Fault

__all__ = [
    "Answer",
    "Ask",
    "Call",
    "CallRecord",
    "Delivery",
    "Duplicates",
    "End",
    "Exchange",
    "Fail",
    "Fate",
    "Fault",
    "Ledger",
    "OwnTool",
    "Result",
    "Rules",
    "Scenario",
    "Session",
    "Simulator",
    "Status",
    "Step",
    "Verdict",
    "Work",
]
