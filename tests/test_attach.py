"""Attached sessions: begun by somebody else, served by us, at offline providers on real ports."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest

from bridge import Bridge, Toolset
from bridge.admin import app_of, listening
from bridge.attach import Attached, End, Ending, Provider, expressible, known_dialect
from bridge.attach.webhook import receiver
from bridge.config import read
from bridge.core.conversation import Step
from bridge.core.dialect import Agent
from bridge.core.events import SetupAccepted, ToolResult
from bridge.dialects.hcompany import HCOMPANY
from bridge.errors import AtCapacity, ConfigError, SessionClosed
from bridge.journal import CallId, Claimed, State
from bridge.journal.memory import MemoryJournal
from bridge.relay.server import Relay
from bridge.reload import Reloader
from bridge.runner.approvals import Resolution
from bridge.serve import access_of, serving
from bridge.simulator import openai_sessions
from bridge.simulator.hcompany import Answer, Ask, Call, Fate
from bridge.simulator.site import End as Cut
from bridge.simulator.site import Fault

from .attach_rig import PROVIDERS, Rig, hai, herm_rig

pytestmark = pytest.mark.anyio

WORDS = {"content": [{"type": "text", "text": "And now?"}]}
MESSAGE = {"type": "user.message", **WORDS}
NOBODY = "0b0c6a1e-0000-4000-8000-000000000000"
THRICE = (Ask((Call("book"),)), Answer(), Ask((Call("book"),)), Answer(), Ask((Call("book"),)), Answer())
TWICE = (Ask((Call("book"),)), Answer(), Ask((Call("book"),)), Answer())


class Desk:
    """A tool that counts what it did, and waits for the gate while that is shut."""

    def __init__(self) -> None:
        self.done = 0
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.tools = Toolset()

        @self.tools.tool(effect="write", timeout=30)
        async def book(no: str = "77") -> dict[str, str]:
            """Book a parcel."""
            self.begun.set()
            await self.gate.wait()
            self.done += 1
            return {"booked": no}


class Heard:
    """The ends of attachments, as they were told."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []
        self._news = asyncio.Event()

    def __call__(self, ending: Ending) -> None:
        self.endings.append(ending)
        self._news.set()

    async def of(self, session_id: str) -> Ending:
        """Wait for this one's."""
        async with asyncio.timeout(15):
            while not any(each.session == session_id for each in self.endings):
                self._news.clear()
                await self._news.wait()
        return next(each for each in self.endings if each.session == session_id)


@asynccontextmanager
async def attached(rig: Rig, desk: Desk, *, key: str = "", **limits: Any) -> AsyncIterator[tuple[Attached, Heard]]:
    heard = Heard()
    provider = Provider(dialect=rig.dialect, url=rig.url, api_key=key or rig.api_key)
    async with (
        asyncio.timeout(20),
        Bridge(desk.tools) as bridge,
        Attached(bridge, provider, told=heard, **limits) as served,
    ):
        yield served, heard


@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_session_that_runs_is_served_until_it_ends(name: str) -> None:
    desk = Desk()
    async with PROVIDERS[name]() as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin()
        assert served.add(session_id)
        assert not served.add(session_id)
        await rig.ask(session_id)
        (answer,) = await rig.answered(session_id)
        assert "booked" in str(answer)
        await rig.end(session_id)
        assert (await heard.of(session_id)).end is End.ENDED
        await served.idle()
    assert desk.done == 1
    assert served.endings == {End.ENDED: 1}


async def test_an_unknown_session_is_refused_at_once_and_touches_no_other() -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai() as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin(idle=None)
        served.add(session_id)
        await desk.begun.wait()
        for unknown in (NOBODY, "no-uuid"):
            served.add(unknown)
            assert (await heard.of(unknown)).end is End.REFUSED
        assert [each.provider_session_id for each in served.sessions] == [session_id]
        desk.gate.set()
        assert (await heard.of(session_id)).end is End.ENDED
    assert "no such session" in (await heard.of(NOBODY)).text


