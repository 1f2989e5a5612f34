from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bridge import check as checking
from bridge.advice import NO_TOOLS, PROVIDERS, advice
from bridge.attach.plan import Plan
from bridge.attach.providers import Provider
from bridge.check import Report, check
from bridge.cli.check import check_command
from bridge.dialects import DIALECTS
from bridge.errors import ConfigError
from bridge.relay.settings import Limits, Route, Upstream
from bridge.tools.policy import Example
from bridge.tools.source import Changed
from bridge.tools.tool import Tool, Toolset
from bridge.tools.webhook import HttpSource
from tests.sockets import listening

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent
CLOSED = "ws://127.0.0.1:1"  # nobody may listen there without being root


def sound() -> Toolset:
    tools = Toolset()

    @tools.tool(effect="read")
    def now() -> str:
        """The time of day."""
        return "noon"

    return tools


def route(url: str = CLOSED, **options: Any) -> Route:
    return Route(upstream=Upstream(dialect=DIALECTS["assemblyai"], url=url, **options))


async def offline(tools: Toolset, *providers: str) -> Report:
    return await check(tools, [route()], Limits(), providers=providers, offline=True)


# ------------------------------------------------------------------------------------------------------------ the tools


async def test_sound_tools_are_seen_as_the_configured_provider_will_see_them() -> None:
    report = await offline(sound())
    assert (report.errors, report.warnings) == ([], [])
    (view,) = report.views
    assert view.provider == "assemblyai"
    assert view.tools == (
        {
            "name": "now",
            "description": "The time of day.",
            "parameters": {"type": "object", "properties": {}},
            "wait_seconds": 16.0,
        },
    )
    assert view.size == len(json.dumps(view.tools, separators=(",", ":")))


async def test_every_provider_that_is_known_can_be_asked_for() -> None:
    report = await offline(sound(), *PROVIDERS)
    assert [view.provider for view in report.views] == list(PROVIDERS)
    assert report.errors == []


async def test_that_there_are_no_tools_is_a_warning_unless_they_are_not_looked_at() -> None:
    report = await offline(Toolset())
    assert (report.errors, report.warnings) == ([], [NO_TOOLS])
    unseen = await check(Toolset(), [route()], Limits(), [HttpSource([])], offline=True)
    assert NO_TOOLS not in unseen.warnings


async def test_what_a_provider_cannot_be_told_is_a_warning_with_its_name() -> None:
    tools = Toolset()

    @tools.tool(timeout=130)
    def find(pair: tuple[int, str] = (1, "a")) -> None:
        """Finds.

        Args:
            pair: A pair
        """

    report = await offline(tools, "elevenlabs", "assemblyai", "openai-realtime")
    assert report.warnings == [
        "elevenlabs: find: it may take 135 s, its wait for a free slot included; the provider waits 120 s",
        "elevenlabs: find: pair: which of its items is what is not told",
    ]


async def test_a_name_that_the_configured_provider_refuses_is_an_error_and_elsewhere_a_warning() -> None:
    tools = Toolset()
    tools.tool(lambda: 1, name="aai_pre_connect_context", description="x")
    tools.tool(lambda: 1, name="3d", description="x")
    report = await offline(tools, "assemblyai", "gemini-live")
    assert report.errors == [
        "tool aai_pre_connect_context: assemblyai does not take such a name; pass another name=..."
    ]
    assert report.warnings == ["gemini-live: 3d is no name for a tool there; give it another one"]


async def test_what_the_configured_provider_cannot_express_is_an_error() -> None:
    tools = Toolset()
    tools.tool(lambda: 1, name="quiet", description="x", reply=False)
    assert "tool quiet: reply=False cannot be had" in (await offline(tools)).errors[0]


# ------------------------------------------------------------------------------------- sessions that run already


def plan(dialect: str, url: str = "http://127.0.0.1:1", key: str | None = "k") -> Plan:
    return Plan(provider=Provider(dialect=dialect, url=url, api_key=key))


