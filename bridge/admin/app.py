"""The ASGI app. It holds no state of sessions: it asks."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import anyio
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..metrics import Source
from .access import Access, Token
from .guard import Endpoint, Guard, Refused, Requests, body_of, json_of
from .openapi import OPERATIONS, Operation, document
from .rate import Rate
from .shapes import Decision, Result
from .streams import Streams
from .subject import Desk, Host, Subject, Verdicts, told

__all__ = ["Rendered", "admin", "app_of"]

logger = logging.getLogger("bridge.admin")

_DRAIN_SECONDS = 30.0
_CHANGES_PER_SECOND = 50.0
_CHANGES_AT_ONCE = 200
"""Of each token, and of each peer that shows none: far more than people and workers need."""


class Rendered(Protocol):
    """Where the metrics come from: `Metrics`, or something that asks several processes."""

    def render(self) -> bytes:
        """The text format of Prometheus. Called in a thread of `anyio`."""
        ...

    def add_source(self, source: Source) -> None:
        """Show these numbers, too."""
        ...


def admin(host: Host, metrics: Rendered, access: Access | None = None) -> Starlette:
    """The app for a relay or a bridge of this process. Made before the sessions that it is to show begin."""
    return app_of(Desk(host), metrics, access)


def app_of(
    subject: Subject, metrics: Rendered, access: Access | None = None, *, rate: Rate | None = None, **streams: Any
) -> Starlette:
    """The app for whoever can be asked. Without an `access` it shows no sessions and changes nothing.

    `streams`: as `Streams` takes them.
    """
    requests = Requests()
    metrics.add_source(requests)
    guard = Guard(access or Access(), rate or Rate(_CHANGES_PER_SECOND, _CHANGES_AT_ONCE), requests)
    api = _Api(subject, metrics, Streams(subject, **streams))
    routes = []
    for operation in OPERATIONS:
        path = operation.path.replace("{key}", "{key:path}")  # a key may hold a slash, which comes percent-encoded
        routes.append(Route(path, _guarded(guard, operation, getattr(api, operation.name)), methods=[operation.method]))

    async def no_such(request: Request, fault: Exception) -> Response:
        assert isinstance(fault, HTTPException)
        requests.count("other", fault.status_code)
        error = f"{fault.detail}: /openapi.json lists what there is"
        response = json_of({"error": error, "retryable": False}, fault.status_code)
        response.headers.update(fault.headers or {})
        return response

    async def failed(request: Request, fault: Exception) -> Response:
        requests.count("other", 500)
        return json_of({"error": "the request failed here: the log says where", "retryable": True}, 500)

    return Starlette(routes=routes, exception_handlers={HTTPException: no_such, Exception: failed})


def _guarded(guard: Guard, operation: Operation, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return await guard.answer(operation, endpoint, request)

    return answer


class _Api:
    """One method for each of the `OPERATIONS`, under its name."""

    def __init__(self, subject: Subject, metrics: Rendered, streams: Streams) -> None:
        self._subject = subject
        self._metrics = metrics
        self._streams = streams

    async def metrics(self, request: Request, token: Token | None) -> Response:
        text = await anyio.to_thread.run_sync(self._metrics.render)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def healthz(self, request: Request, token: Token | None) -> Response:
        return json_of({"status": "ok"})

    async def readyz(self, request: Request, token: Token | None) -> Response:
        reason = await told(self._subject.ready)
        return json_of({"ready": not reason, "reason": reason}, 503 if reason else 200)

    async def openapi(self, request: Request, token: Token | None) -> Response:
        return json_of(document())

    # ---------------------------------------------------------------------------------------------- what is shown

    async def sessions(self, request: Request, token: Token | None) -> Response:
        return json_of({"sessions": list(await told(self._subject.sessions))})

    old_sessions = sessions

    async def session(self, request: Request, token: Token | None) -> Response:
        session_id = request.path_params["id"]
        for each in await told(self._subject.sessions):
            if _id(each) == session_id:
                return json_of(each)
        raise Refused(404, "no such session is going on: /v1/sessions lists those that are")

    async def session_calls(self, request: Request, token: Token | None) -> Response:
        session_id = request.path_params["id"]
        calls = await self._subject.calls(session_id)
        if not calls and all(_id(each) != session_id for each in await told(self._subject.sessions)):
            raise Refused(404, "no such session is known: /v1/sessions lists those that are going on")
        return json_of({"calls": calls})

    async def calls(self, request: Request, token: Token | None) -> Response:
        return json_of({"calls": await self._subject.calls()})

    async def approvals(self, request: Request, token: Token | None) -> Response:
        return json_of({"approvals": await self._subject.pending()})

    async def approvals_stream(self, request: Request, token: Token | None) -> Response:
        return self._streams.approvals()

    async def facts(self, request: Request, token: Token | None) -> Response:
        return self._streams.facts(request.query_params.get("session"), request.headers.get("last-event-id"))

    # ---------------------------------------------------------------------------------------------- what is changed

    async def result(self, request: Request, token: Token | None) -> Response:
        key, result = request.path_params["key"], await body_of(request, Result)
        said = await self._subject.settle(key, result.model_dump())
        if token is not None and result.status != "running":
            logger.info("call %.64r: a result (%s) by %s: %s", key, result.status, token.name, said["verdict"])
        match Verdicts(said["verdict"]):
            case Verdicts.ACCEPTED | Verdicts.REPEATED as verdict:
                answer = {name: said[name] for name in ("status", "output", "error") if name in said}
                return json_of({"key": key, **answer, "repeated": verdict is Verdicts.REPEATED})
            case Verdicts.RUNNING | Verdicts.ELSEWHERE:
                return json_of({"key": key, "status": "running"})
            case Verdicts.UNUSABLE:
                raise Refused(422, f"this cannot be a result: {said['why']}")
            case Verdicts.CONFLICT:
                raise Refused(409, "another answer has been given before, and stands: this one is not used")
            case verdict:
                raise _gone(verdict, "the call has been answered, or is not wanted any more", "call waits here")

    async def decision(self, request: Request, token: Token | None) -> Response:
        assert token is not None
        request_id, decision = request.path_params["id"], await body_of(request, Decision)
        by = decision.by or token.name
        said = await self._subject.decide(request_id, {**decision.model_dump(), "by": by})
        match Verdicts(said["verdict"]):
            case Verdicts.ACCEPTED:
                return json_of({"id": request_id, "decision": said["decision"], "by": said["by"]})
            case Verdicts.CONFLICT:
                raise Refused(409, f"already decided: {said['decision']}, by {said['by']}")
            case verdict:
                raise _gone(verdict, "the request is over, and the call was not run", "request for approval is known")

    async def drain(self, request: Request, token: Token | None) -> Response:
        seconds = _seconds(request.query_params.get("seconds"))
        if seconds is None:
            raise Refused(400, "seconds must be a number, 0 or more")
        return json_of({"left": await self._subject.drain(seconds)})


def _gone(verdict: Verdicts, expired: str, known: str) -> Refused:
    """What is told of something that is not there."""
    match verdict:
        case Verdicts.EXPIRED:
            return Refused(410, f"too late: {expired}")
        case Verdicts.UNSURE:
            later = {"retry-after": "1"}
            return Refused(503, "nobody can say now whose this is: try again", retryable=True, headers=later)
        case _:
            return Refused(404, f"no such {known}: it never was, or the process has been started again since")


def _id(session: Any) -> Any:
    return session["id"] if isinstance(session, Mapping) else session.id


def _seconds(text: str | None) -> float | None:
    try:
        seconds = _DRAIN_SECONDS if text is None else float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None
