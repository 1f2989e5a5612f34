"""What it costs to make a call durable: claim and outcome, with 1 and 32 callers; entries per second; bytes per call.

    python -m tests.bench.journal [--calls 640] [--sqlite DIRECTORY] [--no-postgres] [--no-sidecar]

With a sidecar in a process of its own: how late audio is, with a disk as it is and with one that takes half a second
for each sync; and how long it takes from the kill of a sidecar to the end of what it has left, start included.

The file is on the disk of `--sqlite` (a temporary directory by default), and PostgreSQL, started for this, syncs its
own disk too. A bare write and sync of 4 KiB is timed beside them: no durable store can be faster than its disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sqlite3
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg

from bridge.core.dialect import Delivery
from bridge.core.events import (
    ReplyDone,
    ReplyStarted,
    Sent,
    SpeechStarted,
    SpeechStopped,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
)
from bridge.core.turn import TurnMachine
from bridge.journal import Begun, CallId, Entry, Journal, Part, Record, State
from bridge.journal.opening import open_journal
from bridge.journal.sqlite import open_sqlite
from bridge.runner.leftovers import recover
from tests.journal.sidecars import Phone, configured, served, slowly
from tests.postgres import NoPostgres, postgres
from tests.relay.rig import providing

ARGUMENTS = '{"location": "London, UK", "units": "celsius", "days": 3}'
OUTPUT = '{"temp_c": 22, "description": "Sunny, with a light breeze from the west", "humidity": 0.41}'


def sync_times(directory: Path, times: int = 200) -> list[float]:
    """Seconds that a bare write of 4 KiB takes until it is on the disk."""
    taken = []
    with (directory / "bare").open("wb", buffering=0) as file:
        for _ in range(times):
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return taken


async def call_times(journal: Journal, calls: int, callers: int) -> tuple[list[float], float]:
    """Seconds that claim and outcome of each call take together, and those of all of it."""
    taken: list[float] = []

    async def caller(lane: int) -> None:
        for number in range(calls // callers):
            call = CallId(f"session-{callers}-{lane}", number, f"call_{number:06d}")
            began = time.perf_counter()
            await journal.claim(call, "get_weather", ARGUMENTS, "bench")
            await journal.conclude(call, ToolResult(call.call_id, OUTPUT, name="get_weather"), "ok")
            taken.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller(lane) for lane in range(callers)))
    return taken, time.perf_counter() - began


def session(number: int, turns: int = 10) -> list[Entry]:
    """The entries of a conversation with one call in each turn."""
    machine, marks = TurnMachine(Delivery()), iter(range(10**6))

    def entry(record: Record, part: Part) -> Entry:
        return Entry(time.time(), f"{number:016x}", record, part, next(marks))

    entries = [entry(Begun(machine.delivery), Part.HEARD)]
    for turn in range(turns):
        call = ToolCall(f"call_{turn:06d}", "get_weather", ARGUMENTS)
        spoken = [SpeechStarted(), SpeechStopped(), ReplyStarted(f"reply_{turn}"), ToolCalled(call)]
        for event in (*spoken, None, ReplyDone(False, f"reply_{turn}"), None):
            if event is None:
                key = machine.owed[0].key
                result = ToolResult(call.call_id, OUTPUT, name="get_weather")
                event = Sent((key,)) if machine.owed[0].result else ToolFinished(key, result)
            machine, outputs = machine.handle(event)
            entries += [entry(event, Part.HEARD), *(entry(output, Part.DECIDED) for output in outputs)]
    return entries


async def entry_rate(journal: Journal, sessions: int) -> tuple[int, float]:
    """Entries that 32 writers append, in batches of a session, and the seconds that takes."""
    written = [session(number) for number in range(sessions)]
    began = time.perf_counter()

    async def writer(lane: int) -> None:
        for batch in written[lane::32]:
            await journal.append(batch)

    await asyncio.gather(*(writer(lane) for lane in range(32)))
    return sum(map(len, written)), time.perf_counter() - began


def percentiles(taken: Sequence[float]) -> str:
    cuts = statistics.quantiles(taken, n=100)
    return f"p50 {statistics.median(taken) * 1000:7.2f} ms   p99 {cuts[98] * 1000:7.2f} ms"


async def measure(name: str, address: str, calls: int, size: Callable[[], int]) -> None:
    journal = open_journal(address, limit=30.0)
    for callers in (1, 32):
        taken, total = await call_times(journal, calls, callers)
        rate = f"{len(taken) / total:7.0f} calls/s"
        print(f"{name:10} claim + outcome, {callers:2} callers: {percentiles(taken)}   {rate}")
    before = size()
    await call_times(journal, 1000, 10)
    entries, seconds = await entry_rate(journal, 100)
    print(f"{name:10} entries, 32 writers: {entries / seconds:,.0f} a second")
    await settle_all(journal)
    print(f"{name:10} 1,000 calls: {(size() - before) / 1024:,.0f} KiB")
    await journal.aclose()


async def settle_all(journal: Journal) -> None:
    await journal.settle([each.call for each in await journal.claims()], State.SENT)


# ----------------------------------------------------------------------------------------------------------- a sidecar

TOOLS = '''
import asyncio
from bridge import Toolset

tools = Toolset()

@tools.tool
async def book(number: int) -> str:
    """Once."""
    return "booked"

@tools.tool(timeout=60)
async def hang(number: int) -> None:
    """Once, and for ever."""
    await asyncio.sleep(60)
'''
SLOW = 0.5
"""Seconds that a slow disk takes for each sync."""


async def audio_delays(phone: Phone, frames: int) -> tuple[list[float], int]:
    """Seconds that audio takes from the application to the provider, at 50 frames a second, and calls meanwhile, two
    a second unless one takes longer.
    """
    sent, taken, calls, asked = deque[float](), list[float](), 0, 0

    async def speak() -> None:
        nonlocal asked
        for number in range(frames):
            if number % 25 == 0 and calls == asked:
                asked += 1
                await phone.begin("book")
            sent.append(time.perf_counter())
            await phone.application.send(json.dumps({"type": "input.audio", "audio": "A" * 640}))
            await asyncio.sleep(0.02)

    speaking = asyncio.create_task(speak())
    while len(taken) < frames:
        match (await phone.provider.hear())["type"]:
            case "input.audio":
                taken.append(time.perf_counter() - sent.popleft())
            case "tool.result":
                calls += 1
                await phone.reply()
    await speaking
    return taken, calls


async def measure_audio(place: Path, frames: int = 300) -> None:
    gate = place / "slow"
    environment = slowly(place, gate, SLOW)
    for slow in (False, True) if environment is not None else (False,):
        async with providing() as providers:
            configured(place, providers.url, TOOLS)
            async with served(place, environment) as (_, at), Phone.through(f"{at}/v1/ws", providers) as phone:
                if slow:
                    gate.touch()
                taken, calls = await audio_delays(phone, frames)
                gate.unlink(missing_ok=True)
        disk = f"with {SLOW:g} s for each sync" if slow else "as it is"
        print(f"audio, a disk {disk}: {percentiles(taken)}   most {max(taken) * 1000:.2f} ms   {calls} calls")


async def measure_restart(place: Path) -> None:
    async with providing() as providers:
        configured(place, providers.url, TOOLS)
        async with served(place) as (process, at), Phone.through(f"{at}/v1/ws", providers) as phone:
            await phone.begin("hang")
            journal = open_sqlite(place / "calls.db", read_only=True)
            while not await journal.claims(states=[State.STARTED]):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.01)
            await journal.aclose()
            began = time.perf_counter()
            process.kill()
            await process.wait()
        async with served(place) as (process, _):
            listening = time.perf_counter() - began
            assert process.stderr is not None
            async for line in process.stderr:
                if b"left unfinished: tool hang" in line:
                    break
            print(
                f"from SIGKILL: {listening:.2f} s to sessions, {time.perf_counter() - began:.2f} s to the end of calls"
            )


async def measure_recovery(place: Path, calls: int = 1000) -> None:
    journal = open_journal(str(place / "recovery.db"), limit=30.0)
    names = [CallId(f"s{number % 100}", number, "c1") for number in range(calls)]
    await asyncio.gather(*(journal.claim(name, "book", ARGUMENTS, "dead") for name in names))
    began = time.perf_counter()
    assert len(await recover(journal, {}, "me", dead=lambda owner: True)) == calls
    print(f"recovery of {calls} calls of 100 sessions: {time.perf_counter() - began:.2f} s")
    await journal.aclose()


async def main(calls: int, place: Path, *, with_postgres: bool, with_sidecar: bool) -> None:
    print(f"bare write and sync of 4 KiB:             {percentiles(sync_times(place))}")
    path = place / "journal.db"

    def file_size() -> int:
        with sqlite3.connect(path) as database:
            pages = database.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            return int(pages.fetchone()[0])

    await measure("SQLite", str(path), calls, file_size)
    await measure_recovery(place)
    if with_sidecar:
        await measure_audio(place)
        await measure_restart(place)
    if with_postgres:
        try:
            with postgres(place / "postgres") as server:

                def table_size() -> int:
                    with psycopg.connect(server.url()) as database:
                        total = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'bridge\\_%'"
                        row = database.execute(f"{total} AND relkind = 'r'".encode()).fetchone()
                        return int(row[0]) if row else 0

                await measure("PostgreSQL", server.url(), calls, table_size)
        except NoPostgres as error:
            print(f"no PostgreSQL: {error}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=640)
    parser.add_argument("--sqlite", type=Path, default=None, metavar="DIRECTORY")
    parser.add_argument("--no-postgres", action="store_true")
    parser.add_argument("--no-sidecar", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.sqlite) as directory:
        work = main(
            chosen.calls, Path(directory), with_postgres=not chosen.no_postgres, with_sidecar=not chosen.no_sidecar
        )
        asyncio.run(work)
