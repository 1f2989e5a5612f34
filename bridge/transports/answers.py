"""The answer to one HTTP request, as far as sessions over HTTP need it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ..core.dialect import Message
from ..core.messages import decode

__all__ = ["Answer", "json_object", "retry_seconds"]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status 0: there is none."""

    status: int
    body: Message
    retry_after: float = 0.0
    reached: bool = True
    """May the request have reached the provider at all?"""


def json_object(data: bytes | bytearray) -> Message:
    """A body or an event as a JSON object; empty if it is none."""
    try:
        message = decode(data)
    except json.JSONDecodeError:
        return {}
    return message if isinstance(message, dict) else {}


def retry_seconds(retry_after: str) -> float:
    """A `Retry-After` in seconds; dates, which no provider here sends, count as none."""
    return float(retry_after) if retry_after.replace(".", "", 1).isdecimal() else 0.0
