"""When may the result of a tool call be sent: now, later, or never? This file answers, and nothing else does.

**The window** is open while the link is up, no reply is in flight or asked for, and the user has been quiet since the
last reply ended. It is a state, never an event: a result that is ready while it is open goes at once; otherwise it is
held until the window opens.

**A call belongs to a reply**: the one that is open when it arrives; if none is open, the next one that starts. (A call of
a silent hold mode belongs to none.) The results of one reply are a *turn*, and go together, in call order; slower siblings
are waited for during a short grace.

| what happens            | reply, user                                      | what is owed                                     |
|-------------------------|--------------------------------------------------|--------------------------------------------------|
| a reply starts          | speaking                                         | calls that have no reply yet belong to it        |
| the user starts         | user speaking                                    | what waits for its reply to be heard is not run  |
| the user stops          | heard: a reply is owed to that                   |                                                  |
| a call arrives          |                                                  | run it now, or once its reply has been heard     |
| a tool ends             |                                                  | send its result, or hold it                      |
| the reply ends          | none; quiet, unless speech since it began        | grace for slower siblings; send                  |
| the reply has been heard|                                                  | run what waited for that                         |
| it was interrupted      | none; heard                                      | discard the calls of this reply, of no other     |
| grace expires           |                                                  | send without the slower siblings                 |
| an ask expires          | none, if nothing began                           | send; say again what nobody began to say         |
| a hold expires          | none, quiet: the provider is stuck               | every grace is over; what never started is not run; send |
| the link drops          | none, heard                                      | what was on its way is owed again                |
| the link is back        | quiet                                            | send                                             |

A release that makes the agent speak leaves the reply *asked for*. Until that reply has begun and ended, or the ask has
expired, only results of the same turn may follow, so that two replies never collide.

Everything that affects when a result is sent lives here. If a provider cannot be expressed by `Delivery` and by what its
dialect calls `ReplyDone` and `CallsCancelled`, change this table, never a session.

The machine is a value: `handle` returns the next one, and what is to be done. It has no clock: `timers` says what the
owner should be waiting for, and the passing of time comes back as an event.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from .dialect import Delivery
from .events import (
    AskExpired,
    CallConcluded,
    CallKey,
    CallsCancelled,
    Deliver,
    Discard,
    DiscardedBy,
    FillerDue,
    FollowUp,
    GraceExpired,
    HeldBy,
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
    SpeechStarted,
    SpeechStopped,
    Start,
    Timer,
    ToolCall,
    ToolCalled,
    ToolFinished,
    ToolResult,
    ToolResults,
    Transcript,
    TurnOutput,
)

__all__ = ["Link", "Owed", "Reply", "Saying", "Stage", "TurnMachine", "User"]


class Reply(Enum):
    """Where the agent's reply stands."""

    NONE = "none"
    ASKED = "asked"
    """Something was sent that makes the agent speak, and it has not begun."""
    SPEAKING = "speaking"


class User(Enum):
    """Where the user stands."""

    QUIET = "quiet"
    SPEAKING = "speaking"
    HEARD = "heard"
    """Has spoken, and the provider owes a reply to that."""


class Link(Enum):
    """Where the connection to the provider stands."""

    UP = "up"
    PAUSED = "paused"
    """Up, but not read from: what the provider says meanwhile is unknown, so nothing may be decided on it."""
    DOWN = "down"
    ENDED = "ended"


class Stage(Enum):
    """How far a call has come."""

    WAITING = "waiting"
    """Must not run before its reply has ended uninterrupted."""
    STANDS = "stands"
    """Its reply has; it runs once that has been heard."""
    RUNNING = "running"
    READY = "ready"
    """Has its result."""
    RELEASED = "released"
    """Its result is on its way to the provider."""


_UNFINISHED = frozenset({Stage.WAITING, Stage.STANDS, Stage.RUNNING})
_UNSTARTED = frozenset({Stage.WAITING, Stage.STANDS})

NO_REPLY = 0
"""The turn of calls that belong to no reply: those of a silent hold mode."""
NOBODY = -1
"""A reply was asked for, but not by the results of a turn."""
_REMEMBERED = 256
"""Ids of settled calls that are kept to recognise repeats after a resume."""
_TRIES = 2
"""How often the agent is asked to say something that nobody begins to say."""


