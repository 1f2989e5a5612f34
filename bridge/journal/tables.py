"""The tables, the same in both databases, and every statement that reads or writes them.

Statements are written once, with `?` for a value. A `Write` is what a journal's method comes to: statements that run
inside one transaction with those of other callers, and what their effect means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ..core.events import ToolResult
from ..errors import ConfigError, JournalError
from . import (
    CallId,
    Claim,
    Claimed,
    Concluded,
    Conflict,
    Entry,
    Fate,
    Finished,
    Granted,
    Part,
    State,
    Stored,
    Unknown,
    Verdict,
)
from .encoding import decode, encode, escaped, indexed, result_from, result_text, unescaped
from .payloads import Payloads
from .sealing import Seal

__all__ = [
    "META",
    "META_SCHEMA",
    "SCHEMA",
    "TABLES",
    "Age",
    "Fetch",
    "Rows",
    "Statement",
    "Tables",
    "Write",
    "greeting",
]

T_co = TypeVar("T_co", covariant=True)

Statement = tuple[str, tuple[Any, ...]]
Rows = Sequence[tuple[Any, ...]]
Fetch = Callable[[str, tuple[Any, ...]], Rows]
"""Runs a statement and returns its rows."""

_SCHEMA_VERSION: Final = 2
TABLES: Final = ("bridge_entries", "bridge_sessions", "bridge_claims", "bridge_mail")

META_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS bridge_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS bridge_entries (
    id {serial},
    at DOUBLE PRECISION NOT NULL,
    session TEXT NOT NULL,
    mark BIGINT,
    part TEXT NOT NULL,
    kind TEXT NOT NULL,
    body {bytes} NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS bridge_entries_once ON bridge_entries (session, mark);
CREATE INDEX IF NOT EXISTS bridge_entries_of_session ON bridge_entries (session, id);
CREATE TABLE IF NOT EXISTS bridge_sessions (
    session TEXT PRIMARY KEY,
    began DOUBLE PRECISION NOT NULL,
    latest DOUBLE PRECISION NOT NULL,
    size BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS bridge_claims (
    session TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    call_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    digest TEXT NOT NULL,
    owner TEXT NOT NULL,
    since DOUBLE PRECISION NOT NULL,
    state TEXT NOT NULL,
    arguments {bytes},
    outcome TEXT,
    result {bytes},
    result_digest TEXT,
    stays SMALLINT NOT NULL DEFAULT 0,
    until DOUBLE PRECISION,
    PRIMARY KEY (session, epoch, call_id)
);
CREATE INDEX IF NOT EXISTS bridge_claims_unfinished ON bridge_claims (owner) WHERE state IN ('started', 'owed');
CREATE TABLE IF NOT EXISTS bridge_mail (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    session TEXT NOT NULL,
    owner TEXT NOT NULL,
    state TEXT NOT NULL,
    about {bytes},
    answer {bytes},
    digest TEXT,
    until DOUBLE PRECISION,
    changed DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (kind, name)
);
CREATE INDEX IF NOT EXISTS bridge_mail_of_session ON bridge_mail (session);
CREATE INDEX IF NOT EXISTS bridge_mail_posted ON bridge_mail (owner) WHERE state = 'posted';
CREATE INDEX IF NOT EXISTS bridge_mail_changed ON bridge_mail (changed);
"""

META: Final = "SELECT name, value FROM bridge_meta"
_SET_META: Final = "INSERT INTO bridge_meta (name, value) VALUES (?, ?)"
_GROW: Final = (
    "ALTER TABLE bridge_claims ADD COLUMN until DOUBLE PRECISION",
    "UPDATE bridge_meta SET value = '2' WHERE name = 'schema'",
)
"""From version 1, which did not know that a call waits for somebody outside."""
_CHECK: Final = (
    "INSERT INTO bridge_meta (name, value) VALUES ('checked', ?)"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)

