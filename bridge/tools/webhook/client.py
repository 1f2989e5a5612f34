"""Sends the requests of HTTP tools: shared connections, signatures, redirects, and repeats within the deadline.

This needs the packages of the extra `http`, and so do only `connections` and `guard`, which it imports. It uses the
connections of httpcore2 and what httpx2 knows of addresses and compressed answers, but not its client, which logs
addresses with the arguments in them and sends the cookies of one caller with the call of the next.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpcore2
import httpx2
import stamina

from ...errors import ToolError, ToolTimeout, ToolUnavailable
from ..call import CallContext, session_of
from .answer import Again, Answer, Failed, result_of
from .connections import Connections
from .declaration import HttpTool
from .guard import Forbidden
from .request import Prepared, identity, prepared, redirected
from .signature import signed

__all__ = ["Client"]

logger = logging.getLogger("bridge.tools")

_CONNECT: Final = 3.0
"""Seconds for a connection to be made: who takes longer is down, and then there is time left to try again."""
_LONGEST_PAUSE: Final = 0.5
"""Seconds before a repeat, where the endpoint does not say how many."""
_MOST_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_REFUSAL_LIMIT: Final = 16 * 1024
"""Bytes that are read of an answer that is no success."""


class Client:
    """The connections that the tools of one source share."""

    def __init__(self) -> None:
        self._connections = Connections()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.aclose()

    async def call(self, tool: HttpTool, arguments: Mapping[str, Any], context: CallContext) -> object:
        """The result of one call. Raises `ToolError`."""
        deadline = time.monotonic() + tool.timeout
        request = prepared(tool, arguments, _secrets(tool))
        request = replace(request, headers=(*request.headers, *identity(context).items()))
        repeated = stamina.AsyncRetryingCaller(
            attempts=tool.attempts, timeout=None, wait_initial=0.1, wait_max=_LONGEST_PAUSE, wait_jitter=0.2
        )
        try:
            return await repeated(partial(_wait, deadline), self._attempt, tool, request, session_of(context))
        except Failed as failed:
            raise failed.error from None

    async def _attempt(self, tool: HttpTool, request: Prepared, session: str) -> object:
        began = time.monotonic()
        try:
            return result_of(await self._followed(tool, request), tool)
        except Failed as failed:
            failed.seconds = time.monotonic() - began
            # A plain error is an answer, such as "no such order"; all others say that something is wrong.
            level = logging.INFO if type(failed.error) is ToolError else logging.WARNING
            sent = f"{tool.method} {tool.url.partition('?')[0]}"
            logger.log(level, "tool %s: %s: %s, in session %s", tool.name, sent, failed, session)
            raise

    async def _followed(self, tool: HttpTool, request: Prepared) -> Answer:
        """The answer, at the end of all redirects, if they are to be followed."""
        for _ in range(1 + _MOST_REDIRECTS):
            answer = await self._exchange(tool, request)
            follow = tool.follow_redirects and answer.status in _REDIRECTS and not tool.expects(answer.status)
            if not follow or "location" not in answer.headers:
                return answer
            elsewhere = redirected(request, answer.status, answer.headers["location"])
            if elsewhere is None:
                raise Failed("it redirects to where no request can go", _broken(tool))
            request = elsewhere
        raise Failed(f"it redirects more than {_MOST_REDIRECTS} times", _broken(tool))

    async def _exchange(self, tool: HttpTool, request: Prepared) -> Answer:
        """One request and its answer. Raises `Failed`."""
        try:
            listed = frozenset(host.lower() for host in tool.private_hosts)
            async with self._connections.request(_on_the_wire(tool, request), listed) as answer:
                return await _received(tool, answer)
        except Forbidden as error:
            raise Failed(str(error), _broken(tool)) from None
        except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
            away = ToolUnavailable(f"{tool.name} cannot be reached now")
            raise Failed(f"it cannot be reached: {error}", away, Again.SOON) from None
        except httpcore2.TimeoutException:
            late = ToolTimeout(f"{tool.name} did not answer within {tool.timeout:g} s")
            raise Failed("it did not answer in time", late) from None
        except (httpcore2.NetworkError, httpcore2.RemoteProtocolError):
            raise Failed("the connection broke before a proper answer came", _lost(tool), Again.SOON) from None
        except (httpcore2.LocalProtocolError, httpx2.InvalidURL):
            raise Failed("the request cannot be sent as it is", _broken(tool)) from None
        except httpx2.DecodingError:
            raise Failed("the answer cannot be unpacked: see its Content-Encoding", _broken(tool)) from None


def _wait(deadline: float, error: Exception) -> bool | float:
    """How long to wait before a repeat: some seconds, or a short while (True); False if there shall be none.

    There is none if it could not end in time, taking as long as the attempt before.
    """
    match error:
        case Failed(again=Again.SOON) | Failed(again=Again.WHEN_TOLD, wait=float()):
            pause = _LONGEST_PAUSE if error.wait is None else error.wait
            in_time = time.monotonic() + pause + error.seconds < deadline
            return in_time and (True if error.wait is None else error.wait)
        case _:
            return False


def _secrets(tool: HttpTool) -> dict[str, str]:
    return {name: os.environ.get(variable, "").strip() for name, variable in tool.headers_env.items()}


def _on_the_wire(tool: HttpTool, request: Prepared) -> httpcore2.Request:
    """The request as it is sent: signed, if it goes to the endpoint itself."""
    url = httpx2.URL(request.url)
    headers = dict(request.headers)
    if tool.signing_key_env and urlsplit(request.url)[:2] == urlsplit(tool.url)[:2]:
        key, target = os.environ.get(tool.signing_key_env, "").strip(), url.raw_path.decode()
        headers |= signed(key, int(time.time()), request.method, target, request.body or b"")
    if request.body is not None:
        headers["content-length"] = str(len(request.body))
    fields = [(name.encode(), value.encode(errors="surrogateescape")) for name, value in headers.items()]
    return httpcore2.Request(
        request.method,
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=[(b"host", url.netloc), (b"user-agent", b"voice-tool-bridge"), *fields],
        content=request.body,
        extensions={"timeout": {"connect": min(_CONNECT, tool.timeout), "read": tool.timeout, "write": tool.timeout}},
    )


async def _received(tool: HttpTool, answer: httpcore2.Response) -> Answer:
    """The answer with as much of its body as is wanted, so that none can fill the memory."""
    unpacked = httpx2.Response(answer.status, headers=answer.headers, content=answer.aiter_stream())
    headers = {name.lower(): value for name, value in unpacked.headers.items()}
    if tool.expects(answer.status):
        most = tool.response_limit + 1
    else:
        most = _REFUSAL_LIMIT if 300 <= answer.status < 500 else 0
    return Answer(answer.status, headers, await _read(unpacked, most))


async def _read(answer: httpx2.Response, most: int) -> bytes:
    body = bytearray()
    if most:
        async with aclosing(answer.aiter_bytes()) as parts:
            async for part in parts:
                body += part
                if len(body) >= most:
                    break
    return bytes(body[:most])


def _broken(tool: HttpTool) -> ToolUnavailable:
    return ToolUnavailable(f"the tool {tool.name} failed")


def _lost(tool: HttpTool) -> ToolUnavailable:
    if tool.repeatable:
        return ToolUnavailable(f"the connection to {tool.name} was lost")
    return ToolUnavailable(f"the connection to {tool.name} was lost: it is not known whether it has done anything")
