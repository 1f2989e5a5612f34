"""The bodies that a client may post, and the refusal of those it may not."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from bridge.simulator.herm.rules import Payloads
from bridge.simulator.site import Refused

__all__ = [
    "Confirmation",
    "CreateAgent",
    "CreateSession",
    "CustomToolResult",
    "Event",
    "Interrupt",
    "Steer",
    "UpdateSession",
    "UserMessage",
    "error",
    "read",
    "read_events",
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class CreateAgent(_Body):
    """What an agent is."""

    name: str
    model: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list)


class CreateSession(_Body):
    """Whom a session is for."""

    userId: str | None = None
    title: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class UpdateSession(_Body):
    """What is to change about a session."""

    title: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class _Text(_Body):
    type: Literal["text"]
    text: Annotated[str, Field(max_length=20_000)]


_Content = Annotated[list[_Text], Field(min_length=1, max_length=100)]


class UserMessage(_Body):
    """A new prompt."""

    type: Literal["user.message"]
    content: _Content


class Steer(_Body):
    """Words for the turn that runs."""

    type: Literal["user.steer"]
    message: str


class Interrupt(_Body):
    """Stop the turn that runs."""

    type: Literal["user.interrupt"]
    message: str | None = None


class Confirmation(_Body):
    """The decision about a call that needs one. The name of its field is not known: see `Payloads`."""

    type: Literal["user.tool_confirmation"]
    tool_use_id: str


class CustomToolResult(_Body):
    """The answer to a call, the word that it is running, or its outcome."""

    type: Literal["user.custom_tool_result"]
    tool_use_id: str
    content: _Content
    status: Literal["running", "completed", "failed"] | None = None
    is_error: bool = False

    @property
    def text(self) -> str:
        """All its words."""
        return "\n".join(block.text for block in self.content)

    @property
    def says(self) -> str:
        """Its status; an answer without one is taken by `is_error`."""
        return self.status or ("failed" if self.is_error else "completed")

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> CustomToolResult:
        if self.is_error != (self.says == "failed"):
            raise PydanticCustomError("value_error", "is_error is true for failed, and for nothing else")
        return self


Event = UserMessage | Steer | Interrupt | Confirmation | CustomToolResult


class _Events(_Body):
    events: Annotated[list[Annotated[Event, Field(discriminator="type")]], Field(min_length=1)]


_T = TypeVar("_T")
_EVENTS: Final = TypeAdapter(_Events)


def read(kind: type[_T], data: bytes, payloads: Payloads) -> _T:
    """The body as this model. Raises `Refused` with 400, which is not documented."""
    return _read(TypeAdapter(kind), data, payloads)


def read_events(data: bytes, payloads: Payloads) -> list[Event]:
    """The events of a post. Raises `Refused` with 400."""
    return _read(_EVENTS, data, payloads).events


def error(code: str, message: str, payloads: Payloads, *, retryable: bool = False) -> dict[str, Any]:
    """The body of an error. `code` and `retryable` are documented, for one of them; the rest is not."""
    return {payloads.error: {"code": code, "message": message, "retryable": retryable}}


def _read(adapter: TypeAdapter[_T], data: bytes, payloads: Payloads) -> _T:
    try:
        return adapter.validate_python(orjson.loads(data or b"{}"))
    except orjson.JSONDecodeError as fault:
        raise Refused(400, error("invalid_request", f"the body is no JSON: {fault}", payloads)) from None
    except ValidationError as fault:
        first = fault.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refused(400, error("invalid_request", f"{where}: {first['msg']}", payloads)) from None
