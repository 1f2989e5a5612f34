"""OpenAI Agent Sessions (beta): HTTP, an event stream for reading, posts for writing.

* A session is created with its tools, or exists already; a message of the user begins a turn, or steers the one that
  runs, and cancels nothing.
* A call waits for its result once it is listed in the session's `required_actions`, and only then: an item of the
  history may be seen before. It is answered with its `turn_id` and `call_id`, which together are its key.
* Results gate the turn: it cannot end before they are there, so that nothing may be held until it does.
* Only a turn that is cancelled or fails voids its results. An idle session waits for nothing.
* The list may hold approvals, too, of calls that the provider makes at an MCP server. They are answered by their
  `request_id`, and repeated like calls.
* The list is repeated, in events and whenever the session is read. An event stream never is: after a new one has been
  opened, the latest turn and the session are read.
* 202 says that a result was accepted, not that it has its effect. The same result once more is harmless.

Sources: the guides and the API reference at https://developers.openai.com/api/docs/guides/agents-api (sessions, events,
tools), and the `openai` package for Python, 3.57, which tells what is on the wire. What rests on reports of others is
marked so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, assert_never
from urllib.parse import quote

from bridge.core.dialect import Endpoint, Message
from bridge.core.events import (
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
    ToolResults,
    ToolSpec,
)
from bridge.core.http import Heard, HttpDialect, Outcome, Request
from bridge.errors import ConfigError

from ..results import TURNS_WAIT, is_unsigned, read_outcome, told_later
from .fields import approval_key, call_key, functions, others, part, text, waiting_key
from .reading import failed, host_input, required, served, transcript, turn
from .writing import APPROVAL, TOOLS, decision, entries, result_event, user_message

__all__ = ["OPENAI_SESSIONS", "OpenAISessionsDialect", "user_message"]

_URL: Final = "https://api.openai.com/v1"
_SESSIONS: Final = "/agents/sessions"
_EVENT: Final = "agent.session."
_TURN_EVENTS: Final = {"queued": "created", "waiting": "in_progress"}


class OpenAISessionsDialect:
    """The protocol of OpenAI Agent Sessions."""

    __slots__ = ()

    name: Final = "openai_sessions"
    delivery: Final = TURNS_WAIT
    media_types: Final[frozenset[str]] = frozenset()
    quiet_results: Final = False  # the agent goes on with its turn after every result
    tool_schema: Final = TOOLS

    def endpoint(self, url: str, api_key: str) -> Endpoint:
        """The address below which all paths are, and the headers of every request."""
        headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        return Endpoint(url or _URL, (*headers, ("OpenAI-Beta", "agents=v1")), "http")

    # ------------------------------------------------------------------------------------------- messages

    def decode_server(self, message: Message) -> Iterator[ServerEvent]:
        """What an event means; what was read comes as the event that would have told it, see `seen`."""
        kind = message.get("type")
        match kind:
            case "agent.session.requires_action":
                yield from required(message)
            case "agent.session.turn.created" | "agent.session.turn.in_progress":
                yield turn(message, None)
            case "agent.session.turn.completed":
                yield turn(message, False)
            case "agent.session.turn.cancelled" | "agent.session.turn.failed":
                yield turn(message, True)
            case "agent.session.idle":
                # It follows the end of a turn, and means something only if that was missed.
                yield ReplyDone(interrupted=True, message=message)
            case "agent.session.turn.output_text.delta" | "agent.session.turn.output_text.done":
                yield transcript(message)
            case "agent.session.created":
                agent = part(part(message, "session"), "agent")
                yield SetupAccepted(functions(agent), setup=others(agent, message.get("serve")), message=message)
                yield SessionReady(text(part(message, "session"), "id"), message=message)
            case "agent.session.updated":
                yield SetupAccepted(functions(part(part(message, "session"), "agent")), message=message)
            case "agent.session.served":
                yield SetupAccepted(message=message)
            case "agent.session.failed":
                yield ProviderFailed(
                    "session_failed", text(part(message, "session"), "error"), fatal=True, message=message
                )
            case "error":
                yield failed(message)
            case "agent.session.left":
                yield ProviderEnded(message=message)
            case str():
                yield ProviderMessage(kind, message=message)
            case _:
                yield Malformed("the message has no type", message=message)

    def encode_client(self, event: ClientEvent) -> Iterator[Message]:
        """The messages that say this to the provider; a post for each result, so that each has a fate of its own."""
        match event:
            case ToolResults(results):
                for result in results:
                    yield {"events": [result_event(result)]}
            case FollowUp(result=result):
                # A second result for a call is a conflict; a message is the only other word.
                yield user_message(told_later(result))
            case ReplyRequest(instructions):
                yield user_message(instructions or "Go on, please.")
            case EndSession():
                yield {"leave": {}}  # a turn that runs goes on: closing cancels nothing
            case ApprovalAnswer(request_id, allowed):
                yield decision(request_id, allowed=allowed)
            case Setup() | Resume():
                return  # from the settings; the transport's business
            case _:
                assert_never(event)

    def encode_audio(self, data: bytes) -> str:
        """There is no audio here. Raises `ConfigError`."""
        raise ConfigError("OpenAI Agent Sessions take no audio: send a message instead")

    def decode_client(self, message: Message) -> Iterator[ClientEvent]:
        """What a message of the host means."""
        match message:
            case {"create": Mapping() as body}:
                yield Setup(served(functions(part(body, "agent")), message))
            case {"attach": str()} | {"serve": list()}:
                yield Setup(served(None, message))
            case {"leave": _}:
                yield EndSession()
            case {"events": list(events)}:
                for event in events:
                    yield from host_input(event)
            case {"agent": _} | {"metadata": _} | {"review": _} | {"prompt_cache_options": _}:
                yield Setup(functions(part(message, "agent")))

    def add_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message:
        """The setup with our tools. A saved agent and a running session have theirs, which ours do not replace: of
        those, we serve what has the names of ours. Raises `ConfigError` for a tool whose JSON text is broken.
        """
        match setup:
            case {"create": Mapping() as body} if not body.get("agent_id"):
                agent = body.get("agent", {})
                if not isinstance(agent, Mapping) or not isinstance(agent.get("tools"), list | None):
                    return setup
                listed = agent.get("tools") or []
                if added := entries(listed, tools):
                    return {**setup, "create": {**body, "agent": {**agent, "tools": [*listed, *added]}}}
            case {"create": Mapping()} | {"attach": _} if isinstance(names := setup.get("serve", []), list):
                ours = [name for name in dict.fromkeys(spec.name for spec in tools) if name not in names]
                if ours:
                    return {**setup, "serve": [*names, *ours]}
        return setup

    def replace_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message | None:
        """The update that replaces the list of tools; None for a saved agent.

        Of a session that was running, the list is known once it has been read (`others`); until then it keeps it.
        """
        match setup:
            case {"attach": _}:
                return {"serve": [spec.name for spec in tools]}
            case {"create": {"agent_id": str(agent_id)}} if agent_id:
                return None
            case {"create": {"agent": Mapping() as agent}} | {"agent": Mapping() as agent}:
                listed = agent.get("tools")
                listed = listed if isinstance(listed, list) else []
                return {"agent": {"tools": [*listed, *entries(listed, tools)]}}
        return None

    # ------------------------------------------------------------------------------------------- over HTTP

    def request(self, session_id: str, message: Message) -> Request | None:
        """How a message is sent; a key makes a post count once, also if it is repeated."""
        match message:
            case {"create": body}:
                return Request("POST", _SESSIONS, body)
            case {"attach": attached}:
                return Request("GET", _path(str(attached)))
            case {"leave": _} | {"serve": _}:
                return None
            case {"events": _}:
                return Request("POST", f"{_path(session_id)}/events", message, keyed=True)
        return Request("POST", _path(session_id), message)

    def judge(self, message: Message, status: int, body: Message) -> Outcome:
        """What became of a request."""
        if not message:
            return read_outcome(status, body)
        if 200 <= status < 300:
            return Outcome.DELIVERED
        if status in (408, 429) or is_unsigned(status, body):
            return Outcome.RETRY
        if "create" in message or "attach" in message:
            return Outcome.REFUSED  # to create once more what may exist would cost twice
        if status in (401, 403, 404):
            return Outcome.OVER
        if status == 0 or status >= 500:
            return Outcome.CONFIRM if self.answers(message) else Outcome.RETRY
        if status == 409 and _approves(message):
            return Outcome.ANSWERED  # it is decided already, or nobody waits for it
        return _conflict(status, part(body, "error")) if self.answers(message) else Outcome.REFUSED

    def answered(self, message: Message, status: int, body: Message) -> Heard:
        """What the answer to a message tells."""
        if not 200 <= status < 300:
            return Heard((_refusal(message, status, body),))
        match message:
            case {"create": _} | {"attach": _}:
                created = {"type": f"{_EVENT}created", "session": body, **_served(message)}
                return Heard((created,), text(body, "id"))
            case {"serve": _}:
                return Heard(({"type": f"{_EVENT}served"},))
            case {"leave": _}:
                return Heard(({"type": f"{_EVENT}left"},), over=True)
            case {"events": _}:
                return Heard()
        return Heard(({"type": f"{_EVENT}updated", "session": body},))

    def read(self, session_id: str, cursor: str) -> Request:
        """The stream of live events, without padding."""
        return Request("GET", f"{_path(session_id)}/events?include_obfuscation=false", streams=True)

    def look(self, session_id: str) -> Request:
        """The session itself."""
        return Request("GET", _path(session_id))

    def missed(self, session_id: str) -> Request | None:
        """The latest turn: whether it runs, or how it ended."""
        return Request("GET", f"{_path(session_id)}/turns?limit=1&order=desc")

    def seen(self, body: Message, cursor: str = "") -> Heard:
        """An event as it is; a session, or its latest turn, as the event that would have told it."""
        match body:
            case {"type": _}:
                pass
            case {"object": "agent.session", "status": "requires_action" | "failed" as status}:
                body = {"type": f"{_EVENT}{status}", "session": body}
            case {"object": "agent.session"}:
                # Reported: just after new input a session still reads as idle. So that says nothing about turns.
                body = {"type": f"{_EVENT}read", "session": body}
            case {"object": "list", "data": [{"id": turn_id, "status": str(status)} as latest]}:
                kind = _TURN_EVENTS.get(status, status)
                body = {"type": f"{_EVENT}turn.{kind}", "turn_id": turn_id, "turn": latest}
            case {"object": "list"}:
                return Heard()
        return Heard((body,), over=body.get("type") == f"{_EVENT}failed")

    def answers(self, message: Message) -> str:
        """The call of a post with a single result, or what a single decision is about."""
        match message:
            case {"events": [{"type": "agent.session.input.tool_result"} as result]}:
                return call_key(result)
            case {"events": [{"type": str(kind), "request_id": str(request_id)}]} if kind == APPROVAL:
                return approval_key(request_id)
        return ""

    def pending(self, message: Message) -> frozenset[str] | None:
        """What is in a session's list of required actions."""
        match message:
            case {"session": {"required_actions": list(actions)}}:
                return frozenset(filter(None, map(waiting_key, actions)))
        return None

    def instead(self, message: Message) -> Message | None:
        """A failure in place of a result, such as one that is too large."""
        match message:
            case {"events": [{"type": "agent.session.input.tool_result", "success": True} as result]}:
                ids = {key: result[key] for key in ("type", "turn_id", "call_id") if key in result}
                return {"events": [{**ids, "success": False, "error": "The result could not be delivered."}]}
        return None


