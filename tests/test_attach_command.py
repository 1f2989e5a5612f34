"""The `attach` command as an operator runs it: a process of its own, at an offline provider."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from bridge.cli import cli
from bridge.simulator.hcompany import Answer, Ask, Call, Fate
from bridge.simulator.site import End as Cut
from bridge.simulator.site import Fault

from .attach_rig import hai, herm_rig

ROOT = Path(__file__).parent.parent
NOBODY = "0b0c6a1e-0000-4000-8000-000000000000"
TWICE = (Ask((Call("book", id="c-1"),)), Answer())

TOOLS = '''
import asyncio
import os
from pathlib import Path

from bridge import Toolset

tools = Toolset()
HERE = Path(__file__).parent


@tools.tool(timeout=60)
async def book(no: str = "77") -> str:
    """Book a parcel."""
    with (HERE / "effects").open("a") as effects:
        effects.write("booked\\n")
    print("begun", flush=True)
    while not (HERE / "gate").exists():
        await asyncio.sleep(0.01)
    return "booked"
'''


class Attach:
    """The command while it runs."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def line(self, pattern: str, stream: str = "stdout") -> re.Match[str]:
        """The next line of its output that fits."""
        reader = getattr(self.process, stream)
        said = ""
        while line := (await reader.readline()).decode():
            said += line
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"no {pattern!r} in:\n{said}")

    async def ended(self) -> tuple[int | None, str, str]:
        """Wait for its end: the exit code, and the rest of what it said."""
        out, errors = await self.process.communicate()
        return self.process.returncode, out.decode(), errors.decode()


@asynccontextmanager
async def attach(folder: Path, url: str, *options: str, key: str = "hk-offline") -> AsyncIterator[Attach]:
    (folder / "desk.py").write_text(TOOLS)
    words = ("attach", "--dialect", "hcompany", "--url", url, "--tools", "desk.py", *options)
    async with started(folder, *words, key=key) as command:
        yield command


