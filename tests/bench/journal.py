"""What it costs to make a call durable: claim and outcome, with 1 and 32 callers; entries per second; bytes per call.

    python tests/bench/journal.py [--calls 640] [--sqlite DIRECTORY] [--no-postgres]

The file is on the disk of `--sqlite` (a temporary directory by default), and PostgreSQL, started for this, syncs its
own disk too. A bare write and sync of 4 KiB is timed beside them: no durable store can be faster than its disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
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
from tests.postgres import NoPostgres, postgres

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
    entries, seconds = await entry_rate(journal, 100)
    print(f"{name:10} entries, 32 writers: {entries / seconds:,.0f} a second")
    await settle_all(journal)
    print(f"{name:10} entries of 1,000 calls: {(size() - before) / 1024:,.0f} KiB")
    await journal.aclose()


async def settle_all(journal: Journal) -> None:
    await journal.settle([each.call for each in await journal.claims()], State.SENT)


async def main(calls: int, place: Path, *, with_postgres: bool) -> None:
    print(f"bare write and sync of 4 KiB:             {percentiles(sync_times(place))}")
    path = place / "journal.db"

    def file_size() -> int:
        with sqlite3.connect(path) as database:
            pages = database.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
            return int(pages.fetchone()[0])

    await measure("SQLite", str(path), calls, file_size)
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=640)
    parser.add_argument("--sqlite", type=Path, default=None, metavar="DIRECTORY")
    parser.add_argument("--no-postgres", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.sqlite) as directory:
        asyncio.run(main(chosen.calls, Path(directory), with_postgres=not chosen.no_postgres))
