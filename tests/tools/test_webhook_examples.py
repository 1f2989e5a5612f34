"""The examples of HTTP tools, as somebody would run them: the settings, the endpoint in Node, and both verifiers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.tools import Tool
from bridge.tools.webhook import HttpTool, signed

from .webhook_rig import call_context, opened

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")
SECRET = "a-secret-of-the-test"


# ----------------------------------------------------------------------------------------------------------- verifiers

BODY = '{"item":"Stehlampe für Zoë"}'.encode()
NOW = 1767225600
TARGET = "/orders/A%2F1?full=true"
GOOD = {name.lower(): value for name, value in signed(SECRET, NOW, "POST", TARGET, BODY).items()}

CASES: dict[str, tuple[str, str, Mapping[str, str], bytes, float, bool]] = {
    "as it was sent": ("POST", TARGET, GOOD, BODY, NOW + 10, True),
    "by a clock that is a little slow": ("POST", TARGET, GOOD, BODY, NOW - 299, True),
    "with another method": ("DELETE", TARGET, GOOD, BODY, NOW, False),
    "at another endpoint": ("POST", "/orders/A%2F2?full=true", GOOD, BODY, NOW, False),
    "with another query": ("POST", "/orders/A%2F1?full=false", GOOD, BODY, NOW, False),
    "the path moved into the body": ("POST", "/orders", GOOD, TARGET.encode() + b"\n" + BODY, NOW, False),
    "another body": ("POST", TARGET, GOOD, BODY + b" ", NOW, False),
    "another time": ("POST", TARGET, GOOD | {"x-bridge-timestamp": str(NOW + 1)}, BODY, NOW, False),
    "too late": ("POST", TARGET, GOOD, BODY, NOW + 301, False),
    "from the future": ("POST", TARGET, GOOD, BODY, NOW - 301, False),
    "a shorter signature": ("POST", TARGET, GOOD | {"x-bridge-signature": "v1="}, BODY, NOW, False),
    "a signature not in ASCII": ("POST", TARGET, GOOD | {"x-bridge-signature": "v1=" + "é" * 64}, BODY, NOW, False),
    "no signature": ("POST", TARGET, {"x-bridge-timestamp": str(NOW)}, BODY, NOW, False),
    "no time": ("POST", TARGET, {"x-bridge-signature": GOOD["x-bridge-signature"]}, BODY, NOW, False),
    "a time that is no number": ("POST", TARGET, GOOD | {"x-bridge-timestamp": "now"}, BODY, NOW, False),
    "nothing": ("GET", "/", {}, b"", NOW, False),
}


def is_from_bridge() -> Callable[..., bool]:
    spec = importlib.util.spec_from_file_location("verify_signature", EXAMPLES / "verify_signature.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    verify: Callable[..., bool] = module.is_from_bridge
    return verify


@pytest.mark.parametrize("case", CASES)
def test_the_verifier_in_python_lets_in_what_is_signed_and_nothing_else(case: str) -> None:
    *request, now, right = CASES[case]
    assert is_from_bridge()(*request, SECRET, now) is right
    assert not is_from_bridge()(*request, "another secret", now)


def test_without_a_time_of_its_own_the_verifier_takes_the_clock() -> None:
    assert not is_from_bridge()("POST", TARGET, GOOD, BODY, SECRET)


@needs_node
async def test_the_verifier_in_node_says_the_same_in_every_case() -> None:
    script = """
        import { isFromBridge } from "./verify_signature.mjs";
        const [secret, cases] = JSON.parse(process.argv[1]);
        console.log(JSON.stringify(cases.map(([method, url, headers, body, now]) =>
          isFromBridge({ method, url, headers }, Buffer.from(body), secret, now))));
    """
    cases = [(method, url, headers, body.decode(), now) for method, url, headers, body, now, _ in CASES.values()]
    arguments = ("--input-type=module", "-e", script, json.dumps([SECRET, cases]))
    node = await asyncio.create_subprocess_exec(str(NODE), *arguments, cwd=EXAMPLES, stdout=asyncio.subprocess.PIPE)
    said, _ = await asyncio.wait_for(node.communicate(), 20)
    assert dict(zip(CASES, json.loads(said), strict=True)) == {name: right for name, (*_, right) in CASES.items()}


# ------------------------------------------------------------------------------------------------- the endpoint in Node


@asynccontextmanager
async def node_service() -> AsyncIterator[int]:
    """The endpoint on a free port."""
    node = await asyncio.create_subprocess_exec(
        str(NODE),
        "node_service.mjs",
        "0",
        cwd=EXAMPLES,
        env={**os.environ, "SHOP_SECRET": SECRET},
        stdout=asyncio.subprocess.PIPE,
    )
    assert node.stdout is not None
    try:
        line = await asyncio.wait_for(node.stdout.readline(), 20)
        yield int(line.decode().rpartition(":")[2])
    finally:
        node.kill()
        await node.communicate()


@asynccontextmanager
async def tools_of_the_example(port: int) -> AsyncIterator[dict[str, Tool]]:
    text = (EXAMPLES / "http_tools.toml").read_text().replace("127.0.0.1:3000", f"127.0.0.1:{port}")
    tables = tomllib.loads(text)["tools"]["http"]
    async with opened(*(HttpTool.model_validate(table) for table in tables)) as tools:
        yield {tool.spec.name: tool for tool in tools}


@needs_node
async def test_the_tools_of_the_example_work_with_the_endpoint_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    async with node_service() as port, tools_of_the_example(port) as tools:

        async def call(name: str, call_id: str = "c1", **arguments: Any) -> Any:
            context = call_context(call_id)
            context.metadata = {"caller": "+4930123456"}
            try:
                return await tools[name].invoke(tools[name].arguments(json.dumps(arguments), context), context)
            except Exception as error:
                return str(error)

        assert (await call("find_order", order="A-1001"))["state"] == "on its way"
        assert await call("find_order", order="A-1002") == "There is no order of that number."
        assert (await call("find_order", order="../admin")).startswith("order: should match the pattern")
        booking = await call("book_callback", day="2026-03-14", hour="9", phone="0900-666")
        assert booking == {"booking": "C-1", "day": "2026-03-14", "hour": 9, "phone": "+4930123456"}
        assert await call("book_callback", day="2026-03-14", hour=9) == booking
        assert await call("book_callback", "c2", day="2026-03-14", hour=9) == "conflict: That hour is taken already."


@needs_node
async def test_the_endpoint_of_the_example_refuses_what_is_signed_with_another_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "another secret")
    async with node_service() as port, tools_of_the_example(port) as tools:
        with pytest.raises(Exception, match=r"^the request is not signed properly$"):
            await tools["find_order"].invoke({"order": "A-1001"}, call_context())
