"""What a provider's protocol must offer to the rest: the `Dialect`, and the values that describe one.

A dialect translates between one provider's messages and the vocabulary of `core.events`. It is an object without
state. Decoding is total: whatever arrives, it yields events (`Malformed` for a known message with broken parts,
`ProviderMessage` for an unknown one) and never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .events import ClientEvent, Frame, ServerEvent, ToolSpec

Message = Mapping[str, Any]
"""A message of the wire: a JSON object, parsed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a provider wants its results. These switches are all that the turn machine knows about a provider."""

    hold: bool = True
    """Keep results until the reply is done?"""
    whole_turn: bool = False
    """Must the results of a turn be one batch?"""
    asks: bool = True
    """Do results make the agent speak?"""
    void: bool = True
    """Does an interruption void the results of its turn (or make them quiet)?"""
    grace: float = 0.4
    """Seconds that ready results wait for slower siblings once the reply is done."""
    max_hold: float = 3.0
    """Seconds of silence from the provider after which it counts as stuck."""
    ask_timeout: float = 2.0
    """Seconds within which a reply that was asked for must begin."""
    max_speech: float = 10.0
    """Seconds for which speech counts that begins and is never said to stop."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to connect."""

    url: str = field(repr=False)  # may carry a token
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    kind: str = "websocket"


class Dialect(Protocol):
    """One provider's protocol."""

    @property
    def name(self) -> str: ...

    @property
    def delivery(self) -> Delivery: ...

    @property
    def media_types(self) -> frozenset[str]:
        """Types of messages that carry audio: the relay passes them without reading."""
        ...

    def endpoint(self, url: str, api_key: str) -> Endpoint:
        """Where to connect; `url` is the user's, or empty for the provider's own."""
        ...

    def decode_server(self, message: Message) -> Iterable[ServerEvent]:
        """What a message of the provider means."""
        ...

    def encode_client(self, event: ClientEvent) -> Iterable[Message]:
        """The messages that say this to the provider; none where its protocol has no words for it."""
        ...

    def encode_audio(self, data: bytes) -> Frame:
        """The frame that carries a piece of the user's voice."""
        ...

    def decode_client(self, message: Message) -> Iterable[ClientEvent]:
        """What a message of an application means (the application behind the relay, or the host)."""
        ...

    def add_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message:
        """The application's setup message with our tools added, equal in value everywhere else.

        A name that the application defines itself stays the application's. A setup that lists no tools is only added
        to if `tools` is not empty; one that names a stored agent is returned as it is.
        """
        ...

    def replace_tools(self, setup: Message, tools: Sequence[ToolSpec]) -> Message | None:
        """The message that replaces the list of tools in a running session: the application's own, which are those
        of its latest setup message, and ours. None where the list cannot change.
        """
        ...


class Agent(Protocol):
    """A provider's typed settings: what an embedded host passes to `connect`."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def url(self) -> str:
        """Where to connect instead of the provider's own address; may be empty."""
        ...

    @property
    def api_key_env(self) -> str:
        """Name of the environment variable with the key, used when none is passed."""
        ...

    @property
    def input_rate(self) -> tuple[int, int]:
        """Bytes per sample and samples per second of the audio to be sent."""
        ...

    @property
    def output_rate(self) -> tuple[int, int]:
        """Bytes per sample and samples per second of the audio received."""
        ...

    def setup(self) -> Message:
        """The message that configures the session, without our tools."""
        ...

    @property
    def update_message(self) -> Callable[..., Message]:
        """Makes the message that changes settings of a running session; raises `ConfigError` for what cannot."""
        ...
