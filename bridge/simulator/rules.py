"""How the simulated provider behaves where the real one varies, is undocumented, or has been seen to do both.

Every duration of the simulator is in seconds and is multiplied by its `pace`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = [
    "ArgumentsForm",
    "AudioPace",
    "EarlyResults",
    "Ending",
    "HeldWords",
    "Joining",
    "LateResults",
    "Preamble",
    "ReplyRequests",
    "Rules",
    "ServerTool",
    "WrongRate",
]


class EarlyResults(Enum):
    """What becomes of a result that comes while a reply is in flight."""

    ACCEPTED = auto()
    """It is kept; a reply that only waits for it ends at once. Measured."""
    DROPS_REPLY = auto()
    """It is kept, and the reply in flight stops in the middle of a word. Reported by an older sample."""
    IGNORED = auto()
    """It is lost, without an error."""


class Joining(Enum):
    """How results become replies."""

    MERGED = auto()
    """Whatever is there when the reply begins goes into it."""
    ALL = auto()
    """The reply waits for the last result of the turn."""
    EACH = auto()
    """Every result gets a reply of its own."""


class LateResults(Enum):
    """What becomes of a result that comes after the call's time is over."""

    IGNORED = auto()
    SPOKEN = auto()


class ReplyRequests(Enum):
    """What becomes of a `reply.create`. While the user speaks it is swallowed in any case. Measured."""

    SPOKEN = auto()
    SWALLOWED = auto()
    HOLLOW = auto()
    """Swallowed, but for a lone `reply.done`."""


class Preamble(Enum):
    """What is heard of a reply that calls tools, before their results."""

    SPOKEN = auto()
    """The words of the scenario. Documented."""
    SILENT = auto()
    """Frames of silence until the reply is done, and no words. Measured."""
    ABSENT = auto()
    """No audio at all."""


class ArgumentsForm(Enum):
    """How a `tool.call` carries its arguments."""

    OBJECT = auto()
    """`arguments`, an object. Documented."""
    ARGS = auto()
    """`args`, an object. The form before April 2026."""
    TEXT = auto()
    """`arguments`, JSON text."""


class HeldWords(Enum):
    """What becomes of the user's words while a hold tool runs."""

    FLUSHED = auto()
    """Their transcripts come when the hold ends. Documented."""
    LOST = auto()
    """Their transcripts never come. Seen once."""


class AudioPace(Enum):
    """How fast the audio of a reply is sent."""

    REAL_TIME = auto()
    BURST = auto()
    """All at once: the reply is done long before it has been played."""


class WrongRate(Enum):
    """What becomes of a session that declares a sample rate its encoding does not have."""

    FAILS_LATER = auto()
    """It is accepted, and ends after ten seconds with `internal_error` and 1011. Measured."""
    REFUSED = auto()
    """`invalid_value`, as the documentation suggests."""


class Ending(Enum):
    """How the provider takes a `session.end`."""

    PROPER = auto()
    """`session.ended`, then close 1000."""
    HANGING = auto()
    """`session.ended`, and then no answer to the client's close frame."""
    NEVER = auto()
    """Nothing happens; the socket stays open."""


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the provider runs by itself: the client sees its calls, and must not answer them."""

    name: str
    result: str
    seconds: float = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All switches of the simulated provider; what is left out is as documented, or as measured where that differs."""

    # Time
    startup: float = 0.4
    """From the first `session.update` to `session.updated` and `session.ready`."""
    thinking: float = 0.3
    """From the end of the user's speech to the reply."""
    gap: float = 0.4
    """From the last `tool.call` of a reply to its `reply.done`, if no words last longer. Formerly 2.3."""
    answer_lag: float = 0.05
    """From a result to the reply that tells it; results that come in between can join."""
    interruption_lag: float = 1.1
    """From the start of speech over a reply to the end of that reply. Shorter speech without words cuts nothing."""
    word: float = 0.25
    """Length of a spoken word, where a step does not say how long it lasts."""
    tool_timeout: float | None = None
    """Replaces the `timeout_seconds` of every tool."""
    silence: float = 0.7
    """Turn detection by energy: quiet audio that ends a turn, unless the session sets `min_silence`. Not scaled."""

    # Replies and results
    preamble: Preamble = Preamble.SPOKEN
    kept_open: bool = False
    """One reply holds both the calls and the answer: no `reply.done` before the results. Recorded in March 2026."""
    early_start: bool = False
    """`reply.started` comes while the user still speaks. Recorded in March 2026."""
    early_results: EarlyResults = EarlyResults.ACCEPTED
    joining: Joining = Joining.MERGED
    late_results: LateResults = LateResults.IGNORED
    reply_requests: ReplyRequests = ReplyRequests.SPOKEN
    held_words: HeldWords = HeldWords.FLUSHED
    server_tools: tuple[ServerTool, ...] = ()

    # Messages
    omitted: frozenset[str] = frozenset()
    """Types of events that are never sent, such as `session.updated`, `session.ended` or `reply.done`."""
    doubled: frozenset[str] = frozenset()
    """Types of events that are sent twice, such as `reply.done` or `input.speech.stopped`."""
    arguments: ArgumentsForm = ArgumentsForm.OBJECT
    completed_status: bool = True
    """Does `reply.done` say `completed`? If not, the status is left out unless the reply was interrupted."""
    reply_ids: bool = True
    """Does every event of a reply carry its id? If not, only `reply.started` and `transcript.agent` do."""
    tool_captions: bool = True
    """Do replies with tool calls have a `transcript.agent`?"""
    spaced_words: bool = False
    """Do the words of `transcript.agent.delta` begin with a space?"""
    user_delta_field: str = "text"
    """The field of `transcript.user.delta` with the words: `text`, or `delta` as on one page."""
    oddities: bool = False
    """Events and fields nobody has documented."""

    # Audio
    audio_pace: AudioPace = AudioPace.REAL_TIME
    chunk: float = 0.02
    """Length of audio in one `reply.audio`. Not scaled."""
    limit_audio: bool = False
    """Drop audio that comes faster than real time, with `audio_rate_violation`. Documented, never seen."""
    wrong_rate: WrongRate = WrongRate.FAILS_LATER

    # The session
    refuse_with: str = ""
    """Refuse every new session with this code, such as `at_capacity`, and 1008."""
    stored_agents: frozenset[str] = frozenset()
    """The values of `agent_id` that exist."""
    session_limit: float = 3600.0
    """From each `session.ready`, the first and those of resumes, to `session.ended`: what `expires_at` says."""
    resumable: bool = True
    """If not, every resume is refused with `session_not_found`."""
    resume_grace: float = 30.0
    resume_needs_token: bool = True
    """Must a resume be authorised with the newest `resume_token`, or is the session id enough?"""
    resume_repeats_calls: bool = False
    """Are unanswered calls announced again after a resume?"""
    refusal_leaves_open: bool = False
    """Does a refused resume leave the socket open?"""
    ending: Ending = Ending.PROPER
