"""A session whose provider is a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any

from ..agents.assemblyai import AssemblyAI
from ..core.conversation import Step
from ..core.dialect import Delivery
from ..core.events import Discard, Run
from ..errors import SessionClosed
from ..runner.runner import Finished, Runner
from ..session.running import ToolProgress
from ..session.session import Session, SessionOptions
from ..tools.tool import Tool
from .clock import VirtualClock
from .provider import Provider, Result, Said

__all__ = ["Call", "Discarded", "Progress", "ScriptedSession", "scripted_session"]

_WORD = 0.4
"""Seconds that a spoken word takes."""


@dataclass(slots=True, eq=False)
class Call:
    """A call that the script has made, and what has become of it so far."""

    call_id: str
    name: str
    arguments: Mapping[str, Any] | str
    outcome: str = ""
    """How the tool ended: `ok`, `error`, `timeout`, `invalid` ...; empty as long as it has not, or has never run."""
    result: Result | None = None
    """What the provider was told."""
    discarded: str = ""
    """Why the provider will never be told: `interrupted`, `cancelled` or `ended`."""
    started: bool = False
    """Has it been given to its tool?"""

    @property
    def settled(self) -> bool:
        """Has it been answered or discarded, and has its tool ended?"""
        return (self.result is not None or bool(self.discarded)) and (bool(self.outcome) or not self.started)


@dataclass(frozen=True, slots=True)
class Discarded:
    """A call whose result was thrown away, or that was never run; why, and when."""

    call_id: str
    name: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Progress:
    """What a tool has reported of its progress."""

    call_id: str
    name: str
    text: str
    at: float


@asynccontextmanager
async def scripted_session(
    tools: Mapping[str, Tool],
    *,
    agent: AssemblyAI | None = None,
    metadata: Mapping[str, Any] | None = None,
    delivery: Delivery | None = None,
) -> AsyncIterator[ScriptedSession]:
    """A session with these tools, on a virtual clock, in which the script says what the agent and the user do.

    `metadata` is what tools find in their `CallContext`, `delivery` stands in for the dialect's. While it is open, the
    clock of the running event loop is virtual. Leaving it ends the session as leaving a real one does: answers that are
    owed are waited for, up to 5 virtual seconds. Raises `ConfigError` for an event loop that lends no clock.
    """
    agent = agent or AssemblyAI()
    with VirtualClock.borrowed() as clock:
        notes = _Notes(clock)
        provider = Provider(notes.elapsed, notes.answered)
        runner = Runner(watchers=(notes.finished,), clock=clock.time)
        calls = runner.session()
        session = Session(
            agent,
            dict(tools),
            calls,
            observers=(notes.stepped,),
            metadata=metadata or {},
            delivery=delivery,
            options=SessionOptions(),
        )
        with clock.watching(runner, calls), closing(runner):
            async with session.over(provider):
                listening = asyncio.create_task(notes.listen(session))
                await clock.rest()
                yield ScriptedSession(session, provider, clock, notes, agent.output_rate)
            await listening


class ScriptedSession:
    """What the agent and the user do, step by step. Made by `scripted_session`.

    A step returns once all that it leads to at this moment has happened; plain functions, which run in threads, get a
    little while for that. No time passes in a step unless it says so: it passes in `advance`, `ask` and `settled`, and
    in whatever else the test waits for. As in a real session, an agent that is silent for 3 seconds in the middle of a
    reply counts as stuck.

    Replies to results, and to requests to speak, are given by the provider itself; they take no time. Steps raise
    `SessionClosed` once the session has ended.
    """

    def __init__(
        self, session: Session, provider: Provider, clock: VirtualClock, notes: _Notes, voice: tuple[int, int]
    ) -> None:
        self.session = session
        """The session itself, for what a host may do with it: `say`, `update`, `end`."""
        self.results: list[Result] = provider.results
        """What the provider was told, in that order."""
        self.said: list[Said] = provider.said
        """What the agent was asked to say: fillers, and what tools and the host wanted said."""
        self.discards: list[Discarded] = notes.discards
        self.progress: list[Progress] = notes.progress
        self._provider = provider
        self._clock = clock
        self._notes = notes
        self._voice = voice

    @property
    def now(self) -> float:
        """Virtual seconds since the session began."""
        return self._notes.elapsed()

    @property
    def ended(self) -> bool:
        """Is the session over?"""
        return self._provider.ended

    # -------------------------------------------------------------------------------------------------- the agent

    async def agent_says(self, text: str, *, seconds: float | None = None) -> None:
        """The agent says this, in the open reply or in a new one. It is heard for so many seconds, 0.4 a word."""
        self._open_reply()
        width, rate = self._voice
        length = _WORD * len(text.split()) if seconds is None else seconds
        self._provider.speak(text, bytes(width * round(rate * length)))
        await self._clock.rest()

    async def call(self, name: str, arguments: Mapping[str, Any] | str = "{}") -> Call:
        """The agent calls a tool, in the open reply or in a new one; on hold, outside any. Text is sent as it is."""
        self._refuse_after_end()
        if not self._provider.keeps_silent(name):
            self._open_reply()
        call = self._notes.called(name, arguments)
        self._provider.ask(call.call_id, name, arguments)
        await self._clock.rest()
        return call

    async def reply_done(self) -> None:
        """The agent has come to the end of the open reply."""
        self._refuse_without_reply("end")
        self._provider.end_reply()
        await self._clock.rest()

    async def ask(self, name: str, arguments: Mapping[str, Any] | str = "{}") -> Result:
        """A whole turn: the agent calls a tool, ends its reply, and is told the result, which is returned.

        Raises `SessionClosed` if the session ends before.
        """
        call = await self.call(name, arguments)
        if self._provider.replying:
            await self.reply_done()
        await self._notes.until(lambda: call.settled or self.ended)
        if call.result is None:
            raise SessionClosed(f"the session ended before {name} had been answered")
        return call.result

    # --------------------------------------------------------------------------------------------------- the user

    async def user_speaks(self, text: str = "Hm.", *, seconds: float = 0.0) -> None:
        """The user says something, and cuts nobody short."""
        self._refuse_after_end()
        self._provider.start_speech(text)
        await self._pass(seconds)
        self._provider.stop_speech(text)
        await self._clock.rest()

    async def barge_in(self, text: str = "Wait.", *, seconds: float = 0.0) -> None:
        """The user cuts into the open reply, which the provider then calls interrupted."""
        self._refuse_without_reply("cut into")
        self._provider.start_speech(text)
        await self._pass(seconds)
        self._provider.end_reply(interrupted=True)
        self._provider.stop_speech(text)
        await self._clock.rest()

    async def hang_up(self) -> None:
        """The call is over: the provider ends the session."""
        self._refuse_after_end()
        self._provider.hang_up()
        await self._clock.rest()

    # ------------------------------------------------------------------------------------------------------- time

    async def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        await self._pass(seconds)

    async def settled(self) -> None:
        """Let time pass until every call has been answered or discarded, and its tool has ended."""
        await self._notes.until(lambda: all(call.settled for call in self._notes.calls.values()))
        await self._clock.rest()

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._clock.rest()

    # ------------------------------------------------------------------------------------- what cannot be in a script

    def _open_reply(self) -> None:
        self._refuse_after_end()
        if not self._provider.replying:
            self._provider.start_reply()

    def _refuse_without_reply(self, what: str) -> None:
        self._refuse_after_end()
        if not self._provider.replying:
            raise RuntimeError(f"there is no reply to {what}: begin one with `agent_says` or `call`")

    def _refuse_after_end(self) -> None:
        if self.ended:
            raise SessionClosed("the session has ended: neither agent nor user can do anything more")


class _Notes:
    """What has been seen of the session so far, and a way to wait for more of it."""

    def __init__(self, clock: VirtualClock) -> None:
        self.calls: dict[str, Call] = {}
        self.discards: list[Discarded] = []
        self.progress: list[Progress] = []
        self._clock = clock
        self._began = clock.time()
        self._changed = asyncio.Event()

    def elapsed(self) -> float:
        """Virtual seconds since the beginning; rounded, so that they can be compared."""
        return round(self._clock.time() - self._began, 6)

    async def until(self, true: Callable[[], bool]) -> None:
        """Let time pass until this is true."""
        while not true():
            self._changed.clear()
            await self._changed.wait()

    def called(self, name: str, arguments: Mapping[str, Any] | str) -> Call:
        """The script makes a call."""
        call_id = f"call_{len(self.calls) + 1}"
        self.calls[call_id] = call = Call(call_id, name, arguments)
        return call

    def answered(self, result: Result) -> None:
        """The provider was told a result."""
        self.calls[result.call_id].result = result
        self._changed.set()

    def finished(self, finished: Finished) -> None:
        """A tool has ended."""
        self.calls[finished.key.call_id].outcome = finished.outcome.value
        self._changed.set()

    def stepped(self, session: Session, step: Step) -> None:
        """The session has decided something."""
        for output in step.outputs:
            if isinstance(output, Run):
                self.calls[output.key.call_id].started = True
            elif isinstance(output, Discard):
                call = self.calls[output.key.call_id]
                call.discarded = output.reason.value
                self.discards.append(Discarded(call.call_id, call.name, call.discarded, self.elapsed()))
        self._changed.set()

    async def listen(self, session: Session) -> None:
        """Take what the session tells its host, to its end."""
        async for event in session:
            if isinstance(event, ToolProgress):
                self.progress.append(Progress(event.key.call_id, event.name, event.text, self.elapsed()))
