"""Whole conversations over HTTP: the vendors' own clients with our tools, against a provider that is strict."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Literal

import pytest

from bridge import CallContext, SessionClosed, ToolError, Toolset
from bridge.message_loop import ApiName, MessageLoop
from bridge.runner.runner import Finished, Runner
from bridge.simulator.messages_api import Call, Failure, Reply

from .rig import APIS, HELLO, agent, told

pytestmark = pytest.mark.anyio

DONE = Reply("Done: {}")
INTERRUPTED = "the call was interrupted before it ended; whether it took effect is not known"


class Desk:
    """Tools, and what they were called with."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        self.tools = Toolset()
        self.tools.tool(self.find, effect="read")
        self.tools.tool(self.wait, timeout=0.05, name="never")
        self.tools.tool(self.wait, on_interrupt="cancel")
        self.tools.tool(self.wait, name="finish")
        self.tools.tool(self.spoil)

    async def find(self, ref: str) -> str:
        """Find an order."""
        self.ran.append(ref)
        if ref == "go on":
            self.go_on.set()
        return f"found {ref}"

    async def wait(self) -> str:
        """Wait until told to go on."""
        self.ran.append("wait")
        self.began.set()
        await self.go_on.wait()
        self.ran.append("waited")
        return "waited"

    def spoil(self, how: Literal["raise", "say", "exit", "date", "big", "nan", "surrogate", "object"]) -> Any:
        """Go wrong in some way."""
        match how:
            case "raise":
                raise RuntimeError("a secret")
            case "say":
                raise ToolError("No such order.")
            case "exit":
                raise SystemExit(3)
            case "date":
                return {"at": datetime(2026, 1, 2)}
            case "big":
                return "x" * 100_000
            case "nan":
                return {"ratio": math.nan}
            case "surrogate":
                return "\ud800"
            case "object":
                return object()


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
async def loop(desk: Desk) -> AsyncIterator[MessageLoop]:
    async with MessageLoop(desk.tools) as loop:
        yield loop


def find(ref: str, call_id: str = "") -> Call:
    return Call("find", {"ref": ref}, call_id)


@pytest.mark.parametrize("api", APIS)
class TestWholeConversations:
    async def test_parallel_calls_are_answered_together_in_their_order(
        self, api: ApiName, desk: Desk, loop: MessageLoop
    ) -> None:
        script = (Reply("Let me look.", (find("N-1"), find("N-2")), thinking="Two."), DONE)
        async with agent(api, *script) as (one, provider):
            assert await one.talk(loop) == "Done: found N-1; found N-2"
        assert provider.ledger.refusals == provider.ledger.remarks == []
        assert not any(each.is_error for each in provider.ledger.results.values())

    async def test_a_turn_without_calls_needs_no_answer(self, api: ApiName, loop: MessageLoop) -> None:
        async with agent(api, Reply("Hello.")) as (one, _):
            assert await one.talk(loop) == "Hello."

    async def test_an_answer_that_was_lost_is_asked_for_again_without_another_run(
        self, api: ApiName, desk: Desk, loop: MessageLoop
    ) -> None:
        async with agent(api, Reply(calls=(find("N-1"),)), Failure(503, done=True), DONE) as (one, provider):
            assert await one.talk(loop) == "Done: found N-1"
        assert desk.ran == ["N-1"]
        assert [each.status for each in provider.ledger.exchanges] == [200, 503, 200]

    async def test_a_fast_tool_runs_beside_a_slow_one(self, api: ApiName, desk: Desk, loop: MessageLoop) -> None:
        async with agent(api, Reply(calls=(Call("wait"), find("go on"))), DONE) as (one, _):
            assert await one.talk(loop) == "Done: waited; found go on"
        assert desk.ran == ["wait", "go on", "waited"]

    async def test_serial_calls_run_one_after_the_other(self, api: ApiName, desk: Desk) -> None:
        async with (
            MessageLoop(desk.tools, parallel=False) as loop,
            agent(api, Reply(calls=(Call("wait"), find("N-1"))), DONE) as (one, _),
        ):
            task = asyncio.create_task(one.talk(loop))
            await asyncio.wait_for(desk.began.wait(), 20)
            desk.go_on.set()
            assert await task == "Done: waited; found N-1"
        assert desk.ran == ["wait", "waited", "N-1"]


