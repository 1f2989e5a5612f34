"""The vendor's own client, unmodified, against the simulator: first that it passes, then what it makes of faults.

The second part holds the documented outcome of each fault, which is what our own client is compared with.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from bridge.simulator.hcompany import (
    Answer,
    Ask,
    Call,
    End,
    Fate,
    Fault,
    OwnTool,
    Rules,
    Scenario,
    Simulator,
    Verdict,
    Work,
)

hai_agents = pytest.importorskip("hai_agents", reason="the vendor's client is not installed: pip install hai-agents")
httpx = pytest.importorskip("httpx", reason="the vendor's client needs httpx")

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE = 20.0
AGENT = {"name": "clerk", "description": "Knows the stock.", "environments": []}
ONE = Ask((Call("stock_level", {"sku": "B-17"}, "xml_0"),))
TWO = Ask((Call("stock_level", {"sku": "B-17"}, "xml_0"), Call("stock_level", {"sku": "C-02"}, "xml_1")))


class Stock:
    """The application: one tool, and the count of its side effects."""

    def __init__(self, result: Callable[[str], Any] = lambda sku: {"sku": sku}) -> None:
        self.asked: list[str] = []
        self._result = result

    @property
    def tools(self) -> list[Any]:
        def stock_level(sku: str) -> Any:
            """How many there are."""
            self.asked.append(sku)
            return self._result(sku)

        return [stock_level]


@asynccontextmanager
async def vendor(sim: Simulator) -> AsyncIterator[Any]:
    async with httpx.AsyncClient(trust_env=False) as http:
        with anyio.fail_after(PATIENCE):
            yield hai_agents.AsyncClient(base_url=sim.url, api_key=sim.api_key, httpx_client=http)


async def run(sim: Simulator, stock: Stock, **options: Any) -> Any:
    """`run_session` with the application's tools; its result."""
    async with vendor(sim) as client:
        asked = {"agent": AGENT, "messages": "Count.", "tools": stock.tools, **options}
        return await client.run_session(**asked)


# ------------------------------------------------------------------------------------------------- the client passes


async def test_a_session_runs_to_its_answer() -> None:
    stock = Stock()
    async with Simulator(Scenario((TWO, OwnTool(Call("click")), ONE, Answer("Done.")))) as sim:
        result = await run(sim, stock)
    assert (result.status, result.answer, result.outcome) == ("completed", "Done.", "success")
    # `xml_0` comes again in a later step, and is another call.
    assert stock.asked == ["B-17", "C-02", "B-17"]
    assert [call.fate for call in sim.ledger.calls] == [Fate.SETTLED] * 3
    assert sim.ledger.violations == []


async def test_a_session_of_the_synchronous_client_runs_to_its_answer() -> None:
    stock = Stock()

    def talk(url: str, key: str) -> Any:
        with httpx.Client(trust_env=False) as http:
            client = hai_agents.Client(base_url=url, api_key=key, httpx_client=http)
            return client.run_session(agent="h/clerk", messages="Count.", tools=stock.tools)

    async with Simulator(Scenario((TWO, Answer()))) as sim:
        result = await asyncio.to_thread(talk, sim.url, sim.api_key)
    assert result.status == "completed"
    assert stock.asked == ["B-17", "C-02"]


async def test_a_started_session_is_streamed_and_answers_twice() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer("One."), ONE, Answer("Two.")))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools, idle_timeout_s=60)
        kinds = [event.type async for event in handle.stream()]
        await handle.send_message("Again.")
        result = await handle.wait_for_completion()
        assert (result.status, result.answer) == ("idle", "Two.")
        await handle.cancel()
        assert (await handle.status()).status == "interrupted"
    assert kinds.count("ActiveStateChangeEvent") == 4
    assert stock.asked == ["B-17", "B-17"]


async def test_a_call_without_an_id_is_answered() -> None:
    stock = Stock()
    async with Simulator(Scenario((Ask((Call("stock_level", {"sku": "A"}, None),)), Answer()))) as sim:
        await run(sim, stock)
    assert stock.asked == ["A"]
    assert sim.ledger.violations == []


async def test_a_slow_session_is_followed_by_long_polls() -> None:
    async with Simulator(Scenario((Work(0.2), ONE, Work(0.2), Answer())), rules=Rules(startup=0.1)) as sim:
        assert (await run(sim, Stock())).status == "completed"
    assert sim.ledger.call("stock_level").fate is Fate.SETTLED


async def test_an_unknown_tool_is_answered_with_an_error() -> None:
    async with Simulator(Scenario((Ask((Call("weather"),)), Answer()))) as sim:
        await run(sim, Stock())
    (result,) = sim.ledger.results
    assert (result.is_error, result.verdict) == (True, Verdict.SETTLED)


async def test_quota_and_validation_have_exceptions_of_their_own() -> None:
    async with Simulator(Scenario((ONE,)), rules=Rules(capacity=1)) as sim, vendor(sim) as client:
        await client.sessions.create_session(agent=AGENT | {"environments": ["e"]}, messages="Count.")
        with pytest.raises(hai_agents.TooManyRequestsError):
            await client.sessions.create_session(
                agent="h/clerk", messages="Count.", queue=False, request_options={"max_retries": 0}
            )
        with pytest.raises(hai_agents.UnprocessableEntityError):
            await client.sessions.create_session(agent="h/clerk", messages="Count.", max_time_s=0)


