"""Calls that a person has to approve before they run: what is asked, what was decided, and what is too late.

    async with Bridge(tools, approver=ask_the_supervisor) as bridge:
        ...
        bridge.approvals.decide(request.id, approve=True, by="anna")

A decision is for one request: this call, this tool, these arguments, none of which can change afterwards. It counts
once, and the first one stands. Nothing runs without one: where nobody could decide, or nobody did in time, or the call
is not wanted any more, the answer is no.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, get_args

from ..core.events import CallKey
from ..errors import ToolBusy, ToolError
from ..tools.call import session_of
from ..tools.encode import decode, encode
from ..tools.policy import Approval
from ..tools.redaction import masked
from ..tools.tool import CallContext, Tool

__all__ = [
    "AlreadyDecided",
    "ApprovalDenied",
    "ApprovalRequest",
    "Approvals",
    "Approver",
    "Decided",
    "Decision",
    "Expired",
    "Resolution",
    "Resolved",
    "Unknown",
    "rule_of",
]

logger = logging.getLogger("bridge.approvals")

_REMEMBERED = 10_000
"""Requests whose end is remembered, so that a second decision hears of the first."""


class ApprovalDenied(ToolError):
    """The call was not approved, for whatever reason."""


class Resolution(Enum):
    """What became of a request; the values are metric labels."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """Nobody decided in time."""
    REVOKED = "revoked"
    """The call is not wanted any more, or its tool is another now."""
    UNATTENDED = "unattended"
    """There was nobody who could have decided."""


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """May this call run?"""

    id: str
    session_id: str
    key: CallKey
    tool: str
    arguments: str = field(repr=False)
    """All of them, as JSON text; those that the tool redacts are masked."""
    fingerprint: str
    """A hash over session, call, tool and the arguments themselves: what the decision is for."""
    asked: float
    """When, in seconds since 1970."""
    seconds: float
    """For how long it can be decided."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The end of a request; there is exactly one."""

    request: ApprovalRequest
    how: Resolution
    by: str = ""
    """Who decided; empty if nobody did."""
    reason: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision counts."""

    resolved: Resolved


@dataclass(frozen=True, slots=True)
class AlreadyDecided:
    """Somebody was faster; the first decision stands."""

    resolved: Resolved


@dataclass(frozen=True, slots=True)
class Expired:
    """Too late: the call has been answered, or is not wanted any more. It was not run."""

    resolved: Resolved


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is no such request, or it is long over."""


Decision = Decided | AlreadyDecided | Expired | Unknown

Approver = Callable[[ApprovalRequest], Awaitable[bool]]
"""Decides: true runs the call. One that raises forbids it. Cancelled when the request is over without it."""

Tell = Callable[[ApprovalRequest | Resolved], object]
"""Is told of every request and of its end, must not block, and may be called in any thread."""


class Decide(Protocol):
    """Decides a request, wherever it waits; see `Runner.decide`."""

    def __call__(self, request_id: str, /, *, approve: bool, by: str, reason: str = "") -> Awaitable[Decision]: ...


@dataclass(slots=True, eq=False)
class _Open:
    """A request that waits."""

    request: ApprovalRequest
    tool: Tool
    over: asyncio.Future[None]


