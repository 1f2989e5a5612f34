"""The vendors' own helpers, unmodified, beside ours, on the same turn and against the same strict provider.

`client.beta.messages.tool_runner` of anthropic 2.14, `ResponsesToolRunner` of openai 3.57 (chat completions have no
helper there), and `MessageLoop` with each vendor's client. Two calls in one turn, of which the first has the fault:

| fault | anthropic | openai | ours |
|---|---|---|---|
| none, two slow tools | one after the other | one after the other | side by side |
| unknown tool | error result, a `UserWarning` | run aborted before any call | error result with the names there are |
| tool raises | error result that quotes it | run aborted, later calls not run | error result that quotes nothing |
| tool calls `sys.exit` | takes the program along | takes the program along | error result |
| wrong type of argument | error result | is run with it, unless typed | error result that names the parameter |
| arguments are no JSON | error result | run aborted before any call | error result |
| NaN as an argument | is run with NaN | run aborted before any call | error result |
| the same call twice | run twice, then refused by the API | run aborted before any call | run once, one result |
| one id for two calls | run, then refused by the API | run aborted before any call | none is run, error result |
| result is a dict with a datetime | refused by the API, the turn is lost | run aborted | JSON, ISO 8601 |
| result with a lone surrogate | U+FFFD | fails while the request is written | U+FFFD |
| result of 1 MB | is sent | is sent | error result, 32 KiB by default |
| tool hangs | hangs | hangs | error result after its timeout |
| cancelled in the middle | no answer to any call | no answer; ids of what was begun | an answer to every call |
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import anthropic
import openai
import pytest
from openai.lib.responses_tool_runner import (
    AsyncRegisteredFunction,
    AsyncResponsesToolRunner,
    RegisteredFunction,
    ResponsesToolRunner,
    ToolRunnerCancelledError,
)

from bridge import Toolset
from bridge.message_loop import MessageLoop
from bridge.simulator.messages_api import Call, Failure, MessagesSimulator, Reply

pytestmark = pytest.mark.slow  # the vendors' packages take seconds to import

HELLO: list[Any] = [{"role": "user", "content": "Hello."}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}
Tool = Callable[[float], Any]


class Work:
    """A tool whose argument says how it goes wrong, and what it was called with."""

    def __init__(self) -> None:
        self.ran: list[float] = []
        self.at_once = 0
        self.most_at_once = 0
        self._lock = threading.Lock()

    def __call__(self, x: float) -> Any:
        """Do something."""
        self.ran.append(x)
        match x:
            case 10:
                raise RuntimeError("a secret")
            case 11:
                raise SystemExit(3)
            case 12:
                return {"at": datetime(2026, 1, 2)}
            case 13:
                return "\ud800"
            case 14:
                return "x" * 1_000_000
            case 20 | 21:
                return self._slow()
        return f"did {x:g}"

    def _slow(self) -> str:
        with self._lock:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(0.1)  # what it does takes a while: that is the point of it
        with self._lock:
            self.at_once -= 1
        return "slow"


@dataclass(frozen=True)
class Ran:
    """How a whole run went."""

    ended: str
    """The name of the exception; empty if it came to the model's last words."""
    ran: list[float]
    results: list[str]
    """As the model read them; an error begins with `!`."""


def run(helper: Callable[[MessagesSimulator, Tool], object], *calls: Call, work: Work | None = None) -> Ran:
    work = work or Work()
    with MessagesSimulator([Reply("Let me see.", calls), Reply("Done.")]) as provider:
        ended = ""
        try:
            helper(provider, work)
        except (Exception, SystemExit) as error:
            ended = type(error).__name__
    results = provider.ledger.results.values()
    return Ran(ended, work.ran, [("!" if each.is_error else "") + each.text for each in results])


