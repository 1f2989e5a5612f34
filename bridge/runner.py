"""One call to its result, whatever happens: every started call is reported exactly once.

A call passes through the same stages whatever its tool is made of: the loop breaker, its arguments checked, the same
call made before looked for, the guards, a slot (at once, or from a bounded queue), the tool itself within its time, the
result encoded. Whatever goes wrong on the way is an exception, and becomes an error result in one place. It has two
texts: a sentence for the model, and for the log where it happened, without any value that was passed or said.

Three limits, from the inside out: threads for plain functions (`Threads`), calls of all sessions (`Runner`), calls of
one session (`Calls`). Waiting for any of them counts towards the tool's queue timeout, not towards its timeout.

A run is told to stop by cancelling its task. The answer does not wait for that: a call whose time is over is reported
at once, and a tool that ignores cancellation only keeps its slot. All sessions of a runner live on one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import PurePath
from traceback import walk_tb
from types import coroutine
from typing import Any, cast

import orjson

from .core.events import CallKey, ToolCall, ToolResult
from .errors import (
    InvalidArguments,
    SessionClosed,
    ToolBusy,
    ToolError,
    ToolNotFound,
    ToolTimeout,
    ToolUnavailable,
)
from .guards import Guards, Health, TooOften
from .limits import LoopBreaker, Looping, Slots, Threads, take_all
from .replays import Replays
from .tools.encode import TooLarge, Unencodable, encode
from .tools.redaction import shown
from .tools.tool import CallContext, Tool
from .tracing import span

__all__ = ["Calls", "Finished", "Outcome", "Runner"]

logger = logging.getLogger("bridge.tools")

_SLOW_STEP = 0.1
"""Seconds for which an async tool may keep the event loop to itself before it is named in a warning."""
_NAMES_SHOWN = 20
_CAUSES_SHOWN = 3
_FRAMES_SHOWN = 3
_SENTENCE = 1000
"""Characters of an error text that a model is shown at most."""
_NO_TOOL = "(unknown)"
"""Stands for names that the model made up, which must not become metric labels. No tool can be called this."""


class Outcome(Enum):
    """How a call ended; the values are metric labels."""

    OK = "ok"
    REPLAYED = "replayed"
    """The same call had succeeded before, and its result was given again."""
    ERROR = "error"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    BUSY = "busy"
    CANCELLED = "cancelled"
    LOOP = "loop"
    TOO_OFTEN = "too_often"
    UNAVAILABLE = "unavailable"
    UNENCODABLE = "unencodable"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one call."""

    key: CallKey
    name: str
    """The tool's name, or `(unknown)`."""
    result: ToolResult
    outcome: Outcome
    seconds: float
    """Since the call was started, waiting included."""
    detail: str = field(default="", repr=False)
    """For the log: what went wrong and where, without values."""


_WELL = (Outcome.OK, Outcome.REPLAYED)

_OUTCOMES: dict[type[BaseException], Outcome] = {
    InvalidArguments: Outcome.INVALID,
    ToolNotFound: Outcome.UNKNOWN,
    ToolTimeout: Outcome.TIMEOUT,
    ToolBusy: Outcome.BUSY,
    Looping: Outcome.LOOP,
    TooOften: Outcome.TOO_OFTEN,
    ToolUnavailable: Outcome.UNAVAILABLE,
    Unencodable: Outcome.UNENCODABLE,
    TooLarge: Outcome.TOO_LARGE,
}


class _Stage(Enum):
    CREATED = "its task has not begun"
    REPEATED = "the same call runs already"
    WAITING = "not invoked yet"
    INVOKED = "the tool has been called"
    ANSWERED = "reported before the tool ended"


_NOT_INVOKED = (_Stage.CREATED, _Stage.REPEATED, _Stage.WAITING)


@dataclass(slots=True, eq=False)
class _Run:
    """One call on its way."""

    key: CallKey
    call: ToolCall
    tool: Tool | None
    context: CallContext
    report: Callable[[Finished], None]
    began: float
    task: asyncio.Task[None] = field(init=False)
    stage: _Stage = _Stage.CREATED
    stop_asked: bool = False
    """A cancellation that we did not ask for is the tool's own failure."""
    outcome: Outcome = Outcome.OK
    """If all goes well."""
    answer: Outcome | None = None
    """How it was reported."""
    shown: str = ""
    """What may be shown of its arguments."""
    timer: asyncio.TimerHandle | None = None
    health: Health | None = None
    """What it has said about the tool."""

    @property
    def name(self) -> str:
        return self.tool.spec.name if self.tool is not None else _NO_TOOL


# ------------------------------------------------------------------------------------------------ sessions and calls


