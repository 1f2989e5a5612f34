"""Replies, calls and interruptions, each rule shown by a client that has no rules of its own."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from bridge.simulator import (
    ArgumentsForm,
    AudioPace,
    AwaitResults,
    BargeIn,
    Call,
    EarlyResults,
    Fate,
    HangUp,
    HeldWords,
    Joining,
    LateResults,
    Noise,
    Phase,
    Preamble,
    Reply,
    ReplyEnd,
    ReplyRequests,
    Rules,
    Say,
    Scenario,
    ServerTool,
    Simulator,
    Until,
    UserSays,
    Verdict,
    Wait,
)
from tests.simulator.raw import TOOL, Raw, dial

pytestmark = pytest.mark.anyio

PACE = 0.05
WEATHER = Call("get_weather", {"city": "Oslo"})
LOOK = Reply("Let me look.", (WEATHER,))
LONG = Reply("I am looking at all the weather there is.", (WEATHER,), 20.0)
TWO = Reply("Let me look.", (Call("get_weather", {"city": "Oslo"}), Call("get_weather", {"city": "Rome"})))
HOLD_TOOL = TOOL | {"execution_mode": "hold"}


def playing(*steps: Any, pace: float = PACE, **rules: Any) -> Simulator:
    return Simulator(Scenario("test", "", steps, rules=Rules(**rules)), pace=pace)


def said(raw: Raw) -> list[str]:
    return [event["text"] for event in raw.heard("transcript.agent")]


async def test_a_turn_comes_in_the_documented_order() -> None:
    async with playing(UserSays("Weather in Oslo?"), LOOK) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[TOOL])
        call = await raw.until("tool.call")
        await raw.until("reply.done", status="completed")
        assert raw.order[2:] == [
            "input.speech.started",
            "transcript.user.delta",
            "input.speech.stopped",
            "transcript.user",
            "reply.started",
            "tool.call",
            "transcript.agent",
            "reply.done",
        ]
        assert call["arguments"] == {"city": "Oslo"}
        assert (raw.heard("transcript.user.delta")[0]["text"], raw.heard("transcript.user")[0]["text"]) == (
            "Weather in",
            "Weather in Oslo?",
        )
        assert [event["delta"] for event in raw.heard("transcript.agent.delta")] == ["Let", "me", "look."]


async def test_a_result_after_the_reply_starts_a_fresh_one_that_tells_it() -> None:
    async with playing(LOOK, AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("reply.done")
        await raw.answer(call, '{"sky": "rain"}')
        await raw.closed()
        assert said(raw) == ["Let me look.", "get_weather says: sky rain."]
        record = sim.ledger.call("get_weather")
        (answer,) = record.answers
        assert (record.fate, record.answered, answer.phase, answer.timely) == (Fate.TOLD, 1, Phase.WAITING, True)
        assert sim.ledger.replies[1].knows == [call["call_id"]]


@pytest.mark.parametrize(("result", "words"), [("no json", "no json"), ('"text"', "text"), ("[1]", "[1]")])
async def test_any_text_is_a_result(result: str, words: str) -> None:
    async with playing(LOOK, AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"), result, is_error=True)
        await raw.closed()
        assert said(raw)[1] == f"get_weather failed: {words}."
        assert sim.ledger.call("get_weather").is_error


async def test_calls_come_where_the_step_puts_them() -> None:
    late = Reply("Let me look.", (WEATHER,), 2.0, calls_at=9.0)
    async with playing(late) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("tool.call")
        before = len(raw.heard("reply.audio"))
        await raw.until("reply.done")
        assert 0 < before == len(raw.heard("reply.audio"))


# Results out of time


async def test_a_result_before_the_end_is_accepted_and_ends_the_wait_for_it() -> None:
    async with playing(LOOK, AwaitResults(), HangUp(), gap=200.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        (answer,) = sim.ledger.answers
        assert (answer.verdict, answer.phase, answer.timely) == (Verdict.ACCEPTED, Phase.REPLYING, False)
        assert len(said(raw)) == 2


async def test_a_result_before_the_end_may_drop_the_reply() -> None:
    early = EarlyResults.DROPS_REPLY
    async with playing(LONG, AwaitResults(), HangUp(), early_results=early) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        assert said(raw) == ["get_weather says: fine."]
        assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.DROPPED, ReplyEnd.COMPLETED]
        assert sim.ledger.cut == sim.ledger.replies[:1]


async def test_a_result_before_the_end_may_be_lost() -> None:
    early = EarlyResults.IGNORED
    async with playing(LOOK, AwaitResults(), HangUp(), early_results=early) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        assert said(raw) == ["Let me look."]
        assert (sim.ledger.call("get_weather").fate, sim.ledger.answers[0].verdict) == (Fate.LOST, Verdict.IGNORED)


async def test_a_result_during_speech_is_told_after_the_reply_to_that() -> None:
    steps = (LOOK, Until("reply.done"), BargeIn("And Rome?", 0.0, 4.0), Say("Soon."), AwaitResults(), HangUp())
    async with playing(*steps) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("input.speech.started")
        await raw.answer(call)
        await raw.closed()
        assert said(raw) == ["Let me look.", "Soon.", "get_weather says: fine."]
        assert sim.ledger.answers[0].phase is Phase.USER_SPEAKING


async def test_a_result_to_a_user_who_waits_for_a_reply_comes_in_the_wrong_phase() -> None:
    steps = (LOOK, Until("reply.done"), UserSays("And Rome?"), Say("Soon."), AwaitResults(), HangUp())
    async with playing(*steps, thinking=4.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("input.speech.stopped")
        await raw.answer(call)
        await raw.closed()
        assert said(raw)[1:] == ["Soon.", "get_weather says: fine."]
        assert sim.ledger.answers[0].phase is Phase.USER_HEARD


@pytest.mark.parametrize(
    ("late", "last"),
    [(LateResults.IGNORED, "I am sorry, get_weather did not answer in time."), (LateResults.SPOKEN, "")],
)
async def test_a_call_times_out_with_an_apology_and_its_result_is_late(late: LateResults, last: str) -> None:
    steps = (LOOK, AwaitResults(), Until("tool.result"), AwaitResults(), HangUp())
    async with playing(*steps, late_results=late, tool_timeout=2.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("transcript.agent", text="I am sorry, get_weather did not answer in time.")
        await raw.answer(call)
        await raw.closed()
        assert sim.ledger.answers[0].verdict is Verdict.LATE
        assert said(raw)[-1] == (last or "get_weather says: fine.")
        assert sim.ledger.call("get_weather").fate is (Fate.TIMED_OUT if last else Fate.TOLD)


async def test_the_timeout_is_the_one_the_tool_declares() -> None:
    async with playing(LOOK, AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[TOOL | {"timeout_seconds": 2}])
        await raw.closed()
        assert sim.ledger.call("get_weather").fate is Fate.TIMED_OUT


async def test_unknown_and_repeated_answers_are_noted_and_change_nothing() -> None:
    async with playing(LOOK, AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.answer({"call_id": "nobody"})
        await raw.answer(call, '"first"')
        await raw.answer(call, '"second"')
        await raw.closed()
        assert said(raw)[1] == "get_weather says: first."
        assert [answer.verdict for answer in sim.ledger.strays] == [Verdict.UNKNOWN]
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED, Verdict.REPEATED]
    with pytest.raises(LookupError, match="nobody"):
        sim.ledger.call("nobody")


async def test_a_reply_that_tells_results_also_answers_the_user() -> None:
    async with playing(LOOK, UserSays("And?"), AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("input.speech.stopped")
        await raw.answer(call)
        await raw.closed()
        assert said(raw)[1:] == ["get_weather says: fine."]


# Several results


@pytest.mark.parametrize(
    ("joining", "spoken"),
    [
        (Joining.MERGED, ["get_weather says: a. get_weather says: b."]),
        (Joining.ALL, ["get_weather says: a. get_weather says: b."]),
        (Joining.EACH, ["get_weather says: a.", "get_weather says: b."]),
    ],
)
async def test_results_that_come_together_are_joined_as_the_rule_says(joining: Joining, spoken: list[str]) -> None:
    async with playing(TWO, AwaitResults(), HangUp(), joining=joining, answer_lag=2.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        first, second = raw.heard("tool.call")
        await raw.answer(first, '"a"')
        await raw.answer(second, '"b"')
        await raw.closed()
        assert said(raw)[1:] == spoken


async def test_the_reply_may_wait_for_the_last_result() -> None:
    async with playing(TWO, AwaitResults(), HangUp(), joining=Joining.ALL) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        first, second = raw.heard("tool.call")
        await raw.answer(first, '"a"')
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)
        await raw.answer(second, '"b"')
        await raw.closed()
        assert said(raw)[1:] == ["get_weather says: a. get_weather says: b."]


async def test_one_reply_may_hold_both_the_calls_and_the_answer() -> None:
    async with playing(LOOK, AwaitResults(), HangUp(), kept_open=True) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.answer(call)
        await raw.closed()
        assert said(raw) == ["Let me look. get_weather says: fine."]
        assert len(raw.heard("reply.done")) == len(raw.heard("reply.started")) == 1
        assert sim.ledger.call("get_weather").fate is Fate.TOLD


async def test_a_reply_kept_open_apologises_in_itself() -> None:
    rules: dict[str, Any] = {"kept_open": True, "tool_timeout": 2.0}
    async with playing(LOOK, AwaitResults(), HangUp(), **rules) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.closed()
        assert said(raw) == ["Let me look. I am sorry, that did not work."]


# Interruptions


async def test_a_barge_in_cuts_the_reply_and_abandons_its_calls() -> None:
    steps = (LONG, BargeIn("Stop!", 6.0, 2.0), Say("Yes?"), HangUp())
    async with playing(*steps) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        started = await raw.until("input.speech.started")
        cut = await raw.until("transcript.agent")
        await raw.until("reply.done", status="interrupted")
        await raw.answer(call)
        await raw.closed()
        assert cut["interrupted"]
        assert LONG.text.startswith(cut["text"])
        assert 0 < len(cut["text"]) < len(LONG.text)
        assert cut["timestamp"] - started["timestamp"] >= 1.1 * PACE
        assert (sim.ledger.call("get_weather").fate, sim.ledger.answers[0].verdict) == (Fate.ABANDONED, Verdict.VOID)
        assert said(raw)[1:] == ["Yes?"]


async def test_a_result_that_came_before_the_barge_in_is_lost_with_its_reply() -> None:
    steps = (LONG, Until("tool.result"), BargeIn("Stop!", 0.0, 2.0), Say("Yes?"), HangUp())
    async with playing(*steps) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        assert sim.ledger.call("get_weather").fate is Fate.LOST
        assert said(raw)[1:] == ["Yes?"]


async def test_speech_after_the_end_of_a_reply_interrupts_nothing() -> None:
    steps = (LOOK, Until("reply.done"), BargeIn("And Rome?"), Say("Soon."), AwaitResults(), HangUp())
    async with playing(*steps) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        await raw.until("transcript.agent", text="Soon.")
        await raw.until("reply.done")
        await raw.answer(call)
        await raw.closed()
        assert sim.ledger.cut == []
        assert sim.ledger.call("get_weather").fate is Fate.TOLD


@pytest.mark.parametrize("turn_detection", [None, {"interrupt_response": False}])
async def test_noise_or_a_session_without_barge_in_lets_the_reply_finish(
    turn_detection: dict[str, bool] | None,
) -> None:
    cut = Noise(0.3, 0.3) if turn_detection is None else BargeIn("Stop!", 0.3, 1.5)
    lag = 600.0 if turn_detection is None else 1.1  # however slow the machine, noise is over before that
    playing_on = playing(Say("A rather long reply.", 5.0), cut, HangUp(), interruption_lag=lag)
    async with playing_on as sim, dial(sim.url) as raw:
        await raw.configure(**({"input": {"turn_detection": turn_detection}} if turn_detection else {}))
        await raw.closed()
        assert raw.heard("input.speech.stopped")
        assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.COMPLETED]


def stand_still(seconds: float) -> None:
    """As a machine does that has something else to do."""
    time.sleep(seconds)


async def test_a_noise_stays_one_on_a_machine_that_stands_still_meanwhile() -> None:
    steps = (Say("A rather long reply.", 4.0), Noise(0.3, 0.3), HangUp())
    async with playing(*steps, pace=0.1, interruption_lag=0.6) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("input.speech.started")
        stand_still(0.1)  # until the noise would have cut the reply, had it gone on
        await raw.closed()
        assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.COMPLETED]


# Requests for a reply


async def test_a_requested_reply_is_spoken() -> None:
    async with playing() as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("reply.create", instructions="Tell the time.")
        await raw.until("reply.done")
        await raw.say("reply.create")
        await raw.until("reply.done")
        assert said(raw) == ["Tell the time.", "I am still here."]
        assert [(request.phase, request.taken) for request in sim.ledger.requests] == [(Phase.IDLE, True)] * 2


async def test_a_request_cuts_the_reply_in_flight() -> None:
    async with playing(Say("A rather long reply.", 20.0)) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.audio")
        await raw.say("reply.create", instructions="Something else.")
        await raw.until("reply.done", status="interrupted")
        await raw.until("reply.done", status="completed")
        assert said(raw)[-1] == "Something else."
        assert sim.ledger.requests[0].phase is Phase.REPLYING


async def test_a_request_while_the_user_speaks_is_swallowed() -> None:
    async with playing(UserSays("Weather?", 4.0), Say("Fine.")) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("input.speech.started")
        await raw.say("reply.create", instructions="Something else.")
        await raw.until("reply.done")
        assert said(raw) == ["Fine."]
        assert not sim.ledger.requests[0].taken


@pytest.mark.parametrize(("rule", "ends"), [(ReplyRequests.SWALLOWED, 0), (ReplyRequests.HOLLOW, 1)])
async def test_requests_can_be_swallowed_always(rule: ReplyRequests, ends: int) -> None:
    async with playing(reply_requests=rule) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("reply.create")
        await raw.say("session.end")
        await raw.closed()
        assert len(raw.heard("reply.done")) == ends
        assert not raw.heard("reply.started")
        assert not sim.ledger.requests[0].taken


# Hold mode


async def test_a_hold_tool_keeps_the_agent_silent_until_its_result() -> None:
    async with playing(LOOK, AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[HOLD_TOOL])
        call = await raw.until("tool.call")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)
        await raw.answer(call)
        await raw.closed()
        assert raw.order[2:] == ["tool.call", "reply.started", "transcript.agent", "reply.done", "session.ended"]
        assert sim.ledger.answers[0].phase is Phase.HOLDING


@pytest.mark.parametrize(("rule", "transcripts"), [(HeldWords.FLUSHED, ["Hello?"]), (HeldWords.LOST, [])])
async def test_words_during_a_hold_are_withheld(rule: HeldWords, transcripts: list[str]) -> None:
    steps = (LOOK, BargeIn("Hello?"), AwaitResults(), HangUp())
    async with playing(*steps, held_words=rule) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[HOLD_TOOL])
        call = await raw.until("tool.call")
        await raw.until("input.speech.stopped")
        assert not raw.heard("transcript.user") + raw.heard("transcript.user.delta")
        await raw.answer(call)
        await raw.closed()
        assert [event["text"] for event in raw.heard("transcript.user")] == transcripts
        assert said(raw) == ["get_weather says: fine."]


async def test_a_request_during_a_hold_speaks_and_releases_the_words() -> None:
    async with playing(LOOK, BargeIn("Hello?"), AwaitResults(), HangUp()) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[HOLD_TOOL])
        call = await raw.until("tool.call")
        await raw.until("input.speech.stopped")
        await raw.say("reply.create", instructions="Still working.")
        await raw.until("reply.done")
        assert [event["text"] for event in raw.heard("transcript.user")] == ["Hello?"]
        await raw.answer(call)
        await raw.closed()
        assert said(raw) == ["Still working.", "get_weather says: fine."]


async def test_a_hold_that_times_out_ends_with_an_apology_and_the_words() -> None:
    steps = (LOOK, BargeIn("Hello?", 0.0, 0.5), AwaitResults(), HangUp())
    async with playing(*steps, tool_timeout=2.0) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[HOLD_TOOL])
        await raw.closed()
        assert said(raw) == ["I am sorry, get_weather did not answer in time."]
        assert raw.order.index("transcript.user") < raw.order.index("reply.started")


# Tools that the provider runs


async def test_a_server_tool_is_announced_run_and_told_without_the_client() -> None:
    server = (ServerTool("get_weather", '"sunny"'),)
    steps = (LOOK, AwaitResults(), HangUp())
    async with playing(*steps, server_tools=server) as sim, dial(sim.url) as raw:
        await raw.configure()
        (updated,) = raw.heard("session.updated")
        assert "http" in updated["config"]["tools"][0]
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        assert said(raw)[1] == "get_weather says: sunny."
        assert sim.ledger.answers[0].verdict is Verdict.SERVER_RUN


async def test_a_server_tool_of_an_interrupted_reply_tells_nothing() -> None:
    server = (ServerTool("get_weather", '"sunny"', 6.0),)
    steps = (LONG, BargeIn("Stop!", 0.5, 2.0), Say("Yes?"), Wait(6.0), HangUp())
    async with playing(*steps, server_tools=server) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.closed()
        assert said(raw)[1:] == ["Yes?"]


# The shape of messages


async def test_events_can_be_doubled_and_left_out() -> None:
    doubled, omitted = frozenset({"tool.call", "reply.done"}), frozenset({"session.updated", "transcript.agent"})
    async with playing(LOOK, doubled=doubled, omitted=omitted) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        await raw.until("reply.done")
        assert raw.order == ["session.ready", "reply.started", "tool.call", "tool.call", "reply.done", "reply.done"]
        assert len(sim.ledger.calls) == 1


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (ArgumentsForm.OBJECT, {"arguments": {"city": "Oslo"}}),
        (ArgumentsForm.ARGS, {"args": {"city": "Oslo"}}),
        (ArgumentsForm.TEXT, {"arguments": '{"city":"Oslo"}'}),
    ],
)
async def test_arguments_come_in_three_forms(form: ArgumentsForm, fields: dict[str, Any]) -> None:
    async with playing(LOOK, arguments=form) as sim, dial(sim.url) as raw:
        await raw.configure()
        call = await raw.until("tool.call")
        assert {key: value for key, value in call.items() if key.startswith("arg")} == fields


async def test_arguments_that_are_text_are_sent_as_they_are() -> None:
    broken = Reply("", (Call("get_weather", '{"city'),))
    async with playing(broken, arguments=ArgumentsForm.TEXT) as sim, dial(sim.url) as raw:
        await raw.configure()
        assert (await raw.until("tool.call"))["arguments"] == '{"city'


async def test_a_schema_key_in_the_parameters_empties_the_arguments() -> None:
    marked = TOOL | {"parameters": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}}
    async with playing(LOOK) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[marked])
        assert (await raw.until("tool.call"))["arguments"] == {}


async def test_status_ids_captions_and_spaces_follow_the_rules() -> None:
    rules: dict[str, Any] = {
        "completed_status": False,
        "reply_ids": False,
        "tool_captions": False,
        "spaced_words": True,
        "user_delta_field": "delta",
    }
    steps = (UserSays("Weather?"), LOOK, AwaitResults(), Say("A long one.", 9.0), BargeIn("Stop!", 0.2, 1.5), HangUp())
    async with playing(*steps, **rules) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.answer(await raw.until("tool.call"))
        await raw.closed()
        first, second, third = raw.heard("reply.done")
        assert "status" not in first | second
        assert third["status"] == "interrupted"
        assert not any("reply_id" in event for event in [*raw.heard("reply.audio"), first, second, third])
        assert said(raw)[0] == "get_weather says: fine."
        assert [event["delta"] for event in raw.heard("transcript.agent.delta")][:3] == ["Let", " me", " look."]
        assert raw.heard("transcript.user.delta")[0]["delta"] == "Weather?"


async def test_odd_events_and_fields_come_when_asked_for() -> None:
    async with playing(Say("Hello."), oddities=True) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        assert raw.order[2:5] == ["reply.started", "reply.content_part.started", "transcript.agent"]
        assert all("x_trace" in event for event in raw.events)


async def test_a_reply_can_start_before_the_user_has_finished() -> None:
    async with playing(UserSays("Weather in Oslo?"), LOOK, early_start=True) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        assert raw.order.index("reply.started") < raw.order.index("input.speech.stopped")
        assert len(raw.heard("reply.started")) == 1
        assert sim.ledger.replies[0].text == "Let me look."


async def test_an_early_started_reply_can_be_lost_with_the_connection() -> None:
    async with playing(UserSays("Weather in Oslo?", 8.0), early_start=True) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.started")
        sim.drop()
        await raw.closed()
        assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.LINK_LOST]


# Audio


@pytest.mark.parametrize(
    ("encoding", "rate", "width"), [("audio/pcm", 24_000, 2), ("audio/pcmu", 8_000, 1), ("audio/pcma", 8_000, 1)]
)
async def test_the_audio_of_a_reply_is_as_long_as_its_words(encoding: str, rate: int, width: int) -> None:
    async with playing(Say("Hello.", 2.0)) as sim, dial(sim.url) as raw:
        await raw.configure(output={"format": {"encoding": encoding}})
        await raw.until("reply.done")
        audio = b"".join(base64.b64decode(event["data"]) for event in raw.heard("reply.audio"))
        assert len(audio) == 2.0 * PACE * rate * width


async def test_audio_in_a_burst_is_done_before_it_can_have_been_played() -> None:
    async with playing(Say("Hello.", 400.0), audio_pace=AudioPace.BURST, chunk=1.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        done = await raw.until("reply.done")
        assert len(raw.heard("reply.audio")) == 20
        assert done["timestamp"] - raw.heard("reply.started")[0]["timestamp"] < 5.0


async def test_a_silent_preamble_is_silence_without_words() -> None:
    async with playing(LOOK, preamble=Preamble.SILENT, gap=2.0) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        audio = b"".join(base64.b64decode(event["data"]) for event in raw.heard("reply.audio"))
        assert audio
        assert set(audio) == {0}
        assert said(raw) == raw.heard("transcript.agent.delta") == []


async def test_an_absent_preamble_is_nothing_at_all() -> None:
    async with playing(LOOK, preamble=Preamble.ABSENT) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.until("reply.done")
        assert raw.heard("reply.audio") == []


async def test_a_client_that_falls_far_behind_is_cut_off() -> None:
    flood = Say("Hello.", 600.0)
    async with playing(flood, audio_pace=AudioPace.BURST, chunk=0.001) as sim, dial(sim.url) as raw:
        await raw.say("session.update", session={})
        assert await raw.closed() == 1006
        assert sim.ledger.timeline[-1] == "<- reply.done"
