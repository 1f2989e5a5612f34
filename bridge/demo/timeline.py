"""What happened in a session, as a timeline: who spoke when, and the life of every call.

A `Timeline` watches the steps of one session and keeps two accounts: traces, to be drawn and to be checked, and lines,
to be read. Times are in seconds since the session became ready.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from ..core.conversation import Step
from ..core.events import (
    AgentAudio,
    CallKey,
    Discard,
    DiscardedBy,
    HeldBy,
    Hold,
    LinkLost,
    ProviderFailed,
    ReplyDone,
    ReplyRequest,
    ReplyStarted,
    Run,
    Sent,
    SessionReady,
    SpeechStarted,
    SpeechStopped,
    Start,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
    TurnOutput,
)
from ..session.audio import PlaybackClock

__all__ = ["CallTrace", "Kind", "Line", "Speech", "Timeline"]


class Kind(Enum):
    """What is going on, in a row of the drawing or in a line."""

    CALLER = auto()
    AGENT = auto()
    WAITING = auto()
    """A call that must not start yet."""
    RUNNING = auto()
    HELD = auto()
    SENT = auto()
    FAILED = auto()
    """Sent, as an error."""
    DISCARDED = auto()
    TROUBLE = auto()
    TITLE = auto()
    """The heading of what follows."""


@dataclass(slots=True)
class Speech:
    """Somebody speaks. `end` may lie ahead: what has arrived is still to be heard."""

    kind: Kind
    begin: float
    end: float | None = None


@dataclass(slots=True)
class CallTrace:
    """The life of one call: asked, begun, finished, and over by one of two doors."""

    call_id: str
    name: str
    asked: float
    began: float | None = None
    finished: float | None = None
    over: float | None = None
    result: ToolResult | None = None
    held_by: HeldBy | None = None
    """What its result waited for first."""
    discarded: DiscardedBy | None = None

    @property
    def fate(self) -> Kind:
        """How it ended, or what is going on now."""
        if self.discarded is not None:
            return Kind.DISCARDED
        if self.over is not None:
            return Kind.FAILED if self.result is not None and self.result.is_error else Kind.SENT
        if self.finished is not None:
            return Kind.HELD
        return Kind.WAITING if self.began is None else Kind.RUNNING


@dataclass(frozen=True, slots=True)
class Line:
    """Something to be told, and about whom: the caller, the agent, or a tool."""

    at: float
    who: str
    kind: Kind
    text: str


_WHY_DISCARDED = {
    DiscardedBy.INTERRUPTION: "the caller cut in",
    DiscardedBy.CANCELLATION: "the provider took the call back",
    DiscardedBy.END: "the session ended",
    DiscardedBy.ORPHANED: "the provider has lost its session",
}


class Timeline:
    """Pass `watch` to `connect` as an observer. `output_rate`: bytes per sample and samples per second of the agent."""

    def __init__(self, output_rate: tuple[int, int], clock: Callable[[], float] = time.monotonic) -> None:
        self.calls: list[CallTrace] = []
        self.speech: list[Speech] = []
        self.lines: list[Line] = []
        self.last_event = 0.0
        """When something other than audio happened last."""
        self._clock = clock
        self._start = clock()
        self._playback = PlaybackClock(*output_rate)
        self._words: list[str] = []
        self._said = ""
        self._heard = ""

    @property
    def now(self) -> float:
        return self._clock() - self._start

    def call(self, name: str) -> CallTrace:
        """The newest call of this tool. Raises `LookupError` if there is none."""
        for trace in reversed(self.calls):
            if trace.name == name:
                return trace
        raise LookupError(f"{name} was not called")

    def is_quiet(self) -> bool:
        """Is nobody speaking, and no call open?"""
        now = self.now
        speaking = any(speech.end is None or speech.end > now for speech in self.speech)
        return not speaking and all(trace.over is not None for trace in self.calls)

    def title(self, text: str) -> None:
        """Put a heading above what follows."""
        self._tell("", Kind.TITLE, text)

    def watch(self, session: object, step: Step) -> None:
        """Take one step of the session. Never waits."""
        for event in step.events:
            if isinstance(event, AgentAudio):
                self._playback.add(len(event.data), self.now)
            else:
                self.last_event = self.now
                self._happened(event, step)
        for output in step.outputs:
            self._decided(output, step)

    # What happens

    def _happened(self, event: object, step: Step) -> None:
        match event:
            case SessionReady():
                self._start = self._clock()
                self.last_event = 0.0
            case SpeechStarted() | SpeechStopped() | ReplyStarted() | ReplyDone():
                self._turn(event)
            case Transcript("user", text, final=True):
                self._tell("caller", Kind.CALLER, f'"{text}"')
            case Transcript("agent", text, final=True, interrupted=True):
                self._heard = text
            case Transcript("agent", text, final=final):
                self._agent_words(text, final)
            case ToolCalled():
                self._called(event, step)
            case ToolFinished(key, result):
                self._finished(key, result)
            case Sent(keys):
                for trace in self._traces(keys):
                    trace.over = self.now
            case ProviderFailed(code, text):
                self._tell("provider", Kind.TROUBLE, f"reports an error: {code} {text}".rstrip())
            case LinkLost():
                self._tell("provider", Kind.TROUBLE, "the connection is gone")

    def _turn(self, event: SpeechStarted | SpeechStopped | ReplyStarted | ReplyDone) -> None:
        now = self.now
        match event:
            case SpeechStarted():
                self._caller_starts()
            case SpeechStopped():
                self._stop(Kind.CALLER, now)
            case ReplyStarted():
                self.speech.append(Speech(Kind.AGENT, now))
                self._words, self._said, self._heard = [], "", ""
            case ReplyDone(interrupted=True):
                self._stop(Kind.AGENT, now)
                self._tell_agent_words()
                after = f', after "{self._heard}"' if self._heard else ""
                self._tell("agent", Kind.DISCARDED, f"is cut short{after}")
            case ReplyDone():
                self._stop(Kind.AGENT, max(now, self._playback.end))

    def _caller_starts(self) -> None:
        now = self.now
        self._playback.flush()
        for speech in self.speech:
            if speech.kind is Kind.AGENT and speech.end is not None and speech.end > now:
                speech.end = now
        if any(speech.kind is Kind.AGENT and speech.end is None for speech in self.speech):
            self._tell_agent_words()
            self._tell("caller", Kind.CALLER, "begins to speak over the agent")
        self.speech.append(Speech(Kind.CALLER, now))

    def _stop(self, kind: Kind, end: float) -> None:
        for speech in self.speech:
            if speech.kind is kind and speech.end is None:
                speech.end = end

    def _agent_words(self, text: str, final: bool) -> None:
        """Told when they are complete, or before the calls that go with them."""
        if final:
            self._words = [text]
            self._tell_agent_words()
        else:
            self._words.append(text)

    def _tell_agent_words(self) -> None:
        text = " ".join(self._words)
        if text and not self._said.startswith(text):
            self._said = text
            self._tell("agent", Kind.AGENT, f'"{text}"')

    def _called(self, event: ToolCalled, step: Step) -> None:
        self._tell_agent_words()
        name = event.call.name
        if event.start is Start.NOW and not any(isinstance(output, Run) for output in step.outputs):
            self._tell(name, Kind.AGENT, "is run by the provider itself")
            return
        self.calls.append(CallTrace(event.call.call_id, name, self.now))
        if event.start is Start.AFTER_REPLY:
            self._tell(name, Kind.WAITING, "is called, and must wait until this reply has been heard")

    def _finished(self, key: CallKey, result: ToolResult) -> None:
        for trace in self._traces((key,)):
            trace.finished, trace.result = self.now, result
            if trace.discarded is not None:
                self._tell(trace.name, Kind.DISCARDED, f"ends after {_took(trace)}, and nobody wants to know")

    # What is decided

    def _decided(self, output: TurnOutput, step: Step) -> None:
        match output:
            case Run(key):
                for trace in self._traces((key,)):
                    trace.began = self.now
                    self._tell(trace.name, Kind.RUNNING, "runs")
            case Hold(key, reason):
                for trace in self._traces((key,)):
                    self._held(trace, reason, step)
            case ToolResults(results, keys=keys):
                for trace, result in zip(self._traces(keys), results, strict=True):
                    trace.result = result
                    self._released(trace, step)
            case Discard(key, reason):
                for trace in self._traces((key,)):
                    trace.over, trace.discarded = self.now, reason
                    self._tell(trace.name, Kind.DISCARDED, f"discarded: {_WHY_DISCARDED[reason]}")
            case ReplyRequest():
                self._tell("agent", Kind.AGENT, "is asked to say something meanwhile")

    def _held(self, trace: CallTrace, reason: HeldBy, step: Step) -> None:
        trace.held_by = trace.held_by or reason
        ended = f"{_how(trace)}, held" if _ends_in(trace, step) else "still held"
        self._tell(trace.name, Kind.HELD, f"{ended}: {reason.value}")

    def _released(self, trace: CallTrace, step: Step) -> None:
        kind = Kind.FAILED if trace.result is not None and trace.result.is_error else Kind.SENT
        what = "error" if kind is Kind.FAILED else "result"
        if trace.finished is None:
            text = f"not run: the {what} says so"
        elif _ends_in(trace, step):
            text = f"{_how(trace)}, sent at once"
        else:
            text = f"{what} sent, after being held for {self.now - trace.finished:.2f} s"
        self._tell(trace.name, kind, text)

    def _traces(self, keys: tuple[CallKey, ...]) -> Iterator[CallTrace]:
        """The newest calls with these ids: providers may use an id again."""
        for key in keys:
            yield next(trace for trace in reversed(self.calls) if trace.call_id == key.call_id)

    def _tell(self, who: str, kind: Kind, text: str) -> None:
        self.lines.append(Line(self.now, who, kind, text))


def _ends_in(trace: CallTrace, step: Step) -> bool:
    """Is it this step in which the tool ended?"""
    ends = (event.key.call_id for event in step.events if isinstance(event, ToolFinished))
    return trace.call_id in ends


def _how(trace: CallTrace) -> str:
    ended = "fails" if trace.result is not None and trace.result.is_error else "done"
    return f"{ended} after {_took(trace)}"


def _took(trace: CallTrace) -> str:
    assert trace.finished is not None
    return f"{trace.finished - (trace.asked if trace.began is None else trace.began):.2f} s"
