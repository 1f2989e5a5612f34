"""H Company Agents API: sessions over plain HTTP, followed by long polls, answered by posts.

* `GET /sessions/{id}/changes` gives the event log from an index on, 204 if there is nothing new (also after the end);
  `GET /sessions/{id}/status` says what the session does, and lists the calls it waits for. The log may have lost its
  beginning, and older versions list nothing: both have to be read.
* A session waits until each custom call has one result, in any order and split. There is no "still running".
* Call ids come again in later steps, or are null. What tells calls apart is their step, the index of the event that
  first listed it; see `cursor`.
* `POST .../tool_results` is answered with 202 whatever the id, also twice, and counts some time later: a result has
  arrived when its call is no longer listed. 404: no such session; 409: it is over; 422: the body is wrong.
* A paused session takes results and stays paused. A message would resume it, so what is to be said waits for its end.

Messages of ours, apart from those of `core.http`: `{"tool_results": body, "call": key}` and `{"messages": body}`.
Messages for `decode_server`: the events of the log with their `index`, those that list calls with their `step`, and as
`past` where a later one counts; a status, as type `SessionStatus`; `{"pause": "begins"}` and `"ends"`; a session; and
`{"refused": ...}` for a request that was.

Sources: the provider's pages on sessions and custom tools, its OpenAPI document, and the types of its client
`hai-agents` 1.3. Where a rule below is an inference, its comment says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, assert_never
from urllib.parse import quote

from bridge.core.dialect import Endpoint, Message
from bridge.core.events import (
    AgentPaused,
    AgentResumed,
    ApprovalAnswer,
    ClientEvent,
    EndSession,
    FollowUp,
    Malformed,
    ProviderEnded,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyRequest,
    Resume,
    ServerEvent,
    SessionReady,
    Setup,
    SetupAccepted,
    ToolCalled,
    ToolResult,
    ToolResults,
    ToolSpec,
    Transcript,
)
from bridge.core.http import Heard, HttpDialect, Outcome, Request
from bridge.errors import ConfigError

from ..results import TURNS_WAIT, is_unsigned, json_text, read_outcome, told_later
from .cursor import OVER, Reading
from .reading import calls, index, refusal, session_status, state
from .writing import TOOLS, added, error_body, listed, names, place, result_body

__all__ = ["HCOMPANY", "HCompanyDialect"]

_URL: Final = "https://agp.eu.hcompany.ai"
_PREFIX: Final = "/api/v2"
_WAIT: Final = 20
"""Seconds for which a poll is held; 25 are allowed."""


class HCompanyDialect:
    """The H Company sessions protocol."""

    __slots__ = ()

    name: Final = "hcompany"
    delivery: Final = TURNS_WAIT
    media_types: Final = frozenset[str]()
    quiet_results: Final = False  # every result goes to the model
    tool_schema: Final = TOOLS

    def endpoint(self, url: str, api_key: str) -> Endpoint:
        """Where to connect. `url` is a base without `/api/v2`, as the vendor's client takes it."""
        headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        return Endpoint((url or _URL).rstrip("/") + _PREFIX, headers, "http")

    def decode_server(self, message: Message) -> Iterator[ServerEvent]:
        """What a message means; unknown types are `ProviderMessage`, broken ones `Malformed`."""
        match message:
            case {"type": "ActiveStateChangeEvent"}:
                yield from state(message)
            case {"type": "SessionStatus"}:
                yield from session_status(message)
            case {"type": "AgentEvent", "data": {"kind": "answer_event", "answer": answer}}:
                words = answer if isinstance(answer, str) else json_text(answer, absent="null")
                yield Transcript("agent", words, final=True, item_id=index(message), message=message)
            case {"type": "AgentErrorEvent", "data": {"error": str(text)}}:
                # Whether the session goes on is said by its status.
                yield ProviderFailed("agent_error", text, message=message)
            case {"type": "AgentCompletionEvent", "data": {"reason": reason}}:
                yield ReplyDone(reason != "finished", message=message)
                yield ProviderEnded(message=message)
            case {"type": "AgentErrorEvent" | "AgentCompletionEvent" as kind}:
                yield Malformed(f"{kind} without its data", message=message)
            case {"type": str(kind)}:
                yield ProviderMessage(kind, message=message)
            case {"id": str(session_id), "request": _}:
                yield SessionReady(session_id, message=message)
            case {"pause": "begins"}:
                yield AgentPaused(message=message)
            case {"pause": "ends"}:
                yield AgentResumed(message=message)
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
                # Quiet or not: the session waits until it has them all. One by one, since each has a fate of its own.
                for result in results:
                    yield {"tool_results": result_body(result), "call": result.call_id}
            case FollowUp(result=result):
                yield {"messages": {"type": "user_message", "message": told_later(result)}}
            case ReplyRequest(""):
                return  # nobody can be asked to speak about nothing
            case ReplyRequest(instructions):
                yield {"messages": {"type": "user_message", "message": instructions}}
            case EndSession():
                yield {"leave": {}}  # the session is the provider's, and goes on
            case Resume() | Setup() | ApprovalAnswer():
                return  # going on is a matter of reading on; a setup is only read; nothing is asked
            case _:
                assert_never(event)

    def encode_audio(self, data: bytes) -> str:
        """There is no audio here. Raises `ConfigError`."""
        raise ConfigError("H Company sessions take no audio: send a message instead")

    def decode_client(self, message: Message) -> Iterator[ClientEvent]:
        """What a message of an application means; nothing for what does not concern tools or the session."""
        match message:
            case {"create": Mapping() as body}:
                yield Setup(listed(body))
            case {"attach": _} | {"serve": _}:
                yield Setup(names(message.get("serve")))
            case {"tool_results": {"kind": "tool_result", **told}, "call": str(call_id)}:
                yield ToolResults((ToolResult(call_id, json_text(told.get("result"), absent="null")),))
            case {"tool_results": {"kind": "error_event", "error": str(text)}, "call": str(call_id)}:
                yield ToolResults((ToolResult(call_id, json_text(text, absent=""), is_error=True),))
            case {"messages": {"message": str(words)}}:
                yield ReplyRequest(words)
            case {"leave": _}:
                yield EndSession()

    def add_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message:
        """The setup with our tools added; raises `ConfigError` for a tool whose JSON text is broken.

        In a creation they go where the agent's tools are: into the override if there is one, else into an agent that
        is described, else into an override, which replaces the custom tools of an agent that is only named. A session
        that is there has its tools already: what is added is which of them we serve. A setup that cannot be read is
        returned as it is.
        """
        match setup:
            case {"create": Mapping() as body} if found := place(body):
                outer, key = found
                about = body.get(outer) or {}
                entries = added(about.get(key) or [], tools)
                return {**setup, "create": {**body, outer: {**about, key: entries}}} if entries else setup
            case {"attach": _}:
                served = names(setup.get("serve"))
                return {**setup, "serve": list(dict.fromkeys((*served, *(spec.name for spec in tools))))}
        return setup

    def replace_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message | None:
        """Which tools are served from now on, in a session that was attached to.

        None in one that is created: the tools of a running session cannot change.
        """
        return {"serve": [spec.name for spec in tools]} if "attach" in setup else None

    # ------------------------------------------------------------------------------------------- over HTTP

    def request(self, session_id: str, message: Message) -> Request | None:
        """How a message is sent; the key of a creation makes a session once, also if it is repeated."""
        match message:
            case {"create": Mapping() as body}:
                return Request("POST", "/sessions", body, keyed=True)
            case {"attach": str(session)}:
                return Request("GET", f"/sessions/{quote(session, safe='', errors='replace')}")
            case {"tool_results": Mapping() as body}:
                return Request("POST", f"/sessions/{session_id}/tool_results", body)
            case {"messages": Mapping() as body}:
                return Request("POST", f"/sessions/{session_id}/messages", body)
        return None

    def judge(self, message: Message, status: int, body: Message) -> Outcome:
        """5xx and no answer at all may come after the effect.

        Of results that can be read back; a creation has a key by which it is made once; a message of the user can
        neither, and `CONFIRM` finds nothing that waits for it: it is sent once at most.
        """
        if not message:
            return read_outcome(status, body)
        if 200 <= status < 300:
            return Outcome.DELIVERED
        if status in (408, 429) or (status == 409 and "create" in message):
            return Outcome.RETRY
        if is_unsigned(status, body) and not message.keys() & {"create", "attach"}:
            return Outcome.RETRY
        if status == 0 or status >= 500:
            return Outcome.CONFIRM if message.keys() & {"tool_results", "messages"} else Outcome.RETRY
        if status == 409 and message.keys() & {"tool_results", "messages"}:
            return Outcome.CONFIRM  # it is over: the status says how
        if status in (401, 403, 404) and "create" not in message:
            return Outcome.OVER
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
        setup = bool(message.keys() & {"create", "attach"})
        text = body.get("message")
        told = {"status": status, "message": text if isinstance(text, str) else "", "setup": setup}
        return Heard(({"refused": told},), over=setup)

    def read(self, session_id: str, cursor: str) -> Request:
        """A poll for what is new."""
        start = Reading.at(cursor).index
        return Request("GET", f"/sessions/{session_id}/changes?from_index={start}&wait_for_seconds={_WAIT}")

    def look(self, session_id: str) -> Request:
        """The status."""
        return Request("GET", f"/sessions/{session_id}/status")

    def missed(self, session_id: str) -> Request | None:
        """Nothing: reading the session tells it."""
        return None

    def seen(self, body: Message, cursor: str = "") -> Heard:
        """What a poll or a status tells. `cursor` is the newest: without it nobody can tell the step of a call."""
        reading = Reading.at(cursor)
        messages: tuple[Message, ...] = ()
        if isinstance(body.get("new_events"), list):
            reading, messages = reading.changes(body)
        elif isinstance(body.get("status"), str):
            messages = (reading.status(body),)
        return Heard(messages, cursor=str(reading), over=body.get("status") in OVER)

    def answers(self, message: Message) -> str:
        """The call of a result."""
        call = message.get("call")
        return call if isinstance(call, str) else ""

    def pending(self, message: Message) -> frozenset[str] | None:
        """Those of the calls told so far that are waited for, as a change of state or a status has it."""
        match message:
            case {"past": True}:
                return None
            case {"type": "ActiveStateChangeEvent", "data": {"pending_tool_calls": list(entries)}}:
                return _keys(entries, message)
            case {"type": "ActiveStateChangeEvent"}:
                return frozenset()
            case {"type": "SessionStatus"} if "step" not in message:
                return frozenset()  # what it lists has not been told yet
            case {"type": "SessionStatus", "pending_tool_calls": list(entries)}:
                return _keys(entries, message)
            case {"type": "SessionStatus", "status": status} if status not in ("awaiting_tool_results", "paused"):
                return frozenset()
        return None

    def instead(self, message: Message) -> Message | None:
        """A failure in place of a result that was refused; its own words may be what could not be taken."""
        match message:
            case {"tool_results": {"kind": "tool_result", "tool_req": request}}:
                words = "The result cannot be delivered: the provider refused it."
                return {**message, "tool_results": error_body(words, request)}
        return None


HCOMPANY: Final[HttpDialect] = HCompanyDialect()


def _keys(entries: Sequence[object], message: Message) -> frozenset[str]:
    return frozenset(event.call.call_id for event in calls(entries, message) if isinstance(event, ToolCalled))
