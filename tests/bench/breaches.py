"""What must hold of calls after a kill: what was done, and what providers heard, against what the journal knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from bridge.journal import UNFINISHED, Claimed, State
from bridge.runner.leftovers import NOT_KNOWN, Found, Recovered
from bridge.simulator.ledger import CallRecord, Fate, Ledger
from tests.e2e.victim import ONCE, ticket_of

__all__ = ["Answered", "Did", "answered", "breaches", "left_over"]

_NOTHING_CHANGED = "Nothing has been changed"


@dataclass(frozen=True, slots=True)
class Did:
    """What lives did, as their notes tell it."""

    effects: Counter[tuple[str, str]]
    """Tools and tickets."""
    approved: frozenset[str]
    sent: frozenset[str]
    """Names of calls whose results had been sent: that had returned."""
    told: Counter[str]
    """Names of calls whose outcomes the agent was asked to tell later."""
    serves: Mapping[str, str]
    """From a provider's name of a session to ours."""
    resumable: tuple[Mapping[str, str], ...]
    """What it takes to go on with a session, after each connection."""
    resumed: tuple[str, ...]
    refused: tuple[str, ...]
    """Our names of sessions that went on in another life, and of those that did not although that was tried."""
    failed: tuple[str, ...]
    """What went wrong in a life that should not."""

    @classmethod
    def of(cls, text: str) -> Did:
        """From the lines of a log."""
        lines = [line.split(" ", 1) for line in text.splitlines()]

        def after(word: str) -> list[str]:
            return [rest for first, rest in lines if first == word]

        effects = Counter((tool, ticket) for tool, ticket in (each.split(" ") for each in after("effect")))
        return cls(
            effects,
            frozenset(after("approved")),
            frozenset(map(_name, after("sent"))),
            Counter(map(_name, after("told"))),
            dict(each.split(" ") for each in after("serves")),
            tuple(map(orjson.loads, after("resumable"))),
            tuple(after("resumed")),
            tuple(after("refused")),
            tuple(after("failed")),
        )


@dataclass(frozen=True, slots=True)
class Answered:
    """How often a call had been answered when a life ended."""

    finally_: int = 0
    provisionally: int = 0
    told: int = 0
    """How often the agent had been asked to tell what came of it."""
    recorded: bool = False
    """Did the journal know that nothing more was owed?"""


def answered(
    claims: Iterable[Claimed], did: Did, heard: Iterable[Ledger], recorded: Collection[str]
) -> dict[str, Answered]:
    """Of every call, by name. `recorded` are those of which the entries say that they were answered."""
    settled = {_name(ticket_of(each.call)) for each in claims if each.state in (State.SENT, State.DISCARDED)}
    found: dict[str, Answered] = {}
    for ledger in heard:
        for call in ledger.calls:
            name = f"{did.serves.get(ledger.session_id, '')}.{call.call_id}"
            final, interim = _texts(call)
            over = name in settled or name in recorded
            found[name] = Answered(len(final), len(interim), did.told[name], over)
    return found


