"""The parent's side: starts the workers, replaces those that die, and asks them what the admin port is asked."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum
from itertools import count
from typing import Any, Final, Self

import anyio
from anyio.from_thread import run as in_loop

from ..admin import Feed, Verdicts, merge
from ..metrics import Reading, Source, page
from .channel import Channel

__all__ = ["Command", "Fleet", "pause_after"]

logger = logging.getLogger("bridge.workers")

Command = Callable[[int, int], Sequence[str]]
"""The command line of the worker with this number, to which this file descriptor is passed: its end of the pair."""

_READY_SECONDS: Final = 0.8
"""Probes seldom wait for more than a second."""
_PAGE_SECONDS: Final = 5.0
_APPROVALS_KEPT: Final = 1000
_RELOAD_SECONDS: Final = 60.0
_EXIT_SECONDS: Final = 5.0
_LAST_WORDS_SECONDS: Final = 1.0

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_GROWN_UP: Final = 60.0
"""Seconds after which the death of a worker has nothing to do with its start."""


def pause_after(pause: float, lived: float) -> float:
    """Seconds until a worker that lived so long is replaced. `pause`: what it was the time before; 0 at first."""
    return _FIRST_PAUSE if lived >= _GROWN_UP or not pause else min(2 * pause, _LONGEST_PAUSE)


class _Following(Enum):
    """Do the workers tell what happens? That costs something, so not before somebody wants to know."""

    NOT_YET = "not yet"
    ASKED = "asked"


class Fleet:
    """The workers; to the admin port, what a relay and its metrics are.

    `end_seconds`: what a worker may take to end all its sessions at once. `clock` tells how long one has lived.
    """

    def __init__(
        self, command: Command, size: int, *, end_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.fault = ""
        """Why the whole start failed."""
        self._command = command
        self._end_seconds = end_seconds
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._restarts = dict.fromkeys(range(1, size + 1), 0)
        self._awaited = set(self._restarts)
        self._sources: list[Source] = []
        self._facts = Feed()
        self._following = _Following.NOT_YET
        self._attending: set[Feed] = set()
        self._settled, self._stopping, self._over = anyio.Event(), anyio.Event(), anyio.Event()

    async def keep(self) -> None:
        """Start the workers, and replace those that die, until they are drained or stopped and have ended."""
        async with anyio.create_task_group() as group:
            for number in self._restarts:
                group.start_soon(self._keep, number)
        self._over.set()

    async def started(self) -> str:
        """Wait until all have started: empty. Or why one could not."""
        await self._settled.wait()
        return self.fault

    async def stop(self) -> None:
        """End the workers, which are expected to be drained."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.release()
        with anyio.move_on_after(_EXIT_SECONDS):
            await self._over.wait()
        for worker in self._workers.values():
            logger.warning("worker %d does not end, and is killed; a tool may hold it up", worker.number)
            worker.process.kill()
        await self._over.wait()

    # ------------------------------------------------------------------------------------------- for the admin port

    @property
    def ready(self) -> Awaitable[str]:
        """Why no worker takes sessions; empty if one does."""
        return self._ready()

    @property
    def sessions(self) -> Awaitable[list[Any]]:
        """A mapping for each session, with its worker in it."""
        return self._sessions()

    async def drain(self, seconds: float) -> int:
        """As `Relay.drain`, for all. A worker that does not say how many it had to end counts as one session."""
        self._stopping.set()
        asked = [worker for worker in self._workers.values() if worker.life is _Life.UP]
        left = await self._ask_all("drain", seconds + self._end_seconds, seconds=seconds)
        for worker in asked:
            if worker.number not in left:
                left[worker.number] = await self._left_in_silence(worker)
        return sum(left[worker.number] for worker in asked)

    async def _left_in_silence(self, worker: _Worker) -> int:
        """Who signals all processes, as systemd may, has workers drain by themselves: then the exit code tells."""
        if worker.life is _Life.LEAVING:
            with anyio.move_on_after(_EXIT_SECONDS):
                if not await worker.process.wait():
                    return 0
        logger.error("worker %d did not say how its sessions ended; take them for lost", worker.number)
        return 1

    async def reload(self) -> None:
        """Have all workers read their settings again; each logs what came of it."""
        await self._ask_all("reload", _RELOAD_SECONDS)

    def render(self) -> bytes:
        """The metrics of all workers, each sample with the label `worker`. Called in a thread of `anyio`."""
        pages = in_loop(self._ask_all, "metrics", _PAGE_SECONDS)
        own = page([reading for source in self._sources for reading in source()])
        workers = {str(n): pages.get(n, "").encode() + _restarted(times) for n, times in self._restarts.items()}
        return merge({**workers, "parent": own})

    def add_source(self, source: Source) -> None:
        """Show these numbers of this process, too, with `parent` for the worker."""
        self._sources.append(source)

    async def _ready(self) -> str:
        if self._stopping.is_set():
            return "draining"
        said = await self._ask_all("ready", _READY_SECONDS)
        if "" in said.values():
            return ""
        return "; ".join(f"worker {number}: {said.get(number) or self._silence(number)}" for number in self._restarts)

    def _silence(self, number: int) -> str:
        worker = self._workers.get(number)
        if worker is None:
            return "not running"
        return "does not answer" if worker.life is _Life.UP else worker.life.value

    async def _sessions(self) -> list[Any]:
        return _numbered(await self._ask_all("sessions", _PAGE_SECONDS))

    async def _ask_all(self, question: str, within: float, **more: Any) -> dict[int, Any]:
        """What the workers answer that are up, by their numbers, without those that do not answer in time."""
        answers: dict[int, Any] = {}

        async def ask(worker: _Worker) -> None:
            with suppress(TimeoutError, ConnectionError):
                answers[worker.number] = await worker.ask({"ask": question, **more}, within)

        async with anyio.create_task_group() as group:
            for worker in self._workers.values():
                if worker.life is _Life.UP:
                    group.start_soon(ask, worker)
        return answers

    async def calls(self, session: str | None = None) -> list[Any]:
        """The calls of a session, or those that wait for somebody outside, each with its worker in it, or with one that
        knows of it.
        """
        return _once("key", _numbered(await self._ask_all("calls", _PAGE_SECONDS, session=session)))

    async def pending(self) -> list[Any]:
        """The calls that wait to be approved, each with its worker in it, or with one that knows of it."""
        return _once("id", _numbered(await self._ask_all("pending", _PAGE_SECONDS)))

    async def settle(self, key: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the worker says that knows the call."""
        return await self._ask_knowing("settle", key=key, result=result)

    async def decide(self, request_id: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the worker says that knows the request."""
        return await self._ask_knowing("decide", request_id=request_id, decision=decision)

    async def follow(self) -> Feed:
        """What happens in all workers, from the first time that this is asked for."""
        if self._following is _Following.NOT_YET:
            self._following = _Following.ASKED
            await self._ask_all("follow", _PAGE_SECONDS)
        return self._facts

    @asynccontextmanager
    async def attend(self) -> AsyncIterator[Feed]:
        """While this is entered, somebody hears of the approvals of all workers who can decide them."""
        feed = Feed(_APPROVALS_KEPT)
        self._attending.add(feed)
        try:
            if len(self._attending) == 1:
                await self._ask_all("attend", _PAGE_SECONDS)
            yield feed
        finally:
            self._attending.discard(feed)
            if not self._attending:
                for worker in self._workers.values():
                    worker.tell("detach")

    def close(self) -> None:
        """Whoever reads along comes to the end."""
        for feed in (self._facts, *self._attending):
            feed.close()

    async def _ask_knowing(self, question: str, **more: Any) -> Mapping[str, Any]:
        """The answer of whoever knows what this is about; nobody does only if all say so."""
        asked = sum(worker.life is _Life.UP for worker in self._workers.values())
        said = await self._ask_all(question, _PAGE_SECONDS, **more)
        if len(said) < asked:
            said[0] = {"verdict": Verdicts.UNSURE.value}
        said.setdefault(0, {"verdict": Verdicts.UNKNOWN.value})
        order = list(Verdicts)
        best: Mapping[str, Any] = min(said.values(), key=lambda each: order.index(Verdicts(each["verdict"])))
        return best

    def _hear(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        """A worker tells what happens."""
        data = {"worker": worker.number, **message["data"]}
        for feed in (self._facts,) if message["of"] == "follow" else self._attending:
            feed.put(message["event"], data)

    # ------------------------------------------------------------------------------------------- lives of a worker

    async def _keep(self, number: int) -> None:
        pause = 0.0
        while True:
            began = self._clock()
            how = await self._live(number)
            if self._stopping.is_set():
                return
            if number in self._awaited:
                return self._fail(f"worker {number} {how}")
            pause = pause_after(pause, self._clock() - began)
            self._restarts[number] += 1
            logger.error("worker %d %s; any sessions it had are lost, another starts in %g s", number, how, pause)
            with anyio.move_on_after(pause):
                return await self._stopping.wait()

    async def _live(self, number: int) -> str:
        """One process from its start to its end; how that came."""
        try:
            worker = await _Worker.start(number, self._command)
        except OSError as fault:
            return f"could not be started ({fault.strerror})"
        self._workers[number] = worker
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(worker.listen, self._has_started, self._hear)
                code = await worker.process.wait()
                # What it said last is still read, but not for ever: what a tool left behind may hold the pair open.
                group.cancel_scope.deadline = anyio.current_time() + _LAST_WORDS_SECONDS
        finally:
            del self._workers[number]
            self._facts.put("lost", {"worker": number, "error": "the worker has ended, and its sessions with it"})
        return f"could not start: {worker.failed}" if worker.failed else _ended(code)

    def _has_started(self, worker: _Worker) -> None:
        logger.info("worker %d has started: process %d", worker.number, worker.process.pid)
        if self._following is _Following.ASKED:
            worker.tell("follow")
        if self._attending:
            worker.tell("attend")
        self._awaited.discard(worker.number)
        if not self._awaited:
            self._settled.set()

    def _fail(self, fault: str) -> None:
        self.fault = fault
        self._stopping.set()
        self._settled.set()


def _once(name: str, found: Iterable[Any]) -> list[Any]:
    """Each thing with this name once; as the worker says that has it, if one does."""
    known: dict[str, Any] = {}
    for each in found:
        if each[name] not in known or not each.get("elsewhere"):
            known[each[name]] = each
    return list(known.values())


def _numbered(said: Mapping[int, Any]) -> list[Any]:
    """What all have listed, each with its worker in it."""
    return [{"worker": number, **each} for number in sorted(said) for each in said[number]]


def _restarted(times: int) -> bytes:
    return page([Reading("bridge_worker_restarts_total", (), times)])


def _ended(code: int) -> str:
    """What a process's return code says, and what to look for."""
    if code >= 0:
        return f"ended with exit code {code} (its last lines in the log say why)"
    killed = -code == signal.SIGKILL
    hint = "look for 'out of memory' in the kernel's log" if killed else "PYTHONFAULTHANDLER=1 shows where"
    return f"was ended by signal {-code}, {signal.strsignal(-code)} (if nobody sent it, {hint})"


# ---------------------------------------------------------------------------------------------------------- one worker


class _Life(Enum):
    STARTING = "starting"
    UP = "up"
    LEAVING = "leaving"
    """It says nothing any more."""


class _Worker:
    """One process, as its parent sees it."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, channel: Channel) -> None:
        self.number = number
        self.process = process
        self.life = _Life.STARTING
        self.failed = ""
        """Why it could not start, in its own words."""
        self._channel = channel
        self._ids = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    @classmethod
    async def start(cls, number: int, command: Command) -> Self:
        """Begin a process. Raises `OSError` if there can be none now."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command(number, theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # Ctrl-C is for the parent
                )
            except BaseException:
                ours.close()
                raise
        return cls(number, process, await Channel.over(ours))

    async def listen(self, started: Callable[[Self], None], hear: Callable[[Self, Mapping[str, Any]], None]) -> None:
        """Take what it says until it says no more. `started` hears that it takes sessions, `hear` what happens."""
        try:
            while (message := await self._channel.receive()) is not None:
                match message:
                    case {"id": number, "said": said}:
                        answer = self._asked.pop(number, None)
                        if answer is not None and not answer.done():  # it may have been given up just now
                            answer.set_result(said)
                    case {"event": _}:
                        hear(self, message)
                    case {"started": _}:
                        self.life = _Life.UP
                        started(self)
                    case {"failed": why}:
                        self.failed = why
        finally:
            self.life = _Life.LEAVING
            self._channel.close()
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError())

    async def ask(self, question: dict[str, Any], within: float) -> Any:
        """Its answer. Raises `TimeoutError` if there is none in so many seconds, `ConnectionError` if it has gone."""
        number = next(self._ids)
        self._channel.send({"id": number, **question})
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            with anyio.fail_after(within):
                return await answer
        finally:
            self._asked.pop(number, None)

    def tell(self, what: str) -> None:
        """Have it do something. Its answer is not waited for."""
        with suppress(ConnectionError):
            self._channel.send({"id": next(self._ids), "ask": what})

    def release(self) -> None:
        """Let it end."""
        self._channel.close()
        if self.life is _Life.STARTING:
            self.process.kill()
