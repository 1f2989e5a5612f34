"""The tools of a process: written down, or from sources that open, change and close."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from bridge import ConfigError, Tool, Toolset
from bridge.catalogue import Catalogue

pytestmark = pytest.mark.anyio


def tools(*names: str) -> Toolset:
    made = Toolset()
    for name in names:

        async def run() -> None: ...

        made.tool(run, name=name)
    return made


class Shelf:
    """A source that a test has in hand."""

    def __init__(self, name: str, *names: str, failure: Exception | None = None) -> None:
        self.name = name
        self.reason = ""
        self.failure = failure
        self.names = names
        self.is_open = False
        self.change: Callable[[Sequence[Tool]], None] = lambda tools: None

    @asynccontextmanager
    async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
        if self.failure is not None:
            raise self.failure
        task = asyncio.current_task()
        self.change, self.is_open = changed, True
        yield tuple(tools(*self.names).values())
        assert asyncio.current_task() is task
        self.is_open = False


async def test_written_tools_and_those_of_sources_are_together() -> None:
    one, two = Shelf("one", "a", "b"), Shelf("two", "c")
    async with Catalogue(tools("w"), [one, two]) as catalogue:
        assert list(catalogue.tools) == ["w", "a", "b", "c"]
        assert (one.is_open, two.is_open) == (True, True)
    assert (one.is_open, two.is_open) == (False, False)


async def test_everything_that_is_wrong_is_said_at_once_and_nothing_stays_open() -> None:
    good = Shelf("good", "a")
    bad = [Shelf("bad", failure=ConfigError("no command\nno address")), Shelf("worse", failure=ValueError("secret"))]
    with pytest.raises(ConfigError) as raised:
        await Catalogue({}, [good, *bad]).__aenter__()
    assert str(raised.value).splitlines() == [
        "no command",
        "no address",
        "worse could not be opened: ValueError",
    ]
    assert not good.is_open


async def test_a_name_that_is_there_twice_is_refused_with_both_places() -> None:
    source = Shelf("one", "a", "w")
    with pytest.raises(ConfigError, match="two tools are called w: "):
        await Catalogue(tools("w"), [source]).__aenter__()
    assert not source.is_open


async def test_a_source_that_changes_is_followed() -> None:
    told: list[list[str]] = []
    source = Shelf("one", "a")
    async with Catalogue(tools("w"), [source], changed=lambda now: told.append(list(now))) as catalogue:
        source.change(tuple(tools("b", "c").values()))
        assert list(catalogue.tools) == ["w", "b", "c"]
    assert told == [["w", "b", "c"]]


async def test_a_change_that_takes_a_name_of_another_leaves_that_tool_out(caplog: pytest.LogCaptureFixture) -> None:
    source = Shelf("one", "a")
    async with Catalogue(tools("w"), [source]) as catalogue:
        source.change(tuple(tools("w", "b").values()))
        assert list(catalogue.tools) == ["w", "b"]
    assert "a tool is left out: two tools are called w" in caplog.text


async def test_a_source_tells_why_no_session_should_be_taken() -> None:
    one, two = Shelf("one", "a"), Shelf("two", "b")
    async with Catalogue({}, [one, two]) as catalogue:
        assert catalogue.reason == ""
        two.reason = "the server is down"
        assert catalogue.reason == "the server is down"


async def test_a_replacement_keeps_what_stays_opens_what_is_new_and_closes_what_is_gone() -> None:
    told: list[Mapping[str, Tool]] = []
    stays, goes, comes = Shelf("stays", "a"), Shelf("goes", "b"), Shelf("comes", "c")
    async with Catalogue(tools("w"), [stays, goes], changed=told.append) as catalogue:
        stays.failure = ValueError("it is not opened again")
        await catalogue.replace(tools("x"), [stays, comes])
        assert list(catalogue.tools) == ["x", "a", "c"]
        assert (stays.is_open, goes.is_open, comes.is_open) == (True, False, True)
        goes.change(())
        assert told == [catalogue.tools]


@pytest.mark.parametrize(
    "bad", [Shelf("bad", failure=ConfigError("no")), Shelf("bad", "x")], ids=["cannot be opened", "a name twice"]
)
async def test_a_replacement_that_cannot_be_changes_nothing(bad: Shelf) -> None:
    source = Shelf("one", "a")
    async with Catalogue(tools("w"), [source]) as catalogue:
        with pytest.raises(ConfigError):
            await catalogue.replace(tools("x"), [bad])
        assert list(catalogue.tools) == ["w", "a"]
        assert (source.is_open, bad.is_open) == (True, False)


async def test_a_source_that_fails_by_itself_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Shelf):
        @asynccontextmanager
        async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fail())
                yield ()

        async def fail(self) -> None:
            await fails.wait()
            raise RuntimeError("secret")

    fails, reported = asyncio.Event(), asyncio.Event()
    async with Catalogue({}, [Failing("failing")]) as catalogue:
        catalogue._open[0].task.add_done_callback(lambda task: reported.set())
        fails.set()
        async with asyncio.timeout(20):
            await reported.wait()
        assert "failing has failed (ExceptionGroup), and its tools with it" in caplog.text
    assert "secret" not in caplog.text


async def test_a_start_that_is_given_up_leaves_nothing_open() -> None:
    class Slow(Shelf):
        @asynccontextmanager
        async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
            try:
                opening.set()
                await asyncio.Event().wait()
                yield ()
            finally:
                closed.set()

    opening, closed = asyncio.Event(), asyncio.Event()
    starting = asyncio.create_task(Catalogue({}, [Slow("slow")]).__aenter__())
    await opening.wait()
    starting.cancel()
    async with asyncio.timeout(20):
        await closed.wait()


async def test_a_source_that_fails_while_it_closes_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Shelf):
        @asynccontextmanager
        async def open(self, changed: Callable[[Sequence[Tool]], None], /) -> AsyncIterator[Sequence[Tool]]:
            yield ()
            raise RuntimeError("secret")

    async with Catalogue({}, [Stuck("stuck")]):
        pass
    assert caplog.messages == ["stuck could not be closed properly: RuntimeError"]
