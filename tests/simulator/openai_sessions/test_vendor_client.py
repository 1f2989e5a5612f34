"""The vendor's own client, unmodified, against the offline provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import pytest
from pydantic import TypeAdapter

from bridge.simulator.openai_sessions import (
    Ask,
    AskApproval,
    AwaitResults,
    Call,
    Cut,
    Effect,
    Fail,
    FailSession,
    Fate,
    Fault,
    On,
    Repeat,
    Rules,
    Say,
    Scenario,
    Simulator,
    Steer,
    Tell,
    Verdict,
)

openai = pytest.importorskip("openai")
session_event = pytest.importorskip("openai.types.beta.agent_session_event")
pytest.importorskip("openai.resources.beta.agents.sessions")  # it is imported late, which takes seconds
session_item = pytest.importorskip("openai.types.beta.agent_session_item")

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

T = TypeVar("T")

EVENT: TypeAdapter[Any] = TypeAdapter(session_event.AgentSessionEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(session_item.AgentSessionItem)


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": "Finds a parcel.", "parameters": {"type": "object"}}


AGENT = {"model": "gpt-5.5", "tools": [function("where"), function("when")]}
HOSTED = {"type": "openai_hosted"}
BOTH = Scenario(turns=((Ask((Call("where", {"no": "77"}), Call("when", {"no": "77"}))), Tell()),))
ONE = Scenario(turns=((Ask((Call("where"),)), Tell()),))


def one(*, faults: tuple[Fault, ...] = (), **rules: Any) -> Scenario:
    return Scenario(ONE.turns, rules=Rules(**rules), faults=faults)


@contextmanager
def client_of(sim: Simulator, **options: Any) -> Iterator[Any]:
    with openai.OpenAI(base_url=sim.url, api_key="k", **options) as client:
        yield client.beta.agents.sessions


async def off_loop(work: Callable[[], T]) -> T:
    """The vendor's client blocks, so it has a thread of its own."""
    with anyio.fail_after(20):
        return await anyio.to_thread.run_sync(work)


def opened(sessions: Any) -> Any:
    return sessions.create(environment=HOSTED, agent=AGENT)


class Desk:
    """Two functions of an application, and how often they were run."""

    def __init__(self) -> None:
        self.runs: list[str] = []

    def where(self, arguments: dict[str, Any]) -> Any:
        self.runs.append("where")
        return {"depot": "Graz", **arguments}

    def when(self, arguments: dict[str, Any]) -> Any:
        self.runs.append("when")
        raise RuntimeError("secret of the carrier")

    @property
    def handlers(self) -> dict[str, Any]:
        return {"where": self.where, "when": self.when}


def helper(sim: Simulator, desk: Desk) -> Callable[[], None]:
    """One turn with the vendor's helper."""

    def talk() -> None:
        with (
            client_of(sim) as sessions,
            sessions.stream(opened(sessions).id, input="Where?", tool_handlers=desk.handlers) as stream,
        ):
            stream.until_done()

    return talk


# ------------------------------------------------------------------------------------------------ the helper's loop


async def test_the_helper_answers_parallel_calls_once_each_and_the_agent_tells_the_results() -> None:
    desk = Desk()

    def talk() -> Any:
        with client_of(sim) as sessions:
            stream = sessions.stream(opened(sessions).id, input="Where is it?", tool_handlers=desk.handlers)
            with stream:
                return stream.get_final_result()

    async with Simulator(BOTH) as sim:
        result = await off_loop(talk)
        assert desk.runs == ["where", "when"]
        assert [call.fate for call in sim.ledger.calls] == [Fate.ANSWERED, Fate.ANSWERED]
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED, Verdict.ACCEPTED]
        assert sim.ledger.call("where").answers[0].output == '{"depot":"Graz","no":"77"}'
        assert sim.ledger.call("when").answers[0].error == "Tool handler failed."
        assert result.output_text == sim.ledger.said[-1]
        assert not sim.ledger.violations


async def test_the_asynchronous_helper_does_the_same() -> None:
    desk = Desk()
    async with Simulator(BOTH) as sim, openai.AsyncOpenAI(base_url=sim.url, api_key="k") as client:
        sessions = client.beta.agents.sessions
        session = await sessions.create(environment=HOSTED, agent=AGENT)
        with anyio.fail_after(10):
            async with sessions.stream(session.id, input="Where is it?", tool_handlers=desk.handlers) as stream:
                await stream.until_done()
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.ACCEPTED, Verdict.ACCEPTED]
        assert list(sim.ledger.turns.values()) == ["completed"]