async def test_a_paused_session_is_resumed_by_hand() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer()))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        await handle.pause()
        waiting = asyncio.create_task(handle.wait_for_completion(wait_for_seconds=1))
        await sim.agenda.until(lambda: any(each.operation == "status" for each in sim.exchanges))
        assert (await handle.status()).status == "paused"
        assert [call.id for call in (await handle.status()).pending_tool_calls] == ["xml_0"]
        assert stock.asked == []
        await handle.resume()
        assert (await waiting).status == "completed"
    assert stock.asked == ["B-17"]


async def test_a_client_that_joins_later_reads_the_log_from_its_start() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer()))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        assert (await handle.wait_for_completion(from_index=len(sim.session.log) - 1)).status == "completed"
    assert stock.asked == ["B-17"]


# ------------------------------------------------------------------------------- what the client makes of faults


async def test_a_reset_poll_ends_the_run_and_leaves_the_session_behind() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="changes", end=End.CUT))
        with pytest.raises(httpx.ReadError):
            await run(sim, Stock())
        assert sim.session.status.value == "awaiting_tool_results"


async def test_results_lost_on_the_way_are_computed_again_by_a_new_wait() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer()))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        sim.faults.append(Fault(operation="tool_results", end=End.CUT))
        with pytest.raises(httpx.ReadError):
            await handle.wait_for_completion()
        assert (await handle.wait_for_completion()).status == "completed"
    assert stock.asked == ["B-17", "B-17"]


async def test_results_that_were_taken_with_a_503_are_posted_again() -> None:
    stock = Stock()
    async with Simulator(Scenario((TWO, Answer()))) as sim:
        sim.faults.append(Fault(operation="tool_results", end=End.REFUSED, done=True))
        await run(sim, stock, idle_timeout_s=60)
    assert [result.verdict for result in sim.ledger.results] == [Verdict.SETTLED] * 2 + [Verdict.REPEATED] * 2
    assert stock.asked == ["B-17", "C-02"]


async def test_a_503_before_the_effect_is_overcome() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="tool_results", end=End.REFUSED))
        assert (await run(sim, Stock())).status == "completed"
    assert [result.verdict for result in sim.ledger.results] == [Verdict.SETTLED]


@pytest.mark.parametrize(
    ("value", "error"), [(math.nan, ValueError), ("\ud800", UnicodeEncodeError)], ids=["NaN", "a lone surrogate"]
)
async def test_a_result_that_cannot_be_encoded_ends_the_run(value: object, error: type[Exception]) -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        with pytest.raises(error):
            await run(sim, Stock(lambda sku: value))
        assert sim.session.status.value == "awaiting_tool_results"


async def test_a_result_that_is_not_json_becomes_the_text_of_python() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        await run(sim, Stock(lambda sku: {"skus": {sku}}))
    assert sim.ledger.call("stock_level").settled_with == "{'skus': {'B-17'}}"


async def test_calls_whose_announcement_was_evicted_are_never_run() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer()))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        sim.session.log.evict(before=100)
        with pytest.raises(TimeoutError):
            await handle.wait_for_completion(max_polls=5, wait_for_seconds=0)
        assert [call.id for call in (await handle.status()).pending_tool_calls] == ["xml_0"]
    assert stock.asked == []


async def test_an_empty_401_is_taken_for_no_news_and_asked_again_at_once() -> None:
    stock = Stock()
    async with Simulator(Scenario((Work(60), Answer()))) as sim, vendor(sim) as client:
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        sim.faults.append(Fault(operation="changes", end=End.REFUSED, status=401, empty=True, times=10))
        with pytest.raises(TimeoutError):
            await handle.wait_for_completion(max_polls=10, wait_for_seconds=20)
    assert sim.faults == []


async def test_results_that_never_count_are_waited_for_in_vain() -> None:
    stock = Stock()
    async with Simulator(Scenario((ONE, Answer()))) as sim, vendor(sim) as client:
        sim.faults.append(Fault(operation="tool_results", delay=math.inf))
        handle = await client.start_session(agent=AGENT, messages="Count.", tools=stock.tools)
        with pytest.raises(TimeoutError):
            await handle.wait_for_completion(max_polls=5, wait_for_seconds=0)
        assert sim.session.status.value == "awaiting_tool_results"
    assert stock.asked == ["B-17"]


async def test_results_that_count_late_are_waited_for() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:
        sim.faults.append(Fault(operation="tool_results", delay=0.3))
        assert (await run(sim, Stock(), wait_for_seconds=1)).status == "completed"
    assert len(sim.ledger.results) == 1


async def test_a_session_that_ends_while_its_tool_runs_counts_as_answered() -> None:
    async with Simulator(Scenario((ONE, Answer()))) as sim:

        def ends(sku: str) -> str:
            loop.call_soon_threadsafe(sim.session.interrupt)
            return sku

        loop = asyncio.get_running_loop()
        result = await run(sim, Stock(ends))
    assert result.status == "interrupted"
    assert [each.status for each in sim.exchanges if each.operation == "tool_results"] == [409]
    assert sim.ledger.call("stock_level").fate is Fate.RESOLVED_BY_SERVER
