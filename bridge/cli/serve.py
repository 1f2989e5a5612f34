"""`serve`: the sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import ConfigError
from .terminal import Unusable, count

__all__ = ["serve_command"]


@click.command("serve")
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option(
    "--tools", "tools", multiple=True, metavar="FILE", help="Tools: a Python file or module; may be repeated."
)
@click.option("--upstream", default="", metavar="DIALECT", help="The provider, such as assemblyai.")
@click.option("--url", default="", metavar="URL", help="The provider's address, instead of its dialect's own.")
@click.option("--port", type=int, default=None, help="Where applications connect; 8787 if nothing else is set.")
@click.option("--admin-port", type=int, default=None, help="Where metrics and health are; 9090 if nothing else is set.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    help="Processes that share the port; about one for each core.",
)
@click.option("--print-config", is_flag=True, help="Print the settings in force, secrets masked, and end.")
def serve_command(
    config: Path | None,
    tools: tuple[str, ...],
    upstream: str,
    url: str,
    port: int | None,
    admin_port: int | None,
    workers: int | None,
    print_config: bool,
) -> None:
    """Run the sidecar: a proxy between your telephony stack and the provider, which adds tools to the agent.

    CONFIG is a TOML file; everything in it can also be set in the environment, as BRIDGE_LISTEN__PORT=8787. Without a
    file the options do. SIGTERM lets running sessions come to their end; the exit code is 1 if any had to be ended.
    """
    try:
        from ..config import read
        from ..reload import Reloader
        from ..serve import log_to_stderr, run
        from ..workers import run as run_workers
    except ImportError as missing:
        raise Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar]'") from None
    overrides = _given(
        {
            "tools": {"python": tools or None},
            "upstream": {"dialect": upstream or None, "url": url or None},
            "listen": {"port": port, "workers": workers},
            "admin": {"port": admin_port},
        }
    )
    try:
        sidecar = read(config, overrides)
        if print_config:
            return click.echo(sidecar.settings.text())
        log_to_stderr(sidecar.settings.log.level)
        listen = sidecar.settings.listen

        def started(at: int, admin_at: int) -> None:
            shared = f", {listen.workers} workers" if listen.workers > 1 else ""
            click.echo(
                f"Applications connect to ws://{listen.host}:{at}{shared}; admin at port {admin_at} (Ctrl-C ends it)"
            )

        if listen.workers > 1:
            left = run_workers(sidecar, config, overrides, started)
        else:
            left = run(sidecar, started, reload=Reloader(config, overrides, sidecar))
    except ConfigError as error:
        raise Unusable(str(error)) from None
    if left:
        raise click.ClickException(f"{count(left, 'session')} had to be ended")


def _given(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Only what was said."""
    said = {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}
    return {table: keys for table, keys in said.items() if keys}
