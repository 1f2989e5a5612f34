"""What a host changes in a running session: its settings and its tools, until the provider has agreed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.conversation import Step
from ..core.events import Frame, SetupAccepted
from ..errors import BridgeError, ConfigurationRefused, ProviderError
from ..tools.tool import Tool
from ..tools.versions import Versions
from .changes import Change, Changes
from .dialogue import Dialogue
from .standing import Phase, Standing

__all__ = ["Updates"]

logger = logging.getLogger("bridge.session")


@dataclass(slots=True, eq=False)
class Updates:
    """Sends changes, and waits for their answers. What the provider refuses leaves everything as it was."""

    standing: Standing
    dialogue: Dialogue
    versions: Versions
    """The tools."""
    perform: Callable[[Step], None]
    timeout: float
    """Seconds that the provider has for its answer."""
    changes: Changes = field(default_factory=Changes)
    """Those that have not been answered."""
    _offers: set[asyncio.Task[None]] = field(default_factory=set)

    async def change(self, settings: Mapping[str, Any]) -> None:
        """Change these. Raises `ConfigError` or `ProviderError`, or why the session has ended."""
        change = self.changes.add(self.dialogue.peer.update(settings), settings)
        self.send()
        await self._answer(change)

    def repeat(self, frame: Frame) -> None:
        """Send a message that changes settings; nobody waits for its answer."""
        self.changes.add(frame)
        self.send()

    def send(self) -> None:
        """Send the changes of settings that wait, in their order; without a connection they wait for one."""
        if not self.dialogue.is_down:
            self._send()

    def _send(self) -> None:
        for frame in self.changes.send():
            self.perform(self.dialogue.conversation.from_app(frame))

    async def replace(self, tools: Mapping[str, Tool]) -> None:
        """From now on the tools are these. Raises `ConfigurationRefused`, or as `change`."""
        specs = tuple(tool.spec for tool in tools.values())
        if specs and set(self.dialogue.conversation.versions) == {specs}:  # it has agreed to what it knows of them
            self.versions.offer(tools)
            self.versions.keep(self.dialogue.conversation.versions)
            return
        step = self.dialogue.conversation.replace_tools(specs)
        if not step.commands and not self.dialogue.conversation.replacement_waits:
            raise ConfigurationRefused("the tools of this agent are configured at the provider and cannot be replaced")
        self.versions.offer(tools)
        change = self.changes.replace()
        self.perform(step)
        accepted = await self._answer(change)
        wanted = {spec.name for spec in self.dialogue.conversation.versions[-1]} & tools.keys()
        missing = wanted - set(wanted if accepted.tools is None else accepted.tools)
        if missing:
            raise ConfigurationRefused(f"the provider did not take these tools: {', '.join(sorted(missing))}")

    async def _answer(self, change: Change) -> SetupAccepted:
        await asyncio.shield(change.sent)
        try:
            async with asyncio.timeout(self.timeout):
                return await asyncio.shield(change.answer)
        except TimeoutError:
            limit = f"{self.timeout:g} s"
            raise ProviderError(f"the provider did not acknowledge the change within {limit}") from None

    # ------------------------------------------------------------------------------------- what it comes to

    def performed(self) -> None:
        """A step has been taken while a new list of tools waited, which may have gone out with it."""
        if not self.dialogue.conversation.replacement_waits:
            self.changes.tools_sent()

    def accepted(self, event: SetupAccepted) -> None:
        """The provider agrees to the oldest one."""
        self.versions.keep(self.dialogue.conversation.versions)
        self.changes.accepted(event)

    def refused(self, error: Exception) -> bool:
        """The provider does not agree to the oldest one. False if there is none."""
        refused = self.changes.refused(error)
        if refused:
            self.versions.keep(self.dialogue.conversation.versions)
        return refused

    def connection_lost(self) -> None:
        """What was not answered has to be sent again."""
        self.changes.connection_lost()

    def resumed(self) -> None:
        """The provider is ready on another connection: send what waits, though the session is not under way yet."""
        self.changes.taken_for_granted()
        self._send()

    # ------------------------------------------------------------------------------------- without waiting

    def offer(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools; that the provider does not agree is only logged."""
        offering = asyncio.get_running_loop().create_task(self.replace(tools))
        self._offers.add(offering)
        offering.add_done_callback(self._offered)

    def _offered(self, offering: asyncio.Task[None]) -> None:
        self._offers.discard(offering)
        error = None if offering.cancelled() else offering.exception()
        if isinstance(error, BridgeError) and self.standing.phase is Phase.READY:
            logger.warning("session %s: its tools could not be replaced: %s", self.standing.id, error)

    async def aclose(self) -> None:
        """Wait for no answer any more."""
        for offering in self._offers:
            offering.cancel()
        await asyncio.gather(*self._offers, return_exceptions=True)
