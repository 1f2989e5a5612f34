"""A journal in one file: SQLite in WAL mode, synced before anything is called durable.

One process writes a file. It holds a lock beside it (`<file>.lock`) for as long as it lives, and any death of the
process lets go of it. Others may read.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from ..errors import JournalError
from . import Retention
from .payloads import Payloads
from .stored import Bell, Prepared, StoredJournal
from .tables import META, META_SCHEMA, SCHEMA, Rows, Statement, greeting

__all__ = ["open_sqlite"]

_TYPES: Final = {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "bytes": "BLOB"}
_PRAGMAS: Final = (
    "PRAGMA journal_mode = WAL",
    # In WAL mode a commit survives the loss of power only if the log is synced each time.
    "PRAGMA synchronous = FULL",
    # What is deleted is overwritten, and what is copied meanwhile stays in memory.
    "PRAGMA secure_delete = ON",
    "PRAGMA temp_store = MEMORY",
)
_EXCLUSIVE: Final = 0.1
"""Seconds for which another process is waited for that holds the file's lock."""

_WHAT_TO_DO: Final = {
    sqlite3.SQLITE_FULL: "the disk is full; make room, and it goes on by itself",
    sqlite3.SQLITE_READONLY: "it is read-only; let this user write to the file and its directory",
    sqlite3.SQLITE_CORRUPT: "it is damaged; stop the process, move the file away, and put a copy in its place",
    sqlite3.SQLITE_NOTADB: "it is no journal; is the path right?",
    sqlite3.SQLITE_IOERR: "its disk fails; see the system's log. It goes on by itself when the disk does",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; do its directory and the permissions exist?",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; see who has it open",
}


def open_sqlite(
    path: Path | str,
    *,
    payloads: Payloads | None = None,
    retention: Retention | None = None,
    limit: float = 5.0,
    poll: float = 1.0,
    clock: Callable[[], float] = time.time,
    read_only: bool = False,
) -> StoredJournal:
    """The journal in this file, which is made if it is not there.

    `limit`: seconds that a method waits at most. `read_only`: write nothing, and look at what another process writes
    every `poll` seconds. Raises `JournalError` if another process writes the file, if a later version has, or if it
    cannot be used, and `ConfigError` if it has another key.
    """
    path, payloads = Path(path), payloads or Payloads()
    lock = None if read_only else _locked(path)
    try:
        writer = _Connection(path, limit, writing=not read_only)
        writer.greet(payloads)
        reader = _Connection(path, limit, writing=False)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    return StoredJournal(
        writer,
        reader,
        payloads=payloads,
        retention=retention or Retention(),
        bell=Bell(),
        limit=limit,
        poll=poll,
        clock=clock,
        closing=(lambda: None) if lock is None else lock.close,
    )


def _locked(path: Path) -> sqlite3.Connection:
    """Holds the lock of this file until it is closed. A database of its own is a lock that every system has."""
    name = path.with_name(f"{path.name}.lock")
    try:
        for file in (path, name):
            # What callers have said is for nobody else on this machine. The log has the permissions of its file.
            file.touch(0o600)
        lock = sqlite3.connect(name, timeout=_EXCLUSIVE, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise JournalError(f"the journal {path} cannot be opened: {error.strerror}") from None
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_BUSY:
            raise JournalError(
                f"the journal {path} is written by another process; give each process a file of its own"
            ) from None
        raise _explained(path, error) from error
    return lock


class _Connection:
    """A `Database` in a file. It is opened anew after an error, since what the error was about may be over."""

    def __init__(self, path: Path, limit: float, *, writing: bool) -> None:
        self._path = path
        self._limit = limit
        self._writing = writing
        self._connection: sqlite3.Connection | None = None

    def greet(self, payloads: Payloads) -> None:
        """Make the tables if need be, and see whether this is a journal that we can read."""
        try:
            connection = self._open()
            if self._writing:
                connection.execute(META_SCHEMA)
            news = greeting(dict(connection.execute(META).fetchall()), payloads.seal, str(self._path))
            if self._writing:
                connection.executescript(SCHEMA.format(**_TYPES))
                for statement in news:
                    connection.execute(*statement)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise

    def write(self, work: Sequence[Prepared]) -> list[Any]:
        """See `Database`."""
        if not self._writing:
            raise JournalError(f"the journal {self._path} was opened for reading only")
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            answers = [self._answer(connection, each) for each in work]
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failed(error) from error
        except BaseException:
            self.close()
            raise
        if any(write.erases for write, _ in work) and (traces := self._scrubbed(connection)):
            return [traces if write.erases else each for (write, _), each in zip(work, answers, strict=True)]
        return answers

    def _answer(self, connection: sqlite3.Connection, prepared: Prepared) -> Any:
        write, statements = prepared
        changed = [connection.execute(*statement).rowcount for statement in statements]
        try:
            return write.meaning(changed, lambda sql, values: connection.execute(sql, values).fetchall())
        except sqlite3.Error:
            raise
        except Exception as error:  # what one caller cannot read is not the others' matter
            return error

    def _scrubbed(self, connection: sqlite3.Connection) -> JournalError | None:
        """Leave no copy of what was deleted, or say why not. `secure_delete` overwrites rows, but where pages were
        rearranged before, older copies of rows lie between the others: so the file is written anew, and the log is cut.
        """
        try:
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            return JournalError(f"deleted, but traces stay in the file: {self._failed(error)}; erase again")
        why = f"deleted, but traces stay in the log of the journal {self._path} while somebody reads it; erase again"
        return JournalError(why) if busy else None

    def read(self, statement: Statement) -> Rows:
        """See `Database`."""
        try:
            return self._open().execute(*statement).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def shake(self) -> None:
        """See `Database`. A disk cannot be told to hurry."""

    def close(self) -> None:
        """See `Database`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            mode = "rwc" if self._writing else "ro"
            self._connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=self._limit / 2,
                isolation_level=None,
                check_same_thread=False,
            )
            for pragma in _PRAGMAS if self._writing else ():
                with closing(self._connection.execute(pragma)) as rows:
                    rows.fetchall()
        return self._connection

    def _failed(self, error: sqlite3.Error) -> JournalError:
        self.close()
        return _explained(self._path, error)


def _explained(path: Path, error: sqlite3.Error) -> JournalError:
    known = _WHAT_TO_DO.get(_code(error), f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}")
    return JournalError(f"the journal {path}: {known}")


def _code(error: sqlite3.Error) -> int:
    """Without what SQLite adds to its codes."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
