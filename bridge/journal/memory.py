"""A journal that ends with the process: for tests, and for those who want its bookkeeping without its promise."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from ..core.events import ToolResult
from ..errors import JournalError
from . import (
    UNFINISHED,
    CallId,
    Claim,
    Claimed,
    Concluded,
    Conflict,
    Entry,
    Fate,
    Finished,
    Granted,
    Retention,
    State,
    Stored,
    Unknown,
    Verdict,
)
from .encoding import encode, indexed
from .payloads import Payloads
from .stored import Bell, beyond, soon
from .tables import Age

__all__ = ["MemoryJournal"]


@dataclass(frozen=True, slots=True)
class _Row:
    claimed: Claimed
    asked: str
    """Digest of the arguments."""
    told: str = ""
    """Digest of the result."""


class MemoryJournal:
    """A `Journal` in memory. It keeps what the others keep, and forgets what they forget."""

    def __init__(
        self,
        *,
        payloads: Payloads | None = None,
        retention: Retention | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._payloads = payloads or Payloads()
        self._retention = retention or Retention()
        self._clock = clock
        self._entries: dict[int, Entry] = {}
        self._number = 0
        self._sizes: dict[str, int] = {}
        self._marks: set[tuple[str, int]] = set()
        self._claims: dict[CallId, _Row] = {}
        self._bell = Bell()
        self._closed = False

    async def append(self, entries: Sequence[Entry]) -> None:
        """See `Journal`. Raises `ValueError` for what cannot be written."""
        self._refuse_if_closed()
        kept = [replace(entry, fact=self._payloads.kept(entry.fact)) for entry in entries]
        sizes = [len(encode(entry.fact)[1]) for entry in kept]
        for entry in kept:
            indexed(entry.session)
        for entry, size in zip(kept, sizes, strict=True):
            if entry.mark is not None:
                if (entry.session, entry.mark) in self._marks:
                    continue
                self._marks.add((entry.session, entry.mark))
            self._number += 1
            self._entries[self._number] = entry
            self._sizes[entry.session] = self._sizes.get(entry.session, 0) + size
        self._bell.ring()

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        """See `Journal`."""
        self._refuse_if_closed()
        if owner == instead_of:
            raise ValueError(f"{owner} cannot take over from itself: an owner is one process in one life")
        indexed(call.session, call.call_id)
        digest = self._payloads.digest(arguments)
        row = self._claims.get(call)
        claimed = Claimed(call, tool, owner, self._clock(), State.STARTED, arguments)
        if row is None:
            self._claims[call] = _Row(claimed, digest)
            return Granted()
        known = row.claimed
        if (known.tool, row.asked) != (tool, digest):
            return Conflict(known.tool)
        if known.outcome:
            return Finished(known.result, known.outcome, known.state)
        if known.owner == instead_of and known.state is State.STARTED:
            self._claims[call] = _Row(replace(claimed, until=known.until), digest)
            return Granted()
        return Unknown(known.since, known.owner)

    async def leave(self, call: CallId, until: float) -> None:
        """See `Journal`."""
        self._refuse_if_closed()
        row = self._claims.get(call)
        if row is not None and not row.claimed.outcome:
            self._claims[call] = replace(row, claimed=replace(row.claimed, until=until))

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        """See `Journal`. Raises `ValueError` for an outcome without a name."""
        self._refuse_if_closed()
        if not outcome:
            raise ValueError("an outcome needs a name")
        row = self._claims.get(call)
        if row is None:
            return Concluded(Verdict.UNCLAIMED)
        known, digest = row.claimed, self._payloads.digest_of(result)
        if known.outcome:
            verdict = Verdict.REPEATED if row.told == digest else Verdict.CONFLICT
            return Concluded(verdict, known.result, known.outcome)
        state = State.OWED if known.state is State.STARTED else known.state
        stays = state is not State.DISCARDED or self._payloads.kept_result(result) == result
        known = replace(known, state=state, arguments=None, outcome=outcome, result=result if stays else None)
        self._claims[call] = replace(row, claimed=known, told=digest)
        return Concluded(Verdict.RECORDED, result, outcome)

    async def settle(self, calls: Sequence[CallId], state: Fate) -> frozenset[CallId]:
        """See `Journal`."""
        self._refuse_if_closed()
        news: set[CallId] = set()
        for call in calls:
            row = self._claims.get(call)
            if row is None or row.claimed.state in (State.SENT, State.DISCARDED):
                continue
            known = row.claimed
            if state is State.SENT and not known.outcome:
                continue
            kept = known.result
            if kept and state is not State.ORPHANED and self._payloads.kept_result(kept) != kept:
                kept = None
            self._claims[call] = replace(row, claimed=replace(known, state=state, arguments=None, result=kept))
            news.add(call)
        return frozenset(news)

    async def claims(
        self, *, session: str | None = None, owner: str | None = None, states: Collection[State] = UNFINISHED
    ) -> tuple[Claimed, ...]:
        """See `Journal`."""
        self._refuse_if_closed()
        found = [row.claimed for row in self._claims.values() if row.claimed.state in states]
        found = [each for each in found if session in (None, each.call.session) and owner in (None, each.owner)]
        return tuple(sorted(found, key=lambda each: (each.since, each.call)))

    async def read(
        self, session: str | None = None, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, Entry]]:
        """See `Journal`."""
        if not follow:
            self._refuse_if_closed()
        with self._bell.heard() as heard:
            while not (follow and self._closed):
                heard.clear()
                for number in range(after + 1, self._number + 1):
                    entry = self._entries.get(number)
                    if entry is not None and session in (None, entry.session):
                        yield number, entry
                    after = number
                if not follow:
                    return
                await soon(heard, None)

    async def sessions(self, *, limit: int | None = None) -> tuple[Stored, ...]:
        """See `Journal`."""
        self._refuse_if_closed()
        times: dict[str, list[float]] = {}
        for entry in self._entries.values():
            times.setdefault(entry.session, []).append(entry.at)
        found = [Stored(name, min(at), max(at), len(at), self._sizes[name]) for name, at in times.items()]
        return tuple(sorted(found, key=lambda each: (-each.latest, each.session)))[:limit]

    async def erase(self, session: str) -> bool:
        """See `Journal`."""
        self._refuse_if_closed()
        return self._erase(session)

    def _erase(self, session: str) -> bool:
        before = len(self._entries) + len(self._claims)
        self._entries = {number: each for number, each in self._entries.items() if each.session != session}
        self._claims = {call: row for call, row in self._claims.items() if call.session != session}
        self._marks = {(name, mark) for name, mark in self._marks if name != session}
        self._sizes.pop(session, None)
        return len(self._entries) + len(self._claims) < before

    async def prune(self, now: float) -> int:
        """See `Journal`."""
        unfinished = [row.claimed.call.session for row in self._claims.values() if row.claimed.state in UNFINISHED]
        stored = reversed(await self.sessions())
        oldest = [Age(each.session, each.latest, each.size, unfinished.count(each.session)) for each in stored]
        gone = list(beyond(self._retention, oldest, now))
        for session in gone:
            self._erase(session)
        if (max_age := self._retention.max_age) is not None:
            for call, row in list(self._claims.items()):
                finished = row.claimed.state not in UNFINISHED
                if finished and row.claimed.since < now - max_age and call.session not in self._sizes:
                    del self._claims[call]
        return len(gone)

    async def check(self) -> None:
        """See `Journal`."""
        self._refuse_if_closed()

    async def aclose(self) -> None:
        """See `Journal`."""
        self._closed = True
        self._bell.ring()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise JournalError("the journal is closed")