async def test_tools_are_seen_as_the_providers_will_whose_sessions_are_attached_to() -> None:
    tools = sound()
    tools.tool(lambda: 1, name="hang_up", description="x", effect="terminal")
    attach = [plan("herm"), plan("openai-sessions"), plan("hcompany"), plan("herm", "http://127.0.0.1:2")]
    report = await check(tools, [route()], Limits(), attach=attach, offline=True)
    seen = {view.provider: [tool["name"] for tool in view.tools] for view in report.views}
    assert seen == {
        "assemblyai": ["now", "hang_up"],
        "herm": ["now"],
        "openai-sessions": ["now"],
        "hcompany": ["now"],
    }
    assert report.errors == []
    assert [line.partition(", since")[0] for line in report.warnings] == [
        f"{name}: left out of its sessions: tool hang_up: cannot start after its reply"
        for name in ("herm", "openai-sessions", "hcompany")
    ]


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"timeout": 290}, []),
        (
            {"timeout": 299},
            ["herm: find: it may take 304 s, its wait for a free slot included; the provider waits 300 s"],
        ),
        ({"timeout": 3600, "answer_within": 20}, []),
        (
            {"timeout": 3600, "answer_within": 301},
            ["herm: find: it may take 301 s, its wait for a free slot included; the provider waits 300 s"],
        ),
        (
            {"approval": "always_ask", "approval_timeout": 300},
            ["herm: find: it may take 315 s, its wait for a free slot included; the provider waits 300 s"],
        ),
    ],
)
async def test_a_call_that_herm_does_not_wait_for_is_warned_about(options: dict[str, Any], warned: list[str]) -> None:
    tools = Toolset()
    tools.tool(lambda: 1, name="find", description="x", **options)
    report = await check(tools, [], Limits(), attach=[plan("herm")], offline=True)
    assert report.warnings == warned


async def test_without_a_key_nothing_can_be_attached_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HERM_API_KEY", raising=False)
    report = await check(sound(), [route()], Limits(), attach=[plan("herm", url="", key=None)], offline=True)
    assert report.errors == ["attach: no API key for herm: set the environment variable HERM_API_KEY"]
    assert [view.provider for view in report.views] == ["assemblyai"]


async def test_a_provider_that_cannot_be_reached_is_a_warning() -> None:
    report = await check(sound(), [], Limits(), attach=[plan("hcompany"), plan("herm", "https://127.0.0.1")])
    assert sorted(line.partition(": cannot")[0] for line in report.warnings) == [
        "127.0.0.1, port 1",
        "127.0.0.1, port 443",
    ]


def test_the_command_looks_at_what_is_attached_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERM_API_KEY", "k")
    path = tmp_path / "bridge.toml"
    path.write_text("[[attach]]\ndialect = 'herm'\nsessions = ['s']\n")
    result = CliRunner().invoke(check_command, [str(path), "--offline", "--json"])
    assert list(json.loads(result.stdout)["providers"]) == ["assemblyai", "herm"]


def test_definitions_that_are_long_to_read_are_warned_about() -> None:
    tools = Toolset()
    tools.tool(lambda: 1, name="f", description="x" * 20_000)
    assert advice(tools) == ["the definitions come to 20 KiB, read before each reply; shorten them"]


def test_examples_that_do_not_fit_are_warned_about() -> None:
    tools = Toolset()
    examples = (Example({"x": 1}), Example({"x": "hunter2"}), Example({"caller": "me"}))

    @tools.tool(examples=examples, hidden={"caller": "caller_number"})
    def find(x: int, caller: str) -> None:
        """Finds.

        Args:
            x: A number
            caller: A number
        """

    second, third = advice(tools)
    assert second.startswith("find: example 2 does not fit: x: should be a valid integer")
    assert third.startswith("find: example 3 does not fit: x is missing")
    assert "hunter2" not in second


# ---------------------------------------------------------------------------------------------------------- the sources


