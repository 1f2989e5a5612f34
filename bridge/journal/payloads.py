"""What is kept of the arguments and results of calls, and of words: as much as the setting allows, and no more."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum

import orjson

from ..core.events import (
    CallConcluded,
    FillerDue,
    FollowUp,
    ReplyRequest,
    Resume,
    Run,
    SayAsked,
    SessionReady,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
)
from ..core.messages import decode
from ..tools.redaction import masked
from . import Record
from .sealing import Seal

__all__ = ["Keep", "Payloads"]


class Keep(Enum):
    """How much of an argument or a result stays in the journal."""

    NONE = "none"
    """A digest."""
    REDACTED = "redacted"
    """All but the fields that the tool names in `redact`."""
    FULL = "full"


def _no_fields(tool: str) -> Collection[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Payloads:
    """How a journal keeps what calls carry. `seal` encrypts all of it at rest."""

    keep: Keep = Keep.REDACTED
    redact: Callable[[str], Collection[str]] = _no_fields
    """From the name of a tool to the fields, of its arguments and its result, whose values are masked."""
    seal: Seal = field(default_factory=Seal)

    def kept(self, record: Record) -> Record:
        """The record with what may be kept of it. What a caller has said never may."""
        match record:
            case Transcript():
                return replace(record, text="")
            case ToolCalled(call) | Run(_, call):
                return replace(record, call=self._call(call))
            case ToolFinished(_, result) | CallConcluded(_, result) | FollowUp(_, result):
                return replace(record, result=self.kept_result(result))
            case ToolResults(results):
                return replace(record, results=tuple([self.kept_result(each) for each in results]))
            case SayAsked(words) | FillerDue(_, words) | ReplyRequest(words):
                return replace(record, instructions=self._words(words))
            case SessionReady() if not self.seal.closed:
                return replace(record, resume_token="")
            case Resume() if not self.seal.closed:
                return replace(record, token="")
            case _:
                return record

    def kept_result(self, result: ToolResult) -> ToolResult:
        """The result with what may be kept of it for good."""
        return replace(result, output=self._text(result.name, result.output))

    def digest(self, text: str) -> str:
        """The same for the same JSON value, however it is spelled; a text that is no JSON only equals itself."""
        try:
            data = orjson.dumps(decode(text), option=orjson.OPT_SORT_KEYS)
        except (ValueError, TypeError):  # JSON with larger integers, too, is only equal to itself
            data = text.encode(errors="surrogatepass")
        return self.seal.digest(data)

    def digest_of(self, result: ToolResult) -> str:
        """The same for results that tell a model the same."""
        return self.seal.digest(f"{int(result.is_error)} {self.digest(result.output)}".encode())

    def _call(self, call: ToolCall) -> ToolCall:
        return replace(call, arguments=self._text(call.name, call.arguments))

    def _text(self, tool: str, text: str) -> str:
        match self.keep:
            case Keep.NONE:
                return orjson.dumps({"digest": self.digest(text)}).decode()
            case Keep.REDACTED:
                return masked(text, self.redact(tool))
            case Keep.FULL:
                return text

    def _words(self, words: str) -> str:
        """What the agent is told to speak about may quote anything, and has no fields to mask."""
        return words if self.keep is Keep.FULL or not words else f"(digest {self.digest(words)})"
