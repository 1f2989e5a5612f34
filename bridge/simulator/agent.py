"""The agent itself: who is speaking, what is said, and what becomes of it when the user cuts in.

    user:   QUIET --speech--> SPEAKING --end of speech--> HEARD --reply begins--> QUIET
    reply:  none --begins--> in flight --its end, or a cut--> none

One reply is in flight at most. Replies come from the script, and, whenever nobody speaks and the user is owed no reply,
from what the agent has to say by itself: requested replies, apologies for calls that timed out, and results.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import anyio
from anyio.abc import TaskStatus

from bridge.simulator.account import keep
from bridge.simulator.calls import Calls, told
from bridge.simulator.ledger import CallRecord, Fate, Phase, ReplyEnd, ReplyRecord, RequestRecord, Verdict
from bridge.simulator.messages import ToolResult
from bridge.simulator.rules import AudioPace, EarlyResults, HeldWords, Preamble, ReplyRequests
from bridge.simulator.script import Reply
from bridge.simulator.shared import Shared
from bridge.simulator.speech import Format, Sound, audio

__all__ = ["Agent"]

_WAITING_REQUESTS: Final = 100


class _User(Enum):
    QUIET = auto()
    SPEAKING = auto()
    HEARD = auto()
    """Has spoken, and is owed a reply."""


class _Cut(Exception):
    """The reply in flight must stop."""


@dataclass(slots=True, eq=False)
class _Live:
    """The reply in flight. `cut` says why it must stop; `began` and `seconds` tell how much of its text was heard."""

    record: ReplyRecord
    began: float
    seconds: float = 0.0
    cut: ReplyEnd | None = None


class Agent:
    """Speaks, listens and calls tools; told what the client says, it decides what the client hears."""

    def __init__(self, shared: Shared) -> None:
        self._rules = shared.rules
        self._ledger = shared.ledger
        self._wire = shared.wire
        self._changes = shared.changes
        self._clock = shared.clock
        self._tasks = shared.tasks
        self._ids = itertools.count(1)
        self._user = _User.QUIET
        self._live: _Live | None = None
        self._opened: _Live | None = None
        self._requests: deque[str] = deque(maxlen=_WAITING_REQUESTS)
        self._withheld: list[str] = []
        self.calls = Calls(shared)
        self.format = Format.PCM
        self.interruptible = True

    # What the client says

    def answer(self, message: ToolResult) -> None:
        """The client answers a call."""
        reply = self._live
        verdict = self.calls.answer(message, self.phase, reply.record.reply_id if reply else None)
        dropping = self._rules.early_results is EarlyResults.DROPS_REPLY and not self._rules.kept_open
        if reply is not None and dropping and verdict is Verdict.ACCEPTED:
            reply.cut = ReplyEnd.DROPPED
        self._end_hold()
        self._changes.notify()

    def request(self, instructions: str) -> None:
        """The client asks for a reply. It ends the one in flight, and is swallowed while the user speaks."""
        phase = self.phase
        taken = self._rules.reply_requests is ReplyRequests.SPOKEN and self._user is not _User.SPEAKING
        keep(self._ledger.requests, RequestRecord(self._clock.now, phase, taken))
        if taken:
            if self._live is not None:
                self._live.cut = ReplyEnd.INTERRUPTED
            self._flush_words()
            self._requests.append(instructions or "I am still here.")
            self._changes.notify()
        elif self._rules.reply_requests is ReplyRequests.HOLLOW:
            self._wire.reply_done(ReplyRecord(self._new_id("resp")), interrupted=False)

    def lose_link(self) -> None:
        """The connection is gone: the reply in flight is lost, calls stay open."""
        self._user = _User.QUIET
        if self._opened is not None:
            self._opened.record.end = ReplyEnd.LINK_LOST
            self._live = self._opened = None
        elif self._live is not None:
            self._live.cut = ReplyEnd.LINK_LOST
        self._changes.notify()

    # What the user does

    def speech_starts(self) -> None:
        """The user begins to speak; if that goes on, the reply in flight will be cut."""
        self._user = _User.SPEAKING
        self._wire.send("input.speech.started")
        if self._live is not None and self.interruptible:
            self._tasks.start_soon(self._interrupt, self._live)

    def words_so_far(self, text: str) -> None:
        """A partial transcript of what the user says. Under early start it may open the reply."""
        if self.calls.holding:
            return
        self._wire.user_words(f"msg_user_{len(self._ledger.user_turns) + 1}", text)
        if self._rules.early_start and self._live is None and self._wire.up:
            self._live = self._opened = self._open()

    def speech_stops(self, text: str) -> None:
        """The user falls silent, having said this; nothing, if it was a noise."""
        self._user = _User.HEARD if text and not self.calls.holding else _User.QUIET
        self._wire.send("input.speech.stopped")
        if text:
            self._ledger.user_turns.append(text)
            if self.calls.holding:
                self._withheld.append(text)
            else:
                self._transcribe(text)
        self._changes.notify()

    async def _interrupt(self, reply: _Live) -> None:
        await self._clock.sleep(self._rules.interruption_lag)
        if self._live is reply and self._user is not _User.QUIET:
            reply.cut = ReplyEnd.INTERRUPTED
            self._changes.notify()

    def _transcribe(self, text: str) -> None:
        self._wire.send("transcript.user", item_id=f"msg_user_{len(self._ledger.user_turns)}", text=text)

    def _end_hold(self) -> None:
        if self._withheld and not self.calls.holding:
            self._flush_words()

    def _flush_words(self) -> None:
        words, self._withheld = self._withheld, []
        if self._rules.held_words is HeldWords.FLUSHED:
            for text in words:
                self._transcribe(text)

    # What the agent says

    def ask_silently(self, line: Reply) -> None:
        """Call tools in hold mode: outside any reply."""
        self._user = _User.QUIET
        self.calls.ask(line.calls)

    async def reply(
        self,
        line: Reply,
        knows: Sequence[CallRecord] = (),
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Give a reply as soon as nobody speaks; it is over when its `reply.done` has been sent."""
        await self._changes.until(self._has_floor)
        reply = self._begin(line, knows)
        task_status.started()
        with suppress(_Cut):
            await self._perform(reply, line)
        self._finish(reply)

    async def speak_up(self) -> None:
        """Say what is to be said without a script, for as long as the session lasts."""
        while True:
            await self._changes.until(lambda: self._is_free() and self._has_news())
            await self._clock.sleep(self._rules.answer_lag)
            if self._is_free():
                await self._say_news()

    async def _say_news(self) -> None:
        if self._requests:
            await self.reply(Reply(self._requests.popleft()))
        elif self.calls.timed_out:
            late = self.calls.timed_out.pop(0)
            self._end_hold()
            await self.reply(Reply(f"I am sorry, {late.name} did not answer in time."))
        elif batch := self.calls.batch():
            await self.reply(Reply(_about(batch)), batch)

    def _begin(self, line: Reply, knows: Sequence[CallRecord]) -> _Live:
        reply = self._opened or self._open()
        self._opened = None
        self._live = reply
        self._user = _User.QUIET
        reply.record.text = line.text
        self._tell(reply, knows)
        return reply

    def _open(self) -> _Live:
        record = ReplyRecord(self._new_id("resp"))
        self._ledger.replies.append(record)
        self._wire.reply_started(record)
        return _Live(record, self._clock.now)

    def _tell(self, reply: _Live, knows: Sequence[CallRecord]) -> None:
        self.calls.tell(knows)
        reply.record.knows.extend(record.call_id for record in knows)

    async def _perform(self, reply: _Live, line: Reply) -> None:
        spoken = not line.calls or self._rules.preamble is Preamble.SPOKEN
        seconds = self._length(line) if spoken else 0.0
        calls_at = min(line.calls_at, seconds)
        if spoken:
            self._wire.reply_words(reply.record, line.text)
            reply.seconds = seconds * self._clock.pace
        else:
            reply.record.text = ""
        await self._sound(reply, Sound.TONE, calls_at)
        calls = self.calls.ask(line.calls, reply.record.reply_id)
        reply.record.calls.extend(call.call_id for call in calls)
        await self._sound(reply, Sound.TONE, seconds - calls_at)
        if calls:
            await self._linger(reply, calls)
        if calls and self._rules.kept_open:
            await self._answer_within(reply, calls)

    async def _linger(self, reply: _Live, calls: Sequence[CallRecord]) -> None:
        """Keep the reply open until `gap` after its calls; their results end the wait."""
        seconds = self._rules.gap - (self._clock.now - calls[-1].asked_at) / self._clock.pace
        sound = Sound.SILENCE if self._rules.preamble is Preamble.SILENT else Sound.NOTHING
        await self._sound(reply, sound, max(seconds, 0.0), lambda: not any(call.fate is Fate.OPEN for call in calls))

    async def _answer_within(self, reply: _Live, calls: Sequence[CallRecord]) -> None:
        """Wait for the results, and tell them in the same reply."""
        await self._pass(reply, math.inf, lambda: not any(call.fate is Fate.OPEN for call in calls))
        answered = [call for call in calls if call.fate is Fate.ANSWERED]
        line = Reply(_about(answered) if answered else "I am sorry, that did not work.")
        self.calls.timed_out = [call for call in self.calls.timed_out if call not in calls]
        self._tell(reply, answered)
        reply.record.text = f"{reply.record.text} {line.text}".strip()
        self._wire.reply_words(reply.record, line.text)
        reply.began, reply.seconds = self._clock.now, self._length(line) * self._clock.pace
        await self._sound(reply, Sound.TONE, self._length(line))

    async def _sound(
        self, reply: _Live, sound: Sound, seconds: float, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Be heard for so long, or until it is enough. Raises `_Cut`."""
        total = seconds * self._clock.pace
        start = anyio.current_time()
        if sound is Sound.NOTHING:
            await self._pass(reply, total, enough)
            return
        sent = 0.0
        while sent < total - 1e-9:
            piece = min(self._rules.chunk, total - sent)
            self._wire.reply_audio(reply.record, audio(self.format, sound, sent, piece))
            sent += piece
            if self._rules.audio_pace is AudioPace.REAL_TIME and await self._pass(
                reply, start + sent - anyio.current_time(), enough
            ):
                return

    async def _pass(self, reply: _Live, seconds: float, enough: Callable[[], bool]) -> bool:
        """Let time pass; is it enough? Raises `_Cut`."""
        await self._changes.until(lambda: reply.cut is not None or enough(), seconds)
        if reply.cut is not None:
            raise _Cut
        return enough()

    def _finish(self, reply: _Live) -> None:
        record = reply.record
        record.end = reply.cut or ReplyEnd.COMPLETED
        self._live = None
        interrupted = record.end is ReplyEnd.INTERRUPTED
        if record.end is not ReplyEnd.LINK_LOST:
            if interrupted:
                record.text = self._heard(reply)
            captioned = record.text and record.end is not ReplyEnd.DROPPED
            if captioned and (self._rules.tool_captions or not record.calls):
                self._wire.reply_caption(record, record.text, interrupted=interrupted)
            self._wire.reply_done(record, interrupted=interrupted)
        if interrupted:
            self.calls.abandon(record.reply_id)
        self._changes.notify()

    def _heard(self, reply: _Live) -> str:
        """The part of the text that was spoken before the cut."""
        words = reply.record.text.split()
        share = (self._clock.now - reply.began) / reply.seconds if reply.seconds else 1.0
        return " ".join(words[: round(len(words) * min(share, 1.0))])

    def _length(self, line: Reply) -> float:
        return len(line.text.split()) * self._rules.word if line.seconds is None else line.seconds

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{next(self._ids):04x}"

    # What state it is in

    @property
    def phase(self) -> Phase:
        """What a message that comes in now would meet."""
        if self._user is _User.SPEAKING:
            return Phase.USER_SPEAKING
        if self._live is not None:
            return Phase.REPLYING
        if self._user is _User.HEARD:
            return Phase.USER_HEARD
        if self.calls.holding:
            return Phase.HOLDING
        return Phase.WAITING if self.calls.pending else Phase.IDLE

    @property
    def is_done(self) -> bool:
        """Has it said all there is to say for now, though calls may be open?"""
        return self._is_silent() and not (self._is_free() and self._has_news())

    @property
    def is_settled(self) -> bool:
        """Has every call been told or given up, and all been said?"""
        return self._is_silent() and not self._has_news() and not self.calls.pending

    @property
    def owes_reply(self) -> bool:
        """Has the user spoken, and not been answered?"""
        return self._user is _User.HEARD

    def stop_owing(self) -> None:
        """Whatever the user was owed is part of the next reply."""
        if self._user is _User.HEARD:
            self._user = _User.QUIET
            self._changes.notify()

    def _has_floor(self) -> bool:
        return self._wire.up and self._is_silent()

    def _is_silent(self) -> bool:
        return self._live is self._opened and self._user is not _User.SPEAKING

    def _is_free(self) -> bool:
        return self._wire.up and self._live is self._opened and self._user is _User.QUIET

    def _has_news(self) -> bool:
        return bool(self._requests or self.calls.timed_out or self.calls.batch())


def _about(records: Sequence[CallRecord]) -> str:
    return " ".join(told(record) for record in records)