@dataclass
class Shop:
    """A source of tools that can be told what to offer."""

    name: str = "shop"
    offer: Sequence[Tool] = ()
    reason: str = ""
    fails: str = ""
    closed: bool = False

    def open(self, changed: Changed, /) -> AbstractAsyncContextManager[Sequence[Tool]]:
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Sequence[Tool]]:
        if self.fails:
            raise ConfigError(self.fails)
        yield self.offer
        self.closed = True


async def sourced(*sources: Shop, tools: Mapping[str, Tool] | None = None, connect: bool = True) -> Report:
    return await check(
        Toolset((tools or {}).values()), [], Limits(), sources, providers=["deepgram"], offline=not connect
    )


async def test_the_tools_of_sources_are_seen_and_the_sources_are_closed_again() -> None:
    first, second = Shop(offer=tuple(sound().values())), Shop("other", reason="its server restarts")
    report = await sourced(first, second)
    assert [tool["name"] for tool in report.views[0].tools] == ["now"]
    assert report.warnings == ["other: its server restarts"]
    assert first.closed
    assert second.closed


async def test_every_source_that_cannot_be_opened_is_an_error() -> None:
    report = await sourced(Shop(fails="one\ntwo"), Shop("mcp", fails="mcp: no such program"))
    assert sorted(report.errors) == ["mcp: no such program", "shop: one", "shop: two"]


async def test_a_name_that_two_sources_offer_is_an_error() -> None:
    tools = sound()
    report = await sourced(Shop(offer=tuple(tools.values())), tools=tools)
    assert report.errors[0].startswith("two tools are called now")


async def test_offline_no_source_is_opened_and_that_is_said() -> None:
    shop = Shop(offer=tuple(sound().values()))
    report = await sourced(shop, connect=False)
    assert report.warnings == ["offline: the tools of shop are not looked at"]
    assert report.views[0].tools == ()
    assert not shop.closed


# -------------------------------------------------------------------------------------------------------- the upstreams


@asynccontextmanager
async def greeting_all(greeting: bytes = b"") -> AsyncIterator[tuple[str, asyncio.Queue[str]]]:
    """A port that takes connections, and what comes of each."""
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.put_nowait("came")
        writer.write(greeting)
        said = await reader.read()
        heard.put_nowait("left in silence" if not said else "said something")

    async with listening(greet) as port:
        yield f"127.0.0.1:{port}", heard


async def reached(url: str, **options: Any) -> list[str]:
    report = await check(sound(), [route(url, **options), route(url, **options)], Limits())
    assert report.errors == []
    return report.warnings


async def test_an_upstream_is_connected_to_once_and_hears_nothing() -> None:
    async with asyncio.timeout(20), greeting_all() as (address, heard):
        assert await reached(f"ws://{address}/v1") == []
        assert [await heard.get(), await heard.get()] == ["came", "left in silence"]
        assert heard.empty()


async def test_an_upstream_that_cannot_be_reached_is_a_warning() -> None:
    (line,) = await reached(CLOSED)
    assert line.startswith("127.0.0.1, port 1: cannot be reached: ")
    assert line.endswith("check the url and the network")


async def test_an_upstream_that_speaks_no_tls_is_a_warning() -> None:
    async with greeting_all(b"HTTP/1.1 400 Bad Request\r\n\r\n") as (address, _):
        (line,) = await reached(f"wss://{address}", tls=ssl.create_default_context())
    assert "no secure connection" in line


async def test_an_upstream_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_PATIENCE", 0.05)
    async with greeting_all() as (address, _):
        (line,) = await reached(f"wss://{address}", tls=ssl.create_default_context())
    assert "no answer within 0.05 s" in line


async def test_an_address_that_is_none_is_an_error() -> None:
    report = await check(sound(), [route("http://example.org")], Limits())
    assert report.errors == ["the url of an upstream must be a WebSocket address: wss://host/path"]


# ---------------------------------------------------------------------------------------------------------- the command