class Owed(NamedTuple):
    """A call that has not been settled: neither sent nor discarded."""

    key: CallKey
    turn: int
    stage: Stage
    call: ToolCall
    deliver: Deliver = Deliver.AFTER_REPLY
    result: ToolResult | None = None
    reply_id: str = ""
    quiet: bool = False
    """Its reply was interrupted, and the provider wants the result for the record only."""
    announced: bool = False
    """`Hold` has been said."""
    lapsed: bool = False
    """Its reply was interrupted after its result had been released: never send it again."""
    uncertain: bool = False
    """The link dropped after its release: whether it was delivered is unknown."""


class Saying(NamedTuple):
    """Something the agent is to be asked to say, when that talks over nobody."""

    what: ReplyRequest | FollowUp
    tries: int = 0
    out: bool = False
    """Asked for, and not begun."""


Outputs = list[TurnOutput]
Decision = tuple["TurnMachine", tuple[TurnOutput, ...]]


class TurnMachine(NamedTuple):
    """Everything that decides about results, as one value."""

    delivery: Delivery
    link: Link = Link.UP
    reply: Reply = Reply.NONE
    reply_id: str = ""
    turn: int = 0
    """Number of the latest reply that has begun."""
    asked: int | None = None
    """The turn whose results ask for a reply that has not begun; `NOBODY` where something else asked."""
    user: User = User.QUIET
    fresh: bool = False
    """The user began to speak after the open reply had begun: that speech will be owed a reply of its own."""
    item: str = ""
    """The provider's id of the user's present or latest words."""
    owed: tuple[Owed, ...] = ()
    graced: frozenset[int] = frozenset()
    """Turns that wait for their slower siblings no longer."""
    settled: tuple[str, ...] = ()
    """Ids of calls settled since the latest reply began: seen again, they are repeats."""
    past: tuple[str, ...] = ()
    """Ids of calls settled before that. Seen again they are new calls, but in the first turn after a resume repeats."""
    resumed: bool = False
    sayings: tuple[Saying, ...] = ()

    @property
    def window_open(self) -> bool:
        """May the agent be made to speak now, without talking over anybody?"""
        return self.link is Link.UP and self.reply is Reply.NONE and self.user is User.QUIET

    def handle(self, event: object) -> Decision:
        """The next machine, and what is to be done, in order. Events that have no row change nothing."""
        row = _ROWS.get(type(event))
        if row is None or self.link is Link.ENDED:
            return self, ()
        return row(self, event)

    def find(self, key: CallKey) -> Owed | None:
        """The call with this key, if it is still owed."""
        for owed in self.owed:
            if owed.key == key:
                return owed
        return None

    def timers(self) -> frozenset[Timer]:
        """What should be waited for in this state: no result may depend on an event that nobody owes."""
        if self.link is not Link.UP or not (self.owed or self.sayings or self.reply is Reply.ASKED):
            return _NO_TIMERS
        timers: list[Timer] = []
        if self.reply is Reply.ASKED:
            timers.append(_ASK_EXPIRED)
        blocked = self.reply is Reply.SPEAKING or self.user is not User.QUIET
        stuck = blocked and bool(self.sayings)
        for owed in self.owed:
            if owed.stage is Stage.WAITING or (blocked and owed.stage is Stage.READY):
                stuck = True
            elif owed.stage is Stage.STANDS:
                timers.append(ReplyHeard(owed.turn))
        if stuck:
            timers.append(_HOLD_EXPIRED)
        if len(self.owed) > 1 and self.delivery.hold and not self.delivery.whole_turn:
            timers.extend(map(GraceExpired, _in_grace(self)))
        return frozenset(timers) if timers else _NO_TIMERS


_NO_TIMERS: frozenset[Timer] = frozenset()
_ASK_EXPIRED = AskExpired()
_HOLD_EXPIRED = HoldExpired()

# --------------------------------------------------------------------------------------------------- the rows: replies


def _reply_started(m: TurnMachine, event: ReplyStarted) -> Decision:
    if m.reply is Reply.SPEAKING and event.reply_id and event.reply_id == m.reply_id:
        return m, ()
    turn = m.turn + 1
    owed = m.owed
    if owed:
        # What has been released already is answered by this reply at best; it does not belong to it.
        owed = tuple(
            o
            if o.turn != turn
            else o._replace(turn=NO_REPLY)
            if o.stage is Stage.RELEASED
            else o._replace(reply_id=event.reply_id)
            for o in owed
        )
    m = m._replace(
        reply=Reply.SPEAKING,
        reply_id=event.reply_id,
        turn=turn,
        asked=None,
        fresh=False,
        owed=owed,
        graced=m.graced - {turn} if m.graced else m.graced,
        settled=(),
        past=(m.past + m.settled)[-_REMEMBERED:] if m.settled else m.past,
        sayings=tuple(s for s in m.sayings if not s.out) if m.sayings else m.sayings,
    )
    return _release(m, [])


