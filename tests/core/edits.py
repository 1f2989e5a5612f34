"""Ways to break the turn machine: each a text of its source, and what it becomes.

They follow the source from top to bottom. An edit that changes nothing that can be seen is not listed.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["EDITS", "Edit"]


class Edit(NamedTuple):
    """A break: this text becomes that one."""

    old: str
    new: str
    walked: bool = True
    """The walk notices, too."""


EDITS = {
    # ------------------------------------------------------------------------------------------- window and identity
    "the window is open without a link": Edit(
        "self.link is Link.UP and self.reply is Reply.NONE and", "self.reply is Reply.NONE and"
    ),
    "the window is open inside a reply": Edit(
        "self.link is Link.UP and self.reply is Reply.NONE and", "self.link is Link.UP and"
    ),
    "the window is open while the caller speaks": Edit(
        "self.reply is Reply.NONE and self.user is User.QUIET", "self.reply is Reply.NONE"
    ),
    "the window is open while the agent is paused": Edit("if self.work is Work.PAUSED:", "if self.link is Link.ENDED:"),
    "the end is not the end": Edit("if row is None or self.link is Link.ENDED:", "if row is None:"),
    "keys are not compared": Edit("if owed.key == key:", "if owed.key.call_id == key.call_id:"),
    # ------------------------------------------------------------------------------------------------------- timers
    "timers run without a link": Edit("if self.link is not Link.UP or not (self.owed", "if not (self.owed"),
    "no timer for a reply that is stuck": Edit(
        "blocked = self.reply is Reply.SPEAKING or self.user is not User.QUIET", "blocked = self.user is not User.QUIET"
    ),
    "no timer for speech that is stuck": Edit(
        "blocked = self.reply is Reply.SPEAKING or self.user is not User.QUIET",
        "blocked = self.reply is Reply.SPEAKING",
    ),
    "no timer for an ask": Edit("timers.append(_ASK_EXPIRED)", "pass"),
    "no timer for what has not begun": Edit(
        "if owed.stage is Stage.WAITING or (blocked and owed.stage is Stage.READY):",
        "if blocked and owed.stage is Stage.READY:",
    ),
    "no timer for a result that is ready": Edit(
        "if owed.stage is Stage.WAITING or (blocked and owed.stage is Stage.READY):", "if owed.stage is Stage.WAITING:"
    ),
    "no timer for what is to be said": Edit("stuck = blocked and bool(self.sayings)", "stuck = False"),
    "an agent that is paused is stuck": Edit("bool(self.sayings) and self.work is Work.GOES_ON", "bool(self.sayings)"),
    "no timer for anything that is stuck": Edit("timers.append(_HOLD_EXPIRED)", "pass"),
    "no timer for a reply to be heard": Edit("timers.append(ReplyHeard(owed.turn))", "pass"),
    "no timer for a grace": Edit("timers.extend(map(GraceExpired, in_grace(self)))", "pass"),
    "a timer for what is not stuck": Edit("stuck = blocked and bool(self.sayings)", "stuck = blocked", False),
    "a timer for results in an open window": Edit(
        "(blocked and owed.stage is Stage.READY)", "owed.stage is Stage.READY"
    ),
    "a timer for a grace of a whole turn": Edit(
        "self.delivery.hold and not self.delivery.whole_turn:", "self.delivery.hold:", False
    ),
    "a timer for a grace where nothing is held": Edit(
        "if len(self.owed) > 1 and self.delivery.hold and", "if len(self.owed) > 1 and", False
    ),
    # ------------------------------------------------------------------------------------------------ a reply starts
    "a repeated start is a new reply": Edit(
        "if m.reply is Reply.SPEAKING and event.reply_id and event.reply_id == m.reply_id:", "if False:"
    ),
    "a start without an id is a repeat": Edit(
        "m.reply is Reply.SPEAKING and event.reply_id and event.reply_id == m.reply_id",
        "m.reply is Reply.SPEAKING and event.reply_id == m.reply_id",
    ),
    "every start is a repeat": Edit(
        "m.reply is Reply.SPEAKING and event.reply_id and event.reply_id == m.reply_id", "m.reply is Reply.SPEAKING"
    ),
    "a reply is not counted": Edit("turn = m.turn + 1\n    owed = m.owed", "turn = m.turn\n    owed = m.owed"),
    "what is on its way joins the reply": Edit(
        "if o.stage is Stage.RELEASED\n            else o._replace(reply_id",
        "if False\n            else o._replace(reply_id",
    ),
    "calls do not learn the id of their reply": Edit("else o._replace(reply_id=event.reply_id)", "else o"),
    "an ask outlives the start of a reply": Edit("turn=turn,\n        asked=None,", "turn=turn,"),
    "speech of an earlier reply stays fresh": Edit(
        "asked=None,\n        fresh=False,\n        owed=owed", "asked=None,\n        owed=owed"
    ),
    "a grace outlives the start of its reply": Edit(
        "graced=m.graced - {turn} if m.graced else m.graced,", "graced=m.graced,", False
    ),
    "ids are settled for ever": Edit("        settled=(),\n", "", False),
    "the past is forgotten": Edit(
        "past=(m.past + m.settled)[-REMEMBERED:] if m.settled else m.past,", "past=m.past,", False
    ),
    "the past grows for ever": Edit("(m.past + m.settled)[-REMEMBERED:]", "(m.past + m.settled)", False),
    "what was said is said again": Edit(
        "sayings=tuple(s for s in m.sayings if not s.out) if m.sayings else m.sayings,", "sayings=m.sayings,", False
    ),
    "everything to say counts as said": Edit(
        "sayings=tuple(s for s in m.sayings if not s.out) if m.sayings else m.sayings,", "sayings=(),", False
    ),
    "nothing is released when a reply starts": Edit(
        "    return release(m, [])\n\n\ndef _reply_done", "    return m, ()\n\n\ndef _reply_done"
    ),
    # -------------------------------------------------------------------------------------------------- a reply ends
    "any end ends the open reply": Edit(
        "if m.reply is not Reply.SPEAKING or ids_differ:", "if m.reply is not Reply.SPEAKING:"
    ),
    "an end without a reply opens the window": Edit(
        "if m.reply is not Reply.SPEAKING or ids_differ:", "if ids_differ:"
    ),
    "an end without an id is foreign": Edit(
        "ids_differ = event.reply_id and m.reply_id and", "ids_differ = m.reply_id and"
    ),
    "an end of a nameless reply is foreign": Edit(
        "ids_differ = event.reply_id and m.reply_id and", "ids_differ = event.reply_id and", False
    ),
    "an interruption is taken for an end": Edit(
        "    if event.interrupted:\n        # Where", "    if False:\n        # Where"
    ),
    "an interruption makes a speaker silent": Edit(
        "m.delivery.speech and m.user is not User.SPEAKING", "m.delivery.speech"
    ),
    "an interruption owes nothing": Edit(
        "User.HEARD if m.delivery.speech and m.user is not User.SPEAKING else m.user", "m.user"
    ),
    "an interruption owes a reply where nobody speaks": Edit(
        "m.delivery.speech and m.user is not User.SPEAKING", "m.user is not User.SPEAKING"
    ),
    "an interruption takes the calls of every reply": Edit(
        "return release(_interrupt(m, lambda o: o.turn == turn, out), out)",
        "return release(_interrupt(m, lambda o: True, out), out)",
    ),
    "an interruption takes nothing": Edit(
        "return release(_interrupt(m, lambda o: o.turn == turn, out), out)", "return release(m, out)"
    ),
    "an ask outlives an interruption": Edit(
        'reply=Reply.NONE, reply_id="", asked=None, user=user', 'reply=Reply.NONE, reply_id="", user=user'
    ),
    "an interruption leaves the reply open": Edit(
        'm._replace(reply=Reply.NONE, reply_id="", asked=None, user=user, fresh',
        "m._replace(asked=None, user=user, fresh",
    ),
    "an interruption does not end the first turn after a resume": Edit(
        "user=user, fresh=False, resumed=False)", "user=user, fresh=False)", False
    ),
    "a reply answers nothing": Edit("answered = m.user is User.HEARD and not (m.fresh and m.item)", "answered = False"),
    "a reply answers what was said since it began": Edit(
        "answered = m.user is User.HEARD and not (m.fresh and m.item)", "answered = m.user is User.HEARD"
    ),
    "a reply silences the speaker": Edit(
        "answered = m.user is User.HEARD and not (m.fresh and m.item)", "answered = not (m.fresh and m.item)"
    ),
    "what was asked for inside a reply is forgotten": Edit(
        "reply = Reply.NONE if m.asked is None else Reply.ASKED", "reply = Reply.NONE"
    ),
    "what waits for a reply does not stand when that ends": Edit(
        "if o.stage is Stage.WAITING and o.turn == turn else o", "if False else o"
    ),
    "what waits for another reply stands": Edit(
        "if o.stage is Stage.WAITING and o.turn == turn else o", "if o.stage is Stage.WAITING else o"
    ),
    "an end does not end the first turn after a resume": Edit(
        'reply=reply, reply_id="", user=user, fresh=False, resumed=False, owed=owed',
        'reply=reply, reply_id="", user=user, fresh=False, owed=owed',
        False,
    ),
    "nothing is sent when a reply ends": Edit(
        'return release(m._replace(reply=reply, reply_id="", user=user, fresh=False, resumed=False, owed=owed), [])',
        'return m._replace(reply=reply, reply_id="", user=user, fresh=False, resumed=False, owed=owed), ()',
    ),
    "a late end without an interruption takes calls": Edit(
        "if not (event.interrupted and event.reply_id):", "if not event.reply_id:"
    ),
    "a late interruption takes nothing": Edit(
        "    if not any(o.reply_id == event.reply_id for o in m.owed):\n        return m, ()", "    return m, ()"
    ),
    "a late interruption without an id takes calls": Edit(
        "if not (event.interrupted and event.reply_id):", "if not event.interrupted:"
    ),
    "a late interruption takes everything": Edit(
        "_interrupt(m, lambda o: o.reply_id == event.reply_id, out)", "_interrupt(m, lambda o: True, out)"
    ),
    # --------------------------------------------------------------------------------------------- it is interrupted
    "what is on its way is not marked as void": Edit(
        "kept.append(o._replace(lapsed=_CUT) if m.delivery.void else o._replace(quiet=True))", "kept.append(o)"
    ),
    "what is on its way is void where nothing is": Edit(
        "o._replace(lapsed=_CUT) if m.delivery.void else o._replace(quiet=True)", "o._replace(lapsed=_CUT)", False
    ),
    "nothing is void": Edit("elif m.delivery.void or not o.call.expects_result:", "elif not o.call.expects_result:"),
    "what needs no answer is answered": Edit(
        "elif m.delivery.void or not o.call.expects_result:", "elif m.delivery.void:", False
    ),
    "what had not begun is left waiting": Edit(
        "(not_run(o, _INTERRUPTED) if o.stage in UNSTARTED else o)._replace(quiet=True)", "o._replace(quiet=True)"
    ),
    "what was interrupted is not quiet": Edit(
        "(not_run(o, _INTERRUPTED) if o.stage in UNSTARTED else o)._replace(quiet=True)",
        "(not_run(o, _INTERRUPTED) if o.stage in UNSTARTED else o)",
    ),
    "an interruption is not told": Edit(
        "not o.call.expects_result:\n            out.append(Discard(o.key, _CUT))\n",
        "not o.call.expects_result:\n",
    ),
    # ------------------------------------------------------------------------------------------ it has been heard
    "something starts while we do not read": Edit(
        "    if m.link is not Link.UP:\n        return m, ()\n    out: Outputs = []\n    owed: list[Owed] = []",
        "    out: Outputs = []\n    owed: list[Owed] = []",
    ),
    "what still waits runs": Edit(
        "if o.stage is Stage.STANDS and o.turn == event.turn:",
        "if o.stage in UNSTARTED and o.turn == event.turn:",
        False,
    ),
    "what stands for another reply runs": Edit(
        "if o.stage is Stage.STANDS and o.turn == event.turn:", "if o.stage is Stage.STANDS:", False
    ),
    "what has been started may be started again": Edit(
        "            o = o._replace(stage=Stage.RUNNING)\n        owed.append(o)", "        owed.append(o)"
    ),
    # ------------------------------------------------------------------------------------------ the agent is paused
    "what waits for a paused agent waits on": Edit(
        "release(m._replace(work=Work.GOES_ON), [])", "(m._replace(work=Work.GOES_ON), ())", False
    ),
    "a pause has no end": Edit("release(m._replace(work=Work.GOES_ON), [])", "release(m, [])"),
    "a pause has no beginning": Edit("m._replace(work=Work.PAUSED)", "m"),
    "a filler wakes a paused agent": Edit("if m.work is Work.PAUSED:", "if m.work is not m.work:"),
    # ---------------------------------------------------------------------------------------------------- the caller
    "speech that is said twice is new": Edit(
        'return (m, ()) if m.user is User.SPEAKING else _user_speaks(m, item=m.item if m.fresh else "")',
        'return _user_speaks(m, item="")',
        False,
    ),
    "speech is not noticed": Edit(
        'return (m, ()) if m.user is User.SPEAKING else _user_speaks(m, item=m.item if m.fresh else "")', "return m, ()"
    ),
    "speech that stops is owed nothing": Edit(
        "return release(m._replace(user=User.HEARD), []) if m.user is User.SPEAKING else (m, ())",
        "return release(m._replace(user=User.QUIET), []) if m.user is User.SPEAKING else (m, ())",
    ),
    "speech stops that never began": Edit(
        "return release(m._replace(user=User.HEARD), []) if m.user is User.SPEAKING else (m, ())",
        "return m._replace(user=User.HEARD), ()",
    ),
    "speech never stops": Edit(
        "return release(m._replace(user=User.HEARD), []) if m.user is User.SPEAKING else (m, ())", "return m, ()"
    ),
    "the agent's words are the caller's": Edit('if event.speaker != "user":', "if False:", False),
    "words do not end speech": Edit(
        'if m.user is User.SPEAKING and (not named or m.item in ("", event.item_id)):', "if False:"
    ),
    "words of an earlier utterance end speech": Edit(
        'if m.user is User.SPEAKING and (not named or m.item in ("", event.item_id)):', "if m.user is User.SPEAKING:"
    ),
    "words without an id do not end speech": Edit(
        'if m.user is User.SPEAKING and (not named or m.item in ("", event.item_id)):',
        'if m.user is User.SPEAKING and m.item in ("", event.item_id):',
    ),
    "the end of words is forgotten": Edit(
        "user=User.HEARD, item=event.item_id or m.item or _NAMELESS), [])", "user=User.HEARD), [])", False
    ),
    "final words that come alone are nothing": Edit(
        'if m.user is User.QUIET and named and m.item not in ("", event.item_id):', "if False:"
    ),
    "final words that trail behind are speech": Edit(
        'if m.user is User.QUIET and named and m.item not in ("", event.item_id):', "if m.user is User.QUIET and named:"
    ),
    "final words that come alone never end": Edit(
        "return release(m._replace(user=User.HEARD), list(out))", "return m, out"
    ),
    "the first final words are forgotten": Edit(
        "return (m._replace(item=event.item_id), ()) if named and not m.item else (m, ())", "return m, ()", False
    ),
    "words that trail behind are speech": Edit("if not named or event.item_id == m.item:", "if not named:"),
    "words without an id are speech": Edit(
        "if not named or event.item_id == m.item:", "if event.item_id == m.item and named:", False
    ),
    "the words of speech are speech of their own": Edit('if m.item == "" and m.user is not User.QUIET:', "if False:"),
    "first words are not speech": Edit('if m.item == "" and m.user is not User.QUIET:', 'if m.item == "":'),
    "new words are not speech": Edit(
        "    return _user_speaks(m, item=event.item_id)\n\n\ndef _user_speaks",
        "    return m._replace(item=event.item_id), ()\n\n\ndef _user_speaks",
    ),
    "speech is never fresh": Edit(
        "fresh = m.reply is Reply.SPEAKING and (m.fresh or m.user is not User.SPEAKING)", "fresh = False"
    ),
    "speech that goes on is fresh": Edit(
        "fresh = m.reply is Reply.SPEAKING and (m.fresh or m.user is not User.SPEAKING)",
        "fresh = m.reply is Reply.SPEAKING",
    ),
    "fresh speech that goes on is not": Edit("(m.fresh or m.user is not User.SPEAKING)", "m.user is not User.SPEAKING"),
    "speech refuses nothing": Edit(
        "fresh=fresh)\n    out: Outputs = []\n    return release(refuse(m, UNSTARTED, _SPOKE, out), out)",
        "fresh=fresh)\n    return release(m, [])",
    ),
    # ----------------------------------------------------------------------------------------------------- the calls
    "a repeat runs again": Edit("    if _is_repeat(m, call.call_id):\n        return m, ()\n", ""),
    "a call belongs to no reply": Edit(
        "turn = NO_REPLY if event.hold else m.turn if m.reply is Reply.SPEAKING else m.turn + 1", "turn = NO_REPLY"
    ),
    "a hold call belongs to a reply": Edit("turn = NO_REPLY if event.hold else m.turn if", "turn = m.turn if"),
    "a call belongs to the reply before it": Edit(
        "m.turn if m.reply is Reply.SPEAKING else m.turn + 1\n    reply_id", "m.turn\n    reply_id"
    ),
    "a call belongs to the reply after it": Edit(
        "m.turn if m.reply is Reply.SPEAKING else m.turn + 1\n    reply_id", "m.turn + 1\n    reply_id"
    ),
    "a call does not know its reply": Edit('reply_id = m.reply_id if turn == m.turn else ""', 'reply_id = ""'),
    "every call has the same epoch": Edit("epoch = 0 if m.delivery.unique_ids else m.turn", "epoch = 0", False),
    "a careful call runs at once": Edit("if event.start is Start.NOW:", "if True:"),
    "no call runs at once": Edit("if event.start is Start.NOW:", "if False:"),
    "a careful call waits while the caller speaks": Edit(
        "    if m.user is not User.SPEAKING:\n        return m, ()\n    out: Outputs = []\n    return release(refuse",
        "    return m, ()\n    out: Outputs = []\n    return release(refuse",
    ),
    "a careful call is refused before anybody speaks": Edit(
        "    if m.user is not User.SPEAKING:\n        return m, ()\n    out: Outputs = []\n    return release(refuse",
        "    out: Outputs = []\n    return release(refuse",
        False,
    ),
    "a settled call is new": Edit(
        "if call_id in m.settled or (m.resumed and call_id in m.past):", "if m.resumed and call_id in m.past:"
    ),
    "the past is new after a resume": Edit(
        "if call_id in m.settled or (m.resumed and call_id in m.past):", "if call_id in m.settled:"
    ),
    "the past is never new": Edit("(m.resumed and call_id in m.past)", "call_id in m.past"),
    "a live call is new": Edit("return any(o.key.call_id == call_id for o in m.owed)", "return False"),
    "what has not begun may end": Edit(
        "if o is None or o.stage is not Stage.RUNNING:\n        return m, ()\n    if not",
        "if o is None or o.stage in (Stage.READY, Stage.RELEASED):\n        return m, ()\n    if not",
    ),
    "what has ended ends again": Edit(
        "if o is None or o.stage is not Stage.RUNNING:\n        return m, ()\n    if not",
        "if o is None or o.stage in UNSTARTED:\n        return m, ()\n    if not",
    ),
    "what needs no answer waits": Edit(
        "    if not o.call.expects_result:\n        m = settle", "    if False:\n        m = settle"
    ),
    "what needs no answer may come again": Edit(
        "m = settle(m, tuple(p for p in m.owed if p is not o), [o.key.call_id])",
        "m = m._replace(owed=tuple(p for p in m.owed if p is not o))",
        False,
    ),
    "a result waits for the next event": Edit(
        "    return release(m, [])\n\n\ndef _calls_cancelled", "    return m, ()\n\n\ndef _calls_cancelled"
    ),
    "a cancellation takes every call": Edit("if o.key.call_id not in event.call_ids:", "if False:", False),
    "a cancellation takes nothing": Edit("if o.key.call_id not in event.call_ids:", "if True:"),
    "a cancellation takes back what is on its way": Edit(
        "elif o.stage is Stage.RELEASED:\n            kept.append(o._replace(lapsed=DiscardedBy.CANCELLATION))\n",
        "elif False:\n            pass\n",
    ),
    "what was cancelled may be sent again": Edit(
        "kept.append(o._replace(lapsed=DiscardedBy.CANCELLATION))\n", "kept.append(o)\n", False
    ),
    "a cancelled call may come again": Edit("[d.key.call_id for d in out if isinstance(d, Discard)]", "[]", False),
    "a cancellation is an interruption": Edit(
        "Discard(o.key, DiscardedBy.CANCELLATION)", "Discard(o.key, _CUT)", False
    ),
    "what was not released counts as sent": Edit(
        "if o.stage is Stage.RELEASED and o.key in event.keys]", "if o.key in event.keys]", False
    ),
    "everything on its way counts as sent": Edit(
        "if o.stage is Stage.RELEASED and o.key in event.keys]", "if o.stage is Stage.RELEASED]"
    ),
    "nothing is ever settled": Edit("    if not sent:\n        return m, ()", "    return m, ()"),
    "what was sent may come again": Edit(
        "m = settle(m, tuple([o for o in m.owed if o not in sent]), [o.key.call_id for o in sent])",
        "m = m._replace(owed=tuple([o for o in m.owed if o not in sent]))",
        False,
    ),
    # ------------------------------------------------------------------------------------------------ asking to speak
    "the application asks for nothing": Edit(
        "return (m._replace(reply=Reply.ASKED, asked=NOBODY), ()) if m.reply is Reply.NONE else (m, ())", "return m, ()"
    ),
    "the application breaks into a reply": Edit(
        "return (m._replace(reply=Reply.ASKED, asked=NOBODY), ()) if m.reply is Reply.NONE else (m, ())",
        "return m._replace(reply=Reply.ASKED, asked=NOBODY), ()",
    ),
    "what is to be said is forgotten": Edit(
        "release(m._replace(sayings=(*m.sayings, Saying(ReplyRequest(event.instructions)))), [])",
        "release(m, [])",
        False,
    ),
    "what is to be said waits for the next event": Edit(
        "release(m._replace(sayings=(*m.sayings, Saying(ReplyRequest(event.instructions)))), [])",
        "(m._replace(sayings=(*m.sayings, Saying(ReplyRequest(event.instructions)))), ())",
    ),
    "an outcome is told beside its interim result": Edit(
        "if o is not None and o.stage is Stage.READY and o.result is not None and o.result.interim:", "if False:"
    ),
    "an outcome takes the place of what is on its way": Edit(
        "if o is not None and o.stage is Stage.READY and o.result is not None and o.result.interim:",
        "if o is not None and o.result is not None and o.result.interim:",
        False,
    ),
    "an outcome takes the place of a result": Edit(
        "o.result is not None and o.result.interim:", "o.result is not None:", False
    ),
    "an outcome takes the place of every result": Edit(
        "p._replace(result=event.result) if p is o else p for p in m.owed",
        "p._replace(result=event.result) for p in m.owed",
    ),
    "an outcome is forgotten": Edit(
        "release(m._replace(sayings=(*m.sayings, Saying(FollowUp(event.key, event.result)))), [])",
        "release(m, [])",
        False,
    ),
    "the latest thing is said first": Edit(
        "sayings=(*m.sayings, Saying(FollowUp(event.key, event.result)))",
        "sayings=(Saying(FollowUp(event.key, event.result)), *m.sayings)",
        False,
    ),
    "a filler comes when the result is there": Edit(
        "if o is None or o.stage is not Stage.RUNNING or m.link is not Link.UP or",
        "if o is None or m.link is not Link.UP or",
        False,
    ),
    "a filler is said without a link": Edit(
        "o.stage is not Stage.RUNNING or m.link is not Link.UP or m.reply is not Reply.NONE",
        "o.stage is not Stage.RUNNING or m.reply is not Reply.NONE",
        False,
    ),
    "a filler talks over a reply": Edit(
        "m.link is not Link.UP or m.reply is not Reply.NONE:", "m.link is not Link.UP:"
    ),
    "a filler talks over the caller": Edit(
        "if m.user is not User.QUIET and (o.deliver is not Deliver.BETWEEN_REPLIES or m.user is User.SPEAKING):",
        "if False:",
    ),
    "a filler talks over the caller in hold mode": Edit(
        "if m.user is not User.QUIET and (o.deliver is not Deliver.BETWEEN_REPLIES or m.user is User.SPEAKING):",
        "if m.user is not User.QUIET and o.deliver is not Deliver.BETWEEN_REPLIES:",
    ),
    "a filler in hold mode waits for a reply that nobody owes": Edit(
        "if m.user is not User.QUIET and (o.deliver is not Deliver.BETWEEN_REPLIES or m.user is User.SPEAKING):",
        "if m.user is not User.QUIET:",
        False,
    ),
    "a filler asks for nothing": Edit(
        "return m._replace(reply=Reply.ASKED, asked=NOBODY), (ReplyRequest(event.instructions),)",
        "return m, (ReplyRequest(event.instructions),)",
    ),
    "an ask never expires": Edit(
        "return release(_unask(m), []) if m.reply is Reply.ASKED else (m, ())", "return m, ()"
    ),
    "an ask expires inside a reply": Edit(
        "return release(_unask(m), []) if m.reply is Reply.ASKED else (m, ())", "return release(_unask(m), [])"
    ),
    "nothing is sent when an ask expires": Edit(
        "return release(_unask(m), []) if m.reply is Reply.ASKED else (m, ())",
        "return (_unask(m), ()) if m.reply is Reply.ASKED else (m, ())",
    ),
    "what nobody says is asked for for ever": Edit("if not (s.out and s.tries >= _TRIES))\n", ")\n"),
    "what nobody says is given up at once": Edit("if not (s.out and s.tries >= _TRIES))\n", "if not s.out)\n", False),
    "an ask that expires stays": Edit(
        'return m._replace(reply=Reply.NONE, reply_id="", asked=None, sayings=sayings)',
        "return m._replace(sayings=sayings)",
    ),
    # ---------------------------------------------------------------------------------------------------- time, link
    "a grace never ends": Edit("return release(m._replace(graced=m.graced | {event.turn}), [])", "return m, ()"),
    "any grace ends": Edit("    if event.turn not in in_grace(m):\n        return m, ()\n", "", False),
    "a hold never ends": Edit("    m = _unask(m)._replace(user=User.QUIET, fresh=False)\n", ""),
    "a hold that ends leaves the caller owed": Edit(
        "m = _unask(m)._replace(user=User.QUIET, fresh=False)", "m = _unask(m)"
    ),
    "a hold that ends leaves the reply": Edit(
        "m = _unask(m)._replace(user=User.QUIET, fresh=False)", "m = m._replace(user=User.QUIET, fresh=False)"
    ),
    "a hold that ends leaves every grace": Edit("    m = m._replace(graced=m.graced | in_grace(m))\n", "", False),
    "a hold that ends leaves what waits": Edit(
        "return release(refuse(m, (Stage.WAITING,), _NO_END, out), out)", "return release(m, out)"
    ),
    "a hold that ends refuses what stands": Edit(
        "refuse(m, (Stage.WAITING,), _NO_END, out)", "refuse(m, UNSTARTED, _NO_END, out)", False
    ),
    "a hold ends without a link": Edit(
        "    if m.link is not Link.UP:\n        return m, ()\n    m = _unask(m)._replace(user",
        "    m = _unask(m)._replace(user",
    ),
    "a link that is lost is up": Edit(
        "_replace(link=Link.DOWN, user=User.HEARD, fresh=False", "_replace(user=User.HEARD, fresh=False"
    ),
    "a link that is lost leaves the caller quiet": Edit(
        "_replace(link=Link.DOWN, user=User.HEARD, fresh=False", "_replace(link=Link.DOWN, fresh=False"
    ),
    "a link that is lost leaves the reply open": Edit(
        "m = _unask(m)._replace(link=Link.DOWN,", "m = m._replace(link=Link.DOWN,"
    ),
    "a link that is lost remembers the words": Edit(
        'fresh=False, item="")\n    out: Outputs = []\n    kept', "fresh=False)\n    out: Outputs = []\n    kept", False
    ),
    "what was on its way counts as sent": Edit(
        "kept.append(o._replace(stage=Stage.READY, uncertain=True))", "kept.append(o)"
    ),
    "what is owed again counts as new": Edit("stage=Stage.READY, uncertain=True)", "stage=Stage.READY)", False),
    "what is void is sent again": Edit("        elif o.lapsed:\n", "        elif False:\n"),
    "a lost link leaves what waits": Edit(
        "return release(refuse(settle(m, tuple(kept), gone), UNSTARTED, _DROPPED, out), out)",
        "return release(settle(m, tuple(kept), gone), out)",
    ),
    "a session is lost while its link is up": Edit(
        "    if m.link is not Link.DOWN:\n        return m, ()\n    out = tuple(", "    out = tuple("
    ),
    "a session that is lost leaves its calls": Edit(
        "m._replace(owed=(), graced=frozenset(), settled=(), past=())",
        "m._replace(graced=frozenset(), settled=(), past=())",
    ),
    "a session that is lost leaves its graces": Edit(
        "m._replace(owed=(), graced=frozenset(), settled=(), past=())",
        "m._replace(owed=(), settled=(), past=())",
        False,
    ),
    "a session that is lost leaves the ids of its turn": Edit(
        "m._replace(owed=(), graced=frozenset(), settled=(), past=())",
        "m._replace(owed=(), graced=frozenset(), past=())",
        False,
    ),
    "a session that is lost leaves the ids of its past": Edit(
        "m._replace(owed=(), graced=frozenset(), settled=(), past=())",
        "m._replace(owed=(), graced=frozenset(), settled=())",
        False,
    ),
    "what is orphaned counts as ended": Edit(
        "Discard(o.key, DiscardedBy.ORPHANED)", "Discard(o.key, DiscardedBy.END)", False
    ),
    "a link is back that was never lost": Edit(
        "    if m.link is not Link.DOWN:\n        return m, ()\n    return", "    return"
    ),
    "a link that is back leaves the caller owed": Edit(
        "m._replace(link=Link.UP, user=User.QUIET, resumed=True)", "m._replace(link=Link.UP, resumed=True)"
    ),
    "a resume is forgotten": Edit(
        "m._replace(link=Link.UP, user=User.QUIET, resumed=True)", "m._replace(link=Link.UP, user=User.QUIET)", False
    ),
    "nothing is sent after a resume": Edit(
        "return release(m._replace(link=Link.UP, user=User.QUIET, resumed=True), [])",
        "return m._replace(link=Link.UP, user=User.QUIET, resumed=True), ()",
    ),
    "reading never pauses": Edit(
        "return (m._replace(link=Link.PAUSED), ()) if m.link is Link.UP else (m, ())", "return m, ()"
    ),
    "a pause brings a lost link back": Edit(
        "return (m._replace(link=Link.PAUSED), ()) if m.link is Link.UP else (m, ())",
        "return m._replace(link=Link.PAUSED), ()",
    ),
    "nothing is sent after a pause": Edit(
        "return release(m._replace(link=Link.UP), []) if m.link is Link.PAUSED else (m, ())",
        "return (m._replace(link=Link.UP), ()) if m.link is Link.PAUSED else (m, ())",
    ),
    "reading that goes on brings a lost link back": Edit(
        "return release(m._replace(link=Link.UP), []) if m.link is Link.PAUSED else (m, ())",
        "return release(m._replace(link=Link.UP), [])",
    ),
    "what is on its way is discarded at the end": Edit(
        "for o in m.owed if o.stage is not Stage.RELEASED)\n    return m._replace(link=Link.ENDED",
        "for o in m.owed)\n    return m._replace(link=Link.ENDED",
    ),
    "something outlives the end": Edit("link=Link.ENDED, owed=(), sayings=(),", "link=Link.ENDED, sayings=(),"),
    "a session that ended is up": Edit("m._replace(link=Link.ENDED, owed=()", "m._replace(owed=()"),
    "what is for the record is spoken about": Edit("    if not event.reply:\n", "    if False:\n"),
    # ------------------------------------------------------------------------------------------------------- release
    "results are sent without a link": Edit(
        "    if m.link is Link.UP:\n        before", "    if True:\n        before"
    ),
    "quiet results wait": Edit("        m = m._replace(owed=_released(m, quiet, out))\n", ""),
    "one turn at a time, whatever is open": Edit(
        "    while turn := _next_turn(m, ready):", "    if turn := _next_turn(m, ready):", False
    ),
    "things are said while results wait": Edit(
        "if not ready and len(out) == before:",
        "if len(out) == before:",
        False,
    ),
    "things are said over somebody": Edit("m = _say(m, out) if m.window_open else m", "m = _say(m, out)"),
    "nothing is announced": Edit("                yield Hold(o.key, _held_by(after))", "                yield from ()"),
    "everything is announced again": Edit("if was is None or was.stage is not Stage.READY:", "if True:"),
    "unfinished calls are announced": Edit(
        "        if o.stage is Stage.READY:\n            was", "        if True:\n            was", False
    ),
    "other results are quiet": Edit("quiet = [o for o in ready if o.quiet]", "quiet = ready"),
    "results of two turns go together": Edit(
        "if (not group or o.turn == group[0].turn) and _may_go(m, o):", "if _may_go(m, o):"
    ),
    "a result at a time": Edit(
        "(not group or o.turn == group[0].turn) and _may_go(m, o)", "not group and _may_go(m, o)", False
    ),
    "the gate is open": Edit("    if not _gate(m, o):\n        return False\n    if o.turn", "    if o.turn"),
    "hold calls wait for each other": Edit(
        "    if o.turn == NO_REPLY:\n        return True\n    if m.delivery.whole_turn",
        "    if m.delivery.whole_turn",
        False,
    ),
    "what is for the record is waited for": Edit(" and not o.quiet for o in m.owed)", " for o in m.owed)", False),
    "a whole turn is split": Edit(
        "return not _unfinished(m, o.turn) and all(p.quiet or _gate(m, p) for p in batch)",
        "return all(p.quiet or _gate(m, p) for p in batch)",
    ),
    "a whole turn is split by a gate": Edit(
        "return not _unfinished(m, o.turn) and all(p.quiet or _gate(m, p) for p in batch)",
        "return not _unfinished(m, o.turn)",
        False,
    ),
    "eager results wait for siblings": Edit(
        "if o.deliver is Deliver.NOW or not m.delivery.hold or o.turn in m.graced:",
        "if not m.delivery.hold or o.turn in m.graced:",
    ),
    "results wait for siblings where nothing is held": Edit(
        "if o.deliver is Deliver.NOW or not m.delivery.hold or o.turn in m.graced:",
        "if o.deliver is Deliver.NOW or o.turn in m.graced:",
    ),
    "a grace that ended changes nothing": Edit(
        "if o.deliver is Deliver.NOW or not m.delivery.hold or o.turn in m.graced:",
        "if o.deliver is Deliver.NOW or not m.delivery.hold:",
    ),
    "nobody waits for siblings": Edit(
        "        return True\n    return not _unfinished(m, o.turn)\n", "        return True\n    return True\n", False
    ),
    "everything is held": Edit(
        "    if not m.delivery.hold:\n        return True\n    if o.deliver is Deliver.NOW:",
        "    if o.deliver is Deliver.NOW:",
    ),
    "eager results collide with what was asked for": Edit("return m.asked is None or m.asked == o.turn", "return True"),
    "eager results do not follow their own": Edit(
        "return m.asked is None or m.asked == o.turn", "return m.asked is None"
    ),
    "results go inside a reply": Edit("    if m.reply is Reply.SPEAKING:\n        return False\n", ""),
    "another turn follows an ask": Edit(
        "return m.asked == o.turn and m.user is not User.SPEAKING", "return m.user is not User.SPEAKING"
    ),
    "the same turn talks over the caller": Edit(
        "return m.asked == o.turn and m.user is not User.SPEAKING", "return m.asked == o.turn"
    ),
    "the same turn does not follow": Edit(
        "return m.asked == o.turn and m.user is not User.SPEAKING", "return False", False
    ),
    "between replies is any time": Edit(
        "    if o.deliver is Deliver.BETWEEN_REPLIES:\n        return m.user is not User.SPEAKING",
        "    if o.deliver is Deliver.BETWEEN_REPLIES:\n        return True",
    ),
    "between replies is never": Edit(
        "    if o.deliver is Deliver.BETWEEN_REPLIES:\n        return m.user is not User.SPEAKING\n", "", False
    ),
    "results talk over a caller who has spoken": Edit(
        "return m.user is User.QUIET\n\n\ndef _unfinished", "return m.user is not User.SPEAKING\n\n\ndef _unfinished"
    ),
    "siblings of other turns count": Edit(
        "o.turn == turn and o.stage in UNFINISHED and o.call.expects_result and not",
        "o.stage in UNFINISHED and o.call.expects_result and not",
    ),
    "siblings that need no answer count": Edit(
        "o.turn == turn and o.stage in UNFINISHED and o.call.expects_result and not",
        "o.turn == turn and o.stage in UNFINISHED and not",
        False,
    ),
    "siblings that stand do not count": Edit(
        "o.stage in UNFINISHED and o.call.expects_result", "o.stage is Stage.RUNNING and o.call.expects_result", False
    ),
    "a grace runs inside the reply": Edit(
        "open_turn = m.turn if m.reply is Reply.SPEAKING else NO_REPLY", "open_turn = NO_REPLY", False
    ),
    "a grace ends twice": Edit("and o.turn not in m.graced\n", "\n"),
    "nothing asks for a reply": Edit(
        "        if m.delivery.asks:\n            reply = ", "        if False:\n            reply = "
    ),
    "everything asks for a reply": Edit(
        "        if m.delivery.asks:\n            reply = ", "        if True:\n            reply = "
    ),
    "an ask inside a reply ends that": Edit(
        "reply = Reply.ASKED if m.reply is Reply.NONE else m.reply", "reply = Reply.ASKED"
    ),
    "the latest turn owns the ask": Edit("asked=turn[0].turn if m.asked is None else m.asked", "asked=NOBODY"),
    "what is released stays ready": Edit(
        "[o._replace(stage=Stage.RELEASED) if o in group else o for o in m.owed]",
        "[o for o in m.owed if o not in group]",
    ),
    "quiet results are loud": Edit("ToolResults(results, group[0].quiet, ", "ToolResults(results, False, "),
    "an outcome that makes nobody speak is told again": Edit(
        "        return m._replace(sayings=tuple(rest))\n", "        return m\n", False
    ),
    "what is said is not counted": Edit("tries=first.tries + 1, out=True", "out=True"),
    "what is said is not out": Edit("tries=first.tries + 1, out=True", "tries=first.tries + 1", False),
    "what is said asks for nothing": Edit(
        "return m._replace(reply=Reply.ASKED, asked=NOBODY, sayings=(first, *rest))",
        "return m._replace(sayings=(first, *rest))",
    ),
    "only one thing is remembered": Edit("sayings=(first, *rest))", "sayings=(first,))", False),
    "a lost link is no reason": Edit("    if m.link is not Link.UP:\n        return HeldBy.LINK\n", "", False),
    "a reply is no reason": Edit("    if m.reply is Reply.SPEAKING:\n        return HeldBy.REPLY\n", "", False),
    "an ask is no reason": Edit("    if m.reply is Reply.ASKED:\n        return HeldBy.ASKED\n", "", False),
    "siblings are no reason": Edit(
        "return HeldBy.USER if m.user is not User.QUIET else HeldBy.SIBLINGS", "return HeldBy.USER", False
    ),
    # ------------------------------------------------------------------------------------------------ leaving the list
    "ids are not remembered": Edit("settled=(*m.settled, *gone)[-REMEMBERED:],", "settled=m.settled,", False),
    "ids are remembered for ever": Edit(
        "settled=(*m.settled, *gone)[-REMEMBERED:],", "settled=(*m.settled, *gone),", False
    ),
    "only the latest id is remembered": Edit("(*m.settled, *gone)[-REMEMBERED:]", "tuple(gone)[-REMEMBERED:]", False),
    "graces pile up": Edit(
        "graced = m.graced & {o.turn for o in kept} if m.graced else m.graced", "graced = m.graced", False
    ),
    "everything is refused": Edit("if o.stage not in stages:", "if False:"),
    "what needs no answer is refused with one": Edit(
        "        elif o.call.expects_result:\n            kept.append(not_run(o, why))",
        "        elif True:\n            kept.append(not_run(o, why))",
    ),
    "what is refused may come again": Edit(
        "gone.append(o.key.call_id)\n    return settle(m, tuple(kept), gone)\n\n\ndef not_run",
        "pass\n    return settle(m, tuple(kept), gone)\n\n\ndef not_run",
        False,
    ),
    "a refusal is a success": Edit(
        "ToolResult(o.call.call_id, why, is_error=True,", "ToolResult(o.call.call_id, why,", False
    ),
    "a refusal has no name": Edit("is_error=True, name=o.call.name, echo", "is_error=True, echo", False),
    # ------------------------------------------------------------------------------------------- what has been mended
    "silence releases nothing": Edit(
        "return release(m._replace(user=User.HEARD), []) if m.user is User.SPEAKING else (m, ())",
        "return (m._replace(user=User.HEARD), ()) if m.user is User.SPEAKING else (m, ())",
        False,
    ),
    "a noise after words is owed no reply": Edit('item=m.item if m.fresh else ""', 'item=""'),
    "words without an id are a noise": Edit("or m.item or _NAMELESS", "or m.item"),
    "a noise is owed a reply": Edit("not (m.fresh and m.item)", "not m.fresh"),
    "what is left to say is forgotten once results were sent": Edit(
        "return release(m, []) if m.sayings else (m, ())", "return m, ()", False
    ),
    "one thing is said where nobody has to answer": Edit(
        "            for _ in m.sayings:", "            for _ in m.sayings[:1]:", False
    ),
}
