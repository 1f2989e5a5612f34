"""A process that serves a session is killed at every point of a call, and another one takes the session over."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from . import hcompany, herm, openai_sessions
from .table import BOOKED, Outcome
from .victim import POINTS, serve

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SYSTEMS: Final[Any] = {"openai": openai_sessions, "hcompany": hcompany, "herm": herm}
NOT_KNOWN: Final = ("!",)
"""The agent is told that nobody knows whether it happened; it is not run again."""
RIGHT: Final = {
    "before the claim": Outcome(1),
    "after the claim": Outcome(0, NOT_KNOWN),
    "before the effect": Outcome(0, NOT_KNOWN),
    "after the effect": Outcome(1, NOT_KNOWN),
    "before the outcome": Outcome(1, NOT_KNOWN),
    "after the outcome": Outcome(1),
    "before the post": Outcome(1),
    "after the post": Outcome(2, (BOOKED, BOOKED)),  # of two turns: the second shows that nothing is left of the first
}
PROCESSES: Final = multiprocessing.get_context("forkserver")
PATIENCE: Final = 20


@pytest.fixture(scope="module", autouse=True)
def _quick_processes() -> None:
    """What victims need is made once."""
    PROCESSES.set_forkserver_preload(["pytest", "tests.e2e.faults.warm"])  # children take the main module up


@asynccontextmanager
async def life(*given: Any, ends: int) -> AsyncIterator[None]:
    """One life of a victim, from its start until it is over with this exit code."""
    process = PROCESSES.Process(target=serve, args=given)
    process.start()
    try:
        yield
        if ends == 0:
            process.terminate()
        await anyio.to_thread.run_sync(process.join, PATIENCE)
        assert process.exitcode == ends
    finally:
        process.kill()
        process.join()
        process.close()


def effects(directory: Path) -> int:
    """How often a victim's tool had its effect."""
    file = directory / "effects"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", SYSTEMS)
async def test_a_session_whose_process_is_killed_is_served_by_another_one(
    name: str, point: str, tmp_path: Path
) -> None:
    system = SYSTEMS[name]

    async def turns_over(count: int) -> None:
        with anyio.fail_after(PATIENCE):
            while system.turns_over(sim) < count:  # noqa: ASYNC110  # accounts cannot all be waited for
                await anyio.sleep(0.01)

    async with system.offline(system.TWO_TURNS) as sim:
        address = (sim.url, getattr(sim, "api_key", "k"), await system.begin(sim))
        async with life(name, address, tmp_path, point, name != "hcompany", ends=-signal.SIGKILL):
            pass
        told = point == "after the post"
        await turns_over(told)
        async with life(name, address, tmp_path, "", told, ends=0):
            await turns_over(1 + told)
        assert system.came_of(effects(tmp_path), sim) == RIGHT[point]
