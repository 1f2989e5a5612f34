"""The command line: one file per command, each of which says in its help what it is for."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import click

from .approvals import approvals_command
from .attach import attach_command
from .bench import bench_command
from .calls import calls_command
from .check import check_command
from .converse import converse_command
from .demo import demo_command
from .journal import journal_command
from .serve import serve_command
from .simulate import simulate_command
from .tools import tools_command

__all__ = ["cli"]


def _version() -> str:
    try:
        return importlib.metadata.version("voice-tool-bridge")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


class _Program(click.Group):
    """Ctrl-C has an exit code of its own, as in a shell: 1 would say that what was asked for has failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(130)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="voice-tool-bridge", message="%(prog)s %(version)s")
def cli() -> None:
    """Tools for realtime voice agents: run, held, and sent at the right moment.

    New here? Begin with `voice-tool-bridge demo`: it needs no account.

    The exit code is 0 if all went well, 1 if something did not, 2 if what was passed cannot be used, and 130 after
    Ctrl-C. Commands that run until Ctrl-C end with 0, or as their own help says.
    """


for command in (
    demo_command,
    converse_command,
    tools_command,
    check_command,
    serve_command,
    attach_command,
    bench_command,
    journal_command,
    approvals_command,
    calls_command,
    simulate_command,
):
    cli.add_command(command)
