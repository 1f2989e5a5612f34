"""What a user says about tools that are no functions, in Python or in a table of the settings."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from ..errors import ConfigError

__all__ = ["Declared"]


class Declared(BaseModel):
    """Base of declarations. Raises `ConfigError` with all that is wrong, a line each, and no value: some are secrets.

    A table of the settings sets `is_table`, and raises pydantic's own `ValidationError`: whoever reads the settings
    tells its faults with all others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True)
    is_table: ClassVar[bool] = False

    def __init__(self, /, **said: Any) -> None:
        try:
            super().__init__(**said)
            return
        except ValidationError as error:
            if self.is_table:
                raise
            faults = error.errors(include_url=False, include_input=False)
        kind = type(self)
        raise ConfigError("\n".join(f"{kind.__name__}: {_line(kind, fault)}" for fault in faults))


def _line(declaration: type[Declared], fault: ErrorDetails) -> str:
    where = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where, declaration.model_fields, n=1)
        return f"{where} is unknown{f'; did you mean {near[0]}?' if near else ''}"
    message = fault["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{where}: {message}" if where else message
