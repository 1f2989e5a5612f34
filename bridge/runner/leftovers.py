"""What processes have left unfinished that died: brought to an end, so that nothing runs twice or is forgotten.

A call that was started may have happened, or not. A tool that can look (`check_outcome`) is asked, one that may run
again is run again under the same key, and of any other call it is said that nobody knows. One that somebody outside
still works on is left waiting, until its own time is over: see `Waits`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ..core.events import ToolResult
from ..errors import JournalError, ToolError
from ..journal import CallId, Claimed, Granted, Journal, State
from ..tools.encode import encode
from ..tools.tool import CallContext, Parked, Tool
from .durable import may_have_run

__all__ = ["NOT_KNOWN", "Found", "Recovered", "Stands", "died_here", "recover"]

logger = logging.getLogger("bridge.journal")

_STILL_KNOWN = frozenset({"session_id", "call_id", "tool"})
"""Where the value of a hidden parameter may come from, so that it is known after the end of its session."""

_AT_ONCE = 16
"""Sessions that are looked after at once: a tool may take its whole timeout to say what came of a call."""

NOT_KNOWN = "not_known"
"""The outcome of a call of which nobody can say any more whether it ran."""


Stands = Callable[[Claimed, ToolResult, str], Awaitable[tuple[ToolResult, str]]]
"""Tells what stands as the outcome of a call: this one, or another that somebody has left for it."""


class Found(Enum):
    """What was done about a call that was left behind."""

    FINISHED = "was finished, but not told"
    CHECKED = "its outcome was asked for"
    REPEATED = "was run again"
    UNKNOWN = "may or may not have happened"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A call that was left behind. It is orphaned now: its session is gone."""

    claimed: Claimed
    """As it was found."""
    found: Found
    outcome: str
    result: ToolResult | None = field(default=None, repr=False)


def died_here(owner: str, mine: str) -> bool:
    """Is this the name of a process of this machine that lives no more? `mine` names the one that asks.

    Of another machine's processes nobody knows, nor of those of a container that shares only the machine's name.
    """
    host, pid, _ = [*owner.rsplit("/", 2), "", ""][:3]
    here, own, _ = [*mine.rsplit("/", 2), "", ""][:3]
    if owner == mine or host != here or not pid.isdecimal():
        return False
    return pid == own or not _lives(int(pid))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True


async def recover(
    journal: Journal,
    tools: Mapping[str, Tool],
    owner: str,
    *,
    dead: Callable[[str], bool] | None = None,
    session: str | None = None,
    stands: Stands | None = None,
    again: set[CallId] | None = None,
) -> tuple[Recovered, ...]:
    """Bring to an end what processes that have died left unfinished, in one session or in all, and say what that was;
    oldest first.

    Of a call that was started, the tool's check is asked; a repeatable one runs again; any other is concluded as
    `NOT_KNOWN`. One whose outcome may still come from outside is left alone. All the others have lost their sessions.
    `dead` tells by the name of an owner whether it is dead: by default, whether it `died_here`. Sessions are looked
    after side by side, the calls of each in their order. Several may do this at once. Where outcomes may come from
    outside, `stands` has the last word.
    Raises `JournalError`; then call it again, with the same `again`, which keeps what has been taken over by then.
    """
    gone = dead or (lambda name: died_here(name, owner))
    begun = await journal.claims(session=session)
    again = set() if again is None else again
    now = time.time()
    left = [
        each
        for each in begun
        if (each.call in again if each.owner == owner else gone(each.owner) and not each.waits(now))
    ]
    again.difference_update(each.call for each in left)
    sessions: dict[str, list[Claimed]] = {}
    for claimed in left:
        sessions.setdefault(claimed.call.session, []).append(claimed)
    places = asyncio.Semaphore(_AT_ONCE)

    async def look_after(calls: Sequence[Claimed]) -> list[Recovered]:
        async with places:
            try:
                found = [await _recovered(journal, each, tools.get(each.tool), owner, stands) for each in calls]
                recovered = [each for each in found if each is not None]
                await journal.settle([each.claimed.call for each in recovered], State.ORPHANED)
            except JournalError:
                again.update(each.call for each in calls)
                raise
            return recovered

    ends = await asyncio.gather(*map(look_after, sessions.values()), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    by_call = {each.claimed.call: each for end in ends if isinstance(end, list) for each in end}
    return tuple(by_call[claimed.call] for claimed in left if claimed.call in by_call)


async def _recovered(
    journal: Journal, claimed: Claimed, tool: Tool | None, owner: str, stands: Stands | None
) -> Recovered | None:
    """None if somebody else is at it."""
    if claimed.state is not State.STARTED:
        return Recovered(claimed, Found.FINISHED, claimed.outcome, claimed.result)
    found, work, held = Found.UNKNOWN, None, claimed
    arguments = None if tool is None else _arguments(tool, claimed)
    if tool is not None and arguments is not None:
        if tool.check_outcome is not None:
            found, work = Found.CHECKED, tool.check_outcome(arguments, _context(claimed.call, claimed.tool).ticket)
        elif tool.repeatable and claimed.until is None:  # else it was done: only what came of it outside is not known
            if claimed.owner != owner and not await _taken_over(journal, claimed, owner):
                return None
            held = replace(claimed, owner=owner)
            found, work = Found.REPEATED, _again(tool, arguments, claimed.call)
    output, outcome = ("", NOT_KNOWN) if tool is None or work is None else await _outcome(tool, work)
    if outcome == NOT_KNOWN:
        found, output = Found.UNKNOWN, encode({"error": may_have_run(claimed.tool)})
    result = ToolResult(claimed.call.call_id, output, is_error=outcome != "ok", name=claimed.tool)
    if stands is not None:
        ours, (result, outcome) = result, await stands(held, result, outcome)
        found = found if result == ours else Found.FINISHED
    concluded = await journal.conclude(claimed.call, result, outcome)
    return Recovered(claimed, found, concluded.outcome, concluded.result)


async def _taken_over(journal: Journal, claimed: Claimed, owner: str) -> bool:
    text = claimed.arguments or ""
    claim = await journal.claim(claimed.call, claimed.tool, text, owner, instead_of=claimed.owner)
    return isinstance(claim, Granted)


def _arguments(tool: Tool, claimed: Claimed) -> dict[str, Any] | None:
    """None if they are not known any more: what is hidden from models came from a session that is gone."""
    if claimed.arguments is None or not _STILL_KNOWN.issuperset(tool.hidden.values()):
        return None
    try:
        return tool.arguments(claimed.arguments, _context(claimed.call, claimed.tool))
    except ToolError:
        return None


def _context(call: CallId, tool: str) -> CallContext:
    return CallContext(session_id=call.session, key=call.key, tool=tool)


async def _again(tool: Tool, arguments: Mapping[str, Any], call: CallId) -> object:
    context = _context(call, tool.spec.name)
    made = (
        await asyncio.to_thread(tool.invoke, arguments, context) if tool.blocking else tool.invoke(arguments, context)
    )
    value = await made if inspect.isawaitable(made) else made
    if isinstance(value, Parked):
        raise RuntimeError("what it has been handed to answers to nobody any more")
    return value


async def _outcome(tool: Tool, work: Awaitable[object]) -> tuple[str, str]:
    """JSON text, and how it ended."""
    try:
        async with asyncio.timeout(tool.timeout):
            return encode(await work, tool.result_limit), "ok"
    except ToolError as error:
        return encode({"error": str(error)}), "error"
    except Exception as error:
        logger.warning("tool %s: what came of a call could not be found out: %s", tool.spec.name, type(error).__name__)
        return "", NOT_KNOWN