TOOLS = """
from bridge import Toolset

tools = Toolset()

@tools.tool
def find(place: str, days: int | None = None) -> str:
    '''Finds.'''
    return place
"""


def config(path: Path, text: str = "") -> Path:
    (path / "my_tools.py").write_text(TOOLS)
    file = path / "bridge.toml"
    file.write_text(f'[upstream]\nurl = "{CLOSED}"\n[tools]\npython = ["my_tools.py"]\n{text}')
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(check_command, list(map(str, arguments)))


@pytest.mark.parametrize("name", ["openai-sessions", "openai_sessions"])
def test_a_provider_is_spelled_as_in_all_commands(tmp_path: Path, name: str) -> None:
    result = run(config(tmp_path), "--provider", name, "--offline")
    assert (result.exit_code, result.stdout.partition(":")[0]) == (0, "openai-sessions")


def test_an_unknown_provider_is_told_those_there_are(tmp_path: Path) -> None:
    result = run(config(tmp_path), "--provider", "nobody", "--offline")
    assert result.exit_code == 2
    assert "'openai-sessions'" in result.stderr


def test_the_command_shows_every_tool_and_warns(tmp_path: Path) -> None:
    result = run(config(tmp_path), "--provider", "gemini_live", "--provider", "assemblyai", "--offline")
    assert result.exit_code == 0
    assert "gemini-live: 1 tool, " in result.stdout
    assert "place: string" in result.stdout
    assert "days?: integer or null" in result.stdout
    assert "16 s" in result.stdout
    assert result.stderr.splitlines() == [
        "warning: find: parameter place has no description",
        "warning: find: parameter days has no description",
    ]
    assert result.stdout.endswith("0 errors, 2 warnings\n")


def test_the_command_connects_unless_told_not_to(tmp_path: Path) -> None:
    result = run(config(tmp_path))
    assert result.exit_code == 0
    assert "warning: 127.0.0.1, port 1: cannot be reached" in result.stderr


def test_json_holds_everything(tmp_path: Path) -> None:
    result = run(config(tmp_path), "--json", "--all", "--offline")
    found = json.loads(result.stdout)
    assert result.stderr == ""
    assert found["errors"] == []
    assert len(found["warnings"]) == 2
    assert found["providers"].keys() == PROVIDERS.keys()
    gemini = found["providers"]["gemini-live"]
    assert gemini["tools"][0]["parameters"]["properties"]["days"] == {"type": "integer", "nullable": True}
    assert gemini["bytes"] > 100


def test_all_that_is_wrong_is_said_at_once_and_the_exit_code_is_1(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(TOOLS + "\n@tools.tool\ndef f(x): ...\n@tools.tool\ndef g(x): ...\n")
    file = config(tmp_path, "[lmits]\n[listen]\nport = 99999\n")
    file.write_text(file.read_text().replace("my_tools.py", "broken.py"))
    result = run(file)
    assert result.exit_code == 1
    assert [line.partition(": ")[0] for line in result.stderr.splitlines()] == ["error"] * 4
    assert "4 errors, 0 warnings" in result.stdout
    assert json.loads(run(file, "--json").stdout)["errors"][0] in result.stderr


def test_an_error_in_the_tools_gives_exit_code_1(tmp_path: Path) -> None:
    file = config(tmp_path)
    (tmp_path / "my_tools.py").write_text(TOOLS.replace("def find", "def aai_pre_connect_context"))
    result = run(file, "--offline")
    assert result.exit_code == 1
    assert "error: tool aai_pre_connect_context: assemblyai does not take such a name" in result.stderr


def test_an_unknown_provider_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    result = run(config(tmp_path), "--provider", "nobody")
    assert result.exit_code == 2
    assert "elevenlabs" in result.stderr


@pytest.mark.slow
def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pydantic_settings'] = None\nfrom bridge.cli.check import check_command as c\nc(['x'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr == "Error: pydantic_settings is missing: pip install 'voice-tool-bridge[cli,sidecar]'\n"
