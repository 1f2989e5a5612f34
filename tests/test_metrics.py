"""What is counted: of real sessions against the simulator, of real tool runs, and of single steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from bridge import AssemblyAI, CallContext, Step, ToolCall, ToolError, Toolset, connect
from bridge.admin.merge import merge
from bridge.core.events import (
    AgentAudio,
    CallKey,
    Discard,
    DiscardedBy,
    Fact,
    Hold,
    Ignored,
    LinkLost,
    LinkResumed,
    Passed,
    ProviderFailed,
    ReplyDone,
    ReplyStarted,
    Resume,
    Sent,
    SessionEnded,
    SessionReady,
    Setup,
    SetupLeftAlone,
    SpeechStarted,
    SpeechStopped,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
)
from bridge.errors import BridgeError
from bridge.metrics import METRICS, Kind, Metrics, Reading, Series
from bridge.runner.guards import Health
from bridge.runner.runner import Finished, Runner
from bridge.scenarios import SCENARIOS
from bridge.simulator import Rules, Simulator

pytestmark = pytest.mark.anyio

KEY = CallKey(1, "c1")


def value(metrics: Metrics, name: str, **labels: str) -> float:
    """A sample by its exported name; what was never counted is 0."""
    return metrics.registry.get_sample_value(name, labels) or 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Conversation:
    """A session made of single events, at chosen times."""

    metrics: Metrics
    clock: Clock
    id: str = "s1"

    def hear(self, *events: Fact, after: float = 0.0) -> None:
        self.clock.now += after
        self.metrics(self, Step(events))  # type: ignore[arg-type]  # every event of the vocabulary is welcome here

    def decide(self, *outputs: Hold | ToolResults | Discard, after: float = 0.0) -> None:
        self.clock.now += after
        self.metrics(self, Step((), outputs))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics(clock=clock)


@pytest.fixture
def talk(metrics: Metrics, clock: Clock) -> Conversation:
    conversation = Conversation(metrics, clock)
    conversation.hear(Setup(None))
    conversation.hear(SessionReady("p1"))
    return conversation


# ------------------------------------------------------------------------------------------------- real sessions


def tools() -> Toolset:
    made = Toolset()

    @made.tool
    async def get_weather(city: str) -> str:
        """Weather now."""
        return f"rain in {city}"

    @made.tool
    async def list_invoices() -> str:
        """All invoices."""
        return "27"

    return made


async def held_a_session(name: str, metrics: Metrics) -> None:
    async with Simulator(SCENARIOS[name], pace=0.1) as sim:
        settings = AssemblyAI(url=sim.url)
        async with connect(settings, tools=tools(), api_key="k", observers=(metrics,)) as session:
            assert value(metrics, "bridge_sessions_open") == 1
            await session.run()


async def test_a_session_with_one_call_is_counted_from_its_setup_to_its_end() -> None:
    metrics = Metrics()
    await held_a_session("weather", metrics)
    assert value(metrics, "bridge_sessions_open") == 0
    assert value(metrics, "bridge_sessions_total", end="ended") == 1
    assert value(metrics, "bridge_results_sent_total") == 1
    assert value(metrics, "bridge_result_held_seconds_count") == 1
    assert value(metrics, "bridge_speech_to_audio_seconds_count") == 1
    assert value(metrics, "bridge_call_to_audio_seconds_count") == 1
    assert 0 < value(metrics, "bridge_call_to_audio_seconds_sum") < 5


async def test_a_barge_in_is_counted_as_a_discarded_result() -> None:
    metrics = Metrics()
    await held_a_session("barge-in", metrics)
    assert value(metrics, "bridge_results_discarded_total", reason="interrupted") == 1
    assert value(metrics, "bridge_results_sent_total") == 0


async def test_a_call_that_is_announced_twice_is_counted_as_a_duplicate() -> None:
    metrics = Metrics()
    await held_a_session("duplicate-events", metrics)
    assert value(metrics, "bridge_duplicate_calls_total") == 1
    assert value(metrics, "bridge_results_sent_total") == 1


async def test_a_provider_that_fails_is_counted_with_its_code() -> None:
    metrics = Metrics()
    with pytest.raises(BridgeError):
        await held_a_session("provider-fails", metrics)
    assert value(metrics, "bridge_sessions_total", end="failed") == 1
    assert sum(family_of(metrics, "bridge_provider_errors_total").values()) == 1


async def test_a_refused_session_is_not_left_open() -> None:
    metrics = Metrics()
    async with Simulator(Rules(refuse_with="at_capacity")) as sim:
        with pytest.raises(BridgeError):
            async with connect(AssemblyAI(url=sim.url), api_key="k", observers=(metrics,)):
                raise AssertionError("it opened")
    assert value(metrics, "bridge_sessions_open") == 0
    assert value(metrics, "bridge_sessions_total", end="refused") == 1
    assert value(metrics, "bridge_provider_errors_total", code="at_capacity") == 1


# ---------------------------------------------------------------------------------------------------- tool calls


def family_of(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """All samples with this name, by the values of their labels, which are exported in alphabetical order."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = (sample for family in families for sample in family.samples)
    return {tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name}


