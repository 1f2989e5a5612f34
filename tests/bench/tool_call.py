"""What one tool call costs: from the provider's `tool.call` to our `tool.result`, with a tool that does nothing.

    python tests/bench/tool_call.py [--turns 1000] [--calls 1,3] [--rounds 7]

Messages come from a list and results go to a list, so that only the work of this process is timed. The loop of the
provider's documentation (json, tools awaited one after the other, nothing checked) runs in turn with our session, which
validates, times out, orders, counts and can be interrupted. Only ratios of one run mean anything.

`--parallel` instead shows how long two calls of 300 ms in one turn take until both are answered; `--profile` where the
time of a session goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Literal

from bridge import AssemblyAI, Session, SessionOptions, Toolset
from bridge.errors import TransportError
from bridge.runner.runner import Runner

UPDATED = '{"type":"session.updated","config":{"tools":[{"type":"function","name":"get_weather"}]}}'
READY = '{"type":"session.ready","session_id":"sess_1"}'
STARTED = '{"type":"reply.started","reply_id":"r_%d"}'
DONE = '{"type":"reply.done","status":"completed","reply_id":"r_%d"}'
SECONDS = 0.0


def call(number: int) -> str:
    arguments = {"location": "London, UK", "units": "celsius", "days": 3}
    message = {"type": "tool.call", "call_id": f"call_{number:06d}", "name": "get_weather", "arguments": arguments}
    return json.dumps(message)


async def get_weather(location: str, units: Literal["celsius", "fahrenheit"] = "celsius", days: int = 1) -> dict:
    """The weather in a city."""
    if SECONDS:
        await asyncio.sleep(SECONDS)
    return {"temp_c": 22, "description": "Sunny"}


class Provider:
    """Plays `turns` turns of `calls` calls each; goes on once the results of a turn are there."""

    def __init__(self, turns: int, calls: int) -> None:
        self.turns = turns
        self.calls = calls
        self.answered = 0
        self.waits: list[float] = []
        self.begin = asyncio.Event()
        """Once it is set the turns are played."""
        self._wake = asyncio.Event()
        self._frames = self._play()

    async def _play(self) -> AsyncIterator[str]:
        await self.begin.wait()
        number = 0
        for turn in range(self.turns):  # each reply answers the results before it, and calls again
            yield STARTED % turn
            began = time.perf_counter()
            for _ in range(self.calls):
                number += 1
                yield call(number)
            yield DONE % turn
            while self.answered < number:
                self._wake.clear()
                await self._wake.wait()
            self.waits.append(time.perf_counter() - began)

    async def receive(self) -> str:
        try:
            return await anext(self._frames)
        except StopAsyncIteration:
            raise TransportError("over") from None

    async def send(self, frame: str | bytes) -> None:
        if "tool.result" in str(frame):
            self.answered += 1
            self._wake.set()

    async def aclose(self) -> None:
        await self._frames.aclose()


async def documented(provider: Provider) -> float:
    """The loop of the provider's documentation; returns the seconds of CPU it took."""
    provider.begin.set()
    began = time.process_time()
    pending: list[dict] = []
    while True:
        try:
            event = json.loads(await provider.receive())
        except TransportError:
            return time.process_time() - began
        kind = event.get("type")
        if kind == "tool.call":
            result = await get_weather(**event.get("arguments", {}))
            pending.append({"call_id": event["call_id"], "result": result})
        elif kind == "reply.done":
            if event.get("status") != "interrupted":
                for tool in pending:
                    result = json.dumps(tool["result"])
                    await provider.send(
                        json.dumps({"type": "tool.result", "call_id": tool["call_id"], "result": result})
                    )
            pending.clear()


class Configured:
    """The provider, after the session has been set up."""

    def __init__(self, provider: Provider) -> None:
        self.send = provider.send
        self.aclose = provider.aclose
        self._receive = provider.receive
        self._setup = [UPDATED, READY]

    async def receive(self) -> str:
        return self._setup.pop(0) if self._setup else await self._receive()


async def ours(provider: Provider, profile: cProfile.Profile | None = None) -> float:
    """Our session; returns the seconds of CPU it took, set-up and end left out."""
    tools = Toolset()
    tools.tool(get_weather)
    many = provider.turns * provider.calls + 1  # the same call comes a thousand times
    calls = Runner().session(repeat_limit=many, calls_per_minute=many)
    options = SessionOptions(max_events=1_000_000)
    session = Session(AssemblyAI(), tools, calls, observers=(), metadata={}, delivery=None, options=options)
    with suppress(TransportError):
        async with session.over(Configured(provider)):
            began = time.process_time()
            provider.begin.set()
            if profile:
                profile.enable()
            with suppress(TransportError):
                await session.run()
            took = time.process_time() - began
            if profile:
                profile.disable()
    return took


async def timed(run: Callable[[Provider], Awaitable[float]], turns: int, calls: int) -> tuple[float, Provider]:
    provider = Provider(turns, calls)
    took = await run(provider)
    assert provider.answered == turns * calls, provider.answered
    return took / (turns * calls) * 1e6, provider


def compare(turns: int, calls: int, rounds: int) -> None:
    figures: dict[str, list[float]] = {"documented loop": [], "our session": []}
    for _ in range(rounds):
        for name, run in (("documented loop", documented), ("our session", ours)):
            figures[name].append(asyncio.run(timed(run, turns, calls))[0])
    base = statistics.median(figures["documented loop"])
    print(f"{calls} call(s) a turn: microseconds of CPU per call, median of {rounds}")
    for name, values in figures.items():
        median = statistics.median(values)
        print(f"  {name:18} {median:7.1f}   x{median / base:5.2f}   ({min(values):.1f} to {max(values):.1f})")


def main() -> None:
    global SECONDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--calls", default="1,3")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parallel", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    logging.disable()
    if options.parallel:
        SECONDS = 0.3
        for name, run in (("documented loop", documented), ("our session", ours)):
            _, provider = asyncio.run(timed(run, 3, 2))
            print(f"{name:20} two calls of 300 ms in one turn: {statistics.median(provider.waits) * 1000:6.0f} ms")
        return
    if options.profile:
        profile = cProfile.Profile()
        asyncio.run(timed(lambda provider: ours(provider, profile), options.turns, 1))
        profile.print_stats("tottime")
        return
    for calls in map(int, options.calls.split(",")):
        compare(options.turns, calls, options.rounds)


if __name__ == "__main__":
    main()
