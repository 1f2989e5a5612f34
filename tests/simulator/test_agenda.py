"""Time that can be advanced."""

from __future__ import annotations

import asyncio
import math

import anyio
import pytest

from bridge.simulator.agenda import Agenda

pytestmark = pytest.mark.anyio


def test_what_falls_due_happens_in_order_each_at_its_moment() -> None:
    agenda = Agenda()
    start, seen = agenda.now, []
    for seconds in (20.0, 10.0, 30.0):
        agenda.after(seconds, lambda: seen.append(round(agenda.now - start)))
    agenda.advance(25)
    assert seen == [10, 20]
    agenda.advance(5)
    assert seen == [10, 20, 30]


def test_what_has_no_delay_happens_at_once_and_what_has_an_infinite_one_never() -> None:
    agenda, seen = Agenda(), []
    agenda.after(0, lambda: seen.append("now"))
    agenda.after(math.inf, lambda: seen.append("never"))
    agenda.advance(1e6)
    assert seen == ["now"]


def test_what_one_action_plans_happens_within_the_same_jump() -> None:
    agenda, seen = Agenda(), []
    agenda.after(1, lambda: agenda.after(1, lambda: seen.append("second")))
    agenda.advance(2)
    assert seen == ["second"]


def test_the_time_is_told_as_text() -> None:
    agenda = Agenda()
    assert agenda.stamp.endswith("Z")
    before = agenda.stamp
    agenda.advance(3600)
    assert agenda.stamp > before


async def test_a_wait_ends_when_time_has_been_advanced_past_it() -> None:
    agenda = Agenda()
    waiting = asyncio.create_task(agenda.until(lambda: False, 60))
    await anyio.lowlevel.checkpoint()
    agenda.advance(61)
    assert await asyncio.wait_for(waiting, 20) is False


async def test_a_kept_agenda_does_things_by_itself_and_stops() -> None:
    agenda, done = Agenda(), anyio.Event()
    keeping = asyncio.create_task(agenda.keep())
    agenda.after(60, lambda: None)
    agenda.after(0.01, done.set)
    with anyio.fail_after(20):
        await done.wait()
        agenda.stop()
        await keeping
        assert await agenda.until(lambda: False) is False
