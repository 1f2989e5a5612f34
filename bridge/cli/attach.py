"""`attach`: the tools of agent sessions that run already."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import click

from ..attach import Attached, End, Ending, Provider, expressible, known_dialect
from ..attach.plan import NOTIFYING, Webhook
from ..errors import BridgeError, ConfigError, JournalError
from ..host import Bridge
from ..journal.opening import open_journal
from ..tools.tool import Tool, Toolset
from .remote import TOKEN
from .terminal import Unusable, count, finite
from .tools import loaded, usable

if TYPE_CHECKING:
    from ..attach.overseer import Overseer
    from ..metrics import Metrics

__all__ = ["attach_command"]

_LINE: Final = 4096
"""Bytes that are read from standard input at once."""


@click.command("attach")
@click.option("--dialect", required=True, metavar="NAME", help="openai-sessions, hcompany or herm.")
@click.option(
    "--session", "sessions", multiple=True, metavar="ID", help="A session; repeat it. - reads ids from standard input."
)
@click.option("--tools", "tools_file", type=click.Path(path_type=Path), required=True, help="A Python file with tools.")
@click.option("--url", default="", metavar="URL", help="The provider's address, instead of its dialect's own.")
@click.option("--journal", default="", metavar="ADDRESS", help="Write down what happens: a file, or postgresql://...")
@click.option(
    "--webhook-port", type=click.IntRange(0, 65535), help="Take the provider's notifications here (hcompany)."
)
@click.option("--webhook-host", default="127.0.0.1", show_default=True, help="The address for that.")
@click.option(
    "--webhook-secret-env",
    default="HAI_WEBHOOK_SECRET",
    show_default=True,
    metavar="NAME",
    help="The environment variable with the webhook's secret; several are separated by commas.",
)
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help=f"Take decisions and results here; whoever gives them shows the token in {TOKEN}.",
)
@click.option("--max-sessions", type=click.IntRange(min=1), default=1000, show_default=True, help="Served at once.")
@click.option(
    "--owed-timeout",
    type=click.FloatRange(min=0),
    callback=finite,
    default=10.0,
    show_default=True,
    help="After SIGTERM: seconds for calls that are still to be answered.",
)
def attach_command(
    dialect: str,
    sessions: tuple[str, ...],
    tools_file: Path,
    url: str,
    journal: str,
    webhook_port: int | None,
    webhook_host: str,
    webhook_secret_env: str,
    admin_port: int | None,
    max_sessions: int,
    owed_timeout: float,
) -> None:
    """Serve the tools of agent sessions that run already.

    The sessions have been begun by somebody else, with tools that have the names of yours. Each is served until it
    ends, and a line says how. The key comes from the variable that the provider's own clients use: OPENAI_API_KEY,
    HAI_API_KEY or HERM_API_KEY. SIGTERM or Ctrl-C answers what is still to be answered, then leaves the rest; a second
    one leaves at once.

    With --webhook-port the provider names the sessions while this runs. A notification with a wrong signature is
    answered 401. Put the port behind HTTPS.

    Calls that have to be approved, here or at the provider, are denied; with --admin-port they wait for a decision:
    `voice-tool-bridge approvals list --url http://127.0.0.1:PORT`.

    With --journal, no tool with effects runs twice, whatever dies when: start it again with the same sessions.

    The exit code is 0 if every session has ended, 1 if one was refused, lost or left, and 2 if nothing could begin.
    """
    tools = usable(loaded(tools_file))
    try:
        provider = Provider(dialect=known_dialect(dialect), url=url)
        provider.key  # noqa: B018  # without one, nothing can begin
        webhook = None if webhook_port is None else _webhook(provider, webhook_host, webhook_port, webhook_secret_env)
        if not sessions and webhook is None:
            raise Unusable("there is nothing to attach to: name a --session, or take notifications by --webhook-port")
        overseer = None if admin_port is None else _overseer(admin_port)
        order = _Order(provider, sessions, tools, journal, webhook, overseer, max_sessions, owed_timeout)
        missed = asyncio.run(_attach(order))
    except (ConfigError, JournalError) as error:
        raise Unusable(str(error)) from None
    if missed:
        raise click.ClickException(f"{count(missed, 'session')} did not come to an end here")


def _webhook(provider: Provider, host: str, port: int, variable: str) -> Webhook:
    if provider.dialect not in NOTIFYING:
        raise ConfigError(f"--webhook-port: {provider.dialect} sends no notifications that could be verified")
    secrets = tuple(each.strip() for each in os.environ.get(variable, "").split(",") if each.strip())
    if not secrets:
        raise ConfigError(f"--webhook-port: the variable {variable} must hold the secret of the webhook")
    return Webhook(host=host, port=port, secrets=secrets)


def _overseer(port: int) -> Overseer:
    try:
        from ..attach.overseer import Overseer
    except ImportError as missing:
        raise _lacking(missing) from None
    token = os.environ.get(TOKEN, "")
    if not token:
        raise ConfigError(f"--admin-port: the variable {TOKEN} must hold the token of whoever decides")
    return Overseer(port, token)


@dataclass(frozen=True, slots=True)
class _Order:
    """What was asked for."""

    provider: Provider
    sessions: Sequence[str]
    tools: Toolset
    journal: str
    webhook: Webhook | None
    overseer: Overseer | None
    max_sessions: int
    owed_timeout: float


async def _attach(order: _Order) -> int:
    """Serve until there is nothing left to do; how many sessions have not come to their end."""
    tally = _Tally()
    async with AsyncExitStack() as stack:
        dialect = order.provider.agent("any").dialect
        metrics = None if order.overseer is None else order.overseer.metrics
        fitting = expressible(dialect, order.tools)
        bridge = await stack.enter_async_context(_bridge(fitting, order.journal, metrics))
        if order.overseer is not None:
            port = await stack.enter_async_context(order.overseer.looks_after(bridge))
            click.echo(f"Decisions and results are taken at http://127.0.0.1:{port}/v1")
        attached = Attached(
            bridge,
            order.provider,
            told=tally.told,
            max_sessions=order.max_sessions,
            owed_timeout=order.owed_timeout,
        )
        await stack.enter_async_context(attached)
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        if order.webhook is not None:
            port = await stack.enter_async_context(_taking(order.webhook, attached))
            click.echo(f"Notifications are taken at http://{order.webhook.host}:{port}/ (put it behind HTTPS)")
        tools = count(len(bridge.tools), "tool")
        click.echo(f"Serving {tools} to sessions of {order.provider.dialect} (Ctrl-C leaves them)")
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_at_a_signal, signals, attached, group.cancel_scope)
            await _serve(attached, order, tally)
            group.cancel_scope.cancel()
    return tally.missed


def _taking(webhook: Webhook, attached: Attached) -> AbstractAsyncContextManager[int]:
    try:
        from ..attach.webhook import taking
    except ImportError as missing:
        raise _lacking(missing) from None
    return taking(webhook, attached.add)


def _lacking(missing: ImportError) -> ConfigError:
    return ConfigError(f"{missing.name} is missing: pip install 'voice-tool-bridge[cli,http,sidecar]'")


async def _serve(attached: Attached, order: _Order, tally: _Tally) -> None:
    """Until no session is left, and no other can be named."""
    for session_id in order.sessions:
        if session_id != "-":
            tally.add(attached, session_id)
    if "-" in order.sessions:
        async for session_id in _lines():
            tally.add(attached, session_id)
    if order.webhook is not None:
        await anyio.sleep_forever()
    await attached.idle()


async def _stop_at_a_signal(
    signals: AsyncIterator[signal.Signals], attached: Attached, scope: anyio.CancelScope
) -> None:
    first = await anext(signals)
    left = len(attached.sessions)
    click.echo(f"{first.name}: {count(left, 'session')} left once answered; again, to leave at once", err=True)
    async with anyio.create_task_group() as group:
        group.start_soon(_leave_at_once, signals, attached)
        await attached.drain(math.inf)
        group.cancel_scope.cancel()
    scope.cancel()


async def _leave_at_once(signals: AsyncIterator[signal.Signals], attached: Attached) -> None:
    await anext(signals)
    await attached.drain(0)


class _Tally:
    """Says how each session ended, and counts those that have not come to their end."""

    def __init__(self) -> None:
        self.missed = 0

    def add(self, attached: Attached, session_id: str) -> None:
        """Serve this one; that it cannot be costs no other."""
        try:
            attached.add(session_id)
        except BridgeError as error:
            self.missed += 1
            click.echo(f"error: {session_id}: {error}", err=True)

    def told(self, ending: Ending) -> None:
        """This is how it ended."""
        ended = ending.end is End.ENDED
        self.missed += not ended
        click.echo(f"{'' if ended else 'error: '}{ending.session}: {ending.text}", err=not ended)


@asynccontextmanager
async def _bridge(tools: Mapping[str, Tool], address: str, metrics: Metrics | None) -> AsyncIterator[Bridge]:
    """The bridge, with a journal if it is to have one, in which earlier processes may have left something."""
    if not address:
        async with Bridge(tools, metrics=metrics) as bridge:
            yield bridge
        return
    journal = open_journal(address)
    try:
        async with Bridge(tools, journal=journal, metrics=metrics) as bridge:
            for left in await bridge.recover():
                call = left.claimed.call
                click.echo(f"left unfinished: {left.claimed.tool}, call {call.call_id:.64}: {left.found.value}")
            yield bridge
    finally:
        await journal.aclose()


async def _lines() -> AsyncIterator[str]:
    """What stands in the lines of standard input, as they come."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

    def tell(line: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(lines.put_nowait, None if line is None else line.decode(errors="replace").strip())

    def read() -> None:
        rest = b""
        with suppress(OSError):  # there is no input
            while data := os.read(0, _LINE):
                *whole, rest = (rest + data).split(b"\n")
                rest = rest[:_LINE]  # nothing that long is an id
                for line in whole:
                    tell(line)
        tell(rest)
        tell(None)

    # A thread that nobody waits for, since a read from a terminal cannot be ended.
    threading.Thread(target=read, name="bridge-stdin", daemon=True).start()
    while (line := await lines.get()) is not None:
        if line:
            yield line
