"""Who may import whom. Read from the source, so that an import inside a function counts, too."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bridge"

# A part of the package, and the parts below it that it may import. Longer names win over shorter ones.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "dialects": {"errors", "core"},
    "agents": {"errors", "core", "dialects"},
    "tools": {"errors", "core"},
    "transports": {"errors", "core"},
    "audio": set(),
    "queue": set(),
    "timers": {"core"},
    "outbox": {"errors", "core", "transports"},
    "limits": {"errors", "core"},
    "fillers": {"errors", "core", "tools"},
    "runner": {"errors", "core", "tools", "limits"},
    "running": {"errors", "core", "tools", "fillers", "runner"},
    "refusals": {"errors", "core"},
    "session": {
        "errors", "core", "tools", "transports", "audio", "queue", "timers", "outbox", "runner", "running", "refusals",
    },
    "metrics": {"errors", "core", "runner"},
    "host": {"errors", "core", "tools", "runner", "session", "metrics"},
    # The sidecar: a relay is the same conversation and runner behind raw sockets.
    "relay": {"errors", "core", "tools", "audio", "timers", "runner", "running"},
    "loading": {"errors", "tools"},
    "settings": {"dialects"},
    "config": {"errors", "dialects", "tools", "loading", "settings", "relay"},
    "admin": {"errors", "metrics", "relay"},
    "serve": {"admin", "config", "metrics", "relay"},
    # The offline provider must not share a line with what it is there to test.
    "simulator": set(),
    "scenarios": {"simulator"},
}  # fmt: skip

# Packages that a part may use beside the standard library.
LIBRARIES: dict[str, set[str]] = {
    "core": {"orjson"},
    "dialects": {"orjson"},
    "agents": {"orjson", "pydantic", "pydantic_core"},
    "tools": {"orjson", "pydantic", "pydantic_core", "docstring_parser", "typing_extensions"},
    "transports": {"anyio", "websockets"},
    "limits": {"orjson"},
    "runner": {"orjson"},
    "session": {"anyio", "orjson"},
    "metrics": {"anyio", "prometheus_client"},
    "relay": {"orjson", "websockets"},
    "settings": {"pydantic", "pydantic_settings"},
    "config": {"pydantic", "pydantic_core", "pydantic_settings"},
    "admin": {"anyio", "orjson", "prometheus_client", "starlette", "uvicorn"},
    "serve": {"uvloop"},
    "simulator": {"anyio", "orjson", "pydantic", "pydantic_core", "websockets"},
}

# Whoever carries these can be asked for the time, do I/O, or log; the pure part must not.
IMPURE = {"asyncio", "anyio", "datetime", "io", "logging", "os", "random", "socket", "threading", "time", "warnings"}

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
# The others are shells, which may import whatever they put together.
BOUND = [file for file in FILES if file.parts[0].removesuffix(".py") in MAY_IMPORT]


def imports_of(file: Path) -> set[tuple[str, ...]]:
    """Each import as the path of its module, `("bridge", "core", "events")`."""
    found: set[tuple[str, ...]] = set()
    package = ("bridge", *file.parent.parts)
    for node in ast.walk(ast.parse((PACKAGE / file).read_text("utf-8"))):
        match node:
            case ast.Import(names):
                found |= {tuple(alias.name.split(".")) for alias in names}
            case ast.ImportFrom(module, names, level):
                base = package[: len(package) - level + 1] if level else ()
                path = (*base, *(module.split(".") if module else ()))
                found |= {path} if module else {(*path, alias.name) for alias in names}
    return found


@pytest.mark.parametrize("file", BOUND, ids=str)
def test_a_file_imports_only_what_lies_below_it(file: Path) -> None:
    part = file.parts[0].removesuffix(".py")
    ours = {path[1] for path in imports_of(file) if path[0] == "bridge" and len(path) > 1}
    assert ours - {part} <= MAY_IMPORT[part]


@pytest.mark.parametrize("file", BOUND, ids=str)
def test_a_file_uses_only_the_libraries_of_its_part(file: Path) -> None:
    part = file.parts[0].removesuffix(".py")
    foreign = {path[0] for path in imports_of(file)} - {"bridge"} - set(sys.stdlib_module_names)
    assert foreign <= LIBRARIES.get(part, set())


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] in ("core", "dialects")], ids=str)
def test_the_pure_part_has_no_clock_no_socket_and_no_log(file: Path) -> None:
    assert not {path[0] for path in imports_of(file)} & IMPURE


def test_every_part_in_the_table_exists() -> None:
    there = {file.parts[0].removesuffix(".py") for file in FILES}
    assert set(MAY_IMPORT) <= there
