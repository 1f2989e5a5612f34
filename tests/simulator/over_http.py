"""A session over HTTP put together from its parts: transport, dialect, conversation, and tools that are functions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bridge.core.conversation import Conversation, Step
from bridge.core.dialect import Message
from bridge.core.events import Run, Send, Sent, ToolFinished, ToolResult, ToolSpec
from bridge.core.http import HttpDialect
from bridge.errors import TransportError
from bridge.simulator.waiting import Changes
from bridge.transports.http import HttpTransport, Patience

QUICK = Patience(first_pause=0.01, longest_pause=0.05, give_up=2.0, confirm_after=0.1)

_Event = TypeVar("_Event")
Tool = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass
class Served:
    """What became of one session: the events that were heard, and the calls that were run, by their ids."""

    events: list[object] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    changes: Changes = field(default_factory=Changes)

    async def heard(self, kind: type[_Event]) -> _Event:
        """Wait for an event of this kind; the first."""
        await self.changes.until(lambda: any(isinstance(event, kind) for event in self.events))
        return next(event for event in self.events if isinstance(event, kind))


async def serve(
    url: str, key: str, dialect: HttpDialect, setup: Message, tools: Mapping[str, Tool], served: Served | None = None
) -> Served:
    """Run the tools of this session until it is over, or cannot be reached any more; `served` tells what happens."""
    served = served or Served()
    conversation = Conversation(dialect, [ToolSpec(name) for name in tools])
    transport = HttpTransport(dialect.endpoint(url, key), dialect, patience=QUICK)
    try:
        await _perform(conversation.from_app(json.dumps(setup)), conversation, transport, tools, served)
        with suppress(TransportError):
            while True:
                step = conversation.from_provider(await transport.receive())
                await _perform(step, conversation, transport, tools, served)
    finally:
        await transport.aclose()
    return served


async def _perform(
    step: Step, conversation: Conversation, transport: HttpTransport, tools: Mapping[str, Tool], served: Served
) -> None:
    served.events.extend(step.events)
    served.changes.notify()
    for command in step.commands:
        match command:
            case Send(frames, keys):
                try:
                    for frame in frames:
                        await transport.send(frame)
                except TransportError:
                    return  # what has been heard before is told yet
                if keys:
                    await _perform(conversation.from_here(Sent(keys)), conversation, transport, tools, served)
            case Run(key, call):
                served.ran.append(call.call_id)
                try:
                    output, failed = json.dumps(await tools[call.name](json.loads(call.arguments))), False
                except Exception as error:
                    output, failed = json.dumps({"error": str(error)}), True
                result = ToolResult(call.call_id, output, failed, name=call.name, echo=call.echo)
                finished = conversation.from_here(ToolFinished(key, result))
                await _perform(finished, conversation, transport, tools, served)
