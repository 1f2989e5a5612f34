"""Starts the sidecar, the callers and the provider, each in a process of its own, and measures.

No process outlives this, whatever ends it: an error, a time-out, or a cancellation.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from ..errors import ConfigError
from .figures import Delays, Reading, Report, Sent, Trip, Unmeasurable, report

__all__ = ["benchmark"]

_WARM_UP: Final = 0.5
"""Seconds of audio before anything is measured."""
_PATIENCE: Final = 120.0
"""Seconds that everything else may take: starting, and setting up all calls."""
_SPARE: Final = 64
"""File descriptors that a process needs beside those of its calls."""


async def benchmark(calls: int, seconds: float) -> Report:
    """What this machine carries: `calls`, two at least, through the sidecar for so many seconds, then without it.

    Raises `ConfigError` if this machine is not set up for it, `Unmeasurable` if it gives no figures.
    """
    _check_room(calls)
    try:
        async with asyncio.timeout(_PATIENCE + 2 * seconds):
            relayed, readings = await _relayed(calls, seconds)
            return report(calls, seconds, relayed, await _direct(calls, seconds), readings)
    except TimeoutError:
        raise Unmeasurable(f"it took more than {_PATIENCE:g} s to set the calls up; use fewer (--calls)") from None


def _check_room(calls: int) -> None:
    if not Path("/proc/self/status").exists():
        raise ConfigError("the sidecar's CPU time and memory are read from /proc, which only Linux has")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * calls + _SPARE
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise ConfigError(f"{calls} calls need {needed} file descriptors, and {limit} are allowed: raise `ulimit -n`")


async def _relayed(calls: int, seconds: float) -> tuple[tuple[Trip, Trip], list[Reading]]:
    async with (
        _load("provider", calls) as provider,
        _sidecar(await _url(provider), calls) as (url, pid),
        _load("callers", calls, f"{url}/v1/ws") as callers,
    ):
        await callers.hear()
        readings = [_reading(pid)]
        for moment in await _talking(provider, callers, seconds):
            await asyncio.sleep((moment - time.monotonic_ns()) / 1e9)
            readings.append(_reading(pid))
        return await _trips(provider, callers), readings


async def _direct(calls: int, seconds: float) -> tuple[Trip, Trip]:
    async with (
        _load("provider", calls) as provider,
        _load("callers", calls, await _url(provider)) as callers,
    ):
        await callers.hear()
        await _talking(provider, callers, seconds)
        return await _trips(provider, callers)


# ------------------------------------------------------------------------------------------------------------- the load


class _Load:
    """One of the two processes of `load`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    async def hear(self) -> dict[str, Any]:
        """The next line it says."""
        line = await self._output.readline()
        said: dict[str, Any] = json.loads(line) if line else {"fault": "a process of the load ended"}
        if "fault" in said:
            raise Unmeasurable(said["fault"])
        return said

    def tell(self, **what: int) -> None:
        """Say something to it. Whether it is still there shows when it is heard next."""
        self._input.write(f"{json.dumps(what)}\n".encode())


@asynccontextmanager
async def _load(role: str, calls: int, *url: str) -> AsyncIterator[_Load]:
    async with _process("bridge.benchmark.load", role, str(calls), *url) as process:
        yield _Load(process)


async def _url(provider: _Load) -> str:
    return f"ws://127.0.0.1:{(await provider.hear())['port']}/v1/ws"


async def _talking(provider: _Load, callers: _Load, seconds: float) -> tuple[int, int]:
    """The first call is set up: set up the others, and let all talk. When the measurement begins and ends, in ns."""
    callers.tell()
    await callers.hear()
    begin = time.monotonic_ns() + int(_WARM_UP * 1e9)
    end = begin + int(seconds * 1e9)
    for load in (provider, callers):
        load.tell(begin=begin, end=end)
    return begin, end


async def _trips(provider: _Load, callers: _Load) -> tuple[Trip, Trip]:
    """To the provider, and to the caller."""
    there, here = await provider.hear(), await callers.hear()
    return _trip(here, there), _trip(there, here)


def _trip(sender: dict[str, Any], receiver: dict[str, Any]) -> Trip:
    return Trip(Sent(sender["sent"], sender["late"]), receiver["arrived"], Delays(receiver["p50"], receiver["p99"]))


# ---------------------------------------------------------------------------------------------------------- the sidecar


@asynccontextmanager
async def _sidecar(upstream: str, calls: int) -> AsyncIterator[tuple[str, int]]:
    """The real command, with its defaults and nothing of the operator's environment: its address and process id."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BRIDGE_")}
    environment["BRIDGE_LIMITS__MAX_SESSIONS"] = str(calls)
    arguments = ("serve", "--upstream", "assemblyai", "--url", upstream, "--port", "0", "--admin-port", "0")
    with tempfile.TemporaryFile("w+") as log:
        async with _process("bridge", *arguments, environment=environment, log=log) as process:
            assert process.stdout is not None
            found = re.search(rb"ws://\S+:\d+", await process.stdout.readline())
            if not found:
                raise ConfigError(f"the sidecar does not start: {_complaint(log)}")
            begun = os.fstat(log.fileno()).st_size  # that it has no tools, say, is no trouble here
            try:
                yield found[0].decode(), process.pid
            except Unmeasurable as fault:
                raise Unmeasurable(f"{fault}. The sidecar's last complaint: {_complaint(log, begun)}") from None


def _complaint(log: IO[str], begun: int = 0) -> str:
    """The last line of trouble in the sidecar's log, from this byte on."""
    log.seek(begun)
    lines = [line for line in log if re.search(r"Error|ERROR|WARNING", line)]
    return lines[-1].strip().removeprefix("Error: ") if lines else "none"


def _reading(pid: int) -> Reading:
    """A look at a process. Raises `Unmeasurable` if it has ended."""
    try:
        # The number of a process' own clock is made from its id: clock_getcpuclockid(3), as Linux does it.
        cpu = time.clock_gettime(~pid << 3 | 2)
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        raise Unmeasurable("the sidecar ended while it was measured") from None
    resident = re.search(r"VmRSS:\s*(\d+) kB", status)
    return Reading(time.monotonic(), cpu, int(resident[1]) if resident else 0)


# ------------------------------------------------------------------------------------------------------------ processes


@asynccontextmanager
async def _process(
    module: str, *arguments: str, environment: dict[str, str] | None = None, log: IO[str] | None = None
) -> AsyncIterator[Process]:
    """A module of this package as a program; it is gone when this is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", module, *arguments),
        stdin=PIPE,
        stdout=PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,  # Ctrl-C is for us alone
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # `process.kill` may snatch its end from the event loop
        await process.communicate()
