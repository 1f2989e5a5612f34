"""Tools whose work is done by other processes: jobs of procrastinate, in the PostgreSQL that holds the journal.

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))
    jobs = Jobs(app, URL, key=read_key(os.environ["BRIDGE_JOBS_KEY"]))

    @jobs.tool(tools, timeout=3600, answer_within=2)
    async def monthly_report(month: str) -> dict[str, object]: ...

The process that has the caller imports this file for its `tools`; a worker (`procrastinate --app=my_tools.app worker`)
imports it for the jobs. A call becomes a job under the call's ticket, and is parked; the worker checks the arguments
again, runs the function, and leaves the outcome in the journal's mailbox, from where the process of the call takes it.

A job runs at most once: it is not tried again when its worker dies, and the call ends by its timeout. Jobs are put into
logs with what they carry, by procrastinate itself, so that what they carry is sealed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, Unpack
from uuid import uuid4

import orjson
from procrastinate import App
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException

from .core.events import CallKey
from .errors import JournalError, ToolError, ToolUnavailable
from .journal.payloads import Payloads
from .journal.postgres import open_postgres
from .journal.sealing import Seal
from .runner.parking import Completion, Verdict
from .runner.run import trace
from .runner.runner import Runner
from .tools.call import CallContext, Parked
from .tools.encode import encode
from .tools.tool import Tool, ToolOptions, Toolset

__all__ = ["Jobs"]

logger = logging.getLogger("bridge.jobs")

_PAUSES = (0.1, 0.5, 2.0, 10.0)
"""Seconds between two attempts to leave an outcome while the database is away; the last one again and again."""

_F = TypeVar("_F", bound=Callable[..., Any])


class Jobs:
    """Makes tools of functions that run in the workers of `app`.

    `journal`: the address of the PostgreSQL that the bridges keep their journal in; `journal_key`: its key, if it has
    one. `key`: 32 bytes that seal what jobs carry, the same for bridges and workers; see `read_key`. `queue`: the name
    of the queue of procrastinate. Raises `ConfigError` for a key of another length.
    """

    def __init__(
        self, app: App, journal: str, *, key: bytes, journal_key: bytes | None = None, queue: str = "tools"
    ) -> None:
        self._app = app
        self._journal = journal
        self._journal_seal = Seal(journal_key)
        self._seal = Seal(key)
        self._queue = queue
        self._opening = asyncio.Lock()
        self._opened = False
        self._runner: Runner | None = None

    def tool(self, tools: Toolset, /, **options: Unpack[ToolOptions]) -> Callable[[_F], _F]:
        """Add a function to `tools`, as `Toolset.tool` does, whose calls are run by a worker.

        It finds in its `CallContext` whose call it serves, but neither metadata nor the caller: it cannot have the
        agent speak. Its `timeout` counts from the call, waiting in the queue included. Raises `ConfigError`.
        """

        def add(function: _F) -> _F:
            made = Toolset()
            made.tool(function, **options)
            (name,) = made
            tools.add(self._deferring(made[name]))
            return function

        return add

    def _deferring(self, tool: Tool) -> Tool:
        """The tool as the bridge calls it; the one given is what the worker runs."""
        name = tool.spec.name

        async def work(ticket: str, call: str) -> None:
            await self._work(tool, ticket, call)

        task = self._app.task(name=f"voice-tool-bridge:{name}", queue=self._queue)(work)

        async def defer(arguments: Mapping[str, Any], context: CallContext) -> Parked:
            call = self._sealed(context, arguments)
            try:
                await self._open()
                job = task.configure(queueing_lock=context.ticket)
                with suppress(AlreadyEnqueued):
                    await job.defer_async(ticket=context.ticket, call=call)
            except ConnectorException as error:
                logger.error("tool %s has not begun: the queue of its jobs cannot be reached (%s)", name, error)
                raise ToolUnavailable(f"{name} is not available now") from error
            return Parked()

        return replace(tool, invoke=defer, blocking=False)

    async def _open(self) -> None:
        """Whoever imports the tools has no place to open the app at."""
        async with self._opening:
            if not self._opened:
                await self._app.open_async()
                self._opened = True

    async def aclose(self) -> None:
        """Close what calls have opened. A process that ends may leave it."""
        async with self._opening:
            if self._opened:
                await self._app.close_async()
                self._opened = False

    async def _work(self, tool: Tool, ticket: str, call: str) -> None:
        """The whole job, in a worker."""
        value, error = await self._outcome(tool, ticket, call)
        completion = await self._settled(ticket, value, error)
        if completion.verdict in (Verdict.ACCEPTED, Verdict.REPEATED):
            return
        logger.warning(
            "tool %s: the outcome of call %s came to nothing (%s): its caller is not told",
            tool.spec.name,
            ticket,
            completion.verdict.value,
        )

    async def _outcome(self, tool: Tool, ticket: str, call: str) -> tuple[object, str]:
        """The value, or the sentence that says why there is none."""
        name = tool.spec.name
        try:
            arguments, context = self._unsealed(tool, ticket, call)
            if tool.blocking:
                value = await asyncio.to_thread(tool.invoke, arguments, context)
            else:
                value = await tool.invoke(arguments, context)  # type: ignore[misc]  # an awaitable unless blocking
            encode(value, tool.result_limit)
        except ToolError as error:
            return None, str(error)
        except Exception as error:
            logger.error("tool %s failed in its worker: %s", name, trace(error))
            return None, f"the tool {name} failed"
        return value, ""

    async def _settled(self, ticket: str, value: object, error: str) -> Completion:
        """Leave the outcome with the call, however long the database is away: the work has been done."""
        runner = await self._settling()
        attempt = 0
        while True:
            try:
                return await runner.settle(ticket, value, error=error)
            except JournalError as failed:
                pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
                logger.error("the outcome of call %s waits for the journal, %g s: %s", ticket, pause, failed)
                await asyncio.sleep(pause)
                attempt += 1

    async def _settling(self) -> Runner:
        if self._runner is None:
            journal = await asyncio.to_thread(open_postgres, self._journal, payloads=Payloads(seal=self._journal_seal))
            self._runner = Runner(journal=journal, owner=f"jobs@{socket.gethostname()}:{uuid4().hex[:8]}")
        return self._runner

    def _sealed(self, context: CallContext, arguments: Mapping[str, Any]) -> str:
        whose = [context.session_id, context.key.epoch, context.key.call_id]
        data = orjson.dumps([whose, encode(arguments)])
        return base64.b64encode(self._seal.seal(data, context.ticket)).decode()

    def _unsealed(self, tool: Tool, ticket: str, call: str) -> tuple[dict[str, Any], CallContext]:
        try:
            data = self._seal.unseal(base64.b64decode(call), ticket)
        except JournalError:
            logger.error(
                "a job of tool %s was sealed with another key: give bridges and workers the same", tool.spec.name
            )
            raise ToolError(f"the tool {tool.spec.name} failed") from None
        (session, epoch, call_id), text = orjson.loads(data)
        return tool.check(text), CallContext(session_id=session, key=CallKey(epoch, call_id), tool=tool.spec.name)
