"""Changes of a running session's settings and tools, from the host's wish to the provider's answer.

The provider answers them in the order in which they were sent, and says with none of its answers which one is meant. So
each stays in line until it is answered, even if nobody waits for it any more. What a lost connection leaves unanswered
is sent again: a change only sets values, so that it does no harm twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.events import Frame, SetupAccepted

__all__ = ["Change", "Changes"]


def _future() -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody may ask for it, nobody must
    return future


@dataclass(slots=True, eq=False)
class Change:
    """One change. `sent` is done once it has been given to the provider, `answer` once that has answered."""

    frame: Frame | None = None
    """The message; None for a new list of our tools, which the conversation sends when nobody speaks."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What it changes, by the names of the agent's settings."""
    earlier: tuple[Change, ...] = ()
    """Lists of tools that this one stands for, too."""
    sent: asyncio.Future[None] = field(default_factory=_future)
    answer: asyncio.Future[SetupAccepted] = field(default_factory=_future)

    def is_sent(self) -> None:
        """Tell whoever waits for it."""
        for each in (self, *self.earlier):
            if not each.sent.done():
                each.sent.set_result(None)

    def is_accepted(self, accepted: SetupAccepted) -> None:
        """Tell whoever waits for it."""
        for each in (self, *self.earlier):
            each.answer.set_result(accepted)

    def fails(self, error: Exception) -> None:
        """Tell whoever waits for it."""
        for each in (self, *self.earlier):
            for future in (each.sent, each.answer):
                if not future.done():
                    future.set_exception(error)


class Changes:
    """The changes of one session that have not been answered."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        """The settings that the provider has agreed to change, by name."""
        self._unsent: deque[Change] = deque()
        self._asked: deque[Change] = deque()
        self._tools: Change | None = None

    @property
    def tools_wait(self) -> bool:
        """Is there a new list of tools that has not been sent?"""
        return self._tools is not None

    def add(self, frame: Frame, settings: Mapping[str, Any] | None = None) -> Change:
        """A change of settings, to be sent next."""
        self._unsent.append(change := Change(frame, settings or {}))
        return change

    def repeat(self, frame: Frame) -> None:
        """Settings that a fresh session must be told again, before anything else."""
        self._unsent.appendleft(Change(frame))

    def replace(self) -> Change:
        """A new list of tools, or the one that waits already: of several, only the last is ever sent."""
        if self._tools is None:
            self._tools = Change()
        return self._tools

    def send(self) -> Iterator[Frame]:
        """What is to be sent now, in order; each counts as sent with that."""
        while self._unsent:
            change = self._unsent.popleft()
            assert change.frame is not None
            self._ask(change)
            yield change.frame

    def tools_sent(self) -> None:
        """The new list of tools is on its way."""
        if self._tools is not None:
            change, self._tools = self._tools, None
            self._ask(change)

    def _ask(self, change: Change) -> None:
        self._asked.append(change)
        change.is_sent()

    def accepted(self, event: SetupAccepted) -> None:
        """The provider agrees to the oldest one."""
        if self._asked:
            change = self._asked.popleft()
            self.settings = _merged(self.settings, change.settings)
            change.is_accepted(event)

    def refused(self, error: Exception) -> bool:
        """The provider does not agree to the oldest one. False if there is none."""
        if not self._asked:
            return False
        self._asked.popleft().fails(error)
        return True

    def taken_for_granted(self) -> None:
        """A provider that is ready has accepted what it was configured with, whether it said so or not."""
        while self._asked:
            self.accepted(SetupAccepted())

    def connection_lost(self) -> None:
        """What was not answered has to be sent again."""
        asked, self._asked = self._asked, deque()
        self._unsent.extendleft(change for change in reversed(asked) if change.frame is not None)
        lists = [change for change in asked if change.frame is None]
        if lists:
            latest = self._tools or lists.pop()
            latest.earlier = (*latest.earlier, *(each for old in lists for each in (old, *old.earlier)))
            self._tools = latest

    def fail(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        for change in (*self._unsent, *self._asked, *([self._tools] if self._tools else ())):
            change.fails(error)
        self._unsent.clear()
        self._asked.clear()
        self._tools = None


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both in one, at every depth; where they differ, `over` wins."""
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return both
