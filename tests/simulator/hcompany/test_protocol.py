"""The rules of the sessions API, one by one."""

from __future__ import annotations

import asyncio
import math
import uuid

import httpx2
import pytest

from bridge.simulator.hcompany import (
    Answer,
    Ask,
    Call,
    Duplicates,
    End,
    Fail,
    Fate,
    Fault,
    OwnTool,
    Rules,
    Scenario,
    Simulator,
    Verdict,
    Work,
)
from tests.simulator.hcompany.client import AGENT, failure, raw, success

pytestmark = pytest.mark.anyio

ONE = Ask((Call("stock_level", {"sku": "B-17"}, "call_7a"),))
TWO = Ask((Call("stock_level", {"sku": "B-17"}, "call_7a"), Call("stock_level", {"sku": "C-02"}, "call_7b")))


def states(sim: Simulator) -> list[str]:
    """What the log says the agent did."""
    return [event["data"]["state"] for event in sim.session.log.kept if event["type"] == "ActiveStateChangeEvent"]


async def test_a_session_waits_for_its_tool_and_goes_on_with_the_result() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        created = await client.create()
        assert created["status"] == {"status": "awaiting_tool_results"}
        (call,) = await client.pending()
        assert call == {"tool_name": "stock_level", "args": {"sku": "B-17"}, "id": "call_7a"}
        posted = await client.answer(call, {"on_hand": 12})
        assert (posted.status_code, posted.content) == (202, b"")
        assert sim.ledger.call("stock_level").settled_with == {"on_hand": 12}
        assert sim.ledger.statuses == ["pending", "running", "awaiting_tool_results", "running", "completed"]
        assert (await client.get("changes")).json()["answer"] == "stock_level: {'on_hand': 12}"
        assert sim.ledger.violations == []


async def test_the_calls_that_remain_are_listed_after_each_result() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        await client.answer(second)
        assert await client.pending() == [first]
        listed = [event["data"] for event in sim.session.log.kept if event["type"] == "ActiveStateChangeEvent"][-1]
        assert listed == {"state": "awaiting_tool_results", "pending_tool_calls": [first]}
        await client.post("tool_results", failure(first))
        assert sim.session.status.value == "completed"
        assert states(sim) == ["running", "awaiting_tool_results", "awaiting_tool_results", "running"]


async def test_a_batch_settles_all_its_calls() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        posted = await client.post("tool_results", {"type": "batch", "results": [success(first), failure(second)]})
        assert posted.status_code == 202
        assert [(result.is_error, result.verdict) for result in sim.ledger.results] == [
            (False, Verdict.SETTLED),
            (True, Verdict.SETTLED),
        ]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "batch", "results": []},
        {"type": "batch", "results": [success({"tool_name": "stock_level"})], "more": 1},
        {"kind": "tool_result", "result": 1},
        {"kind": "tool_result", "tool_req": {"args": {}}, "result": 1},
        {"kind": "error_event", "error": "no origin", "tool_req": {"tool_name": "stock_level"}},
        {"kind": "progress", "tool_req": {"tool_name": "stock_level"}},
        [],
    ],
)
async def test_a_body_of_another_shape_is_refused(body: object) -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        refused = await client.post("tool_results", body)
        assert refused.status_code == 422
        assert refused.json()["detail"]
        assert sim.ledger.results == []


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        broken = b'{"kind":"tool_result","tool_req":{"tool_name":"stock_level"},"result":NaN}'
        path = f"sessions/{sim.session.id}/tool_results"
        assert (await client.http.post(path, content=broken)).status_code == 422
        assert (await client.http.post(path, content=b" " * 10_000_001)).status_code == 413


async def test_a_wrong_id_is_accepted_and_the_session_goes_on_waiting() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        (call,) = await client.pending()
        assert (await client.answer({**call, "id": "another"})).status_code == 202
        assert (await client.post("tool_results", {"kind": "error_event", "error": "x", "origin": "y"})).is_success
        assert sim.session.status.value == "awaiting_tool_results"
        assert [result.verdict for result in sim.ledger.results] == [Verdict.STRAY, Verdict.STRAY]
        assert sim.ledger.violations == ["a result for a call that nobody made"] * 2


async def test_a_call_that_is_not_echoed_as_it_was_is_settled_and_noted() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        await client.answer({"tool_name": "stock_level", "id": "call_7a"})
        assert sim.ledger.call("stock_level").fate is Fate.SETTLED
        assert sim.ledger.violations == ["the result for stock_level does not echo its call"]