class Approvals:
    """All requests of a process. Calls wait on the tools' event loop; the rest may be done from any thread."""

    def __init__(
        self,
        approver: Approver | None = None,
        *,
        observers: tuple[Tell, ...] = (),
        max_pending: int = 1000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`observers` only watch; whoever may decide is the `approver`, or is `attached`."""
        self.resolved: Counter[Resolution] = Counter()
        """How many requests have ended, and how."""
        self.attended_elsewhere = False
        """Does somebody hear of requests at another process, and could decide them?"""
        self._approver = approver
        self._tells = list(observers)
        self._attached = 0
        self._decide: Decide | None = None
        self._max_pending = max_pending
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self._past: dict[str, Resolved] = {}
        self._secret = secrets.token_bytes(32)  # so that nobody can guess from a hash what is masked
        self._closed = False
        self._lock = threading.Lock()

    @property
    def pending(self) -> tuple[ApprovalRequest, ...]:
        """The requests that wait, oldest first."""
        with self._lock:
            return tuple(each.request for each in self._open.values())

    @property
    def attended(self) -> bool:
        """Does somebody hear of requests here, and could decide them?"""
        with self._lock:
            return not self._closed and (self._approver is not None or self._attached > 0)

    def has(self, request_id: str) -> bool:
        """Does this request wait here?"""
        with self._lock:
            return request_id in self._open

    def ended(self, request_id: str) -> bool:
        """Did this request wait here, and is it over?"""
        with self._lock:
            return request_id in self._past

    def joins(self, tell: Tell, decide: Decide) -> None:
        """Others share these requests: `tell` shows them, and the approver's decision goes through `decide`."""
        with self._lock:
            self._tells.append(tell)
        self._decide = decide

    @contextmanager
    def attached(self, tell: Tell) -> Iterator[None]:
        """For as long as this is entered, somebody hears of requests who can decide them."""
        with self._lock:
            self._tells.append(tell)
            self._attached += 1
        try:
            yield
        finally:
            with self._lock:
                self._tells.remove(tell)
                self._attached -= 1

    def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request of this process. `by` and `reason` are for the record: the agent hears neither.

        Where several processes share a journal, `Runner.decide` decides those of all.
        """
        how = Resolution.APPROVED if approve else Resolution.DENIED
        resolved, first = self._end(request_id, how, by, reason)
        if resolved is None:
            return Unknown()
        if first:
            return Decided(resolved)
        decided = resolved.how in (Resolution.APPROVED, Resolution.DENIED)
        return AlreadyDecided(resolved) if decided else Expired(resolved)

    def keep(self, tools: Mapping[str, Tool]) -> None:
        """The tools are these now: what waits for a tool that has changed, or has gone, is not run."""
        with self._lock:
            stale = [each.request.id for each in self._open.values() if tools.get(each.request.tool) != each.tool]
        for request_id in stale:
            self._end(request_id, Resolution.REVOKED)

    def close(self) -> None:
        """Nothing is approved any more: what waits is not run, nor is what comes."""
        with self._lock:
            self._closed = True
            waiting = list(self._open)
        for request_id in waiting:
            self._end(request_id, Resolution.REVOKED)

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> None:
        """Wait until the call is approved. Raises `ApprovalDenied`, and `ToolBusy` if too many wait already.

        A caller that is cancelled revokes its request.
        """
        request = self._request(tool, arguments, context)
        over = asyncio.get_running_loop().create_future()
        self._begin(_Open(request, tool, over))
        # Not in a task group: an approver that cannot be stopped must not keep the call from its end.
        consulting = asyncio.ensure_future(self._consult(request)) if self._approver is not None else None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(tool.approval_timeout):
                    await over
            resolved, _ = self._end(request.id, Resolution.EXPIRED)
        finally:
            self._end(request.id, Resolution.REVOKED)
            if consulting is not None:
                consulting.cancel()
        if resolved is None or resolved.how is not Resolution.APPROVED:
            raise ApprovalDenied(_denied(request.tool))

    def _request(self, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> ApprovalRequest:
        text = encode(arguments)
        bound = json.dumps([context.session_id, *context.key, context.tool, decode(text)], sort_keys=True)
        return ApprovalRequest(
            secrets.token_hex(8),
            context.session_id,
            context.key,
            context.tool,
            masked(text, tool.redact),
            hashlib.blake2b(bound.encode(), key=self._secret).hexdigest(),
            self._clock(),
            tool.approval_timeout,
        )

    def _begin(self, opened: _Open) -> None:
        request = opened.request
        with self._lock:
            if len(self._open) >= self._max_pending:
                raise ToolBusy(f"{request.tool} was not run, because too many approvals are waited for already")
            attends = self._approver is not None or self._attached > 0 or self.attended_elsewhere
            attended = attends and not self._closed
            self._open[request.id] = opened
        self._tell(request)
        if not attended:
            line = "tool %s needs an approval and is not run, in session %s: attach an approver to the bridge"
            logger.warning(line, request.tool, request.session_id)
            self._end(request.id, Resolution.UNATTENDED)

    def _end(self, request_id: str, how: Resolution, by: str = "", reason: str = "") -> tuple[Resolved | None, bool]:
        """The end of a request, if it is known, and whether this was it."""
        with self._lock:
            opened = self._open.pop(request_id, None)
            if opened is None:
                return self._past.get(request_id), False
            resolved = Resolved(opened.request, how, by, reason)
            self._past[request_id] = resolved
            if len(self._past) > _REMEMBERED:
                del self._past[next(iter(self._past))]
            self.resolved[how] += 1
        who = f" by {by}" if by else ""
        asked = opened.request
        line = "approval %s of tool %s: %s%s, in session %s"
        logger.info(line, asked.id, asked.tool, how.value, who, asked.session_id)
        with suppress(RuntimeError):  # the tools' loop has closed, and nobody waits there any more
            opened.over.get_loop().call_soon_threadsafe(_wake, opened.over)
        self._tell(resolved)
        return resolved, True

    def _tell(self, what: ApprovalRequest | Resolved) -> None:
        with self._lock:
            tells = tuple(self._tells)
        for tell in tells:
            try:
                tell(what)
            except Exception as error:
                logger.error("whoever watches approvals failed: %s", type(error).__name__)

    async def _consult(self, request: ApprovalRequest) -> None:
        assert self._approver is not None
        try:
            approve = await self._approver(request) is True
        except Exception as error:
            line = "the approver failed (%s), so tool %s is not run, in session %s"
            logger.error(line, type(error).__name__, request.tool, request.session_id)
            approve = False
        if self._decide is None:
            self.decide(request.id, approve=approve, by="approver")
        else:
            await self._decide(request.id, approve=approve, by="approver")


def rule_of(tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> Approval:
    """Must somebody approve this call? A rule that fails forbids it."""
    if not callable(tool.approval):
        return tool.approval
    try:
        rule = tool.approval(arguments, context)
    except Exception as error:
        line = "the approval rule of tool %s failed (%s): it is not run, in session %s"
        logger.error(line, context.tool, type(error).__name__, session_of(context))
        return "always_deny"
    if rule in get_args(Approval):
        return rule
    line = "the approval rule of tool %s returned none of %s: it is not run, in session %s"
    logger.error(line, context.tool, get_args(Approval), session_of(context))
    return "always_deny"


def _denied(tool: str) -> str:
    return f"{tool} was not approved, and was not run"


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
