"""One conversation: a dialect and a turn machine put together. Frames and events go in, decisions come out.

The only place where frames, dialect, tools and turns meet. An embedded session and the relay use exactly this object,
and so may a host that owns its socket: feed it what arrives, perform the commands it returns, in order.

* A frame that passes through is passed on as the very same object; only frames that we author are encoded.
* A call is ours if its tool is one that we added to the list the provider last accepted, or that it has not answered
  yet. Calls of the application's own tools are its business. Calls that the provider runs by itself are neither run nor
  answered. A name on nobody's list is run, too, so that somebody answers it.
* The application's setup message gets our tools added, equal in value everywhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .dialect import Delivery, Dialect, Message, refuse_inexpressible
from .events import (
    AgentAudio,
    AgentPaused,
    AgentResumed,
    ClientEvent,
    Command,
    Discard,
    Fact,
    Failure,
    Forward,
    Frame,
    Hold,
    Ignored,
    LinkLost,
    LocalEvent,
    Malformed,
    Passed,
    ProviderFailed,
    ReplyDone,
    ReplyRequest,
    ReplyRequested,
    ReplyStarted,
    Run,
    Send,
    ServerEvent,
    SessionEnded,
    SessionReady,
    Setup,
    SetupAccepted,
    SetupLeftAlone,
    SpeechStarted,
    SpeechStopped,
    Timer,
    ToolCalled,
    ToolFinished,
    ToolResults,
    ToolsNotTaken,
    ToolSpec,
    Transcript,
    TurnOutput,
)
from .messages import encode, encode_exactly, is_text, outline, parse, parse_leniently, read_exactly
from .turn import Link, TurnMachine

__all__ = ["Conversation", "Step"]

Event = ServerEvent | ClientEvent | LocalEvent


class Step(NamedTuple):
    """What one frame or event came to."""

    events: tuple[Event, ...] = ()
    """What happened, in order, audio and words included; repeats of an event are left out."""
    outputs: tuple[TurnOutput, ...] = ()
    """What was decided about calls, in order."""
    commands: tuple[Command, ...] = ()
    """What to do, in order."""

    @property
    def facts(self) -> tuple[Fact, ...]:
        """What is worth remembering: all but audio and words."""
        return (*(e for e in self.events if not isinstance(e, AgentAudio | Transcript)), *self.outputs)


# A repeat of one of these is news to nobody.
_EDGES = (ReplyStarted, ReplyDone, AgentPaused, AgentResumed, SpeechStarted, SpeechStopped)
_MEDIA = (AgentAudio, Transcript)
# Arguments that nobody can take for some: the call is answered, and not run.
_NO_JSON = "<no JSON>"
# Calls whose owner is remembered to recognise an application's answer to one of ours.
_REMEMBERED = 1024


@dataclass(frozen=True, slots=True)
class _Lists:
    """The tools in one setup message: ours that were added to it, and the names of the application's own."""

    ours: Mapping[str, ToolSpec] = field(default_factory=dict)
    theirs: frozenset[str] = frozenset()
    wanted: tuple[ToolSpec, ...] = ()
    """All of ours, as they were when it was sent."""
    setup: Message | None = None
    """The application's latest setup message that listed tools."""
    unasked: bool = False
    """Was it sent of our own accord, so that the application expects no answer?"""


