"""A route as it is used: where to dial, how its sessions are made, and the connection to its provider."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from websockets.exceptions import InvalidURI
from websockets.http11 import Request
from websockets.uri import WebSocketURI, parse_uri

from ..core.dialect import refuse_inexpressible
from ..errors import ConfigError
from ..tools.tool import Tool
from .handshake import Ask, Opening, Refusal, carried, without_token
from .pipe import PipeSettings
from .session import SessionSettings
from .settings import Limits, OnProviderLoss, Route

__all__ = ["Target", "dial", "redial", "target_of"]

_OURS_ALONE = ("authorization", "cookie")
"""Headers that go no further than to us where the provider's key is ours."""
_PING_EVERY = 5.0
_PING_TIMEOUT = 10.0
"""At most, where a session is to be resumed: whether its connection is gone has to be known while that is possible."""


@dataclass(frozen=True, slots=True)
class Target:
    """A route, and what follows from it."""

    route: Route
    uri: WebSocketURI
    headers: tuple[tuple[str, str], ...]
    tls: ssl.SSLContext | None
    session: SessionSettings
    pipe: PipeSettings


def target_of(route: Route, tools: Mapping[str, Tool], limits: Limits) -> Target:
    """What a route comes to, with the tools of the relay. Raises `ConfigError` if it cannot work."""
    upstream = route.upstream
    endpoint = upstream.dialect.endpoint(upstream.url, upstream.api_key)
    try:
        uri = parse_uri(endpoint.url)
    except InvalidURI:
        raise ConfigError("the url of an upstream must be a WebSocket address: wss://host/path") from None
    if not all(value.isascii() and value.isprintable() for _, value in endpoint.headers):
        raise ConfigError("the api_key of an upstream has characters in it that no header can carry")
    if route.prefix and (not route.prefix.startswith("/") or route.prefix.endswith("/")):
        raise ConfigError(f"the prefix of a route begins with a slash and does not end with one: {route.prefix!r}")
    if upstream.tokens and not upstream.api_key:
        raise ConfigError("tokens for applications need an api_key: without one, their credentials are the provider's")
    settings = _session_settings(route, tools, limits)
    refuse_inexpressible(upstream.dialect, tuple(tool.spec for tool in settings.tools.values()))
    return Target(
        route,
        uri,
        endpoint.headers,
        (upstream.tls or _verifying()) if uri.secure else None,
        settings,
        _pipe_settings(route, limits),
    )


@cache
def _verifying() -> ssl.SSLContext:
    """One for all: it holds every certificate of the system."""
    return ssl.create_default_context()


def _session_settings(route: Route, tools: Mapping[str, Tool], limits: Limits) -> SessionSettings:
    upstream = route.upstream
    return SessionSettings(
        dialect=upstream.dialect,
        tools=dict(tools if route.tools is None else route.tools),
        show_calls=upstream.show_calls,
        delivery=upstream.delivery,
        owed_timeout=limits.owed_timeout,
        setup_timeout=limits.setup_timeout,
    )


def _pipe_settings(route: Route, limits: Limits) -> PipeSettings:
    upstream = route.upstream
    soon = upstream.on_provider_loss is OnProviderLoss.RESUME
    return PipeSettings(
        media=upstream.dialect.media_types,
        max_message=limits.max_message,
        pings=upstream.pings,
        on_application_loss=upstream.on_application_loss,
        ping_interval=min(limits.ping_interval, _PING_EVERY) if soon else limits.ping_interval,
        ping_timeout=min(limits.ping_timeout, _PING_TIMEOUT) if soon else limits.ping_timeout,
        stall_timeout=limits.stall_timeout,
        close_timeout=limits.close_timeout,
        end_timeout=limits.end_timeout,
    )


async def dial(
    target: Target, path: str, request: Request, limits: Limits, turns: asyncio.Semaphore
) -> tuple[Opening, str | None]:
    """A provider that has agreed to this request, and the subprotocol it chose. Raises `Refusal`.

    `turns` bounds how many are dialled at once: a burst of calls must not stall the audio of others.
    """
    ours = bool(target.route.upstream.api_key)
    try:
        return await _agreed(target, _asking(target, path, request), limits, turns)
    except Refusal as refusal:
        raise _not_the_applications(refusal) if ours else refusal from None


async def redial(
    target: Target, path: str, request: Request, limits: Limits, turns: asyncio.Semaphore, token: str
) -> Opening:
    """Another connection for the session that began with this request. Raises `Refusal`.

    `token` is what the provider wants its session to be resumed with, and then stands for all credentials; without one
    they are those of the first connection.
    """
    ask = _asking(target, path, request) if not token else _asking_with(token, target, path, request)
    provider, _ = await _agreed(target, ask, limits, turns)
    return provider


def _asking(target: Target, path: str, request: Request) -> Ask:
    dropped = _OURS_ALONE if target.route.upstream.api_key else ()
    return Ask(target.uri, path, [*carried(request.headers, dropped), *target.headers], request.headers)


def _asking_with(token: str, target: Target, path: str, request: Request) -> Ask:
    upstream = target.route.upstream
    shown = upstream.dialect.endpoint(upstream.url, token).headers
    return Ask(target.uri, without_token(path), [*carried(request.headers, _OURS_ALONE), *shown], request.headers)


async def _agreed(target: Target, ask: Ask, limits: Limits, turns: asyncio.Semaphore) -> tuple[Opening, str | None]:
    provider: Opening | None = None
    try:
        async with asyncio.timeout(limits.dial_timeout), turns:
            provider = await _connect(target, limits)
            provider.transport.write(ask.request())
            return provider, ask.agreed(await provider.head())
    except BaseException as fault:
        if provider is not None:
            provider.abort()
        if isinstance(fault, OSError):
            raise _unreachable(fault, target.uri.host) from None
        raise


async def _connect(target: Target, limits: Limits) -> Opening:
    uri = target.uri
    _, opening = await asyncio.get_running_loop().create_connection(
        lambda: Opening(limits.max_head),
        uri.host,
        uri.port,
        ssl=target.tls,
        server_hostname=uri.host if target.tls is not None else None,
    )
    return opening


def _not_the_applications(refusal: Refusal) -> Refusal:
    """The provider did not like our key; the application must not take that for its own."""
    if refusal.status in (401, 403):
        return Refusal(502, f"{refusal.reason}, which concerns the relay's key", refusal.remedy)
    return refusal


def _unreachable(fault: OSError, host: str) -> Refusal:
    match fault:
        case TimeoutError():
            return Refusal(504, "the provider did not answer in time", f"check that {host} can be reached from here")
        case ssl.SSLCertVerificationError():
            return Refusal(502, "the provider's certificate is not valid for its name", f"check the url: {host}")
        case ssl.SSLError():
            return Refusal(502, "no secure connection to the provider", f"check that {host} speaks TLS")
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            return Refusal(503, "no file descriptors are left", "raise the limit (ulimit -n): a session takes two")
        case ConnectionResetError():
            return Refusal(502, "the provider closed the connection during the handshake", f"check the url: {host}")
        case _:
            return Refusal(502, "the provider cannot be reached", f"check the url, and the name of {host}")
