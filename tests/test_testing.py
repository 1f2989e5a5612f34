"""Sessions whose provider is a script, on a virtual clock: real tools, real threads, real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import uvloop

from bridge import CallContext, ConfigError, Deliver, Delivery, SessionClosed, ToolError, Toolset, TransportError
from bridge.runner.runner import Outcome
from bridge.testing import Call, Said, check_examples, run_tool, scripted_session
from bridge.testing.provider import Provider
from bridge.tools.policy import Example

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent
QUICK = 5.0
"""Real seconds that none of the long virtual times may take, however loaded the machine is."""


@dataclass
class Restaurant:
    """Tools, and what they have done."""

    tools: Toolset = field(default_factory=Toolset)
    booked: list[str] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """Opens for what waits outside the event loop."""

    def __post_init__(self) -> None:
        self.tools.tool(self.book)
        self.tools.tool(self.cook, timeout=20.0, filler="The kitchen is slow.", filler_after=2.0)
        self.tools.tool(self.stroll, timeout=5.0)
        self.tools.tool(self.hang_up, effect="terminal")
        self.tools.tool(self.whoami, deliver=Deliver.NOW)
        self.tools.tool(self.recall, hold=True)

    async def book(self, guest: str, seconds: float = 1.0) -> str:
        await asyncio.sleep(seconds)
        self.booked.append(guest)
        return f"booked for {guest}"

    async def cook(self, call: CallContext, seconds: float) -> str:
        call.progress("the water boils")
        await anyio.sleep(seconds)
        call.say("It is nearly done.")
        return "done"

    def stroll(self, call: CallContext) -> str:
        call.progress("on the way")
        if not self.gate.wait(30):
            raise ToolError("nobody opened the gate")
        return "home"

    async def hang_up(self, call: CallContext) -> str:
        self.booked.append("goodbye")
        call.end_session("the caller said goodbye")
        return "ended"

    async def whoami(self, call: CallContext) -> Any:
        return call.metadata["caller"]

    async def recall(self) -> list[str]:
        await asyncio.sleep(8)
        return self.booked


@pytest.fixture
def restaurant() -> Iterator[Restaurant]:
    there = Restaurant()
    yield there
    there.gate.set()


@contextmanager
def quickly() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < QUICK


# --------------------------------------------------------------------------------------------------------------- turns


async def test_a_whole_turn_returns_what_the_provider_was_told(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        result = await s.ask("book", {"guest": "Ada"})
        assert (result.output, result.is_error, result.at) == ("booked for Ada", False, 1.0)
        assert s.results == [result]
        assert s.now == 1.0


async def test_a_barge_in_discards_the_result_and_the_effect_happens_once(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.agent_says("One moment.")
        call = await s.call("book", {"guest": "Ada"})
        await s.barge_in("Wait, no!")
        await s.settled()
        assert restaurant.booked == ["Ada"]
        assert s.results == []
        assert (call.outcome, call.result, call.discarded) == ("ok", None, "interrupted")
        assert [(each.name, each.reason, each.at) for each in s.discards] == [("book", "interrupted", 0.0)]
        assert (await s.ask("book", {"guest": "Bob"})).output == "booked for Bob"
    assert restaurant.booked == ["Ada", "Bob"]


async def test_a_barge_in_after_the_reply_has_ended_cannot_be(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.agent_says("Hello.")
        await s.reply_done()
        with pytest.raises(RuntimeError, match="no reply to cut into"):
            await s.barge_in()
        with pytest.raises(RuntimeError, match="no reply to end"):
            await s.reply_done()


async def test_two_calls_of_a_reply_are_answered_together_in_their_order(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.call("book", {"guest": "slow", "seconds": 1.2})
        await s.call("book", {"guest": "fast", "seconds": 1.0})
        await s.advance(0.9)
        await s.reply_done()
        await s.settled()
        assert restaurant.booked == ["fast", "slow"]
        assert [(each.call_id, each.at) for each in s.results] == [("call_1", 1.2), ("call_2", 1.2)]


async def test_a_result_is_held_until_the_reply_is_done(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call("book", {"guest": "Ada"})
        await s.advance(2)
        assert (call.outcome, call.result) == ("ok", None)
        await s.reply_done()
        assert call.result is not None
        assert call.result.at == 2.0


async def test_a_result_is_held_while_the_user_speaks_and_is_owed_a_reply(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call("book", {"guest": "Ada"})
        await s.reply_done()
        await s.user_speaks("And one thing more", seconds=2)
        assert (call.outcome, call.result) == ("ok", None)
        await s.agent_says("Yes?")
        await s.reply_done()
        assert call.result is not None
        assert call.result.at == 2.0


async def test_an_agent_that_falls_silent_in_a_reply_counts_as_stuck(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.call("book", {"guest": "Ada"})
        await s.advance(10)
        assert [each.at for each in s.results] == [3.0]


async def test_delivery_may_be_another_than_the_dialects(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools, delivery=Delivery(hold=False)) as s:
        await s.call("book", {"guest": "Ada"})
        await s.advance(2)
        assert [each.at for each in s.results] == [1.0]


async def test_a_result_that_does_not_wait_gets_its_reply_after_the_open_one(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools, metadata={"caller": "Ada"}) as s:
        await s.call("whoami")
        assert [each.output for each in s.results] == ["Ada"]
        await s.reply_done()
        assert (await s.ask("book", {"guest": "Bob"})).at == 1.0


async def test_a_call_on_hold_is_made_outside_any_reply(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call("recall")
        with pytest.raises(RuntimeError, match="no reply"):
            await s.reply_done()
        await s.settled()
        assert call.result is not None
        assert (call.result.output, call.result.at) == ([], 8.0)
        assert (await s.ask("recall")).at == 16.0


@pytest.mark.parametrize(
    ("name", "arguments", "outcome"),
    [("book", "{broken", "invalid"), ("book", {"guest": []}, "invalid"), ("bok", {}, "unknown")],
)
async def test_a_call_that_cannot_be_is_answered_with_an_error(
    restaurant: Restaurant, name: str, arguments: Any, outcome: str
) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call(name, arguments)
        await s.reply_done()
        assert call.outcome == outcome
        assert call.result is not None
        assert call.result.is_error
        assert "error" in call.result.output


# ------------------------------------------------------------------------------------------------------ terminal tools


async def test_a_terminal_tool_runs_only_after_its_reply_has_been_heard(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.agent_says("Goodbye, and thank you.")  # 4 words of 0.4 s
        call = await s.call("hang_up")
        await s.reply_done()
        await s.advance(1.5)
        assert not call.started
        await s.advance(0.2)
        assert restaurant.booked == ["goodbye"]
        assert call.result is not None
        assert s.ended


async def test_a_terminal_tool_is_not_run_if_the_user_speaks_before_it_was_heard(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.agent_says("Goodbye.", seconds=2)
        call = await s.call("hang_up")
        await s.reply_done()
        await s.user_speaks("No, wait!")
        await s.agent_says("Yes?")
        await s.reply_done()
        await s.settled()
        assert (restaurant.booked, call.started, call.outcome) == ([], False, "")
        assert call.result is not None
        assert call.result.is_error
        assert not s.ended


# ---------------------------------------------------------------------------------------------------------- said, told


async def test_fillers_progress_and_what_a_tool_wants_said_are_seen_with_their_times(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        await s.ask("cook", {"seconds": 6})
        await s.advance(1)
        assert s.said == [Said("The kitchen is slow.", 2.0), Said("It is nearly done.", 6.0)]
        assert [(each.text, each.name, each.at) for each in s.progress] == [("the water boils", "cook", 0.0)]


async def test_what_the_host_does_with_the_session_reaches_the_provider(restaurant: Restaurant) -> None:
    async with scripted_session({}) as s:
        s.session.say("Tell the time.")
        await s.session.send_audio(bytes(960))
        await s.session.update(tools=restaurant.tools)
        assert s.said == [Said("Tell the time.", 0.0)]
        assert (await s.ask("book", {"guest": "Ada"})).output == "booked for Ada"


# ---------------------------------------------------------------------------------------------------------- the ending


async def test_hanging_up_discards_what_is_owed_and_nothing_follows(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call("book", {"guest": "Ada"})
        await s.hang_up()
        assert (s.ended, call.discarded) == (True, "ended")
        for step in (s.hang_up, s.user_speaks, s.barge_in, s.reply_done):
            with pytest.raises(SessionClosed):
                await step()
        for name in ("book", "recall"):
            with pytest.raises(SessionClosed):
                await s.call(name)
        with pytest.raises(SessionClosed):
            await s.agent_says("Hello?")


async def test_a_turn_that_the_session_does_not_live_to_see_ends_with_an_error(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        asking = asyncio.create_task(s.ask("cook", {"seconds": 15}))
        await s.advance(1)
        await s.hang_up()
        with pytest.raises(SessionClosed, match="before cook had been answered"):
            await asking


async def test_leaving_waits_for_what_is_owed(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        call = await s.call("book", {"guest": "Ada"})
        await s.reply_done()
    assert call.result is not None


async def test_what_the_test_raises_is_what_comes_out(restaurant: Restaurant) -> None:
    calls: list[Call] = []

    async def script() -> None:
        async with scripted_session(restaurant.tools) as s:
            calls.append(await s.call("cook", {"seconds": 15}))
            raise LookupError

    before = asyncio.all_tasks()
    with pytest.raises(LookupError):
        await script()
    assert [call.discarded for call in calls] == ["ended"]
    assert asyncio.all_tasks() == before


async def test_nothing_can_be_sent_to_a_provider_that_has_gone() -> None:
    provider = Provider(lambda: 0.0, lambda result: None)
    provider.hang_up()
    with pytest.raises(TransportError):
        await provider.send('{"type":"session.end"}')


# --------------------------------------------------------------------------------------------------------------- clock


async def test_a_tool_beyond_its_time_is_answered_without_anybody_waiting(restaurant: Restaurant) -> None:
    with quickly():
        async with scripted_session(restaurant.tools) as s:
            result = await s.ask("cook", {"seconds": 60})
            assert (result.is_error, result.at) == (True, 20.0)
            await s.advance(3600)
            assert s.now == 3620.0


@pytest.fixture
def outside(restaurant: Restaurant) -> Iterator[Callable[[], Awaitable[str]]]:
    """A tool that waits for the other end of a socket, which answers when the gate is open."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            other, _ = server.accept()
            with other:
                restaurant.gate.wait(30)
                other.sendall(b"home")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()

        async def over_a_socket() -> str:
            reader, writer = await asyncio.open_connection(*server.getsockname())
            text = await reader.read()
            writer.close()
            await writer.wait_closed()
            return text.decode()

        yield over_a_socket
        restaurant.gate.set()
        with socket.socket() as last:
            last.connect_ex(server.getsockname())
        thread.join(10)


