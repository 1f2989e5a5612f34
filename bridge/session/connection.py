"""The connection of a session: one transport after the other, each with a reader and a writer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial

from ..core.events import CallKey, Frame, ProviderEnded, ProviderFailed, SessionReady
from ..errors import TransportError
from ..transports import Transport
from .outbox import Outbox

__all__ = ["Answer", "Connection", "Opening"]

Answer = SessionReady | ProviderFailed | ProviderEnded
"""What a provider may answer to the first message on a transport."""


class Opening(Enum):
    """What the first message on a transport asks for."""

    SETUP = "as a fresh session"
    RESUME = "resumed"


class Connection:
    """Reads and writes from the moment that it has a transport.

    Transports are numbered, and what an old one still says is dropped: it must not touch what a newer one has brought.
    `lost` is told once of each transport that breaks by itself.
    """

    def __init__(
        self,
        heard: Callable[[Frame], None],
        sent: Callable[[tuple[CallKey, ...]], None],
        lost: Callable[[TransportError], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._sent = sent
        self._lost = lost
        self._number = 0

    def take(self, transport: Transport, opening: Opening) -> None:
        """This is the transport from now on."""
        self._number += 1
        self.opening = opening
        self._answer: asyncio.Future[Answer] = self._loop.create_future()
        self._transport = transport
        self.outbox = Outbox(transport, partial(self._took, self._number))
        self._tasks = [
            self._loop.create_task(self._read(self._number, transport)),
            self._loop.create_task(self.outbox.run()),
        ]

    async def _read(self, number: int, transport: Transport) -> None:
        try:
            while True:
                frame = await transport.receive()
                if number == self._number:
                    self._heard(frame)
        except TransportError as lost:
            if number == self._number:
                self.mute()
                self._lost(lost)

    def _took(self, number: int, keys: tuple[CallKey, ...]) -> None:
        if number == self._number:
            self._sent(keys)

    def mute(self) -> None:
        """The present transport is an old one from now on, though there is no newer."""
        self._number += 1
        self.outbox.close()

    # ----------------------------------------------------------------------------------------------- the first answer

    @property
    def opens(self) -> bool:
        """Has the first message not been answered yet?"""
        return not self._answer.done()

    async def answered(self, timeout: float) -> Answer:
        """The answer to the first message. Raises `TransportError` if there is none within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise TransportError(f"the provider did not become ready within {timeout:g} s") from None

    def answers(self, answer: Answer) -> None:
        """This is the answer, if there was none before."""
        if self.opens:
            self._answer.set_result(answer)

    def fails(self, error: Exception) -> None:
        """There will be no answer."""
        if self.opens:
            self._answer.set_exception(error)
            self._answer.exception()  # somebody may wait for it, nobody must

    # ------------------------------------------------------------------------------------------------------- the end

    async def aclose(self) -> None:
        """Send nothing more, hear nothing more, and close, within the time that the transport takes for that."""
        self.mute()
        tasks, transport = self._tasks, self._transport
        await transport.aclose()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
