"""Sessions over HTTP from end to end: `connect`, tools, the transport, and the offline providers."""

from __future__ import annotations

import runpy
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import anyio
import httpx2
import pytest

from bridge import (
    Agent,
    AgentPaused,
    AgentResumed,
    ApprovalRequest,
    ApprovalWanted,
    AuthenticationFailed,
    Bridge,
    ConfigError,
    HCompany,
    Herm,
    OpenAISessions,
    ProviderError,
    ProviderFailed,
    ProviderMessage,
    ReplyDone,
    ReplyStarted,
    Session,
    SessionOptions,
    Step,
    ToolParked,
    Toolset,
    ToolSettled,
    Transcript,
    TransportError,
    connect,
)
from bridge.config import read
from bridge.core.events import CallConcluded, ToolResult
from bridge.dialects.herm import Payloads
from bridge.journal import CallId, State
from bridge.journal.memory import MemoryJournal
from bridge.simulator import hcompany, herm, openai_sessions
from bridge.simulator.site import Fault
from bridge.tools.tool import Tool
from bridge.transports.patience import Patience

pytestmark = pytest.mark.anyio

OPTIONS = SessionOptions(
    end_timeout=0.2, patience=Patience(first_pause=0.01, longest_pause=0.05, give_up=3.0, confirm_after=0.5)
)
PATIENT = SessionOptions(end_timeout=0.2, patience=Patience(first_pause=0.01, give_up=600.0))
LIMIT = 15.0


