"""`serve`: the sidecar."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import ConfigError
from .terminal import Unusable, count, ended_by_sigterm

if TYPE_CHECKING:
    from ..config import Sidecar

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
    """Run the sidecar: a proxy that adds tools to your agents.

    It stands between your telephony stack and the provider. CONFIG is a TOML file; everything in it can also be set in
    the environment, as BRIDGE_LISTEN__PORT=8787. Without a file the options do. To look it over, see `check`.

    SIGHUP reads CONFIG again. SIGTERM or Ctrl-C lets running sessions come to their end, for a minute unless set
    otherwise, and a second one ends them at once. The exit code is 1 if any had to be ended, and 2 if it cannot start.
    """
    overrides = _given(
        {
            "tools": {"python": tools or None},
            "upstream": {"dialect": upstream or None, "url": url or None},
            "listen": {"port": port, "workers": workers},
            "admin": {"port": admin_port},
        }
    )
    with ended_by_sigterm():
        _serve(config, overrides, print_config)


def _serve(config: Path | None, overrides: dict[str, dict[str, Any]], print_config: bool) -> None:
    try:
        from ..config import read
        from ..reload import Reloader
        from ..serve import log_to_stderr, run
        from ..workers import run as run_workers
    except ImportError as missing:
        raise Unusable(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,sidecar]'") from None
    try:
        sidecar = read(config, overrides)
        if print_config:
            return click.echo(sidecar.settings.text())
        log_to_stderr(sidecar.settings.log.level)
        started = partial(_started, sidecar)
        if sidecar.settings.listen.workers > 1:
            left = run_workers(sidecar, config, overrides, started)
        else:
            left = run(sidecar, started, reload=Reloader(config, overrides, sidecar))
    except ConfigError as error:
        raise Unusable(str(error)) from None
    if left:
        raise click.ClickException(f"{count(left, 'session')} had to be ended")


def _started(sidecar: Sidecar, port: int, admin_port: int) -> None:
    listen = sidecar.settings.listen
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    address = f"{'ws' if listen.certificate is None else 'wss'}://{host}:{port}"
    shared = f", {listen.workers} workers" if listen.workers > 1 else ""
    click.echo(f"Applications connect to {address}{shared}; admin at port {admin_port} (Ctrl-C ends it)")


def _given(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Only what was said."""
    said = {table: {key: value for key, value in keys.items() if value is not None} for table, keys in tables.items()}
    return {table: keys for table, keys in said.items() if keys}
