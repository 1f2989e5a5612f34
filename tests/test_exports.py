"""The public names, exactly: adding one is a decision, removing one is a change for users."""

from __future__ import annotations

import subprocess
import sys

import pytest

import bridge

PUBLIC = (
    "Agent AgentAudio AgentEvent AgentPaused AgentResumed "
    "ApplicationTooSlow ApprovalRequest ApprovalWanted Approvals AssemblyAI AtCapacity "
    "AuthenticationFailed Bridge BridgeError CallContext CallKey CallsCancelled ConfigError "
    "ConfigurationRefused ConnectionLost ConnectionResumed Conversation Dedupe Deliver Delivery Dialect "
    "Endpoint Example HCompany Herm InvalidArguments JournalError LostCall LostSession Malformed OpenAISessions "
    "OutcomesOwed Parked "
    "ProviderEnded ProviderError ProviderFailed ProviderMessage ReplyDone ReplyStarted Resumable Session SessionClosed "
    "SessionOptions SessionReady SetupAccepted SpeechStarted SpeechStopped Start Step Tool ToolBusy ToolCall "
    "ToolCalled ToolError ToolNotFound ToolParked ToolProgress ToolResult ToolSettled ToolSpec ToolStarted "
    "ToolTimeout ToolUnavailable Toolset Transcript TransportError TurnDetection Webhook connect "
)


def test_the_public_names_are_these() -> None:
    assert sorted(bridge.__all__) == PUBLIC.split()
    assert all(hasattr(bridge, name) for name in PUBLIC.split())
    assert set(PUBLIC.split()) <= set(dir(bridge))


def test_a_name_that_is_not_public_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'bridge' has no attribute 'Nonsense'"):
        bridge.Nonsense  # noqa: B018  # to look is the test


@pytest.mark.slow
def test_a_file_of_tools_loads_no_session_and_no_provider() -> None:
    loaded = "import sys; from bridge import Toolset; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert "bridge.tools.tool" in names
    assert not {"bridge.session", "bridge.agents", "bridge.dialects", "websockets"} & set(names)


def test_importing_the_package_loads_no_extra() -> None:
    loaded = "import sys; from bridge import *; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    assert not {"click", "rich", "starlette", "uvicorn", "uvloop", "httpx2", "mcp", "psycopg"} & set(names)
