"""The calls of one session, each to its result, whatever happens: every started call is reported exactly once.

A call passes through the same stages whatever its tool is made of: the loop breaker, its arguments checked, the same
call made before looked for, the guards, the approval of a person where one is needed, a slot (at once, or from a
bounded queue), the tool itself within its time, the result encoded. Whatever goes wrong on the way is an exception, and
becomes an error result in one place. It has two texts: a sentence for the model, and for the log where it happened,
without any value that was passed or said.

Where there is a journal, a tool that changes something runs only once its claim is durable, and its outcome is durable
before anybody hears of it (`Durable`).

Three limits, from the inside out: threads for plain functions (`Threads`), calls of all sessions (`Runner`), calls of
one session (`Calls`). Waiting for any of them counts towards the tool's queue timeout, not towards its timeout.

A call that takes longer than its tool wants the agent to wait is *parked*: its session gets an interim result, and its
place in that session back, while the call goes on within the same limits of time. It keeps its place among the calls
of the process for as long as the tool runs; one that waits to be approved, or was handed to something outside, has
none. A parked call may outlive its session, and then only the watchers hear of its end.

A run is told to stop by cancelling its task. The answer does not wait for that: a call whose time is over is reported
at once, and a tool that ignores cancellation only keeps its slot. All sessions of a runner live on one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from ..core.events import CallKey, ToolCall
from ..errors import SessionClosed, ToolBusy, ToolNotFound, ToolUnavailable
from ..tools.encode import encode
from ..tools.redaction import shown
from ..tools.tool import CallContext, Parked, Tool
from .approvals import ApprovalDenied, Approvals, rule_of
from .durable import Durable, Replayed
from .guards import Guards, Health
from .limits import LoopBreaker, Slots, Threads, take_all
from .parking import Answer, Parking
from .recordings import Recordings, to_its_end
from .replays import Replays
from .run import (
    CANCELLED,
    NOT_INVOKED,
    WELL,
    Finished,
    Interim,
    Outcome,
    Run,
    Stage,
    busy,
    explained,
    failure,
    health_of,
    identity,
    interim,
    marked,
    no_such_tool,
    success,
    trace,
)
from .steps import watched
from .tracing import span

__all__ = ["Calls", "Process", "Shared"]

logger = logging.getLogger("bridge.tools")

_AS_USUAL = (*WELL, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class Shared:
    """What the calls of a session, or of a process, have in common."""

    slots: Slots
    tool_slots: dict[tuple[str, int], Slots]
    """By a tool's name and its own limit."""
    replays: Replays

    def places(self, name: str, limit: int | None) -> tuple[Slots, ...]:
        """What a run of this tool has to take a place of."""
        if limit is None:
            return (self.slots,)
        return (self.tool_slots.setdefault((name, limit), Slots(limit)), self.slots)


@dataclass(slots=True)
class Process:
    """What the calls of a process have in common besides."""

    shared: Shared
    guards: Guards
    approvals: Approvals
    parking: Parking
    threads: Threads
    watchers: tuple[Callable[[Finished], None], ...]
    clock: Callable[[], float]
    durable: Durable | None = None
    outliving: set[Calls] = field(default_factory=set)
    """Those of sessions that have ended, while a parked call goes on."""
    parked: int = 0


