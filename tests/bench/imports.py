"""How long importing takes, and how much memory tools need: `python tests/bench/imports.py`.

Each import runs in a fresh interpreter, several times, with its bytecode there; the best is shown, less what an empty
interpreter takes. The names of `bridge` are loaded when they are first used, and the packages of an extra only when it
is, so they are listed with the part that uses them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from tempfile import TemporaryDirectory

ROUNDS = 7
PARTS = {
    "the package alone": "import bridge",
    "a file of tools": "from bridge import Toolset",
    "a voice bot": "from bridge import AssemblyAI, Toolset, connect",
    "what it is made of (pydantic, websockets, anyio, orjson)": "import pydantic, websockets, anyio, orjson",
    "the command line": "import bridge.cli",
    "HTTP tools, declared": "import bridge.tools.webhook",
    "HTTP tools, opened": "import bridge.tools.webhook.client",
    "MCP tools, declared": "import bridge.tools.mcp",
    "MCP tools, opened": "import bridge.tools.mcp.connection",
    "the sidecar": "import bridge.serve",
}
CLOCK = "import time; began = time.process_time()\n{}\nprint(time.process_time() - began)"
TOOLS = 1000


def seconds(statement: str, environment: dict[str, str]) -> float:
    words = [sys.executable, "-c", CLOCK.format(statement)]

    def once() -> float:
        ran = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
        return float(ran.stdout)

    once()  # leaves the bytecode
    return min(once() for _ in range(ROUNDS))


def bytes_per_tool() -> float:
    from bridge import Toolset

    async def get_weather(city: str, units: str = "c") -> dict[str, object]:
        """Current weather in a city.

        Args:
            city: City name, e.g. London
            units: Temperature scale
        """
        return {"city": city, "units": units}

    tracemalloc.start()
    tools = Toolset()
    for number in range(TOOLS):
        tools.tool(get_weather, name=f"get_weather_{number}")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / len(tools)


def main() -> None:
    with TemporaryDirectory() as bytecode:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for part, statement in PARTS.items():
            print(f"{seconds(statement, environment):6.3f} s  {part}")
    print(f"{bytes_per_tool() / 1024:6.1f} KiB for each of {TOOLS} tools, their check included")


if __name__ == "__main__":
    main()
