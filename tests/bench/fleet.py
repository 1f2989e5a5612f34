"""What it takes until an outcome that comes to one process reaches the call of another, and what claims cost.

    python -m tests.bench.fleet [--calls 500] [--polled 20] [--claims 4000] [--poll 1.0]

PostgreSQL is started for this and syncs its disk. The two processes share this machine's clock. Figures of a busy
machine are those of a busy machine: each comes with the load at its time.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from bridge import CallContext, Toolset
from bridge.core.events import CallKey, ToolCall
from bridge.journal import CallId
from bridge.journal.postgres import open_postgres
from bridge.runner.parking import Answer, Completion, Verdict
from bridge.runner.runner import Finished, Runner
from bridge.tools.tool import Parked
from tests.postgres import postgres


def own_calls(url: str, calls: int, poll: float, notified: bool, parent: Connection) -> None:
    """The process whose calls wait: it sends each ticket, and when the call was given its outcome, and has ended."""
    asyncio.run(_own_calls(url, calls, poll, notified, parent))


async def _own_calls(url: str, calls: int, poll: float, notified: bool, parent: Connection) -> None:
    journal = open_postgres(url, poll=poll)
    runner, tools = Runner(journal=journal), Toolset()

    @tools.tool(timeout=60)
    async def book(call: CallContext) -> object:
        parent.send(call.ticket)
        return Parked()

    runner.begin()
    assert runner.post is not None
    while not runner.post.listening:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    if not notified:
        journal._closing()
    given, give = list[float](), runner.post._parking.give

    def note(ticket: str, answer: Answer) -> Completion:
        given.append(time.monotonic())
        return give(ticket, answer)

    runner.post._parking.give = note  # type: ignore[method-assign]  # only looked at
    session = runner.session(calls_per_minute=10**9, repeat_limit=10**9)
    for number in range(calls):
        over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        key = CallKey(0, f"c{number}")
        about = CallContext(session_id=f"s{os.getpid()}", key=key, tool="book")
        session.start(key, ToolCall(key.call_id, "book", "{}"), tools["book"], tools, about, over.set_result)
        await over
        parent.send((given.pop(), time.monotonic()))
        given.clear()
    await runner.aclose(1)
    runner.close()
    await journal.aclose()


async def delivery(url: str, calls: int, poll: float, *, notified: bool) -> tuple[list[float], ...]:
    """Seconds from the call of `settle` here: until it has returned, until the call there was given the outcome, and
    until it has ended, which is after that outcome has been made durable.
    """
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=own_calls, args=(url, calls, poll, notified, there), daemon=True)
    process.start()
    journal = open_postgres(url)
    runner = Runner(journal=journal)
    returned, given, ended = list[float](), list[float](), list[float]()
    for _ in range(calls):
        ticket = await asyncio.to_thread(here.recv)
        if not notified:
            await asyncio.sleep(random.uniform(0, poll))  # else each would come just after a look
        began = time.monotonic()
        completion = await runner.settle(ticket, {"table": 4})
        returned.append(time.monotonic() - began)
        assert completion.verdict is Verdict.ACCEPTED
        at, over = await asyncio.to_thread(here.recv)
        given.append(at - began)
        ended.append(over - began)
    await asyncio.to_thread(process.join)
    await journal.aclose()
    runner.close()
    return returned, given, ended


def make_claims(url: str, claims: int, callers: int, parent: Connection) -> None:
    """A process that claims calls as fast as it can, from when it is told to until it says so."""
    asyncio.run(_make_claims(url, claims, callers, parent))


async def _make_claims(url: str, claims: int, callers: int, parent: Connection) -> None:
    journal = open_postgres(url, limit=30.0)
    parent.send("ready")
    parent.recv()

    async def caller(lane: int) -> None:
        for number in range(claims // callers):
            await journal.claim(CallId(f"s{os.getpid()}-{lane}", number, "c"), "book", '{"day": "friday"}', "bench")

    await asyncio.gather(*map(caller, range(callers)))
    parent.send("done")
    await journal.aclose()


def claim_rate(url: str, claims: int, processes: int, callers: int) -> float:
    """Durable claims a second, of so many processes with so many callers each."""
    spawning = multiprocessing.get_context("spawn")
    pipes = [spawning.Pipe() for _ in range(processes)]
    each = claims // processes
    running = [
        spawning.Process(target=make_claims, args=(url, each, callers, there), daemon=True) for _, there in pipes
    ]
    for process in running:
        process.start()
    for here, _ in pipes:
        here.recv()
    began = time.monotonic()
    for here, _ in pipes:
        here.send("go")
    for here, _ in pipes:
        here.recv()
    seconds = time.monotonic() - began
    for process in running:
        process.join()
    return each // callers * callers * processes / seconds


def shown(name: str, seconds: Sequence[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    middle = statistics.median(seconds) * 1000
    print(f"{name:48} p50 {middle:8.1f} ms   p99 {cuts[98] * 1000:8.1f} ms   load {os.getloadavg()[0]:.1f}", flush=True)


async def main(calls: int, polled: int, claims: int, poll: float) -> None:
    with tempfile.TemporaryDirectory() as directory, postgres(Path(directory) / "postgres") as server:
        url = server.url()
        returned, given, ended = await delivery(url, calls, poll, notified=True)
        shown("settle at the other process, until accepted", returned)
        shown("... until the call is given it, notified", given)
        shown("... until the call has ended, durably", ended)
        _, given, _ = await delivery(url, polled, poll, notified=False)
        shown(f"... until the call is given it, looking each {poll:g} s", given)
        for processes, callers in ((1, 1), (1, 32), (2, 32)):
            few = claims // 10 if callers == 1 else claims
            rate = await asyncio.to_thread(claim_rate, url, few, processes, callers)
            print(f"claims, {processes} processes, {callers:2} callers each: {rate:8.0f} a second", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--polled", type=int, default=20)
    parser.add_argument("--claims", type=int, default=4000)
    parser.add_argument("--poll", type=float, default=1.0)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.calls, chosen.polled, chosen.claims, chosen.poll))