@asynccontextmanager
async def started(folder: Path, *words: str, key: str = "hk-offline", **more: str) -> AsyncIterator[Attach]:
    environment = {**os.environ, "HAI_API_KEY": key, "HAI_WEBHOOK_SECRET": "s3cret", "PYTHONPATH": str(ROOT), **more}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bridge", *words, cwd=folder, env=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(50):
            yield Attach(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def effects(folder: Path) -> int:
    return len((folder / "effects").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.anyio
async def test_it_ends_with_0_when_all_sessions_have_ended(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with hai(TWICE) as rig:
        first, second, third = [await rig.begin(idle=None) for _ in range(3)]
        async with attach(tmp_path, rig.url, "--session", first, "--session", "-") as command:
            await command.line("Serving 1 tool to sessions of hcompany")
            code, out, errors = await _fed(command, f"{second}\n\n{third}")
    assert code == 0, errors
    assert all(f"{each}: ended" in out.splitlines() for each in (second, third))
    assert effects(tmp_path) == 3


async def _fed(command: Attach, text: str) -> tuple[int | None, str, str]:
    out, errors = await command.process.communicate(text.encode())
    return command.process.returncode, out.decode(), errors.decode()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_bad_id_is_said_at_once_and_the_others_go_on(tmp_path: Path) -> None:
    async with hai(TWICE) as rig:
        good = await rig.begin(idle=None)
        async with attach(tmp_path, rig.url, "--session", good, "--session", NOBODY) as command:
            await command.line("begun")
            await command.line(f"error: {NOBODY}: refused: .*no such session", "stderr")
            (tmp_path / "gate").touch()
            code, out, errors = await command.ended()
    assert code == 1
    assert f"{good}: ended" in out
    assert errors.endswith("Error: 1 session did not come to an end here\n")
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_the_provider_asks_about_is_decided_over_the_admin_port(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    (tmp_path / "desk.py").write_text(TOOLS)
    async with herm_rig() as rig:
        session_id = await rig.begin("always_ask")
        words = ("attach", "--dialect", "herm", "--url", rig.url, "--tools", "desk.py", "--session", session_id)
        more = {"HERM_API_KEY": rig.api_key, "BRIDGE_ADMIN_TOKEN": "t0ken"}
        async with started(tmp_path, *words, "--admin-port", "0", **more) as command:
            base = (await command.line(r"taken at (http://\S+)"))[1]
            headers = {"authorization": "Bearer t0ken"}
            async with httpx2.AsyncClient(headers=headers, trust_env=False) as client:
                async with client.stream("GET", f"{base}/approvals/stream", timeout=20) as stream:
                    await rig.ask(session_id)
                    lines = stream.aiter_lines()
                    asked = json.loads((await anext(each async for each in lines if '"tool"' in each))[6:])
                decided = await client.post(f"{base}/approvals/{asked['id']}", json={"decision": "approve"})
                assert decided.status_code == 200
            assert "booked" in str(await rig.answered(session_id))
    assert effects(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_wrong_key_ends_it_with_1_and_is_not_shown(tmp_path: Path) -> None:
    async with hai(TWICE) as rig:
        session_id = await rig.begin()
        async with attach(tmp_path, rig.url, "--session", session_id, key="hk-wrong") as command:
            code, out, errors = await command.ended()
    assert code == 1
    assert "the API key was not accepted" in errors
    assert "hk-wrong" not in out + errors


@pytest.mark.slow
@pytest.mark.anyio
async def test_sigterm_answers_what_is_owed_and_leaves(tmp_path: Path) -> None:
    async with hai((*TWICE, *TWICE)) as rig:
        session_id = await rig.begin()
        async with attach(tmp_path, rig.url, "--session", session_id) as command:
            await command.line("begun")
            command.process.send_signal(signal.SIGTERM)
            await command.line("SIGTERM: 1 session left once answered", "stderr")
            (tmp_path / "gate").touch()
            code, _, errors = await command.ended()
        assert code == 1
        assert f"error: {session_id}: left: we were stopped" in errors
        assert [result.value for result in rig.sim.ledger.results] == ["booked"]
        assert not rig.sim.session.is_over


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    async with hai(TWICE) as rig:
        session_id = await rig.begin()
        async with attach(tmp_path, rig.url, "--session", session_id, "--owed-timeout", "3600") as command:
            await command.line("begun")
            command.process.send_signal(signal.SIGTERM)
            await command.line("SIGTERM", "stderr")
            command.process.send_signal(signal.SIGINT)
            code, _, errors = await command.ended()
        assert code == 1
        assert f"error: {session_id}: owing: we were stopped" in errors
        assert rig.sim.ledger.results == []


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_was_killed_in_a_tool_is_not_run_again(tmp_path: Path) -> None:
    async with hai(TWICE) as rig:
        session_id = await rig.begin(idle=None)
        options = ("--session", session_id, "--journal", "calls.db")
        async with attach(tmp_path, rig.url, *options) as command:
            await command.line("begun")
            command.process.kill()
            await command.ended()
        (tmp_path / "gate").touch()
        async with attach(tmp_path, rig.url, *options) as command:
            code, out, errors = await command.ended()
        (call,) = rig.sim.ledger.calls
    assert code == 0, errors
    assert effects(tmp_path) == 1
    assert "left unfinished: book, call " in out
    assert f"{session_id}: ended" in out
    assert call.fate is Fate.SETTLED
    (result,) = rig.sim.ledger.results
    assert result.is_error
    assert "may or may not have happened" in str(result.value)


LOOKED = "async def looked(arguments, ticket):\n    return 'it was booked'\n\n\n"
PARKED = TOOLS.replace("timeout=60", "timeout=60, answer_within=0.2")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tools", "ends", "told"),
    [
        (PARKED, False, "may or may not have happened"),
        (PARKED.replace("@tools.tool(", f"{LOOKED}@tools.tool(check_outcome=looked, "), False, "it was booked"),
        (PARKED, True, "booked"),
    ],
    ids=["unknown", "looked up", "known"],
)
async def test_the_outcome_of_a_call_that_goes_on_is_told_after_its_process_was_killed(
    tmp_path: Path, tools: str, ends: bool, told: str
) -> None:
    (tmp_path / "desk.py").write_text(tools)
    async with herm_rig() as rig:
        session_id = await rig.begin()
        words = ("attach", "--dialect", "herm", "--url", rig.url, "--tools", "desk.py", "--session", session_id)
        options = (*words, "--journal", "calls.db")
        ledger = rig.sim.sessions[session_id].ledger
        async with started(tmp_path, *options, HERM_API_KEY=rig.api_key) as command:
            await command.line("Serving 1 tool")
            await rig.ask(session_id)
            await rig.sim.agenda.until(lambda: any(turn.ended for turn in ledger.turns))
            if ends:  # its outcome is durable, and cannot be told
                rig.sim.faults.append(Fault(operation="send", end=Cut.REFUSED, times=500))
                (tmp_path / "gate").touch()
                await rig.sim.agenda.until(lambda: any(each.status == 503 for each in rig.sim.exchanges))
            command.process.kill()
            await command.ended()
        rig.sim.faults.clear()
        (tmp_path / "gate").touch()
        async with started(tmp_path, *options, HERM_API_KEY=rig.api_key):
            await rig.sim.agenda.until(lambda: len(ledger.turns) == 2 and bool(ledger.turns[1].ended))
    kickoff, outcome = ledger.results
    assert (kickoff.status, told in outcome.text) == ("running", True)
    assert effects(tmp_path) == 1


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_providers_notification_names_a_session(tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    async with hai(TWICE) as rig, attach(tmp_path, rig.url, "--webhook-port", "0") as command:
        port = (await command.line(r"Notifications are taken at http://127\.0\.0\.1:(\d+)/"))[1]
        asked = {"url": f"http://127.0.0.1:{port}/", "enabled_events": ["session.awaiting_tool_results"]}
        await rig.client.post("/api/v2/webhooks", json=asked)
        (webhook,) = rig.sim.webhooks.all.values()
        webhook.secret = "s3cret"
        session_id = await rig.begin(idle=None)
        await command.line(f"{session_id}: ended")
        command.process.send_signal(signal.SIGTERM)
        code, _, errors = await command.ended()
    assert code == 0, errors
    assert [each.status for each in rig.sim.webhooks.deliveries] == [204]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_sidecar_that_was_killed_in_a_tool_asks_what_came_of_it_and_tells(tmp_path: Path) -> None:
    looked = "async def looked(arguments, ticket):\n    return 'it was booked'\n\n\n"
    (tmp_path / "desk.py").write_text(TOOLS.replace("@tools.tool(", f"{looked}@tools.tool(check_outcome=looked, "))
    async with hai(TWICE) as rig:
        session_id = await rig.begin(idle=None)
        (tmp_path / "bridge.toml").write_text(
            "[listen]\nport = 0\n[admin]\nport = 0\n[tools]\npython = ['desk.py']\n[journal]\naddress = 'calls.db'\n"
            f"[[attach]]\ndialect = 'hcompany'\nurl = '{rig.url}'\nsessions = ['{session_id}']\n"
        )
        async with started(tmp_path, "serve", "bridge.toml") as sidecar:
            await sidecar.line("begun")
            sidecar.process.kill()
            await sidecar.ended()
        (tmp_path / "gate").touch()
        async with started(tmp_path, "serve", "bridge.toml") as sidecar:
            await rig.sim.reached("completed")
            sidecar.process.send_signal(signal.SIGTERM)
            code, _, errors = await sidecar.ended()
        (result,) = rig.sim.ledger.results
    assert code == 0, errors
    assert effects(tmp_path) == 1
    assert "it was booked" in str(result.value)


# ------------------------------------------------------------------------------------------------ what cannot be used


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--dialect", "hcompny", "--session", "x"), "did you mean hcompany?"),
        (("--dialect", "hcompany"), "there is nothing to attach to"),
        (("--dialect", "hcompany", "--session", "x", "--url", "ftp://x"), "must begin with https://"),
        (("--dialect", "herm", "--session", "x"), "set the environment variable HERM_API_KEY"),
        (("--dialect", "hcompany", "--webhook-port", "0"), "HAI_WEBHOOK_SECRET must hold the secret"),
        (("--dialect", "hcompany", "--session", "x", "--admin-port", "0"), "BRIDGE_ADMIN_TOKEN must hold the token"),
        (("--dialect", "openai-sessions", "--url", "http://x", "--webhook-port", "0"), "sends no notifications"),
        (("--dialect", "hcompany", "--session", "x", "--journal", "/no/such/folder/calls.db"), "/no/such/folder"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    for variable in ("HERM_API_KEY", "HAI_WEBHOOK_SECRET", "BRIDGE_ADMIN_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HAI_API_KEY", "k")
    file = tmp_path / "desk.py"
    file.write_text(TOOLS)
    result = CliRunner().invoke(cli, ["attach", "--tools", str(file), *options])
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_without_the_extra_it_is_named_at_once_and_not_for_each_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAI_API_KEY", "k")
    monkeypatch.setitem(sys.modules, "bridge.transports.http", None)
    (tmp_path / "desk.py").write_text(TOOLS)
    options = ["--dialect", "hcompany", "--session", "a", "--session", "b"]
    result = CliRunner().invoke(cli, ["attach", "--tools", str(tmp_path / "desk.py"), *options])
    assert result.exit_code == 2
    assert result.stderr == "Error: hcompany is served over HTTP: pip install 'voice-tool-bridge[http]'\n"
    assert result.stdout == ""


def test_a_webhook_port_that_is_taken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAI_API_KEY", "k")
    monkeypatch.setenv("HAI_WEBHOOK_SECRET", "s")
    (tmp_path / "desk.py").write_text(TOOLS)
    options = ["--dialect", "hcompany", "--webhook-host", "192.0.2.1", "--webhook-port", "0"]
    result = CliRunner().invoke(cli, ["attach", "--tools", str(tmp_path / "desk.py"), *options])
    assert result.exit_code == 2
    assert "the webhook port cannot listen on 192.0.2.1:0" in result.stderr
