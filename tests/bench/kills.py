"""Processes that serve calls are killed, again and again: nothing happens twice, and nothing owed is forgotten.

    python -m tests.bench.kills [--kills 2000 | --minutes 30] [--seed N] [--store sqlite|postgres] [--house K]

A *house* is a journal and the lives that use it, one after the other (`tests.e2e.victim`); a few houses are lived in at
once. Each life serves a provider of its own, which says what it was given, until it is killed: at one of the named
points, or at any moment. Then what it did is held against what the journal knows (`breaches`) and every session is
replayed. What it has left is mostly brought to an end here; else the next life does that, and may die of it. Often the
provider stays, and the next life goes on with the sessions of the one before, as may those after it.
A house is always the same for its seed, but for the moments at which the machine does this or that.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import psycopg

from bridge import Toolset
from bridge.core.events import Discard, DiscardedBy, Sent, ToolCall, ToolResults
from bridge.journal import UNFINISHED, Claimed, State
from bridge.journal.opening import open_journal
from bridge.journal.replay import Replayed, replay
from bridge.journal.stored import StoredJournal
from bridge.runner.leftovers import recover
from bridge.runner.runner import Finished, Outcome, Runner
from bridge.simulator import AwaitResults, BargeIn, Call, HangUp, Reply, Rules, Scenario, Simulator, Step
from bridge.simulator.ledger import Ended, Fate, Ledger
from bridge.tools import CallContext
from bridge.tools.encode import encode
from tests.bench.breaches import Answered, Did, answered, breaches, left_over
from tests.e2e.victim import PACE, POINTS, RECOVERING, TOOLS, Life, Notes, Trap, toolset
from tests.postgres import postgres

__all__ = ["House", "Nursery", "Tally", "kill_many", "places", "told"]

ROOT = Path(__file__).parents[2]
LIVES = 25
"""In a house."""
_PATIENCE = 1.5
"""Seconds that a life has to come to its point."""
_ENOUGH = 60.0
"""Seconds in which every session comes to its end that nobody kills."""
_RARE = ("while approval is asked for", "while the call is parked", *RECOVERING)


# ------------------------------------------------------------------------------------------------------------- a house


@dataclass(slots=True)
class Tally:
    """What has been seen."""

    kills: Counter[str] = field(default_factory=Counter)
    """By point."""
    reached: Counter[str] = field(default_factory=Counter)
    """Those where the process came to the point."""
    calls: int = 0
    effects: int = 0
    unfinished: int = 0
    found: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    """That providers were given."""
    again: int = 0
    """Calls that were announced again after a kill."""
    sessions: int = 0
    resumed: int = 0
    """Sessions that went on in another life, each time that they did."""
    refused: int = 0
    """Those that the provider did not go on with."""
    finished: int = 0
    """Sessions that went on so, and came to their end."""
    recovery: list[float] = field(default_factory=list)
    """Seconds from opening the journal to the end of the recovery."""
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for mine, theirs in ((self.kills, other.kills), (self.reached, other.reached), (self.found, other.found)):
            mine.update(theirs)
        self.calls, self.effects = self.calls + other.calls, self.effects + other.effects
        self.unfinished, self.sessions = self.unfinished + other.unfinished, self.sessions + other.sessions
        self.answers, self.again = self.answers + other.answers, self.again + other.again
        self.resumed, self.refused = self.resumed + other.resumed, self.refused + other.refused
        self.finished += other.finished
        self.recovery += other.recovery
        self.failures += other.failures


class Nursery:
    """Where lives come from."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Nursery]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.e2e.victim", cwd=ROOT, stdin=pipe, stdout=pipe
        )
        assert process.stdout is not None
        try:
            assert await process.stdout.readline() == b"open\n"
            yield cls(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def birth(self, life: Life) -> int:
        """The process number of a new life."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock:
            self._process.stdin.write(f"{life.line}\n".encode())
            await self._process.stdin.drain()
            return int(await self._process.stdout.readline())


async def death(pid: int, moment: float) -> bool:
    """Wait for the end of a process, and bring it about after so many seconds; true if it came by itself."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(watched, over.set)
    try:
        async with asyncio.timeout(moment):
            await over.wait()
        return True
    except TimeoutError:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGKILL)
        async with asyncio.timeout(10):
            await over.wait()
        return False
    finally:
        loop.remove_reader(watched)
        os.close(watched)


