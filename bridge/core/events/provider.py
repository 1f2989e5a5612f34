"""What the provider says. An embedded host iterates over these very values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from .calls import Deliver, Start, ToolCall

__all__ = [
    "AgentAudio",
    "AgentPaused",
    "AgentResumed",
    "ApprovalWanted",
    "CallsCancelled",
    "Failure",
    "FromProvider",
    "Malformed",
    "OutcomesOwed",
    "ProviderEnded",
    "ProviderFailed",
    "ProviderMessage",
    "ReplyDone",
    "ReplyStarted",
    "ServerEvent",
    "SessionReady",
    "SetupAccepted",
    "SpeechStarted",
    "SpeechStopped",
    "ToolCalled",
    "Transcript",
]


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
class AgentPaused(FromProvider):
    """Somebody has paused the agent. It takes results, and is told nothing that would make it go on."""


@dataclass(frozen=True, slots=True)
class AgentResumed(FromProvider):
    """The agent goes on after a pause."""


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
    | AgentPaused
    | AgentResumed
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
