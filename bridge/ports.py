"""The ports of a sidecar: tried before anything begins, and reserved for workers that share one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from .admin import bound
from .errors import ConfigError
from .settings import AdminTable, ListenTable

__all__ = ["refuse_taken", "reserved"]


def refuse_taken(listen: ListenTable, admin: AdminTable) -> None:
    """Raises `ConfigError` with a line for each of the two ports that cannot be had."""
    faults = []
    try:
        with reserved(listen.host, listen.port, shared=listen.workers > 1):
            pass
    except ConfigError as fault:
        faults.append(str(fault))
    try:
        bound(admin.host, admin.port).close()
    except ConfigError as fault:
        faults.append(str(fault))
    if faults:
        raise ConfigError("\n".join(faults))


@contextmanager
def reserved(host: str, port: int, *, shared: bool) -> Iterator[int]:
    """A port on which nobody listens; 0 has become a number. Raises `ConfigError` if it cannot be had.

    One that is `shared` stays bound while workers come and go: without a listener the kernel gives it no connection.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        held = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise _no_port(host, port, fault) from None
    with held:
        try:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            held.bind(address)
        except OSError as fault:
            raise _no_port(host, port, fault) from None
        yield int(held.getsockname()[1])


def _no_port(host: str, port: int, fault: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {host}:{port}: {fault.strerror}; choose another port")
