"""Reads the settings of the sidecar: a TOML file, the environment over it, and the command line over both.

    [upstream]
    dialect = "assemblyai"
    api_key_env = "ASSEMBLYAI_API_KEY"

    BRIDGE_UPSTREAM__DIALECT=assemblyai         # the same in the environment: BRIDGE_<TABLE>__<KEY>

`read` says everything that is wrong at once: where, what was found, what is allowed. It makes what the relay is made
of. `examples/bridge.toml` shows every setting.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import ssl
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import EnvSettingsSource, SettingsError

from .attach.plan import Plan, Webhook
from .attach.providers import Provider
from .dialects import DIALECTS
from .errors import ConfigError, JournalError
from .journal import Retention
from .journal.opening import is_postgres, open_journal
from .journal.payloads import Keep, Payloads
from .journal.sealing import Seal, read_key
from .journal.stored import StoredJournal
from .loading import load
from .relay.settings import Limits, Listen, OnLoss, OnProviderLoss, Pings, Route, Upstream
from .setting_types import listed
from .settings import (
    PREFIX,
    AdminToken,
    AttachTable,
    JournalTable,
    RouteTable,
    Settings,
    ToolsTable,
    UpstreamTable,
)
from .tools.mcp import McpServer, McpSource
from .tools.source import Source
from .tools.tool import Toolset
from .tools.webhook import HttpSource, HttpTool

__all__ = ["JournalPlan", "Sidecar", "read"]

_SECRETS = frozenset({"api_key", "token", "tokens", "password", "secret"})

_QUIET = _SECRETS | {"url", "address", "certificate", "key", "http", "mcp"}
_VARIABLE = re.compile(r"[A-Z0-9]+(_[A-Z0-9]+)+")

Layer = Mapping[str, Any]
"""Tables by name; in them, values by key."""


@dataclass(frozen=True, slots=True)
class JournalPlan:
    """A journal that can be opened."""

    address: str
    keep: Keep
    seal: Seal = dataclasses.field(repr=False)
    retention: Retention

    @property
    def single(self) -> bool:
        """Is it written by one process only?"""
        return not is_postgres(self.address)

    def open(self, worker: int, redact: Callable[[str], Collection[str]]) -> StoredJournal:
        """The journal of this worker. `redact`: from a tool's name to the fields that are masked.

        Blocks for some seconds at most. Raises `ConfigError` if it cannot be opened.
        """
        payloads = Payloads(self.keep, redact, self.seal)
        try:
            return open_journal(
                self.address.replace("{worker}", str(worker)), payloads=payloads, retention=self.retention
            )
        except JournalError as error:
            raise ConfigError(f"journal.address: {error}") from None


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a `Relay` and its admin port are made of."""

    settings: Settings
    tools: Toolset
    """Those that are written in Python."""
    sources: tuple[Source, ...]
    """All others."""
    routes: tuple[Route, ...]
    listen: Listen
    limits: Limits
    journal: JournalPlan | None = None
    attach: tuple[Plan, ...] = ()


def read(path: Path | None, overrides: Layer | None = None, *, fresh: bool = False) -> Sidecar:
    """The settings in force, and what they come to.

    `path`: the file, if there is one. `overrides`: from the command line, as `{"listen": {"port": 9000}}`. `fresh` runs
    modules with tools anew that have been imported before. Raises `ConfigError` with all faults, a line each.
    """
    base = path.resolve().parent if path else Path.cwd()
    environment, faults = _environment()
    layers = (
        ("the command line", _anchored(overrides or {}, Path.cwd())),
        ("the environment", _anchored(environment, Path.cwd())),
        (str(path), _anchored(_parse(path), base) if path else {}),
    )
    merged: dict[str, Any] = {}
    for _, layer in reversed(layers):
        merged = _merge(merged, layer)
    tools, missing = _load(merged, base, fresh)
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        said = [*faults, *(_fault(fault, layers) for fault in error.errors()), *missing]
        raise ConfigError("\n".join(said)) from None
    if faults or missing:
        raise ConfigError("\n".join([*faults, *missing]))
    return _built(settings, tools, path)