def _reply_done(m: TurnMachine, event: ReplyDone) -> Decision:
    ids_differ = event.reply_id and m.reply_id and event.reply_id != m.reply_id
    if m.reply is not Reply.SPEAKING or ids_differ:
        return _foreign_reply_done(m, event)
    if event.interrupted:
        user = User.SPEAKING if m.user is User.SPEAKING else User.HEARD
        out: Outputs = []
        turn = m.turn
        m = m._replace(reply=Reply.NONE, reply_id="", asked=None, user=user, fresh=False, resumed=False)
        return _release(_interrupt(m, lambda o: o.turn == turn, out), out)
    if m.user is User.HEARD and not m.fresh:
        m = m._replace(user=User.QUIET)
    reply = Reply.NONE if m.asked is None else Reply.ASKED
    owed = tuple(o._replace(stage=Stage.STANDS) if o.stage is Stage.WAITING and o.turn == m.turn else o for o in m.owed)
    return _release(m._replace(reply=reply, reply_id="", fresh=False, resumed=False, owed=owed), [])


def _foreign_reply_done(m: TurnMachine, event: ReplyDone) -> Decision:
    """A repeat, or the end of a reply that is not the open one: nothing, but for calls it takes with it."""
    if not (event.interrupted and event.reply_id):
        return m, ()
    if not any(o.reply_id == event.reply_id for o in m.owed):
        return m, ()
    out: Outputs = []
    return _release(_interrupt(m, lambda o: o.reply_id == event.reply_id, out), out)


def _interrupt(m: TurnMachine, theirs: Callable[[Owed], bool], out: Outputs) -> TurnMachine:
    """The calls of an interrupted reply, and no others, have lost it."""
    kept: list[Owed] = []
    gone: list[str] = []
    for o in m.owed:
        if not theirs(o):
            kept.append(o)
        elif o.stage is Stage.RELEASED:
            kept.append(o._replace(lapsed=True) if m.delivery.void else o._replace(quiet=True))
        elif m.delivery.void or not o.call.expects_result:
            out.append(Discard(o.key, DiscardedBy.INTERRUPTION))
            gone.append(o.key.call_id)
        else:
            kept.append((_not_run(o, _INTERRUPTED) if o.stage in _UNSTARTED else o)._replace(quiet=True))
    return _settle(m, tuple(kept), gone)


def _reply_heard(m: TurnMachine, event: ReplyHeard) -> Decision:
    if m.link is not Link.UP:
        return m, ()
    out: Outputs = []
    owed: list[Owed] = []
    for o in m.owed:
        if o.stage is Stage.STANDS and o.turn == event.turn:
            out.append(Run(o.key, o.call))
            o = o._replace(stage=Stage.RUNNING)
        owed.append(o)
    return (m._replace(owed=tuple(owed)), tuple(out)) if out else (m, ())


# ------------------------------------------------------------------------------------------------ the rows: the user


def _speech_started(m: TurnMachine, event: SpeechStarted) -> Decision:
    return (m, ()) if m.user is User.SPEAKING else _user_speaks(m, item="")


def _speech_stopped(m: TurnMachine, event: SpeechStopped) -> Decision:
    return (m._replace(user=User.HEARD), ()) if m.user is User.SPEAKING else (m, ())


def _transcript(m: TurnMachine, event: Transcript) -> Decision:
    """New words are speech, also where the provider announced none; words that trail behind are not."""
    if event.speaker != "user":
        return m, ()
    named = bool(event.item_id)
    if event.final:
        # The end of the words that are being spoken, unless they belong to an earlier utterance.
        if m.user is User.SPEAKING and (not named or m.item in ("", event.item_id)):
            return m._replace(user=User.HEARD, item=event.item_id or m.item), ()
        if m.user is User.QUIET and named and m.item not in ("", event.item_id):
            m, out = _user_speaks(m, item=event.item_id)
            return m._replace(user=User.HEARD), out
        return (m._replace(item=event.item_id), ()) if named and not m.item else (m, ())
    if not named or event.item_id == m.item:
        return m, ()
    if m.item == "" and m.user is not User.QUIET:
        return m._replace(item=event.item_id), ()
    return _user_speaks(m, item=event.item_id)


