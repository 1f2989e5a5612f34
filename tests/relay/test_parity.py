"""Every scenario, played to an embedded session and through the relay: the provider sees the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bridge import AssemblyAI, BridgeError, Delivery, SessionOptions, Tool, connect
from bridge.relay import OnProviderLoss
from bridge.scenarios import SCENARIOS
from bridge.simulator import Drop, Ledger, Scenario, Simulator
from tests.relay.rig import PATIENCE, address, brisk, relaying, sketched
from tests.simulator.documented_loop import DocumentedLoop, Edition
from tests.simulator.raw import dial

pytestmark = pytest.mark.anyio

PACE = 0.05
PACES = (PACE, 2 * PACE, 4 * PACE)
"""A busy machine may hold up one of two conversations, and at one pace they differ; at a slower one they do not."""


def delivery(scenario: Scenario, pace: float) -> Delivery:
    return replace(brisk(pace), max_hold=3.0 * pace) if scenario.name == "stuck-reply" else brisk(pace)


def tools_of(scenario: Scenario, pace: float = PACE) -> dict[str, Tool]:
    return {sketch.name: sketched(sketch, pace) for sketch in scenario.tools}


async def embedded(scenario: Scenario, pace: float, reconnect: float) -> Ledger:
    async with asyncio.timeout(PATIENCE), Simulator(scenario, pace=pace) as sim:
        agent = AssemblyAI(url=sim.url)
        try:
            options = SessionOptions(reconnect_timeout=reconnect)
            async with connect(
                agent,
                tools=tools_of(scenario, pace),
                api_key="k",
                delivery=delivery(scenario, pace),
                options=options,
            ) as session:
                await session.run()
        except BridgeError:
            pass  # some scenarios end badly
        return sim.ledger


async def proxied(scenario: Scenario, pace: float, loss: OnProviderLoss) -> Ledger:
    """The application has no tools, and says no more than the embedded session does: its setup."""
    async with Simulator(scenario, pace=pace) as sim:
        tools = tools_of(scenario, pace)
        options = {"delivery": delivery(scenario, pace), "on_provider_loss": loss}
        async with relaying(sim.url, tools, **options) as relay, dial(address(relay)) as app:
            await app.say("session.update", session={})
            await app.closed()
            assert [event for event in app.heard("tool.call") if event["name"] != "find_shop"] == []
        return sim.ledger


def alike(one: Ledger, other: Ledger) -> bool:
    fates = [[call.fate for call in ledger.calls] for ledger in (one, other)]
    return tool_frames(one) == tool_frames(other) and turns(one) == turns(other) and fates[0] == fates[1]


async def both(scenario: Scenario, reconnect: float, loss: OnProviderLoss) -> tuple[Ledger, Ledger]:
    """The scenario embedded and through the relay: alike, or as different as at the slowest pace."""
    for pace in PACES:
        one, other = await asyncio.gather(embedded(scenario, pace, reconnect), proxied(scenario, pace, loss))
        if alike(one, other):
            break
    return one, other


def tool_frames(ledger: Ledger) -> list[tuple[str, ...]]:
    """Every frame about tools, and what the provider had last said: the same order, at the same moments."""
    names = {call.call_id: call.name for call in ledger.calls}
    answers = sorted([*ledger.answers, *ledger.strays], key=lambda answer: answer.at)
    return [(names.get(a.call_id, ""), a.text, str(a.is_error), a.verdict.name, a.phase.name) for a in answers]


def turns(ledger: Ledger) -> list[str]:
    """What was said that concerns turns, in order. Interruptions may race with words, not with these."""
    told = ("tool.call", "tool.result", "reply.create", "reply.done", "reply.started")
    told += ("session.update", "session.end", "session.resume")
    return [entry for entry in ledger.timeline if entry[3:] in told]


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_provider_sees_the_same_embedded_and_through_the_relay(name: str) -> None:
    scenario = SCENARIOS[name]
    one, other = await both(scenario, 0, OnProviderLoss.CLOSE)
    assert tool_frames(other) == tool_frames(one)
    assert turns(other) == turns(one)
    assert other.violations == []
    assert [call.fate for call in other.calls] == [call.fate for call in one.calls]


CUT = [(name, at) for name in ("two-calls", "slow-tool", "hold-mode") for at in range(len(SCENARIOS[name].steps))]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "at"), CUT, ids=[f"{name} before step {at + 1}" for name, at in CUT])
async def test_wherever_its_connection_is_cut_the_provider_sees_the_same(name: str, at: int) -> None:
    whole = SCENARIOS[name]
    scenario = replace(whole, steps=(*whole.steps[:at], Drop(), *whole.steps[at:]))
    one, other = await both(scenario, 5.0, OnProviderLoss.RESUME)
    assert other.resumes == one.resumes == 1
    assert tool_frames(other) == tool_frames(one)
    assert turns(other) == turns(one)
    assert (other.violations, other.strays, other.ended) == ([], [], one.ended)
    assert [call.fate for call in other.calls] == [call.fate for call in one.calls]


@pytest.mark.parametrize("edition", Edition)
async def test_the_loop_of_the_documentation_has_tools_without_knowing_of_any(edition: Edition) -> None:
    scenario = SCENARIOS["support-line"]
    application = DocumentedLoop((), PACE, edition)
    async with Simulator(scenario, pace=PACE) as sim:
        async with relaying(sim.url, tools_of(scenario), delivery=brisk(PACE)) as relay:
            await application.converse(address(relay))
        assert application.ran == []
        assert application.close_code == 1000
        assert {call.name for call in sim.ledger.calls if call.answered} == {
            *("look_up_order", "check_stock", "run_line_test", "open_ticket", "end_call")
        }


async def test_tools_of_both_sides_work_beside_each_other() -> None:
    scenario = SCENARIOS["two-calls"]
    ours, theirs = scenario.tools
    application = DocumentedLoop((theirs,), PACE)
    async with Simulator(scenario, pace=PACE) as sim:
        async with relaying(sim.url, [sketched(ours, PACE)], delivery=brisk(PACE)) as relay:
            await application.converse(address(relay))
        assert application.ran == [theirs.name]
        assert [(call.name, call.answered) for call in sim.ledger.calls] == [(ours.name, 1), (theirs.name, 1)]
