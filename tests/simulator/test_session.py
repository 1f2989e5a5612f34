"""The life of a session: authentication, the first message, errors, connections, and the end."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from websockets.exceptions import ConnectionClosed

from bridge.simulator import (
    Call,
    Drop,
    Ended,
    Ending,
    Fail,
    Fate,
    HangUp,
    Raw,
    Reply,
    ReplyEnd,
    Rules,
    Say,
    Scenario,
    Simulator,
    Until,
    Verdict,
    Wait,
    WrongRate,
)
from tests.simulator.raw import PATIENCE, TOOL, dial

pytestmark = pytest.mark.anyio

PACE = 0.05
AGENT_ID = "agent_0123456789abcdef0123456789abcdef"


def script(*steps: object, **rules: object) -> Scenario:
    return Scenario("test", "", steps, rules=Rules(**rules))  # type: ignore[arg-type]  # steps are checked by running


async def test_the_provider_is_silent_until_the_first_message() -> None:
    async with Simulator(script(Say("Hello.")), pace=PACE) as sim, dial(sim.url) as raw:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)
        await raw.configure()
        assert raw.order == ["session.updated", "session.ready"]


async def test_a_session_is_updated_and_then_ready() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        ready = await raw.configure(system_prompt="Be brief.", tools=[TOOL])
        (updated,) = raw.heard("session.updated")
        assert updated["config"]["id"] == ready["session_id"] == sim.ledger.session_id
        assert updated["config"]["system_prompt"] == "Be brief."
        assert [tool["name"] for tool in updated["config"]["tools"]] == ["get_weather"]
        assert ready["resume_token"]


async def test_a_greeting_is_spoken_at_once() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure(greeting="Good evening.")
        spoken = await raw.until("transcript.agent")
        await raw.until("reply.done", status="completed")
        assert spoken["text"] == "Good evening."
        assert raw.heard("reply.audio")


@pytest.mark.parametrize("session", [{"greeting": None}, {"nonsense": 1}, {"tools": [{"name": "x"}]}, []])
async def test_a_fault_in_the_first_update_is_fatal(session: object) -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("session.update", session=session)
        assert await raw.closed() == 1008
        assert raw.order == ["session.error"]
        assert sim.refusals == ["invalid_format"]
        assert sim.ledgers == []


async def test_a_fault_in_a_later_update_leaves_the_session_open() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure(tools=[TOOL])
        await raw.say("session.update", session={"tools": [{"name": "x"}]})
        error = await raw.until("session.error")
        assert (error["code"], error["param"]) == ("invalid_format", "session.tools.0.type")
        await raw.say("session.update", session={"greeting": "Hello."})
        assert (await raw.until("session.error"))["code"] == "immutable_field"
        await raw.say("session.update", session={"tools": []})
        assert (await raw.until("session.updated"))["config"]["tools"] == []
        assert sim.ledger.errors == ["invalid_format", "immutable_field"]


@pytest.mark.parametrize("first", [{"type": "session.end"}, {"type": "reply.create"}, {"type": "hello"}, {}])
async def test_a_first_message_that_opens_nothing_is_fatal(first: dict[str, str]) -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.socket.send(json.dumps(first))
        assert await raw.closed() == 1008
        assert sim.refusals == ["invalid_format"]


async def test_audio_before_ready_is_noted_and_not_heard() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("input.audio", audio="AAAA")
        await raw.say("session.update", session={})
        await raw.say("input.audio", audio="AAAA")
        await raw.until("session.ready")
        assert sim.ledger.violations == ["input.audio before session.ready"] * 2
        assert sim.ledger.audio_bytes == 0


async def test_messages_that_are_not_of_the_protocol_are_refused_and_the_session_goes_on() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        for frame in (b"\x00\x01", "not json", '{"type":"tool.results"}', '{"type":"tool.result","call_id":"c"}'):
            await raw.socket.send(frame)
            assert (await raw.until("session.error"))["code"] == "invalid_format"
        await raw.say("input.audio", audio="***")
        assert (await raw.until("session.error"))["code"] == "invalid_audio"
        await raw.say("session.resume", session_id="sess_x")
        assert (await raw.until("session.error"))["code"] == "invalid_format"
        await raw.say("conversation.message", role="system", content="Be kind.")
        await raw.say("reply.cancel", reply_id="resp_1")
        await raw.say("session.end")
        assert await raw.closed() == 1000
        assert sim.ledger.violations == ["reply.cancel has no documented effect"]


async def test_audio_is_counted_and_half_samples_are_noted() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("input.audio", audio=base64.b64encode(bytes(960)).decode())
        await raw.say("input.audio", audio=base64.b64encode(bytes(3)).decode())
        await raw.say("session.end")
        ledger = await sim.session_over()
        assert ledger.audio_bytes == 963
        assert ledger.violations == ["input.audio with half a sample"]


async def test_audio_faster_than_real_time_is_dropped_under_that_rule() -> None:
    second = base64.b64encode(bytes(48_000)).decode()
    async with Simulator(Rules(limit_audio=True), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("input.audio", audio=second)
        for _ in range(2):
            await raw.say("input.audio", audio=second)
        assert (await raw.until("session.error"))["code"] == "audio_rate_violation"
        assert sim.ledger.audio_bytes == 48_000


# Authentication


@pytest.mark.parametrize("value", ["Bearer right", "right"])
async def test_a_key_is_taken_with_and_without_a_scheme(value: str) -> None:
    async with Simulator(pace=PACE, api_key="right") as sim, dial(sim.url, Authorization=value) as raw:
        assert await raw.configure()


async def test_a_key_is_taken_from_the_query() -> None:
    async with Simulator(pace=PACE, api_key="right") as sim, dial(f"{sim.url}?token=right") as raw:
        assert await raw.configure()


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_a_wrong_key_is_told_after_the_upgrade(headers: dict[str, str]) -> None:
    async with Simulator(pace=PACE, api_key="right") as sim, dial(sim.url, **headers) as raw:
        assert await raw.closed() == 1008
        assert [event["code"] for event in raw.events] == ["unauthorized"]


async def test_a_provider_without_room_refuses_every_session() -> None:
    async with Simulator(Rules(refuse_with="at_capacity"), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("session.update", session={})
        assert await raw.closed() == 1008
        assert sim.refusals == ["at_capacity"]


async def test_a_stored_agent_comes_alone_and_has_to_exist() -> None:
    async with Simulator(Rules(stored_agents=frozenset({AGENT_ID})), pace=PACE) as sim:
        async with dial(sim.url) as raw:
            await raw.configure(agent_id=AGENT_ID)
        for session, code in [
            ({"agent_id": AGENT_ID, "tools": []}, "agent_id_not_first"),
            ({"agent_id": AGENT_ID.replace("a", "b")}, "invalid_value"),
            ({"agent_id": AGENT_ID.replace("0", "1")}, "agent_not_found"),
        ]:
            async with dial(sim.url) as raw:
                await raw.say("session.update", session=session)
                assert await raw.closed() == 1008
                assert raw.events[0]["code"] == code


# The end


async def test_an_end_is_confirmed_and_closed() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("session.end")
        assert await raw.closed() == 1000
        assert raw.order[-1] == "session.ended"
        assert (await sim.session_over()).ended is Ended.BY_CLIENT


async def test_an_end_may_never_be_confirmed() -> None:
    async with Simulator(Rules(ending=Ending.NEVER), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("session.end")
        assert (await sim.session_over()).ended is Ended.BY_CLIENT
        await raw.say("reply.create")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)


async def test_a_close_handshake_may_hang() -> None:
    async with Simulator(Rules(ending=Ending.HANGING), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("session.end")
        await raw.until("session.ended")
        closing = asyncio.create_task(raw.socket.close())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(closing), 0.2)
        await closing
        assert raw.socket.close_code == 1006


async def test_session_ended_can_be_left_out() -> None:
    async with Simulator(Rules(omitted=frozenset({"session.ended"})), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.say("session.end")
        assert await raw.closed() == 1000
        assert "session.ended" not in raw.order


async def test_the_provider_can_hang_up() -> None:
    async with Simulator(script(Say("Bye."), HangUp()), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        assert await raw.closed() == 1000
        assert raw.order[-2:] == ["reply.done", "session.ended"]
        assert (await sim.session_over()).ended is Ended.BY_PROVIDER


async def test_the_provider_can_fail() -> None:
    async with Simulator(script(Fail("server_error", 1011)), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        assert await raw.closed() == 1011
        assert raw.events[-1]["code"] == "server_error"
        assert (await sim.session_over()).ended is Ended.FAILED


async def test_any_message_can_be_sent_as_it_is() -> None:
    async with Simulator(script(Raw({"type": "x.new", "a": 1})), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        assert await raw.until("x.new") == {"type": "x.new", "a": 1}
        await sim.script_over()


async def test_a_wrong_sample_rate_ends_the_session_after_a_while() -> None:
    wrong = {"format": {"encoding": "audio/pcm", "sample_rate": 16_000}}
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure(input=wrong)
        assert await raw.closed() == 1011
        assert raw.events[-1]["code"] == "internal_error"
    async with Simulator(Rules(wrong_rate=WrongRate.REFUSED), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("session.update", session={"input": wrong})
        assert await raw.closed() == 1008
        assert raw.events[-1]["code"] == "invalid_value"


# Resuming

DROPPED = (Reply("One moment.", (Call("get_weather", {"city": "Oslo"}),)), Until("reply.done"), Drop(), Say("Back."))


async def test_a_session_is_resumed_with_the_newest_token_and_its_calls_are_still_open() -> None:
    async with Simulator(script(*DROPPED), pace=PACE, api_key="key") as sim:
        async with dial(sim.url, Authorization="key") as raw:
            ready = await raw.configure(tools=[TOOL])
            assert await raw.closed() == 1006
            (call,) = raw.heard("tool.call")
        async with dial(sim.url, Authorization=f"Bearer {ready['resume_token']}") as raw:
            await raw.say("session.resume", session_id=ready["session_id"])
            again = await raw.until("session.ready")
            assert again["session_id"] == ready["session_id"]
            assert again["resume_token"] != ready["resume_token"]
            await raw.answer(call)
            await raw.until("transcript.agent", text="get_weather says: fine.")
            assert not raw.heard("tool.call")
        async with dial(sim.url, Authorization=f"Bearer {ready['resume_token']}") as raw:
            assert await raw.closed() == 1008
        assert (sim.ledger.resumes, sim.ledger.call("get_weather").fate) == (1, Fate.TOLD)
        assert sim.refusals == ["unauthorized"]


async def test_open_calls_can_be_announced_again_after_a_resume() -> None:
    async with Simulator(script(*DROPPED, resume_repeats_calls=True, resume_needs_token=False), pace=PACE) as sim:
        async with dial(sim.url) as raw:
            ready = await raw.configure()
            await raw.closed()
        async with dial(sim.url) as again:
            await again.say("session.resume", session_id=ready["session_id"])
            assert (await again.until("tool.call"))["call_id"] == raw.heard("tool.call")[0]["call_id"]
        assert len(sim.ledger.calls) == 1


async def test_a_resume_without_the_token_is_refused_and_the_next_session_goes_on_with_the_script() -> None:
    async with Simulator(script(*DROPPED), pace=PACE) as sim:
        async with dial(sim.url) as raw:
            ready = await raw.configure()
            await raw.closed()
        async with dial(sim.url) as raw:
            await raw.say("session.resume", session_id=ready["session_id"])
            assert await raw.closed() == 1008
            assert raw.events[0]["code"] == "session_not_found"
        async with dial(sim.url) as raw:
            await raw.configure()
            assert (await raw.until("transcript.agent"))["text"] == "Back."
        assert len(sim.ledgers) == 2


async def test_a_token_for_resuming_opens_no_new_session() -> None:
    async with Simulator(pace=PACE) as sim, dial(sim.url) as raw:
        ready = await raw.configure()
        async with dial(sim.url, Authorization=f"Bearer {ready['resume_token']}") as other:
            await other.say("session.update", session={})
            assert await other.closed() == 1008


@pytest.mark.parametrize(
    ("rules", "code"), [({"resume_grace": 1.0}, "session_expired"), ({"resumable": False}, "session_not_found")]
)
async def test_a_session_that_is_gone_cannot_be_resumed(rules: dict[str, object], code: str) -> None:
    async with Simulator(script(Drop(), **rules), pace=PACE) as sim:
        async with dial(sim.url) as raw:
            ready = await raw.configure()
            await raw.closed()
        if "resume_grace" in rules:
            await sim.session_over()
        async with dial(sim.url) as raw:
            await raw.say("session.resume", session_id=ready["session_id"])
            assert await raw.closed() == 1008
            assert raw.events[0]["code"] == code
        assert (await sim.session_over()).ended is Ended.GRACE_OVER


async def test_a_session_that_was_ended_or_never_was_is_not_found() -> None:
    async with Simulator(pace=PACE) as sim:
        async with dial(sim.url) as raw:
            ready = await raw.configure()
            await raw.say("session.end")
            await raw.closed()
        for session_id in (ready["session_id"], "sess_never"):
            async with dial(sim.url) as raw:
                await raw.say("session.resume", session_id=session_id)
                assert await raw.closed() == 1008
                assert raw.events[0]["code"] == "session_not_found"


async def test_a_refused_resume_can_leave_the_socket_open() -> None:
    async with Simulator(Rules(refusal_leaves_open=True), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("session.resume", session_id="sess_never")
        await raw.until("session.error", code="session_not_found")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(raw.socket.recv(), 0.1)


async def test_a_resume_takes_over_from_a_connection_that_still_stands() -> None:
    async with Simulator(Rules(resume_needs_token=False), pace=PACE) as sim, dial(sim.url) as old:
        ready = await old.configure()
        async with dial(sim.url) as new:
            await new.say("session.resume", session_id=ready["session_id"])
            await new.until("session.ready")
            assert await old.closed() == 1006
            await new.say("session.end")
            assert await new.closed() == 1000


async def test_a_close_without_an_end_keeps_the_session_for_its_grace() -> None:
    async with Simulator(Rules(resume_grace=2.0), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        await raw.socket.close()
        assert sim.ledger.ended is Ended.OPEN
        assert (await sim.session_over()).ended is Ended.GRACE_OVER


async def test_a_reply_in_flight_is_lost_with_its_connection_and_its_call_is_not() -> None:
    steps = (Reply("Let me see what there is.", (Call("get_weather", {"city": "Oslo"}),), 20.0), Until("tool.call"))
    async with Simulator(script(*steps, resume_needs_token=False), pace=PACE) as sim:
        async with dial(sim.url) as raw:
            ready = await raw.configure()
            call = await raw.until("tool.call")
            sim.drop()
            assert await raw.closed() == 1006
        async with dial(sim.url) as raw:
            await raw.say("session.resume", session_id=ready["session_id"])
            await raw.until("session.ready")
            await raw.answer(call)
            await raw.until("reply.done")
        assert [reply.end for reply in sim.ledger.replies] == [ReplyEnd.LINK_LOST, ReplyEnd.COMPLETED]
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED]


async def test_a_session_ends_when_its_time_is_over() -> None:
    async with Simulator(Rules(session_limit=2.0), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.configure()
        assert await raw.closed() == 1000
        assert raw.order[-1] == "session.ended"
        assert (await sim.session_over()).ended is Ended.BY_PROVIDER


async def test_a_resume_renews_the_time_of_a_session() -> None:
    scenario = script(Wait(6.0), Raw({"type": "x.now"}), session_limit=10.0, resume_needs_token=False)
    async with Simulator(scenario, pace=PACE) as sim, dial(sim.url) as old:
        began = asyncio.get_running_loop().time()
        ready = await old.configure()
        await old.until("x.now")
        async with dial(sim.url) as new:
            await new.say("session.resume", session_id=ready["session_id"])
            assert await new.closed() == 1000
        assert asyncio.get_running_loop().time() - began >= 15 * PACE


# The simulator itself


async def test_sessions_do_not_disturb_each_other() -> None:
    steps = (Reply("One moment.", (Call("get_weather", {"city": "Oslo"}, "same"),)),)

    async def one(url: str, text: str) -> str:
        async with dial(url) as raw:
            await raw.configure()
            await raw.answer(await raw.until("tool.call"), text)
            await raw.until("reply.done")
            heard = await raw.until("transcript.agent")
            return str(heard["text"])

    async with Simulator(script(*steps), pace=PACE) as sim:
        heard = await asyncio.gather(*(one(sim.url, f"weather {number}") for number in range(10)))
        assert heard == [f"get_weather says: weather {number}." for number in range(10)]
        assert len(sim.ledgers) == 10


async def test_before_any_session_the_ledger_is_empty_and_a_drop_does_nothing() -> None:
    async with Simulator(pace=PACE) as sim:
        sim.drop()
        assert (sim.ledger.session_id, sim.ledger.calls, sim.ledgers) == ("", [], [])


async def test_leaving_the_simulator_closes_what_is_open() -> None:
    async with Simulator(pace=PACE) as sim:
        dialled = dial(sim.url)
        raw = await dialled.__aenter__()
        await raw.configure()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ConnectionClosed):
            await raw.socket.recv()
    await dialled.__aexit__(None, None, None)


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with Simulator(pace=PACE) as sim:
        port = int(sim.url.split(":")[2].split("/")[0])
        with pytest.raises(OSError, match="address already in use"):
            async with Simulator(port=port):
                pass


async def test_old_sessions_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.simulator.assemblyai._KEPT", 2)
    async with Simulator(pace=PACE) as sim:
        ids = []
        for _ in range(4):
            async with dial(sim.url) as raw:
                ids.append((await raw.configure())["session_id"])
                await raw.say("session.end")
                await raw.closed()
        assert [ledger.session_id for ledger in sim.ledgers] == ids[2:]


async def test_messages_after_a_refusal_that_left_the_socket_open_go_nowhere() -> None:
    async with Simulator(Rules(refusal_leaves_open=True), pace=PACE) as sim, dial(sim.url) as raw:
        await raw.say("session.resume", session_id="sess_never")
        await raw.until("session.error")
        await raw.say("session.update", session={})
        await raw.socket.close()
        assert (raw.order, sim.ledgers) == (["session.error"], [])


def test_a_pace_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="pace"):
        Simulator(pace=0)
