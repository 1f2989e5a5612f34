"""What the typed settings of all providers have in common: how they are checked, and how faults in them are told.

What cannot be right (a wrong type, an unknown name) raises `ConfigError` with all faults at once; what is merely not
documented (a value out of range, a word nobody knows) is warned about and sent, since the provider may have learned it
since.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from bridge.errors import ConfigError

__all__ = [
    "Documented",
    "Extra",
    "HttpSettings",
    "HttpUrl",
    "Settings",
    "between",
    "joined",
    "merged",
    "one_of",
    "some_of",
]


# --------------------------------------------------------------------------------------------------- kinds of values


@dataclass(frozen=True, slots=True)
class Documented:
    """What the provider documents for a setting; other values are warned about and sent."""

    range: str
    holds: Callable[[Any], bool]


def between(low: float, high: float, unit: str = "") -> Documented:
    """A number from `low` to `high` is documented."""
    return Documented(f"{low} to {high} {unit}".rstrip(), lambda value: low <= value <= high)


def one_of(*words: str) -> Documented:
    """One of these words is documented."""
    return Documented("one of " + ", ".join(words), lambda value: value in words)


def some_of(*words: str) -> Documented:
    """A list of some of these words is documented."""
    return Documented("some of " + ", ".join(words), lambda value: set(value) <= set(words))


def _is_json(extra: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(extra)
    except TypeError:
        raise ValueError("must hold nothing but JSON values") from None
    return extra


def _is_http(url: str) -> str:
    if url and not url.startswith(("http://", "https://")):
        raise ValueError("must begin with https:// or http://")
    return url


Extra = Annotated[dict[str, Any], AfterValidator(_is_json)]
"""Fields of the provider's that no setting has."""

HttpUrl = Annotated[str, AfterValidator(_is_http)]
"""An HTTP address, or empty."""


# ---------------------------------------------------------------------------------------------------------- the base


class Settings(BaseModel):
    """Base of all settings: strict about types and names, lenient about values."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, dict):
            return handler(data)  # settings within settings: checked when they were made
        try:
            settings = handler(data)
        except ValidationError as error:
            raise ConfigError(_faults(cls, error)) from None
        for name, field in cls.model_fields.items():
            value = getattr(settings, name)
            for documented in field.metadata:
                if isinstance(documented, Documented) and value is not None and not documented.holds(value):
                    note = f"{cls.__name__}: {name}={value!r:.60} is sent, but {documented.range} is documented"
                    warnings.warn(note, UserWarning, stacklevel=3)
        return settings


def _faults(settings: type[Settings], error: ValidationError) -> str:
    lines = (_fault(settings, str(fault["loc"][0]), fault) for fault in error.errors())
    return "\n".join([f"{settings.__name__} cannot be used like this:", *(f"  {line}" for line in lines)])


def _fault(settings: type[Settings], name: str, fault: ErrorDetails) -> str:
    """One line: the setting, what is allowed, what was found. Of a secret only the type is named."""
    known = settings.model_fields
    match fault["type"]:
        case "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"; did you mean {near[0]}?" if near else "."
            return (
                f"{name} is no known setting{guess} What the provider has added since goes into `extra` of the agent."
            )
        case "missing":
            return f"{name} is missing"
    where = ".".join(map(str, fault["loc"]))
    rule = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    found = fault["input"]
    shown = f" {found!r:.60}" if known[name].repr else ""
    return f"{where}: {rule}; found {type(found).__name__}{shown}"


class HttpSettings(Settings):
    """Base of the settings of a session over HTTP: one that they create, or one that exists, named by `session_id`."""

    beside_session_id: ClassVar[frozenset[str]] = frozenset({"session_id", "url"})
    """What may be set where a session is named that exists."""

    session_id: str | None = None
    """Attach to this session, and serve its tools that have the names of ours; what creates one is then left out."""
    extra: Extra = Field(default_factory=dict, repr=False)
    """Further fields of the body that creates the session, merged into it; where both say something, `extra` wins."""

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Self:
        given = sorted(self.model_fields_set - self.beside_session_id)
        if self.session_id is not None and given:
            name = type(self).__name__
            raise ConfigError(f"{name}: session_id names a session that exists; leave out {', '.join(given)}")
        return self

    @property
    def input_rate(self) -> tuple[int, int]:
        """There is no audio; a rate there must be."""
        return (2, 24_000)

    @property
    def output_rate(self) -> tuple[int, int]:
        """There is no audio; a rate there must be."""
        return (2, 24_000)


def joined(*texts: str | None) -> str:
    """Paragraphs of what there is."""
    return "\n\n".join(text for text in texts if text)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one, at every depth; where they differ, `over` wins."""
    both = dict(base)
    for key, value in over.items():
        below = both.get(key)
        both[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return both