@pytest.mark.parametrize("where", ["stroll", "by_asyncio", "by_anyio", "over_a_socket"])
async def test_time_does_not_jump_while_somebody_outside_the_loop_works(
    restaurant: Restaurant, outside: Callable[[], Awaitable[str]], where: str
) -> None:
    tools, gate = restaurant.tools, restaurant.gate

    @tools.tool(timeout=5)
    async def by_asyncio() -> str:
        return "home" if await asyncio.to_thread(gate.wait, 30) else ""

    @tools.tool(timeout=5)
    async def by_anyio() -> str:
        return "home" if await anyio.to_thread.run_sync(gate.wait, 30) else ""

    tools.tool(outside, timeout=5)
    async with scripted_session(tools) as s:
        call = await s.call(where)
        assert call.outcome == ""
        assert s.now == 0.0
        await s.reply_done()
        gate.set()
        await s.settled()
        assert call.result is not None
        assert call.result.output == "home"
        assert s.now < 4.0


async def test_a_plain_function_ends_within_the_step_that_called_it(restaurant: Restaurant) -> None:
    restaurant.gate.set()
    async with scripted_session(restaurant.tools) as s:
        assert (await s.call("stroll")).outcome == "ok"
        assert s.now == 0.0
        assert [each.text for each in s.progress] == ["on the way"]