class Desk:
    """Tools that tell what they did, and wait if they are to."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = anyio.Event()
        self.begun = anyio.Event()
        self.tools = Toolset()

        @self.tools.tool(effect="write")
        async def book(no: str = "77") -> dict[str, str]:
            """Book a parcel."""
            self.done.append(no)
            return {"booked": no}

        @self.tools.tool(effect="read")
        async def wait() -> str:
            """Wait for the gate."""
            self.begun.set()
            await self.gate.wait()
            return "open"


def only(tools: Toolset, *names: str) -> dict[str, Tool]:
    return {name: tools[name] for name in names}


# ------------------------------------------------------------------------------------------------ the three providers


class Offline(Protocol):
    """A provider that asks for `book` once."""

    key: str

    async def creating(self, tools: Toolset) -> Agent:
        """The settings that create a session, in which the user has said something or will."""
        ...

    def attaching(self) -> Agent:
        """The settings that attach to the newest session."""
        ...

    def refuse_results(self) -> None:
        """For so long that nobody lives to see the end of it."""
        ...

    def take_results(self) -> None: ...

    async def refused(self) -> None:
        """Wait until a result has been refused."""
        ...

    def revoke_key(self, *, silently: bool = False) -> None:
        """Take it no more, and have it asked for, unless silently."""
        ...

    async def told(self) -> list[Any]:
        """Wait until the call is answered; all that it was answered with."""
        ...

    def heard(self) -> str:
        """What the agent of the newest session knows from the start."""
        ...


class OfflineOpenAI:
    def __init__(self, sim: openai_sessions.Simulator) -> None:
        self.sim, self.key = sim, "k"

    async def creating(self, tools: Toolset) -> Agent:
        return OpenAISessions(model="m", input="Book it.", url=self.sim.url)

    def attaching(self) -> Agent:
        return OpenAISessions(session_id=self.sim.ledger.session_id, url=self.sim.url)

    def refuse_results(self) -> None:
        self.sim.fail(openai_sessions.Fault(times=500))

    def take_results(self) -> None:
        self.sim._faults.clear()

    async def refused(self) -> None:
        await self.sim.until(lambda ledger: any(post.status == 503 for post in ledger.posts))

    def revoke_key(self, *, silently: bool = False) -> None:
        self.sim._api_key = "another"
        if not silently:
            self.sim.cut()

    async def told(self) -> list[Any]:
        await self.sim.turn_over()
        return [answer.output for answer in self.sim.ledger.answers]

    def heard(self) -> str:
        (session,) = self.sim._sessions.values()
        return str(session.settings.instructions)


class OfflineHCompany:
    def __init__(self, sim: hcompany.Simulator) -> None:
        self.sim, self.key = sim, sim.api_key

    async def creating(self, tools: Toolset) -> Agent:
        return HCompany(agent="h/clerk", messages="Book it.", url=self.sim.url)

    def attaching(self) -> Agent:
        return HCompany(session_id=self.sim.session.id, url=self.sim.url)

    def refuse_results(self) -> None:
        self.sim.faults.append(_refusing("tool_results"))

    def take_results(self) -> None:
        self.sim.faults.clear()

    async def refused(self) -> None:
        await _refused(self.sim)

    def revoke_key(self, *, silently: bool = False) -> None:
        self.sim.api_key = "another"
        if not silently:
            self.sim.session.pause()  # the poll that is held is answered

    async def told(self) -> list[Any]:
        await self.sim.reached("completed")
        return [result.value for result in self.sim.ledger.results]

    def heard(self) -> str:
        return str(self.sim.session.request.messages)


class OfflineHerm:
    def __init__(self, sim: herm.Simulator) -> None:
        self.sim, self.key = sim, sim.api_key

    async def creating(self, tools: Toolset) -> Agent:
        return await declared(self.sim, tools)

    def attaching(self) -> Agent:
        return Herm(session_id=self.sim.session.id, url=self.sim.url)

    def refuse_results(self) -> None:
        self.sim.faults.append(_refusing("send"))

    def take_results(self) -> None:
        self.sim.faults.clear()

    async def refused(self) -> None:
        await _refused(self.sim)

    def revoke_key(self, *, silently: bool = False) -> None:
        self.sim.api_key = "another"
        if not silently:
            self.sim.cut_streams()

    async def told(self) -> list[Any]:
        await self.sim.agenda.until(lambda: bool(self.sim.ledger.turns) and bool(self.sim.ledger.turns[0].ended))
        return [result.text for result in self.sim.ledger.results]

    def heard(self) -> str:
        raise NotImplementedError("there is nothing that it could be told in")


def _refusing(operation: str) -> Fault:
    return Fault(operation=operation, end=hcompany.End.REFUSED, times=500)


async def _refused(sim: hcompany.Simulator | herm.Simulator) -> None:
    await sim.agenda.until(lambda: any(each.status == 503 for each in sim.exchanges))


async def declared(sim: herm.Simulator, tools: Toolset, *, policy: str = "", names: Payloads | None = None) -> Herm:
    """The settings of a session under a new agent that has declared these tools."""
    names = names or Payloads()
    body = dict(Herm.declaration({"name": "clerk"}, tools.specs(), names))
    if policy:
        body["tools"] = [{**each, "permissionPolicy": {"type": policy}} for each in body["tools"]]
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{sim.url}/v1/agents", json=body, headers={"x-api-key": sim.api_key})
    return Herm(agent_id=answer.json()["id"], names=names, url=sim.url)


@asynccontextmanager
async def offline_openai() -> AsyncIterator[Offline]:
    book = openai_sessions.Ask((openai_sessions.Call("book", {"no": "1"}, "a"),))
    scenario = openai_sessions.Scenario(((book, openai_sessions.Tell()),))
    async with openai_sessions.Simulator(scenario, api_key="k") as sim:
        yield OfflineOpenAI(sim)


@asynccontextmanager
async def offline_hcompany() -> AsyncIterator[Offline]:
    book = hcompany.Ask((hcompany.Call("book", {"no": "1"}, "a"),))
    async with hcompany.Simulator(hcompany.Scenario((book, hcompany.Answer("Done.")))) as sim:
        yield OfflineHCompany(sim)


@asynccontextmanager
async def offline_herm(*steps: herm.Step, **rules: Any) -> AsyncIterator[OfflineHerm]:
    book = herm.Ask((herm.Call("book", {"no": "1"}, "a"),))
    scenario = herm.Scenario(steps or (book, herm.Answer("Done.")))
    async with herm.Simulator(scenario, rules=herm.Rules(**rules)) as sim:
        yield OfflineHerm(sim)


PROVIDERS: dict[str, Callable[[], Any]] = {
    "openai": offline_openai,
    "hcompany": offline_hcompany,
    "herm": offline_herm,
}
ANSWERS = {"openai": '{"booked":"1"}', "hcompany": {"booked": "1"}, "herm": '{"booked":"1"}'}

every_provider = pytest.mark.parametrize("name", PROVIDERS)


def say_if_nothing_was_said(session: Session, agent: Agent) -> None:
    if isinstance(agent, Herm):
        session.say("Book it.")


async def until(session: Session, wanted: type, **fields: Any) -> Any:
    """The next event of this kind, with these fields."""
    async for event in session:
        if isinstance(event, wanted) and all(getattr(event, key) == value for key, value in fields.items()):
            return event
    raise AssertionError(f"the session ended before {wanted.__name__}")


# ------------------------------------------------------------------------------------------------ connect


@every_provider
async def test_a_session_that_is_created_runs_the_tools_and_answers_each_call_once(name: str) -> None:
    desk = Desk()
    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:
            agent = await offline.creating(desk.tools)
            async with connect(agent, tools=desk.tools, api_key=offline.key, options=OPTIONS) as session:
                say_if_nothing_was_said(session, agent)
                settled = await until(session, ToolSettled)
                assert (settled.how, settled.outcome) == ("sent", "ok")
                assert await offline.told() == [ANSWERS[name]]
                assert desk.done == ["1"]
                assert session.id.endswith(f":{session.provider_session_id}")


@every_provider
async def test_leaving_ends_nothing_and_whoever_attaches_serves_what_waits(name: str) -> None:
    first, second = Desk(), Desk()
    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:
            agent = await offline.creating(first.tools)
            created = only(first.tools, "wait")
            async with connect(agent, tools=created, api_key=offline.key, options=OPTIONS) as session:
                pass
            assert first.done == []
            attaching = offline.attaching()
            async with connect(attaching, tools=second.tools, api_key=offline.key, options=OPTIONS) as attached:
                say_if_nothing_was_said(attached, attaching)
                assert attached.provider_session_id == session.provider_session_id
                assert len(await offline.told()) == 1
                assert second.done == ["1"]


@every_provider
async def test_a_wrong_key_is_told_as_such(name: str) -> None:
    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:
            agent = await offline.creating(Toolset())
            with pytest.raises(AuthenticationFailed):
                async with connect(agent, api_key="wrong", options=OPTIONS):
                    pass


@every_provider
async def test_a_key_that_is_revoked_ends_the_session_at_once_and_its_variable_is_named(name: str) -> None:
    async def revoked(offline: Offline, agent: Agent) -> None:
        async with connect(agent, api_key=offline.key, options=PATIENT) as session:
            offline.revoke_key()
            await session.run()

    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:
            agent = await offline.creating(Toolset())
            with pytest.raises(AuthenticationFailed, match=f"not accepted.*{agent.api_key_env}"):
                await revoked(offline, agent)


@every_provider
async def test_a_key_that_is_revoked_while_a_tool_runs_ends_the_session_at_once(name: str) -> None:
    tools = Toolset()

    async def revoked(offline: Offline, agent: Agent) -> None:
        async with connect(agent, tools=tools, api_key=offline.key, options=PATIENT) as session:
            say_if_nothing_was_said(session, agent)
            await session.run()

    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:

            @tools.tool(effect="read")
            async def book(no: str) -> str:
                """Book a parcel."""
                offline.revoke_key(silently=True)
                return no

            agent = await offline.creating(tools)
            with pytest.raises(AuthenticationFailed):
                await revoked(offline, agent)


@every_provider
async def test_a_tool_that_would_have_to_wait_for_the_end_of_its_reply_is_refused_by_name(name: str) -> None:
    tools = Toolset()

    @tools.tool(effect="terminal")
    async def hang_up() -> None:
        """Hang up."""

    async with PROVIDERS[name]() as offline:
        agent = await offline.creating(Toolset())
        with pytest.raises(
            ConfigError, match=f"tool hang_up: cannot start after its reply, since {agent.dialect.name}"
        ):
            async with connect(agent, tools=tools, api_key=offline.key):
                pass


async def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bridge.transports.http", None)
    with pytest.raises(ConfigError, match=r"hcompany is served over HTTP: pip install 'voice-tool-bridge\[http\]'"):
        async with connect(HCompany(session_id="any", url="http://127.0.0.1:9"), api_key="k"):
            pass


async def test_a_provider_over_http_cannot_stand_behind_the_sidecar() -> None:
    with pytest.raises(ConfigError, match="herm is served over HTTP, and applications connect by WebSocket"):
        read(None, {"upstream": {"dialect": "herm"}})


# ------------------------------------------------------------------------------------------------ a second life


@every_provider
async def test_a_result_that_could_not_be_told_is_told_by_the_next_process_and_nothing_runs_twice(name: str) -> None:
    desk, journal = Desk(), MemoryJournal()
    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline:
            agent = await offline.creating(desk.tools)
            async with anyio.create_task_group() as life:
                life.start_soon(_serve_for_ever, agent, desk, journal, offline.key, offline.refuse_results)
                await offline.refused()
                life.cancel_scope.cancel()
            offline.take_results()
            (owed,) = await journal.claims()
            assert (owed.state, desk.done) == (State.OWED, ["1"])
            async with (
                Bridge(desk.tools, journal=journal, owner="second") as bridge,
                bridge.session(offline.attaching(), api_key=offline.key, options=OPTIONS),
            ):
                assert await offline.told() == [ANSWERS[name]]
            assert desk.done == ["1"]
            assert [each.state for each in await journal.claims(states=tuple(State))] == [State.SENT]


@pytest.mark.parametrize("name", ["openai", "hcompany"])
async def test_what_an_earlier_session_has_left_is_told_to_a_new_one(name: str) -> None:
    desk, journal = Desk(), MemoryJournal()
    left = CallId("openai_sessions:sess_before", 0, "turn_1/c1")
    await journal.claim(left, "book", "{}", "the-dead/1/x")
    await journal.conclude(left, ToolResult(left.call_id, '"booked 55"'), "ok")
    await journal.settle([left], State.ORPHANED)
    with anyio.fail_after(LIMIT):
        async with PROVIDERS[name]() as offline, Bridge(desk.tools, journal=journal) as bridge:
            agent = await offline.creating(desk.tools)
            async with bridge.session(agent, api_key=offline.key, options=OPTIONS, earlier=left.session):
                assert await offline.told() == [ANSWERS[name]]
            assert "booked 55" in offline.heard()
    assert left in {each.call for each in await journal.claims(states=(State.SENT,))}


async def test_an_agent_of_herm_has_no_prompt_to_tell_it_in() -> None:
    async with Bridge({}, journal=MemoryJournal()) as bridge:
        with pytest.raises(ConfigError, match="an agent of herm cannot be told"):
            async with bridge.session(Herm(agent_id="a"), api_key="k", earlier="herm:before"):
                raise AssertionError


async def _serve_for_ever(
    agent: Agent, desk: Desk, journal: MemoryJournal, key: str, refuse: Callable[[], None]
) -> None:
    crashing: Any = _Crashing(journal)
    async with (
        Bridge(desk.tools, journal=crashing, owner="first") as bridge,
        bridge.session(agent, api_key=key, options=OPTIONS) as session,
    ):
        say_if_nothing_was_said(session, agent)
        await until(session, ReplyStarted)
        refuse()
        await session.run()


class _Crashing:
    """A journal of a process that dies: what it would still write on its way out never arrives."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def settle(self, *_: Any) -> None:
        return


