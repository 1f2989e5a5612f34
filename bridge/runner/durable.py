"""What a call asks of the journal: may I run, this came of me, and what has become of my result.

A tool that changes something runs only once its claim is durable, and its outcome is durable before anybody hears of
it. Where the journal is out of order, such a tool is not run, unless it may be run again anyway. That a result was
sent, discarded, or has lost its session is written off the hot path, by an observer of sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from ..core.conversation import Step
from ..core.events import (
    AgentAudio,
    CallKey,
    Discard,
    DiscardedBy,
    FollowUp,
    ReplyStarted,
    Sent,
    SessionEnded,
    SessionReady,
    ToolResult,
    ToolResults,
)
from ..errors import JournalError, ToolError, ToolUnavailable
from ..journal import CallId, Claim, Conflict, Fate, Finished, Granted, Journal, State, Unknown, Verdict
from ..tools.encode import encode
from ..tools.tool import Tool

__all__ = [
    "Durable",
    "MayHaveRun",
    "NotRecorded",
    "NotTheSame",
    "Replayed",
    "may_have_run",
    "owner_of_this_life",
]

logger = logging.getLogger("bridge.journal")

_NOT_RUN = "unavailable"
"""The outcome of a call that was refused for the journal's sake."""
_RETRY = 0.5
"""Seconds between two attempts to write what has become of results."""
_BATCH = 500
_REMEMBERED = 10_000
"""Sessions that are known to have ended, at most: what is concluded afterwards has lost its session."""
_GONE = (DiscardedBy.END, DiscardedBy.ORPHANED)
"""Discarded for want of a session, not because nobody wanted the result."""


class Replayed(Exception):
    """The call has been run before, and this came of it."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__("the call has been run before")
        self.result = result


class MayHaveRun(ToolError):
    """The call was started before, and nobody knows what came of it."""


class NotTheSame(ToolError):
    """Another call has the same id."""


class NotRecorded(ToolUnavailable):
    """The journal could not promise that the call runs only once."""


class Watched(Protocol):
    """What is asked of a session."""

    @property
    def id(self) -> str: ...


def owner_of_this_life() -> str:
    """Names this process, and no other, nor one that has had its number before."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"