async def test_a_wrong_key_is_refused_and_says_so() -> None:
    async with hai() as rig, attached(rig, Desk(), key="wrong") as (served, heard):
        session_id = await rig.begin()
        served.add(session_id)
        ending = await heard.of(session_id)
    assert ending.end is End.REFUSED
    assert "the API key was not accepted" in ending.why
    assert "wrong" not in ending.why


async def test_a_provider_that_is_not_there_is_lost_at_once() -> None:
    heard = Heard()
    provider = Provider(dialect="hcompany", url="http://127.0.0.1:9", api_key="k")
    async with Bridge({}) as bridge, Attached(bridge, provider, told=heard) as served:
        served.add(NOBODY)
        assert (await heard.of(NOBODY)).end is End.LOST


@pytest.mark.slow
async def test_fifty_sessions_are_served_at_once() -> None:
    desk = Desk()
    async with hai() as rig, attached(rig, desk) as (served, _):
        for session_id in [await rig.begin(idle=None) for _ in range(50)]:
            served.add(session_id)
        await served.idle()
        ledgers = [session.ledger for session in rig.sim.sessions.values()]
    assert served.endings == {End.ENDED: 50}
    assert desk.done == 50
    assert {call.fate for ledger in ledgers for call in ledger.calls} == {Fate.SETTLED}
    assert [len(ledger.results) for ledger in ledgers] == [1] * 50


async def test_a_session_that_ends_while_its_tool_runs_has_ended() -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai() as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin()
        served.add(session_id)
        await desk.begun.wait()
        await rig.end(session_id)
        assert (await heard.of(session_id)).end is End.ENDED
        desk.gate.set()
    assert rig.sim.session.ledger.results == []


@pytest.mark.slow
async def test_a_provider_that_is_gone_for_a_while_is_waited_for() -> None:
    desk = Desk()
    async with hai() as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin(idle=None)
        rig.sim.faults.extend(Fault(operation=name, end=Cut.CUT) for name in ("changes", "status", "tool_results"))
        served.add(session_id)
        assert (await heard.of(session_id)).end is End.ENDED
    assert desk.done == 1


async def test_a_fault_of_ours_costs_one_session_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        line = None

        def begin(self, agent: Agent, **_: Any) -> NoReturn:
            raise ZeroDivisionError

    heard = Heard()
    async with Attached(Broken(), Provider(dialect="herm", api_key="k"), told=heard) as served:
        served.add("s")
        assert await heard.of("s") == Ending("s", End.LOST, "a fault of its own: ZeroDivisionError")
    assert "session s: a fault of its own" in caplog.text


async def test_a_provider_that_is_gone_for_too_long_is_lost() -> None:
    async with hai() as rig, attached(rig, Desk(), give_up=0.05) as (served, heard):
        session_id = await rig.begin()
        rig.sim.faults.extend(Fault(operation=name, end=Cut.CUT, times=99) for name in ("changes", "status"))
        served.add(session_id)
        ending = await heard.of(session_id)
    assert ending.end is End.LOST
    assert ending.why


# ------------------------------------------------------------------------------------------------ after a death


@asynccontextmanager
async def by_attaching(bridge: Bridge, provider: Provider, session_id: str) -> AsyncIterator[None]:
    async with Attached(bridge, provider) as served:
        served.add(session_id)
        yield


@asynccontextmanager
async def embedded(bridge: Bridge, provider: Provider, session_id: str) -> AsyncIterator[None]:
    async with (
        bridge.session(provider.agent(session_id), api_key=provider.key) as session,
        asyncio.TaskGroup() as group,
    ):
        running = group.create_task(session.run())
        yield
        running.cancel()


