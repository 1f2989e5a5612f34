"""A span of OpenTelemetry for every tool call, where its API is installed (extra `tracing`); what a tool does is in it.

Names and attributes are those of OpenTelemetry's conventions for generative AI. Where no SDK is set up, as its own
documentation has it, nothing is recorded and nothing is spent. Arguments appear only if a tool opts in by field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from ..core.events import ToolCall
from ..tools.tool import CallContext

try:
    from opentelemetry import trace
except ImportError:  # the extra "tracing"
    trace = None  # type: ignore[assignment]  # tested for before every use

__all__ = ["Notes", "span"]


class Notes:
    """What is said about a call once it is over."""

    def __init__(self) -> None:
        self.outcome = ""
        self.failed = False
        self.arguments = ""
        """Those that may be shown, as JSON text; else empty."""


@contextmanager
def span(name: str, call: ToolCall, context: CallContext) -> Iterator[Notes]:
    """The span of one call. What is noted within is recorded at its end."""
    notes = Notes()
    if trace is None or isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):  # nobody records anything
        yield notes
        return
    about: Mapping[str, str] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.call_id,
        "gen_ai.conversation.id": context.session_id,
    }
    with trace.get_tracer("bridge").start_as_current_span(
        f"execute_tool {name}", attributes=about, record_exception=False, set_status_on_exception=False
    ) as current:
        yield notes
        current.set_attribute("bridge.tool.outcome", notes.outcome)
        if notes.arguments:
            current.set_attribute("gen_ai.tool.call.arguments", notes.arguments)
        if notes.failed:
            current.set_attribute("error.type", notes.outcome)
            current.set_status(trace.StatusCode.ERROR)
