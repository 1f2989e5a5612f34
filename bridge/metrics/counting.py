"""Counts what happens in the sessions that it watches."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import version
from platform import python_version
from typing import Final, Protocol

import anyio
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest

from ..core.conversation import Step
from ..core.events import (
    AgentAudio,
    CallKey,
    Discard,
    DiscardedBy,
    Hold,
    HoldExpired,
    Ignored,
    LinkLost,
    LinkResumed,
    Malformed,
    Passed,
    ProviderFailed,
    ReplyDone,
    ReplyStarted,
    Resume,
    Sent,
    SessionEnded,
    SessionOpened,
    SessionReady,
    Setup,
    SetupLeftAlone,
    SpeechStarted,
    SpeechStopped,
    ToolCalled,
    ToolResults,
)
from ..runner.runner import Finished, Outcome, Runner
from .reading import READ, Read, Reading, Source, of_runner
from .table import METRICS, Kind, Series

__all__ = ["Metrics"]


class Written(Protocol):
    """What is asked of whoever writes the journal."""

    @property
    def waiting(self) -> int: ...

    @property
    def lost(self) -> int: ...


class Watched(Protocol):
    """What is asked of a session."""

    @property
    def id(self) -> str: ...


# ----------------------------------------------------------------------------------------------- what is remembered


class _End(Enum):
    ENDED = "ended"
    """Properly, by either side."""
    REFUSED = "refused"
    """The provider was never ready."""
    FAILED = "failed"
    """The provider reported an error that nothing survives."""
    LOST = "lost"
    """The connection dropped."""
    RESUMED = "resumed"
    """It was only the new connection of a session that went on."""


class _Voice(Enum):
    NOT_DUE = "no reply has begun since the agent's voice was last heard"
    DUE = "a reply has begun and was not heard yet"


@dataclass(slots=True)
class _Session:
    """What is needed of a session's past. Times are the clock's."""

    end: _End = _End.REFUSED
    voice: _Voice = _Voice.NOT_DUE
    spoke_until: float | None = None
    """When the user stopped speaking, if no reply to that has been heard."""
    called: float | None = None
    """When the first call came that no later reply has begun after."""
    answering: float | None = None
    """The same for the reply that has begun: it may tell the results."""
    finished: dict[CallKey, float] = field(default_factory=dict)
    """When the results that wait were first held."""


_VERSIONS: Final = (version("voice-tool-bridge"), python_version())
_OPENING = (SessionOpened, Setup, Resume, SessionReady)
_CODE = re.compile(r"[a-z0-9_.-]{1,40}")
_MAX_CODES = 50
_OTHER = "other"


class Metrics:
    """Counts the sessions that it watches.

        metrics = Metrics()
        async with Bridge(tools, observers=(metrics,)) as bridge: ...
        metrics.render()

    `registry`: where the metrics go; by default one of their own, which has those of the process too. A registry can
    hold one `Metrics`; `prometheus_client.REGISTRY` is the one that most applications export already.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        if registry is None:
            ProcessCollector(registry=self.registry)
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._sources: list[Source] = [self._own]
        self._counters = {s.name: Counter(s.name, s.tells, s.labels, registry=self.registry) for s in _counted()}
        self._histograms = {
            s.name: Histogram(s.name, s.tells, s.labels, buckets=s.buckets, registry=self.registry)
            for s in METRICS
            if s.kind is Kind.HISTOGRAM
        }
        self._hold_children()
        self.registry.register(Read(self._sources))

    def _hold_children(self) -> None:
        """Looking a child up by its labels costs more than counting, so it is done once."""
        counters, histograms = self._counters, self._histograms
        self._ends = {end: counters["bridge_sessions_total"].labels(end.value) for end in _End}
        discarded = counters["bridge_results_discarded_total"]
        self._discarded = {reason: discarded.labels(reason.value) for reason in DiscardedBy}
        self._passed = {
            Ignored.REPEATED_CALL: counters["bridge_duplicate_calls_total"],
            Ignored.CALL_CHANGED: counters["bridge_duplicate_calls_total"],
            Ignored.LATE_RESULT: counters["bridge_late_results_total"],
            Ignored.APPLICATION_ANSWER: counters["bridge_application_answers_total"],
        }
        self._calls: dict[tuple[str, Outcome], Counter] = {}
        self._seconds: dict[str, Histogram] = {}
        self._codes: dict[str, Counter] = {}
        self._sent = counters["bridge_results_sent_total"]
        self._held = histograms["bridge_result_held_seconds"]
        self._after_speech = histograms["bridge_speech_to_audio_seconds"]
        self._after_call = histograms["bridge_call_to_audio_seconds"]

    # ---------------------------------------------------------------------------------------------- what is watched

    def __call__(self, session: Watched, step: Step) -> None:
        """Count what happened and what was decided. The observer of a `Bridge`, of `connect`, and of the relay."""
        known = self._sessions.get(session.id)
        if known is None:
            known = _Session()
            if any(isinstance(event, _OPENING) for event in step.events):
                self._sessions[session.id] = known
        for event in step.events:
            match event:
                case AgentAudio() if known.voice is _Voice.DUE:
                    self._heard(known)
                case SessionEnded():
                    if self._sessions.pop(session.id, None) is not None:
                        self._ends[known.end].inc()
                case SessionReady() | Resume() | LinkLost() | LinkResumed() | ProviderFailed():
                    self._link(known, event)
                case ReplyStarted() | ReplyDone() | SpeechStarted() | SpeechStopped() | ToolCalled():
                    self._turn(known, event)
                case Sent(keys):
                    self._sent.inc(len(keys))
                case Passed(why):
                    if counter := self._passed.get(why):
                        counter.inc()
                case HoldExpired():
                    self._counters["bridge_hold_expired_total"].inc()
                case Malformed():
                    self._counters["bridge_malformed_messages_total"].inc()
                case SetupLeftAlone():
                    self._counters["bridge_setups_left_alone_total"].inc()
        if step.outputs:
            self._decided(known, step)

    def finished(self, finished: Finished) -> None:
        """Count a tool call that is over; may be called from any thread."""
        name, outcome = finished.name, finished.outcome
        if outcome is Outcome.UNKNOWN:
            self._counters["bridge_unknown_tools_total"].inc()
        if (name, outcome) not in self._calls:
            self._calls[name, outcome] = self._counters["bridge_tool_calls_total"].labels(name, outcome.value)
            self._seconds[name] = self._histograms["bridge_tool_seconds"].labels(name)
        self._calls[name, outcome].inc()
        self._seconds[name].observe(finished.seconds)

    def relay_lag(self, seconds: float) -> None:
        """Count how far behind a relay is: its `lag`."""
        self._histograms["bridge_relay_lag_seconds"].observe(seconds)

    async def watch_loop(self, every: float = 0.25) -> None:
        """Measure until it is cancelled by how much the running event loop is late."""
        lag = self._histograms["bridge_loop_lag_seconds"]
        while True:
            began = self._clock()
            await anyio.sleep(every)
            lag.observe(max(0.0, self._clock() - began - every))

    def add_source(self, source: Source) -> None:
        """Read numbers from here at every scrape."""
        self._sources.append(source)

    def watch_runner(self, runner: Runner) -> None:
        """Read at every scrape how many threads its tools hold, and which of them are not called now."""
        self.add_source(lambda: of_runner(runner))

    def watch_recorder(self, recorder: Written) -> None:
        """Read at every scrape how many entries of the journal wait, and how many are lost."""
        self.add_source(
            lambda: (
                Reading("bridge_journal_entries_waiting", (), recorder.waiting),
                Reading("bridge_journal_entries_lost_total", (), recorder.lost),
            )
        )

    def render(self) -> bytes:
        """Everything in the text format of Prometheus. Takes milliseconds: not for an event loop, but for a thread."""
        return generate_latest(self.registry)

    def _own(self) -> Iterator[Reading]:
        yield Reading("bridge_sessions_open", (), len(self._sessions))
        yield Reading("bridge_build_info", _VERSIONS, 1)

    # ------------------------------------------------------------------------------------------------ the details

    def _link(self, known: _Session, event: SessionReady | Resume | LinkLost | LinkResumed | ProviderFailed) -> None:
        match event:
            case Resume():
                known.end = _End.RESUMED
            case SessionReady():
                known.end = _End.ENDED
            case LinkLost():
                if known.end is _End.ENDED:
                    known.end = _End.LOST
            case LinkResumed():
                known.end = _End.ENDED
                self._counters["bridge_reconnects_total"].inc()
            case ProviderFailed(code, fatal=fatal):
                self._code(code).inc()
                if fatal and known.end is not _End.REFUSED:
                    known.end = _End.FAILED

    def _code(self, code: str) -> Counter:
        """Codes are the provider's own words: only what looks like one becomes a label, and not without end."""
        if code not in self._codes:
            if not _CODE.fullmatch(code) or len(self._codes) >= _MAX_CODES:
                code = _OTHER
            self._codes[code] = self._counters["bridge_provider_errors_total"].labels(code)
        return self._codes[code]

    def _turn(
        self, known: _Session, event: ReplyStarted | ReplyDone | SpeechStarted | SpeechStopped | ToolCalled
    ) -> None:
        match event:
            case ReplyStarted():
                known.voice = _Voice.DUE
                known.answering, known.called = known.called, None
            case ReplyDone(interrupted):
                known.voice = _Voice.NOT_DUE
                if interrupted:
                    known.called = known.answering = None  # the results have lost their reply
                else:
                    known.spoke_until = None  # a reply that began during the speech was the answer to it
            case SpeechStarted():
                known.spoke_until = None
            case SpeechStopped():
                known.spoke_until = self._clock()
            case ToolCalled():
                known.called = known.called or self._clock()

    def _heard(self, known: _Session) -> None:
        """The agent's voice begins."""
        now = self._clock()
        if known.spoke_until is not None:
            self._after_speech.observe(now - known.spoke_until)
        if known.answering is not None:
            self._after_call.observe(now - known.answering)
        known.voice, known.spoke_until, known.answering = _Voice.NOT_DUE, None, None

    def _decided(self, known: _Session, step: Step) -> None:
        now = self._clock()
        for output in step.outputs:
            match output:
                case Hold(key):
                    known.finished.setdefault(key, now)
                case ToolResults(keys=keys):
                    for key in keys:
                        self._held.observe(now - known.finished.pop(key, now))
                case Discard(key, reason):
                    known.finished.pop(key, None)
                    self._discarded[reason].inc()


def _counted() -> Iterator[Series]:
    return (series for series in METRICS if series.kind is Kind.COUNTER and series.name not in READ)
