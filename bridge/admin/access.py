"""Who may do what over the admin port: tokens with scopes, and which names and web pages are let in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest

from ..errors import ConfigError

__all__ = ["Access", "Readers", "Scope", "Token"]


class Scope(Enum):
    """What a token allows."""

    READ = "read"
    """Look at sessions, calls, approvals and facts."""
    COMPLETE = "complete"
    """Say what came of a call that waits."""
    APPROVE = "approve"
    """Decide whether a call may run."""
    DRAIN = "drain"
    """Have the process take no new sessions."""


class Readers(Enum):
    """Who may look at sessions; what changes something always needs a token."""

    ANYBODY = "anybody"
    WITH_TOKEN = "with a token"


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token."""

    name: str
    """Whose it is, for the record: it stands for the person where a decision names nobody."""
    secret: str = field(repr=False)
    scopes: frozenset[Scope] = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in. Raises `ConfigError` for tokens that cannot be told apart, or are empty.

    `hosts`: names by which this port may be called; none means any. `origins`: web pages that may call it; none means
    none.
    """

    tokens: tuple[Token, ...] = ()
    readers: Readers = Readers.WITH_TOKEN
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for token in self.tokens:
            if not token.secret:
                raise ConfigError(f"the admin token {token.name!r} is empty: put a secret where it is read from")
        for what in ([token.name for token in self.tokens], [token.secret for token in self.tokens]):
            if len(set(what)) < len(what):
                raise ConfigError("two admin tokens have the same name, or the same secret: each needs its own")

    def whose(self, authorization: str) -> Token | None:
        """The token that a request shows in its `Authorization`, if it is one."""
        # All are compared, each in constant time, so that the time it takes tells nothing.
        scheme, _, sent = authorization.partition(" ")
        shown = sent.encode() if scheme.lower() == "bearer" else b""
        fits = [compare_digest(shown, each.secret.encode()) for each in self.tokens]
        return next((token for token, fit in zip(self.tokens, fits, strict=True) if fit), None)

    def refusal(self, host: str, origin: str | None) -> str:
        """Why a request under this name, from a page of this origin, is not let in; else empty.

        A page that makes a name of its own point here must not get in (DNS rebinding), nor any page by itself.
        """
        if origin is not None and origin not in self.origins:
            return "web pages of this origin are not let in: list it in admin.origins if it is yours"
        if self.hosts and _without_port(host).lower() not in self.hosts:
            return "this is not the name of this server: list it in admin.hosts if it is"
        return ""


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host