# ------------------------------------------------------------------------------------------------ approvals

BOOK = herm.Ask((herm.Call("book", {"no": "1"}, "a"),))
ASKED = (BOOK, herm.Answer("Done."))
MESSAGE = {"type": "user.message", "content": [{"type": "text", "text": "Book it."}]}


@asynccontextmanager
async def asking(
    desk: Desk, *steps: herm.Step, approver: Any = None, **rules: Any
) -> AsyncIterator[tuple[herm.Simulator, Bridge, Session]]:
    """A session in which the provider asks before each call of a tool, and has been spoken to."""
    with anyio.fail_after(LIMIT):
        async with offline_herm(*(steps or ASKED), **rules) as offline:
            names = Payloads(name=rules["payloads"].name) if rules else None
            agent = await declared(offline.sim, desk.tools, policy="always_ask", names=names)
            async with (
                Bridge(desk.tools, approver=approver) as bridge,
                bridge.session(agent, api_key=offline.key, options=OPTIONS) as session,
            ):
                session.say("Book it.")
                yield offline.sim, bridge, session


def fate(sim: herm.Simulator, call_id: str = "a") -> herm.Fate:
    call = sim.ledger.find(call_id)
    assert call is not None
    return call.fate


async def over(sim: herm.Simulator, turns: int = 1) -> None:
    """Wait until so many turns have ended."""
    await sim.agenda.until(lambda: sum(bool(turn.ended) for turn in sim.ledger.turns) >= turns)


