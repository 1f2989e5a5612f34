"""When may the result of a tool call be sent: now, later, or never? The answer is given here, and in `release`.

**The window** is open while the link is up, no reply is in flight or asked for, the user has been quiet since the last
reply ended, and nobody has paused the agent. It is a state, never an event: a result that is ready while it is open
goes at once; otherwise it is held until the window opens.

**A call belongs to a reply**: the one that is open when it arrives; if none is open, the next one that starts. (A call
of a silent hold mode belongs to none.) The results of one reply are a *turn*, and go together, in call order; slower
siblings are waited for during a short grace.

| what happens        | reply, user                             | what is owed                                        |
|---------------------|-----------------------------------------|-----------------------------------------------------|
| a reply starts      | speaking                                | calls that have no reply yet belong to it           |
| the user starts     | user speaking                           | what waits for its reply to be heard is not run     |
| the user stops      | heard: a reply is owed to that          | send what waited only for silence                   |
| a call arrives      |                                         | run it now, or once its reply has been heard        |
| a tool ends         |                                         | send its result, or hold it                         |
| a parked call ends  |                                         | its outcome instead of a held interim result; else  |
|                     |                                         | it is told in an open window, like all that is said |
| the reply ends      | none; quiet, unless words since began   | grace for slower siblings; send                     |
| it has been heard   |                                         | run what waited for that                            |
| it was interrupted  | none; heard, where users speak          | discard the calls of this reply, of no other        |
| the agent is paused |                                         | say nothing; results go on                          |
| it goes on          |                                         | say what waited                                     |
| grace expires       |                                         | send without the slower siblings                    |
| an ask expires      | none, if nothing began                  | send; say again what nobody began to say            |
| a hold expires      | none, quiet: the provider is stuck      | every grace is over; run no more what waits; send   |
| the link drops      | none, heard                             | what was on its way is owed again                   |
| its session is lost |                                         | discard all of it: a fresh session knows no old ids |
| the link is back    | quiet                                   | send                                                |

A release that makes the agent speak leaves the reply *asked for*. Until that reply has begun and ended, or the ask has
expired, only results of the same turn may follow, so that two replies never collide.

Everything that affects when a result is sent lives in these two files. If a provider cannot be expressed by `Delivery`
and by what its dialect calls `ReplyDone` and `CallsCancelled`, change this table, never a session.

The machine is a value: `handle` returns the next one, and what is to be done. It has no clock: `timers` says what the
owner should be waiting for, and the passing of time comes back as an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .dialect import Delivery
from .events import (
    AgentPaused,
    AgentResumed,
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
    Timer,
    ToolCalled,
    ToolFinished,
    Transcript,
    TurnOutput,
)
from .release import in_grace, newly_held, not_run, refuse, release, settle
from .state import (
    NO_REPLY,
    NOBODY,
    REMEMBERED,
    UNSTARTED,
    Link,
    Owed,
    Reply,
    Saying,
    Stage,
    User,
    Work,
)

__all__ = ["Link", "Owed", "Reply", "Saying", "Stage", "TurnMachine", "User", "Work"]


Outputs = list[TurnOutput]
Decision = tuple["TurnMachine", tuple[TurnOutput, ...]]

_CUT = DiscardedBy.INTERRUPTION

_NAMELESS = "-"
"""The item of words that came without an id."""
_TRIES = 2
"""How often the agent is asked to say something that nobody begins to say."""

_SPOKE = '{"error":"Not run: the caller spoke before the reply had been heard."}'
_INTERRUPTED = '{"error":"Not run: the caller interrupted the reply."}'
_NO_END = '{"error":"Not run: the reply did not come to an end."}'
_DROPPED = '{"error":"Not run: the connection dropped before the reply had been heard."}'


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
    work: Work = Work.GOES_ON

    @property
    def window_open(self) -> bool:
        """May the agent be made to speak now, without talking over anybody?"""
        if self.work is Work.PAUSED:
            return False
        return self.link is Link.UP and self.reply is Reply.NONE and self.user is User.QUIET

    def handle(self, event: object) -> Decision:
        """The next machine, and what is to be done, in order. Events that have no row change nothing."""
        row = _ROWS.get(type(event))
        if row is None or self.link is Link.ENDED:
            return self, ()
        after, outputs = row(self, event)
        return after, (*outputs, *newly_held(self, after)) if after.owed else outputs

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
        stuck = blocked and bool(self.sayings) and self.work is Work.GOES_ON
        for owed in self.owed:
            if owed.stage is Stage.WAITING or (blocked and owed.stage is Stage.READY):
                stuck = True
            elif owed.stage is Stage.STANDS:
                timers.append(ReplyHeard(owed.turn))
        if stuck:
            timers.append(_HOLD_EXPIRED)
        if len(self.owed) > 1 and self.delivery.hold and not self.delivery.whole_turn:
            timers.extend(map(GraceExpired, in_grace(self)))
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
        past=(m.past + m.settled)[-REMEMBERED:] if m.settled else m.past,
        sayings=tuple(s for s in m.sayings if not s.out) if m.sayings else m.sayings,
    )
    return release(m, [])


def _reply_done(m: TurnMachine, event: ReplyDone) -> Decision:
    ids_differ = event.reply_id and m.reply_id and event.reply_id != m.reply_id
    if m.reply is not Reply.SPEAKING or ids_differ:
        return _foreign_reply_done(m, event)
    if event.interrupted:
        # Where nobody speaks, a turn that failed or was stopped leaves nothing to be answered.
        user = User.HEARD if m.delivery.speech and m.user is not User.SPEAKING else m.user
        out: Outputs = []
        turn = m.turn
        m = m._replace(reply=Reply.NONE, reply_id="", asked=None, user=user, fresh=False, resumed=False)
        return release(_interrupt(m, lambda o: o.turn == turn, out), out)
    # Words spoken since the reply began are owed a reply of their own; a cough is not.
    answered = m.user is User.HEARD and not (m.fresh and m.item)
    reply = Reply.NONE if m.asked is None else Reply.ASKED
    user = User.QUIET if answered else m.user
    turn = m.turn
    owed = tuple([o._replace(stage=Stage.STANDS) if o.stage is Stage.WAITING and o.turn == turn else o for o in m.owed])
    return release(m._replace(reply=reply, reply_id="", user=user, fresh=False, resumed=False, owed=owed), [])


def _foreign_reply_done(m: TurnMachine, event: ReplyDone) -> Decision:
    """A repeat, or the end of a reply that is not the open one: nothing, but for calls it takes with it."""
    if not (event.interrupted and event.reply_id):
        return m, ()
    if not any(o.reply_id == event.reply_id for o in m.owed):
        return m, ()
    out: Outputs = []
    return release(_interrupt(m, lambda o: o.reply_id == event.reply_id, out), out)


def _interrupt(m: TurnMachine, theirs: Callable[[Owed], bool], out: Outputs) -> TurnMachine:
    """The calls of an interrupted reply, and no others, have lost it."""
    kept: list[Owed] = []
    gone: list[str] = []
    for o in m.owed:
        if not theirs(o):
            kept.append(o)
        elif o.stage is Stage.RELEASED:
            kept.append(o._replace(lapsed=_CUT) if m.delivery.void else o._replace(quiet=True))
        elif m.delivery.void or not o.call.expects_result:
            out.append(Discard(o.key, _CUT))
            gone.append(o.key.call_id)
        else:
            kept.append((not_run(o, _INTERRUPTED) if o.stage in UNSTARTED else o)._replace(quiet=True))
    return settle(m, tuple(kept), gone)


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


def _agent_paused(m: TurnMachine, event: AgentPaused) -> Decision:
    return (m, ()) if m.work is Work.PAUSED else (m._replace(work=Work.PAUSED), ())


def _agent_resumed(m: TurnMachine, event: AgentResumed) -> Decision:
    return (m, ()) if m.work is Work.GOES_ON else release(m._replace(work=Work.GOES_ON), [])


# ------------------------------------------------------------------------------------------------ the rows: the user


def _speech_started(m: TurnMachine, event: SpeechStarted) -> Decision:
    # Words already spoken within this reply stay owed a reply, whatever is only noise after them.
    return (m, ()) if m.user is User.SPEAKING else _user_speaks(m, item=m.item if m.fresh else "")


def _speech_stopped(m: TurnMachine, event: SpeechStopped) -> Decision:
    return release(m._replace(user=User.HEARD), []) if m.user is User.SPEAKING else (m, ())


def _transcript(m: TurnMachine, event: Transcript) -> Decision:
    """New words are speech, also where the provider announced none; words that trail behind are not."""
    if event.speaker != "user":
        return m, ()
    named = bool(event.item_id)
    if event.final:
        # The end of the words that are being spoken, unless they belong to an earlier utterance.
        if m.user is User.SPEAKING and (not named or m.item in ("", event.item_id)):
            return release(m._replace(user=User.HEARD, item=event.item_id or m.item or _NAMELESS), [])
        if m.user is User.QUIET and named and m.item not in ("", event.item_id):
            m, out = _user_speaks(m, item=event.item_id)
            return release(m._replace(user=User.HEARD), list(out))
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
    return release(refuse(m, UNSTARTED, _SPOKE, out), out)


# ------------------------------------------------------------------------------------------------ the rows: the calls


def _tool_called(m: TurnMachine, event: ToolCalled) -> Decision:
    call = event.call
    if _is_repeat(m, call.call_id):
        return m, ()
    turn = NO_REPLY if event.hold else m.turn if m.reply is Reply.SPEAKING else m.turn + 1
    reply_id = m.reply_id if turn == m.turn else ""
    epoch = 0 if m.delivery.unique_ids else m.turn
    owed = Owed(CallKey(epoch, call.call_id), turn, Stage.RUNNING, call, event.deliver, None, reply_id)
    if not event.reply:
        owed = owed._replace(quiet=True)
    if event.start is Start.NOW:
        return m._replace(owed=(*m.owed, owed)), (Run(owed.key, call),)
    m = m._replace(owed=(*m.owed, owed._replace(stage=Stage.WAITING)))
    if m.user is not User.SPEAKING:
        return m, ()
    out: Outputs = []
    return release(refuse(m, UNSTARTED, _SPOKE, out), out)


def _is_repeat(m: TurnMachine, call_id: str) -> bool:
    """Has this very call been made before? Then nothing is said: it is owed an answer already, or has had it.

    So too for a call whose answer the provider has confirmed, and which it announces again after a resume. Whether any
    does is not documented; another answer would have the agent speak twice wherever the first one was kept.
    """
    if m.delivery.unique_ids and call_id in m.past:
        return True
    if call_id in m.settled or (m.resumed and call_id in m.past):
        return True
    return any(o.key.call_id == call_id for o in m.owed)


def _tool_finished(m: TurnMachine, event: ToolFinished) -> Decision:
    o = m.find(event.key)
    if o is None or o.stage is not Stage.RUNNING:
        return m, ()
    if not o.call.expects_result:
        m = settle(m, tuple(p for p in m.owed if p is not o), [o.key.call_id])
    else:
        done = o._replace(stage=Stage.READY, result=event.result)
        m = m._replace(owed=(done,) if len(m.owed) == 1 else tuple(done if p is o else p for p in m.owed))
    return release(m, [])


def _calls_cancelled(m: TurnMachine, event: CallsCancelled) -> Decision:
    out: Outputs = []
    kept: list[Owed] = []
    for o in m.owed:
        if o.key.call_id not in event.call_ids:
            kept.append(o)
        elif o.stage is Stage.RELEASED:
            kept.append(o._replace(lapsed=DiscardedBy.CANCELLATION))
        else:
            out.append(Discard(o.key, DiscardedBy.CANCELLATION))
    return release(settle(m, tuple(kept), [d.key.call_id for d in out if isinstance(d, Discard)]), out)


def _sent(m: TurnMachine, event: Sent) -> Decision:
    sent = [o for o in m.owed if o.stage is Stage.RELEASED and o.key in event.keys]
    if not sent:
        return m, ()
    m = settle(m, tuple([o for o in m.owed if o not in sent]), [o.key.call_id for o in sent])
    return release(m, []) if m.sayings else (m, ())


# ------------------------------------------------------------------------------------------- the rows: asking to speak


def _reply_requested(m: TurnMachine, event: ReplyRequested) -> Decision:
    return (m._replace(reply=Reply.ASKED, asked=NOBODY), ()) if m.reply is Reply.NONE else (m, ())


def _say_asked(m: TurnMachine, event: SayAsked) -> Decision:
    return release(m._replace(sayings=(*m.sayings, Saying(ReplyRequest(event.instructions)))), [])


def _call_concluded(m: TurnMachine, event: CallConcluded) -> Decision:
    o = m.find(event.key)
    if o is not None and o.stage is Stage.READY and o.result is not None and o.result.interim:
        # Nobody has been told yet that it takes longer, and now nobody has to be: the outcome is the answer.
        return m._replace(owed=tuple([p._replace(result=event.result) if p is o else p for p in m.owed])), ()
    return release(m._replace(sayings=(*m.sayings, Saying(FollowUp(event.key, event.result)))), [])


def _filler_due(m: TurnMachine, event: FillerDue) -> Decision:
    o = m.find(event.key)
    if o is None or o.stage is not Stage.RUNNING or m.link is not Link.UP or m.reply is not Reply.NONE:
        return m, ()
    if m.work is Work.PAUSED:
        return m, ()
    # In a silent hold mode what the user says is owed no reply, so words heard do not stand in the way.
    if m.user is not User.QUIET and (o.deliver is not Deliver.BETWEEN_REPLIES or m.user is User.SPEAKING):
        return m, ()
    return m._replace(reply=Reply.ASKED, asked=NOBODY), (ReplyRequest(event.instructions),)


def _ask_expired(m: TurnMachine, event: AskExpired) -> Decision:
    return release(_unask(m), []) if m.reply is Reply.ASKED else (m, ())


def _unask(m: TurnMachine) -> TurnMachine:
    """Nobody began to say what was asked for: it may be said once more."""
    sayings = tuple(s._replace(out=False) if s.out else s for s in m.sayings if not (s.out and s.tries >= _TRIES))
    return m._replace(reply=Reply.NONE, reply_id="", asked=None, sayings=sayings)


# ------------------------------------------------------------------------------------------------- the rows: time, link


def _grace_expired(m: TurnMachine, event: GraceExpired) -> Decision:
    if event.turn not in in_grace(m):
        return m, ()
    return release(m._replace(graced=m.graced | {event.turn}), [])


def _hold_expired(m: TurnMachine, event: HoldExpired) -> Decision:
    if m.link is not Link.UP:
        return m, ()
    m = _unask(m)._replace(user=User.QUIET, fresh=False)
    m = m._replace(graced=m.graced | in_grace(m))
    out: Outputs = []
    return release(refuse(m, (Stage.WAITING,), _NO_END, out), out)


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
            out.append(Discard(o.key, o.lapsed))
            gone.append(o.key.call_id)
        else:
            kept.append(o._replace(stage=Stage.READY, uncertain=True))
    return release(refuse(settle(m, tuple(kept), gone), UNSTARTED, _DROPPED, out), out)


def _session_lost(m: TurnMachine, event: SessionLost) -> Decision:
    """What was to be said is said in the fresh session; what was asked in the old one cannot be answered there."""
    if m.link is not Link.DOWN:
        return m, ()
    out = tuple(Discard(o.key, DiscardedBy.ORPHANED) for o in m.owed)
    return m._replace(owed=(), graced=frozenset(), settled=(), past=()), out


def _link_resumed(m: TurnMachine, event: LinkResumed) -> Decision:
    if m.link is not Link.DOWN:
        return m, ()
    return release(m._replace(link=Link.UP, user=User.QUIET, resumed=True), [])


def _reading_paused(m: TurnMachine, event: ReadingPaused) -> Decision:
    return (m._replace(link=Link.PAUSED), ()) if m.link is Link.UP else (m, ())


def _reading_resumed(m: TurnMachine, event: ReadingResumed) -> Decision:
    return release(m._replace(link=Link.UP), []) if m.link is Link.PAUSED else (m, ())


def _session_ended(m: TurnMachine, event: SessionEnded) -> Decision:
    out = tuple(Discard(o.key, DiscardedBy.END) for o in m.owed if o.stage is not Stage.RELEASED)
    return m._replace(link=Link.ENDED, owed=(), sayings=(), graced=frozenset()), out


# Keyed by the very class of the event; each row takes events of that class only, which the type of a dict cannot say.
_ROWS: dict[type, Callable[[TurnMachine, Any], Decision]] = {
    ReplyStarted: _reply_started,
    ReplyDone: _reply_done,
    ReplyHeard: _reply_heard,
    AgentPaused: _agent_paused,
    AgentResumed: _agent_resumed,
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
    SessionLost: _session_lost,
    LinkResumed: _link_resumed,
    ReadingPaused: _reading_paused,
    ReadingResumed: _reading_resumed,
    SessionEnded: _session_ended,
}
