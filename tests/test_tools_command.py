"""`tools list`, and `tools call`: one tool is really called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bridge.cli import cli

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "my_tools.py"

TOOLS = """
import time
from bridge import CallContext, ToolError, Toolset

tools = Toolset()

@tools.tool
async def greet(call: CallContext, name: str = "you") -> dict:
    '''Greets.'''
    call.progress("clearing the throat")
    call.say("Ahem.")
    return {"hello": name, "by": call.metadata.get("by"), "all": dict(call.metadata)}

@tools.tool
def leave(call: CallContext) -> None:
    '''Leaves.'''
    call.end_session("bye")

@tools.tool(timeout=0.05)
async def fail(call: CallContext, how: str) -> str:
    '''Fails.'''
    if how == "say":
        raise ToolError("not today")
    import asyncio
    await asyncio.sleep(60)
    return ""
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS)
    return tmp_path / "mine.py"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["tools", *map(str, arguments)])


def called(file: Path, *arguments: str) -> Result:
    return run("call", *arguments, "--tools", file)


def assert_unusable(result: Result, *words: str) -> None:
    assert result.exit_code == 2
    assert result.stdout == ""
    assert all(word in result.stderr for word in words), result.stderr


# ---------------------------------------------------------------------------------------------------------------- list


@pytest.mark.parametrize("arguments", [(EXAMPLE,), (EXAMPLE, "--json"), ("--json", EXAMPLE)])
def test_a_file_alone_is_listed(arguments: tuple[str | Path, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "opening_hours" in result.stdout
    assert result.stdout == run("list", *arguments).stdout


def test_several_files_are_listed_together(file: Path) -> None:
    result = run("list", EXAMPLE, file, "--json")
    assert [entry["name"] for entry in json.loads(result.stdout)][2:] == ["end_call", "greet", "leave", "fail"]


def test_a_name_that_two_files_use_is_an_error(file: Path, tmp_path: Path) -> None:
    (tmp_path / "again.py").write_text(TOOLS)
    result = run("list", file, tmp_path / "again.py")
    assert result.exit_code == 1
    assert "two tools are called greet" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_without_a_file_it_explains_itself(arguments: tuple[str, ...]) -> None:
    assert "short for: tools list" in run(*arguments).output


# ---------------------------------------------------------------------------------------------------------------- call


def test_a_call_shows_what_the_tool_asks_how_it_ended_and_its_result(file: Path) -> None:
    result = called(file, "greet", '{"name": "Ada"}', "--metadata", "by=me", "--metadata", "x=a=b")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:2] == ["progress: clearing the throat", "to be said: Ahem."]
    assert lines[2].startswith("ok, after 0.")
    assert json.loads("\n".join(lines[3:])) == {"hello": "Ada", "by": "me", "all": {"by": "me", "x": "a=b"}}


def test_arguments_may_be_left_out_and_plain_functions_be_called(file: Path) -> None:
    assert '"hello": "you"' in called(file, "greet").stdout
    result = called(file, "leave")
    assert result.stdout.startswith("to end the session: bye\nok, after ")
    assert result.stdout.endswith("\nnull\n")


def test_a_long_number_is_shown_to_the_last_digit(tmp_path: Path) -> None:
    code = "from bridge import Toolset\ntools = Toolset()\n@tools.tool\ndef big() -> int:\n    return 2**70\n"
    (tmp_path / "big.py").write_text(code)
    assert called(tmp_path / "big.py", "big").stdout.endswith("\n1180591620717411303424\n")
    assert json.loads(called(tmp_path / "big.py", "big", "--json").stdout)["result"] == 2**70


def test_json_is_one_object_with_all_of_it(file: Path) -> None:
    account = json.loads(called(file, "greet", "--json").stdout)
    assert account["outcome"] == "ok"
    assert 0 <= account["seconds"] < 10
    assert account["result"]["hello"] == "you"
    assert account["asked"] == [
        {"what": "progress", "text": "clearing the throat"},
        {"what": "say", "text": "Ahem."},
    ]


@pytest.mark.parametrize(
    ("arguments", "outcome", "said"),
    [
        ('{"how": "say"}', "error", "not today"),
        ('{"how": "late"}', "timeout", "fail did not answer within 0.05 s"),
        ("{}", "invalid", "how is missing"),
        ("[]", "invalid", "object"),
    ],
)
def test_a_call_that_ends_otherwise_ends_the_command_with_1(
    file: Path, arguments: str, outcome: str, said: str
) -> None:
    result = called(file, "fail", arguments, "--json")
    assert result.exit_code == 1
    account = json.loads(result.stdout)
    assert account["outcome"] == outcome
    assert said in account["result"]["error"]


def test_the_tools_of_a_sidecar_can_be_called(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSEMBLYAI_API_KEY", "a-key-for-tests")
    config = tmp_path / "bridge.toml"
    config.write_text(
        '[upstream]\ndialect = "assemblyai"\napi_key_env = "ASSEMBLYAI_API_KEY"\n[tools]\npython = ["mine.py"]\n'
    )
    assert run("call", "greet", "--config", config).stdout.splitlines()[2].startswith("ok")


# -------------------------------------------------------------------------------------------------- what cannot be used


def test_an_unknown_tool_is_refused_with_a_guess(file: Path) -> None:
    assert_unusable(called(file, "great"), "no tool called great; did you mean greet?")
    assert_unusable(called(file, "zzz"), "no tool called zzz; there are greet, leave, fail")


def test_what_is_no_json_is_refused_with_a_hint(file: Path) -> None:
    assert_unusable(called(file, "greet", "{name: Ada}"), "not JSON", "single quotes")


def test_metadata_without_a_value_is_refused(file: Path) -> None:
    assert_unusable(called(file, "greet", "--metadata", "by"), "--metadata by: write it as KEY=VALUE")


@pytest.mark.parametrize("both", [True, False])
def test_it_has_to_be_said_where_the_tools_are(file: Path, both: bool) -> None:
    places: list[str | Path] = ["--tools", file, "--config", file] if both else []
    assert_unusable(run("call", "greet", *places), "--tools my_tools.py, or --config bridge.toml")


def test_a_file_with_a_tool_that_cannot_work_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("from bridge import Toolset\ntools = Toolset()\n@tools.tool\ndef f(x):\n    pass\n")
    assert_unusable(called(tmp_path / "t.py", "f"), "t.py:3", "tool f: ")


def test_settings_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    assert_unusable(run("call", "greet", "--config", tmp_path / "gone.toml"), "gone.toml")


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "bridge.config", raising=False)
    monkeypatch.setitem(sys.modules, "pydantic_settings", None)
    assert_unusable(run("call", "greet", "--config", tmp_path / "x.toml"), "pydantic_settings", "[cli,sidecar]")
