"""Plays a script: takes its steps in order, and waits in each for what that step needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Protocol, assert_never

from bridge.simulator.agent import Agent
from bridge.simulator.script import (
    AwaitResults,
    BargeIn,
    Call,
    Drop,
    Fail,
    HangUp,
    Noise,
    Raw,
    Reply,
    Say,
    Step,
    Until,
    UserSays,
    Wait,
)
from bridge.simulator.shared import Shared

__all__ = ["Player", "Stage", "TurnDetection", "fitting"]

_UNSCRIPTED = "(speech)"


class TurnDetection(Enum):
    """Where the user's turns come from."""

    SCRIPTED = "scripted"
    """The script says when the user speaks; the client's audio is checked and counted."""
    ENERGY = "energy"
    """The user speaks when the client's audio is loud. User steps wait for that, and lend their words."""


class Stage(Protocol):
    """What a script may do to the session as a whole."""

    def drop(self) -> None: ...
    def fail(self, code: str, close_code: int) -> None: ...
    def hang_up(self) -> None: ...


class Player:
    """Plays one script for one session. `done` once all steps have been taken."""

    def __init__(
        self, steps: Sequence[Step], agent: Agent, stage: Stage, *, turns: TurnDetection, shared: Shared
    ) -> None:
        self._agent = agent
        self._stage = stage
        self._turns = turns
        self._rules = shared.rules
        self._ledger = shared.ledger
        self._wire = shared.wire
        self._changes = shared.changes
        self._clock = shared.clock
        self._tasks = shared.tasks
        self._mark = 0
        self._turns_taken = 0
        self.words = _UNSCRIPTED
        """What the user is taken to say next, when only the energy of the audio is known."""
        self.left: deque[Step] = deque(steps)
        self.done = False

    async def play(self) -> None:
        """Take all steps; then, if turns come from the audio, answer whatever is said."""
        while self.left:
            await self._changes.until(lambda: self._wire.up)
            await self._take(self.left.popleft())
        self.done = True
        self._changes.notify()
        while self._turns is TurnDetection.ENERGY:
            await self._next_turn()
            await self._take(self._improvise())

    async def _take(self, step: Step) -> None:
        match step:
            case UserSays() | BargeIn() | Noise():
                await self._user(step)
            case Say(text, seconds):
                await self._speak(Reply(text, seconds=seconds))
            case Reply():
                await self._speak(step)
            case Wait(seconds):
                await self._clock.sleep(seconds)
            case Until(kind):
                await self._changes.until(lambda: self._has_seen(kind))
            case AwaitResults():
                self._agent.stop_owing()
                await self._changes.until(lambda: self._agent.is_settled)
            case Raw(message):
                self._wire.raw(message)
            case Drop():
                self._stage.drop()
            case Fail(code, close_code):
                self._stage.fail(code, close_code)
            case HangUp():
                await self._changes.until(lambda: self._agent.is_done)
                self._stage.hang_up()
            case _:
                assert_never(step)

    async def _user(self, step: UserSays | BargeIn | Noise) -> None:
        if self._turns is TurnDetection.ENERGY:
            if not isinstance(step, Noise):
                self.words = step.text
                await self._next_turn()
                self.words = _UNSCRIPTED
            return
        match step:
            case UserSays(text, seconds):
                await self._changes.until(lambda: self._agent.is_done)
            case BargeIn(text, after, seconds):
                await self._clock.sleep(after)
            case Noise(after, seconds):
                text = ""
                await self._clock.sleep(after)
        self._set_mark()
        await self._talk(text, seconds)

    async def _talk(self, text: str, seconds: float) -> None:
        """The user speaks: the first half is transcribed on the way, all of it at the end."""
        words = text.split()
        self._agent.speech_starts()
        if words:
            seconds /= 2
            await self._clock.sleep(seconds)
            self._agent.words_so_far(" ".join(words[: (len(words) + 1) // 2]))
        # A noise is one wait. Of two, the second would begin late on a slow machine, and the reply be cut meanwhile.
        await self._clock.sleep(seconds)
        self._agent.speech_stops(text)

    async def _next_turn(self) -> None:
        await self._changes.until(lambda: len(self._ledger.user_turns) > self._turns_taken)
        self._turns_taken += 1

    async def _speak(self, line: Reply) -> None:
        await self._changes.until(lambda: self._agent.is_done)
        if self._agent.owes_reply:
            await self._clock.sleep(self._rules.thinking)
        self._set_mark()
        if line.calls and all(self._agent.calls.is_hold(call.name) for call in line.calls):
            self._agent.ask_silently(line)
        else:
            await self._tasks.start(self._agent.reply, line)

    def _improvise(self) -> Reply:
        """Without a script: call the client's first tool, or just speak."""
        for name, tool in self._agent.calls.tools.items():
            return Reply("One moment.", (Call(name, fitting(tool["parameters"])),))
        return Reply("I hear you.")

    def _set_mark(self) -> None:
        self._mark = len(self._ledger.timeline)

    def _has_seen(self, kind: str) -> bool:
        for position in range(self._mark, len(self._ledger.timeline)):
            if self._ledger.timeline[position][3:] == kind:
                self._mark = position + 1
                return True
        return False


def fitting(schema: Mapping[str, Any]) -> Any:
    """A plain value that fits a JSON Schema, as far as types, `enum`, `default` and `minimum` say."""
    if "enum" in schema:
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    match schema.get("type", "object"):
        case "object":
            properties = schema.get("properties", {})
            return {key: fitting(properties[key]) for key in schema.get("required", ()) if key in properties}
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "array":
            return []
        case "null":
            return None
        case _:
            return "example"
