"""Calls about which the provider itself asks before it makes them: whoever may decide about our tools decides.

    asked --> WAITS --> ALLOWED, DENIED
                \\----> ELSEWHERE: decided by others, or not wanted any more

A decision counts once, and for this call with these arguments: what the provider calls later under the same id, and is
another, is not run; nor is what was denied. Where nobody could decide, the answer is no. An approval orders nothing: a
tool of ours runs when it is called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Never, Protocol

from ..core.events import ApprovalAnswer, CallKey, ToolCall, ToolSpec
from ..core.messages import decode
from ..errors import ToolError
from ..tools.tool import CallContext, Tool

__all__ = ["Asking", "Consent"]


class Asking(Protocol):
    """Whoever may decide about tools here: `Approvals`, or what reaches them on another event loop."""

    async def ask(self, tool: Tool, arguments: Mapping[str, Any], context: CallContext) -> None:
        """As `Approvals.ask`."""
        ...


class _State(Enum):
    WAITS = "waits to be decided"
    ALLOWED = "allowed"
    DENIED = "denied"
    ELSEWHERE = "decided by others"


@dataclass(slots=True, eq=False)
class _Asked:
    call: ToolCall
    state: _State = _State.WAITS
    task: asyncio.Task[None] | None = None


class Consent:
    """What the provider of one session has asked since the end of its latest reply."""

    def __init__(
        self,
        approvals: Asking | None,
        context: Callable[[CallKey, str], CallContext],
        tell: Callable[[ApprovalAnswer], None],
    ) -> None:
        """`tell` hears of every decision that the provider is to be given; without `approvals` all are no."""
        self._approvals = approvals
        self._context = context
        self._tell = tell
        self._asked: dict[str, _Asked] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def asked(self, call: ToolCall, tool: Tool | None) -> None:
        """The provider asks whether it may make this call; once more is nothing new. `tool` is ours, if it is one."""
        if call.call_id in self._asked:
            return
        asked = self._asked[call.call_id] = _Asked(call)
        asked.task = asyncio.get_running_loop().create_task(self._decide(asked, tool or _FOREIGN))
        self._tasks.add(asked.task)
        asked.task.add_done_callback(self._tasks.discard)

    async def _decide(self, asked: _Asked, tool: Tool) -> None:
        key = CallKey(0, asked.call.call_id)
        arguments = _read(asked.call.arguments)
        asked.state = _State.DENIED
        if self._approvals is not None and arguments is not None:
            asked.state = _State.WAITS
            try:
                await self._approvals.ask(tool, arguments, self._context(key, asked.call.name))
                asked.state = _State.ALLOWED
            except ToolError:
                asked.state = _State.DENIED
        self._tell(ApprovalAnswer(key.call_id, asked.state is _State.ALLOWED))

    def answered(self, answer: ApprovalAnswer) -> None:
        """The provider is told this, by whomever."""
        asked = self._asked.get(answer.call_id)
        if asked is not None and asked.state is _State.WAITS:
            _withdraw(asked)
            asked.state = _State.ALLOWED if answer.allowed else _State.DENIED

    def forbids(self, call: ToolCall) -> bool:
        """Must this call not be run? Somebody else may have decided about it meanwhile."""
        asked = self._asked.get(call.call_id)
        if asked is None:
            return False
        if asked.state is _State.WAITS:
            _withdraw(asked)
        same = call.name == asked.call.name and _read(call.arguments) == _read(asked.call.arguments)
        return asked.state is _State.DENIED or not same

    def over(self) -> None:
        """The reply has ended, or the session: nobody wants to know any more."""
        for asked in self._asked.values():
            if asked.state is _State.WAITS:
                _withdraw(asked)
        self._asked.clear()

    async def aclose(self) -> None:
        """Withdraw what waits."""
        self.over()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _withdraw(asked: _Asked) -> None:
    asked.state = _State.ELSEWHERE
    if asked.task is not None:
        asked.task.cancel()


def _read(arguments: str) -> dict[str, Any] | None:
    """None for what is no object: nobody can say yes to that."""
    try:
        value = decode(arguments)
    except json.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _never(*_: str | Mapping[str, Any] | CallContext) -> Never:
    raise AssertionError("a tool of the provider's runs there")


_FOREIGN: Final = Tool(spec=ToolSpec("of_the_provider"), invoke=_never, check=_never)
"""Stands for every tool of the provider's own, whatever its name: it is asked about, and never called here."""
