"""The tool layer for realtime voice agents.

Runs the tools an agent calls, keeps the results of a turn until the agent has finished speaking, sends them at the one
right moment, and throws them away when the caller barged in.
"""

from .agents.assemblyai import AssemblyAI, TurnDetection, Webhook
from .core.conversation import Conversation, Step
from .core.dialect import Agent, Delivery, Dialect, Endpoint
from .core.events import (
    AgentAudio,
    CallKey,
    CallsCancelled,
    Deliver,
    Malformed,
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
from .session.reconnect import ConnectionLost, ConnectionResumed, LostCall, LostSession
from .session.running import ToolParked, ToolProgress, ToolSettled, ToolStarted
from .session.session import AgentEvent, Session, SessionOptions
from .tools.call import CallContext, Parked
from .tools.policy import Dedupe, Example
from .tools.tool import Tool, Toolset

__all__ = [
    "Agent",
    "AgentAudio",
    "AgentEvent",
    "ApplicationTooSlow",
    "ApprovalRequest",
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
    "InvalidArguments",
    "LostCall",
    "LostSession",
    "Malformed",
    "Parked",
    "ProviderEnded",
    "ProviderError",
    "ProviderFailed",
    "ProviderMessage",
    "ReplyDone",
    "ReplyStarted",
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
