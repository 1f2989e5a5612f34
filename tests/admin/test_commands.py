"""`approvals` and `calls`, as an operator types them, against a port that is there, and ports that are not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bridge.admin import listening
from bridge.cli import cli
from bridge.cli.remote import shown
from tests.admin.rig import ALL, Port, desk, served

pytestmark = pytest.mark.anyio


async def typed(port: Port, *words: str, token: str = ALL, stdin: str = "") -> Result:
    """What a command comes to that is typed with this token in the environment."""
    environment = {"BRIDGE_ADMIN_TOKEN": token, "BRIDGE_ADMIN_URL": port.url}
    return await asyncio.to_thread(CliRunner().invoke, cli, words, env=environment, input=stdin)


@pytest.mark.slow
async def test_calls_are_listed_completed_and_failed() -> None:
    async with desk(at=served) as (host, port):
        assert (await typed(port, "calls", "list")).output == "No call waits for a result.\n"
        first, second = await host.parked("a/b"), await host.parked("c")
        listed = await typed(port, "calls", "list")
        assert first in listed.output
        assert second in listed.output
        done = await typed(port, "calls", "complete", first, '{"shipped": true}')
        assert (done.exit_code, done.output) == (0, f"{first}: completed.\n")
        again = await typed(port, "calls", "complete", first, "-", stdin='{"shipped":true}\n')
        assert again.output == f"{first}: completed, as had been said before.\n"
        failed = await typed(port, "calls", "fail", second, "It is lost.")
        assert (failed.exit_code, failed.output) == (0, f"{second}: failed.\n")
        conflict = await typed(port, "calls", "fail", first, "It is lost.")
        assert conflict.exit_code == 1
        assert "another answer has been given before, and stands: this one is not used (HTTP 409)" in conflict.output
        assert (await host.over(first)).result.output == '{"shipped":true}'


@pytest.mark.slow
async def test_approvals_are_listed_approved_and_denied() -> None:
    async with desk(at=served) as (host, port):
        assert (await typed(port, "approvals", "list")).output == "No call waits to be approved.\n"
        first, second = await host.asking("a1"), await host.asking("a2")
        listed = (await typed(port, "approvals", "list")).output
        assert re.search(rf"{first}.*refund.*\(masked\).*s1.*\d+ s", listed)
        assert "4711471147114711" not in listed
        approved = await typed(port, "approvals", "approve", first, "--by", "Ann")
        assert (approved.exit_code, approved.output) == (0, f"{first} is approved, by Ann.\n")
        denied = await typed(port, "approvals", "deny", second, "--reason", "too much")
        assert denied.output == f"{second} is denied, by all.\n"
        late = await typed(port, "approvals", "deny", first)
        assert (late.exit_code, "already decided: approve, by Ann (HTTP 409)" in late.output) == (1, True)


@pytest.mark.slow
async def test_a_token_that_is_missing_is_said_with_where_it_is_taken_from() -> None:
    async with desk(at=served) as (_, port):
        refused = await typed(port, "calls", "list", token="")
    assert refused.exit_code == 1
    assert "here it is taken from the environment variable BRIDGE_ADMIN_TOKEN (HTTP 401)" in refused.output


async def test_a_port_where_nobody_listens_is_said() -> None:
    with socket.socket() as bound:  # and nobody else can listen there meanwhile
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        result = CliRunner().invoke(cli, ["calls", "list", "--url", url])
    assert result.exit_code == 2
    assert "does the sidecar run, and is --url its admin port?" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/calls", "/elsewhere"])
async def test_a_port_of_somebody_else_is_said(path: str) -> None:
    async def hello(_: object) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async with listening(Starlette(routes=[Route(path, hello)]), "127.0.0.1", 0) as number:
        url = f"http://127.0.0.1:{number}"
        result = await asyncio.to_thread(CliRunner().invoke, cli, ["calls", "list", "--url", url])
    assert result.exit_code != 0
    assert "this is not the admin port of a sidecar; see --url" in result.output


@pytest.mark.parametrize("url", ["127.0.0.1:9090", "ftp://host", "http://"])
def test_an_address_that_is_none_is_said(url: str) -> None:
    result = CliRunner().invoke(cli, ["approvals", "list", "--url", url])
    assert (result.exit_code, "this is no address" in result.output) == (2, True)


def test_an_output_that_is_no_json_is_said_before_anybody_is_asked() -> None:
    result = CliRunner().invoke(cli, ["calls", "complete", "k", "done"])
    assert result.exit_code == 2
    assert "the output is not JSON" in result.output


def test_a_name_that_would_move_the_cursor_is_shown_as_text() -> None:
    assert shown("order") == "order"
    assert shown("\x1b[2J") == '"\\u001b[2J"'


README = (Path(__file__).parents[2] / "README.md").read_text()
CURLS = [line for line in README.partition("### Over HTTP")[2].partition("###")[0].splitlines() if line[:5] == "curl "]


def test_the_readme_shows_what_can_be_asked_with_curl() -> None:
    assert len(CURLS) == 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_the_lines_with_curl_in_the_readme_work() -> None:
    async with desk(at=served) as (host, port):
        for number, line in enumerate(CURLS):
            key, request = await host.parked(f"c{number}"), await host.asking(f"a{number}")
            environment = {"port": port.url, "token": f"Authorization: Bearer {ALL}", "key": key, "id": request}
            command = line.replace("curl ", "curl --silent --max-time 2 ", 1)
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_shell(command, stdout=pipe, env={**os.environ, **environment})
            said = (await process.communicate())[0].decode()
            if "/facts" in line:
                assert said == ": open\n\n"
            else:
                assert "error" not in json.loads(said) or json.loads(said)["status"] in ("completed", "failed"), said
