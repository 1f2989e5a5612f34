"""A port for whoever decides about calls, or completes them, while sessions are attached to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ..admin import Access, Host, Token, admin, listening
from ..metrics import Metrics

__all__ = ["Overseer"]


@dataclass(frozen=True, slots=True)
class Overseer:
    """Comes to the loopback with this token. Port 0: any that is free."""

    port: int
    token: str = field(repr=False)
    metrics: Metrics = field(default_factory=Metrics, repr=False)
    """Those of the host."""

    @asynccontextmanager
    async def looks_after(self, host: Host) -> AsyncIterator[int]:
        """Calls wait to be decided while the block runs; yields the port. To be entered before sessions begin.

        Raises `ConfigError` if it cannot listen there.
        """
        access = Access((Token("admin", self.token),), hosts=("127.0.0.1", "localhost"))
        with host.approvals.attached(lambda _: None):  # whoever decides comes to ask what there is
            async with listening(admin(host, self.metrics, access), "127.0.0.1", self.port) as port:
                yield port
