"""Scenarios as files: the steps of any offline provider, written as tables.

    [[steps]]
    ask = { calls = [{ name = "stock_level", args = { sku = "B-17" } }] }

    [[steps]]
    answer = {}

A step is a table with one key, which names it (`await_results` for `AwaitResults`); what it holds are its fields. Rules
are a table of their own, in which the members of enums are named in small letters.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

__all__ = ["read_file", "read_rules", "read_steps", "refuse_others"]

_T = TypeVar("_T")
_STRICT = ConfigDict(extra="forbid")


def read_file(path: Path) -> Mapping[str, Any]:
    """The tables of a TOML or JSON file. Raises `OSError`, and `ValueError` for what is neither."""
    text = path.read_text()
    value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the file must hold an object")
    return value


def refuse_others(tables: Mapping[str, Any], *known: str) -> None:
    """Raises `ValueError` for a table that nobody reads."""
    if strange := sorted(tables.keys() - set(known)):
        raise ValueError(f"{strange[0]} is unknown; there are {', '.join(known)}")


def read_steps(entries: object, *kinds: type[Any], where: str = "steps") -> tuple[Any, ...]:
    """The steps of these kinds. Raises `ValueError` that says which one is wrong, and why."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ValueError(f"{where}: must be a list of tables")
    by_name = {_name(kind): kind for kind in kinds}
    return tuple(_step(entry, by_name, f"{where}.{number}") for number, entry in enumerate(entries))


def read_rules(table: Any, kind: type[_T]) -> _T:
    """The rules of a provider; what is left out is as by default. Raises `ValueError`."""
    if not isinstance(table, Mapping):
        raise ValueError("rules: must be a table")
    hints = get_type_hints(kind)
    return _checked(kind, {key: _member(hints.get(key), value) for key, value in table.items()}, "rules")


def _step(entry: Any, by_name: Mapping[str, type[Any]], where: str) -> Any:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise ValueError(f"{where}: must be a table with one key, the name of the step")
    ((name, fields),) = entry.items()
    if name not in by_name:
        raise ValueError(f"{where}: there is no step {name}; there are {', '.join(by_name)}")
    return _checked(by_name[name], fields, f"{where}.{name}")


def _checked(kind: type[_T], fields: Any, where: str) -> _T:
    # A dataclass takes no settings of its own here; around it they count.
    adapter: TypeAdapter[dict[str, _T]] = TypeAdapter(dict[str, kind], config=_STRICT)  # type: ignore[valid-type]  # at run time it is one
    try:
        return adapter.validate_python({"": fields})[""]
    except ValidationError as error:
        fault = error.errors()[0]
        at = ".".join(str(part) for part in fault["loc"] if part != "")
        raise ValueError(f"{where}{'.' if at else ''}{at}: {fault['msg']}") from None


def _member(hint: object, value: Any) -> Any:
    """The member of an enum that a text names; what is none stays, to be refused."""
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        return hint.__members__.get(value.upper(), value)
    return value


def _name(kind: type[Any]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
