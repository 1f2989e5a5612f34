"""Every path of the port, once: the app is made from this table, and so is what it says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .access import Scope
from .shapes import (
    ApprovalList,
    CallList,
    Decided,
    Decision,
    Drained,
    Health,
    Problem,
    Readiness,
    Result,
    SessionList,
    SessionView,
    Taken,
)

__all__ = ["OPERATIONS", "Operation", "document"]

_EVENTS = "text/event-stream"
_PAGE = "text/plain"
_DOCUMENT = "application/json"

Answer = type[BaseModel] | str
"""A shape, or the media type of what has none."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    about: str
    answers: Mapping[int, Answer]
    """Those of its own; `statuses` has those that the port adds, too."""
    scope: Scope | None = None
    """What it takes; nothing at all if None."""
    body: type[BaseModel] | None = None
    parameters: tuple[tuple[str, str, str], ...] = ()
    """Where, name and meaning of what may be said besides."""

    @property
    def statuses(self) -> dict[int, Answer]:
        """Everything that it may answer, by status."""
        added: dict[int, Answer] = {} if self.scope is None else dict.fromkeys((401, 403), Problem)
        if self.changes:
            added |= {429: Problem}
        if self.body is not None:
            added |= dict.fromkeys((400, 408, 413, 422), Problem)
        return {**self.answers, **added}

    @property
    def changes(self) -> bool:
        """Does it change something?"""
        return self.method == "POST"


_LOST = dict.fromkeys((404, 409, 410, 503), Problem)

OPERATIONS = (
    Operation("metrics", "GET", "/metrics", "For Prometheus.", {200: _PAGE}),
    Operation("healthz", "GET", "/healthz", "200 as long as the process answers at all.", {200: Health}),
    Operation(
        "readyz", "GET", "/readyz", "200 if a new session would be taken, else 503.", {200: Readiness, 503: Readiness}
    ),
    Operation("openapi", "GET", "/openapi.json", "This description.", {200: _DOCUMENT}),
    Operation("sessions", "GET", "/v1/sessions", "The sessions that are going on.", {200: SessionList}, Scope.READ),
    Operation("old_sessions", "GET", "/sessions", "The same as /v1/sessions.", {200: SessionList}, Scope.READ),
    Operation("session", "GET", "/v1/sessions/{id}", "One of them.", {200: SessionView, 404: Problem}, Scope.READ),
    Operation(
        "session_calls",
        "GET",
        "/v1/sessions/{id}/calls",
        "The calls of a session, also of one that has ended, as far as they are remembered.",
        {200: CallList, 404: Problem},
        Scope.READ,
    ),
    Operation(
        "calls",
        "GET",
        "/v1/calls",
        "The calls that wait for a result from outside, also at other processes that share the journal.",
        {200: CallList},
        Scope.READ,
    ),
    Operation(
        "result",
        "POST",
        "/v1/calls/{key}/result",
        "Say what came of a call that waits. The first answer stands: the same again is answered 200, another 409. "
        "`running` says whether the call still waits, and changes nothing: 410 means that the work is not wanted.",
        {200: Taken, **_LOST},
        Scope.COMPLETE,
        Result,
    ),
    Operation(
        "approvals", "GET", "/v1/approvals", "The calls that wait to be approved.", {200: ApprovalList}, Scope.READ
    ),
    Operation(
        "approvals_stream",
        "GET",
        "/v1/approvals/stream",
        "The same as server-sent events: `asked` for each that waits or comes, `resolved` when one is over; of one at "
        "another process just that (`elsewhere`). Whoever reads it counts as somebody who can decide.",
        {200: _EVENTS, 503: Problem},
        Scope.APPROVE,
    ),
    Operation(
        "decision",
        "POST",
        "/v1/approvals/{id}",
        "Approve or deny a call. The first decision stands; a second one is answered 409, one that is too late 410.",
        {200: Decided, **_LOST},
        Scope.APPROVE,
        Decision,
    ),
    Operation(
        "facts",
        "GET",
        "/v1/facts",
        "What happens in sessions, as server-sent events: names, keys and outcomes, never arguments or results. "
        "An event `lost` says that some are missing: those of before a restart are kept by nobody but the journal.",
        {200: _EVENTS, 503: Problem},
        Scope.READ,
        parameters=(
            ("query", "session", "Only of this session."),
            ("header", "Last-Event-ID", "Go on after this event; none is missed, or `lost` comes first."),
        ),
    ),
    Operation(
        "drain",
        "POST",
        "/drain",
        "Take no new sessions, give the others so long, end the rest.",
        {200: Drained, 400: Problem},
        Scope.DRAIN,
        parameters=(("query", "seconds", "How long; 30 if it is not said."),),
    ),
)

_MEANINGS = {
    200: "It is as asked.",
    400: "The request cannot be read.",
    401: "A token is missing, or is none of ours.",
    403: "The token does not allow this, or the name or page that the request comes from is not let in.",
    404: "There is none, or none any more.",
    408: "The body did not come in time.",
    409: "Something else has been said before, and stands. Final.",
    410: "Too late: it is not wanted any more. Final.",
    413: "The body is too large.",
    422: "What was said cannot be used.",
    429: "Too many requests: `Retry-After` says when there is room.",
    503: "Not now.",
}


def document() -> dict[str, Any]:
    """The port in the words of OpenAPI 3.1."""
    shapes = {each for op in OPERATIONS for each in (*op.statuses.values(), op.body) if isinstance(each, type)}
    ordered = sorted(shapes, key=lambda shape: shape.__name__)
    _, schemas = models_json_schema(
        [(shape, "validation") for shape in ordered], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for op in OPERATIONS:
        paths.setdefault(op.path, {})[op.method.lower()] = _described(op)
    return {
        "openapi": "3.1.0",
        "info": {"title": "voice-tool-bridge", "version": version("voice-tool-bridge")},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(op: Operation) -> dict[str, Any]:
    named = [word.strip("{}") for word in op.path.split("/") if word.startswith("{")]
    parameters = [{"in": "path", "name": name, "required": True, "schema": {"type": "string"}} for name in named]
    for place, name, about in op.parameters:
        parameters.append({"in": place, "name": name, "description": about, "schema": {"type": "string"}})
    told: dict[str, Any] = {
        "operationId": op.name,
        "summary": op.about,
        "parameters": parameters,
        "responses": {
            str(status): {"description": _MEANINGS[status], "content": _content(answer)}
            for status, answer in sorted(op.statuses.items())
        },
    }
    if op.body is not None:
        told["requestBody"] = {"required": True, "content": _content(op.body)}
    if op.scope is not None:
        told["security"] = [{"token": [op.scope.value]}]
    return told


def _content(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}}