_ADD = (
    "INSERT INTO bridge_entries (at, session, mark, part, kind, body) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_TOUCH = (
    "INSERT INTO bridge_sessions (session, began, latest, size) VALUES (?, ?, ?, ?) ON CONFLICT (session) DO UPDATE SET"
    " began = CASE WHEN excluded.began < bridge_sessions.began THEN excluded.began ELSE bridge_sessions.began END,"
    " latest = CASE WHEN excluded.latest > bridge_sessions.latest THEN excluded.latest ELSE bridge_sessions.latest END,"
    " size = bridge_sessions.size + excluded.size"
)
_ROW = 100
"""Bytes that an entry takes beside its body, about."""
_THIS_CALL = "session = ? AND epoch = ? AND call_id = ?"
_CLAIM = (
    "INSERT INTO bridge_claims (session, epoch, call_id, tool, digest, owner, since, state, arguments)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, 'started', ?) ON CONFLICT DO NOTHING"
)
_TAKE_OVER = (
    f"UPDATE bridge_claims SET owner = ?, since = ? WHERE {_THIS_CALL}"
    " AND owner = ? AND tool = ? AND digest = ? AND state = 'started' AND outcome IS NULL"
)
_LEAVE = f"UPDATE bridge_claims SET until = ? WHERE {_THIS_CALL} AND outcome IS NULL"
_CONCLUDE = (
    "UPDATE bridge_claims SET outcome = ?, result_digest = ?, stays = ?, arguments = NULL,"
    " result = CASE WHEN state IN ('started', 'orphaned') OR ? = 1 THEN ? END,"
    " state = CASE WHEN state = 'started' THEN 'owed' ELSE state END"
    f" WHERE {_THIS_CALL} AND outcome IS NULL"
)
_SETTLE = (
    "UPDATE bridge_claims SET state = ?, arguments = NULL,"
    " result = CASE WHEN stays = 1 OR ? = 'orphaned' THEN result END"
    f" WHERE {_THIS_CALL} AND state NOT IN ('sent', 'discarded') AND (outcome IS NOT NULL OR ? <> 'sent')"
)
_CLAIMED = "session, epoch, call_id, tool, owner, since, state, arguments, result, outcome, until"
_ONE_CLAIM = f"SELECT {_CLAIMED}, digest, result_digest FROM bridge_claims WHERE {_THIS_CALL}"


def greeting(known: Mapping[str, str], seal: Seal, where: str) -> list[Statement]:
    """What a new journal is to be told about itself, or one of an earlier version, after `SCHEMA`; else nothing.

    Raises `JournalError` for a journal of a later version, `ConfigError` for one that has another key.
    """
    if not known:
        return [(_SET_META, ("schema", str(_SCHEMA_VERSION))), (_SET_META, ("key", seal.check))]
    if int(known["schema"]) > _SCHEMA_VERSION:
        raise JournalError(
            f"the journal {where} was written by a later version (schema {known['schema']}, this one knows "
            f"{_SCHEMA_VERSION}); use that version, or another journal"
        )
    if known["key"] != seal.check:
        theirs = "another key" if known["key"] and seal.closed else "a key" if known["key"] else "no key"
        raise ConfigError(f"the journal {where} was begun with {theirs}; use the same, or another journal")
    return [(sql, ()) for sql in _GROW] if int(known["schema"]) < _SCHEMA_VERSION else []


@dataclass(frozen=True, slots=True)
class Write(Generic[T_co]):
    """A part of a transaction."""

    statements: Callable[[], Sequence[Statement]]
    meaning: Callable[[Sequence[int], Fetch], T_co]
    """From the number of rows that each statement has changed, and inside the same transaction, to the answer."""
    appends: bool = False
    """Does it add entries, whose numbers must be seen in their order?"""
    erases: bool = False
    """Must nothing that it removes be left in a file?"""


class Age(NamedTuple):
    """What tells whether a session is kept."""

    session: str
    latest: float
    size: int
    unfinished: int
    """Calls that have no outcome, or whose result has not been sent."""