class House:
    """A journal, and those who use it one after the other."""

    def __init__(self, number: int, seed: int, address: str, directory: Path, nursery: Nursery) -> None:
        self.tally = Tally()
        self._name = f"--seed {seed} --house {number}"
        self._chance = random.Random(f"{seed} {number}")
        self._address = address
        self._directory = directory
        self._nursery = nursery
        self._provider: Simulator | None = None
        self._provider_leaves = AsyncExitStack()
        self._replayed: set[tuple[str, int]] = set()
        """Sessions, with the number of their entries."""
        self._before: dict[str, Answered] = {}
        self._resume: tuple[Mapping[str, str], ...] = ()
        """Sessions that the next life is to go on with."""
        self._unsettled = False

    async def live_on(self, lives: int) -> None:
        async with self._provider_leaves:
            for number in range(lives):
                life, moment = self._drawn(number)
                last = number == lives - 1
                if last and life.resume:
                    life = replace(life, point="")
                    await self._lived(life, partial(self._death_at_the_end, life=life))
                    self.tally.failures += [f"{self._name}: {line}" for line in self._stuck(life)]
                else:
                    await self._lived(life, partial(death, moment=moment))
                self._resume = () if last or life.relay or self._chance.random() < 0.4 else self._resumable()
                settle = last or (not self._resume and self._chance.random() < 0.7)
                await self._examine(life, settle=settle)
            self._provider_left()

    def _drawn(self, number: int) -> tuple[Life, float]:
        """The next life, and after how many seconds it is killed from outside if it does not do so by itself."""
        chance, relay = self._chance, self._chance.random() < 0.4 and not self._resume
        points = [*(POINTS * 3), *(RECOVERING * 4 if self._unsettled else ())]
        point = chance.choice([each for each in points if not (relay and each == "during the send")])
        times = 1 if point in RECOVERING else chance.randint(1, 3 if point in _RARE else 12)
        moment = chance.random() * 0.6
        if chance.random() < 0.3:
            point = ""
        life = Life(
            address=self._address,
            owner=f"life {number}",
            directory=str(self._directory),
            url="",
            relay=relay,
            recover=self._unsettled,
            resume=self._resume,
            point=point,
            number=times,
        )
        return life, _PATIENCE if point else moment

    def _script(self) -> Iterator[Step]:
        """Up to forty calls, and now and then somebody who cuts in."""
        for turn in range(16):
            tools = self._chance.choices(TOOLS, k=self._chance.randint(1, 3))
            yield Reply("One moment.", tuple(Call(tool, {"number": turn}) for tool in tools), 0.4)
            if self._chance.random() < 0.15:
                yield BargeIn("Stop!", after=0.5)
            elif self._chance.random() < 0.7:
                yield AwaitResults()
        yield AwaitResults()
        yield HangUp()

    async def _lived(self, life: Life, dies: Callable[[int], Awaitable[bool]]) -> None:
        """A life from its beginning to its end."""
        if self._provider is None or not life.resume:
            self._provider_left()
            await self._provider_leaves.aclose()
            scenario = Scenario("", "", tuple(self._script()), rules=Rules(resume_grace=math.inf))
            self._provider = await self._provider_leaves.enter_async_context(Simulator(scenario, pace=PACE))
        pid = await self._nursery.birth(replace(life, url=self._provider.url))
        reached = await dies(pid)
        self.tally.kills[life.point or "at any moment"] += 1
        self.tally.reached[life.point or "at any moment"] += reached or not life.point
        async with asyncio.timeout(10):
            while self._provider._server.handler_tasks:  # noqa: ASYNC110 - what is in the network is read to its end
                await asyncio.sleep(0.002)

    async def _death_at_the_end(self, pid: int, life: Life) -> bool:
        """The same once the sessions that went on have come to their end, which they must."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_ENOUGH):
                while [*self._stuck(life)]:  # noqa: ASYNC110 - as below
                    await asyncio.sleep(0.01)
        return await death(pid, 0)

    def _stuck(self, life: Life) -> Iterator[str]:
        """The sessions that life went on with and whose agent waits for something."""
        going_on = {each["provider_session_id"] for each in life.resume if each["session"] not in self._did.refused}
        for ledger in self._heard:
            if ledger.session_id in going_on and ledger.ended is Ended.OPEN:
                open_calls = [call.call_id for call in ledger.calls if call.fate is Fate.OPEN]
                session, latest = self._did.serves[ledger.session_id], ledger.timeline[-8:]
                yield f"session {session} went on and is stuck; open: {open_calls}; latest: {latest}"

    @property
    def _heard(self) -> list[Ledger]:
        """What the provider of the latest life has heard, of that one and those before it."""
        return self._provider.ledgers if self._provider is not None else []

    def _provider_left(self) -> None:
        """Count what it has heard; nobody goes on with its sessions any more."""
        self.tally.answers += sum(len(ledger.answers) for ledger in self._heard)
        self.tally.calls += sum(len(ledger.calls) for ledger in self._heard)
        self.tally.finished += sum(each.resumes > 0 and each.ended is Ended.BY_PROVIDER for each in self._heard)
        self._provider = None

    def _resumable(self) -> tuple[Mapping[str, str], ...]:
        """What it takes to go on with the sessions that the provider has not ended."""
        open_now = {ledger.session_id for ledger in self._heard if ledger.ended is Ended.OPEN}
        latest = {each["session"]: each for each in self._did.resumable}
        return tuple(each for each in latest.values() if each["provider_session_id"] in open_now)

    async def _examine(self, life: Life, *, settle: bool) -> None:
        journal, receipts = open_journal(self._address), not life.relay
        try:
            claims = await journal.claims(states=tuple(State))
            wrong = [*breaches(claims, self._did, self._heard, receipts=receipts, before=self._before)]
            self._before |= answered(claims, self._did, self._heard, await self._recorded(journal))
            self.tally.unfinished += sum(each.state in UNFINISHED for each in claims if each.owner == life.owner)
            wrong += [line async for line in self._differences(journal)]
            if settle:
                wrong += [line async for line in self._asked_again(journal, claims)]
                before = time.perf_counter()
                recovered = await recover(journal, self._tools(), f"after {life.owner}", dead=lambda owner: True)
                self.tally.recovery.append(time.perf_counter() - before)
                self.tally.found.update(each.found.value for each in recovered)
                claims = await journal.claims(states=tuple(State))
                wrong += [*breaches(claims, self._did, (), receipts=receipts, before=self._before)]
                wrong += left_over(claims, self._did, recovered)
        finally:
            await journal.aclose()
        self._unsettled = not settle
        self.tally.effects = sum(self._did.effects.values())
        self.tally.resumed, self.tally.refused = len(self._did.resumed), len(self._did.refused)
        where = f"{self._name}, {life.owner}, {life.point or 'at any moment'}{', relay' if life.relay else ''}"
        self.tally.failures += [f"{where}: {line}" for line in wrong]

    async def _differences(self, journal: StoredJournal) -> AsyncIterator[str]:
        """Sessions whose replay is not the same, each looked at whenever it has gone on."""
        for stored in await journal.sessions():
            if (stored.session, stored.entries) not in self._replayed:
                self.tally.sessions += all(stored.session != known for known, _ in self._replayed)
                self._replayed.add((stored.session, stored.entries))
                seen = replay([each async for each in journal.read(stored.session)])
                if seen.outcome is not Replayed.SAME:
                    yield f"session {stored.session}: {seen.outcome.value} at {seen.at}: {seen.why}"

    async def _recorded(self, journal: StoredJournal) -> set[str]:
        """Names of the calls of which the entries say that their results have been sent, or will never be."""
        found: set[str] = set()
        for session in {
            self._did.serves[each.session_id] for each in self._heard if each.session_id in self._did.serves
        }:
            interim: set[str] = set()
            async for _, entry in journal.read(session):
                match entry.fact:
                    case ToolResults(results):
                        interim |= {each.call_id for each in results if each.interim}
                    case Sent(keys):
                        found |= {f"{session}.{key.call_id}" for key in keys if key.call_id not in interim}
                        interim -= {key.call_id for key in keys}
                    case Discard(key, DiscardedBy.INTERRUPTION):
                        found.add(f"{session}.{key.call_id}")
        return found

    async def _asked_again(self, journal: StoredJournal, claims: Sequence[Claimed]) -> AsyncIterator[str]:
        """The provider announces calls again to whoever goes on, such as after a resume of its session."""
        serves = self._did.serves
        asked = {(serves.get(each.session_id), call.call_id): call for each in self._heard for call in each.calls}
        left = [each for each in claims if each.state in UNFINISHED and (each.call.session, each.call.call_id) in asked]
        for each in [each for each in left if each.tool != "refund"][::2]:
            runner = Runner(journal=journal, owner=f"asked of {each.owner}")
            tools = self._tools()
            over: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
            context = CallContext(session_id=each.call.session, key=each.call.key, tool=each.tool)
            call = ToolCall(each.call.call_id, each.tool, encode(asked[each.call.session, each.call.call_id].arguments))
            runner.session().start(each.call.key, call, tools[each.tool], tools, context, over.set_result)
            outcome = (await over).outcome
            self.tally.again += 1
            again = Outcome.OK if each.tool == "note" else Outcome.ERROR
            if outcome is not (again if each.state is State.STARTED else Outcome.REPLAYED):
                yield f"{each.tool} {context.ticket} was asked for again, and ended as {outcome.value}"
            await runner.aclose(1)
            runner.close()

    @property
    def _did(self) -> Did:
        path = self._directory / "log"
        return Did.of(path.read_text() if path.exists() else "")

    def _tools(self) -> Toolset:
        return toolset(Notes(self._directory / "log"), Trap())


# ------------------------------------------------------------------------------------------------------ many of them


@contextmanager
def places(store: str, directory: Path) -> Iterator[Callable[[str], str]]:
    """What makes the address of an empty journal from a name. Raises `NoPostgres`."""
    if store == "sqlite":
        yield lambda name: str(directory / name / "calls.db")
        return
    with postgres(directory / "postgres", "fsync=off") as server:

        def made(name: str) -> str:
            with psycopg.connect(server.url(), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}".encode())
            return server.url(name)

        yield made


async def kill_many(
    kills: int,
    seed: int,
    place: Callable[[str], str],
    directory: Path,
    *,
    until: float = math.inf,
    first: int = 0,
    at_once: int = 4,
    lives: int = LIVES,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Houses, a few at once, until so many have been killed, or until this time of the monotonic clock."""
    total = Tally()
    numbers = iter(range(first, first + math.ceil(kills / lives)))

    async def street(nursery: Nursery) -> None:
        for number in numbers:
            if time.monotonic() >= until:
                return
            home = directory / f"house{number}"
            home.mkdir()
            house = House(number, seed, await asyncio.to_thread(place, home.name), home, nursery)
            await house.live_on(lives)
            total.add(house.tally)
            progress(total)
            shutil.rmtree(home)

    async with Nursery.open() as nursery, asyncio.TaskGroup() as streets:
        for _ in range(at_once):
            streets.create_task(street(nursery))
    return total


