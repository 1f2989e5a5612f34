"""The Herm sessions API on a real port, offline.

Its public documentation is thin, and there is no client for Python: what this simulator does rests on reading. It
enforces the documented rules by itself, apart from this package's dialect:

* A session is created under an agent. Client events are posted as `{"events": [...]}` and answered with 202; a stream
  tells what happens from its opening on, `sequence` rises without gaps, and the history can be listed.
* `agent.custom_tool_use` is answered by `user.custom_tool_result` within about five minutes; later is 410, with code
  `response_expired` and `retryable` false. A message while a turn runs is refused.
* `running` is the answer to a call that takes longer: the turn goes on. One final result replaces it in the history,
  is told to open streams as `session.tool_updated`, and starts a turn, when no other runs. It may be repeated.
* A tool that is always asked about is called only after `agent.approval_request` has been allowed.

What is not documented is in `Rules`, and every name that is not in `Payloads`. Parallel calls wait one by one.
Source: the provider's pages on sessions, events, custom tools and long-running tools.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bridge.simulator.agenda import Agenda
from bridge.simulator.herm.bodies import CreateAgent, CreateSession, UpdateSession, error, read, read_events
from bridge.simulator.herm.ledger import Ledger, Policy
from bridge.simulator.herm.rules import Rules
from bridge.simulator.herm.script import Scenario
from bridge.simulator.herm.session import Declared, Session
from bridge.simulator.listener import cut
from bridge.simulator.site import Body, Exchange, Fault, Refused, Site, json_answer

__all__ = ["Simulator"]


@dataclass(slots=True, eq=False)
class _Agent:
    id: str
    body: CreateAgent
    created_at: str


@dataclass(slots=True, eq=False)
class _Housed:
    """A session, and what its resource tells beside."""

    session: Session
    agent_id: str
    about: CreateSession
    listeners: list[Request] = field(default_factory=list)


class Simulator:
    """A provider on the loopback; every session plays the scenario from its start.

        async with Simulator(Scenario((Ask((Call("transcode", {"file": "a.mov"}),)), Answer()))) as sim:
            ...  # POST sim.url + "/v1/agents", with the header x-api-key: sim.api_key

    Without steps the agent calls its first custom tool at every message, and tells what it gave. `agenda.advance` lets
    time jump. Operations that `faults` can name: create_agent, create_session, list, get, update, delete, archive,
    send, events, stream.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        rules: Rules | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str = "herm-offline",
    ) -> None:
        self.api_key = api_key
        self.agenda = Agenda()
        self._scenario = scenario or Scenario()
        self._rules = rules or Rules()
        self._names = self._rules.payloads
        self._agents: dict[str, _Agent] = {}
        self._sessions: dict[str, _Housed] = {}
        self._site = Site(self.agenda, host=host, port=port, error=self._error)

    async def __aenter__(self) -> Self:
        await self._site.open(self._routes())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._site.aclose()

    @property
    def url(self) -> str:
        """The address in front of `/v1`."""
        return self._site.url

    @property
    def faults(self) -> list[Fault]:
        """What is to go wrong next; each fault leaves the list when it has happened."""
        return self._site.faults

    @property
    def exchanges(self) -> list[Exchange]:
        """All requests that have been answered, or cut, in order; of a stream, its opening."""
        return self._site.exchanges

    @property
    def sessions(self) -> dict[str, Session]:
        """All sessions by id, oldest first."""
        return {name: housed.session for name, housed in self._sessions.items()}

    @property
    def session(self) -> Session:
        """The newest session. Raises `LookupError` before there is any."""
        if not self._sessions:
            raise LookupError("there is no session yet")
        return next(reversed(self._sessions.values())).session

    @property
    def ledger(self) -> Ledger:
        """The account of the newest session. Raises `LookupError` before there is any."""
        return self.session.ledger

    def cut_streams(self) -> None:
        """Reset all open streams."""
        for housed in self._sessions.values():
            while housed.listeners:
                cut(housed.listeners.pop())

    def _error(self, status: int) -> dict[str, Any]:
        return error("unavailable", f"HTTP status {status}", self._names, retryable=status >= 500)

    def _routes(self) -> list[Route]:
        one = "/v1/sessions/{id}"
        every = (
            ("POST", "/v1/agents", "create_agent", self._create_agent),
            ("POST", "/v1/agents/{id}/sessions", "create_session", self._create_session),
            ("GET", "/v1/sessions", "list", self._list),
            ("GET", one, "get", self._get),
            ("PATCH", one, "update", self._update),
            ("DELETE", one, "delete", self._delete),
            ("POST", f"{one}/archive", "archive", self._archive),
            ("POST", f"{one}/events", "send", self._send),
            ("GET", f"{one}/events", "events", self._events),
            ("GET", f"{one}/events/stream", "stream", self._stream),
        )
        return [self._site.route(method, path, name, operation) for method, path, name, operation in every]

    # Agents and sessions

    async def _create_agent(self, body: Body) -> Response:
        self._authorise(body.request)
        asked = read(CreateAgent, body.data, self._names)
        agent = _Agent(f"agent_{secrets.token_hex(6)}", asked, self.agenda.stamp)
        self._custom_tools(asked)
        self._agents[agent.id] = agent
        return json_answer({**asked.model_dump(), "id": agent.id, "version": 1, "createdAt": agent.created_at}, 201)

    async def _create_session(self, body: Body) -> Response:
        self._authorise(body.request)
        agent = self._agents.get(body.request.path_params["id"])
        if agent is None:
            raise self._refused(404, "not_found", "no such agent")
        about = read(CreateSession, body.data, self._names)
        session = Session(self._custom_tools(agent.body), self._scenario, self._rules, self.agenda)
        housed = self._sessions[session.id] = _Housed(session, agent.id, about)
        return json_answer(_resource(housed), 201)

    def _custom_tools(self, agent: CreateAgent) -> dict[str, Declared]:
        """The custom tools by name. Raises `Refused` for a policy that does not exist."""
        tools: dict[str, Declared] = {}
        for entry in agent.tools:
            if entry.get("type") != self._names.custom:
                continue
            policy = entry.get(self._names.policy, {"type": "always_allow"})
            schema = entry.get(self._names.schema)
            with suppress(ValueError, AttributeError):
                declared = Declared(Policy(policy.get("type")), schema if isinstance(schema, dict) else {})
                tools[str(entry.get("name"))] = declared
                continue
            raise self._refused(400, "invalid_request", f"{self._names.policy}: there is no such policy")
        return tools

    async def _list(self, body: Body) -> Response:
        self._authorise(body.request)
        wanted = {name: body.request.query_params.get(name) for name in ("agentId", "userId", "status")}
        resources = [_resource(housed) for housed in self._sessions.values()]
        found = [each for each in resources if all(value in (None, each[name]) for name, value in wanted.items())]
        start, limit = self._number(body.request, "cursor", 0), self._number(body.request, "limit", 20)
        if not 1 <= limit <= 100:
            raise self._refused(400, "invalid_request", "limit: between 1 and 100")
        end = start + limit
        cursor = {"nextCursor": str(end)} if end < len(found) else {}
        return json_answer({self._names.listed: found[start:end], **cursor})

    async def _get(self, body: Body) -> Response:
        return json_answer(_resource(self._find(body.request)))

    async def _update(self, body: Body) -> Response:
        housed = self._find(body.request)
        change = read(UpdateSession, body.data, self._names)
        for name in change.model_fields_set & {"title", "metadata"}:
            setattr(housed.about, name, getattr(change, name))
        return json_answer(_resource(housed))

    async def _delete(self, body: Body) -> Response:
        housed = self._find(body.request)
        housed.session.archive()
        del self._sessions[housed.session.id]
        while housed.listeners:
            cut(housed.listeners.pop())
        return Response(status_code=204)

    async def _archive(self, body: Body) -> Response:
        housed = self._find(body.request)
        housed.session.archive()
        return json_answer(_resource(housed))

    # Events

    async def _send(self, body: Body) -> Response:
        session = self._find(body.request).session
        taken = session.take(read_events(body.data, self._names))
        return json_answer({self._names.accepted: taken}, 202)

    async def _events(self, body: Body) -> Response:
        return json_answer({self._names.listed: self._find(body.request).session.history.events})

    async def _stream(self, body: Body) -> Response:
        housed = self._find(body.request)
        housed.listeners.append(body.request)
        return StreamingResponse(housed.session.history.stream(), media_type="text/event-stream")

    # Who, and what

    def _authorise(self, request: Request) -> None:
        if request.headers.get("x-api-key") != self.api_key:
            raise self._refused(401, "unauthorized", "the key was not accepted")

    def _find(self, request: Request) -> _Housed:
        self._authorise(request)
        housed = self._sessions.get(request.path_params["id"])
        if housed is None:
            raise self._refused(404, "not_found", "no such session")
        return housed

    def _number(self, request: Request, name: str, default: int) -> int:
        text = request.query_params.get(name, str(default))
        if not text.isdecimal():
            raise self._refused(400, "invalid_request", f"{name}: no number")
        return int(text)

    def _refused(self, status: int, code: str, message: str) -> Refused:
        return Refused(status, error(code, message, self._names))


def _resource(housed: _Housed) -> dict[str, Any]:
    return {
        "id": housed.session.id,
        "agentId": housed.agent_id,
        "agentVersion": 1,
        "userId": housed.about.userId,
        "title": housed.about.title,
        "metadata": housed.about.metadata,
        "status": housed.session.status,
        "createdAt": housed.session.created_at,
    }
