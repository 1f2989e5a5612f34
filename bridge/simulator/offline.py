"""The offline providers over HTTP by name, for whoever starts one without knowing which.

    async with OFFLINE["hcompany"].start(Where(port=8765), scenario) as running:
        print(running.url, running.try_it)

Needs Starlette and uvicorn (the `sidecar` extra), and httpx2 (the `http` extra).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import MappingProxyType
from typing import Any, Final, get_args

from bridge.simulator import hcompany, herm, messages_api, openai_sessions
from bridge.simulator.named import Account, Offline, Running, Where, account
from bridge.simulator.openai_sessions.objects import ENDED
from bridge.simulator.reading import read_rules, read_steps, refuse_others

__all__ = ["OFFLINE"]


_DAY: Final = {"day": {"type": "string", "enum": ["friday", "monday"]}}
_SCHEMA: Final = {"type": "object", "properties": _DAY, "required": ["day"], "additionalProperties": False}
_TOOL: Final = {"name": "opening_hours", "description": "When it is open."}
_POST: Final = "curl -s -X POST -H 'content-type: application/json'"


def _curl(url: str, body: Mapping[str, Any], *headers: str) -> str:
    named = "".join(f" -H '{header}'" for header in headers)
    return f"{_POST}{named} {url} -d '{json.dumps(body)}'"


def _attach(dialect: str, variable: str, running: str, key: str) -> str:
    command = f"voice-tool-bridge attach --dialect {dialect} --url {running}"
    return f"{variable}={key} {command} --tools my_tools.py --session ID"


# ----------------------------------------------------------------------------------------------- OpenAI Agent Sessions


@asynccontextmanager
async def _openai_sessions(where: Where, scenario: Any) -> AsyncIterator[Running]:
    async with openai_sessions.Simulator(
        scenario, host=where.host, port=where.port, pace=where.pace, api_key=where.api_key
    ) as sim:

        def accounts() -> Iterable[Account]:
            for ledger in sim.ledgers:
                turns = ", ".join(ledger.turns.values()) or "none yet"
                rests = bool(ledger.turns) and ENDED.issuperset(ledger.turns.values())
                fates = [call.fate for call in ledger.calls]
                yield account(ledger.session_id, f"turns: {turns}", fates, ledger.violations, rests=rests)

        key = where.api_key or "any"
        tool = {"type": "function", **_TOOL, "parameters": _SCHEMA}
        body = {"environment": {"type": "none"}, "agent": {"model": "m", "tools": [tool]}, "input": "Friday?"}
        create = _curl(f"{sim.url}/agents/sessions", body, f"authorization: Bearer {key}", "openai-beta: agents=v1")
        yield Running(sim.url, key, (create, _attach("openai-sessions", "OPENAI_API_KEY", sim.url, key)), accounts)


def _read_openai_sessions(tables: Mapping[str, Any]) -> openai_sessions.Scenario:
    o = openai_sessions
    refuse_others(tables, "turns", "rules")
    turns = tables.get("turns", ())
    if not isinstance(turns, list | tuple):
        raise ValueError("turns: must be a list of lists of steps")
    steps = get_args(o.Step)
    read = tuple(read_steps(turn, *steps, where=f"turns.{number}") for number, turn in enumerate(turns))
    return o.Scenario(read, read_rules(tables.get("rules", {}), o.Rules))


def _openai_sessions_scenarios() -> Mapping[str, tuple[str, Any]]:
    o = openai_sessions
    weather, order = o.Call("get_weather", {"city": "Oslo"}), o.Call("look_up_order", {"order": "A-1001"})
    return {
        "weather": ("One quick call.", o.Scenario(((o.Ask((weather,)), o.Tell()),))),
        "parallel": ("Two calls at once.", o.Scenario(((o.Ask((weather, order)), o.Tell()),))),
        "approval": (
            "A call that the provider makes itself, at an MCP server, once it is approved.",
            o.Scenario(((o.AskApproval("shop", "refund", {"amount": 5}), o.Tell()),)),
        ),
        "cancelled": (
            "Somebody cancels the turn while a call is open; the next message asks again.",
            o.Scenario(((o.Ask((weather,)), o.Wait(1.0), o.Cancel()), (o.Ask((weather,)), o.Tell()))),
        ),
    }


# ----------------------------------------------------------------------------------------------------------- H Company

_Hai = tuple[hcompany.Scenario, hcompany.Rules]


@asynccontextmanager
async def _hcompany(where: Where, scenario: _Hai | None) -> AsyncIterator[Running]:
    steps, rules = scenario or (hcompany.Scenario(), hcompany.Rules())
    given = {} if where.api_key is None else {"api_key": where.api_key}
    async with hcompany.Simulator(steps, rules=rules, host=where.host, port=where.port, **given) as sim:

        def accounts() -> Iterable[Account]:
            for each in sim.sessions.values():
                rests = each.is_over or each.status is hcompany.Status.IDLE
                fates = [call.fate for call in each.ledger.calls]
                yield account(each.id, each.status.value, fates, each.ledger.violations, rests=rests)

        tool = {**_TOOL, "input_schema": _SCHEMA}
        agent = {"name": "a", "description": "Knows the hours.", "environments": [], "tools": [tool]}
        body = {"agent": agent, "messages": "Friday?"}
        create = _curl(f"{sim.url}/api/v2/sessions", body, f"authorization: Bearer {sim.api_key}")
        tried = (create, _attach("hcompany", "HAI_API_KEY", sim.url, sim.api_key))
        yield Running(sim.url, sim.api_key, tried, accounts)


def _read_hcompany(tables: Mapping[str, Any]) -> _Hai:
    h = hcompany
    refuse_others(tables, "steps", "rules")
    steps = read_steps(tables.get("steps", ()), *get_args(h.Step))
    return h.Scenario(steps), read_rules(tables.get("rules", {}), h.Rules)


def _hcompany_scenarios() -> Mapping[str, tuple[str, Any]]:
    h = hcompany
    weather, order = h.Call("get_weather", {"city": "Oslo"}), h.Call("look_up_order", {"order": "A-1001"})
    plain = h.Rules()
    return {
        "weather": ("One quick call.", (h.Scenario((h.Ask((weather,)), h.Answer())), plain)),
        "parallel": ("Two calls in one step.", (h.Scenario((h.Ask((weather, order)), h.Answer())), plain)),
        "relayed": (
            "Results count only two seconds after they were accepted.",
            (h.Scenario((h.Ask((weather,)), h.Answer())), h.Rules(apply_after=2.0)),
        ),
    }


# ---------------------------------------------------------------------------------------------------------------- Herm

_Herm = tuple[herm.Scenario, herm.Rules]


@asynccontextmanager
async def _herm(where: Where, scenario: _Herm | None) -> AsyncIterator[Running]:
    steps, rules = scenario or (herm.Scenario(), herm.Rules())
    given = {} if where.api_key is None else {"api_key": where.api_key}
    async with herm.Simulator(steps, rules=rules, host=where.host, port=where.port, **given) as sim:

        def accounts() -> Iterable[Account]:
            for name, each in sim.sessions.items():
                rests = bool(each.ledger.turns) and all(turn.ended for turn in each.ledger.turns)
                state = f"{each.status}, turns: {len(each.ledger.turns)}"
                fates = [call.fate for call in each.ledger.calls]
                yield account(name, state, fates, each.ledger.violations, rests=rests)

        key = f"x-api-key: {sim.api_key}"
        tool = {"type": "custom", **_TOOL, "input_schema": _SCHEMA}
        message = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "Friday?"}]}]}
        tried = (
            _curl(f"{sim.url}/v1/agents", {"name": "a", "tools": [tool]}, key),
            _curl(f"{sim.url}/v1/agents/AGENT/sessions", {}, key),
            _attach("herm", "HERM_API_KEY", sim.url, sim.api_key),
            _curl(f"{sim.url}/v1/sessions/ID/events", message, key),
        )
        yield Running(sim.url, sim.api_key, tried, accounts)


def _read_herm(tables: Mapping[str, Any]) -> _Herm:
    refuse_others(tables, "steps", "rules")
    steps = read_steps(tables.get("steps", ()), *get_args(herm.Step))
    return herm.Scenario(steps), read_rules(tables.get("rules", {}), herm.Rules)


def _herm_scenarios() -> Mapping[str, tuple[str, Any]]:
    h = herm
    weather, order = h.Call("get_weather", {"city": "Oslo"}), h.Call("look_up_order", {"order": "A-1001"})
    plain = h.Rules()
    return {
        "weather": ("One quick call.", (h.Scenario((h.Ask((weather,)), h.Answer())), plain)),
        "parallel": ("Two calls at once.", (h.Scenario((h.Ask((weather, order)), h.Answer())), plain)),
        "impatient": (
            "A call waits for five seconds only, instead of five minutes.",
            (h.Scenario((h.Ask((weather,)), h.Answer())), h.Rules(wait=5.0)),
        ),
    }


# -------------------------------------------------------------------------------------------------------- message APIs

_Script = tuple[Any, ...]


def _messages(
    path: str, headers: tuple[str, ...], body: Mapping[str, Any]
) -> Callable[..., AbstractAsyncContextManager[Running]]:
    """All message APIs are served at once; what differs is which one is shown."""

    @asynccontextmanager
    async def start(where: Where, scenario: _Script | None) -> AsyncIterator[Running]:
        script = scenario or (messages_api.Reply(calls=(_FRIDAY,)), messages_api.Reply("{}"))
        with messages_api.MessagesSimulator(script, host=where.host, port=where.port) as sim:

            def accounts() -> Iterable[Account]:
                for number, each in enumerate(list(sim.ledger.exchanges), 1):
                    said = f"{each.path}: {each.status}{' ' if each.error else ''}{each.error}"
                    yield Account(f"request {number}", said, rests=True)

            yield Running(sim.url, "any", (_curl(sim.url + path, body, *headers),), accounts)

    return start


def _read_messages(tables: Mapping[str, Any]) -> _Script:
    refuse_others(tables, "steps")
    return read_steps(tables.get("steps", ()), messages_api.Reply, messages_api.Failure)


def _messages_scenarios() -> Mapping[str, tuple[str, Any]]:
    m = messages_api
    weather, order = m.Call("get_weather", {"city": "Oslo"}), m.Call("look_up_order", {"order": "A-1001"})
    return {
        "weather": ("One call, and an answer that tells its result.", (m.Reply(calls=(weather,)), m.Reply("{}"))),
        "parallel": ("Two calls in one reply.", (m.Reply(calls=(weather, order)), m.Reply("{}"))),
        "flaky": ("The answer to the results fails once.", (m.Reply(calls=(weather,)), m.Failure(), m.Reply("{}"))),
    }


_MESSAGES: Final = _messages_scenarios()
_FRIDAY: Final = messages_api.Call("opening_hours", {"day": "friday"})
_ASKED: Final = [{"role": "user", "content": "Friday?"}]
_ANTHROPIC: Final = _messages(
    "/v1/messages",
    ("x-api-key: any", "anthropic-version: 2023-06-01"),
    {"model": "m", "max_tokens": 100, "messages": _ASKED, "tools": [{**_TOOL, "input_schema": _SCHEMA}]},
)
_OPENAI: Final = _messages(
    "/v1/responses",
    ("authorization: Bearer any",),
    {"model": "m", "input": _ASKED, "tools": [{"type": "function", **_TOOL, "parameters": _SCHEMA}]},
)

OFFLINE: Final[Mapping[str, Offline]] = MappingProxyType(
    {
        "openai-sessions": Offline(_read_openai_sessions, _openai_sessions, _openai_sessions_scenarios(), paced=True),
        "hcompany": Offline(_read_hcompany, _hcompany, _hcompany_scenarios()),
        "herm": Offline(_read_herm, _herm, _herm_scenarios()),
        "anthropic": Offline(_read_messages, _ANTHROPIC, _MESSAGES),
        "openai": Offline(_read_messages, _OPENAI, _MESSAGES),
    }
)
"""All of them; the one over a WebSocket is `bridge.simulator.Simulator`."""
