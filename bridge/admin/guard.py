"""What a request passes before it is answered, and the one form in which it is told no."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ..metrics import Reading
from .access import Access, Readers, Scope, Token
from .openapi import Operation
from .plain import dumped
from .rate import Rate

__all__ = ["Endpoint", "Guard", "Refused", "Requests", "body_of", "json_of"]

_MAX_BODY = 1024 * 1024
"""Bytes; a result is limited far below by its own tool."""
_BODY_SECONDS = 10.0

Endpoint = Callable[[Request, Token | None], Awaitable[Response]]
"""Answers a request; with the token that was shown, if any was needed."""

_B = TypeVar("_B", bound=BaseModel)


class Refused(Exception):
    """The request comes to nothing: the status, what happened and what to do, and whether to try again."""

    def __init__(self, status: int, error: str, *, retryable: bool = False, headers: dict[str, str] | None = None):
        super().__init__(error)
        self.response = json_of({"error": error, "retryable": retryable}, status)
        self.response.headers.update(headers or {})


class Requests:
    """How many there were, by path and status: a source of metrics."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, str]] = Counter()

    def count(self, path: str, status: int) -> None:
        self._times[path, str(status)] += 1

    def __call__(self) -> Iterator[Reading]:
        return (Reading("bridge_api_requests_total", labels, times) for labels, times in dict(self._times).items())


class Guard:
    """Lets a request through to its endpoint, or refuses it; and counts it."""

    def __init__(self, access: Access, rate: Rate, requests: Requests) -> None:
        self._access = access
        self._rate = rate
        self._requests = requests

    async def answer(self, operation: Operation, endpoint: Endpoint, request: Request) -> Response:
        """What the endpoint says, or why it is not asked."""
        try:
            token = None if operation.scope is None else self._admitted(operation.scope, operation.changes, request)
            response = await endpoint(request, token)
        except Refused as refused:
            response = refused.response
        self._requests.count(operation.path, response.status_code)
        return response

    def _admitted(self, scope: Scope, changes: bool, request: Request) -> Token | None:
        headers = request.headers
        if why := self._access.refusal(headers.get("host", ""), headers.get("origin")):
            raise Refused(403, why)
        token = self._access.whose(headers.get("authorization", ""))
        if changes:
            self._take_turn(token.name if token else f"peer {request.client.host if request.client else ''}")
        if scope is Scope.READ and self._access.readers is Readers.ANYBODY:
            return token
        if token is None:
            raise self._stranger()
        if scope not in token.scopes:
            raise Refused(403, f"the token {token.name} does not allow this: give it the scope {scope.value!r}")
        return token

    def _take_turn(self, who: str) -> None:
        if wait := self._rate.take(who):
            seconds = str(math.ceil(wait))
            headers = {"retry-after": seconds}
            raise Refused(429, f"too many requests: try again in {seconds} s", retryable=True, headers=headers)

    def _stranger(self) -> Refused:
        if not self._access.tokens:
            return Refused(403, "no admin token is set: set admin.token_env, or [[admin.tokens]], and send one")
        error = "the admin token is missing or wrong: send `Authorization: Bearer <token>`"
        return Refused(401, error, headers={"www-authenticate": "Bearer"})


async def body_of(request: Request, shape: type[_B]) -> _B:
    """The body of a request. Raises `Refused` if it does not come in time, is too large, or is not of this shape."""
    try:
        with anyio.fail_after(_BODY_SECONDS):
            text = await _read(request)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_SECONDS:g} s", retryable=True) from None
    except ClientDisconnect:
        raise Refused(400, "the connection was lost before the body had come") from None
    try:
        return shape.model_validate(_json(text))
    except ValidationError as error:
        raise Refused(422, f"{_faults(error)}; see /openapi.json") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON: see /openapi.json for what it should be") from None


async def _read(request: Request) -> bytes:
    size, pieces = 0, []
    async for piece in request.stream():
        size += len(piece)
        if size > _MAX_BODY:
            raise Refused(413, f"the body is larger than {_MAX_BODY} bytes: hand over less, such as an address")
        pieces.append(piece)
    return b"".join(pieces)


def _json(text: bytes) -> Any:
    """Strictly JSON; a number stays what it is, however large. Raises `ValueError` or `RecursionError`."""
    return json.loads(text.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _faults(error: ValidationError) -> str:
    """What is wrong, by field. What was sent is not repeated: it may be a result."""
    faults = [(each["loc"][:1], each["msg"].removeprefix("Value error, ")) for each in error.errors()]
    return "; ".join(": ".join([*map(str, where), message]) for where, message in faults)


def json_of(value: object, status: int = 200) -> Response:
    """A value as JSON; snapshots that are dataclasses, too."""
    return Response(dumped(value), status, {"cache-control": "no-store"}, media_type="application/json")
