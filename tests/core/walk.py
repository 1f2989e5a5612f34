"""Every interleaving of a few calls: all reachable states of the turn machine, and the invariants in each of them.

Only two things about turn numbers matter: which is the current one, and which calls share one. Only one thing about ids
matters: which are the same. Renumbered and renamed that way, the states for a fixed number of calls are finite, so a
breadth-first walk sees *every* sequence of events of any length.

Beside the machine walks a `Truth`: what an onlooker knows who sees the events and the outputs and believes nothing the
machine says about itself.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from bridge.core.dialect import Delivery
from bridge.core.events import (
    AgentPaused,
    AgentResumed,
    AskExpired,
    CallConcluded,
    CallKey,
    CallsCancelled,
    Deliver,
    Discard,
    FillerDue,
    FollowUp,
    GraceExpired,
    Hold,
    HoldExpired,
    LinkLost,
    LinkResumed,
    ReadingPaused,
    ReadingResumed,
    ReplyDone,
    ReplyHeard,
    ReplyRequest,
    ReplyRequested,
    ReplyStarted,
    Run,
    SayAsked,
    Sent,
    SessionEnded,
    SessionLost,
    SpeechStarted,
    SpeechStopped,
    Start,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
)
from bridge.core.state import NO_REPLY
from bridge.core.turn import Link, Owed, Reply, Stage, TurnMachine, User, Work


class Choice(NamedTuple):
    """How a tool wants to be started and answered."""

    start: Start = Start.NOW
    deliver: Deliver = Deliver.AFTER_REPLY
    hold: bool = False
    expects_result: bool = True
    reply: bool = True


PLAIN = Choice()
CAREFUL = Choice(start=Start.AFTER_REPLY)
HELD = Choice(deliver=Deliver.BETWEEN_REPLIES, hold=True)
EAGER = Choice(deliver=Deliver.NOW)
SILENT = Choice(expects_result=False)
CAREFUL_SILENT = Choice(start=Start.AFTER_REPLY, expects_result=False)
BETWEEN = Choice(deliver=Deliver.BETWEEN_REPLIES)
RECORD = Choice(reply=False)
CAREFUL_EAGER = Choice(start=Start.AFTER_REPLY, deliver=Deliver.NOW)


@dataclass(frozen=True)
class World:
    """What is walked: a provider, how many calls, of which kinds, and which events beyond the turn itself."""

    delivery: Delivery
    calls: int = 2
    choices: tuple[Choice, ...] = (PLAIN, CAREFUL, HELD)
    link: bool = False
    asking: bool = False
    sayings: int = 1
    """How many things may wait to be said, where there is asking."""
    parking: bool = False
    """May a tool give an interim result first?"""
    cancelling: bool = False
    words: bool = False
    reply_ids: bool = True
    pausing: bool = False
    """May somebody pause the agent?"""
    prompt: bool = False
    """Demand that what waits only for the caller's silence goes with that, and not with the next event."""


class Known(NamedTuple):
    """What the onlooker knows of one live call."""

    call_id: str
    reply: str
    """The reply it belongs to: `""` none yet, `"-"` none ever."""
    started: bool
    finished: bool
    released: bool
    held: bool
    lost: bool
    """Its reply was interrupted, or it was cancelled."""
    choice: Choice
    interim: bool = False
    """It goes on, and what waits to be sent says so."""
    heard: bool = False
    """Its reply has ended uninterrupted."""


class Truth(NamedTuple):
    calls: tuple[Known, ...] = ()
    reply: str = ""
    """The open reply."""
    asked: str | None = None
    """Whose results asked for a reply that has not begun: a reply's name, `""` for a call without one, `"?"` others."""
    up: bool = True
    paused: bool = False
    stopped: bool = False
    """Somebody has paused the agent."""
    talking: bool = False
    owed_reply: bool = False
    """The user has spoken, and no reply has answered that."""
    since_reply: bool = False
    """That speech began inside the open reply."""
    worded: bool = False
    """There were words in it."""


