"""What one tool call costs: from the provider's `tool.call` to our `tool.result`, with a tool that does nothing.

    python tests/bench/tool_call.py [--turns 1500] [--calls 1,3] [--rounds 7]

Messages come from a list and results go to a list, so that only the work of this process is timed. The loop of the
provider's documentation (json, tools awaited one after the other, nothing checked) runs in turn with our session, which
validates, times out, orders, counts and can be interrupted. Only ratios of one run mean anything.

`--parallel` instead shows how long two calls of 300 ms in one turn take until both are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Literal

from bridge import AssemblyAI, SessionOptions, Toolset, connect
from bridge import session as session_module
from bridge.errors import TransportError

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
        self._wake = asyncio.Event()
        self._frames = self._play()

    async def _play(self) -> AsyncIterator[str]:
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
        pass


async def documented(provider: Provider) -> None:
    """The loop of the provider's documentation."""
    pending: list[dict] = []
    while True:
        try:
            event = json.loads(await provider.receive())
        except TransportError:
            return
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
        self.provider = provider
        self.send = provider.send
        self.aclose = provider.aclose
        self._setup = [UPDATED, READY]
        self.begin = asyncio.Event()

    async def receive(self) -> str:
        if self._setup:
            return self._setup.pop(0)
        await self.begin.wait()
        return await self.provider.receive()


async def ours(provider: Provider) -> float:
    """Our session; returns the seconds it took, set-up and end left out."""
    tools = Toolset()
    tools.tool(get_weather)
    transport = Configured(provider)

    class Dial:
        @staticmethod
        async def open(*_: object, **__: object) -> Configured:
            return transport

    session_module.WebSocketTransport = Dial  # type: ignore[misc, assignment]
    bridge = connect(AssemblyAI(), tools=tools, api_key="none", options=SessionOptions(max_events=1_000_000))
    session = await bridge.__aenter__()
    # No breaker here: the same call comes a thousand times.
    session._running._calls._breaker.count = lambda *_: None  # type: ignore[method-assign]
    transport.begin.set()
    began = time.process_time()
    with suppress(TransportError):
        await session.run()
    took = time.process_time() - began
    with suppress(TransportError):
        await bridge.__aexit__(None, None, None)
    return took


async def timed(run: Callable[[Provider], Awaitable[float | None]], turns: int, calls: int) -> tuple[float, Provider]:
    provider = Provider(turns, calls)
    began = time.process_time()
    took = await run(provider) or time.process_time() - began
    assert provider.answered == turns * calls, provider.answered
    return took / (turns * calls) * 1e6, provider


def main() -> None:
    global SECONDS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=1000)
    parser.add_argument("--calls", default="1,3")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parallel", action="store_true")
    options = parser.parse_args()
    logging.disable()
    if options.parallel:
        SECONDS = 0.3
        for name, run in (("documented loop", documented), ("our session", ours)):
            _, provider = asyncio.run(timed(run, 3, 2))
            print(f"{name:20} two calls of 300 ms in one turn: {statistics.median(provider.waits) * 1000:6.0f} ms")
        return
    for calls in map(int, options.calls.split(",")):
        figures: dict[str, list[float]] = {"documented loop": [], "our session": []}
        for _ in range(options.rounds):
            for name, run in (("documented loop", documented), ("our session", ours)):
                figures[name].append(asyncio.run(timed(run, options.turns, calls))[0])
        base = statistics.median(figures["documented loop"])
        print(f"{calls} call(s) a turn: microseconds of CPU per call, median of {options.rounds}")
        for name, values in figures.items():
            median = statistics.median(values)
            print(f"  {name:18} {median:7.1f}   x{median / base:5.2f}   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
