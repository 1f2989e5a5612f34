"""What goes over the API, in and out. The description that `/openapi.json` gives is made of these."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

__all__ = [
    "ApprovalList",
    "CallList",
    "Decided",
    "Decision",
    "Drained",
    "Health",
    "Problem",
    "Readiness",
    "Result",
    "SessionList",
    "SessionView",
    "Taken",
]


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one line of printable characters")
    return text


OneLine = Annotated[str, AfterValidator(_one_line)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class _Answer(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


# ---------------------------------------------------------------------------------------------------------------- in


class Result(_Body):
    """What came of a call."""

    status: Literal["running", "completed", "failed"]
    """`running` only asks whether the call still waits, and changes nothing. Where several processes share a journal,
    one that knows nothing of the call says that it does, since it may be about to at another."""
    output: JsonValue = None
    """Of a completed call: what the agent is told."""
    error: str = Field(default="", max_length=1000)
    """Of a failed call: a sentence for the agent."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.status == "failed") != bool(self.error.strip()):
            raise ValueError("error: a sentence says why a call failed, and only then")
        if self.status != "completed" and self.output is not None:
            raise ValueError("output: only a completed call has one")
        return self


class Decision(_Body):
    """May the call run?"""

    decision: Literal["approve", "deny"]
    by: OneLine = Field(default="", max_length=100)
    """Who decided; by default the name of the token."""
    reason: str = Field(default="", max_length=1000)
    """For the record: the agent does not hear it."""


# --------------------------------------------------------------------------------------------------------------- out


class Problem(_Answer):
    """Why a request came to nothing."""

    error: str
    """What happened, and what to do."""
    retryable: bool
    """Is there any sense in sending the same again, later?"""


class Health(_Answer):
    status: Literal["ok"]


class Readiness(_Answer):
    ready: bool
    reason: str
    """Why no new session would be taken; empty if one would be."""


class Drained(_Answer):
    left: int
    """Sessions that had to be ended."""


class SessionView(_Answer):
    """A session as it is now; with several workers also the number of its `worker`."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)

    id: str
    seconds: float
    """Since it began."""


class SessionList(_Answer):
    sessions: list[SessionView]


class CallView(_Answer):
    """A call."""

    key: str
    """Names it among those of all sessions; percent-encode it in an address."""
    session: str
    tool: str
    """Empty if that is not known any more."""
    since: float
    """When it began, in seconds since 1970; 0 if that is not known any more.

    At another process: when it came to wait.
    """
    state: Literal["running", "waiting", "done", "sent", "discarded", "ended"]
    """`waiting` for a result from outside; `done` but not told to the agent yet; `ended` with its session."""
    parked: bool
    """Has the agent been told that it goes on? At another process that is taken for granted."""
    outcome: Literal["", "ok", "error"]
    elsewhere: bool = False
    """Does it wait at another process, which shares the journal?"""
    worker: int = 1


class CallList(_Answer):
    calls: list[CallView]


class ApprovalView(_Answer):
    """A call that waits to be approved."""

    id: str
    session: str
    key: str
    tool: str
    arguments: Any
    """All of them; those that the tool redacts are masked."""
    asked: float
    """When, in seconds since 1970."""
    seconds: float
    """For how long it can be decided."""
    elsewhere: bool = False
    """Does it wait at another process, which shares the journal?"""
    worker: int = 1


class ApprovalList(_Answer):
    approvals: list[ApprovalView]


class Taken(_Answer):
    """The answer that stands, or that the call still waits (`running`)."""

    key: str
    status: Literal["running", "completed", "failed"]
    output: Any = None
    error: str = ""
    repeated: bool = False
    """Had the same been said before?"""


class Decided(_Answer):
    id: str
    decision: Literal["approve", "deny"]
    by: str
