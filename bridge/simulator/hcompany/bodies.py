"""The bodies that a client may post, and the refusal of those it may not."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from pydantic import AliasPath, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from bridge.simulator.site import Refused

__all__ = [
    "Batch",
    "CreateSession",
    "CreateWebhook",
    "ErrorEvent",
    "MessageBatch",
    "ToolResult",
    "UpdateWebhook",
    "UserMessage",
    "error",
    "read",
    "read_messages",
    "read_results",
]

_MAX_BODY: Final = 10_000_000


class _Body(BaseModel):
    """Unknown fields are kept, as the published models do."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Tool(_Body):
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
    description: Annotated[str, Field(min_length=1)]
    input_schema: dict[str, Any] | None = None


class _Agent(_Body):
    name: str
    description: str
    environments: list[Any]
    tools: list[_Tool] | None = None
    subagents: list[Any] | None = None

    @model_validator(mode="after")
    def _lives_somewhere(self) -> _Agent:
        if not (self.environments or self.tools or self.subagents):
            raise PydanticCustomError("value_error", "environments are required without custom tools or subagents")
        return self


class UserMessage(_Body):
    """One message of the user."""

    message: str
    type: Literal["user_message"] = "user_message"
    caller_id: str = "user"


class MessageBatch(_Body):
    """Several messages at once."""

    type: Literal["batch"]
    messages: Annotated[list[UserMessage], Field(min_length=1)]


class CreateSession(_Body):
    """What a session is to be."""

    agent: str | _Agent
    messages: str | UserMessage | list[UserMessage] | None = None
    max_time_s: Annotated[float, Field(gt=0)] | None = None
    max_steps: Annotated[int, Field(ge=1)] | None = None
    idle_timeout_s: Annotated[int, Field(gt=0)] | None = None
    queue: bool = True
    overrides: dict[str, Any] | None = None
    override_tools: list[_Tool] | None = Field(
        default=None, validation_alias=AliasPath("overrides", "agent.tools"), exclude=True
    )

    @property
    def words(self) -> list[str]:
        """The messages it begins with."""
        match self.messages:
            case None:
                return []
            case str(text):
                return [text]
            case UserMessage(message=text):
                return [text]
            case list(messages):
                return [message.message for message in messages]

    @property
    def tools(self) -> list[_Tool]:
        """The custom tools the agent has."""
        own = self.agent.tools if isinstance(self.agent, _Agent) else None
        return (own if self.override_tools is None else self.override_tools) or []

    @model_validator(mode="after")
    def _tells_its_tools_apart(self) -> CreateSession:
        if len({tool.name for tool in self.tools}) < len(self.tools):
            raise PydanticCustomError("value_error", "two custom tools have the same name")
        return self


class _Request(_Body):
    tool_name: str
    args: dict[str, Any] = Field(default_factory=dict)
    id: str | None = None


class ToolResult(_Body):
    """What a custom tool gave."""

    kind: Literal["tool_result"]
    tool_req: _Request
    result: Any = None


class ErrorEvent(_Body):
    """That a custom tool failed. The schema lets it leave the call out; it answers nothing then."""

    kind: Literal["error_event"]
    error: str
    origin: str
    tool_req: _Request | None = None


class Batch(_Body):
    """Several results at once."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["batch"]
    results: Annotated[list[ToolResult | ErrorEvent], Field(min_length=1)]


class CreateWebhook(_Body):
    """Where deliveries are to go. The real provider wants https and a public host; here it is the loopback."""

    url: Annotated[str, Field(max_length=2048, pattern=r"^(https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/])")]
    enabled_events: list[str] = Field(default_factory=lambda: ["*"])
    description: Annotated[str, Field(max_length=255)] | None = None


class UpdateWebhook(_Body):
    """What is to change about a webhook."""

    url: str | None = None
    enabled_events: list[str] | None = None
    description: str | None = None
    disabled: bool | None = None


_T = TypeVar("_T")
_RESULTS: Final[TypeAdapter[Batch | ToolResult | ErrorEvent]] = TypeAdapter(Batch | ToolResult | ErrorEvent)
_MESSAGES: Final[TypeAdapter[MessageBatch | UserMessage]] = TypeAdapter(MessageBatch | UserMessage)


def read(kind: type[_T], data: bytes) -> _T:
    """The body as this model. Raises `Refused` with 413 or 422."""
    return _read(TypeAdapter(kind), data)


def read_results(data: bytes) -> list[ToolResult | ErrorEvent]:
    """The results in a body of any of the three shapes. Raises `Refused` with 413 or 422."""
    body = _read(_RESULTS, data)
    return body.results if isinstance(body, Batch) else [body]


def read_messages(data: bytes) -> list[UserMessage]:
    """The messages in a body of either shape. Raises `Refused` with 413 or 422."""
    body = _read(_MESSAGES, data)
    return body.messages if isinstance(body, MessageBatch) else [body]


def error(status: int, text: str = "", detail: Any = None) -> dict[str, Any]:
    """The body of an error."""
    words = text or f"HTTP status {status}"
    return {"message": words, "detail": [{"type": "error", "msg": words, "loc": []}] if detail is None else detail}


def _read(adapter: TypeAdapter[_T], data: bytes) -> _T:
    if len(data) > _MAX_BODY:
        raise Refused(413, error(413, "the body is larger than 10,000,000 bytes"))
    try:
        return adapter.validate_python(orjson.loads(data))
    except orjson.JSONDecodeError as fault:
        raise Refused(422, error(422, f"the body is no JSON: {fault}")) from None
    except ValidationError as fault:
        detail = [
            {"type": each["type"], "msg": each["msg"], "loc": list(each["loc"])}
            for each in fault.errors(include_url=False, include_context=False, include_input=False)
        ]
        raise Refused(422, error(422, "the body is not as it should be", detail)) from None
