"""Deliveries, as the vendor's own helper takes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from bridge.simulator.agenda import Agenda
from bridge.simulator.hcompany import Answer, Ask, Call, Rules, Scenario, Simulator
from bridge.simulator.site import Body, Site
from tests.simulator.hcompany.client import PATIENCE, Raw, raw, success

hai_agents = pytest.importorskip("hai_agents", reason="the vendor's client is not installed: pip install hai-agents")

pytestmark = pytest.mark.anyio

SCRIPT = Scenario((Ask((Call("stock_level"),)), Answer()))


@dataclass
class Receiver:
    """An application's endpoint for deliveries, which keeps what comes."""

    url: str = ""
    status: int = 200
    got: list[tuple[bytes, str, str]] = field(default_factory=list)
    agenda: Agenda = field(default_factory=Agenda)

    async def take(self, body: Body) -> Response:
        headers = body.request.headers
        self.got.append((body.data, headers["x-h-webhook-signature"], headers["x-h-webhook-timestamp"]))
        self.agenda.notify()
        return Response(status_code=self.status)

    async def come(self, count: int) -> None:
        """Wait until so many have come."""
        with anyio.fail_after(PATIENCE):
            await self.agenda.until(lambda: len(self.got) >= count)

    def events(self, secret: str | list[str]) -> list[Any]:
        """What came, as the vendor's helper reads it."""
        return [hai_agents.verify_webhook(*delivery, secret) for delivery in self.got]


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    it = Receiver()
    site = Site(it.agenda, host="127.0.0.1", port=0, error=lambda status: {})
    await site.open([site.route("POST", "/hook", "hook", it.take)])
    it.url = f"{site.url}/hook"
    try:
        yield it
    finally:
        await site.aclose()


async def subscribe(client: Raw, url: str, *events: str) -> dict[str, Any]:
    body = {"url": url, "enabled_events": list(events)} if events else {"url": url}
    answer = await client.http.post("webhooks", json=body)
    assert answer.status_code == 201
    created: dict[str, Any] = answer.json()
    return created


async def test_a_waiting_session_is_announced_and_the_vendors_helper_accepts_the_signature() -> None:
    async with receiver() as hook, Simulator(SCRIPT) as sim, raw(sim) as client:
        secret = (await subscribe(client, hook.url, "session.awaiting_tool_results"))["secret"]
        created = await client.create()
        await hook.come(1)
        (event,) = hook.events(secret)
        assert event.type == "session.awaiting_tool_results"
        assert event.data == {
            "session_id": created["id"],
            "status": "awaiting_tool_results",
            "previous_status": "running",
        }


async def test_the_firehose_has_every_status_and_no_granular_event() -> None:
    async with receiver() as hook, Simulator(SCRIPT) as sim, raw(sim) as client:
        secret = (await subscribe(client, hook.url))["secret"]
        await client.create()
        (call,) = await client.pending()
        await client.post("tool_results", success(call))
        await hook.come(5)
        events = hook.events(secret)
        assert {event.type for event in events} == {"session.status_updated"}
        # The order of deliveries is not promised.
        assert sorted(event.data["status"] for event in events) == [
            "awaiting_tool_results",
            "completed",
            "pending",
            "running",
            "running",
        ]


async def test_a_delivery_under_another_secret_or_of_another_time_is_not_accepted() -> None:
    async with receiver() as hook, Simulator(SCRIPT) as sim, raw(sim) as client:
        webhook = await subscribe(client, hook.url, "session.awaiting_tool_results")
        await client.create()
        await hook.come(1)
        with pytest.raises(hai_agents.WebhookVerificationError, match="mismatch"):
            hook.events("another")
        sim.agenda.advance(301)
        await client.create()
        await hook.come(2)
        with pytest.raises(hai_agents.WebhookVerificationError, match="older"):
            hook.events(webhook["secret"])


async def test_after_a_rotation_the_new_secret_signs() -> None:
    async with receiver() as hook, Simulator(SCRIPT) as sim, raw(sim) as client:
        old = await subscribe(client, hook.url, "session.awaiting_tool_results")
        new = (await client.http.post(f"webhooks/{old['id']}/rotate")).json()
        await client.create()
        await hook.come(1)
        assert len(hook.events([old["secret"], new["secret"]])) == 1
        with pytest.raises(hai_agents.WebhookVerificationError):
            hook.events(old["secret"])


