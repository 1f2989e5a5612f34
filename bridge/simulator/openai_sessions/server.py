"""OpenAI Agent Sessions on a real HTTP port, offline.

It writes and enforces the protocol by itself, apart from this package's dialect. What it does is documented (the API
reference and the guides on agent sessions, and the types of the vendor's Python package 3.57), or seen in that package,
unless a docstring says "reported" or "undocumented"; the latter are rules that can be switched. There are neither
subagents nor artifacts, environments nor approvals of what a browser does, and functions marked `async` are treated
like others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from bridge.simulator.house import House
from bridge.simulator.listener import Listener, hang_up
from bridge.simulator.openai_sessions import ledger as account
from bridge.simulator.openai_sessions import objects
from bridge.simulator.openai_sessions.ledger import Ledger
from bridge.simulator.openai_sessions.messages import (
    Approval,
    Cancel,
    CreateSession,
    Inputs,
    Refused,
    ToolResult,
    UpdateSession,
    UserMessages,
    read,
)
from bridge.simulator.openai_sessions.objects import Turn
from bridge.simulator.openai_sessions.rules import Effect, Fault, On, Rules
from bridge.simulator.openai_sessions.script import Scenario
from bridge.simulator.openai_sessions.session import Session
from bridge.simulator.openai_sessions.streams import Stream
from bridge.simulator.waiting import Changes

__all__ = ["Simulator"]

_BETA = "agents=v1"


class Simulator:
    """A provider on the loopback; every session plays the scenario from its start.

        async with Simulator(Scenario(turns=((Ask((Call("parcel"),)), Tell()),))) as sim:
            ...  # base_url=sim.url
            assert sim.ledger.call("parcel").result

    `pace` multiplies all durations of the provider. Without an `api_key` every bearer is let in.
    """

    def __init__(
        self,
        scenario: Scenario | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 1.0,
        api_key: str | None = None,
    ) -> None:
        if pace <= 0:
            raise ValueError("pace must be above 0")
        self._scenario = scenario or Scenario()
        self._rules: Rules = self._scenario.rules
        self._pace, self._api_key = pace, api_key
        self._house = House()
        self._listener = Listener(host, port)
        self._faults = [fault for fault in self._scenario.faults for _ in range(fault.times)]
        self._sessions: dict[str, Session] = {}
        self.requests: list[account.Request] = []
        """Every request, in the order of the answers."""

    # ------------------------------------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        self._changes = Changes()
        await self._house.open()
        try:
            await self._listener.open(self._routes())
        except OSError:
            await self._house.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            for session in self._sessions.values():
                session.cut()
            await self._listener.aclose()
            await self._house.aclose()

    # ------------------------------------------------------------------------------------------- for tests

    @property
    def url(self) -> str:
        """The `base_url` for clients."""
        return f"{self._listener.url}/v1"

    @property
    def ledgers(self) -> list[Ledger]:
        """The accounts of all sessions, oldest first."""
        return [session.ledger for session in self._sessions.values()]

    @property
    def ledger(self) -> Ledger:
        """The account of the newest session; an empty one before there is any."""
        return self.ledgers[-1] if self._sessions else Ledger()

    def fail(self, *faults: Fault) -> None:
        """The next requests of their kind have these faults."""
        self._faults.extend(fault for fault in faults for _ in range(fault.times))

    def cut(self) -> None:
        """Break the event streams of all sessions."""
        for session in self._sessions.values():
            session.cut()

    async def until(self, true: Callable[[Ledger], bool]) -> Ledger:
        """Wait until this is true of the newest session's account; that account."""
        await self._changes.until(lambda: bool(self._sessions) and true(self.ledger))
        return self.ledger

    async def turn_over(self, number: int = 1) -> Ledger:
        """Wait until so many turns of the newest session have ended; its account."""
        return await self.until(lambda ledger: sum(map(objects.ENDED.__contains__, ledger.turns.values())) >= number)

    # ------------------------------------------------------------------------------------------- routes

    def _routes(self) -> list[Route]:
        base = "/v1/agents/sessions"
        one = f"{base}/{{id}}"
        routes = [
            (base, "POST", self._create),
            (base, "GET", self._list),
            (one, "GET", self._retrieve),
            (one, "POST", self._update),
            (one, "DELETE", self._delete),
            (f"{one}/events", "POST", self._submit),
            (f"{one}/events", "GET", self._stream),
            (f"{one}/items", "GET", self._items),
            (f"{one}/turns", "GET", self._turns),
            (f"{one}/turns/{{turn}}", "GET", self._turn),
            (f"{one}/turns/{{turn}}/items", "GET", self._turn_items),
        ]
        return [Route(path, self._guarded(act), methods=[method]) for path, method, act in routes]

    def _guarded(self, act: Any) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                self._check_headers(request)
                response: Response = await act(request)
            except Refused as refused:
                response = _refusal(refused)
            self.requests.append(account.Request(request.method, request.url.path, response.status_code))
            if response.status_code == 0:
                hang_up(request)
                await anyio.lowlevel.checkpoint()  # until the server knows that nobody is there any more
                return Response()
            return response

        return endpoint

    def _check_headers(self, request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key or self._api_key not in (None, key):
            raise Refused(401, "unauthorized", "Incorrect API key provided.")
        if _BETA not in request.headers.get("openai-beta", ""):
            raise Refused(400, "invalid_beta", "The header OpenAI-Beta: agents=v1 is required.")

    async def _create(self, request: Request) -> Response:
        create = read(CreateSession, await request.body())
        if create.agent_id and create.agent_id not in self._rules.stored_agents:
            raise Refused(404, "not_found_error", "No such agent.", "agent_id")
        fault = self._fault(On.CREATE)
        if fault is not None and fault.effect is Effect.NONE:
            return await _answer(fault)
        session = Session(create, self._scenario, pace=self._pace, tasks=self._house.tasks, changes=self._changes)
        self._sessions[session.id] = session
        self._changes.notify()
        if not create.stream:
            session.start(create)
            return JSONResponse(session.snapshot()) if fault is None else await _answer(fault)
        stream = session.streams.open(
            padded=(create.stream_options or {}).get("include_obfuscation", True), until_idle=True
        )
        session.emit("agent.session.created", session=session.snapshot())
        session.start(create)
        return self._streaming(session, stream, request)

    async def _list(self, request: Request) -> Response:
        return _paged(request, [session.snapshot() for session in self._sessions.values()])

    async def _retrieve(self, request: Request) -> Response:
        session = self._session(request)
        session.ledger.reads += 1
        fault = self._fault(On.READ)
        return JSONResponse(session.snapshot()) if fault is None else await _answer(fault)

    async def _update(self, request: Request) -> Response:
        session = self._session(request)
        update = read(UpdateSession, await request.body())
        fault = self._fault(On.UPDATE)
        if fault is None or fault.effect is not Effect.NONE:
            session.update(update)
        return JSONResponse(session.snapshot()) if fault is None else await _answer(fault)

    async def _delete(self, request: Request) -> Response:
        session = self._session(request)
        if session.turn is not None:
            raise Refused(409, "conflict_error", "Cancel the active turn first.")
        session.streams.close(broken=False)
        del self._sessions[session.id]
        return JSONResponse({"id": session.id, "object": "agent.session.deleted", "deleted": True})

    async def _submit(self, request: Request) -> Response:
        session = self._session(request)
        body = await request.body()
        key = request.headers.get("idempotency-key", "")
        if len(body) > self._rules.max_body or len(key.encode()) > self._rules.max_key:
            raise Refused(400, "invalid_request_error", "The body or the idempotency key is too long.")
        inputs = read(Inputs, body)
        if len(inputs.events) > self._rules.max_events:
            raise Refused(400, "invalid_request_error", "Too many events in one request.", "events")
        fault = self._fault(*_kinds(inputs))
        session.submit(inputs.events, key, fault)
        return Response(status_code=202) if fault is None else await _answer(fault)

    async def _stream(self, request: Request) -> Response:
        session = self._session(request)
        if (fault := self._fault(On.STREAM)) is not None:
            return await _answer(fault)
        padded = request.query_params.get("include_obfuscation", "true") != "false"
        stream = session.streams.open(padded=padded)
        return self._streaming(session, stream, request)

    def _streaming(self, session: Session, stream: Stream, request: Request) -> Response:
        session.ledger.streams += 1
        session.ledger.listening = len(session.streams)
        self._changes.notify()

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in stream:
                    yield chunk
                if stream.broken:
                    hang_up(request)
            finally:
                session.streams.drop(stream)
                session.ledger.listening = len(session.streams)
                self._changes.notify()

        return StreamingResponse(body(), media_type="text/event-stream")

    async def _items(self, request: Request) -> Response:
        return _paged(request, self._session(request).items)

    async def _turns(self, request: Request) -> Response:
        session = self._session(request)
        return _paged(request, [session.turn_object(turn) for turn in session.turns])

    async def _turn(self, request: Request) -> Response:
        session = self._session(request)
        return JSONResponse(session.turn_object(_turn_of(session, request)))

    async def _turn_items(self, request: Request) -> Response:
        return _paged(request, _turn_of(self._session(request), request).items)

    def _session(self, request: Request) -> Session:
        session = self._sessions.get(request.path_params["id"])
        if session is None:
            raise Refused(404, "not_found_error", "No such session.")
        return session

    def _fault(self, *kinds: On) -> Fault | None:
        for fault in self._faults:
            if fault.on in kinds:
                self._faults.remove(fault)
                return fault
        return None


def _kinds(inputs: Inputs) -> set[On]:
    kinds = {ToolResult: On.RESULTS, UserMessages: On.MESSAGES, Approval: On.APPROVALS, Cancel: On.CANCELS}
    return {kinds[type(event)] for event in inputs.events if type(event) in kinds}


async def _answer(fault: Fault) -> Response:
    """The answer of a request with a fault. A status of 0 is broken off by whoever sends it."""
    await anyio.sleep(fault.delay)
    headers = {} if fault.retry_after is None else {"retry-after": f"{fault.retry_after:g}"}
    if fault.status < 400 or not fault.code:
        return Response(status_code=fault.status, headers=headers)
    return _refusal(Refused(fault.status, fault.code, "A fault of the provider."), headers)


def _refusal(refused: Refused, headers: dict[str, str] | None = None) -> Response:
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    error = {"type": kind, "code": refused.code, "message": refused.message, "param": refused.param}
    return JSONResponse({"error": error}, refused.status, headers)


def _paged(request: Request, entries: list[Any]) -> Response:
    query = request.query_params
    limit = query.get("limit", "20")
    if not (limit.isdigit() and 1 <= int(limit) <= 100):
        raise Refused(400, "invalid_request_error", "limit must be 1 to 100.", "limit")
    return JSONResponse(objects.page(entries, query.get("after", ""), int(limit), query.get("order", "desc")))


def _turn_of(session: Session, request: Request) -> Turn:
    for turn in session.turns:
        if turn.id == request.path_params["turn"]:
            return turn
    raise Refused(404, "not_found_error", "No such turn.")
