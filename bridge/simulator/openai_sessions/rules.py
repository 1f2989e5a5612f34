"""How the simulated provider behaves where its documentation is silent, and the faults it can be told to have.

The default of every rule is what is documented, or else what has been reported of the live service; its docstring says
which. Durations are in seconds and are multiplied by the simulator's pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Effect", "Fault", "LateResults", "On", "Partly", "Repetition", "Rules"]


class LateResults(Enum):
    """What becomes of a result that comes after its turn has ended, when there is none yet. Undocumented."""

    CONFLICT = auto()
    """409 `conflict_error`. Reported of an independent server."""
    ACCEPTED = auto()
    """202 without effect."""
    UNKNOWN = auto()
    """400, as for a call that nobody made."""


class Repetition(Enum):
    """What becomes of a different result for a call that has one. An identical one is taken without effect."""

    CONFLICT = auto()
    """409 `conflict_error`. Reported of an independent server."""
    ACCEPTED = auto()
    """202 without effect."""


class Partly(Enum):
    """What is told when some calls of a turn have been answered and others have not. Undocumented."""

    NOTHING = auto()
    REMAINING = auto()
    """Another `agent.session.requires_action` with the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All switches of the simulated provider."""

    # Time
    start_lag: float = 0.0
    """From new input to its turn; a session that is read meanwhile is still idle. Reported."""
    thinking: float = 0.02
    """Before each output item."""
    registration_lag: float = 0.0
    """From the item of a call until a result for it is taken. Seen: the vendor's client is built for up to a second."""
    apply_lag: float = 0.0
    """From the 202 for a result until it has its effect. Documented: 202 is acceptance, not completion."""
    cancel_lag: float = 0.0
    """From the 202 for a cancellation until it has its effect; a turn that ends before stays completed. Reported."""
    keepalive: float = 15.0
    """Between comments on a silent event stream. Reported. Not scaled."""

    # Results
    late_results: LateResults = LateResults.CONFLICT
    other_results: Repetition = Repetition.CONFLICT
    partly: Partly = Partly.NOTHING
    required_actions_sent: int = 1
    """How often each `agent.session.requires_action` is sent. Reported: clients see it again for the same calls."""
    idle_sent: int = 1
    """How often each `agent.session.idle` is sent."""
    arguments_as_text: bool = False
    """Send arguments as JSON text instead of an object. Seen: the vendor's client takes both."""

    # Events
    named_events: bool = False
    """Send `event:` and `id:` lines beside `data:`. Official framing unknown; the vendor's client ignores them."""
    deltas: bool = True
    """Send the words of a message piece by piece, too. Documented: pieces can be missing."""

    # Limits
    max_events: int = 64
    """Input events per post, admitted all or none. Reported."""
    max_body: int = 1024 * 1024
    """Bytes of a post. Reported."""
    max_key: int = 128
    """Bytes of an `Idempotency-Key`. Reported."""
    stored_agents: frozenset[str] = frozenset()
    """The values of `agent_id` that exist."""


class On(Enum):
    """Which requests a fault is for."""

    RESULTS = auto()
    """Posts with a tool result."""
    MESSAGES = auto()
    """Posts with a user message."""
    APPROVALS = auto()
    """Posts with a decision about a call at an MCP server."""
    CANCELS = auto()
    CREATE = auto()
    UPDATE = auto()
    READ = auto()
    """Reading the session itself."""
    STREAM = auto()
    """Opening the event stream."""


class Effect(Enum):
    """What a request with a fault does all the same."""

    NONE = auto()
    NOW = auto()
    LATE = auto()
    """`Fault.seconds` after the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the next requests of one kind.

    A few that are worth naming: `Fault(status=202, effect=Effect.NONE)` is accepted and lost,
    `Fault(status=503, effect=Effect.NOW)` is done and denied, `Fault(status=0)` is a connection that breaks.
    """

    on: On = On.RESULTS
    status: int = 503
    """Of the answer; 0 breaks the connection instead."""
    code: str = "service_unavailable_error"
    """In the answer's error; without it the answer has no body."""
    effect: Effect = Effect.NONE
    seconds: float = 0.3
    """For `LATE`."""
    delay: float = 0.0
    """Before the answer."""
    retry_after: float | None = None
    """`Retry-After` of the answer, in seconds; not scaled."""
    times: int = 1
