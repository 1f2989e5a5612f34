"""Connections that lead where they may. A name is looked up here; the address that was checked is the one connected to.

Looking up and connecting separately would let a name mean a public address first and an inner one a moment later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import httpcore2

from .addresses import is_listed, is_public

__all__ = ["Forbidden", "Guard"]

_ELSEWHERE: Final = 1.0
"""Seconds for an address that is not the last one to try: many networks promise IPv6 and do not deliver it."""


class Forbidden(Exception):
    """The host has no address that may be connected to."""


class Guard(httpcore2.AsyncNetworkBackend):
    """Connects to public addresses, and to any address of the hosts that are listed."""

    def __init__(self, listed: frozenset[str]) -> None:
        self._listed = listed
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises `Forbidden`, `httpcore2.ConnectError` or `httpcore2.ConnectTimeout`."""
        *others, last = await self._addresses(host, port, timeout)
        for address in others:
            brief = _ELSEWHERE if timeout is None else min(timeout, _ELSEWHERE)
            try:
                return await self._network.connect_tcp(address, port, brief, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def _addresses(self, host: str, port: int, timeout: float | None) -> list[str]:
        found = await _looked_up(host, port, timeout)
        allowed = found if is_listed(host, port, self._listed) else [each for each in found if is_public(_bare(each))]
        if not allowed:
            raise Forbidden(f"its host is at {found[0]}, which is not public; if that is meant, list it: private_hosts")
        return allowed


async def _looked_up(host: str, port: int, timeout: float | None) -> list[str]:
    """The addresses of a host, in the order in which they should be tried."""
    try:
        async with asyncio.timeout(timeout):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except TimeoutError:
        raise httpcore2.ConnectTimeout("its host could not be looked up in time") from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name of a host"
        raise httpcore2.ConnectError(f"its host could not be looked up: {reason}") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _bare(address: str) -> IPv4Address | IPv6Address:
    return ip_address(address.partition("%")[0])