def _user_speaks(m: TurnMachine, item: str) -> Decision:
    fresh = m.reply is Reply.SPEAKING and (m.fresh or m.user is not User.SPEAKING)
    m = m._replace(user=User.SPEAKING, item=item, fresh=fresh)
    out: Outputs = []
    return _release(_refuse(m, _UNSTARTED, _SPOKE, out), out)


# ------------------------------------------------------------------------------------------------ the rows: the calls


def _tool_called(m: TurnMachine, event: ToolCalled) -> Decision:
    call = event.call
    if _is_repeat(m, call.call_id):
        return m, ()
    turn = NO_REPLY if event.hold else m.turn if m.reply is Reply.SPEAKING else m.turn + 1
    reply_id = m.reply_id if turn == m.turn else ""
    owed = Owed(CallKey(m.turn, call.call_id), turn, Stage.RUNNING, call, event.deliver, None, reply_id)
    if event.start is Start.NOW:
        return m._replace(owed=(*m.owed, owed)), (Run(owed.key, call),)
    m = m._replace(owed=(*m.owed, owed._replace(stage=Stage.WAITING)))
    if m.user is not User.SPEAKING:
        return m, ()
    out: Outputs = []
    return _release(_refuse(m, _UNSTARTED, _SPOKE, out), out)


def _is_repeat(m: TurnMachine, call_id: str) -> bool:
    if call_id in m.settled or (m.resumed and call_id in m.past):
        return True
    return any(o.key.call_id == call_id for o in m.owed)


def _tool_finished(m: TurnMachine, event: ToolFinished) -> Decision:
    o = m.find(event.key)
    if o is None or o.stage is not Stage.RUNNING:
        return m, ()
    if not o.call.expects_result:
        m = _settle(m, tuple(p for p in m.owed if p is not o), [o.key.call_id])
    else:
        done = o._replace(stage=Stage.READY, result=event.result)
        m = m._replace(owed=(done,) if len(m.owed) == 1 else tuple(done if p is o else p for p in m.owed))
    return _release(m, [])


def _calls_cancelled(m: TurnMachine, event: CallsCancelled) -> Decision:
    out: Outputs = []
    kept: list[Owed] = []
    for o in m.owed:
        if o.key.call_id not in event.call_ids:
            kept.append(o)
        elif o.stage is Stage.RELEASED:
            kept.append(o._replace(lapsed=True))
        else:
            out.append(Discard(o.key, DiscardedBy.CANCELLATION))
    return _release(_settle(m, tuple(kept), [d.key.call_id for d in out if isinstance(d, Discard)]), out)


def _sent(m: TurnMachine, event: Sent) -> Decision:
    gone = [o.key.call_id for o in m.owed if o.stage is Stage.RELEASED and o.key in event.keys]
    kept = tuple(o for o in m.owed if not (o.stage is Stage.RELEASED and o.key in event.keys))
    return _settle(m, kept, gone), ()


# --------------------------------------------------------------------------------------------- the rows: asking to speak


def _reply_requested(m: TurnMachine, event: ReplyRequested) -> Decision:
    return (m._replace(reply=Reply.ASKED, asked=NOBODY), ()) if m.reply is Reply.NONE else (m, ())


def _say_asked(m: TurnMachine, event: SayAsked) -> Decision:
    return _release(m._replace(sayings=(*m.sayings, Saying(ReplyRequest(event.instructions)))), [])


def _call_concluded(m: TurnMachine, event: CallConcluded) -> Decision:
    return _release(m._replace(sayings=(*m.sayings, Saying(FollowUp(event.key, event.result)))), [])


def _filler_due(m: TurnMachine, event: FillerDue) -> Decision:
    o = m.find(event.key)
    if o is None or o.stage is not Stage.RUNNING or m.link is not Link.UP or m.reply is not Reply.NONE:
        return m, ()
    # In a silent hold mode what the user says is owed no reply, so words heard do not stand in the way.
    if m.user is not User.QUIET and (o.deliver is not Deliver.BETWEEN_REPLIES or m.user is User.SPEAKING):
        return m, ()
    return m._replace(reply=Reply.ASKED, asked=NOBODY), (ReplyRequest(event.instructions),)


def _ask_expired(m: TurnMachine, event: AskExpired) -> Decision:
    return _release(_unask(m), []) if m.reply is Reply.ASKED else (m, ())


