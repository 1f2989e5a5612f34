"""The mailbox of a database that several processes share: its statements, and the thread in which they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from . import CallId
from .encoding import escaped, indexed, unescaped
from .mailbox import Beat, Kind, Leases, Letter, Open, Posted, Receipt, State, calls_of
from .payloads import Payloads
from .stored import Database, Prepared
from .tables import Fetch, Rows, Statement, Write
from .worker import Job, Worker

__all__ = ["LEASES_SCHEMA", "SharedMailbox"]

_REMEMBERED: Final = 86_400.0
"""Seconds for which it is known what became of an answer."""
_AT_ONCE: Final = 500

LEASES_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS bridge_leases (
    owner TEXT PRIMARY KEY,
    until DOUBLE PRECISION NOT NULL,
    attended SMALLINT NOT NULL
)
"""

_NOW = "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"
_THIS = "kind = ? AND name = ?"
_CLAIM = "SELECT 1 FROM bridge_claims WHERE session = ? AND epoch = ? AND call_id = ?"
# The owner of what is open must live; but a lease that has just run out may be the database's own absence.
_OPEN = (
    f"state = 'open' AND (until IS NULL OR until > {_NOW}) AND EXISTS"
    f" (SELECT 1 FROM bridge_leases AS l WHERE l.owner = bridge_mail.owner AND l.until > {_NOW} - ?)"
)
_SHOWN: Final = "shown"
"""The kind of a row that shows that a claimed call waits. It is never answered."""
_ANNOUNCE = (
    "INSERT INTO bridge_mail (kind, name, session, owner, state, about, until, changed)"
    f" SELECT {{kind}}, ?, ?, ?, 'open', ?, {_NOW} + CAST(? AS DOUBLE PRECISION), {_NOW} WHERE {{waits}}"
    " ON CONFLICT (kind, name) DO UPDATE SET owner = excluded.owner, about = excluded.about,"
    f" changed = excluded.changed WHERE bridge_mail.kind = '{_SHOWN}'"
)
_ANSWER_OPEN = (
    f"UPDATE bridge_mail SET state = 'posted', answer = ?, digest = ?, changed = {_NOW} WHERE {_THIS} AND {_OPEN}"
)
# Whoever concludes the call waits for this, or this for them: it is never answered after its end.
_ANSWER_CLAIMED = (
    "INSERT INTO bridge_mail (kind, name, session, owner, state, answer, digest, changed)"
    f" SELECT 'call', ?, session, owner, 'posted', ?, ?, {_NOW} FROM bridge_claims"
    " WHERE session = ? AND epoch = ? AND call_id = ? AND state = 'started' AND outcome IS NULL FOR SHARE"
    " ON CONFLICT DO NOTHING"
)
_NOTIFY = f"SELECT pg_notify('bridge_mail', owner) FROM bridge_mail WHERE {_THIS} AND state = 'posted'"
_FIND = f"SELECT state, digest, about, answer, {_OPEN} FROM bridge_mail WHERE {_THIS}"
_STARTED = f"{_CLAIM} AND state = 'started' AND outcome IS NULL"
_ENDED = f"EXISTS (SELECT 1 FROM bridge_mail WHERE {_THIS} AND NOT ({_OPEN}))"
_TAKE = (
    "SELECT kind, name, answer FROM bridge_mail WHERE owner = ? AND state = 'posted'"
    f" ORDER BY changed, name LIMIT {_AT_ONCE}"
)
_CLOSE = (
    f"UPDATE bridge_mail SET state = ?, about = ?, answer = ?, changed = {_NOW} WHERE {_THIS} AND owner = ?"
    " AND (state = 'open' OR (state = 'posted' AND ? <> 'closed'))"
)
_UNSHOW = f"DELETE FROM bridge_mail WHERE kind = '{_SHOWN}' AND name = ? AND owner = ?"
_WAITING = f"SELECT name, session, owner, about, until - {_NOW} FROM bridge_mail WHERE kind IN (?, ?) AND {_OPEN}"
_RENEW = f"UPDATE bridge_leases SET until = {_NOW} + ?, attended = ? WHERE owner = ? AND until > {_NOW}"
_BEGIN_AGAIN = (
    f"INSERT INTO bridge_leases (owner, until, attended) VALUES (?, {_NOW} + ?, ?)"
    " ON CONFLICT (owner) DO UPDATE SET until = excluded.until, attended = excluded.attended"
)
_UNFINISHED = "SELECT 1 FROM bridge_claims AS c WHERE c.owner = l.owner AND c.state IN ('started', 'owed')"
_FORGET = (
    f"DELETE FROM bridge_mail AS m WHERE changed < {_NOW} - {_REMEMBERED} AND (state IN ('taken', 'late', 'closed')"
    " OR NOT EXISTS (SELECT 1 FROM bridge_leases AS l WHERE l.owner = m.owner))",
    f"DELETE FROM bridge_leases AS l WHERE until < {_NOW} - {_REMEMBERED} AND NOT EXISTS ({_UNFINISHED})",
)
_ATTENDED = f"SELECT 1 FROM bridge_leases WHERE attended = 1 AND owner <> ? AND until > {_NOW} LIMIT 1"
_RESIGN = f"UPDATE bridge_leases SET until = {_NOW}, attended = 0 WHERE owner = ?"
_LEASES = f"SELECT owner, until, until > {_NOW} FROM bridge_leases AS l WHERE until > {_NOW} OR EXISTS ({_UNFINISHED})"