def anthropics_runner(provider: MessagesSimulator, work: Tool) -> object:
    def do(x: float) -> Any:
        return work(x)

    tool = anthropic.beta_tool(do, description="Do something.")
    with anthropic.Anthropic(base_url=provider.url, api_key="any", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": HELLO, "tools": [tool]}
        return client.beta.messages.tool_runner(thread=False, **asked).until_done()


def openais_runner(provider: MessagesSimulator, work: Tool) -> object:
    definition: Any = {"type": "function", "name": "do", "description": "Do.", "parameters": SCHEMA, "strict": True}
    function = RegisteredFunction(definition, lambda arguments: work(cast("float", arguments["x"])))
    with openai.OpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client:
        return ResponsesToolRunner(functions=[function]).run(client, {"model": "m", "input": HELLO})


def tools_of(work: Tool) -> Toolset:
    tools = Toolset()

    @tools.tool
    def do(x: float) -> Any:
        """Do something."""
        return work(x)

    return tools


def ours_with_anthropic(provider: MessagesSimulator, work: Tool) -> object:
    with (
        MessageLoop(tools_of(work)) as loop,
        anthropic.Anthropic(base_url=provider.url, api_key="any", max_retries=0) as client,
    ):
        messages: list[Any] = list(HELLO)
        while True:
            asked: dict[str, Any] = {"model": "m", "max_tokens": 10, "tools": loop.definitions("anthropic")}
            response = client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": response.content})
            if not (answers := loop.run(response)):
                return response
            messages += answers


def ours_with_openai(provider: MessagesSimulator, work: Tool) -> object:
    """By `previous_response_id`, so that only the answers are sent."""
    with (
        MessageLoop(tools_of(work)) as loop,
        openai.OpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client,
    ):
        asked: dict[str, Any] = {"model": "m", "tools": loop.definitions("responses")}
        response = client.responses.create(input=HELLO, **asked)
        while answers := loop.run(response):
            response = client.responses.create(input=answers, previous_response_id=response.id, **asked)
        return response


OURS = (ours_with_anthropic, ours_with_openai)


def do(x: float, call_id: str = "") -> Call:
    return Call("do", {"x": x}, call_id)


@pytest.fixture(autouse=True)
def unknown_tools_are_only_warned_of() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Tool 'nope' not found", category=UserWarning)
        yield


NO_NUMBER = "x: should be a valid number, unable to parse string as a number. Expected: x (number)"
FAULTS: dict[str, tuple[Call, Ran, Ran, Ran]] = {
    "unknown": (
        Call("nope"),
        Ran("", [1], ["!Error: Tool 'nope' not found", "did 1"]),
        Ran("ToolRunnerError", [], []),
        Ran("", [1], ["!there is no such tool; available: do", "did 1"]),
    ),
    "raises": (
        do(10),
        Ran("", [10, 1], ["!RuntimeError('a secret')", "did 1"]),
        Ran("ToolRunnerError", [10], []),
        Ran("", [10, 1], ["!the tool do failed", "did 1"]),
    ),
    "exits": (
        do(11),
        Ran("SystemExit", [11], []),
        Ran("SystemExit", [11], []),
        Ran("", [11, 1], ["!the tool do failed", "did 1"]),
    ),
    "wrong type": (
        Call("do", {"x": "many"}),
        Ran("", [1], ["!ValueError('Invalid arguments for function do')", "did 1"]),
        Ran("ToolRunnerError", ["many"], []),  # type: ignore[list-item]  # passed on as it came
        Ran("", [1], [f"!{NO_NUMBER}", "did 1"]),
    ),
    "datetime": (
        do(12),
        Ran("BadRequestError", [12, 1], []),
        Ran("ToolRunnerError", [12], []),
        Ran("", [12, 1], ['{"at":"2026-01-02T00:00:00"}', "did 1"]),
    ),
    "surrogate": (
        do(13),
        Ran("", [13, 1], ["\ufffd", "did 1"]),
        Ran("ToolRunnerError", [13, 1], []),
        Ran("", [13, 1], ["\ufffd", "did 1"]),
    ),
    "too large": (
        do(14),
        Ran("", [14, 1], ["x" * 1_000_000, "did 1"]),
        Ran("", [14, 1], ["x" * 1_000_000, "did 1"]),
        Ran("", [14, 1], ["!the result has 1000002 bytes, and at most 32768 can be sent", "did 1"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_anthropics_runner_with_a_fault(fault: str) -> None:
    call, anthropics, _, _ = FAULTS[fault]
    assert run(anthropics_runner, call, do(1)) == anthropics


@pytest.mark.parametrize("fault", FAULTS)
def test_openais_runner_with_a_fault(fault: str) -> None:
    call, _, openais, _ = FAULTS[fault]
    assert run(openais_runner, call, do(1)) == openais


@pytest.mark.parametrize("ours", OURS)
@pytest.mark.parametrize("fault", FAULTS)
def test_our_loop_with_a_fault(fault: str, ours: Any) -> None:
    call, _, _, expected = FAULTS[fault]
    went = run(ours, call, do(1))
    results = [each.replace("!ERROR: ", "!") for each in went.results]
    assert Ran(went.ended, sorted(went.ran, reverse=True), results) == expected


def test_nan_as_an_argument() -> None:
    nan = Call("do", '{"x": NaN}')
    went = run(anthropics_runner, nan, do(1))
    assert math.isnan(went.ran[0])
    assert went.results == ["did nan", "did 1"]
    assert run(openais_runner, nan, do(1)) == Ran("ToolRunnerError", [], [])
    for ours in OURS:
        went = run(ours, nan, do(1))
        assert (went.ended, went.ran) == ("", [1])
        assert went.results[0].endswith("x: should be a finite number. Expected: x (number)")


def test_arguments_that_are_no_json() -> None:
    broken = Call("do", '{"x": ')
    went = run(anthropics_runner, broken, do(1))
    assert went == Ran("", [1], ["!ValueError('Invalid arguments for function do')", "did 1"])
    assert run(openais_runner, broken, do(1)) == Ran("ToolRunnerError", [], [])
    for ours in OURS:
        went = run(ours, broken, do(1))
        assert (went.ended, went.ran, went.results[0][0]) == ("", [1], "!")


def test_a_call_that_comes_twice() -> None:
    twice = do(1, "c1"), do(1, "c1")
    assert run(anthropics_runner, *twice) == Ran("BadRequestError", [1, 1], [])
    assert run(openais_runner, *twice) == Ran("ToolRunnerError", [], [])
    assert run(ours_with_anthropic, *twice) == Ran("BadRequestError", [1], [])  # the model's own turn is refused
    assert run(ours_with_openai, *twice) == Ran("", [1], ["did 1"])


def test_one_id_for_two_calls() -> None:
    twice = do(1, "c1"), do(2, "c1")
    assert run(anthropics_runner, *twice) == Ran("BadRequestError", [1, 2], [])
    assert run(openais_runner, *twice) == Ran("ToolRunnerError", [], [])
    assert run(ours_with_anthropic, *twice) == Ran("BadRequestError", [], [])
    told = "the call was not run, because another call came with its id; make them again, one at a time"
    assert run(ours_with_openai, *twice) == Ran("", [], [f"!ERROR: {told}"])


@pytest.mark.parametrize(
    ("helper", "at_once"), [(anthropics_runner, 1), (openais_runner, 1), *((ours, 2) for ours in OURS)]
)
def test_two_slow_tools(helper: Any, at_once: int) -> None:
    work = Work()
    assert run(helper, do(20), do(21), do(1), work=work).results == ["slow", "slow", "did 1"]
    assert work.most_at_once == at_once


def test_a_held_thread_survives_an_answer_that_was_lost() -> None:
    """The vendor's runner uses threads by default: what was continued already is replayed as a whole."""
    work = Work()
    with (
        MessagesSimulator([Reply(calls=(do(1),)), Failure(503, done=True), Reply("Done.")]) as provider,
        anthropic.Anthropic(base_url=provider.url, api_key="any") as client,
    ):
        tool = anthropic.beta_tool(lambda x: work(x), name="do", description="Do.", input_schema=SCHEMA)
        asked: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": HELLO, "tools": [tool]}
        client.beta.messages.tool_runner(**asked).until_done()
    assert provider.ledger.refusals == ["thread: this reply has been continued already"]
    assert work.ran == [1]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["responses", "chat"])
async def test_what_openais_parse_helpers_return_can_be_run(kind: str) -> None:
    work = Work()
    with MessagesSimulator([Reply(calls=(do(1),)), Reply("Done.")]) as provider:
        async with (
            MessageLoop(tools_of(work)) as loop,
            openai.AsyncOpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client,
        ):
            history: list[Any] = list(HELLO)
            if kind == "responses":
                parsed: Any = await client.responses.parse(
                    input=history, model="m", tools=loop.definitions("responses")
                )
                history += [*parsed.output, *await loop.run_async(parsed)]
                await client.responses.parse(input=history, model="m")
            else:
                parsed = await client.chat.completions.parse(
                    messages=history, model="m", tools=loop.definitions("chat")
                )
                history += [parsed.choices[0].message, *await loop.run_async(parsed)]
                await client.chat.completions.parse(messages=history, model="m")
    assert [each.text for each in provider.ledger.results.values()] == ["did 1"]
    assert provider.ledger.refusals == []


# ------------------------------------------------------------------------------------------- cancelled in the middle


class Hanging:
    """A tool that never returns; the other one does."""

    def __init__(self) -> None:
        self.began = asyncio.Event()

    async def do(self, x: float) -> str:
        """Do something."""
        if x == 1:
            return "did 1"
        self.began.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


async def cancelled(began: asyncio.Event, task: asyncio.Task[Any]) -> asyncio.CancelledError:
    """Give it up once the tool hangs: no helper would."""
    await asyncio.wait_for(began.wait(), 10)
    assert not task.done()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError as error:
        return error
    raise AssertionError("it went on")


@pytest.mark.anyio
async def test_anthropics_runner_cancelled_in_the_middle_leaves_its_calls_unanswered() -> None:
    work = Hanging()
    with MessagesSimulator([Reply(calls=(do(1), do(2))), Reply("Done.")]) as provider:
        async with anthropic.AsyncAnthropic(base_url=provider.url, api_key="any", max_retries=0) as client:
            tool = anthropic.beta_async_tool(work.do)
            asked: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": HELLO, "tools": [tool]}
            thread = client.beta.messages.thread(**asked)
            task = asyncio.create_task(thread.tool_runner().until_done())
            await cancelled(work.began, task)
            with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
                await thread.send({"role": "user", "content": "Are you there?"})


@pytest.mark.anyio
async def test_openais_runner_cancelled_in_the_middle_tells_only_what_it_had_begun() -> None:
    work = Hanging()
    definition: Any = {"type": "function", "name": "do", "description": "Do.", "parameters": SCHEMA, "strict": True}

    async def execute(arguments: dict[str, Any]) -> str:
        return await work.do(**arguments)

    with MessagesSimulator([Reply(calls=(do(1, "c1"), do(2, "c2"))), Reply("Done.")]) as provider:
        async with openai.AsyncOpenAI(base_url=provider.openai_url, api_key="any", max_retries=0) as client:
            runner = AsyncResponsesToolRunner(functions=[AsyncRegisteredFunction(definition, execute)])
            task = asyncio.create_task(runner.run(client, {"model": "m", "input": HELLO}))
            error = await cancelled(work.began, task)
    assert isinstance(error, ToolRunnerCancelledError)
    assert (error.attempted_call_ids, error.completed_call_ids) == (("c1", "c2"), ("c1",))
    assert provider.ledger.results == {}


@pytest.mark.anyio
async def test_our_loop_cancelled_in_the_middle_answers_every_call() -> None:
    work = Hanging()
    tools = Toolset()
    tools.tool(work.do)
    with MessagesSimulator([Reply(calls=(do(1), do(2))), Reply("Done.")]) as provider:
        async with (
            MessageLoop(tools) as loop,
            anthropic.AsyncAnthropic(base_url=provider.url, api_key="any", max_retries=0) as client,
        ):
            messages: list[Any] = list(HELLO)
            asked: dict[str, Any] = {"model": "m", "max_tokens": 10, "tools": loop.definitions("anthropic")}
            response = await client.messages.create(messages=messages, **asked)
            messages.append({"role": "assistant", "content": response.content})
            task = asyncio.create_task(loop.run_async(response))
            await cancelled(work.began, task)
            messages += [*loop.pending(), {"role": "user", "content": "Are you there?"}]
            await client.messages.create(messages=messages, **asked)
    lost = "the call was interrupted before it ended; whether it took effect is not known"
    assert [each.text for each in provider.ledger.results.values()] == ["did 1", lost]