async def test_a_call_that_the_provider_asks_about_runs_once_it_is_approved() -> None:
    desk, requests = Desk(), list[ApprovalRequest]()

    async def approve(request: ApprovalRequest) -> bool:
        requests.append(request)
        assert desk.done == []
        return True

    async with asking(desk, approver=approve) as (sim, _, session):
        wanted = await until(session, ApprovalWanted)
        assert (wanted.call.name, wanted.call.arguments) == ("book", '{"no":"1"}')
        await over(sim)
        assert (fate(sim), desk.done) == (herm.Fate.CLOSED, ["1"])
        assert [(each.tool, each.arguments, each.key.call_id) for each in requests] == [("book", '{"no":"1"}', "a")]


async def test_a_call_that_is_not_approved_is_denied_and_does_not_run() -> None:
    desk = Desk()

    async def deny(request: ApprovalRequest) -> bool:
        return False

    async with asking(desk, approver=deny) as (sim, _, _):
        await over(sim)
        assert (fate(sim), desk.done) == (herm.Fate.DENIED, [])


async def test_where_nobody_could_decide_the_answer_is_no() -> None:
    desk = Desk()
    async with asking(desk) as (sim, _, _):
        await over(sim)
        assert (fate(sim), desk.done) == (herm.Fate.DENIED, [])


async def test_a_tool_of_the_providers_own_can_be_approved_too() -> None:
    desk, mine = Desk(), Desk()

    async def approve(request: ApprovalRequest) -> bool:
        return True

    with anyio.fail_after(LIMIT):
        async with offline_herm(*ASKED) as offline:
            agent = await declared(offline.sim, desk.tools, policy="always_ask")
            tools = only(mine.tools, "wait")
            async with connect(agent, tools=tools, api_key=offline.key, options=OPTIONS, approver=approve) as session:
                session.say("Book it.")
                settled = await until(session, ToolSettled)  # nobody has this tool, and that is answered
                assert (settled.name, settled.outcome) == ("", "unknown")
                await over(offline.sim)
                assert fate(offline.sim) is herm.Fate.CLOSED


