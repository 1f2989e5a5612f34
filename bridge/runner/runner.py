"""What the calls of all sessions of a process share. How a call comes to its result is in `calls`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from ..journal import Journal
from ..journal.mailbox import WithMailbox
from ..tools.tool import Tool
from .approvals import ApprovalRequest, Approvals, Decision
from .calls import Calls, Process, Shared
from .durable import Durable
from .guards import Guards
from .leftovers import Recovered, recover
from .limits import LoopBreaker, Slots, Threads
from .parking import Answer, Completion, Parking
from .post import Post
from .replays import Replays
from .run import Finished, Outcome

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
        self.durable = None if journal is None else Durable(journal, owner)
        mailbox = journal.mailbox if isinstance(journal, WithMailbox) else None
        self.post: Post | None = None
        if mailbox is not None and self.durable is not None:
            self.post = Post(mailbox, self.durable.owner, parking, self.approvals, self.durable.recording)
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

        Of two outcomes that come to two processes at once one stands. `ACCEPTED` for a call of another process: it is
        durable, and will be told there unless the call ends in this moment. Raises `Unencodable`, `TooLarge`, and
        `JournalError` where nobody can say now whose call it is; then try again.
        """
        parking = self._process.parking
        if self.post is None:
            return self.fail(ticket, error) if error else self.complete(ticket, value)
        return await self.post.settle(ticket, Answer(error=error) if error else parking.result(ticket, value))

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        """Decide a request for approval, wherever it waits; see `Approvals.decide`. Raises `JournalError`, as above."""
        if self.post is None:
            return self.approvals.decide(request_id, approve=approve, by=by, reason=reason)
        return await self.post.decide(request_id, approve=approve, by=by, reason=reason)

    async def requests_elsewhere(self) -> tuple[ApprovalRequest, ...]:
        """The requests for approval that wait at other processes, oldest first. Raises `JournalError`."""
        return () if self.post is None else await self.post.elsewhere()

    def begin(self) -> None:
        """Be one of the processes that share the journal, on the running loop, which is that of the tools.

        The first call does so, too; done before, others know at once that this process lives and who attends to it.
        """
        if self.post is not None:
            self.post.begin()

    @property
    def waiting(self) -> tuple[str, ...]:
        """The tickets of the calls that wait to be completed from outside."""
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
        their calls are recorded first. On the event loop of the tools. Raises `JournalError`.
        """
        if self._journal is None or self.durable is None:
            return ()
        stands = None
        if self.post is not None:
            dead, stands = dead or await self.post.dead(), self.post.stands
            await self.post.conclude(self._journal, dead)
        return await recover(self._journal, tools, self.durable.owner, dead=dead, stands=stands)

    async def aclose(self, timeout: float) -> None:
        """Cancel the calls that have outlived their sessions, for up to `timeout` seconds, and approve no more.

        What has become of results is written into the journal, within as long again.
        """
        self.approvals.close()
        await asyncio.gather(*(calls.cancel(timeout) for calls in self._process.outliving))
        if self.durable is not None:
            await self.durable.aclose(timeout)
        if self.post is not None:
            await self.post.aclose(timeout)

    def close(self) -> None:
        """Let the threads end, each after the tool it runs. Nobody waits for them, nor does the process."""
        self.approvals.close()
        self._process.threads.close()
