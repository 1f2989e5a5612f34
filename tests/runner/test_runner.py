from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import pytest

from bridge.core.events import CallKey, ToolCall, ToolResult, ToolSpec
from bridge.errors import SessionClosed, ToolError, ToolTimeout, ToolUnavailable
from bridge.runner.runner import Calls, Finished, Outcome, Runner
from bridge.tools import CallContext, Tool, Toolset
from bridge.tools.policy import Dedupe

pytestmark = pytest.mark.anyio

LIMIT = 20.0
"""Seconds after which a test that waits has failed."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A session's calls, and the reports they led to."""

    def __init__(self, runner: Runner | None = None, **limits: int) -> None:
        self.runner = runner or Runner()
        self.calls: Calls = self.runner.session(**limits)
        self.tools = Toolset()
        self.finished: list[Finished] = []
        self.interims: list[ToolResult] = []
        self._changed = asyncio.Event()
        self._number = 0

    def start(self, name: str, arguments: str = "{}", key: CallKey | None = None) -> CallKey:
        self._number += 1
        key = key or CallKey(0, f"c{self._number}")
        context = CallContext(session_id="s", key=key, tool=name)
        call = ToolCall(key.call_id, name, arguments, echo=(("e", "1"),))
        self.calls.start(key, call, self.tools.get(name), self.tools, context, self._report, interim=self._interim)
        return key

    def _interim(self, key: CallKey, result: ToolResult) -> None:
        assert (result.call_id, result.interim) == (key.call_id, True)
        self.interims.append(result)
        self._changed.set()

    def _report(self, finished: Finished) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.finished.append(finished)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):  # not every condition changes with a report
                    await asyncio.wait_for(self._changed.wait(), 0.01)

    async def result(self, name: str, arguments: str = "{}") -> Finished:
        key = self.start(name, arguments)
        await self.until(lambda: any(each.key == key for each in self.finished))
        return next(each for each in self.finished if each.key == key)

    def outcomes(self) -> list[Outcome]:
        return [each.outcome for each in self.finished]


def error_of(finished: Finished) -> str:
    assert finished.result.is_error
    text: str = json.loads(finished.result.output)["error"]
    return text


@pytest.fixture
async def desk(anyio_backend: str) -> AsyncIterator[Desk]:
    desk = Desk()
    yield desk
    await desk.calls.aclose(1)
    assert desk.calls.running == 0
    desk.runner.close()


# ---------------------------------------------------------------------------------------------------------- results


async def test_a_value_comes_back_as_json_with_everything_the_dialect_needs(desk: Desk) -> None:
    @desk.tools.tool
    async def add(a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    finished = await desk.result("add", '{"a":"2"}')
    assert (finished.outcome, finished.name, finished.detail) == (Outcome.OK, "add", "")
    result = finished.result
    assert (result.call_id, result.output, result.is_error) == ("c1", '{"sum":3}', False)
    assert (result.name, result.echo) == ("add", (("e", "1"),))
    assert desk.calls.running == 0


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), ("", '""'), (0, "0"), (False, "false"), ([], "[]"), ({}, "{}")]
)
async def test_a_falsy_value_is_a_result_like_any_other(desk: Desk, value: object, text: str) -> None:
    @desk.tools.tool
    async def give() -> object:
        return value

    finished = await desk.result("give")
    assert (finished.outcome, finished.result.output) == (Outcome.OK, text)


async def test_nothing_is_reported_before_start_has_returned(desk: Desk) -> None:
    desk.start("unknown")
    assert desk.finished == []
    assert desk.calls.running == 1
    await desk.until(lambda: desk.calls.running == 0)


async def test_the_same_key_started_twice_runs_once(desk: Desk) -> None:
    runs = []

    @desk.tools.tool
    async def count() -> None:
        runs.append(1)

    desk.start("count", key=CallKey(0, "c"))
    desk.start("count", key=CallKey(0, "c"))
    await desk.until(lambda: desk.calls.running == 0)
    assert (len(runs), desk.outcomes()) == (1, [Outcome.OK])


async def test_one_of_two_calls_fails_and_the_other_does_not_notice(desk: Desk) -> None:
    gate = asyncio.Event()

    @desk.tools.tool
    async def fails() -> None:
        gate.set()
        raise RuntimeError("no")

    @desk.tools.tool
    async def works() -> str:
        await gate.wait()
        return "yes"

    desk.start("fails")
    desk.start("works")
    await desk.until(lambda: len(desk.finished) == 2)
    assert desk.outcomes() == [Outcome.ERROR, Outcome.OK]


async def test_a_call_context_reaches_async_and_plain_tools(desk: Desk) -> None:
    @desk.tools.tool
    async def waiting(call: CallContext) -> str:
        return call.key.call_id

    @desk.tools.tool
    def plain(call: CallContext) -> str:
        return call.key.call_id

    assert (await desk.result("waiting")).result.output == '"c1"'
    assert (await desk.result("plain")).result.output == '"c2"'


# ----------------------------------------------------------------------------------------------------- what goes wrong