async def test_a_decision_that_the_host_makes_by_itself_counts_and_ours_is_not_made() -> None:
    desk, asked = Desk(), anyio.Event()

    async def ponder(request: ApprovalRequest) -> bool:
        asked.set()
        await anyio.sleep_forever()
        return False

    async with asking(desk, approver=ponder) as (sim, bridge, session):
        await asked.wait()
        await session.send({"events": [{"type": "user.tool_confirmation", "tool_use_id": "a", "result": "allow"}]})
        await over(sim)
        assert (fate(sim), desk.done, bridge.approvals.pending) == (herm.Fate.CLOSED, ["1"], ())


async def test_what_others_have_approved_at_the_provider_runs() -> None:
    desk = Desk()
    with_key = {"x-api-key": "herm-offline"}
    decided = {"events": [{"type": "user.tool_confirmation", "tool_use_id": "a", "result": "allow"}]}
    asked = anyio.Event()

    async def ponder(request: ApprovalRequest) -> bool:
        asked.set()
        await anyio.sleep_forever()
        return False

    async with asking(desk, approver=ponder) as (sim, bridge, _), httpx2.AsyncClient(trust_env=False) as client:
        await asked.wait()
        await client.post(f"{sim.url}/v1/sessions/{sim.session.id}/events", json=decided, headers=with_key)
        await over(sim)
        assert (fate(sim), desk.done, bridge.approvals.pending) == (herm.Fate.CLOSED, ["1"], ())


@pytest.mark.parametrize("how", ["interrupted", "left"])
async def test_a_request_is_withdrawn_when_nobody_wants_to_know_any_more(how: str) -> None:
    desk, asked, withdrawn = Desk(), anyio.Event(), anyio.Event()

    async def ponder(request: ApprovalRequest) -> bool:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        return True

    async with asking(desk, approver=ponder) as (sim, bridge, session):
        await asked.wait()
        (request,) = bridge.approvals.pending
        if how == "interrupted":
            await session.send({"events": [{"type": "user.interrupt"}]})
        else:
            await session.end()
        await withdrawn.wait()
        assert type(bridge.approvals.decide(request.id, approve=True, by="too late")).__name__ == "Expired"
        assert fate(sim) is (herm.Fate.INTERRUPTED if how == "interrupted" else herm.Fate.ASKED_FOR)
    assert desk.done == []


async def test_a_decision_whose_answer_was_lost_is_sent_again_and_counts_once() -> None:
    desk = Desk()
    with anyio.fail_after(LIMIT):
        async with offline_herm(*ASKED) as offline:
            sim = offline.sim

            async def approve_and_cut(request: ApprovalRequest) -> bool:
                sim.faults.append(Fault(operation="send", end=herm.End.CUT, done=True))
                return True

            agent = await declared(sim, desk.tools, policy="always_ask")
            async with connect(
                agent, tools=desk.tools, api_key=offline.key, options=OPTIONS, approver=approve_and_cut
            ) as session:
                session.say("Book it.")
                await over(sim)
                await sim.agenda.until(lambda: any(each.status == 409 for each in sim.exchanges))
                assert (fate(sim), desk.done) == (herm.Fate.CLOSED, ["1"])


async def test_names_that_the_documentation_does_not_give_can_be_changed() -> None:
    desk = Desk()

    async def approve(request: ApprovalRequest) -> bool:
        return True

    async with asking(desk, approver=approve, payloads=herm.Payloads(name="tool_name")) as (sim, _, _):
        await over(sim)
        assert desk.done == ["1"]


# ------------------------------------------------------------------------------------------------ Herm


@asynccontextmanager
async def spoken_to(
    tools: Toolset, *steps: herm.Step, options: SessionOptions = OPTIONS, **rules: Any
) -> AsyncIterator[tuple[herm.Simulator, Session]]:
    """A Herm session with these tools, to which something has been said."""
    with anyio.fail_after(LIMIT):
        async with offline_herm(*steps, **rules) as offline:
            agent = await declared(offline.sim, tools)
            async with connect(agent, tools=tools, api_key=offline.key, options=options) as session:
                session.say("Book it.")
                yield offline.sim, session


def slow(gate: anyio.Event, **options: Any) -> Toolset:
    """`book`, which is done when the gate opens."""
    tools = Toolset()

    @tools.tool(effect="write", timeout=600, **options)
    async def book(no: str) -> str:
        """Book a parcel."""
        await gate.wait()
        return f"booked {no}"

    return tools


