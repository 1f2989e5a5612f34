"""How long a provider is waited for, and how often it is tried again."""

from __future__ import annotations

import random
from asyncio import get_running_loop
from dataclasses import dataclass

from ..errors import TransportError

__all__ = ["Patience", "Pauses"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long things are waited for, in seconds."""

    connect: float = 5.0
    answer: float = 30.0
    """For the answer to a post."""
    silence: float = 60.0
    """Without a byte on an event stream, which providers keep alive by comments; for a poll it is the longest."""
    first_pause: float = 0.1
    """Before the first repetition; each further pause is twice to thrice as long."""
    longest_pause: float = 10.0
    give_up: float = 60.0
    """After this long without success the provider counts as gone; a longer `Retry-After` is not waited for."""
    confirm_after: float = 3.0
    """After this long an accepted answer that has not shown is looked for, and posted again if it is missing."""
    confirmations: int = 3
    """How often one answer is posted again for that reason."""
    turn_of_others: float = 300.0
    """After this long a message counts as refused that is not taken, since turns of others run."""


class Pauses:
    """Pauses between tries, in seconds, ever longer."""

    def __init__(self, what: str, patience: Patience) -> None:
        self._what = what
        self._patience = patience
        self._began = get_running_loop().time()
        self._pause = patience.first_pause

    def next(self, last: str) -> float:
        """`last` says how the latest try ended. Raises `TransportError` when it has been tried for long enough."""
        if get_running_loop().time() - self._began > self._patience.give_up:
            tried = f"{self._what} for {self._patience.give_up:g} s (at last: {last})"
            raise TransportError(f"{tried}: check the key, the state of the provider, and the network")
        pause = self._pause
        self._pause = min(pause * random.uniform(2, 3), self._patience.longest_pause)
        return pause

    def went_well(self, seconds: float) -> None:
        """A try succeeded, for so long. One that is soon over must not be repeated at once for ever."""
        self._began = get_running_loop().time()
        if seconds > self._patience.longest_pause:
            self._pause = self._patience.first_pause
