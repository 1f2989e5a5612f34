"""One tool and nothing else, on the real clock: through all that a call passes in a session, but its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Literal

from ..core.events import CallKey, ToolCall
from ..runner.runner import Finished, Outcome, Runner
from ..tools.encode import decode, encode
from ..tools.policy import NOT_GIVEN, Example
from ..tools.tool import CallContext, Tool

__all__ = ["Asked", "check_examples", "run_tool"]

Asked = Literal["progress", "say", "end"]
"""What a tool asks of its session: to note its progress, to have the agent speak, to end."""

_ID = "trial"


def _to_nobody(asked: Asked, text: str) -> None:
    """For whoever does not care what the tool asks."""


async def run_tool(
    tools: Mapping[str, Tool],
    name: str,
    arguments: Mapping[str, Any] | str = "{}",
    *,
    metadata: Mapping[str, Any] | None = None,
    asked: Callable[[Asked, str], None] = _to_nobody,
) -> Finished:
    """Call a tool as a session would: its arguments checked, its limits kept, its result encoded.

    `arguments` as an object, or as the JSON text that a model sends; `metadata` is what the tool finds in its
    `CallContext`. `asked` hears on this event loop what the tool asks of its session. Nothing is raised for what goes
    wrong: see the `outcome`. What `finished.result.output` holds is JSON text.
    """
    text = arguments if isinstance(arguments, str) else encode(dict(arguments))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Finished] = loop.create_future()

    def tell(what: Asked, text: str) -> None:
        loop.call_soon_threadsafe(asked, what, text)

    def report(finished: Finished) -> None:
        if not done.done():  # else whoever asked has gone
            done.set_result(finished)

    context = CallContext(
        session_id=_ID,
        key=CallKey(0, _ID),
        tool=name,
        metadata=metadata or {},
        progress=lambda text: tell("progress", text),
        say=lambda text: tell("say", text),
        end_session=lambda reason="": tell("end", reason),
    )
    with closing(Runner()) as runner:
        calls = runner.session()
        calls.start(context.key, ToolCall(_ID, name, text), tools.get(name), tools, context, report)
        try:
            return await done
        finally:
            await calls.aclose(1.0)


async def check_examples(tools: Mapping[str, Tool], *, metadata: Mapping[str, Any] | None = None) -> int:
    """Run the examples of all tools; how many there were. Raises `AssertionError` with all that did not come out."""
    examples = [(name, example) for name, tool in tools.items() for example in tool.examples]
    faults: list[str] = []
    for name, example in examples:
        finished = await run_tool(tools, name, example.arguments, metadata=metadata)
        if fault := _fault(example, finished):
            faults.append(f"{name}({encode(dict(example.arguments))}): {fault}")
    if faults:
        raise AssertionError("\n".join(faults))
    return len(examples)


def _fault(example: Example, finished: Finished) -> str:
    """What is not as the example has it."""
    if finished.outcome is not Outcome.OK:
        return f"{finished.outcome.value}: {finished.result.output}"
    if example.result is NOT_GIVEN:
        return ""
    expected = encode(example.result)
    if decode(expected) == decode(finished.result.output):
        return ""
    return f"expected {expected}, got {finished.result.output}"