@pytest.mark.parametrize("duplicates", list(Duplicates))
async def test_a_second_result_is_accepted_and_changes_nothing(duplicates: Duplicates) -> None:
    rules = Rules(duplicates=duplicates)
    async with Simulator(Scenario((TWO,)), rules=rules) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        await client.answer(first, 1)
        before = len(sim.session.log)
        assert (await client.answer(first, 2)).status_code == 202
        assert sim.ledger.calls[0].settled_with == 1
        assert [result.verdict for result in sim.ledger.calls[0].results] == [Verdict.SETTLED, Verdict.REPEATED]
        assert await client.pending() == [second]
        assert len(sim.session.log) - before == (duplicates is Duplicates.LOGGED)


async def test_an_id_that_comes_again_is_another_call() -> None:
    again = Ask((Call("stock_level", {"sku": "C-02"}, "call_7a"),))
    async with Simulator(Scenario((ONE, again))) as sim, raw(sim) as client:
        await client.create()
        (first,) = await client.pending()
        await client.answer(first, 1)
        (second,) = await client.pending()
        assert (first["id"], first["args"]) != (second["id"], second["args"])
        await client.answer(second, 2)
        assert [(call.id, call.settled_with) for call in sim.ledger.calls] == [("call_7a", 1), ("call_7a", 2)]
        assert sim.ledger.calls[0].step < sim.ledger.calls[1].step


async def test_calls_without_an_id_are_settled_by_what_they_ask_for() -> None:
    calls = (Call("stock_level", {"sku": "A"}, None), Call("stock_level", {"sku": "B"}, None))
    async with Simulator(Scenario((Ask((*calls, calls[0])),))) as sim, raw(sim) as client:
        await client.create()
        first, second, third = await client.pending()
        assert first == third
        await client.answer(second, "b")
        await client.answer(first, "a")
        await client.answer(third, "c")
        assert [call.settled_with for call in sim.ledger.calls] == ["a", "b", "c"]


async def test_a_paused_session_takes_results_and_stays_paused() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await client.create()
        assert (await client.post("pause")).status_code == 202
        assert (await client.post("pause")).status_code == 202
        (call,) = await client.pending()
        assert sim.session.status.value == "paused"
        assert (await client.answer(call)).status_code == 202
        assert sim.session.status.value == "paused"
        assert await client.pending() == []
        assert (await client.post("resume")).status_code == 202
        assert sim.session.status.value == "completed"


async def test_a_message_resumes_a_paused_session() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        await client.post("pause")
        assert (await client.post("messages", {"type": "user_message", "message": "Well?"})).status_code == 202
        assert sim.session.status.value == "awaiting_tool_results"
        batch = {"type": "batch", "messages": [{"message": "One."}, {"message": "Two.", "caller_id": "boss"}]}
        assert (await client.post("messages", batch)).status_code == 202
        assert (await client.post("messages", {"type": "batch", "messages": []})).status_code == 422


async def test_what_comes_after_the_end_is_refused() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        (call,) = await client.pending()
        assert (await client.http.delete(f"sessions/{sim.session.id}")).status_code == 204
        assert sim.session.status.value == "interrupted"
        assert sim.ledger.call("stock_level").fate is Fate.RESOLVED_BY_SERVER
        assert await client.pending() == []
        for what, body in (("tool_results", success(call)), ("messages", {"message": "Hello?"}), ("pause", None)):
            assert (await client.post(what, body)).status_code == 409
        for what in ("resume", "force_answer"):
            assert (await client.post(what)).status_code == 409
        assert (await client.http.delete(f"sessions/{sim.session.id}")).status_code == 409


async def test_a_session_that_does_not_exist_is_not_found() -> None:
    async with Simulator() as sim, raw(sim) as client:
        assert (await client.http.get(f"sessions/{uuid.uuid4()}/status")).status_code == 404
        assert (await client.http.get("sessions/one/status")).status_code == 422
        with pytest.raises(LookupError):
            _ = sim.session


async def test_a_wrong_key_is_refused() -> None:
    async with Simulator() as sim, raw(sim) as client:
        client.http.headers["authorization"] = "Bearer wrong"
        for path in ("sessions", "webhooks", f"sessions/{uuid.uuid4()}"):
            assert (await client.http.get(path)).status_code == 401


