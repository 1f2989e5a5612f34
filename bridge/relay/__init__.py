"""The sidecar's data path: a transparent proxy between an application and its provider, with tools in between."""

from .pipe import OnLoss, OnProviderLoss, Pings
from .server import Counters, Limits, Listen, Relay, Route, SessionSnapshot, Traffic, Upstream
from .session import RelaySession

__all__ = [
    "Counters",
    "Limits",
    "Listen",
    "OnLoss",
    "OnProviderLoss",
    "Pings",
    "Relay",
    "RelaySession",
    "Route",
    "SessionSnapshot",
    "Traffic",
    "Upstream",
]
