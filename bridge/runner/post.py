"""Answers that come to another process than the one whose call they are for: how they are left there, and taken here.

Several processes share a journal with a mailbox, behind any load balancer. A completion or a decision may come to any
of them. It goes to the database first, which lets one answer win, and the owner of the call takes it from there: at
once where a notice arrives, else with its next look. Nobody keeps a list of who has what.

Each process keeps a lease, so that others can tell when it is dead. One that lives on without the database runs on:
answers to its own calls count here alone until the database is back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from functools import partial

from ..core.events import ToolResult
from ..errors import JournalError
from ..journal import Claimed, Journal
from ..journal import State as CallState
from ..journal.mailbox import Kind, Letter, Mailbox, Open, Posted, Receipt, State
from ..journal.stored import soon
from .approvals import AlreadyDecided, ApprovalRequest, Approvals, Decided, Decision, Resolution, Resolved, Unknown
from .leftovers import died_here
from .letters import (
    answer_of,
    answer_text,
    decision_of,
    read_answer,
    read_request,
    read_waiting,
    request_text,
    resolution_text,
    result_of,
    ticket_of,
    waiting_text,
)
from .parking import Answer, Completion, Parking, Verdict, Waiting

__all__ = ["Post", "Way"]

logger = logging.getLogger("bridge.journal")

_BEATS = 6
"""How often a lease is renewed in the time for which it holds."""
_MISSED = 2
"""Beats without which a process is dead, or about to be."""
_TAKEN_WITHIN = 2
"""Looks of its owner in which a decision should have been taken."""
_FIRST_ASKED = 0.01
_WAITING = 10_000
"""Rows that wait to be written at most; beyond that the oldest are not."""


class Way(Enum):
    """How an answer was found; the values are metric labels."""

    NOTIFIED = "notified"
    POLLED = "polled"


class Post:
    """The mailbox, as the calls of one process use it. `parking` and `approvals` are its own, `owner` is its name.

    `recording` tells by its ticket whether a call has been claimed, and its outcome is not in the journal yet. It
    follows the mailbox on the event loop of `begin`, which is that of the tools. Answers may be given on any.
    """

    def __init__(
        self, mailbox: Mailbox, owner: str, parking: Parking, approvals: Approvals, recording: Callable[[str], bool]
    ) -> None:
        self.taken: Counter[Way] = Counter()
        """Answers that came from other processes, by how they were found."""
        self.trouble = ""
        """Why nothing can be taken at this moment; empty if it can."""
        self._mailbox = mailbox
        self._owner = owner
        self._parking = parking
        self._approvals = approvals
        self._recording = recording
        self._outbox: deque[Callable[[], Awaitable[None]]] = deque(maxlen=_WAITING)
        self._early: set[str] = set()
        """Tickets of answers to calls that are not known here, or not yet."""
        self._way = Way.POLLED
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._beat_due: float | None = None
        parking.watcher = self
        approvals.joins(self.told, self.decide)

    @property
    def listening(self) -> bool:
        """Do notices of other processes arrive?"""
        return self._mailbox.listening

    # --------------------------------------------------------------------------------------------- answers from here

    async def settle(self, ticket: str, answer: Answer) -> Completion:
        """The outcome of a call, wherever it runs. `UNKNOWN` also of one that is over, if no answer is kept here.

        Raises `JournalError` if that cannot be found out now.
        """
        if (known := self._parking.heard(ticket, answer)) is not None:
            return known
        here = self._parking.has(ticket)
        if here and self.trouble:
            return self._parking.give(ticket, answer)
        try:
            receipt = await self._mailbox.post(Kind.CALL, ticket, answer_text(answer))
        except JournalError:
            if not here:
                raise
            return self._parking.give(ticket, answer)
        match receipt.posted:
            case Posted.ACCEPTED:
                given = self._parking.give(ticket, answer) if here else None
                if given is not None and given.verdict in (Verdict.CONFLICT, Verdict.EXPIRED):
                    return given  # the call has ended in this moment
                return Completion(Verdict.ACCEPTED, answer)
            case Posted.REPEATED:
                return Completion(Verdict.REPEATED, answer)
            case Posted.CONFLICT:
                return Completion(Verdict.CONFLICT, read_answer(receipt.answer) if receipt.answer else None)
            case Posted.OVER if receipt.state is not None:
                return self._parking.heard(ticket, answer) or Completion(Verdict.EXPIRED)
            case Posted.OVER:
                return Completion(Verdict.UNKNOWN)  # here: the journal knows what came of it
            case Posted.UNKNOWN:
                return self._parking.give(ticket, answer)  # nobody but we may know of it

    async def is_over(self, ticket: str) -> bool:
        """Would an outcome of this call come too late, wherever it runs? Raises `JournalError`."""
        return await self._mailbox.over(Kind.CALL, ticket)

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request, wherever it waits. Raises `JournalError` if that cannot be found out now.

        One of another process is waited for until that has taken the decision, for two of its looks at most: without
        the database it may have decided otherwise.
        """
        decide_here = partial(self._approvals.decide, request_id, approve=approve, by=by, reason=reason)
        if self._approvals.ended(request_id):
            return decide_here()
        here = self._approvals.has(request_id)
        text = resolution_text(Resolution.APPROVED if approve else Resolution.DENIED, by, reason)
        try:
            receipt = await self._mailbox.post(Kind.APPROVAL, request_id, text)
        except JournalError:
            if not here:
                raise
            return decide_here()
        match receipt.posted:
            case Posted.UNKNOWN:
                return decide_here()  # nobody but we may know of it
            case Posted.ACCEPTED | Posted.OVER if here:
                return decide_here()
            case Posted.ACCEPTED:
                return await self._as_taken(request_id, text, receipt)
            case _:
                return decision_of(receipt)

    async def _as_taken(self, request_id: str, text: str, accepted: Receipt) -> Decision:
        """What the owner of a request makes of a decision that was left for it; if it does not say, it counts."""
        pause, until = _FIRST_ASKED, time.monotonic() + _TAKEN_WITHIN * self._mailbox.poll
        with suppress(JournalError):
            while time.monotonic() < until:
                await asyncio.sleep(pause)
                pause *= 2
                receipt = await self._mailbox.post(Kind.APPROVAL, request_id, text)  # once more only asks
                if receipt.state in (State.TAKEN, State.LATE) and receipt.answer != text:
                    return decision_of(receipt)
                if receipt.state is not State.POSTED:
                    break
        return decision_of(accepted)

    async def requests_elsewhere(self) -> tuple[ApprovalRequest, ...]:
        """The requests that wait at other processes, oldest first. Raises `JournalError`."""
        return tuple([read_request(each.about) for each in await self._elsewhere(Kind.APPROVAL)])

    async def calls_elsewhere(self) -> tuple[Waiting, ...]:
        """The calls that wait for their outcome at other processes, oldest first. Raises `JournalError`."""
        return tuple([read_waiting(each.about) for each in await self._elsewhere(Kind.CALL)])

    async def _elsewhere(self, kind: Kind) -> list[Open]:
        return [each for each in await self._mailbox.waiting(kind) if each.owner != self._owner]

    # ------------------------------------------------------------------------------------------------ what is shown

    def opened(self) -> None:
        """A call may be answered from now on: see `Watcher`."""
        self.begin()

    def left(self, call: Waiting) -> None:
        """A call waits to be answered: see `Watcher`."""
        waits = Open(Kind.CALL, call.ticket, call.session_id, self._owner, waiting_text(call))
        self._send(partial(self._mailbox.announce, waits))

    def over(self, call: Waiting) -> None:
        """It waits no longer: see `Watcher`."""
        self._send(partial(self._mailbox.close, self._call(call.ticket), State.CLOSED))

    def told(self, what: ApprovalRequest | Resolved) -> None:
        """A request for approval waits, or is over. In any thread."""
        match what:
            case ApprovalRequest():
                self.begin()
                self._send(partial(self._mailbox.announce, self._asked(what, what.arguments, what.seconds)))
            case Resolved(request, how, by, reason):
                state = State.TAKEN if how in (Resolution.APPROVED, Resolution.DENIED) else State.LATE
                # What was asked about is not kept.
                shown = self._asked(request, "null")
                self._send(partial(self._mailbox.close, shown, state, resolution_text(how, by, reason)))

    def _call(self, ticket: str) -> Open:
        return Open(Kind.CALL, ticket, "", self._owner)

    def _asked(self, request: ApprovalRequest, arguments: str, seconds: float | None = None) -> Open:
        text = request_text(request, arguments)
        return Open(Kind.APPROVAL, request.id, request.session_id, self._owner, text, seconds)

    def _send(self, write: Callable[[], Awaitable[None]]) -> None:
        self._outbox.append(write)
        self._wake()

    # ------------------------------------------------------------------------------------------ answers from elsewhere

    def begin(self) -> None:
        """Follow the mailbox from now on, on the running loop. More than once does no harm."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._follow())

    def _ring(self) -> None:
        self._way = Way.NOTIFIED
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the tools' loop is closed, and with it everything
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _follow(self) -> None:
        with self._mailbox.rings(self._owner, self._ring):
            while True:
                self._woken.clear()
                try:
                    await self._look()
                    self._relieved()
                except JournalError as error:
                    self._complain(error)
                except Exception:
                    logger.exception("the mailbox: what waits there is looked at again in %g s", self._mailbox.poll)
                await soon(self._woken, self._mailbox.poll)

    async def _look(self) -> None:
        way, self._way = self._way, Way.POLLED
        await self._beat()
        for letter in await self._mailbox.take(self._owner):
            await self._deliver(letter, way)
        await self._flush()

    async def _deliver(self, letter: Letter, way: Way) -> None:
        match letter.kind:
            case Kind.CALL:
                await self._complete(letter, way)
            case Kind.APPROVAL:
                text = json.loads(letter.answer)
                approve = Resolution(text["how"]) is Resolution.APPROVED
                made = self._approvals.decide(letter.name, approve=approve, by=text["by"], reason=text["reason"])
                self.taken[way] += isinstance(made, Decided)
                match made:
                    case Unknown():
                        await self._mailbox.close(Open(Kind.APPROVAL, letter.name, "", self._owner), State.LATE)
                    case AlreadyDecided(resolved) if (resolved.how is Resolution.APPROVED) is not approve:
                        logger.warning(
                            "approval %s: a decision that was left for it came too late, and is not used: it had been "
                            "%s here",
                            letter.name,
                            resolved.how.value,
                        )

    async def _complete(self, letter: Letter, way: Way) -> None:
        completion = self._parking.give(letter.name, read_answer(letter.answer))
        match completion.verdict:
            case Verdict.ACCEPTED:
                self.taken[way] += 1
                state = State.TAKEN
            case Verdict.REPEATED:
                state = State.TAKEN
            case Verdict.UNKNOWN if letter.name not in self._early:
                self._early.add(letter.name)  # it has been claimed, and may be about to begin
                return
            case _:
                state = State.LATE
                logger.warning(
                    "call %.100r: an outcome that was left for it came too late, and is not used", letter.name
                )
        self._early.discard(letter.name)
        if state is State.TAKEN and self._recording(letter.name):
            return  # should this process die now, whoever comes after it finds the outcome there
        await self._mailbox.close(self._call(letter.name), state)

    async def _flush(self) -> None:
        while self._outbox:
            write = self._outbox.popleft()
            try:
                await write()
            except JournalError:
                self._outbox.appendleft(write)
                raise

    async def _beat(self) -> None:
        now = time.monotonic()
        if self._beat_due is not None and now < self._beat_due:
            return
        beat = await self._mailbox.beat(self._owner, attended=self._approvals.attended)
        if beat.lapsed and self._beat_due is not None:
            logger.warning(
                "this process was frozen, or without its database, for longer than its lease of %g s: others may have "
                "taken it for dead, and recovered its calls; see 'journal list'",
                self._mailbox.lease,
            )
        self._beat_due = now + self._mailbox.lease / _BEATS
        self._approvals.attended_elsewhere = beat.attended

    def _complain(self, error: JournalError) -> None:
        if not self.trouble:
            logger.warning("what other processes are told about calls of this one is taken up later: %s", error)
        self.trouble = str(error)

    def _relieved(self) -> None:
        if self.trouble:
            self.trouble = ""
            logger.info("what other processes are told about calls of this one is taken up again")

    # --------------------------------------------------------------------------------------------------- the dead

    async def dead(self) -> Callable[[str], bool]:
        """Tells which owners are dead: those that `died_here`, and those whose lease has run out. `JournalError`.

        Whoever might live gets the time to renew its lease: a database that was away has let all of them run out. And
        one that is called like this process may be an earlier life of it, or live within it.
        """
        first = await self._mailbox.leases()
        lapsed = first.lapsed - {self._owner}
        namesakes = {each for each in first.live if _process(each) == _process(self._owner)} - {self._owner}
        if lapsed or namesakes:
            await asyncio.sleep(_MISSED * self._mailbox.lease / _BEATS)
            second = await self._mailbox.leases()
            lapsed &= second.lapsed
            namesakes = {each for each in namesakes if second.live.get(each, 0.0) > first.live[each]}
        return lambda owner: owner in lapsed or (died_here(owner, self._owner) and owner not in namesakes)

    async def conclude(self, journal: Journal, dead: Callable[[str], bool], *, session: str | None = None) -> None:
        """Record the outcomes that were left for calls of the dead, of one session or of all, before anybody guesses at
        them. Raises `JournalError`.

        They stay in the mailbox: one that was taken for dead, and was only frozen, tells the same when it wakes up.
        """
        claims = await journal.claims(session=session, states=[CallState.STARTED])
        started = [each for each in claims if each.owner != self._owner]
        for owner in {each.owner for each in started if dead(each.owner)}:
            calls = {ticket_of(each): each for each in started if each.owner == owner}
            for letter in await self._mailbox.take(owner):
                if (claimed := calls.get(letter.name)) is not None:
                    result, outcome = result_of(claimed, read_answer(letter.answer))
                    await journal.conclude(claimed.call, result, outcome)

    async def take_over(self, owner: str) -> None:
        """Calls of a dead owner wait here now: give them what was left for them before that. Raises `JournalError`."""
        for letter in await self._mailbox.take(owner):
            if letter.kind is Kind.CALL and self._parking.has(letter.name):
                self._parking.give(letter.name, read_answer(letter.answer))

    async def stands(self, claimed: Claimed, result: ToolResult, outcome: str) -> tuple[ToolResult, str]:
        """What stands as the outcome of a call of the dead: this, or what somebody has left for it until this moment.

        Later than that nothing can be left for it: of two answers the database lets one win. Raises `JournalError`.
        """
        ticket = ticket_of(claimed)
        receipt = await self._mailbox.post(Kind.CALL, ticket, answer_text(answer_of(result)))
        match receipt.posted:
            case Posted.ACCEPTED:
                # It is nobody's answer: who comes later is late.
                await self._mailbox.close(Open(Kind.CALL, ticket, claimed.call.session, claimed.owner), State.LATE)
            case Posted.CONFLICT if receipt.answer:
                return result_of(claimed, read_answer(receipt.answer))
        return result, outcome

    async def aclose(self, timeout: float) -> None:
        """Tell others how it stands, for up to `timeout` seconds. On the tools' loop."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        try:
            async with asyncio.timeout(timeout):
                await self._flush()
                await self._mailbox.resign(self._owner)
        except (JournalError, TimeoutError):
            logger.warning("other processes learn of the end of this one when its lease runs out")


def _process(owner: str) -> str:
    """Without what tells one life from another."""
    return owner.rpartition("/")[0]
