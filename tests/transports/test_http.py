"""The HTTP transport against the offline provider, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import orjson
import pytest

from bridge.core.dialect import Endpoint, Message
from bridge.core.events import ToolResult, ToolResults
from bridge.core.http import Heard, HttpDialect, Request
from bridge.dialects.openai_sessions import OPENAI_SESSIONS, OpenAISessionsDialect, user_message
from bridge.errors import ConfigError, TransportError
from bridge.simulator.openai_sessions import (
    Ask,
    AwaitResults,
    Call,
    Cut,
    Effect,
    FailSession,
    Fate,
    Fault,
    On,
    Rules,
    Say,
    Scenario,
    Simulator,
    Tell,
    Verdict,
    Wait,
)
from bridge.transports.http import HttpTransport
from bridge.transports.patience import Patience, Pauses
from tests.sockets import connected, listening

pytestmark = pytest.mark.anyio

QUICK = Patience(first_pause=0.01, longest_pause=0.05, give_up=3.0, confirm_after=0.5, silence=5.0)
CREATE = {"create": {"environment": {"type": "openai_hosted"}, "agent": {"model": "m"}}}
ONE = (Ask((Call("where", id="a"),)), Tell())


def transport_to(
    url: str, patience: Patience = QUICK, dialect: HttpDialect = OPENAI_SESSIONS, **options: Any
) -> HttpTransport:
    return HttpTransport(dialect.endpoint(url, "k"), dialect, patience=patience, **options)


class Talk:
    """A transport, and what is read from it."""

    def __init__(self, transport: HttpTransport) -> None:
        self.transport = transport
        self.heard: list[Message] = []

    async def say(self, message: Message) -> None:
        await self.transport.send(orjson.dumps(message).decode())

    async def until(self, kind: str) -> Message:
        """Read until a message of this type."""
        while True:
            self.heard.append(orjson.loads(await self.transport.receive()))
            if self.heard[-1].get("type") == kind:
                return self.heard[-1]

    async def waits(self) -> Message:
        """Read until a call waits; the message that answers it."""
        event = await self.until("agent.session.requires_action")
        action = event["session"]["required_actions"][0]
        return answer(action["turn_id"], action["call_id"])

    @property
    def types(self) -> list[str]:
        return [message["type"].removeprefix("agent.session.") for message in self.heard]


def answer(turn_id: str, call_id: str, output: str = '"Graz"') -> Message:
    result = ToolResult(f"{turn_id}/{call_id}", output, echo=(("turn_id", turn_id),))
    (message,) = OPENAI_SESSIONS.encode_client(ToolResults((result,)))
    return message


@asynccontextmanager
async def talk(url: str, setup: Message = CREATE, **options: Any) -> AsyncIterator[Talk]:
    with anyio.fail_after(10):
        transport = transport_to(url, **options)
        try:
            talking = Talk(transport)
            await talking.say(setup)
            yield talking
        finally:
            await transport.aclose()


@asynccontextmanager
async def asked(scenario: Scenario, **options: Any) -> AsyncIterator[tuple[Simulator, Talk, Message]]:
    """A session whose first turn waits for the answer to a call."""
    async with Simulator(scenario) as sim, talk(sim.url, **options) as talking:
        await talking.until("agent.session.created")
        await talking.say(user_message("Where?"))
        yield sim, talking, await talking.waits()


def one(**rules: Any) -> Scenario:
    return Scenario((ONE,), Rules(**rules))


def posts_of(sim: Simulator) -> list[tuple[int, tuple[Verdict, ...]]]:
    return [(post.status, post.verdicts) for post in sim.ledger.posts if post.types == ("tool_result",)]


# ------------------------------------------------------------------------------------------------ setup


async def test_a_session_is_created_listened_to_and_read_before_anything_is_told() -> None:
    async with Simulator() as sim, talk(sim.url) as talking:
        await talking.until("agent.session.created")
        assert sim.ledger.listening == 1
        await talking.until("agent.session.read")
        assert talking.types == ["created", "read"]
        assert [request.method for request in sim.requests] == ["POST", "GET", "GET", "GET"]


async def test_a_session_that_runs_already_is_attached_to_and_its_calls_are_told() -> None:
    async with asked(one()) as (sim, talking, _), talk(sim.url, {"attach": sim.ledger.session_id}) as other:
        assert (await other.until("agent.session.created"))["session"]["id"] == sim.ledger.session_id
        await other.say(await other.waits())
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(202, (Verdict.ACCEPTED,))]


async def test_a_refused_setup_is_told_as_an_error() -> None:
    async with Simulator(api_key="another") as sim, talk(sim.url) as talking:
        assert (await talking.until("error"))["about"] == "setup"


async def test_a_provider_that_is_not_there_is_told_at_once() -> None:
    async with Simulator() as sim:
        url = sim.url
    with pytest.raises(TransportError, match="cannot connect"):
        async with talk(url):
            pass


async def test_an_answer_that_names_no_session_is_an_error() -> None:
    async with server(lambda *_: (200, b"{}")) as url:
        with pytest.raises(TransportError, match="named no session"):
            async with talk(url):
                pass


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="HTTP address"):
        HttpTransport(Endpoint("wss://host/path"), OPENAI_SESSIONS)


async def test_changed_settings_are_acknowledged() -> None:
    async with Simulator() as sim, talk(sim.url) as talking:
        await talking.until("agent.session.read")
        await talking.say({"metadata": {"a": "b"}})
        assert (await talking.until("agent.session.updated"))["session"]["metadata"] == {"a": "b"}


async def test_leaving_ends_the_reading_and_nothing_else() -> None:
    async with asked(one()) as (sim, talking, _):
        with pytest.raises(TransportError):
            await talking.say({"leave": {}})
        await talking.until("agent.session.left")
        with pytest.raises(TransportError):
            await talking.transport.receive()
        with pytest.raises(TransportError):
            await talking.say(user_message("Still there?"))
        assert sim.ledger.call("where").fate is Fate.OPEN


# ------------------------------------------------------------------------------------------------ posts


async def test_a_result_takes_one_request_and_is_not_looked_for_when_it_has_shown() -> None:
    async with asked(Scenario((ONE, ONE))) as (sim, talking, result):
        await talking.say(result)
        await talking.until("agent.session.idle")
        reads = sim.ledger.reads
        sim.fail(Fault(status=202))  # a fence: this one is lost and looked for, later than the first would have been
        await talking.say(user_message("And now?"))
        await talking.say(await talking.waits())
        await talking.until("agent.session.idle")
        assert sim.ledger.reads == reads + 1
        assert [verdicts[0] for _, verdicts in posts_of(sim)] == [Verdict.ACCEPTED, Verdict.LOST, Verdict.ACCEPTED]


@pytest.mark.parametrize("status", [503, 0])
async def test_a_result_that_was_taken_and_denied_is_not_posted_again(status: int) -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=status, effect=Effect.NOW))
        await talking.say(result)
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(status, (Verdict.ACCEPTED,))]


@pytest.mark.parametrize("status", [503, 0])
async def test_a_result_that_was_not_taken_is_posted_again_after_reading_back(status: int) -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=status))
        await talking.say(result)
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(status, ()), (202, (Verdict.ACCEPTED,))]
        kinds = [request.method for request in sim.requests if request.path.endswith(sim.ledger.session_id)]
        assert kinds == ["GET", "GET"]


async def test_nothing_is_posted_again_before_the_session_could_be_read() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=503, effect=Effect.NOW), Fault(on=On.READ, times=3))
        await talking.say(result)
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(503, (Verdict.ACCEPTED,))]
        assert sim.ledger.reads >= 5


async def test_an_accepted_result_that_was_lost_is_posted_again_under_another_key() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=202))
        await talking.say(result)
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(202, (Verdict.LOST,)), (202, (Verdict.ACCEPTED,))]
        assert len({post.key for post in sim.ledger.posts}) == 3


async def test_an_accepted_result_that_takes_its_time_is_not_posted_again() -> None:
    async with asked(one(apply_lag=0.1)) as (sim, talking, result):
        await talking.say(result)
        await talking.until("agent.session.idle")
        assert posts_of(sim) == [(202, (Verdict.ACCEPTED,))]


async def test_a_result_that_is_lost_every_time_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    quick = replace(QUICK, confirm_after=0.02, confirmations=2)
    async with asked(one(), patience=quick) as (sim, talking, result):
        sim.fail(Fault(status=202, times=9))
        with caplog.at_level(logging.ERROR, "bridge.http"):
            await talking.say(result)
            while not caplog.records:
                await talking.until("agent.session.requires_action")
        assert len(posts_of(sim)) == 3
        assert "Graz" not in caplog.text


async def test_a_result_of_which_no_event_tells_is_looked_for_once() -> None:
    both = (Ask((Call("where", id="a"), Call("when", id="b"))), Tell())
    async with asked(Scenario((both,))) as (sim, talking, result):
        reads = sim.ledger.reads
        await talking.say(result)
        await sim.until(lambda ledger: ledger.reads == reads + 1)
        await talking.say(answer(sim.ledger.calls[1].turn_id, "b"))
        await talking.until("agent.session.turn.completed")
        assert posts_of(sim) == [(202, (Verdict.ACCEPTED,))] * 2


async def test_a_session_that_is_gone_when_a_result_is_looked_for_is_over() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=202), Fault(on=On.READ, status=404, code="not_found_error"))
        await talking.say(result)
        with pytest.raises(TransportError, match="does not go on"):
            await talking.until("never")


async def test_a_result_that_is_wanted_no_more_is_let_go() -> None:
    async with asked(one()) as (sim, talking, result):
        await talking.say({"events": [{"type": "agent.session.input.cancel"}]})
        await talking.until("agent.session.turn.cancelled")
        await talking.say(result)
        assert posts_of(sim) == [(409, (Verdict.LATE,))]


async def test_a_result_of_a_call_that_is_not_registered_yet_is_looked_for_and_posted_later() -> None:
    async with Simulator(one(registration_lag=0.1)) as sim, talk(sim.url) as talking:
        await talking.until("agent.session.created")
        await talking.say(user_message("Where?"))
        await sim.until(lambda ledger: bool(ledger.calls))
        await talking.say(answer(sim.ledger.calls[0].turn_id, "a"))
        await sim.turn_over()
        assert posts_of(sim) == [(400, (Verdict.UNKNOWN,)), (202, (Verdict.ACCEPTED,))]


async def test_the_provider_says_when_to_come_back() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=429, retry_after=0.3))
        began = anyio.current_time()
        await talking.say(result)
        assert anyio.current_time() - began >= 0.3
        assert [status for status, _ in posts_of(sim)] == [429, 202]


async def test_a_provider_that_wants_too_long_a_wait_ends_the_session() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=429, retry_after=100))
        with pytest.raises(TransportError, match="100 s"):
            await talking.say(result)
        with pytest.raises(TransportError, match="100 s"):
            await talking.until("never")


async def test_a_refusal_without_a_body_is_tried_again_with_ever_longer_pauses() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=401, code="", times=4))
        await talking.say(result)
        assert [status for status, _ in posts_of(sim)] == [401, 401, 401, 401, 202]


async def test_what_is_refused_without_end_is_given_up() -> None:
    quick = replace(QUICK, give_up=0.2)
    async with asked(one(), patience=quick) as (sim, talking, result):
        sim.fail(Fault(status=401, code="", times=1000))
        with pytest.raises(TransportError, match=r"not taken for 0\.2 s \(at last: HTTP 401\): check the key"):
            await talking.say(result)
        assert len(posts_of(sim)) < 20


async def test_in_place_of_a_result_that_is_refused_for_good_a_failure_is_sent() -> None:
    async with asked(one(max_body=400)) as (sim, talking, _):
        await talking.say(answer(sim.ledger.calls[0].turn_id, "a", orjson.dumps("x" * 500).decode()))
        await talking.until("agent.session.idle")
        assert sim.ledger.call("where").answers[0].error == "The result could not be delivered."
        assert "error" in talking.types


async def test_a_message_is_posted_again_under_its_key_and_counts_once() -> None:
    async with Simulator(Scenario(((Say("Hello."),),))) as sim, talk(sim.url) as talking:
        await talking.until("agent.session.created")
        sim.fail(Fault(on=On.MESSAGES, status=0, effect=Effect.NOW))
        await talking.say(user_message("Hello"))
        await talking.until("agent.session.turn.completed")
        assert sim.ledger.messages == ["Hello"]
        assert [post.status for post in sim.ledger.posts] == [0, 202]


async def test_a_session_that_is_gone_takes_nothing_more() -> None:
    async with Simulator() as sim, talk(sim.url) as talking:
        await talking.until("agent.session.read")
        async with talk(sim.url, {"attach": sim.ledger.session_id}) as other:
            await delete(sim)
            with pytest.raises(TransportError, match="does not go on"):
                await other.say(user_message("Hello"))
        with pytest.raises(TransportError, match="does not go on"):
            await talking.until("never")
        assert talking.heard[-1]["about"] == "session"


async def delete(sim: Simulator) -> None:
    """Delete the newest session, as its owner may."""
    path = f"/v1/agents/sessions/{sim.ledger.session_id}"
    headers = ("host: x", "authorization: Bearer k", "openai-beta: agents=v1", "connection: close", "", "")
    async with connected(int(sim.url.split(":")[2].split("/")[0])) as (reader, writer):
        writer.write("\r\n".join((f"DELETE {path} HTTP/1.1", *headers)).encode())
        await reader.read()


# ------------------------------------------------------------------------------------------------ reading


async def test_what_was_missed_while_the_stream_was_broken_is_read_from_the_session() -> None:
    scenario = Scenario(((Cut(), Wait(0.05), Ask((Call("where", id="a"),)), Tell()),))
    async with Simulator(scenario) as sim, talk(sim.url) as talking:
        await talking.until("agent.session.created")
        await talking.say(user_message("Where?"))
        await talking.say(await talking.waits())
        await talking.until("agent.session.idle")
        assert sim.ledger.streams == 2
        assert sim.ledger.said == ["where says: Graz."]


async def test_a_turn_that_ended_while_the_stream_was_broken_is_told_with_its_end() -> None:
    async with asked(one()) as (sim, talking, _):
        sim.fail(Fault(on=On.STREAM, times=2))
        sim.cut()
        await talking.say({"events": [{"type": "agent.session.input.cancel"}]})
        await sim.turn_over()
        cancelled = await talking.until("agent.session.turn.cancelled")
        assert cancelled["turn"]["object"] == "agent.session.turn"
        assert "idle" not in talking.types


async def test_a_turn_that_began_before_anybody_listened_is_told_with_its_calls() -> None:
    create = {"create": {**CREATE["create"], "environment": {"type": "none"}, "input": "Where?"}}
    async with Simulator(one()) as sim, talk(sim.url, create) as talking:
        await talking.say(await talking.waits())
        await talking.until("agent.session.turn.completed")
        begun = [kind for kind in talking.types if kind in ("turn.created", "turn.in_progress")]
        assert begun
        assert talking.types.index(begun[0]) < talking.types.index("requires_action")


async def test_a_stream_that_does_not_open_is_tried_again() -> None:
    async with Simulator() as sim:
        sim.fail(Fault(on=On.STREAM, times=3), Fault(on=On.STREAM, status=0), Fault(on=On.READ))
        async with talk(sim.url) as talking:
            await talking.until("agent.session.created")
            assert sim.ledger.streams == 1


async def test_a_provider_that_goes_away_ends_the_session_after_a_while() -> None:
    async with Simulator() as sim, talk(sim.url, patience=replace(QUICK, give_up=0.3)) as talking:
        await talking.until("agent.session.read")
        sim.fail(Fault(on=On.STREAM, times=1000))
        sim.cut()
        with pytest.raises(TransportError, match=r"could not be listened to for 0\.3 s \(at last: HTTP 503\)"):
            await talking.until("never")
        assert len(sim.requests) < 40


async def test_a_session_that_fails_is_told_and_then_over() -> None:
    async with Simulator(Scenario(((FailSession(),),))) as sim, talk(sim.url) as talking:
        await talking.until("agent.session.created")
        await talking.say(user_message("Hello"))
        await talking.until("agent.session.failed")
        with pytest.raises(TransportError, match="ended the session"):
            await talking.transport.receive()


async def test_a_stream_that_falls_silent_is_opened_again() -> None:
    async with Simulator() as sim, talk(sim.url, patience=replace(QUICK, silence=0.1)) as talking:
        await talking.until("agent.session.created")
        await sim.until(lambda ledger: ledger.streams >= 2)


async def test_an_event_beyond_the_limit_does_not_stop_the_session() -> None:
    scenario = Scenario(((Say("x" * 5000), Wait(0.1), Ask((Call("where", id="a"),)), AwaitResults()),))
    async with Simulator(scenario) as sim, talk(sim.url, max_size=4000) as talking:
        await talking.until("agent.session.created")
        await talking.say(user_message("Hello"))
        await talking.say(await talking.waits())
        await talking.until("agent.session.idle")


async def test_closing_while_a_post_waits_is_quick() -> None:
    async with asked(one()) as (sim, talking, result):
        sim.fail(Fault(status=202, delay=5, effect=Effect.NOW))
        posting = asyncio.create_task(talking.say(result))
        await sim.until(lambda ledger: len(ledger.posts) == 2)
        posting.cancel()
        with anyio.fail_after(1):
            await talking.transport.aclose()


async def test_a_post_whose_answer_comes_after_the_end_tells_nobody() -> None:
    arrived, gate = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if b"metadata" in request + (await reader.read(1000) if request.startswith(b"POST") else b""):
            arrived.set()
            await gate.wait()
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(SESSION)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + SESSION)
        await writer.drain()

    async with listening(serve) as port, talk(f"http://127.0.0.1:{port}") as talking:
        posting = asyncio.create_task(talking.say({"metadata": {"a": "b"}}))
        await arrived.wait()
        with pytest.raises(TransportError, match="the provider ended the session"):
            await talking.say({"leave": {}})
        gate.set()
        await posting
        await talking.transport.aclose()
        with pytest.raises(TransportError, match="the provider ended the session"):
            await talking.transport.receive()


# ------------------------------------------------------------------------------------------------ odd servers


Answers = Callable[[str, str, int], tuple[int, bytes] | None]
"""Method, path and number of the request: its status and body; None for an event stream that says nothing good."""


@asynccontextmanager
async def server(answers: Answers, stream: bytes = b"") -> AsyncIterator[str]:
    """A server that closes each connection after its answer."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        count += 1
        said = answers(method, path, count)
        if said is None:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + stream)
        else:
            status, body = said
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
        with anyio.move_on_after(1):
            await writer.drain()

    async with listening(serve) as port:
        yield f"http://127.0.0.1:{port}"


