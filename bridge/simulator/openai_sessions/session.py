"""One session: its turns, its items, and the calls it waits for; what clients submit changes it, or is refused.

    idle --message--> in_progress --call--> requires_action --last result--> in_progress --end of turn--> idle

Everything here is synchronous: a post is judged and applied in one step, whole or not at all.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

from anyio.abc import TaskGroup

from bridge.simulator.openai_sessions import objects
from bridge.simulator.openai_sessions.agent import Agent
from bridge.simulator.openai_sessions.approvals import Approvals
from bridge.simulator.openai_sessions.calls import Calls
from bridge.simulator.openai_sessions.ledger import Ledger, Post, Verdict
from bridge.simulator.openai_sessions.messages import (
    AgentSettings,
    Approval,
    Cancel,
    ComputerApproval,
    CreateSession,
    Input,
    Refused,
    ToolResult,
    UpdateSession,
    UserMessage,
    UserMessages,
    text_of,
)
from bridge.simulator.openai_sessions.objects import Item, Turn
from bridge.simulator.openai_sessions.rules import Effect, Fault, Partly
from bridge.simulator.openai_sessions.script import Scenario
from bridge.simulator.openai_sessions.streams import Streams
from bridge.simulator.waiting import Changes, Clock

__all__ = ["Session"]

_QUIET: Final = ("agent.session.turn.output_text.delta", "agent.session.turn.content_part.")


class Session:
    """`tasks` must outlive it; `changes` tells that something has happened."""

    def __init__(
        self, create: CreateSession, scenario: Scenario, *, pace: float, tasks: TaskGroup, changes: Changes
    ) -> None:
        self.id = f"sess_{secrets.token_hex(8)}"
        self.rules = scenario.rules
        self.ledger = Ledger(self.id)
        self.streams = Streams(self.rules)
        self.changes = changes
        self.clock = Clock(pace)
        self.settings = create.agent or AgentSettings()
        self.turns: list[Turn] = []
        self.calls = Calls(self)
        self.approvals = Approvals(self)
        self._tasks = tasks
        self._agent = Agent(self, scenario.turns)
        self._environment = objects.environment_of(create)
        self._metadata = dict(create.metadata or {})
        self._review = create.review
        self._vaults = list(create.vault_ids or ())
        self._created_at = int(time.time())
        self._keys: dict[str, tuple[Input, ...]] = {}
        self._numbers = itertools.count(1)
        self._failed = False

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def turn(self) -> Turn | None:
        """The turn in progress."""
        return self.turns[-1] if self.turns and not self.turns[-1].has_ended else None

    @property
    def status(self) -> str:
        """`idle`, `in_progress`, `requires_action` or `failed`."""
        if self._failed:
            return "failed"
        if self.turn is None or self.turn.status == "queued":
            return "idle"
        return "requires_action" if self.waits else "in_progress"

    @property
    def waits(self) -> bool:
        """Is something required?"""
        return bool(self.calls.open or self.approvals.open)

    @property
    def items(self) -> list[Item]:
        """All items of the conversation, oldest first."""
        return [item for turn in self.turns for item in turn.items]

    def snapshot(self) -> dict[str, Any]:
        """The session as it is read, and as its events carry it."""
        return {
            "id": self.id,
            "object": "agent.session",
            "agent": objects.agent_of(self.settings),
            "environment": self._environment,
            "created_at": self._created_at,
            "last_active_at": int(time.time()),
            "metadata": dict(self._metadata),
            "status": self.status,
            "required_actions": [*self.calls.required(), *self.approvals.required()],
            "error": "The session failed." if self._failed else None,
            "usage": None,
            "vault_ids": self._vaults,
            "prompt_cache_options": None,
            "review": self._review,
        }

    def turn_object(self, turn: Turn) -> dict[str, Any]:
        """One of its turns, as it is read."""
        return objects.turn_object(turn, self.id, waits=turn is self.turn and self.waits)

    def new_id(self, kind: str) -> str:
        """An id that nothing else in this session has."""
        return f"{kind}_{next(self._numbers)}"

    # ------------------------------------------------------------------------------------------- what clients do

    def start(self, create: CreateSession) -> None:
        """Begin with the input of the creation, if it has any."""
        if isinstance(create.input, str) and create.input:
            part = {"type": "input_text", "text": create.input}
            self._message([UserMessage.model_validate({"role": "user", "content": [part]})])
        elif create.input:
            self._message(list(create.input))

    def update(self, update: UpdateSession) -> None:
        """Change settings; a list of tools is replaced whole. Documented: functions change with the next call."""
        if update.agent is not None:
            given = update.agent.model_dump(exclude_unset=True, by_alias=True)
            kept = self.settings.model_dump(exclude_unset=True, by_alias=True)
            self.settings = AgentSettings.model_validate(kept | given)
        if "metadata" in update.model_fields_set:
            self._metadata = dict(update.metadata or {})

    def submit(self, events: Sequence[Input], key: str, fault: Fault | None = None) -> None:
        """Take input events, all or none. Raises `Refused`, and nothing has changed, if one cannot be taken."""
        types = tuple(event.type.removeprefix("agent.session.input.") for event in events)
        if fault is not None and fault.effect is Effect.NONE and fault.status != 202:
            self._posted(types, key, fault.status)
            return
        try:
            verdicts = self._admit(events, key)
        except Refused as refused:
            self._posted(types, key, refused.status, self.calls.last_verdicts)
            raise
        if fault is not None and fault.effect is Effect.NONE:
            verdicts = self.calls.lose(events)
        elif fault is not None and fault.effect is Effect.LATE:
            self._tasks.start_soon(self._apply_late, events, fault.seconds)
        elif Verdict.ONCE_MORE not in verdicts:
            self._apply(events)
        if key:
            self._keys.setdefault(key, tuple(events))
        self._posted(types, key, fault.status if fault else 202, verdicts)

    def _posted(self, types: tuple[str, ...], key: str, status: int, verdicts: tuple[Verdict, ...] = ()) -> None:
        self.ledger.post(Post(self.clock.now, types, key, status, verdicts))
        self.changes.notify()

    def _admit(self, events: Sequence[Input], key: str) -> tuple[Verdict, ...]:
        """May these be taken? Raises `Refused`."""
        for event in events:
            self.ledger.note(f"-> {event.type}")
        if key in self._keys:
            if self._keys[key] != tuple(events):
                raise Refused(409, "idempotency_conflict", "This key came with another body before.")
            return (Verdict.ONCE_MORE,)
        if self._failed:
            raise Refused(409, "conflict_error", "The session has failed.")
        for event in events:
            match event:
                case Approval():
                    self.approvals.check(event)
                case ComputerApproval(request_id=request_id):
                    raise Refused(400, "invalid_request_error", f"Unknown pending request: {request_id}")
        return self.calls.judge([event for event in events if isinstance(event, ToolResult)])

    async def _apply_late(self, events: Sequence[Input], seconds: float) -> None:
        await self.clock.sleep(seconds)
        self._apply(events)

    def _apply(self, events: Sequence[Input]) -> None:
        for event in events:
            match event:
                case UserMessages():
                    if not self.streams:  # documented: subscribe before you submit
                        self.ledger.violated("a message was submitted while no event stream was open")
                    self._message(event.input)
                case Cancel():
                    self._tasks.start_soon(self._agent.cancel, self.rules.cancel_lag)
                case ToolResult() | Approval():
                    self._tasks.start_soon(self._answer, event)
                case ComputerApproval():
                    pass
                case _:
                    assert_never(event)

    async def _answer(self, answer: ToolResult | Approval) -> None:
        await self.clock.sleep(self.rules.apply_lag)
        if not (self.calls.apply(answer) if isinstance(answer, ToolResult) else self.approvals.apply(answer)):
            return
        if not self.waits or self.rules.partly is Partly.REMAINING:
            self.announce_state()

    def _message(self, messages: Sequence[UserMessage]) -> None:
        """A message to an idle session begins a turn; during a turn it steers, and cancels nothing. Documented."""
        turn = self.turn
        self.ledger.messages.extend(map(text_of, messages))
        if turn is None:
            turn = Turn(self.new_id("turn"), len(self.turns), int(time.time()))
            self.turns.append(turn)
            self._tasks.start_soon(self._agent.play, turn, list(messages))
        else:
            self.add_messages(turn, messages)

    # ------------------------------------------------------------------------------------------- what it tells

    def add_messages(self, turn: Turn, messages: Sequence[UserMessage]) -> None:
        """Add what a user wrote to a turn."""
        for message in messages:
            self.add_item(turn, objects.user_item(message, self.new_id("msg"), turn))

    def add_item(self, turn: Turn, item: Item, output_index: int | None = None) -> None:
        """Add an item; `output_index` is that of the agent's own."""
        turn.items.append(item)
        self.emit("agent.session.turn.item.added", turn_id=turn.id, item=dict(item), output_index=output_index)

    def emit(self, kind: str, **fields: Any) -> None:
        """Send an event to whoever listens."""
        if not kind.startswith(_QUIET):
            self.ledger.note(f"<- {kind}")
        self.streams.put({"type": kind, "event_id": self.new_id("ev"), "session_id": self.id, **fields})
        self.changes.notify()

    def emit_raw(self, event: Mapping[str, Any]) -> None:
        """Send an event as it is."""
        self.ledger.note(f"<- {event.get('type', '')}")
        self.streams.put(event)

    def announce_turn(self, turn: Turn) -> None:
        """Tell how a turn stands."""
        self.ledger.turns[turn.id] = turn.status
        kind = "created" if turn.status == "queued" else turn.status
        self.emit(f"agent.session.turn.{kind}", turn_id=turn.id, turn=self.turn_object(turn))

    def announce_state(self) -> None:
        """Tell how the session stands; some states can be told more than once."""
        times = {"requires_action": self.rules.required_actions_sent, "idle": self.rules.idle_sent}
        for _ in range(times.get(self.status, 1)):
            self.emit(f"agent.session.{self.status}", session=self.snapshot())

    def fail(self) -> None:
        """It is over, for good."""
        self._failed = True

    def cut(self) -> None:
        """Break all event streams."""
        self.streams.close(broken=True)