async def run(metrics: Metrics, made: Toolset, *calls: ToolCall) -> None:
    runner = Runner()
    session = runner.session()
    done: asyncio.Queue[Finished] = asyncio.Queue()
    for number, call in enumerate(calls):
        key = CallKey(number, call.call_id)
        context = CallContext(session_id="s", key=key, tool=call.name)
        session.start(key, call, made.get(call.name), made, context, done.put_nowait)
    async with asyncio.timeout(20):
        for _ in calls:
            metrics.finished(await done.get())
    await session.aclose(1)
    runner.close()


async def test_calls_are_counted_by_tool_and_outcome() -> None:
    made = Toolset()

    @made.tool
    async def works() -> str:
        """Works."""
        return "yes"

    @made.tool
    async def fails() -> str:
        """Fails."""
        raise ToolError("no")

    @made.tool(timeout=0.02)
    async def hangs() -> None:
        """Hangs."""
        await asyncio.sleep(60)

    metrics = Metrics()
    names = ("works", "works", "fails", "hangs", "no_such_tool_ever")
    await run(metrics, made, *(ToolCall(f"c{n}", name) for n, name in enumerate(names)))
    assert family_of(metrics, "bridge_tool_calls_total") == {
        ("ok", "works"): 2,
        ("error", "fails"): 1,
        ("timeout", "hangs"): 1,
        ("unknown", "(unknown)"): 1,
    }
    assert value(metrics, "bridge_unknown_tools_total") == 1
    assert value(metrics, "bridge_tool_seconds_count", tool="works") == 2
    assert value(metrics, "bridge_tool_seconds_sum", tool="hangs") >= 0.02
    assert b"no_such_tool_ever" not in metrics.render()


# ------------------------------------------------------------------------------------------------------ dead air


def heard_after(metrics: Metrics, what: str) -> list[float]:
    """How many waits there were, and how long they were together."""
    return [value(metrics, f"bridge_{what}_to_audio_seconds_{part}") for part in ("count", "sum")]


def test_the_wait_for_the_agents_voice_begins_when_the_user_stops(talk: Conversation) -> None:
    talk.hear(SpeechStarted())
    talk.hear(SpeechStopped(), after=3.0)
    talk.hear(ReplyStarted("r1"), after=0.5)
    talk.hear(AgentAudio(b"x"), after=0.25)
    talk.hear(AgentAudio(b"x"), after=0.25)
    assert heard_after(talk.metrics, "speech") == [1, 0.75]


def test_words_are_no_voice(talk: Conversation) -> None:
    talk.hear(SpeechStopped())
    talk.hear(ReplyStarted("r1"), after=0.5)
    talk.hear(Transcript("user", "hello", final=True), after=0.25)
    talk.hear(Transcript("agent", "Good"), after=0.25)
    assert heard_after(talk.metrics, "speech") == [0, 0]
    talk.hear(AgentAudio(b"x"), after=0.25)
    assert heard_after(talk.metrics, "speech") == [1, 1.25]


def test_audio_of_a_reply_that_is_being_interrupted_answers_nothing(talk: Conversation) -> None:
    talk.hear(ReplyStarted("r1"), AgentAudio(b"x"))
    talk.hear(SpeechStarted())
    talk.hear(SpeechStopped(), after=1.0)
    talk.hear(AgentAudio(b"x"), after=0.25)
    assert heard_after(talk.metrics, "speech") == [0, 0]
    talk.hear(ReplyDone(interrupted=True), after=0.25)
    talk.hear(ReplyStarted("r2"), AgentAudio(b"x"), after=0.5)
    assert heard_after(talk.metrics, "speech") == [1, 1.0]


def test_speech_that_was_answered_before_it_ended_is_no_wait(talk: Conversation) -> None:
    talk.hear(SpeechStarted(), ReplyStarted("r1"), AgentAudio(b"x"))
    talk.hear(SpeechStopped(), ReplyDone(), after=1.0)
    talk.hear(ReplyStarted("r2"), AgentAudio(b"x"), after=5.0)
    assert heard_after(talk.metrics, "speech") == [0, 0]