# ----------------------------------------------------------------------------------------------------------- building


def _built(settings: Settings, tools: Toolset, path: Path | None) -> Sidecar:
    table = settings.listen
    listen = Listen(
        host=table.host,
        port=table.port,
        tls=_server_tls(table.certificate, table.key),
        origins=table.origins,
        hosts=table.hosts,
        correlation_header=table.correlation_header,
        metadata_headers=table.metadata_headers,
        reuse_port=table.workers > 1,
    )
    routes = [Route(upstream=_upstream(each, settings), prefix=each.path) for each in settings.route]
    routes.append(Route(upstream=_upstream(settings.upstream, settings)))
    limits = Limits(**settings.limits.model_dump())
    journal = _journal(settings.journal) if settings.journal.address else None
    attach = tuple(_plan(each, settings) for each in settings.attach)
    return Sidecar(settings, tools, _sources(settings.tools, path), tuple(routes), listen, limits, journal, attach)


def _plan(table: AttachTable, settings: Settings) -> Plan:
    provider = Provider(dialect=table.dialect, url=table.url, api_key=table.api_key)
    secrets, port = table.webhook_secrets, table.webhook_port
    return Plan(
        provider=provider,
        sessions=table.sessions,
        webhook=None if port is None else Webhook(host=table.webhook_host, port=port, secrets=secrets),
        max_sessions=table.max_sessions,
        owed_timeout=settings.session.drain_seconds,
        give_up=table.give_up,
    )


def _journal(table: JournalTable) -> JournalPlan:
    seal = Seal(read_key(table.key) if table.key else None)
    retention = Retention(max_age=table.keep_days * 86_400.0, max_size=table.max_size)
    return JournalPlan(table.address, Keep(table.payloads), seal, retention)


def _sources(table: ToolsTable, path: Path | None) -> tuple[Source, ...]:
    try:
        http = [HttpSource(table.http)] if table.http else []
    except ConfigError as error:
        where = f"{path or 'the environment'}: tools.http"
        raise ConfigError("\n".join(f"{where}: {line}" for line in str(error).splitlines())) from None
    return (*http, *map(McpSource, table.mcp))


def _upstream(table: UpstreamTable, settings: Settings) -> Upstream:
    return Upstream(
        dialect=DIALECTS[table.dialect],
        url=table.url,
        api_key=table.api_key,
        tokens=table.tokens,
        tls=_client_tls(table.ca_file),
        show_calls=settings.tools.show_calls,
        pings=Pings(table.pings),
        on_application_loss=OnLoss(settings.session.on_application_loss),
        on_provider_loss=OnProviderLoss(table.on_provider_loss),
    )


def _server_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"listen.certificate and listen.key do not go together: {_tls_reason(error)}") from None
    return context


def _client_tls(ca_file: Path | None) -> ssl.SSLContext | None:
    try:
        return ssl.create_default_context(cafile=ca_file) if ca_file else None
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{ca_file} holds no certificates: {_tls_reason(error)}") from None


def _tls_reason(error: ssl.SSLError | OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)


# ----------------------------------------------------------------------------------------------------------- the layers


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is not TOML: {error}") from None


def _environment() -> tuple[dict[str, Any], list[str]]:
    """What the environment sets. Only names with a double underscore are ours: orchestrators add others."""
    tables = Settings.model_fields
    names = [name for name in os.environ if name.startswith(PREFIX) and "__" in name]
    strange = [name for name in names if name.removeprefix(PREFIX).partition("__")[0].lower() not in tables]
    faults = [f"the environment: {name} is unknown{_near(_key_of(name))}" for name in strange]
    try:
        return EnvSettingsSource(Settings)(), faults
    except SettingsError:
        return {}, [*faults, f"the environment: a table is set key by key, such as {PREFIX}LISTEN__PORT"]


def _load(merged: Layer, base: Path, fresh: bool) -> tuple[Toolset, list[str]]:
    """The tools, whatever else is wrong: all faults are wanted at once."""
    table = merged.get("tools")
    sources = listed(table.get("python", ())) if isinstance(table, Mapping) else ()
    if not isinstance(sources, list | tuple) or not all(isinstance(each, str) for each in sources):
        return Toolset(), []  # said already
    loaded = load(sources, base, fresh=fresh)
    return loaded.tools, [f"tools.python: {line}" for line in loaded.errors]


