"""A connection that drops is no end of a session: it is resumed, or begun afresh, and nothing is lost or said twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from bridge import (
    AgentAudio,
    AssemblyAI,
    AuthenticationFailed,
    Bridge,
    ConfigurationRefused,
    ProviderEnded,
    ReplyDone,
    ReplyStarted,
    Session,
    SessionClosed,
    SessionOptions,
    SessionReady,
    SetupAccepted,
    Step,
    Tool,
    ToolCalled,
    Toolset,
    ToolSettled,
    ToolStarted,
    Transcript,
    TransportError,
    connect,
)
from bridge.core.dialect import Dialect, Message
from bridge.core.events import ClientEvent, FromProvider, Resume, ToolFinished, ToolResults
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.scenarios import SCENARIOS
from bridge.session import recovery
from bridge.session.reconnect import ConnectionLost, ConnectionResumed, LostSession
from bridge.simulator import (
    AwaitResults,
    Call,
    Drop,
    Ended,
    Fate,
    HangUp,
    Reply,
    ReplyEnd,
    Rules,
    Say,
    Scenario,
    Simulator,
    Until,
    Verdict,
)
from tests.cable import Cable
from tests.e2e.conftest import BRISK, PACE, eventually, play, provider, script, sent, tidily, until

pytestmark = pytest.mark.anyio

ASK = Reply("One moment.", (Call("work"),), 0.4)
BRIEF = SessionOptions(end_timeout=0.1)
"""For a provider that does not confirm the end."""
TALK = Say("Let me tell you about all of our routers.", 4.0)


# ------------------------------------------------------------------------------------------------------- the network


class Seen:
    """An observer that can be waited for."""

    def __init__(self) -> None:
        self._kinds: list[type] = []
        self._more = asyncio.Event()

    def __call__(self, session: Session, step: Step) -> None:
        self._kinds += [type(fact) for fact in (*step.events, *step.outputs)]
        self._more.set()

    async def until(self, kind: type) -> None:
        while kind not in self._kinds:
            self._more.clear()
            await self._more.wait()


@asynccontextmanager
async def cabled(
    scenario: Scenario | Rules,
    tools: Mapping[str, Tool] | None = None,
    *,
    observers: tuple[Callable[[Session, Step], None], ...] = (),
    setup: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> AsyncIterator[tuple[Cable, Simulator, Session]]:
    """A session whose connection runs through a cable; `options` are those of `SessionOptions`."""
    async with tidily(), Simulator(scenario, pace=PACE) as sim, Cable.to(sim.url) as cable:
        agent, limits = AssemblyAI(url=cable.url, **setup), SessionOptions(**options)
        async with connect(
            agent, tools=tools, api_key="k", delivery=BRISK, options=limits, observers=observers
        ) as session:
            yield cable, sim, session


def working(function: Callable[..., Any], **options: Any) -> Toolset:
    """A tool that the provider waits for as long as any test takes: its time runs at the pace of the simulator."""
    tools = Toolset()
    tools.tool(function, name="work", timeout=250.0, **options)
    return tools


class Gate:
    """A tool that ends when it is let."""

    def __init__(self) -> None:
        self.runs = 0
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def work(self) -> str:
        """Work."""
        self.runs += 1
        await self._open.wait()
        return "done"


async def until_asked(session: Session) -> None:
    """The agent has called its tool, and fallen silent."""
    await until(session, ToolStarted)
    await until(session, ReplyDone)


# ------------------------------------------------------------------------------------------------- calls over the gap

ONE_CALL = script(ASK, AwaitResults(), HangUp())


async def test_a_result_of_the_gap_is_sent_once_after_the_resume() -> None:
    gate, seen = Gate(), Seen()
    async with cabled(ONE_CALL, working(gate.work), observers=(seen,)) as (cable, sim, session):
        await until_asked(session)
        cable.tear()
        await until(session, ConnectionLost)
        gate.open()
        await seen.until(ToolFinished)
        assert sent(sim.ledger) == ["session.update"]
        cable.mend()
        resumed = await until(session, ConnectionResumed)
        settled = await until(session, ToolSettled)
        await session.run()
    assert not resumed.fresh
    assert (settled.how, settled.outcome) == ("sent", "ok")
    assert sent(sim.ledger) == ["session.update", "session.resume", "tool.result"]
    assert [(answer.verdict, answer.text) for answer in sim.ledger.answers] == [(Verdict.ACCEPTED, '"done"')]


async def test_a_tool_that_began_before_the_drop_and_ends_after_it_is_answered_once() -> None:
    gate = Gate()
    async with cabled(ONE_CALL, working(gate.work)) as (cable, sim, session):
        await until_asked(session)
        cable.cut()
        await until(session, ConnectionResumed)
        gate.open()
        assert (await until(session, ToolSettled)).how == "sent"
        await session.run()
    assert [record.fate for record in sim.ledger.calls] == [Fate.TOLD]
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]
    assert gate.runs == 1


async def test_a_call_that_the_provider_repeats_after_the_resume_runs_once() -> None:
    gate = Gate()
    repeating = replace(ONE_CALL, rules=Rules(resume_repeats_calls=True))
    async with cabled(repeating, working(gate.work)) as (cable, sim, session):
        await until_asked(session)
        cable.cut()
        await until(session, ConnectionResumed)
        await eventually(lambda: sim.ledger.timeline.count("<- tool.call") == 2)
        gate.open()
        await session.run()
    assert gate.runs == 1
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]


async def test_a_result_whose_delivery_is_unknown_is_sent_again_once() -> None:
    gate, seen = Gate(), Seen()
    async with cabled(ONE_CALL, working(gate.work), observers=(seen,)) as (cable, sim, session):
        await until_asked(session)
        cable.jam()
        talking = await talk_into_the_jam(session)
        gate.open()
        await seen.until(ToolResults)  # released, and stuck behind the audio
        assert sent(sim.ledger) == ["session.update"]
        cable.cut()
        await talking
        await until(session, ConnectionResumed)
        assert (await until(session, ToolSettled)).how == "sent"
        await session.run()
    assert sent(sim.ledger) == ["session.update", "session.resume", "tool.result"]
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]


async def talk_into_the_jam(session: Session) -> asyncio.Task[None]:
    """Send audio until nothing more fits into the network; what is left waits for room."""
    while True:
        piece = asyncio.ensure_future(session.send_audio(bytes(480_000)))
        await asyncio.wait([piece], timeout=0.3)
        for _ in range(100):  # a machine that is busy may have kept it waiting, too
            await asyncio.sleep(0)
        if not piece.done():
            return piece
        await piece


async def test_a_careful_tool_whose_reply_was_cut_off_with_the_connection_is_not_run() -> None:
    gate = Gate()
    goodbye = script(replace(ASK, seconds=4.0), AwaitResults(), HangUp())
    async with cabled(goodbye, working(gate.work, start="after_reply")) as (cable, sim, session):
        await until(session, ToolCalled)
        cable.cut()
        await session.run()
    assert gate.runs == 0
    (answer,) = sim.ledger.answers
    assert "the connection dropped before the reply had been heard" in answer.text


# --------------------------------------------------------------------------------------------------- cut at every step

CUT = ("two-calls", "slow-tool", "barge-in", "terminal-after-goodbye", "hold-mode")


def everywhere() -> Iterator[Any]:
    for name in CUT:
        for at in range(len(SCENARIOS[name].steps)):
            yield pytest.param(name, at, id=f"{name} before step {at + 1}")


@pytest.mark.parametrize(("name", "at"), list(everywhere()))
async def test_wherever_a_conversation_is_cut_every_call_is_settled_once(name: str, at: int) -> None:
    whole = SCENARIOS[name]
    played = await play(replace(whole, steps=(*whole.steps[:at], Drop(), *whole.steps[at:])))
    ledger = played.ledger
    assert played.failure is None
    assert ledger.ended is Ended.BY_PROVIDER
    assert ledger.resumes == 1
    assert (ledger.violations, ledger.strays, ledger.errors) == ([], [], [])
    assert {record.fate for record in ledger.calls} <= {Fate.TOLD, Fate.ABANDONED}
    assert all(record.answered <= 1 for record in ledger.calls)
    assert {answer.verdict for answer in ledger.answers} <= {Verdict.ACCEPTED}
    begun = sorted(event.key for event in played.of(ToolStarted))
    assert sorted(event.key for event in played.of(ToolSettled)) == begun


@pytest.mark.parametrize("at", range(1, 23))
async def test_whatever_the_provider_said_last_before_a_cut_every_call_is_settled_once(at: int) -> None:
    # What got lost on its way to us, nobody but the provider can say again.
    scenario = replace(SCENARIOS["two-calls"], rules=Rules(resume_repeats_calls=True))
    heard: list[object] = []

    def cut(session: Session, step: Step) -> None:
        heard.extend(
            event for event in step.events if isinstance(event, FromProvider) and type(event) is not AgentAudio
        )
        if len(heard) >= at and not cuts:
            cuts.append(len(heard))
            cable.cut()

    cuts: list[int] = []
    gates = {sketch.name: Gate() for sketch in scenario.tools}
    tools = Toolset()
    for name, gate in gates.items():
        gate.open()
        tools.tool(gate.work, name=name)
    async with cabled(scenario, tools, observers=(cut,)) as (cable, sim, session):
        await session.run()
    assert cuts, "the conversation has become shorter than this test believes"
    ledger = sim.ledger
    assert ledger.ended is Ended.BY_PROVIDER
    assert (ledger.violations, ledger.strays, ledger.errors) == ([], [], [])
    assert {record.fate for record in ledger.calls} <= {Fate.TOLD}
    assert all(record.answered == 1 for record in ledger.calls)
    assert all(gate.runs <= 1 for gate in gates.values())


async def test_a_conversation_that_is_cut_twice_is_resumed_twice_with_the_newest_token() -> None:
    gate = Gate()
    async with cabled(ONE_CALL, working(gate.work)) as (cable, sim, session):
        await until_asked(session)
        for _ in range(2):
            cable.cut()
            await until(session, ConnectionResumed)
        gate.open()
        await session.run()
    assert sim.ledger.resumes == 2
    assert sim.refusals == []
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]


# ------------------------------------------------------------------------------------------------- what the host sees


async def test_the_host_hears_of_the_loss_and_of_the_return_and_goes_on_iterating() -> None:
    async with cabled(script(TALK, Say("Where were we?", 0.5), HangUp())) as (cable, _, session):
        await until(session, ReplyStarted)
        cable.cut()
        kinds = [type(event) async for event in session if not isinstance(event, AgentAudio | Transcript)]
    # The reply that was open has no end of its own.
    assert kinds == [ConnectionLost, SessionReady, ConnectionResumed, ReplyStarted, ReplyDone, ProviderEnded]


async def test_audio_of_the_gap_is_dropped_and_its_length_is_told() -> None:
    second = bytes(48_000)
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        lost = await until(session, ConnectionLost)
        for _ in range(3):
            await session.send_audio(second)
        cable.mend()
        resumed = await until(session, ConnectionResumed)
        await session.send_audio(second)
        await session.update(volume=10.0)  # everything before it has been taken
        assert sim.ledger.audio_bytes == len(second)
    assert lost.close_code == 1006
    assert resumed.audio_lost == 3.0
    assert resumed.gap > 0


async def test_what_is_to_be_said_is_said_after_the_return() -> None:
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        session.say("Ask whether anybody is there.")
        cable.mend()
        await until(session, ReplyDone)
        assert [reply.text for reply in sim.ledger.replies] == ["Ask whether anybody is there."]


async def test_a_message_of_the_host_waits_for_the_connection() -> None:
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        sending = asyncio.create_task(session.send({"type": "reply.create"}))
        cable.mend()
        await sending
        await until(session, ReplyDone)
        assert sent(sim.ledger) == ["session.update", "session.resume", "reply.create"]


async def test_settings_and_tools_that_change_in_the_gap_are_changed_after_it() -> None:
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        changes = [
            asyncio.create_task(session.update(volume=10.0)),
            asyncio.create_task(session.update(tools=working(Gate().work))),
            asyncio.create_task(session.send({"type": "session.update", "session": {"system_prompt": "Sing."}})),
        ]
        await asyncio.sleep(0)
        cable.mend()
        await asyncio.gather(*changes)
        await session.update(volume=20.0)
        accepted = await until(session, SetupAccepted, lambda event: echoed(event)["output"].get("volume") == 20.0)
        assert accepted.tools == ("work",)
        assert echoed(accepted)["system_prompt"] == "Sing."
        assert sent(sim.ledger).count("session.update") == 5


def echoed(accepted: SetupAccepted) -> dict[str, Any]:
    """The configuration that the provider says is in force."""
    assert accepted.message is not None
    config = accepted.message["config"]
    assert isinstance(config, dict)
    return config


async def test_an_end_in_the_gap_ends_at_once_and_nobody_calls_again() -> None:
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        async with asyncio.timeout(20):
            await session.end()
        cable.mend()
        with pytest.raises(SessionClosed):
            await session.send_audio(bytes(48))
        await session.run()
    assert sim.ledger.resumes == 0


async def test_an_end_in_the_gap_still_delivers_what_is_owed_if_the_connection_comes_back() -> None:
    gate = Gate()
    async with cabled(ONE_CALL, working(gate.work)) as (cable, sim, session):
        await until_asked(session)
        cable.tear()
        await until(session, ConnectionLost)
        gate.open()
        ending = asyncio.create_task(session.end())
        cable.mend()
        await ending
    assert sent(sim.ledger) == ["session.update", "session.resume", "tool.result", "session.end"]


async def test_leaving_the_block_in_the_gap_leaves_nothing_behind() -> None:
    async with cabled(script()) as (cable, _, session):
        cable.tear()
        await until(session, ConnectionLost)


async def test_an_exception_in_the_gap_comes_out_as_it_is() -> None:
    error = ZeroDivisionError()

    async def host() -> None:
        async with cabled(script()) as (cable, _, session):
            cable.tear()
            await until(session, ConnectionLost)
            raise error

    with pytest.raises(ZeroDivisionError) as raised:
        await host()
    assert raised.value is error


# ------------------------------------------------------------------------------------------ how often, and how long


async def test_a_provider_that_cannot_be_reached_for_a_while_is_tried_again() -> None:
    async with cabled(script()) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        await cable.turns_away(2)
        cable.mend()
        await until(session, ConnectionResumed)
    assert sim.ledger.resumes == 1


async def test_a_provider_that_cannot_be_reached_any_more_is_given_up() -> None:
    async with cabled(script(), reconnect_timeout=0.4) as (cable, _, session):
        cable.tear()
        await until(session, ConnectionLost)
        updating = asyncio.create_task(session.update(volume=1.0))
        with pytest.raises(TransportError, match="there was no other within") as lost:
            await session.run()
        assert lost.value.close_code == 1006
        with pytest.raises(TransportError):
            await updating
        with pytest.raises(SessionClosed):
            await session.send({"type": "reply.create"})


async def test_a_provider_without_room_for_a_resume_is_asked_again() -> None:
    async with scripted(iter([READY, failed("at_capacity"), READY])) as (heard, session):
        assert not (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard == ["session.update", "session.resume", "session.resume"]


async def test_connections_that_break_again_and_again_are_given_up() -> None:
    async def behave(socket: ServerConnection) -> None:
        heard.append(json.loads(await socket.recv())["type"])
        await socket.send(READY)
        socket.transport.abort()

    heard: list[str] = []
    async with provider(behave) as url:
        with pytest.raises(TransportError, match="no other within 1 s: each one breaks"):
            async with connect(
                AssemblyAI(url=url), api_key="k", options=SessionOptions(reconnect_timeout=1.0)
            ) as session:
                await session.run()
    assert 2 <= len(heard) <= 6


@pytest.mark.parametrize("code", [1001, 1011, 1012])
async def test_a_server_that_goes_away_or_fails_is_come_back_to(code: int) -> None:
    async with scripted(iter([(READY, code), READY])) as (heard, session):
        lost = await until(session, ConnectionLost)
        await until(session, ConnectionResumed)
        await hang_up(session)
    assert lost.close_code == code
    assert heard == ["session.update", "session.resume"]


@pytest.mark.parametrize("code", [1000, 1008, 3006, 4001])
async def test_a_close_code_that_is_a_verdict_is_the_end(code: int) -> None:
    async with scripted(iter([(READY, code)])) as (heard, session):
        with pytest.raises(TransportError) as lost:
            await session.run()
        assert lost.value.close_code == code
    assert heard == ["session.update"]


async def test_a_connection_that_drops_before_the_session_is_ready_is_an_error_at_once() -> None:
    async def behave(socket: ServerConnection) -> None:
        heard.append(await socket.recv())
        socket.transport.abort()

    heard: list[object] = []
    async with provider(behave) as url:
        with pytest.raises(TransportError, match="dropped"):
            async with connect(AssemblyAI(url=url), api_key="k"):
                raise AssertionError("there is a session")
    assert len(heard) == 1


async def test_a_change_that_was_not_answered_before_the_drop_is_sent_again() -> None:
    heard: list[dict[str, Any]] = []

    async def behave(socket: ServerConnection) -> None:
        heard.append(json.loads(await socket.recv()))
        await socket.send(READY)
        heard.append(json.loads(await socket.recv()))
        if len(heard) == 2:
            socket.transport.abort()
            return
        await socket.send(json.dumps({"type": "session.updated"}))
        await socket.wait_closed()

    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k", options=BRIEF) as session:
        await session.update(volume=3.0)
        await hang_up(session)
    change = {"type": "session.update", "session": {"output": {"volume": 3.0}}}
    assert [message["type"] for message in heard] == ["session.update"] * 2 + ["session.resume", "session.update"]
    assert heard[1] == heard[3] == change


async def test_tools_that_were_not_agreed_to_before_the_drop_are_offered_again() -> None:
    heard: list[dict[str, Any]] = []

    async def behave(socket: ServerConnection) -> None:
        heard.append(json.loads(await socket.recv()))
        await socket.send(READY)
        heard.append(json.loads(await socket.recv()))
        if len(heard) == 2:
            asked.set()
            await torn.wait()
            socket.transport.abort()
            return
        await socket.send(json.dumps({"type": "session.updated", "config": {"tools": [{"name": "b"}]}}))
        await socket.wait_closed()

    asked, torn = asyncio.Event(), asyncio.Event()
    async with provider(behave) as url, connect(AssemblyAI(url=url), api_key="k", options=BRIEF) as session:
        first = asyncio.create_task(session.update(tools=named("a")))
        await asked.wait()
        torn.set()
        await until(session, ConnectionLost)
        second = asyncio.create_task(session.update(tools=named("b")))
        # Of two that wait, the last is sent, and its answer is the answer to both.
        await asyncio.gather(first, second)
        await hang_up(session)
    assert [tool["name"] for tool in heard[3]["session"]["tools"]] == ["b"]
    assert len(heard) == 4


def named(name: str) -> Toolset:
    tools = Toolset()
    tools.tool(Gate().work, name=name)
    return tools


# ------------------------------------------------------------------------------------------------- a fresh session

REFUSING = Rules(resumable=False)


async def test_a_refused_resume_becomes_a_fresh_session_with_all_that_has_been_changed() -> None:
    async with cabled(REFUSING, named("a"), setup={"system_prompt": "Sell."}) as (cable, sim, session):
        await session.update(system_prompt="Advise.", extra={"input": {"keyterms": ["Oslo"]}})
        await session.update(extra={"input": {"transcription_prompt": "Routers."}})
        await session.update(tools=named("b"))
        first = session.provider_session_id
        cable.cut()
        resumed = await until(session, ConnectionResumed)
        await session.update(volume=20.0)
        accepted = await until(session, SetupAccepted, lambda event: echoed(event)["output"].get("volume") == 20.0)
    assert resumed.fresh
    assert accepted.tools == ("b",)
    assert echoed(accepted)["system_prompt"] == "Advise."
    assert echoed(accepted)["input"]["keyterms"] == ["Oslo"]
    assert echoed(accepted)["input"]["transcription_prompt"] == "Routers."
    assert session.provider_session_id != first
    assert sim.refusals == ["session_not_found"]


async def test_calls_of_the_lost_session_are_orphaned_and_told_to_whoever_describes_the_next() -> None:
    lost: list[LostSession] = []

    async def afresh(session: LostSession) -> AssemblyAI:
        lost.append(session)
        return AssemblyAI(url=cable.url, system_prompt="We were cut off.", greeting="Sorry, we were cut off.")

    quick, slow, seen = Gate(), Gate(), Seen()
    quick.open()
    tools = Toolset()
    tools.tool(quick.work, name="quick")
    tools.tool(slow.work, name="slow")
    steps = (Reply("One moment.", (Call("quick"), Call("slow")), 0.4), Until("reply.done"))
    scenario = script(*steps, rules=REFUSING)
    async with cabled(scenario, tools, observers=(seen,), afresh=afresh) as (cable, sim, session):
        await session.update(volume=7.0)
        await until(session, ReplyDone)
        cable.tear()
        await until(session, ConnectionLost)
        cable.mend()
        settled = [await until(session, ToolSettled) for _ in range(2)]
        await until(session, ConnectionResumed)
        slow.open()
        await until(session, ReplyDone)
        assert sim.ledger.replies[0].text == "Sorry, we were cut off."
    assert [(event.name, event.how) for event in settled] == [("quick", "orphaned"), ("slow", "orphaned")]
    (known,) = lost
    assert known.changes == {"volume": 7.0}
    assert [(each.call.name, each.result and each.result.output) for each in known.calls] == [
        ("quick", '"done"'),
        ("slow", None),
    ]
    assert [ledger.answers for ledger in sim.ledgers] == [[], []]
    assert [ledger.strays for ledger in sim.ledgers] == [[], []]


@pytest.mark.parametrize("left_open", [False, True])
async def test_a_refusal_may_leave_its_socket_open(left_open: bool) -> None:
    rules = Rules(resumable=False, refusal_leaves_open=left_open)
    async with cabled(rules) as (cable, sim, session):
        cable.cut()
        assert (await until(session, ConnectionResumed)).fresh
    assert sim.ledger.ended is Ended.BY_CLIENT


async def test_a_resume_that_the_provider_does_not_understand_becomes_a_fresh_session() -> None:
    async with scripted(iter([READY, failed("invalid_format"), READY])) as (heard, session):
        assert (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard == ["session.update", "session.resume", "session.update"]


async def test_a_session_whose_grace_is_over_is_begun_afresh() -> None:
    async with cabled(Rules(resume_grace=1.0)) as (cable, sim, session):
        cable.tear()
        await until(session, ConnectionLost)
        await sim.session_over()
        cable.mend()
        assert (await until(session, ConnectionResumed)).fresh
        assert sim.refusals == ["session_expired"]


async def test_a_fresh_session_that_is_cut_in_its_setup_is_set_up_again_with_its_tools() -> None:
    answers = iter([READY, failed("session_not_found"), None, READY])
    async with scripted(answers, named("a")) as (heard, session):
        assert (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard == ["session.update", "session.resume", "session.update", "session.update"]
    assert heard.tools == ["a"]


async def test_tools_that_change_during_the_setup_of_a_fresh_session_are_offered_after_it() -> None:
    answers = iter([READY, failed("session_not_found"), HELD_BACK])
    async with scripted(answers, named("a")) as (heard, session):
        await heard.until(3)
        updating = asyncio.create_task(session.update(tools=named("b")))
        await asyncio.sleep(0)
        heard.let()
        await updating
        await hang_up(session)
    assert heard.tools == ["b"]


async def test_a_provider_that_answers_a_resume_with_the_end_has_lost_the_session() -> None:
    async with scripted(iter([READY, '{"type":"session.ended"}', READY])) as (heard, session):
        assert (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard == ["session.update", "session.resume", "session.update"]


async def test_a_fresh_session_that_ends_before_it_is_ready_is_tried_again() -> None:
    answers = iter([READY, failed("session_expired"), '{"type":"session.ended"}', READY])
    async with scripted(answers) as (heard, session):
        assert (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard[2:] == ["session.update", "session.update"]


@pytest.mark.parametrize(
    ("code", "kind"), [("unauthorized", AuthenticationFailed), ("invalid_value", ConfigurationRefused)]
)
async def test_a_fresh_session_that_is_refused_is_the_end(code: str, kind: type[Exception]) -> None:
    async with scripted(iter([READY, failed("unauthorized"), failed(code)])) as (heard, session):
        with pytest.raises(kind):
            await session.run()
    assert heard == ["session.update", "session.resume", "session.update"]


async def test_a_session_that_is_ending_is_not_begun_afresh() -> None:
    gate = Gate()
    async with cabled(replace(ONE_CALL, rules=REFUSING), working(gate.work)) as (cable, sim, session):
        await until_asked(session)
        cable.tear()
        await until(session, ConnectionLost)
        ending = asyncio.create_task(session.end())
        await asyncio.sleep(0)
        cable.mend()
        await ending
    assert len(sim.ledgers) == 1


async def fails(lost: LostSession) -> AssemblyAI:
    raise KeyError("something secret")


async def describes_another_format(lost: LostSession) -> AssemblyAI:
    return AssemblyAI(input_format="audio/pcmu", system_prompt="Sing.")


@pytest.mark.parametrize("afresh", [fails, describes_another_format])
async def test_a_description_that_does_not_work_is_left_out_and_logged_without_what_it_was_told(
    afresh: Callable[[LostSession], Awaitable[AssemblyAI]], caplog: pytest.LogCaptureFixture
) -> None:
    async with cabled(REFUSING, setup={"system_prompt": "Sell."}, afresh=afresh) as (cable, _, session):
        cable.cut()
        accepted = await until(session, SetupAccepted)
        assert (await until(session, ConnectionResumed)).fresh
    assert echoed(accepted)["system_prompt"] == "Sell."
    assert any("the agent is described as before" in message for message in caplog.messages)
    assert "secret" not in caplog.text


class Broken(AssemblyAI):
    """An agent that cannot be set up."""

    def setup(self) -> Message:
        raise ZeroDivisionError


async def test_a_fault_on_the_way_back_ends_the_session_and_is_told() -> None:
    async def afresh(lost: LostSession) -> AssemblyAI:
        return Broken()

    async with cabled(REFUSING, afresh=afresh) as (cable, _, session):
        cable.cut()
        with pytest.raises(ZeroDivisionError):
            await session.run()


class Forgetful:
    """The protocol without its resume."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ASSEMBLYAI, name)

    def encode_client(self, event: ClientEvent) -> Iterable[Message]:
        return () if isinstance(event, Resume) else ASSEMBLYAI.encode_client(event)


