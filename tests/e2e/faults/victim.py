"""A process that serves one session behind a journal, and kills itself at one point of its way.

Each effect of its tool is a line of `effects` in its directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import httpx2
import orjson

from bridge import Bridge, SessionOptions, Toolset
from bridge.agents.hcompany import HCompany
from bridge.agents.herm import Herm
from bridge.agents.openai_sessions import OpenAISessions
from bridge.core.events import Frame
from bridge.journal.opening import open_journal
from bridge.transports import http
from bridge.transports.http import HttpTransport

from .table import QUICK

__all__ = ["POINTS", "serve", "warm_up"]

AGENTS: Final[dict[str, Any]] = {"openai": OpenAISessions, "hcompany": HCompany, "herm": Herm}
POINTS: Final = (
    "before the claim",
    "after the claim",
    "before the effect",
    "after the effect",
    "before the outcome",
    "after the outcome",
    "before the post",
    "after the post",
)
_PATIENCE: Final = 15


class Trap:
    """Kills this process at one point."""

    def __init__(self, point: str) -> None:
        self._point = point

    def at(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


class TrappedJournal:
    """A journal with traps before and behind what a call asks of it."""

    def __init__(self, journal: Any, trap: Trap) -> None:
        self._journal = journal
        self._trap = trap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    async def claim(self, *call: Any, **options: Any) -> Any:
        self._trap.at("before the claim")
        claim = await self._journal.claim(*call, **options)
        self._trap.at("after the claim")
        return claim

    async def conclude(self, *call: Any) -> Any:
        self._trap.at("before the outcome")
        concluded = await self._journal.conclude(*call)
        self._trap.at("after the outcome")
        return concluded


def trap_posts(trap: Trap) -> None:
    """Whatever posts an answer to a call comes by these points."""
    send = HttpTransport.send

    async def trapped(self: HttpTransport, frame: Frame) -> None:
        answers = bool(self._dialect.answers(orjson.loads(frame)))
        if answers:
            trap.at("before the post")
        await send(self, frame)
        if answers:
            trap.at("after the post")

    HttpTransport.send = trapped  # type: ignore[method-assign]  # this process has nothing else to do


def toolset(effects: Path, trap: Trap) -> Toolset:
    tools = Toolset()

    def took_effect(no: str) -> dict[str, str]:
        trap.at("before the effect")
        with effects.open("a") as file:
            file.write(f"{no}\n")
        trap.at("after the effect")
        return {"booked": no}

    @tools.tool
    async def book(no: str) -> dict[str, str]:
        """Book a parcel."""
        return took_effect(no)

    @tools.tool(answer_within=0.01)
    async def book_slowly(no: str) -> None:
        """Book a parcel, and never come back."""
        took_effect(no)
        await asyncio.Event().wait()

    return tools


async def _serve(system: str, address: tuple[str, str, str], directory: Path, point: str, says: bool) -> None:
    url, key, session_id = address
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    trap = Trap(point)
    trap_posts(trap)
    agent = AGENTS[system](session_id=session_id, url=url)
    tools = toolset(directory / "effects", trap)
    async with asyncio.timeout(_PATIENCE), aclosing(open_journal(str(directory / "calls.db"))) as plain:
        journal: Any = TrappedJournal(plain, trap)
        async with (
            Bridge(tools, journal=journal) as bridge,
            bridge.session(agent, api_key=key, options=SessionOptions(patience=QUICK)) as session,
        ):
            if says:
                session.say("Book it.")
            await terminated.wait()


def serve(system: str, address: tuple[str, str, str], directory: Path, point: str, says: bool) -> None:
    """Serve this session (url, key and id) until SIGTERM, or until the point at which this process dies.

    `says`: does the user say something first?
    """
    asyncio.run(_serve(system, address, directory, point, says))


def warm_up() -> None:
    """Make and import what every life needs, to be done once, before they are forked."""
    toolset(Path(os.devnull), Trap(""))
    http._tls()
    httpx2.AsyncClient()