class Calls:
    """The calls of one session. Made by `Runner.session`."""

    __slots__ = ("_breaker", "_clock", "_closed", "_live", "_max_queue", "_own", "_process", "_queued", "_recordings")

    def __init__(self, process: Process, own: Shared, breaker: LoopBreaker, max_queue: int) -> None:
        self._process = process
        self._own = own
        self._breaker = breaker
        self._max_queue = max_queue
        self._clock = process.clock
        self._queued = 0
        self._live: dict[CallKey, Run] = {}
        self._recordings = Recordings(process.durable)
        self._closed = False

    @property
    def running(self) -> int:
        """Calls that have been started and whose tasks have not ended."""
        return len(self._live)

    def start(
        self,
        key: CallKey,
        call: ToolCall,
        tool: Tool | None,
        known: Iterable[str],
        context: CallContext,
        report: Callable[[Finished], None],
        *,
        interim: Interim | None = None,
    ) -> None:
        """Begin a call. `tool` is None if no tool has its name; `known` are the names that the model may use instead.

        `report` is called once, later, from this event loop; before that `interim`, once, if the call is parked. A key
        that is live already is not started again. Raises `SessionClosed` after `aclose`.
        """
        if self._closed:
            raise SessionClosed("the session has ended: no call can be started")
        if key in self._live:
            return
        self._live[key] = run = Run(key, call, tool, context, report, interim, self._clock())
        loop = asyncio.get_running_loop()
        if tool is not None and tool.answer_within is not None:
            run.patience = loop.call_later(tool.answer_within, self._lose_patience, run)
        run.task = loop.create_task(self._perform(run, known))

    def discard(self, key: CallKey) -> None:
        """The result is not wanted. What was not invoked never will be; what runs ends early if its tool says so."""
        run = self._live.get(key)
        if run is None:
            return
        run.interim = None
        if run.stage in NOT_INVOKED or (run.tool and run.tool.on_interrupt == "cancel"):
            _stop(run)

    def aside(self, function: Callable[[], str], tell: Callable[[str], None]) -> None:
        """Run a tool's own quick function, and tell what came of it."""
        tell(function())

    async def aclose(self, timeout: float) -> None:
        """Cancel what is left and wait up to `timeout` seconds for it. What goes on all the same is abandoned.

        A parked call whose tool says so is left to finish, within its time; only watchers hear of that.
        """
        self._closed = True
        kept = [run for run in self._live.values() if _outlives(run)]
        if kept:
            self._process.outliving.add(self)
        await self._cancel([run for run in self._live.values() if run not in kept], timeout)

    async def cancel(self, timeout: float) -> None:
        """Cancel those, too, that were left to finish. What somebody outside works on is left to the next process."""
        for run in self._live.values():
            if run.stage is Stage.LEFT and run.outlives:
                self._recordings.forget(run.key)
        await self._cancel(list(self._live.values()), timeout)

    async def _cancel(self, runs: Sequence[Run], timeout: float) -> None:
        for run in runs:
            _stop(run)
        if runs:
            await asyncio.wait([run.task for run in runs], timeout=timeout)
        for run in runs:
            if run.key in self._live:
                self._abandon(run)
        await self._recordings.written(timeout)

    def _abandon(self, run: Run) -> None:
        if run.key not in self._recordings:  # else it is the journal that is slow, not the tool
            logger.warning("tool %s ignores its cancellation and is abandoned, in session %s", run.name, run.session)
        self._answer_early(run, failure(run, self._clock(), Outcome.CANCELLED, CANCELLED))

    async def _perform(self, run: Run, known: Iterable[str]) -> None:
        """The task of a call. It swallows its cancellation, since it ends there anyway."""
        with span(run.name, run.call, run.context) as notes:
            finished = await self._finished(run, known)
            # Its answer may have been another: then this came too late.
            outcome = run.answer or finished.outcome
            notes.outcome, notes.failed, notes.arguments = outcome.value, outcome not in WELL, run.shown
        if recording := self._recordings.outcome(run.key, finished.result, finished.outcome.value):
            await to_its_end(recording)
        self._settle(run, finished)

    async def _finished(self, run: Run, known: Iterable[str]) -> Finished:
        try:
            return success(run, await self._output(run, known), self._clock())
        except Replayed as before:
            result = replace(before.result, call_id=run.call.call_id, echo=run.call.echo)
            return Finished(run.key, run.name, result, Outcome.REPLAYED, self._clock() - run.began)
        except asyncio.CancelledError as error:
            if run.stop_asked:
                return failure(run, self._clock(), Outcome.CANCELLED, CANCELLED)
            return failure(run, self._clock(), Outcome.ERROR, "the tool was aborted", trace(error))
        except BaseException as error:  # a tool that calls sys.exit() must not take the process along
            return explained(run, self._clock(), error)

    # ------------------------------------------------------------------------------------------- the way of a call

    async def _output(self, run: Run, known: Iterable[str]) -> str:
        """From start to end, as long as nothing goes wrong."""
        if run.stop_asked:
            raise asyncio.CancelledError
        run.stage = Stage.WAITING
        self._breaker.count(run.call, run.began)
        if (tool := run.tool) is None:
            raise ToolNotFound(no_such_tool(known))
        arguments = tool.arguments(run.call.arguments, run.context)
        run.shown = shown(arguments, tool.log_arguments, tool.redact) if tool.log_arguments else ""
        if tool.dedupe is None:
            return await self._result(run, tool, arguments)
        replays = (self._own if tool.dedupe.scope == "session" else self._process.shared).replays
        run.stage = Stage.REPEATED
        self._limit(run, tool.timeout)
        same = identity(run.name, arguments, tool.dedupe.fields)
        output, before = await replays.once(same, tool.dedupe.seconds, lambda: self._result(run, tool, arguments))
        self._limit(run, None)
        if before:
            run.outcome = Outcome.REPLAYED
            return marked(output)
        return output

    async def _result(self, run: Run, tool: Tool, arguments: dict[str, Any]) -> str:
        """Run the tool, as soon as it may and there is room."""
        run.stage = Stage.WAITING
        self._process.guards.admit(tool)
        health = Health.UNKNOWN
        try:
            await self._approved(run, tool, arguments)
            await self._place(run, tool)
            try:
                await self._recordings.claim(run.context, tool, run.call.arguments)
                if run.stop_asked:
                    raise asyncio.CancelledError
                value = await self._invoke(run, tool, arguments)
            finally:
                self._limit(run, None)
                self._give_all_back(run)
            health = Health.WELL
        except BaseException as error:
            health = Health.UNKNOWN if run.stage in NOT_INVOKED else health_of(run, error)
            raise
        finally:
            self._judge(run, health)
        return value.output if isinstance(value, Answer) else encode(value, tool.result_limit)

    async def _approved(self, run: Run, tool: Tool, arguments: dict[str, Any]) -> None:
        """Wait for whoever has to approve it. Raises `ApprovalDenied` if nobody does."""
        match rule_of(tool, arguments, run.context):
            case "always_allow":
                return
            case "always_deny":
                raise ApprovalDenied(f"{run.name} is not allowed, and was not run")
        run.stage = Stage.ASKING
        self._limit(run, None)
        await self._process.approvals.ask(tool, arguments, run.context)
        run.stage = Stage.WAITING
        if run.name in self._process.guards.off:  # somebody has switched it off meanwhile
            raise ToolUnavailable(f"{run.name} is not available now")

    async def _place(self, run: Run, tool: Tool) -> None:
        """Take a place of everything that limits the tool: at once, or after a while. Raises `ToolBusy`."""
        held = (
            *self._own.places(run.name, tool.session_concurrency),
            *self._process.shared.places(run.name, tool.concurrency),
        )
        wanted = (*held, self._process.threads.slots) if tool.blocking else held
        if not take_all(wanted):
            await self._queue(run, tool, wanted)
        run.held = list(held)
        if run.parked is not None:
            self._give_back(run, self._own.slots)

    async def _queue(self, run: Run, tool: Tool, wanted: Sequence[Slots]) -> None:
        """Wait for what the call needs, for as long as the tool allows. Raises `ToolBusy` if that is in vain."""
        if self._queued >= self._max_queue or (tool.blocking and self._process.threads.hopeless):
            raise ToolBusy(busy(run))
        self._queued += 1
        self._limit(run, tool.queue_timeout)
        try:
            with ExitStack() as taken:
                for slots in wanted:
                    await slots.wait()
                    taken.callback(slots.give)
                taken.pop_all()
        finally:
            self._limit(run, None)
            self._queued -= 1

    async def _invoke(self, run: Run, tool: Tool, arguments: dict[str, Any]) -> object:
        """What the tool returns, or what it is completed with from outside if it is left open."""
        run.stage = Stage.INVOKED
        self._limit(run, tool.timeout)
        ticket = run.context.ticket
        self._process.parking.open(ticket, tool.result_limit)
        try:
            value = await self._called(run, tool, arguments)
            if not isinstance(value, Parked):
                return value
            run.outlives = await self._recordings.leave(run.key, self._until(run))
            outcome = self._process.parking.leave(ticket, run.context.session_id, run.name)
            run.stage = Stage.LEFT
            self._give_all_back(run)
            run.words = value.interim
            if tool.answer_within is None:
                self._park(run)
            return await outcome
        finally:
            self._process.parking.close(ticket)

    async def _called(self, run: Run, tool: Tool, arguments: dict[str, Any]) -> object:
        if tool.blocking:
            function = partial(tool.invoke, arguments, run.context)
            value = await self._process.threads.run(function, run.name, run.session)
            if not inspect.isawaitable(value):
                return value
        else:
            value = tool.invoke(arguments, run.context)
        return await watched(cast("Awaitable[object]", value), run.name, run.session, self._clock)

    def _give_back(self, run: Run, slots: Slots) -> None:
        if slots in run.held:
            run.held.remove(slots)
            slots.give()

    def _give_all_back(self, run: Run) -> None:
        while run.held:
            run.held.pop().give()

    # ------------------------------------------------------------------------------------------- time, and the end

    def _limit(self, run: Run, seconds: float | None) -> None:
        """From now on it has so long, instead of what it had."""
        if run.timer is not None:
            run.timer.cancel()
        run.timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._expire, run)

    def _until(self, run: Run) -> float:
        """When its time is over, in seconds since 1970."""
        assert run.timer is not None
        return time.time() + run.timer.when() - asyncio.get_running_loop().time()

    def _lose_patience(self, run: Run) -> None:
        """Its session has waited as long as the tool says."""
        if run.stage is Stage.REPEATED:
            self._expire(run)  # the first of the two will be told of
        elif run.stage is not Stage.ANSWERED and not run.stop_asked:
            self._park(run)

    def _park(self, run: Run) -> None:
        """It goes on, and its session goes on without it."""
        if run.parked is not None:
            return
        run.parked = self._clock()
        self._process.parked += 1
        self._give_back(run, self._own.slots)
        tell, run.interim = run.interim, None
        if tell is not None:
            _tell(run, tell, run.key, interim(run))

    def _judge(self, run: Run, health: Health) -> None:
        """The guards hear once of every run that they have admitted."""
        if run.health is None:
            run.health = health
            self._process.guards.ended(run.name, health)

    def _expire(self, run: Run) -> None:
        """Its time is over. Answer now: nobody knows when the tool will stop, or whether it will."""
        if run.stop_asked:
            end = Outcome.CANCELLED, CANCELLED
        elif run.stage in NOT_INVOKED:
            end = Outcome.BUSY, busy(run)
        else:
            if run.stage is Stage.LEFT and self._process.parking.close(run.context.ticket) is not None:
                return  # its outcome has come in this moment
            self._judge(run, Health.FAILED)
            end = Outcome.TIMEOUT, f"{run.name} did not answer within {run.tool.timeout if run.tool else 0:g} s"
        self._answer_early(run, failure(run, self._clock(), *end))
        _stop(run)

    def _answer_early(self, run: Run, finished: Finished) -> None:
        """Report it although its task goes on: as soon as the journal knows, if it has to."""
        if recording := self._recordings.outcome(run.key, finished.result, finished.outcome.value):
            run.answer = run.answer or finished.outcome
            recording.add_done_callback(lambda _: self._answer(run, finished))
        else:
            self._answer(run, finished)

    def _settle(self, run: Run, finished: Finished) -> None:
        del self._live[run.key]
        self._recordings.forget(run.key)
        if not self._live:
            self._process.outliving.discard(self)
        if run.parked is not None:
            self._process.parked -= 1
        self._answer(run, finished)

    def _answer(self, run: Run, finished: Finished) -> None:
        if run.stage is Stage.ANSWERED:
            return
        run.stage = Stage.ANSWERED
        run.answer = finished.outcome
        if run.patience is not None:
            run.patience.cancel()
        level = logging.DEBUG if finished.outcome in _AS_USUAL else logging.WARNING
        if logger.isEnabledFor(level):
            about = (f": {part}" for part in (finished.detail, run.shown) if part)
            how = (run.name, run.call.call_id, finished.outcome.value, finished.seconds, run.session, "".join(about))
            logger.log(level, "tool %s: call %.64r ended as %s after %.3f s in session %s%s", *how)
        for watcher in self._process.watchers:
            _tell(run, watcher, finished)
        _tell(run, run.report, finished)


def _tell(run: Run, report: Callable[..., None], *news: object) -> None:
    try:
        report(*news)
    except Exception as error:
        logger.error("tool %s: the report of its result failed: %s, in session %s", run.name, trace(error), run.session)


def _outlives(run: Run) -> bool:
    """Is it to go on although its session has ended? Only where its session has been told that it does."""
    told = run.parked is not None and run.tool is not None and run.tool.on_session_end == "finish"
    return told and not run.stop_asked and run.stage in (Stage.INVOKED, Stage.LEFT)


def _stop(run: Run) -> None:
    """Ask a run to stop. A task that is cancelled before its first step would never settle, so that one just looks."""
    if not run.stop_asked:
        run.stop_asked = True
        if run.stage is not Stage.CREATED:
            run.task.cancel()