async def test_a_plain_function_that_does_not_end_is_answered_in_its_own_time(restaurant: Restaurant) -> None:
    restaurant.tools.tool(restaurant.stroll, name="short", timeout=0.3)
    async with scripted_session(restaurant.tools) as s:
        result = await s.ask("short")
        assert result.is_error
        assert 0.3 <= result.at < QUICK
        with quickly():
            await s.advance(1000)  # nobody waits for the thread any more


async def test_sessions_at_the_same_time_share_the_clock(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as one, scripted_session(restaurant.tools) as other:
        results = await asyncio.gather(
            one.ask("book", {"guest": "Ada", "seconds": 2}), other.ask("book", {"guest": "Bob", "seconds": 3})
        )
        assert [result.at for result in results] == [2.0, 3.0]
        assert (one.now, other.now) == (3.0, 3.0)


async def test_time_never_goes_back_and_is_real_again_afterwards(restaurant: Restaurant) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(2):
        async with scripted_session(restaurant.tools) as s:
            await s.advance(100)
            inside = loop.time()
        assert loop.time() >= inside
    real, counted = time.monotonic(), loop.time()
    await asyncio.sleep(0.05)
    assert time.monotonic() - real >= 0.049
    assert loop.time() - counted < QUICK


def test_a_session_in_which_no_time_passes_leaves_the_loop_as_it_was(restaurant: Restaurant) -> None:
    async def script() -> dict[str, Any]:
        async with scripted_session(restaurant.tools):
            await asyncio.to_thread(time.sleep, 0.01)
        return vars(asyncio.get_running_loop())

    assert not {"time", "run_in_executor"} & asyncio.run(script()).keys()


async def test_a_step_that_is_cancelled_does_not_stand_in_the_way_of_the_next(restaurant: Restaurant) -> None:
    async with scripted_session(restaurant.tools) as s:
        step = asyncio.create_task(s.agent_says("Hello."))
        await asyncio.sleep(0)
        step.cancel()
        await s.reply_done()
        assert step.cancelled()


def test_a_loop_that_is_not_asyncios_own_is_refused(restaurant: Restaurant) -> None:
    async def script() -> None:
        async with scripted_session(restaurant.tools):
            pass

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(ConfigError, match="no clock"):
        runner.run(script())


# ------------------------------------------------------------------------------------------------- one tool, by itself


async def test_a_tool_by_itself_is_run_and_what_it_asks_is_heard(restaurant: Restaurant) -> None:
    heard: list[tuple[str, str]] = []
    finished = await run_tool(restaurant.tools, "hang_up", asked=lambda *told: heard.append(told))
    assert (finished.outcome, finished.result.output) == (Outcome.OK, '"ended"')
    assert heard == [("end", "the caller said goodbye")]
    await run_tool(restaurant.tools, "cook", {"seconds": 0}, asked=lambda *told: heard.append(told))
    assert heard[1:] == [("progress", "the water boils"), ("say", "It is nearly done.")]
    finished = await run_tool(restaurant.tools, "whoami", metadata={"caller": "Ada"})
    assert finished.result.output == '"Ada"'


async def test_whoever_waits_for_a_tool_by_itself_may_go(
    restaurant: Restaurant, caplog: pytest.LogCaptureFixture
) -> None:
    before = asyncio.all_tasks()
    with anyio.move_on_after(0.01) as patience:
        await run_tool(restaurant.tools, "cook", {"seconds": 15})
    assert patience.cancelled_caught
    assert asyncio.all_tasks() == before
    assert caplog.messages == []


async def test_examples_that_come_out_are_counted() -> None:
    tools = Toolset()

    @tools.tool(examples=(Example({"a": 1, "b": 2}, 3), Example({"a": 1, "b": 1})))
    async def add(a: int, b: int) -> int:
        return a + b

    assert await check_examples(tools) == 2


async def test_all_examples_that_do_not_come_out_are_named() -> None:
    tools = Toolset()

    @tools.tool(examples=(Example({"a": 1}, 3), Example({"a": "x"}), Example({"a": 2}, 2), Example({"a": -1})))
    async def same(a: int) -> int:
        if a < 0:
            raise ToolError("too small")
        return a

    with pytest.raises(AssertionError) as failed:
        await check_examples(tools)
    lines = str(failed.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == 'same({"a":1}): expected 3, got 1'
    assert lines[1].startswith('same({"a":"x"}): invalid: ')
    assert lines[2] == 'same({"a":-1}): error: {"error":"too small"}'


# -------------------------------------------------------------------------------------------------------------- plugin


@pytest.mark.slow
def test_the_plugin_brings_a_fixture_and_imports_nothing_before_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import asyncio, sys\nfrom bridge import Toolset\n\ntools = Toolset()\n\n"
        "@tools.tool\nasync def double(n: int) -> int:\n    await asyncio.sleep(60)\n    return 2 * n\n\n"
        "def test_light():\n    assert 'bridge.testing' not in sys.modules\n\n"
        "def test_scripted(scripted_session):\n"
        "    async def script():\n"
        "        async with scripted_session(tools) as s:\n"
        "            assert (await s.ask('double', {'n': 2})).is_error\n"
        "            assert s.now == 10\n"
        "    asyncio.run(script(), debug=True)\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "bridge.pytest_plugin",
        "-W",
        "error",
    ]
    done = subprocess.run(
        [*command, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
