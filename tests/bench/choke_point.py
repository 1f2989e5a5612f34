"""What a call costs on its way through the runner, compared with the bare tool: `python tests/bench/choke_point.py`.

Prints microseconds per call, best of several rounds: the bare await; what a careful user writes by hand (a task, a
timeout, an error result); and the whole way through the runner (task, arguments, slots, timeout, encoding, report).
"""

from __future__ import annotations

import asyncio
import time

import orjson

from bridge.core.events import CallKey, ToolCall
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext, Toolset

CALLS = 5_000
ROUNDS = 7

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> dict[str, object]:
    """Current weather in a city."""
    return {"city": city, "temperature": 21.5, "sky": "clear"}


async def bare() -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        orjson.dumps(await get_weather(**orjson.loads('{"city":"Oslo"}')))
    return time.perf_counter() - began


async def by_hand() -> float:
    async def one(done: asyncio.Future[bytes]) -> None:
        try:
            async with asyncio.timeout(10):
                done.set_result(orjson.dumps(await get_weather(**orjson.loads('{"city":"Oslo"}'))))
        except Exception as error:
            done.set_result(orjson.dumps({"error": str(error)}))

    began = time.perf_counter()
    for _ in range(CALLS):
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(one(done))
        await done
        del task
    return time.perf_counter() - began


async def through_the_runner() -> float:
    calls = Runner().session(repeat_limit=CALLS, calls_per_minute=CALLS + 1)
    tool = tools["get_weather"]
    done: asyncio.Future[None]

    def report(finished: Finished) -> None:
        done.set_result(None)

    began = time.perf_counter()
    for number in range(CALLS):
        done = asyncio.get_running_loop().create_future()
        key = CallKey(0, str(number))
        context = CallContext(session_id="s", key=key, tool="get_weather")
        calls.start(key, ToolCall(key.call_id, "get_weather", '{"city":"Oslo"}'), tool, tools, context, report)
        await done
    return time.perf_counter() - began


def main() -> None:
    for way in (bare, by_hand, through_the_runner):
        best = min(asyncio.run(way()) for _ in range(ROUNDS)) / CALLS * 1e6
        print(f"{way.__name__:20} {best:6.1f} us")


if __name__ == "__main__":
    main()
