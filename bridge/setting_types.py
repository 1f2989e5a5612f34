"""What a setting may be: the kinds of values, each of which says what is wrong, and secrets that are kept elsewhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from .attach.providers import known_dialect
from .dialects import DIALECTS, HTTP_DIALECTS
from .errors import ConfigError
from .journal.opening import is_postgres

__all__ = [
    "AttachDialect",
    "Count",
    "HttpUrl",
    "JournalAddress",
    "PathPrefix",
    "Port",
    "ReadableFile",
    "RelayDialect",
    "Seconds",
    "SecretFile",
    "SecretVariable",
    "SecretsFile",
    "SecretsVariable",
    "Timeout",
    "Url",
    "Words",
    "listed",
    "secret_of",
    "secrets_of",
]

_W = TypeVar("_W", str, Path)
"""Where a secret is: the name of an environment variable, or a file."""


def secret_of(variable: str | None, file: Path | None) -> str:
    """The secret that one of them holds; empty if neither is set."""
    where = file or variable
    return _text(where).strip() if where else ""


def secrets_of(variable: str | None, file: Path | None) -> tuple[str, ...]:
    """All that both of them hold."""
    return tuple(secret for where in (variable, file) if where for secret in _parts(where))


def _text(where: str | Path) -> str:
    return where.read_text(errors="replace") if isinstance(where, Path) else os.environ.get(where, "")


def _parts(where: str | Path) -> list[str]:
    """A variable separates secrets by commas, a file has one a line."""
    parts = _text(where).splitlines() if isinstance(where, Path) else _text(where).split(",")
    return [part.strip() for part in parts if part.strip()]


# ----------------------------------------------------------------------------------------------------------- checking


def listed(value: object) -> object:
    """The environment has no lists: commas will do."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _known_dialect(name: str) -> str:
    if name in HTTP_DIALECTS:
        remedy = "use [[attach]] for sessions that run already, or connect() in Python"
        raise ValueError(f"{name} is served over HTTP, and applications connect by WebSocket: {remedy}")
    if name not in DIALECTS:
        raise ValueError(f"must be one of {', '.join(DIALECTS)}")
    return name


def _attachable(name: str) -> str:
    try:
        return known_dialect(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _http(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be an HTTP address: https://host/path")
    if parts.username is not None or parts.query:
        raise ValueError("must not hold credentials or a query; a key goes into the variable that api_key_env names")
    return url


def _websocket(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("ws", "wss") or not parts.hostname):
        raise ValueError("must be a WebSocket address: wss://host/path")
    if parts.username is not None or parts.query:
        raise ValueError("must not hold credentials or a query; a key goes into the variable that api_key_env names")
    return url


def _readable(path: Path) -> Path:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    return path


def _set(name: str) -> str:
    if not os.environ.get(name):
        raise ValueError("must name an environment variable that is set")
    return name


def _one_secret(where: _W) -> _W:
    _sound(_text(where).strip())
    return where


def _some_secrets(where: _W) -> _W:
    _sound(*(_parts(where) or ("",)))
    return where


def _sound(*secrets: str) -> None:
    """Whoever names a secret wants it used: none at all would open a door, and some cannot be sent."""
    if not all(secrets):
        raise ValueError("must hold a secret, and is empty")
    if not all(secret.isascii() and secret.isprintable() for secret in secrets):
        raise ValueError("must hold a secret in one line, of characters that a header can carry")


def _path_prefix(path: str) -> str:
    if not path.startswith("/") or path.endswith("/") or any(c in path for c in "?# "):
        raise ValueError("must begin with /, must not end with one, and holds no query")
    return path


def _journal_address(address: str) -> str:
    if is_postgres(address) and urlsplit(address).password is not None:
        raise ValueError("must not hold a password; it comes from the variable PGPASSWORD, or from ~/.pgpass")
    return address


# -------------------------------------------------------------------------------------------------------------- kinds

Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(listed)]
Port = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Timeout = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Url = Annotated[str, AfterValidator(_websocket)]
HttpUrl = Annotated[str, AfterValidator(_http)]
RelayDialect = Annotated[str, AfterValidator(_known_dialect)]
AttachDialect = Annotated[str, AfterValidator(_attachable)]
PathPrefix = Annotated[str, AfterValidator(_path_prefix)]
JournalAddress = Annotated[str, AfterValidator(_journal_address)]
ReadableFile = Annotated[Path, AfterValidator(_readable)]
SecretFile = Annotated[ReadableFile, AfterValidator(_one_secret)]
SecretsFile = Annotated[ReadableFile, AfterValidator(_some_secrets)]
"""One secret a line."""
SecretVariable = Annotated[str, AfterValidator(_set), AfterValidator(_one_secret)]
SecretsVariable = Annotated[str, AfterValidator(_set), AfterValidator(_some_secrets)]
"""Secrets separated by commas."""
