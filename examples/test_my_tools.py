"""Tests of the tools in `my_tools.py`: no voice agent, no network, and no waiting, since time is virtual.

pytest examples/test_my_tools.py
"""

from __future__ import annotations

import pytest
from my_tools import tools

from bridge.testing import scripted_session

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_table_is_booked() -> None:
    async with scripted_session(tools) as s:
        result = await s.ask("book_table", {"day": "friday", "hour": 20})
        assert result.output == {"booked": "friday at 20, for 2"}


async def test_a_large_party_is_told_what_to_do() -> None:
    async with scripted_session(tools) as s:
        result = await s.ask("book_table", {"day": "friday", "hour": 20, "guests": 12})
        assert result.is_error
        assert result.output == {"error": "tables for more than eight are booked by email"}


async def test_the_caller_hears_something_while_the_book_is_slow() -> None:
    async with scripted_session(tools) as s:
        await s.ask("book_table", {"day": "friday", "hour": 20})
        assert [said.text for said in s.said] == ["One moment, I am looking at the book."]


async def test_a_booking_is_not_announced_to_a_caller_who_has_cut_in() -> None:
    async with scripted_session(tools) as s:
        await s.agent_says("I am booking a table for Friday.")
        call = await s.call("book_table", {"day": "friday", "hour": 20})
        await s.barge_in("Wait, Saturday!")
        await s.settled()
        assert call.outcome == "ok"  # it was made, and nobody was told
        assert call.discarded == "interrupted"
        assert s.results == []


async def test_a_booking_is_made_once_although_the_caller_cuts_in_and_it_is_asked_for_again() -> None:
    async with scripted_session(tools) as s:
        await s.agent_says("I am booking a table for Friday.")
        first = await s.call("book_table", {"day": "friday", "hour": 20})
        await s.barge_in("Did that work?")
        await s.settled()
        again = await s.ask("book_table", {"hour": 20, "day": "friday"})
        assert first.outcome == "ok"
        assert again.output == {"booked": "friday at 20, for 2", "replayed": True}


async def test_the_call_ends_once_the_goodbye_has_been_heard() -> None:
    async with scripted_session(tools) as s:
        await s.agent_says("Goodbye, and see you on Friday!")
        await s.call("end_call")
        await s.reply_done()
        assert not s.ended
        await s.advance(3)
        assert s.ended