async def test_nothing_new_is_told_by_an_empty_answer_also_after_the_end() -> None:
    async with Simulator(Scenario((Answer("Twelve."),))) as sim, raw(sim) as client:
        await client.create()
        told = (await client.get("changes", limit=2)).json()
        assert (told["first_index"], len(told["new_events"]), told["answer"]) == (0, 2, "Twelve.")
        tip = len(sim.session.log)
        rest = (await client.get("changes", from_index=2)).json()
        assert (rest["first_index"], len(rest["new_events"])) == (2, tip - 2)
        without = (await client.get("changes", include_events=False)).json()
        assert without["answer"] == "Twelve."
        assert "new_events" not in without
        nothing = await client.get("changes", from_index=tip)
        assert (nothing.status_code, nothing.content) == (204, b"")


@pytest.mark.parametrize("params", [{"wait_for_seconds": 26}, {"from_index": -1}, {"limit": "x"}])
async def test_a_poll_with_a_parameter_out_of_range_is_refused(params: dict[str, object]) -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        assert (await client.get("changes", **params)).status_code == 422


async def test_a_long_poll_is_answered_when_something_happens() -> None:
    async with Simulator(Scenario((Work(5), Answer("Twelve.")))) as sim, raw(sim) as client:
        await client.create()
        polling = asyncio.create_task(client.get("changes", from_index=len(sim.session.log), wait_for_seconds=25))
        await client.get("status")  # the poll is on its way before this one is answered
        sim.agenda.advance(5)
        assert (await polling).json()["answer"] == "Twelve."


async def test_a_long_poll_ends_after_its_time() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        polling = asyncio.create_task(client.get("changes", from_index=len(sim.session.log), wait_for_seconds=25))
        await client.get("status")
        while not polling.done():
            sim.agenda.advance(25)
            await client.get("status")
        assert (await polling).status_code == 204


async def test_events_that_are_evicted_are_skipped() -> None:
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(kept_events=2)) as sim, raw(sim) as client:
        await client.create()
        changes = (await client.get("changes", from_index=0)).json()
        assert changes["first_index"] == len(sim.session.log) - 2
        assert len(changes["new_events"]) == 2
        sim.session.log.evict(before=100)
        assert (await client.get("changes")).json()["new_events"] == []
        assert len(await client.pending()) == 1


async def test_results_that_were_accepted_count_later() -> None:
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(apply_after=2)) as sim, raw(sim) as client:
        await client.create()
        (call,) = await client.pending()
        await client.answer(call)
        assert await client.pending() == [call]
        sim.agenda.advance(2)
        assert sim.session.status.value == "completed"


async def test_results_on_their_way_are_overtaken_by_the_end() -> None:
    async with Simulator(Scenario((ONE, Answer())), rules=Rules(apply_after=2)) as sim, raw(sim) as client:
        await client.create()
        (call,) = await client.pending()
        await client.answer(call)
        await client.http.delete(f"sessions/{sim.session.id}")
        sim.agenda.advance(2)
        assert [result.verdict for result in sim.ledger.results] == [Verdict.OVERTAKEN]


async def test_a_result_can_be_late_or_lost() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        sim.faults.append(Fault(operation="tool_results", delay=math.inf))
        sim.faults.append(Fault(operation="tool_results", delay=30))
        assert (await client.answer(first)).status_code == 202
        assert (await client.answer(second)).status_code == 202
        sim.agenda.advance(31)
        assert await client.pending() == [first]
        assert sim.ledger.results[0].verdict is Verdict.ON_ITS_WAY
        with pytest.raises(LookupError):
            _ = sim.ledger.calls[0].settled_with


async def test_a_request_can_be_refused_with_or_without_its_effect() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        sim.faults.append(Fault(operation="tool_results", end=End.REFUSED, retry_after="3"))
        sim.faults.append(Fault(operation="tool_results", end=End.REFUSED, done=True, status=502))
        refused = await client.answer(first)
        assert (refused.status_code, refused.headers["retry-after"], refused.json()["message"]) == (
            503,
            "3",
            "HTTP status 503",
        )
        assert (await client.answer(second)).status_code == 502
        assert await client.pending() == [first]


async def test_a_connection_can_be_cut_before_and_after_the_effect() -> None:
    async with Simulator(Scenario((TWO, Answer()))) as sim, raw(sim) as client:
        await client.create()
        first, second = await client.pending()
        sim.faults.append(Fault(operation="tool_results", end=End.CUT))
        sim.faults.append(Fault(operation="tool_results", end=End.CUT, done=True))
        for call in (first, second):
            with pytest.raises(httpx2.TransportError):
                await client.answer(call)
        assert await client.pending() == [first]
        assert [each.status for each in sim.exchanges if each.operation == "tool_results"] == [0, 0]


async def test_an_empty_401_can_come_several_times() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        sim.faults.append(Fault(operation="changes", end=End.REFUSED, status=401, empty=True, times=2))
        answers = [await client.get("changes") for _ in range(3)]
        assert [(answer.status_code, bool(answer.content)) for answer in answers] == [
            (401, False),
            (401, False),
            (200, True),
        ]


async def test_a_session_without_a_message_waits_for_one() -> None:
    async with Simulator(Scenario((Answer("Yes?"),))) as sim, raw(sim) as client:
        await client.create(messages=None)
        assert sim.session.status.value == "idle"
        await client.post("messages", {"message": "Hello."})
        assert sim.session.answer == "Yes?"


async def test_a_session_that_stays_open_answers_again() -> None:
    script = Scenario((Answer("One."), Answer("Two.")))
    async with Simulator(script) as sim, raw(sim) as client:
        await client.create(idle_timeout_s=60, messages=[{"message": "First."}])
        assert (sim.session.status.value, sim.session.answer) == ("idle", "One.")
        sim.agenda.advance(59)
        await client.post("messages", {"message": "Second."})
        assert (sim.session.status.value, sim.session.answer) == ("idle", "Two.")
        sim.agenda.advance(59)
        assert sim.session.status.value == "idle"
        sim.agenda.advance(2)
        assert sim.session.status.value == "completed"


async def test_the_time_limit_ends_a_session_that_waits() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create(max_time_s=10)
        sim.agenda.advance(11)
        told = (await client.get("status")).json()
        assert (told["status"], told["error_code"], told["pending_tool_calls"]) == ("timed_out", "timeout", [])
        assert sim.ledger.call("stock_level").fate is Fate.RESOLVED_BY_SERVER


async def test_the_time_limit_is_for_the_work_toward_each_answer() -> None:
    async with Simulator(Scenario((Answer(), Work(9), Answer()))) as sim, raw(sim) as client:
        await client.create(max_time_s=10, idle_timeout_s=100)
        sim.agenda.advance(50)
        await client.post("messages", {"type": "user_message", "message": "Again."})
        sim.agenda.advance(9)
        sim.agenda.advance(9)
        assert sim.session.status.value == "idle"


async def test_a_session_fails_with_its_reason() -> None:
    async with Simulator(Scenario((Fail(),))) as sim, raw(sim) as client:
        await client.create(messages={"message": "Count."})
        told = (await client.get("status")).json()
        assert (told["status"], told["error_code"]) == ("failed", "environment_error")


async def test_a_tool_of_the_environment_is_logged_and_not_asked_for() -> None:
    async with Simulator(Scenario((OwnTool(Call("click"), "done"), Answer("Clicked.")))) as sim, raw(sim) as client:
        await client.create()
        assert states(sim) == ["running"]
        assert [e["data"]["kind"] for e in sim.session.log.kept if e["type"] == "AgentEvent"] == [
            "message_event",
            "policy_event",
            "tool_result",
            "answer_event",
        ]
        assert sim.ledger.calls == []


async def test_an_answer_can_be_forced() -> None:
    async with Simulator(Scenario((Work(60), ONE, Answer("So far: nothing.")))) as sim, raw(sim) as client:
        await client.create()
        assert (await client.post("force_answer")).status_code == 202
        assert sim.session.answer == "So far: nothing."
        sim.agenda.advance(60)
        assert sim.ledger.calls == []


async def test_a_forced_answer_waits_for_what_is_pending() -> None:
    async with Simulator(Scenario((ONE, ONE, Answer("Enough.")))) as sim, raw(sim) as client:
        await client.create()
        await client.post("force_answer")
        (call,) = await client.pending()
        await client.answer(call)
        assert sim.session.answer == "Enough."


async def test_without_a_script_the_first_tool_is_called_with_arguments_that_fit() -> None:
    async with Simulator() as sim, raw(sim) as client:
        await client.create()
        assert [call["tool_name"] for call in await client.pending()] == ["stock_level"]
        schema = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
        tool = {"name": "other", "description": "Another.", "input_schema": schema}
        await client.create(agent="h/web", overrides={"agent.tools": [tool]})
        assert [(call["tool_name"], call["args"]) for call in await client.pending()] == [("other", {"sku": "example"})]


@pytest.mark.parametrize(
    "fields",
    [
        {"agent": None},
        {"agent": {**AGENT, "tools": []}},
        {"agent": {**AGENT, "tools": [{"name": "1st", "description": "x"}]}},
        {"agent": {**AGENT, "tools": [{"name": "first", "description": ""}]}},
        {"agent": {**AGENT, "tools": [{"name": "a", "description": "x"}] * 2}},
        {"max_time_s": 0},
        {"messages": 1},
    ],
)
async def test_a_session_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    async with Simulator() as sim, raw(sim) as client:
        answer = await client.http.post("sessions", json={"agent": AGENT, "messages": "Count.", **fields})
        assert answer.status_code == 422
        assert sim.sessions == {}


