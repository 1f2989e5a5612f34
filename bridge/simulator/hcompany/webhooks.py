"""Signed deliveries to whoever has asked for them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx2
import orjson

from bridge.simulator.agenda import Agenda
from bridge.simulator.hcompany.bodies import CreateWebhook, UpdateWebhook
from bridge.simulator.hcompany.rules import Rules

__all__ = ["TYPES", "Delivery", "Webhook", "Webhooks"]

TYPES: Final = {
    "session.status_updated": "The status of a session has changed.",
    "session.awaiting_tool_results": "A session waits for the results of custom tools.",
    "session.completed": "A session has answered and ended.",
    "session.failed": "A session has failed.",
    "session.timed_out": "A session has used up its time.",
    "session.idle": "A session has answered and waits for a message.",
}
"""What can be delivered."""
_TIMEOUT: Final = 10.0
_BACKOFF: Final = 1.0
_PATIENCE: Final = 10
"""Failures in a row after which a webhook is disabled. The real number is unknown."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt. `status` is 0 where nobody answered."""

    id: str
    type: str
    session_id: str
    url: str
    status: int


@dataclass(slots=True, eq=False)
class Webhook:
    """One address, and what it wants to hear of. `*` is every change of status, and nothing more granular."""

    url: str
    enabled_events: list[str]
    description: str | None
    created_at: str
    updated_at: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    secret: str = field(default_factory=lambda: f"whsec_{secrets.token_urlsafe(24)}", repr=False)
    disabled: bool = False
    consecutive_failures: int = 0

    def wants(self, kind: str) -> bool:
        """Is this type to be delivered?"""
        wild = "*" in self.enabled_events and kind == "session.status_updated"
        return not self.disabled and (wild or kind in self.enabled_events)

    def record(self, *, with_secret: bool = False) -> dict[str, Any]:
        """As the wire has it."""
        record = {
            "id": self.id,
            "url": self.url,
            "enabled_events": self.enabled_events,
            "description": self.description,
            "disabled": self.disabled,
            "consecutive_failures": self.consecutive_failures,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }
        return {**record, "secret": self.secret} if with_secret else record


class Webhooks:
    """All webhooks, and their deliveries."""

    def __init__(self, agenda: Agenda, rules: Rules) -> None:
        self.all: dict[str, Webhook] = {}
        self.deliveries: list[Delivery] = []
        self._agenda = agenda
        self._rules = rules
        self._tasks: set[asyncio.Task[int]] = set()
        self._client = httpx2.AsyncClient(timeout=_TIMEOUT, trust_env=False)

    async def aclose(self) -> None:
        """Give up what is being delivered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()

    def create(self, body: CreateWebhook) -> Webhook:
        """A new webhook; its secret is told this once."""
        now = self._agenda.stamp
        webhook = Webhook(body.url, body.enabled_events, body.description, now, now)
        self.all[webhook.id] = webhook
        return webhook

    def update(self, webhook: Webhook, body: UpdateWebhook) -> None:
        """Change what the body names."""
        for name in body.model_fields_set & {"url", "enabled_events", "description", "disabled"}:
            setattr(webhook, name, getattr(body, name))
        webhook.updated_at = self._agenda.stamp
        if not webhook.disabled:
            webhook.consecutive_failures = 0

    def rotate(self, webhook: Webhook) -> None:
        """Give it another secret."""
        webhook.secret = f"whsec_{secrets.token_urlsafe(24)}"

    def announce(self, session_id: str, status: str, previous: str) -> None:
        """Deliver a change of status to all who want to hear of it."""
        data = {"session_id": session_id, "status": status, "previous_status": previous}
        for kind in ("session.status_updated", f"session.{status}"):
            for webhook in [each for each in self.all.values() if kind in TYPES and each.wants(kind)]:
                envelope = self._envelope(kind, data)
                for _ in range(self._rules.webhook_copies):
                    self._start(webhook, envelope, 1)

    async def ping(self, webhook: Webhook) -> int:
        """Try it out: the status with which its address answers, 0 if it does not."""
        return await self._deliver(webhook, self._envelope("webhook.ping", {}), self._rules.webhook_attempts)

    def _envelope(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": kind, "id": str(uuid.uuid4()), "created_at": self._agenda.stamp, "data": data}

    def _start(self, webhook: Webhook, envelope: Mapping[str, Any], attempt: int) -> None:
        task = asyncio.create_task(self._deliver(webhook, envelope, attempt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, webhook: Webhook, envelope: Mapping[str, Any], attempt: int) -> int:
        body = orjson.dumps(envelope)
        timestamp = str(int(self._agenda.now))
        digest = hmac.new(webhook.secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "content-type": "application/json",
            "X-H-Webhook-Timestamp": timestamp,
            "X-H-Webhook-Signature": f"sha256={digest}",
        }
        try:
            status = (await self._client.post(webhook.url, content=body, headers=headers)).status_code
        except httpx2.HTTPError:
            status = 0
        session_id = envelope["data"].get("session_id", "")
        self.deliveries.append(Delivery(envelope["id"], envelope["type"], session_id, webhook.url, status))
        if 200 <= status < 300:
            webhook.consecutive_failures = 0
        else:
            self._failed(webhook, envelope, attempt)
        self._agenda.notify()
        return status

    def _failed(self, webhook: Webhook, envelope: Mapping[str, Any], attempt: int) -> None:
        webhook.consecutive_failures += 1
        webhook.disabled = webhook.disabled or webhook.consecutive_failures >= _PATIENCE
        if attempt < self._rules.webhook_attempts and not webhook.disabled:
            self._agenda.after(_BACKOFF * 2 ** (attempt - 1), partial(self._start, webhook, envelope, attempt + 1))
