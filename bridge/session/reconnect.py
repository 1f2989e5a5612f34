"""How a session outlives its connection: what counts as a drop, when the next try is due, and what the host hears.

Values and decisions; the session does what is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core.dialect import Agent
from ..core.events import ToolCall, ToolResult
from ..core.state import Owed
from ..errors import (
    AuthenticationFailed,
    BridgeError,
    ConfigurationRefused,
    ProviderError,
    SessionClosed,
    TransportError,
)

__all__ = [
    "Afresh",
    "ConnectionEvent",
    "ConnectionLost",
    "ConnectionResumed",
    "LostCall",
    "LostSession",
    "Outage",
    "Resumable",
    "described",
    "is_drop",
    "lost_calls",
    "pauses",
    "persist",
]

logger = logging.getLogger("bridge.session")

T = TypeVar("T")

_FIRST = 0.25
_LONGEST = 5.0
_JITTER = 0.25
"""Share of a pause by which it may be longer or shorter, so that not all sessions of a process come back at once."""
_STEADY = 5.0
"""Seconds for which a connection must last before the next loss counts as another outage."""

_DROPS = frozenset({1001, 1005, 1006, 1011, 1012, 1013, 1014})
"""Close codes that blame the network or a server that goes away or fails (RFC 6455, and its registry at IANA).

Every other one is a verdict: 1000 a normal end, 1008 a broken rule, 1009 a frame too big, 3000 and up the provider's.
"""

_FINAL = (AuthenticationFailed, ConfigurationRefused, SessionClosed)


# --------------------------------------------------------------------------------------------- what the host hears


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection dropped, and another is being made. An open reply is over: no `ReplyDone` comes for it."""

    close_code: int | None = None
    """As the WebSocket protocol has it; 1006 where nothing was said; None if the session has given it up by itself."""


@dataclass(frozen=True, slots=True)
class ConnectionResumed:
    """The session goes on."""

    fresh: bool
    """The provider has lost the session; this is a new one, which knows nothing of what was said before."""
    gap: float
    """Seconds without a connection."""
    audio_lost: float
    """Seconds of the user's voice that were given to `send_audio` meanwhile and that nobody has heard."""


ConnectionEvent = ConnectionLost | ConnectionResumed


# ------------------------------------------------------------------------------------- what is known of a lost session


@dataclass(frozen=True, slots=True)
class LostCall:
    """A call that can no longer be answered."""

    call: ToolCall
    result: ToolResult | None
    """What would have been sent; None if the tool has not ended yet."""
    uncertain: bool
    """The result was on its way when the connection dropped: the agent may have heard of it."""


@dataclass(frozen=True, slots=True)
class LostSession:
    """What is known of a session that the provider has lost."""

    provider_session_id: str
    changes: Mapping[str, Any]
    """Settings that `Session.update` has changed since it began, by name."""
    calls: tuple[LostCall, ...]


@dataclass(frozen=True, slots=True)
class Resumable:
    """What another process needs to go on with a session, for as long as the provider keeps it: see `Bridge.session`.

    With some providers every connection brings another token, and only the latest counts.
    """

    session: str
    """Our name for it."""
    provider_session_id: str
    token: str = field(default="", repr=False)
    """A secret, if the provider has given one."""


Afresh = Callable[[LostSession], Awaitable[Agent]]


def lost_calls(owed: tuple[Owed, ...]) -> tuple[LostCall, ...]:
    """The calls that are still owed an answer when their session is lost."""
    return tuple(LostCall(o.call, o.result, o.uncertain) for o in owed)


async def described(
    afresh: Afresh | None, lost: LostSession, before: Agent, timeout: float, session: str
) -> Agent | None:
    """The agent of the fresh session as the host describes it; None, and a line in the log, if that does not work."""
    if afresh is None:
        return None
    try:
        async with asyncio.timeout(timeout):
            agent = await afresh(lost)
    except Exception as fault:
        # It has been told what tools were called with: nothing of that for the log.
        logger.error(
            "session %s: afresh failed (%s), so the agent is described as before", session, type(fault).__name__
        )
        return None
    if _kind(agent) == _kind(before):
        return agent
    logger.error("session %s: afresh gives another provider or audio format; the agent is described as before", session)
    return None


def _kind(agent: Agent) -> tuple[str, tuple[int, int], tuple[int, int]]:
    return agent.dialect.name, agent.input_rate, agent.output_rate


# --------------------------------------------------------------------------------------------------- again, and again


def is_drop(close_code: int | None) -> bool:
    """Does a connection that ended like this leave the session alive? None: it did not say how it ended."""
    return close_code is None or close_code in _DROPS


def pauses(random: Callable[[], float]) -> Iterator[float]:
    """Seconds to wait before each try, without end: none, then 0.25 doubling up to 5, each 25 % more or less.

    `random` gives numbers from 0 to 1.
    """
    yield 0.0
    pause = _FIRST
    while True:
        yield pause * (1 + _JITTER * (2 * random() - 1))
        pause = min(2 * pause, _LONGEST)


@dataclass(slots=True)
class Outage:
    """A time without a connection, or with one that keeps breaking. Times are the event loop's, in seconds."""

    deadline: float
    """When it is given up."""
    pauses: Iterator[float]
    began: float
    """When the latest connection was lost."""
    trouble: BridgeError | None = None
    """Why the latest try failed."""

    @classmethod
    def after(
        cls, earlier: Outage | None, *, up_since: float, now: float, limit: float, random: Callable[[], float]
    ) -> Outage:
        """The outage that begins now, or that goes on because the last connection did not last."""
        if earlier is not None and now - up_since < _STEADY:
            earlier.began = now
            return earlier
        return cls(now + limit, pauses(random), now)


async def persist(
    attempt: Callable[[], Awaitable[T]],
    pauses: Iterator[float],
    failed: Callable[[BridgeError], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> T:
    """Attempt until it succeeds; each failure is told. Has no end of its own: to be called under a timeout.

    Raises `AuthenticationFailed`, `ConfigurationRefused` and `SessionClosed`, which no other try would change.
    """
    while True:
        await sleep(next(pauses))
        try:
            return await attempt()
        except _FINAL:
            raise
        except (TransportError, ProviderError) as error:
            failed(error)