async def test_a_tool_that_takes_long_is_said_to_be_running_and_its_outcome_starts_a_turn() -> None:
    gate = anyio.Event()
    steps = (BOOK, herm.Answer("It has begun."), herm.Answer("It is done."))
    async with spoken_to(slow(gate, answer_within=0.05), *steps) as (sim, session):
        await until(session, ToolParked)
        await until(session, Transcript, text="It has begun.")
        gate.set()
        patch = await until(session, ProviderMessage, kind="session.tool_updated")
        assert patch.message["payload"]["payload"]["status"] == "completed"
        await until(session, Transcript, text="It is done.")
        assert [result.status for result in sim.ledger.results] == ["running", "completed"]
        assert [turn.started_by for turn in sim.ledger.turns] == ["", "a"]
        assert sim.ledger.violations == []


async def test_an_outcome_whose_answer_was_lost_is_posted_again_and_starts_one_turn() -> None:
    gate = anyio.Event()
    steps = (BOOK, herm.Answer("It has begun."), herm.Answer("It is done."))
    async with spoken_to(slow(gate, answer_within=0.05), *steps) as (sim, session):
        await until(session, Transcript, text="It has begun.")
        sim.faults.append(Fault(operation="send", end=herm.End.CUT, done=True))
        gate.set()
        await until(session, Transcript, text="It is done.")
        await sim.agenda.until(lambda: len(sim.ledger.results) == 3)
        assert [result.verdict for result in sim.ledger.results][1:] == [herm.Verdict.FINAL, herm.Verdict.REPEATED]
        assert len(sim.ledger.turns) == 2


async def test_a_result_that_comes_too_late_is_posted_once_and_never_again() -> None:
    gate = anyio.Event()
    async with spoken_to(slow(gate), BOOK, herm.Answer("Done.")) as (sim, session):
        await sim.agenda.until(lambda: bool(sim.ledger.calls))
        sim.faults.append(Fault(operation="stream", end=herm.End.REFUSED, times=500))  # nobody hears that it expires
        sim.cut_streams()
        sim.agenda.advance(301)
        gate.set()
        await sim.agenda.until(lambda: any(each.status == 410 for each in sim.exchanges))
        sim.faults.clear()
        await session.send({"events": [MESSAGE]})  # a fence: it is sent after what would be sent again
        await over(sim, 2)
        assert sum(each.status == 410 for each in sim.exchanges) == 1


async def test_what_is_said_into_a_turn_of_somebody_else_is_said_after_it_and_blocks_no_result() -> None:
    gate = anyio.Event()
    async with spoken_to(slow(gate), BOOK, herm.Answer("Done."), herm.Answer("Yes?")) as (sim, session):
        await sim.agenda.until(lambda: bool(sim.ledger.calls))
        await session.send({"events": [said("Are you there?")]})
        await sim.agenda.until(lambda: any(each.status == 409 for each in sim.exchanges))
        gate.set()
        await until(session, Transcript, text="Yes?")
        assert [turn.prompt for turn in sim.ledger.turns] == ["Book it.", "Are you there?"]


async def test_what_meets_turns_of_others_for_too_long_is_given_up_and_told(caplog: pytest.LogCaptureFixture) -> None:
    hurried = SessionOptions(patience=replace(OPTIONS.patience, turn_of_others=0.2))
    gate = anyio.Event()
    async with spoken_to(slow(gate), BOOK, options=hurried) as (sim, session):
        await sim.agenda.until(lambda: bool(sim.ledger.calls))
        await session.send({"events": [said("Are you there?")]})
        failed = await until(session, ProviderFailed)
        assert (failed.code, failed.fatal) == ("session_busy", False)
        assert sum(each.status == 409 for each in sim.exchanges) > 1
        gate.set()
        await over(sim)
        assert len(sim.ledger.turns) == 1
    assert caplog.text.count("given up") == 1


async def test_leaving_does_not_wait_for_the_turn_of_somebody_else() -> None:
    async with spoken_to(slow(anyio.Event()), BOOK) as (sim, session):
        await sim.agenda.until(lambda: bool(sim.ledger.calls))
        await session.send({"events": [said("Are you there?")]})
        await sim.agenda.until(lambda: any(each.status == 409 for each in sim.exchanges))
    assert len(sim.ledger.turns) == 1


def said(words: str) -> dict[str, Any]:
    return {"type": "user.message", "content": [{"type": "text", "text": words}]}


async def test_a_call_that_had_expired_before_anybody_attached_is_not_run() -> None:
    desk = Desk()
    with anyio.fail_after(LIMIT):
        async with offline_herm(*ASKED) as offline:
            agent = await declared(offline.sim, desk.tools)
            async with connect(agent, tools=desk.tools, api_key=offline.key, options=OPTIONS) as session:
                pass
            await _post(offline.sim, MESSAGE)
            offline.sim.agenda.advance(301)
            async with connect(offline.attaching(), tools=desk.tools, api_key=offline.key, options=OPTIONS) as session:
                await until(session, ProviderMessage, kind="history")
        assert desk.done == []


