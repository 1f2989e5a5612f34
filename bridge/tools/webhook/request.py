"""From checked arguments to the request that carries them. Whatever they hold, they stay where they were put."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from ...errors import InvalidArguments
from ..encode import encode
from ..tool import CallContext
from .declaration import PLACEHOLDER, HttpTool, Place

__all__ = ["Prepared", "identity", "prepared", "redirected"]

_ACCEPTED: Final = {"accept": "application/json, text/plain;q=0.5", "accept-encoding": "gzip, deflate"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_KEPT: Final = frozenset({"accept", "accept-encoding", "content-type"})
"""The headers that may go to a host which the tool's author has not named."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is to be sent."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes | None = None
    """None: there is none, which is not the same as an empty one."""


def prepared(tool: HttpTool, arguments: Mapping[str, Any], secrets: dict[str, str]) -> Prepared:
    """The request of a call. `secrets`: headers whose values come from the environment.

    Raises `InvalidArguments` for what cannot travel where it has to.
    """
    sent = {place: _sent(tool, arguments, place) for place in ("path", "query", "header", "body", "form")}
    body, kind = _body(tool, sent["body"], sent["form"])
    chosen = {name: _header(name, value) for name, value in sent["header"]}
    headers = _ACCEPTED | kind | {name.lower(): value for name, value in (tool.headers | secrets | chosen).items()}
    return Prepared(tool.method, _url(tool.url, arguments, sent["query"]), tuple(headers.items()), body)


def identity(context: CallContext) -> dict[str, str]:
    """The headers that say which call a request serves; they are the same for each attempt.

    The key has nothing to do with the arguments: two calls that order the same are two orders.
    """
    epoch, call_id = context.key
    call = "\0".join((context.session_id, str(epoch), call_id))
    return {
        "x-bridge-session": quote(context.session_id, safe=_IN_IDS),
        "x-bridge-call": quote(call_id, safe=_IN_IDS),
        "idempotency-key": hashlib.sha256(call.encode()).hexdigest(),
    }


_IN_IDS: Final = "!#$&'()*+,/:;=?@[]^`{|}"
"""What may stay in an id beside letters and digits: all that a header can carry without doubt, and no `%`."""


def redirected(request: Prepared, status: int, location: str) -> Prepared | None:
    """The request that a redirect asks for; None if it leads to no web address, or from a safe one to one that is not.

    To another host go neither secrets nor what says whose call it is. RFC 9110, 15.4.
    """
    try:
        here, there = urlsplit(request.url), urlsplit(urljoin(request.url, location))
    except ValueError:
        return None
    if there.scheme not in ("http", "https") or not there.hostname or (here.scheme, there.scheme) == ("https", "http"):
        return None
    request = replace(request, url=urlunsplit(there._replace(fragment="", netloc=there.netloc.rpartition("@")[2])))
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        request = replace(request, headers=_only(request, _KEPT.__contains__))
    if status == 303 or (status in (301, 302) and request.method == "POST"):
        headers = _only(request, lambda name: name != "content-type")
        request = replace(request, method="GET", body=None, headers=headers)
    return request


def _only(request: Prepared, kept: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in request.headers if kept(name))


# ----------------------------------------------------------------------------------------------------- the arguments


def _sent(tool: HttpTool, arguments: Mapping[str, Any], place: Place) -> list[tuple[str, Any]]:
    """What travels in one place, by the name it has there, in the order of the declaration."""
    named = ((name, sent) for name, (where, sent) in tool.travels.items() if where == place)
    return [(sent, arguments[name]) for name, sent in named if name in arguments]


def _url(template: str, arguments: Mapping[str, Any], query: Iterable[tuple[str, Any]]) -> str:
    parts = urlsplit(template)
    path = PLACEHOLDER.sub(lambda match: _segment(match[1], arguments[match[1]]), parts.path)
    added = urlencode([(name, text) for name, value in query for text in _texts(value)], quote_via=quote)
    return urlunsplit(parts._replace(path=path, query="&".join(filter(None, (parts.query, added)))))


def _segment(name: str, value: Any) -> str:
    """One step of a path. Servers that unpack `%2F` early must not find a way up in it, so there is none at all."""
    text = _text(value)
    if not text or _CONTROL.search(text):
        raise InvalidArguments(f"{name} must not be empty, and must not have control characters")
    if any(step in (".", "..") for step in re.split(r"[/\\]", text)):
        raise InvalidArguments(f"{name} must not be a dot or two, nor have them between slashes")
    return quote(text, safe="")


def _header(name: str, value: Any) -> str:
    text = "" if value is None else _text(value)
    if _CONTROL.search(text):
        raise InvalidArguments(f"{name} must not have control characters: it travels in a header")
    return text.strip()


def _body(
    tool: HttpTool, fields: list[tuple[str, Any]], form: list[tuple[str, Any]]
) -> tuple[bytes | None, dict[str, str]]:
    """The body and what is said of it, if any argument travels there, even if none was given."""
    match {place for place, _ in tool.travels.values()}:
        case places if "body" in places:
            return encode(dict(fields)).encode(), {"content-type": "application/json"}
        case places if "form" in places:
            pairs = [(name, text) for name, value in form for text in _texts(value)]
            return urlencode(pairs).encode(), {"content-type": "application/x-www-form-urlencoded"}
        case _:
            return (None if tool.method in ("GET", "DELETE") else b""), {}


def _texts(value: Any) -> list[str]:
    """A list is sent item by item under the same name; null is not sent."""
    items = value if isinstance(value, list) else [value]
    return [_text(item) for item in items if item is not None]


def _text(value: Any) -> str:
    """Text as it is, everything else as JSON: `true`, `3`, `[1,2]`."""
    return value if isinstance(value, str) else encode(value)
