"""The three stores, each in a place of its own, and the same to open."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bridge.journal import Journal
from bridge.journal.memory import MemoryJournal
from bridge.journal.postgres import open_postgres
from bridge.journal.sqlite import open_sqlite

from ..postgres import Server, needed, postgres

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Server]:
    """A PostgreSQL for all tests, and for all processes that run them."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent
    with needed(), postgres(shared, "fsync=off", "max_connections=200") as running:
        yield running


@pytest.fixture(scope="session")
def worker_id(request: pytest.FixtureRequest) -> str:
    """As pytest-xdist has it, or "master"."""
    workers: dict[str, str] = getattr(request.config, "workerinput", {})
    return workers.get("workerid", "master")


@pytest.fixture(scope="session")
def database(server: Server) -> str:
    """A database for the tests of this process, since locks and notices are a database's."""
    return server.new_database()


_schemas = itertools.count()


@pytest.fixture
def schema(server: Server, database: str) -> str:
    """Empty tables for one test."""
    name = f"test_{next(_schemas)}"
    with psycopg.connect(server.url(database), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return name


@pytest.fixture
def url(server: Server, database: str, schema: str) -> str:
    """The address of an empty journal."""
    return server.url(database, search_path=schema)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def open_store(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens a journal of this store, with options; each time the same one, except in memory."""
    async with AsyncExitStack() as opened:

        def open_it(**options: Any) -> Journal:
            journal: Journal
            match store:
                case "memory":
                    journal = MemoryJournal(**options)
                case "sqlite":
                    journal = open_sqlite(tmp_path / "journal.db", poll=0.05, **options)
                case _:
                    journal = open_postgres(request.getfixturevalue("url"), poll=0.05, **options)
            opened.push_async_callback(journal.aclose)
            return journal

        yield open_it


@pytest.fixture
async def journal(open_store: Open) -> Journal:
    opened: Journal = open_store()
    return opened


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
