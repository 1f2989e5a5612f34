from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
import sys
import threading
import wave
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import click
import pytest
from click.testing import CliRunner, Result
from websockets.asyncio.client import connect

from bridge.__main__ import main
from bridge.cli import cli
from bridge.converse import converse
from bridge.core.dialect import Delivery
from bridge.demo.demo import demo
from bridge.scenarios import SCENARIOS
from bridge.simulator import Rules, Simulator
from bridge.simulator.offline import OFFLINE
from tests.simulator.documented_loop import DocumentedLoop

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "my_tools.py"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def tools_file(path: Path, text: str) -> Path:
    file = path / "my_tools.py"
    file.write_text("from bridge import CallContext, Tool, Toolset\n\ntools = Toolset()\n\n" + text)
    return file


def assert_one_clear_line(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words), result.stderr


# -------------------------------------------------------------------------------------------------------- the program


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "bridge", "--version"], capture_output=True, cwd=ROOT, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("voice-tool-bridge ")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make the command line be imported again, without a module of this name."""

    def without(name: str) -> None:
        ours = [module for module in sys.modules if module.startswith("bridge.cli")]
        for module in [module for module in sys.modules if module.split(".")[0] == name] + ours:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, name, None)

    return without


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(
    missing: str, fresh: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    fresh(missing)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"Error: {missing} is missing: pip install 'voice-tool-bridge[cli]'\n"


def test_another_missing_module_is_not_blamed_on_the_extra(fresh: Callable[[str], None]) -> None:
    fresh("difflib")
    with pytest.raises(ModuleNotFoundError, match="difflib"):
        main()


def test_ctrl_c_while_the_commands_are_loaded_ends_it_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "bridge.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "bridge.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


def test_ctrl_c_has_an_exit_code_that_no_failure_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(console: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bridge.cli.demo.demo", interrupted)
    result = run("demo")
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


def every_command(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)


@pytest.mark.parametrize("path", [*every_command(cli)], ids=" ".join)
def test_every_command_is_listed_with_a_whole_sentence_and_explains_itself(path: tuple[str, ...]) -> None:
    *groups, name = path
    listed = run(*groups, "--help").stdout.partition("Commands:")[2].splitlines()
    lines = [line for line in listed if line.startswith(f"  {name} ")]
    assert len(lines) == 1
    assert lines[0].endswith("."), "it does not fit: the first sentence of its help is too long"
    assert not lines[0].endswith("...")
    result = run(*path, "--help")
    assert result.exit_code == 0
    options = [line for line in result.stdout.partition("Options:")[2].splitlines() if line.startswith("  -")]
    assert options


# -------------------------------------------------------------------------------------------------------------- demo


def test_the_demo_ends_with_0_if_all_claims_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.cli.demo.demo", partial(demo, pace=0.1))
    result = run("demo")
    assert result.exit_code == 0
    assert "All 8 claims hold." in result.stdout


def test_the_demo_ends_with_1_if_a_claim_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Delivery(hold=False, whole_turn=False, asks=True, void=True)
    monkeypatch.setattr("bridge.cli.demo.demo", partial(demo, pace=0.1, delivery=at_once))
    result = run("demo")
    assert result.exit_code == 1
    assert "2 of 8 claims do not hold." in result.stdout


# ------------------------------------------------------------------------------------------------------------- tools


def test_the_example_has_nothing_to_complain_about() -> None:
    result = run("tools", EXAMPLE)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "opening_hours" in result.stdout
    assert "terminal, after the reply" in result.stdout
    assert "\x1b" not in result.stdout


def test_json_is_exactly_what_would_be_sent() -> None:
    entries = json.loads(run("tools", EXAMPLE, "--json").stdout)
    assert [entry["name"] for entry in entries] == ["opening_hours", "book_table", "end_call"]
    assert entries[1]["type"] == "function"
    assert entries[1]["timeout_seconds"] == 14.0
    assert entries[1]["parameters"]["required"] == ["day", "hour"]


def test_json_stays_json_when_there_are_warnings(tmp_path: Path) -> None:
    file = tools_file(tmp_path, "@tools.tool\ndef find(x: int) -> int:\n    return x\n")
    result = run("tools", file, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["name"] == "find"
    assert "warning: find: parameter x has no description" in result.stderr


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ("timeout=400", "f: it may take 405 s, its wait for a free slot included; the provider waits 300 s"),
        ("description=''", "f: no description"),
        ("effect='terminal', start='now'", "f: cannot be undone, but starts before its reply has been heard"),
        ("deliver='now'", "f: its result is sent at once, even if the caller cuts in"),
    ],
)
def test_what_will_not_work_well_is_warned_about(tmp_path: Path, options: str, warning: str) -> None:
    text = f"@tools.tool({options})\ndef f() -> int:\n    '''Does it.'''\n    return 1\n"
    result = run("tools", tools_file(tmp_path, text))
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {warning}")
    assert result.stderr.count("\n") == 1


def test_more_than_ten_tools_are_warned_about(tmp_path: Path) -> None:
    text = "for n in range(11):\n    tools.tool(lambda: n, name=f't{n}', description='Does it.')\n"
    result = run("tools", tools_file(tmp_path, text))
    assert "warning: 11 tools: beyond 10, models choose worse" in result.stderr


def test_all_wrong_tools_of_a_file_are_named_with_their_lines(tmp_path: Path) -> None:
    text = (
        "@tools.tool\ndef first(*args: int) -> int:\n    return 1\n\n"
        "@tools.tool\ndef good() -> int:\n    '''Good.'''\n    return 1\n\n"
        "@tools.tool\ndef second(x) -> int:\n    return 1\n\nagain = second\n"
    )
    file = tools_file(tmp_path, text)
    result = run("tools", file)
    assert result.exit_code == 1
    assert "good" in result.stdout
    errors = result.stderr.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith(f"error: {file}:5: tool first: ")
    assert errors[1].startswith(f"error: {file}:14: tool second: ")


def test_a_file_whose_only_toolset_cannot_be_made_shows_why(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text("from bridge import Toolset\n\nmine = Toolset([1 / 0 for _ in []])\nmine.tool(int)\n")
    result = run("tools", file)
    assert result.exit_code == 1
    assert f"error: {file}:4: tool int: " in result.stderr


def test_a_definition_at_fault_does_not_hide_behind_a_missing_toolset(tmp_path: Path) -> None:
    file = tmp_path / "t.py"
    file.write_text(
        "from bridge import ConfigError, Toolset\n\ndef make():\n    raise ConfigError('no')\n\nt = make()\n"
    )
    result = run("tools", file)
    assert result.exit_code == 1
    assert f"error: {file}:4: no" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", ("my_tools.py", "not Python", "line 1")),
        ("a = '\0'\n", ("my_tools.py", "not Python")),
        ("\n\nimport no_such_module\n", ("my_tools.py:3", "ModuleNotFoundError", "no_such_module")),
        ("raise SystemExit\n", ("my_tools.py:1", "SystemExit")),
        ("raise ValueError('one\\ntwo')\n", ("my_tools.py:1", "ValueError: one")),
        ("", ("no Toolset", "`tools`")),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "my_tools.py"
    file.write_text(text)
    assert_one_clear_line(run("tools", file), *words)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    assert_one_clear_line(run("tools", tmp_path / "gone.py"), "gone.py", "no such file")


def test_the_only_toolset_of_a_file_may_have_any_name_and_types_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text("WORD = 'near'\n")
    file = tmp_path / "t.py"
    file.write_text(
        "'''Tools.'''\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from bridge import Toolset\nfrom near import WORD\nmine = also = Toolset()\n\n"
        "@dataclass\nclass Place:\n    name: str\n\n"
        "@mine.tool(name=WORD)\ndef find(place: Place) -> str:\n    '''Finds.'''\n    return place.name\n"
    )
    entries = json.loads(run("tools", file, "--json").stdout)
    assert entries[0]["name"] == "near"
    assert entries[0]["parameters"]["properties"]["place"]["properties"] == {"name": {"type": "string"}}


# ---------------------------------------------------------------------------------------------------------- converse


def recording(path: Path) -> Path:
    loud = array("h", (round(9000 * math.sin(n / 17)) for n in range(6000)))
    with wave.open(str(path / "caller.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(loud.tobytes())
    return path / "caller.wav"


@contextmanager
def provider(**options: object) -> Iterator[str]:
    """The address of a provider that runs in a thread of its own, beside the command's event loop."""
    started: list[str] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with Simulator(**options) as simulator:  # type: ignore[arg-type]  # passed on as they are
            started.append(simulator.url)
            ready.set()
            await asyncio.to_thread(stop.wait, 30)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield started[0]
    finally:
        stop.set()
        thread.join(10)


