"""MCP servers that others have written, from the package index, each with its own dependencies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.errors import ToolError
from bridge.tools.mcp import McpServer

from .mcp_servers.desk import opened

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed servers."""
    home = tmp_path_factory.mktemp("servers")
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    install = [str(home / "bin" / "pip"), "install", "--quiet", "mcp-server-time", "mcp-server-git"]
    if subprocess.run(install, check=False, timeout=500).returncode:
        pytest.skip("the package index cannot be reached")
    return home / "bin"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    for command in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "The first one"]):
        subprocess.run([*git, *command], check=True)
    return tmp_path


async def test_a_server_for_times_of_day(programs: Path) -> None:
    server = McpServer(name="time", command=str(programs / "mcp-server-time"), trusted=True)
    async with opened(server) as desk:
        assert desk.tools["get_current_time"].effect == "read"
        noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        converted = await desk.call("convert_time", **noon)
        assert isinstance(converted, dict)
        assert converted["time_difference"] == "+9.0h"
        with pytest.raises(ToolError, match="Nowhere"):
            await desk.call("get_current_time", timezone="Nowhere")


async def test_a_server_for_repositories(programs: Path, repository: Path) -> None:
    server = McpServer(
        name="git",
        command=str(programs / "mcp-server-git"),
        args=("--repository", str(repository)),
        exclude=("git_reset",),
    )
    async with opened(server) as desk:
        assert "git_reset" not in desk.tools
        log, status = await asyncio.gather(
            desk.call("git_log", repo_path=str(repository)), desk.call("git_status", repo_path=str(repository))
        )
        assert "The first one" in str(log)
        assert "nothing to commit" in str(status)
