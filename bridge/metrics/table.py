"""Everything that is exported, and what it tells.

Labels are words from short lists, and the names of registered tools: never an id, never a word of a caller or a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

__all__ = ["METRICS", "Kind", "Series"]


class Kind(Enum):
    """The kinds of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: its name as it is exported, and what it tells."""

    name: str
    kind: Kind
    tells: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds in seconds, for a histogram."""


_TOOL = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0)
_HELD = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0)
_SILENCE = (0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
_LAG = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
_WAITING = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: Final = (
    Series("bridge_sessions_open", _G, "Sessions that are going on."),
    Series("bridge_sessions_total", _C, "Sessions that are over, by how they ended.", ("end",)),
    Series("bridge_tool_calls_total", _C, "Tool calls that are over, by how the tool ended.", ("tool", "outcome")),
    Series(
        "bridge_tool_seconds", _H, "From the start of a tool call to its outcome, waiting included.", ("tool",), _TOOL
    ),
    Series("bridge_tool_unavailable", _G, "1 while a tool is not called, since it is off or keeps failing.", ("tool",)),
    Series("bridge_tool_pauses_total", _C, "Times that a tool was not called for a while, since it failed.", ("tool",)),
    Series("bridge_calls_parked", _G, "Calls that go on although their session has been told to go on without them."),
    Series("bridge_approvals_pending", _G, "Calls that wait to be approved."),
    Series("bridge_approvals_total", _C, "Calls that had to be approved, by what became of that.", ("resolution",)),
    Series("bridge_journal_entries_waiting", _G, "Entries that wait to be written into the journal."),
    Series("bridge_journal_entries_lost_total", _C, "Entries that the journal could not take."),
    Series("bridge_journal_claims_refused_total", _C, "Calls that were not run, since the journal was out of order."),
    Series("bridge_journal_unrecorded_total", _C, "Results that were given although the journal could not take them."),
    Series("bridge_mailbox_taken_total", _C, "Answers taken that came to another process, by how seen.", ("way",)),
    Series("bridge_mailbox_listening", _G, "1 while notices of other processes arrive; else they are looked for."),
    Series("bridge_unknown_tools_total", _C, "Calls of tools that nobody has."),
    Series("bridge_duplicate_calls_total", _C, "Calls that the provider announced again; they ran once."),
    Series("bridge_results_sent_total", _C, "Results that the provider was given."),
    Series("bridge_results_discarded_total", _C, "Calls whose result will never be sent, by reason.", ("reason",)),
    Series("bridge_result_held_seconds", _H, "For how long a finished result waited until it was sent.", (), _HELD),
    Series("bridge_hold_expired_total", _C, "Times that a silent provider was not waited for any longer."),
    Series("bridge_late_results_total", _C, "Results of calls that nobody waited for any more."),
    Series("bridge_application_answers_total", _C, "Answers of the application to our calls, not passed on."),
    Series("bridge_sessions_without_setup_total", _C, "Sessions whose application configured nothing in time."),
    Series("bridge_setups_left_alone_total", _C, "Setups of an application that our tools could not be added to."),
    Series("bridge_speech_to_audio_seconds", _H, "From the end of user speech to the agent's audio.", (), _SILENCE),
    Series("bridge_call_to_audio_seconds", _H, "From a tool call to the agent's audio in a later reply.", (), _SILENCE),
    Series("bridge_provider_errors_total", _C, "Errors that the provider reported, by its code.", ("code",)),
    Series("bridge_malformed_messages_total", _C, "Messages of the provider with missing or broken parts."),
    Series("bridge_attached_sessions_open", _G, "Sessions at a provider whose tools are served.", ("dialect",)),
    Series("bridge_attaches_total", _C, "Sessions that are served no more, by how it ended.", ("dialect", "outcome")),
    Series("bridge_reconnects_total", _C, "Sessions that went on over a new connection."),
    Series(
        "bridge_provider_losses_total",
        _C,
        "Relayed sessions that stayed when their provider was lost, by what became of them.",
        ("outcome",),
    ),
    Series("bridge_dropped_media_total", _C, "Pieces of users' speech that came while their provider was away."),
    Series("bridge_frames_total", _C, "Frames relayed.", ("direction", "kind")),
    Series("bridge_bytes_total", _C, "Bytes relayed.", ("direction", "kind")),
    Series("bridge_slow_looks_total", _C, "Media that were not recognised at the first look.", ("direction",)),
    Series("bridge_refused_connections_total", _C, "Connections that became no session, by HTTP status.", ("status",)),
    Series("bridge_loop_lag_seconds", _H, "By how much the event loop was late, four times a second.", (), _LAG),
    Series(
        "bridge_relay_lag_seconds",
        _H,
        "For how long the slowest peer of a relay has not taken what waits for it, four times a second.",
        (),
        _WAITING,
    ),
    Series("bridge_threads_busy", _G, "Threads that run a tool, abandoned ones included."),
    Series("bridge_threads_abandoned", _G, "Threads whose tool goes on although its call has been answered."),
    Series("bridge_worker_restarts_total", _C, "Worker processes that died and were replaced."),
    Series("bridge_api_requests_total", _C, "Requests to the admin port, by path and status.", ("route", "status")),
    Series("bridge_build_info", _G, "Always 1; the versions are in the labels.", ("version", "python")),
)
"""Everything that is exported, in the order in which it is documented."""
