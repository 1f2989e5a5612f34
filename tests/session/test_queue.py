"""The queue between the reader and the host."""

from __future__ import annotations

import asyncio

import pytest

from bridge.session.queue import EventQueue

pytestmark = pytest.mark.anyio


async def waiting(queue: EventQueue[int]) -> asyncio.Task[int]:
    """A task that waits for the next item."""
    task = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    queue: EventQueue[int] = EventQueue(5)
    assert all(queue.put(number) for number in range(3))
    assert [await queue.take() for _ in range(3)] == [0, 1, 2]


async def test_what_is_there_is_taken_without_going_to_the_loop() -> None:
    queue: EventQueue[int] = EventQueue(5)
    queue.put(7)
    with pytest.raises(StopIteration) as taken:
        queue.take().send(None)
    assert taken.value.value == 7


async def test_a_full_queue_takes_nothing_more_until_there_is_room() -> None:
    queue: EventQueue[int] = EventQueue(2)
    assert [queue.put(number) for number in range(3)] == [True, True, False]
    assert await queue.take() == 0
    assert queue.put(3)
    assert [await queue.take(), await queue.take()] == [1, 3]


async def test_whoever_waits_gets_the_next_item() -> None:
    queue: EventQueue[int] = EventQueue(5)
    task = await waiting(queue)
    queue.put(1)
    assert await task == 1


async def test_those_who_wait_are_served_in_the_order_of_their_coming() -> None:
    queue: EventQueue[int] = EventQueue(5)
    first, second = await waiting(queue), await waiting(queue)
    queue.put(1)
    queue.put(2)
    assert (await first, await second) == (1, 2)


async def test_an_item_meant_for_one_who_has_gone_is_for_the_next() -> None:
    queue: EventQueue[int] = EventQueue(5)
    first, second = await waiting(queue), await waiting(queue)
    queue.put(1)
    first.cancel()
    async with asyncio.timeout(20):
        assert await second == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_one_who_goes_before_there_is_an_item_takes_nothing_along() -> None:
    queue: EventQueue[int] = EventQueue(5)
    first, second = await waiting(queue), await waiting(queue)
    first.cancel()
    await asyncio.wait([first])
    queue.put(1)
    assert await second == 1


async def test_after_closing_what_is_there_can_be_taken_and_nothing_comes_in() -> None:
    queue: EventQueue[int] = EventQueue(1)
    queue.put(1)
    queue.close()
    assert queue.put(2)
    assert await queue.take() == 1
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            await queue.take()


async def test_closing_lets_everybody_go_who_waits() -> None:
    queue: EventQueue[int] = EventQueue(1)

    async def count() -> str:
        try:
            await queue.take()
        except StopAsyncIteration:
            return "over"
        return "item"

    tasks = [asyncio.create_task(count()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.close()
    assert await asyncio.gather(*tasks) == ["over"] * 3
