"""Frames on their way to the provider: order, back-pressure, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bridge import CallKey, TransportError
from bridge.core.events import Frame
from bridge.session.outbox import Outbox

pytestmark = pytest.mark.anyio

ONE, OTHER = CallKey(1, "a"), CallKey(1, "b")


class Line:
    """A transport that takes frames while it is open, and breaks after so many."""

    def __init__(self, breaks_after: int = 10_000) -> None:
        self.taken: list[Frame] = []
        self.open = asyncio.Event()
        self.open.set()
        self._breaks_after = breaks_after

    async def receive(self) -> Frame:
        raise TransportError("nothing is said")

    async def send(self, frame: Frame) -> None:
        await self.open.wait()
        if len(self.taken) >= self._breaks_after:
            raise TransportError("broken")
        self.taken.append(frame)

    async def aclose(self) -> None:
        self.open.set()


@asynccontextmanager
async def writing(line: Line, log: list[object] | None = None) -> AsyncIterator[Outbox]:
    """An outbox with its writer; `log` gets the keys that are reported as sent."""
    outbox = Outbox(line, lambda keys: log.append(keys) if log is not None else None)
    writer = asyncio.create_task(outbox.run())
    try:
        async with asyncio.timeout(20):
            yield outbox
    finally:
        writer.cancel()
        await asyncio.wait([writer])
        assert writer.cancelled() or writer.exception() is None


async def test_frames_go_out_in_the_order_in_which_they_were_put() -> None:
    line = Line()
    async with writing(line) as outbox:
        outbox.put(("1", "2"))
        outbox.put(("3",))
        await outbox.drained()
    assert line.taken == ["1", "2", "3"]


async def test_results_are_reported_once_the_transport_has_taken_all_of_them() -> None:
    log: list[object] = []
    line = Line()
    line.open.clear()
    async with writing(line, log) as outbox:
        outbox.put(("audio",))
        outbox.put(("first", "second"), (ONE, OTHER))
        await asyncio.sleep(0)
        assert log == []
        line.open.set()
        await outbox.drained()
    assert log == [(ONE, OTHER)]


async def test_a_host_waits_while_the_provider_does_not_read() -> None:
    line = Line()
    line.open.clear()
    async with writing(line) as outbox:
        put: list[str] = []
        blocked = asyncio.Event()

        async def pump() -> None:
            while len(put) < 200:
                put.append("piece")
                outbox.put(("piece",))
                asyncio.get_running_loop().call_soon(blocked.set)
                await outbox.room()

        pumping = asyncio.create_task(pump())
        await blocked.wait()
        assert 64 <= len(put) < 70
        outbox.put(("what we decide ourselves does not wait",))
        line.open.set()
        await pumping
        await outbox.drained()
    assert line.taken[len(line.taken) - 1] == "piece"
    assert len(line.taken) == 201


async def test_results_that_a_broken_line_has_not_taken_are_not_reported() -> None:
    log: list[object] = []
    async with writing(Line(breaks_after=1), log) as outbox:
        outbox.put(("1", "2"), (ONE,))
        await outbox.drained()
    assert log == []


async def test_after_the_line_has_broken_nothing_is_taken_and_nobody_waits() -> None:
    line = Line(breaks_after=0)
    async with writing(line) as outbox:
        outbox.put(("1",))
        await outbox.drained()
        for _ in range(100):
            outbox.put(("2",))
            await outbox.room()
        await outbox.drained()
    assert line.taken == []


async def test_a_host_that_waits_for_room_goes_on_at_the_end() -> None:
    line = Line()
    line.open.clear()
    async with writing(line) as outbox:
        for number in range(64):
            outbox.put((str(number),))
        waiting = asyncio.create_task(outbox.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        outbox.close()
        await waiting


async def test_closing_while_a_frame_is_on_its_way_sends_nothing_more() -> None:
    line = Line()
    line.open.clear()
    async with writing(line) as outbox:
        outbox.put(("1",))
        outbox.put(("2",))
        await asyncio.sleep(0)
        outbox.close()
        line.open.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert line.taken == ["1"]


class Post(Line):
    """A line through a network, which gives receipts when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.receipts: list[asyncio.Future[float]] = []

    def abort(self) -> None:
        self.receipts[0].set_exception(TransportError("broken"))

    async def receipt(self) -> asyncio.Future[float]:
        self.receipts.append(asyncio.get_running_loop().create_future())
        return self.receipts[-1]


async def test_results_are_reported_once_the_other_end_confirms_them_and_audio_does_not_wait_for_that() -> None:
    log: list[object] = []
    line = Post()
    async with writing(line, log) as outbox:
        outbox.put(("result",), (ONE,))
        outbox.put(("audio",))
        outbox.put(("result",), (OTHER,))
        await outbox.drained()
        assert line.taken == ["result", "audio", "result"]
        assert log == []
        for receipt in line.receipts:
            receipt.set_result(0.1)
        await asyncio.sleep(0)
    assert log == [(ONE,), (OTHER,)]


@pytest.mark.parametrize("lose", [Post.abort, lambda line: line.receipts[0].cancel()], ids=["broken", "cancelled"])
async def test_results_that_nobody_confirms_are_not_reported(lose: Callable[[Post], object]) -> None:
    log: list[object] = []
    line = Post()
    async with writing(line, log) as outbox:
        outbox.put(("result",), (ONE,))
        await outbox.drained()
        lose(line)
        await asyncio.sleep(0)
    assert log == []
