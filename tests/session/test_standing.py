"""Standing: what may still be asked of a session, and how its turn is waited for."""

from __future__ import annotations

import asyncio

import pytest

from bridge.errors import SessionClosed
from bridge.session.standing import Phase, Standing

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("phase", Phase)
async def test_nothing_new_begins_once_a_session_is_closing(phase: Phase) -> None:
    standing = Standing("one")
    standing.phase = phase
    if phase in (Phase.OPENING, Phase.READY):
        standing.refuse_if_closing()
    else:
        with pytest.raises(SessionClosed, match="closing"):
            standing.refuse_if_closing()


async def test_a_session_takes_messages_until_it_is_over() -> None:
    standing = Standing("one")
    standing.phase = Phase.PARTING
    standing.refuse_if_over()
    standing.over.set()
    with pytest.raises(SessionClosed, match="nothing can be sent"):
        standing.refuse_if_over()


async def test_who_waits_is_woken_by_every_move_and_goes_on_when_it_is_true() -> None:
    standing = Standing("one")
    asked = asyncio.Event()

    def ready() -> bool:
        asked.set()
        return standing.phase is Phase.READY

    async with asyncio.timeout(20):
        waiting = asyncio.create_task(standing.until(ready, 20))
        for phase in (Phase.OPENING, Phase.READY):
            await asked.wait()
            asked.clear()
            assert not waiting.done()
            standing.phase = phase
            standing.moved()
        await waiting


async def test_what_never_becomes_true_is_waited_for_only_so_long() -> None:
    standing = Standing("one")
    async with asyncio.timeout(20):
        await standing.until(lambda: False, 0.01)
    assert standing.phase is Phase.OPENING