def told(tally: Tally, seconds: float) -> str:
    """The table."""
    kills = sum(tally.kills.values())
    rows = [f"{point:50} {tally.kills[point]:6} {tally.reached[point]:6}" for point in sorted(tally.kills)]
    found = ", ".join(f"{times} {what}" for what, times in sorted(tally.found.items()))
    slowest = sorted(tally.recovery)
    return "\n".join(
        [
            f"{'killed':50} {'times':>6} {'there':>6}",
            *rows,
            f"{kills} kills in {seconds:.0f} s ({kills / seconds:.1f} a second): {tally.calls} calls, "
            f"{tally.effects} effects, {tally.sessions} sessions replayed",
            f"{tally.answers} answers; announced again: {tally.again}",
            f"sessions that went on in another life: {tally.resumed} times, refused {tally.refused}; "
            f"{tally.finished} of them came to their end",
            f"left unfinished: {tally.unfinished}; brought to an end here: {found}",
            f"recovery: median {slowest[len(slowest) // 2] * 1000:.1f} ms, longest {slowest[-1] * 1000:.1f} ms",
            f"{len(tally.failures)} failures",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--house", type=int, help="only this one")
    chosen = parser.parse_args()
    kills = LIVES if chosen.house is not None else 10**9 if chosen.minutes < math.inf else chosen.kills
    print(f"seed {chosen.seed}, {chosen.store}", flush=True)
    logging.disable(logging.CRITICAL)
    began = time.monotonic()

    shown = 0

    def progress(tally: Tally) -> None:
        nonlocal shown
        for each in tally.failures[shown:]:
            print(f"FAILED {each}", file=sys.stderr)
        shown = len(tally.failures)
        print(f"{sum(tally.kills.values())} kills, {len(tally.failures)} failures", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as directory, places(chosen.store, Path(directory)) as place:
        until = began + chosen.minutes * 60
        work = kill_many(
            kills, chosen.seed, place, Path(directory), until=until, first=chosen.house or 0, progress=progress
        )
        tally = asyncio.run(work)
    print(told(tally, time.monotonic() - began))
    return bool(tally.failures)


if __name__ == "__main__":
    sys.exit(main())
