"""What has to be remembered while a session of H Company is read: how far, and the step whose calls are waited for.

The bodies of `/changes` and `/status` become the messages that the dialect decodes: events of the log with their
`index`, those that list calls with their `step`, or as `past` if they wait no more, a status, as type `SessionStatus`,
where it says what no event does, and `{"pause": "begins"}` or `"ends"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from bridge.core.dialect import Message

__all__ = ["OVER", "Reading"]

OVER: Final = ("completed", "failed", "timed_out", "interrupted")
"""The statuses of a session that is over."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a session has been read, and what a single body does not say. As text it is the cursor."""

    index: int = 0
    """Of the event to be read next: the `from_index` of the next poll."""
    step: int | None = None
    """Index of the event that opened the step whose calls are waited for."""
    paused: bool = False
    """As the newest body of `/changes` has it: a status that is read beside it may be older."""

    @classmethod
    def at(cls, cursor: str) -> Reading:
        """The reading with this text; the beginning for any other."""
        found = re.fullmatch(r"(\d+)(?:@(\d+))?(p?)", cursor)
        return cls() if found is None else cls(int(found[1]), int(found[2]) if found[2] else None, bool(found[3]))

    def __str__(self) -> str:
        return f"{self.index}{'' if self.step is None else f'@{self.step}'}{'p' if self.paused else ''}"

    def changes(self, body: Message) -> tuple[Reading, tuple[Message, ...]]:
        """The next reading, and the messages in this body of `/changes`."""
        events, first = body.get("new_events"), body.get("first_index")
        first = first if isinstance(first, int) else self.index
        # What was evicted may have ended the step. An equal call is taken for the old one all the same: it is then
        # answered with the old result, which does less harm than to run what was run already.
        reading = self if first <= self.index else replace(self, index=first)
        messages: list[Message] = []
        for event in events[max(reading.index - first, 0) :] if isinstance(events, list) else ():
            reading, message = reading._event(event if isinstance(event, Mapping) else {})
            messages.append(message)
        messages = _without_past_calls(messages, over=body.get("status") in OVER)
        # The body tells of one moment: what it lists and its events do not was listed by an event that is lost.
        pending = body.get("pending_tool_calls")
        if reading.step is None and pending:
            reading = replace(reading, step=reading.index)
            messages.append(reading._lost(pending))
        elif body.get("status") in OVER:
            messages.append(reading.status(body))
        return reading._pause(body.get("status"), tuple(messages))

    def _pause(self, status: object, messages: tuple[Message, ...]) -> tuple[Reading, tuple[Message, ...]]:
        """The messages with the beginning of a pause, or its end.

        It begins before and ends after all else that is told: in between, something may be said, which would end it.
        """
        if status == "paused" and not self.paused:
            return replace(self, paused=True), ({"pause": "begins"}, *messages)
        if self.paused and isinstance(status, str) and status not in ("paused", *OVER):
            return replace(self, paused=False), (*messages, {"pause": "ends"})
        return self, messages

    def status(self, body: Message) -> Message:
        """The message for a body that tells the status; `step` is that of the calls told so far, if any wait.

        It may be older than the events that have been read, or newer: so it makes no calls, it only says what waits.
        """
        told = {key: value for key, value in body.items() if key != "new_events"}
        return {**told, "type": "SessionStatus", **({} if self.step is None else {"step": self.step})}

    def _lost(self, pending: object) -> Message:
        """The event that listed these calls and is lost, made up again."""
        data = {"state": "awaiting_tool_results", "pending_tool_calls": pending}
        return {"type": "ActiveStateChangeEvent", "data": data, "index": self.index, "step": self.step}

    def _event(self, event: Message) -> tuple[Reading, Message]:
        match event:
            case {"type": "ActiveStateChangeEvent", "data": {"state": "awaiting_tool_results"}}:
                step = self.index if self.step is None else self.step
                return replace(self, index=self.index + 1, step=step), {**event, "index": self.index, "step": step}
            case {"type": "ActiveStateChangeEvent"}:
                return replace(self, index=self.index + 1, step=None), {**event, "index": self.index}
        return replace(self, index=self.index + 1), {**event, "index": self.index}


def _without_past_calls(messages: list[Message], *, over: bool) -> list[Message]:
    """Whoever attaches reads the whole log: of its lists of calls only the latest still counts, if it does."""
    states = [at for at, message in enumerate(messages) if message.get("type") == "ActiveStateChangeEvent"]
    past = states if over else states[:-1]
    return [{**message, "past": True} if at in past else message for at, message in enumerate(messages)]
