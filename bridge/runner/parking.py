"""Calls whose outcome comes from elsewhere: a worker, a browser, a person. Each is completed once, or too late.

A tool that returns `Parked` leaves its call open under its ticket. Whoever has the ticket may complete it, from any
thread, also before the tool has returned; saying the same again is fine.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ..errors import ToolBusy, ToolError
from ..tools.encode import encode

__all__ = ["Answer", "Completion", "Parking", "Verdict", "Waiting", "Watcher"]

_REMEMBERED = 10_000
"""Calls whose end is remembered, so that a repeated completion is recognised."""


class Verdict(Enum):
    """What became of a completion."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    """The same has been said before."""
    CONFLICT = "conflict"
    """Something else has been said before, and stands."""
    EXPIRED = "expired"
    """Too late: the call has been answered, or is not wanted any more. To try again is vain."""
    UNKNOWN = "unknown"
    """No such call runs, or it does not wait for anybody."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about a call: its result, or why there is none."""

    output: str = field(default="null", repr=False)
    """JSON text."""
    error: str = field(default="", repr=False)
    """A sentence for the model; empty if all went well."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of a completion, and which answer stands."""

    verdict: Verdict
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that its tool has left open."""

    ticket: str
    session_id: str
    tool: str
    since: float
    """When it did, in seconds since 1970."""


class Watcher(Protocol):
    """Is told of calls, on the tools' event loop, and must not block."""

    def opened(self) -> None:
        """Some call may be completed from now on."""
        ...

    def left(self, call: Waiting) -> None:
        """The tool of this one is done, and its outcome is to come."""
        ...

    def over(self, call: Waiting) -> None:
        """What it waited for is over."""
        ...


@dataclass(slots=True, eq=False)
class _Open:
    """A call that may be completed."""

    result_limit: int
    answer: Answer | None = None
    left: Waiting | None = None
    over: asyncio.Future[None] | None = None
    """Both there once its tool has left it open."""


class Parking:
    """The open calls of a process. They wait on the tools' event loop; they may be completed from any thread."""

    def __init__(self, limit: int) -> None:
        self.watcher: Watcher | None = None
        self._limit = limit
        self._open: dict[str, _Open] = {}
        self._past: dict[str, Answer | None] = {}
        """Calls that have waited, and what came of it."""
        self._waiting = 0
        self._lock = threading.Lock()

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """The calls that wait."""
        with self._lock:
            return tuple(each.left for each in self._open.values() if each.left is not None and each.answer is None)

    def open(self, ticket: str, result_limit: int) -> None:
        """From now on the call may be completed."""
        with self._lock:
            self._open[ticket] = _Open(result_limit)
        if self.watcher is not None:
            self.watcher.opened()

    def has(self, ticket: str) -> bool:
        """Is this a call of ours that may be completed?"""
        with self._lock:
            return ticket in self._open

    def close(self, ticket: str) -> Answer | None:
        """From now on it is too late. The answer, if it was in time."""
        with self._lock:
            left = self._open.pop(ticket, None)
            if left is None:
                return self._past.get(ticket)
            if left.left is not None:
                self._waiting -= 1
            if left.left is not None or left.answer is not None:
                self._past[ticket] = left.answer
                if len(self._past) > _REMEMBERED:
                    del self._past[next(iter(self._past))]
        if left.left is not None and self.watcher is not None:
            self.watcher.over(left.left)
        return left.answer

    def leave(self, ticket: str, session_id: str, tool: str, since: float | None = None) -> Awaitable[Answer]:
        """The tool of an open call is done, since now or since then, and the outcome is to come: await it.

        Raises `ToolBusy` if too many calls wait already; the outcome raises `ToolError` if the work failed.
        """
        call = Waiting(ticket, session_id, tool, time.time() if since is None else since)
        over = asyncio.get_running_loop().create_future()
        with self._lock:
            left = self._open[ticket]
            if self._waiting >= self._limit:
                raise ToolBusy("too many calls wait for their outcome already: what comes of this one is not known")
            left.left, left.over, self._waiting = call, over, self._waiting + 1
            if left.answer is not None:
                over.set_result(None)
        if self.watcher is not None:
            self.watcher.left(call)
        return _outcome(left, over)

    def complete(self, ticket: str, value: object) -> Completion:
        """The work has come to this. Raises `Unencodable` or `TooLarge` for what cannot be a result."""
        return self._answer(ticket, self.result(ticket, value))

    def fail(self, ticket: str, sentence: str) -> Completion:
        """There will be no result; the sentence is for the model."""
        return self._answer(ticket, Answer(error=sentence or "it failed"))

    def result(self, ticket: str, value: object) -> Answer:
        """What the work has come to, as the call may have it. Raises `Unencodable` or `TooLarge`."""
        return Answer(encode(value, self._result_limit(ticket)))

    def give(self, ticket: str, answer: Answer) -> Completion:
        """What has been said elsewhere about a call. A result that the call cannot have becomes a failure."""
        limit = self._result_limit(ticket)
        if limit is not None and len(answer.output.encode()) > limit:
            answer = Answer(error=f"its result is larger than {limit} bytes")
        return self._answer(ticket, answer)

    def heard(self, ticket: str, answer: Answer) -> Completion | None:
        """What becomes of this answer, if the call has one already or is over; changes nothing."""
        with self._lock:
            left = self._open.get(ticket)
            if left is None:
                return self._late(ticket, answer) if ticket in self._past else None
            return None if left.answer is None else _again(left.answer, answer)

    def _result_limit(self, ticket: str) -> int | None:
        with self._lock:
            left = self._open.get(ticket)
        return None if left is None else left.result_limit

    def _answer(self, ticket: str, answer: Answer) -> Completion:
        with self._lock:
            left = self._open.get(ticket)
            if left is None:
                return self._late(ticket, answer)
            if left.answer is not None:
                return _again(left.answer, answer)
            left.answer = answer
            over = left.over
        if over is not None:
            with suppress(RuntimeError):  # the tools' loop has closed, and nobody waits there any more
                over.get_loop().call_soon_threadsafe(_wake, over)
        return Completion(Verdict.ACCEPTED, answer)

    def _late(self, ticket: str, answer: Answer) -> Completion:
        if ticket not in self._past:
            return Completion(Verdict.UNKNOWN)
        before = self._past[ticket]
        return Completion(Verdict.EXPIRED) if before is None else _again(before, answer)


async def _outcome(left: _Open, over: asyncio.Future[None]) -> Answer:
    await over
    assert left.answer is not None
    if left.answer.error:
        raise ToolError(left.answer.error)
    return left.answer


def _again(before: Answer, answer: Answer) -> Completion:
    return Completion(Verdict.REPEATED if _meaning(answer) == _meaning(before) else Verdict.CONFLICT, before)


def _meaning(answer: Answer) -> tuple[str, str]:
    """The same for the same JSON value, however it is spelled: a client may order the fields anew for each attempt."""
    return json.dumps(json.loads(answer.output), sort_keys=True), answer.error


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