def test_the_wait_after_a_call_ends_with_the_next_reply_and_not_with_the_words_before_it(talk: Conversation) -> None:
    talk.hear(ReplyStarted("r1"), ToolCalled(ToolCall("c1", "look")))
    talk.hear(AgentAudio(b"one moment"), after=0.25)
    talk.hear(ToolCalled(ToolCall("c2", "look")), ReplyDone(), after=0.25)
    talk.hear(ReplyStarted("r2"), after=2.0)
    talk.hear(AgentAudio(b"x"), after=0.5)
    assert heard_after(talk.metrics, "call") == [1, 3.0]


def test_a_call_whose_reply_was_interrupted_is_waited_for_by_nobody(talk: Conversation) -> None:
    talk.hear(ReplyStarted("r1"), ToolCalled(ToolCall("c1", "look")))
    talk.hear(ReplyDone(interrupted=True))
    talk.hear(ReplyStarted("r2"), AgentAudio(b"x"))
    assert heard_after(talk.metrics, "call") == [0, 0]


# ---------------------------------------------------------------------------------------------------- what waits


def test_a_held_result_is_measured_from_its_first_hold_to_its_release(talk: Conversation) -> None:
    talk.decide(Hold(KEY))
    talk.decide(Hold(KEY), after=1.0)
    talk.decide(ToolResults((ToolResult("c1", "1"),), keys=(KEY,)), after=1.0)
    assert value(talk.metrics, "bridge_result_held_seconds_sum") == 2.0
    assert value(talk.metrics, "bridge_results_sent_total") == 0  # only the transport can say that
    talk.hear(Sent((KEY,)))
    assert value(talk.metrics, "bridge_results_sent_total") == 1


def test_a_result_that_goes_out_at_once_was_held_for_no_time(talk: Conversation) -> None:
    talk.decide(ToolResults((ToolResult("c1", "1"),), keys=(KEY,)))
    assert value(talk.metrics, "bridge_result_held_seconds_bucket", le="0.0") == 1


@pytest.mark.parametrize("reason", list(DiscardedBy))
def test_a_discarded_call_is_counted_with_its_reason(talk: Conversation, reason: DiscardedBy) -> None:
    talk.decide(Hold(KEY), Discard(KEY, reason))
    assert value(talk.metrics, "bridge_results_discarded_total", reason=reason.value) == 1


# ------------------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (Passed(Ignored.REPEATED_CALL), "bridge_duplicate_calls_total"),
        (Passed(Ignored.CALL_CHANGED), "bridge_duplicate_calls_total"),
        (Passed(Ignored.LATE_RESULT), "bridge_late_results_total"),
        (Passed(Ignored.APPLICATION_ANSWER), "bridge_application_answers_total"),
        (SetupLeftAlone("stored"), "bridge_setups_left_alone_total"),
        (LinkResumed(), "bridge_reconnects_total"),
    ],
)
def test_what_is_noticed_is_counted(talk: Conversation, event: Fact, name: str) -> None:
    talk.hear(event)
    assert value(talk.metrics, name) == 1


def test_a_repeated_event_is_news_to_nobody(talk: Conversation) -> None:
    before = family_of(talk.metrics, "bridge_duplicate_calls_total")
    talk.hear(Passed(Ignored.REPEATED_EVENT))
    assert family_of(talk.metrics, "bridge_duplicate_calls_total") == before


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ((), "ended"),
        ((LinkLost(),), "lost"),
        ((LinkLost(), LinkResumed()), "ended"),
        ((ProviderFailed("internal_error", fatal=True), LinkLost()), "failed"),
        ((ProviderFailed("invalid_value"),), "ended"),
        ((Resume("p1"),), "resumed"),
        ((Resume("p1"), SessionReady("p1")), "ended"),
    ],
)
def test_a_session_is_counted_by_how_it_ended(talk: Conversation, events: tuple[Fact, ...], end: str) -> None:
    talk.hear(*events, SessionEnded("over"))
    talk.hear(SessionEnded("once more"))
    assert value(talk.metrics, "bridge_sessions_total", end=end) == 1
    assert value(talk.metrics, "bridge_sessions_open") == 0


def test_a_session_that_never_was_ready_is_refused_even_if_its_connection_drops(metrics: Metrics, clock: Clock) -> None:
    talk = Conversation(metrics, clock)
    talk.hear(Setup(()), LinkLost(), SessionEnded("over"))
    assert value(metrics, "bridge_sessions_total", end="refused") == 1


def test_what_comes_after_the_end_is_counted_and_opens_nothing(talk: Conversation) -> None:
    talk.hear(SessionEnded("over"))
    talk.hear(Passed(Ignored.LATE_RESULT), ToolFinished(KEY, ToolResult("c1", "1")))
    assert value(talk.metrics, "bridge_late_results_total") == 1
    assert value(talk.metrics, "bridge_sessions_open") == 0


