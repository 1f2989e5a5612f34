"""What of a session's way back is decided without a network: pauses, verdicts, changes in line, and numbered lines."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import pytest

from bridge import AuthenticationFailed, CallKey, SessionReady, SetupAccepted, TransportError
from bridge.core.events import Frame
from bridge.errors import AtCapacity, BridgeError, ConfigurationRefused, SessionClosed
from bridge.session.changes import Change, Changes
from bridge.session.connection import Connection, Opening
from bridge.session.reconnect import Outage, is_drop, pauses, persist

pytestmark = pytest.mark.anyio


# --------------------------------------------------------------------------------------------------- again, and again


@pytest.mark.parametrize(
    ("chance", "expected"),
    [
        (0.5, [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0]),
        (0.0, [0.0, 0.1875, 0.375, 0.75, 1.5, 3.0, 3.75, 3.75]),
        (1.0, [0.0, 0.3125, 0.625, 1.25, 2.5, 5.0, 6.25, 6.25]),
    ],
)
def test_the_first_try_is_at_once_and_the_pauses_double_up_to_a_limit(chance: float, expected: list[float]) -> None:
    assert list(islice(pauses(lambda: chance), 8)) == expected


@pytest.mark.parametrize("code", [None, 1001, 1005, 1006, 1011, 1012, 1013, 1014])
def test_a_network_or_a_server_that_fails_leaves_the_session_alive(code: int | None) -> None:
    assert is_drop(code)


@pytest.mark.parametrize("code", [1000, 1002, 1003, 1007, 1008, 1009, 1010, 3005, 3006, 4000])
def test_any_other_close_code_is_a_verdict(code: int) -> None:
    assert not is_drop(code)


def outage(earlier: Outage | None, *, up_since: float, now: float) -> Outage:
    return Outage.after(earlier, up_since=up_since, now=now, limit=30.0, random=lambda: 0.5)


def test_a_connection_that_does_not_last_ends_no_outage() -> None:
    first = outage(None, up_since=0.0, now=100.0)
    assert (first.deadline, next(first.pauses)) == (130.0, 0.0)
    again = outage(first, up_since=101.0, now=105.9)
    assert (again.deadline, next(again.pauses)) == (130.0, 0.25)


def test_a_connection_that_has_lasted_does() -> None:
    first = outage(None, up_since=0.0, now=100.0)
    next(first.pauses)
    other = outage(first, up_since=101.0, now=106.0)
    assert (other.deadline, next(other.pauses)) == (136.0, 0.0)


class Tries:
    """Attempts that end like this, one after the other, and the pauses between them."""

    def __init__(self, *ends: str | Exception) -> None:
        self._ends = iter(ends)
        self.pauses: list[float] = []
        self.failures: list[BridgeError] = []

    async def attempt(self) -> str:
        end = next(self._ends)
        if isinstance(end, Exception):
            raise end
        return end

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def persist(self) -> str:
        return await persist(self.attempt, pauses(lambda: 0.5), self.failures.append, sleep=self.sleep)


async def test_what_another_try_may_change_is_tried_again() -> None:
    broken, full = TransportError("broken"), AtCapacity("full")
    tries = Tries(broken, full, "there")
    assert await tries.persist() == "there"
    assert tries.pauses == [0.0, 0.25, 0.5]
    assert tries.failures == [broken, full]


@pytest.mark.parametrize("final", [AuthenticationFailed("no"), ConfigurationRefused("no"), SessionClosed("no")])
async def test_what_no_try_would_change_is_raised_at_once(final: Exception) -> None:
    tries = Tries(final, "there")
    with pytest.raises(type(final)):
        await tries.persist()
    assert (tries.pauses, tries.failures) == ([0.0], [])


# ------------------------------------------------------------------------------------------------------------ changes

ACCEPTED = SetupAccepted()


def state(*changes: Change) -> list[str]:
    """What has become of each."""

    def of(change: Change) -> str:
        if not change.answer.done():
            return "sent" if change.sent.done() else "waits"
        return "refused" if change.answer.exception() else "accepted"

    return [of(change) for change in changes]


async def test_answers_belong_to_the_changes_in_the_order_in_which_they_were_sent() -> None:
    changes = Changes()
    one, other = changes.add("1", {"volume": 1}), changes.add("2", {"volume": 2})
    assert list(changes.send()) == ["1", "2"]
    assert state(one, other) == ["sent", "sent"]
    changes.accepted(ACCEPTED)
    assert changes.refused(ValueError())
    assert state(one, other) == ["accepted", "refused"]
    assert changes.settings == {"volume": 1}


async def test_answers_to_nothing_change_nothing() -> None:
    changes = Changes()
    changes.accepted(ACCEPTED)
    changes.tools_sent()
    assert not changes.refused(ValueError())
    waiting = changes.add("1")
    changes.accepted(ACCEPTED)
    assert state(waiting) == ["waits"]


async def test_what_was_not_answered_when_the_connection_broke_is_sent_again_before_what_was_not_sent() -> None:
    changes = Changes()
    changes.add("1")
    changes.add("2")
    list(changes.send())
    changes.add("3")
    changes.connection_lost()
    assert list(changes.send()) == ["1", "2", "3"]


async def test_of_lists_of_tools_that_were_not_answered_the_last_stands_for_all() -> None:
    changes = Changes()
    first = changes.replace()
    changes.tools_sent()
    second = changes.replace()
    changes.tools_sent()
    changes.connection_lost()
    changes.connection_lost()
    third = changes.replace()
    assert third is second
    changes.tools_sent()
    third = changes.replace()
    changes.connection_lost()
    assert state(first, second, third) == ["sent", "sent", "waits"]
    changes.tools_sent()
    changes.accepted(ACCEPTED)
    assert state(first, second, third) == ["accepted"] * 3


async def test_settings_that_are_repeated_come_first_and_are_merged_at_every_depth() -> None:
    changes = Changes()
    changes.add("1", {"extra": {"input": {"a": 1}, "b": 2}})
    changes.add("2", {"extra": {"input": {"c": 3}, "b": {}}, "volume": 4})
    list(changes.send())
    changes.taken_for_granted()
    assert changes.settings == {"extra": {"input": {"a": 1, "c": 3}, "b": {}}, "volume": 4}
    changes.add("3")
    changes.repeat("again")
    assert list(changes.send()) == ["again", "3"]


async def test_nobody_waits_for_an_answer_after_the_end() -> None:
    changes = Changes()
    asked = changes.add("1")
    list(changes.send())
    sent = changes.replace()
    changes.tools_sent()
    waiting, tools = changes.add("2"), changes.replace()
    changes.fail(SessionClosed("over"))
    for change in (asked, sent, waiting, tools):
        with pytest.raises(SessionClosed):
            await change.answer
    assert (list(changes.send()), changes.tools_wait) == ([], False)


# ------------------------------------------------------------------------------------------------------ numbered lines


class Pipe:
    """A transport in the hands of a test."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame | TransportError] = asyncio.Queue()
        self.taken: list[Frame] = []
        self.takes = asyncio.Event()
        self.takes.set()
        self.closed = False

    async def receive(self) -> Frame:
        frame = await self.frames.get()
        if isinstance(frame, TransportError):
            raise frame
        return frame

    async def send(self, frame: Frame) -> None:
        await self.takes.wait()
        self.taken.append(frame)

    async def aclose(self) -> None:
        self.closed = True


