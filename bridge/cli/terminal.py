"""What the commands share: how they draw, count, refuse, and end."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click
from rich.console import Console

__all__ = ["Unusable", "count", "ended_by_sigterm", "finite", "terminal"]


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


def finite(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """For options: nan passes every range, and nothing can be done with it, nor with what never ends."""
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no finite number.")
    return value


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as an exception that passes wherever Ctrl-C does."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Until somebody else listens to it, SIGTERM ends the block, and the process with exit code 0.

    By itself the kernel ends nothing in the first process of a container, which would go on to start.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _Terminated:
        sys.exit(0)
    finally:
        signal.signal(signal.SIGTERM, before)