def _anchored(layer: Layer, base: Path) -> dict[str, Any]:
    """Paths made absolute: those in a file are relative to the file, not to where the process began."""

    def anchor(key: str, value: Any) -> Any:
        match value:
            case list() if key == "http":
                return value
            case list() if key == "mcp":
                return [_at_home(each, base) for each in value]
            case Mapping():
                return _anchored(value, base)
            case list() | tuple():
                return [anchor(key, each) for each in value]
            case str() if key == "python" and "," in value:
                return anchor(key, listed(value))
            case str() if key in ("certificate", "key") or key.endswith("_file"):
                return str(base / value)
            case str() if key == "address" and value and not is_postgres(value):
                return str(base / value)
            case str() if key == "python" and (value.endswith(".py") or "/" in value):
                return str(base / value)
            case _:
                return value

    return {key: anchor(key, value) for key, value in layer.items()}


def _at_home(server: Any, base: Path) -> Any:
    """A program that a file names runs in the directory of the file, or in one relative to that."""
    if not isinstance(server, Mapping) or not server.get("command") or not isinstance(server.get("cwd", ""), str):
        return server
    return {**server, "cwd": str(base / server.get("cwd", ""))}


def _merge(under: Layer, over: Layer) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


# ------------------------------------------------------------------------------------------------------- what is said


def _fault(fault: ErrorDetails, layers: Sequence[tuple[str, Layer]]) -> str:
    """One line: where, which key, what was found, what is allowed."""
    loc = fault["loc"]
    key = ".".join(map(str, loc))
    where = next((name for name, layer in layers if _holds(layer, loc)), "settings")
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    match fault["type"]:
        case "extra_forbidden":
            return f"{where}: {key} is unknown{_near(key)}"
        case "missing":
            return f"{where}: {key} is missing"
        case "value_error" if not loc or isinstance(fault["input"], Mapping):
            return f"{where}: {key}{': ' if key else ''}{message}"
    found = f"; found {fault['input']!r:.80}" if _may_be_shown(loc, fault["input"]) else ""
    return f"{where}: {key} {message}{found}"


def _may_be_shown(loc: Sequence[str | int], value: object) -> bool:
    """Not what may be a secret that stands there by mistake: instead of its name or file, or within an address."""
    names = [each for each in loc if isinstance(each, str)]
    if isinstance(value, Mapping | list) or _QUIET.intersection(names) or names[-1].endswith("_file"):
        return False
    return not names[-1].endswith("_env") or (isinstance(value, str) and bool(_VARIABLE.fullmatch(value)))


def _holds(layer: Layer, loc: Sequence[str | int]) -> bool:
    value: Any = layer
    for step in loc:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return bool(loc)


def _near(key: str) -> str:
    """`; did you mean ...?` The same name in another table is nearest, then a name like it in this one."""
    key = re.sub(r"\.\d+", "", key)  # which table of several it is does not matter here
    table, _, name = key.rpartition(".")
    if name in _SECRETS:
        return "; secrets come from the environment or a file: see the settings that end in _env and _file"
    known = list(_known())
    elsewhere = [each for each in known if each.endswith(f".{name}")]
    beside = [each for each in known if each.rpartition(".")[0] == table]
    near = elsewhere or difflib.get_close_matches(key, beside, 1, 0.75) or difflib.get_close_matches(key, known, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _known() -> Iterator[str]:
    for table, field in Settings.model_fields.items():
        yield table
        kind = RouteTable if table == "route" else AttachTable if table == "attach" else field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from (f"{table}.{name}" for name in kind.model_fields)
    yield from (f"admin.tokens.{name}" for name in AdminToken.model_fields)
    yield from (f"tools.http.{name}" for name in HttpTool.model_fields)
    yield from (f"tools.mcp.{name}" for name in McpServer.model_fields)


def _key_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower().replace("__", ".")