OPENAI_SESSIONS: Final[HttpDialect] = OpenAISessionsDialect()


def _served(setup: Message) -> Message:
    """Which of the tools of a session that was running are ours."""
    return {"serve": setup["serve"]} if "attach" in setup and "serve" in setup else {}


def _path(session_id: str) -> str:
    return f"{_SESSIONS}/{quote(session_id, safe='', errors='replace')}"


def _approves(message: Message) -> bool:
    match message:
        case {"events": [{"type": str(kind)}]}:
            return kind == APPROVAL
    return False


def _conflict(status: int, error: Message) -> Outcome:
    """A result was not taken."""
    if status == 409 and error.get("code") != "idempotency_conflict":
        return Outcome.ANSWERED  # reported: there is another result, or the turn has ended
    if status == 409 or text(error, "message").startswith("Unknown pending tool call"):
        return Outcome.CONFIRM  # seen: a call may be told before it is registered
    return Outcome.REFUSED


def _refusal(message: Message, status: int, body: Message) -> Message:
    """A refused request as the event that tells an error; `about` says what it was for."""
    words = {"code": "no_answer" if status == 0 else f"http_{status}", "message": "The provider refused a request."}
    error = part(body, "error") or words
    if not message:
        return {"type": "error", "error": error, "about": "session"}
    return {"type": "error", "error": error, "about": "input" if "events" in message else "setup"}
