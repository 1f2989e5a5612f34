"""What a provider must offer whose sessions are served over plain HTTP: the `HttpDialect`, and its values.

Such a provider is listened to by an event stream, or by asking again and again, and is spoken to by posts. What a
post's answer means, and what has to be read back before a post is repeated, is the provider's business and is said
here; when that is done, and how often, is the transport's.

Some messages are this package's own, since no provider has them: a setup is `{"create": body, "serve": names}` or
`{"attach": session id, "serve": names}`, and leaving a session without ending it is `{"leave": {}}`. `{"serve": names}`
is not sent either: a session that was attached to keeps the tools it has, and from now on these of ours serve them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

from .dialect import Dialect, Message

__all__ = ["Heard", "HttpDialect", "Outcome", "Request"]


class Outcome(Enum):
    """What became of a request, as far as its answer tells."""

    DELIVERED = "delivered"
    RETRY = "not taken: the same again, after a pause"
    CONFIRM = "unknown: read back before anything is sent again"
    LATER = "not taken while a turn runs: the same again when that has ended"
    ANSWERED = "wanted no more: nothing is left to do"
    REFUSED = "refused for good"
    OVER = "the session is over"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, below the endpoint's address."""

    method: str
    path: str
    body: Message | None = None
    streams: bool = False
    """Is the answer an event stream?"""
    keyed: bool = False
    """Does the provider take an `Idempotency-Key`?"""


@dataclass(frozen=True, slots=True)
class Heard:
    """What an answer, or an event, tells."""

    messages: tuple[Message, ...] = ()
    """As `Dialect.decode_server` reads them."""
    session_id: str = ""
    """Of the session that now exists, if it tells of one."""
    cursor: str = ""
    """Where to go on reading, for a provider that is asked again and again."""
    over: bool = False
    """Nothing will follow."""


@runtime_checkable
class HttpDialect(Dialect, Protocol):
    """One provider's protocol over HTTP. All of it is pure, and total like decoding: it never raises."""

    def request(self, session_id: str, message: Message) -> Request | None:
        """How a message of ours is sent; None if there is nothing to send. The id is empty before the setup."""
        ...

    def judge(self, message: Message, status: int, body: Message) -> Outcome:
        """What became of it. Status 0: no answer came, and nobody knows. For reading, the message is empty, and what
        does not pass by itself is `OVER`.

        `CONFIRM` is for posts that answer a call, since only those can be read back. A message that is not to be taken
        twice, and has no key, is `REFUSED` when nobody knows.
        """
        ...

    def answered(self, message: Message, status: int, body: Message) -> Heard:
        """What the answer to it tells, taken or refused."""
        ...

    def read(self, session_id: str, cursor: str) -> Request:
        """How to listen, from here on: an event stream, or a request that is repeated with the newest cursor."""
        ...

    def look(self, session_id: str) -> Request:
        """How to read the session as it is: on every new stream, and to confirm a post."""
        ...

    def missed(self, session_id: str) -> Request | None:
        """What has to be read on every new stream before that, since events tell it that may have been missed."""
        ...

    def seen(self, body: Message, cursor: str = "") -> Heard:
        """What an event, or the answer to `read`, `look` or `missed`, tells. `cursor` is the newest."""
        ...

    def answers(self, message: Message) -> str:
        """The call that this post answers, by a key of the dialect's own; empty if it answers none."""
        ...

    def pending(self, message: Message) -> frozenset[str] | None:
        """The calls that wait for an answer, by those keys, if this message of the provider says."""
        ...

    def instead(self, message: Message) -> Message | None:
        """What may be posted in place of an answer that was refused for good, so that its call has one at all."""
        ...
