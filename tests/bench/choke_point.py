"""What a call costs on its way through the runner, compared with the bare tool: `python tests/bench/choke_point.py`.

Prints microseconds of CPU per call, and how many times the hand-written way that is: the bare await; what a careful
user writes by hand (a task, a timeout, an error result); and the whole way through the runner (task, arguments, slots,
timeout, encoding, report). The three take turns, and the median of the rounds counts. Only the ratios mean anything.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time

import orjson

from bridge.core.events import CallKey, ToolCall
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext, Toolset

CALLS = 2_000
ROUNDS = 15

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> dict[str, object]:
    """Current weather in a city."""
    return {"city": city, "temperature": 21.5, "sky": "clear"}


async def bare() -> float:
    began = time.process_time()
    for _ in range(CALLS):
        orjson.dumps(await get_weather(**orjson.loads('{"city":"Oslo"}')))
    return time.process_time() - began


async def by_hand() -> float:
    async def one(done: asyncio.Future[bytes]) -> None:
        try:
            async with asyncio.timeout(10):
                done.set_result(orjson.dumps(await get_weather(**orjson.loads('{"city":"Oslo"}'))))
        except Exception as error:
            done.set_result(orjson.dumps({"error": str(error)}))

    began = time.process_time()
    for _ in range(CALLS):
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(one(done))
        await done
        del task
    return time.process_time() - began


async def through_the_runner() -> float:
    calls = Runner().session(repeat_limit=CALLS, calls_per_minute=CALLS + 1)
    tool = tools["get_weather"]
    done: asyncio.Future[None]

    def report(finished: Finished) -> None:
        done.set_result(None)

    began = time.process_time()
    for number in range(CALLS):
        done = asyncio.get_running_loop().create_future()
        key = CallKey(0, str(number))
        context = CallContext(session_id="s", key=key, tool="get_weather")
        calls.start(key, ToolCall(key.call_id, "get_weather", '{"city":"Oslo"}'), tool, tools, context, report)
        await done
    return time.process_time() - began


def main() -> None:
    logging.disable()  # on a busy machine a tool may seem to block the loop
    ways = (bare, by_hand, through_the_runner)
    rounds = [[asyncio.run(way()) / CALLS * 1e6 for way in ways] for _ in range(ROUNDS)]
    columns = list(zip(*rounds, strict=True))
    by_hands = statistics.median(columns[1])
    for way, figures in zip(ways, columns, strict=True):
        median = statistics.median(figures)
        noise = f"({min(figures):.1f} to {max(figures):.1f})"
        print(f"{way.__name__:20} {median:6.1f} us   x{median / by_hands:5.2f}   {noise}")


if __name__ == "__main__":
    main()
