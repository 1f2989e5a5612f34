"""Ways to exchange frames with a provider."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from ..core.events import Frame

__all__ = ["Line", "Transport"]


class Transport(Protocol):
    """One connection to a provider."""

    async def receive(self) -> Frame:
        """The next frame. Raises `TransportError`, with the close code if there was one, at the end."""
        ...

    async def send(self, frame: Frame) -> None:
        """Returns once the connection has taken the frame. Raises `TransportError` if it is gone."""
        ...

    async def aclose(self) -> None:
        """Close in good order, within a bounded time, then cut off. Never raises."""
        ...


@runtime_checkable
class Line(Transport, Protocol):
    """One that runs through a network: what it has taken may still get lost, and it can be broken off on purpose."""

    async def receipt(self) -> Awaitable[object]:
        """Ask the other end to confirm all that was sent before; done once it has. Raises `TransportError`."""
        ...

    def abort(self) -> None:
        """Break it off without a word, as a network does: the provider then keeps its session for a while."""
        ...
