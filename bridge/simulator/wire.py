"""The provider's end of a socket: an ordered, bounded outbox with one writer, and the shape of every event it sends."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import anyio
import orjson
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from bridge.simulator.account import keep
from bridge.simulator.ledger import CallRecord, Ledger, ReplyRecord
from bridge.simulator.messages import Refused
from bridge.simulator.rules import ArgumentsForm, Rules
from bridge.simulator.waiting import Changes

__all__ = ["Link", "Wire"]

_OUTBOX: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Close:
    code: int


@dataclass(frozen=True, slots=True)
class _Abort:
    pass


@dataclass(frozen=True, slots=True)
class _Deafen:
    pass


_Item: TypeAlias = str | _Close | _Abort | _Deafen


class Link:
    """One connection: what is put in goes out in order, by `write`. A client that reads too slowly is cut off."""

    def __init__(self, socket: ServerConnection, stopping: anyio.Event) -> None:
        self._socket = socket
        self._stopping = stopping
        self._put, self._take = anyio.create_memory_object_stream[_Item](_OUTBOX)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, after everything that was put in before."""
        self._enqueue(orjson.dumps(message).decode())

    def close(self, code: int) -> None:
        """Close with this code, after everything that was put in before."""
        self._enqueue(_Close(code))

    def abort(self) -> None:
        """Break the connection without a close frame, after everything that was put in before."""
        self._enqueue(_Abort())

    def deafen(self) -> None:
        """Read nothing any more, not even a close frame, until the simulator stops."""
        self._enqueue(_Deafen())

    def _enqueue(self, item: _Item) -> None:
        try:
            self._put.send_nowait(item)
        except anyio.WouldBlock:
            self._socket.transport.abort()
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass

    def finish(self) -> None:
        """Nothing more will be put in."""
        self._put.close()

    async def write(self) -> None:
        """Send until the connection or the outbox is closed."""
        with self._take:
            try:
                async for item in self._take:
                    await self._write(item)
            except ConnectionClosed:
                pass

    async def _write(self, item: _Item) -> None:
        match item:
            case str():
                await self._socket.send(item)
            case _Close(code):
                await self._socket.close(code)
            case _Abort():
                self._socket.transport.abort()
            case _Deafen():
                self._socket.transport.pause_reading()
                await self._stopping.wait()
                self._socket.transport.abort()


class Wire:
    """Shapes events as the rules want them, and sends them over the link of the day; without one they are lost."""

    def __init__(self, rules: Rules, ledger: Ledger, changes: Changes) -> None:
        self._rules = rules
        self._ledger = ledger
        self._changes = changes
        self.link: Link | None = None

    @property
    def up(self) -> bool:
        """Is there a link?"""
        return self.link is not None

    def send(self, kind: str, **fields: Any) -> None:
        """Send an event of this type, as often as the rules say."""
        if self.link is None or kind in self._rules.omitted:
            return
        message: dict[str, Any] = {"type": kind, **fields, "timestamp": time.time()}
        if self._rules.oddities:
            message["x_trace"] = "7f3a"
        for _ in range(2 if kind in self._rules.doubled else 1):
            self.link.send(message)
            if kind != "reply.audio":
                self._ledger.note(f"<- {kind}")
                self._changes.notify()

    def raw(self, message: Mapping[str, Any]) -> None:
        """Send a message as it is."""
        if self.link is not None:
            self._ledger.note(f"<- {message.get('type', '')}")
            self.link.send(message)
            self._changes.notify()

    def error(self, refused: Refused) -> None:
        """Send a `session.error`."""
        keep(self._ledger.errors, refused.code)
        self.send("session.error", **_error(refused))

    def user_words(self, item_id: str, text: str) -> None:
        """Send the user's words so far; they are cumulative."""
        self.send("transcript.user.delta", item_id=item_id, **{self._rules.user_delta_field: text})

    def reply_started(self, reply: ReplyRecord) -> None:
        """A reply begins."""
        self.send("reply.started", reply_id=reply.reply_id)
        if self._rules.oddities:
            self.send("reply.content_part.started", reply_id=reply.reply_id)

    def reply_words(self, reply: ReplyRecord, text: str) -> None:
        """Send the words of a reply, one event each."""
        for number, word in enumerate(text.split()):
            spaced = f" {word}" if number and self._rules.spaced_words else word
            self.send("transcript.agent.delta", **self._of(reply), delta=spaced, start_ms=None, end_ms=None)

    def reply_audio(self, reply: ReplyRecord, data: bytes) -> None:
        """Send a piece of audio."""
        self.send("reply.audio", **self._of(reply), data=b64encode(data).decode())

    def reply_caption(self, reply: ReplyRecord, text: str, *, interrupted: bool) -> None:
        """Send the final text of a reply."""
        fields = {"reply_id": reply.reply_id, "item_id": f"msg_{reply.reply_id}", "text": text}
        self.send("transcript.agent", **fields, interrupted=interrupted)

    def reply_done(self, reply: ReplyRecord, *, interrupted: bool) -> None:
        """A reply is over."""
        if self._rules.oddities:
            self.send("reply.content_part.done", reply_id=reply.reply_id)
        if interrupted:
            self.send("reply.done", **self._of(reply), status="interrupted")
        elif self._rules.completed_status:
            self.send("reply.done", **self._of(reply), status="completed")
        else:
            self.send("reply.done", **self._of(reply))

    def tool_call(self, call: CallRecord, *, emptied: bool) -> None:
        """Ask for a tool; `emptied` takes the arguments away."""
        arguments = {} if emptied else call.arguments
        match self._rules.arguments:
            case ArgumentsForm.OBJECT:
                fields = {"arguments": arguments}
            case ArgumentsForm.ARGS:
                fields = {"args": arguments}
            case ArgumentsForm.TEXT:
                text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
                fields = {"arguments": text}
        self.send("tool.call", call_id=call.call_id, name=call.name, **fields)

    def _of(self, reply: ReplyRecord) -> dict[str, str]:
        return {"reply_id": reply.reply_id} if self._rules.reply_ids else {}


def _error(refused: Refused) -> dict[str, str]:
    fields = {"code": refused.code, "message": refused.message}
    return fields | {"param": refused.param} if refused.param else fields
