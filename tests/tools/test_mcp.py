"""MCP servers that are programs: real processes that speak over their standard input and output."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bridge.core.events import CallKey, ToolCall
from bridge.errors import ConfigError, SessionClosed, ToolError, ToolUnavailable
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.tools.mcp import McpServer
from bridge.tools.mcp.connection import Connection
from bridge.tools.mcp.results import Interrupted
from bridge.tools.tool import CallContext

from .mcp_servers.desk import LIMIT, opened, until

pytestmark = pytest.mark.anyio

SERVERS = Path(__file__).parent / "mcp_servers"
EXAMPLES = Path(__file__).parents[2] / "examples"


def plain(*arguments: str, **more: Any) -> McpServer:
    return McpServer(name="plain", command=sys.executable, args=("-I", str(SERVERS / "plain.py"), *arguments), **more)


def shop(**more: Any) -> McpServer:
    return McpServer(name="shop", command=sys.executable, args=(str(SERVERS / "shop.py"),), **more)


# ------------------------------------------------------------------------------------------------------- what it offers


async def test_the_whole_list_is_taken_page_by_page() -> None:
    async with opened(plain("well")) as desk:
        assert list(desk.tools)[:2] == ["echo", "own_error"]
        assert "pid" in desk.tools
        assert desk.source.name == "MCP server plain"
        assert desk.source.reason == ""


async def test_a_list_without_an_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(plain("endless")) as desk:
        assert len(desk.tools) == 100
    assert "more than 100 pages" in caplog.text


async def test_a_tool_that_breaks_the_protocol_is_left_out_by_name_and_costs_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(plain("sloppy")) as desk:
        assert list(desk.tools) == ["echo", "pid"]
        await desk.call("echo", text="hello")
    lines = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert lines == [
        "MCP server plain: its tool None is left out: it breaks the protocol",
        "MCP server plain: its tool 'icon' is left out: it breaks the protocol at icons.0.src",
        "MCP server plain: its tool 'bare' is left out: it breaks the protocol at inputSchema",
    ]
    assert "secret" not in caplog.text


async def test_a_list_is_made_into_tools_beside_the_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(plain("well", include=("echo", "nowhere"))) as desk:
        assert list(desk.tools) == ["echo"]
    (line,) = [record for record in caplog.records if "include names nowhere" in record.getMessage()]
    assert line.thread != threading.get_ident()


async def test_a_changed_list_is_read_again_once_for_several_changes() -> None:
    async with opened(plain("well")) as desk:
        await desk.call("announce")
        await until(lambda: "later" in desk.tools)
        assert desk.changes == 1
        assert await desk.call("late", text="here") == "here"


async def test_a_changed_list_that_cannot_be_read_leaves_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(plain("well")) as desk:
        await desk.call("announce", text="a broken list")
        await until(lambda: "The list is lost" in caplog.text)
        assert await desk.call("echo", text="here") == "here"
        await desk.call("announce")
        await until(lambda: "later" in desk.tools)


@pytest.mark.slow
async def test_a_server_of_the_newer_protocol_tells_of_changes_too() -> None:
    async with opened(shop()) as desk:
        await desk.call("grow")
        await until(lambda: "second_more" in desk.tools)


# ----------------------------------------------------------------------------------------------------- what comes back


@pytest.mark.slow
async def test_results_come_back_as_values(tmp_path: Path) -> None:
    async with opened(shop(cwd=tmp_path)) as desk:
        assert await desk.call("find_order", order_id="17") == {"order_id": "17", "paid": True}
        assert await desk.call("greet", name="Ada") == "Hello, Ada!"
        picture = "an image (image/png, 12 KiB), which cannot be shown here"
        assert await desk.call("picture") == [picture, "This is the shop."]
        link = {"uri": "shop://manual", "name": "manual", "description": "How it works"}
        assert await desk.call("manual") == [link, {"pages": 3}]
        place = await desk.call("place")
        assert isinstance(place, dict)
        assert place["cwd"] == str(tmp_path)
        with pytest.raises(ToolError, match="refuse"):
            await desk.call("refuse")
        with pytest.raises(ToolError, match="elicitation"):
            await desk.call("ask")


@pytest.mark.slow
async def test_progress_of_the_server_is_progress_of_the_call() -> None:
    async with opened(shop()) as desk:
        assert await desk.call("count", to=3) == {"result": 3}
        assert sorted(desk.progress) == ["1 of 3", "step 2", "step 3"]


@pytest.mark.slow
async def test_progress_that_no_session_takes_any_more_does_not_disturb_the_call() -> None:
    def closed(text: str) -> None:
        raise SessionClosed("it has ended")

    async with opened(shop()) as desk:
        context = CallContext(session_id="s", key=CallKey(0, "c"), tool="count", progress=closed)
        call: Any = desk.tools["count"].invoke({"to": 2}, context)
        assert await call == {"result": 2}


async def test_an_error_of_the_servers_own_reaches_the_model_and_costs_no_connection() -> None:
    async with opened(plain("well")) as desk:
        before = await desk.call("pid")
        with pytest.raises(ToolError, match="The till is closed"):
            await desk.call("own_error")
        assert await desk.call("pid") == before


async def test_a_result_that_breaks_the_protocol_is_an_error_that_does_not_quote_it() -> None:
    async with opened(plain("well")) as desk:
        with pytest.raises(ToolError, match="not what the protocol allows") as raised:
            await desk.call("not_the_protocol")
        assert "secret" not in str(raised.value)


# ------------------------------------------------------------------------------------------------------------ cancelled


async def test_a_cancelled_call_is_cancelled_at_the_server_and_the_connection_stays() -> None:
    async with opened(plain("well")) as desk:
        before = await desk.call("pid")
        call = asyncio.create_task(desk.call("unanswered"))
        await desk.call("echo")  # the other call has been sent before this one
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        cancelled = await desk.call("cancelled")
        assert isinstance(cancelled, list)
        assert len(cancelled) == 1
        assert await desk.call("pid") == before


@pytest.mark.slow
async def test_a_cancelled_tool_of_the_sdk_stops(tmp_path: Path) -> None:
    async with opened(shop()) as desk:
        started, cancelled = tmp_path / "started", tmp_path / "cancelled"
        call = asyncio.create_task(desk.call("wait", started=str(started), cancelled=str(cancelled)))
        await until(started.exists)
        call.cancel()
        await until(cancelled.exists)
        assert await desk.call("greet") == "Hello, you!"


async def test_a_call_whose_time_is_over_is_answered_and_cancelled_at_the_server() -> None:
    async with opened(plain("well", options={"timeout": 0.2})) as desk:
        finished: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        calls = Runner().session()
        context = CallContext(session_id="s", key=CallKey(0, "c1"), tool="unanswered")
        call = ToolCall("c1", "unanswered", "{}")
        calls.start(context.key, call, desk.tools["unanswered"], (), context, finished.set_result)
        assert (await finished).outcome is Outcome.TIMEOUT
        await until(lambda: not calls.running)
        cancelled = await desk.call("cancelled")
        assert isinstance(cancelled, list)
        assert len(cancelled) == 1


# ----------------------------------------------------------------------------------------------------------- it is gone


async def test_a_write_that_was_under_way_when_the_server_died_is_answered_with_an_error_and_not_repeated() -> None:
    async with opened(plain("well")) as desk:
        before = await desk.call("pid")
        with pytest.raises(ToolUnavailable, match="nobody knows whether it was done"):
            await desk.call("exit")
        assert await desk.call("pid") != before


async def test_a_call_that_may_be_repeated_is_repeated_on_the_next_connection(tmp_path: Path) -> None:
    async with opened(plain("well", trusted=True)) as desk:
        there = str(tmp_path / "there")
        assert await desk.call("exit_once", text=there) == there


@pytest.mark.slow
async def test_a_server_of_the_newer_protocol_is_started_again_too(tmp_path: Path) -> None:
    async with opened(shop(trusted=True)) as desk:
        assert await desk.call("die_once", note=str(tmp_path / "note")) == {"result": "alive"}


async def test_a_call_that_may_be_repeated_is_repeated_once() -> None:
    async with opened(plain("well", tool={"exit": {"idempotent": True}})) as desk:
        with pytest.raises(ToolUnavailable, match="exit is not available now"):
            await desk.call("exit")


async def test_calls_made_while_the_server_is_down_wait_for_one_restart() -> None:
    async with opened(plain("well")) as desk:
        with pytest.raises(ToolUnavailable):
            await desk.call("exit")
        first, *others = await asyncio.gather(*(desk.call("pid") for _ in range(5)))
        assert others == [first] * 4


async def test_a_server_that_ends_while_nothing_is_called_is_noticed_and_started_again() -> None:
    async with opened(plain("well")) as desk:
        before = await desk.call("pid")
        os.kill(int(str(before)), signal.SIGKILL)
        await until(lambda: desk.source.reason)
        assert "the connection was lost" in desk.source.reason
        assert await desk.call("pid") != before
        assert desk.source.reason == ""


async def test_a_call_that_finds_no_server_in_its_time_says_so(tmp_path: Path) -> None:
    command = tmp_path / "server"
    command.symlink_to(sys.executable)
    server = McpServer(
        name="gone", command=str(command), args=("-I", str(SERVERS / "plain.py"), "well"), options={"timeout": 0.3}
    )
    async with opened(server) as desk:
        command.unlink()
        with pytest.raises(ToolUnavailable, match="nobody knows"):
            await desk.call("exit")
        with pytest.raises(ToolUnavailable, match="pid is not available now; try again later"):
            await desk.call("pid")
        await until(lambda: "was not found" in desk.source.reason)


async def test_a_server_that_answers_no_more_is_given_up_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = tmp_path / "deaf"
    async with opened(plain("deaf", str(deaf), ping_interval=0.05, ping_timeout=0.2)) as desk:
        before = await desk.call("pid")
        deaf.touch()
        await until(lambda: desk.source.reason)
        assert await desk.call("pid") != before
    assert "has not answered for 0.2 s" in caplog.text


async def test_a_server_is_not_given_up_while_it_runs_calls(tmp_path: Path) -> None:
    deaf = tmp_path / "deaf"
    connection = Connection(plain("deaf", str(deaf), ping_timeout=0.1))
    async with connection.open():
        await connection.check()
        deaf.touch()
        call = asyncio.create_task(connection.call("echo", {}, ignore))
        await connection.check()
        assert not connection.lost.is_set()
        call.cancel()
        await asyncio.wait({call})
        await connection.check()
        assert connection.lost.is_set()


async def test_a_server_that_has_ended_is_not_there() -> None:
    connection = Connection(plain("well"))
    async with connection.open():
        with pytest.raises(Interrupted):
            await connection.call("exit", {}, ignore)
        connection.lost.clear()
        await connection.check()
        assert connection.lost.is_set()


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    """Nobody wants to know."""


async def test_a_source_closes_also_while_its_server_is_down(tmp_path: Path) -> None:
    server = McpServer(name="none", command=str(tmp_path / "none"), required=False)
    async with opened(server) as desk:
        assert desk.tools == {}
    assert desk.source.reason == ""


async def test_calls_of_a_source_that_closes_are_answered() -> None:
    async with opened(plain("well")) as desk:
        call = asyncio.create_task(desk.call("unanswered"))
        await desk.call("echo")
    with pytest.raises(ToolUnavailable):
        await call
    with pytest.raises(ToolUnavailable):
        await desk.call("echo")


# ------------------------------------------------------------------------------------------------------------- starting


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (plain("dies"), "the program ended"),
        (plain("confused"), "does not keep to the protocol"),
        (plain("silent", connect_timeout=0.5), "not ready within 0.5 s"),
        (McpServer(name="none", command="/nowhere/server"), "'/nowhere/server' was not found"),
        (McpServer(name="folder", command="/"), "cannot be started: Permission denied"),
    ],
    ids=["it ends", "it is confused", "it is silent", "it is not there", "it is no program"],
)
async def test_a_required_server_that_cannot_be_started_is_an_error(server: McpServer, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with opened(server):
            pytest.fail("it has been opened")


async def test_an_optional_server_comes_later_and_blocks_nothing(tmp_path: Path) -> None:
    command = tmp_path / "server"
    server = McpServer(
        name="later", command=str(command), args=("-I", str(SERVERS / "plain.py"), "well"), required=False
    )
    async with opened(server) as desk:
        assert desk.tools == {}
        assert desk.source.reason == ""
        command.symlink_to(sys.executable)
        await until(lambda: "echo" in desk.tools)
        assert await desk.call("echo", text="here") == "here"


async def test_a_failure_inside_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(LookupError):
        async with opened(plain("well")):
            raise LookupError


async def test_a_source_that_is_cancelled_takes_its_server_along() -> None:
    started = asyncio.Event()
    pids: list[int] = []

    async def use() -> None:
        async with opened(plain("well")) as desk:
            pids.append(int(str(await desk.call("pid"))))
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    async with asyncio.timeout(LIMIT):
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.slow
async def test_a_server_sees_of_our_environment_only_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "k")
    monkeypatch.setenv("OUR_SECRET", "s")
    async with opened(shop(env={"REGION": "eu"}, env_pass=("SHOP_KEY",))) as desk:
        seen = await desk.call("environment")
    assert isinstance(seen, dict)
    assert seen["SHOP_KEY"] == "k"
    assert seen["REGION"] == "eu"
    assert seen.keys() <= {"SHOP_KEY", "REGION", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}


@pytest.mark.slow
async def test_the_server_of_the_examples_works_as_it_is_declared_there() -> None:
    table = tomllib.loads((EXAMPLES / "mcp_tools.toml").read_text())["tools"]["mcp"][0]
    async with opened(McpServer(**{**table, "command": sys.executable, "cwd": EXAMPLES})) as desk:
        find, cancel = desk.tools["shop_find_order"], desk.tools["shop_cancel_order"]
        assert (find.effect, find.repeatable, cancel.effect, cancel.repeatable) == ("read", True, "write", False)
        assert await desk.call("shop_find_order", order_id="A17") == {"order_id": "A17", "status": "on its way"}
        cancelled = await desk.call("shop_cancel_order", order_id="A18", caller="+49 30 123456")
        assert cancelled == {"cancelled": "A18", "by": "+49 30 123456"}
        assert desk.progress == ["Asking the warehouse."]


# -------------------------------------------------------------------------------------------------------------- the log


async def test_noise_on_the_standard_output_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(plain("noisy")) as desk:
        assert await desk.call("echo", text="here") == "here"
    assert caplog.text.count("no message of the protocol") == 1
    assert "Welcome" not in caplog.text


async def test_the_standard_error_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bridge.tools.mcp")
    async with opened(plain("noisy")):
        pass
    lines = [record for record in caplog.records if "A line for the log" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.DEBUG]
    assert lines[0].getMessage() == "MCP server plain: A line for the log."


async def test_nothing_that_is_sent_or_received_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with opened(plain("well")) as desk:
        await desk.call("echo", text="4111 1111 1111 1111")
        with pytest.raises(ToolError):
            await desk.call("not_the_protocol", text="4111 1111 1111 1111")
    assert "4111 1111" not in caplog.text
    assert "a secret" not in caplog.text


@pytest.mark.slow
def test_the_sdk_is_imported_only_when_a_source_is_opened() -> None:
    code = "import sys, bridge, bridge.tools.mcp; sys.exit('mcp' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_without_the_sdk_an_error_says_what_to_install() -> None:
    code = """
import asyncio, sys
sys.modules["mcp"] = None
from bridge.tools.mcp import McpServer, McpSource

async def main():
    async with McpSource(McpServer(name="x", command="x")).open(print):
        pass

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ConfigError" in ended.stderr
    assert "pip install 'voice-tool-bridge[mcp]'" in ended.stderr