@pytest.mark.parametrize("serving", [by_attaching, embedded])
@pytest.mark.parametrize("kept", [True, False])
async def test_an_outcome_that_an_earlier_process_has_left_is_told_once(kept: bool, serving: Any) -> None:
    journal = Settling()
    async with asyncio.timeout(20), herm_rig() as rig, Bridge(Desk().tools, journal=journal) as bridge:
        session_id = await rig.begin()
        await rig.ask(session_id)
        ledger = rig.sim.sessions[session_id].ledger
        call = CallId(f"herm:{session_id}", 0, ledger.calls[0].id)
        begun = {"type": "user.custom_tool_result", "tool_use_id": call.call_id, "status": "running", "is_error": False}
        await rig.client.post(f"/v1/sessions/{session_id}/events", json={"events": [{**begun, **WORDS}]})
        await journal.claim(call, "book", "{}", "the-dead/1/x")
        running = CallId(call.session, 0, "another")  # which its process still works on
        await journal.claim(running, "book", "{}", "the-living/1/x")
        await journal.conclude(call, ToolResult(call.call_id, '"booked"'), "ok")
        await journal.settle([call], State.ORPHANED)
        journal.settled.clear()
        if not kept:
            (claimed,) = await journal.claims(session=call.session, states=(State.ORPHANED,))
            journal.claims = partial(_claims, replace(claimed, result=None))  # type: ignore[method-assign]
        provider = Provider(dialect="herm", url=rig.url, api_key=rig.api_key)
        async with serving(bridge, provider, session_id):
            await journal.settled.wait()
            await rig.client.post(f"/v1/sessions/{session_id}/events", json={"events": [MESSAGE]})
            await rig.sim.agenda.until(lambda: len(ledger.turns) == 3)
    told = [result for result in ledger.results if result.status != "running"]
    assert [("booked" in result.text, result.status) for result in told] == [(kept, "completed" if kept else "failed")]
    if kept:
        assert {each.call for each in await journal.claims(states=(State.SENT,))} == {call}
        assert [each.call for each in await journal.claims(states=(State.STARTED,))] == [running]