def _unask(m: TurnMachine) -> TurnMachine:
    """Nobody began to say what was asked for: it may be said once more."""
    sayings = tuple(s._replace(out=False) if s.out else s for s in m.sayings if not (s.out and s.tries >= _TRIES))
    return m._replace(reply=Reply.NONE, reply_id="", asked=None, sayings=sayings)


# --------------------------------------------------------------------------------------------------- the rows: time, link


def _grace_expired(m: TurnMachine, event: GraceExpired) -> Decision:
    if event.turn not in _in_grace(m):
        return m, ()
    return _release(m._replace(graced=m.graced | {event.turn}), [])


def _hold_expired(m: TurnMachine, event: HoldExpired) -> Decision:
    if m.link is not Link.UP:
        return m, ()
    m = _unask(m)._replace(user=User.QUIET, fresh=False)
    m = m._replace(graced=m.graced | _in_grace(m))
    out: Outputs = []
    return _release(_refuse(m, frozenset({Stage.WAITING}), _NO_END, out), out)


def _link_lost(m: TurnMachine, event: LinkLost) -> Decision:
    if m.link is Link.DOWN:
        return m, ()
    m = _unask(m)._replace(link=Link.DOWN, user=User.HEARD, fresh=False, item="")
    out: Outputs = []
    kept: list[Owed] = []
    gone: list[str] = []
    for o in m.owed:
        if o.stage is not Stage.RELEASED:
            kept.append(o)
        elif o.lapsed:
            out.append(Discard(o.key, DiscardedBy.INTERRUPTION))
            gone.append(o.key.call_id)
        else:
            kept.append(o._replace(stage=Stage.READY, uncertain=True, announced=False))
    return _release(_refuse(_settle(m, tuple(kept), gone), _UNSTARTED, _DROPPED, out), out)


def _link_resumed(m: TurnMachine, event: LinkResumed) -> Decision:
    if m.link is not Link.DOWN:
        return m, ()
    return _release(m._replace(link=Link.UP, user=User.QUIET, resumed=True), [])


def _reading_paused(m: TurnMachine, event: ReadingPaused) -> Decision:
    return (m._replace(link=Link.PAUSED), ()) if m.link is Link.UP else (m, ())


def _reading_resumed(m: TurnMachine, event: ReadingResumed) -> Decision:
    return _release(m._replace(link=Link.UP), []) if m.link is Link.PAUSED else (m, ())


def _session_ended(m: TurnMachine, event: SessionEnded) -> Decision:
    out = tuple(Discard(o.key, DiscardedBy.END) for o in m.owed if o.stage is not Stage.RELEASED)
    return m._replace(link=Link.ENDED, owed=(), sayings=(), graced=frozenset()), out


# Keyed by the very class of the event; each row takes events of that class only, which the type of a dict cannot say.
_ROWS: dict[type, Callable[[TurnMachine, Any], Decision]] = {
    ReplyStarted: _reply_started,
    ReplyDone: _reply_done,
    ReplyHeard: _reply_heard,
    SpeechStarted: _speech_started,
    SpeechStopped: _speech_stopped,
    Transcript: _transcript,
    ToolCalled: _tool_called,
    ToolFinished: _tool_finished,
    CallsCancelled: _calls_cancelled,
    Sent: _sent,
    ReplyRequested: _reply_requested,
    SayAsked: _say_asked,
    CallConcluded: _call_concluded,
    FillerDue: _filler_due,
    AskExpired: _ask_expired,
    GraceExpired: _grace_expired,
    HoldExpired: _hold_expired,
    LinkLost: _link_lost,
    LinkResumed: _link_resumed,
    ReadingPaused: _reading_paused,
    ReadingResumed: _reading_resumed,
    SessionEnded: _session_ended,
}

# ------------------------------------------------------------------------------------------------------------ release


def _release(m: TurnMachine, out: Outputs) -> Decision:
    """Send whatever may be sent now, and announce what stays behind."""
    said = len(out)
    if m.link is Link.UP:
        if m.owed:
            m = _release_quiet(m, out)
            while group := _next_turn(m):
                m = _let_go(m, group, out)
        sent = len(out) > said
        if m.sayings and not sent and m.window_open and not any(o.stage is Stage.READY for o in m.owed):
            m = _say(m, out)
    for o in m.owed:
        if o.stage is Stage.READY and not o.announced:
            out.append(Hold(o.key, _held_by(m)))
            m = m._replace(owed=tuple(p._replace(announced=True) if p.key == o.key else p for p in m.owed))
    return m, tuple(out)