def test_only_what_looks_like_a_code_becomes_a_label_and_not_without_end(talk: Conversation) -> None:
    for code in ("", "The user Ada said: hello", "x" * 100, *(f"code_{n}" for n in range(200))):
        talk.hear(ProviderFailed(code))
    codes = family_of(talk.metrics, "bridge_provider_errors_total")
    assert sum(codes.values()) == 203
    assert len(codes) <= 51
    assert codes[("other",)] >= 3
    assert b"Ada" not in talk.metrics.render()


def test_numbers_of_several_sources_are_added_up(metrics: Metrics) -> None:
    metrics.add_source(lambda: [Reading("bridge_frames_total", ("to_provider", "media"), 3)])
    metrics.add_source(lambda: [Reading("bridge_frames_total", ("to_provider", "media"), 4)])
    assert value(metrics, "bridge_frames_total", direction="to_provider", kind="media") == 7


def test_a_source_is_not_read_before_somebody_asks(metrics: Metrics) -> None:
    read: list[int] = []

    def source() -> list[Reading]:
        read.append(1)
        return [Reading("bridge_threads_busy", (), 2)]

    metrics.add_source(source)
    assert read == []
    assert value(metrics, "bridge_threads_busy") == 2


def test_a_tool_that_is_not_called_is_shown_by_name(metrics: Metrics) -> None:
    runner = Runner(max_failures=1)
    metrics.watch_runner(runner)
    assert "bridge_tool_unavailable{" not in metrics.render().decode()
    runner.guards.switch(off=["book"])
    runner.guards.ended("look", Health.FAILED)
    assert value(metrics, "bridge_tool_unavailable", tool="book") == 1
    assert value(metrics, "bridge_tool_unavailable", tool="look") == 1
    assert value(metrics, "bridge_tool_pauses_total", tool="look") == 1
    runner.guards.ended("look", Health.WELL)
    assert value(metrics, "bridge_tool_unavailable", tool="look") == 0
    assert value(metrics, "bridge_tool_pauses_total", tool="look") == 1


async def test_a_blocked_loop_shows_in_its_lag() -> None:
    times = [0.0, 0.75, 0.75, 1.0]

    def clock() -> float:
        if not times:
            raise TimeoutError
        return times.pop(0)

    metrics = Metrics(clock=clock)
    with pytest.raises(TimeoutError):
        await metrics.watch_loop(every=0.001)
    assert value(metrics, "bridge_loop_lag_seconds_count") == 2
    assert value(metrics, "bridge_loop_lag_seconds_sum") == pytest.approx(0.998)


# ------------------------------------------------------------------------------------------------------ the table


def exported(rendered: bytes) -> set[str]:
    """The names of the table as they are exported, `_bucket` and the like left out."""
    families = text_string_to_metric_families(rendered.decode())
    names = {f"{f.name}_total" if f.type == "counter" else f.name for f in families if not f.name.endswith("_created")}
    return {name for name in names if name.startswith("bridge_")}


def test_exactly_the_metrics_of_the_table_are_exported(metrics: Metrics) -> None:
    assert exported(metrics.render()) == {series.name for series in METRICS}


@pytest.mark.parametrize("series", METRICS, ids=lambda series: series.name)
def test_names_follow_the_conventions(series: Series) -> None:
    assert series.name.startswith("bridge_")
    assert series.name.endswith("_total") == (series.kind is Kind.COUNTER)
    assert series.kind is not Kind.HISTOGRAM or series.name.endswith("_seconds")
    assert series.tells.endswith(".")
    assert not {"call_id", "session", "id"} & set(series.labels)


def test_versions_are_told(metrics: Metrics) -> None:
    assert list(family_of(metrics, "bridge_build_info").values()) == [1]


def test_a_registry_of_the_application_has_only_what_was_put_there() -> None:
    registry = CollectorRegistry()
    assert all(line.startswith((b"bridge_", b"#")) for line in Metrics(registry).render().splitlines())
    with pytest.raises(ValueError, match=r"(?i)duplicate"):
        Metrics(registry)


def test_the_pages_of_several_workers_become_one_with_a_label_for_each(clock: Clock) -> None:
    workers = {name: Metrics(CollectorRegistry(), clock=clock) for name in ("0", "1")}
    for number, each in enumerate(workers.values(), start=1):
        for _ in range(number):
            Conversation(each, clock).hear(Passed(Ignored.LATE_RESULT))
    text = merge({name: each.render() for name, each in workers.items()}).decode()
    assert text.count("# TYPE bridge_late_results_total counter") == 1
    assert 'bridge_late_results_total{worker="0"} 1.0' in text
    assert 'bridge_late_results_total{worker="1"} 2.0' in text
    assert 'bridge_result_held_seconds_bucket{le="+Inf",worker="1"} 0.0' in text
    assert exported(text.encode()) == {series.name for series in METRICS}
