from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from bridge.core.events import CallKey, Deliver, Start, ToolSpec
from bridge.errors import ConfigError
from bridge.tools import CallContext, Tool, Toolset

pytestmark = pytest.mark.anyio

CONTEXT = CallContext(session_id="s", key=CallKey(0, "c"), tool="t")


def plain(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


async def waiting(a: int, b: int = 2) -> int:
    return a + b


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


class Desk:
    rate = 10

    def method(self, a: int, b: int = 2) -> int:
        return a + b

    async def waiting_method(self, a: int, b: int = 2) -> int:
        return a + b

    @classmethod
    def of_class(cls, a: int, b: int = 2) -> int:
        return a + b

    @staticmethod
    def of_none(a: int, b: int = 2) -> int:
        return a + b


class Adder:
    def __call__(self, a: int, b: int = 2) -> int:
        return a + b


class WaitingAdder:
    async def __call__(self, a: int, b: int = 2) -> int:
        return a + b


def made(function: Callable[..., Any], **options: Any) -> Tool:
    tools = Toolset()
    tools.tool(function, **options)
    return next(iter(tools.values()))


@pytest.mark.parametrize(
    ("function", "name", "blocking"),
    [
        (plain, "plain", True),
        (waiting, "waiting", False),
        (Desk().method, "method", True),
        (Desk().waiting_method, "waiting_method", False),
        (Desk.of_class, "of_class", True),
        (Desk.of_none, "of_none", True),
        (Desk.__dict__["of_none"], "of_none", True),
        (Adder(), "Adder", True),
        (WaitingAdder(), "WaitingAdder", False),
        (functools.partial(waiting), "waiting", False),
        (functools.partial(functools.partial(Desk().method)), "method", True),
        (functools.partial(WaitingAdder()), "WaitingAdder", False),
        (wrapped(plain), "plain", True),
    ],
)
async def test_whatever_can_be_called_becomes_a_tool(function: Any, name: str, blocking: bool) -> None:
    tool = made(function)
    assert (tool.spec.name, tool.blocking) == (name, blocking)
    assert list(json.loads(tool.spec.parameters)["properties"]) == ["a", "b"]
    result: Any = tool.invoke(tool.check('{"a":1}'), CONTEXT)
    assert (result if blocking else await result) == 3


async def test_what_a_partial_has_bound_is_not_offered_to_the_model() -> None:
    by_position = made(functools.partial(plain, 1))
    by_name = made(functools.partial(plain, a=40))
    assert list(json.loads(by_position.spec.parameters)["properties"]) == ["b"]
    assert json.loads(by_name.spec.parameters)["properties"] == {"b": {"default": 2, "type": "integer"}}
    assert by_name.invoke(by_name.check("{}"), CONTEXT) == 42


async def test_a_tool_gets_its_call_context() -> None:
    def tool(a: int, call: CallContext) -> tuple[int, str]:
        return a, call.session_id

    made_tool = made(tool)
    assert list(json.loads(made_tool.spec.parameters)["properties"]) == ["a"]
    assert made_tool.invoke({"a": 1}, CONTEXT) == (1, "s")


async def test_a_call_context_made_by_hand_swallows_what_a_tool_says() -> None:
    CONTEXT.say("hello")
    CONTEXT.progress("half")
    CONTEXT.end_session()
    assert CONTEXT.metadata == {}


async def generator() -> AsyncIterator[int]:
    yield 1


def plain_generator() -> Iterator[int]:
    yield 1


class Streaming:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (Desk, "register a method of an instance"),
        (Desk(), "it cannot be called"),
        (3, "it cannot be called"),
        (Desk.__dict__["of_class"], "it cannot be called"),
        (generator, "return a list"),
        (plain_generator, "return a list"),
        (Streaming(), "return a list"),
        (functools.partial(generator), "return a list"),
        (lambda: 1, "pass name="),
        (Desk.method, "register the bound method"),
    ],
)
def test_what_cannot_be_called_or_awaited_is_refused_with_advice(function: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(function)
    assert words in str(caught.value)


def test_a_coroutine_instead_of_its_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="without the parentheses"):
        made(waiting(1))  # type: ignore[arg-type]  # the mistake in question


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "naïve", "a\n"])
def test_a_name_that_providers_refuse_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is no tool name"):
        Tool(spec=ToolSpec(name), invoke=lambda arguments, call: None, check=json.loads)


