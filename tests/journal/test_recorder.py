"""From a session's steps to the journal: nothing waits, nothing is torn, and what is lost is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from bridge import AssemblyAI, ProviderError, Toolset, TransportError, connect
from bridge.core.conversation import Step
from bridge.core.dialect import Delivery
from bridge.core.events import AgentAudio, LinkLost, Run, ToolCall, ToolCalled, Transcript
from bridge.errors import JournalError
from bridge.journal import Begun, Entry, Lost, Part
from bridge.journal.memory import MemoryJournal
from bridge.journal.recorder import Recorder
from bridge.journal.replay import Replayed, replay
from bridge.scenarios import SCENARIOS
from bridge.simulator import Simulator

from ..e2e.conftest import BRISK, PACE, sketched
from .making import CALL, KEY, RUN

pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class Seen:
    """What a recorder sees of a session."""

    id: str = "s1"
    delivery: Delivery = field(default_factory=Delivery)


class Uncertain(MemoryJournal):
    """A journal whose disk comes and goes."""

    def __init__(self) -> None:
        super().__init__()
        self.well = True
        self.asked = asyncio.Event()
        self.appended: list[list[Entry]] = []

    async def append(self, entries: Sequence[Entry]) -> None:
        self.asked.set()
        if not self.well:
            raise JournalError("the disk is gone")
        self.appended.append(list(entries))
        await super().append(entries)


LOST_LINK = Step((LinkLost(),))


async def all_of(journal: MemoryJournal) -> list[Entry]:
    return [each async for _, each in journal.read()]


async def test_a_step_becomes_entries_events_first() -> None:
    journal = MemoryJournal()
    async with Recorder(journal, clock=lambda: 5.0) as recorder:
        recorder(Seen(), Step((LinkLost(), ToolCalled(CALL)), (RUN,)))
        assert await recorder.flush()
        entries = await all_of(journal)
    assert [(each.at, each.session, each.fact, each.part) for each in entries] == [
        (5.0, "s1", Begun(Delivery()), Part.HEARD),
        (5.0, "s1", LinkLost(), Part.HEARD),
        (5.0, "s1", ToolCalled(CALL), Part.HEARD),
        (5.0, "s1", RUN, Part.DECIDED),
    ]
    assert len({each.mark for each in entries}) == 4


async def test_audio_and_words_of_the_agent_are_not_recorded_and_those_of_the_user_without_what_they_say() -> None:
    journal = MemoryJournal()
    async with Recorder(journal) as recorder:
        recorder(Seen(), Step((AgentAudio(b"\0\0"),)))
        recorder(Seen("s2"), Step((Transcript("agent", "hello"), Transcript("user", "secret", True, "i1"))))
    assert [each.fact for each in await all_of(journal)] == [Begun(Delivery()), Transcript("user", "", True, "i1")]


async def test_a_call_that_nobody_here_runs_is_noted() -> None:
    journal = MemoryJournal()
    async with Recorder(journal) as recorder:
        recorder(Seen(), Step((ToolCalled(ToolCall("theirs", "x")), ToolCalled(CALL)), (Run(KEY, CALL),)))
    parts = {each.fact.call.call_id: each.part for each in await all_of(journal) if isinstance(each.fact, ToolCalled)}
    assert parts == {"theirs": Part.NOTED, "c1": Part.HEARD}


async def test_what_happens_before_it_is_entered_is_recorded_too() -> None:
    journal = MemoryJournal()
    recorder = Recorder(journal)
    recorder(Seen(), LOST_LINK)
    await recorder.aclose()
    async with recorder:
        pass
    assert len(await all_of(journal)) == 2


async def test_a_machine_begins_once_for_each_session_also_if_it_has_the_name_of_another() -> None:
    journal, seen, again = MemoryJournal(), Seen(), Seen()
    async with Recorder(journal) as recorder:
        for session in (seen, seen, again):
            recorder(session, LOST_LINK)
    assert [isinstance(each.fact, Begun) for each in await all_of(journal)] == [True, False, False, True, False]


async def test_many_steps_are_written_together_and_none_is_torn() -> None:
    journal = Uncertain()
    async with Recorder(journal) as recorder:
        for _ in range(400):
            recorder(Seen(), Step((LinkLost(),) * 5))
    assert sum(map(len, journal.appended)) == 2400
    assert len(journal.appended) <= 6
    assert all(isinstance(batch[0].fact, Begun) for batch in journal.appended)


async def test_sessions_on_other_event_loops_are_recorded_too() -> None:
    journal = MemoryJournal()

    async def elsewhere(name: str) -> None:
        for _ in range(100):
            recorder(Seen(name), LOST_LINK)

    async with Recorder(journal) as recorder:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, elsewhere(f"s{n}")) for n in range(4)))
        assert await recorder.flush()
        assert recorder.waiting == 0
    assert len(await all_of(journal)) == 800


async def test_what_cannot_be_written_waits_and_is_written_once_it_can(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bridge.journal")
    journal, session = Uncertain(), Seen()
    async with Recorder(journal, retry=0.005) as recorder:
        journal.well = False
        recorder(session, LOST_LINK)
        for _ in range(3):
            journal.asked.clear()
            await journal.asked.wait()
        recorder(session, LOST_LINK)
        assert (recorder.waiting, recorder.lost) == (3, 0)
        assert not await recorder.flush(0.01)
        journal.well = True
        assert await recorder.flush()
    assert len(await all_of(journal)) == 3
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


async def test_beyond_its_bound_steps_are_lost_and_the_journal_says_where(caplog: pytest.LogCaptureFixture) -> None:
    journal, session, other = Uncertain(), Seen(), Seen("s2")
    async with Recorder(journal, max_waiting=3, retry=0.005) as recorder:
        journal.well = False
        recorder(session, Step((LinkLost(), LinkLost())))
        assert recorder.full
        for each in (session, session, other):
            recorder(each, LOST_LINK)
        assert recorder.lost == 2 + 2
        journal.well = True
        assert await recorder.flush()
        assert not recorder.full
        recorder(session, LOST_LINK)
    facts = [(each.session, each.fact) for each in await all_of(journal)]
    assert facts[3:] == [("s1", Lost(2)), ("s2", Lost(2)), ("s1", LinkLost())]
    assert caplog.text.count("what comes now is lost") == 1


async def test_what_cannot_be_put_into_words_is_lost_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    journal = MemoryJournal()
    async with Recorder(journal) as recorder:
        recorder(Seen(), Step((), (AgentAudio(b""),)))  # type: ignore[arg-type]
        assert await recorder.flush()
        recorder(Seen("s2"), LOST_LINK)
    assert recorder.lost == 2
    assert "cannot be written into the journal" in caplog.text
    assert len(await all_of(journal)) == 2


async def test_at_the_end_what_could_not_be_written_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    journal = Uncertain()
    recorder = Recorder(journal, retry=0.005)
    async with recorder:
        journal.well = False
        recorder(Seen(), LOST_LINK)
        await recorder.aclose(timeout=0.02)
        await recorder.aclose()
    assert recorder.lost == 2
    assert "2 entries that could not be written in time" in caplog.text


# --------------------------------------------------------------------------------------------------- real sessions


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_real_session_decides_the_same_when_it_is_replayed(name: str) -> None:
    journal, scenario, seen = MemoryJournal(), SCENARIOS[name], Seen(delivery=BRISK)
    tools = Toolset(sketched(sketch, PACE, 0.75, lambda tool: None) for sketch in scenario.tools)
    async with Recorder(journal) as recorder, Simulator(scenario, pace=PACE) as simulator:
        observers = (lambda session, step: recorder(seen, step),)
        agent = AssemblyAI(url=simulator.url)
        with suppress(ProviderError, TransportError):
            async with connect(agent, tools=tools, api_key="offline", delivery=BRISK, observers=observers) as session:
                await session.run()
    entries = [each async for each in journal.read()]
    replayed = replay(entries)
    assert (replayed.outcome, replayed.why) == (Replayed.SAME, "")
    assert replayed.decisions == sum(each.part is Part.DECIDED for _, each in entries)