class Log(list[Any]):
    def connection(self) -> Connection:
        return Connection(self.append, self.append, self.append)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_an_old_transport_says_is_dropped() -> None:
    log, old, new = Log(), Pipe(), Pipe()
    connection = log.connection()
    connection.take(old, Opening.SETUP)
    old.takes.clear()
    connection.outbox.put(("result",), (CallKey(0, "c1"),))
    await settle()
    connection.take(new, Opening.RESUME)
    old.takes.set()
    old.frames.put_nowait("late")
    old.frames.put_nowait(TransportError("broken"))
    new.frames.put_nowait("hello")
    await settle()
    assert log == ["hello"]
    await connection.aclose()


async def test_a_transport_that_breaks_is_told_once_and_nothing_is_sent_any_more() -> None:
    log, pipe = Log(), Pipe()
    connection = log.connection()
    connection.take(pipe, Opening.SETUP)
    broken = TransportError("broken")
    pipe.frames.put_nowait(broken)
    await settle()
    connection.outbox.put(("too late",))
    await settle()
    assert log == [broken]
    assert pipe.taken == []
    await connection.aclose()
    assert pipe.closed


async def test_the_first_answer_counts() -> None:
    connection = Log().connection()
    connection.take(Pipe(), Opening.SETUP)
    assert connection.opens
    connection.answers(SessionReady("s1"))
    connection.answers(SessionReady("s2"))
    connection.fails(TransportError("broken"))
    assert await connection.answered(1.0) == SessionReady("s1")
    await connection.aclose()


async def test_an_answer_that_fails_or_never_comes_is_a_transport_error() -> None:
    connection = Log().connection()
    connection.take(Pipe(), Opening.SETUP)
    with pytest.raises(TransportError, match=r"did not become ready within 0\.01 s"):
        await connection.answered(0.01)
    connection.fails(TransportError("broken"))
    with pytest.raises(TransportError, match="broken"):
        await connection.answered(1.0)
    await connection.aclose()
