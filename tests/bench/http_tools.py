"""Many HTTP tool calls at once against a local endpoint, through the runner: `python tests/bench/http_tools.py`.

The endpoint is a process of its own and takes 20 ms for each answer. Printed are the times from the start of a call to
its result, the connections that were opened, and what a call costs this process. The second round finds connections
that the first has left open.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import statistics
import time
from multiprocessing.connection import Connection

from bridge.core.events import CallKey, ToolCall
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext, Tool
from bridge.tools.webhook import HttpSource, HttpTool

CALLS = 200
ROUNDS = 3
WORK = 0.020
"""Seconds that the endpoint takes for an answer."""


def endpoint(parent: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(_serve(parent))


async def _serve(parent: Connection) -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(WORK)
                body = b'{"order":{"number":"A-1001","state":"on its way"}}'
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                writer.write(head % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, backlog=CALLS) as server:
        parent.send(server.sockets[0].getsockname()[1])
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, parent.recv) == "connections?":
            parent.send(connections)


async def round_of_calls(runner: Runner, tool: Tool, number: int) -> list[float]:
    """Seconds of each call, all begun at once, each in a session of its own."""
    done: list[asyncio.Future[Finished]] = []
    sessions = [runner.session() for _ in range(CALLS)]
    for index, calls in enumerate(sessions):
        key = CallKey(number, str(index))
        finished: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        context = CallContext(session_id=f"s{index}", key=key, tool="find_order")
        call = ToolCall(key.call_id, "find_order", '{"order":"A-1001"}')
        calls.start(key, call, tool, ["find_order"], context, finished.set_result)
        done.append(finished)
    results = await asyncio.gather(*done)
    assert not any(each.result.is_error for each in results), results[0].detail
    return [each.seconds * 1000 for each in results]


async def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=endpoint, args=(theirs,), daemon=True)
    process.start()
    port = ours.recv()
    declared = HttpTool(
        name="find_order",
        url=f"http://127.0.0.1:{port}/orders/{{order}}",
        private_hosts=("127.0.0.1",),
        parameters={"order": {"type": "string"}},  # type: ignore[dict-item]  # as in a file
        result="/order",
    )
    async with HttpSource([declared]).open(lambda changed: None) as (tool,):
        runner = Runner()
        for number in range(ROUNDS):
            spent, began = time.process_time(), time.perf_counter()
            times = await round_of_calls(runner, tool, number)
            wall, cpu = time.perf_counter() - began, time.process_time() - spent
            ours.send("connections?")
            percent = statistics.quantiles(times, n=100)
            print(f"round {number + 1}: {CALLS} at once: p50 {percent[49]:.0f} ms, p99 {percent[98]:.0f} ms", end="")
            print(
                f", {ours.recv()} connections so far, {cpu / CALLS * 1e6:.0f} us of CPU per call, {wall:.3f} s in all"
            )
        runner.close()
    ours.send("stop")
    process.join(5)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    asyncio.run(main())
