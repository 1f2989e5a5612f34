"""The vocabulary: everything that can happen in a session, and everything that can be decided about it.

All values are frozen and hashable. JSON payloads stay *text* until somebody needs them, so broken arguments from a
model are a result to send, never a crash.

Four families, each one drawn as a union at the end of its part:

* `ServerEvent`: what the provider says. An embedded host iterates over these very values.
* `ClientEvent`: what a client says to the provider.
* `LocalEvent`: what happens on our side: a tool ends, a timer runs out, the link drops.
* `TurnOutput`: what the turn machine decides about a call.

`Fact` is what is worth remembering of all of them; audio and words never are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

# ------------------------------------------------------------------------------------------------ calls and results


class Start(Enum):
    """When a tool may begin to run."""

    NOW = "now"
    AFTER_REPLY = "after_reply"
    """Only once the reply that asked for it has ended uninterrupted and has been heard."""


class Deliver(Enum):
    """When the result of a tool may be sent."""

    AFTER_REPLY = "after_reply"
    """Into the open window: the latest thing that happened is the end of a reply that was not interrupted."""
    BETWEEN_REPLIES = "between_replies"
    """While no reply is in flight and the user is not speaking: what a silent hold mode needs."""
    NOW = "now"
    """At once, also inside a reply. Gives up the promise that an interruption discards the result."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told about it, and as the turn treats it."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    """JSON Schema of the arguments, as text."""
    timeout: float | None = None
    """Seconds the provider should be told to wait, where it can be told."""
    hold: bool = False
    """Use the provider's silent mode for slow tools, where it has one."""
    extra: tuple[tuple[str, str], ...] = ()
    """Further fields of the provider's definition: names, and values as JSON text."""
    start: Start = Start.NOW
    deliver: Deliver = Deliver.AFTER_REPLY
    reply: bool = True
    """Shall the agent speak about the result?"""


class CallKey(NamedTuple):
    """What tells one call of a session from every other. Providers may use a `call_id` again in a later turn."""

    epoch: int
    call_id: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request by the agent to run a tool."""

    call_id: str
    name: str
    arguments: str = "{}"
    """JSON text, exactly as received."""
    expects_result: bool = True
    echo: tuple[tuple[str, str], ...] = ()
    """Opaque fields that the provider wants back with the result."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one call."""

    call_id: str
    output: str
    """JSON text."""
    is_error: bool = False
    interim: bool = False
    """Says "still working"; a `FollowUp` comes later."""
    name: str = ""
    echo: tuple[tuple[str, str], ...] = ()


# ------------------------------------------------------------------------------------------- what the provider says


@dataclass(frozen=True, slots=True, kw_only=True)
class FromProvider:
    """Base of everything the provider says; the provider's own message is kept beside the fields we understand."""

    message: Mapping[str, object] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SessionReady(FromProvider):
    """The session exists: audio may be sent."""

    session_id: str
    resume_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SetupAccepted(FromProvider):
    """The provider acknowledges a configuration."""

    tools: tuple[str, ...] | None = None
    """Names in force, as echoed; None where the provider does not say."""
    remote: tuple[str, ...] = ()
    """Names of tools that the provider runs by itself: never run, never answered by us."""
    output_rate: tuple[int, int] | None = None
    """Bytes per sample and samples per second of the agent's voice, where the provider says so."""
    setup: Mapping[str, object] | None = field(default=None, compare=False, repr=False)
    """What stands for the application's setup from now on, where the provider tells it: without our tools."""


@dataclass(frozen=True, slots=True)
class ReplyStarted(FromProvider):
    """The agent begins a reply."""

    reply_id: str = ""


@dataclass(frozen=True, slots=True)
class ReplyDone(FromProvider):
    """The reply ended: held results are welcome now, or, if it was interrupted, have lost their reply."""

    interrupted: bool = False
    reply_id: str = ""


@dataclass(frozen=True, slots=True)
class SpeechStarted(FromProvider):
    """The user begins to speak."""


@dataclass(frozen=True, slots=True)
class SpeechStopped(FromProvider):
    """The user stops speaking."""


