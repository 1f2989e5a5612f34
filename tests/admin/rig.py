"""What the tests of the admin port share: a host with a real runner, a port, and answers that are what they should be.

Every answer that a `Port` gives is checked against the port's own description.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

import httpx2
import orjson
from jsonschema import Draft202012Validator

from bridge import CallContext, CallKey, Parked, ToolCall, Toolset
from bridge.admin import Access, Desk, Readers, Scope, Subject, Token, app_of, listening
from bridge.admin.openapi import OPERATIONS, document
from bridge.core.conversation import Step
from bridge.metrics import Metrics
from bridge.runner.approvals import ApprovalRequest, Approvals, Decision, Resolved
from bridge.runner.parking import Completion
from bridge.runner.runner import Finished, Runner

ALL, READER, WORKER, BOSS = "a-token-for-all", "a-token-to-read", "a-token-to-complete", "a-token-to-approve"
TOKENS = (
    Token("all", ALL),
    Token("reader", READER, frozenset({Scope.READ})),
    Token("worker", WORKER, frozenset({Scope.COMPLETE})),
    Token("boss", BOSS, frozenset({Scope.APPROVE})),
)
GUARDED = Access(TOKENS)
OPEN = Access(readers=Readers.ANYBODY)
DOCUMENT = document()


class State(Enum):
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Snapshot:
    id: str
    state: State
    seconds: float


@dataclass(frozen=True, slots=True)
class Named:
    """A session, as observers see it."""

    id: str


class Host:
    """One session that is made up, and a runner that is not."""

    def __init__(self, ready: str = "") -> None:
        self.runner = Runner()
        self.sessions: Sequence[Snapshot] = (Snapshot("s1", State.READY, 1.5),)
        self.ready = ready
        self.drained: list[float] = []
        self.observers: list[Callable[[Named, Step], None]] = []
        self.finished: dict[str, Finished] = {}
        self._calls = self.runner.session()
        self._over: dict[str, asyncio.Event] = {}

    @property
    def approvals(self) -> Approvals:
        return self.runner.approvals

    def observe(self, observer: Callable[[Any, Step], None]) -> None:
        self.observers.append(observer)

    def see(self, *facts: Any, session: str = "s1") -> None:
        """This happens in a session."""
        for observer in self.observers:
            observer(Named(session), Step(facts))

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion:
        return await self.runner.settle(ticket, value, error=error)

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        return await self.runner.decide(request_id, approve=approve, by=by, reason=reason)

    async def drain(self, seconds: float) -> int:
        self.drained.append(seconds)
        self.ready = "draining"
        return len(self.sessions)

    async def parked(self, call_id: str = "c1", **options: Any) -> str:
        """A call that waits for somebody outside; its key."""
        tools, told = Toolset(), asyncio.Event()

        @tools.tool(**{"timeout": 60} | options)
        async def order(item: str = "") -> Parked:
            return Parked()

        ticket = self.start(tools, "order", call_id, "{}", lambda key, result: told.set())
        await told.wait()
        return ticket

    async def asking(self, call_id: str = "a1", **options: Any) -> str:
        """A call that waits to be approved, while somebody is attached; the id of the request."""
        tools, asked = Toolset(), asyncio.Queue[str]()

        @tools.tool(**{"approval": "always_ask", "redact": ("card",)} | options)
        async def refund(amount: int, card: str) -> int:
            return amount

        def hear(what: ApprovalRequest | Resolved) -> None:
            if isinstance(what, ApprovalRequest):
                asked.put_nowait(what.id)

        with self.approvals.attached(hear):
            self.start(tools, "refund", call_id, '{"amount":3,"card":"4711471147114711"}', lambda key, result: None)
            return await asked.get()

    def start(self, tools: Toolset, name: str, call_id: str, arguments: str, interim: Any) -> str:
        key = CallKey(1, call_id)
        context = CallContext(session_id="s1", key=key, tool=name)
        over = self._over[context.ticket] = asyncio.Event()

        def report(finished: Finished) -> None:
            self.finished[context.ticket] = finished
            over.set()

        call = ToolCall(call_id, name, arguments)
        self._calls.start(key, call, tools[name], (), context, report, interim=interim)
        return context.ticket

    async def over(self, ticket: str) -> Finished:
        """The end of a call."""
        await self._over[ticket].wait()
        return self.finished[ticket]

    async def aclose(self) -> None:
        await self._calls.aclose(1)
        await self.runner.aclose(1)
        self.runner.close()


class Port:
    """A port, and whoever asks it. `seen`: which answers there were, by path and status."""

    def __init__(self, url: str, client: httpx2.AsyncClient, token: str = "") -> None:
        self.url = url
        self.client = client
        self.token = token
        self.seen: set[tuple[str, str, int]] = set()

    async def get(self, path: str, token: str | None = None, **headers: str) -> httpx2.Response:
        return await self.ask("GET", path, None, token, headers)

    async def post(self, path: str, body: Any = None, token: str | None = None, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        return await self.ask("POST", path, content, token, headers)

    async def ask(
        self, method: str, path: str, content: Any, token: str | None, headers: dict[str, str]
    ) -> httpx2.Response:
        shown = self.token if token is None else token
        said = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        if shown:
            said[b"authorization"] = f"Bearer {shown}".encode()
        answer = await self.client.request(method, self.url + path, headers=said, content=content)
        self.check(method, path, answer)
        return answer

    @asynccontextmanager
    async def stream(self, path: str, token: str | None = None, **headers: str) -> AsyncIterator[Stream]:
        """The events of a stream, once it is open."""
        said = {name.replace("_", "-"): value for name, value in headers.items()}
        said["authorization"] = f"Bearer {self.token if token is None else token}"
        async with self.client.stream("GET", self.url + path, headers=said) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            self.seen.add(("GET", path.partition("?")[0], 200))
            stream = Stream(answer)
            assert await stream.comment() == ": open"
            yield stream

    def check(self, method: str, path: str, answer: httpx2.Response) -> None:
        """Is the answer as the description says?"""
        path = path.partition("?")[0]
        described = next((op for op in OPERATIONS if op.method == method and fits(op.path, path)), None)
        if described is None:
            assert answer.status_code in (404, 405)
            assert answer.json().keys() == {"error", "retryable"}
            return
        self.seen.add((method, described.path, answer.status_code))
        responses = DOCUMENT["paths"][described.path][method.lower()]["responses"]
        assert str(answer.status_code) in responses, (described.path, answer.status_code, answer.text)
        content = responses[str(answer.status_code)]["content"]
        (media,) = content
        assert answer.headers["content-type"].partition(";")[0] == media
        if schema := content[media]:
            whole = {**schema["schema"], "components": DOCUMENT["components"]}
            Draft202012Validator(whole).validate(answer.json())


def fits(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) is not None


class Stream:
    """Server-sent events, as they come."""

    def __init__(self, answer: httpx2.Response) -> None:
        self._lines = answer.aiter_lines()

    async def comment(self) -> str:
        line = await anext(self._lines)
        assert await anext(self._lines) == ""
        return line

    async def block(self) -> list[str]:
        """The lines up to the next empty one; none at the end."""
        lines: list[str] = []
        async for line in self._lines:
            if not line:
                return lines
            lines.append(line)
        return lines

    async def next(self) -> tuple[str, dict[str, Any], str]:
        """The next event: its name, its data and its id. Signs of life are passed over."""
        while (lines := await self.block()) == [": alive"]:
            pass
        fields = dict(line.split(": ", 1) for line in lines)
        return fields["event"], orjson.loads(fields["data"]), fields.get("id", "")


@asynccontextmanager
async def served(
    subject: Subject, access: Access = GUARDED, *, token: str = ALL, metrics: Any = None, **options: Any
) -> AsyncIterator[Port]:
    """A port for this subject, on a socket."""
    app = app_of(subject, metrics or Metrics(), access, **options)
    async with (
        asyncio.timeout(15),
        listening(app, "127.0.0.1", 0) as port,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        yield Port(f"http://127.0.0.1:{port}", client, token)


@asynccontextmanager
async def asked(
    subject: Subject, access: Access = GUARDED, *, token: str = ALL, metrics: Any = None, **options: Any
) -> AsyncIterator[Port]:
    """The same app, asked without a socket, which takes a hundredth of the time."""
    app = app_of(subject, metrics or Metrics(), access, **options)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with asyncio.timeout(15), httpx2.AsyncClient(transport=transport) as client:
        yield Port("http://localhost:9090", client, token)


@asynccontextmanager
async def desk(access: Access = GUARDED, *, at: Any = asked, **options: Any) -> AsyncIterator[tuple[Host, Port]]:
    """A host, and a port that looks after it."""
    host = options.pop("host", None) or Host()
    subject = Desk(host)
    async with at(subject, access, **options) as port:
        try:
            yield host, port
        finally:
            subject.close()
            await host.aclose()


def result_of(key: str) -> str:
    """Where the result of a call goes."""
    return f"/v1/calls/{quote(key, safe='')}/result"
