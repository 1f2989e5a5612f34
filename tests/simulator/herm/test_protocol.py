"""The rules of the sessions API, one by one."""

from __future__ import annotations

import httpx2
import pytest

from bridge.simulator.herm import (
    Answer,
    Ask,
    Call,
    End,
    Fail,
    Fate,
    Fault,
    LateFinals,
    Payloads,
    Repeats,
    Rules,
    Scenario,
    Simulator,
    Verdict,
    Work,
)
from tests.simulator.herm.documented_loop import Raw, raw, result

pytestmark = pytest.mark.anyio

TOOL = {"name": "transcode", "description": "Makes it smaller."}
ONE = Ask((Call("transcode", {"file": "a.mov"}, "one"),))
TWO = Ask((Call("transcode", {"file": "a.mov"}, "one"), Call("transcode", {"file": "b.mov"}, "two")))


def stops(sim: Simulator) -> list[object]:
    """The reasons for which the session has been idle."""
    events = [event["payload"] for event in sim.session.history.events]
    return [event["stop_reason"] for event in events if event["type"] == "session.status_idle"]


async def asked(client: Raw, *tools: dict[str, object]) -> None:
    """Create a session and say something."""
    await client.create(*(tools or (TOOL,)))
    assert (await client.say()).status_code == 202


async def test_an_accepted_event_is_returned_in_its_envelope() -> None:
    async with Simulator(Scenario((Answer("Hello."),))) as sim, raw(sim) as client:
        session_id = await client.create()
        answer = await client.say("Hi.")
        (event,) = answer.json()["events"]
        assert event["id"].startswith("evt_")
        assert (event["type"], event["sessionId"], event["sequence"]) == ("user.message", session_id, 1)
        assert event["payload"]["content"] == [{"type": "text", "text": "Hi."}]


async def test_the_remaining_calls_are_named_again() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        await client.send(result("two"))
        assert stops(sim) == [
            {"type": "requires_action", "event_ids": ["one", "two"]},
            {"type": "requires_action", "event_ids": ["one"]},
        ]
        await client.send(result("one"))
        assert stops(sim)[-1] == {"type": "end_turn"}


@pytest.mark.parametrize("several", [True, False])
async def test_several_results_may_share_a_request_or_may_not(several: bool) -> None:
    async with Simulator(Scenario((TWO, Answer())), rules=Rules(several_results=several)) as sim, raw(sim) as client:
        await asked(client)
        answer = await client.send(result("one"), result("two"))
        assert answer.status_code == (202 if several else 400)
        assert sim.session.waits_for == ([] if several else ["one", "two"])


async def test_a_message_is_refused_while_a_turn_runs() -> None:
    async with Simulator(Scenario((ONE, Work(5), Answer()))) as sim, raw(sim) as client:
        await asked(client)
        assert (await client.say()).status_code == 409
        await client.send(result("one"))
        assert (await client.say()).status_code == 409
        assert (await client.http.get(f"sessions/{sim.session.id}")).json()["status"] == "running"
        sim.agenda.advance(5)
        assert (await client.say()).status_code == 202


async def test_a_message_comes_alone() -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        message = {"type": "user.message", "content": [{"type": "text", "text": "Hi."}]}
        assert (await client.send(message, message)).status_code == 400


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "user.dance"},
        {"type": "user.message", "content": []},
        {"type": "user.message", "content": [{"type": "text", "text": "x" * 20_001}]},
        {"type": "user.message", "content": [{"type": "image", "source": "x"}]},
        {**result("one"), "status": "done"},
        {**result("one"), "is_error": True},
        {**result("one", status="failed"), "is_error": False},
        {**result("one", status="running"), "is_error": True},
    ],
)
async def test_an_event_of_another_shape_is_refused(event: dict[str, object]) -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await asked(client)
        refused = await client.send(event)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
        assert sim.ledger.results == []


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        path = f"sessions/{sim.session.id}/events"
        assert (await client.http.post(path, content=b'{"events": NaN}')).status_code == 400
        assert (await client.http.post(path, content=b'{"events": []}')).status_code == 400