class Broken(AssertionError):
    """An invariant does not hold."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise Broken(what)


class State(NamedTuple):
    machine: TurnMachine
    truth: Truth


# ------------------------------------------------------------------------------------------------------------- events


@cache
def call_of(call_id: str, expects_result: bool) -> ToolCall:
    return ToolCall(call_id, "t", expects_result=expects_result)


@cache
def result_of(call_id: str, interim: bool = False) -> ToolResult:
    return ToolResult(call_id, "1", interim=interim)


def events(world: World, s: State) -> Iterator[object]:
    if s.machine.link is not Link.DOWN:
        yield from provider_events(world, s.machine)
    yield from local_events(world, s.machine)


def provider_events(world: World, m: TurnMachine) -> Iterator[object]:
    live = {o.key.call_id: o for o in m.owed}
    open_id = m.reply_id
    yield ReplyStarted("rn" if world.reply_ids else "")
    if open_id:
        yield ReplyStarted(open_id)
        yield ReplyDone(False, open_id)
        yield ReplyDone(True, open_id)
    yield ReplyDone(False, "")
    yield ReplyDone(True, "")
    for reply_id in sorted({o.reply_id for o in m.owed} - {"", open_id} | ({"rx"} if world.reply_ids else set())):
        yield ReplyDone(False, reply_id)
        yield ReplyDone(True, reply_id)
    yield SpeechStarted()
    yield SpeechStopped()
    if world.pausing:
        yield AgentPaused()
        yield AgentResumed()
    if world.words:
        for item in {m.item, "in"} - {""}:
            yield Transcript("user", "x", False, item)
            yield Transcript("user", "x", True, item)
        yield Transcript("user", "x", True, "")
    seen = {*live, *m.settled, *m.past}
    unseen = [c for c in names(world.calls) if c not in seen][:1]
    for call_id in [*sorted(seen), *unseen]:
        for choice in world.choices if call_id not in live else world.choices[:1]:
            call = call_of(call_id, choice.expects_result)
            yield ToolCalled(call, choice.start, choice.deliver, choice.hold, choice.reply)
    if world.cancelling:
        yield from (CallsCancelled((call_id,)) for call_id in live)


def local_events(world: World, m: TurnMachine) -> Iterator[object]:
    for o in m.owed:
        yield ToolFinished(o.key, result_of(o.key.call_id))
        if world.parking:
            yield ToolFinished(o.key, result_of(o.key.call_id, True))
        if o.stage is Stage.READY and o.result is not None and o.result.interim:
            yield CallConcluded(o.key, result_of(o.key.call_id))
    for o in m.owed[:1]:
        yield ToolFinished(CallKey(99, o.key.call_id), result_of(o.key.call_id))
    released = tuple(o.key for o in m.owed if o.stage is Stage.RELEASED)
    yield from (Sent((key,)) for key in released)
    if len(released) > 1:
        yield Sent(released)
    yield from (GraceExpired(turn) for turn in {o.turn for o in m.owed})
    yield AskExpired()
    yield HoldExpired()
    yield from (ReplyHeard(turn) for turn in {o.turn for o in m.owed if o.stage is Stage.STANDS})
    if world.asking:
        yield ReplyRequested()
        if len(m.sayings) < world.sayings:
            yield SayAsked("s")
            yield CallConcluded(CallKey(0, "c0"), result_of("c0"))
        yield from (FillerDue(o.key, "f") for o in m.owed)
    if world.link:
        yield LinkLost()
        yield SessionLost()
        yield LinkResumed()
        yield ReadingPaused()
        yield ReadingResumed()
    yield SessionEnded("over")


def names(count: int) -> list[str]:
    return [f"c{i + 1}" for i in range(count)]


# ----------------------------------------------------------------------------------------------------- what is true


def observe(world: World, t: Truth, before: TurnMachine, event: object) -> Truth:
    """What the onlooker makes of an event, before any output. `before` serves to know ids and keys, nothing else."""
    match event:
        case ReplyStarted(reply_id):
            if t.reply and reply_id and reply_id == t.reply:
                return t
            name = reply_id or "anonymous"
            calls = tuple(_joins(c, name) for c in t.calls)
            return t._replace(reply=name, asked=None, since_reply=False, worded=False, calls=calls)
        case ReplyDone(interrupted, reply_id):
            mine = bool(t.reply) and (not reply_id or t.reply in (reply_id, "anonymous"))
            gone = t.reply if mine else reply_id
            if interrupted and gone and (mine or any(c.reply == gone for c in t.calls)):
                t = t._replace(calls=tuple(c._replace(lost=True) if c.reply == gone else c for c in t.calls))
            if not mine:
                return t
            if interrupted:
                owed_reply = t.owed_reply or world.delivery.speech
                return t._replace(reply="", asked=None, owed_reply=owed_reply, since_reply=False, worded=False)
            calls = tuple(c._replace(heard=True) if c.reply == t.reply and not c.started else c for c in t.calls)
            owed_reply = t.talking or (t.owed_reply and t.since_reply and t.worded)
            return t._replace(reply="", calls=calls, owed_reply=owed_reply, since_reply=False, worded=False)
        case SpeechStarted():
            return t if t.talking else _talks(t)
        case SpeechStopped():
            return t._replace(talking=False, owed_reply=True) if t.talking else t
        case Transcript("user", _, final, item):
            return _words(t, before, final, item)
        case ToolCalled(call, start, deliver, hold, reply):
            if any(c.call_id == call.call_id for c in t.calls) or call.call_id in before.settled:
                return t
            if before.resumed and call.call_id in before.past:
                return t
            choice = Choice(start, deliver, hold, call.expects_result, reply)
            known = Known(call.call_id, "-" if hold else t.reply, False, False, False, False, False, choice)
            return t._replace(calls=(*t.calls, known))
        case ToolFinished(key, result):
            if all(o.key != key for o in before.owed):
                return t
            return t._replace(
                calls=tuple(
                    c._replace(finished=True, interim=result.interim)
                    if c.call_id == key.call_id and c.started and not c.finished
                    else c
                    for c in t.calls
                )
            )
        case CallConcluded(key, _):
            calls = tuple(
                c._replace(interim=False) if c.call_id == key.call_id and not c.released else c for c in t.calls
            )
            return t._replace(calls=calls)
        case CallsCancelled(ids):
            return t._replace(calls=tuple(c._replace(lost=True) if c.call_id in ids else c for c in t.calls))
        case Sent(keys):
            arrived = {k.call_id for k in keys}
            return t._replace(calls=tuple(c for c in t.calls if not (c.released and c.call_id in arrived)))
        case ReplyRequested():
            return t._replace(asked="?") if not t.reply and t.asked is None else t
        case AskExpired():
            return t if t.reply else t._replace(asked=None)
        case HoldExpired():
            if not t.up or t.paused:
                return t
            return t._replace(reply="", asked=None, talking=False, owed_reply=False, since_reply=False, worded=False)
        case LinkLost():
            if not t.up:
                return t
            calls = tuple(c._replace(released=False, held=False) if c.released else c for c in t.calls)
            silent = t._replace(reply="", asked=None, talking=False, owed_reply=True, since_reply=False, worded=False)
            return silent._replace(up=False, paused=False, calls=calls)
        case SessionLost():
            return t if t.up else t._replace(calls=tuple(c._replace(lost=True) for c in t.calls))
        case LinkResumed():
            return t if t.up else t._replace(up=True, owed_reply=False, talking=False)
        case ReadingPaused():
            return t._replace(paused=t.up)
        case ReadingResumed():
            return t._replace(paused=False)
        case AgentPaused():
            return t._replace(stopped=True)
        case AgentResumed():
            return t._replace(stopped=False)
    return t


def _joins(c: Known, name: str) -> Known:
    """A call without a reply belongs to the one that begins; what went out before that is answered by it at best."""
    if c.reply == name:
        return c._replace(reply="older")
    if c.reply == "":
        return c._replace(reply="-" if c.released else name)
    return c


def _talks(t: Truth) -> Truth:
    return t._replace(talking=True, owed_reply=True, since_reply=bool(t.reply))


def _words(t: Truth, before: TurnMachine, final: bool, item: str) -> Truth:
    known = item == before.item
    unknown_yet = before.item == ""
    if not final:
        if not item or known:
            return t
        if not (unknown_yet and (t.talking or t.owed_reply)) and not t.talking:
            t = _talks(t)
        return t._replace(worded=t.since_reply)
    if t.talking:
        if item and not known and not unknown_yet:
            return t
        return t._replace(talking=False, owed_reply=True, worded=t.since_reply)
    if item and not known and not unknown_yet and not t.owed_reply:
        t = _talks(t)._replace(talking=False)
        return t._replace(worded=t.since_reply)
    return t._replace(worded=t.worded or t.since_reply) if item and unknown_yet else t


# --------------------------------------------------------------------------------------------------------- invariants


def check(world: World, s: State, event: object, after: TurnMachine, outputs: tuple[object, ...]) -> Truth:
    """The truth after this event and its outputs; raises `Broken` where these may not follow."""
    t = observe(world, s.truth, s.machine, event)
    if after is s.machine and t == s.truth and not outputs:
        return s.truth  # nothing happened, and this state has been checked
    gone: set[str] = set()
    asked_by: list[str] = []
    for output in outputs:
        match output:
            case Run(key, _):
                t = _run(t, event, key.call_id, gone)
            case Discard(key, _):
                require(key.call_id not in gone, "discarded twice")
                call = _call(t, key.call_id)
                require(not call.released, "discarded after its release")
                touched = call.lost or isinstance(event, SessionEnded) or not call.choice.expects_result
                require(touched, "discarded, though nothing took its reply from it")
                gone.add(key.call_id)
                t = t._replace(calls=tuple(c for c in t.calls if c is not call))
            case Hold(key, _):
                call = _call(t, key.call_id)
                require(not call.held, "announced twice")
                require(not call.released, "announced after its release")
                t = _change(t, call, held=True)
            case ToolResults(results, quiet, keys):
                require([r.call_id for r in results] == [k.call_id for k in keys], "results and keys differ")
                require(len(set(keys)) == len(keys), "twice in one release")
                require(all(r.interim == _call(t, r.call_id).interim for r in results), "not what there is to say")
                t = _released(world, t, quiet, tuple(k.call_id for k in keys), asked_by)
            case FollowUp() | ReplyRequest():
                held = isinstance(event, FillerDue) and _call(t, event.key.call_id).choice
                require(_can_send(t), "said without a link")
                require(not t.stopped, "said to an agent that somebody has paused")
                between = held and held.deliver is Deliver.BETWEEN_REPLIES and not t.talking
                require(t.asked is None and not t.reply, "a second reply was asked for")
                require(not _busy(t) or between, "said over somebody")
                if isinstance(output, ReplyRequest) or world.delivery.asks:
                    t = t._replace(asked="?")
    if isinstance(event, SessionEnded):
        require(not after.owed and after.link is Link.ENDED, "something outlived the session")
        require(after.handle(ReplyRequested()) == (after, ()), "something happened after the end")
    if isinstance(event, SessionLost) and not s.truth.up:
        require(not after.owed, "something outlived the session that it belongs to")
    # A call whose result nobody expects leaves when it ends.
    return t._replace(calls=tuple([c for c in t.calls if c.choice.expects_result or not c.finished]))


def _run(t: Truth, event: object, call_id: str, gone: set[str]) -> Truth:
    call = _call(t, call_id)
    require(call_id not in gone, "run after its discard")
    require(not call.started, "run twice")
    require(not call.lost, "run though its reply is lost")
    if call.choice.start is Start.AFTER_REPLY:
        require(isinstance(event, ReplyHeard), "run before its reply had been heard")
        require(call.heard, "run though its reply did not end well")
        require(not t.talking and t.up and not t.paused, "run while the user may be speaking")
    return _change(t, call, started=True)


def _released(world: World, t: Truth, quiet: bool, ids: tuple[str, ...], asked_by: list[str]) -> Truth:
    require(_can_send(t), "sent without a link, or unread")
    order = [c.call_id for c in t.calls if c.call_id in ids]
    require(list(ids) == order, "not in the order of the calls")
    calls = [_call(t, call_id) for call_id in ids]
    turn = {c.reply for c in calls}
    for c in calls:
        require(c.finished or not c.started, "sent before it ended")
        require(not c.released, "sent twice")
        require(c.choice.expects_result, "nobody expects this result")
        require(not c.lost or (quiet and not world.delivery.void), "sent, though discarded")
        require(not quiet or c.lost or not c.choice.reply, "quiet, though its reply stands")
        require(quiet or c.choice.reply, "the agent is to speak about what is for the record")
    if not quiet:
        require(len(turn) == 1, "results of two turns in one release")
        if world.delivery.hold:
            for c in calls:
                _gate(t, c, asked_by)
        reply = calls[0].reply
        if world.delivery.whole_turn and reply != "-":
            left = [c for c in t.calls if c.reply == reply and c.call_id not in ids and _wanted(c)]
            require(not any(not c.lost and not c.released and not _answered(c) for c in left), "a turn was split")
        if world.delivery.asks and t.asked is None:
            t = t._replace(asked=reply)
    for c in calls:
        t = _change(t, _call(t, c.call_id), released=True, held=False)
    return t


def _wanted(c: Known) -> bool:
    return c.choice.expects_result and c.choice.reply


def _answered(c: Known) -> bool:
    return c.finished


def _gate(t: Truth, c: Known, asked_by: list[str]) -> None:
    require(t.asked is None or t.asked == c.reply, "two replies asked for")
    match c.choice.deliver:
        case Deliver.NOW:
            return
        case Deliver.BETWEEN_REPLIES:
            require(not t.reply and not t.talking, "sent over somebody")
        case Deliver.AFTER_REPLY:
            require(not t.reply and not t.talking, "sent over somebody")
            require(t.asked is not None or not t.owed_reply, "sent while the user is owed a reply")


def check_state(world: World, s: State) -> None:
    """Raises `Broken` where machine and truth do not belong together, however they were reached."""
    after, t = s
    _agrees(after, t)
    owed = {o.key.call_id: o for o in after.owed}
    require(set(owed) == {c.call_id for c in t.calls}, "a call was forgotten, or invented")
    for c in t.calls:
        o = owed[c.call_id]
        require(not (c.lost and world.delivery.void and not c.released), "a discarded call is still owed")
        require((o.stage is Stage.RELEASED) == c.released, "released or not?")
        ready = o.stage is Stage.READY
        require(not ready or c.held, "waits unannounced")
        if c.choice.start is Start.NOW:
            require(c.started, "never started")
        require(not c.heard or o.stage is not Stage.WAITING, "its reply has ended, and it still waits for that")
        if not c.started and o.stage in (Stage.WAITING, Stage.STANDS):
            require(not t.talking and t.up, "still to be run, though the user speaks or the link is down")
    _nothing_left_behind(world, after, t)


def _agrees(after: TurnMachine, t: Truth) -> None:
    """What the machine believes of reply, user and link is what the onlooker saw."""
    spoken = Reply.SPEAKING if t.reply else Reply.NONE if t.asked is None else Reply.ASKED
    require(after.reply is spoken, "wrong about the reply")
    user = User.SPEAKING if t.talking else User.HEARD if t.owed_reply else User.QUIET
    require(after.user is user, "wrong about the user")
    require((after.link is Link.UP) == _can_send(t), "wrong about the link")
    require(after.link is Link.UP or not after.timers(), "waits for something without a link")
    is_open = _can_send(t) and not t.stopped and not _busy(t) and t.asked is None
    require(after.window_open == is_open, "wrong about the window")
    silent = t.stopped and after.reply is not Reply.ASKED and not after.owed
    require(not silent or not after.timers(), "an agent that is paused is not waited for")


def _nothing_left_behind(world: World, after: TurnMachine, t: Truth) -> None:
    """Whatever may be sent is sent."""
    if not _can_send(t) or not any(o.stage is Stage.READY for o in after.owed):
        return
    for o in after.owed:
        if o.stage is not Stage.READY:
            continue
        c = _call(t, o.key.call_id)
        siblings = any(
            p.turn == o.turn and p.stage in (Stage.WAITING, Stage.STANDS, Stage.RUNNING) and p.call.expects_result
            for p in after.owed
        )
        waits = siblings and (world.delivery.whole_turn or (o.turn not in after.graced)) and c.reply != "-"
        if not world.delivery.hold:
            require(waits and world.delivery.whole_turn, "left behind without a reason")
        elif c.choice.deliver is Deliver.NOW:
            batch = world.delivery.whole_turn and sum(p.turn == o.turn for p in after.owed) > 1
            require(t.asked not in (None, c.reply) or batch, "an eager one left behind")
        elif (world.prompt and _is_open(t, c)) or (not _busy(t) and t.asked is None):
            require(waits, "left behind in an open window")
            graced = world.delivery.whole_turn or GraceExpired(o.turn) in after.timers()
            require(graced, "waits for its siblings for ever")


def _is_open(t: Truth, c: Known) -> bool:
    """Would a result of this kind talk over nobody now?"""
    if t.reply or t.talking or t.asked not in (None, c.reply) or t.asked == "older":
        return False  # of older replies without ids it is not known which is which
    return t.asked is not None or not t.owed_reply or c.choice.deliver is Deliver.BETWEEN_REPLIES


def _can_send(t: Truth) -> bool:
    return t.up and not t.paused


def _busy(t: Truth) -> bool:
    return bool(t.reply) or t.talking or t.owed_reply


def _call(t: Truth, call_id: str) -> Known:
    for c in t.calls:
        if c.call_id == call_id:
            return c
    raise Broken(f"nobody knows {call_id}")


def _change(t: Truth, call: Known, **changes: Any) -> Truth:
    return t._replace(calls=tuple(c._replace(**changes) if c is call else c for c in t.calls))


def check_liveness(machine: TurnMachine, live: set[TurnMachine]) -> None:
    """If the provider says nothing more, tools end and timers run out: then nothing owed may stay.

    Every timer that the machine asks for fires, in any order that comes; every tool ends; every release arrives. What
    comes next depends on the machine alone, so it need not be followed beyond one in `live`: those that end well.
    """
    m = machine
    way: list[TurnMachine] = []
    while m.link is Link.UP and (m.owed or m.sayings) and m not in live:
        event = _next_of_itself(m) if len(way) < 40 else None
        require(event is not None, f"waits for an event that nobody owes: {m.owed} {m.sayings} {m.reply} {m.user}")
        way.append(m)
        m, _ = m.handle(event)
    live.update(way)


def _next_of_itself(m: TurnMachine) -> object:
    """What happens next if the provider says nothing; None if nothing does."""
    if released := tuple([o.key for o in m.owed if o.stage is Stage.RELEASED]):
        return Sent(released)
    if timers := m.timers():
        return min(timers, key=repr)
    if m.work is Work.PAUSED and m.sayings:
        return AgentResumed()  # whoever has paused it owes that
    running = (o.key for o in m.owed if o.stage is Stage.RUNNING)
    return next((ToolFinished(key, result_of(key.call_id)) for key in running), None)


# -------------------------------------------------------------------------------------------------------- the walk


def canonical(world: World, s: State) -> State:
    """The same state with the smallest numbers and names, without what can have no effect any more."""
    m, t = forget(world, s)
    older = sorted({o.turn for o in m.owed if 0 < o.turn < m.turn})
    turns = {turn: rank + 1 for rank, turn in enumerate(older)}
    now = len(older) + 1
    turns |= {0: 0, -1: -1, m.turn: now, m.turn + 1: now + 1}
    if m.turn == 0:
        turns[0] = 0
    ids: dict[str, str] = {}
    for call_id in (*(o.key.call_id for o in m.owed), *sorted(m.settled), *sorted(m.past)):
        ids.setdefault(call_id, f"c{len(ids) + 1}")
    replies = {"": "", "-": "-", "?": "?", "anonymous": "anonymous", "older": "older"}
    for o in m.owed:
        if o.reply_id:
            replies.setdefault(o.reply_id, f"r{turns[o.turn]}")
    if m.reply_id:
        replies[m.reply_id] = f"r{now}"
    # Grace matters while somebody waits for it, or may join; the ids of the past, once a link can be resumed.
    joining = m.turn + 1
    waiting = {o.turn for o in m.owed if o.stage in (Stage.WAITING, Stage.STANDS, Stage.RUNNING)} | {joining}
    asked = m.asked
    open_turn = m.turn if m.reply is Reply.SPEAKING else joining
    if asked is not None and asked not in (NO_REPLY, joining, open_turn) and not any(o.turn == asked for o in m.owed):
        asked = -1
    owed = []
    for o in m.owed:
        name = ids[o.key.call_id]
        key, call = CallKey(0, name), call_of(name, o.call.expects_result)
        result = o.result and result_of(name, o.result.interim)
        # All fields in their order: twice as fast as `_replace`, and this is where a walk spends its time.
        rest = (o.quiet, o.lapsed, o.uncertain)
        owed.append(Owed(key, turns[o.turn], o.stage, call, o.deliver, result, replies[o.reply_id], *rest))
    m = m._replace(
        turn=now,
        reply_id=replies[m.reply_id],
        asked=asked if asked is None else turns[asked],
        owed=tuple(owed),
        graced=frozenset(turns[g] for g in m.graced & waiting),
        settled=tuple(sorted({ids[c] for c in m.settled})),
        past=tuple(sorted({ids[c] for c in m.past} - {ids[c] for c in m.settled})) if world.link else (),
        item="i" if m.item else "",
    )
    calls = tuple(c._replace(call_id=ids[c.call_id], reply=replies.get(c.reply, "gone")) for c in t.calls)
    return State(m, t._replace(calls=calls, reply=replies[t.reply], asked=t.asked and replies.get(t.asked, "?")))


def forget(world: World, s: State) -> State:
    """Drop what cannot matter any more: how a finished call came to run, and without a link what is on its way."""
    m, t = s
    owed = []
    calls = []
    for o, c in zip(m.owed, t.calls, strict=True):
        if o.stage not in (Stage.WAITING, Stage.STANDS):
            finished = o.stage is not Stage.RUNNING
            if c.choice.start is not Start.NOW:
                c = c._replace(choice=c.choice._replace(start=Start.NOW))
            if c.heard or not c.started or c.finished is not finished:
                c = c._replace(started=True, finished=finished, heard=False)
        if o.stage is Stage.RELEASED and not world.link:
            o = o._replace(turn=0, reply_id="", deliver=Deliver.AFTER_REPLY, lapsed=False, quiet=False)
            o = o._replace(result=result_of(o.key.call_id))
            c = c._replace(reply="-", lost=False, interim=False, choice=PLAIN)
        owed.append(o)
        calls.append(c)
    return State(m._replace(owed=tuple(owed)), t._replace(calls=tuple(calls)))


@dataclass
class Report:
    states: int = 0
    transitions: int = 0
    trail: dict[State, tuple[State, object] | None] = field(default_factory=dict, repr=False)
    """Every state, and how it was reached first."""


def walk(world: World, *, limit: int = 10_000_000) -> Report:
    """Visit every reachable state; raises `Broken` with the shortest way to the first fault."""
    with _no_collection():
        return _walk(world, limit)


@contextmanager
def _no_collection() -> Iterator[None]:
    """States hold no cycles, and there are many: looking for some again and again takes a tenth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _walk(world: World, limit: int) -> Report:
    first = canonical(world, State(TurnMachine(world.delivery), Truth()))
    report = Report()
    report.trail[first] = None
    raw: set[State] = set()
    live: set[TurnMachine] = set()
    frontier = [first]
    while frontier:
        following: list[State] = []
        for s in frontier:
            report.states += 1
            for event in events(world, s):
                report.transitions += 1
                try:
                    after, outputs = s.machine.handle(event)
                    nxt = State(after, check(world, s, event, after, outputs))
                    if isinstance(event, SessionEnded) or (after is s.machine and nxt.truth is s.truth):
                        continue
                    known = len(raw)
                    raw.add(nxt)
                    if len(raw) == known:
                        continue
                    check_state(world, nxt)
                    c = canonical(world, nxt)
                    if c not in report.trail:
                        check_liveness(c.machine, live)
                        report.trail[c] = (s, event)
                        following.append(c)
                except Broken as fault:
                    raise Broken(f"{fault}\n{_story(report, s, event)}") from None
        require(len(report.trail) < limit, "more states than expected")
        frontier = following
    return report


def _story(report: Report, s: State, event: object) -> str:
    steps = [f"  {event}"]
    while step := report.trail[s]:
        s, earlier = step
        steps.append(f"  {earlier}")
    return "\n".join(reversed(steps))
