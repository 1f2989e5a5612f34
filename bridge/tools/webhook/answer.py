"""From an endpoint's answer to the tool's result, or to what is said instead of one.

| answer | what becomes of it |
|---|---|
| expected, JSON | the value, or what `result` points at in it |
| expected, `text/plain` | the text |
| expected, empty | null |
| 409 | "conflict: ..."; with `Retry-After` it is as 425 |
| 425 | "still in progress: ..."; tried again only when the answer says when |
| 429, 502, 503, 504 | tried again if the tool is repeatable, after `Retry-After` if there is one |
| other 4xx | the endpoint's own words, if it sends `{"error": "..."}` |
| anything else | "the tool failed"; why is in the log |

The first three take any status that the tool's author has listed.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from enum import Enum
from http import HTTPStatus
from typing import Final

import orjson

from ...errors import ToolBusy, ToolError, ToolUnavailable
from ..encode import TooLarge, decode
from .declaration import HttpTool

__all__ = ["Again", "Answer", "Failed", "result_of"]

_REASON: Final = 300
"""Characters of an endpoint's own words that a model is told."""
_CHARSETS: Final = frozenset({"utf-8", "ascii", "iso8859-1", "iso8859-15", "cp1252", "utf-16"})
"""As Python calls them. Text in any other is refused: some codecs are slow, or are no character sets at all."""


class Again(Enum):
    """May a request that failed be sent again, if its tool is repeatable?"""

    NEVER = "it would fail again"
    WHEN_TOLD = "only after the time that the answer names"
    SOON = "it failed for the moment"


class Failed(Exception):
    """An attempt without a result. Its own text is for the log: it holds no address with arguments, and no answer."""

    def __init__(self, log: str, error: ToolError, again: Again = Again.NEVER, wait: float | None = None) -> None:
        super().__init__(log)
        self.error = error
        """What the model is told in the end."""
        self.again = again
        self.wait = wait
        """Seconds that the endpoint asks us to wait, if it does."""
        self.seconds = 0.0
        """How long the attempt took."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, unpacked. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def result_of(answer: Answer, tool: HttpTool) -> object:
    """The tool's result. Raises `Failed`."""
    if tool.expects(answer.status):
        return _picked(_value(answer, tool), tool)
    raise _refusal(answer, tool)


# ----------------------------------------------------------------------------------------------------------- success


def _value(answer: Answer, tool: HttpTool) -> object:
    if len(answer.body) > tool.response_limit:
        error = TooLarge(f"the answer of {tool.name} has more than {tool.response_limit} bytes")
        raise Failed("the answer is larger than response_limit", error)
    if not answer.body.strip():
        return None
    kind = _content_type(answer)
    media = kind.get_content_type() if "content-type" in answer.headers else "application/json"
    if media != "text/plain" and media != "application/json" and not media.endswith("+json"):
        raise _unreadable(tool, f"it is {media[:80]!r}, neither JSON nor plain text")
    text = _decoded(answer.body, kind.get_content_charset("utf-8"), tool)
    if media == "text/plain":
        return text
    try:
        return decode(text)
    except json.JSONDecodeError as error:
        raise _unreadable(tool, f"it is not valid JSON, at byte {error.pos}") from None


def _content_type(answer: Answer) -> Message:
    message = Message()
    message["content-type"] = answer.headers.get("content-type", "")
    return message


def _decoded(body: bytes, charset: str, tool: HttpTool) -> str:
    try:
        name = codecs.lookup(charset).name
    except LookupError:
        name = ""
    if name not in _CHARSETS:
        raise _unreadable(tool, f"its charset {charset[:40]!r} is not read; send UTF-8")
    try:
        return body.decode(name).removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise _unreadable(tool, f"it is not in the charset {name}; send UTF-8") from None


def _picked(value: object, tool: HttpTool) -> object:
    """What the pointer names. RFC 6901."""
    for step in tool.result.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        match value:
            case dict() if key in value:
                value = value[key]
            case list() if key.isdecimal() and key.isascii() and int(key) < len(value):
                value = value[int(key)]
            case _:
                raise _unreadable(tool, f"it has nothing at {tool.result}, which is set as its result")
    return value


def _unreadable(tool: HttpTool, why: str) -> Failed:
    return Failed(f"the answer cannot be read: {why}", ToolUnavailable(f"the answer of {tool.name} could not be read"))


# ----------------------------------------------------------------------------------------------------------- refusals


def _refusal(answer: Answer, tool: HttpTool) -> Failed:
    wait = _retry_after(answer.headers.get("retry-after", ""), datetime.now(UTC))
    log = f"the endpoint answered {answer.status}"
    failed = ToolUnavailable(f"the tool {tool.name} failed")
    match answer.status:
        case 409 if wait is None:
            why = _reason(answer) or "it clashes with something that was done before"
            return Failed(log, ToolError(f"conflict: {why}"))
        case 409 | 425:
            why = _reason(answer) or "an earlier request has not ended yet; ask again later"
            return Failed(log, ToolError(f"still in progress: {why}"), Again.WHEN_TOLD, wait)
        case 429:
            busy = ToolBusy(f"{tool.name} takes no more requests now; try again later")
            return Failed(log, busy, Again.SOON, wait)
        case 502 | 503 | 504:
            return Failed(log, failed, Again.SOON, wait)
        case status if 300 <= status < 400:
            return Failed(f"{log}, which leads elsewhere; see follow_redirects", failed)
        case status if 400 <= status < 500:
            return Failed(log, ToolError(_reason(answer) or f"{tool.name} refused the request: {_phrase(status)}"))
        case _:
            return Failed(log, failed)


def _reason(answer: Answer) -> str:
    """The endpoint's own words for the model."""
    try:
        said = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return ""
    text = said.get("error") if isinstance(said, dict) else None
    return " ".join(text.split())[:_REASON] if isinstance(text, str) else ""


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.lower()
    except ValueError:
        return str(status)


def _retry_after(text: str, now: datetime) -> float | None:
    """Seconds, from a number of them or a date; None if there is neither. RFC 9110, 10.2.3."""
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        when = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - now).total_seconds())
