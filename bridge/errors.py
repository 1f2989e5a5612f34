"""Every exception the package raises.

    BridgeError
    ├── ConfigError                 wrong settings, tool definition or argument: raised where it is passed
    ├── ProviderError               what the provider said no to, with its code
    │   ├── AuthenticationFailed
    │   ├── ConfigurationRefused
    │   └── AtCapacity              may be tried again later
    ├── TransportError              connection refused or lost
    │   └── SessionClosed           used after its end
    ├── ApplicationTooSlow          the application does not take its events
    ├── JournalError                could not make something durable
    └── ToolError                   raised by tool code; its text is meant for the model
        ├── ToolNotFound
        ├── InvalidArguments
        ├── ToolBusy
        ├── ToolTimeout
        └── ToolUnavailable         what the tool needs is down; raised by tool code, too

A misbehaving provider is data (`Malformed`, `ProviderFailed`), not an exception. A `ToolError` never leaves the runner.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Base of all exceptions of this package."""


class ConfigError(BridgeError):
    """Settings or a tool definition cannot work as they are."""


class ProviderError(BridgeError):
    """The provider refused. `code` is its own word for the reason, `param` the field it names, if any."""

    def __init__(self, message: str, *, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class AuthenticationFailed(ProviderError):
    """The credentials were not accepted."""


class ConfigurationRefused(ProviderError):
    """A setting was not accepted; the session goes on only if it had been configured before."""


class AtCapacity(ProviderError):
    """The provider, or the account, has no room for another session now. Try again later."""


class TransportError(BridgeError):
    """The connection could not be made, or was lost. `close_code` is what its WebSocket was closed with, if it was."""

    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        super().__init__(message)
        self.close_code = close_code


class SessionClosed(TransportError):
    """The session has ended or is ending."""


class ApplicationTooSlow(BridgeError):
    """The host did not take its events, and the queue is full: iterate faster, or `await session.run()`."""


class JournalError(BridgeError):
    """Something could not be made durable, or what was made durable cannot be read: see to the disk or database.

    A running session never raises it: its tools with effects are answered "not available now" meanwhile.
    """


class ToolError(BridgeError):
    """Raise this in a tool to tell the model what went wrong, in your own words.

    The text of any other exception stays in the log.
    """


class ToolNotFound(ToolError):
    """No tool has this name."""


class InvalidArguments(ToolError):
    """The arguments do not fit the tool's schema."""


class ToolBusy(ToolError):
    """Too many calls wait already."""


class ToolTimeout(ToolError):
    """The tool did not end in time."""


class ToolUnavailable(ToolError):
    """The tool cannot be used now. Raise it where a service is down: after several it is not called for a while.

    Any other `ToolError` is an answer ("no such order"), and says nothing about the tool's health.
    """