FAULTS = {
    "unknown": (Call("nope"), "there is no such tool; available: find, never, wait, finish, spoil"),
    "raises": (Call("spoil", {"how": "raise"}), "the tool spoil failed"),
    "says no": (Call("spoil", {"how": "say"}), "No such order."),
    "exits": (Call("spoil", {"how": "exit"}), "the tool spoil failed"),
    "too large": (Call("spoil", {"how": "big"}), "the result has 100002 bytes, and at most 32768 can be sent"),
    "no JSON form": (
        Call("spoil", {"how": "object"}),
        "the result holds a value of type object, which has no JSON form",
    ),
    "too slow": (Call("never"), "never did not answer within 0.05 s"),
    "wrong type": (Call("find", {"ref": 3}), "ref: should be a valid string. Expected: ref (string)"),
    "missing": (Call("find"), "ref is missing. Expected: ref (string)"),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_goes_wrong_is_an_answer_and_touches_no_other_call(
    api: ApiName, fault: str, desk: Desk, loop: MessageLoop
) -> None:
    call, sentence = FAULTS[fault]
    async with agent(api, Reply(calls=(call, find("N-1"))), DONE) as (one, provider):
        await one.talk(loop)
    failure, success = provider.ledger.results.values()
    assert (failure.is_error, failure.text.removeprefix("ERROR: ")) == (True, sentence)
    assert (success.is_error, success.text) == (False, "found N-1")
    assert provider.ledger.refusals == []


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("arguments", ['{"ref": NaN}', '{"ref": "N-', "[]", '"N-1"'])
async def test_broken_arguments_are_answered_and_not_run(
    api: ApiName, arguments: str, desk: Desk, loop: MessageLoop
) -> None:
    async with agent(api, Reply(calls=(Call("find", arguments), find("N-1"))), DONE) as (one, provider):
        await one.talk(loop)
    assert provider.ledger.refusals == []
    assert [each.is_error for each in provider.ledger.results.values()] == [True, False]
    assert desk.ran == ["N-1"]


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_lone_surrogate_in_arguments_is_answered_and_not_run(
    api: ApiName, desk: Desk, loop: MessageLoop
) -> None:
    async with agent(api, Reply(calls=(find("\ud800"), find("N-1"))), DONE) as (one, provider):
        await one.talk(loop)
    assert "not valid JSON" in told(provider)[0]
    assert desk.ran == ["N-1"]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("how", "text"), [("date", '{"at":"2026-01-02T00:00:00"}'), ("nan", '{"ratio":null}'), ("surrogate", "\ufffd")]
)
async def test_what_json_does_not_know_is_told_in_other_words(
    api: ApiName, how: str, text: str, loop: MessageLoop
) -> None:
    async with agent(api, Reply(calls=(Call("spoil", {"how": how}),)), DONE) as (one, provider):
        await one.talk(loop)
    assert told(provider) == [text]


# ------------------------------------------------------------------------------------------------- twice the same


def said(*calls: Call, response_id: str = "msg_1", **more: Any) -> dict[str, Any]:
    """A response of Anthropic's."""
    blocks = [{"type": "tool_use", "id": each.call_id, "name": each.name, "input": each.arguments} for each in calls]
    return {"id": response_id, "role": "assistant", "content": blocks, "stop_reason": "tool_use", **more}