def converse_arguments(path: Path) -> list[str | Path]:
    return ["converse", "--wav", recording(path), "--out", path / "agent.wav", "--tools", EXAMPLE]


@pytest.mark.parametrize("offline", [True, False])
def test_a_conversation_says_with_whom_and_writes_what_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setattr("bridge.cli.converse.converse", partial(converse, patience=0.05))
    with provider(pace=0.1) as url:
        result = run(*converse_arguments(tmp_path), *([] if offline else ["--url", url]))
    assert result.exit_code == 0, result.output
    first = "The provider is simulated, offline." if offline else f"The provider is at {url}."
    assert result.stdout.startswith(first)
    assert "beginning with" in result.stdout
    with wave.open(str(tmp_path / "agent.wav"), "rb") as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert file.getnframes() >= 6000


def test_a_provider_that_refuses_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    with provider(scenario=Rules(refuse_with="at_capacity")) as url:
        result = run(*converse_arguments(tmp_path), "--url", url)
    assert result.exit_code == 1
    assert "at_capacity" in result.stderr
    assert not (tmp_path / "agent.wav").exists()


def test_the_live_service_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASSEMBLYAI_API_KEY", raising=False)
    result = run(*converse_arguments(tmp_path), "--live")
    assert_one_clear_line(result, "ASSEMBLYAI_API_KEY")
    assert "live service" in result.stdout


