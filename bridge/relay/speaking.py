"""What one session says to its two connections, and when the provider has what it was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..core.events import CallKey, Frame
from .frames import Message, Opcode, frame

__all__ = ["Ends", "Speaking"]


class Ends(Protocol):
    """The two connections of a session."""

    @property
    def provider_congested(self) -> bool:
        """Does the provider not take what is sent to it?"""
        ...

    def to_application(self, data: bytes) -> None: ...

    def to_provider(self, data: bytes) -> None: ...

    def when_taken(self, tell: Callable[[], None]) -> None:
        """Call this once the provider has what was sent to it before; never, if the connection is lost until then."""
        ...

    def finish(self) -> None:
        """Ask the provider to end the session, and see to it that it does."""
        ...


class Speaking:
    """Frames messages, but for those that pass through as they came; `sent` hears of results that have arrived."""

    __slots__ = ("_ends", "_told", "_unsent")

    def __init__(self, sent: Callable[[tuple[CallKey, ...]], None]) -> None:
        self._told = sent
        self._ends: Ends | None = None
        self._unsent: tuple[CallKey, ...] = ()

    def attach(self, ends: Ends) -> None:
        """The session has these connections now."""
        self._ends = ends

    def detach(self) -> None:
        """It has none: nothing is said, and nothing has arrived."""
        self._ends = None
        self._unsent = ()

    def to_application(self, each: Frame, came: Message | None) -> None:
        """Say this; `came` is the message that it may have been."""
        if self._ends is not None:
            untouched = came is not None and each is came.payload
            self._ends.to_application(came.raw if untouched and came else _framed(each, masked=False))

    def to_provider(self, frames: tuple[Frame, ...], came: Message | None) -> None:
        """The same to the provider."""
        if self._ends is not None:
            raw = (came.raw if came and each is came.payload else _framed(each, masked=True) for each in frames)
            self._ends.to_provider(b"".join(raw))

    def sent(self, keys: tuple[CallKey, ...]) -> None:
        """The results of these calls are among what has been said to the provider."""
        if self._ends is None:
            return
        if self._ends.provider_congested:
            self._unsent += keys
        else:
            self._ends.when_taken(lambda: self._told(keys))

    def drained(self) -> None:
        """The provider takes what is sent to it again: what waited has been sent."""
        keys, self._unsent = self._unsent, ()
        if keys:
            self.sent(keys)

    def finish(self) -> None:
        """Ask the provider to end the session."""
        if self._ends is not None:
            self._ends.finish()


def _framed(each: Frame, *, masked: bool) -> bytes:
    if isinstance(each, str):
        return frame(Opcode.TEXT, each.encode(), masked=masked)
    return frame(Opcode.BINARY, each, masked=masked)
