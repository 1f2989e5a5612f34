"""What the commands share: how they draw, count, and refuse."""

from __future__ import annotations

import click
from rich.console import Console

__all__ = ["Unusable", "count", "terminal"]


class Unusable(click.ClickException):
    """What was passed cannot be used; one line says why."""

    exit_code = 2


def terminal() -> Console:
    """Drawn as wide as the terminal; what is not a terminal gets a hundred columns."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


def count(number: int, one: str, many: str = "") -> str:
    """`1 call`, `2 calls`."""
    return f"{number} {one if number == 1 else many or one + 's'}"