def test_live_and_an_address_exclude_each_other(tmp_path: Path) -> None:
    assert_one_clear_line(run(*converse_arguments(tmp_path), "--live", "--url", "ws://127.0.0.1:1"), "exclude")


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    result = run(*converse_arguments(tmp_path), "--url", "http://example.org")
    assert result.exit_code == 2
    assert "wss://" in result.stderr


@pytest.mark.parametrize("option", ["--wav", "--tools"])
def test_a_missing_file_is_one_clear_line(tmp_path: Path, option: str) -> None:
    result = run(*converse_arguments(tmp_path), option, tmp_path / "gone")
    assert_one_clear_line(result, "gone", "o such file")


def test_a_folder_that_is_not_there_is_noticed_before_anybody_speaks(tmp_path: Path) -> None:
    assert_one_clear_line(run(*converse_arguments(tmp_path), "--out", tmp_path / "no" / "agent.wav"), "no such folder")


def test_a_folder_in_place_of_a_file_is_noticed_before_anybody_speaks(tmp_path: Path) -> None:
    result = run(*converse_arguments(tmp_path), "--out", tmp_path)
    assert_one_clear_line(result, "this is a folder")
    assert result.stdout == ""


def test_a_recording_in_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "music.wav").write_bytes(b"ID3")
    result = run(*converse_arguments(tmp_path), "--wav", tmp_path / "music.wav")
    assert_one_clear_line(result, "music.wav", "sox")


def test_tools_that_cannot_work_end_it_before_it_begins(tmp_path: Path) -> None:
    file = tools_file(tmp_path, "@tools.tool\ndef f(x) -> int:\n    return 1\n")
    assert_one_clear_line(run(*converse_arguments(tmp_path), "--tools", file), "tool f: ")


# ---------------------------------------------------------------------------------------------------------- simulate


def test_the_scenarios_are_listed_with_what_they_are_about() -> None:
    lines = run("simulate", "--list").stdout.splitlines()
    assert len(lines) == len(SCENARIOS)
    assert any(line.startswith("weather") and line.endswith("One quick call.") for line in lines)


def test_an_unknown_scenario_is_one_clear_line_with_a_guess() -> None:
    assert_one_clear_line(run("simulate", "--scenario", "wether"), "wether", "did you mean weather?")
    assert_one_clear_line(run("simulate", "--scenario", "zzz"), "see --list")