async def test_a_session_created_with_a_stream_is_served_until_it_is_idle() -> None:
    desk = Desk()

    def talk() -> list[str]:
        with client_of(sim) as sessions:
            stream = sessions.create(
                environment={"type": "none"}, agent=AGENT, input="Where?", stream=True, tool_handlers=desk.handlers
            )
            return [event.type for event in stream]

    async with Simulator(BOTH) as sim:
        types = await off_loop(talk)
        assert types[0] == "agent.session.created"
        assert types[-2:] == ["agent.session.turn.completed", "agent.session.idle"]
        assert desk.runs == ["where", "when"]


async def test_a_turn_begins_in_the_reported_order() -> None:
    def talk() -> list[str]:
        with client_of(sim) as sessions, sessions.stream(opened(sessions).id, input="Hello") as stream:
            return [event.type.removeprefix("agent.session.") for event in stream]

    async with Simulator(Scenario(((Say("Hello."),),), rules=Rules(deltas=False))) as sim:
        types = await off_loop(talk)
        assert types[:4] == ["turn.created", "turn.item.added", "in_progress", "turn.in_progress"]
        assert types[-3:] == ["turn.item.done", "turn.completed", "idle"]


async def test_the_helper_comes_back_when_a_call_is_seen_before_it_is_registered() -> None:
    desk = Desk()

    async with Simulator(one(registration_lag=0.6)) as sim:
        await off_loop(helper(sim, desk))
        verdicts = [answer.verdict for answer in sim.ledger.answers]
        assert verdicts[-1] is Verdict.ACCEPTED
        assert set(verdicts[:-1]) == {Verdict.UNKNOWN}
        assert len({post.key for post in sim.ledger.posts if post.types == ("tool_result",)}) == 1
        assert desk.runs == ["where"]


@pytest.mark.slow
async def test_the_helper_gives_up_when_a_call_is_registered_too_late() -> None:
    desk = Desk()

    async with Simulator(one(registration_lag=30)) as sim:
        with pytest.raises(openai.BadRequestError, match="Unknown pending tool call: call_"):
            await off_loop(helper(sim, desk))
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.UNKNOWN] * 4


@pytest.mark.parametrize("rules", [{"required_actions_sent": 2}, {"idle_sent": 2}, {"named_events": True}])
async def test_what_comes_twice_is_done_once(rules: dict[str, Any]) -> None:
    desk = Desk()

    async with Simulator(one(**rules)) as sim:
        await off_loop(helper(sim, desk))
        assert desk.runs == ["where"]
        assert len(sim.ledger.answers) == 1


# ------------------------------------------------------------------------------------------------ faults


async def test_a_result_that_was_taken_and_denied_is_sent_again_under_its_key_and_counts_once() -> None:
    desk = Desk()

    async with Simulator(one(faults=(Fault(status=503, effect=Effect.NOW, retry_after=0.01),))) as sim:
        await off_loop(helper(sim, desk))
        posts = [post for post in sim.ledger.posts if post.types == ("tool_result",)]
        assert [post.status for post in posts] == [503, 202]
        assert [post.verdicts for post in posts] == [(Verdict.ACCEPTED,), (Verdict.ONCE_MORE,)]
        assert posts[0].key == posts[1].key


async def test_a_connection_that_breaks_after_the_effect_is_tried_again_without_a_second_effect() -> None:
    desk = Desk()

    async with Simulator(one(faults=(Fault(status=0, effect=Effect.NOW),))) as sim:
        await off_loop(helper(sim, desk))
        verdicts = [post.verdicts for post in sim.ledger.posts if post.types == ("tool_result",)]
        assert verdicts == [(Verdict.ACCEPTED,), (Verdict.ONCE_MORE,)]


@pytest.mark.slow
async def test_a_conflict_is_sent_three_times_before_the_client_says_so() -> None:
    def talk() -> None:
        with client_of(sim) as sessions:
            sessions.delete(opened(sessions).id)
            session = sessions.create(environment={"type": "none"}, agent=AGENT, input="Where?")
            sessions.delete(session.id)

    async with Simulator(ONE) as sim:
        with pytest.raises(openai.ConflictError, match="Cancel the active turn"):
            await off_loop(talk)
        assert [request.status for request in sim.requests if request.method == "DELETE"] == [200, 409, 409, 409]


# ------------------------------------------------------------------------------------------------ the documented loop


def results_of(session: Any, answer: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "agent.session.input.tool_result",
            "turn_id": action.turn_id,
            "call_id": action.call_id,
            **answer(action),
        }
        for action in session.required_actions
        if action.type == "function_call"
    ]


def found(action: Any) -> dict[str, Any]:
    return {"success": True, "output": f"found by {action.name}"}


