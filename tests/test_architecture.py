"""Who may import whom. Read from the source, so that an import inside a function counts, too."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "bridge"

# A part of the package, and the parts below it that it may import.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "dialects": {"errors", "core"},
    "agents": {"errors", "core", "dialects"},
    "tools": {"errors", "core"},
    "transports": {"errors", "core"},
    "journal": {"errors", "core", "tools"},
    "runner": {"errors", "core", "tools", "journal"},
    "session": {"errors", "core", "tools", "transports", "runner"},
    "metrics": {"errors", "core", "runner"},
    "catalogue": {"errors", "tools"},
    "host": {"errors", "core", "tools", "runner", "session", "metrics", "catalogue", "journal"},
    "jobs": {"errors", "core", "journal", "runner", "tools"},
    # The sidecar: a relay is the same conversation and runner behind raw sockets.
    "relay": {"errors", "core", "tools", "catalogue", "journal", "runner", "session"},
    "loading": {"errors", "tools"},
    "attach": {
        *("admin", "agents", "core", "dialects", "errors", "journal", "metrics", "relay", "runner"),
        *("session", "tools", "transports"),
    },
    "setting_types": {"attach", "dialects", "errors", "journal"},
    "settings": {"attach", "journal", "setting_types", "tools"},
    "config": {"attach", "journal", "errors", "dialects", "tools", "loading", "setting_types", "settings", "relay"},
    "admin": {"core", "errors", "metrics", "relay", "runner", "tools"},
    "reload": {"advice", "attach", "config", "errors", "relay", "settings"},
    "ports": {"admin", "errors", "settings"},
    "serve": {"admin", "advice", "attach", "config", "errors", "journal", "metrics", "ports", "relay", "settings"},
    "workers": {"admin", "config", "errors", "metrics", "ports", "relay", "reload", "serve"},
    "message_loop": {"errors", "core", "dialects", "tools", "runner"},
    # The offline provider must not share a line with what it is there to test.
    "simulator": set(),
    "benchmark": {"errors"},
    "testing": {"errors", "core", "agents", "tools", "runner", "session", "simulator"},
    "pytest_plugin": {"testing"},
    "scenarios": {"simulator"},
}  # fmt: skip

# Packages that a part may use beside the standard library; longer names win over shorter ones.
LIBRARIES: dict[str, set[str]] = {
    "core": {"orjson"},
    "dialects": {"orjson"},
    "agents": {"orjson", "pydantic", "pydantic_core"},
    "tools": {"orjson", "pydantic", "pydantic_core", "docstring_parser", "typing_extensions"},
    "tools/foreign": {"orjson", "pydantic_core"},
    "tools/validator": {"jsonschema"},
    "tools/webhook": {"anyio", "httpcore2", "httpx2", "orjson", "pydantic", "stamina"},
    "tools/mcp": {"anyio", "httpx2", "mcp", "mcp_types", "orjson", "pydantic"},
    "transports": {"anyio", "websockets"},
    "transports/answers": {"orjson"},
    "transports/http": {"anyio", "httpx2", "orjson"},
    "transports/patience": set(),
    "journal": {"cryptography", "orjson", "psycopg"},
    "runner": {"orjson"},
    "runner/tracing": {"opentelemetry"},
    "session": {"anyio", "orjson"},
    "metrics": {"anyio", "prometheus_client"},
    "relay": {"orjson", "websockets"},
    "jobs": {"orjson", "procrastinate"},
    "attach/webhook": {"starlette"},
    "attach": set(),
    "setting_types": {"pydantic", "pydantic_settings"},
    "settings": {"pydantic", "pydantic_settings", "tomli_w"},
    "config": {"pydantic", "pydantic_core", "pydantic_settings"},
    "admin": {"anyio", "orjson", "prometheus_client", "pydantic", "starlette", "uvicorn"},
    "reload": {"anyio"},
    "serve": {"anyio", "uvloop"},
    "workers": {"anyio", "orjson"},
    "benchmark": {"websockets"},
    "testing": {"anyio", "orjson"},
    "pytest_plugin": {"pytest"},
    "message_loop": {"orjson", "pydantic"},
    "simulator/messages_api": {"anyio", "orjson", "starlette"},
    "simulator/hcompany": {"anyio", "httpx2", "orjson", "pydantic", "pydantic_core", "starlette"},
    "simulator/herm": {"anyio", "orjson", "pydantic", "pydantic_core", "starlette"},
    "simulator/openai_sessions": {"anyio", "orjson", "pydantic", "pydantic_core", "starlette"},
    "simulator/listener": {"anyio", "starlette", "uvicorn"},
    "simulator/offline": set(),
    "simulator/site": {"anyio", "orjson", "starlette"},
    "simulator": {"anyio", "orjson", "pydantic", "pydantic_core", "websockets"},
}

# Whoever carries these can be asked for the time, do I/O, or log; the pure part must not.
IMPURE = {"asyncio", "anyio", "datetime", "io", "logging", "os", "random", "socket", "threading", "time", "warnings"}

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
# The others are shells, which may import whatever they put together.
BOUND = [file for file in FILES if file.parts[0].removesuffix(".py") in MAY_IMPORT]


@cache
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
    path = file.with_suffix("").as_posix()
    parts = [part for part in LIBRARIES if path == part or path.startswith(f"{part}/")]
    foreign = {path[0] for path in imports_of(file)} - {"bridge"} - set(sys.stdlib_module_names)
    assert foreign <= LIBRARIES[max(parts, key=len)] if parts else not foreign


@pytest.mark.parametrize("file", [f for f in FILES if f.parts[0] in ("core", "dialects")], ids=str)
def test_the_pure_part_has_no_clock_no_socket_and_no_log(file: Path) -> None:
    assert not {path[0] for path in imports_of(file)} & IMPURE


def test_every_part_in_the_table_exists() -> None:
    there = {file.parts[0].removesuffix(".py") for file in FILES}
    assert set(MAY_IMPORT) <= there
