"""What a provider's protocol must offer to the rest: the `Dialect`, and the values that describe one.

A dialect translates between one provider's messages and the vocabulary of `core.events`. It is an object without
state. Decoding is total: whatever arrives, it yields events (`Malformed` for a known message with broken parts,
`ProviderMessage` for an unknown one) and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from ..errors import ConfigError
from .events import ClientEvent, Frame, ServerEvent, Start, ToolSpec

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
    waits: bool = False
    """Does a reply wait for its results, so that it cannot end before they are there?"""
    unique_ids: bool = False
    """Does no id of a call ever come again, but for the same call? Then calls keep their keys across processes, too."""
    speech: bool = True
    """Does the user speak? Then an interruption is theirs, and they are owed a reply to what they said in it."""


class Nullable(Enum):
    """How a provider wants to be told that a value may be null."""

    ANY_FORM = "any form"
    TYPE_LIST = '{"type": ["string", "null"]}'
    KEYWORD = '{"type": "string", "nullable": true}'
    UNTOLD = "not at all"


@dataclass(frozen=True, slots=True)
class SchemaProfile:
    """Which tools a provider takes, and which JSON Schema of their arguments. All of it is data."""

    provider: str
    keywords: frozenset[str]
    """What a schema may hold. Unions are allowed if `anyOf` is among them."""
    nullable: Nullable = Nullable.ANY_FORM
    only_text_enums: bool = False
    """May only texts be enumerated?"""
    typed: bool = False
    """Must every schema name its type?"""
    described: bool = False
    """Must every parameter have a description?"""
    plain_top: bool = False
    """Must the schema of all arguments be an object without unions?"""
    tool_name: str = "[A-Za-z0-9_-]{1,64}"
    """Regular expression of a whole name."""
    reserved: frozenset[str] = frozenset()
    """Names that are the provider's own."""
    wait: tuple[float, float] | None = None
    """Seconds for which it can be told to wait for a result, from and to; None where it cannot be told."""

    def takes_name(self, name: str) -> bool:
        """May a tool be called so?"""
        return re.fullmatch(self.tool_name, name) is not None and name not in self.reserved

    def window(self, seconds: float) -> float | None:
        """How long it waits when it is to wait so long, in seconds; None where it cannot be told."""
        return None if self.wait is None else min(max(seconds, self.wait[0]), self.wait[1])


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

    @property
    def quiet_results(self) -> bool:
        """Can it be given a result that the agent is not to speak about?"""
        ...

    @property
    def tool_schema(self) -> SchemaProfile:
        """Which tools it takes."""
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


def refuse_inexpressible(dialect: Dialect, tools: Sequence[ToolSpec]) -> None:
    """Raises `ConfigError` for a tool that this provider's protocol cannot do justice to."""
    strange = [spec.name for spec in tools if not dialect.tool_schema.takes_name(spec.name)]
    if strange:
        raise ConfigError(f"tool {', '.join(strange)}: {dialect.name} does not take such a name; pass another name=...")
    careful = [spec.name for spec in tools if spec.start is Start.AFTER_REPLY] if dialect.delivery.waits else []
    if careful:
        raise ConfigError(
            f"tool {', '.join(careful)}: cannot start after its reply, since {dialect.name} ends no reply before the "
            'result is there; pass start="now", or leave it out of these sessions'
        )
    loud = [spec.name for spec in tools if not spec.reply and not dialect.quiet_results]
    if loud:
        raise ConfigError(
            f"tool {', '.join(loud)}: reply=False cannot be had: {dialect.name} has the agent speak after every result"
        )