async def test_a_result_may_leave_its_status_out() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        for call_id, failed in (("one", False), ("two", True)):
            bare = {**result(call_id), "is_error": failed}
            del bare["status"]
            assert (await client.send(bare)).status_code == 202
        assert [each.status for each in sim.ledger.results] == ["completed", "failed"]
        assert sim.ledger.violations == ["a result without a status"] * 2


@pytest.mark.parametrize("status", ["completed", "failed", "running"])
async def test_after_five_minutes_a_call_has_expired(status: str) -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await asked(client)
        sim.agenda.advance(299)
        assert sim.session.waits_for == ["one"]
        sim.agenda.advance(2)
        assert stops(sim)[-1] == {"type": "error", "message": "a custom tool was not answered in time"}
        late = await client.send(result("one", status=status))
        assert late.status_code == 410
        assert late.json()["error"]["code"] == "response_expired"
        assert late.json()["error"]["retryable"] is False
        assert sim.ledger.call("transcode").fate is Fate.EXPIRED
        assert [each.verdict for each in sim.ledger.results] == [Verdict.EXPIRED]


async def test_each_call_expires_by_itself() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        await client.send(result("one"))
        sim.agenda.advance(301)
        assert [call.fate for call in sim.ledger.calls] == [Fate.CLOSED, Fate.EXPIRED]


async def test_a_late_outcome_can_start_a_turn() -> None:
    rules = Rules(late_finals=LateFinals.APPENDED)
    async with Simulator(Scenario((ONE,)), rules=rules) as sim, raw(sim) as client:
        await asked(client)
        sim.agenda.advance(301)
        assert (await client.send(result("one", "late"))).status_code == 202
        assert (await client.send(result("one", "late", "running"))).status_code == 410
        assert [turn.started_by for turn in sim.ledger.turns] == ["", "one"]


async def test_a_call_that_was_said_to_run_does_not_expire() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        assert (await client.send(result("one", "begun", "running"))).status_code == 202
        assert sim.ledger.turns[0].ended == "end_turn"
        sim.agenda.advance(3600)
        final = await client.send(result("one", "failed after all", "failed"))
        (event,) = final.json()["events"]
        assert event["payload"]["status"] == "failed"
        assert sim.ledger.turns[1].started_by == "one"
        assert [each["payload"] for each in await client.history() if each["id"] == event["id"]] == [event["payload"]]


async def test_an_outcome_may_be_repeated_and_the_first_stands() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        await client.send(result("one", "begun", "running"))
        first = await client.send(result("one", "fine"))
        again = await client.send(result("one", "fine"))
        other = await client.send(result("one", "bad", "failed"))
        assert first.json() == again.json() == other.json()
        assert [each.verdict for each in sim.ledger.results] == [
            Verdict.STARTED,
            Verdict.FINAL,
            Verdict.REPEATED,
            Verdict.REPEATED,
        ]
        assert len(sim.ledger.turns) == 2
        assert sim.ledger.call("transcode").text == "fine"
        assert sim.ledger.violations == ["two different outcomes of transcode"]


@pytest.mark.parametrize("status", ["running", "completed"])
@pytest.mark.parametrize(
    ("repeats", "code", "events"), [(Repeats.EXPIRED, 410, 1), (Repeats.RETURNED, 202, 1), (Repeats.APPENDED, 202, 2)]
)
async def test_what_a_repeated_first_answer_does_is_a_rule(
    repeats: Repeats, code: int, events: int, status: str
) -> None:
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(repeats=repeats)) as sim, raw(sim) as client:
        await asked(client)
        for expected in (202, code):
            assert (await client.send(result("one", status=status))).status_code == expected
        assert [event["type"] for event in await client.history()].count("user.custom_tool_result") == events
        assert len(sim.ledger.turns) == 1


async def test_an_outcome_of_an_unknown_call_starts_a_turn() -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        assert (await client.send(result("elsewhere", "done"))).status_code == 202
        assert (await client.send(result("nowhere", "begun", "running"))).status_code == 404
        assert [(turn.prompt, turn.started_by) for turn in sim.ledger.turns] == [("done", "elsewhere")]
        assert sim.ledger.violations == ["a result for a call that nobody made"] * 2