class Tables:
    """Makes the statements of every method of a journal, and reads their rows."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._seal = payloads.seal

    # ------------------------------------------------------------------------------------------------- writing

    def append(self, entries: Sequence[Entry]) -> Write[None]:
        return Write(lambda: self._added(entries), lambda changed, fetch: None, appends=True)

    def _added(self, entries: Sequence[Entry]) -> list[Statement]:
        statements: list[Statement] = []
        seen: dict[str, tuple[float, float, int]] = {}
        for entry in entries:
            kind, body = encode(self._payloads.kept(entry.fact))
            (session,), kind = indexed(entry.session), escaped(kind)
            body = self._seal.seal(body, f"{session} {kind}")
            statements.append((_ADD, (entry.at, session, entry.mark, entry.part.value, kind, body)))
            began, latest, size = seen.get(session, (entry.at, entry.at, 0))
            seen[session] = (min(began, entry.at), max(latest, entry.at), size + len(body) + _ROW)
        # In a fixed order, since two replicas that lock the same rows in different orders would wait for each other.
        return statements + [(_TOUCH, (session, *each)) for session, each in sorted(seen.items())]

    def claim(
        self, call: CallId, tool: str, arguments: str, owner: str, now: float, instead_of: str | None
    ) -> Write[Claim]:
        digest = self._payloads.digest(arguments)
        key, tool, owner = _key(call), escaped(tool), escaped(owner)

        def statements() -> list[Statement]:
            sealed = self._seal.seal(arguments.encode(errors="surrogatepass"), _about(call))
            claim: Statement = (_CLAIM, (*key, tool, digest, owner, now, sealed))
            if instead_of is None:
                return [claim]
            return [claim, (_TAKE_OVER, (owner, now, *key, escaped(instead_of), tool, digest))]

        def meaning(changed: Sequence[int], fetch: Fetch) -> Claim:
            if any(changed):
                return Granted()
            rows = fetch(_ONE_CLAIM, key)
            if not rows:
                raise JournalError("the claim was erased while it was asked for")
            claimed = self.claimed(rows[0])
            if (claimed.tool, rows[0][11]) != (unescaped(tool), digest):
                return Conflict(claimed.tool)
            if claimed.outcome:
                return Finished(claimed.result, claimed.outcome, claimed.state)
            return Unknown(claimed.since, claimed.owner)

        return Write(statements, meaning)

    def leave(self, call: CallId, until: float) -> Write[None]:
        return Write(lambda: [(_LEAVE, (until, *_key(call)))], lambda changed, fetch: None)

    def conclude(self, call: CallId, result: ToolResult, outcome: str) -> Write[Concluded]:
        digest = self._payloads.digest_of(result)
        stays = int(self._payloads.kept_result(result) == result)

        def statements() -> list[Statement]:
            sealed = self._seal.seal(result_text(result), _about(call))
            return [(_CONCLUDE, (outcome, digest, stays, stays, sealed, *_key(call)))]

        def meaning(changed: Sequence[int], fetch: Fetch) -> Concluded:
            if any(changed):
                return Concluded(Verdict.RECORDED, result, outcome)
            rows = fetch(_ONE_CLAIM, _key(call))
            if not rows:
                return Concluded(Verdict.UNCLAIMED)
            claimed = self.claimed(rows[0])
            verdict = Verdict.REPEATED if rows[0][12] == digest else Verdict.CONFLICT
            return Concluded(verdict, claimed.result, claimed.outcome)

        return Write(statements, meaning)

    def settle(self, calls: Sequence[CallId], state: Fate) -> Write[frozenset[CallId]]:
        value, ordered = state.value, sorted(calls)
        statements = [(_SETTLE, (value, value, *_key(call), value)) for call in ordered]
        return Write(
            lambda: statements,
            lambda changed, fetch: frozenset(call for call, rows in zip(ordered, changed, strict=True) if rows),
        )

    def erase(self, sessions: Sequence[str], *, thoroughly: bool) -> Write[bool]:
        statements = [
            (f"DELETE FROM {table} WHERE session = ?", (escaped(session),))
            for session in sorted(sessions)
            for table in TABLES
        ]
        return Write(lambda: statements, lambda changed, fetch: any(changed), erases=thoroughly)

    def forget_claims(self, before: float) -> Write[None]:
        """Finished calls of sessions that have left nothing else."""
        forget = (
            "DELETE FROM bridge_claims WHERE since < ? AND state NOT IN ('started', 'owed')"
            " AND session NOT IN (SELECT session FROM bridge_sessions)"
        )
        return Write(lambda: [(forget, (before,))], lambda changed, fetch: None)

    def check(self, now: float) -> Write[None]:
        """A write that takes a place on the disk, as any other does."""
        return Write(lambda: [(_CHECK, (str(now),))], lambda changed, fetch: None)

    # ------------------------------------------------------------------------------------------------- reading

    def claims(self, session: str | None, owner: str | None, states: Collection[State]) -> Statement:
        # Spelled out and in this order, so that the index of unfinished claims serves for them.
        names = ", ".join(f"'{state.value}'" for state in State if state in states)
        where, values = [f"state IN ({names})" if names else "1 = 0"], []
        for column, name in (("session", session), ("owner", owner)):
            if name is not None:
                where.append(f"{column} = ?")
                values.append(escaped(name))
        order = "ORDER BY since, session, epoch, call_id"
        return f"SELECT {_CLAIMED} FROM bridge_claims WHERE {' AND '.join(where)} {order}", tuple(values)

    def claimed(self, row: Sequence[Any]) -> Claimed:
        session, epoch, call_id, tool, owner, since, state, arguments, result, outcome, until, *_ = row
        call = CallId(unescaped(session), epoch, unescaped(call_id))
        asked, answer = (None if s is None else self._seal.unseal(bytes(s), _about(call)) for s in (arguments, result))
        return Claimed(
            call,
            unescaped(tool),
            unescaped(owner),
            since,
            State(state),
            None if asked is None else asked.decode(errors="surrogatepass"),
            None if answer is None else result_from(answer),
            outcome or "",
            until,
        )

    def page(self, session: str | None, after: int, limit: int) -> Statement:
        where, values = ("session = ? AND ", (escaped(session),)) if session is not None else ("", ())
        columns = "id, at, session, mark, part, kind, body"
        return (
            f"SELECT {columns} FROM bridge_entries WHERE {where}id > ? ORDER BY id LIMIT ?",
            (*values, after, limit),
        )

    def entry(self, row: Sequence[Any]) -> tuple[int, Entry]:
        number, at, session, mark, part, kind, body = row
        opened = self._seal.unseal(bytes(body), f"{session} {kind}")
        return number, Entry(at, unescaped(session), decode(unescaped(kind), opened), Part(part), mark)

    def sessions(self, limit: int | None) -> Statement:
        latest = "SELECT * FROM bridge_sessions ORDER BY latest DESC, session"
        values: tuple[Any, ...] = ()
        if limit is not None:
            latest, values = f"{latest} LIMIT ?", (limit,)
        count = "(SELECT count(*) FROM bridge_entries AS e WHERE e.session = s.session)"
        columns = f"session, began, latest, {count}, size"
        return f"SELECT {columns} FROM ({latest}) AS s ORDER BY latest DESC, session", values

    def stored(self, row: Sequence[Any]) -> Stored:
        session, began, latest, entries, size = row
        return Stored(unescaped(session), began, latest, entries, size)

    def ages(self) -> Statement:
        """For `age`; the oldest first."""
        unfinished = (
            "(SELECT count(*) FROM bridge_claims AS c WHERE c.session = s.session AND c.state IN ('started', 'owed'))"
        )
        return f"SELECT session, latest, size, {unfinished} FROM bridge_sessions AS s ORDER BY latest, session", ()

    def age(self, row: Sequence[Any]) -> Age:
        session, *others = row
        return Age(unescaped(session), *others)


def _key(call: CallId) -> tuple[str, int, str]:
    session, call_id = indexed(call.session, call.call_id)
    return session, call.epoch, call_id


def _about(call: CallId) -> str:
    return " ".join(map(str, _key(call)))