class SharedMailbox:
    """The `Mailbox` of a database, over one connection in a thread of its own. Made by `open_postgres`.

    A writer that is behind with entries does not hold it up, so that leases are renewed all the same. `listen` begins
    to listen to notices, and `listening` tells whether that works.
    """

    def __init__(
        self,
        database: Database,
        payloads: Payloads,
        *,
        limit: float,
        poll: float,
        lease: float,
        listen: Callable[[], None],
        listening: Callable[[], bool],
    ) -> None:
        self.poll = poll
        self.lease = lease
        self._database = database
        self._payloads = payloads
        self._seal = payloads.seal
        self._listen = listen
        self._listening = listening
        self._rings: dict[str, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._worker = Worker("journal mailbox", self._work, limit=limit, late=database.shake)

    # ---------------------------------------------------------------------------------------------------- notices

    @property
    def listening(self) -> bool:
        """See `Mailbox`."""
        return self._listening()

    @contextmanager
    def rings(self, owner: str, ring: Callable[[], None]) -> Iterator[None]:
        """See `Mailbox`."""
        with self._lock:
            self._rings[escaped(owner)] = ring
        self._listen()
        try:
            yield
        finally:
            with self._lock:
                del self._rings[escaped(owner)]

    def ring(self, owner: str | None = None) -> None:
        """A notice has come for this owner, as the database writes its name; None: any may have been missed."""
        with self._lock:
            rings = [each for name, each in self._rings.items() if owner in (None, name)]
        for each in rings:
            each()

    # ---------------------------------------------------------------------------------------------------- answers

    async def announce(self, item: Open) -> None:
        """See `Mailbox`."""
        calls = calls_of(item.name) if item.kind is Kind.CALL else ()
        claimed, started = _any(_CLAIM, calls), _any(_STARTED, calls)
        kind = f"CASE WHEN {claimed} THEN '{_SHOWN}' ELSE '{item.kind.value}' END"
        announce = _ANNOUNCE.format(kind=kind, waits=f"{started} OR NOT ({claimed})")
        row = (*indexed(item.name), *indexed(item.session), escaped(item.owner))
        keys, about = _keys(calls), self._sealed(item.kind, item.name, item.about)
        values = (*keys, *row, about, item.seconds, *keys, *keys)
        await self._write(Write(lambda: [(announce, values)], _nothing))

    async def post(self, kind: Kind, name: str, answer: str) -> Receipt:
        """See `Mailbox`."""
        this, digest = (kind.value, escaped(name)), self._payloads.digest(answer)
        calls = calls_of(name) if kind is Kind.CALL else ()

        def statements() -> list[Statement]:
            sealed = self._sealed(kind, name, answer)
            answers: list[Statement] = [(_ANSWER_OPEN, (sealed, digest, *this, self.lease))]
            answers += [(_ANSWER_CLAIMED, (escaped(name), sealed, digest, *_keys([call]))) for call in calls]
            return [*answers, (_NOTIFY, this)]

        def meaning(changed: Sequence[int], fetch: Fetch) -> Receipt | None:
            for row in fetch(_FIND, (self.lease, *this)):
                first, answerable = any(changed[:-1]), row[4]
                same = row[1] == digest
                return None if answerable else self._receipt(kind, name, row, first=first, same=same)
            if any(fetch(_STARTED, _keys([call])) for call in calls):
                return None
            claimed = any(fetch(_CLAIM, _keys([call])) for call in calls)
            return Receipt(Posted.OVER if claimed else Posted.UNKNOWN)

        # What is there to be answered has come between the statements, so that it can be answered now.
        while (receipt := await self._write(Write(statements, meaning))) is None:
            pass
        answered: Receipt = receipt
        return answered

    def _receipt(self, kind: Kind, name: str, row: Sequence[Any], *, first: bool, same: bool) -> Receipt:
        state, _, about, answer, _ = row
        if first:
            posted = Posted.ACCEPTED
        elif State(state) in (State.POSTED, State.TAKEN):
            posted = Posted.REPEATED if same else Posted.CONFLICT
        else:
            posted = Posted.OVER
        return Receipt(posted, self._unsealed(kind, name, about), self._unsealed(kind, name, answer), State(state))

    async def over(self, kind: Kind, name: str) -> bool:
        """See `Mailbox`."""
        calls = calls_of(name) if kind is Kind.CALL else ()
        asked = f"SELECT {_ENDED} OR (({_any(_CLAIM, calls)}) AND NOT ({_any(_STARTED, calls)}))"
        keys = _keys(calls)
        ((over,),) = await self._read((asked, (kind.value, escaped(name), self.lease, *keys, *keys)))
        return bool(over)

    async def take(self, owner: str) -> tuple[Letter, ...]:
        """See `Mailbox`."""
        rows = await self._read((_TAKE, (escaped(owner),)))
        return tuple([self._letter(Kind(kind), unescaped(name), answer) for kind, name, answer in rows])

    def _letter(self, kind: Kind, name: str, answer: Any) -> Letter:
        return Letter(kind, name, self._unsealed(kind, name, answer))

    async def close(self, item: Open, state: State, answer: str = "") -> None:
        """See `Mailbox`."""
        kept = [self._sealed(item.kind, item.name, text) if text else None for text in (item.about, answer)]
        name, owner = escaped(item.name), escaped(item.owner)
        work: list[Statement] = [(_CLOSE, (state.value, *kept, item.kind.value, name, owner, state.value))]
        if item.kind is Kind.CALL:
            work.append((_UNSHOW, (name, owner)))
        await self._write(Write(lambda: work, _nothing))

    async def waiting(self, kind: Kind) -> tuple[Open, ...]:
        """See `Mailbox`."""
        kinds = (kind.value, _SHOWN if kind is Kind.CALL else kind.value)
        rows = await self._read((f"{_WAITING} ORDER BY changed, name", (*kinds, 0.0)))
        return tuple(
            [
                Open(
                    kind,
                    unescaped(name),
                    unescaped(session),
                    unescaped(owner),
                    self._unsealed(kind, unescaped(name), about),
                    left,
                )
                for name, session, owner, about, left in rows
            ]
        )

    # ----------------------------------------------------------------------------------------------------- leases

    async def beat(self, owner: str, *, attended: bool) -> Beat:
        """See `Mailbox`."""
        name = escaped(owner)
        renew: Statement = (_RENEW, (self.lease, int(attended), name))

        def meaning(changed: Sequence[int], fetch: Fetch) -> Beat:
            if not changed[-1]:
                fetch(f"{_BEGIN_AGAIN} RETURNING 1", (name, self.lease, int(attended)))
            return Beat(lapsed=not changed[-1], attended=bool(fetch(_ATTENDED, (name,))))

        beat: Beat = await self._write(Write(lambda: [*((sql, ()) for sql in _FORGET), renew], meaning))
        return beat

    async def resign(self, owner: str) -> None:
        """See `Mailbox`."""
        await self._write(Write(lambda: [(_RESIGN, (escaped(owner),))], _nothing))

    async def leases(self) -> Leases:
        """See `Mailbox`."""
        rows = await self._read((_LEASES, ()))
        live = {unescaped(owner): until for owner, until, lives in rows if lives}
        return Leases(live, frozenset(unescaped(owner) for owner, _, lives in rows if not lives))

    # ------------------------------------------------------------------------------------------------- the database

    def _sealed(self, kind: Kind, name: str, text: str) -> bytes:
        return self._seal.seal(text.encode(errors="surrogatepass"), f"mail {kind.value} {escaped(name)}")

    def _unsealed(self, kind: Kind, name: str, data: Any) -> str:
        if data is None:
            return ""
        opened = self._seal.unseal(bytes(data), f"mail {kind.value} {escaped(name)}")
        return opened.decode(errors="surrogatepass")

    async def _write(self, write: Write[Any]) -> Any:
        return await self._worker.do(write, "nothing could be left in the journal's mailbox")

    async def _read(self, statement: Statement) -> Rows:
        rows: Rows = await self._worker.do(statement, "the journal's mailbox could not be read")
        return rows

    def _work(self, jobs: Sequence[Job[Write[Any] | Statement]]) -> None:
        """In the mailbox's thread: all that is to be written in one transaction, then what is to be read."""
        writes = [(job, job.what) for job in jobs if isinstance(job.what, Write)]
        if writes:
            prepared: list[Prepared] = [(write, write.statements()) for _, write in writes]
            for (job, _), answer in zip(writes, self._database.write(prepared), strict=True):
                if isinstance(answer, Exception):
                    job.done.set_exception(answer)
                else:
                    job.done.set_result(answer)
        for job in jobs:
            if isinstance(job.what, tuple):
                job.done.set_result(self._database.read(job.what))

    async def aclose(self) -> None:
        """Write what waits, within the time limit, and let go of the connection."""
        if await self._worker.aclose():
            self._database.close()


def _nothing(changed: Sequence[int], fetch: Fetch) -> None:
    """There is nothing to tell."""


def _any(claim: str, calls: Sequence[CallId]) -> str:
    """Is there such a claim of any of these calls? For `_keys`."""
    return " OR ".join(f"EXISTS ({claim})" for _ in calls) or "FALSE"


def _keys(calls: Sequence[CallId]) -> tuple[Any, ...]:
    return tuple(part for call in calls for part in (escaped(call.session), call.epoch, escaped(call.call_id)))
