"""The tool layer for realtime voice agents.

Runs the tools an agent calls, keeps the results of a turn until the agent has finished speaking, sends them at the one
right moment, and throws them away when the caller barged in.

The names are loaded when they are first used, each from its part of the package: a file of tools needs no session, and
whoever talks to one provider needs nothing of another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agents.assemblyai import AssemblyAI, TurnDetection, Webhook
    from .agents.hcompany import HCompany
    from .agents.herm import Herm
    from .agents.openai_sessions import OpenAISessions
    from .core.conversation import Conversation, Step
    from .core.dialect import Agent, Delivery, Dialect, Endpoint
    from .core.events import (
        AgentAudio,
        AgentPaused,
        AgentResumed,
        ApprovalWanted,
        CallKey,
        CallsCancelled,
        Deliver,
        Malformed,
        OutcomesOwed,
        ProviderEnded,
        ProviderFailed,
        ProviderMessage,
        ReplyDone,
        ReplyStarted,
        SessionReady,
        SetupAccepted,
        SpeechStarted,
        SpeechStopped,
        Start,
        ToolCall,
        ToolCalled,
        ToolResult,
        ToolSpec,
        Transcript,
    )
    from .errors import (
        ApplicationTooSlow,
        AtCapacity,
        AuthenticationFailed,
        BridgeError,
        ConfigError,
        ConfigurationRefused,
        InvalidArguments,
        JournalError,
        ProviderError,
        SessionClosed,
        ToolBusy,
        ToolError,
        ToolNotFound,
        ToolTimeout,
        ToolUnavailable,
        TransportError,
    )
    from .host import Bridge, connect
    from .runner.approvals import ApprovalRequest, Approvals
    from .session.reconnect import ConnectionLost, ConnectionResumed, LostCall, LostSession, Resumable
    from .session.running import ToolParked, ToolProgress, ToolSettled, ToolStarted
    from .session.session import AgentEvent, Session, SessionOptions
    from .tools.call import CallContext, Parked
    from .tools.policy import Dedupe, Example
    from .tools.tool import Tool, Toolset

__all__ = [
    "Agent",
    "AgentAudio",
    "AgentEvent",
    "AgentPaused",
    "AgentResumed",
    "ApplicationTooSlow",
    "ApprovalRequest",
    "ApprovalWanted",
    "Approvals",
    "AssemblyAI",
    "AtCapacity",
    "AuthenticationFailed",
    "Bridge",
    "BridgeError",
    "CallContext",
    "CallKey",
    "CallsCancelled",
    "ConfigError",
    "ConfigurationRefused",
    "ConnectionLost",
    "ConnectionResumed",
    "Conversation",
    "Dedupe",
    "Deliver",
    "Delivery",
    "Dialect",
    "Endpoint",
    "Example",
    "HCompany",
    "Herm",
    "InvalidArguments",
    "JournalError",
    "LostCall",
    "LostSession",
    "Malformed",
    "OpenAISessions",
    "OutcomesOwed",
    "Parked",
    "ProviderEnded",
    "ProviderError",
    "ProviderFailed",
    "ProviderMessage",
    "ReplyDone",
    "ReplyStarted",
    "Resumable",
    "Session",
    "SessionClosed",
    "SessionOptions",
    "SessionReady",
    "SetupAccepted",
    "SpeechStarted",
    "SpeechStopped",
    "Start",
    "Step",
    "Tool",
    "ToolBusy",
    "ToolCall",
    "ToolCalled",
    "ToolError",
    "ToolNotFound",
    "ToolParked",
    "ToolProgress",
    "ToolResult",
    "ToolSettled",
    "ToolSpec",
    "ToolStarted",
    "ToolTimeout",
    "ToolUnavailable",
    "Toolset",
    "Transcript",
    "TransportError",
    "TurnDetection",
    "Webhook",
    "connect",
]

_PARTS = {  # which names each part brings
    ".agents.assemblyai": "AssemblyAI TurnDetection Webhook",
    ".agents.hcompany": "HCompany",
    ".agents.herm": "Herm",
    ".agents.openai_sessions": "OpenAISessions",
    ".core.conversation": "Conversation Step",
    ".core.dialect": "Agent Delivery Dialect Endpoint",
    ".core.events": (
        "AgentAudio AgentPaused AgentResumed ApprovalWanted CallKey CallsCancelled Deliver Malformed OutcomesOwed "
        "ProviderEnded ProviderFailed ProviderMessage ReplyDone ReplyStarted SessionReady SetupAccepted SpeechStarted "
        "SpeechStopped Start ToolCall ToolCalled ToolResult ToolSpec Transcript"
    ),
    ".errors": (
        "ApplicationTooSlow AtCapacity AuthenticationFailed BridgeError ConfigError ConfigurationRefused "
        "InvalidArguments JournalError ProviderError SessionClosed ToolBusy ToolError ToolNotFound ToolTimeout "
        "ToolUnavailable TransportError"
    ),
    ".host": "Bridge connect",
    ".runner.approvals": "ApprovalRequest Approvals",
    ".session.reconnect": "ConnectionLost ConnectionResumed LostCall LostSession Resumable",
    ".session.running": "ToolParked ToolProgress ToolSettled ToolStarted",
    ".session.session": "AgentEvent Session SessionOptions",
    ".tools.call": "CallContext Parked",
    ".tools.policy": "Dedupe Example",
    ".tools.tool": "Tool Toolset",
}
_HOMES = {name: part for part, names in _PARTS.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker knows the names from above, and that there are no others

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
