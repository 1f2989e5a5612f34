"""What can be said about an MCP server: the table `[[tools.mcp]]` of the settings, and the same thing in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Self, get_type_hints
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from ...errors import ConfigError
from ..declared import Declared
from ..tool import ToolOptions

__all__ = ["McpServer", "McpTable"]


@cache
def _options() -> Mapping[str, TypeAdapter[Any]]:
    """What can be said about a tool. How strictly it is checked says its own schema."""
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(ToolOptions).items() if name != "strict"}


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their values as a tool takes them: TOML knows neither tuples nor dataclasses."""
    known = _options()
    if unknown := options.keys() - known.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: no such option of a tool; there are {', '.join(known)}")
    return {name: _value(name, value, known[name]) for name, value in options.items()}


def _value(name: str, value: Any, kind: TypeAdapter[Any]) -> Any:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors(include_url=False, include_input=False)[0]['msg']}") from None
    except ConfigError as error:
        raise ValueError(f"{name}: {error}") from None


def _set(name: str) -> str:
    if not os.environ.get(name):
        raise ValueError("must name an environment variable that is set")  # a secret may stand there by mistake
    return name


def _http(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be the address of a streamable HTTP endpoint: https://host/path")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold credentials; they go into the variable that headers_env names")
    return url


VariableName = Annotated[str, AfterValidator(_set)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Options = Annotated[Mapping[str, Any], AfterValidator(_checked)]


class McpServer(Declared):
    """An MCP server, and how its tools are treated. It is a program that we start, or has an address.

    Raises `ConfigError`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    """For errors, logs and readiness."""
    command: str = ""
    """Program that speaks MCP over its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables that it gets, with their values. Secrets go into `env_pass`."""
    env_pass: tuple[VariableName, ...] = ()
    """Environment variables of ours that it gets. It sees no others but HOME, LOGNAME, PATH, SHELL, TERM and USER."""
    cwd: Path | None = None
    """Directory in which it runs; by default that of the settings' file, or else ours."""
    url: Annotated[str, AfterValidator(_http)] = ""
    """Address of a server that runs already, and speaks streamable HTTP."""
    headers_env: Mapping[str, VariableName] = Field(default_factory=dict)
    """Headers of all requests to it, each with the environment variable that holds its whole value."""
    required: bool = True
    """Refuse to start without it, and take no sessions while it is down. Otherwise its tools come once it is there."""
    trusted: bool = False
    """Believe it that a tool only reads, or may be repeated. That a tool destroys things is always believed."""
    prefix: str = ""
    """Its tools are called `<prefix>_<name>`."""
    include: tuple[str, ...] = ()
    """The tools that are taken, by the server's own names; by default all."""
    exclude: tuple[str, ...] = ()
    """The tools that are not taken."""
    connect_timeout: Seconds = 15.0
    """Seconds for it to start, to agree on a protocol and to list its tools."""
    ping_interval: Seconds = 30.0
    """Seconds between two questions whether it is there. While it runs calls it is not asked."""
    ping_timeout: Seconds = 10.0
    """Seconds for the answer; without one it is restarted, or connected to anew."""
    options: Options = Field(default_factory=dict)
    """Options of all of its tools, such as `timeout`, `effect` or `filler`: whatever can be said about a function."""
    tool: Mapping[str, Options] = Field(default_factory=dict)
    """Options of single tools, by the server's own names; they win. `name` and `description` may be among them.

    Where a server says of a tool that it writes, destroys or may not be repeated, that wins over both."""

    @model_validator(mode="after")
    def _one_way_to_reach_it(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either command or url: it is a program to start, or has an address")
        foreign = ("headers_env",) if self.command else ("args", "env", "env_pass", "cwd")
        if misplaced := [field for field in foreign if getattr(self, field)]:
            raise ValueError(f"{misplaced[0]} does not go with {'command' if self.command else 'url'}; leave it out")
        return self

    @model_validator(mode="after")
    def _single_tools_have_names(self) -> Self:
        if misplaced := {"name", "description"} & self.options.keys():
            raise ValueError(f"options.{min(misplaced)} cannot be that of all tools; set it in tool.<name>")
        return self


class McpTable(McpServer):
    """The same, as a table of the settings."""

    is_table = True
