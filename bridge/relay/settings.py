"""What can be said about a relay: where it listens, where it dials, and what it takes on at most. Plain values."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from ..core.dialect import Delivery, Dialect
from ..tools.tool import Tool

__all__ = ["Limits", "Listen", "OnLoss", "OnProviderLoss", "Pings", "Route", "Upstream"]


class OnLoss(Enum):
    """What becomes of the provider's session when the application vanishes."""

    END = "end"
    """It is ended."""
    KEEP = "keep"
    """It is left to be resumed, for as long as the provider and we allow."""


class OnProviderLoss(Enum):
    """What becomes of the application when the connection to the provider is lost."""

    CLOSE = "close"
    """It loses its own, too, and sees to it that it comes back."""
    RESUME = "resume"
    """It keeps its own, and the session is resumed over another connection to the provider."""


class Pings(Enum):
    """What becomes of pings."""

    PASS = "pass"
    """They go from end to end, and so do the pongs."""
    ANSWER = "answer"
    """They are answered here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A provider, and whose key is used there."""

    dialect: Dialect
    url: str = field(default="", repr=False)
    """Instead of the provider's own address."""
    api_key: str = field(default="", repr=False)
    """The provider's key, if the application is not to know it. Its own credentials then stop here."""
    tokens: tuple[str, ...] = field(default=(), repr=False)
    """What applications must show instead; without any, only those on this machine are let in."""
    tls: ssl.SSLContext | None = None
    """Instead of one that verifies by the system's certificates."""
    show_calls: bool = False
    """Does the application see calls of our tools?"""
    delivery: Delivery | None = None
    """Instead of the dialect's."""
    pings: Pings = Pings.PASS
    on_application_loss: OnLoss = OnLoss.END
    on_provider_loss: OnProviderLoss = OnProviderLoss.CLOSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which applications go to which provider, by the beginning of their path; the rest of it is carried there."""

    upstream: Upstream
    prefix: str = ""
    """Such as `/tenant-a`; the longest that fits counts."""
    tools: Mapping[str, Tool] | None = None
    """Instead of the relay's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where applications connect."""

    host: str = "127.0.0.1"
    port: int = 8787
    """0 takes any; see `Relay.port`."""
    tls: ssl.SSLContext | None = None
    origins: tuple[str, ...] = ()
    """Values of `Origin` that are let in: web pages have one, telephony stacks have none."""
    hosts: tuple[str, ...] = ()
    """Values of `Host`, without the port, that are let in. By default, on the loopback, its names; elsewhere any."""
    correlation_header: str = ""
    """A header of the application's request whose value is to be in every log line of its session."""
    metadata_headers: Mapping[str, str] = field(default_factory=dict)
    """Names in the metadata that tools find, and the headers of the application's request that hold the values."""
    reuse_port: bool = False
    """Several processes share the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of everything. Times in seconds, sizes in bytes."""

    max_sessions: int = 1000
    max_dials: int = 32
    """Connections to providers that are being made at once; further ones wait."""
    max_message: int = 4 * 1024 * 1024
    max_head: int = 16 * 1024
    max_concurrent_tools: int = 256
    max_concurrent_tools_per_session: int = 4
    max_threads: int = 32
    max_tool_failures: int = 5
    """In a row, after which a tool is not called for `tool_pause`, then tried once."""
    tool_pause: float = 30.0
    handshake_timeout: float = 10.0
    """For the application's request."""
    dial_timeout: float = 15.0
    """For the provider's answer, waiting for a turn to dial included."""
    setup_timeout: float = 5.0
    """After which an application that has not configured its session is reported."""
    ping_interval: float = 20.0
    ping_timeout: float = 20.0
    stall_timeout: float = 30.0
    """How long a peer may read nothing that is sent to it."""
    owed_timeout: float = 5.0
    """At an end that we bring about: for results that are still owed."""
    end_timeout: float = 2.0
    """For the provider to end a session that it was asked to end."""
    close_timeout: float = 5.0
    resume_timeout: float = 30.0
    """How long a session is kept for an application that may come back, and a provider looked for that is lost."""
