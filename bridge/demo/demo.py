"""The demo: a call to a support line, offline, and what the provider's own account proves about it.

A simulated provider and a real session run in one process, over a real WebSocket. In one short call two tools run at
once, one outlasts the agent's words, one fails, the caller cuts in while a result is held, and the line is not ended
before the goodbye has been heard.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import anyio
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..agents.assemblyai import AssemblyAI
from ..core.conversation import Step
from ..core.dialect import Delivery
from ..core.events import SpeechStarted
from ..errors import ToolError
from ..host import connect
from ..scenarios import SCENARIOS
from ..simulator import Answer, CallRecord, Fate, Ledger, ReplyEnd, Simulator, Verdict
from ..tools.tool import CallContext, Toolset
from .drawing import drawn, is_live, say
from .timeline import Kind, Speech, Timeline

__all__ = ["TOOLS", "Claim", "demo", "play", "prove"]

_SCENARIO: Final = SCENARIOS["support-line"]
_SECONDS: Final = 13.0
"""How long the call takes."""
_LONGEST: Final = 40.0

# ------------------------------------------------------------------------------------------------------- the tools

TOOLS = Toolset()


def _seconds(seconds: float, context: CallContext) -> float:
    """At the pace of the demo."""
    pace: float = context.metadata["pace"]
    return seconds * pace


@TOOLS.tool(effect="read")
async def look_up_order(order: str, context: CallContext) -> dict[str, str]:
    """State of an order."""
    await anyio.sleep(_seconds(1.0, context))
    return {"state": "shipped", "arrives": "Friday"}


@TOOLS.tool(effect="read")
def check_stock(item: str, context: CallContext) -> dict[str, int]:
    """Items in stock. A plain function: it runs in a thread."""
    time.sleep(_seconds(0.8, context))
    return {"left": 3}


@TOOLS.tool(effect="read", timeout=10)
async def run_line_test(line: str, context: CallContext) -> dict[str, str]:
    """Measure a line. Slow."""
    await anyio.sleep(_seconds(2.2, context))
    return {"noise": "high"}


@TOOLS.tool(effect="write")
async def open_ticket(fault: str, context: CallContext) -> str:
    """Report a fault. Fails."""
    await anyio.sleep(_seconds(0.3, context))
    raise ToolError("tickets are closed today")


@TOOLS.tool(effect="read")
async def list_invoices(context: CallContext) -> dict[str, int]:
    """All invoices."""
    await anyio.sleep(_seconds(0.3, context))
    return {"invoices": 27}


@TOOLS.tool(effect="terminal")
async def end_call(context: CallContext) -> str:
    """End the call. Cannot be undone, so it does not start before the reply that asked for it has been heard."""
    context.end_session("the caller said goodbye")
    return "ended"


# -------------------------------------------------------------------------------------------------------- the call

# Headings, by which of the caller's turns they belong to. The fifth is the one that cuts in.
_TITLES: Final = {
    1: "Two calls at once: their results go out together",
    2: "A slow one: it outlasts the agent's words",
    3: "One that fails: the agent is told",
    4: "The caller cuts in while a result is held: it is thrown away",
    6: "One that cannot be undone: it waits until the goodbye has been heard",
}


def _titles(timeline: Timeline) -> Callable[[object, Step], None]:
    turns = itertools.count(1)

    def watch(session: object, step: Step) -> None:
        for event in step.events:
            if isinstance(event, SpeechStarted) and (title := _TITLES.get(next(turns))):
                timeline.title(title)

    return watch


async def play(console: Console, *, pace: float = 1.0, delivery: Delivery | None = None) -> tuple[Ledger, Timeline]:
    """Play the call and draw it; the provider's account of it, and ours.

    `pace` multiplies all durations. `delivery`: instead of the dialect's.
    """
    timeline = Timeline(AssemblyAI().output_rate)
    async with Simulator(_SCENARIO, pace=pace) as provider, drawn(console, timeline, seconds=_SECONDS * pace):
        agent = AssemblyAI(url=provider.url)
        async with connect(
            agent,
            tools=TOOLS,
            api_key="offline",
            metadata={"pace": pace},
            delivery=delivery,
            observers=(_titles(timeline), timeline.watch),
        ) as session:
            with anyio.move_on_after(_LONGEST):
                await session.run()
        return provider.ledger, timeline


async def demo(console: Console, *, pace: float = 1.0, delivery: Delivery | None = None) -> bool:
    """Introduce the call, play it, and say what was proven. False if a claim does not hold."""
    live = is_live(console)
    _introduce(console)
    ledger, timeline = await play(console, pace=pace, delivery=delivery)
    claims = prove(ledger, timeline)
    (_print_table if live else _print_claims)(console, claims)
    return all(claim.holds for claim in claims)


# ----------------------------------------------------------------------------------------------------- what is proven


@dataclass(frozen=True, slots=True)
class Claim:
    """Something the demo says about itself, and what shows that it is so, or not."""

    text: str
    holds: bool
    evidence: str


def prove(ledger: Ledger, timeline: Timeline) -> tuple[Claim, ...]:
    """Judge the call by the provider's account; ours adds when tools ran, which the provider cannot see."""
    try:
        return tuple(_claims(ledger, timeline))
    except LookupError as missing:
        return (Claim("The call took place to its end", False, str(missing)),)


