"""What happened, durably: the facts of every session, and a claim for every call that must not run twice.

Facts are the records. What a session did can be replayed from them, so nothing else is written about it. Beside them
stand claims, one row per call, because "has this been started?" needs an answer that two processes cannot both get.

A `Journal` is one of three stores with the same behaviour: `MemoryJournal` (gone with the process), `open_sqlite` (one
file, one process), `open_postgres` (any number of processes). `open_journal` picks one by its address.

A call passes through these states, and never goes back:

    STARTED ──► OWED ──► SENT
       │          ├────► DISCARDED
       └──────────┴────► ORPHANED ──► SENT

One that somebody outside works on stays started, and waits, whatever becomes of the process that began it.

A result that is owed is kept whole. Once it is sent or discarded, only what the setting allows stays.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol, Self

from ..core.dialect import Delivery
from ..core.events import CallKey, Fact, ToolResult

__all__ = [
    "MARK_BITS",
    "UNFINISHED",
    "Begun",
    "CallId",
    "Claim",
    "Claimed",
    "Concluded",
    "Conflict",
    "Entry",
    "Fate",
    "Finished",
    "Foreign",
    "Granted",
    "Journal",
    "Lost",
    "Part",
    "Record",
    "Retention",
    "State",
    "Stored",
    "Unknown",
    "Verdict",
]

# ---------------------------------------------------------------------------------------------------------- entries


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn machine starts afresh here, with these switches: where a replay begins."""

    delivery: Delivery
    turn: int = 0
    """The number of its latest reply: not 0 in a session that another process has begun."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Entries of this session that are missing here, because they could not be written in time."""

    entries: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """An entry that this version does not know, kept as it is: a later version has written it."""

    kind: str
    body: bytes = field(repr=False)
    """JSON."""


Record = Fact | Begun | Lost | Foreign


class Part(Enum):
    """What an entry has to do with the turn machine of its session."""

    HEARD = "heard"
    """It came to the machine, or tells where a machine begins."""
    DECIDED = "decided"
    """The machine has decided it."""
    NOTED = "noted"
    """Neither: a call of the application's own tools, or something that was put there for others to read."""