class Settling(MemoryJournal):
    """It tells when something has been settled."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = asyncio.Event()

    async def settle(self, calls: Sequence[CallId], state: Any) -> frozenset[CallId]:
        try:
            return await super().settle(calls, state)
        finally:
            self.settled.set()


async def _claims(claimed: Claimed, **_: Any) -> tuple[Claimed, ...]:
    return (claimed,)


# -------------------------------------------------------------------------------------------------- limits, and the end


async def test_a_session_beyond_the_limit_waits_for_a_place(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai() as rig, attached(rig, desk, max_sessions=1) as (served, heard):
        first, second, third = [await rig.begin(idle=None) for _ in range(3)]
        for session_id in (first, second, third):
            served.add(session_id)
        await desk.begun.wait()
        assert served.open == 1
        assert [each.link for each in served.sessions] == ["up", "waiting", "waiting"]
        assert served.sessions[0].owed == 1
        served.remove(third, "it is not wanted")
        assert await heard.of(third) == Ending(third, End.LEFT, "it is not wanted")
        desk.gate.set()
        await heard.of(second)
        assert [each.session for each in heard.endings] == [third, first, second]
    assert "waits: 1 are served, which is max_sessions" in caplog.text


async def test_no_more_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.attach.attached._MAX_WAITING", 0)
    async with hai() as rig, attached(rig, Desk(), max_sessions=1) as (served, _):
        served.add(await rig.begin())
        with pytest.raises(AtCapacity, match="max_sessions"):
            served.add(NOBODY)
        with pytest.raises(ConfigError, match="id"):
            served.add("")


async def test_whoever_is_stopped_answers_what_is_owed_and_leaves() -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai(TWICE) as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin()
        served.add(session_id)
        await desk.begun.wait()
        stopping = asyncio.create_task(served.drain(math.inf))
        await asyncio.sleep(0)
        with pytest.raises(SessionClosed, match="draining"):
            served.add(NOBODY)
        assert heard.endings == []
        desk.gate.set()
        assert await stopping == 0
        assert heard.endings == [Ending(session_id, End.LEFT, "we were stopped")]
        assert [result.value for result in rig.sim.ledger.results] == [{"booked": "77"}]
        assert not rig.sim.session.is_over


@pytest.mark.slow
async def test_whoever_is_stopped_does_not_wait_for_ever() -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai() as rig, attached(rig, desk, owed_timeout=0.02) as (served, heard):
        session_id = await rig.begin()
        served.add(session_id)
        await desk.begun.wait()
        assert await served.drain(math.inf) == 1
        assert (await heard.of(session_id)).end is End.OWING
        desk.gate.set()
        assert rig.sim.ledger.results == []


async def test_a_stop_at_once_leaves_what_is_owed() -> None:
    desk = Desk()
    desk.gate.clear()
    async with hai() as rig, attached(rig, desk) as (served, heard):
        session_id = await rig.begin()
        served.add(session_id)
        await desk.begun.wait()
        assert await served.drain(0) == 1
        assert served.sessions == []
        assert (await heard.of(session_id)).end is End.OWING
        desk.gate.set()


# -------------------------------------------------------------------------------------------------------- notifications


def notification(secret: str, at: float, body: bytes) -> dict[str, str]:
    """The headers of one that is signed with this secret at this time."""
    digest = hmac.new(secret.encode(), f"{int(at)}.".encode() + body, hashlib.sha256).hexdigest()
    return {"x-h-webhook-timestamp": str(int(at)), "x-h-webhook-signature": f"sha256={digest}"}


@asynccontextmanager
async def notified(named: Callable[[str], object]) -> AsyncIterator[Callable[..., Any]]:
    """Posts bodies to a receiver with the secrets `old` and `new`; the statuses."""
    app = receiver(("old", "new"), named, clock=lambda: 1000.0)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as client:

        async def post(body: bytes, secret: str = "new", at: float = 1000.0, **headers: str) -> int:
            signing = notification(secret, at, body)
            answer = await client.post("/any/path", content=body, headers={**signing, **headers})
            return int(answer.status_code)

        yield post


WAITS = (
    b'{"type":"session.awaiting_tool_results","id":"1","created_at":"2026-11-02T09:10:11Z",'
    b'"data":{"session_id":"s","status":"awaiting_tool_results"}}'
)


async def test_only_a_notification_with_the_right_signature_names_a_session() -> None:
    named: list[str] = []
    async with notified(named.append) as post:
        assert await post(WAITS, "wrong") == 401
        assert await post(WAITS, at=600.0) == 401
        assert await post(WAITS, **{"x-h-webhook-timestamp": "9" * 5000}) == 401
        assert await post(WAITS, **{"x-h-webhook-signature": ""}) == 401
        assert await post(b"x" * 70_000) == 413
        assert named == []
        assert await post(WAITS, "old") == 204
        assert await post(WAITS, at=1299.0) == 204
        assert named == ["s", "s"]


async def test_a_notification_that_names_no_session_to_serve_changes_nothing() -> None:
    named: list[str] = []
    async with notified(named.append) as post:
        assert await post(b'{"type":"webhook.ping","id":"1","data":{}}') == 204
        assert await post(WAITS.replace(b'"status":"awaiting_tool_results"', b'"status":"completed"')) == 204
        assert await post(WAITS.replace(b'"session_id":"s"', b'"session_id":""')) == 204
        assert await post(b"[]") == 400
        assert await post(b"{") == 400
    assert named == []


@pytest.mark.parametrize("error", [AtCapacity("full"), SessionClosed("draining")])
async def test_a_notification_that_comes_at_the_wrong_moment_is_to_come_again(error: Exception) -> None:
    def full(session_id: str) -> None:
        raise error

    async with notified(full) as post:
        assert await post(WAITS) == 503


# ------------------------------------------------------------------------------------------------------- what they take


def test_a_dialect_without_sessions_is_refused_with_the_nearest() -> None:
    assert known_dialect("openai_sessions") == "openai-sessions"
    with pytest.raises(ConfigError, match="did you mean hcompany"):
        known_dialect("hcompny")
    with pytest.raises(ConfigError, match="there are openai-sessions, hcompany, herm"):
        known_dialect("assemblyai")


def test_a_tool_that_a_provider_cannot_do_justice_to_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools = Desk().tools

    @tools.tool(effect="terminal")
    async def hang_up() -> str:
        """Hang up."""
        return "bye"

    assert list(expressible(HCOMPANY, tools)) == ["book"]
    assert "hang_up" in caplog.text


def test_without_a_key_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERM_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="HERM_API_KEY"):
        _ = Provider(dialect="herm").key
    monkeypatch.setenv("HERM_API_KEY", "h")
    assert Provider(dialect="herm").key == "h"
    assert "h-1" not in repr(Provider(dialect="herm", api_key="h-1", url="http://h-1"))


# ---------------------------------------------------------------------------------------------------------- the sidecar

TOOLS = '''
from bridge import Toolset

tools = Toolset()

@tools.tool
async def book(no: str = "77") -> str:
    """Book a parcel."""
    return "booked"
'''


HOOK = "webhook_port = 0\nwebhook_secret_env = 'RIG_SECRET'\n"


def config(folder: Path, rig: Rig, *sessions: str, more: str = "") -> Path:
    (folder / "desk.py").write_text(TOOLS)
    path = folder / "bridge.toml"
    path.write_text(
        f"[listen]\nport = 0\n[tools]\npython = ['desk.py']\n[session]\ndrain_seconds = 5\n[[attach]]\n"
        f"dialect = '{rig.dialect}'\nurl = '{rig.url}'\napi_key_env = 'RIG_KEY'\nsessions = {list(sessions)}\n{more}"
    )
    return path


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_KEY", "hk-offline")
    monkeypatch.setenv("RIG_SECRET", "s3cret")


def test_the_example_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAI_WEBHOOK_SECRET", "s3cret")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    sidecar = read(Path(__file__).parents[1] / "examples" / "attach.toml")
    first, second = sidecar.attach
    assert first.webhook is not None
    assert (first.provider.dialect, first.webhook.port, first.webhook.secrets) == ("hcompany", 8788, ("s3cret",))
    assert (second.provider.dialect, second.provider.api_key) == ("openai-sessions", "k")
    assert "s3cret" not in sidecar.settings.text()


def named(relay: Relay) -> set[str]:
    return {each.provider_session_id for each in relay.sessions}


@pytest.mark.slow
@pytest.mark.usefixtures("keyed")
async def test_a_sidecar_serves_shows_counts_and_leaves_what_it_is_attached_to(tmp_path: Path) -> None:
    async with asyncio.timeout(20), hai(TWICE) as rig:
        session_id = await rig.begin()
        path = config(tmp_path, rig, session_id)
        async with serving(read(path)) as (relay, metrics, *_):
            await rig.sim.reached("idle")
            (shown,) = relay.sessions
            assert (shown.provider_session_id, shown.dialect, shown.route) == (session_id, "hcompany", "attach")
            text = metrics.render().decode()
            assert 'bridge_attached_sessions_open{dialect="hcompany"} 1.0' in text
            assert 'bridge_tool_calls_total{outcome="ok",tool="book"} 1.0' in text
            assert await relay.drain(5) == 0
            assert 'bridge_attaches_total{dialect="hcompany",outcome="left"} 1.0' in metrics.render().decode()
        assert not rig.sim.session.is_over


@pytest.mark.slow
@pytest.mark.usefixtures("keyed")
async def test_a_reload_adds_and_takes_away_sessions_and_whole_providers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(20), hai(TWICE) as rig:
        first, second = await rig.begin(), await rig.begin()
        path = config(tmp_path, rig, first)
        sidecar = read(path)
        reload = Reloader(path, {}, sidecar)
        async with serving(sidecar) as (relay, metrics, *_):
            assert named(relay) == {first}
            config(tmp_path, rig, second)
            await reload(relay)
            assert second in named(relay)  # and the first is being left
            config(tmp_path, rig, second, "", "no-uuid", more="max_sessions = 7\n")
            await reload(relay)
            assert second in named(relay)
            assert "the id of a session is missing" in caplog.text
            config(tmp_path, rig, second, more=f"webhook_host = '192.0.2.1'\n{HOOK}")
            await reload(relay)
            assert named(relay) == {second}
            assert "the webhook port cannot listen on 192.0.2.1" in caplog.text
            path.write_text("[listen]\nport = 0\n")
            await reload(relay)
            assert named(relay) == set()
            assert 'bridge_attaches_total{dialect="hcompany",outcome="left"} 3.0' in metrics.render().decode()


class Accepted:
    """An observer that waits until a provider has agreed to other tools."""

    def __init__(self) -> None:
        self._many = 0
        self._news = asyncio.Event()

    def __call__(self, session: object, step: Step) -> None:
        self._many += sum(isinstance(event, SetupAccepted) for event in step.events)
        self._news.set()

    async def change(self, folder: Path, tools: str, reload: Reloader, relay: Relay) -> None:
        """Have the sidecar read these tools, and wait until its session has them."""
        before = self._many
        (folder / "desk.py").write_text(tools)
        await reload(relay)
        while self._many == before:
            self._news.clear()
            await self._news.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("keyed")
@pytest.mark.parametrize("name", PROVIDERS)
async def test_a_reload_changes_the_tools_of_the_sessions_that_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with asyncio.timeout(20), hai(THRICE) if name == "hcompany" else PROVIDERS[name]() as rig:
        monkeypatch.setenv("RIG_KEY", rig.api_key)
        path = config(tmp_path, rig)
        sidecar = read(path)
        reload, accepted = Reloader(path, {}, sidecar), Accepted()
        async with serving(sidecar) as (relay, *_):
            relay.observe(accepted)
            session_id = await rig.begin()
            config(tmp_path, rig, session_id)
            await reload(relay)
            await rig.ask(session_id)
            assert "booked" in str((await rig.answered(session_id))[-1])

            changed = TOOLS.replace('"booked"', '"changed"').replace("Book a parcel", "Change a parcel")
            await accepted.change(tmp_path, changed, reload, relay)
            await rig.go_on(session_id)
            assert "changed" in str((await rig.answered(session_id))[-1])
            if isinstance(rig.sim, openai_sessions.Simulator):  # the only one that can be told
                (tool,) = (await rig.client.get(f"/v1/agents/sessions/{session_id}")).json()["agent"]["tools"]
                assert tool["description"] == "Change a parcel."

            await accepted.change(tmp_path, TOOLS.replace("def book", "def send"), reload, relay)
            await rig.go_on(session_id)
            answer = str((await rig.answered(session_id))[-1])
            told = isinstance(rig.sim, openai_sessions.Simulator)
            assert ("booked" if told else "book is not available now") in answer


@pytest.mark.slow
@pytest.mark.parametrize("decision", ["approve", "deny"])
async def test_what_the_provider_asks_about_waits_for_a_decision_over_the_admin_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    monkeypatch.setenv("RIG_ADMIN", "t0ken")
    async with asyncio.timeout(20), herm_rig() as rig:
        monkeypatch.setenv("RIG_KEY", rig.api_key)
        session_id = await rig.begin("always_ask")
        path = config(tmp_path, rig, session_id, more="[admin]\napprovals = true\ntoken_env = 'RIG_ADMIN'\n")
        sidecar = read(path)
        async with serving(sidecar) as (relay, metrics, desk), AsyncExitStack() as stack:
            app = app_of(desk, metrics, access_of(sidecar.settings.admin))
            port = await stack.enter_async_context(listening(app, "127.0.0.1", 0))
            headers = {"authorization": "Bearer t0ken"}
            base = f"http://127.0.0.1:{port}/v1/approvals"
            client = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, trust_env=False))
            asked = asyncio.Event()
            loop = asyncio.get_running_loop()
            stack.enter_context(relay.approvals.attached(lambda _: loop.call_soon_threadsafe(asked.set)))
            await rig.ask(session_id)
            await asked.wait()
            (waiting,) = (await client.get(base)).json()["approvals"]
            assert (waiting["tool"], waiting["session"]) == ("book", f"herm:{session_id}")
            taken = await client.post(f"{base}/{waiting['id']}", json={"decision": decision, "by": "Ann"})
            assert taken.status_code == 200
            answers = await rig.answered(session_id)
            assert (await client.get(base)).json()["approvals"] == []
    assert ("booked" in str(answers)) is (decision == "approve")


@pytest.mark.slow
async def test_what_the_provider_asks_about_is_denied_where_nobody_could_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(20), herm_rig() as rig:
        monkeypatch.setenv("RIG_KEY", rig.api_key)
        session_id = await rig.begin("always_ask")
        async with serving(read(config(tmp_path, rig, session_id))) as (relay, *_):
            await rig.ask(session_id)
            answers = await rig.answered(session_id)
            assert relay.approvals.resolved == {Resolution.UNATTENDED: 1}
    assert answers == [""]


@pytest.mark.slow
@pytest.mark.usefixtures("keyed")
async def test_a_notification_names_a_session_to_the_sidecar(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.attach")
    async with asyncio.timeout(20), hai() as rig:
        path = config(tmp_path, rig, more=HOOK)
        async with serving(read(path)) as (relay, *_):
            port = int(caplog.text.split("notifications are taken at http://127.0.0.1:")[1].split()[0])
            asked = {"url": f"http://127.0.0.1:{port}/", "enabled_events": ["session.awaiting_tool_results"]}
            await rig.client.post("/api/v2/webhooks", json=asked)
            await rig.begin()
            await rig.sim.agenda.until(lambda: bool(rig.sim.webhooks.deliveries))
            assert [each.status for each in rig.sim.webhooks.deliveries] == [401]
            assert named(relay) == set()
            (webhook,) = rig.sim.webhooks.all.values()
            webhook.secret = "s3cret"
            session_id = await rig.begin()
            assert "booked" in await rig.answered(session_id)
            assert named(relay) == {session_id}


@pytest.mark.slow
@pytest.mark.usefixtures("keyed")
async def test_of_several_workers_one_attaches(tmp_path: Path) -> None:
    async with asyncio.timeout(20), hai(TWICE) as rig:
        path = config(tmp_path, rig, await rig.begin())
        sidecar = read(path)
        async with serving(sidecar, worker=2) as (relay, *_):
            await Reloader(path, {}, sidecar)(relay)
            assert relay.sessions == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("dialect = 'hcompny'\n", "did you mean hcompany?"),
        ("dialect = 'herm'\nwebhook_port = 1\n", "herm sends no notifications"),
        ("dialect = 'hcompany'\nwebhook_port = 1\n", "webhook_secret_env"),
        ("dialect = 'hcompany'\nurl = 'ws://x'\n", "must be an HTTP address"),
        ("dialect = 'hcompany'\nurl = 'https://me:secret@x'\n", "must not hold credentials"),
        ("dialect = 'hcompany'\nsession = 'x'\n", "did you mean attach.sessions?"),
    ],
)
def test_what_cannot_be_attached_to_is_said_at_the_start(tmp_path: Path, lines: str, words: str) -> None:
    path = tmp_path / "bridge.toml"
    path.write_text(f"[[attach]]\n{lines}")
    with pytest.raises(ConfigError) as refused:
        read(path)
    assert words in str(refused.value)
    assert "secret@" not in str(refused.value)