class ForgetfulAgent(AssemblyAI):
    @property
    def dialect(self) -> Dialect:
        return cast(Dialect, Forgetful())


async def test_a_protocol_that_knows_no_resume_begins_afresh_at_once() -> None:
    async with scripted(iter([READY, READY]), agent=ForgetfulAgent) as (heard, session):
        assert (await until(session, ConnectionResumed)).fresh
        await hang_up(session)
    assert heard == ["session.update", "session.update"]


async def test_what_a_bridge_offers_in_the_gap_reaches_the_agent() -> None:
    async with (
        tidily(),
        Simulator(pace=PACE) as sim,
        Cable.to(sim.url) as cable,
        Bridge(named("a")) as bridge,
        bridge.session(AssemblyAI(url=cable.url), api_key="k") as session,
    ):
        cable.tear()
        await until(session, ConnectionLost)
        await bridge.replace(named("b"))
        cable.mend()
        await until(session, SetupAccepted, lambda event: event.tools == ("b",))


# --------------------------------------------------------------------------------------------- before it is too late


async def test_a_planned_reconnect_waits_until_nobody_speaks_and_tools_survive_it() -> None:
    gate = Gate()
    steps = (ASK, Until("reply.done"), TALK, Until("session.resume"), AwaitResults(), HangUp())
    scenario = script(*steps, rules=Rules(session_limit=12.0))
    async with cabled(scenario, working(gate.work), reconnect_after=6.0 * PACE) as (_, sim, session):
        lost = await until(session, ConnectionLost)
        assert not (await until(session, ConnectionResumed)).fresh
        gate.open()
        await session.run()
    assert lost.close_code is None
    assert sim.ledger.resumes >= 1
    assert {reply.end for reply in sim.ledger.replies} == {ReplyEnd.COMPLETED}
    assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]
    assert gate.runs == 1


