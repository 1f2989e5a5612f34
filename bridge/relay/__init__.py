"""The sidecar's data path: a transparent proxy between an application and its provider, with tools in between."""

from .figures import Counters, SessionSnapshot, Traffic
from .server import Relay
from .session import RelaySession
from .settings import Limits, Listen, OnLoss, OnProviderLoss, Pings, Route, Upstream

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
