"""Server-sent events: what happens, and which calls wait to be approved, as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
from starlette.responses import StreamingResponse
from starlette.types import Send

from .feed import End, Event, Feed, Reader
from .guard import Refused
from .plain import dumped
from .subject import Subject

__all__ = ["Streams", "resumed_after"]

_MAX_STREAMS = 64
_DIGITS = 18
"""Of the number of an event, at most."""
_ALIVE_SECONDS = 15.0
"""Between two signs of life where nothing happens, so that either end notices that the other has gone."""


class Streams:
    """Those that are open, of which there are only so many."""

    def __init__(self, subject: Subject, *, at_most: int = _MAX_STREAMS, alive: float = _ALIVE_SECONDS) -> None:
        self._subject = subject
        self._at_most = at_most
        self._alive = alive
        self._open = 0

    def facts(self, session: str | None, last: str | None) -> StreamingResponse:
        """What happens, in one session or all, after the event with the id `last` if there is one."""
        return self._response(self._facts(session, last))

    def approvals(self) -> StreamingResponse:
        """The calls that wait to be approved, those that come, and what becomes of them."""
        return self._response(self._approvals())

    def _response(self, lines: AsyncGenerator[str]) -> StreamingResponse:
        if self._open >= self._at_most:
            raise Refused(503, "too many streams are open: close some", retryable=True, headers={"retry-after": "30"})
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return _Stream(lines, headers)

    # ---------------------------------------------------------------------------------------------------- the lines

    async def _facts(self, session: str | None, last: str | None) -> AsyncGenerator[str]:
        feed = await self._subject.follow()
        async with self._reading(feed, resumed_after(feed, last)) as reader:
            yield ": open\n\n"
            fresh = True
            while (event := await self._next(reader)) is not End.CLOSED:
                match event:
                    case None:
                        yield ": alive\n\n"
                    case End.LOST:
                        yield _line("lost", {"error": "events are missing here: look at /v1/sessions and /v1/calls"})
                        if not fresh:
                            return  # it reads too slowly; it may come again
                    case Event(number, name, data):
                        if session is None or data.get("session", session) == session:
                            yield _line(name, data, f"{feed.life}-{number}")
                fresh = False

    async def _approvals(self) -> AsyncGenerator[str]:
        async with self._subject.attend() as feed, self._reading(feed, None) as reader:
            yield ": open\n\n"
            shown = set()  # several may tell of the same request
            for request in await self._subject.pending():
                shown.add(request["id"])
                yield _line("asked", request)
            while (event := await self._next(reader)) not in (End.CLOSED, End.LOST):
                match event:
                    case None:
                        yield ": alive\n\n"
                    case Event(_, "asked", data) if data["id"] not in shown:
                        shown.add(data["id"])
                        yield _line("asked", data)
                    case Event(_, "resolved", data) if data["id"] in shown:
                        shown.discard(data["id"])
                        yield _line("resolved", data)

    @asynccontextmanager
    async def _reading(self, feed: Feed, after: int | None) -> AsyncIterator[Reader]:
        reader = feed.reader(after)
        self._open += 1
        try:
            yield reader
        finally:
            self._open -= 1
            reader.close()

    async def _next(self, reader: Reader) -> Event | End | None:
        """What comes next; None if nothing does for a while."""
        with anyio.move_on_after(self._alive):
            return await reader.next()
        return None


class _Stream(StreamingResponse):
    """One that ends properly where its reader goes away in the middle of a line."""

    def __init__(self, lines: AsyncGenerator[str], headers: Mapping[str, str]) -> None:
        super().__init__(lines, headers=headers, media_type="text/event-stream")
        self._lines = lines

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._lines):
            await super().stream_response(send)


def resumed_after(feed: Feed, last: str | None) -> int | None:
    """The number of the event with this id; of one that this feed cannot know, a number that is surely lost."""
    if last is None:
        return None
    life, _, number = last.rpartition("-")
    known = life == feed.life and number.isdecimal() and len(number) <= _DIGITS
    return int(number) if known else -1


def _line(name: str, data: Mapping[str, Any], identity: str = "") -> str:
    about = f"id: {identity}\n" if identity else ""
    return f"{about}event: {name}\ndata: {dumped(data).decode()}\n\n"
