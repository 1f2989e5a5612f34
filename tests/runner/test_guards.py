"""What keeps a tool from being called: a switch, a circuit breaker, a rate."""

from __future__ import annotations

import pytest

from bridge.errors import ToolUnavailable
from bridge.runner.guards import Guards, Health, TooOften
from bridge.tools.policy import Rate
from bridge.tools.tool import Tool, Toolset


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tool(rate: str | None = None) -> Tool:
    tools = Toolset()

    @tools.tool(name="book", rate=rate)
    async def book() -> None: ...

    return tools["book"]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def guards(clock: Clock) -> Guards:
    return Guards(max_failures=3, pause=30, clock=clock)


BOOK = tool()


def fail(guards: Guards, times: int) -> None:
    for _ in range(times):
        guards.admit(BOOK)
        guards.ended("book", Health.FAILED)


def test_a_tool_is_called_as_usual_until_it_fails_once_too_often(guards: Guards) -> None:
    fail(guards, 2)
    guards.admit(BOOK)
    guards.ended("book", Health.WELL)
    fail(guards, 2)
    guards.admit(BOOK)
    assert guards.unavailable == frozenset()


def test_a_tool_that_keeps_failing_is_not_called_for_a_while(
    guards: Guards, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(guards, 3)
    with pytest.raises(ToolUnavailable, match=r"^book is not available now; try again later$"):
        guards.admit(BOOK)
    assert (guards.unavailable, guards.paused["book"]) == ({"book"}, 1)
    assert "tool book has failed 3 times in a row; it is not called for 30 s" in caplog.text
    clock.now += 29.9
    with pytest.raises(ToolUnavailable):
        guards.admit(BOOK)


def test_a_call_that_its_rate_refuses_is_not_the_one_that_is_let_through(guards: Guards, clock: Clock) -> None:
    rated = tool("3/minute")
    for _ in range(3):
        guards.admit(rated)
        guards.ended("book", Health.FAILED)
    clock.now += 30
    with pytest.raises(TooOften):
        guards.admit(rated)
    clock.now += 30
    guards.admit(rated)
    guards.ended("book", Health.WELL)
    assert guards.unavailable == frozenset()


def test_after_the_pause_one_call_is_let_through_and_its_success_closes_the_circuit(
    guards: Guards, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    fail(guards, 3)
    clock.now += 30
    guards.admit(BOOK)
    with pytest.raises(ToolUnavailable):
        guards.admit(BOOK)
    guards.ended("book", Health.WELL)
    guards.admit(BOOK)
    assert "tool book works again" in caplog.text
    assert guards.unavailable == frozenset()


def test_a_failure_of_that_one_call_begins_another_pause_and_is_not_counted_again(guards: Guards, clock: Clock) -> None:
    fail(guards, 3)
    clock.now += 30
    fail(guards, 1)
    clock.now += 29
    with pytest.raises(ToolUnavailable):
        guards.admit(BOOK)
    assert guards.paused["book"] == 1


def test_a_call_that_was_stopped_says_nothing_and_the_next_one_is_let_through(guards: Guards, clock: Clock) -> None:
    fail(guards, 3)
    clock.now += 30
    guards.admit(BOOK)
    guards.ended("book", Health.UNKNOWN)
    guards.admit(BOOK)
    guards.ended("other", Health.UNKNOWN)


def test_a_tool_that_is_switched_off_is_not_called_until_it_is_switched_on(guards: Guards) -> None:
    guards.switch(off=["book", "other"])
    with pytest.raises(ToolUnavailable, match=r"^book is not available now$"):
        guards.admit(BOOK)
    guards.switch(on=["book"])
    guards.admit(BOOK)
    assert (guards.off, guards.unavailable) == ({"other"}, {"other"})


def test_a_rate_counts_the_calls_of_a_sliding_window(guards: Guards, clock: Clock) -> None:
    limited = tool("2/minute")
    guards.admit(limited)
    clock.now += 30
    guards.admit(limited)
    with pytest.raises(TooOften, match="book was not run, because it has been called too often"):
        guards.admit(limited)
    clock.now += 30
    guards.admit(limited)
    with pytest.raises(TooOften):
        guards.admit(limited)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10/minute", Rate(10, 60)),
        ("1 / second", Rate(1, 1)),
        ("100/hour", Rate(100, 3600)),
        ("3/10 seconds", Rate(3, 10)),
    ],
)
def test_a_rate_is_written_in_words(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate
