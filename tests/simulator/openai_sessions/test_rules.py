"""What the offline provider takes, what it refuses, and its switches, over plain HTTP."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import orjson
import pytest

from bridge.simulator.openai_sessions import (
    Ask,
    AskApproval,
    AwaitResults,
    Call,
    Cancel,
    Effect,
    Fate,
    Fault,
    LateResults,
    On,
    Partly,
    Raw,
    Repetition,
    Rules,
    Say,
    Scenario,
    Simulator,
    Step,
    Tell,
    Verdict,
    Wait,
)

pytestmark = pytest.mark.anyio

TWO = (Ask((Call("where", id="a"), Call("when", id="b"))), Tell())
MESSAGE = {
    "type": "agent.session.input.message",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}],
}
CANCEL = {"type": "agent.session.input.cancel"}


def result(call_id: str, output: Any = "found", turn: str = "turn_1", **fields: Any) -> dict[str, Any]:
    event = {"type": "agent.session.input.tool_result", "turn_id": turn, "call_id": call_id}
    return {**event, "success": True, "output": output, **fields}


class Wire:
    """A session, and requests about it."""

    def __init__(self, http: httpx2.AsyncClient, session_id: str) -> None:
        self.http = http
        self.path = f"/agents/sessions/{session_id}"

    async def post(self, *events: dict[str, Any], key: str = "") -> httpx2.Response:
        headers = {"idempotency-key": key} if key else {}
        return await self.http.post(f"{self.path}/events", json={"events": list(events)}, headers=headers)

    async def read(self) -> dict[str, Any]:
        session: dict[str, Any] = (await self.http.get(self.path)).json()
        return session

    async def status_after(self, *events: dict[str, Any], key: str = "") -> int:
        return (await self.post(*events, key=key)).status_code


@asynccontextmanager
async def session_at(sim: Simulator, **create: Any) -> AsyncIterator[Wire]:
    headers = {"authorization": "Bearer k", "openai-beta": "agents=v1"}
    body = {"environment": {"type": "openai_hosted"}, "agent": {"model": "m"}, **create}
    with anyio.fail_after(20):
        async with httpx2.AsyncClient(base_url=sim.url, headers=headers, trust_env=False, verify=False) as http:
            created = await http.post("/agents/sessions", json=body)
            yield Wire(http, created.json()["id"])


@asynccontextmanager
async def waiting(scenario: Scenario) -> AsyncIterator[tuple[Simulator, Wire]]:
    """A session that waits for the results of its first turn."""
    async with Simulator(scenario) as sim, session_at(sim) as session:
        assert await session.status_after(MESSAGE) == 202
        await sim.until(lambda ledger: any(call.fate is Fate.OPEN for call in ledger.calls))
        yield sim, session


def two(**rules: Any) -> Scenario:
    return Scenario((TWO,), Rules(**rules))


# ------------------------------------------------------------------------------------------------ results


async def test_the_turn_waits_until_the_last_result_is_there() -> None:
    async with waiting(two()) as (sim, session):
        assert (await session.read())["status"] == "requires_action"
        assert await session.status_after(result("b")) == 202
        ledger = await sim.until(lambda ledger: ledger.calls[1].fate is Fate.ANSWERED)
        assert [action["call_id"] for action in (await session.read())["required_actions"]] == ["a"]
        assert ledger.turns == {"turn_1": "in_progress"}
        assert await session.status_after(result("a")) == 202
        await sim.turn_over()
        assert (await session.read())["status"] == "idle"


@pytest.mark.parametrize("partly", Partly)
async def test_a_part_of_the_results_is_told_or_not(partly: Partly) -> None:
    async with waiting(two(partly=partly)) as (sim, session):
        await session.post(result("b"))
        ledger = await sim.until(lambda ledger: ledger.calls[1].fate is Fate.ANSWERED)
        told = ledger.timeline.count("<- agent.session.requires_action")
        assert told == (2 if partly is Partly.REMAINING else 1)


async def test_an_identical_result_is_taken_without_effect_and_another_is_a_conflict() -> None:
    async with waiting(two()) as (sim, session):
        assert [await session.status_after(result("a", text)) for text in ("x", "x", "y")] == [202, 202, 409]
        verdicts = [answer.verdict for answer in sim.ledger.calls[0].answers]
        assert verdicts == [Verdict.ACCEPTED, Verdict.REPEATED, Verdict.CONFLICT]


async def test_another_result_is_taken_without_effect_under_that_rule() -> None:
    async with waiting(two(other_results=Repetition.ACCEPTED)) as (sim, session):
        assert [await session.status_after(result("a", text)) for text in ("x", "y")] == [202, 202]
        assert sim.ledger.calls[0].result.output == "x"  # type: ignore[union-attr]  # it was accepted above


async def test_one_post_may_answer_a_call_twice_only_with_the_same_words() -> None:
    async with waiting(two()) as (sim, session):
        assert await session.status_after(result("a", "x"), result("a", "y")) == 409
        assert sim.ledger.calls[0].fate is Fate.OPEN
        assert await session.status_after(result("a", "x"), result("a", "x")) == 202


async def test_a_post_is_taken_whole_or_not_at_all() -> None:
    async with waiting(two()) as (sim, session):
        refused = await session.post(result("a"), result("nobody"))
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (400, "invalid_request_error")
        assert error["message"] == "Unknown pending tool call: nobody"
        assert sim.ledger.calls[0].answers[0].verdict is Verdict.WITH_OTHERS
        assert sim.ledger.strays[0].verdict is Verdict.UNKNOWN
        assert await session.status_after(result("a")) == 202


async def test_a_result_for_another_turn_is_unknown() -> None:
    async with waiting(two()) as (sim, session):
        assert await session.status_after(result("a", turn="turn_9")) == 400
        assert sim.ledger.strays[0].verdict is Verdict.WRONG_TURN


@pytest.mark.parametrize(
    ("late", "status"), [(LateResults.CONFLICT, 409), (LateResults.ACCEPTED, 202), (LateResults.UNKNOWN, 400)]
)
async def test_a_result_after_its_turn_has_ended_is(late: LateResults, status: int) -> None:
    scenario = Scenario(((Ask((Call("where", id="a"),)), Cancel()),), Rules(late_results=late))
    async with Simulator(scenario) as sim, session_at(sim) as session:
        await session.post(MESSAGE)
        await sim.turn_over()
        assert await session.status_after(result("a")) == status
        assert sim.ledger.calls[0].fate is Fate.ABANDONED
        assert sim.ledger.calls[0].answers[0].verdict is Verdict.LATE


async def test_an_output_may_be_text_and_images_and_nothing_else() -> None:
    async with waiting(two()) as (sim, session):
        parts = [{"type": "input_text", "text": "here"}, {"type": "input_image", "image_url": "data:,"}]
        assert await session.status_after(result("a", {"depot": "Graz"})) == 400
        assert await session.status_after(result("a", parts), result("b", None)) == 202
        assert sim.ledger.calls[0].answers[-1].output == parts


async def test_a_success_with_an_error_and_a_failure_without_one_are_noted() -> None:
    async with waiting(two()) as (sim, session):
        await session.post(result("a", error="?"), result("b", None, success=False))
        assert len([line for line in sim.ledger.violations if "result" in line]) == 2


async def test_a_call_id_may_come_again_in_a_later_turn() -> None:
    turn = (Ask((Call("where", id="a"),)), Tell())
    async with Simulator(Scenario((turn, turn))) as sim, session_at(sim) as session:
        for number in (1, 2):
            await session.post(MESSAGE)
            ledger = await sim.until(lambda ledger: any(call.fate is Fate.OPEN for call in ledger.calls))
            await session.post(result("a", turn=ledger.calls[-1].turn_id))
            await sim.turn_over(number)
        assert [call.fate for call in sim.ledger.calls] == [Fate.ANSWERED, Fate.ANSWERED]
        assert len({call.turn_id for call in sim.ledger.calls}) == 2


# ------------------------------------------------------------------------------------------------ keys, limits


async def test_a_key_makes_a_post_count_once_and_cannot_be_used_for_another() -> None:
    async with waiting(two()) as (sim, session):
        assert [await session.status_after(result("a"), key="k") for _ in range(2)] == [202, 202]
        other = await session.post(result("b"), key="k")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_conflict")
        assert [post.verdicts for post in sim.ledger.posts[-3:-1]] == [(Verdict.ACCEPTED,), (Verdict.ONCE_MORE,)]


async def test_a_refused_post_does_not_use_up_its_key() -> None:
    async with waiting(two(registration_lag=0.05)) as (sim, session):
        assert await session.status_after(result("none"), key="k") == 400
        assert await session.status_after(result("a"), key="k") == 202
        assert sim.ledger.calls[0].fate is not Fate.ABANDONED


@pytest.mark.parametrize("limit", [{"max_events": 1}, {"max_body": 100}, {"max_key": 3}])
async def test_a_post_beyond_the_limits_is_refused(limit: dict[str, int]) -> None:
    async with Simulator(Scenario(rules=Rules(**limit))) as sim, session_at(sim) as session:
        assert await session.status_after(MESSAGE, CANCEL, key="long") == 400
        assert sim.ledger.posts == []


# ------------------------------------------------------------------------------------------------ approvals

KIND = "agent.session.input.mcp_approval_request_result"


def decision(request_id: str, decided: str = "approve") -> dict[str, Any]:
    return {"type": KIND, "request_id": request_id, "response": {"type": "mcp_tool_call", "decision": decided}}


@asynccontextmanager
async def asking(*steps: Step) -> AsyncIterator[tuple[Simulator, Wire, str]]:
    """A session that waits for an approval; its id."""
    scenario = Scenario(((AskApproval("shop", "refund", {"amount": 5}), *steps),))
    async with Simulator(scenario) as sim, session_at(sim) as session:
        assert await session.status_after(MESSAGE) == 202
        ledger = await sim.until(lambda ledger: bool(ledger.approvals))
        yield sim, session, ledger.approvals[0].request_id


async def test_an_answer_to_an_approval_that_nobody_asked_for_is_refused() -> None:
    async with Simulator() as sim, session_at(sim) as session:
        browser = {"type": KIND.replace("mcp_", "computer_use_"), "request_id": "r", "response": {}}
        assert [await session.status_after(each) for each in (decision("r"), browser)] == [400, 400]


@pytest.mark.parametrize("decided", ["approve", "deny", "cancel"])
async def test_the_turn_waits_until_its_approvals_are_decided(decided: str) -> None:
    async with asking(Tell()) as (sim, session, request_id):
        read = await session.read()
        assert read["status"] == "requires_action"
        asked = {"type": "mcp_tool_call", "server_label": "shop", "name": "refund", "message": ""}
        about = {"request_id": request_id, "turn_id": "turn_1", "request": {**asked, "arguments": {"amount": 5}}}
        assert read["required_actions"] == [{"type": "mcp_approval_request", **about}]
        assert await session.status_after(decision(request_id, decided)) == 202
        ledger = await sim.turn_over()
        assert (ledger.turns, ledger.approvals[0].decision) == ({"turn_1": "completed"}, decided)
        items = (await session.http.get(f"{session.path}/items")).json()["data"]
        assert [item["type"] for item in items].count("mcp_call") == (decided == "approve")


async def test_a_second_decision_is_taken_only_if_it_is_the_same() -> None:
    async with asking() as (sim, session, request_id):
        assert await session.status_after(decision(request_id)) == 202
        await sim.turn_over()
        assert await session.status_after(decision(request_id)) == 202
        assert await session.status_after(decision(request_id, "deny")) == 409
        assert sim.ledger.approvals[0].decision == "approve"


async def test_a_decision_is_refused_once_its_turn_has_ended() -> None:
    async with asking(Cancel()) as (sim, session, request_id):
        await sim.turn_over()
        assert await session.status_after(decision(request_id)) == 409
        assert sim.ledger.approvals[0].fate is Fate.ABANDONED


@pytest.mark.parametrize("response", [{}, {"type": "mcp_tool_call", "decision": "maybe"}, {"decision": "approve"}])
async def test_a_decision_that_is_none_is_refused(response: dict[str, Any]) -> None:
    async with asking() as (_, session, request_id):
        assert await session.status_after({**decision(request_id), "response": response}) == 400


# ------------------------------------------------------------------------------------------------ time


@pytest.mark.parametrize(("lag", "status"), [(math.inf, "idle"), (0.0, "requires_action")])
async def test_a_session_reads_idle_until_the_turn_of_its_new_input_begins(lag: float, status: str) -> None:
    async with Simulator(two(start_lag=lag)) as sim, session_at(sim) as session:
        await session.post(MESSAGE)
        if lag == 0:
            await sim.until(lambda ledger: any(call.fate is Fate.OPEN for call in ledger.calls))
        assert (await session.read())["status"] == status


async def test_a_turn_that_is_cancelled_before_it_begins_never_begins() -> None:
    async with Simulator(two(start_lag=0.05)) as sim, session_at(sim) as session:
        await session.post(MESSAGE, CANCEL)
        await sim.turn_over()
        assert sim.ledger.turns == {"turn_1": "cancelled"}
        await session.post(MESSAGE)  # a fence: the next turn begins after the first would have
        await sim.until(lambda ledger: len(ledger.turns) == 2)
        assert "<- agent.session.turn.created" in sim.ledger.timeline
        assert sim.ledger.timeline.count("<- agent.session.turn.created") == 1


async def test_a_turn_that_ends_before_its_cancellation_stays_completed() -> None:
    scenario = Scenario(((Say("Done."),),), Rules(cancel_lag=20.0))
    async with Simulator(scenario) as sim, session_at(sim) as session:
        await session.post(MESSAGE)
        await session.post(CANCEL)
        await sim.turn_over()
        assert sim.ledger.turns == {"turn_1": "completed"}


async def test_a_cancellation_of_an_idle_session_has_no_effect() -> None:
    async with Simulator() as sim, session_at(sim) as session:
        assert await session.status_after(CANCEL) == 202
        assert (await session.read())["status"] == "idle"
        assert sim.ledger.turns == {}


async def test_an_accepted_result_can_take_its_time() -> None:
    async with waiting(two(apply_lag=0.25)) as (sim, session):
        assert await session.status_after(result("a")) == 202
        assert len((await session.read())["required_actions"]) == 2
        assert await session.status_after(result("a")) == 202
        await sim.until(lambda ledger: ledger.calls[0].fate is Fate.ANSWERED)
        assert [answer.verdict for answer in sim.ledger.calls[0].answers] == [Verdict.ACCEPTED, Verdict.REPEATED]


async def test_a_silent_stream_is_kept_alive_by_comments() -> None:
    async with (
        Simulator(Scenario(rules=Rules(keepalive=0.02))) as sim,
        session_at(sim) as session,
        session.http.stream("GET", f"{session.path}/events") as stream,
    ):
        assert (await anext(stream.aiter_lines())).startswith(":")


# ------------------------------------------------------------------------------------------------ faults


async def test_a_lost_result_leaves_the_call_open_and_its_key_used() -> None:
    async with waiting(two()) as (sim, session):
        sim.fail(Fault(status=202))
        assert await session.status_after(result("a"), key="k") == 202
        assert sim.ledger.calls[0].answers[0].verdict is Verdict.LOST
        assert await session.status_after(result("a"), key="k") == 202
        assert sim.ledger.calls[0].fate is Fate.OPEN
        assert await session.status_after(result("a", "anew"), key="k2") == 202
        await sim.until(lambda ledger: ledger.calls[0].fate is Fate.ANSWERED)


async def test_a_result_can_be_applied_long_after_its_answer() -> None:
    async with waiting(two()) as (sim, session):
        sim.fail(Fault(status=202, effect=Effect.LATE, seconds=0.25))
        await session.post(result("a"))
        assert sim.ledger.calls[0].fate is Fate.OPEN
        await sim.until(lambda ledger: ledger.calls[0].fate is Fate.ANSWERED)


async def test_a_result_that_is_refused_without_effect_is_not_known() -> None:
    async with waiting(two()) as (sim, session):
        sim.fail(Fault(status=401, code=""))
        refused = await session.post(result("a"))
        assert (refused.status_code, refused.content) == (401, b"")
        assert sim.ledger.calls[0].answers == []


@pytest.mark.parametrize("effect", [Effect.NONE, Effect.NOW])
async def test_a_connection_that_breaks_gives_no_answer(effect: Effect) -> None:
    async with waiting(two()) as (sim, session):
        sim.fail(Fault(status=0, effect=effect))
        with pytest.raises(httpx2.RemoteProtocolError):
            await session.post(result("a"))
        assert (sim.ledger.calls[0].result is None) == (effect is Effect.NONE)
        assert sim.ledger.posts[-1].status == 0


@pytest.mark.parametrize(("on", "method"), [(On.READ, "GET"), (On.UPDATE, "POST")])
async def test_reading_and_changing_can_fail_too(on: On, method: str) -> None:
    async with Simulator() as sim, session_at(sim) as session:
        sim.fail(Fault(on=on, retry_after=2))
        failed = await session.http.request(method, session.path, json={"metadata": {"a": "b"}})
        assert (failed.status_code, failed.headers["retry-after"]) == (503, "2")
        again = await session.http.request(method, session.path, json={"metadata": {"a": "b"}})
        assert again.status_code == 200


async def test_a_stream_can_fail_to_open() -> None:
    async with Simulator() as sim, session_at(sim) as session:
        sim.fail(Fault(on=On.STREAM, status=500))
        assert (await session.http.get(f"{session.path}/events")).status_code == 500
        assert sim.ledger.streams == 0


# ------------------------------------------------------------------------------------------------ the rest


async def test_without_a_script_the_agent_calls_the_first_function_and_tells_its_result() -> None:
    tool = {"type": "function", "name": "where", "description": "", "parameters": {"properties": {}}}
    async with Simulator() as sim, session_at(sim, agent={"model": "m", "tools": [tool]}) as session:
        await session.post(MESSAGE)
        ledger = await sim.until(lambda ledger: any(call.fate is Fate.OPEN for call in ledger.calls))
        await session.post(result(ledger.calls[0].call_id))
        await sim.turn_over()
        assert sim.ledger.said == ["where says: found."]


async def test_arguments_can_come_as_text() -> None:
    scenario = Scenario(((Ask((Call("where", {"no": 7}),)), AwaitResults()),), Rules(arguments_as_text=True))
    async with waiting(scenario) as (_, session):
        (action,) = (await session.read())["required_actions"]
        assert orjson.loads(action["arguments"]) == {"no": 7}


async def test_an_event_of_ones_own_is_sent_as_it_is() -> None:
    scenario = Scenario(((Wait(0.01), Raw({"type": "agent.session.budget_reached"})),))
    async with Simulator(scenario) as sim, session_at(sim) as session:
        async with session.http.stream("GET", f"{session.path}/events") as stream:
            await session.post(MESSAGE)
            async for line in stream.aiter_lines():
                if "budget_reached" in line:
                    break
        await sim.until(lambda ledger: ledger.listening == 0)


async def test_pages_have_a_cursor_and_an_order() -> None:
    async with Simulator(Scenario(((Say("One."), Say("Two.")),))) as sim, session_at(sim) as session:
        await session.post(MESSAGE)
        await sim.turn_over()
        first = (await session.http.get(f"{session.path}/items", params={"order": "asc", "limit": 2})).json()
        assert first["has_more"]
        after = {"order": "asc", "after": first["last_id"]}
        rest = (await session.http.get(f"{session.path}/turns/turn_1/items", params=after)).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == ["Two."]
        assert (await session.http.get(f"{session.path}/items", params={"after": rest["last_id"]})).json()["data"]


async def test_a_self_hosted_session_has_an_environment_and_is_listed() -> None:
    async with Simulator() as sim, session_at(sim, environment={"type": "self_hosted"}) as session:
        assert (await session.read())["environment"]["workspace_directory"] == "/workspace"
        assert len((await session.http.get("/agents/sessions")).json()["data"]) == 1


def test_a_pace_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="pace"):
        Simulator(pace=0)
