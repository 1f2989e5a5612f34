"""Numbers keep all their digits, whichever way a message is read and written."""

from __future__ import annotations

import json

import pytest

from bridge.core.messages import decode, encode, parse, written

LONG = 41_111_111_111_111_111_111_111


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, LONG, -(2**63), -(2**63) - 1, 10**308])
def test_an_integer_of_any_length_is_read_and_written_as_it_was(number: int) -> None:
    text = f'{{"a":[{{"b":{number}}}]}}'
    message = {"a": [{"b": number}]}
    assert parse(text) == parse(text.encode()) == decode(text) == message
    assert decode(bytearray(text.encode())) == message
    assert written(message) == encode(message) == text


def test_a_large_number_with_a_fraction_stays_one() -> None:
    assert decode("[1e30, 2.5, -1e19]") == [1e30, 2.5, -1e19]
    assert [type(each) for each in decode(f"[1e30, {LONG}]")] == [float, int]


def test_a_long_integer_that_stands_too_deep_is_refused_rather_than_rounded() -> None:
    text = "[" * 1000 + str(LONG) + "]" * 1000
    with pytest.raises(json.JSONDecodeError):
        decode(text)
    assert parse(f'{{"a":{text}}}') is None


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [nested(1, 300), nested(LONG, 5000), "\ud800"])
def test_what_cannot_be_written_becomes_text_that_is_no_json(value: object) -> None:
    with pytest.raises(json.JSONDecodeError):
        decode(written(value))