def test_the_decorator_works_bare_and_with_options_and_returns_the_function() -> None:
    tools = Toolset()

    @tools.tool
    def first() -> None:
        """One."""

    @tools.tool(name="second-tool", description="Two.", timeout=3, filler="Hm.", result_limit=10)
    async def second() -> None: ...

    assert first() is None
    assert list(tools) == ["first", "second-tool"]
    assert [spec.description for spec in tools.specs()] == ["One.", "Two."]
    assert (tools["second-tool"].timeout, tools["second-tool"].filler) == (3, "Hm.")
    assert len(tools) == 2


def test_a_snapshot_does_not_see_later_tools() -> None:
    tools = Toolset([made(plain)])
    snapshot = dict(tools)
    tools.tool(waiting)
    assert list(snapshot) == ["plain"]


def test_the_same_name_twice_is_refused_naming_both_sources() -> None:
    tools = Toolset([made(plain)])
    with pytest.raises(ConfigError, match=r"test_tool\.plain \(.*test_tool\.waiting \("):
        tools.tool(waiting, name="plain")
    with pytest.raises(ConfigError, match="another one"):
        tools.add(Tool(spec=ToolSpec("plain"), invoke=lambda arguments, call: None, check=json.loads))


def test_the_provider_is_told_to_wait_longer_than_a_call_can_take() -> None:
    tool = made(plain, timeout=20, queue_timeout=3)
    assert tool.spec.timeout is not None
    assert tool.spec.timeout > 23
    own = Tool(spec=ToolSpec("x", timeout=99), invoke=lambda arguments, call: None, check=json.loads)
    assert own.spec.timeout == 99


@pytest.mark.parametrize(
    ("options", "start", "deliver"),
    [
        ({}, Start.NOW, Deliver.AFTER_REPLY),
        ({"effect": "terminal"}, Start.AFTER_REPLY, Deliver.AFTER_REPLY),
        ({"effect": "terminal", "start": "now"}, Start.NOW, Deliver.AFTER_REPLY),
        ({"hold": True}, Start.NOW, Deliver.BETWEEN_REPLIES),
        ({"hold": True, "deliver": Deliver.NOW}, Start.NOW, Deliver.NOW),
        ({"start": Start.AFTER_REPLY, "deliver": "now"}, Start.AFTER_REPLY, Deliver.NOW),
    ],
)
def test_the_effect_and_the_hold_decide_what_is_not_given(
    options: dict[str, Any], start: Start, deliver: Deliver
) -> None:
    spec = made(plain, **options).spec
    assert (spec.start, spec.deliver, spec.hold) == (start, deliver, options.get("hold", False))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hold": True, "start": "after_reply"}, "never start"),
        ({"hold": True, "effect": "terminal"}, "never start"),
        ({"start": "later"}, "start must be one of now, after_reply"),
        ({"deliver": "later"}, "deliver must be one of"),
        ({"effect": "maybe"}, "effect must be one of read, write, terminal"),
        ({"on_interrupt": "maybe"}, "on_interrupt must be one of"),
        ({"timeout": 0}, "timeout must be"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"queue_timeout": float("inf")}, "queue_timeout must be"),
        ({"result_limit": -1}, "result_limit must be"),
        ({"filler_after": 0}, "filler_after must be"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(plain, **options)
    assert words in str(caught.value)


def test_a_warning_about_arguments_names_the_session_in_which_they_came(caplog: pytest.LogCaptureFixture) -> None:
    context = CallContext(session_id="s7", key=CallKey(0, "c"), tool="t", metadata={"correlation": "call-9"})
    assert made(plain).arguments('{"a":1,"4111111111111111":2}', context) == {"a": 1}
    (line,) = [record.message for record in caplog.records]
    assert line.endswith("(there are a, b), in session s7 [call-9]")
    assert "4111111111111111" not in line