class Conversation:
    """The state of one conversation.

    `tools` are ours. `show_calls`: let the application see calls of our tools, too. `delivery` overrides the dialect's.
    Raises `ConfigError` for a tool that this provider's protocol cannot do justice to.
    """

    __slots__ = (
        "_accepted",
        "_dialect",
        "_our_calls",
        "_remote",
        "_replacing",
        "_show_calls",
        "_unanswered",
        "_wanted",
        "machine",
    )

    def __init__(
        self,
        dialect: Dialect,
        tools: Sequence[ToolSpec] = (),
        *,
        show_calls: bool = False,
        delivery: Delivery | None = None,
    ) -> None:
        refuse_inexpressible(dialect, tools)
        self.machine = TurnMachine(delivery or dialect.delivery)
        self._dialect = dialect
        self._wanted = tuple(tools)
        self._show_calls = show_calls
        self._accepted = _Lists(wanted=self._wanted)
        self._unanswered: list[_Lists] = []
        self._replacing = False
        """Is there a change of our tools that waits for its moment?"""
        self._remote: frozenset[str] = frozenset()
        self._our_calls: dict[str, None] = {}

    # ------------------------------------------------------------------------------------------ what goes in

    def from_provider(self, frame: Frame) -> Step:
        """A frame of the provider."""
        message = parse(frame)
        if message is None:
            return self._unreadable(frame)
        events: list[Event] = []
        outputs: list[TurnOutput] = []
        hidden, shown = False, False
        for event in self._dialect.decode_server(message):
            match event:
                case AgentAudio():
                    return Step((event,), (), (Forward(frame),))  # nearly every frame ends here
                case ToolCalled():
                    ours = self._tool_called(event, events, outputs)
                    hidden, shown = hidden or ours, shown or not ours
                    continue
                case SetupAccepted():
                    ours = self._setup_accepted(event, events)
                    hidden, shown = hidden or ours, shown or not ours
                    continue
                case SessionReady():
                    self._ready()
                case ProviderFailed(kind=Failure.SETUP):
                    ours = self._setup_refused()
                    events.append(event)
                    hidden, shown = hidden or ours, shown or not ours
                    continue
                case _:
                    self._turn(event, events, outputs)
                    shown = True
                    continue
            events.append(event)
            shown = True
        commands = self._commands(outputs)
        if shown or not hidden or self._show_calls:
            commands = (Forward(frame), *commands)
        return self._tools_replaced(Step(tuple(events), tuple(outputs), commands))

    def from_app(self, frame: Frame) -> Step:
        """A frame of the application."""
        message = parse(frame) or parse_leniently(frame)
        if message is None:
            return Step((), (), (Send((frame,)),))
        events: list[Event] = []
        outputs: list[TurnOutput] = []
        frames: tuple[Frame, ...] = (frame,)
        for event in self._dialect.decode_client(message):
            match event:
                case Setup():
                    frames = (self._setup_sent(event, frame, events),)
                case ToolResults(results) if all(r.call_id in self._our_calls for r in results):
                    # One call, one answer: ours.
                    frames = ()
                    events.extend(Passed(Ignored.APPLICATION_ANSWER, r.call_id) for r in results)
                    continue
                case ToolResults() | ReplyRequest():
                    if isinstance(event, ReplyRequest) or self.machine.delivery.asks:
                        self._turn(ReplyRequested(), events, outputs)
            events.append(event)
        sends = (Send(frames),) if frames else ()
        return Step(tuple(events), tuple(outputs), (*sends, *self._commands(outputs)))

    def from_here(self, event: LocalEvent) -> Step:
        """Something that happened on our side: a tool ended, a timer ran out, results have been sent, the link."""
        before = self.machine
        self.machine, outputs = before.handle(event)
        if isinstance(event, LinkLost):
            self._answer_lost()
        if isinstance(event, ToolFinished) and before.find(event.key) is None:
            return Step((Passed(Ignored.LATE_RESULT, event.key.call_id), event))
        return self._tools_replaced(Step((event,), outputs, self._commands(outputs)))

    def end(self, reason: str) -> Step:
        """The session is over: everything owed is discarded, and nothing is sent any more."""
        return self.from_here(SessionEnded(reason))

    def begin_again(self, setup: Frame) -> Step:
        """Like `from_app`, for the setup of a fresh session: what the provider had accepted before counts no more.

        Our tools are listed in it as they are wanted now, so that no change of them has to wait any longer.
        """
        self._accepted, self._unanswered = _Lists(wanted=self._wanted), []
        self._replacing, self._remote = False, frozenset()
        self._our_calls.clear()
        return self.from_app(setup)

    def replace_tools(self, tools: Sequence[ToolSpec]) -> Step:
        """From now on our tools are these: tell the provider, where it can be told in a running session.

        That may cut off whoever speaks, so it waits until nobody does: see `replacement_waits`. What was to be told
        before, and has not been, is told no more.
        """
        refuse_inexpressible(self._dialect, tools)
        self._wanted = tuple(tools)
        setup = self._latest.setup
        self._replacing = setup is not None and self._dialect.replace_tools(setup, tools) is not None
        return self._tools_replaced(Step())

    # ------------------------------------------------------------------------------------------ what can be asked

    @property
    def tools(self) -> frozenset[str]:
        """Names of our tools in the list the provider last accepted."""
        return frozenset(self._accepted.ours)

    @property
    def versions(self) -> tuple[tuple[ToolSpec, ...], ...]:
        """Our tools as they are in force, and as they are to be."""
        lists = (self._accepted, *self._unanswered)
        return (*(each.wanted for each in lists), self._wanted)

    @property
    def replacement_waits(self) -> bool:
        """Is there a change of our tools of which the provider has not been told yet?"""
        return self._replacing

    @property
    def setup_pending(self) -> bool:
        """Is there a setup message that the provider has not answered?"""
        return bool(self._unanswered)

    def timers(self) -> frozenset[Timer]:
        """What the owner of this conversation should be waiting for; the passing of time comes back as that event."""
        return self.machine.timers()

    # ------------------------------------------------------------------------------------------ the turn

    def _turn(self, event: ServerEvent | LocalEvent, events: list[Event], outputs: list[TurnOutput]) -> None:
        before = self.machine
        self.machine, decided = before.handle(event)
        outputs.extend(decided)
        if isinstance(event, _EDGES) and self.machine is before:
            events.append(Passed(Ignored.REPEATED_EVENT))
        else:
            events.append(event)

    def _unreadable(self, frame: Frame) -> Step:
        """Half an emoji or a NaN is no JSON. A call whose id can be read is owed an answer all the same."""
        events: list[Event] = [Malformed("the frame is no JSON object")]
        outputs: list[TurnOutput] = []
        message = parse_leniently(frame) or outline(frame)
        calls = [e for e in self._dialect.decode_server(message) if isinstance(e, ToolCalled)]
        ours = []
        for event in calls:
            call = replace(event.call, arguments=_NO_JSON)
            if is_text(call.call_id + call.name):
                ours.append(self._tool_called(ToolCalled(call, message=event.message), events, outputs))
        hidden = bool(ours) and all(ours) and not self._show_calls
        shown = () if hidden else (Forward(frame),)
        return Step(tuple(events), tuple(outputs), (*shown, *self._commands(outputs)))

    def _tool_called(self, event: ToolCalled, events: list[Event], outputs: list[TurnOutput]) -> bool:
        """Run it, if it is ours to answer. True if it is also ours to hide."""
        name, call_id = event.call.name, event.call.call_id
        in_force = (self._accepted, *self._unanswered)
        spec = next((lists.ours[name] for lists in in_force if name in lists.ours), None)
        if spec is None and (name in self._remote or any(name in lists.theirs for lists in in_force)):
            self._our_calls.pop(call_id, None)
            events.append(event)
            return False
        if spec is not None:
            event = ToolCalled(event.call, spec.start, spec.deliver, spec.hold, spec.reply, message=event.message)
        before = self.machine
        self.machine, decided = before.handle(event)
        outputs.extend(decided)
        if self.machine is before:
            known = next((o.call for o in before.owed if o.key.call_id == call_id), event.call)
            why = Ignored.REPEATED_CALL if known == event.call else Ignored.CALL_CHANGED
            events.append(Passed(why, call_id))
            return True
        self._our_calls[call_id] = None
        if len(self._our_calls) > _REMEMBERED:
            del self._our_calls[next(iter(self._our_calls))]
        events.append(event)
        return True

    def _commands(self, outputs: Sequence[TurnOutput]) -> tuple[Command, ...]:
        return tuple([self._command(output) for output in outputs]) if outputs else ()

    def _command(self, output: TurnOutput) -> Command:
        if isinstance(output, Run | Discard | Hold):
            return output
        return Send(self._encoded(output), output.keys if isinstance(output, ToolResults) else ())

    def _encoded(self, event: ClientEvent) -> tuple[Frame, ...]:
        return tuple([encode(message) for message in self._dialect.encode_client(event)])

    # ------------------------------------------------------------------------------------------ lists of tools

    @property
    def _latest(self) -> _Lists:
        """The lists in the latest setup message, answered or not."""
        return self._unanswered[-1] if self._unanswered else self._accepted

    def _setup_sent(self, event: Setup, frame: Frame, events: list[Event]) -> Frame:
        """The application configures the session: our tools go with what it lists."""
        if event.tools is None and not event.stored_agent and self._latest.setup is not None:
            self._unanswered.append(replace(self._latest, unasked=False))  # it will be answered, too
            return frame
        try:
            message = read_exactly(frame)
            if event.stored_agent:
                raise ValueError("it names an agent stored at the provider")
        except (ValueError, RecursionError) as fault:
            events.append(SetupLeftAlone(str(fault)))
            self._unanswered.append(_Lists({}, frozenset(event.tools or ()), self._wanted))
            return frame
        added = self._dialect.add_tools(message, self._wanted)
        self._listed(added, message)
        return frame if added is message else encode_exactly(added)

    def _tools_replaced(self, step: Step) -> Step:
        """The step, and the list of our tools if it has changed and this is the moment to say so."""
        silent = not self.machine.delivery.speech and self.machine.link is Link.UP  # then nobody can be cut off
        if not self._replacing or not (silent or self.machine.window_open):
            return step
        self._replacing = False
        setup = self._latest.setup
        message = setup and self._dialect.replace_tools(setup, self._wanted)
        if not setup or not message:  # the application has chosen a stored agent meanwhile
            return step
        self._listed(message, setup, unasked=True)
        events = (*step.events, *self._dialect.decode_client(message))
        return Step(events, step.outputs, (*step.commands, Send((encode_exactly(message),))))

    def _listed(self, message: Message, setup: Message, *, unasked: bool = False) -> None:
        """Remember who owns which name in this message, until the provider answers. `setup` is the application's."""
        own = self._names(setup)
        listed = self._names(message) - own
        ours = {spec.name: spec for spec in self._wanted if spec.name in listed}
        self._unanswered.append(_Lists(ours, own, self._wanted, setup, unasked))

    def _names(self, message: Message) -> frozenset[str]:
        setups = (event for event in self._dialect.decode_client(message) if isinstance(event, Setup))
        return frozenset(name for setup in setups for name in setup.tools or ())

    def _setup_accepted(self, event: SetupAccepted, events: list[Event]) -> bool:
        """True if it was sent of our own accord."""
        self._remote = frozenset(event.remote)
        unasked = bool(self._unanswered) and self._unanswered[0].unasked
        if self._unanswered:
            self._accepted = self._unanswered.pop(0)
        if event.setup is not None:
            self._accepted = replace(self._accepted, setup=event.setup)
        events.append(event)
        if event.tools is not None:
            lists = self._accepted
            ours = {name: spec for name, spec in lists.ours.items() if name in event.tools}
            theirs = frozenset(event.tools) - lists.ours.keys()
            if left := tuple(name for name in lists.ours if name not in ours):
                events.append(ToolsNotTaken(left))
            self._accepted = replace(lists, ours=ours, theirs=theirs)
        return unasked

    def _setup_refused(self) -> bool:
        """The list before it stays in force. True if it was sent of our own accord."""
        if not self._unanswered:
            return False
        refused = self._unanswered.pop(0)
        if not self._unanswered and not self._replacing:
            self._wanted = self._accepted.wanted
        return refused.unasked

    def _answer_lost(self) -> None:
        """Whether a list of ours that was not answered has arrived is unknown: it will be said again."""
        kept = [lists for lists in self._unanswered if not lists.unasked]
        if len(kept) < len(self._unanswered):
            self._unanswered, self._replacing = kept, True

    def _ready(self) -> None:
        """A provider that acknowledges no setup has accepted it when it is ready."""
        if self._unanswered:
            self._accepted = self._unanswered[-1]
            self._unanswered.clear()
