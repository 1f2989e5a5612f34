"""Who is let in, and where to. What is not is a `Refusal`, which says what to do about it."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from websockets.datastructures import Headers
from websockets.http11 import Request

from ..errors import ConfigError
from .handshake import TOKEN, Refusal, parameter, without_token
from .settings import Listen
from .upstream import Target

__all__ = ["admit", "correlation", "metadata", "refuse_open_door"]

_MAX_CORRELATION = 128
_MAX_METADATA = 4096


def refuse_open_door(listen: Listen, targets: Sequence[Target]) -> None:
    """A key of ours is not for everybody who can reach the port. Raises `ConfigError`."""
    for target in targets:
        upstream = target.route.upstream
        if upstream.api_key and not upstream.tokens and not _is_loopback(listen.host):
            raise ConfigError(
                f"listening on {listen.host} with the provider's key and no tokens lets everybody use it: "
                "set tokens, or listen on 127.0.0.1"
            )


def admit(request: Request, peer: Any, listen: Listen, targets: Sequence[Target]) -> tuple[Target, str]:
    """The target of a request, and its path there, query included. Raises `Refusal`.

    `peer` is the socket's address. The first target whose prefix fits counts.
    """
    _check_origin(request.headers, listen)
    _check_host(request.headers, listen)
    path, _, query = request.path.partition("?")
    target = next((each for each in targets if _under(path, each.route.prefix)), None)
    if target is None:
        raise Refusal(404, "no route has this path", "correct the application's URL, or add a route")
    path = _carried_path(path, target)
    if target.route.upstream.api_key:
        _check_token(target.route.upstream.tokens, request.headers, query, peer)
        query = without_token(f"?{query}")[1:]
    queries = "&".join(each for each in (target.uri.query, query) if each)
    return target, f"{path}?{queries}" if queries else path


def correlation(request: Request, listen: Listen) -> str:
    """What the operator's own header says, fit for a log line."""
    values = request.headers.get_all(listen.correlation_header) if listen.correlation_header else []
    return "".join(c for c in " ".join(values) if c.isascii() and c.isprintable())[:_MAX_CORRELATION]


def metadata(request: Request, listen: Listen) -> dict[str, str]:
    """What the operator's own headers say for tools, by the names that the operator gave them."""
    said = {name: request.headers.get_all(header) for name, header in listen.metadata_headers.items()}
    return {name: " ".join(values)[:_MAX_METADATA] for name, values in said.items() if values}


def _check_origin(headers: Headers, listen: Listen) -> None:
    if any(origin not in listen.origins for origin in headers.get_all("Origin")):
        raise Refusal(403, "web pages of this origin are not let in", "list it in origins if it is yours")


def _check_host(headers: Headers, listen: Listen) -> None:
    """A page that makes a name of its own point here must not get in (DNS rebinding)."""
    allowed = listen.hosts
    if not allowed:
        if not _is_loopback(listen.host):
            return
        allowed = ("localhost", "127.0.0.1", "[::1]", listen.host)
    values = headers.get_all("Host")
    if len(values) != 1 or _without_port(values[0]).lower() not in {host.lower() for host in allowed}:
        raise Refusal(403, "this is not the name of this server", "list it in hosts if it is")


def _check_token(tokens: tuple[str, ...], headers: Headers, query: str, peer: Any) -> None:
    if not tokens:
        if peer and not _is_loopback(str(peer[0])):
            raise Refusal(401, "only applications on the same machine are let in", "set tokens to let others in")
        return
    shown = [_credential(value) for value in headers.get_all("Authorization")]
    shown += [unquote_plus(part.partition("=")[2]) for part in query.split("&") if parameter(part) == TOKEN]
    # All are compared, each in constant time, so that the time it takes tells nothing.
    matches = [hmac.compare_digest(one.encode(), token.encode()) for one in shown for token in tokens]
    if not any(matches):
        raise Refusal(401, "the token was not accepted", "send one of the tokens as `Authorization: Bearer ...`")


def _credential(authorization: str) -> str:
    """The token in a header that may name its scheme, as RFC 9110 wants it, or not, as the provider takes it, too."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else authorization


def _carried_path(path: str, target: Target) -> str:
    """The path at the provider. With a key of ours no other than the upstream's own can be reached."""
    rest, own = path[len(target.route.prefix) :], target.uri.path or "/"
    if rest in ("", "/"):
        return own
    if target.route.upstream.api_key and rest != own:
        raise Refusal(404, "this path is not served", f"use {target.route.prefix}{own}")
    return rest


def _under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + "/")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)
