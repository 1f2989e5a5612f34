"""`demo`: a call to a support line, offline."""

from __future__ import annotations

import asyncio
import logging

import click

from ..demo.demo import demo
from .terminal import terminal

__all__ = ["demo_command"]


@click.command("demo")
def demo_command() -> None:
    """Watch a call to a support line: offline, a quarter of a minute.

    A simulated provider calls six tools, and a real session answers. The closing table says what the provider's own
    account of the call proves. The exit code is 1 if one of its claims does not hold.
    """
    # The tool that fails is part of the show; the drawing tells it.
    logging.getLogger("bridge").addHandler(logging.NullHandler())
    if not asyncio.run(demo(terminal())):
        raise SystemExit(1)
