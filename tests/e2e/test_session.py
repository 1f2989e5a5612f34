"""What a host does with a session, and hears of it: events, settings, tools replaced, speech, audio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bridge import (
    AgentAudio,
    AssemblyAI,
    CallContext,
    ConfigError,
    ConfigurationRefused,
    Malformed,
    ProviderEnded,
    ProviderError,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyStarted,
    Session,
    SessionClosed,
    SessionOptions,
    SessionReady,
    SetupAccepted,
    SpeechStopped,
    Step,
    ToolProgress,
    Toolset,
    ToolSettled,
    ToolStarted,
    Transcript,
)
from bridge.core.events import FromProvider
from bridge.scenarios import SCENARIOS
from bridge.simulator import (
    AwaitResults,
    BargeIn,
    Call,
    Fail,
    HangUp,
    Phase,
    Raw,
    Reply,
    Rules,
    Say,
    Until,
    UserSays,
    Wait,
)
from tests.e2e.conftest import call, eventually, fence, play, script, sent, until

pytestmark = pytest.mark.anyio


def ask(name: str, **arguments: Any) -> Reply:
    return Reply("One moment.", (Call(name, arguments),), 0.4)


def toolset(*functions: Any, **options: Any) -> Toolset:
    tools = Toolset()
    for function in functions:
        tools.tool(function, **options)
    return tools


# ------------------------------------------------------------------------------------------------------------- events


async def test_events_come_typed_and_in_the_order_in_which_they_happened() -> None:
    played = await play(SCENARIOS["weather"])
    assert played.order == [
        "SetupAccepted",
        "SessionReady",
        "SpeechStarted",
        "SpeechStopped",
        "ReplyStarted",
        "ToolCalled",
        "ToolStarted",
        "ReplyDone",
        "ToolSettled",
        "ReplyStarted",
        "ReplyDone",
        "ProviderEnded",
    ]


async def test_every_event_of_the_provider_carries_the_providers_own_message() -> None:
    types: dict[type[FromProvider], str] = {
        SetupAccepted: "session.updated",
        SessionReady: "session.ready",
        ReplyDone: "reply.done",
        AgentAudio: "reply.audio",
        ProviderEnded: "session.ended",
    }
    played = await play(SCENARIOS["weather"])
    assert all(event.message is not None and "timestamp" in event.message for event in played.of(FromProvider))
    for kind, name in types.items():
        found = played.of(kind)
        assert found
        assert {event.message and event.message["type"] for event in found} == {name}


async def test_what_is_said_comes_as_transcripts_of_both_speakers() -> None:
    spoken = [(t.speaker, t.text) for t in (await play(SCENARIOS["weather"])).of(Transcript) if t.final]
    assert spoken[:2] == [("user", "What is the weather in Oslo?"), ("agent", "Let me look.")]
    assert len(spoken) == 3


async def test_messages_that_nobody_knows_pass_through_and_broken_ones_are_named() -> None:
    broken = {"type": "tool.call", "name": "get_weather"}
    scenario = script(Raw({"type": "weather.report", "sky": "grey"}), Raw(broken), HangUp())
    async with call(scenario) as (_, session):
        unknown = await until(session, ProviderMessage)
        assert (unknown.kind, unknown.message) == ("weather.report", {"type": "weather.report", "sky": "grey"})
        malformed = await until(session, Malformed)
        assert (malformed.reason, malformed.message) == ("tool.call without a call_id", broken)
        await session.run()


async def test_an_error_that_is_not_fatal_is_an_event_and_the_session_goes_on() -> None:
    error = {"type": "session.error", "code": "audio_rate_violation", "message": "too fast"}
    async with call(script(Raw(error), Say("Hello."), HangUp())) as (_, session):
        failed = await until(session, ProviderFailed)
        assert (failed.code, failed.fatal) == ("audio_rate_violation", False)
        await until(session, ReplyDone)
        await until(session, ProviderEnded)


async def test_a_session_knows_the_name_that_the_provider_gave_it() -> None:
    async with call(script()) as (sim, session):
        assert session.provider_session_id == sim.ledger.session_id != ""
        assert session.id not in ("", session.provider_session_id)


async def test_several_may_take_events_and_all_of_them_see_the_end() -> None:
    async def count(session: Session) -> int:
        return len([event async for event in session])

    async with call(script(Say("Hello there."), HangUp())) as (_, session):
        one, other = await asyncio.gather(count(session), count(session))
        assert one + other > 5
        assert [event async for event in session] == []


async def test_observers_see_every_step_of_a_session() -> None:
    seen: list[tuple[Session, Step]] = []
    scenario = script(Say("Hello."), HangUp())
    async with call(scenario, observers=(lambda session, step: seen.append((session, step)),)) as (_, session):
        await session.run()
    assert {each for each, _ in seen} == {session}
    kinds = [type(event) for _, step in seen for event in step.events]
    assert ReplyDone in kinds
    assert AgentAudio in kinds


# ----------------------------------------------------------------------------------------------------------- settings


async def test_a_change_of_settings_returns_when_the_provider_has_agreed() -> None:
    async with call(script()) as (_, session):
        await until(session, SessionReady)
        await session.update(system_prompt="Be brief.", volume=30.0)
        accepted = await until(session, SetupAccepted)
        assert accepted.message is not None
        config: Any = accepted.message["config"]
        assert (config["system_prompt"], config["output"]["volume"]) == ("Be brief.", 30.0)


async def test_changes_at_the_same_time_are_each_acknowledged() -> None:
    async with call(script()) as (sim, session):
        await asyncio.gather(*(session.update(volume=float(loudness)) for loudness in range(5)))
        assert sent(sim.ledger) == ["session.update"] * 6


async def test_a_refused_change_says_what_was_refused_and_leaves_everything_as_it_was() -> None:
    async def old() -> str:
        return "old"

    scenario = script(Wait(1.0), ask("old"), AwaitResults(), HangUp())
    async with call(scenario, toolset(old)) as (sim, session):
        with pytest.raises(ConfigurationRefused, match=r"session\.colour") as refused:
            await session.update(extra={"colour": "green"})
        assert (refused.value.code, refused.value.param) == ("invalid_format", "session.colour")
        await session.update(volume=10.0)
        await session.run()
        assert sim.ledger.call("old").result == '"old"'


async def test_refused_tools_leave_the_old_ones_in_place() -> None:
    async def old() -> str:
        return "old"

    async def new() -> str:
        return "new"

    tool = toolset(new)["new"]
    # Of a tool in a session the provider does not take this field.
    refused = Toolset([replace(tool, spec=replace(tool.spec, extra=(("http", "{}"),)))])
    scenario = script(Until("session.error"), ask("old"), AwaitResults(), HangUp())
    async with call(scenario, toolset(old)) as (sim, session):
        with pytest.raises(ConfigurationRefused):
            await session.update(tools=refused)
        await session.run()
        assert sim.ledger.call("old").result == '"old"'


async def test_what_cannot_change_is_refused_before_anything_is_sent() -> None:
    async with call(script()) as (sim, session):
        with pytest.raises(ConfigError, match="greeting cannot change"):
            await session.update(greeting="Hello.")
        await fence(session)
        assert sent(sim.ledger) == ["session.update"] * 2


async def test_what_the_provider_does_not_let_change_is_refused_with_its_code() -> None:
    async with call(script()) as (_, session):
        with pytest.raises(ConfigurationRefused) as refused:
            await session.update(extra={"greeting": "Hello."})
        assert (refused.value.code, refused.value.param) == ("immutable_field", "session.greeting")


async def test_a_change_that_is_never_acknowledged_runs_out_of_time() -> None:
    rules = Rules(omitted=frozenset({"session.updated"}))
    async with call(rules, options=SessionOptions(update_timeout=0.05)) as (_, session):
        with pytest.raises(ProviderError, match=r"did not acknowledge the change within 0\.05 s"):
            await session.update(volume=1.0)


async def test_a_change_that_waits_when_the_session_ends_is_told_so() -> None:
    rules = Rules(omitted=frozenset({"session.updated"}))
    async with call(rules) as (sim, session):
        waiting = asyncio.create_task(session.update(volume=1.0))
        await eventually(lambda: sent(sim.ledger) == ["session.update"] * 2)
        await session.end()
        with pytest.raises(SessionClosed):
            await waiting


async def test_the_tools_of_a_stored_agent_cannot_be_replaced() -> None:
    agent_id = "agent_" + "0" * 32

    def stored(url: str) -> AssemblyAI:
        return AssemblyAI(url=url, agent_id=agent_id)

    async with call(Rules(stored_agents=frozenset({agent_id})), agent=stored) as (_, session):
        with pytest.raises(ConfigurationRefused, match="configured at the provider"):
            await session.update(tools=Toolset())


# ------------------------------------------------------------------------------------------------------ tools replaced


async def test_a_call_in_flight_finishes_under_the_definition_it_was_called_with() -> None:
    go_on = asyncio.Event()

    def first() -> Toolset:
        async def look() -> str:
            await go_on.wait()
            return "first"

        return toolset(look)

    def second() -> Toolset:
        async def look() -> str:
            return "second"

        return toolset(look)

    scenario = script(ask("look"), AwaitResults(), ask("look"), AwaitResults(), HangUp())
    async with call(scenario, first()) as (sim, session):
        await until(session, ToolStarted)
        await session.update(tools=second())
        go_on.set()
        await session.run()
        assert [made.result for made in sim.ledger.calls] == ['"first"', '"second"']


async def test_a_call_to_a_removed_tool_is_told_that_it_is_not_available_now() -> None:
    async def old() -> str:
        return "old"

    async def new() -> str:
        return "new"

    changed = (Until("session.ready"), Until("session.updated"))
    scenario = script(*changed, ask("old"), AwaitResults(), ask("new"), AwaitResults(), HangUp())
    async with call(scenario, toolset(old)) as (sim, session):
        await session.update(tools=toolset(new))
        await session.run()
        removed, added = sim.ledger.calls
        assert (removed.is_error, removed.result) == (True, '{"error":"old is not available now"}')
        assert (added.is_error, added.result) == (False, '"new"')


async def test_of_several_changes_while_the_agent_speaks_the_last_is_sent_once_it_has_spoken() -> None:
    async def one() -> None: ...

    async def two() -> None: ...

    async def three() -> None: ...

    scenario = script(
        Say("A greeting that is long enough for something to change."), Until("session.updated"), HangUp()
    )
    async with call(scenario, toolset(one)) as (sim, session):
        await until(session, ReplyStarted)
        changes = [asyncio.create_task(session.update(tools=toolset(tool))) for tool in (two, three)]
        await until(session, ReplyDone)
        accepted = await until(session, SetupAccepted)
        await asyncio.gather(*changes)
        assert accepted.tools == ("three",)
        assert sent(sim.ledger) == ["session.update"] * 2


# -------------------------------------------------------------------------------------------------------------- speech


async def test_what_the_host_wants_said_waits_for_the_end_of_the_reply() -> None:
    async with call(script(Say("This goes on for a while.", 4.0))) as (sim, session):
        await until(session, ReplyStarted)
        session.say("Dinner is ready.")
        await until(session, ReplyDone)
        await until(session, ReplyDone)
        assert [(request.phase, request.taken) for request in sim.ledger.requests] == [(Phase.IDLE, True)]
        assert [reply.text for reply in sim.ledger.replies] == ["This goes on for a while.", "Dinner is ready."]


async def test_what_the_host_wants_said_waits_while_the_user_speaks() -> None:
    async with call(script(Until("session.ready"), BargeIn("Is dinner ready?", seconds=2.0), Say("Yes."))) as (
        sim,
        session,
    ):
        await until(session, Transcript)
        session.say("Come now.")
        await until(session, SpeechStopped)
        await until(session, ReplyDone)
        await until(session, ReplyDone)
        assert [request.phase for request in sim.ledger.requests] == [Phase.IDLE]


async def test_two_things_to_say_are_said_one_after_the_other() -> None:
    async with call(script()) as (sim, session):
        session.say("First.")
        session.say("Second.")
        await until(session, ReplyDone)
        await until(session, ReplyDone)
        assert [reply.text for reply in sim.ledger.replies] == ["First.", "Second."]
        assert {request.phase for request in sim.ledger.requests} == {Phase.IDLE}


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_a_tool_can_have_something_said(where: str) -> None:
    async def in_loop(context: CallContext) -> str:
        context.say("Nearly there.")
        return "done"

    def in_thread(context: CallContext) -> str:
        context.say("Nearly there.")
        return "done"

    tools = toolset({"loop": in_loop, "thread": in_thread}[where], name="work")
    async with call(script(ask("work")), tools) as (sim, session):
        await until(session, ToolSettled)
        while len(sim.ledger.replies) < 3:
            await until(session, ReplyDone)
        texts = [reply.text for reply in sim.ledger.replies]
        assert sorted(texts) == ["Nearly there.", "One moment.", "work says: done."]
        assert all(request.phase in (Phase.IDLE, Phase.WAITING) for request in sim.ledger.requests)


async def test_a_message_of_the_providers_own_protocol_can_be_sent() -> None:
    async with call(script()) as (sim, session):
        await session.send({"type": "reply.create", "instructions": "Say hello."})
        await until(session, ReplyDone)
        assert [reply.text for reply in sim.ledger.replies] == ["Say hello."]


# ----------------------------------------------------------------------------------------- what a tool may do and know


async def test_a_tool_knows_its_session_and_what_the_host_passed() -> None:
    seen: list[CallContext] = []

    async def look(context: CallContext) -> None:
        seen.append(context)

    scenario = script(ask("look"), AwaitResults(), HangUp())
    async with call(scenario, toolset(look), metadata={"caller": "+47"}) as (_, session):
        started = await until(session, ToolStarted)
        await session.run()
    (context,) = seen
    assert (context.session_id, context.tool, context.key) == (session.id, "look", started.key)
    assert context.metadata == {"caller": "+47"}


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_the_progress_of_a_tool_is_an_event(where: str) -> None:
    async def in_loop(context: CallContext) -> None:
        context.progress("half way")
        await asyncio.sleep(0)

    def in_thread(context: CallContext) -> None:
        context.progress("half way")

    tools = toolset({"loop": in_loop, "thread": in_thread}[where], name="work")
    async with call(script(ask("work"), AwaitResults(), HangUp()), tools) as (_, session):
        started = await until(session, ToolStarted)
        progress = await until(session, ToolProgress)
        assert (progress.key, progress.name, progress.text) == (started.key, "work", "half way")


async def test_a_tool_can_change_the_session_that_called_it() -> None:
    sessions: list[Session] = []

    async def be_brief() -> str:
        await sessions[0].update(system_prompt="Be brief.")
        return "I will"

    scenario = script(Wait(0.2), ask("be_brief"), AwaitResults(), HangUp())
    async with call(scenario, toolset(be_brief)) as (sim, session):
        sessions.append(session)
        await session.run()
        assert sim.ledger.call("be_brief").result == '"I will"'


async def test_a_tool_can_replace_the_tools_while_it_runs() -> None:
    sessions: list[Session] = []

    async def next_step() -> str:
        return "second"

    async def first_step() -> str:
        await sessions[0].update(tools=toolset(next_step))
        return "first"

    scenario = script(Wait(0.2), ask("first_step"), AwaitResults(), ask("next_step"), AwaitResults(), HangUp())
    async with call(scenario, toolset(first_step)) as (sim, session):
        sessions.append(session)
        await session.run()
        assert [made.result for made in sim.ledger.calls] == ['"first"', '"second"']


# --------------------------------------------------------------------------------------------------------------- audio


async def test_audio_reaches_the_provider_as_it_was_sent() -> None:
    async with call(script()) as (sim, session):
        for _ in range(10):
            await session.send_audio(bytes(960))
        await session.send_audio(b"")
        await fence(session)
        assert sim.ledger.audio_bytes == 9600
        assert sim.ledger.violations == []


async def test_half_a_sample_is_refused_and_the_session_goes_on() -> None:
    async with call(script()) as (sim, session):
        with pytest.raises(ValueError, match="not whole samples of 2 bytes"):
            await session.send_audio(bytes(961))
        await session.send_audio(bytes(960))
        await fence(session)
        assert sim.ledger.audio_bytes == 960


async def test_telephone_audio_has_samples_of_one_byte() -> None:
    def telephone(url: str) -> AssemblyAI:
        return AssemblyAI(url=url, input_format="audio/pcmu", output_format="audio/pcmu")

    async with call(script(), agent=telephone) as (sim, session):
        await session.send_audio(bytes(161))
        await fence(session)
        assert (sim.ledger.audio_bytes, sim.ledger.violations) == (161, [])


async def test_audio_that_comes_too_fast_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    async with call(script()) as (sim, session):
        with caplog.at_level(logging.WARNING, "bridge.session"):
            for _ in range(300):
                await session.send_audio(bytes(960))
        await fence(session)
        (warning,) = caplog.messages
        assert "as fast as it is spoken" in warning
        assert session.id in warning
        assert sim.ledger.audio_bytes == 300 * 960


async def test_a_call_is_answered_while_audio_goes_both_ways() -> None:
    async def look() -> str:
        return "fine"

    async def talk(session: Session) -> None:
        while True:
            await session.send_audio(bytes(480))
            await asyncio.sleep(0.002)

    scenario = script(UserSays("Look."), ask("look"), AwaitResults(), HangUp())
    async with call(scenario, toolset(look)) as (sim, session):
        talking = asyncio.create_task(talk(session))
        heard = [event async for event in session if isinstance(event, AgentAudio)]
        with pytest.raises(SessionClosed):
            await talking
        assert heard
        assert sim.ledger.audio_bytes > 480
        assert sim.ledger.call("look").result == '"fine"'


# ------------------------------------------------------------------------------------------------------------- log


async def test_neither_keys_nor_arguments_nor_results_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def works(pin: str) -> Mapping[str, str]:
        return {"balance": "result-secret"}

    async def fails(pin: str) -> None:
        raise RuntimeError(f"error-secret {pin}")

    async def strict(pin: int) -> None:
        """Gets arguments that do not fit."""

    def in_thread(pin: str) -> str:
        time.sleep(0)
        return "result-secret"

    caplog.set_level(logging.DEBUG)
    names = ("works", "fails", "strict", "in_thread")
    calls = tuple(Call(name, {"pin": "argument-secret"}) for name in names)
    scenario = script(Reply("", calls), AwaitResults(), Fail())
    async with call(scenario, toolset(works, fails, strict, in_thread)) as (sim, session):
        with pytest.raises(ProviderError):
            await session.run()
        assert [made.answered for made in sim.ledger.calls] == [1] * 4
    assert f"session {session.id} started: dialect assemblyai" in caplog.messages
    # What is said beneath us counts, too: a host may log everything. The server is the provider's.
    ours = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]
    assert len(ours) >= 4
    assert not any("secret" in message or "offline" in message for message in ours)
