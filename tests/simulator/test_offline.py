"""The offline providers that are started by name: what they print works, and their scenarios play."""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any

import httpx2
import pytest

from bridge.simulator.named import Where
from bridge.simulator.offline import OFFLINE
from bridge.simulator.openai_sessions import AskApproval, Tell

pytestmark = pytest.mark.anyio


async def curl(client: httpx2.AsyncClient, command: str) -> httpx2.Response:
    """What this command of a shell would do."""
    words = shlex.split(command)
    assert words[:4] == ["curl", "-s", "-X", "POST"]
    pairs = (words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
    address = next(word for word in words if word.startswith("http"))
    headers = dict(pairs)
    return await client.post(address, content=words[words.index("-d") + 1], headers=headers)


@pytest.mark.parametrize("name", OFFLINE)
async def test_the_commands_that_are_printed_work(name: str) -> None:
    async with OFFLINE[name].start(Where(pace=0.1), None) as running, httpx2.AsyncClient(trust_env=False) as client:
        named: dict[str, str] = {}
        for command in running.try_it:
            for word, value in named.items():
                command = command.replace(word, value)
            if not command.startswith("curl"):
                assert f"attach --dialect {name} --url {running.url} " in command
                assert f"={running.api_key} " in command
                continue
            answer = await curl(client, command)
            assert answer.is_success, answer.text
            # The first one of Herm's makes an agent, and a session is made of that.
            word = "AGENT" if "/agents" in command and "/sessions" not in command else "ID"
            named.setdefault(word, answer.json().get("id", ""))
        accounts = list(running.accounts())
    assert accounts
    assert all("broken rules: none" in each.text or each.text.endswith(": 200") for each in accounts)


@pytest.mark.parametrize("name", OFFLINE)
async def test_a_port_that_is_taken_is_an_error_of_the_system(name: str) -> None:
    async with asyncio.timeout(10), OFFLINE[name].start(Where(), None) as running:
        port = int(running.url.split(":")[2].split("/")[0])
        with pytest.raises(OSError, match="in use"):
            async with OFFLINE[name].start(Where(port=port), None):
                pass


@pytest.mark.parametrize("name", ["openai-sessions", "hcompany", "herm"])
async def test_nobody_is_let_in_without_the_key_that_was_asked_for(name: str) -> None:
    async with OFFLINE[name].start(Where(api_key="s3cret"), None) as running, httpx2.AsyncClient() as client:
        assert running.api_key == "s3cret"
        assert (await curl(client, running.try_it[0].replace("s3cret", "other"))).status_code == 401


FILES: list[tuple[str, Any, int]] = [
    (
        "openai-sessions",
        {"turns": [[{"ask": {"calls": [{"name": "f"}]}}, {"tell": {}}]], "rules": {"deltas": False}},
        1,
    ),
    ("hcompany", {"steps": [{"ask": {"calls": [{"name": "f"}]}}, {"work": {"seconds": 1}}, {"answer": {}}]}, 3),
    ("herm", {"steps": [{"ask": {"calls": [{"name": "f"}]}}], "rules": {"repeats": "appended"}}, 1),
    ("anthropic", {"steps": [{"reply": {"calls": [{"name": "f"}]}}, {"failure": {"status": 500}}]}, 2),
    ("openai", {"steps": [{"reply": {"text": "x"}}]}, 1),
]


@pytest.mark.parametrize(("name", "tables", "length"), FILES, ids=[name for name, *_ in FILES])
def test_every_kind_of_scenario_can_be_read_from_a_file(name: str, tables: Any, length: int) -> None:
    scenario = OFFLINE[name].read(json.loads(json.dumps(tables)))
    steps = scenario[0] if name in ("hcompany", "herm") else scenario
    steps = getattr(steps, "turns", None) or getattr(steps, "steps", None) or steps
    assert len(steps) == length


@pytest.mark.parametrize("name", OFFLINE)
def test_a_file_with_something_else_in_it_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="step is unknown"):
        OFFLINE[name].read({"step": []})


def test_turns_that_are_no_list_are_refused() -> None:
    with pytest.raises(ValueError, match="turns: must be a list"):
        OFFLINE["openai-sessions"].read({"turns": 3})


def test_a_scenario_in_a_file_can_ask_for_an_approval() -> None:
    scenario = OFFLINE["openai-sessions"].read({"turns": [[{"ask_approval": {"server": "shop"}}, {"tell": {}}]]})
    assert scenario.turns == ((AskApproval("shop"), Tell()),)
