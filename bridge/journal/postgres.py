"""A journal that any number of processes share: PostgreSQL 13 or later, through psycopg (the `postgres` extra).

Three things a file does not need:

* **Numbers in order.** A sequence hands out numbers before anybody commits, so a follower could read 8 and never see
  the 7 that commits later. Whoever appends therefore holds a lock from before its first number until it has committed:
  what can be seen has nothing missing below it. The lock is for transactions of milliseconds, and the server takes it
  from a process that freezes in the middle.
* **Unknown commits.** The connection may break after the commit was sent and before its answer. The transaction's own
  number was asked for before, and the server is asked what became of it. Nothing is ever written on a guess.
* **News from others.** A commit that appends notifies; a follower also looks by itself now and then, and only that is
  relied upon. The same goes for its mailbox (`SharedMailbox`).

A process has four connections: one writes, one reads, one is the mailbox's, and one listens once somebody follows.
"""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import ConfigError, JournalError
from . import Retention
from .payloads import Payloads
from .shared import LEASES_SCHEMA, SharedMailbox
from .stored import Bell, Prepared, StoredJournal
from .tables import META, META_SCHEMA, SCHEMA, Rows, Statement, Write, greeting

__all__ = ["open_postgres"]

T = TypeVar("T")

_TYPES: Final = {"serial": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "bytes": "BYTEA"}
_TAKE_LOCK: Final = f"SELECT pg_advisory_xact_lock({0x627269646765})".encode()
"""The lock of those who append; its number spells "bridge"."""
_CHANNEL: Final = "bridge_journal"
_MAIL_CHANNEL: Final = "bridge_mail"
_PROMISES: Final = b"""
    SELECT set_config('idle_in_transaction_session_timeout', '2s', false),
        set_config('statement_timeout', %s, false),
        CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""A transaction that stands idle for so long is a frozen process, and others wait for its lock. A statement that nobody
waits for any more ends by itself. And what is committed is on a disk, whatever the database's settings say; more than
that is theirs to ask for."""
_RETRY: Final = 0.05
_RETRY_LONGEST: Final = 0.5
_LISTEN_AGAIN: Final = 5.0
"""Seconds between two attempts to listen, at most."""
_ALIVE: Final = 10.0
"""Seconds of silence after which a listener asks whether its connection is alive."""
_FINAL: Final = {"committed": True, "aborted": False}
_GONE: Final = (psycopg.OperationalError, psycopg.InterfaceError)


Connection = psycopg.Connection[tuple[Any, ...]]


def open_postgres(
    url: str,
    *,
    payloads: Payloads | None = None,
    retention: Retention | None = None,
    limit: float = 5.0,
    poll: float = 1.0,
    lease: float = 30.0,
    clock: Callable[[], float] = time.time,
) -> StoredJournal:
    """The journal in this database, `postgresql://user@host/name`; its tables are made if they are not there.

    `limit`: seconds that a method waits at most, also while the database is away. `poll`: seconds after which a
    follower, and an owner in the mailbox, looks by itself. `lease`: seconds of silence after which a process counts as
    dead, by the database's clock; the same for all. Raises `JournalError` if the database cannot be reached, and
    `ConfigError` if the address is none or the journal has another key.
    """
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError("the journal's address is none that PostgreSQL knows: postgresql://user@host/name") from None
    payloads, bell = payloads or Payloads(), Bell()
    writer = _Connection(url, limit)
    writer.greet(payloads)
    listener = _Listener(url, limit)
    mailbox = SharedMailbox(
        _Connection(url, limit),
        payloads,
        limit=limit,
        poll=poll,
        lease=lease,
        listen=listener.start,
        listening=lambda: listener.listening,
    )
    listener.tells = (bell.ring, mailbox.ring)
    return StoredJournal(
        writer,
        _Connection(url, limit),
        payloads=payloads,
        retention=retention or Retention(),
        bell=bell,
        limit=limit,
        poll=poll,
        clock=clock,
        follow=listener.start,
        closing=listener.stop,
        mailbox=mailbox,
    )


