"""A worker: a sidecar without an admin port, which answers its parent instead."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio.to_thread import run_sync as in_thread

from ..admin.feed import End, Event, Feed
from ..config import Sidecar, read
from ..errors import ConfigError
from ..relay.server import Relay
from ..reload import Reloader
from ..serve import Reload, Serving, at_each_hangup, log_to_stderr, run_loop, serving
from .channel import Channel, packed

__all__ = ["Order", "obey", "work"]

logger = logging.getLogger("bridge.workers")

_TOO_MUCH = "a worker tells more than can be taken: events are missing here"


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to serve, as `read` takes it."""

    config: Path | None
    overrides: Mapping[str, Mapping[str, Any]]

    def command(self, number: int, channel: int) -> list[str]:
        """The command line of a worker, to which this file descriptor is passed."""
        # A fresh interpreter: a fork would inherit the threads' locks, but not the threads.
        start = f"import sys; sys.path[:] = {sys.path!r}; from bridge.workers.worker import work; work()"
        config = str(self.config) if self.config else None
        order = {"worker": number, "channel": channel, "config": config, "overrides": self.overrides}
        return [sys.executable, "-c", start, orjson.dumps(order).decode()]


def work() -> None:
    """Be a worker: what `Order.command` runs."""
    order = orjson.loads(sys.argv[1])
    config, overrides = Path(order["config"]) if order["config"] else None, order["overrides"]
    parent = socket.socket(fileno=order["channel"])
    parent.set_inheritable(False)
    try:
        sidecar = read(config, overrides)
        log_to_stderr(sidecar.settings.log.level, order["worker"])
        left = run_loop(obey(parent, sidecar, Reloader(config, overrides, sidecar), order["worker"]))
        sys.exit(1 if left else 0)
    except ConfigError as fault:
        parent.sendall(packed({"failed": str(fault)}))
        sys.exit(2)


async def obey(parent: socket.socket, sidecar: Sidecar, reload: Reload | None = None, worker: int = 1) -> int:
    """Serve until the parent has closed its end of the pair, or SIGTERM; returns how many sessions had to be ended.

    Raises `ConfigError`.
    """
    async with serving(sidecar, worker) as served, anyio.create_task_group() as answering:
        relay = served.relay
        channel = await Channel.over(parent)
        answers = _Answers(channel, served, reload)
        stop = anyio.Event()

        async def listen() -> None:
            while (message := await channel.receive()) is not None:
                answering.start_soon(answers.give, message)
            if relay.ready != "draining":
                logger.warning("the parent process has gone")
            stop.set()

        async def hear() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for each in signals:
                    logger.info("%s, to this worker alone", each.name)
                    stop.set()

        async with anyio.create_task_group() as waiting:
            for each in (listen, hear):
                waiting.start_soon(each)
            await waiting.start(at_each_hangup, answers.reload)
            channel.send({"started": relay.port})
            await stop.wait()
            left = await _drain(relay, sidecar.settings.session.drain_seconds)
            waiting.cancel_scope.cancel()
        answers.close()
    channel.close()
    return left


async def _drain(relay: Relay, seconds: float) -> int:
    relay.stop_listening()  # the other workers take what is new
    if relay.sessions:
        logger.info("no new sessions; %d are open and have %g s", len(relay.sessions), seconds)
    left = await relay.drain(seconds)
    if left:
        logger.warning("%d sessions had to be ended", left)
    return left


class _Answers:
    """What a worker tells its parent."""

    def __init__(self, channel: Channel, served: Serving, reload: Reload | None) -> None:
        self._channel = channel
        self._relay, self._metrics, self._desk = served
        self._reload = reload
        self._attending = Feed()

    async def give(self, message: Mapping[str, Any]) -> None:
        """Answer one question. One that cannot be answered is logged, and must not cost the sessions."""
        try:
            match message["ask"]:
                case "follow":
                    await self._push(await self._desk.follow(), message)
                case "attend":
                    async with self._desk.attend() as self._attending:
                        await self._push(self._attending, message)
                case _:
                    self._say(message, await self._said(message))
        except ConnectionError:
            return  # it has gone
        except Exception:
            logger.exception("the parent asked for %s and gets no answer", message["ask"])

    def close(self) -> None:
        """Nothing more is told of what happens."""
        self._desk.close()

    def _say(self, message: Mapping[str, Any], said: object) -> None:
        self._channel.send({"id": message["id"], "said": said})

    async def _push(self, feed: Feed, message: Mapping[str, Any]) -> None:
        """Pass on what happens, as fast as the parent takes it."""
        reader = feed.reader()
        try:
            self._say(message, None)
            while (event := await reader.next()) is not End.CLOSED:
                match event:
                    case Event(_, name, data):
                        self._channel.send({"event": name, "of": message["ask"], "data": data})
                    case _:
                        self._channel.send({"event": "lost", "of": message["ask"], "data": {"error": _TOO_MUCH}})
                await self._channel.flush()
        finally:
            reader.close()

    async def reload(self) -> None:
        """What SIGHUP asks for, whether it comes to this worker or to its parent."""
        if self._reload is not None:
            await self._reload(self._relay)

    async def _said(self, message: Mapping[str, Any]) -> Any:
        match message["ask"]:
            case "ready":
                return self._relay.ready
            case "sessions":
                return [asdict(each) for each in self._relay.sessions]
            case "metrics":
                return (await in_thread(self._metrics.render)).decode()
            case "drain":
                return await self._relay.drain(message["seconds"])
            case "reload":
                return await self.reload()
            case "calls":
                return await self._desk.calls(message["session"])
            case "pending":
                return await self._desk.pending()
            case "settle":
                return await self._desk.settle(message["key"], message["result"])
            case "decide":
                return await self._desk.decide(message["request_id"], message["decision"])
            case "detach":
                return self._attending.close()
            case unknown:
                raise ValueError(unknown)
