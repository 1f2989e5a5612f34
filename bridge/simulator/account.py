"""What the accounts of all offline providers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

__all__ = ["keep", "newest"]

_LIMIT: Final = 20_000
_Entry = TypeVar("_Entry")


class _Named(Protocol):
    name: str


_Call = TypeVar("_Call", bound=_Named)


def keep(entries: list[_Entry], entry: _Entry) -> None:
    """Add an entry, as long as there is room: what a client repeats for ever must not grow for ever."""
    if len(entries) < _LIMIT:
        entries.append(entry)


def newest(calls: Sequence[_Call], name: str) -> _Call:
    """The newest call of this tool. Raises `LookupError` if there is none."""
    for call in reversed(calls):
        if call.name == name:
            return call
    raise LookupError(f"{name} was not called")