@dataclass(frozen=True, slots=True)
class Transcript(FromProvider):
    """Words of the user or of the agent. A user's words also tell that the user speaks, or has spoken (`final`)."""

    speaker: str
    """`"user"` or `"agent"`."""
    text: str
    final: bool = False
    item_id: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class AgentAudio(FromProvider):
    """A piece of the agent's voice, in the session's output format."""

    data: bytes = field(repr=False)
    reply_id: str = ""


@dataclass(frozen=True, slots=True)
class ToolCalled(FromProvider):
    """The agent wants a tool run. The last four fields are the tool's own choices, added by the conversation."""

    call: ToolCall
    start: Start = Start.NOW
    deliver: Deliver = Deliver.AFTER_REPLY
    hold: bool = False
    reply: bool = True


@dataclass(frozen=True, slots=True)
class ApprovalWanted(FromProvider):
    """May this call be made? It may be of one of our tools, which is then called later, or of the provider's own."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class OutcomesOwed(FromProvider):
    """These calls were said to go on, and the provider has not heard yet what came of them."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallsCancelled(FromProvider):
    """These calls are no longer wanted."""

    call_ids: tuple[str, ...]


class Failure(Enum):
    """What kind of thing the provider refuses."""

    CREDENTIALS = "credentials"
    CAPACITY = "capacity"
    SETUP = "setup"
    """A setting, or the message that carries it."""
    RESUME = "resume"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ProviderFailed(FromProvider):
    """The provider reports an error. `fatal`: by its code, the session will not go on."""

    code: str
    text: str = ""
    fatal: bool = False
    param: str = ""
    kind: Failure = Failure.OTHER


@dataclass(frozen=True, slots=True)
class ProviderEnded(FromProvider):
    """The provider says that the session is over; it closes the link next."""


@dataclass(frozen=True, slots=True)
class Malformed(FromProvider):
    """A known message with missing or broken parts, or no message at all."""

    reason: str


@dataclass(frozen=True, slots=True)
class ProviderMessage(FromProvider):
    """Anything else the provider says, passed through: see `message`."""

    kind: str


ServerEvent = (
    SessionReady
    | SetupAccepted
    | ReplyStarted
    | ReplyDone
    | SpeechStarted
    | SpeechStopped
    | Transcript
    | AgentAudio
    | ToolCalled
    | ApprovalWanted
    | OutcomesOwed
    | CallsCancelled
    | ProviderFailed
    | ProviderEnded
    | Malformed
    | ProviderMessage
)

# ----------------------------------------------------------------------------------------------- what a client says


@dataclass(frozen=True, slots=True)
class Setup:
    """The message that configures a session: the tools it lists, or None where it lists none (the old ones stay)."""

    tools: tuple[str, ...] | None
    stored_agent: bool = False
    """It names an agent stored at the provider, and nothing may be added to it."""
    output_rate: tuple[int, int] | None = None
    """Bytes per sample and samples per second that it wants of the agent's voice, if it says so."""