async def test_the_same_delivery_can_come_twice() -> None:
    async with receiver() as hook, Simulator(SCRIPT, rules=Rules(webhook_copies=2)) as sim, raw(sim) as client:
        secret = (await subscribe(client, hook.url, "session.awaiting_tool_results"))["secret"]
        await client.create()
        await hook.come(2)
        assert len({event.id for event in hook.events(secret)}) == 1


async def test_a_delivery_that_fails_is_tried_again() -> None:
    async with receiver() as hook, Simulator(SCRIPT, rules=Rules(webhook_attempts=3)) as sim, raw(sim) as client:
        hook.status = 500
        webhook = await subscribe(client, hook.url, "session.awaiting_tool_results")
        await client.create()
        await sim.agenda.until(lambda: len(sim.webhooks.deliveries) == 1)
        sim.agenda.advance(1)
        await sim.agenda.until(lambda: len(sim.webhooks.deliveries) == 2)
        hook.status = 204
        sim.agenda.advance(2)
        await sim.agenda.until(lambda: len(sim.webhooks.deliveries) == 3)
        assert [delivery.status for delivery in sim.webhooks.deliveries] == [500, 500, 204]
        record = (await client.http.get(f"webhooks/{webhook['id']}")).json()
        assert (record["consecutive_failures"], record["disabled"], "secret" in record) == (0, False, False)


async def test_an_address_that_fails_again_and_again_is_disabled() -> None:
    async with Simulator(SCRIPT) as sim, raw(sim) as client:
        webhook = await subscribe(client, "http://127.0.0.1:9/hook", "session.awaiting_tool_results")
        for count in range(1, 11):
            await client.create()
            await sim.agenda.until(lambda count=count: len(sim.webhooks.deliveries) == count)
        assert {delivery.status for delivery in sim.webhooks.deliveries} == {0}
        assert (await client.http.get(f"webhooks/{webhook['id']}")).json()["disabled"] is True
        enabled = await client.http.patch(f"webhooks/{webhook['id']}", json={"disabled": False, "description": "mine"})
        assert (enabled.json()["consecutive_failures"], enabled.json()["description"]) == (0, "mine")


async def test_webhooks_can_be_listed_tried_and_deleted() -> None:
    async with receiver() as hook, Simulator(SCRIPT) as sim, raw(sim) as client:
        webhook = await subscribe(client, hook.url)
        path = f"webhooks/{webhook['id']}"
        assert [each["id"] for each in (await client.http.get("webhooks")).json()["items"]] == [webhook["id"]]
        assert "session.idle" in [each["type"] for each in (await client.http.get("webhooks/events")).json()]
        assert (await client.http.post(f"{path}/ping")).json() == {"response_status": 200}
        assert (await client.http.delete(path)).status_code == 204
        assert (await client.http.get(path)).status_code == 404
        assert (await client.http.post("webhooks", json={"url": "http://example.com/"})).status_code == 422


async def test_a_hanging_address_does_not_keep_the_provider_from_leaving() -> None:
    hung = anyio.Event()

    async def hang(body: Body) -> Response:
        await hung.wait()
        return Response()

    agenda = Agenda()
    site = Site(agenda, host="127.0.0.1", port=0, error=lambda status: {})
    await site.open([site.route("POST", "/", "hang", hang)])
    with anyio.fail_after(PATIENCE):
        async with Simulator(SCRIPT) as sim, raw(sim) as client:
            await subscribe(client, f"{site.url}/", "session.awaiting_tool_results")
            await client.create()
        hung.set()
        await site.aclose()
    assert sim.webhooks.deliveries == []


async def test_the_vendors_client_manages_webhooks() -> None:
    async with Simulator(SCRIPT) as sim:
        httpx = pytest.importorskip("httpx")
        async with httpx.AsyncClient(trust_env=False) as http:
            client = hai_agents.AsyncClient(base_url=sim.url, api_key=sim.api_key, httpx_client=http)
            with anyio.fail_after(PATIENCE):
                created = await client.webhooks.create_webhook(url="http://127.0.0.1:9/hook")
                assert created.secret
                assert (await client.webhooks.get_webhook(created.id)).enabled_events == ["*"]
                assert (await client.webhooks.list_webhooks()).total == 1
                rotated = await client.webhooks.rotate_webhook_secret(created.id)
                assert rotated.secret != created.secret
                assert (await client.webhooks.ping_webhook(created.id)).response_status == 504
                await client.webhooks.delete_webhook(created.id)
    assert sim.webhooks.all == {}