async def test_patches_are_told_to_open_streams_only() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        (started,) = (await client.send(result("one", "begun", "running"))).json()["events"]
        async with client.stream() as stream:
            await client.send(result("one"))
            patch = await anext(stream)
        assert patch["type"] == "session.tool_updated"
        assert patch["payload"]["event_id"] == started["id"]
        assert patch["payload"]["tool_use_id"] == "one"
        assert patch["payload"]["payload"]["status"] == "completed"
        history = await client.history()
        assert [event["sequence"] for event in history] == [*range(1, len(history) + 1)]
        assert "session.tool_updated" not in [event["type"] for event in history]


async def test_a_stream_tells_nothing_from_before_its_opening() -> None:
    async with Simulator(Scenario((Answer("Hello."),))) as sim, raw(sim) as client:
        await asked(client)
        async with client.stream() as stream:
            await client.say("Again.")
            assert (await anext(stream))["payload"]["content"][0]["text"] == "Again."


async def test_a_stream_can_be_cut() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create(TOOL)
        async with client.stream() as stream:
            sim.cut_streams()
            with pytest.raises(httpx2.TransportError):
                await anext(stream)
        await client.say()
        assert "agent.custom_tool_use" in [event["type"] for event in await client.history()]


async def test_leaving_ends_a_stream() -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        async with client.stream() as stream:
            sim.agenda.stop()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)


async def test_the_answer_to_a_kickoff_can_be_lost() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await asked(client)
        sim.faults.append(Fault(operation="send", end=End.CUT, done=True))
        with pytest.raises(httpx2.TransportError):
            await client.send(result("one", "begun", "running"))
        assert sim.ledger.call("transcode").fate is Fate.RUNNING
        sim.faults.append(Fault(operation="send", end=End.REFUSED))
        refused = await client.send(result("one"))
        assert (refused.status_code, refused.json()["error"]["retryable"]) == (503, True)
        assert sim.ledger.call("transcode").fate is Fate.RUNNING


async def test_an_interrupt_ends_the_turn_and_voids_its_calls() -> None:
    async with Simulator(Scenario((TWO, Work(60)))) as sim, raw(sim) as client:
        await asked(client)
        await client.send(result("one", "begun", "running"))
        assert (await client.send({"type": "user.interrupt"})).status_code == 202
        assert stops(sim)[-1] == {"type": "end_turn"}
        assert (await client.send(result("two"))).status_code == 410
        assert [call.fate for call in sim.ledger.calls] == [Fate.RUNNING, Fate.INTERRUPTED]
        await client.say()
        await client.send({"type": "user.interrupt", "message": "Stop."}, {"type": "user.steer", "message": "Left."})
        sim.agenda.advance(60)
        assert [turn.ended for turn in sim.ledger.turns] == ["end_turn", "end_turn"]
        assert (await client.send({"type": "user.interrupt"})).status_code == 202


async def test_a_turn_can_fail() -> None:
    async with Simulator(Scenario((Fail("no model"),))) as sim, raw(sim) as client:
        await asked(client)
        assert stops(sim) == [{"type": "error", "message": "no model"}]


# ----------------------------------------------------------------------------------------------------- approvals

ASK = {**TOOL, "permissionPolicy": {"type": "always_ask"}}


async def test_a_tool_that_is_always_asked_about_is_called_after_it_is_allowed() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await asked(client, ASK)
        kinds = [event["type"] for event in await client.history()]
        assert "agent.approval_request" in kinds
        assert "agent.custom_tool_use" not in kinds
        assert (await client.send(result("one"))).status_code == 410
        sim.agenda.advance(3600)
        allowed = {"type": "user.tool_confirmation", "tool_use_id": "one", "result": "allow"}
        assert (await client.send(allowed)).status_code == 202
        assert (await client.send(allowed)).status_code == 409
        assert "agent.custom_tool_use" in [event["type"] for event in await client.history()]
        assert (await client.send(result("one"))).status_code == 202
        assert sim.ledger.turns[0].ended == "end_turn"