async def test_an_unknown_tool_is_answered_with_the_names_there_are(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(25):
        desk.tools.tool(name=f"tool_{number}")(lambda: None)
    finished = await desk.result("made_up")
    assert (finished.outcome, finished.name) == (Outcome.UNKNOWN, "(unknown)")
    assert finished.result.name == "made_up"
    assert error_of(finished).startswith("there is no such tool; available: tool_0, tool_1,")
    assert error_of(finished).endswith("tool_19 and 5 more")
    assert "made_up" not in caplog.text


async def test_an_unknown_tool_among_none_says_so(desk: Desk) -> None:
    assert error_of(await desk.result("made_up")) == "there is no such tool; available: none"


@pytest.mark.parametrize("arguments", ["{", "[]", "3", "", '{"a":"hunter2"}'])
async def test_arguments_that_do_not_fit_are_answered_and_the_tool_is_not_run(
    desk: Desk, arguments: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []

    @desk.tools.tool
    async def run(a: int) -> None:
        runs.append(a)

    finished = await desk.result("run", arguments)
    assert finished.outcome is Outcome.INVALID
    assert "Expected: a (integer)" in error_of(finished)
    assert runs == []
    assert "hunter2" not in error_of(finished) + finished.detail + caplog.text


def stop_iteration() -> None:
    raise StopIteration("hunter2")


def fail() -> None:
    raise ValueError("hunter2")


def leave() -> None:
    sys.exit("hunter2")


def interrupt() -> None:
    raise KeyboardInterrupt


def close() -> None:
    raise GeneratorExit


@pytest.mark.parametrize("failing", [fail, leave, interrupt, close, stop_iteration])
async def test_whatever_a_tool_raises_is_one_error_result_that_hides_the_text(
    desk: Desk, failing: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    @desk.tools.tool
    async def waiting() -> None:
        failing()

    desk.tools.tool(name="plain")(failing)
    for name in ("waiting", "plain"):
        finished = await desk.result(name)
        assert (finished.outcome, error_of(finished)) == (Outcome.ERROR, f"the tool {name} failed")
        assert "test_runner.py" in finished.detail
        assert "hunter2" not in finished.detail + caplog.text + repr(finished)
    assert len(desk.finished) == 2


async def test_the_log_says_which_tool_failed_how_and_where_in_one_line(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @desk.tools.tool
    async def look_up(number: str) -> None:
        try:
            fail()
        except ValueError as error:
            raise RuntimeError(number) from error

    with caplog.at_level(logging.WARNING, "bridge.tools"):
        await desk.result("look_up", '{"number":"hunter2"}')
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("tool look_up: call 'c1' ended as error after 0.0")
    assert "RuntimeError at test_runner.py:" in line
    assert "from ValueError at test_runner.py:" in line
    assert "(fail) < test_runner.py:" in line
    assert "hunter2" not in line


async def test_the_text_of_a_tool_error_is_for_the_model_and_not_for_the_log(desk: Desk) -> None:
    @desk.tools.tool
    async def find() -> None:
        raise ToolError("order 441144114411 does not exist")

    finished = await desk.result("find")
    assert (finished.outcome, error_of(finished)) == (Outcome.ERROR, "order 441144114411 does not exist")
    assert "441144114411" not in finished.detail


async def test_a_tool_error_without_text_or_with_too_much_of_it_still_makes_a_sentence(desk: Desk) -> None:
    @desk.tools.tool
    async def find(words: int) -> None:
        raise ToolError("\ud800" * words)

    assert error_of(await desk.result("find", '{"words":0}')) == "the tool find failed"
    assert error_of(await desk.result("find", '{"words":100000}')) == "\ufffd" * 1000


async def test_a_tools_own_timeout_error_counts_as_a_timeout(desk: Desk) -> None:
    @desk.tools.tool
    async def remote() -> None:
        raise ToolTimeout("the bank did not answer")

    finished = await desk.result("remote")
    assert (finished.outcome, error_of(finished)) == (Outcome.TIMEOUT, "the bank did not answer")


async def test_a_group_of_exceptions_is_flattened(desk: Desk) -> None:
    @desk.tools.tool
    async def mixed() -> None:
        raise BaseExceptionGroup("g", [ExceptionGroup("h", [ValueError("x"), ToolError("y")]), KeyError("z")])

    @desk.tools.tool
    async def meant() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    async def refuse() -> None:
        raise ToolError("sold out")

    finished = await desk.result("mixed")
    assert error_of(finished) == "the tool mixed failed"
    assert [each.split(" ")[0] for each in finished.detail.split("; ")] == [
        "ValueError",
        "bridge.errors.ToolError",
        "KeyError",
    ]
    assert error_of(await desk.result("meant")) == "sold out"


async def test_a_tool_that_raises_a_cancellation_of_its_own_is_answered_with_an_error(desk: Desk) -> None:
    @desk.tools.tool
    async def raises() -> None:
        raise asyncio.CancelledError

    @desk.tools.tool
    def raises_in_a_thread() -> None:
        raise asyncio.CancelledError

    for name in ("raises", "raises_in_a_thread"):
        finished = await desk.result(name)
        assert (finished.outcome, error_of(finished)) == (Outcome.ERROR, "the tool was aborted")
    assert desk.runner.threads_abandoned == 0


async def test_a_tool_that_cancels_itself_is_answered_with_an_error(desk: Desk) -> None:
    @desk.tools.tool
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(LIMIT)

    assert (await desk.result("cancels")).outcome is Outcome.ERROR


async def test_a_result_without_json_form_is_an_error_that_names_the_type(desk: Desk) -> None:
    class Secret:
        def __repr__(self) -> str:
            return "hunter2"

    @desk.tools.tool
    async def give() -> Secret:
        return Secret()

    finished = await desk.result("give")
    assert finished.outcome is Outcome.UNENCODABLE
    assert "Secret" in error_of(finished)
    assert "Secret" in finished.detail
    assert "hunter2" not in error_of(finished) + finished.detail


async def test_a_result_over_the_limit_is_an_error_that_says_how_big(desk: Desk) -> None:
    @desk.tools.tool(result_limit=100)
    async def give() -> str:
        return "x" * 200

    finished = await desk.result("give")
    assert finished.outcome is Outcome.TOO_LARGE
    assert error_of(finished) == "the result has 202 bytes, and at most 100 can be sent"


async def test_a_report_that_fails_is_logged_and_the_call_is_settled(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    def report(finished: Finished) -> None:
        raise ValueError("hunter2")

    key = CallKey(0, "c")
    context = CallContext(session_id="s", key=key, tool="x")
    desk.calls.start(key, ToolCall("c", "x"), None, (), context, report)
    await desk.until(lambda: desk.calls.running == 0)
    assert "the report of its result failed: ValueError" in caplog.text
    assert "hunter2" not in caplog.text


async def test_a_tool_made_by_hand_that_returns_no_awaitable_fails_and_is_answered(desk: Desk) -> None:
    desk.tools.add(Tool(spec=ToolSpec("odd"), invoke=lambda arguments, call: 3, check=json.loads))
    assert (await desk.result("odd")).outcome is Outcome.ERROR


# ----------------------------------------------------------------------------------------------------------- timeouts


async def test_a_tool_that_takes_too_long_is_cancelled_and_answered(desk: Desk) -> None:
    cleaned = asyncio.Event()

    @desk.tools.tool(timeout=0.02)
    async def slow() -> None:
        try:
            await asyncio.sleep(LIMIT)
        finally:
            cleaned.set()

    finished = await desk.result("slow")
    assert (finished.outcome, error_of(finished)) == (Outcome.TIMEOUT, "slow did not answer within 0.02 s")
    await desk.until(lambda: desk.calls.running == 0)
    assert cleaned.is_set()
    assert len(desk.finished) == 1


async def test_a_tool_that_ignores_its_cancellation_is_answered_all_the_same(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    release = asyncio.Event()
    began = []

    async def stubborn() -> str:
        began.append(1)
        with suppress(asyncio.CancelledError):
            await release.wait()
        await release.wait()
        return "late"

    desk.tools.tool(stubborn, name="brief", timeout=0.02)
    desk.tools.tool(stubborn)
    assert (await desk.result("brief")).outcome is Outcome.TIMEOUT
    desk.start("stubborn")
    await desk.until(lambda: len(began) == 2)
    await desk.calls.aclose(0.005)
    assert "tool stubborn ignores its cancellation and is abandoned" in caplog.text
    assert desk.outcomes() == [Outcome.TIMEOUT, Outcome.CANCELLED]
    assert desk.calls.running == 2
    release.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert len(desk.finished) == 2


async def test_progress_does_not_extend_the_timeout(desk: Desk) -> None:
    @desk.tools.tool(timeout=0.05)
    async def busy(call: CallContext) -> None:
        while True:
            call.progress("still at it")
            await asyncio.sleep(0.005)

    assert (await desk.result("busy")).outcome is Outcome.TIMEOUT


async def test_a_tool_may_use_timeouts_of_its_own(desk: Desk) -> None:
    @desk.tools.tool
    async def careful() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(LIMIT)
        except TimeoutError:
            return "gave up"
        return ""

    assert (await desk.result("careful")).result.output == '"gave up"'


async def test_time_in_the_queue_does_not_count_towards_the_timeout() -> None:
    desk = Desk(max_concurrent=1)

    @desk.tools.tool(timeout=0.3)
    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "done"

    desk.start("slow")
    desk.start("slow")
    await desk.until(lambda: len(desk.finished) == 2)
    assert desk.outcomes() == [Outcome.OK, Outcome.OK]


# -------------------------------------------------------------------------------------------------------------- slots


async def test_calls_beyond_the_slots_wait_their_turn_in_order() -> None:
    desk = Desk(max_concurrent=2)
    gate = asyncio.Event()
    began: list[int] = []

    @desk.tools.tool
    async def take(number: int) -> None:
        began.append(number)
        await gate.wait()

    for number in range(5):
        desk.start("take", f'{{"number":{number}}}')
    await desk.until(lambda: len(began) == 2)
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert began == [0, 1, 2, 3, 4]
    assert desk.outcomes() == [Outcome.OK] * 5


async def test_a_full_queue_is_answered_busy_at_once() -> None:
    desk = Desk(max_concurrent=1, max_queue=1)
    gate = asyncio.Event()

    @desk.tools.tool
    async def take() -> None:
        await gate.wait()

    for _ in range(3):
        desk.start("take")
    await desk.until(lambda: len(desk.finished) == 1)
    assert (desk.finished[0].key.call_id, desk.finished[0].outcome) == ("c3", Outcome.BUSY)
    assert "try again later" in error_of(desk.finished[0])
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert desk.outcomes() == [Outcome.BUSY, Outcome.OK, Outcome.OK]


async def test_a_call_that_waits_too_long_is_answered_busy_and_never_run() -> None:
    desk = Desk(max_concurrent=1)
    gate = asyncio.Event()
    runs = []

    @desk.tools.tool(queue_timeout=0.02)
    async def take() -> None:
        runs.append(1)
        await gate.wait()

    desk.start("take")
    desk.start("take")
    await desk.until(lambda: len(desk.finished) == 1)
    assert desk.outcomes() == [Outcome.BUSY]
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert len(runs) == 1
    assert (await desk.result("take")).outcome is Outcome.OK


async def test_the_slots_of_the_process_are_shared_by_its_sessions() -> None:
    runner = Runner(max_concurrent=1)
    one, other = Desk(runner), Desk(runner)
    gate = asyncio.Event()
    for desk in (one, other):

        @desk.tools.tool(queue_timeout=0.02)
        async def take() -> None:
            await gate.wait()

    one.start("take")
    assert (await other.result("take")).outcome is Outcome.BUSY
    gate.set()
    await one.until(lambda: one.calls.running == 0)
    assert (await other.result("take")).outcome is Outcome.OK


# ------------------------------------------------------------------------------------------------------------ discard


async def test_a_call_discarded_before_its_task_began_is_never_run(desk: Desk) -> None:
    runs = []

    @desk.tools.tool
    async def hang_up() -> None:
        runs.append(1)

    desk.calls.discard(desk.start("hang_up"))
    desk.calls.discard(CallKey(9, "never heard of"))
    await desk.until(lambda: desk.calls.running == 0)
    assert (runs, desk.outcomes()) == ([], [Outcome.CANCELLED])
    assert error_of(desk.finished[0]) == "the call was cancelled"


async def test_a_call_discarded_in_the_queue_is_never_run_and_gives_up_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(max_concurrent=1)
    gate = asyncio.Event()
    runs: list[int] = []

    @desk.tools.tool
    async def take(number: int) -> None:
        runs.append(number)
        await gate.wait()

    keys = [desk.start("take", f'{{"number":{number}}}') for number in range(3)]
    await desk.until(lambda: runs == [0])
    desk.calls.discard(keys[1])
    await desk.until(lambda: desk.outcomes() == [Outcome.CANCELLED])
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert runs == [0, 2]
    assert "cancelled" not in caplog.text


async def test_a_call_discarded_in_the_moment_it_gets_its_slot_hands_it_on() -> None:
    desk = Desk(max_concurrent=1)
    gate = asyncio.Event()
    runs: list[int] = []

    @desk.tools.tool
    async def take(number: int) -> None:
        runs.append(number)
        await gate.wait()

    keys = [desk.start("take", f'{{"number":{number}}}') for number in range(3)]
    await desk.until(lambda: runs == [0])
    original = desk._report

    def discard_next(finished: Finished) -> None:
        # The slot has just been handed to the second call, whose task has not noticed yet.
        desk.calls.discard(keys[1])
        original(finished)

    desk.calls._live[keys[0]].report = discard_next
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert runs == [0, 2]
    assert desk.outcomes() == [Outcome.OK, Outcome.CANCELLED, Outcome.OK]


async def test_a_running_tool_finishes_by_default_when_its_call_is_discarded(desk: Desk) -> None:
    began, gate = asyncio.Event(), asyncio.Event()

    @desk.tools.tool
    async def order() -> str:
        began.set()
        await gate.wait()
        return "order 1"

    key = desk.start("order")
    await began.wait()
    desk.calls.discard(key)
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert [each.result.output for each in desk.finished] == ['"order 1"']


async def test_a_running_tool_is_cancelled_if_it_says_so(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    began = asyncio.Event()

    @desk.tools.tool(on_interrupt="cancel")
    async def look_up() -> None:
        began.set()
        await asyncio.sleep(LIMIT)

    key = desk.start("look_up")
    await began.wait()
    desk.calls.discard(key)
    desk.calls.discard(key)
    await desk.until(lambda: desk.calls.running == 0)
    assert desk.outcomes() == [Outcome.CANCELLED]
    assert caplog.text == ""


async def test_a_discarded_tool_that_ignores_its_cancellation_settles_as_cancelled_when_its_time_is_over(
    desk: Desk,
) -> None:
    began, release = asyncio.Event(), asyncio.Event()

    @desk.tools.tool(on_interrupt="cancel", timeout=0.05)
    async def stubborn() -> None:
        began.set()
        with suppress(asyncio.CancelledError):
            await release.wait()
        await release.wait()

    key = desk.start("stubborn")
    await began.wait()
    desk.calls.discard(key)
    await desk.until(lambda: desk.outcomes() == [Outcome.CANCELLED])
    release.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert len(desk.finished) == 1


# ------------------------------------------------------------------------------------------------------------ threads


async def test_plain_functions_run_beside_the_loop_with_the_callers_context_variables(desk: Desk) -> None:
    caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller")
    caller.set("Ada")
    gate = threading.Event()

    @desk.tools.tool
    def wait_for_it() -> tuple[bool, str]:
        gate.wait(LIMIT)
        return threading.current_thread() is threading.main_thread(), caller.get()

    desk.start("wait_for_it")
    await desk.until(lambda: desk.runner.threads_busy == 1)
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert desk.finished[0].result.output == '[false,"Ada"]'
    assert desk.runner.threads_busy == 0


async def test_threads_are_used_again(desk: Desk) -> None:
    @desk.tools.tool
    def name() -> int:
        return threading.get_ident()

    assert len({(await desk.result("name")).result.output for _ in range(5)}) == 1


async def test_an_awaitable_from_a_plain_function_is_awaited_on_the_loop(desk: Desk) -> None:
    async def inner() -> bool:
        return threading.current_thread() is threading.main_thread()

    @desk.tools.tool
    def outer() -> Awaitable[bool]:
        return inner()

    assert (await desk.result("outer")).result.output == "true"


async def test_a_hung_thread_is_counted_and_named_and_a_pool_full_of_them_is_answered_busy_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk(Runner(max_threads=2))
    gate = threading.Event()

    @desk.tools.tool(timeout=0.02)
    def hang(number: int) -> None:
        gate.wait(LIMIT)

    @desk.tools.tool(queue_timeout=60)
    def quick() -> str:
        return "ok"

    desk.start("hang", '{"number":1}')
    desk.start("hang", '{"number":2}')
    await desk.until(lambda: desk.runner.threads_abandoned == 2)
    assert desk.outcomes() == [Outcome.TIMEOUT] * 2
    assert caplog.text.count("tool hang goes on in its thread, although its call has ended, in session s") == 2
    assert desk.calls.running == 0
    assert (await desk.result("quick")).outcome is Outcome.BUSY
    gate.set()
    await desk.until(lambda: desk.runner.threads_abandoned == desk.runner.threads_busy == 0)
    assert (await desk.result("quick")).outcome is Outcome.OK


async def test_a_call_waits_for_a_thread_that_is_merely_busy() -> None:
    desk = Desk(Runner(max_threads=1))
    gate = threading.Event()

    @desk.tools.tool
    def wait_for_it() -> None:
        gate.wait(LIMIT)

    @desk.tools.tool(queue_timeout=0.02)
    def impatient() -> None: ...

    desk.start("wait_for_it")
    await desk.until(lambda: desk.runner.threads_busy == 1)
    desk.start("wait_for_it")
    assert (await desk.result("impatient")).outcome is Outcome.BUSY
    gate.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert desk.outcomes() == [Outcome.BUSY, Outcome.OK, Outcome.OK]


async def test_a_discarded_plain_function_that_may_be_cancelled_is_abandoned(desk: Desk) -> None:
    gate = threading.Event()

    @desk.tools.tool(on_interrupt="cancel")
    def hang() -> None:
        gate.wait(LIMIT)

    key = desk.start("hang")
    await desk.until(lambda: desk.runner.threads_busy == 1)
    desk.calls.discard(key)
    await desk.until(lambda: desk.outcomes() == [Outcome.CANCELLED])
    assert desk.runner.threads_abandoned == 1
    gate.set()
    await desk.until(lambda: desk.runner.threads_abandoned == 0)


@pytest.mark.slow
async def test_a_process_ends_although_a_tool_hangs() -> None:
    program = """if True:
        import asyncio, threading
        from bridge.core.events import CallKey, ToolCall
        from bridge.runner.runner import Runner
        from bridge.tools import CallContext, Toolset

        tools = Toolset()

        @tools.tool(timeout=0.01)
        def hang() -> None:
            threading.Event().wait()

        async def main():
            done = asyncio.get_running_loop().create_future()
            context = CallContext(session_id="s", key=CallKey(0, "c"), tool="hang")
            calls = Runner().session()
            calls.start(CallKey(0, "c"), ToolCall("c", "hang"), tools["hang"], tools, context, done.set_result)
            print((await done).outcome.value)

        asyncio.run(main())
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    async with asyncio.timeout(30):
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"timeout\n")


async def test_closing_lets_the_threads_end(desk: Desk) -> None:
    thread: list[threading.Thread] = []

    @desk.tools.tool
    def remember() -> None:
        thread.append(threading.current_thread())

    await desk.result("remember")
    desk.runner.close()
    await asyncio.to_thread(thread[0].join, LIMIT)
    assert not thread[0].is_alive()


def test_a_thread_that_outlives_its_loop_ends_quietly() -> None:
    gate = threading.Event()
    thread: list[threading.Thread] = []
    runner = Runner()

    async def main() -> None:
        desk = Desk(runner)

        @desk.tools.tool(timeout=0.5)
        def hang() -> None:
            thread.append(threading.current_thread())
            gate.wait(LIMIT)

        assert (await desk.result("hang")).outcome is Outcome.TIMEOUT

    asyncio.run(main())
    runner.close()
    gate.set()
    thread[0].join(LIMIT)
    assert not thread[0].is_alive()


# --------------------------------------------------------------------------------------------------------- dead air


async def test_an_async_tool_that_blocks_the_loop_is_named(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    desk = Desk(Runner(clock=clock))

    @desk.tools.tool
    async def blocks() -> str:
        await asyncio.sleep(0)
        clock.now += 0.25
        await asyncio.sleep(0)
        return "ok"

    with caplog.at_level(logging.WARNING, "bridge.tools"):
        finished = await desk.result("blocks")
    assert (finished.outcome, finished.seconds) == (Outcome.OK, 0.25)
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(
        "tool blocks blocked the event loop for 250 ms, in session s; a function should be a plain one"
    )
    assert "an endpoint or MCP server should answer with less" in line


async def test_an_awaitable_of_a_class_is_awaited_like_a_coroutine(desk: Desk) -> None:
    class Later:
        def __await__(self) -> Generator[Any, None, str]:
            yield from asyncio.sleep(0).__await__()
            return "later"

    desk.tools.add(Tool(spec=ToolSpec("later"), invoke=lambda arguments, call: Later(), check=json.loads))
    assert (await desk.result("later")).result.output == '"later"'


# -------------------------------------------------------------------------------------------------------------- loops


async def test_the_same_call_over_and_over_is_stopped_until_another_comes() -> None:
    desk = Desk(Runner(clock=Clock()), repeat_limit=2)
    runs: list[int] = []

    @desk.tools.tool
    async def hang_up(a: int, b: int = 0) -> None:
        runs.append(a)

    same = ['{"a":1,"b":2}', '{"b":2, "a":1}', '{"a":1,"b":2}', '{"b":2,"a":1}']
    outcomes = [(await desk.result("hang_up", arguments)).outcome for arguments in same]
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.LOOP, Outcome.LOOP]
    assert "do not repeat it" in error_of(desk.finished[-1])
    assert (await desk.result("hang_up", '{"a":2}')).outcome is Outcome.OK
    assert (await desk.result("hang_up", same[0])).outcome is Outcome.OK
    assert runs == [1, 1, 2, 1]


@pytest.mark.parametrize(("name", "arguments"), [("missing", "{}"), ("hang_up", "{")])
async def test_repeated_calls_that_cannot_be_run_are_stopped_too(name: str, arguments: str) -> None:
    desk = Desk(repeat_limit=1)

    @desk.tools.tool
    async def hang_up() -> None: ...

    first, second = await desk.result(name, arguments), await desk.result(name, arguments)
    assert first.outcome in (Outcome.UNKNOWN, Outcome.INVALID)
    assert second.outcome is Outcome.LOOP


async def test_broken_arguments_that_differ_are_no_loop() -> None:
    desk = Desk(repeat_limit=1)
    for arguments in ("{", "[", "{"):
        assert (await desk.result("missing", arguments)).outcome is Outcome.UNKNOWN


async def test_a_repeated_call_is_welcome_after_a_quiet_minute() -> None:
    clock = Clock()
    desk = Desk(Runner(clock=clock), repeat_limit=1)

    @desk.tools.tool
    async def queue_position() -> int:
        return 3

    for _ in range(3):
        assert (await desk.result("queue_position")).outcome is Outcome.OK
        clock.now += 60


async def test_too_many_calls_in_a_minute_are_not_run_until_it_is_over() -> None:
    clock = Clock()
    desk = Desk(Runner(clock=clock), calls_per_minute=2)

    @desk.tools.tool
    async def look_up(number: int) -> int:
        return number

    outcomes = []
    for number in range(3):
        outcomes.append((await desk.result("look_up", f'{{"number":{number}}}')).outcome)
        clock.now += 1
    assert outcomes == [Outcome.OK, Outcome.OK, Outcome.LOOP]
    assert "too many calls" in error_of(desk.finished[-1])
    clock.now += 59
    assert (await desk.result("look_up", '{"number":4}')).outcome is Outcome.OK


# ---------------------------------------------------------------------------------------------------------- the end


async def test_closing_cancels_what_runs_waits_or_has_not_begun() -> None:
    desk = Desk(max_concurrent=1)
    began = asyncio.Event()
    runs = []

    @desk.tools.tool
    async def take() -> None:
        runs.append(1)
        began.set()
        await asyncio.sleep(LIMIT)

    desk.start("take")
    desk.start("take")
    await began.wait()
    desk.start("take")
    await desk.calls.aclose(LIMIT)
    assert desk.outcomes() == [Outcome.CANCELLED] * 3
    assert (len(runs), desk.calls.running) == (1, 0)


async def test_no_call_can_be_started_after_the_end(desk: Desk) -> None:
    await desk.calls.aclose(1)
    with pytest.raises(SessionClosed):
        desk.start("anything")


async def test_a_tool_may_close_its_own_session_without_a_deadlock(desk: Desk) -> None:
    @desk.tools.tool
    async def end(call: CallContext) -> None:
        closing.append(asyncio.ensure_future(desk.calls.aclose(LIMIT)))
        await asyncio.sleep(LIMIT)

    closing: list[asyncio.Future[None]] = []
    began = time.monotonic()
    assert (await desk.result("end")).outcome is Outcome.CANCELLED
    await closing[0]
    assert time.monotonic() - began < LIMIT


# ----------------------------------------------------------------------------------------------- what a tool may ask


class Booking:
    """A tool that counts what it did."""

    def __init__(self, desk: Desk, **options: Any) -> None:
        self.runs = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: BaseException | None = None
        desk.tools.tool(self.book, **options)

    async def book(self, room: int, note: str = "") -> dict[str, int]:
        self.runs += 1
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return {"booking": self.runs}


async def test_the_same_call_again_gets_the_first_result_and_does_not_run(desk: Desk) -> None:
    booking = Booking(desk, dedupe=60)
    assert (await desk.result("book", '{"room": 7, "note": "quiet"}')).result.output == '{"booking":1}'
    again = await desk.result("book", '{"note":"quiet","room":"7"}')
    assert (again.outcome, again.result.output) == (Outcome.REPLAYED, '{"booking":1,"replayed":true}')
    assert (await desk.result("book", '{"room": 8}')).outcome is Outcome.OK
    assert booking.runs == 2


async def test_two_long_numbers_that_differ_in_the_last_digit_are_not_the_same_call(desk: Desk) -> None:
    booking = Booking(desk, dedupe=60)
    for digit in range(8):  # more often than the same call may be made in a row
        finished = await desk.result("book", f'{{"room": 1234567890123456789012{digit}}}')
        assert finished.outcome is Outcome.OK
    assert booking.runs == 8


async def test_a_result_that_is_given_again_keeps_its_digits(desk: Desk) -> None:
    @desk.tools.tool(dedupe=60)
    async def number() -> dict[str, int]:
        return {"n": 2**70}

    await desk.result("number")
    assert (await desk.result("number")).result.output == '{"n":1180591620717411303424,"replayed":true}'


async def test_only_the_fields_that_count_make_a_call_the_same(desk: Desk) -> None:
    booking = Booking(desk, dedupe=Dedupe(60, fields=("room",)))
    await desk.result("book", '{"room": 7, "note": "one"}')
    assert (await desk.result("book", '{"room": 7, "note": "two"}')).outcome is Outcome.REPLAYED
    assert booking.runs == 1


@pytest.mark.parametrize(("scope", "outcome"), [("session", Outcome.OK), ("process", Outcome.REPLAYED)])
async def test_the_scope_says_whether_another_session_gets_it_too(desk: Desk, scope: Any, outcome: Outcome) -> None:
    Booking(desk, dedupe=Dedupe(60, scope=scope))
    await desk.result("book", '{"room": 7}')
    other = Desk(desk.runner)
    other.tools = desk.tools
    assert (await other.result("book", '{"room": 7}')).outcome is outcome


async def test_a_failure_is_run_again(desk: Desk) -> None:
    booking = Booking(desk, dedupe=60)
    booking.failure = ToolError("full")
    assert (await desk.result("book", '{"room": 7}')).outcome is Outcome.ERROR
    booking.failure = None
    assert (await desk.result("book", '{"room": 7}')).outcome is Outcome.OK


async def test_the_same_call_while_the_first_runs_waits_for_its_result(desk: Desk) -> None:
    booking = Booking(desk, dedupe=60)
    booking.gate.clear()
    first, second = desk.start("book", '{"room": 7}'), desk.start("book", '{"room": 7}')
    await desk.until(lambda: booking.runs == 1)
    booking.gate.set()
    await desk.until(lambda: len(desk.finished) == 2)
    assert {each.key: each.outcome for each in desk.finished} == {first: Outcome.OK, second: Outcome.REPLAYED}
    assert booking.runs == 1


async def test_a_repeated_call_does_not_wait_for_ever(desk: Desk) -> None:
    booking = Booking(desk, dedupe=60, timeout=0.02)
    booking.gate.clear()

    async def stubborn(room: int) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    released = asyncio.Event()
    desk.tools.tool(stubborn, dedupe=60, timeout=0.02)
    desk.start("stubborn", '{"room": 7}')
    second = desk.start("stubborn", '{"room": 7}')
    await desk.until(lambda: len(desk.finished) == 2)
    late = next(each for each in desk.finished if each.key == second)
    assert late.outcome is Outcome.BUSY
    assert "the same call is still running" in error_of(late)
    released.set()


async def test_a_terminal_tool_is_not_run_twice(desk: Desk) -> None:
    booking = Booking(desk, effect="terminal")
    await desk.result("book", '{"room": 7}')
    assert (await desk.result("book", '{"room": 7}')).outcome is Outcome.REPLAYED
    assert booking.runs == 1


async def test_a_result_that_is_no_object_is_given_again_as_it_was(desk: Desk) -> None:
    @desk.tools.tool(dedupe=60)
    async def give() -> list[int]:
        return [1]

    await desk.result("give")
    assert (await desk.result("give")).result.output == "[1]"


@pytest.mark.parametrize("whose", ["session_concurrency", "concurrency"])
async def test_a_tool_runs_as_often_at_once_as_it_says(desk: Desk, whose: str) -> None:
    booking = Booking(desk, **{whose: 1})
    booking.gate.clear()
    desk.start("book", '{"room": 1}')
    desk.start("book", '{"room": 2}')
    other = Desk(desk.runner)
    other.tools = desk.tools
    other.start("book", '{"room": 3}')
    expected = 1 if whose == "concurrency" else 2
    await desk.until(lambda: booking.runs == expected)
    assert (await other.result("missing")).outcome is Outcome.UNKNOWN  # whatever was to start has been started
    assert booking.runs == expected
    booking.gate.set()
    await desk.until(lambda: len(desk.finished) == 2 and len(other.finished) == 2)
    assert booking.runs == 3


async def test_a_tool_is_called_no_oftener_than_its_rate(desk: Desk) -> None:
    booking = Booking(desk, rate="1/hour")
    assert (await desk.result("book", '{"room": 7}')).outcome is Outcome.OK
    refused = await desk.result("book", '{"room": 8}')
    assert refused.outcome is Outcome.TOO_OFTEN
    assert "called too often" in error_of(refused)
    assert booking.runs == 1


async def test_a_tool_that_keeps_failing_is_not_called_for_a_while(anyio_backend: str) -> None:
    clock = Clock()
    desk = Desk(Runner(max_failures=2, failure_pause=30, clock=clock))
    booking = Booking(desk)
    booking.failure = RuntimeError("secret")
    for room in range(2):
        assert (await desk.result("book", f'{{"room": {room}}}')).outcome is Outcome.ERROR
    refused = await desk.result("book", '{"room": 2}')
    assert (refused.outcome, booking.runs) == (Outcome.UNAVAILABLE, 2)
    booking.failure = None
    clock.now += 30
    assert (await desk.result("book", '{"room": 3}')).outcome is Outcome.OK
    assert (await desk.result("book", '{"room": 4}')).outcome is Outcome.OK


@pytest.mark.parametrize(
    ("failure", "outcome"),
    [
        (ToolError("no such room"), Outcome.OK),
        (ToolUnavailable("the hotel is closed"), Outcome.UNAVAILABLE),
        (ExceptionGroup("two", [ToolError("a"), ToolError("b")]), Outcome.OK),
        (ExceptionGroup("two", [ToolError("a"), ValueError("b")]), Outcome.UNAVAILABLE),
        (asyncio.CancelledError(), Outcome.UNAVAILABLE),
    ],
    ids=["an answer", "unavailable", "two answers", "one fault of two", "aborted"],
)
async def test_only_faults_count_as_failures(anyio_backend: str, failure: BaseException, outcome: Outcome) -> None:
    desk = Desk(Runner(max_failures=1))
    booking = Booking(desk)
    booking.failure = failure
    await desk.result("book", '{"room": 1}')
    booking.failure = None
    assert (await desk.result("book", '{"room": 2}')).outcome is outcome


async def test_a_tool_that_does_not_answer_counts_at_once_although_it_goes_on(anyio_backend: str) -> None:
    desk = Desk(Runner(max_failures=1))
    released = asyncio.Event()

    @desk.tools.tool(timeout=0.02)
    async def stubborn() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    assert (await desk.result("stubborn")).outcome is Outcome.TIMEOUT
    assert (await desk.result("stubborn")).outcome is Outcome.UNAVAILABLE
    released.set()
    await desk.until(lambda: desk.calls.running == 0)
    assert desk.runner.guards.paused["stubborn"] == 1


async def test_a_tool_that_is_switched_off_is_answered_but_not_run(desk: Desk) -> None:
    booking = Booking(desk)
    desk.runner.guards.switch(off=["book"])
    refused = await desk.result("book", '{"room": 7}')
    assert (refused.outcome, error_of(refused)) == (Outcome.UNAVAILABLE, "book is not available now")
    desk.runner.guards.switch(on=["book"])
    assert (await desk.result("book", '{"room": 7}')).outcome is Outcome.OK
    assert booking.runs == 1


async def test_a_hidden_value_that_is_missing_is_a_matter_for_the_log_alone(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @desk.tools.tool(hidden={"caller": "phone"})
    async def who(caller: str) -> str:
        return caller

    finished = await desk.result("who")
    assert (finished.outcome, error_of(finished)) == (Outcome.UNAVAILABLE, "who is not available now")
    assert "hidden parameters cannot be filled from the session's metadata: caller is missing" in caplog.text


# ------------------------------------------------------------------------------------------------------- what is logged


async def test_a_log_line_shows_the_arguments_that_a_tool_opts_in_and_no_others(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bridge.tools")

    @desk.tools.tool(log_arguments=("city",))
    async def look(city: str, card: str) -> None:
        if city == "Oslo":
            raise ToolError(f"nothing for {card}")

    await desk.result("look", '{"city":"Oslo","card":"4111111111111111"}')
    await desk.result("look", '{"city":"Rome","card":"4111111111111111"}')
    failed, well = caplog.messages
    assert failed.endswith(': {"city":"Oslo"}')
    assert "call 'c2' ended as ok after" in well
    assert well.endswith(': {"city":"Rome"}')
    assert "4111111111111111" not in caplog.text


async def test_what_is_redacted_is_masked_in_an_argument_that_is_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bridge.tools")

    @desk.tools.tool(log_arguments=("order",), redact=("card",))
    async def pay(order: dict[str, str]) -> None: ...

    await desk.result("pay", '{"order":{"item":"lamp","card":"4111111111111111"}}')
    assert caplog.messages[0].endswith(': {"order":{"item":"lamp","card":"(masked)"}}')


async def test_no_argument_that_is_logged_can_fail_the_call(desk: Desk) -> None:
    @desk.tools.tool(log_arguments=("table", "number"))
    async def look(table: dict[int, str], number: int) -> int:
        return number

    finished = await desk.result("look", '{"table":{"1":"a"},"number":12345678901234567890123}')
    assert finished.result.output == "12345678901234567890123"


async def test_a_call_that_goes_well_is_one_line_for_whoever_debugs(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @desk.tools.tool
    async def look(city: str) -> str:
        return city

    await desk.result("look", '{"city":"Oslo"}')
    assert caplog.messages == []
    caplog.set_level(logging.DEBUG, "bridge.tools")
    await desk.result("look", '{"city":"Oslo"}')
    (line,) = caplog.messages
    assert line.startswith("tool look: call 'c2' ended as ok after")
    assert line.endswith(" s in session s")
    assert "Oslo" not in line