def test_an_unknown_dialect_is_one_clear_line_with_the_nearest() -> None:
    assert_one_clear_line(run("simulate", "--dialect", "hcompny"), "hcompny", "did you mean hcompany?")
    assert_one_clear_line(run("simulate", "--dialect", "zzz"), "there are assemblyai, openai-sessions, hcompany, herm")


@pytest.mark.parametrize("dialect", ["openai-sessions", "hcompany", "herm", "anthropic", "openai"])
def test_the_scenarios_of_every_dialect_are_listed(dialect: str) -> None:
    lines = run("simulate", "--dialect", dialect, "--list").stdout.splitlines()
    assert lines[0].startswith("weather")
    assert [line.split()[0] for line in lines] == [*OFFLINE[dialect].scenarios]


def test_a_pace_for_a_provider_without_one_is_refused() -> None:
    assert_one_clear_line(run("simulate", "--dialect", "herm", "--pace", "2"), "herm has no pace")


def test_a_scenario_file_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    assert_one_clear_line(run("simulate", "--scenario", tmp_path / "no.toml"), "no.toml: No such file")
    file = tmp_path / "steps.toml"
    file.write_text("[[steps]]\nsay = {}\n")
    assert_one_clear_line(run("simulate", "--scenario", file), "steps.toml: steps.0.say.text: Field required")
    file.write_text("steps = ")
    assert_one_clear_line(run("simulate", "--scenario", file), "steps.toml: ")


@pytest.mark.slow
def test_a_provider_over_http_sums_its_sessions_up_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "steps.toml"
    file.write_text("[[steps]]\nanswer = { answer = 'done' }\n")
    with simulate("--dialect", "hcompany", "--scenario", str(file)) as (url, process):
        body = json.dumps({"agent": "h/any", "messages": "Go."}).encode()
        headers = {"authorization": "Bearer hk-offline", "content-type": "application/json"}
        with urlopen(Request(f"{url}/api/v2/sessions", body, headers), timeout=10) as answer:
            session_id = json.loads(answer.read())["id"]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert process.returncode == 0, errors
    assert f"{session_id}: completed; calls: none; broken rules: none" in rest


@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    result = run("simulate", "--port", port)
    assert result.exit_code == 2
    assert f"{port} is not in the range 0<=x<=65535" in result.stderr


def test_a_port_that_is_taken_is_one_clear_line() -> None:
    with provider() as url:
        port = url.split(":")[2].split("/")[0]
        assert_one_clear_line(run("simulate", "--port", port), f"port {port}")


@contextmanager
def simulate(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command in a process of its own, and the address it prints."""
    command = [sys.executable, "-m", "bridge", "simulate", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        announced = process.stdout.readline()
        yield announced.split(" at ")[1].split()[0], process
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.mark.slow
def test_two_sessions_at_once_are_summed_up_and_ctrl_c_ends_it_with_0() -> None:
    async def talk(url: str) -> None:
        loops = (DocumentedLoop(SCENARIOS["weather"].tools, 0.05).converse(url) for _ in range(2))
        async with asyncio.timeout(20):
            await asyncio.gather(*loops)

    with simulate("--scenario", "weather", "--pace", "0.05") as (url, process):
        asyncio.run(talk(url))
        assert process.stdout is not None
        summaries = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
    assert process.returncode == 0
    assert errors == ""
    assert rest == "Ended.\n"
    for summary in summaries:
        assert "ended by provider; 2 replies, 0 cut short; 1 call: 1 answered, 0 given up" in summary
        assert "answers at the wrong moment: 0, repeated or unknown: 0; broken rules: none" in summary


@pytest.mark.slow
def test_a_session_that_is_open_when_it_ends_is_summed_up_too() -> None:
    async def interrupt(url: str, process: subprocess.Popen[str]) -> tuple[str, str]:
        async with asyncio.timeout(20), connect(url) as socket:
            await socket.send(json.dumps({"type": "session.update", "session": {}}))
            while json.loads(await socket.recv())["type"] != "session.ready":
                pass
            process.send_signal(signal.SIGINT)
            return await asyncio.to_thread(process.communicate, None, 10)

    with simulate("--pace", "0.1") as (url, process):
        output, errors = asyncio.run(interrupt(url, process))
    assert process.returncode == 0
    assert "still open; 0 replies" in output
    assert "Traceback" not in errors