async def test_a_tool_that_is_not_allowed_is_not_called() -> None:
    async with Simulator(Scenario((ONE, Answer("No.")))) as sim, raw(sim) as client:
        await asked(client, ASK)
        unclear = {"type": "user.tool_confirmation", "tool_use_id": "one", "result": "perhaps"}
        assert (await client.send(unclear)).status_code == 400
        assert (await client.send({**unclear, "result": "deny"})).status_code == 202
        assert sim.ledger.call("transcode").fate is Fate.DENIED
        assert "agent.custom_tool_use" not in [event["type"] for event in await client.history()]
        assert sim.ledger.turns[0].ended == "end_turn"


async def test_a_tool_that_is_always_denied_reaches_nobody() -> None:
    async with Simulator(Scenario((ONE, Answer("No.")))) as sim, raw(sim) as client:
        await asked(client, {**TOOL, "permissionPolicy": {"type": "always_deny"}})
        assert sim.ledger.call("transcode").fate is Fate.DENIED
        assert stops(sim) == [{"type": "end_turn"}]


async def test_names_that_are_not_documented_can_be_changed() -> None:
    names = Payloads(name="tool_name", input="arguments", decision="decision", policy="policy", error="fault")
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(payloads=names)) as sim, raw(sim) as client:
        await asked(client, {**TOOL, "policy": {"type": "always_ask"}})
        assert (await client.send({})).json()["fault"]["code"] == "invalid_request"
        await client.send({"type": "user.tool_confirmation", "tool_use_id": "one", "decision": "allow"})
        (call,) = [each for each in await client.history() if each["type"] == "agent.custom_tool_use"]
        assert (call["payload"]["tool_name"], call["payload"]["arguments"]) == ("transcode", {"file": "a.mov"})


# ------------------------------------------------------------------------------------------------------ resources


async def test_sessions_are_listed_and_changed_and_go() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        first = await client.create(TOOL, {"type": "agent_toolset", "name": "shell"})
        second = await client.create(TOOL)
        changed = await client.http.patch(f"sessions/{first}", json={"title": "Film", "metadata": {"a": "b"}})
        assert (changed.json()["title"], changed.json()["metadata"]) == ("Film", {"a": "b"})
        page = (await client.http.get("sessions", params={"limit": 1, "userId": "u1"})).json()
        assert [each["id"] for each in page["data"]] == [first]
        rest = (await client.http.get("sessions", params={"limit": 1, "cursor": page["nextCursor"]})).json()
        assert ([each["id"] for each in rest["data"]], "nextCursor" in rest) == ([second], False)
        await client.say()
        assert (await client.http.post(f"sessions/{second}/archive")).json()["status"] == "archived"
        assert sim.ledger.call("transcode").fate is Fate.INTERRUPTED
        assert (await client.say()).status_code == 409
        assert (await client.http.delete(f"sessions/{second}")).status_code == 204
        assert (await client.http.get(f"sessions/{second}")).status_code == 404
        assert list(sim.sessions) == [first]
        with pytest.raises(LookupError, match="other was not called"):
            sim.ledger.call("other")


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 101}, {"cursor": "x"}])
async def test_a_page_out_of_range_is_refused(params: dict[str, object]) -> None:
    async with Simulator() as sim, raw(sim) as client:
        assert (await client.http.get("sessions", params=params)).status_code == 400


async def test_who_or_what_is_not_known_is_refused() -> None:
    async with Simulator() as sim, raw(sim) as client:
        assert (await client.http.post("agents/agent_1/sessions", json={})).status_code == 404
        strange = {"name": "clerk", "tools": [{"type": "custom", "name": "x", "permissionPolicy": "never"}]}
        assert (await client.http.post("agents", json=strange)).status_code == 400
        with pytest.raises(LookupError):
            _ = sim.session
        client.http.headers["x-api-key"] = "wrong"
        for path in ("sessions", "sessions/session_1"):
            assert (await client.http.get(path)).status_code == 401
