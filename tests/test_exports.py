"""The public names, exactly: adding one is a decision, removing one is a change for users."""

from __future__ import annotations

import subprocess
import sys

import bridge

PUBLIC = (
    "Agent AgentAudio AgentEvent ApplicationTooSlow ApprovalRequest Approvals AssemblyAI AtCapacity "
    "AuthenticationFailed Bridge BridgeError CallContext CallKey CallsCancelled ConfigError "
    "ConfigurationRefused ConnectionLost ConnectionResumed Conversation Dedupe Deliver Delivery Dialect "
    "Endpoint Example InvalidArguments LostCall LostSession Malformed Parked ProviderEnded ProviderError "
    "ProviderFailed ProviderMessage ReplyDone ReplyStarted Session SessionClosed SessionOptions "
    "SessionReady SetupAccepted SpeechStarted SpeechStopped Start Step Tool ToolBusy ToolCall ToolCalled "
    "ToolError ToolNotFound ToolParked ToolProgress ToolResult ToolSettled ToolSpec ToolStarted "
    "ToolTimeout ToolUnavailable Toolset Transcript TransportError TurnDetection Webhook connect "
)


def test_the_public_names_are_these() -> None:
    assert sorted(bridge.__all__) == PUBLIC.split()
    assert all(hasattr(bridge, name) for name in PUBLIC.split())


def test_importing_the_package_loads_no_extra() -> None:
    loaded = "import sys, bridge; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"click", "rich", "starlette", "uvicorn", "uvloop", "httpx2", "mcp", "psycopg"} & set(names)
