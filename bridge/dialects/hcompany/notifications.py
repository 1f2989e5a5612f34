"""Notifications: the provider posts each change of a session's status to whoever wants to hear of it.

They say that calls wait, not which, and so stand in for asking all the time: attach to the session when one comes. The
same one may come twice, and late; its `id` stays the same.

`X-H-Webhook-Signature` is `sha256=` and, in hex, the HMAC-SHA256 of `<timestamp>.<body>` under the secret that was told
when the webhook was made; `X-H-Webhook-Timestamp` is that timestamp, in Unix seconds. Source: the provider's pages on
webhooks, and its client `hai-agents` 1.3, whose `verify_webhook` agrees.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import orjson

from .cursor import OVER

__all__ = ["Notification", "Rejected", "receive"]

_TOLERANCE: Final = 300.0
"""Seconds by which the provider's clock and ours may differ."""


class Rejected(Enum):
    """Why something is no notification; the values are the HTTP statuses to answer with."""

    NOT_SIGNED = 401
    """Its signature is missing, wrong, or too old."""
    NOT_UNDERSTOOD = 400


@dataclass(frozen=True, slots=True)
class Notification:
    """A change of status; a ping of the provider has no session."""

    id: str
    kind: str
    """Such as `session.awaiting_tool_results`."""
    session_id: str
    status: str

    @property
    def calls_wait(self) -> bool:
        """Does the session wait for results?"""
        return self.status == "awaiting_tool_results"

    @property
    def over(self) -> bool:
        """Is the session over?"""
        return self.status in OVER


def receive(headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: float) -> Notification | Rejected:
    """What was posted to us. Any of the `secrets` may have signed it: while one takes another's place there are two.

    `headers` by name, in whatever case; `now` in Unix seconds.
    """
    by_name = {name.lower(): value for name, value in headers.items()}
    timestamp, signature = (by_name.get(f"x-h-webhook-{name}", "") for name in ("timestamp", "signature"))
    if not _is_signed(body, timestamp, signature, secrets, now):
        return Rejected.NOT_SIGNED
    try:
        match orjson.loads(body):
            case {"type": str(kind), "id": str(notification), "data": Mapping() as data}:
                session_id, status = (data.get(key) for key in ("session_id", "status"))
                told = (each if isinstance(each, str) else "" for each in (session_id, status))
                return Notification(notification, kind, *told)
    except orjson.JSONDecodeError:
        pass
    return Rejected.NOT_UNDERSTOOD


def _is_signed(body: bytes, timestamp: str, signature: str, secrets: Sequence[str], now: float) -> bool:
    if re.fullmatch("[0-9]{1,12}", timestamp) is None or abs(int(timestamp) - now) > _TOLERANCE:
        return False
    said, text = signature.encode(errors="replace"), timestamp.encode() + b"." + body
    due = [b"sha256=" + hmac.new(each.encode(), text, hashlib.sha256).hexdigest().encode() for each in secrets]
    return any(hmac.compare_digest(said, each) for each in due)
