"""Ways to exchange frames with a provider."""

from __future__ import annotations

from typing import Protocol

from ..core.events import Frame

__all__ = ["Transport"]


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
