"""The ASGI app. It holds no state: it asks."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, is_dataclass
from hmac import compare_digest
from inspect import isawaitable
from typing import Any, Protocol, TypeVar

import anyio
import orjson
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

__all__ = ["Rendered", "Subject", "admin", "told"]

_DRAIN_SECONDS = 30.0
_T = TypeVar("_T")


class Subject(Protocol):
    """What is looked after: a relay, a host of embedded sessions, or other processes that have to be asked."""

    @property
    def sessions(self) -> Sequence[Any] | Awaitable[Sequence[Any]]:
        """A snapshot of each session that is going on: a dataclass of plain values, or a mapping."""
        ...

    @property
    def ready(self) -> str | Awaitable[str]:
        """Why no new session would be taken; empty if one would be."""
        ...

    async def drain(self, seconds: float) -> int:
        """Take no new sessions, give those there are so long, end the rest, and say how many those were."""
        ...


class Rendered(Protocol):
    """Where the metrics come from: `Metrics`, or something that asks several processes."""

    def render(self) -> bytes:
        """The text format of Prometheus. Called in a thread of `anyio`."""
        ...


async def told(answer: _T | Awaitable[_T]) -> _T:
    """What a subject says, whether it knows that or has to ask."""
    return await answer if isawaitable(answer) else answer


def admin(subject: Subject, metrics: Rendered, *, token: str = "") -> Starlette:
    """The app. `token` allows what changes something; an empty one allows nothing."""

    async def metrics_page(_: Request) -> Response:
        text = await anyio.to_thread.run_sync(metrics.render)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def healthz(_: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(_: Request) -> Response:
        reason = await told(subject.ready)
        return _json({"ready": not reason, "reason": reason}, 503 if reason else 200)

    async def sessions(_: Request) -> Response:
        return _json({"sessions": list(await told(subject.sessions))})

    async def drain(request: Request) -> Response:
        seconds = _seconds(request.query_params.get("seconds"))
        if seconds is None:
            return _json({"error": "seconds must be a number, 0 or more"}, 400)
        return _json({"left": await subject.drain(seconds)})

    return Starlette(
        routes=[
            Route("/metrics", metrics_page),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/sessions", sessions),
            Route("/drain", _guarded(drain, token), methods=["POST"]),
        ]
    )


_Endpoint = Callable[[Request], Awaitable[Response]]


def _guarded(endpoint: _Endpoint, token: str) -> _Endpoint:
    async def guarded(request: Request) -> Response:
        if not token:
            return _json({"error": "no admin token is set, so nothing can be changed here"}, 403)
        sent = request.headers.get("authorization", "")
        if not compare_digest(sent.encode(), f"Bearer {token}".encode()):
            return _json({"error": "the admin token is missing or wrong"}, 401)
        return await endpoint(request)

    return guarded


def _seconds(text: str | None) -> float | None:
    try:
        seconds = _DRAIN_SECONDS if text is None else float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def _json(value: object, status: int = 200) -> Response:
    text = orjson.dumps(value, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)
    return Response(text, status, {"cache-control": "no-store"}, media_type="application/json")


def _plain(value: object) -> object:
    """Snapshots are dataclasses, with enums and the like in them."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
