"""Which addresses of the network belong to everybody, and which lie inside of somebody's network.

A tool that can be led to an address of the inside reads what was never meant for it: the cloud's metadata, a database,
an admin page. So only public addresses are connected to, unless the host is listed.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

__all__ = ["is_listed", "is_public", "literal"]

_UNICAST: Final = IPv6Network("2000::/3")
"""All that has been given out for public use. What only carries IPv4 (NAT64, mapped) is not in it."""

_NOT_PUBLIC: Final = (
    IPv4Network("192.0.0.0/24"),  # for protocols (RFC 6890); Oracle's metadata
    IPv4Network("192.88.99.0/24"),  # relays of 6to4, given up (RFC 7526)
    IPv4Network("168.63.129.16/32"),  # a public address that Azure gives to the inside of its platform
    IPv6Network("2001::/23"),  # for protocols (RFC 2928); Teredo, which carries IPv4, is in it
    IPv6Network("2002::/16"),  # 6to4, which carries IPv4 (RFC 3056)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
)
"""What the tables of Python, or older ones, count as public."""


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """False for private, loopback, link-local, multicast, unspecified and reserved addresses, and for those of IPv6
    that carry one of IPv4, whatever that is."""
    if address.version == 6 and address not in _UNICAST:
        return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def literal(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a host is, if it is no name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_listed(host: str, port: int, listed: frozenset[str]) -> bool:
    """Is this host among those listed as `name` or `name:port`?"""
    shown = f"[{host}]" if ":" in host else host
    return not listed.isdisjoint({host, shown, f"{shown}:{port}"})