def _claims(ledger: Ledger, timeline: Timeline) -> Iterator[Claim]:
    yield _answered_once(ledger, timeline)
    yield _in_parallel(ledger, timeline)
    yield _slow_one(ledger, timeline)
    yield _failure(ledger)
    yield _interruption(ledger, timeline)
    yield _goodbye(ledger, timeline)
    yield _in_the_window(ledger)
    yield _nothing_wrong(ledger)


def _answered_once(ledger: Ledger, timeline: Timeline) -> Claim:
    fates = [trace.fate for trace in timeline.calls]
    discarded = fates.count(Kind.DISCARDED)
    answered = [record for record in ledger.calls if record.answered == 1]
    silent = [record for record in ledger.calls if record.answered == 0]
    expected = sum(len(getattr(step, "calls", ())) for step in _SCENARIO.steps)
    return Claim(
        "Every call: one answer, or discarded for a reason",
        len(answered) + len(silent) == len(ledger.calls) == expected and len(silent) == discarded,
        f"{len(ledger.calls)} calls: {len(answered)} answered once, {discarded} discarded",
    )


def _in_parallel(ledger: Ledger, timeline: Timeline) -> Claim:
    records = (ledger.call("look_up_order"), ledger.call("check_stock"))
    both = max(_first(record).at for record in records) - min(record.asked_at for record in records)
    runs = [_run(timeline, record) for record in records]
    return Claim(
        "Two calls at once take as long as the slower one",
        both < sum(runs),
        f"{both:.2f} s; one after the other: {sum(runs):.2f} s",
    )


def _slow_one(ledger: Ledger, timeline: Timeline) -> Claim:
    trace, record = timeline.call("run_line_test"), ledger.call("run_line_test")
    words = _reply_of(timeline, trace.asked)
    silence = (trace.finished or 0.0) - (words.end or 0.0)
    late = (trace.over or 0.0) - (trace.finished or 0.0)
    return Claim(
        "A slow result goes out the moment it is there",
        silence > 0 and trace.held_by is None and record.fate is Fate.TOLD,
        f"{silence:.2f} s after the words, sent within {max(late * 1000, 1):.0f} ms",
    )


def _failure(ledger: Ledger) -> Claim:
    record = ledger.call("open_ticket")
    return Claim(
        "A failure is an answer, too: the agent hears of it",
        record.is_error and record.answered == 1 and record.fate is Fate.TOLD,
        f'it was told "{_words(_first(record).text)}"',
    )


def _interruption(ledger: Ledger, timeline: Timeline) -> Claim:
    record, trace = ledger.call("list_invoices"), timeline.call("list_invoices")
    cut = [reply.reply_id for reply in ledger.cut if reply.end is ReplyEnd.INTERRUPTED]
    waited = (trace.over or 0.0) - (trace.finished or 0.0)
    unsent = f"ready, held for {waited:.2f} s, then thrown away" if waited > 0 else "thrown away before it was there"
    return Claim(
        "Nothing is sent for the reply the caller cut into",
        record.answered == 0 and cut == [record.reply_id] and trace.fate is Kind.DISCARDED,
        "its result was sent" if record.answered else unsent,
    )


