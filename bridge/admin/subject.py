"""What the admin port asks, and of whom: a host in this process, or several processes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
from .shown import Calls, State, fact_of, ticket_of

__all__ = ["Desk", "Host", "Subject", "Verdicts", "told"]

_T = TypeVar("_T")

logger = logging.getLogger("bridge.admin")

_APPROVALS_KEPT = 1000


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
    """Nothing is known of it here; another process that shares the journal may know."""
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
        waiting = self._host.runner.waiting
        tickets = waiting if session is None else self._calls.of(session)
        return [self._calls.view(ticket, ticket in waiting) for ticket in tickets]

    async def pending(self) -> Sequence[Mapping[str, Any]]:
        here = [_asked(request) for request in self._host.approvals.pending]
        try:
            others = await self._host.runner.requests_elsewhere()
        except JournalError as error:
            logger.warning("approvals that wait at other processes are not listed: %s", error)
            others = ()
        return [*here, *({**_asked(request), "elsewhere": True} for request in others)]

    async def follow(self) -> Feed:
        return self._facts

    @asynccontextmanager
    async def attend(self) -> AsyncIterator[Feed]:
        feed = Feed(_APPROVALS_KEPT)
        self._attending.add(feed)
        try:
            with self._host.approvals.attached(lambda what: _put(feed, what)):
                yield feed
        finally:
            self._attending.discard(feed)

    # ---------------------------------------------------------------------------------------------- what is changed

    async def drain(self, seconds: float) -> int:
        return await self._host.drain(seconds)

    async def settle(self, key: str, result: Mapping[str, Any]) -> Mapping[str, Any]:
        if result["status"] == "running":
            return {"verdict": self._still(key).value}
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

    def _still(self, key: str) -> Verdicts:
        """Is it worth going on with the work?"""
        if key in self._host.runner.waiting:
            return Verdicts.RUNNING
        known = self._calls.find(key)
        if known is None:
            return Verdicts.UNKNOWN if self._host.runner.post is None else Verdicts.ELSEWHERE
        return Verdicts.RUNNING if known.state is State.RUNNING else Verdicts.EXPIRED


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
            about = {"id": request.id, "session": request.session_id, "tool": request.tool}
            feed.put("resolved", {**about, "resolution": how.value, "by": by})
