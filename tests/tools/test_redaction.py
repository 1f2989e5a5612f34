"""What of a call may be shown."""

from __future__ import annotations

from datetime import date

import pytest

from bridge.tools.redaction import masked, shown


def test_only_what_is_opted_in_is_shown() -> None:
    arguments = {"city": "Oslo", "card": "4111", "day": date(2026, 5, 1)}
    assert shown(arguments, ("city", "day", "missing")) == '{"city":"Oslo","day":"2026-05-01"}'
    assert shown(arguments, ()) == ""
    assert shown({}, ("city",)) == ""


def test_whatever_an_argument_is_it_can_be_shown() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    arguments = {"n": 2**70, "table": {1: "a"}, "odd": Odd(), "half": "\ud800"}
    assert (
        shown(arguments, tuple(arguments))
        == '{"n":1180591620717411303424,"table":{"1":"a"},"odd":"odd","half":"\ufffd"}'
    )


def test_what_is_not_masked_keeps_its_digits() -> None:
    assert masked('{"card":"4111","n":1180591620717411303424}', ("card",)) == (
        '{"card":"(masked)","n":1180591620717411303424}'
    )


def test_a_long_text_is_shown_in_part() -> None:
    assert shown({"note": "x" * 300}, ("note",)) == '{"note":"' + "x" * 200 + '..."}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"card":"4111","city":"Oslo"}', '{"card":"(masked)","city":"Oslo"}'),
        ('{"pay":[{"card":{"number":1}},2]}', '{"pay":[{"card":"(masked)"},2]}'),
        ('"card"', '"card"'),
        ("not json 4111", '"(masked)"'),
    ],
)
def test_a_field_is_masked_at_any_depth(text: str, expected: str) -> None:
    assert masked(text, ("card",)) == expected


def test_where_nothing_is_to_be_masked_the_text_stays_as_it_was() -> None:
    assert masked('{ "a": 1 }', ()) == '{ "a": 1 }'
