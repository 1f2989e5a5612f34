from __future__ import annotations

import array
import contextlib
import enum
import json
import math
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_serializer

from bridge.tools import TooLarge, Unencodable, encode
from bridge.tools.encode import decode, encodable


class Size(enum.Enum):
    SMALL = "small"
    ODD = timedelta(seconds=1)


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Fraction(float):
    __slots__ = ()


@dataclass
class Order:
    number: int
    price: Decimal
    _internal: str = "no"
    tags: set[str] = field(default_factory=set)


class Guest(BaseModel):
    name: str
    born: date
    secret: Any = None


class Matrix:
    """As arrays of numpy do it."""

    def tolist(self) -> list[list[float]]:
        return [[1.0, math.nan]]


Point = namedtuple("Point", "x y")

CASES: list[tuple[object, str]] = [
    (None, "null"),
    ("", '""'),
    (0, "0"),
    (False, "false"),
    ({}, "{}"),
    ([], "[]"),
    (0.0, "0.0"),
    ("Zoë ☎", '"Zoë ☎"'),
    (math.nan, "null"),
    ([math.inf, -math.inf], "[null,null]"),
    (datetime(2026, 9, 1, 12, 30, tzinfo=UTC), '"2026-09-01T12:30:00+00:00"'),
    (datetime(2026, 9, 1, 12, 30, 0, 5), '"2026-09-01T12:30:00.000005"'),
    (date(2026, 9, 1), '"2026-09-01"'),
    (time(9, 5), '"09:05:00"'),
    (time(9, 5, tzinfo=timezone(timedelta(hours=2))), '"09:05:00+02:00"'),
    (timedelta(), '"PT0S"'),
    (timedelta(hours=1, minutes=30), '"PT1H30M"'),
    (timedelta(days=2), '"P2D"'),
    (timedelta(days=1, seconds=3, milliseconds=500), '"P1DT3.5S"'),
    (-timedelta(minutes=1), '"-PT1M"'),
    (Decimal("12.50"), '"12.50"'),
    (Decimal("NaN"), "null"),
    (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (Size.SMALL, '"small"'),
    (Size.ODD, '"PT1S"'),
    (Level.HIGH, "3"),
    (Text("x"), '"x"'),
    (Fraction(0.5), "0.5"),
    (Order(1, Decimal("2")), '{"number":1,"price":"2","tags":[]}'),
    (Point(1, 2), '{"x":1,"y":2}'),
    (Guest(name="Ada", born=date(1815, 12, 10)), '{"name":"Ada","born":"1815-12-10","secret":null}'),
    ({3, 1, 2}, "[1,2,3]"),
    (frozenset({10, 9}), "[9,10]"),
    ({"b", 1, None}, '["b",1,null]'),
    ({"b": 1, "a": 2}.keys(), '["a","b"]'),
    ((1, 2), "[1,2]"),
    (deque([1]), "[1]"),
    (range(3), "[0,1,2]"),
    (b"\x00\xff", '"AP8="'),
    (bytearray(b"a"), '"YQ=="'),
    (memoryview(b"a"), '"YQ=="'),
    (PurePosixPath("/a/b"), '"/a/b"'),
    (MappingProxyType({"a": 1}), '{"a":1}'),
    (OrderedDict(a=1), '{"a":1}'),
    ({1: "a", None: "b", False: "c"}, '{"1":"a","null":"b","false":"c"}'),
    ({date(2026, 9, 1): 1, Size.SMALL: 2, Text("k"): 3, 1.5: 4}, '{"2026-09-01":1,"small":2,"k":3,"1.5":4}'),
    (2**70, "1180591620717411303424"),
    (array.array("i", [1, 2]), "[1,2]"),
    (Matrix(), "[[1.0,null]]"),
]


@pytest.mark.parametrize(("value", "text"), CASES, ids=lambda each: type(each).__name__)
def test_a_value_has_its_documented_form(value: object, text: str) -> None:
    assert encode(value) == text


@pytest.mark.parametrize(("value", "text"), CASES, ids=lambda each: type(each).__name__)
def test_a_value_beside_one_that_needs_the_slow_way_has_the_same_form(value: object, text: str) -> None:
    assert encode([value, 2**70]) == f"[{text},{2**70}]"


def test_lone_surrogates_are_replaced_and_pairs_are_joined() -> None:
    assert encode({"a\ud800": ["b\udfff", "\ud83d\ude00"]}) == '{"a\ufffd":["b\ufffd","😀"]}'


def test_a_surrogate_inside_a_model_is_replaced() -> None:
    assert json.loads(encode(Guest(name="\ud800", born=date(1, 1, 1))))["name"] == "\ufffd"


def test_a_model_may_hold_what_the_encoder_knows_and_pydantic_does_not() -> None:
    assert json.loads(encode(Guest(name="a", born=date(1, 1, 1), secret=range(2))))["secret"] == [0, 1]


class Opaque:
    def __repr__(self) -> str:
        return "hunter2"


class Broken(BaseModel):
    a: int = 1

    @field_serializer("a")
    def fail(self, value: int) -> int:
        raise RuntimeError("hunter2")


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        {"deep": [Opaque()]},
        Guest(name="a", born=date(1, 1, 1), secret=Opaque()),
        {Opaque(): 1},
        Broken(),
        (each for each in "hunter2"),
        ValueError("hunter2"),
        object,
        1j,
        {(1, 2): 3},
        10**5000,
    ],
    ids=lambda each: type(each).__name__,
)
def test_an_unknown_object_is_refused_without_its_repr(value: object) -> None:
    with pytest.raises(Unencodable) as caught:
        encode(value)
    assert "hunter2" not in str(caught.value)


def test_the_refusal_names_the_type() -> None:
    with pytest.raises(Unencodable, match="Opaque"):
        encode([{"a": {Opaque()}}])
    with pytest.raises(Unencodable, match="key of type tuple"):
        encode({(1, 2): 3})


def test_what_contains_itself_is_refused() -> None:
    ring: list[object] = []
    ring.append(ring)
    with pytest.raises(Unencodable, match="contains itself"):
        encode(ring)


def test_the_limit_counts_bytes_and_never_cuts() -> None:
    assert encode("é", limit=4) == '"é"'
    with pytest.raises(TooLarge, match=r"4 bytes.*at most 3"):
        encode("é", limit=3)
    with pytest.raises(TooLarge):
        encode("\ud800" * 10, limit=10)


LONG = 12345678901234567890123


@pytest.mark.parametrize("text", [f'{{"n":{LONG}}}', f'{{"n":-{LONG},"m":1.5}}', '{"n":1.5,"s":"é"}', "[]", "null"])
def test_what_is_decoded_is_encoded_to_the_same_digits(text: str) -> None:
    assert encode(decode(text)) == text


@pytest.mark.parametrize(
    "broken", ["", "{", "NaN", '"\\ud800"', "1e999", "9" * 5000, "1" * 30 + "x", f"[1e{'9' * 30}]"]
)
def test_what_is_no_json_is_not_decoded(broken: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        decode(broken)


def test_what_is_nested_deeply_is_decoded_or_refused() -> None:
    with contextlib.suppress(json.JSONDecodeError):
        decode("[" * 1000 + str(LONG) + "]" * 1000)


def test_what_has_no_json_form_can_be_shown_as_its_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    assert encodable(Odd()) == "odd"
    assert encodable(LONG) == LONG


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def _refuse(name: str) -> Callable[..., Any]:
    raise AssertionError(f"{name} is not JSON")


@given(json_values)
def test_every_encoded_value_is_strict_json(value: object) -> None:
    json.loads(encode(value), parse_constant=_refuse)