async def test_a_loop_over_required_actions_answers_all_of_them_in_one_batch() -> None:
    def talk() -> list[str]:
        with client_of(sim) as sessions:
            session = opened(sessions)
            seen = []
            with sessions.events.stream(session.id) as stream:
                message = {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}
                sessions.events.create(session.id, events=[{"type": "agent.session.input.message", "input": [message]}])
                for event in stream:
                    seen.append(event.type)
                    if event.type == "agent.session.requires_action":
                        sessions.events.create(session.id, events=results_of(event.session, found))
                    elif event.type == "agent.session.idle":
                        break
            return seen

    async with Simulator(BOTH) as sim:
        seen = await off_loop(talk)
        assert seen.count("agent.session.requires_action") == 1
        assert sim.ledger.said == ["where says: found by where. when says: found by when."]
        assert sim.ledger.posts[-1].verdicts == (Verdict.ACCEPTED, Verdict.ACCEPTED)


async def test_after_a_drop_the_session_is_read_and_what_is_pending_is_answered() -> None:
    def talk() -> str:
        with client_of(sim) as sessions:
            session = opened(sessions)
            stream = sessions.events.stream(session.id)
            message = {"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}
            sessions.events.create(session.id, events=[{"type": "agent.session.input.message", "input": [message]}])
            with pytest.raises(openai.APIConnectionError):
                list(stream)
            with sessions.events.stream(session.id) as stream:
                sessions.events.create(session.id, events=results_of(sessions.retrieve(session.id), found))
                for event in stream:
                    if event.type == "agent.session.idle":
                        return str(sessions.retrieve(session.id).status)
            return "the stream ended"

    async with Simulator(Scenario(((Ask((Call("where"),)), Cut(), Tell()),))) as sim:
        assert await off_loop(talk) == "idle"
        assert sim.ledger.said == ["where says: found by where."]
        assert sim.ledger.streams == 2


async def test_a_cancelled_turn_abandons_its_calls_and_a_late_result_is_a_conflict() -> None:
    def talk() -> list[str]:
        with client_of(sim, max_retries=0) as sessions:
            session = opened(sessions)
            seen = []
            with sessions.stream(session.id, input="Where?") as stream:
                for event in stream:
                    seen.append(event.type.removeprefix("agent.session."))
                    if event.type == "agent.session.requires_action":
                        late = results_of(event.session, found)
                        sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])
            with pytest.raises(openai.ConflictError):
                sessions.events.create(session.id, events=late)
            assert sessions.retrieve(session.id).required_actions == []
            return seen

    async with Simulator(ONE) as sim:
        seen = await off_loop(talk)
        assert seen[-2:] == ["turn.cancelled", "idle"]
        assert sim.ledger.call("where").fate is Fate.ABANDONED
        assert [answer.verdict for answer in sim.ledger.answers] == [Verdict.LATE]


async def test_a_new_message_steers_the_turn_and_keeps_its_calls() -> None:
    desk = Desk()

    async with Simulator(Scenario(((Ask((Call("where"),)), Steer("Quickly!"), AwaitResults(), Say("Graz.")),))) as sim:
        await off_loop(helper(sim, desk))
        assert sim.ledger.call("where").fate is Fate.ANSWERED
        assert list(sim.ledger.turns.values()) == ["completed"]


# ------------------------------------------------------------------------------------------------ the vendor's types


async def test_every_event_item_turn_and_session_fits_the_vendors_types() -> None:
    desk = Desk()

    def talk() -> tuple[Any, list[Any], list[Any], list[Any]]:
        with client_of(sim) as sessions:
            session = opened(sessions)
            seen = []
            for text in ("Where?", "And now?"):
                with sessions.stream(session.id, input=text, tool_handlers=desk.handlers) as stream:
                    seen += list(stream)
            items = list(sessions.items.list(session.id, limit=3, order="asc"))
            turns = list(sessions.turns.list(session.id, limit=1))
            return sessions.retrieve(session.id), seen, items, turns

    scenario = Scenario(((Ask((Call("where"), Call("when"))), Repeat(), Say("Hm.", "commentary"), Tell()), (Fail(),)))
    async with Simulator(scenario) as sim:
        session, seen, items, turns = await off_loop(talk)
    types = {EVENT.validate_python(event.to_dict(warnings=False)).type for event in seen}
    assert {"error", "agent.session.requires_action", "agent.session.turn.failed"} <= types
    kinds = [ITEM.validate_python(item.to_dict(warnings=False)).type for item in items]
    assert kinds[0] == "message"
    assert sorted(kinds) == ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"] * 4
    assert [turn.status for turn in turns] == ["failed", "completed"]
    type(session).model_validate(session.to_dict(warnings=False))
    assert all(event.obfuscation for event in seen)