async def _post(sim: herm.Simulator, event: dict[str, Any]) -> None:
    url, headers = f"{sim.url}/v1/sessions/{sim.session.id}/events", {"x-api-key": sim.api_key}
    async with httpx2.AsyncClient(trust_env=False) as client:
        assert (await client.post(url, json={"events": [event]}, headers=headers)).status_code == 202


# ------------------------------------------------------------------------------------------------ H Company


@asynccontextmanager
async def working(
    tools: Toolset, *steps: hcompany.Step, observers: Any = (), **settings: Any
) -> AsyncIterator[tuple[hcompany.Simulator, Session]]:
    """An H Company session with these tools and a task."""
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator(hcompany.Scenario(steps)) as sim:
            agent = HCompany(agent="h/clerk", messages="Book it.", url=sim.url, **settings)
            about = {"tools": tools, "observers": observers, "options": OPTIONS}
            async with connect(agent, api_key=sim.api_key, **about) as session:
                yield sim, session


async def test_a_paused_session_takes_its_result_and_is_not_resumed_by_it() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("wait", id="a"),))
    async with working(desk.tools, call, hcompany.Answer("Done.")) as (sim, session):
        await desk.begun.wait()
        sim.session.pause()
        desk.gate.set()
        await until(session, ToolSettled, how="sent")
        await sim.agenda.until(lambda: sim.ledger.calls[0].fate is hcompany.Fate.SETTLED)
        assert sim.session.status is hcompany.Status.PAUSED
        sim.session.resume()
        await sim.reached("completed")


async def test_a_session_that_is_paused_while_it_is_idle_is_told_the_outcome_when_it_goes_on() -> None:
    gate, concluded = anyio.Event(), anyio.Event()

    def observe(session: Session, step: Step) -> None:
        if any(isinstance(event, CallConcluded) for event in step.events):
            concluded.set()

    steps = (hcompany.Ask((hcompany.Call("book", {"no": "1"}),)), hcompany.Answer("Soon."), hcompany.Answer("Ah."))
    tools = slow(gate, answer_within=0.05)
    async with working(tools, *steps, observers=(observe,), idle_timeout_s=600) as (sim, session):
        await until(session, ReplyDone)
        sim.session.pause()
        await until(session, AgentPaused)
        gate.set()
        await concluded.wait()
        session.say("Are you there?")
        await fence(sim, session)
        assert sim.session.status is hcompany.Status.PAUSED
        sim.session.resume()
        await until(session, AgentResumed)
        await until(session, Transcript, text="Ah.")
        assert sum("booked 1" in str(event) for event in sim.session.log.kept) == 1


async def test_what_is_said_to_a_session_that_is_paused_in_its_turn_waits_for_that_too() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("wait", id="a"),))
    steps = (call, hcompany.Answer("Done."), hcompany.Answer("Yes?"))
    async with working(desk.tools, *steps, idle_timeout_s=600) as (sim, session):
        await desk.begun.wait()
        sim.session.pause()
        await until(session, AgentPaused)
        session.say("Are you there?")
        desk.gate.set()
        await sim.agenda.until(lambda: sim.ledger.calls[0].fate is hcompany.Fate.SETTLED)
        assert sim.session.status is hcompany.Status.PAUSED
        sim.session.resume()
        await until(session, Transcript, text="Yes?")


async def fence(sim: hcompany.Simulator, session: Session) -> None:
    """Wait until what is sent now has been answered: what was sent before has been, too."""
    request = {"tool_name": "fence", "args": {}, "id": "fence"}
    await session.send({"tool_results": {"kind": "error_event", "error": "No.", "origin": "f", "tool_req": request}})
    await sim.agenda.until(lambda: any("fence" in str(result.tool_req) for result in sim.ledger.results))


async def test_a_log_that_is_too_long_to_be_read_ends_the_session_and_says_so() -> None:
    own = hcompany.OwnTool(hcompany.Call("look"), "x" * 6000)
    narrow = SessionOptions(max_frame=4000, patience=OPTIONS.patience)
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator(hcompany.Scenario((own, hcompany.Work(600.0)))) as sim:
            agent = HCompany(agent="h/clerk", messages="Look.", url=sim.url)
            with pytest.raises(TransportError, match=r"over 4,000 bytes: raise SessionOptions\.max_frame"):
                async with connect(agent, api_key=sim.api_key, options=narrow) as session:
                    await session.run()


async def test_a_session_that_stays_open_is_spoken_to_again() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("book", {"no": "1"}),))
    async with working(desk.tools, hcompany.Answer("Hello."), call, hcompany.Answer("Done."), idle_timeout_s=60) as (
        sim,
        session,
    ):
        await until(session, ReplyDone)
        session.say("Now book it.")
        await until(session, Transcript, text="Done.")
        assert (desk.done, sim.session.status) == (["1"], hcompany.Status.IDLE)