def contents(answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {block["tool_use_id"]: block["content"] for message in answers for block in message["content"]}


async def test_the_same_response_again_has_the_same_answer_and_runs_nothing(desk: Desk, loop: MessageLoop) -> None:
    first = await loop.run_async(said(find("N-1", "c1")))
    assert await loop.run_async(said(find("N-1", "c1"))) == first
    assert await loop.run_async(said(find("N-1", "c1"), response_id="")) == first
    assert desk.ran == ["N-1"]


async def test_an_id_that_comes_again_in_another_response_is_another_call(desk: Desk, loop: MessageLoop) -> None:
    await loop.run_async(said(find("N-1", "c1")))
    await loop.run_async(said(find("N-1", "c1"), response_id="msg_2"))
    assert contents(await loop.run_async(said(find("N-2", "c1"), response_id=""))) == {"c1": "found N-2"}
    assert desk.ran == ["N-1", "N-1", "N-2"]


async def test_the_keys_of_calls_with_one_id_differ() -> None:
    keys: list[tuple[str, int]] = []
    tools = Toolset()

    @tools.tool
    async def note(context: CallContext) -> None:
        keys.append((context.session_id, context.key.epoch))

    async with MessageLoop(tools, session_id="s1") as loop:
        await loop.run_async(said(Call("note", call_id="c1")))
        await loop.run_async(said(Call("note", call_id="c1"), response_id="msg_2"))
    assert keys == [("s1", 0), ("s1", 1)]


async def test_only_the_latest_thousand_calls_are_remembered(desk: Desk) -> None:
    async with MessageLoop(desk.tools, calls_per_minute=2000) as loop:
        for number in range(1001):
            await loop.run_async(said(find(f"N-{number}", f"c{number}"), response_id=f"msg_{number}"))
        await loop.run_async(said(find("N-1", "c1"), response_id="msg_1"))
        assert len(desk.ran) == 1001
        await loop.run_async(said(find("N-0", "c0"), response_id="msg_0"))
        assert len(desk.ran) == 1002


async def test_a_call_that_comes_twice_in_a_response_runs_once_and_is_answered_once(
    desk: Desk, loop: MessageLoop
) -> None:
    answers = await loop.run_async(said(find("N-1", "c1"), find("N-1", "c1")))
    assert [block["content"] for block in answers[0]["content"]] == ["found N-1"]
    assert desk.ran == ["N-1"]


async def test_two_calls_with_one_id_are_not_run_and_the_model_is_told(desk: Desk, loop: MessageLoop) -> None:
    answers = await loop.run_async(said(find("N-1", "c1"), find("N-2", "c1"), find("N-3", "c2")))
    assert contents(answers) == {
        "c1": "the call was not run, because another call came with its id; make them again, one at a time",
        "c2": "found N-3",
    }
    assert desk.ran == ["N-3"]


# --------------------------------------------------------------------------------------------- in the middle of it


@pytest.mark.parametrize("api", APIS)
async def test_after_a_cancellation_every_call_still_has_an_answer(api: ApiName, desk: Desk, loop: MessageLoop) -> None:
    async with agent(api, Reply(calls=(find("N-1"), Call("wait"))), DONE) as (one, provider):
        task = asyncio.create_task(one.talk(loop))
        await asyncio.wait_for(desk.began.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        one.messages += [*loop.pending(), {"role": "user", "content": "Are you there?"}]
        await one.ask()
    assert told(provider)[0] == "found N-1"
    assert told(provider)[1].removeprefix("ERROR: ") == INTERRUPTED
    assert provider.ledger.refusals == []


async def interrupted(loop: MessageLoop, desk: Desk, *calls: Call) -> None:
    """Cancelled as soon as the waiting tool has begun."""
    task = asyncio.create_task(loop.run_async(said(*calls)))
    await asyncio.wait_for(desk.began.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_tool_that_finishes_after_the_cancellation_still_gives_its_result(
    desk: Desk, loop: MessageLoop
) -> None:
    await interrupted(loop, desk, Call("finish", call_id="c1"))
    desk.go_on.set()
    assert contents(await loop.run_async(said(Call("finish", call_id="c1")))) == {"c1": "waited"}
    assert desk.ran == ["wait", "waited"]


async def test_what_pending_has_told_stays_the_answer(desk: Desk, loop: MessageLoop) -> None:
    await interrupted(loop, desk, Call("finish", call_id="c1"))
    told = loop.pending()
    assert loop.pending() == told
    desk.go_on.set()
    assert await loop.run_async(said(Call("finish", call_id="c1"))) == told
    assert loop.pending() == []


async def test_a_call_that_had_not_begun_is_told_so(desk: Desk) -> None:
    async with MessageLoop(desk.tools, parallel=False) as loop:
        await interrupted(loop, desk, Call("wait", call_id="c1"), find("N-1", "c2"))
        answers = contents(loop.pending())
    assert answers["c2"] == "the call was not run, because its turn was interrupted"
    assert desk.ran == ["wait"]


async def test_a_call_that_had_not_begun_runs_when_its_response_is_tried_again(desk: Desk) -> None:
    async with MessageLoop(desk.tools, parallel=False) as loop:
        await interrupted(loop, desk, Call("wait", call_id="c1"), find("N-1", "c2"))
        answers = contents(await loop.run_async(said(Call("wait", call_id="c1"), find("N-1", "c2"))))
    assert answers == {"c1": INTERRUPTED, "c2": "found N-1"}
    assert desk.ran == ["wait", "N-1"]


async def test_a_timeout_around_it_is_a_cancellation(desk: Desk, loop: MessageLoop) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await loop.run_async(said(find("N-1", "c1"), Call("wait", call_id="c2")))
    assert contents(loop.pending())["c1"] == "found N-1"


async def test_what_has_not_ended_in_the_time_of_all_is_answered(desk: Desk) -> None:
    async with MessageLoop(desk.tools, timeout=0.02) as loop:
        answers = contents(await loop.run_async(said(find("N-1", "c1"), Call("wait", call_id="c2"))))
        assert loop.pending() == []
    late = "the call had not ended when the time for all calls of this turn was over; it may still take effect"
    assert answers == {"c1": "found N-1", "c2": late}


async def test_after_the_end_nothing_is_run_but_every_call_has_an_answer(desk: Desk) -> None:
    loop = MessageLoop(desk.tools)
    await loop.aclose()
    with pytest.raises(SessionClosed):
        await loop.run_async(said(find("N-1", "c1")))
    assert contents(loop.pending()) == {"c1": "the call was not run, because its turn was interrupted"}


# -------------------------------------------------------------------------------------------- what goes round it


async def test_tools_find_the_metadata_in_their_context() -> None:
    tools = Toolset()

    @tools.tool
    async def who(context: CallContext) -> str:
        context.say("unheard")
        return f"{context.tool} for {context.metadata['customer']}"

    async with MessageLoop(tools, metadata={"customer": "Ann"}) as loop:
        assert contents(await loop.run_async(said(Call("who", call_id="c1")))) == {"c1": "who for Ann"}


async def test_a_tool_that_waits_for_its_reply_starts_at_once() -> None:
    tools = Toolset()
    tools.tool(lambda: "gone", name="hang_up", effect="terminal")
    async with MessageLoop(tools) as loop:
        assert contents(await loop.run_async(said(Call("hang_up", call_id="c1")))) == {"c1": "gone"}


async def test_a_shared_runner_is_told_of_every_call_and_stays_open(desk: Desk) -> None:
    seen: list[Finished] = []
    runner = Runner(watchers=(seen.append,))
    for number in (1, 2):
        async with MessageLoop(desk.tools, runner=runner) as loop:
            await loop.run_async(said(find(f"N-{number}", "c1"), Call("nope", call_id="c2")))
    runner.close()
    assert [(each.name, each.outcome.value) for each in seen] == [("find", "ok"), ("(unknown)", "unknown")] * 2


async def test_a_model_that_repeats_itself_is_stopped(desk: Desk, loop: MessageLoop) -> None:
    for number in range(6):
        answers = await loop.run_async(said(find("N-1", f"c{number}"), response_id=f"msg_{number}"))
    assert "do not repeat it" in answers[0]["content"][0]["content"]
    assert len(desk.ran) == 5


async def test_what_is_no_response_is_refused_with_the_ways_out(loop: MessageLoop) -> None:
    for strange in ("text", None, {}, HELLO[0]):
        with pytest.raises(ValueError, match="api= one of 'responses', 'chat', 'anthropic'"):
            await loop.run_async(strange)
    with pytest.raises(ValueError, match="pass the whole response"):
        await loop.run_async([], api="chat")


async def test_a_response_of_a_kind_that_is_named_is_not_guessed_at(loop: MessageLoop) -> None:
    assert await loop.run_async(said(find("N-1", "c1")), api="chat") == []


async def test_a_slow_tool_is_waited_for_although_a_caller_would_have_been_told_something() -> None:
    tools = Toolset()

    @tools.tool(answer_within=0.01)
    async def slow() -> str:
        await asyncio.sleep(0.03)
        return "done"

    async with MessageLoop(tools) as loop:
        assert contents(await loop.run_async(said(Call("slow", call_id="c1")))) == {"c1": "done"}