def breaches(
    claims: Sequence[Claimed],
    did: Did,
    heard: Iterable[Ledger],
    *,
    receipts: bool,
    before: Mapping[str, Answered] = MappingProxyType({}),
) -> Iterator[str]:
    """What is wrong at any time. `receipts`: does the provider confirm what it was sent before that counts as sent?
    `before` tells how far the calls had come that this life has inherited, by name.
    """
    known = {ticket_of(each.call): each for each in claims}
    for (tool, ticket), times in did.effects.items():
        if times > 1 and tool in ONCE:
            yield f"{tool} {ticket} happened {times} times"
        if ticket not in known:
            yield f"{tool} {ticket} happened, and the journal does not know of it"
        if tool == "refund" and ticket not in did.approved:
            yield f"{tool} {ticket} happened, and nobody has approved it"
    for name, times in did.told.items():
        earlier = before.get(name, Answered())
        if times - earlier.told > 1:
            yield f"{name} was told {times - earlier.told} times"
        if times > earlier.told and earlier.recorded:
            yield f"{name} was told again, although the journal knew that it had been"
    for ticket, each in known.items():
        if each.state is State.SENT and _name(ticket) not in did.sent and _name(ticket) not in did.told:
            yield f"{each.tool} {ticket} is recorded as sent, and was not"
        if each.outcome == "ok" and (each.tool, ticket) not in did.effects:
            yield f"{each.tool} {ticket} is recorded as done, and did not happen"
    changed = {(tool, _name(ticket)) for tool, ticket in did.effects}
    by_name = {(each.call.session, each.call.call_id): each for each in claims}  # a provider here has no id twice
    for ledger in heard:
        for call in ledger.calls:
            session = did.serves.get(ledger.session_id, "")
            # Who was away while a reply was interrupted, or is slower than the provider's patience, sends what nobody
            # waits for: the provider may have hung up.
            unheard = call.fate is Fate.TIMED_OUT or (ledger.resumes > 0 and call.fate is Fate.ABANDONED)
            yield from _answered(call, by_name.get((session, call.call_id)), receipts and not unheard)
            name = f"{session}.{call.call_id}"
            yield from _answered_now(call, name, before.get(name, Answered()))
            if (call.name, name) in changed and any(_NOTHING_CHANGED in answer.text for answer in call.answers):
                yield f"{call.name} {name} has happened, and the agent was told that nothing had been changed"
    for failure in did.failed:
        yield f"a life failed: {failure}"


def _answered(call: CallRecord, claimed: Claimed | None, receipts: bool) -> Iterator[str]:
    """What is wrong with the answers that a provider got to one call."""
    final, interim = _texts(call)
    name = f"{call.name} {call.call_id if claimed is None else ticket_of(claimed.call)}"
    if call.name != "look" and any(isinstance(text, str) for text in final):
        if claimed is None or claimed.outcome != "ok":
            yield f"{name} was answered before its outcome was in the journal"
        elif ticket_of(claimed.call) not in final:
            yield f"{name} was answered with what another call came to"
    if claimed is not None and claimed.state is State.SENT and not (final or interim) and receipts:
        yield f"{name} is recorded as sent, and never came"


def _answered_now(call: CallRecord, name: str, before: Answered) -> Iterator[str]:
    """What is wrong with how often a call was answered in one life."""
    final, interim = (len(texts) for texts in _texts(call))
    if final - before.finally_ > 1 or interim - before.provisionally > 1:
        yield f"{call.name} {name} was answered {len(call.answers)} times"
    if final > before.finally_ and before.recorded:
        yield f"{call.name} {name} was answered again, although the journal knew that it had been"


def _texts(call: CallRecord) -> tuple[list[Any], list[Any]]:
    """What its answers say: those that are final, and those that say that it goes on."""
    texts = [orjson.loads(answer.text) for answer in call.answers]
    interim = [text for text in texts if isinstance(text, dict) and text.get("status") == "pending"]
    return [text for text in texts if text not in interim], interim


def _name(ticket: str) -> str:
    """What a call is called in all lives: a life that goes on with a session gives its own numbers to earlier calls."""
    session, _, call_id = ticket.split(".", 2)
    return f"{session}.{call_id}"


def left_over(claims: Sequence[Claimed], did: Did, recovered: Sequence[Recovered]) -> Iterator[str]:
    """What is wrong once everything that the dead have left has been brought to an end."""
    for each in claims:
        ticket = ticket_of(each.call)
        happened = (each.tool, ticket) in did.effects
        if each.state in UNFINISHED or not each.outcome:
            yield f"{each.tool} {ticket} is forgotten: {each.state.value}, {each.outcome or 'no outcome'}"
        if each.outcome == NOT_KNOWN and each.tool in ("note", "pay"):
            yield f"{each.tool} {ticket} is not known, and could have been"
        if each.outcome == NOT_KNOWN and (each.result is None or "nobody knows" not in each.result.output):
            yield f"{each.tool} {ticket} is not known, and its result does not say so"
        if each.tool == "pay" and happened != (each.outcome == "ok"):
            yield f"{each.tool} {ticket} is recorded as {each.outcome}: happened is {happened}"
    for one in recovered:
        if one.found is Found.REPEATED and one.claimed.tool in ONCE:
            yield f"{one.claimed.tool} {ticket_of(one.claimed.call)} was run again"
