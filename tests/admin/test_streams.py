"""Server-sent events, read over a real socket: nothing is missed in silence, and nobody is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bridge import CallKey, ToolCall, ToolResult
from bridge.admin import Desk, Feed, server
from bridge.admin import subject as subject_module
from bridge.admin.feed import End, Event
from bridge.admin.shown import fact_of
from bridge.admin.streams import resumed_after
from bridge.core.events import (
    CallsCancelled,
    Discard,
    FillerDue,
    FollowUp,
    HeldBy,
    Hold,
    Ignored,
    Malformed,
    Passed,
    ProviderFailed,
    ReplyDone,
    ReplyRequest,
    Run,
    SayAsked,
    Sent,
    SessionEnded,
    SessionOpened,
    SessionReady,
    SpeechStarted,
    ToolCalled,
    ToolFinished,
    ToolResults,
    ToolsNotTaken,
)
from bridge.errors import JournalError
from bridge.runner.approvals import ApprovalRequest
from bridge.runner.post import Post
from tests.admin.rig import BOSS, READER, Host, desk, served

pytestmark = pytest.mark.anyio

SECRET = "a secret"
KEY = CallKey(1, "c1")
CALL = ToolCall("c1", "order", f'{{"item":"{SECRET}"}}')
RESULT = ToolResult("c1", f'"{SECRET}"', name="order")


# ---------------------------------------------------------------------------------------------------------------- facts


@pytest.mark.parametrize(
    ("fact", "details"),
    [
        (Run(KEY, CALL), {"key": "s1.1.c1", "tool": "order"}),
        (ToolCalled(CALL), {"call_id": "c1", "tool": "order"}),
        (ToolFinished(KEY, RESULT), {"key": "s1.1.c1", "tool": "order", "outcome": "ok"}),
        (FollowUp(KEY, ToolResult("c1", SECRET, is_error=True)), {"key": "s1.1.c1", "tool": "", "outcome": "error"}),
        (ToolResults((RESULT,), keys=(KEY,)), {"keys": ["s1.1.c1"]}),
        (Sent((KEY,)), {"keys": ["s1.1.c1"]}),
        (Hold(KEY, HeldBy.USER), {"key": "s1.1.c1", "reason": "user"}),
        (Discard(KEY), {"key": "s1.1.c1", "reason": "interrupted"}),
        (FillerDue(KEY, SECRET), {"key": "s1.1.c1"}),
        (CallsCancelled(("c1",)), {"call_ids": ["c1"]}),
        (SessionOpened("assemblyai", "relay"), {"dialect": "assemblyai", "mode": "relay"}),
        (SessionReady("p1", SECRET), {"provider_session_id": "p1"}),
        (SessionEnded("it is over"), {"reason": "it is over"}),
        (ReplyDone(True), {"interrupted": True}),
        (ProviderFailed("no_money", SECRET, True), {"code": "no_money", "fatal": True}),
        (Passed(Ignored.REPEATED_CALL, SECRET), {"reason": "repeated_call"}),
        (ToolsNotTaken(("order",)), {"tools": ["order"]}),
        (SpeechStarted(message={"text": SECRET}), {}),
        (Malformed(SECRET), {}),
        (SayAsked(SECRET), {}),
        (ReplyRequest(SECRET), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_of_a_fact_its_names_keys_and_outcome_are_shown_and_never_what_was_said(fact: Any, details: Any) -> None:
    assert fact_of("s1", fact) == {"session": "s1", "fact": type(fact).__name__, **details}


@pytest.mark.slow
async def test_facts_come_as_they_happen_and_only_those_of_the_session_that_was_asked_for() -> None:
    async with desk(at=served, token=READER) as (host, port):
        async with port.stream("/v1/facts") as stream, port.stream("/v1/facts?session=s2") as second:
            host.see(Run(KEY, CALL))
            host.see(SpeechStarted(), session="s2")
            name, data, identity = await stream.next()
            assert (name, data["session"], data["fact"], data["tool"]) == ("fact", "s1", "Run", "order")
            assert data["at"] > 0
            assert (await stream.next())[1]["fact"] == "SpeechStarted"
            assert (await second.next())[1]["fact"] == "SpeechStarted"
        host.see(SessionEnded("one"), SessionEnded("two"))
        async with port.stream("/v1/facts", Last_Event_ID=identity) as stream:
            facts = [(await stream.next())[1]["fact"] for _ in range(3)]
    assert facts == ["SpeechStarted", "SessionEnded", "SessionEnded"]


@pytest.mark.slow
async def test_a_reader_that_comes_back_after_a_restart_is_told_that_events_are_missing() -> None:
    async with desk(at=served) as (host, port):
        host.see(SpeechStarted())
        async with port.stream("/v1/facts", Last_Event_ID="0000-17") as stream:
            name, data, _ = await stream.next()
            assert (name, "missing" in data["error"]) == ("lost", True)
            assert (await stream.next())[1]["fact"] == "SpeechStarted"
            host.see(SessionEnded("it is over"))
            assert (await stream.next())[1]["fact"] == "SessionEnded"


class Slow(Desk):
    """A desk of which only two events are kept."""

    async def follow(self) -> Feed:
        return self.feed

    feed: Feed


@pytest.mark.slow
async def test_a_reader_that_is_too_slow_is_told_and_dropped_and_nobody_waits_for_it() -> None:
    subject = Slow(Host())
    subject.feed = Feed(keep=2)
    async with served(subject) as port, port.stream("/v1/facts") as stream:
        subject.feed.put("fact", {"session": "s1"})
        await stream.next()
        for _ in range(4):  # in one step of the loop, in which nobody can read
            subject.feed.put("fact", {"session": "s1"})
        assert (await stream.next())[0] == "lost"
        assert await stream.block() == []


@pytest.mark.slow
async def test_a_peer_that_reads_nothing_is_dropped_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNREAD_SECONDS", 1)
    subject = Slow(Host())
    subject.feed = Feed()
    async with served(subject, token=READER) as port:
        number = int(port.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", number, limit=1024)
        try:
            head = f"GET /v1/facts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READER}\r\n\r\n"
            writer.write(head.encode())
            await reader.readuntil(b": open")
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # the transport of a socket can
            while subject.feed._readers:
                subject.feed.put("fact", {"session": "s1", "text": "x" * 100_000})
                await asyncio.sleep(0.01)
        finally:
            writer.transport.abort()


@pytest.mark.slow
async def test_a_stream_shows_signs_of_life_and_ends_with_the_process() -> None:
    subject = Desk(host := Host())
    async with served(subject, alive=0.001) as port, port.stream("/v1/facts") as stream:
        assert await stream.block() == [": alive"]
        async with port.stream("/v1/approvals/stream") as approvals:
            assert await approvals.block() == [": alive"]
            subject.close()
            while await stream.block():
                pass
            while await approvals.block():
                pass
    await host.aclose()


@pytest.mark.slow
async def test_only_so_many_streams_are_open_at_once() -> None:
    async with desk(at=served, at_most=1) as (host, port):
        async with port.stream("/v1/approvals/stream"):
            answer = await port.get("/v1/facts")
            assert (answer.status_code, answer.json()["retryable"]) == (503, True)
        await gone(lambda: not host.approvals.attended)
        async with port.stream("/v1/facts"):
            pass


async def gone(true: Callable[[], bool]) -> None:
    """Wait until a stream that was left is closed on the other side, too."""
    while not true():  # noqa: ASYNC110 - what is waited for is no event of ours
        await asyncio.sleep(0.001)


# ------------------------------------------------------------------------------------------------------------ approvals


@pytest.mark.slow
async def test_whoever_reads_the_stream_of_approvals_can_decide_so_requests_wait_for_them() -> None:
    async with desk(at=served, token=BOSS) as (host, port):
        before = await host.asking("a0")
        async with port.stream("/v1/approvals/stream") as stream:
            name, data, _ = await stream.next()
            assert (name, data["id"], data["arguments"]) == ("asked", before, {"amount": 3, "card": "(masked)"})
            assert host.approvals.attended
            asked = await host.asking("a1")
            name, data, _ = await stream.next()
            assert (name, data["id"]) == ("asked", asked)
            await port.post(f"/v1/approvals/{asked}", {"decision": "deny"})
            name, data, _ = await stream.next()
            assert (name, data) == (
                "resolved",
                {"id": asked, "session": "s1", "tool": "refund", "resolution": "denied", "by": "boss"},
            )
        await gone(lambda: not host.approvals.attended)


@pytest.mark.slow
async def test_requests_of_other_processes_come_and_go_in_the_stream_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_module, "_LOOK_SECONDS", 0.001)
    others: list[ApprovalRequest] = []
    away = True

    async def elsewhere() -> tuple[ApprovalRequest, ...]:
        if away:
            raise JournalError("the database is away")
        return tuple(others)

    async with desk(at=served, token=BOSS) as (host, port):
        host.runner.post = cast(Post, "a mailbox")
        host.runner.requests_elsewhere = elsewhere  # type: ignore[method-assign]  # as a database would tell it
        async with port.stream("/v1/approvals/stream") as stream:
            mine = await host.asking("a1")
            assert (await stream.next())[1]["id"] == mine
            others.append(ApprovalRequest("a7", "s7", CallKey(1, "c7"), "refund", "{}", "", 5.0, 60.0))
            away = False
            name, data, _ = await stream.next()
            assert (name, data["id"], data["elsewhere"]) == ("asked", "a7", True)
            others.clear()
            name, data, _ = await stream.next()
            assert (name, data["id"], data["resolution"]) == ("resolved", "a7", "elsewhere")
        host.runner.post = None


@pytest.mark.slow
async def test_a_request_that_several_tell_of_is_in_the_stream_once() -> None:
    feed = Feed()
    subject = Desk(host := Host())

    @asynccontextmanager
    async def attend() -> AsyncIterator[Feed]:
        yield feed

    subject.attend = attend  # type: ignore[method-assign]
    async with served(subject) as port, port.stream("/v1/approvals/stream") as stream:
        for name in ("resolved", "asked", "asked", "resolved", "resolved", "asked"):
            feed.put(name, {"id": "a1"})
        assert [(await stream.next())[0] for _ in range(3)] == ["asked", "resolved", "asked"]
    await host.aclose()


@pytest.mark.slow
async def test_a_token_that_may_only_read_is_nobody_who_could_decide() -> None:
    async with desk(at=served, token=READER) as (host, port):
        assert (await port.get("/v1/approvals/stream")).status_code == 403
        assert not host.approvals.attended


# ----------------------------------------------------------------------------------------------------------------- feed


async def test_a_reader_finds_each_event_once_and_in_order_however_it_waits() -> None:
    feed = Feed()
    feed.put("before", {})
    reader = feed.reader()
    waiting = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    feed.put("a", {})
    feed.put("b", {})
    assert await waiting == Event(2, "a", {})
    giving_up = asyncio.create_task(reader.next())
    assert await giving_up == Event(3, "b", {})
    giving_up = asyncio.create_task(reader.next())
    await asyncio.sleep(0)
    giving_up.cancel()
    await asyncio.wait([giving_up])
    await asyncio.to_thread(feed.put, "c", {})
    assert await reader.next() == Event(4, "c", {})
    feed.close()
    assert await reader.next() is End.CLOSED
    reader.close()


async def test_what_is_kept_no_longer_is_lost_and_reading_goes_on_with_the_oldest() -> None:
    feed = Feed(keep=2)
    assert await feed.reader(5).next() is End.LOST  # a number that it has never given
    reader = feed.reader(-1)
    assert await reader.next() is End.LOST
    for name in "abcd":
        feed.put(name, {})
    assert await feed.reader(2).next() == Event(3, "c", {})
    assert await reader.next() is End.LOST
    assert [await reader.next(), await reader.next()] == [Event(3, "c", {}), Event(4, "d", {})]


def test_an_id_is_taken_only_if_this_feed_has_given_it() -> None:
    feed = Feed()
    assert resumed_after(feed, None) is None
    assert resumed_after(feed, f"{feed.life}-7") == 7
    long = f"{feed.life}-" + 5000 * "9"
    for strange in ("", "7", "-", f"{feed.life}-", f"{feed.life}-x", "other-7", f"{feed.life}-7-7", long):
        assert resumed_after(feed, strange) == -1


def test_a_reader_whose_loop_is_closed_disturbs_nobody() -> None:
    feed = Feed()

    async def read() -> None:
        feed.reader()

    asyncio.run(read())
    feed.put("a", {})
    feed.close()
