"""What the admin port asks, and of whom: a host in this process, or several processes."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from enum import Enum
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

from ..core.conversation import Step
from ..errors import JournalError
from ..runner.approvals import AlreadyDecided, ApprovalRequest, Approvals, Decided, Decision, Expired, Resolved, Unknown
from ..runner.parking import Answer, Completion
from ..runner.runner import Runner
from ..tools.encode import TooLarge, Unencodable
from .feed import Feed
from .shown import Calls, State, fact_of, ticket_of, waiting_elsewhere

__all__ = ["Desk", "Host", "Subject", "Verdicts", "told"]

_T = TypeVar("_T")

logger = logging.getLogger("bridge.admin")

_APPROVALS_KEPT = 1000
_LOOK_SECONDS = 1.0
"""Between two looks for requests at other processes, while somebody reads along."""


class Watched(Protocol):
    """What an observer needs to know of a session."""

    @property
    def id(self) -> str: ...


class Host(Protocol):
    """Whoever has the sessions: a `Relay`, or a `Bridge`."""

    @property
    def sessions(self) -> Sequence[Any]:
        """A snapshot of each session that is going on: a dataclass of plain values, with its `id`."""
        ...

    @property
    def ready(self) -> str:
        """Why no new session would be taken; empty if one would be."""
        ...

    @property
    def runner(self) -> Runner: ...

    @property
    def approvals(self) -> Approvals: ...

    def observe(self, observer: Callable[[Watched, Step], None]) -> None:
        """Have it see every step of the sessions that begin from now on."""
        ...

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion: ...

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision: ...

    async def drain(self, seconds: float) -> int:
        """Take no new sessions, give those there are so long, end the rest, and say how many those were."""
        ...


class Verdicts(Enum):
    """What became of a completion or a decision; of several answers to one question, the first of these counts."""

    ACCEPTED = "accepted"
    REPEATED = "repeated"
    RUNNING = "running"
    UNUSABLE = "unusable"
    """What was said cannot be a result."""
    CONFLICT = "conflict"
    """Something else has been said before."""
    EXPIRED = "expired"
    ELSEWHERE = "elsewhere"
    """Nothing is known of it here, nor that it is over; another process that shares the journal may have it."""
    UNSURE = "unsure"
    """Somebody who may know does not answer."""
    UNKNOWN = "unknown"


class Subject(Protocol):
    """What the admin port asks. All answers are plain values, so that they can come from other processes."""

    @property
    def sessions(self) -> Sequence[Any] | Awaitable[Sequence[Any]]:
        """A mapping, or a dataclass, for each session that is going on."""
        ...

    @property
    def ready(self) -> str | Awaitable[str]: ...

    async def drain(self, seconds: float) -> int: ...

    async def calls(self, session: str | None = None) -> Sequence[Mapping[str, Any]]:
        """The calls of a session; those that wait for somebody outside, if none is named."""
        ...

    async def pending(self) -> Sequence[Mapping[str, Any]]:
        """The calls that wait to be approved."""
        ...

    async def settle(self, key: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        """What became of a `shapes.Result`: a `verdict`, and with it the answer that stands, or what is wrong."""
        ...

    async def decide(self, request_id: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """What became of a `shapes.Decision`: a `verdict`, and with it the decision that stands, and whose it was."""
        ...

    async def follow(self) -> Feed:
        """What happens in all sessions, from now on at the latest."""
        ...

    def attend(self) -> AbstractAsyncContextManager[Feed]:
        """While this is entered, somebody hears of approvals who can decide them: `asked` and `resolved`."""
        ...


async def told(answer: _T | Awaitable[_T]) -> _T:
    """What a subject says, whether it knows that or has to ask."""
    return await answer if isawaitable(answer) else answer


class Desk:
    """A host of this process as the admin port asks it. It sees the sessions that begin from now on."""

    def __init__(self, host: Host, clock: Callable[[], float] = time.time) -> None:
        self._host = host
        self._clock = clock
        self._facts = Feed()
        self._attending: set[Feed] = set()
        self._calls = Calls()
        host.observe(self._saw)

    def _saw(self, session: Watched, step: Step) -> None:
        for fact in step.facts:
            now = self._clock()
            self._calls.note(session.id, fact, now)
            self._facts.put("fact", {"at": now, **fact_of(session.id, fact)})

    def close(self) -> None:
        """Nothing more will happen: whoever reads along comes to the end."""
        for feed in (self._facts, *self._attending):
            feed.close()

    # ---------------------------------------------------------------------------------------------- what is shown

    @property
    def sessions(self) -> Sequence[Any]:
        return self._host.sessions

    @property
    def ready(self) -> str:
        return self._host.ready

    async def calls(self, session: str | None = None) -> Sequence[Mapping[str, Any]]:
        waiting = {each.ticket: each for each in self._host.runner.left_open}
        if session is not None:
            here = (ticket for ticket, each in waiting.items() if each.session_id == session)
            tickets = dict.fromkeys((*self._calls.of(session), *here))
            return [self._calls.view(each, waiting.get(each)) for each in tickets]
        others = await _listed("calls", self._host.runner.calls_elsewhere)
        return [*(self._calls.view(*each) for each in waiting.items()), *map(waiting_elsewhere, others)]

    async def pending(self) -> Sequence[Mapping[str, Any]]:
        here = [_asked(request) for request in self._host.approvals.pending]
        others = await _listed("approvals", self._host.runner.requests_elsewhere)
        return [*here, *({**_asked(request), "elsewhere": True} for request in others)]

    async def follow(self) -> Feed:
        return self._facts

    @asynccontextmanager
    async def attend(self) -> AsyncIterator[Feed]:
        feed = Feed(_APPROVALS_KEPT)
        self._attending.add(feed)
        looking = asyncio.create_task(self._look_elsewhere(feed))
        try:
            with self._host.approvals.attached(lambda what: _put(feed, what)):
                yield feed
        finally:
            looking.cancel()
            self._attending.discard(feed)

    async def _look_elsewhere(self, feed: Feed) -> None:
        """Tell of the requests at other processes, which ask because somebody attends here."""
        known: dict[str, ApprovalRequest] = {}
        while self._host.runner.post is not None:
            with suppress(JournalError):  # then the next look tells
                now = {each.id: each for each in await self._host.runner.requests_elsewhere()}
                for each in now.keys() - known.keys():
                    feed.put("asked", {**_asked(now[each]), "elsewhere": True})
                for each in known.keys() - now.keys():
                    feed.put("resolved", _over(known[each], "elsewhere"))
                known = now
            await asyncio.sleep(_LOOK_SECONDS)

    # ---------------------------------------------------------------------------------------------- what is changed

    async def drain(self, seconds: float) -> int:
        return await self._host.drain(seconds)

    async def settle(self, key: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        if result["status"] == "running":
            return {"verdict": (await self._still(key)).value}
        try:
            completion = await self._host.settle(key, result["output"], error=result["error"])
        except (Unencodable, TooLarge) as error:
            return {"verdict": Verdicts.UNUSABLE.value, "why": str(error)}
        except JournalError:
            return {"verdict": Verdicts.UNSURE.value}
        said = {} if completion.answer is None else _answered(completion.answer)
        return {"verdict": Verdicts(completion.verdict.value).value, **said}

    async def decide(self, request_id: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        approve = decision["decision"] == "approve"
        by, reason = decision["by"], decision["reason"]
        try:
            decided = await self._host.decide(request_id, approve=approve, by=by, reason=reason)
        except JournalError:
            return {"verdict": Verdicts.UNSURE.value}
        match decided:
            case Decided(resolved):
                return {"verdict": Verdicts.ACCEPTED.value, **_resolved(resolved)}
            case AlreadyDecided(resolved):
                return {"verdict": Verdicts.CONFLICT.value, **_resolved(resolved)}
            case Expired():
                return {"verdict": Verdicts.EXPIRED.value}
            case Unknown():
                return {"verdict": Verdicts.UNKNOWN.value}

    async def _still(self, key: str) -> Verdicts:
        """Is it worth going on with the work?"""
        runner = self._host.runner
        if key in runner.waiting:
            return Verdicts.RUNNING
        if (known := self._calls.find(key)) is not None:
            return Verdicts.RUNNING if known.state is State.RUNNING else Verdicts.EXPIRED
        try:
            match await runner.is_over(key):
                case True:
                    return Verdicts.EXPIRED
                case False:
                    return Verdicts.RUNNING
        except JournalError:
            return Verdicts.UNSURE
        return Verdicts.UNKNOWN if runner.post is None else Verdicts.ELSEWHERE


async def _listed(what: str, elsewhere: Callable[[], Awaitable[Sequence[_T]]]) -> Sequence[_T]:
    """What waits at other processes; nothing while the journal does not say."""
    try:
        return await elsewhere()
    except JournalError as error:
        logger.warning("%s that wait at other processes are not listed: %s", what, error)
        return ()


def _answered(answer: Answer) -> dict[str, Any]:
    if answer.error:
        return {"status": "failed", "error": answer.error}
    return {"status": "completed", "output": json.loads(answer.output)}


def _asked(request: ApprovalRequest) -> dict[str, Any]:
    return {
        "id": request.id,
        "session": request.session_id,
        "key": ticket_of(request.session_id, request.key),
        "tool": request.tool,
        "arguments": json.loads(request.arguments),
        "asked": request.asked,
        "seconds": request.seconds,
    }


def _resolved(resolved: Resolved) -> dict[str, Any]:
    """Only a person's decision comes back as one."""
    return {"decision": "approve" if resolved.how.value == "approved" else "deny", "by": resolved.by}


def _put(feed: Feed, what: ApprovalRequest | Resolved) -> None:
    match what:
        case ApprovalRequest():
            feed.put("asked", _asked(what))
        case Resolved(request, how, by):
            feed.put("resolved", _over(request, how.value, by))


def _over(request: ApprovalRequest, how: str, by: str = "") -> dict[str, Any]:
    about = {"id": request.id, "session": request.session_id, "tool": request.tool}
    return {**about, "resolution": how, "by": by}