class Durable:
    """What the calls of a process have recorded. One for each runner, used on the event loop on which its tools run.

    As an observer of sessions (from any thread) it sees what becomes of results. `owner` names this process in this
    life: after its death, what it had started can be told by that.
    """

    def __init__(self, journal: Journal, owner: str | None = None, *, retry: float = _RETRY) -> None:
        self.owner = owner or owner_of_this_life()
        self.refused = 0
        """Calls that were not run, since the journal was out of order."""
        self.unrecorded = 0
        """Outcomes that were told although they could not be written down before."""
        self._journal = journal
        self._fault: JournalError | None = None
        """Why it does not work at this moment."""
        self._retry = retry
        self._running: dict[CallId, Fate | None] = {}
        """Claimed and without an outcome yet; with what has become of the call meanwhile."""
        self._owed: set[CallId] = set()
        self._interim: set[CallId] = set()
        """Calls of which the agent is being told that they go on."""
        self._spoken: set[CallId] = set()
        """Calls whose late outcome the agent was asked to tell, and has not begun to."""
        self._ended: dict[str, None] = {}
        self._fates: deque[tuple[CallId, Fate]] = deque()
        self._outcomes: deque[tuple[CallId, ToolResult, str]] = deque()
        """Those that were told although they could not be written down."""
        self._settling: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[None] | None = None
        self._probing: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    @property
    def trouble(self) -> str:
        """Why calls that change something are not run at this moment; empty if they are."""
        return "" if self._fault is None else f"the journal is out of order: {self._fault}"

    # ------------------------------------------------------------------------------------------ before, and after

    async def claim(self, call: CallId, tool: Tool, arguments: str) -> bool:
        """Wait until the call may run. True if its outcome is to be concluded here; false if nothing was recorded.

        Raises `Replayed` if it has run, `MayHaveRun`, `NotTheSame`, and `NotRecorded` where the journal is out of order
        and the tool is not `repeatable`.
        """
        self._loop = asyncio.get_running_loop()
        asked = self._fault is None
        try:
            if self._fault is not None:  # nobody on the phone waits for what is known to fail
                raise self._fault
            claim = await self._asked(call, tool, arguments)
        except JournalError as error:
            self._complain(tool, error)
            if tool.repeatable:
                return False
            self.refused += 1
            sentence = f"{tool.spec.name} is not available now, and was not run"
            if asked:
                self._doubt(call, tool, sentence)
            raise NotRecorded(sentence) from None
        self._relieved()
        match claim:
            case Granted():
                with self._lock:
                    self._running[call] = None
                return True
            case Finished(result, outcome, state):
                if state in (State.OWED, State.ORPHANED):  # it has yet to be told, in another life of its session
                    with self._lock:
                        self._owed.add(call)
                raise Replayed(result or _not_kept(call, tool, outcome))
            case Unknown(owner=owner) if tool.repeatable and owner == self.owner:
                return False  # we could not write down what came of it, so nothing is lost by another run
            case Unknown():
                raise MayHaveRun(may_have_run(tool.spec.name))
            case Conflict():
                raise NotTheSame(f"{tool.spec.name} was not run, because another call has the same id")

    async def _asked(self, call: CallId, tool: Tool, arguments: str) -> Claim:
        name = tool.spec.name
        claim = await self._journal.claim(call, name, arguments, self.owner)
        if isinstance(claim, Unknown) and tool.repeatable and claim.owner != self.owner:
            # Whoever has the session is the only one who can be asked for the call again: the other must be dead.
            return await self._journal.claim(call, name, arguments, self.owner, instead_of=claim.owner)
        return claim

    async def leave(self, call: CallId, until: float) -> bool:
        """Its outcome is to come from outside by then, also if this process dies. False if that could not be written
        down, and so holds only while this process lives.
        """
        try:
            await self._journal.leave(call, until)
        except JournalError as error:
            logger.warning(
                "call %.64r of session %s: that it waits for somebody outside is not in the journal, so its outcome is "
                "not known if this process dies: %s",
                call.call_id,
                call.session,
                error,
            )
            return False
        return True

    def _doubt(self, call: CallId, tool: Tool, sentence: str) -> None:
        """The claim was given up, and may come to stand all the same: then that it was not run is its outcome."""
        result = ToolResult(call.call_id, encode({"error": sentence}), is_error=True, name=tool.spec.name)
        with self._lock:
            self._owed.add(call)
        self._outcomes.append((call, result, _NOT_RUN))
        self._write()

    def recording(self, ticket: str) -> bool:
        """Has the call with this ticket been claimed, and its outcome not been written down yet? On the tools' loop."""
        open_calls = (*self._running, *(call for call, _, _ in self._outcomes))
        return any(ticket == ".".join(map(str, call)) for call in open_calls)

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> None:
        """Make the outcome of a claimed call durable. Raises nothing: what cannot be written is told all the same, and
        is written once the journal works again.
        """
        recorded = False
        try:
            await self._recorded(call, result, outcome)
            recorded = True
        except JournalError as error:
            self.unrecorded += 1
            self._outcomes.append((call, result, outcome))
            recorded = True
            logger.error(
                "call %.64r of session %s: its outcome is told, but is not in the journal yet, where the call stays "
                "started until it is: %s",
                call.call_id,
                call.session,
                error,
            )
        except Exception:
            self.unrecorded += 1
            logger.exception("call %.64r of session %s: its outcome cannot be recorded", call.call_id, call.session)
        finally:
            self._concluded(call, recorded)

    async def _recorded(self, call: CallId, result: ToolResult, outcome: str) -> None:
        concluded = await self._journal.conclude(call, result, outcome)
        if concluded.verdict is Verdict.CONFLICT:
            logger.warning(
                "call %.64r of session %s: the journal has another outcome already (%s); see 'journal show'",
                call.call_id,
                call.session,
                concluded.outcome,
            )

    def _concluded(self, call: CallId, recorded: bool) -> None:
        with self._lock:
            fate = self._running.pop(call, None) or (State.ORPHANED if call.session in self._ended else None)
            if recorded and fate is None:
                self._owed.add(call)
        if fate is not None:
            self._write_soon([(call, fate)])
        elif self._outcomes:
            self._write()

    # ------------------------------------------------------------------------------------- what becomes of results

    def __call__(self, session: Watched, step: Step) -> None:
        """The observer. Does not wait."""
        if len(step.events) == 1 and isinstance(step.events[0], AgentAudio):
            return  # nearly every step ends here
        with self._lock:
            fates = list(self._seen(session.id, step))
        self._write_soon(fates)

    def _seen(self, session: str, step: Step) -> Iterator[tuple[CallId, Fate]]:
        for output in step.outputs:
            match output:
                case Discard(key, reason):
                    yield from self._met(session, key, State.ORPHANED if reason in _GONE else State.DISCARDED)
                case ToolResults(results, keys=keys):
                    self._interim |= {CallId.of(session, k) for k, r in zip(keys, results, strict=True) if r.interim}
                case FollowUp(key):
                    self._spoken.add(CallId.of(session, key))
        for event in step.events:
            match event:
                case Sent(keys):
                    for key in keys:
                        yield from self._sent(session, key)
                case ReplyStarted():
                    for call in [each for each in self._spoken if each.session == session]:
                        yield from self._met(session, call.key, State.SENT)
                case SessionReady():
                    self._ended.pop(session, None)  # one that is attached to again has the same name
                case SessionEnded():
                    self._ended[session] = None
                    if len(self._ended) > _REMEMBERED:
                        del self._ended[next(iter(self._ended))]
                    for told in (self._interim, self._spoken):
                        told -= {each for each in told if each.session == session}
                    for call in [each for each in (*self._owed, *self._running) if each.session == session]:
                        yield from self._met(session, call.key, State.ORPHANED)

    def _sent(self, session: str, key: CallKey) -> Iterator[tuple[CallId, Fate]]:
        call = CallId.of(session, key)
        if call in self._interim:
            self._interim.discard(call)  # the agent knows that it goes on, and is owed what comes of it
        elif call in self._owed:
            yield from self._met(session, key, State.SENT)

    def _met(self, session: str, key: CallKey, fate: Fate) -> Iterator[tuple[CallId, Fate]]:
        """This is the end of it; of one that goes on, only once its outcome is there."""
        call = CallId.of(session, key)
        self._interim.discard(call)
        self._spoken.discard(call)
        if call in self._owed:
            self._owed.discard(call)
            yield call, fate
        elif call in self._running:
            self._running[call] = self._running[call] or fate

    # --------------------------------------------------------------------------------------------- off the hot path

    def _write_soon(self, fates: list[tuple[CallId, Fate]]) -> None:
        if fates and self._loop is not None:
            self._fates.extend(fates)
            with suppress(RuntimeError):  # the tools' loop is closed, and with it everything
                self._loop.call_soon_threadsafe(self._write)

    def _write(self) -> None:
        if (self._fates or self._outcomes) and (self._settling is None or self._settling.done()):
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        troubled = False
        while self._fates or self._outcomes:
            batch = [self._fates.popleft() for _ in range(min(_BATCH, len(self._fates)))]
            self._attempt = asyncio.ensure_future(self._settled(batch))
            try:
                await asyncio.shield(self._attempt)
            except JournalError as error:
                self._fates.extendleft(reversed(batch))  # to settle what is settled changes nothing
                if not troubled:
                    logger.warning("what has become of results is not in the journal yet, and waits: %s", error)
                troubled = True
                await asyncio.sleep(self._retry)

    async def _settled(self, batch: list[tuple[CallId, Fate]]) -> None:
        while self._outcomes:
            await self._recorded(*self._outcomes[0])
            self._outcomes.popleft()
        for fate in (State.SENT, State.DISCARDED, State.ORPHANED):
            if calls := [call for call, each in batch if each is fate]:
                await self._journal.settle(calls, fate)

    async def aclose(self, timeout: float) -> None:
        """Write what has become of results, for up to `timeout` seconds. On the tools' loop.

        What is being written by then is waited for as long as the journal itself allows: a busy disk loses nothing.
        """
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        self._write()
        if self._settling is None or self._settling.done():
            return
        await asyncio.wait([self._settling], timeout=timeout)
        if self._settling.done():
            return
        self._settling.cancel()
        await asyncio.wait([self._settling])
        failed = self._attempt is not None and (await asyncio.gather(self._attempt, return_exceptions=True))[0]
        if failed or self._fates or self._outcomes:
            logger.error("the journal does not know what has become of some results, and takes them as owed")

    # ------------------------------------------------------------------------------------------------- what is said

    def _complain(self, tool: Tool, error: JournalError) -> None:
        what = "is run all the same, since it may be run again" if tool.repeatable else "is not run"
        logger.error("the journal is out of order, so tool %s %s: %s", tool.spec.name, what, error)
        self._fault = JournalError(str(error))
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    async def _probe(self) -> None:
        """Look whether the journal works again, which no call does meanwhile."""
        while self._fault is not None:
            await asyncio.sleep(self._retry)
            try:
                await self._journal.check()
            except JournalError as error:
                self._fault = JournalError(str(error))
            else:
                self._relieved()

    def _relieved(self) -> None:
        if self._fault is not None:
            self._fault = None
            logger.info("the journal works again; %d calls were not run so far, since it did not", self.refused)


def may_have_run(tool: str) -> str:
    """What a model is told of a call of which nobody knows."""
    return (
        f"{tool} was started before and may or may not have happened: nobody knows. "
        "It was not run again; say so, and do not claim that it is done"
    )


def _not_kept(call: CallId, tool: Tool, outcome: str) -> ToolResult:
    sentence = f"{tool.spec.name} was already done; its result is not kept any more. Do not call it again for this"
    well = outcome == "ok"
    output = encode({"status": "done", "message": sentence} if well else {"error": sentence})
    return ToolResult(call.call_id, output, is_error=not well, name=tool.spec.name)
