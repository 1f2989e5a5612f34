"""What all offline providers have in common that can be started by name: the values that describe one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

__all__ = ["Account", "Offline", "Running", "Where", "account"]


@dataclass(frozen=True, slots=True)
class Where:
    """Where a provider is to listen, for whom, and how fast it is to be; 1 is its usual pace."""

    host: str = "127.0.0.1"
    port: int = 0
    api_key: str | None = None
    """Let nobody in without it. None: the provider's own choice, see `Running.api_key`."""
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Account:
    """What one session has come to so far, in a line."""

    name: str
    text: str
    rests: bool
    """Does nothing happen in it at the moment?"""


@dataclass(frozen=True, slots=True)
class Running:
    """A provider that is running."""

    url: str
    api_key: str
    """One that is let in."""
    try_it: Sequence[str]
    """Commands of a shell with which to try it, one a line."""
    accounts: Callable[[], Iterable[Account]]


@dataclass(frozen=True, slots=True)
class Offline:
    """A provider that can be started. A scenario is a value of its own kind, built in or read from a file's tables."""

    read: Callable[[Mapping[str, Any]], Any]
    """Raises `ValueError` that says what is wrong."""
    start: Callable[[Where, Any], AbstractAsyncContextManager[Running]]
    """With a scenario, or None for the plainest. Raises `OSError` if the port is taken."""
    scenarios: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Those that are built in: what each is about, and the scenario."""
    paced: bool = False
    """Does it have a pace?"""


def account(name: str, state: str, fates: Iterable[Enum], breaches: Iterable[str], *, rests: bool) -> Account:
    """The account of a session: its state, what became of its calls, and the rules that were broken."""
    counted = Counter(fate.name.lower().replace("_", " ") for fate in fates)
    calls = ", ".join(f"{many} {fate}" for fate, many in counted.items()) or "none"
    rules = ", ".join(dict.fromkeys(breaches)) or "none"
    return Account(name, f"{state}; calls: {calls}; broken rules: {rules}", rests)
