"""What a call of an MCP tool costs beside the SDK's own: `python tests/bench/mcp_tools.py`.

The same server, with a tool that does nothing, over standard input and output and over streamable HTTP. `the SDK` is
its client called directly, `our tool` the tool of an open source, `choke point` that tool called through a runner, with
its arguments checked and its result encoded. Milliseconds a call, one after the other; best of several rounds.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from mcp import Client, StdioServerParameters

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bridge.core.events import CallKey, ToolCall  # noqa: E402 - the tree itself is measured, wherever this is started
from bridge.runner.runner import Finished, Runner  # noqa: E402
from bridge.tools.mcp import McpServer, McpSource  # noqa: E402
from bridge.tools.tool import CallContext, Tool  # noqa: E402
from tests.tools.mcp_servers.serving import free_port, serving  # noqa: E402
from tests.tools.mcp_servers.shop import make_shop  # noqa: E402

CALLS = 200
ROUNDS = 5
SHOP = str(ROOT / "tests" / "tools" / "mcp_servers" / "shop.py")
ARGUMENTS = {"name": "Ada"}


async def milliseconds(*ways: Callable[[], Awaitable[object]]) -> list[float]:
    """Of a call in each of the ways, which take turns."""
    best = [float("inf")] * len(ways)
    for _ in range(ROUNDS):
        for index, call in enumerate(ways):
            began = time.perf_counter()
            for _ in range(CALLS):
                await call()
            best[index] = min(best[index], time.perf_counter() - began)
    return [seconds / CALLS * 1000 for seconds in best]


async def through_runner(runner: Runner, tool: Tool, context: CallContext) -> Finished:
    calls = runner.session(calls_per_minute=10**9, repeat_limit=10**9)
    done: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
    calls.start(context.key, ToolCall("c", "greet", '{"name": "Ada"}'), tool, (), context, done.set_result)
    finished = await done
    assert not finished.result.is_error, finished.result.output
    return finished


async def compare(what: str, direct: Client, source: McpSource) -> None:
    context = CallContext(session_id="s", key=CallKey(0, "c"), tool="greet")
    runner = Runner()
    async with source.open(lambda tools: None) as tools, direct:
        tool = next(each for each in tools if each.spec.name == "greet")

        async def ours() -> object:
            result: Awaitable[object] = tool.invoke(ARGUMENTS, context)  # type: ignore[assignment]  # it is no blocking one
            return await result

        ways = (lambda: direct.call_tool("greet", ARGUMENTS), ours, lambda: through_runner(runner, tool, context))
        sdk, own, whole = await milliseconds(*ways)
    print(f"{what:8}{sdk:12.2f}{own:12.2f}{whole:14.2f}")


async def main() -> None:
    logging.disable()  # the server in this process sets up a log of its own
    print(f"{'':8}{'the SDK':>12}{'our tool':>12}{'choke point':>14}   ms a call")
    program = StdioServerParameters(command=sys.executable, args=[SHOP])
    stdio = McpServer(name="shop", command=sys.executable, args=(SHOP,))
    await compare("stdio", Client(program), McpSource(stdio))
    port = free_port()
    async with serving(make_shop().streamable_http_app(), port):
        url = f"http://127.0.0.1:{port}/mcp"
        await compare("HTTP", Client(url), McpSource(McpServer(name="shop", url=url)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    asyncio.run(main())