async def test_a_creation_that_is_repeated_with_its_key_makes_no_second_session() -> None:
    async with Simulator() as sim, raw(sim) as client:
        client.http.headers["idempotency-key"] = "once"
        first, second = await client.create(), await client.create()
        assert first["id"] == second["id"]
        other = await client.http.post("sessions", json={"agent": AGENT})
        assert other.status_code == 422
        sim.agenda.advance(24 * 3600 + 1)
        assert (await client.create())["id"] != first["id"]


async def test_a_key_of_a_creation_that_is_too_long_is_refused() -> None:
    async with Simulator() as sim, raw(sim) as client:
        client.http.headers["idempotency-key"] = "k" * 256
        answer = await client.http.post("sessions", json={"agent": AGENT})
        assert (answer.status_code, sim.sessions) == (422, {})
        client.http.headers["idempotency-key"] = "k" * 255
        assert (await client.create())["id"]


async def test_over_its_capacity_a_session_is_queued_or_refused() -> None:
    async with Simulator(Scenario((ONE,)), rules=Rules(capacity=1)) as sim, raw(sim) as client:
        first = await client.create()
        second = await client.create()
        assert second["status"] == {"status": "queued"}
        refused = await client.http.post("sessions", json={"agent": AGENT, "queue": False})
        assert (refused.status_code, refused.json()["detail"][0]["type"]) == (429, "capacity")
        await client.http.delete(f"sessions/{first['id']}")
        assert sim.session.status.value == "awaiting_tool_results"
        waiting = await client.http.get("sessions", params={"status": "awaiting_tool_results"})
        assert [each["id"] for each in waiting.json()["items"]] == [second["id"]]


async def test_a_session_that_is_ended_before_it_runs_does_not_begin() -> None:
    async with Simulator(rules=Rules(startup=5)) as sim, raw(sim) as client:
        await client.create()
        await client.http.delete(f"sessions/{sim.session.id}")
        sim.agenda.advance(5)
        assert sim.ledger.statuses == ["pending", "interrupted"]


async def test_an_older_api_does_not_list_what_is_pending() -> None:
    async with Simulator(Scenario((ONE,)), rules=Rules(lists_pending=False)) as sim, raw(sim) as client:
        await client.create()
        assert "pending_tool_calls" not in (await client.get("status")).json()


async def test_the_log_can_be_read_by_pages() -> None:
    async with Simulator(Scenario((Answer("Twelve."),))) as sim, raw(sim) as client:
        created = await client.create(agent="h/web")
        page = (await client.get("events", page=1, size=2)).json()
        assert (len(page["items"]), page["total"], page["page"]) == (2, len(sim.session.log), 1)
        newest = (await client.get("events", sort="-timestamp", size=1)).json()["items"]
        assert newest[0]["type"] == "AgentCompletionEvent"
        answers = (await client.get("events", type="AgentEvent")).json()["items"]
        assert [each["data"]["kind"] for each in answers] == ["message_event", "answer_event"]
        assert (await client.get("events", size=201)).status_code == 422
        one = (await client.http.get(f"sessions/{created['id']}")).json()
        assert (one["latest_answer"], one["request"]["agent"]) == ("Twelve.", "h/web")
        (listed,) = (await client.http.get("sessions")).json()["items"]
        assert listed["agent"] == "h/web"


async def test_a_call_that_was_not_made_cannot_be_looked_up() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        with pytest.raises(LookupError, match="other was not called"):
            sim.ledger.call("other")


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with Simulator() as sim:
        taken = int(sim.url.rpartition(":")[2])
        with pytest.raises(OSError, match="in use"):
            await Simulator(port=taken).__aenter__()


async def test_leaving_ends_a_long_poll() -> None:
    async with Simulator(Scenario((ONE,))) as sim, raw(sim) as client:
        await client.create()
        polling = asyncio.create_task(client.get("changes", from_index=99, wait_for_seconds=25))
        await client.get("status")
        sim.agenda.stop()
        assert (await polling).status_code == 204


async def test_a_session_can_be_waited_for() -> None:
    async with Simulator(Scenario((Work(0.01), ONE))) as sim, raw(sim) as client:
        waiting = asyncio.create_task(sim.reached("awaiting_tool_results"))
        await client.create()
        assert (await waiting).status.value == "awaiting_tool_results"
