"""Notifications of H Company, signed by its rule, and taken exactly where the vendor's own helper takes them."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import Any

import orjson
import pytest

from bridge.dialects.hcompany.notifications import Notification, Rejected, receive

NOW = 1_800_000_000
BODY = orjson.dumps(
    {
        "type": "session.awaiting_tool_results",
        "id": "n1",
        "created_at": "2027-01-15T08:00:00Z",
        "data": {"session_id": "0e4bebe1", "status": "awaiting_tool_results", "previous_status": "running"},
    }
)


def headers(body: bytes = BODY, secret: str = "whsec_1", at: float = NOW) -> dict[str, str]:
    text = f"{at:.0f}.".encode() + body
    digest = hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()
    return {"X-H-Webhook-Timestamp": f"{at:.0f}", "X-H-Webhook-Signature": f"sha256={digest}"}


def test_a_signed_notification_tells_which_session_waits() -> None:
    told = receive(headers(), BODY, ["whsec_1"], NOW)
    assert told == Notification("n1", "session.awaiting_tool_results", "0e4bebe1", "awaiting_tool_results")
    assert told.calls_wait
    assert not told.over


def test_while_a_secret_is_replaced_either_counts() -> None:
    assert isinstance(receive(headers(secret="old"), BODY, ["new", "old"], NOW), Notification)


def test_the_names_of_headers_count_in_any_case() -> None:
    lower = {name.lower(): value for name, value in headers().items()}
    assert isinstance(receive(lower, BODY, ["whsec_1"], NOW), Notification)


def test_the_end_of_a_session_is_told() -> None:
    body = orjson.dumps({"type": "session.completed", "id": "n2", "data": {"session_id": "s", "status": "completed"}})
    told = receive(headers(body), body, ["whsec_1"], NOW)
    assert isinstance(told, Notification)
    assert told.over


def test_a_ping_names_no_session() -> None:
    body = orjson.dumps({"type": "webhook.ping", "id": "n3", "data": {}})
    assert receive(headers(body), body, ["whsec_1"], NOW) == Notification("n3", "webhook.ping", "", "")


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"X-H-Webhook-Signature": ""},
        {"X-H-Webhook-Signature": "sha256=\udc80"},
        {"X-H-Webhook-Timestamp": "soon"},
        {"X-H-Webhook-Timestamp": str(NOW + 1)},
        headers(secret="another"),
        headers(at=NOW - 301),
        headers(at=NOW + 301),
    ],
)
def test_what_is_not_signed_now_and_with_the_secret_is_rejected(broken: dict[str, str]) -> None:
    given_headers = {**headers(), **broken} if broken else {}
    assert receive(given_headers, BODY, ["whsec_1"], NOW) is Rejected.NOT_SIGNED


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type":"t","id":1,"data":{}}', b'{"type":"t","id":"n"}'])
def test_a_signed_body_that_is_no_notification_is_rejected(body: bytes) -> None:
    assert receive(headers(body), body, ["whsec_1"], NOW) is Rejected.NOT_UNDERSTOOD


@pytest.mark.parametrize("change", ["nothing", "body", "secret", "timestamp", "signature", "old"])
def test_the_vendors_helper_agrees(change: str) -> None:
    hai_agents = pytest.importorskip("hai_agents", reason="the vendor's client is not installed")
    now = time.time()
    sent = headers(BODY if change != "body" else BODY + b" ", at=now - 600 if change == "old" else now)
    if change == "timestamp":
        sent["X-H-Webhook-Timestamp"] = f"{now + 5:.0f}"
    if change == "signature":
        sent["X-H-Webhook-Signature"] = sent["X-H-Webhook-Signature"][:-1] + "x"
    secret = "whsec_2" if change == "secret" else "whsec_1"
    taken = isinstance(receive(sent, BODY, [secret], now), Notification)
    assert taken == _vendor_takes(hai_agents, sent, secret)
    assert taken == (change == "nothing")


def _vendor_takes(hai_agents: Any, sent: dict[str, str], secret: str) -> bool:
    try:
        hai_agents.verify_webhook(BODY, sent["X-H-Webhook-Signature"], sent["X-H-Webhook-Timestamp"], secret)
    except Exception:
        return False
    return True
