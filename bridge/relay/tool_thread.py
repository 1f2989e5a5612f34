"""Tools on an event loop of their own, in a thread of its own: none can delay audio, whatever it does.

Calls go there, and reports come back, by `call_soon_threadsafe`; the rest of a session stays on the relay's loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from ..core.events import CallKey, ToolCall, ToolResult
from ..errors import SessionClosed
from ..runner.runner import Calls, Finished, Runner
from ..tools.tool import CallContext, Tool

__all__ = ["FarCalls", "ToolThread"]

_T = TypeVar("_T")

_END_TIMEOUT = 1.0
"""Seconds that the thread has for its end. It is a daemon: the process does not wait for what a tool holds up there."""


class ToolThread:
    """The loop on which tools run, and the runner that belongs to it."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="bridge-tools", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_TIMEOUT)

    def session(self, max_concurrent: int, finished: Callable[[Finished], None] | None = None) -> FarCalls:
        """The calls of a new session, to be used from the running loop, which is not the tools' own.

        `finished` hears of the end of each, on the running loop, before the session does.
        """
        return FarCalls(self.runner.session(max_concurrent=max_concurrent), self._loop, finished)

    async def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have this done on the tools' loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        self._loop.call_soon(self.runner.begin)
        self._loop.run_forever()
        self._loop.run_until_complete(self.runner.aclose(_END_TIMEOUT / 2))
        self.runner.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class FarCalls:
    """The calls of one session, run on another loop. To be used like `Calls`."""

    def __init__(
        self, calls: Calls, there: asyncio.AbstractEventLoop, finished: Callable[[Finished], None] | None
    ) -> None:
        self._calls = calls
        self._there = there
        self._finished = finished
        self._here = asyncio.get_running_loop()

    def start(
        self,
        key: CallKey,
        call: ToolCall,
        tool: Tool | None,
        known: Iterable[str],
        context: CallContext,
        report: Callable[[Finished], None],
        *,
        interim: Callable[[CallKey, ToolResult], None] | None = None,
    ) -> None:
        """Begin a call. `report` and `interim` are called on this loop."""
        back = None if interim is None else partial(self._back, interim)
        there = partial(self._start, interim=back)
        self._there.call_soon_threadsafe(
            there, key, call, tool, tuple(known), context, partial(self._back, partial(self._report, report))
        )

    def discard(self, key: CallKey) -> None:
        """The result is not wanted."""
        self._there.call_soon_threadsafe(self._calls.discard, key)

    def aside(self, function: Callable[[], str], tell: Callable[[str], None]) -> None:
        """Run a tool's own quick function there, and tell here what came of it."""

        def run() -> None:
            made = function()
            with suppress(RuntimeError):  # the relay's loop has closed
                self._here.call_soon_threadsafe(tell, made)

        self._there.call_soon_threadsafe(run)

    async def aclose(self, timeout: float) -> None:
        """Cancel what is left, and wait up to `timeout` seconds for it."""
        closing: Coroutine[Any, Any, None] = self._calls.aclose(timeout)
        done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(closing, self._there))
        # A tool that keeps its loop to itself keeps this waiting, too.
        await asyncio.wait([done], timeout=2 * timeout)

    def _start(self, *call: Any, interim: Callable[[CallKey, ToolResult], None] | None) -> None:
        with suppress(SessionClosed):  # it ended while this was on its way
            self._calls.start(*call, interim=interim)

    def _back(self, tell: Callable[..., None], *what: Any) -> None:
        with suppress(RuntimeError):  # the relay's loop has closed, and nobody is left to hear
            self._here.call_soon_threadsafe(tell, *what)

    def _report(self, report: Callable[[Finished], None], finished: Finished) -> None:
        if self._finished is not None:
            self._finished(finished)
        report(finished)
