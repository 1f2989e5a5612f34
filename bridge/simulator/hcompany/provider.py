"""The H Company Agents API on a real port, offline.

It writes and enforces the protocol by itself, apart from this package's dialect. The rules, and how they are known:

* Status list and event log (documented, and in the published client): `/changes` is a long poll by index that answers
  204 without a body when there is nothing new, also after the end; the log may have lost its beginning.
* A session waits until each pending call has one result, in any order and split; it lists what remains after each.
* A result is accepted with 202, without a look at its id, also twice, and counts some time later (documented).
  404: no such session; 409: it is over; 422: the body is not as it should be.
* A pause keeps what is pending, takes results, and lasts until it is resumed (documented).
* What a duplicate does, and what becomes of results under way when the session ends, is not known: see `Rules`.

Sources: the provider's pages and OpenAPI document, and its client `hai-agents` 1.3, which passes unmodified.
"""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bridge.simulator.agenda import Agenda
from bridge.simulator.hcompany import bodies
from bridge.simulator.hcompany.bodies import CreateSession, CreateWebhook, UpdateWebhook, error, read
from bridge.simulator.hcompany.ledger import Ledger
from bridge.simulator.hcompany.rules import Rules
from bridge.simulator.hcompany.script import Scenario
from bridge.simulator.hcompany.session import Session, Status
from bridge.simulator.hcompany.webhooks import TYPES, Webhook, Webhooks
from bridge.simulator.site import Body, Exchange, Fault, Refused, Site, json_answer

__all__ = ["Simulator"]

_MAX_WAIT: Final = 25
_KEY_LIFETIME: Final = 24 * 3600.0
_MAX_KEY: Final = 255
_PREFIX: Final = "/api/v2"
_ONE: Final = "/sessions/{id}"


