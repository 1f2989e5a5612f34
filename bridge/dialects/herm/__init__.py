"""Herm sessions API: HTTP, an event stream for reading, posts of events for writing.

* Server events come in envelopes, `{id, type, sessionId, sequence, payload}`. A stream tells nothing from before its
  opening: after a new one has been opened, the history is read, and what still matters of it is told.
* `agent.custom_tool_use` is to be answered within about five minutes; later is 410, and never to be tried again.
* `running` is an answer, too: the turn goes on, and one `completed` or `failed` follows for the same call. That may be
  repeated, the first stands; it starts a turn of its own. Repeating an answer or `running` is not documented.
* A turn that waits is said to be idle with `requires_action`; it has not ended.
* A call that needs an approval is announced by `agent.approval_request`, and made only once it is allowed: an approval
  is not an order to run anything. The provider's own tools and those of MCP servers are asked about in the same way.
* A session is created under an agent, whose version is pinned, with its tools: they cannot be added to a session.
  `HermDialect.agent` is the body that declares them.

The public documentation is thin, and there is no client for Python: all of this rests on reading. The names that the
documentation does not give are in `Payloads`.

Messages of ours, apart from those of `core.http`: `{"events": [...]}`, with `call` where they answer one. In a setup,
`{"create": {"agent_id": id, ...}}` names the agent. For `decode_server`: envelopes; the resource of a session; the
list of calls that wait, `{"type": "history", ...}`; and `{"refused": ...}` for a request that was.

Source: the provider's pages on sessions, events, custom tools and long-running tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, assert_never
from urllib.parse import quote

from bridge.core.dialect import Endpoint, Message
from bridge.core.events import (
    ApprovalAnswer,
    ApprovalWanted,
    ClientEvent,
    EndSession,
    FollowUp,
    Malformed,
    OutcomesOwed,
    ProviderEnded,
    ProviderMessage,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    Resume,
    ServerEvent,
    SessionReady,
    Setup,
    SetupAccepted,
    ToolCall,
    ToolCalled,
    ToolResults,
    ToolSpec,
    Transcript,
)
from bridge.core.http import Heard, HttpDialect, Outcome, Request
from bridge.errors import ConfigError

from ..results import TURNS_WAIT, is_unsigned, json_text, read_outcome
from .payloads import Payloads
from .reading import CONFIRMATION, host_input, idle, payload, refusal, text, unsettled, words
from .writing import TOOLS, entry, failure, result_event

__all__ = ["HERM", "HermDialect", "Payloads"]

_URL: Final = "https://api.herm.run"
_PREFIX: Final = "/v1"
_BY_ANALOGY: Final = Payloads()


@dataclass(frozen=True, slots=True)
class HermDialect:
    """The protocol of Herm sessions, with these names where the documentation gives none."""

    name: ClassVar = "herm"
    delivery: ClassVar = TURNS_WAIT
    media_types: ClassVar = frozenset[str]()
    quiet_results: ClassVar = False  # the agent goes on with its turn after every result
    tool_schema: ClassVar = TOOLS

    names: Payloads = _BY_ANALOGY

    def endpoint(self, url: str, api_key: str) -> Endpoint:
        """Where to connect. `url` is a base without `/v1`."""
        headers = (("x-api-key", api_key),) if api_key else ()
        return Endpoint((url or _URL).rstrip("/") + _PREFIX, headers, "http")

    # ------------------------------------------------------------------------------------------- messages

    def decode_server(self, message: Message) -> Iterator[ServerEvent]:
        """What a message means; unknown types are `ProviderMessage`, broken ones `Malformed`."""
        match message:
            case {"type": "agent.custom_tool_use"}:
                yield self._tool_call(message)
            case {"type": "agent.approval_request"}:
                yield self._approval_wanted(message)
            case {"type": "session.status_running"}:
                yield ReplyStarted(text(message, "id"), message=message)
            case {"type": "session.status_idle"}:
                yield from idle(message)
            case {"type": "user.interrupt"}:
                # What becomes of pending calls is not documented. No turn waits for them any more.
                yield ReplyDone(True, message=message)
            case {"type": "agent.message"}:
                said = payload(message)
                item = text(message, "id")
                yield Transcript("agent", words(said), said.get("delta") is not True, item, message=message)
            case {"type": "history", "running": [str(), *_] as calls}:
                yield OutcomesOwed(tuple(call for call in calls if isinstance(call, str)), message=message)
            case {"type": str(kind)}:
                yield ProviderMessage(kind, message=message)
            case {"id": str(session_id), "agentId": _}:
                yield SessionReady(session_id, message=message)
            case {"refused": Mapping() as refused}:
                yield refusal(refused, message)
            case {"serve": _}:
                yield SetupAccepted(message=message)
            case {"leave": _}:
                yield ProviderEnded(message=message)
            case _:
                yield Malformed("the message is neither an event nor a session", message=message)

    def encode_client(self, event: ClientEvent) -> Iterator[Message]:
        """The messages that say this to the provider."""
        match event:
            case ToolResults(results):
                # One by one: whether several may share a request is not documented.
                for result in results:
                    yield {"events": [result_event(result.call_id, result)], "call": result.call_id}
            case FollowUp(key, result):
                yield {"events": [result_event(key.call_id, result)]}
            case ReplyRequest(""):
                return  # nobody can be asked to speak about nothing
            case ReplyRequest(instructions):
                yield {"events": [{"type": "user.message", "content": [{"type": "text", "text": instructions}]}]}
            case ApprovalAnswer(call_id, allowed):
                yield self.decision(call_id, allowed=allowed)
            case EndSession():
                yield {"leave": {}}  # the session is the provider's, and goes on
            case Resume() | Setup():
                return  # going on is a matter of reading on; a setup is only read
            case _:
                assert_never(event)

    def encode_audio(self, data: bytes) -> str:
        """There is no audio here. Raises `ConfigError`."""
        raise ConfigError("Herm sessions take no audio: send a message instead")

    def decode_client(self, message: Message) -> Iterator[ClientEvent]:
        """What a message of an application means; nothing for what does not concern tools or the session."""
        match message:
            case {"create": _} | {"attach": _} | {"serve": _}:
                served = message.get("serve")
                yield Setup(tuple(name for name in served if isinstance(name, str)) if isinstance(served, list) else ())
            case {"events": list(events)}:
                for event in events:
                    yield from host_input(event, self.names)
            case {"leave": _}:
                yield EndSession()

    def add_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message:
        """The setup with the names of our tools among those that are served; the agent has declared them already.

        Raises `ConfigError` for a tool whose JSON text is broken. What is no setup is returned as it is.
        """
        served = setup.get("serve", [])
        if not setup.keys() & {"create", "attach"} or not isinstance(served, list):
            return setup
        ours = [name for name in {spec.name: entry(spec, self.names) for spec in tools} if name not in served]
        return {**setup, "serve": [*served, *ours]} if ours else setup

    def replace_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message | None:
        """Which tools are served from now on, in a session that was attached to.

        None in one that is created: it keeps the version of the agent that has declared its tools.
        """
        return {"serve": [spec.name for spec in tools]} if "attach" in setup else None

    def agent(self, agent: Message, tools: Sequence[ToolSpec]) -> Message:
        """The body of `POST /v1/agents` that declares our tools beside what it lists.

        Raises `ConfigError` for a tool whose JSON text is broken.
        """
        listed = agent.get("tools", [])
        return {**agent, "tools": [*listed, *(entry(spec, self.names) for spec in tools)]}

    def decision(self, call_id: str, *, allowed: bool) -> Message:
        """The message that answers an `agent.approval_request`."""
        said = self.names.allow if allowed else self.names.deny
        return {"events": [{"type": CONFIRMATION, "tool_use_id": call_id, self.names.decision: said}]}

    def _tool_call(self, message: Message) -> ToolCalled | Malformed:
        call = self._call(message)
        return call if isinstance(call, Malformed) else ToolCalled(call, message=message)

    def _approval_wanted(self, message: Message) -> ApprovalWanted | Malformed:
        call = self._call(message)
        return call if isinstance(call, Malformed) else ApprovalWanted(call, message=message)

    def _call(self, message: Message) -> ToolCall | Malformed:
        use = payload(message)
        call_id, name = text(use, "tool_use_id"), text(use, self.names.name)
        if not call_id or not name:
            return Malformed(f"{message['type']} without its id or its tool", message=message)
        return ToolCall(call_id, name, json_text(use.get(self.names.input), absent="{}"))

    # ------------------------------------------------------------------------------------------- over HTTP

    def request(self, session_id: str, message: Message) -> Request | None:
        """How a message is sent."""
        match message:
            case {"create": Mapping() as body}:
                about = {key: value for key, value in body.items() if key != "agent_id"}
                return Request(
                    "POST", f"/agents/{quote(text(body, 'agent_id'), safe='', errors='replace')}/sessions", about
                )
            case {"attach": str(attached)}:
                return Request("GET", _path(attached))
            case {"events": list(events)}:
                return Request("POST", f"{_path(session_id)}/events", {"events": events})
        return None

    def judge(self, message: Message, status: int, body: Message) -> Outcome:
        """What became of a request.

        An outcome of a call that was said to be running is safe to repeat, and so is a decision; an answer is read back
        first; a message is sent once at most, since `CONFIRM` finds nothing that waits for it.
        """
        if not message:
            return read_outcome(status, body)
        if 200 <= status < 300:
            return Outcome.DELIVERED
        if status == 410 or (status == 409 and _is(message, CONFIRMATION)):
            return Outcome.ANSWERED  # it has expired; or it is decided already
        if status == 409 and _is(message, "user.message"):
            return Outcome.LATER  # documented: refused while a turn runs, which may be of somebody else
        if status in (408, 429) or (is_unsigned(status, body) and not message.keys() & {"create", "attach"}):
            return Outcome.RETRY
        if status in (401, 403, 404) and "create" not in message:
            return Outcome.OVER
        if status == 0 or status >= 500:
            return Outcome.CONFIRM if self.answers(message) or _is(message, "user.message") else Outcome.RETRY
        return Outcome.REFUSED

    def answered(self, message: Message, status: int, body: Message) -> Heard:
        """What the answer to a message tells."""
        match message:
            case {"create": _} | {"attach": _} if status < 300 and isinstance(body.get("id"), str):
                return Heard((body,), session_id=body["id"])
            case {"leave": _}:
                return Heard((message,), over=True)
            case {"serve": _, **rest} if not rest:
                return Heard((message,))
        if status < 300:
            return Heard()
        error = body.get(self.names.error)
        error = error if isinstance(error, Mapping) else {}
        setup = bool(message.keys() & {"create", "attach"})
        told = {"status": status, "code": text(error, "code"), "message": text(error, "message"), "setup": setup}
        return Heard(({"refused": told},), over=setup)

    def read(self, session_id: str, cursor: str) -> Request:
        """The stream of events."""
        return Request("GET", f"{_path(session_id)}/events/stream", streams=True)

    def look(self, session_id: str) -> Request:
        """The history."""
        return Request("GET", f"{_path(session_id)}/events")

    def missed(self, session_id: str) -> Request | None:
        """Nothing: reading the session tells it."""
        return None

    def seen(self, body: Message, cursor: str = "") -> Heard:
        """An envelope as it is, and of the history what still matters."""
        listed = body.get(self.names.listed)
        if "type" not in body and isinstance(listed, list):
            return Heard(unsettled(listed))
        return Heard((body,))

    def answers(self, message: Message) -> str:
        """The call of a post that answers one."""
        return text(message, "call")

    def pending(self, message: Message) -> frozenset[str] | None:
        """The calls that wait, as far as the history, or the end of a turn, tells."""
        match message:
            case {"type": "history", "waiting": list(calls)}:
                return frozenset(call for call in calls if isinstance(call, str))
            case {"type": "session.status_idle", "payload": {"stop_reason": {"type": "end_turn" | "error"}}}:
                return frozenset()
        return None

    def instead(self, message: Message) -> Message | None:
        """A failure in place of an answer, such as one that is too large."""
        match message:
            case {"call": str(call_id), "events": [{"status": "running" | "completed"}]}:
                words = "The result cannot be delivered: the provider refused it."
                return {**message, "events": [failure(call_id, words)]}
        return None


HERM: Final[HttpDialect] = HermDialect()


def _path(session_id: str) -> str:
    return f"/sessions/{quote(session_id, safe='', errors='replace')}"


def _is(message: Message, kind: str) -> bool:
    match message:
        case {"events": [{"type": str(said)}, *_]}:
            return said == kind
    return False
