"""`run`: for programs without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bridge import SessionClosed, Toolset
from bridge.message_loop import MessageLoop

ROOT = Path(__file__).parent.parent.parent
customer = contextvars.ContextVar("customer", default="nobody")


def said(name: str, call_id: str = "c1") -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def answer(text: str, call_id: str = "c1") -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": call_id, "content": text}]


def test_a_program_without_an_event_loop_runs_tools_of_both_kinds() -> None:
    tools = Toolset()
    tools.tool(lambda: threading.current_thread() is threading.main_thread(), name="plain")

    @tools.tool
    async def asynchronous() -> str:
        return customer.get()

    customer.set("Ann")
    with MessageLoop(tools) as loop:
        assert loop.run(said("plain")) == answer("false")
        assert loop.run(said("asynchronous", "c2")) == answer("Ann", "c2")


def test_it_is_the_same_event_loop_each_time() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    tools = Toolset()

    @tools.tool
    async def note() -> None:
        loops.append(asyncio.get_running_loop())

    with MessageLoop(tools) as loop:
        loop.run(said("note", "c1"))
        loop.run(said("note", "c2"))
    assert loops[0] is loops[1]
    assert loops[0].is_closed()


def test_one_that_never_ran_anything_can_be_closed() -> None:
    MessageLoop(Toolset()).close()


def test_after_the_end_nothing_is_run() -> None:
    loop = MessageLoop(Toolset())
    loop.close()
    with pytest.raises(SessionClosed, match="it has been closed"):
        loop.run(said("note"))


@pytest.mark.anyio
async def test_inside_of_an_event_loop_it_names_what_to_use_instead() -> None:
    loop = MessageLoop(Toolset())
    with pytest.raises(RuntimeError, match="use `run_async` instead"):
        loop.run(said("note"))
    with pytest.raises(RuntimeError, match="use `aclose` instead"):
        loop.close()
    with pytest.raises(RuntimeError, match="use `async with` instead"), loop:
        pass
    await loop.aclose()


PROGRAM = """
from bridge import Toolset
from bridge.message_loop import MessageLoop

tools = Toolset()

@tools.tool
def look() -> str:
    return "found"

@tools.tool
async def wait() -> None:
    print("waiting", flush=True)
    await __import__("asyncio").Event().wait()

names = ("look", "wait", "look")
calls = [
    {"id": f"{name}{number}", "type": "function", "function": {"name": name, "arguments": ""}}
    for number, name in enumerate(names)
]
with MessageLoop(tools, parallel=False) as loop:
    try:
        loop.run({"role": "assistant", "tool_calls": calls})
    except KeyboardInterrupt:
        for answer in loop.pending():
            print(answer["tool_call_id"], answer["content"])
"""


@pytest.mark.slow
def test_after_ctrl_c_every_call_still_has_an_answer() -> None:
    """One after the other, so that it is certain which of them has ended, runs, and has not begun."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    lost = "ERROR: the call was interrupted before it ended; whether it took effect is not known"
    not_begun = "ERROR: the call was not run, because its turn was interrupted"
    assert (out, err) == (f"look0 found\nwait1 {lost}\nlook2 {not_begun}\n", "")
