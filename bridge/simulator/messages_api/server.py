"""The offline provider on a loopback port, in a thread of its own, for programs with and without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

import orjson
from anyio.from_thread import start_blocking_portal
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bridge.simulator.listener import Listener
from bridge.simulator.messages_api.anthropic import AnthropicRules
from bridge.simulator.messages_api.chat import ChatRules
from bridge.simulator.messages_api.ledger import Exchange, Ledger, Refused, Result
from bridge.simulator.messages_api.responses import ResponsesRules
from bridge.simulator.messages_api.script import Failure, Reply

__all__ = ["MessagesSimulator"]


class _Rules(Protocol):
    """One API: what it takes, and what its messages look like."""

    def history(self, body: dict[str, Any]) -> list[Any]: ...

    def check(self, body: dict[str, Any], history: Sequence[Any]) -> None: ...

    def turn(self, history: Sequence[Any]) -> int: ...

    def results(self, history: Sequence[Any]) -> dict[str, Result]: ...

    def answer(self, body: dict[str, Any], history: list[Any], reply: Reply) -> dict[str, Any]: ...

    def error(self, status: int, message: str, refused: Refused | None = None) -> dict[str, Any]: ...


class MessagesSimulator:
    """See the package. The model's turns are those of the script, whichever API they are asked for by.

    Which turn comes next is told by the conversation in the request, so a request that is sent again has the same
    answer. After the script the model has nothing to say but "The end."
    """

    def __init__(self, script: Iterable[Reply | Failure], *, host: str = "127.0.0.1", port: int = 0) -> None:
        script = list(script)
        self._listener = Listener(host, port)
        self.ledger = Ledger()
        self.url = ""
        """Its address, without a path: for Anthropic."""
        self._replies = [each for each in script if isinstance(each, Reply)]
        self._failures = _by_turn(script)
        self._rules: Mapping[str, _Rules] = {
            "/v1/messages": AnthropicRules(self.ledger),
            "/v1/responses": ResponsesRules(self.ledger),
            "/v1/chat/completions": ChatRules(self.ledger),
        }
        self._stack = ExitStack()

    @property
    def openai_url(self) -> str:
        """Its address as OpenAI's client wants it."""
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            routes = [Route(path, self._serve, methods=["POST"]) for path in self._rules]
            portal.call(self._listener.open, routes)
            stack.callback(portal.call, self._listener.aclose)
            self.url = self._listener.url
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    async def _serve(self, request: Request) -> Response:
        path, data = request.url.path, await request.body()
        rules = self._rules[path]
        headers: dict[str, str] = {}
        error, body = "", None
        try:
            body = _strictly(data)
            status, answer, headers = self._answer(rules, body)
        except Refused as refused:
            status, error = refused.status, str(refused)
            answer = rules.error(status, error, refused)
        self.ledger.exchanges.append(Exchange(path, body, status, error))
        # NaN is what a provider should never send: clients have to live with it all the same.
        content = json.dumps(answer).encode()
        return Response(content, status, headers, media_type="application/json")

    def _answer(self, rules: _Rules, body: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, str]]:
        history = rules.history(body)
        rules.check(body, history)
        turn = rules.turn(history)
        failure = self._failures[turn].pop(0) if self._failures.get(turn) else None
        if failure is not None and not failure.done:
            return failure.status, rules.error(failure.status, "failed on purpose"), _headers(failure)
        self.ledger.results = rules.results(history)
        answer = rules.answer(body, history, self._reply(turn))
        if failure is not None:
            return failure.status, rules.error(failure.status, "failed on purpose"), _headers(failure)
        return 200, answer, {}

    def _reply(self, turn: int) -> Reply:
        reply = self._replies[turn] if turn < len(self._replies) else Reply("The end.")
        told = "; ".join(each.text for each in self.ledger.results.values())
        return Reply(reply.text.replace("{}", told), reply.calls, reply.stop, reply.thinking)


def _by_turn(script: Sequence[Reply | Failure]) -> dict[int, list[Failure]]:
    failures: dict[int, list[Failure]] = {}
    turn = 0
    for each in script:
        match each:
            case Failure():
                failures.setdefault(turn, []).append(each)
            case Reply():
                turn += 1
    return failures


def _headers(failure: Failure) -> dict[str, str]:
    return {"retry-after": failure.retry_after} if failure.retry_after else {}


def _strictly(data: bytes) -> dict[str, Any]:
    """Only what is JSON in UTF-8: no NaN, no lone surrogates."""
    try:
        body: dict[str, Any] = orjson.loads(data)
    except orjson.JSONDecodeError:
        raise Refused("the body is not valid JSON") from None
    if body.get("stream"):
        raise Refused("the offline provider does not stream")
    return body
