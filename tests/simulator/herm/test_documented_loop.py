"""The documentation's loop against the simulator. It rests on reading alone: the vendor has no client for Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from bridge.simulator.herm import Answer, Ask, Call, Fate, Scenario, Simulator, Verdict, Work
from tests.simulator.herm.documented_loop import DocumentedLoop, LongRunning, raw

pytestmark = pytest.mark.anyio

TOOL = {"name": "transcode", "description": "Makes it smaller."}


async def small(arguments: Mapping[str, Any]) -> str:
    return f"{arguments['file']} is small"


async def broken(arguments: Mapping[str, Any]) -> str:
    raise ValueError("codec not supported")


ONE = Ask((Call("transcode", {"file": "a.mov"}, "custom_toolu_9"),))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def test_a_call_is_answered_and_the_turn_goes_on() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await client.create(TOOL)
        events = await DocumentedLoop(client, {"transcode": small}).converse("Make it smaller.")
        assert kinds(events) == [
            "user.message",
            "session.status_running",
            "agent.custom_tool_use",
            "session.status_idle",
            "user.custom_tool_result",
            "session.status_running",
            "agent.message",
            "session.status_idle",
        ]
        assert [event["sequence"] for event in events] == [*range(1, 9)]
        assert events[3]["payload"]["stop_reason"] == {"type": "requires_action", "event_ids": ["custom_toolu_9"]}
        assert events[6]["payload"]["content"][0]["text"] == "transcode: a.mov is small"
        assert await client.history() == events
    assert sim.ledger.call("transcode").fate is Fate.CLOSED
    assert sim.ledger.violations == []


async def test_a_tool_that_fails_is_answered_with_an_error() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim, raw(sim) as client:
        await client.create(TOOL)
        await DocumentedLoop(client, {"transcode": broken}).converse("Make it smaller.")
    call = sim.ledger.call("transcode")
    assert (call.text, call.is_error) == ("codec not supported", True)


async def test_the_outcome_of_a_long_running_tool_starts_a_turn() -> None:
    spoken = anyio.Event()

    async def later(arguments: Mapping[str, Any]) -> str:
        await spoken.wait()
        return await small(arguments)

    async with Simulator(Scenario((ONE, Answer("It has begun.")))) as sim, raw(sim) as client:
        await client.create(TOOL)
        loop = DocumentedLoop(client, {"transcode": LongRunning("started as job 512", later)})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(loop.converse, "Make it smaller.")
            await sim.agenda.until(lambda: [turn.ended for turn in sim.ledger.turns] == ["end_turn"])
            spoken.set()
        assert [turn.started_by for turn in sim.ledger.turns] == ["", "custom_toolu_9"]
        assert sim.ledger.turns[1].prompt == "a.mov is small"
        results = [event for event in await client.history() if event["type"] == "user.custom_tool_result"]
        assert [event["payload"]["status"] for event in results] == ["completed"]
        assert [event for event in loop.events if event["type"] == "user.custom_tool_result"] == results
    assert [result.verdict for result in sim.ledger.results] == [Verdict.STARTED, Verdict.FINAL]


async def test_an_outcome_that_comes_within_a_turn_waits_for_its_end() -> None:
    async with Simulator(Scenario((ONE, Work(0.05), Answer("It has begun.")))) as sim, raw(sim) as client:
        await client.create(TOOL)
        loop = DocumentedLoop(client, {"transcode": LongRunning("started", small)})
        await loop.converse("Make it smaller.")
    assert [(turn.started_by, turn.ended) for turn in sim.ledger.turns] == [
        ("", "end_turn"),
        ("custom_toolu_9", "end_turn"),
    ]


async def test_without_a_script_the_first_tool_is_called_at_every_message_with_arguments_that_fit() -> None:
    schema = {"type": "object", "properties": {"file": {"type": "string"}}, "required": ["file"]}
    async with Simulator() as sim, raw(sim) as client:
        await client.create({**TOOL, "input_schema": schema})
        loop = DocumentedLoop(client, {"transcode": small})
        await loop.converse("One.")
        await loop.converse("Two.")
    assert [call.text for call in sim.ledger.calls] == ["example is small"] * 2