async def test_a_planned_reconnect_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_BOUNDARY", 0.05)
    async with cabled(script(Say("Blah.", 1000.0)), reconnect_after=0.1) as (_, sim, session):
        await until(session, ReplyStarted)
        await until(session, ConnectionResumed)
    assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.LINK_LOST]


async def test_a_connection_is_kept_as_long_as_there_is_no_other() -> None:
    async with cabled(script(), reconnect_after=0.05) as (cable, sim, session):
        cable._torn = True
        await cable.turns_away(2)
        await session.update(volume=1.0)  # it is up
        assert sim.ledger.resumes == 0
        cable.mend()
        await until(session, ConnectionResumed)


async def test_a_connection_that_has_dropped_before_its_time_is_not_given_up_again() -> None:
    async with cabled(script(), reconnect_after=1000.0) as (cable, sim, session):
        cable.cut()
        await until(session, ConnectionResumed)
    assert sim.ledger.resumes == 1


async def test_a_planned_reconnect_with_a_key_that_is_refused_stays_where_it_is() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        await socket.wait_closed()

    async with admitting(behave, [101, 401]) as (url, turned_away):
        options = SessionOptions(reconnect_after=0.01, end_timeout=0.1)
        async with connect(AssemblyAI(url=url), api_key="k", options=options) as session:
            await turned_away.wait()
            assert (await until(session, SessionReady)).session_id == "s1"


