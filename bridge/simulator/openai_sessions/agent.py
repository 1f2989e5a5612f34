"""Plays the turns of a scenario: what the agent writes, which functions it calls, and how the turn ends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, assert_never

import anyio

from bridge.simulator.openai_sessions import objects
from bridge.simulator.openai_sessions.ledger import Answer
from bridge.simulator.openai_sessions.messages import UserMessage
from bridge.simulator.openai_sessions.objects import Turn
from bridge.simulator.openai_sessions.script import (
    Ask,
    AskApproval,
    AwaitResults,
    Call,
    Cancel,
    Cut,
    Fail,
    FailSession,
    Raw,
    Repeat,
    Say,
    Steer,
    Step,
    Tell,
    Wait,
)
from bridge.simulator.player import fitting

if TYPE_CHECKING:
    from bridge.simulator.openai_sessions.session import Session

__all__ = ["Agent"]

_Ending = Literal["completed", "failed", "cancelled"]


class Agent:
    """The agent of one session."""

    def __init__(self, session: Session, turns: Sequence[Sequence[Step]]) -> None:
        self._session = session
        self._turns = turns
        self._scope = anyio.CancelScope()

    async def play(self, turn: Turn, messages: Sequence[UserMessage]) -> None:
        """Go through one turn, from its creation to its end."""
        session = self._session
        await session.clock.sleep(session.rules.start_lag)
        if turn.has_ended:
            return
        session.announce_turn(turn)
        session.add_messages(turn, messages)
        turn.status, turn.started_at = "in_progress", int(time.time())
        session.announce_state()
        session.announce_turn(turn)
        with anyio.CancelScope() as self._scope:
            for step in self._steps(turn):
                if turn.has_ended:
                    return
                await self._take(turn, step)
            await self._results()
            self._end(turn, "completed")

    async def cancel(self, lag: float) -> None:
        """Cancel the turn in progress, if it is still in progress after the lag."""
        turn = self._session.turn
        await self._session.clock.sleep(lag)
        if turn is not None and not turn.has_ended:
            self._end(turn, "cancelled")

    def _steps(self, turn: Turn) -> Sequence[Step]:
        if turn.number < len(self._turns):
            return self._turns[turn.number]
        for function in self._session.settings.functions:
            return (Ask((Call(function.name, fitting(function.parameters)),)), Tell())
        return (Say("I see."),)

    async def _take(self, turn: Turn, step: Step) -> None:
        session = self._session
        match step:
            case Ask(calls):
                await self._ask(turn, calls)
            case AskApproval():
                await session.clock.sleep(session.rules.thinking)
                session.approvals.ask(turn, step)
                session.announce_state()
            case AwaitResults():
                await self._results()
            case Say(text, phase):
                await self._say(turn, text, phase)
            case Tell():
                await self._results()
                await self._say(turn, self._told(turn), "final_answer")
            case Wait(seconds):
                await session.clock.sleep(seconds)
            case Repeat():
                session.announce_state()
            case Cut():
                session.cut()
            case Steer(text):
                part = {"type": "input_text", "text": text}
                session.add_messages(turn, [UserMessage.model_validate({"role": "user", "content": [part]})])
            case Cancel():
                await self.cancel(0)
            case Fail(code):
                self._fail(turn, code)
            case FailSession(code):
                session.fail()
                self._fail(turn, code)
            case Raw(event):
                session.emit_raw(event)
            case _:
                assert_never(step)

    async def _ask(self, turn: Turn, calls: Sequence[Call]) -> None:
        session = self._session
        await session.clock.sleep(session.rules.thinking)
        for call in calls:
            session.calls.announce(turn, call)
        await session.clock.sleep(session.rules.registration_lag)
        session.calls.register()
        session.announce_state()

    async def _results(self) -> None:
        """Documented: work goes on when every required result has been received."""
        session = self._session
        await session.changes.until(lambda: not (session.calls.unanswered or session.approvals.open))

    async def _say(self, turn: Turn, text: str, phase: str) -> None:
        session = self._session
        await session.clock.sleep(session.rules.thinking)
        item = objects.assistant_item(session.new_id("msg"), turn, phase)
        index, turn.outputs = turn.outputs, turn.outputs + 1
        session.add_item(turn, item, index)
        place = {"turn_id": turn.id, "item_id": item["id"], "output_index": index, "content_index": 0}
        kind = "agent.session.turn"
        session.emit(f"{kind}.content_part.added", **place, part={"type": "output_text", "text": ""})
        for word in text.split(" ") if session.rules.deltas else ():
            session.emit(f"{kind}.output_text.delta", **place, delta=f"{word} ")
        session.emit(f"{kind}.output_text.done", **place, text=text)
        part = {"type": "output_text", "text": text}
        session.emit(f"{kind}.content_part.done", **place, part=part)
        item |= {"status": "completed", "content": [part]}
        session.emit(f"{kind}.item.done", turn_id=turn.id, item=dict(item), output_index=index)
        session.ledger.said.append(text)

    def _told(self, turn: Turn) -> str:
        calls = [call for call in self._session.ledger.calls if call.turn_id == turn.id]
        return " ".join(_told(call.name, call.result) for call in calls if call.result is not None) or "Done."

    def _fail(self, turn: Turn, code: str) -> None:
        """Seen: the code comes in an `error` event and in the turn. Reported: the session can be idle after that."""
        message = "The model service failed."
        turn.error = {"code": code, "message": message}
        self._session.emit("error", error={"type": "server_error", "code": code, "message": message, "param": None})
        self._end(turn, "failed")

    def _end(self, turn: Turn, status: _Ending) -> None:
        if turn.has_ended:
            return
        if status != "completed":
            self._scope.cancel()
        turn.status, turn.completed_at = status, int(time.time())
        self._session.calls.abandon()
        self._session.approvals.abandon()
        self._session.announce_turn(turn)
        self._session.announce_state()


def _told(name: str, result: Answer) -> str:
    return f"{name} says: {result.output}." if result.success else f"{name} failed: {result.error}."
