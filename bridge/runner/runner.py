"""What the calls of all sessions of a process share. How a call comes to its result is in `calls`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial

from ..journal import CallId, Journal, State
from ..journal.mailbox import WithMailbox
from ..tools.tool import Tool
from .approvals import ApprovalRequest, Approvals, Decision
from .calls import Calls, Process, Shared
from .durable import Durable
from .guards import Guards
from .leftovers import Recovered, died_here, recover
from .limits import LoopBreaker, Slots, Threads
from .parking import Answer, Completion, Parking, Verdict, Waiting
from .post import Post
from .replays import Replays
from .run import Finished, Outcome
from .waits import Waits

__all__ = ["Calls", "Finished", "Outcome", "Runner"]


class Runner:
    """What the calls of all sessions of a process share: slots, threads, approvals, and what waits for the outside."""

    def __init__(
        self,
        *,
        max_concurrent: int = 256,
        max_threads: int = 32,
        max_failures: int = 5,
        failure_pause: float = 30.0,
        max_parked: int = 1000,
        approvals: Approvals | None = None,
        journal: Journal | None = None,
        owner: str | None = None,
        watchers: tuple[Callable[[Finished], None], ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A tool that fails `max_failures` times in a row is not called for `failure_pause` seconds, then tried once.

        At most `max_parked` calls wait for something outside. With a `journal`, which stays the caller's, tools whose
        effect is not "read" run once: see `Durable`, which has to observe the sessions, and whose `owner` names this
        process in this life. If several processes share it, `settle` and `decide` reach the calls of all: see `Post`.
        `watchers` are told of every call that is over, of any session: `Metrics.finished` is one.
        """
        self.guards = Guards(max_failures=max_failures, pause=failure_pause, clock=clock)
        self.approvals = approvals or Approvals()
        parking, threads = Parking(max_parked), Threads(max_threads)
        self._journal = journal
        self._again: set[CallId] = set()
        """Calls of the dead that a recovery has taken over, and could not bring to an end."""
        self.durable: Durable | None = None
        self.waits: Waits | None = None
        self.post: Post | None = None
        if journal is not None:
            self.durable = durable = Durable(journal, owner)
            self.waits = waits = Waits(journal, durable.owner, parking)
            mailbox = journal.mailbox if isinstance(journal, WithMailbox) else None
            if mailbox is not None:

                def recording(ticket: str) -> bool:
                    return durable.recording(ticket) or ticket in waits

                self.post = Post(mailbox, durable.owner, parking, self.approvals, recording)
        shared = Shared(Slots(max_concurrent), {}, Replays(clock))
        self._process = Process(shared, self.guards, self.approvals, parking, threads, watchers, clock, self.durable)

    def session(
        self, *, max_concurrent: int = 4, max_queue: int = 32, repeat_limit: int = 5, calls_per_minute: int = 60
    ) -> Calls:
        """The calls of a new session.

        At most `max_concurrent` run at once and `max_queue` wait. A tool that is called with the same arguments more
        than `repeat_limit` times in a row is not run; nor is any tool beyond `calls_per_minute`.
        """
        own = Shared(Slots(max_concurrent), {}, Replays(self._process.clock))
        return Calls(self._process, own, LoopBreaker(repeat_limit, calls_per_minute), max_queue)

    def complete(self, ticket: str, value: object) -> Completion:
        """The outcome of a call that its tool has left open (`Parked`), by its `CallContext.ticket`. From any thread.

        The first outcome stands. Raises `Unencodable` or `TooLarge` for what cannot be a result; the call stays open.
        """
        return self._process.parking.complete(ticket, value)

    def fail(self, ticket: str, sentence: str) -> Completion:
        """The same for work that came to nothing; the sentence is for the model."""
        return self._process.parking.fail(ticket, sentence)

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion:
        """The outcome of a call, wherever it runs: like `complete`, or `fail` where there is an `error`.

        With a journal the outcome is durable once this returns, also for a call whose process has died and that waits
        on (only for one that runs here may that come later, if the journal is out of order), and the same again is
        recognised in any later life. Of two that come to two processes at once one stands.
        `ACCEPTED` for a call of another process: it will be told there unless the call ends in this moment. Raises
        `Unencodable`, `TooLarge`, and `JournalError` where nobody can say now whose call it is, or keep the outcome;
        then try again.
        """
        parking = self._process.parking
        if self.waits is None:
            return self.fail(ticket, error) if error else self.complete(ticket, value)
        answer = Answer(error=error) if error else parking.result(ticket, value)
        if self.post is None:
            return await self.waits.settle(ticket, answer)
        completion = await self.post.settle(ticket, answer)
        if completion.verdict is Verdict.UNKNOWN and (known := await self.waits.find(ticket)):
            return await self.waits.stored(known, answer)  # the mailbox forgets after a day
        return completion

    async def is_over(self, ticket: str) -> bool | None:
        """Would an outcome of this call come too late, wherever it runs? None if nobody knows of it.

        Raises `JournalError`.
        """
        if self.post is not None:
            return True if await self.post.is_over(ticket) else None
        known = None if self.waits is None else await self.waits.find(ticket)
        if known is None:
            return None
        return known.state is not State.STARTED or (known.until is not None and not known.waits(time.time()))

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request for approval, wherever it waits; see `Approvals.decide`. Raises `JournalError`, as above."""
        if self.post is None:
            return self.approvals.decide(request_id, approve=approve, by=by, reason=reason)
        return await self.post.decide(request_id, approve=approve, by=by, reason=reason)

    async def requests_elsewhere(self) -> tuple[ApprovalRequest, ...]:
        """The requests for approval that wait at other processes, oldest first. Raises `JournalError`."""
        return () if self.post is None else await self.post.requests_elsewhere()

    async def calls_elsewhere(self) -> tuple[Waiting, ...]:
        """The calls that wait at other processes to be completed from outside, oldest first. Raises `JournalError`."""
        return () if self.post is None else await self.post.calls_elsewhere()

    def begin(self) -> None:
        """Be one of the processes that share the journal, on the running loop, which is that of the tools.

        The first call does so, too; done before, others know at once that this process lives and who attends to it.
        """
        if self.post is not None:
            self.post.begin()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The tickets of the calls that wait to be completed from outside."""
        return tuple([each.ticket for each in self.left_open])

    @property
    def left_open(self) -> tuple[Waiting, ...]:
        """The calls that wait to be completed from outside, those that dead processes have left included."""
        return self._process.parking.waiting

    @property
    def parked(self) -> int:
        """Calls that go on although their session has been told to wait no longer, or has ended."""
        return self._process.parked

    @property
    def threads_busy(self) -> int:
        """Threads that run a tool, abandoned ones included."""
        return self._process.threads.busy

    @property
    def threads_abandoned(self) -> int:
        """Threads whose tool goes on although its call has been answered."""
        return self._process.threads.abandoned

    async def recover(
        self, tools: Mapping[str, Tool], *, dead: Callable[[str], bool] | None = None
    ) -> tuple[Recovered, ...]:
        """Bring to an end what dead processes have left in the journal; see `leftovers.recover`. Without one: nothing.

        Where several processes share it, those are dead, too, whose lease has run out, and outcomes that were left for
        their calls are recorded first. Calls that somebody outside works on are no leftovers: they go on waiting, here.
        On the event loop of the tools. Raises `JournalError`.
        """
        if self._journal is None or self.durable is None:
            return ()
        owner = self.durable.owner
        if self.post is not None:
            dead = dead or await self.post.dead()
            await self.post.conclude(self._journal, dead)
        gone = dead or partial(died_here, mine=owner)
        stands = None if self.post is None else self.post.stands
        await self.wait_on(tools, gone)  # first, so that one whose time ends in this moment is missed by neither
        return await recover(self._journal, tools, owner, dead=gone, stands=stands, again=self._again)

    async def wait_on(
        self, tools: Mapping[str, Tool], dead: Callable[[str], bool], *, session: str | None = None
    ) -> None:
        """Wait here for what the dead have left open, in one session or in all. Raises `JournalError`."""
        if self.waits is None:
            return
        stands = None if self.post is None else self.post.stands
        for owner in await self.waits.take(tools, dead, session=session, stands=stands):
            if self.post is not None:
                await self.post.take_over(owner)

    async def aclose(self, timeout: float) -> None:
        """Cancel the calls that have outlived their sessions, for up to `timeout` seconds, and approve no more.

        What has become of results is written into the journal, within as long again.
        """
        self.approvals.close()
        await asyncio.gather(*(calls.cancel(timeout) for calls in self._process.outliving))
        if self.waits is not None:
            await self.waits.aclose()
        if self.durable is not None:
            await self.durable.aclose(timeout)
        if self.post is not None:
            await self.post.aclose(timeout)

    def close(self) -> None:
        """Let the threads end, each after the tool it runs. Nobody waits for them, nor does the process."""
        self.approvals.close()
        self._process.threads.close()
