"""The shell round the message APIs: it runs the calls of a response, and gives each of them one answer for ever.

    with MessageLoop(tools) as loop:
        while True:
            response = client.messages.create(messages=messages, tools=loop.definitions("anthropic"), ...)
            messages.append({"role": "assistant", "content": response.content})
            if not (answers := loop.run(response)):
                break
            messages += answers

Calls go through the same `Runner` as those of a voice session, with all its checks and limits. What is particular to
voice does not apply: nothing is spoken, so a tool that waits for the end of its reply starts at once, a slow one is
waited for, and what a tool asks of its session (`say`, `progress`, `end_session`) goes nowhere.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from ..core.events import CallKey, ToolCall, ToolResult
from ..errors import SessionClosed
from ..runner.runner import Finished, Outcome, Runner
from ..tools.tool import CallContext, Tool
from .anthropic import AnthropicMessages
from .api import INTERRUPTED, ApiName, Asked, Json, MessageApi, failed, plain
from .chat import OpenAIChat
from .responses import OpenAIResponses

__all__ = ["MessageLoop"]

logger = logging.getLogger("bridge.tools")

_APIS: Final[Mapping[ApiName, MessageApi]] = {
    "responses": OpenAIResponses(),
    "chat": OpenAIChat(),
    "anthropic": AnthropicMessages(),
}
_AT_ONCE: Final = 16
"""Calls of one response that run side by side; the others wait, at most as long as their tools allow."""
_REMEMBERED: Final = 1000
"""Calls whose answers are kept, so that they can be given again; the oldest go first."""
_LATE: Final = "the call had not ended when the time for all calls of this turn was over; it may still take effect"
_NOT_BEGUN: Final = "the call was not run, because its turn was interrupted"
_AMBIGUOUS: Final = "the call was not run, because another call came with its id; make them again, one at a time"


@dataclass(slots=True, eq=False)
class _Entry:
    """One call, and what becomes of it."""

    key: CallKey
    call: ToolCall
    response_id: str
    answer: ToolResult | None = None
    """Once it is there, it stays."""
    running: asyncio.Future[None] | None = field(default=None, repr=False)
    """Done when the tool is."""

    def is_asked_by(self, call: ToolCall, response_id: str) -> bool:
        """Is this the very same call? Some servers use an id again in a later turn."""
        other_turn = response_id and self.response_id and response_id != self.response_id
        return call == self.call and not other_turn


@dataclass(frozen=True, slots=True)
class _Turn:
    """The calls of one response, each once, in their order."""

    api: MessageApi
    entries: Sequence[_Entry]

    def messages(self) -> list[Json]:
        return self.api.answer([entry.answer for entry in self.entries if entry.answer is not None])


class MessageLoop:
    """The tools of one conversation with a message API. See the module.

    `parallel`: the calls of a response run side by side, or else one after the other. `timeout`: seconds for all calls
    of one response, besides the limits of each tool; what has not ended by then is answered with an error. `metadata`
    and `session_id` are what tools find in their `CallContext`; the id is made up if there is none, and should be given
    where a conversation outlives the process, since HTTP tools send it to tell repeated calls. At most
    `calls_per_minute` are run, against a model that runs wild. A `runner`, such as that of a `Bridge`, can be shared by
    many conversations; by default it is this one's own.

    What it returns are dicts; they are typed as `Any`, since each vendor has types of its own for them.

    An object serves one conversation, one response at a time, and on one event loop.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool],
        *,
        parallel: bool = True,
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str = "",
        calls_per_minute: int = 60,
        runner: Runner | None = None,
    ) -> None:
        self._tools = dict(tools)
        self._parallel = parallel
        self._timeout = timeout
        self._metadata = metadata or {}
        self._session_id = session_id or uuid.uuid4().hex
        shared = runner or Runner()
        self._own_runner = None if runner else shared
        self._calls = shared.session(max_concurrent=_AT_ONCE, calls_per_minute=calls_per_minute)
        self._known: dict[str, _Entry] = {}
        self._turn: _Turn | None = None
        self._closed = False
        self._loop = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def definitions(self, api: ApiName) -> list[Any]:
        """The list of tools for a request of this API.

        Tools whose schemas allow it are told to OpenAI as strict, so that the arguments fit.
        """
        return [_APIS[api].define(tool.spec) for tool in self._tools.values()]

    async def run_async(self, response: Any, *, api: ApiName | None = None) -> list[Any]:
        """Run the calls of a response; what is to be appended to the conversation after the model's own turn.

        `response` is the vendor's object or a dict: a whole response, or a message of the model. Each call has one
        answer, whatever happened; without calls there is nothing to append. The same response again runs nothing, and
        has the same answers. Raises `ValueError` for what is no response of the APIs, `SessionClosed` after the end.

        If this is cancelled, or fails, `pending` has the answers.
        """
        self._turn = turn = self._read(plain(response), api)
        try:
            async with asyncio.timeout(self._timeout):
                await self._perform(turn.entries)
        except TimeoutError:
            self._stop(turn.entries)
            _settle(turn.entries, _LATE)
        except BaseException:
            self._stop(turn.entries)
            raise
        self._turn = None
        return turn.messages()

    def run(self, response: Any, *, api: ApiName | None = None) -> list[Any]:
        """As `run_async`, for programs without an event loop: it runs one in this thread for as long as it takes.

        It is the same loop each time, so that connections of tools stay usable. Ctrl-C cancels the calls and is raised
        as ever. Raises `RuntimeError` where an event loop runs already.
        """
        _refuse_inside_a_loop("run_async")
        if self._closed:
            raise SessionClosed("nothing can be run any more: it has been closed")
        return self._loop.run(self.run_async(response, api=api), context=contextvars.copy_context())

    def pending(self) -> list[Any]:
        """What is to be appended if the latest run was cancelled or failed; otherwise nothing.

        Every call of that response has its answer here: its result if it ended, else an error which says that it was
        interrupted. That stays its answer.
        """
        if self._turn is None:
            return []
        _settle(self._turn.entries, INTERRUPTED)
        return self._turn.messages()

    @staticmethod
    def repair(messages: Sequence[Any], *, api: ApiName | None = None) -> list[Any]:
        """A history in which every call has an answer, as the APIs demand it: a new list, for one found after a crash.

        Calls without one are answered with an error which says that they were interrupted. Messages that lack nothing
        are left as they are, vendors' objects too; in a history without calls there is nothing to repair.
        """
        shown = [plain(each) for each in messages]
        found = _APIS[api] if api else next((each for each in _APIS.values() if each.speaks(shown)), None)
        return list(messages) if found is None else found.complete(messages)

    async def aclose(self) -> None:
        """Stop what still runs. Nothing can be run any more."""
        self._closed = True
        await self._calls.aclose(1.0)
        if self._own_runner is not None:
            await self._own_runner.aclose(1.0)
            self._own_runner.close()

    def close(self) -> None:
        """As `aclose`, for programs without an event loop."""
        _refuse_inside_a_loop("aclose")
        self._loop.run(self.aclose())
        self._loop.close()

    def __enter__(self) -> Self:
        _refuse_inside_a_loop("async with")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # ------------------------------------------------------------------------------------------------- what it reads

    def _read(self, response: Any, api: ApiName | None) -> _Turn:
        found = _recognised(response, api)
        reading = found.read(response)
        asked: dict[str, list[Asked]] = {}
        for each in reading.asked:
            asked.setdefault(each.call.call_id, []).append(each)
        return _Turn(found, [self._entry(same_id, reading.response_id) for same_id in asked.values()])

    def _entry(self, asked: Sequence[Asked], response_id: str) -> _Entry:
        """The one entry of an id. A call that came twice is one call; two calls with one id cannot both be answered."""
        call, unfit = asked[0].call, asked[0].unfit
        if any(each.call != call for each in asked):
            logger.warning("two calls came with the same id %.64r; none of them is run", call.call_id)
            unfit = _AMBIGUOUS
        if unfit:
            return _Entry(CallKey(0, call.call_id), call, response_id, failed(call, unfit))
        known = self._known.get(call.call_id)
        if known is not None and known.is_asked_by(call, response_id):
            return known
        return self._remember(_Entry(CallKey(known.key.epoch + 1 if known else 0, call.call_id), call, response_id))

    def _remember(self, entry: _Entry) -> _Entry:
        self._known.pop(entry.call.call_id, None)
        self._known[entry.call.call_id] = entry
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return entry

    # ------------------------------------------------------------------------------------------------- what it runs

    async def _perform(self, entries: Iterable[_Entry]) -> None:
        if self._parallel:
            await _ended([self._start(each) for each in entries])
        else:
            for each in entries:
                await _ended([self._start(each)])

    def _start(self, entry: _Entry) -> _Entry:
        """Run a call, unless that has been done before."""
        if entry.answer is not None or entry.running is not None:
            return entry

        def report(finished: Finished) -> None:
            cancelled = finished.outcome is Outcome.CANCELLED
            entry.answer = entry.answer or (failed(entry.call, INTERRUPTED) if cancelled else finished.result)
            running.set_result(None)

        tool = self._tools.get(entry.call.name)
        context = CallContext(
            session_id=self._session_id,
            key=entry.key,
            tool=entry.call.name if tool else "",
            metadata=self._metadata,
        )
        running = asyncio.get_running_loop().create_future()
        self._calls.start(entry.key, entry.call, tool, self._tools, context, report)
        entry.running = running
        return entry

    def _stop(self, entries: Iterable[_Entry]) -> None:
        """What was not invoked never will be; what runs ends early if its tool says so."""
        for each in entries:
            if each.answer is None:
                self._calls.discard(each.key)


async def _ended(entries: Iterable[_Entry]) -> None:
    running = [each.running for each in entries if each.answer is None and each.running is not None]
    if running:
        await asyncio.wait(running)


def _settle(entries: Iterable[_Entry], sentence: str) -> None:
    """Give those that have no answer this one; of what has not begun more is known."""
    for each in entries:
        each.answer = each.answer or failed(each.call, sentence if each.running else _NOT_BEGUN)


def _recognised(response: Any, api: ApiName | None) -> MessageApi:
    for name, each in _APIS.items():
        if isinstance(response, dict) and (name == api or (api is None and each.recognises(response))):
            return each
    known = ", ".join(map(repr, _APIS))
    raise ValueError(f"this is no response of a message API; pass the whole response, or its kind: api= one of {known}")


def _refuse_inside_a_loop(instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"an event loop runs here already: use `{instead}` instead")