async def test_a_session_that_is_interrupted_voids_its_calls_and_its_result_is_not_posted() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("wait", id="a"),))
    async with working(desk.tools, call, hcompany.Answer("Done.")) as (sim, session):
        await desk.begun.wait()
        sim.session.interrupt()
        settled = await until(session, ToolSettled)
        assert settled.how == "interrupted"
        desk.gate.set()
        await session.run()
        assert sim.ledger.results == []


async def test_a_session_that_is_said_to_be_over_and_is_not_is_served_on() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("book", {"no": "1"}, "a"),))
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator(hcompany.Scenario((call, hcompany.Answer()))) as sim:
            sim.faults.append(Fault(operation="tool_results", end=hcompany.End.REFUSED, status=409))
            agent = HCompany(agent="h/clerk", messages="Book it.", url=sim.url)
            async with connect(agent, tools=desk.tools, api_key=sim.api_key, options=OPTIONS):
                await sim.reached("completed")
                assert [result.value for result in sim.ledger.results] == [{"booked": "1"}]
                assert desk.done == ["1"]


async def test_in_place_of_a_result_that_is_not_taken_a_failure_is_posted() -> None:
    desk = Desk()
    call = hcompany.Ask((hcompany.Call("book", {"no": "1"}, "a"),))
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator(hcompany.Scenario((call, hcompany.Answer()))) as sim:
            sim.faults.append(Fault(operation="tool_results", end=hcompany.End.REFUSED, status=422))
            agent = HCompany(agent="h/clerk", messages="Book it.", url=sim.url)
            async with connect(agent, tools=desk.tools, api_key=sim.api_key, options=OPTIONS) as session:
                failed = await until(session, ProviderFailed)
                assert (failed.code, failed.fatal) == ("http_422", False)
                await sim.reached("completed")
                (result,) = sim.ledger.results
                assert result.is_error


async def test_a_session_that_does_not_exist_cannot_be_attached_to() -> None:
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator() as sim:
            agent = HCompany(session_id="0e4bebe1-0000-4000-8000-000000000000", url=sim.url)
            with pytest.raises(ProviderError, match="http_404"):
                async with connect(agent, api_key=sim.api_key, options=OPTIONS):
                    pass


# ------------------------------------------------------------------------------------------------ examples

EXAMPLES = Path(__file__).parents[2] / "examples"


def main_of(example: str) -> Callable[..., Coroutine[Any, Any, None]]:
    main: Callable[..., Coroutine[Any, Any, None]] = runpy.run_path(str(EXAMPLES / example))["main"]
    return main


async def test_the_example_for_openai_creates_a_session_and_serves_another(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    call = openai_sessions.Ask((openai_sessions.Call("find_parcel", {"number": "77"}),))
    scenario = openai_sessions.Scenario(((openai_sessions.Wait(0.1), call, openai_sessions.Tell()),))
    with anyio.fail_after(LIMIT):
        async with openai_sessions.Simulator(scenario, api_key="k") as sim:
            await main_of("openai_sessions.py")(sim.url)
            said = 'agent: find_parcel says: {"number":"77","depot":"Graz"}.'
            assert capsys.readouterr().out.splitlines() == ["find_parcel: sent", said]
            async with connect(OpenAISessions(model="m", input="Where?", url=sim.url), options=OPTIONS) as session:
                pass
            await main_of("openai_sessions.py")(sim.url, session.provider_session_id)
            assert sim.ledger.calls[0].fate is openai_sessions.Fate.ANSWERED


async def test_the_example_for_h_company_serves_a_session_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HAI_API_KEY", "hk-offline")
    call = hcompany.Ask((hcompany.Call("stock_level", {"sku": "B-17"}),))
    with anyio.fail_after(LIMIT):
        async with hcompany.Simulator(hcompany.Scenario((call, hcompany.Answer("There are 12.")))) as sim:
            await main_of("hcompany.py")(sim.url)
            assert capsys.readouterr().out.splitlines() == ["stock_level: sent", "agent: There are 12."]


@pytest.mark.slow
async def test_the_example_for_herm_tells_the_outcome_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERM_API_KEY", "herm-offline")
    monkeypatch.setenv("SECONDS", "1.3")
    steps = (herm.Ask((herm.Call("transcode", {"file": "a.mov"}),)), herm.Answer("It has begun."), herm.Answer())
    with anyio.fail_after(LIMIT):
        async with herm.Simulator(herm.Scenario(steps)) as sim:
            await main_of("herm.py")(sim.url)
            assert capsys.readouterr().out.splitlines() == ["agent: It has begun.", "transcode: told"]
            assert [result.status for result in sim.ledger.results] == ["running", "completed"]
