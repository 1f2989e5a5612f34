"""Every example runs, and so does what the README shows, against an offline provider."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.simulator import (
    AwaitResults,
    BargeIn,
    Call,
    Fate,
    HangUp,
    Ledger,
    Preamble,
    Reply,
    Rules,
    Say,
    Scenario,
    Simulator,
    Step,
    UserSays,
)

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent
KEY = "a-key-for-tests"
PACE = 0.1


def weather(*steps: Step, rules: Rules | None = None) -> Scenario:
    """A conversation in which the agent looks up the weather."""
    ask = Reply("Let me look.", (Call("get_weather", {"location": "Oslo"}),))
    return Scenario("", "", steps or (UserSays("Oslo?"), ask, AwaitResults(), HangUp()), rules=rules or Rules())


async def run(example: str, *arguments: str) -> str:
    """Run an example as its reader would; what it says."""
    environment = {**os.environ, "ASSEMBLYAI_API_KEY": KEY, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / example),
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(20):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    return said.decode()


def is_told(ledger: Ledger) -> bool:
    """Was the one call answered once and in time, with the weather?"""
    (call,) = ledger.calls
    (answer,) = call.answers
    return call.fate is Fate.TOLD and answer.timely and not call.is_error and '"temperature":21' in call.result


def test_no_example_is_left_out() -> None:
    # Tools and endpoints for the commands and the sidecar: run by the tests of those.
    elsewhere = {"my_tools.py", "twilio_media_streams.py", "verify_signature.py", "mcp_server.py"}
    elsewhere |= {"test_my_tools.py", "message_loop_anthropic.py", "message_loop_openai.py"}
    elsewhere |= {"external_worker.py"}
    elsewhere |= {"openai_sessions.py", "hcompany.py", "herm.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {"embedded.py", "own_socket.py"} | elsewhere


@pytest.mark.slow
def test_the_tests_of_the_users_own_tools_pass() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "examples" / "test_my_tools.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


async def test_the_embedded_example_runs_offline() -> None:
    said = await run("embedded.py")
    assert "agent: get_weather says: location Oslo, temperature 21, units c." in said


@pytest.mark.slow
async def test_the_embedded_example_talks_to_another_address() -> None:
    async with Simulator(weather(), pace=PACE, api_key=KEY) as sim:
        await run("embedded.py", sim.url)
        assert is_told(sim.ledger)
        assert sim.ledger.audio_bytes > 0


@pytest.mark.slow
async def test_a_host_with_its_own_socket_answers_in_time() -> None:
    async with Simulator(weather(), pace=PACE, api_key=KEY) as sim:
        await run("own_socket.py", sim.url)
        assert is_told(sim.ledger)
        assert sim.ledger.violations == []


async def test_a_host_with_its_own_socket_sends_nothing_for_an_interrupted_reply() -> None:
    ask = Reply("I am looking at all of the weather there is.", (Call("get_weather", {"location": "Oslo"}),), 4.0)
    steps = (UserSays("Oslo?"), ask, BargeIn("Never mind.", 0.5, 1.2), Say("All right."), HangUp())
    async with Simulator(weather(*steps, rules=Rules(interruption_lag=0.5)), pace=PACE, api_key=KEY) as sim:
        await run("own_socket.py", sim.url)
        (call,) = sim.ledger.calls
        assert (call.fate, call.answers) == (Fate.ABANDONED, [])


@pytest.mark.slow
async def test_a_host_with_its_own_socket_survives_a_reply_that_never_ends() -> None:
    """Its timers are what gets the result out."""
    rules = Rules(omitted=frozenset({"reply.done"}), preamble=Preamble.ABSENT, word=0.0)
    async with Simulator(weather(rules=rules), pace=0.3, api_key=KEY) as sim:
        await run("own_socket.py", sim.url)
        assert sim.ledger.calls[0].fate is Fate.TOLD


# ------------------------------------------------------------------------------------------------------------- README


def blocks(text: str) -> list[str]:
    """The Python blocks of a text that are marked to be run, by a line `<!-- run -->` before them."""
    marked = text.split("<!-- run -->\n```python\n")[1:]
    return [block.split("\n```", 1)[0] for block in marked]


class Microphone:
    """Records one piece of silence."""

    def start(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self.recording = asyncio.ensure_future(send(bytes(960)))


class Speaker:
    """Remembers what it played."""

    def __init__(self) -> None:
        self.played = b""

    def play(self, data: bytes) -> None:
        self.played += data

    def flush(self) -> None:
        self.played = b""


async def perform(block: str, url: str) -> None:
    """Run a block, and the `talk` that it defines, if any, against the provider at this address."""
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec", dont_inherit=True), names)
    if talk := names.get("talk"):
        microphone, speaker = Microphone(), Speaker()
        await talk(microphone, speaker, url=url)
        await microphone.recording
        assert speaker.played


def test_only_marked_blocks_are_run() -> None:
    text = "<!-- run -->\n```python\na = 1\nb = 2\n```\n```python\nc = 3\n```\n<!-- run -->\n```python\nd = 4\n```\n"
    assert blocks(text) == ["a = 1\nb = 2", "d = 4"]
    assert blocks("```python\na = 1\n```") == []


async def test_what_the_readme_shows_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSEMBLYAI_API_KEY", KEY)
    found = blocks((ROOT / "README.md").read_text())
    assert found
    told: list[bool] = []
    for block in found:
        async with asyncio.timeout(20), Simulator(weather(), pace=PACE, api_key=KEY) as sim:
            await perform(block, sim.url)
            told.extend(map(is_told, sim.ledgers))
    assert told
    assert all(told)
