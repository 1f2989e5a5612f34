"""The exception that says what a provider refused."""

from __future__ import annotations

from ..core.events import Failure, ProviderFailed
from ..errors import AtCapacity, AuthenticationFailed, ConfigurationRefused, ProviderError

__all__ = ["refused"]

_KINDS: dict[Failure, tuple[type[ProviderError], str]] = {
    Failure.CREDENTIALS: (AuthenticationFailed, "the API key was not accepted"),
    Failure.CAPACITY: (AtCapacity, "the provider has no room now; try again later"),
    Failure.SETUP: (ConfigurationRefused, "the provider refused a setting"),
}


def refused(event: ProviderFailed, variable: str = "") -> ProviderError:
    """With the provider's own code and words. `variable`: of the environment, where the key comes from."""
    said = f"{event.code or 'error'}: {event.text}" if event.text else event.code or "an error without a code"
    kind, hint = _KINDS.get(event.kind, (ProviderError, "the provider failed"))
    if event.kind is Failure.CREDENTIALS and variable:
        hint += f" (see the variable {variable}, unless it was passed)"
    where = f" (at {event.param})" if event.param else ""
    return kind(f"{hint}{where}: {said}", code=event.code, param=event.param)