SESSION = orjson.dumps({"object": "agent.session", "id": "sess_9", "status": "idle", "required_actions": []})


async def test_a_stream_that_ends_at_once_is_not_opened_in_a_spin() -> None:
    asked_for: list[str] = []

    def answers(method: str, path: str, number: int) -> tuple[int, bytes] | None:
        asked_for.append(path)
        return None if "events" in path else (200, SESSION)

    async with server(answers) as url, talk(url, patience=replace(QUICK, longest_pause=0.3)) as talking:
        for _ in range(5):
            await talking.until("agent.session.read")
        with anyio.move_on_after(0.5):
            await talking.until("never")
        assert sum("events" in path for path in asked_for) <= 10


async def test_what_is_no_event_is_passed_on_and_the_end_is_not() -> None:
    stream = b'data: {"type":"agent.session.in_progress"}\n\ndata: broken\n\ndata: [DONE]\n\n'
    async with (
        server(lambda m, path, n: None if "events" in path else (200, SESSION), stream) as url,
        talk(url) as talking,
    ):
        await talking.until("agent.session.in_progress")
        assert await talking.transport.receive() == "broken"
        await talking.until("agent.session.read")


async def test_a_session_that_reads_as_nonsense_is_read_again() -> None:
    def answers(method: str, path: str, number: int) -> tuple[int, bytes] | None:
        return None if "events" in path else (200, b"[]" if number == 3 else SESSION)

    async with server(answers) as url, talk(url) as talking:
        await talking.until("agent.session.read")


