"""What must hold of calls after a kill: what was done, and what providers heard, against what the journal knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from bridge.journal import UNFINISHED, Claimed, State
from bridge.runner.leftovers import NOT_KNOWN, Found, Recovered
from bridge.simulator.ledger import CallRecord, Ledger
from tests.e2e.victim import ONCE, ticket_of

__all__ = ["Did", "breaches", "left_over"]


@dataclass(frozen=True, slots=True)
class Did:
    """What lives did, as their notes tell it."""

    effects: Counter[tuple[str, str]]
    """Tools and tickets."""
    approved: frozenset[str]
    sent: frozenset[str]
    """Tickets of results whose sending had returned."""
    told: Counter[str]
    """Tickets of outcomes that the agent was asked to tell later."""
    serves: Mapping[str, str]
    """From a provider's name of a session to ours."""
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
            frozenset(after("sent")),
            Counter(after("told")),
            dict(each.split(" ") for each in after("serves")),
            tuple(after("failed")),
        )


def breaches(claims: Sequence[Claimed], did: Did, heard: Iterable[Ledger], *, receipts: bool) -> Iterator[str]:
    """What is wrong at any time. `receipts`: does the provider confirm what it was sent before that counts as sent?"""
    known = {ticket_of(each.call): each for each in claims}
    for (tool, ticket), times in did.effects.items():
        if times > 1 and tool in ONCE:
            yield f"{tool} {ticket} happened {times} times"
        if ticket not in known:
            yield f"{tool} {ticket} happened, and the journal does not know of it"
        if tool == "refund" and ticket not in did.approved:
            yield f"{tool} {ticket} happened, and nobody has approved it"
    for ticket, times in did.told.items():
        if times > 1:
            yield f"{ticket} was told {times} times"
    for ticket, each in known.items():
        if each.state is State.SENT and ticket not in did.sent and ticket not in did.told:
            yield f"{each.tool} {ticket} is recorded as sent, and was not"
        if each.outcome == "ok" and (each.tool, ticket) not in did.effects:
            yield f"{each.tool} {ticket} is recorded as done, and did not happen"
    by_name = {(each.call.session, each.call.call_id): each for each in claims}  # a provider here has no id twice
    for ledger in heard:
        for call in ledger.calls:
            yield from _answered(call, by_name.get((did.serves.get(ledger.session_id, ""), call.call_id)), receipts)
    for failure in did.failed:
        yield f"a life failed: {failure}"


def _answered(call: CallRecord, claimed: Claimed | None, receipts: bool) -> Iterator[str]:
    """What is wrong with the answers that a provider got to one call."""
    texts = [orjson.loads(answer.text) for answer in call.answers]
    final = [text for text in texts if not (isinstance(text, dict) and text.get("status") == "pending")]
    name = f"{call.name} {call.call_id if claimed is None else ticket_of(claimed.call)}"
    if len(final) > 1 or len(texts) - len(final) > 1:
        yield f"{name} was answered {len(texts)} times"
    if call.name != "look" and any(isinstance(text, str) for text in final):
        if claimed is None or claimed.outcome != "ok":
            yield f"{name} was answered before its outcome was in the journal"
        elif ticket_of(claimed.call) not in final:
            yield f"{name} was answered with what another call came to"
    if claimed is not None and claimed.state is State.SENT and not texts and receipts:
        yield f"{name} is recorded as sent, and never came"


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
