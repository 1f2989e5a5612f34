"""What reaches one process and is meant for another: outcomes of calls, and decisions about them.

A journal that several processes share is their mailbox, too. An answer that comes to the wrong process is a row, and
durable; the process that owns the call takes it. It hears of it at once where notices arrive, and looks by itself now
and then, which is all that is relied upon: a notice that is lost makes an answer slower, never lost.

A row of the mailbox passes through these states, and never goes back:

    OPEN ──► POSTED ──► TAKEN
      │         └─────► LATE
      └──► CLOSED, TAKEN or LATE without an answer from elsewhere

Only what the journal does not know otherwise is OPEN to be answered: a request for approval, and a parked call of a
tool that reads. A call that was claimed is answered by its claim: what is announced of it only shows that it waits, and
goes when that is over. The first answer stands; the database decides that.

Whether an owner lives is told by its lease, which is kept and judged by the database's clock alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, runtime_checkable

from . import CallId

__all__ = [
    "Beat",
    "Kind",
    "Leases",
    "Letter",
    "Mailbox",
    "Open",
    "Posted",
    "Receipt",
    "State",
    "WithMailbox",
    "calls_of",
]


class Kind(Enum):
    """What a row is about; its name is a ticket, the id of a request, or a place in the line of those who serve."""

    CALL = "call"
    APPROVAL = "approval"
    SESSION = "session"
    """A session at a provider, which one of several processes serves: nobody answers that."""


class State(Enum):
    """How far a row has come."""

    OPEN = "open"
    """Somebody waits for an answer."""
    POSTED = "posted"
    """There is one, and its owner has not taken it."""
    TAKEN = "taken"
    LATE = "late"
    """The owner could not use it any more, or its matter was over without one."""
    CLOSED = "closed"
    """Over, and no answer had come."""


@dataclass(frozen=True, slots=True)
class Open:
    """Something that waits for an answer, as others see it."""

    kind: Kind
    name: str
    session: str
    owner: str
    about: str = field(default="", repr=False)
    """JSON text that the kind knows how to read; what must not be shown is masked already."""
    seconds: float | None = None
    """For how long it waits, from now; None if its owner says when it is over."""


@dataclass(frozen=True, slots=True)
class Letter:
    """An answer that waits to be taken."""

    kind: Kind
    name: str
    answer: str = field(repr=False)
    """JSON text."""


class Posted(Enum):
    """What became of an answer."""

    ACCEPTED = "accepted"
    """It is durable, and the first."""
    REPEATED = "repeated"
    CONFLICT = "conflict"
    """Another stands."""
    OVER = "over"
    """Too late."""
    UNKNOWN = "unknown"
    """Nobody waits for that, as far as the journal knows."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an answer, and what is known of its row."""

    posted: Posted
    about: str = field(default="", repr=False)
    answer: str = field(default="", repr=False)
    """The one that stands; empty if there is none, or it is not kept any more."""
    state: State | None = None
    """How far the row has come; None without one."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What is learnt when a lease is renewed."""

    lapsed: bool
    """There was no lease, or it had run out: others may have taken this process for dead."""
    attended: bool
    """Somebody hears of requests at another process."""


@dataclass(frozen=True, slots=True)
class Leases:
    """The owners that live, each with the end of its lease by the database's clock, in seconds since 1970; and those
    whose lease has run out, and who have left something unfinished in the journal.
    """

    live: Mapping[str, float]
    lapsed: frozenset[str]


class Mailbox(Protocol):
    """The mailbox of a journal that several processes share. Every method raises `JournalError` when it cannot do its
    work within the store's time limit, and can be called from any event loop. What has returned is durable.
    """

    poll: float
    """Seconds after which an owner looks by itself."""
    lease: float
    """Seconds for which an owner is taken to live after each `beat`."""

    @property
    def listening(self) -> bool:
        """Do notices arrive at this moment?"""
        ...

    async def announce(self, item: Open) -> None:
        """Others see this, and may answer it, from now on; a call that was claimed they may have answered before."""
        ...

    async def post(self, kind: Kind, name: str, answer: str) -> Receipt:
        """Leave an answer, JSON text, with whoever waits for it. Of several, the first stands."""
        ...

    async def over(self, kind: Kind, name: str) -> bool:
        """Would an answer to this come too late? What nobody knows of may yet come to be."""
        ...

    async def take(self, owner: str) -> tuple[Letter, ...]:
        """The answers that wait for this owner, oldest first; each again until it is closed."""
        ...

    async def close(self, item: Open, state: State, answer: str = "") -> None:
        """It is over. `about` and `answer` are what is kept for those who come later."""
        ...

    async def waiting(self, kind: Kind) -> tuple[Open, ...]:
        """What is announced and can be answered, oldest first."""
        ...

    def rings(self, owner: str, ring: Callable[[], None]) -> AbstractContextManager[None]:
        """A context in which `ring` is called, in any thread, when there may be something for this owner."""
        ...

    async def beat(self, owner: str, *, attended: bool) -> Beat:
        """This owner lives. `attended`: somebody hears of requests here."""
        ...

    async def resign(self, owner: str) -> None:
        """This owner ends."""
        ...

    async def leases(self) -> Leases: ...


@runtime_checkable
class WithMailbox(Protocol):
    """A journal that may have a mailbox."""

    @property
    def mailbox(self) -> Mailbox | None: ...


_DIGITS: Final = 18
"""Fewer decimal digits than these fit into a BIGINT."""


def calls_of(ticket: str) -> tuple[CallId, ...]:
    """The calls that a ticket (`session.epoch.call_id`) can mean: several only where a name holds numbers and dots."""
    parts = ticket.split(".")
    return tuple(
        CallId(".".join(parts[:at]), int(parts[at]), ".".join(parts[at + 1 :]))
        for at in range(1, len(parts) - 1)
        if parts[at].isascii() and parts[at].isdecimal() and len(parts[at]) < _DIGITS
    )