async def test_a_body_beyond_the_limit_ends_the_session_and_says_what_to_do() -> None:
    def answers(method: str, path: str, number: int) -> tuple[int, bytes] | None:
        return 200, SESSION + b" " * 5000

    async with server(answers) as url:
        with pytest.raises(TransportError, match=r"over 4,000 bytes: raise SessionOptions\.max_frame"):
            async with talk(url, max_size=4000):
                pass


# ------------------------------------------------------------------------------------------------ polling


class Polled(OpenAISessionsDialect):
    """The same sessions, as a provider would serve them that has no event stream."""

    def read(self, session_id: str, cursor: str) -> Request:
        return Request("GET", f"/poll?from={cursor or 0}")

    def missed(self, session_id: str) -> None:
        return None  # its log leaves nothing out

    def seen(self, body: Message, cursor: str = "") -> Heard:
        if "events" in body:
            return Heard(tuple(body["events"]), cursor=str(body["next"]))
        return super().seen(body)


async def test_a_provider_without_a_stream_is_asked_again_from_where_it_was() -> None:
    asked_for: list[str] = []

    def answers(method: str, path: str, number: int) -> tuple[int, bytes] | None:
        asked_for.append(path)
        if "poll" not in path:
            return 200, SESSION
        at = int(path.rpartition("=")[2])
        if at < 3:
            return 200, orjson.dumps({"events": [{"type": "agent.session.in_progress", "at": at}], "next": at + 1})
        return 204, b""

    async with (
        server(answers) as url,
        talk(url, patience=replace(QUICK, longest_pause=0.2), dialect=Polled()) as talking,
    ):
        assert [(await talking.until("agent.session.in_progress"))["at"] for _ in range(3)] == [0, 1, 2]
        with anyio.move_on_after(0.6):
            await talking.until("never")
        assert 2 <= sum(path.endswith("=3") for path in asked_for) <= 8
        assert talking.types[:2] == ["created", "read"]


