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

_NOWHERE: Final = (0, 0)
"""No file; see `_file_at`."""

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
    lock = None if read_only else _Lock(path)
    try:
        writer = _Connection(path, payloads, limit, lock=lock)
        writer.greet()
        reader = _Connection(path, payloads, limit)
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


class _Lock:
    """Says that this process writes the file, until it is closed. A database is a lock that every system has.

    Raises `JournalError` if another process holds it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = path.with_name(f"{path.name}.lock")
        self._connection: sqlite3.Connection | None = None
        self._file = _NOWHERE
        self.keep()

    def keep(self) -> None:
        """Hold it, also if somebody has removed its file. Raises `JournalError` as above."""
        if self._connection is not None and _file_at(self._name) == self._file:
            return
        self.close()
        _touch(self._name, self._path)
        try:
            connection = sqlite3.connect(self._name, timeout=_EXCLUSIVE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            if _code(error) == sqlite3.SQLITE_BUSY:
                raise JournalError(
                    f"the journal {self._path} is written by another process; give each process a file of its own"
                ) from None
            raise _explained(self._path, error) from error
        self._connection, self._file = connection, _file_at(self._name)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Connection:
    """A `Database` in a file. It is opened anew after an error, since what the error was about may be over.

    Only one with a `lock` writes.
    """

    def __init__(self, path: Path, payloads: Payloads, limit: float, *, lock: _Lock | None = None) -> None:
        self._path = path
        self._payloads = payloads
        self._limit = limit
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._file = _NOWHERE

    def greet(self) -> None:
        """See whether this is a journal that we can read; where we may write, make of it what it has to be."""
        try:
            self._open()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def write(self, work: Sequence[Prepared]) -> list[Any]:
        """See `Database`."""
        if self._lock is None:
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
        """The connection to the file that lies at the path now. Raises what `sqlite3` does, too."""
        if self._lock is not None:
            self._lock.keep()
        if self._connection is None or _file_at(self._path) != self._file:
            self._refuse_what_was_moved()
            self._connection = self._connected()
            try:
                self._greet(self._connection)
            except BaseException:
                self.close()
                raise
            self._file = _file_at(self._path)
        return self._connection

    def _refuse_what_was_moved(self) -> None:
        """SQLite would go on with a file that nobody will find again."""
        if self._lock is None or self._file == _NOWHERE or (there := _file_at(self._path)) == self._file:
            self.close()
            return
        if there != _NOWHERE:  # with the log of the other one beside it, it would be destroyed
            raise JournalError(
                f"the journal {self._path}: another file lies in its place; stop the process, and start it again"
            )
        self.close()
        self._file = _NOWHERE
        raise JournalError(
            f"the journal {self._path} was removed, and with it what was known of earlier calls; a new one is begun. "
            "If you have moved it, stop the process and put it back"
        )

    def _connected(self) -> sqlite3.Connection:
        mode = "ro" if self._lock is None else "rwc"
        if self._lock is not None:
            _touch(self._path, self._path)
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=self._limit / 2,
            isolation_level=None,
            check_same_thread=False,
        )

    def _greet(self, connection: sqlite3.Connection) -> None:
        """In one transaction, since each takes a trip to the disk."""
        writing = self._lock is not None
        for pragma in _PRAGMAS if writing else ():
            with closing(connection.execute(pragma)) as rows:
                rows.fetchall()
        connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        if writing:
            connection.execute(META_SCHEMA)
        news = greeting(dict(connection.execute(META).fetchall()), self._payloads.seal, str(self._path))
        if news and not writing:
            raise JournalError(
                f"the journal {self._path} is of an earlier version, and was opened for reading only; "
                "start what writes it once, or run 'journal recover', which brings it up to date"
            )
        tables = [(each, ()) for each in SCHEMA.format(**_TYPES).split(";")]
        for statement in (*tables, *news) if writing else ():
            connection.execute(*statement)
        connection.execute("COMMIT")

    def _failed(self, error: sqlite3.Error) -> JournalError:
        self.close()
        return _explained(self._path, error)


def _file_at(path: Path) -> tuple[int, int]:
    """What tells the file that lies there from every other."""
    try:
        seen = path.stat()
    except OSError:
        return _NOWHERE
    return seen.st_dev, seen.st_ino


def _touch(file: Path, journal: Path) -> None:
    """What callers have said is for nobody else on this machine. The log has the permissions of its file."""
    try:
        file.touch(0o600)
    except OSError as error:
        raise JournalError(f"the journal {journal} cannot be opened: {error.strerror}") from None


def _explained(path: Path, error: sqlite3.Error) -> JournalError:
    known = _WHAT_TO_DO.get(_code(error), f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}")
    return JournalError(f"the journal {path}: {known}")


def _code(error: sqlite3.Error) -> int:
    """Without what SQLite adds to its codes."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