def _goodbye(ledger: Ledger, timeline: Timeline) -> Claim:
    record, trace = ledger.call("end_call"), timeline.call("end_call")
    reply = next(reply for reply in ledger.replies if reply.reply_id == record.reply_id)
    heard = _reply_of(timeline, trace.asked).end or 0.0
    began = trace.began or 0.0
    return Claim(
        "Hanging up waits until the goodbye has been heard",
        reply.end is ReplyEnd.COMPLETED and began >= heard > trace.asked,
        f"heard at {heard:.2f} s, hung up at {began:.2f} s",
    )


def _in_the_window(ledger: Ledger) -> Claim:
    timely = sum(answer.timely for answer in ledger.answers)
    phases = sorted({answer.phase.name.lower().replace("_", " ") for answer in ledger.answers if not answer.timely})
    return Claim(
        "Results arrive only while the provider wants them",
        0 < timely == len(ledger.answers),
        f"{timely} of {len(ledger.answers)}" + (f"; others while {', '.join(phases)}" if phases else ""),
    )


def _nothing_wrong(ledger: Ledger) -> Claim:
    wrong = [answer for answer in ledger.answers if answer.verdict is not Verdict.ACCEPTED]
    faults = len(wrong) + len(ledger.strays)
    breaches = len(ledger.violations) + len(ledger.errors)
    return Claim(
        "No answer late, repeated or stray; no rule broken",
        not faults and not breaches,
        f"{faults} wrong answers, {breaches} broken rules",
    )


def _first(record: CallRecord) -> Answer:
    """Raises `LookupError` if there is none."""
    if not record.answers:
        raise LookupError(f"{record.name} was not answered")
    return record.answers[0]


def _words(result: str) -> str:
    """The words of an error, as the agent reads them."""
    error = json.loads(result)
    return str(error["error"] if isinstance(error, dict) else error)


def _run(timeline: Timeline, record: CallRecord) -> float:
    trace = timeline.call(record.name)
    return (trace.finished or 0.0) - (trace.began or 0.0)


def _reply_of(timeline: Timeline, asked: float) -> Speech:
    """The reply that was open at this time."""
    replies = (speech for speech in reversed(timeline.speech) if speech.kind is Kind.AGENT)
    return next(speech for speech in replies if speech.begin <= asked)


# ---------------------------------------------------------------------------------------------------- what is printed


def _introduce(console: Console) -> None:
    console.print(
        Text.assemble(
            ("A call to a support line", "bold"),
            f", in about {_SECONDS:.0f} seconds. Nothing leaves this computer:\n"
            "the provider is simulated; the session, its tools and the WebSocket are real.",
        ),
    )


def _print_table(console: Console, claims: tuple[Claim, ...]) -> None:
    table = Table(title="What the provider's ledger proves", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("")
    table.add_column("Claim")
    table.add_column("Evidence", style="dim")
    for claim in claims:
        mark = Text("✔", "green") if claim.holds else Text("✘", "bold red")
        table.add_row(mark, Text(claim.text, "" if claim.holds else "bold red"), Text(claim.evidence))
    console.print("", table)
    say(console, _verdict(claims), "bold green" if all(claim.holds for claim in claims) else "bold red")


def _print_claims(console: Console, claims: tuple[Claim, ...]) -> None:
    lines = ["", "What the provider's ledger proves:"]
    for claim in claims:
        lines += [f"  {'ok   ' if claim.holds else 'FALSE'}  {claim.text}", f"           {claim.evidence}"]
    say(console, "\n".join([*lines, _verdict(claims)]))


def _verdict(claims: tuple[Claim, ...]) -> str:
    false = sum(not claim.holds for claim in claims)
    return f"{false} of {len(claims)} claims do not hold." if false else f"All {len(claims)} claims hold."
