"""Observers: each sees every step, in order, and under the name that the session is to be known by."""

from __future__ import annotations

import logging

import pytest

from bridge.core.conversation import Step
from bridge.core.events import SpeechStarted, SpeechStopped
from bridge.session.observers import Observers
from bridge.session.standing import Standing

pytestmark = pytest.mark.anyio

FIRST, SECOND = Step((SpeechStarted(),)), Step((SpeechStopped(),))


class Notebook:
    """What an observer has seen, each step with the session's name at that moment."""

    def __init__(self, standing: Standing) -> None:
        self.seen: list[tuple[str, Step]] = []
        self._standing = standing

    def __call__(self, step: Step) -> None:
        self.seen.append((self._standing.id, step))


async def test_what_happens_before_the_session_has_its_name_is_told_under_that_name() -> None:
    standing = Standing("early")
    notebook = Notebook(standing)
    observers = Observers(standing, [notebook], waiting=True)
    observers.saw(FIRST)
    assert observers.waiting
    assert notebook.seen == []
    standing.id = "named"
    observers.begin()
    observers.saw(SECOND)
    assert not observers.waiting
    assert notebook.seen == [("named", FIRST), ("named", SECOND)]


async def test_without_waiting_everything_is_told_at_once() -> None:
    standing = Standing("here")
    notebook = Notebook(standing)
    observers = Observers(standing, [notebook], waiting=False)
    observers.saw(FIRST)
    assert notebook.seen == [("here", FIRST)]


async def test_an_observer_that_fails_is_left_out_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    standing = Standing("here")
    notebook = Notebook(standing)
    failures: list[Step] = []

    def fail(step: Step) -> None:
        failures.append(step)
        raise RuntimeError

    observers = Observers(standing, [fail, notebook], waiting=False)
    with caplog.at_level(logging.ERROR, "bridge.session"):
        observers.saw(FIRST)
        observers.saw(SECOND)
    assert failures == [FIRST]
    assert notebook.seen == [("here", FIRST), ("here", SECOND)]
    assert caplog.messages == ["session here: an observer failed and is left out from now on"]
