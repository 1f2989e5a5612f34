"""A provider whose sessions are served over plain HTTP: an event stream, or polling, to read, and posts to write.

What makes it more than a client: a post whose fate is unknown is confirmed by reading the session back before anything
is posted again; an accepted answer that does not show is posted again; a stream that breaks is opened again, and what
was missed meanwhile is read from the session; and nothing of that is done more often than it helps. All that depends
on the provider is in its `HttpDialect`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn, assert_never

import anyio
import httpx2

from ..core.dialect import Endpoint, Message
from ..core.events import Frame, ReplyDone
from ..core.http import Heard, HttpDialect, Outcome, Request
from ..core.messages import decode, encode
from ..errors import ConfigError, TransportError
from .answers import Answer, json_object, retry_seconds
from .patience import Patience, Pauses

__all__ = ["HttpTransport"]

logger = logging.getLogger("bridge.http")

_DONE = "[DONE]"
"""How several providers end an event stream."""
_WAITING_FRAMES = 256


@dataclass(frozen=True, slots=True)
class _Posted:
    """An answer to a call that was accepted, and has not shown yet."""

    message: Message
    at: float
    times: int = 1
    shown: bool = False
    """Has the call left the list of those that wait, as heard last? An older list may be heard after a newer one."""


class HttpTransport:
    """One session. The first frame must be its setup: `{"create": ...}` or `{"attach": ...}`, see `core.http`."""

    def __init__(
        self, endpoint: Endpoint, dialect: HttpDialect, *, patience: Patience | None = None, max_size: int = 4 << 20
    ) -> None:
        """Events beyond `max_size` bytes are left out, answers beyond it end the session.

        Raises `ConfigError` for an impossible address.
        """
        if not endpoint.url.startswith(("https://", "http://")):
            raise ConfigError("the provider's url must be an HTTP address: https://host/path")
        self._patience = patience or Patience()
        self._dialect = dialect
        self._max_size = max_size
        timeout = httpx2.Timeout(self._patience.answer, connect=self._patience.connect)
        self._client = httpx2.AsyncClient(
            base_url=endpoint.url, headers=dict(endpoint.headers), timeout=timeout, verify=_tls()
        )
        self._put, self._take = anyio.create_memory_object_stream[Frame](_WAITING_FRAMES)
        self._lost: TransportError | None = None
        self._session_id = ""
        self._created = Heard()
        self._cursor = ""
        self._posted: dict[str, _Posted] = {}
        self._doubts = asyncio.Event()
        self._turn_ended = asyncio.Event()
        self._turn_ended.set()
        """Not set while somebody waits for it."""
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------------------- as a transport

    async def receive(self) -> Frame:
        """The next message of the provider. Raises `TransportError` when all has been heard and nothing will follow."""
        try:
            return await self._take.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise self._lost or TransportError("the session is over") from None

    async def send(self, frame: Frame) -> None:
        """Returns once the provider has taken it, or wants it no more. Raises `TransportError` if it cannot be told."""
        if self._lost is not None:
            raise self._lost
        try:
            await self._deliver(decode(frame))
        except TransportError as lost:
            self._lose(lost)
            raise

    async def aclose(self) -> None:
        """The session goes on at the provider; only nobody listens any more."""
        self._lose(TransportError("the connection was closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._take.close()
        await self._client.aclose()

    def _lose(self, lost: TransportError) -> None:
        self._lost = self._lost or lost
        self._put.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._until_lost(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_lost(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TransportError as lost:
            self._lose(lost)
        except Exception:
            logger.exception("session %s: a fault of its own", self._session_id)
            self._lose(TransportError("a fault of its own ended the session: see the log"))

    # ------------------------------------------------------------------------------------------- writing

    async def _deliver(self, message: Message, times: int = 1, *, limit: float = 0.0) -> None:
        """Post a message until its fate is known. What cannot be taken yet goes on by itself, until the `limit`."""
        call, key, pauses = self._dialect.answers(message), _key(), Pauses("a post was not taken", self._patience)
        while (request := self._dialect.request(self._session_id, message)) is not None:
            answer = await self._ask(request, key)
            match self._outcome(message, answer):
                case Outcome.DELIVERED:
                    return await self._delivered(message, answer, times)
                case Outcome.REFUSED:
                    return await self._refused(message, answer)
                case Outcome.ANSWERED:
                    logger.info("session %s: an answer is wanted no more (HTTP %d)", self._session_id, answer.status)
                    return
                case Outcome.OVER:
                    await self._end(message, answer)
                case Outcome.RETRY:
                    await self._rest(pauses, answer)
                case Outcome.LATER if not limit:
                    return self._start(self._deliver_later(message))  # what is behind it may be what the turn waits for
                case Outcome.LATER if _now() < limit:
                    await self._end_of_turn()
                case Outcome.LATER:
                    logger.warning("session %s: turns of others left no room for a message: given up", self._session_id)
                    return await self._tell(self._dialect.answered(message, answer.status, answer.body))
                case Outcome.CONFIRM:
                    await self._rest(pauses, answer)
                    if call not in await self._look():
                        return self._doubt(call, message, times)  # one reading may be stale
                    key = _key()  # the old one may stand for a post that came to nothing
                case outcome:
                    assert_never(outcome)
        await self._tell(self._dialect.answered(message, 200, {}))

    async def _deliver_later(self, message: Message) -> None:
        limit = _now() + self._patience.turn_of_others
        await self._end_of_turn()
        await self._deliver(message, limit=limit)

    async def _end_of_turn(self) -> None:
        """Wait for it; a while, since it may have been told already."""
        self._turn_ended.clear()
        with anyio.move_on_after(self._patience.longest_pause):
            await self._turn_ended.wait()

    def _outcome(self, message: Message, answer: Answer) -> Outcome:
        if answer.reached:
            return self._dialect.judge(message, answer.status, answer.body)
        if not self._session_id:
            raise TransportError("cannot connect to the provider: check its address, and the network")
        return Outcome.RETRY

    async def _delivered(self, message: Message, answer: Answer, times: int) -> None:
        heard = self._dialect.answered(message, answer.status, answer.body)
        if not self._session_id:
            if not heard.session_id:
                raise TransportError("the provider took the setup, and named no session: check its address")
            # What the setup's answer tells waits until somebody listens: what is sent then has its effects heard.
            self._session_id, self._created = heard.session_id, heard
            self._start(self._read())
            self._start(self._confirm())
            return
        await self._tell(heard)
        call = self._dialect.answers(message)
        if call:
            self._doubt(call, message, times)

    def _doubt(self, call: str, message: Message, times: int) -> None:
        self._posted[call] = _Posted(message, _now(), times)
        self._doubts.set()

    async def _refused(self, message: Message, answer: Answer) -> None:
        if self._session_id:  # that there will be none is told by whoever wanted it
            logger.warning("session %s: the provider refused a post (HTTP %d)", self._session_id, answer.status)
        await self._tell(self._dialect.answered(message, answer.status, answer.body))
        other = self._dialect.instead(message)
        if other is not None:
            await self._deliver(other)

    # ------------------------------------------------------------------------------------------- confirming

    async def _confirm(self) -> None:
        """Look for answers that were accepted and have not shown. Accepted is not done."""
        while True:
            await self._doubts.wait()
            oldest = min((posted.at for posted in self._posted.values()), default=None)
            if oldest is None:
                self._doubts.clear()
                continue
            await asyncio.sleep(oldest + self._patience.confirm_after - _now())
            await self._post_again({c: p for c, p in self._posted.items() if self._is_late(p)})

    def _is_late(self, posted: _Posted) -> bool:
        return _now() - posted.at >= self._patience.confirm_after

    async def _post_again(self, late: Mapping[str, _Posted]) -> None:
        waiting = frozenset[str]() if all(posted.shown for posted in late.values()) else await self._look()
        for call, posted in late.items():
            self._posted.pop(call, None)
            if call not in waiting:
                continue
            what = f"session {self._session_id}: the answer to call {call}"
            if posted.times > self._patience.confirmations:
                logger.error("%s was accepted %d times, and is still waited for: given up", what, posted.times)
                continue
            logger.warning("%s was accepted, and is still waited for: it is posted again", what)
            await self._deliver(posted.message, posted.times + 1)

    async def _look(self) -> frozenset[str]:
        """Read the session, tell what it says, and return the calls it waits for."""
        return await self._fetch(self._dialect.look(self._session_id), until_it_says=True)

    async def _fetch(self, request: Request, *, until_it_says: bool = False) -> frozenset[str]:
        """Read something until that succeeds, tell what it says, and return the calls that wait, if it must say."""
        pauses = Pauses("the session could not be read", self._patience)
        while True:
            answer = await self._ask(request)
            outcome = self._outcome({}, answer)
            if outcome is Outcome.OVER:
                await self._end({}, answer)
            if outcome is Outcome.DELIVERED:
                heard = self._seen(answer.body)
                await self._tell(heard)
                waiting = [calls for calls in map(self._dialect.pending, heard.messages) if calls is not None]
                if waiting or not until_it_says:
                    return frozenset[str]().union(*waiting)
            await self._rest(pauses, answer)

    # ------------------------------------------------------------------------------------------- reading

    async def _read(self) -> None:
        """Listen until the session is over, over one connection after the other."""
        pauses = Pauses("the provider could not be listened to", self._patience)
        while True:
            request = self._dialect.read(self._session_id, self._cursor)
            began = _now()
            answer, heard = await (self._listen(request) if request.streams else self._poll(request))
            outcome = self._outcome({}, answer)
            if outcome is Outcome.OVER:
                await self._end({}, answer)
            if outcome is Outcome.DELIVERED:
                pauses.went_well(_now() - began)
                if not request.streams and not heard.messages:
                    await self._fetch(self._dialect.look(self._session_id))  # nothing new may be the end
            if request.streams or not heard.messages:
                await self._rest(pauses, answer)

    async def _poll(self, request: Request) -> tuple[Answer, Heard]:
        """Ask once."""
        if self._created.messages:
            await self._catch_up()
        answer = await self._ask(request, patience=self._patience.silence)
        heard = self._seen(answer.body) if answer.body and answer.status == 200 else Heard()
        await self._tell(heard)
        return answer, heard

    async def _listen(self, request: Request) -> tuple[Answer, Heard]:
        """Listen to one event stream, to its end."""
        timeout = httpx2.Timeout(self._patience.silence, connect=self._patience.connect)
        last, answer = Heard(), Answer(0, {})
        try:
            async with self._client.stream(request.method, request.path, timeout=timeout) as response:
                if response.status_code != 200:
                    return await self._answer(response), last
                answer = Answer(200, {})
                await self._catch_up()
                async for event in httpx2.EventSource(response, max_event_size=self._max_size):
                    message = json_object(event.data.encode())
                    if message:
                        last = self._seen(message)
                        await self._tell(last)
                    elif event.data != _DONE:
                        await self._pass_on(event.data)  # to be told as something broken
        except httpx2.HTTPError as error:
            reason = type(error).__name__
            logger.info("session %s: the event stream broke (%s), and is opened again", self._session_id, reason)
        return answer, last

    async def _catch_up(self) -> None:
        """A stream never repeats what it said before: what the session is now is read after it has been opened."""
        created, self._created = self._created, Heard()
        await self._tell(created)
        missed = self._dialect.missed(self._session_id)
        if missed is not None:
            await self._fetch(missed)
        await self._look()

    def _seen(self, body: Message) -> Heard:
        """What this tells; whoever reads next goes on from there."""
        heard = self._dialect.seen(body, self._cursor)
        self._cursor = heard.cursor or self._cursor
        return heard

    async def _tell(self, heard: Heard) -> None:
        """Pass on what was heard. Raises `TransportError` if nothing will follow."""
        for message in heard.messages:
            pending = self._dialect.pending(message)
            if pending is not None:
                self._posted = {
                    call: replace(posted, shown=call not in pending) for call, posted in self._posted.items()
                }
            if not self._turn_ended.is_set() and self._ends_turn(message):
                self._turn_ended.set()
            await self._pass_on(encode(message))
        if heard.over:
            raise TransportError("the provider ended the session")

    def _ends_turn(self, message: Message) -> bool:
        return any(isinstance(event, ReplyDone) for event in self._dialect.decode_server(message))

    async def _pass_on(self, frame: Frame) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # nobody reads any more
            await self._put.send(frame)

    async def _end(self, message: Message, answer: Answer) -> NoReturn:
        """Tell why nothing will follow, and raise `TransportError`."""
        await self._tell(self._dialect.answered(message, answer.status, answer.body))
        why = "check that the session still exists, and the key"
        raise TransportError(f"the provider does not go on with the session (HTTP {answer.status}): {why}")

    # ------------------------------------------------------------------------------------------- one request

    async def _ask(self, request: Request, key: str = "", *, patience: float | None = None) -> Answer:
        headers = {"idempotency-key": key} if request.keyed and key else {}
        body: dict[str, Any] = {} if request.body is None else {"json": request.body}
        timeout = httpx2.Timeout(patience or self._patience.answer, connect=self._patience.connect)
        try:
            async with self._client.stream(
                request.method, request.path, headers=headers, timeout=timeout, **body
            ) as response:
                return await self._answer(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout):
            return Answer(0, {}, reached=False)
        except httpx2.HTTPError:
            return Answer(0, {})

    async def _answer(self, response: httpx2.Response) -> Answer:
        data = bytearray()
        async for chunk in response.aiter_bytes():
            data += chunk
            if len(data) > self._max_size:  # it would be no shorter the next time
                limit = f"{self._max_size:,} bytes"
                raise TransportError(f"an answer of the provider is over {limit}: raise SessionOptions.max_frame")
        return Answer(response.status_code, json_object(data), retry_seconds(response.headers.get("retry-after", "")))

    async def _rest(self, pauses: Pauses, answer: Answer) -> None:
        """Wait before the next try, as long as the provider says, and ever longer if it says nothing."""
        last = f"HTTP {answer.status}" if answer.status else "no answer"
        seconds = max(pauses.next(last), answer.retry_after)
        if seconds > self._patience.give_up:
            raise TransportError(f"the provider asks to come back in {seconds:g} s, which is too long to wait")
        await asyncio.sleep(seconds)


@cache
def _tls() -> ssl.SSLContext:
    """One for all sessions: to make one takes long, and memory."""
    return httpx2.create_ssl_context()


def _key() -> str:
    return secrets.token_hex(16)


def _now() -> float:
    return asyncio.get_running_loop().time()