class Runner:
    """What the calls of all sessions of a process share: slots, and threads for plain functions."""

    def __init__(
        self,
        *,
        max_concurrent: int = 256,
        max_threads: int = 32,
        max_failures: int = 5,
        failure_pause: float = 30.0,
        watchers: tuple[Callable[[Finished], None], ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A tool that fails `max_failures` times in a row is not called for `failure_pause` seconds, then tried once.

        `watchers` are told of every call that is over, of any session: `Metrics.finished` is one.
        """
        self.guards = Guards(max_failures=max_failures, pause=failure_pause, clock=clock)
        self._watchers = watchers
        self._shared = _Shared(Slots(max_concurrent), {}, Replays(clock))
        self._threads = Threads(max_threads)
        self._clock = clock

    def session(
        self, *, max_concurrent: int = 4, max_queue: int = 32, repeat_limit: int = 5, calls_per_minute: int = 60
    ) -> Calls:
        """The calls of a new session.

        At most `max_concurrent` run at once and `max_queue` wait. A tool that is called with the same arguments more
        than `repeat_limit` times in a row is not run; nor is any tool beyond `calls_per_minute`.
        """
        breaker = LoopBreaker(repeat_limit, calls_per_minute)
        own = _Shared(Slots(max_concurrent), {}, Replays(self._clock))
        return Calls(own, self._shared, self.guards, self._threads, self._clock, breaker, max_queue, self._watchers)

    @property
    def threads_busy(self) -> int:
        """Threads that run a tool, abandoned ones included."""
        return self._threads.busy

    @property
    def threads_abandoned(self) -> int:
        """Threads whose tool goes on although its call has been answered."""
        return self._threads.abandoned

    def close(self) -> None:
        """Let the threads end, each after the tool it runs. Nobody waits for them, nor does the process."""
        self._threads.close()


@dataclass(frozen=True, slots=True)
class _Shared:
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


class Calls:
    """The calls of one session. Made by `Runner.session`."""

    def __init__(
        self,
        own: _Shared,
        shared: _Shared,
        guards: Guards,
        threads: Threads,
        clock: Callable[[], float],
        breaker: LoopBreaker,
        max_queue: int,
        watchers: tuple[Callable[[Finished], None], ...] = (),
    ) -> None:
        self._own = own
        self._shared = shared
        self._guards = guards
        self._threads = threads
        self._clock = clock
        self._breaker = breaker
        self._max_queue = max_queue
        self._watchers = watchers
        self._queued = 0
        self._live: dict[CallKey, _Run] = {}
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
    ) -> None:
        """Begin a call. `tool` is None if no tool has its name; `known` are the names that the model may use instead.

        `report` is called once, later, from this event loop. A key that is live already is not started again. Raises
        `SessionClosed` after `aclose`.
        """
        if self._closed:
            raise SessionClosed("the session has ended: no call can be started")
        if key in self._live:
            return
        self._live[key] = run = _Run(key, call, tool, context, report, self._clock())
        run.task = asyncio.get_running_loop().create_task(self._perform(run, known))

    def discard(self, key: CallKey) -> None:
        """The result is not wanted. What was not invoked never will be; what runs ends early if its tool says so."""
        run = self._live.get(key)
        if run is not None and (run.stage in _NOT_INVOKED or (run.tool and run.tool.on_interrupt == "cancel")):
            _stop(run)

    def aside(self, function: Callable[[], str], tell: Callable[[str], None]) -> None:
        """Run a tool's own quick function, and tell what came of it."""
        tell(function())

    async def aclose(self, timeout: float) -> None:
        """Cancel what is left and wait up to `timeout` seconds for it. What goes on all the same is abandoned."""
        self._closed = True
        runs = list(self._live.values())
        for run in runs:
            _stop(run)
        if runs:
            await asyncio.wait([run.task for run in runs], timeout=timeout)
        for run in list(self._live.values()):
            logger.warning("tool %s ignores its cancellation and is abandoned", run.name)
            self._answer(run, _failure(run, self._clock(), Outcome.CANCELLED, _CANCELLED))

    async def _perform(self, run: _Run, known: Iterable[str]) -> None:
        """The task of a call. It swallows its cancellation, since it ends there anyway."""
        with span(run.name, run.call, run.context) as notes:
            finished = await self._finished(run, known)
            # Its answer may have been another: then this came too late.
            outcome = run.answer or finished.outcome
            notes.outcome, notes.failed, notes.arguments = outcome.value, outcome not in _WELL, run.shown
        self._settle(run, finished)

    async def _finished(self, run: _Run, known: Iterable[str]) -> Finished:
        try:
            return _success(run, await self._output(run, known), self._clock())
        except asyncio.CancelledError as error:
            if run.stop_asked:
                return _failure(run, self._clock(), Outcome.CANCELLED, _CANCELLED)
            return _failure(run, self._clock(), Outcome.ERROR, "the tool was aborted", _trace(error))
        except BaseException as error:  # a tool that calls sys.exit() must not take the process along
            return _explained(run, self._clock(), error)

    async def _output(self, run: _Run, known: Iterable[str]) -> str:
        """The way of a call from start to end, as long as nothing goes wrong."""
        if run.stop_asked:
            raise asyncio.CancelledError
        run.stage = _Stage.WAITING
        self._breaker.count(run.call, run.began)
        if (tool := run.tool) is None:
            raise ToolNotFound(_no_such_tool(known))
        arguments = tool.arguments(run.call.arguments, run.context)
        run.shown = shown(arguments, tool.log_arguments) if tool.log_arguments else ""
        if tool.dedupe is None:
            return await self._result(run, tool, arguments)
        replays = (self._own if tool.dedupe.scope == "session" else self._shared).replays
        run.stage = _Stage.REPEATED
        self._limit(run, tool.timeout)
        same = _identity(run.name, arguments, tool.dedupe.fields)
        output, before = await replays.once(same, tool.dedupe.seconds, lambda: self._result(run, tool, arguments))
        self._limit(run, None)
        if before:
            run.outcome = Outcome.REPLAYED
            return _marked(output)
        return output

    async def _result(self, run: _Run, tool: Tool, arguments: dict[str, Any]) -> str:
        """Run the tool, as soon as there is room."""
        run.stage = _Stage.WAITING
        self._guards.admit(tool)
        held = (
            *self._own.places(run.name, tool.session_concurrency),
            *self._shared.places(run.name, tool.concurrency),
        )
        wanted = (*held, self._threads.slots) if tool.blocking else held
        health = Health.UNKNOWN
        try:
            if not take_all(wanted):
                await self._queue(run, tool, wanted)
            try:
                value = await self._invoke(run, tool, arguments)
            finally:
                self._limit(run, None)
                for slots in held:
                    slots.give()
            health = Health.WELL
        except BaseException as error:
            health = _health(run, error)
            raise
        finally:
            self._judge(run, health)
        return encode(value, tool.result_limit)

    async def _queue(self, run: _Run, tool: Tool, wanted: Sequence[Slots]) -> None:
        """Wait for what the call needs, for as long as the tool allows. Raises `ToolBusy` if that is in vain."""
        if self._queued >= self._max_queue or (tool.blocking and self._threads.hopeless):
            raise ToolBusy(_busy(run))
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

    async def _invoke(self, run: _Run, tool: Tool, arguments: dict[str, Any]) -> object:
        run.stage = _Stage.INVOKED
        self._limit(run, tool.timeout)
        if tool.blocking:
            value = await self._threads.run(partial(tool.invoke, arguments, run.context), run.name)
            if not inspect.isawaitable(value):
                return value
        else:
            value = tool.invoke(arguments, run.context)
        return await _watched(cast("Awaitable[object]", value), run.name, self._clock)

    def _limit(self, run: _Run, seconds: float | None) -> None:
        """From now on it has so long, instead of what it had."""
        if run.timer is not None:
            run.timer.cancel()
        run.timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._expire, run)

    def _judge(self, run: _Run, health: Health) -> None:
        """The guards hear once of every run that they have admitted."""
        if run.health is None:
            run.health = health
            self._guards.ended(run.name, health)

    def _expire(self, run: _Run) -> None:
        """Its time is over. Answer now: nobody knows when the tool will stop, or whether it will."""
        if run.stop_asked:
            end = Outcome.CANCELLED, _CANCELLED
        elif run.stage in _NOT_INVOKED:
            end = Outcome.BUSY, _busy(run)
        else:
            self._judge(run, Health.FAILED)
            end = Outcome.TIMEOUT, f"{run.name} did not answer within {run.tool.timeout if run.tool else 0:g} s"
        self._answer(run, _failure(run, self._clock(), *end))
        _stop(run)

    def _settle(self, run: _Run, finished: Finished) -> None:
        del self._live[run.key]
        self._answer(run, finished)

    def _answer(self, run: _Run, finished: Finished) -> None:
        if run.stage is _Stage.ANSWERED:
            return
        run.stage = _Stage.ANSWERED
        run.answer = finished.outcome
        well = finished.outcome in (*_WELL, Outcome.CANCELLED)
        if not well or logger.isEnabledFor(logging.DEBUG):
            about = (f": {part}" for part in (finished.detail, run.shown) if part)
            level = logging.DEBUG if well else logging.WARNING
            how = (run.name, run.call.call_id, finished.outcome.value, finished.seconds, "".join(about))
            logger.log(level, "tool %s: call %.64r ended as %s after %.3f s%s", *how)
        for tell in (*self._watchers, run.report):
            try:
                tell(finished)
            except Exception as error:
                logger.error("tool %s: the report of its result failed: %s", run.name, _trace(error))


def _stop(run: _Run) -> None:
    """Ask a run to stop. A task that is cancelled before its first step would never settle, so that one just looks."""
    if not run.stop_asked:
        run.stop_asked = True
        if run.stage is not _Stage.CREATED:
            run.task.cancel()


@coroutine
def _watched(work: Awaitable[object], name: str, clock: Callable[[], float]) -> Generator[Any, Any, object]:
    """Await something, and name the tool in a warning if one of its steps keeps the event loop to itself."""
    steps = work.__await__()
    thrown: BaseException | None = None
    while True:
        began = clock()
        try:
            waited_for = next(steps) if thrown is None else steps.throw(thrown)
        except StopIteration as end:
            return end.value
        finally:
            if (taken := clock() - began) > _SLOW_STEP:
                advice = "make it a plain function, so that it runs in a thread"
                logger.warning("tool %s blocked the event loop for %.0f ms; %s", name, taken * 1000, advice)
        try:
            yield waited_for
            thrown = None
        except BaseException as error:  # a cancellation: the tool's own matter
            thrown = error


# ------------------------------------------------------------------------------------------------------ what is said

_CANCELLED = "the call was cancelled"


def _success(run: _Run, output: str, now: float) -> Finished:
    result = ToolResult(run.call.call_id, output, name=run.call.name, echo=run.call.echo)
    return Finished(run.key, run.name, result, run.outcome, now - run.began)


def _explained(run: _Run, now: float, error: BaseException) -> Finished:
    """The result for an exception. Only the text of a `ToolError` is for the model; the log gets no text of a tool."""
    leaves = _leaves(error)
    texts = [str(leaf) for leaf in leaves if isinstance(leaf, ToolError)]
    sentence = "; ".join(texts) if len(texts) == len(leaves) else ""
    outcome = next((each for kind, each in _OUTCOMES.items() if isinstance(leaves[0], kind)), Outcome.ERROR)
    ours = run.stage in _NOT_INVOKED or isinstance(error, Unencodable | TooLarge)
    detail = sentence if ours and sentence else _trace(error)
    return _failure(run, now, outcome, sentence or f"the tool {run.name} failed", detail)


def _failure(run: _Run, now: float, outcome: Outcome, sentence: str, detail: str = "") -> Finished:
    output = encode({"error": sentence[:_SENTENCE]})
    result = ToolResult(run.call.call_id, output, is_error=True, name=run.call.name, echo=run.call.echo)
    return Finished(run.key, run.name, result, outcome, now - run.began, detail or sentence)


def _no_such_tool(known: Iterable[str]) -> str:
    names = list(known)
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    more = len(names) - _NAMES_SHOWN
    return f"there is no such tool; available: {shown}" + (f" and {more} more" if more > 0 else "")


def _busy(run: _Run) -> str:
    if run.stage is _Stage.REPEATED:
        return f"{run.name} was not run, because the same call is still running; wait for its result"
    return f"{run.name} was not run, because too many calls are running already; try again later"


def _identity(name: str, arguments: Mapping[str, Any], fields: Sequence[str]) -> Hashable:
    """What makes two calls the same, however their arguments were spelled."""
    chosen = {field: arguments.get(field) for field in fields or arguments}
    return name, orjson.dumps(orjson.loads(encode(chosen)), option=orjson.OPT_SORT_KEYS)


def _marked(output: str) -> str:
    """An object says that it has been given before; other values have no place for that."""
    value = orjson.loads(output)
    return encode({**value, "replayed": True}) if isinstance(value, dict) else output


def _health(run: _Run, error: BaseException) -> Health:
    """What the end of a run says about its tool. An error in the tool's own words is an answer."""
    leaves = _leaves(error)
    if isinstance(error, ToolBusy) or (isinstance(error, asyncio.CancelledError) and run.stop_asked):
        return Health.UNKNOWN
    answered = all(isinstance(leaf, ToolError) and not isinstance(leaf, ToolUnavailable) for leaf in leaves)
    return Health.WELL if answered else Health.FAILED


def _leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, at any depth; any other is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _trace(error: BaseException) -> str:
    """Types and places of an exception and its causes. Texts are left out: they may quote what a user said."""
    return "; ".join(" from ".join(islice(map(_place, _causes(leaf)), _CAUSES_SHOWN)) for leaf in _leaves(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(error: BaseException) -> str:
    """`ValueError at client.py:31 (fetch) < weather.py:12 (get_weather)`; frames of this file say nothing."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    places = [
        f"{PurePath(code.co_filename).name}:{line} ({code.co_name})"
        for code, line in frames
        if code.co_filename != __file__
    ]
    return f"{name} at {' < '.join(places[: -_FRAMES_SHOWN - 1 : -1]) or 'an unknown place'}"