@dataclass(frozen=True, slots=True)
class ToolResults:
    """Results of one turn, in call order. `quiet`: for the record, no reply wanted."""

    results: tuple[ToolResult, ...]
    quiet: bool = False
    keys: tuple[CallKey, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowUp:
    """The outcome of a call whose interim result went out earlier."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """Ask the agent to speak now; `instructions` say about what."""

    instructions: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with a session on a new link."""

    session_id: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """The decision about a call that the provider has asked about (`ApprovalWanted`)."""

    call_id: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class EndSession:
    """End the session for good."""


ClientEvent = Setup | ToolResults | FollowUp | ReplyRequest | ApprovalAnswer | Resume | EndSession

# ------------------------------------------------------------------------------------------ what happens on our side


@dataclass(frozen=True, slots=True)
class SessionOpened:
    dialect: str
    mode: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """A tool ended, one way or another."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class ReplyRequested:
    """The application has sent something that makes the agent speak."""


@dataclass(frozen=True, slots=True)
class SayAsked:
    """The host wants the agent to speak, as soon as that talks over nobody."""

    instructions: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FillerDue:
    """A tool has been running for a while: say something if nobody is speaking and its result is not there yet."""

    key: CallKey
    instructions: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """The transport took the results of these calls."""

    keys: tuple[CallKey, ...]


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The connection to the provider dropped."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The provider knows the session no more: a fresh one will take its place, to which the old calls mean nothing."""


@dataclass(frozen=True, slots=True)
class LinkResumed:
    """The session goes on over a new connection."""


@dataclass(frozen=True, slots=True)
class ReadingPaused:
    """We have stopped reading from the provider (back-pressure): what it says meanwhile is unknown."""


@dataclass(frozen=True, slots=True)
class ReadingResumed:
    """Everything the provider said meanwhile has been read."""


@dataclass(frozen=True, slots=True)
class GraceExpired:
    """The results of this turn have waited long enough for their slower siblings."""

    turn: int


@dataclass(frozen=True, slots=True)
class AskExpired:
    """We asked for a reply and none began."""


@dataclass(frozen=True, slots=True)
class HoldExpired:
    """The provider has been silent for too long while something waits for it: it is stuck."""


@dataclass(frozen=True, slots=True)
class ReplyHeard:
    """The audio of this reply has been played to its end, as far as its length tells."""

    turn: int


@dataclass(frozen=True, slots=True)
class CallConcluded:
    """A call whose interim result went out earlier has its outcome."""

    key: CallKey
    result: ToolResult


@dataclass(frozen=True, slots=True)
class SetupLeftAlone:
    """The application's setup was passed on without our tools."""

    reason: str


@dataclass(frozen=True, slots=True)
class ToolsNotTaken:
    """The provider agrees to a setup, but leaves out these tools of ours."""

    names: tuple[str, ...]


class Ignored(Enum):
    """Why something that looks as if it mattered changes nothing."""

    REPEATED_CALL = "repeated_call"
    CALL_CHANGED = "repeated_call_with_other_arguments"
    LATE_RESULT = "late_result"
    APPLICATION_ANSWER = "answer_of_the_application"
    REPEATED_EVENT = "repeated_event"


@dataclass(frozen=True, slots=True)
class Passed:
    """Something that was noticed, and that changes nothing."""

    why: Ignored
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    reason: str


LocalEvent = (
    SessionOpened
    | ToolFinished
    | ReplyRequested
    | SayAsked
    | FillerDue
    | Sent
    | LinkLost
    | SessionLost
    | LinkResumed
    | ReadingPaused
    | ReadingResumed
    | GraceExpired
    | AskExpired
    | HoldExpired
    | ReplyHeard
    | CallConcluded
    | SetupLeftAlone
    | ToolsNotTaken
    | Passed
    | SessionEnded
)

Timer = GraceExpired | AskExpired | HoldExpired | ReplyHeard

# ------------------------------------------------------------------------------------------------------- decisions


class HeldBy(Enum):
    """What a finished result is waiting for."""

    REPLY = "the agent is speaking"
    USER = "the caller is speaking, or is owed a reply"
    ASKED = "another reply has been asked for"
    SIBLINGS = "other calls of its turn"
    LINK = "the connection"


class DiscardedBy(Enum):
    """Why a call is no longer owed an answer."""

    INTERRUPTION = "interrupted"
    CANCELLATION = "cancelled"
    ORPHANED = "orphaned"
    """The provider has lost the session that it belongs to."""
    END = "ended"


@dataclass(frozen=True, slots=True)
class Run:
    """Start this call."""

    key: CallKey
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Discard:
    """The result of this call will not be sent. What has not been invoked must not be invoked any more."""

    key: CallKey
    reason: DiscardedBy = DiscardedBy.INTERRUPTION


@dataclass(frozen=True, slots=True)
class Hold:
    """A finished result waits."""

    key: CallKey
    reason: HeldBy = HeldBy.REPLY


TurnOutput = Run | Discard | Hold | ToolResults | FollowUp | ReplyRequest

Frame = str | bytes


@dataclass(frozen=True, slots=True)
class Send:
    """Give these frames to the provider, together and in this order; then report `Sent(keys)`."""

    frames: tuple[Frame, ...]
    keys: tuple[CallKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """Give this frame to the application."""

    frame: Frame


Command = Run | Discard | Hold | Send | Forward
Fact = ServerEvent | ClientEvent | LocalEvent | TurnOutput
