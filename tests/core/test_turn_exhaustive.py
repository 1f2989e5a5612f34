"""Every reachable state of the turn machine in small worlds, and the invariants in each of them.

The number of states of each world is kept as a lower bound, so that a walk that has lost its way is noticed.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from bridge.core.dialect import Delivery

from .walk import (
    BETWEEN,
    CAREFUL,
    CAREFUL_EAGER,
    CAREFUL_SILENT,
    EAGER,
    HELD,
    PLAIN,
    RECORD,
    SILENT,
    Choice,
    World,
    walk,
)

ALL = (PLAIN, CAREFUL, HELD, EAGER, SILENT, CAREFUL_SILENT, BETWEEN, CAREFUL_EAGER)
FEW = (PLAIN, CAREFUL, HELD)
MAIN = Delivery()
QUIET = Delivery(void=False)
WRITTEN = Delivery(hold=False, asks=False, speech=False)


def _named(switches: tuple[bool, ...]) -> str:
    names = ("hold", "whole_turn", "asks", "void")
    return " ".join(name if on else "-" for name, on in zip(names, switches, strict=True))


DELIVERIES = {_named(switches): Delivery(*switches) for switches in product((True, False), repeat=4)}
every_delivery = pytest.mark.parametrize("delivery", DELIVERIES.values(), ids=DELIVERIES.keys())

# Each with the least number of states it must have. A world that is part of one further down is not walked by itself.
WORLDS: dict[str, tuple[World, int]] = {
    "two calls, replies without ids": (World(MAIN, 2, (PLAIN, CAREFUL), reply_ids=False), 1_350),
    "one call that may be cancelled": (World(MAIN, 1, ALL, cancelling=True), 300),
    "one call, words": (World(MAIN, 1, ALL, words=True), 620),
    "one call, a link that drops, nothing void": (World(QUIET, 1, (*FEW, EAGER, SILENT), link=True), 3_900),
    "two calls that may be parked": (World(MAIN, 2, (PLAIN, CAREFUL), parking=True), 1_700),
    "one call that may be parked, a link that drops": (World(MAIN, 1, (PLAIN, EAGER), link=True, parking=True), 4_500),
    "two calls, one for the record": (World(MAIN, 2, (PLAIN, RECORD)), 600),
    "two calls, one for the record, nothing void": (World(QUIET, 2, (PLAIN, RECORD)), 600),
    "two calls for the record, whole turns": (World(Delivery(whole_turn=True), 2, (PLAIN, RECORD)), 600),
    "one call, something to say, nobody speaks": (World(WRITTEN, 1, (PLAIN,), asking=True), 100),
    "something to say to an agent that may be paused": (World(WRITTEN, 1, (PLAIN,), asking=True, pausing=True), 200),
    "two calls, something to say, nobody speaks": (World(WRITTEN, 2, (PLAIN,), asking=True), 1_000),
    "a link that drops, something to say, nothing void": (World(QUIET, 1, (PLAIN,), link=True, asking=True), 16_000),
}

LONG_WORLDS: dict[str, tuple[World, int]] = {
    "three calls": (World(MAIN, 3, FEW), 23_500),
    "two calls, a link that drops": (World(MAIN, 2, (PLAIN,), link=True), 47_000),
    "two calls, two things to say": (World(MAIN, 2, (PLAIN, CAREFUL), asking=True, sayings=2), 20_000),
    "two calls, every choice, cancelled": (World(MAIN, 2, ALL, cancelling=True), 10_900),
    "two calls, words": (World(MAIN, 2, FEW, words=True), 2_700),
    "one call, every choice, a link that drops, something to say": (
        World(MAIN, 1, ALL, link=True, asking=True),
        49_000,
    ),
}


pytestmark = pytest.mark.timeout(300)  # a walk under coverage takes four times as long


def _marked(worlds: dict[str, tuple[World, int]]) -> list[Any]:
    """The large ones take their time."""
    slow = {name: [pytest.mark.slow] if at_least > 500 else [] for name, (_, at_least) in worlds.items()}
    return [pytest.param(*world, id=name, marks=slow[name]) for name, world in worlds.items()]


def check_walk(world: World, at_least: int) -> None:
    report = walk(world)
    print(f"{report.states} states, {report.transitions} transitions")
    assert report.states > at_least


@pytest.mark.parametrize(("world", "at_least"), _marked(WORLDS))
def test_the_invariants_hold_in_every_state(world: World, at_least: int) -> None:
    check_walk(world, at_least)


@pytest.mark.parametrize("choices", [(PLAIN,), (HELD,), (BETWEEN,)], ids=["plain", "held", "between"])
def test_nothing_waits_that_may_go(choices: tuple[Choice, ...]) -> None:
    check_walk(World(MAIN, 2, choices, prompt=True), 140)


@every_delivery
def test_the_invariants_hold_for_every_delivery_with_one_call(delivery: Delivery) -> None:
    check_walk(World(delivery, 1, ALL), 230)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("world", "at_least"), LONG_WORLDS.values(), ids=LONG_WORLDS.keys())
def test_the_invariants_hold_in_every_state_of_a_large_world(world: World, at_least: int) -> None:
    check_walk(world, at_least)


@pytest.mark.slow
@every_delivery
def test_the_invariants_hold_for_every_delivery_with_two_calls_and_every_choice(delivery: Delivery) -> None:
    check_walk(World(delivery, 2, ALL), 2_600)


@pytest.mark.slow
@every_delivery
def test_the_invariants_hold_for_every_delivery_with_two_things_to_say(delivery: Delivery) -> None:
    check_walk(World(delivery, 1, (*FEW, EAGER), asking=True, sayings=2), 1_900)