async def test_the_vendors_client_is_asked_for_an_approval_and_gives_it() -> None:
    def talk() -> list[Any]:
        asked = []
        with client_of(sim) as sessions:
            session = opened(sessions)
            with sessions.stream(session.id, input="Pay it back.") as stream:
                for event in stream:
                    EVENT.validate_python(event.to_dict(warnings=False))
                    for action in getattr(getattr(event, "session", None), "required_actions", None) or ():
                        asked.append(action)
                        response = {"type": "mcp_tool_call", "decision": "approve"}
                        kind = "agent.session.input.mcp_approval_request_result"
                        answer = {"type": kind, "request_id": action.request_id, "response": response}
                        sessions.events.create(session.id, events=[answer])
            items = list(sessions.items.list(session.id))
            assert "mcp_call" in {ITEM.validate_python(item.to_dict(warnings=False)).type for item in items}
        return asked

    steps = (AskApproval("shop", "refund", {"amount": 5}), AwaitResults(), AskApproval("shop", None, message="May it?"))
    async with Simulator(Scenario((steps,))) as sim:
        asked = await off_loop(talk)
        assert [action.request.name for action in asked] == ["refund", None]
        assert [each.decision for each in sim.ledger.approvals] == ["approve", "approve"]


async def test_padding_is_left_out_on_request() -> None:
    def talk() -> Any:
        with client_of(sim) as sessions:
            stream = sessions.create(
                environment={"type": "none"},
                agent={"model": "m"},
                input="Hello",
                stream=True,
                stream_options={"include_obfuscation": False},
            )
            return [event.obfuscation for event in stream]

    async with Simulator() as sim:
        padding = await off_loop(talk)
        assert padding
        assert not any(padding)


async def test_tools_are_replaced_whole_and_a_search_tool_is_taken_and_not_listed() -> None:
    def talk() -> tuple[list[str], list[str]]:
        with client_of(sim) as sessions:
            later = {**function("later"), "defer_loading": True}
            session = sessions.create(environment=HOSTED, agent={**AGENT, "tools": [{"type": "tool_search"}, later]})
            before = [tool.type for tool in session.agent.tools]
            after = sessions.update(session.id, agent={"tools": [function("other")]})
            return before, [tool.name for tool in after.agent.tools]

    async with Simulator() as sim:
        assert await off_loop(talk) == (["function"], ["other"])


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.retrieve("sess_none"), "NotFoundError"),
        (lambda s: s.create(environment={"type": "none"}, agent=AGENT), "BadRequestError"),
        (lambda s: s.create(environment=HOSTED, agent={}), "BadRequestError"),
        (lambda s: s.create(environment=HOSTED, agent_id="agent_none"), "NotFoundError"),
        (lambda s: s.create(environment=HOSTED, agent={"model": "m", "tools": [function("a")] * 2}), "BadRequestError"),
        (lambda s: s.create(environment=HOSTED, agent=AGENT, metadata={"k" * 65: ""}), "BadRequestError"),
        (lambda s: s.events.create(opened(s).id, events=[]), "BadRequestError"),
        (lambda s: s.events.create(opened(s).id, events=[{"type": "unknown"}]), "BadRequestError"),
        (lambda s: s.items.list(opened(s).id, limit=101), "BadRequestError"),
        (lambda s: s.turns.retrieve("turn_none", session_id=opened(s).id), "NotFoundError"),
        (lambda s: s.retrieve(opened(s).id, extra_headers={"OpenAI-Beta": "other"}), "BadRequestError"),
    ],
)
async def test_what_is_not_documented_is_refused(call: Callable[[Any], Any], error: str) -> None:
    def talk() -> None:
        with client_of(sim) as sessions:
            call(sessions)

    async with Simulator() as sim:
        with pytest.raises(getattr(openai, error)):
            await off_loop(talk)


async def test_a_wrong_key_is_refused() -> None:
    def talk() -> None:
        with client_of(sim) as sessions:
            opened(sessions)

    async with Simulator(api_key="another") as sim:
        with pytest.raises(openai.AuthenticationError):
            await off_loop(talk)
        assert sim.ledgers == []


async def test_a_failed_session_is_failed_for_good() -> None:
    def talk() -> tuple[str, str]:
        with client_of(sim, max_retries=0) as sessions:
            session = opened(sessions)
            with sessions.stream(session.id, input="Where?") as stream:
                last = [event.type for event in stream][-1]
            with pytest.raises(openai.ConflictError):
                sessions.events.create(session.id, events=[{"type": "agent.session.input.cancel"}])
            return last, sessions.retrieve(session.id).status

    async with Simulator(Scenario(((FailSession(),),))) as sim:
        assert await off_loop(talk) == ("agent.session.failed", "failed")


async def test_a_request_that_is_refused_for_a_while_says_when_to_come_back() -> None:
    def talk() -> Any:
        with client_of(sim) as sessions:
            return opened(sessions)

    async with Simulator(Scenario(faults=(Fault(on=On.CREATE, status=429, retry_after=0.01, times=2),))) as sim:
        assert (await off_loop(talk)).status == "idle"
        assert [request.status for request in sim.requests] == [429, 429, 200]
