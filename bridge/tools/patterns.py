"""Regular expressions of others, matched in a time that grows with the text and no faster.

Python's own engine tries one way after the other, and holds the whole process meanwhile: thirty letters keep
`^(\\w+\\s?)*$` busy for minutes. The engine of pydantic does not go back, so it has no such patterns. In exchange it
knows no look-around, no back-references, and no repetition that would come to more than ten megabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

__all__ = ["additional", "is_light", "is_matchable", "matches"]

_KEPT: Final = 512
"""Patterns that are kept compiled; a large one takes a twentieth of a second."""
_LONGEST: Final = 10_000
"""Characters of a text that is looked at. A pattern may take ten microseconds for each."""
_HEAVIEST: Final = 8_000
"""Of a pattern of others. To compile it takes about a twentieth of a second, in which no other thread gets on."""
_PART: Final = re.compile(
    r"(\\[pP]\{[^}]{1,40}\}|\\.|\[(?:\\.|[^\]\\]){1,60}\]|.)(?:\{(\d{1,9})(?:,(\d{0,9}))?\})?", re.DOTALL
)
"""What can be repeated, and how often it is."""
_LETTERS: Final = re.compile(r"\\[wWpP]")
"""Classes that hold the letters of all scripts, so that each is a big machine of its own."""


def is_matchable(pattern: object) -> bool:
    """Is this a regular expression that can be matched here?"""
    return isinstance(pattern, str) and _compiled(pattern) is not None


def is_light(pattern: object) -> bool:
    """Can it be compiled without keeping everybody for long? What others send while calls go on has to be."""
    return not isinstance(pattern, str) or (len(pattern) <= _HEAVIEST and _weight(pattern) <= _HEAVIEST)


def _weight(pattern: str) -> int:
    """About how large it is once its repetitions are written out."""
    groups = [0]
    for part, least, most in _PART.findall(pattern):
        if part == "(":
            groups.append(0)
            continue
        weight = groups.pop() if part == ")" and len(groups) > 1 else _cost(part)
        groups[-1] += weight * int(most or least or 1)
    return sum(groups)


def _cost(part: str) -> int:
    if _LETTERS.search(part):
        return 100
    return 3 if part == "." or part.startswith(("[^", "\\")) else 1


def matches(pattern: str, text: str) -> bool:
    """Does it match some part of the text? None matches a text of more than ten thousand characters.

    Call it with what `is_matchable`.
    """
    compiled = _compiled(pattern)
    return compiled is not None and len(text) <= _LONGEST and compiled.isinstance_python(text)


def additional(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """The keys of an object that a schema names neither under `properties` nor under `patternProperties`."""
    known, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
    return (key for key in value if key not in known and not any(matches(each, key) for each in patterns))


@lru_cache(_KEPT)
def _compiled(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return None