def _release_quiet(m: TurnMachine, out: Outputs) -> TurnMachine:
    group = [o for o in m.owed if o.quiet and o.stage is Stage.READY]
    return _mark_released(m, group, out, quiet=True) if group else m


def _next_turn(m: TurnMachine) -> list[Owed]:
    """The results, in call order, of the first turn that has any that may go."""
    group: list[Owed] = []
    for o in m.owed:
        if o.stage is Stage.READY and (not group or o.turn == group[0].turn) and _may_go(m, o):
            group.append(o)
    return group


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
    return any(o.turn == turn and o.stage in _UNFINISHED and o.call.expects_result for o in m.owed)


def _in_grace(m: TurnMachine) -> set[int]:
    """Turns whose reply is not open, and which still wait for slower siblings."""
    open_turn = m.turn if m.reply is Reply.SPEAKING else NO_REPLY
    return {
        o.turn
        for o in m.owed
        if o.stage in _UNFINISHED and o.turn not in (NO_REPLY, open_turn) and o.turn not in m.graced
    }


def _let_go(m: TurnMachine, group: list[Owed], out: Outputs) -> TurnMachine:
    m = _mark_released(m, group, out, quiet=False)
    if not m.delivery.asks:
        return m
    reply = Reply.ASKED if m.reply is Reply.NONE else m.reply
    return m._replace(reply=reply, asked=group[0].turn if m.asked is None else m.asked)


def _mark_released(m: TurnMachine, group: list[Owed], out: Outputs, *, quiet: bool) -> TurnMachine:
    keys = tuple(o.key for o in group)
    out.append(ToolResults(tuple(o.result for o in group if o.result is not None), quiet, keys))
    return m._replace(
        owed=tuple(o._replace(stage=Stage.RELEASED) if o.key in keys else o for o in m.owed),
    )


def _say(m: TurnMachine, out: Outputs) -> TurnMachine:
    first, *rest = m.sayings
    out.append(first.what)
    if isinstance(first.what, FollowUp) and not m.delivery.asks:
        return m._replace(sayings=tuple(rest))
    first = first._replace(tries=first.tries + 1, out=True)
    return m._replace(reply=Reply.ASKED, asked=NOBODY, sayings=(first, *rest))


def _held_by(m: TurnMachine) -> HeldBy:
    if m.link is not Link.UP:
        return HeldBy.LINK
    if m.reply is Reply.SPEAKING:
        return HeldBy.REPLY
    if m.reply is Reply.ASKED:
        return HeldBy.ASKED
    return HeldBy.USER if m.user is not User.QUIET else HeldBy.SIBLINGS


# ----------------------------------------------------------------------------------------------------- leaving the list


def _settle(m: TurnMachine, kept: tuple[Owed, ...], gone: list[str]) -> TurnMachine:
    """These calls are over; their ids are remembered."""
    if not gone:
        return m._replace(owed=kept)
    graced = m.graced & {o.turn for o in kept} if m.graced else m.graced
    return m._replace(owed=kept, settled=(*m.settled, *gone)[-_REMEMBERED:], graced=graced)


def _refuse(m: TurnMachine, stages: frozenset[Stage], why: str, out: Outputs) -> TurnMachine:
    """Calls in these stages will not be run; each is answered with the reason, where an answer is expected."""
    kept: list[Owed] = []
    gone: list[str] = []
    for o in m.owed:
        if o.stage not in stages:
            kept.append(o)
        elif o.call.expects_result:
            kept.append(_not_run(o, why))
        else:
            out.append(Discard(o.key, DiscardedBy.INTERRUPTION))
            gone.append(o.key.call_id)
    return _settle(m, tuple(kept), gone)


def _not_run(o: Owed, why: str) -> Owed:
    result = ToolResult(o.call.call_id, why, is_error=True, name=o.call.name, echo=o.call.echo)
    return o._replace(stage=Stage.READY, result=result)


_SPOKE = '{"error":"Not run: the caller spoke before the reply had been heard."}'
_INTERRUPTED = '{"error":"Not run: the caller interrupted the reply."}'
_NO_END = '{"error":"Not run: the reply did not come to an end."}'
_DROPPED = '{"error":"Not run: the connection dropped before the reply had been heard."}'
