"""Those who see every step of a session as it happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from ..core.conversation import Step
from ..core.dialect import Delivery
from .standing import Standing

__all__ = ["Observed", "Observers"]

logger = logging.getLogger("bridge.session")


class Observed(Protocol):
    """What every session tells of itself, embedded or relayed."""

    @property
    def id(self) -> str: ...

    @property
    def provider_session_id(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def delivery(self) -> Delivery: ...


class Observers:
    """Tells them. With `waiting`, what happens is kept until the session has the name that it is to be known by."""

    def __init__(self, standing: Standing, observers: Iterable[Callable[[Step], None]], *, waiting: bool) -> None:
        self._standing = standing
        self._observers = tuple(observers)
        self._early: list[Step] = []
        self.waiting = waiting
        """Is it still to be named?"""

    def begin(self) -> None:
        """The session has its name, or has ended without one: tell what was kept, and keep nothing any more."""
        self.waiting = False
        early, self._early = self._early, []
        for step in early:
            self.tell(step)

    def saw(self, step: Step) -> None:
        """This has happened."""
        if self.waiting:
            self._early.append(step)
        elif self._observers:
            self.tell(step)

    def tell(self, step: Step) -> None:
        """The same, and it can be told already."""
        for observer in self._observers:
            try:
                observer(step)
            except Exception:
                # Whoever only watches must not cost a caller the line.
                logger.exception("session %s: an observer failed and is left out from now on", self._standing.id)
                self._observers = tuple(each for each in self._observers if each is not observer)