async def test_a_token_that_is_refused_by_http_is_that_of_a_lost_session() -> None:
    async def behave(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(READY)
        if not turned_away.is_set():
            socket.transport.abort()
        await socket.wait_closed()

    async with (
        admitting(behave, [101, 401, 101]) as (url, turned_away),
        connect(AssemblyAI(url=url), api_key="k", options=BRIEF) as session,
    ):
        assert (await until(session, ConnectionResumed)).fresh


@asynccontextmanager
async def admitting(
    behave: Callable[[ServerConnection], Awaitable[None]], statuses: list[int]
) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A provider that answers the handshakes with these; the event is set when it turns the first away."""

    def admit(connection: ServerConnection, request: Request) -> Response | None:
        status = statuses.pop(0)
        if status == 101:
            return None
        turned_away.set()
        return connection.respond(status, "no")

    turned_away = asyncio.Event()
    async with tidily(), serve(behave, "127.0.0.1", 0, process_request=admit, close_timeout=0.2) as server:
        yield f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", turned_away
        assert statuses == []


# ------------------------------------------------------------------------------------------------ a provider by hand

READY = json.dumps({"type": "session.ready", "session_id": "s1", "resume_token": "t1"})
HELD_BACK = "held back"


def failed(code: str) -> str:
    return json.dumps({"type": "session.error", "code": code})


class Heard(list[str]):
    """The types of what the provider was told first on each connection, and the messages themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = []
        self._more = asyncio.Event()
        self._let = asyncio.Event()

    def note(self, frame: str | bytes) -> None:
        self.messages.append(json.loads(frame))
        self._more.set()

    @property
    def tools(self) -> list[str]:
        """Those listed last."""
        latest = [message["session"] for message in self.messages if message["type"] == "session.update"][-1]
        return [tool["name"] for tool in latest["tools"]]

    async def until(self, count: int) -> None:
        while len(self) < count:
            self._more.clear()
            await self._more.wait()

    def let(self) -> None:
        self._let.set()

    async def be_let(self) -> None:
        await self._let.wait()


@asynccontextmanager
async def scripted(
    answers: Iterator[str | tuple[str, int] | None],
    tools: Mapping[str, Tool] | None = None,
    agent: type[AssemblyAI] = AssemblyAI,
) -> AsyncIterator[tuple[Heard, Session]]:
    """A provider that answers the first message of each connection with the next of these.

    It then breaks the connection; closes it, if there is a code; or stays, after the last. None: no answer at all.
    """
    planned = list(answers)

    async def behave(socket: ServerConnection) -> None:
        frame = await socket.recv()
        heard.append(json.loads(frame)["type"])
        heard.note(frame)
        answer = planned[len(heard) - 1]
        text, code = answer if isinstance(answer, tuple) else (answer, None)
        if text is HELD_BACK:
            await heard.be_let()
            text = READY
        if text is not None:
            await socket.send(text)
        if code is not None:
            await socket.close(code)
        elif len(heard) == len(planned):
            await stay(socket)
        elif text == READY or text is None:
            socket.transport.abort()
        else:
            await socket.wait_closed()

    async def stay(socket: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for frame in socket:
                heard.note(frame)
                match heard.messages[-1]["type"]:
                    case "session.update":
                        listed = heard.messages[-1]["session"].get("tools")
                        await socket.send(json.dumps({"type": "session.updated", "config": {"tools": listed}}))
                    case "session.end":
                        await socket.send(json.dumps({"type": "session.ended"}))

    heard = Heard()
    async with provider(behave) as url, connect(agent(url=url), tools=tools, api_key="k") as session:
        yield heard, session


async def hang_up(session: Session) -> None:
    """End it; nothing is left to take."""
    await session.end()
    await session.run()
