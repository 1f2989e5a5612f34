"""A span for every tool call, recorded by the real SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bridge import ToolError, Toolset
from bridge.core.events import CallKey, ToolCall
from bridge.runner.runner import Finished, Runner
from bridge.tools import CallContext

pytestmark = pytest.mark.anyio

_EXPORTER = InMemorySpanExporter()


@pytest.fixture
def exported() -> InMemorySpanExporter:
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        trace.set_tracer_provider(provider)
    _EXPORTER.clear()
    return _EXPORTER


async def run(tools: Toolset, arguments: str) -> None:
    runner = Runner()
    calls, over = runner.session(), asyncio.Event()
    key, name = CallKey(0, "c1"), next(iter(tools))

    def report(finished: Finished) -> None:
        over.set()

    context = CallContext(session_id="s1", key=key, tool=name)
    calls.start(key, ToolCall("c1", name, arguments), tools[name], tools, context, report)
    async with asyncio.timeout(20):
        await over.wait()
    await calls.aclose(1)
    runner.close()


def only(exported: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = [span for span in exported.get_finished_spans() if span.name == name]
    return found


async def test_a_call_is_a_span_by_the_names_of_the_convention(exported: InMemorySpanExporter) -> None:
    tools = Toolset()

    @tools.tool
    async def look(city: str) -> str:
        return city

    await run(tools, '{"city":"Oslo"}')
    span = only(exported, "execute_tool look")
    assert span.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": "s1",
        "bridge.tool.outcome": "ok",
    }
    assert "Oslo" not in span.to_json()


async def test_what_a_tool_traces_is_inside_its_span_also_in_a_thread(exported: InMemorySpanExporter) -> None:
    tools = Toolset()

    @tools.tool
    def look() -> None:
        with trace.get_tracer("test").start_as_current_span("inner"):
            pass

    await run(tools, "")
    outer, inner = only(exported, "execute_tool look"), only(exported, "inner")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id


async def test_a_failure_is_marked_and_its_text_is_not_recorded(exported: InMemorySpanExporter) -> None:
    tools = Toolset()

    @tools.tool
    async def look() -> None:
        raise ToolError("the secret number is 4111111111111111")

    await run(tools, "")
    span = only(exported, "execute_tool look")
    assert span.attributes is not None
    assert (span.attributes["error.type"], span.status.status_code) == ("error", trace.StatusCode.ERROR)
    assert "4111111111111111" not in span.to_json()


async def test_an_argument_is_recorded_if_the_tool_says_so(exported: InMemorySpanExporter) -> None:
    tools = Toolset()

    @tools.tool(log_arguments=("city",))
    async def look(city: str, card: str) -> None: ...

    await run(tools, '{"city":"Oslo","card":"4111111111111111"}')
    span = only(exported, "execute_tool look")
    assert span.attributes is not None
    assert span.attributes["gen_ai.tool.call.arguments"] == '{"city":"Oslo"}'
    assert "4111111111111111" not in span.to_json()


@pytest.mark.slow
def test_without_the_package_calls_run_as_ever() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from bridge.core.events import CallKey, ToolCall
from bridge.tools import CallContext
from bridge.runner.tracing import span
with span("look", ToolCall("c1", "look"), CallContext(session_id="s", key=CallKey(0, "c1"), tool="look")) as notes:
    notes.outcome = "ok"
print(notes.outcome)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "ok\n"