MARK_BITS: Final = 32
"""Of a mark: those that number the entries of one writer."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that happened in a session."""

    at: float
    """Seconds since 1970."""
    session: str
    fact: Record
    part: Part = Part.NOTED
    mark: int | None = None
    """Tells the entries of a session apart: one that is appended again with its mark is there once.

    Marks grow. Their upper bits, above `MARK_BITS`, are those of whoever writes.
    """

    @property
    def writer(self) -> int | None:
        """Who has written it, as far as its mark tells."""
        return None if self.mark is None else self.mark >> MARK_BITS

    def __post_init__(self) -> None:
        if not math.isfinite(self.at):
            raise ValueError(f"an entry cannot have been made at {self.at}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A session, as the journal knows it."""

    session: str
    began: float
    latest: float
    """When the first and the latest entry were made, in seconds since 1970."""
    entries: int
    size: int
    """Bytes of its entries, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What `prune` removes: whole sessions, the oldest first. One with unfinished calls stays for as long as it has."""

    max_age: float | None = 30 * 86_400.0
    """Seconds since the latest entry of a session."""
    max_size: int | None = None
    """Bytes of all entries, about.

    A file does not become smaller; what comes later takes the room.
    """


# ----------------------------------------------------------------------------------------------------------- claims


class CallId(NamedTuple):
    """What tells one call from every other, in all sessions."""

    session: str
    epoch: int
    call_id: str

    @classmethod
    def of(cls, session: str, key: CallKey) -> Self:
        return cls(session, key.epoch, key.call_id)

    @property
    def key(self) -> CallKey:
        """The same within its session."""
        return CallKey(self.epoch, self.call_id)


class State(Enum):
    """How far a call has come."""

    STARTED = "started"
    """May be running, may have run; its outcome is not known."""
    OWED = "owed"
    """Has its outcome, which has not been sent. After a crash: whether it was delivered is unknown."""
    SENT = "sent"
    DISCARDED = "discarded"
    ORPHANED = "orphaned"
    """Its session is gone for good, and nobody has been told."""


UNFINISHED: frozenset[State] = frozenset({State.STARTED, State.OWED})

Fate = Literal[State.SENT, State.DISCARDED, State.ORPHANED]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A call as the journal knows it."""

    call: CallId
    tool: str
    owner: str
    """The process that has claimed it."""
    since: float
    """When, in seconds since 1970."""
    state: State
    arguments: str | None = field(default=None, repr=False)
    """JSON text; None once the call has its outcome."""
    result: ToolResult | None = field(default=None, repr=False)
    """None without an outcome, and where the result is not kept any more."""
    outcome: str = ""
    until: float | None = None
    """By when its outcome has to come from outside, in seconds since 1970; None if its tool has not left it open."""

    def waits(self, now: float) -> bool:
        """Does somebody outside still work on it, whatever has become of its process?"""
        return self.state is State.STARTED and self.until is not None and now < self.until


@dataclass(frozen=True, slots=True)
class Granted:
    """The call is yours: run it. Nobody else is told so."""


@dataclass(frozen=True, slots=True)
class Finished:
    """It has been run."""

    result: ToolResult | None = field(repr=False)
    """None where it is not kept any more."""
    outcome: str
    state: State


@dataclass(frozen=True, slots=True)
class Unknown:
    """It has been started, and what came of it is not known."""

    since: float
    owner: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another call has this id: another tool, or other arguments."""

    tool: str


Claim = Granted | Finished | Unknown | Conflict


class Verdict(Enum):
    """What became of an outcome that was to be recorded."""

    RECORDED = "recorded"
    REPEATED = "repeated"
    """The same stands already."""
    CONFLICT = "conflict"
    """Another stands, and goes on to."""
    UNCLAIMED = "unclaimed"
    """There is no such call."""


@dataclass(frozen=True, slots=True)
class Concluded:
    """What became of an outcome, and which one stands."""

    verdict: Verdict
    result: ToolResult | None = field(default=None, repr=False)
    """None where there is none, or where it is not kept any more."""
    outcome: str = ""


# ---------------------------------------------------------------------------------------------------------- the store


class Journal(Protocol):
    """A store. Every method raises `JournalError` when it cannot do its work within the store's time limit, and can be
    called from any event loop. What has returned is durable.
    """

    async def append(self, entries: Sequence[Entry]) -> None:
        """Write these, in this order, all or none."""
        ...

    async def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, *, instead_of: str | None = None
    ) -> Claim:
        """Ask to run this call. `arguments` is JSON text; how it is spelled does not matter.

        `owner` names this process in this life. `instead_of` names an owner that is dead: what it has started and not
        finished may be granted again, to one of those who ask. Raises `ValueError` if the two are the same, and for a
        call whose name is too long to be kept.

        After a `JournalError` the call must not be run: the claim may stand, and nobody will be granted it.
        """
        ...

    async def leave(self, call: CallId, until: float) -> None:
        """The tool of a claimed call has left it open: its outcome comes from outside, by then (seconds since 1970)."""
        ...

    async def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Concluded:
        """Record how a call ended. The first outcome stands; the same once more is welcome."""
        ...

    async def settle(self, calls: Sequence[CallId], state: Fate) -> frozenset[CallId]:
        """These results have been sent (tell so only after the send has returned), discarded, or have lost their
        session. What has been sent or discarded stays that; what has no outcome yet cannot be sent. Returns those that
        are so now, and were not sent or discarded before: of several who tell the same, one is told that it is news.
        """
        ...

    async def claims(
        self, *, session: str | None = None, owner: str | None = None, states: Collection[State] = UNFINISHED
    ) -> tuple[Claimed, ...]:
        """Calls in these states, oldest first: by default those that a dead process has left behind."""
        ...

    def read(
        self, session: str | None = None, *, after: int = 0, follow: bool = False
    ) -> AsyncIterator[tuple[int, Entry]]:
        """Entries with their numbers, which grow and have gaps; whoever goes on after the last one misses none.

        `follow`: wait for more, also while the store is out of order, until the journal is closed.
        """
        ...

    async def sessions(self, *, limit: int | None = None) -> tuple[Stored, ...]:
        """The latest first."""
        ...

    async def erase(self, session: str) -> bool:
        """Remove everything about a session. False if there was nothing.

        A file keeps no byte of it. For that it is written anew, about a second per 100 MB in which nothing else is, so
        erase when few call. A database gives the bytes away with its next vacuum, and its backups are its own matter.
        """
        ...

    async def prune(self, now: float) -> int:
        """Remove what is too old or too much, as of `now` in seconds since 1970. Returns the number of sessions."""
        ...

    async def check(self) -> None:
        """Write something that says nothing, to see whether anything can be."""
        ...

    async def aclose(self) -> None:
        """Write what has been asked for, within the time limit, and let go of everything."""
        ...