class Simulator:
    """A provider on the loopback; every session plays the scenario from its start.

        async with Simulator(Scenario((Ask((Call("stock_level", {"sku": "B-17"}),)), Answer()))) as sim:
            client = hai_agents.AsyncClient(base_url=sim.url, api_key=sim.api_key)

    Without steps the agent calls the client's first tool once, and tells what it gave. `agenda.advance` lets time
    jump. Operations that `faults` can name: create, list, get, delete, status, changes, events, messages,
    tool_results, pause, resume, force_answer, webhooks.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        rules: Rules | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str = "hk-offline",
    ) -> None:
        self.api_key = api_key
        self.agenda = Agenda()
        self.sessions: dict[str, Session] = {}
        self._scenario = scenario or Scenario()
        self._rules = rules or Rules()
        self._site = Site(self.agenda, host=host, port=port, error=error)
        self._keys: dict[str, tuple[float, bytes, str]] = {}
        """Idempotency keys: when they were used, for which body, and the session they made."""

    async def __aenter__(self) -> Self:
        self.webhooks = Webhooks(self.agenda, self._rules)
        try:
            await self._site.open(self._routes())
        except OSError:
            await self.webhooks.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._site.aclose()
        await self.webhooks.aclose()

    @property
    def url(self) -> str:
        """The client's `base_url`."""
        return self._site.url

    @property
    def faults(self) -> list[Fault]:
        """What is to go wrong next; each fault leaves the list when it has happened."""
        return self._site.faults

    @property
    def exchanges(self) -> list[Exchange]:
        """All requests that have been answered, or cut, in order."""
        return self._site.exchanges

    @property
    def session(self) -> Session:
        """The newest session. Raises `LookupError` before there is any."""
        if not self.sessions:
            raise LookupError("there is no session yet")
        return next(reversed(self.sessions.values()))

    @property
    def ledger(self) -> Ledger:
        """The account of the newest session. Raises `LookupError` before there is any."""
        return self.session.ledger

    async def reached(self, *statuses: str) -> Session:
        """Wait until the newest session has one of these statuses."""
        await self.agenda.until(lambda: bool(self.sessions) and self.session.status.value in statuses)
        return self.session

    def _routes(self) -> list[Route]:
        sessions = [
            ("POST", "/sessions", "create", self._create),
            ("GET", "/sessions", "list", self._list),
            ("GET", _ONE, "get", self._get),
            ("DELETE", _ONE, "delete", self._delete),
            ("GET", f"{_ONE}/status", "status", self._status),
            ("GET", f"{_ONE}/changes", "changes", self._changes),
            ("GET", f"{_ONE}/events", "events", self._events),
            ("POST", f"{_ONE}/messages", "messages", self._messages),
            ("POST", f"{_ONE}/tool_results", "tool_results", self._tool_results),
            ("POST", f"{_ONE}/pause", "pause", self._pause),
            ("POST", f"{_ONE}/resume", "resume", self._resume),
            ("POST", f"{_ONE}/force_answer", "force_answer", self._force_answer),
        ]
        webhooks = [
            ("POST", "/webhooks", self._create_webhook),
            ("GET", "/webhooks", self._list_webhooks),
            ("GET", "/webhooks/events", self._webhook_types),
            ("GET", "/webhooks/{id}", self._get_webhook),
            ("PATCH", "/webhooks/{id}", self._update_webhook),
            ("DELETE", "/webhooks/{id}", self._delete_webhook),
            ("POST", "/webhooks/{id}/rotate", self._rotate_webhook),
            ("POST", "/webhooks/{id}/ping", self._ping_webhook),
        ]
        every = [*sessions, *((method, path, "webhooks", operation) for method, path, operation in webhooks)]
        return [self._site.route(method, _PREFIX + path, name, operation) for method, path, name, operation in every]

    # Sessions

    async def _create(self, body: Body) -> Response:
        self._authorise(body.request)
        asked = read(CreateSession, body.data)
        key = body.request.headers.get("idempotency-key", "")
        if len(key) > _MAX_KEY:
            raise Refused(422, error(422, f"the Idempotency-Key is longer than {_MAX_KEY} characters"))
        if (known := self._known(key, body.data)) is not None:
            return json_answer(_envelope(known), 201)
        full = self._rules.capacity is not None and self._running() >= self._rules.capacity
        if full and not asked.queue:
            detail = [{"type": "capacity", "message": "too many sessions", "scope": "org"}]
            raise Refused(429, error(429, "no session now", detail))
        session = Session(asked, self._scenario, self._rules, self.agenda, self._turned)
        self.sessions[session.id] = session
        if key:
            self._keys[key] = (self.agenda.now, body.data, session.id)
        if not full:
            session.start()
        return json_answer(_envelope(session), 201)

    def _known(self, key: str, data: bytes) -> Session | None:
        """The session that was made with this key, if it is remembered."""
        at, body, session_id = self._keys.get(key, (0.0, b"", ""))
        if not session_id or self.agenda.now > at + _KEY_LIFETIME:
            return None
        if body != data:
            raise Refused(422, error(422, "this Idempotency-Key was used with another body"))
        return self.sessions[session_id]

    def _running(self) -> int:
        return sum(not session.is_over and session.status is not Status.QUEUED for session in self.sessions.values())

    def _turned(self, session: Session, before: Status) -> None:
        """A session's status has changed: tell the webhooks, and let the next one in."""
        self.webhooks.announce(session.id, session.status.value, before.value)
        queued = next((each for each in self.sessions.values() if each.status is Status.QUEUED), None)
        if session.is_over and queued is not None and queued is not session:
            queued.start()

    async def _list(self, body: Body) -> Response:
        self._authorise(body.request)
        wanted = body.request.query_params.getlist("status")
        found = [each for each in self.sessions.values() if not wanted or each.status.value in wanted]
        return _page(body.request, [_summary(each) for each in found], default=10, most=100)

    async def _get(self, body: Body) -> Response:
        return json_answer(_envelope(self._find(body.request)))

    async def _delete(self, body: Body) -> Response:
        self._find(body.request).interrupt()
        return Response(status_code=204)

    async def _status(self, body: Body) -> Response:
        session = self._find(body.request)
        text, code = session.failure or (None, None)
        told = {
            "status": session.status.value,
            "error": text,
            "error_code": code,
            "outcome": session.outcome,
            "steps": session.steps,
        }
        pending = {"pending_tool_calls": [call.request for call in session.pending]}
        return json_answer({**told, **pending} if self._rules.lists_pending else told)

    async def _changes(self, body: Body) -> Response:
        session = self._find(body.request)
        start = _number(body.request, "from_index", 0)
        limit = _number(body.request, "limit", -1)
        wait = _number(body.request, "wait_for_seconds", 0, most=_MAX_WAIT)
        await self.agenda.until(lambda: len(session.log) > start, wait)
        if len(session.log) <= start:
            return Response(status_code=204)
        first, events = session.log.read(start, None if limit < 0 else limit)
        with_events = body.request.query_params.get("include_events", "true").lower() != "false"
        return json_answer(
            _told_changes(session) | ({"first_index": first, "new_events": events} if with_events else {})
        )

    async def _events(self, body: Body) -> Response:
        events = self._find(body.request).log.kept
        kinds = body.request.query_params.getlist("type")
        found = [event for event in events if not kinds or event["type"] in kinds]
        newest_first = body.request.query_params.get("sort") == "-timestamp"
        return _page(body.request, found[::-1] if newest_first else found, default=50, most=200)

    async def _messages(self, body: Body) -> Response:
        session = self._find(body.request)
        for message in bodies.read_messages(body.data):
            session.message(message.message, message.caller_id)
        return Response(status_code=202)

    async def _tool_results(self, body: Body) -> Response:
        session = self._find(body.request)
        session.take(bodies.read_results(body.data), body.delay)
        return Response(status_code=202)

    async def _pause(self, body: Body) -> Response:
        self._find(body.request).pause()
        return Response(status_code=202)

    async def _resume(self, body: Body) -> Response:
        self._find(body.request).resume()
        return Response(status_code=202)

    async def _force_answer(self, body: Body) -> Response:
        self._find(body.request).force_answer()
        return Response(status_code=202)

    # Webhooks

    async def _create_webhook(self, body: Body) -> Response:
        self._authorise(body.request)
        webhook = self.webhooks.create(read(CreateWebhook, body.data))
        return json_answer(webhook.record(with_secret=True), 201)

    async def _list_webhooks(self, body: Body) -> Response:
        self._authorise(body.request)
        return _page(body.request, [each.record() for each in self.webhooks.all.values()], default=10, most=100)

    async def _webhook_types(self, body: Body) -> Response:
        self._authorise(body.request)
        return json_answer([{"type": kind, "description": words} for kind, words in TYPES.items()])

    async def _get_webhook(self, body: Body) -> Response:
        return json_answer(self._webhook(body.request).record())

    async def _update_webhook(self, body: Body) -> Response:
        webhook = self._webhook(body.request)
        self.webhooks.update(webhook, read(UpdateWebhook, body.data))
        return json_answer(webhook.record())

    async def _delete_webhook(self, body: Body) -> Response:
        del self.webhooks.all[self._webhook(body.request).id]
        return Response(status_code=204)

    async def _rotate_webhook(self, body: Body) -> Response:
        webhook = self._webhook(body.request)
        self.webhooks.rotate(webhook)
        return json_answer(webhook.record(with_secret=True))

    async def _ping_webhook(self, body: Body) -> Response:
        status = await self.webhooks.ping(self._webhook(body.request))
        return json_answer({"response_status": status or 504})

    # Who, and what

    def _authorise(self, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {self.api_key}":
            raise Refused(401, error(401, "the key was not accepted"))

    def _find(self, request: Request) -> Session:
        self._authorise(request)
        try:
            given = uuid.UUID(request.path_params["id"])
        except ValueError:
            raise Refused(422, error(422, "the id is no UUID")) from None
        session = self.sessions.get(str(given))
        if session is None:
            raise Refused(404, error(404, "no such session"))
        return session

    def _webhook(self, request: Request) -> Webhook:
        self._authorise(request)
        webhook = self.webhooks.all.get(request.path_params["id"])
        if webhook is None:
            raise Refused(404, error(404, "no such webhook"))
        return webhook


def _envelope(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "request": session.request.model_dump(exclude_unset=True),
        "status": {"status": session.status.value},
        "latest_answer": session.answer,
        "created_at": session.created_at,
        "started_at": session.started_at,
        "finished_at": session.finished_at,
    }


def _summary(session: Session) -> dict[str, Any]:
    agent = session.request.agent
    return {
        "id": session.id,
        "agent": agent if isinstance(agent, str) else agent.name,
        "status": session.status.value,
        "created_at": session.created_at,
        "started_at": session.started_at,
        "finished_at": session.finished_at,
    }


def _told_changes(session: Session) -> dict[str, Any]:
    text, code = session.failure or (None, None)
    return {
        "status": session.status.value,
        "started_at": session.started_at,
        "finished_at": session.finished_at,
        "error": text,
        "error_code": code,
        "answer": session.answer,
        "outcome": session.outcome,
        "pending_tool_calls": [call.request for call in session.pending],
    }


def _page(request: Request, items: list[Any], *, default: int, most: int) -> Response:
    page, size = _number(request, "page", 1), _number(request, "size", default, most=most)
    return json_answer({"items": items[(page - 1) * size : page * size], "total": len(items), "page": page})


def _number(request: Request, name: str, default: int, *, most: int | None = None) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isdecimal() or (most is not None and int(text) > most):
        raise Refused(422, error(422, f"{name} is out of range"))
    return int(text)
