"""Letting results go: whatever may be sent now is sent, what stays behind is announced, what is over is remembered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .events import (
    Deliver,
    Discard,
    DiscardedBy,
    FollowUp,
    HeldBy,
    Hold,
    ToolResult,
    ToolResults,
    TurnOutput,
)
from .state import (
    NO_REPLY,
    NOBODY,
    REMEMBERED,
    UNFINISHED,
    Link,
    Owed,
    Reply,
    Stage,
    User,
)

if TYPE_CHECKING:
    from .turn import TurnMachine

__all__ = ["in_grace", "newly_held", "not_run", "refuse", "release", "settle"]


def release(m: TurnMachine, out: list[TurnOutput]) -> tuple[TurnMachine, tuple[TurnOutput, ...]]:
    """Send whatever may be sent now, after what is in `out` already."""
    ready = [o for o in m.owed if o.stage is Stage.READY]
    if m.link is Link.UP:
        before = len(out)
        if ready:
            m, ready = _let_go(m, ready, out)
        if not ready and len(out) == before:
            for _ in m.sayings:
                m = _say(m, out) if m.window_open else m
    return m, tuple(out)


def newly_held(before: TurnMachine, after: TurnMachine) -> Iterator[Hold]:
    """Announces each result that waits now and did not before."""
    for o in after.owed:
        if o.stage is Stage.READY:
            was = before.find(o.key)
            if was is None or was.stage is not Stage.READY:
                yield Hold(o.key, _held_by(after))


def _let_go(m: TurnMachine, ready: list[Owed], out: list[TurnOutput]) -> tuple[TurnMachine, list[Owed]]:
    """Release turn by turn; returns what stays behind, too."""
    quiet = [o for o in ready if o.quiet]
    if quiet:
        m = m._replace(owed=_released(m, quiet, out))
        ready = [o for o in ready if not o.quiet]
    while turn := _next_turn(m, ready):
        owed = _released(m, turn, out)
        if m.delivery.asks:
            reply = Reply.ASKED if m.reply is Reply.NONE else m.reply
            m = m._replace(owed=owed, reply=reply, asked=turn[0].turn if m.asked is None else m.asked)
        else:
            m = m._replace(owed=owed)
        ready = [o for o in ready if o not in turn]
    return m, ready


def _next_turn(m: TurnMachine, ready: Sequence[Owed]) -> list[Owed]:
    """The results, in call order, of the first turn that has any that may go."""
    group: list[Owed] = []
    for o in ready:
        if (not group or o.turn == group[0].turn) and _may_go(m, o):
            group.append(o)
    return group


def _released(m: TurnMachine, group: Sequence[Owed], out: list[TurnOutput]) -> tuple[Owed, ...]:
    results = tuple([o.result for o in group if o.result is not None])
    out.append(ToolResults(results, group[0].quiet, tuple([o.key for o in group])))
    return tuple([o._replace(stage=Stage.RELEASED) if o in group else o for o in m.owed])


def _may_go(m: TurnMachine, o: Owed) -> bool:
    if not _gate(m, o):
        return False
    if o.turn == NO_REPLY:
        return True
    if m.delivery.whole_turn:
        batch = [p for p in m.owed if p.turn == o.turn and p.stage is Stage.READY]
        return not _unfinished(m, o.turn) and all(p.quiet or _gate(m, p) for p in batch)
    if o.deliver is Deliver.NOW or not m.delivery.hold or o.turn in m.graced:
        return True
    return not _unfinished(m, o.turn)


def _gate(m: TurnMachine, o: Owed) -> bool:
    """Is this the moment for results of this kind?"""
    if not m.delivery.hold:
        return True
    if o.deliver is Deliver.NOW:
        return m.asked is None or m.asked == o.turn
    if m.reply is Reply.SPEAKING:
        return False
    if m.reply is Reply.ASKED:
        return m.asked == o.turn and m.user is not User.SPEAKING
    if o.deliver is Deliver.BETWEEN_REPLIES:
        return m.user is not User.SPEAKING
    return m.user is User.QUIET


def _unfinished(m: TurnMachine, turn: int) -> bool:
    return any(o.turn == turn and o.stage in UNFINISHED and o.call.expects_result and not o.quiet for o in m.owed)


def in_grace(m: TurnMachine) -> set[int]:
    """Turns whose reply is not open, and which still wait for slower siblings."""
    open_turn = m.turn if m.reply is Reply.SPEAKING else NO_REPLY
    return {
        o.turn
        for o in m.owed
        if o.stage in UNFINISHED and o.turn not in (NO_REPLY, open_turn) and o.turn not in m.graced
    }


def _say(m: TurnMachine, out: list[TurnOutput]) -> TurnMachine:
    first, *rest = m.sayings
    out.append(first.what)
    if isinstance(first.what, FollowUp) and not m.delivery.asks:
        return m._replace(sayings=tuple(rest))
    first = first._replace(tries=first.tries + 1, out=True)
    return m._replace(reply=Reply.ASKED, asked=NOBODY, sayings=(first, *rest))


def _held_by(m: TurnMachine) -> HeldBy:
    if m.link is not Link.UP:
        return HeldBy.LINK
    if not m.delivery.hold:
        return HeldBy.SIBLINGS
    if m.reply is Reply.SPEAKING:
        return HeldBy.REPLY
    if m.reply is Reply.ASKED:
        return HeldBy.ASKED
    return HeldBy.USER if m.user is not User.QUIET else HeldBy.SIBLINGS


# ----------------------------------------------------------------------------------------------------- leaving the list


def settle(m: TurnMachine, kept: tuple[Owed, ...], gone: list[str]) -> TurnMachine:
    """These calls are over; their ids are remembered."""
    if not gone:
        return m._replace(owed=kept)
    graced = m.graced & {o.turn for o in kept} if m.graced else m.graced
    return m._replace(owed=kept, settled=(*m.settled, *gone)[-REMEMBERED:], graced=graced)


def refuse(m: TurnMachine, stages: tuple[Stage, ...], why: str, out: list[TurnOutput]) -> TurnMachine:
    """Calls in these stages will not be run; each is answered with the reason, where an answer is expected."""
    if not any(o.stage in stages for o in m.owed):
        return m
    kept: list[Owed] = []
    gone: list[str] = []
    for o in m.owed:
        if o.stage not in stages:
            kept.append(o)
        elif o.call.expects_result:
            kept.append(not_run(o, why))
        else:
            out.append(Discard(o.key, DiscardedBy.INTERRUPTION))
            gone.append(o.key.call_id)
    return settle(m, tuple(kept), gone)


def not_run(o: Owed, why: str) -> Owed:
    """Answered without having been run."""
    result = ToolResult(o.call.call_id, why, is_error=True, name=o.call.name, echo=o.call.echo)
    return o._replace(stage=Stage.READY, result=result)