class _Connection:
    """A `Database` over one connection, which is made when it is needed and made anew when it breaks."""

    def __init__(self, url: str, limit: float) -> None:
        self._url = url
        self._limit = limit
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def greet(self, payloads: Payloads) -> None:
        """Make the tables if need be, and see whether this is a journal that we can read."""

        def meet(connection: Connection) -> None:
            with connection.transaction():
                connection.execute(_TAKE_LOCK)
                connection.execute(META_SCHEMA)
                place = f"{connection.info.host}/{connection.info.dbname}"
                news = greeting(dict(connection.execute(META).fetchall()), payloads.seal, place)
                connection.execute(SCHEMA.format(**_TYPES).encode())
                connection.execute(LEASES_SCHEMA)
                for sql, values in news:
                    connection.execute(_sql(sql), values)

        self._persist(meet, self._deadline())

    def read(self, statement: Statement) -> Rows:
        """See `Database`."""
        sql, values = statement
        return self._persist(lambda connection: connection.execute(_sql(sql), values).fetchall(), self._deadline())

    def write(self, work: Sequence[Prepared]) -> list[Any]:
        """See `Database`."""
        # Who appends comes last, so that the lock is held for as short as can be.
        order = sorted(range(len(work)), key=lambda index: work[index][0].appends)
        deadline = self._deadline()
        while True:
            answers, number = self._persist(lambda c: _begun(c, [work[index] for index in order]), deadline)
            if self._committed(number, deadline):
                by_index = dict(zip(order, answers, strict=True))
                return [by_index[index] for index in range(len(work))]
            self._pause(_RETRY, deadline, "it has undone a transaction")

    def _committed(self, number: str, deadline: float) -> bool:
        """Commit the transaction with this number; false if it has come to nothing, for certain."""
        try:
            assert self._connection is not None
            self._connection.execute("COMMIT")
            return True
        except psycopg.Error:
            self.close()
        while (status := self._persist(lambda c: _status(c, number), deadline)) not in _FINAL:
            self._pause(_RETRY, deadline, f"it does not say what became of a transaction ({status})")
        return _FINAL[status]

    def _persist(self, what: Callable[[Connection], T], deadline: float) -> T:
        """Do this over a connection that works. It is done again over a new one if it breaks, so it must have no
        effect that lasts without a commit.
        """
        pause = _RETRY
        while True:
            try:
                return what(self._open())
            except _GONE as error:
                self.close()
                self._pause(pause, deadline, _words(error))
                pause = min(pause * 2, _RETRY_LONGEST)
            except psycopg.Error as error:
                # Its text may quote values.
                self.close()
                raise JournalError(f"the journal's database refuses: {_words(error)}") from None
            except BaseException:
                self.close()
                raise

    def _pause(self, seconds: float, deadline: float, why: str) -> None:
        if time.monotonic() + seconds > deadline:
            raise JournalError(f"the journal's database is away: {why}; it goes on by itself when the database does")
        time.sleep(seconds)

    def _deadline(self) -> float:
        return time.monotonic() + self._limit

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = _connect(self._url, self._limit)
            self._connection.execute(_PROMISES, (f"{max(1, round(self._limit * 1000))}ms",))
        return self._connection

    def shake(self) -> None:
        """See `Database`. Whoever waits for the server hears that the connection is gone."""
        if (connection := self._connection) is not None:
            _cut(connection)

    def close(self) -> None:
        """See `Database`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _begun(connection: Connection, work: Sequence[Prepared]) -> tuple[list[Any], str]:
    """All but the commit: the answers, and the number of the transaction."""
    cursors: list[list[psycopg.Cursor[tuple[Any, ...]]]] = []
    with connection.pipeline():
        connection.execute("BEGIN")
        locked = False
        for write, statements in work:
            if write.appends and not locked:
                connection.execute(_TAKE_LOCK)
                locked = True
            cursors.append([connection.execute(_sql(sql), values) for sql, values in statements])
        if locked:
            connection.execute(f"NOTIFY {_CHANNEL}".encode())
    answers = [_answer(connection, write, each) for (write, _), each in zip(work, cursors, strict=True)]
    # Alone, since a pipeline ends with a flush, after which the server does not count for how long we are idle.
    return answers, _only(connection.execute("SELECT pg_current_xact_id()::text"))


def _answer(connection: Connection, write: Write[Any], cursors: Sequence[psycopg.Cursor[tuple[Any, ...]]]) -> Any:
    changed = [cursor.rowcount for cursor in cursors]
    try:
        return write.meaning(changed, lambda sql, values: connection.execute(_sql(sql), values).fetchall())
    except psycopg.Error:
        raise
    except Exception as error:  # what one caller cannot read is not the others' matter
        return error


def _status(connection: Connection, number: str) -> str:
    return _only(connection.execute("SELECT pg_xact_status(%s::text::xid8)", (number,)))


def _only(cursor: psycopg.Cursor[tuple[Any, ...]]) -> str:
    row = cursor.fetchone()
    return str(row[0]) if row else ""


class _Listener:
    """Tells when some process has appended or posted; a thread with a connection of its own, once somebody follows."""

    def __init__(self, url: str, limit: float) -> None:
        self.tells: tuple[Callable[[], None], Callable[[str | None], None]] = (lambda: None, lambda owner: None)
        """Who hears of entries; and of mail, for one owner or for whom it may be."""
        self._url = url
        self._limit = limit
        self._stopped = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Connection | None = None

    @property
    def listening(self) -> bool:
        return self._connection is not None

    def start(self) -> None:
        """Once is enough, and more does no harm."""
        with self._starting:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="journal listener", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if (connection := self._connection) is not None:
            _cut(connection)
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        pause = _RETRY
        while not self._stopped.is_set():
            try:
                with _connect(self._url, self._limit) as connection:
                    connection.execute(f"LISTEN {_CHANNEL}; LISTEN {_MAIL_CHANNEL}".encode())
                    self._connection, pause = connection, _RETRY
                    self._missed()
                    self._listen(connection)
            except psycopg.Error:
                # At different times, since all processes lose the same database.
                self._stopped.wait(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LISTEN_AGAIN)
            finally:
                self._connection = None

    def _missed(self) -> None:
        """Something may have come while nobody listened."""
        entries, mail = self.tells
        entries()
        mail(None)

    def _listen(self, connection: Connection) -> None:
        entries, mail = self.tells
        while not self._stopped.is_set():
            for notice in connection.notifies(timeout=_ALIVE):
                if notice.channel == _MAIL_CHANNEL:
                    mail(notice.payload)
                else:
                    entries()
            connection.execute("SELECT 1")  # fails over a connection that is dead and has not said so


def _connect(url: str, limit: float) -> Connection:
    # A dead network is noticed by keepalives while nothing is said, and else by what nobody confirms.
    return psycopg.connect(
        url,
        autocommit=True,
        connect_timeout=max(2, math.ceil(limit)),
        fallback_application_name="voice-tool-bridge",
        keepalives_idle=10,
        keepalives_interval=5,
        keepalives_count=3,
        tcp_user_timeout=math.ceil(limit * 1000),
    )


def _cut(connection: Connection) -> None:
    """End a connection on which another thread waits. Closing it here would take it away beneath that thread."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as ours:
        ours.shutdown(socket.SHUT_RDWR)


@cache
def _sql(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()


def _words(error: psycopg.Error) -> str:
    """What happened, without the values that a server's detail may quote."""
    return type(error).__name__ if error.sqlstate else (str(error).splitlines() or [type(error).__name__])[0]
