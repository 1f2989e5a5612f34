"""Each fault of each system, first with the vendor's helper, then with ours, and what the README says of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from . import hcompany, herm, openai_sessions
from .table import Case, Fault, Outcome, readme

pytestmark = pytest.mark.anyio

README: Final = Path(__file__).parents[3] / "README.md"
SYSTEMS: Final[Any] = {"openai": openai_sessions, "hcompany": hcompany, "herm": herm}
SLOW: Final = {"openai", "hcompany"}
"""Whose own packages take long to import."""


def cases(*, vendors: bool) -> list[Any]:
    return [
        pytest.param(system, case, id=f"{name}-{case}", marks=[pytest.mark.slow] if vendors and name in SLOW else [])
        for name, system in SYSTEMS.items()
        for case in system.CASES
        if (case.vendor is not None if vendors else case.fault is not Fault.KILLED)
    ]


@pytest.mark.parametrize(("system", "case"), cases(vendors=True))
async def test_what_becomes_of_a_fault_with_the_vendors_helper(system: Any, case: Case) -> None:
    assert await system.vendor(case) == case.vendor


@pytest.mark.parametrize(("system", "case"), cases(vendors=False))
async def test_whatever_happens_the_tool_runs_once_and_its_result_counts_once(system: Any, case: Case) -> None:
    assert await system.ours(case) == case.right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "post", "read"),
    [
        pytest.param(system, post, read, id=f"{name}: {post}, {read}")
        for name, system in SYSTEMS.items()
        for post, read in product(system.POSTS, system.READS)
    ],
)
async def test_a_post_that_fails_while_nothing_can_be_read_changes_nothing(system: Any, post: str, read: str) -> None:
    meanwhile = system.arm(system.POSTS[post], *system.READS[read])
    assert await system.ours(system.case(Fault.DEAF, meanwhile=meanwhile)) == Outcome()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", SYSTEMS)
async def test_whatever_goes_wrong_all_the_time_every_call_runs_once_and_counts_once(name: str, seed: int) -> None:
    system, random = SYSTEMS[name], Random(seed)

    async def meanwhile(sim: Any, no: str) -> None:
        reads = random.choice([*system.READS.values()])
        await system.arm(*random.choices([*system.POSTS.values()], k=random.randint(0, 3)), *reads)(sim, no)

    outcome = await system.ours(replace(system.LONG, meanwhile=meanwhile))
    told = tuple(sorted(outcome.told))
    assert replace(outcome, told=told) == Outcome(4, tuple(f'{{"booked":"{no}"}}' for no in "1234"))


def test_every_fault_is_played() -> None:
    assert {case.fault for system in SYSTEMS.values() for case in system.CASES} == set(Fault)


def test_the_readme_has_the_table() -> None:
    assert readme(*(system.CASES for system in SYSTEMS.values())) in README.read_text()


def test_an_outcome_that_is_right_has_a_tick_and_any_other_says_what_is_wrong() -> None:
    right = Outcome(2, ("a", "b"))
    assert right.against(right) == "✓"
    assert Outcome(1, ("a",)).against(right) == "not run"
    assert Outcome(3, ("a", "b"), 1).against(right) == "runs twice, sent twice"
    assert Outcome(2, ("a",), ended="waits").against(right) == "waits for ever, result lost"
    assert Outcome(2, ("b", "a")).against(right) == "one by one"
    assert Outcome(2, ("c", "b"), ended="OSError").against(right) == "raises `OSError`, `c`"