async def test_after_a_poll_that_says_nothing_the_session_is_looked_at() -> None:
    failed = orjson.dumps({"object": "agent.session", "id": "sess_9", "status": "failed", "required_actions": []})
    polled = 0

    def answers(method: str, path: str, number: int) -> tuple[int, bytes] | None:
        nonlocal polled
        polled += "poll" in path
        return (204, b"") if "poll" in path else (200, failed if polled else SESSION)

    async with server(answers) as url, talk(url, dialect=Polled()) as talking:
        await talking.until("agent.session.failed")
        with pytest.raises(TransportError, match="the provider ended the session"):
            await talking.until("never")
        assert polled == 1


class Faulty(OpenAISessionsDialect):
    """A dialect that does what none may do."""

    def seen(self, body: Message, cursor: str = "") -> Heard:
        raise ZeroDivisionError


async def test_a_fault_of_our_own_ends_the_session_instead_of_leaving_it_deaf(caplog: pytest.LogCaptureFixture) -> None:
    async with Simulator() as sim, talk(sim.url, dialect=Faulty()) as talking:
        with pytest.raises(TransportError, match="a fault of its own"):
            await talking.until("never")
        assert "ZeroDivisionError" in caplog.text


# ------------------------------------------------------------------------------------------------ pauses


async def test_pauses_grow_to_their_limit_and_begin_anew_after_a_long_success() -> None:
    pauses = Pauses("it", Patience(first_pause=0.1, longest_pause=1.0))
    grown = [pauses.next("HTTP 503") for _ in range(6)]
    assert grown[0] == 0.1
    assert grown == sorted(grown)
    assert grown[-1] == 1.0
    pauses.went_well(0.5)
    assert pauses.next("HTTP 503") == 1.0
    pauses.went_well(2.0)
    assert pauses.next("HTTP 503") == 0.1
