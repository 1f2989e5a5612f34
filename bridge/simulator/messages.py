"""What a client may say: every message is checked strictly, and refused with the provider's own codes.

Written after the provider's events reference and session reference, September 2026, apart from any dialect of this
package, so that a misreading there is found here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

__all__ = [
    "AgentMessage",
    "CancelReply",
    "CreateReply",
    "EndSession",
    "InputAudio",
    "Message",
    "Refused",
    "ResumeSession",
    "ToolResult",
    "UpdateSession",
    "read",
    "refusal",
]


class Refused(Exception):
    """The provider says no. `code` is its word for the reason, `param` the field it names."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class UpdateSession(_Message):
    type: Literal["session.update"]
    session: dict[str, Any]


class ResumeSession(_Message):
    type: Literal["session.resume"]
    session_id: str


class InputAudio(_Message):
    type: Literal["input.audio"]
    audio: str


class ToolResult(_Message):
    type: Literal["tool.result"]
    call_id: str
    result: str
    is_error: bool = False


class CreateReply(_Message):
    type: Literal["reply.create"]
    instructions: str = ""


class AgentMessage(_Message):
    type: Literal["conversation.message"]
    role: Literal["user", "system"]
    content: str


class CancelReply(_Message):
    type: Literal["reply.cancel"]
    reply_id: str


class EndSession(_Message):
    type: Literal["session.end"]


Message: TypeAlias = (
    UpdateSession | ResumeSession | InputAudio | ToolResult | CreateReply | AgentMessage | CancelReply | EndSession
)

_MESSAGE: Final[TypeAdapter[Message]] = TypeAdapter(Annotated[Message, Field(discriminator="type")])

_OWN_CODES: Final = frozenset({"invalid_format", "invalid_value", "invalid_config"})

_OUT_OF_RANGE: Final = frozenset(
    {
        "literal_error",
        "greater_than_equal",
        "less_than_equal",
        "too_long",
        "string_too_long",
        "string_pattern_mismatch",
    }
)


def read(frame: str | bytes) -> Message:
    """Read one frame. Raises `Refused` with `invalid_format` for anything that is not a documented message."""
    if isinstance(frame, bytes):
        raise Refused("invalid_format", "binary frames are not part of the protocol")
    try:
        return _MESSAGE.validate_json(frame)
    except ValidationError as error:
        told = refusal(error)
        raise Refused("invalid_format", told.message, told.param) from None


def refusal(error: ValidationError, prefix: str = "") -> Refused:
    """The first fault of a message in the provider's terms; never shows a value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] in _OWN_CODES:
        code = first["type"]
    else:
        code = "invalid_value" if first["type"] in _OUT_OF_RANGE else "invalid_format"
    return Refused(code, first["msg"], ".".join([prefix, *map(str, first["loc"])]).strip("."))
