"""What a client may send: every body is checked strictly, and refused with the provider's own codes.

Written after the provider's API reference and the types of its Python package, version 3.57, apart from any dialect of
this package, so that a misreading there is found here.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

__all__ = [
    "Approval",
    "Cancel",
    "ComputerApproval",
    "CreateSession",
    "Input",
    "Inputs",
    "Refused",
    "ToolResult",
    "UpdateSession",
    "UserMessage",
    "UserMessages",
    "read",
    "text_of",
]

_MAX_TOOLS: Final = 3 * 1024 * 1024


class Refused(Exception):
    """The provider says no, with this HTTP status and its own code."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Open(BaseModel):
    """A part that the simulator keeps without knowing all of it."""

    model_config = ConfigDict(extra="allow", strict=True)


class InputText(_Body):
    type: Literal["input_text"]
    text: str


class InputImage(_Body):
    type: Literal["input_image"]
    image_url: str


Content: TypeAlias = Annotated[InputText | InputImage, Field(discriminator="type")]


class UserMessage(_Body):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: list[Content]


class Function(_Body):
    type: Literal["function"]
    name: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_-]{1,64}$")]
    description: str
    parameters: dict[str, Any]
    defer_loading: bool = False
    is_async: bool | None = Field(default=None, alias="async")


class OtherTool(_Open):
    type: Literal["tool_search", "programmatic_tool_calling", "mcp", "web_search", "computer_use", "automations"]


Tool: TypeAlias = Annotated[Function | OtherTool, Field(discriminator="type")]


class AgentSettings(_Open):
    model: str | None = None
    instructions: str | None = None
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [tool.name for tool in self.tools or () if isinstance(tool, Function)]
        if len(names) != len(set(names)):
            raise ValueError("two functions have the same name")
        if sum(len(tool.model_dump_json()) for tool in self.tools or ()) > _MAX_TOOLS:
            raise ValueError("the list of tools is larger than 3 MiB")
        return self

    @property
    def functions(self) -> list[Function]:
        return [tool for tool in self.tools or () if isinstance(tool, Function)]


class Environment(_Open):
    type: Literal["none", "openai_hosted", "self_hosted"]


Metadata: TypeAlias = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class CreateSession(_Body):
    environment: Environment
    agent: AgentSettings | None = None
    agent_id: str | None = None
    input: str | list[UserMessage] | None = None
    metadata: Metadata | None = None
    prompt_cache_options: dict[str, Any] | None = None
    review: Literal["none", "auto_review"] = "none"
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    vault_ids: list[str] | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        kind = self.environment.type
        if not self.agent_id and (self.agent is None or not self.agent.model):
            raise ValueError("agent.model is required without agent_id")
        if not self.input and (kind == "none" or (self.stream and kind != "self_hosted")):
            raise ValueError("input is required here")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream")
        return self


class UpdateSession(_Body):
    agent: AgentSettings | None = None
    metadata: Metadata | None = None
    prompt_cache_options: dict[str, Any] | None = None
    review: Literal["none", "auto_review"] | None = None


class UserMessages(_Body):
    type: Literal["agent.session.input.message"]
    input: list[UserMessage] = Field(min_length=1)


class Cancel(_Body):
    type: Literal["agent.session.input.cancel"]


class ToolResult(_Body):
    type: Literal["agent.session.input.tool_result"]
    turn_id: str
    call_id: str
    success: bool
    output: str | list[Content] | None = None
    error: str | None = None


class Decision(_Body):
    type: Literal["mcp_tool_call"]
    decision: Literal["approve", "deny", "cancel"]


class Approval(_Body):
    type: Literal["agent.session.input.mcp_approval_request_result"]
    request_id: str
    response: Decision


class ComputerApproval(_Body):
    """The simulator never asks for one of these, so that an answer is always a stray."""

    type: Literal["agent.session.input.computer_use_approval_request_result"]
    request_id: str
    response: dict[str, Any]


Input: TypeAlias = Annotated[
    UserMessages | Cancel | ToolResult | Approval | ComputerApproval, Field(discriminator="type")
]


class Inputs(_Body):
    events: list[Input] = Field(min_length=1)


_Read = TypeVar("_Read", bound=BaseModel)


def read(model: type[_Read], body: bytes) -> _Read:
    """Read one body. Raises `Refused` with 400 for anything that is not documented; never shows a value."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"])) or None
        raise Refused(400, "invalid_request_error", first["msg"], param) from None


def text_of(message: UserMessage) -> str:
    """The words of a user message."""
    return " ".join(part.text for part in message.content if isinstance(part, InputText))
