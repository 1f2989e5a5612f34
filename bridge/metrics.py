"""Counts what happens, for Prometheus. `METRICS` is the table of everything that is exported.

`Metrics` watches sessions: it is an observer, `f(session, step)`, of embedded sessions and of the relay alike. What a
call came to is told by the runner (`finished`). Everything that can be read when somebody asks (bytes that went
through, threads in use) is read then and costs nothing before (`add_source`).

Labels are words from short lists, and the names of registered tools: never an id, never a word of a caller or a model.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from importlib.metadata import version
from platform import python_version
from typing import Final, NamedTuple, Protocol

import anyio
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .core.conversation import Step
from .core.events import (
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
    Transcript,
)
from .runner.runner import Finished, Outcome, Runner

__all__ = ["METRICS", "Kind", "Metrics", "Reading", "Series", "Source", "of_runner", "page"]


# -------------------------------------------------------------------------------------------------------- the table


class Kind(Enum):
    """The kinds of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: its name as it is exported, and what it tells."""

    name: str
    kind: Kind
    tells: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds in seconds, for a histogram."""


_TOOL = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
_HELD = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_SILENCE = (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_WAITING = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: Final = (
    Series("bridge_sessions_open", _G, "Sessions that are going on."),
    Series("bridge_sessions_total", _C, "Sessions that are over, by how they ended.", ("end",)),
    Series("bridge_tool_calls_total", _C, "Tool calls that are over, by how the tool ended.", ("tool", "outcome")),
    Series(
        "bridge_tool_seconds", _H, "From the start of a tool call to its outcome, waiting included.", ("tool",), _TOOL
    ),
    Series("bridge_tool_unavailable", _G, "1 while a tool is not called, since it is off or keeps failing.", ("tool",)),
    Series("bridge_tool_pauses_total", _C, "Times that a tool was not called for a while, since it failed.", ("tool",)),
    Series("bridge_calls_parked", _G, "Calls that go on although their session has been told to go on without them."),
    Series("bridge_approvals_pending", _G, "Calls that wait to be approved."),
    Series("bridge_approvals_total", _C, "Calls that had to be approved, by what became of that.", ("resolution",)),
    Series("bridge_journal_entries_waiting", _G, "Entries that wait to be written into the journal."),
    Series("bridge_journal_entries_lost_total", _C, "Entries that the journal could not take."),
    Series("bridge_journal_claims_refused_total", _C, "Calls that were not run, since the journal was out of order."),
    Series("bridge_journal_unrecorded_total", _C, "Results that were given although the journal could not take them."),
    Series("bridge_mailbox_taken_total", _C, "Answers taken that came to another process, by how seen.", ("way",)),
    Series("bridge_mailbox_listening", _G, "1 while notices of other processes arrive; else they are looked for."),
    Series("bridge_unknown_tools_total", _C, "Calls of tools that nobody has."),
    Series("bridge_duplicate_calls_total", _C, "Calls that the provider announced again; they ran once."),
    Series("bridge_results_sent_total", _C, "Results that the provider was given."),
    Series("bridge_results_discarded_total", _C, "Calls whose result will never be sent, by reason.", ("reason",)),
    Series("bridge_result_held_seconds", _H, "For how long a finished result waited until it was sent.", (), _HELD),
    Series("bridge_hold_expired_total", _C, "Times that a silent provider was not waited for any longer."),
    Series("bridge_late_results_total", _C, "Results of calls that nobody waited for any more."),
    Series("bridge_application_answers_total", _C, "Answers of the application to our calls, not passed on."),
    Series("bridge_sessions_without_setup_total", _C, "Sessions whose application configured nothing in time."),
    Series("bridge_setups_left_alone_total", _C, "Setups of an application that our tools could not be added to."),
    Series("bridge_speech_to_audio_seconds", _H, "From the end of user speech to the agent's voice.", (), _SILENCE),
    Series("bridge_call_to_audio_seconds", _H, "From a tool call to the agent's voice in a later reply.", (), _SILENCE),
    Series("bridge_provider_errors_total", _C, "Errors that the provider reported, by its code.", ("code",)),
    Series("bridge_malformed_messages_total", _C, "Messages of the provider with missing or broken parts."),
    Series("bridge_attached_sessions_open", _G, "Sessions at a provider whose tools are served.", ("dialect",)),
    Series("bridge_attaches_total", _C, "Sessions that are served no more, by how it ended.", ("dialect", "outcome")),
    Series("bridge_reconnects_total", _C, "Sessions that went on over a new connection."),
    Series(
        "bridge_provider_losses_total",
        _C,
        "Relayed sessions that stayed when their provider was lost, by what became of them.",
        ("outcome",),
    ),
    Series("bridge_dropped_media_total", _C, "Pieces of users' speech that came while their provider was away."),
    Series("bridge_frames_total", _C, "Frames relayed.", ("direction", "kind")),
    Series("bridge_bytes_total", _C, "Bytes relayed.", ("direction", "kind")),
    Series("bridge_slow_looks_total", _C, "Media that were not recognised at the first look.", ("direction",)),
    Series("bridge_refused_connections_total", _C, "Connections that became no session, by HTTP status.", ("status",)),
    Series("bridge_loop_lag_seconds", _H, "By how much the event loop was late, four times a second.", (), _LAG),
    Series(
        "bridge_relay_lag_seconds",
        _H,
        "For how long the slowest peer of a relay has not taken what waits for it, four times a second.",
        (),
        _WAITING,
    ),
    Series("bridge_threads_busy", _G, "Threads that run a tool, abandoned ones included."),
    Series("bridge_threads_abandoned", _G, "Threads whose tool goes on although its call has been answered."),
    Series("bridge_worker_restarts_total", _C, "Worker processes that died and were replaced."),
    Series("bridge_api_requests_total", _C, "Requests to the admin port, by path and status.", ("route", "status")),
    Series("bridge_build_info", _G, "Always 1; the versions are in the labels.", ("version", "python")),
)
"""Everything that is exported, in the order in which it is documented."""

_BY_NAME: Final = {series.name: series for series in METRICS}


class Reading(NamedTuple):
    """What a source says: a name from `METRICS`, the values of its labels in that order, and a number."""

    name: str
    labels: tuple[str, ...]
    value: float


Source = Callable[[], Iterable[Reading]]
"""Read at every scrape, in the thread of the scrape."""


def of_runner(runner: Runner) -> Iterator[Reading]:
    """What a runner says about its threads and its tools."""
    yield Reading("bridge_threads_busy", (), runner.threads_busy)
    yield Reading("bridge_threads_abandoned", (), runner.threads_abandoned)
    yield Reading("bridge_calls_parked", (), runner.parked)
    yield Reading("bridge_approvals_pending", (), len(runner.approvals.pending))
    for resolution, times in dict(runner.approvals.resolved).items():
        yield Reading("bridge_approvals_total", (resolution.value,), times)
    if runner.durable is not None:
        yield Reading("bridge_journal_claims_refused_total", (), runner.durable.refused)
        yield Reading("bridge_journal_unrecorded_total", (), runner.durable.unrecorded)
    if runner.post is not None:
        yield Reading("bridge_mailbox_listening", (), runner.post.listening)
        for way, times in dict(runner.post.taken).items():
            yield Reading("bridge_mailbox_taken_total", (way.value,), times)
    unavailable, paused = runner.guards.unavailable, dict(runner.guards.paused)
    for tool in unavailable | paused.keys():
        yield Reading("bridge_tool_unavailable", (tool,), tool in unavailable)
    yield from (Reading("bridge_tool_pauses_total", (tool,), times) for tool, times in paused.items())


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
        self.registry.register(_Read(self._sources))

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
                case AgentAudio() | Transcript():
                    # Words stand for the voice where audio is not read, as in the relay: they come with it.
                    if known.voice is _Voice.DUE and (isinstance(event, AgentAudio) or event.speaker == "agent"):
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


# ------------------------------------------------------------------------------------------------------ what is read

_READ: Final = frozenset(
    {
        "bridge_provider_losses_total",
        "bridge_dropped_media_total",
        "bridge_frames_total",
        "bridge_bytes_total",
        "bridge_slow_looks_total",
        "bridge_refused_connections_total",
        "bridge_sessions_without_setup_total",
        "bridge_worker_restarts_total",
        "bridge_api_requests_total",
        "bridge_tool_pauses_total",
        "bridge_approvals_total",
        "bridge_journal_entries_lost_total",
        "bridge_journal_claims_refused_total",
        "bridge_journal_unrecorded_total",
        "bridge_mailbox_taken_total",
        "bridge_attaches_total",
    }
    | {series.name for series in METRICS if series.kind is Kind.GAUGE}
)
"""Metrics whose numbers come from sources."""


def _counted() -> Iterator[Series]:
    return (series for series in METRICS if series.kind is Kind.COUNTER and series.name not in _READ)


def page(readings: Iterable[Reading]) -> bytes:
    """These numbers alone in the text format of Prometheus, for a process that has no sessions to count."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Read([lambda: readings]))
    return generate_latest(registry)


class _Read(Collector):
    """Asks the sources, and adds up what they say of the same thing."""

    def __init__(self, sources: list[Source]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        sums: dict[str, dict[tuple[str, ...], float]] = {series.name: {} for series in self._series()}
        for source in self._sources:
            for name, labels, value in source():
                sums[name][labels] = sums[name].get(labels, 0) + value
        for name, values in sums.items():
            family = self._family(_BY_NAME[name])
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterator[Metric]:
        """The names alone, so that nothing is read only because it is registered."""
        return map(self._family, self._series())

    def _series(self) -> Iterator[Series]:
        return (series for series in METRICS if series.name in _READ)

    def _family(self, series: Series) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if series.kind is Kind.COUNTER else GaugeMetricFamily
        return kind(series.name, series.tells, labels=series.labels)
