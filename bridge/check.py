"""Looks a sidecar over before it serves: each tool as each provider will see it, and who can be reached.

The sessions that it is to attach to are not looked at, but their provider's key, address and idea of a tool are.

Errors are what would keep it from serving, or its sessions from having tools; all else is a warning.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import orjson

from .advice import NO_TOOLS, PROVIDERS, for_models, for_provider, spelled
from .attach.plan import Plan
from .attach.providers import left_out
from .core.dialect import Dialect, SchemaProfile
from .dialects.schemas import shape
from .errors import ConfigError
from .relay.settings import Limits, Route
from .relay.upstream import Target, target_of
from .session.dialing import http_transport
from .tools.source import Source
from .tools.tool import Tool, Toolset

__all__ = ["Report", "View", "check"]

_PATIENCE: Final = 5.0
"""Seconds for a provider to take a connection."""


@dataclass(frozen=True, slots=True)
class View:
    """The tools as one provider will see them."""

    provider: str
    tools: tuple[Mapping[str, Any], ...]
    """`name`, `description`, `parameters`, and `wait_seconds`, which is None where it cannot be told to wait."""

    @property
    def size(self) -> int:
        """Bytes of JSON text."""
        return len(orjson.dumps(self.tools))


@dataclass(slots=True)
class Report:
    """What was found."""

    views: list[View] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def check(
    tools: Toolset,
    routes: Sequence[Route],
    limits: Limits,
    sources: Sequence[Source] = (),
    attach: Sequence[Plan] = (),
    *,
    providers: Sequence[str] = (),
    offline: bool = False,
) -> Report:
    """Look over what a sidecar is made of.

    `providers` are names in `advice.PROVIDERS`; by default those of the routes and of `attach`. `offline` connects to
    nobody: then the tools of `sources` are not known.
    """
    report = Report()
    if sources and offline:
        names = ", ".join(source.name for source in sources)
        report.warnings.append(f"offline: the tools of {names} are not looked at")
    tools = _united(tools, [] if offline else await _offers(sources, report), report)
    report.warnings += for_models(tools)
    if not tools and not (sources and offline):
        report.warnings.append(NO_TOOLS)
    configured = dict.fromkeys(spelled(route.upstream.dialect.name) for route in routes)
    attached = {spelled(each.name): each for plan in attach if (each := _attached(plan, report)) is not None}
    for name in providers or {**configured, **dict.fromkeys(attached)}:
        fitting = tools if name not in attached else _fitting(attached[name], tools, report)
        _look(fitting, name, report, in_use=name in configured)
    doors = _doors(_targets(routes, tools, limits, report), attach)
    if not offline:
        await _reach(doors, report)
    return report


# ------------------------------------------------------------------------------------------------------------ sources


async def _offers(sources: Sequence[Source], report: Report) -> list[Tool]:
    """The tools of all sources, which are opened at once, and closed again."""
    offers: dict[int, Sequence[Tool]] = {}

    async def ask(number: int, source: Source) -> None:
        try:
            async with source.open(lambda _: None) as tools:
                offers[number] = tuple(tools)
                if source.reason:
                    report.warnings.append(f"{source.name}: {source.reason}")
        except ConfigError as error:
            lines = str(error).splitlines()
            report.errors += [line if line.startswith(source.name) else f"{source.name}: {line}" for line in lines]

    async with anyio.create_task_group() as group:
        for number, source in enumerate(sources):
            group.start_soon(ask, number, source)
    return [tool for number in sorted(offers) for tool in offers[number]]


def _united(tools: Toolset, others: Iterable[Tool], report: Report) -> Toolset:
    united = Toolset(tools.values())
    for tool in others:
        try:
            united.add(tool)
        except ConfigError as error:
            report.errors.append(str(error))
    return united


# ---------------------------------------------------------------------------------------------------------- providers


def _look(tools: Toolset, name: str, report: Report, *, in_use: bool) -> None:
    """At the tools with the eyes of one provider."""
    profile = PROVIDERS[name]
    if not in_use:  # of a provider in use it is an error, and has been reported
        refused = [each for each in tools if not profile.takes_name(each)]
        report.warnings += [f"{name}: {each} is no name for a tool there; give it another one" for each in refused]
    report.warnings += [f"{name}: {line}" for line in for_provider(tools, profile)]
    report.views.append(View(name, tuple(_seen(tool, profile) for tool in tools.values())))


def _seen(tool: Tool, profile: SchemaProfile) -> Mapping[str, Any]:
    parameters, _ = shape(tool.spec.parameters, profile)
    return {
        "name": tool.spec.name,
        "description": tool.spec.description,
        "parameters": parameters,
        "wait_seconds": profile.window(tool.spec.timeout or tool.timeout),
    }


def _attached(plan: Plan, report: Report) -> Dialect | None:
    """Its dialect; None if nothing can be attached to."""
    try:
        plan.provider.key  # noqa: B018  # without one, nothing can begin
        http_transport(plan.provider.dialect)
        return plan.provider.agent("any").dialect
    except ConfigError as error:
        report.errors.append(f"attach: {error}")
        return None


def _fitting(dialect: Dialect, tools: Toolset, report: Report) -> Toolset:
    """The tools that sessions which are attached to can have."""
    left = left_out(dialect, tools)
    name = spelled(dialect.name)
    report.warnings += [f"{name}: left out of its sessions: {reason}" for reason in left.values()]
    return Toolset(tool for each, tool in tools.items() if each not in left)


def _targets(routes: Sequence[Route], tools: Toolset, limits: Limits, report: Report) -> list[Target]:
    targets = []
    for route in routes:
        try:
            targets.append(target_of(route, tools, limits))
        except ConfigError as error:
            report.errors.append(str(error))
    return targets


# ------------------------------------------------------------------------------------------------------------ upstreams


_Doors = dict[tuple[str, int], ssl.SSLContext | None]
"""Hosts and ports, and how they are secured."""


def _doors(targets: Iterable[Target], attach: Iterable[Plan]) -> _Doors:
    doors: _Doors = {(target.uri.host, target.uri.port): target.tls for target in targets}
    for plan in attach:
        url = urlsplit(plan.provider.agent("any").dialect.endpoint(plan.provider.url, "").url)
        secure = url.scheme == "https"
        door = url.hostname or "", url.port or (443 if secure else 80)
        doors[door] = ssl.create_default_context() if secure else None
    return doors


async def _reach(doors: _Doors, report: Report) -> None:
    """Connect to each address, and hang up: no session is made."""
    async with anyio.create_task_group() as group:
        for (host, port), tls in doors.items():
            group.start_soon(_knock, host, port, tls, report)


async def _knock(host: str, port: int, tls: ssl.SSLContext | None, report: Report) -> None:
    try:
        with anyio.fail_after(_PATIENCE):
            if tls is None:
                stream: anyio.abc.ByteStream = await anyio.connect_tcp(host, port)
            else:
                stream = await anyio.connect_tcp(host, port, tls=True, ssl_context=tls, tls_standard_compatible=False)
            await stream.aclose()
    except TimeoutError:
        report.warnings.append(f"{host}, port {port}: no answer within {_PATIENCE:g} s; check the url and the network")
    except ssl.SSLError as error:
        report.warnings.append(f"{host}, port {port}: no secure connection: {error.reason}; check url and ca_file")
    except OSError as error:
        report.warnings.append(
            f"{host}, port {port}: cannot be reached: {error.__cause__ or error}; check the url and the network"
        )
