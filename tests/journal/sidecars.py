"""Sidecars in processes of their own, also on a disk that takes its time."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as dial
from websockets.exceptions import ConnectionClosed

from tests.relay.rig import Provider, Providers

__all__ = ["Phone", "configured", "served", "slowly"]

ROOT = Path(__file__).parents[2]

_CONFIG = """
[listen]
port = 0
[admin]
port = 0
[upstream]
url = "{url}"
[tools]
python = ["booking_tools.py"]
[journal]
address = "calls.db"
"""

_SLOW_DISK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static int slowly(const char *name, int file)
{
    for (int left = atoi(getenv("SLOW_MILLISECONDS")); left > 0 && access(getenv("SLOW_WHILE"), F_OK) == 0; left--)
        usleep(1000);
    return ((int (*)(int)) dlsym(RTLD_NEXT, name))(file);
}

int fsync(int file) { return slowly("fsync", file); }
int fdatasync(int file) { return slowly("fdatasync", file); }
"""


def configured(directory: Path, url: str, tools: str) -> None:
    """Write the configuration of a sidecar with a journal, in front of this provider, and its tools."""
    (directory / "bridge.toml").write_text(_CONFIG.format(url=url))
    (directory / "booking_tools.py").write_text(tools)


def slowly(directory: Path, gate: Path, seconds: float) -> Mapping[str, str] | None:
    """The environment of a process whose syncs end when there is no file `gate`, or after so long; None without a
    compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source, library = directory / "slow_disk.c", directory / "slow_disk.so"
    source.write_text(_SLOW_DISK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SLOW_WHILE": str(gate), "SLOW_MILLISECONDS": str(round(seconds * 1000))}


@asynccontextmanager
async def served(
    directory: Path, environment: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The sidecar that is configured there, and where applications connect, until it is killed."""
    command = [sys.executable, "-m", "bridge", "serve", str(directory / "bridge.toml")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=pipe, stderr=pipe, env={**os.environ, **(environment or {})}
    )
    try:
        async with asyncio.timeout(30):
            assert process.stdout is not None
            started = (await process.stdout.readline()).decode()
        yield process, started.split(" to ")[1].split(";")[0]
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


class Phone:
    """A phone call through a sidecar: the application's end, and the provider's."""

    def __init__(self, application: ClientConnection, provider: Provider) -> None:
        self.application = application
        self.provider = provider
        self._calls = 0

    async def begin(self, tool: str) -> None:
        """The agent calls a tool."""
        self._calls += 1
        await self.provider.call(tool, f"c{self._calls}", number=self._calls)

    async def result(self) -> Any:
        """What the agent hears of it; then it speaks, and is done."""
        heard = await self.provider.hear("tool.result")
        await self.reply()
        return json.loads(heard["result"])

    async def reply(self) -> None:
        """The agent speaks, and is done."""
        await self.provider.say("reply.started", reply_id=f"r{self._calls}")
        await self.provider.say("reply.done", reply_id=f"r{self._calls}")

    async def call(self, tool: str) -> Any:
        await self.begin(tool)
        return await self.result()

    async def talk(self) -> None:
        """Audio goes through, both ways."""
        for _ in range(10):
            await self.application.send(json.dumps({"type": "input.audio", "audio": "AAAA"}))
            assert (await self.provider.hear())["type"] == "input.audio"
            await self.provider.say("reply.audio", data="AAAA")
            while json.loads(await self.application.recv())["type"] != "reply.audio":
                pass

    @classmethod
    @asynccontextmanager
    async def through(cls, at: str, providers: Providers) -> AsyncIterator[Phone]:
        """One that is under way, through the sidecar there."""
        async with dial(at, close_timeout=0.1) as application:
            provider = await providers.next()
            await application.send(json.dumps({"type": "session.update", "session": {}}))
            await provider.ready()
            yield cls(application, provider)
            with suppress(ConnectionClosed):
                await provider.say("session.ended")
            providers.over.set()
