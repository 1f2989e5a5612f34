"""Facts to JSON and back: every class, whatever its fields hold."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.dialect import Delivery
from bridge.core.events import AgentAudio, CallKey, Fact, Hold, Malformed, Passed, ProviderMessage, Run, ToolResult
from bridge.journal import Begun, Foreign, Lost
from bridge.journal.encoding import KINDS, _reader, decode, encode, escaped, result_from, result_text, unescaped

from .making import RESULT, RUN

# What a provider's JSON can hold, half surrogates included.
TEXT = st.text(st.characters(codec=None), max_size=20)
PLAIN: dict[type, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Whatever a field of this type may hold."""
    arguments = get_args(hint)
    if get_origin(hint) is tuple and arguments[-1] is Ellipsis:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if get_origin(hint) is tuple:
        return st.tuples(*map(values, arguments))
    if arguments:
        return st.one_of(map(values, arguments))
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        # The provider's own message is not written.
        return st.builds(hint, **{each.name: values(hints[each.name]) for each in fields(hint) if each.compare})
    if issubclass(hint, tuple):
        return st.builds(hint, *map(values, get_type_hints(hint).values()))
    return PLAIN[hint] if hint in PLAIN else st.from_type(hint)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_fact_comes_back_as_it_was(kind: type) -> None:
    @settings(deadline=None)
    @given(values(kind))
    def comes_back(fact: Any) -> None:
        name, body = encode(fact)
        assert name == kind.__name__
        assert json.loads(body) is not None
        assert decode(name, body) == fact

    comes_back()


def test_every_fact_can_be_written_but_a_voice() -> None:
    assert set(get_args(Fact)) - set(KINDS.values()) == {AgentAudio}
    with pytest.raises(ValueError, match="AgentAudio cannot be written"):
        encode(AgentAudio(b"\0\0"))


def test_the_providers_own_message_is_not_written() -> None:
    _, body = encode(ProviderMessage("x", message={"words": "secret"}))
    assert body == b'{"kind":"x"}'


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("Tomorrow", '{"a":1}'),
        ("Malformed", '{"reason":"x","since":1}'),
        ("Malformed", "{}"),
        ("Malformed", '{"reason":1}'),
        ("Malformed", '"x"'),
        ("Malformed", "{"),
        ("Lost", '{"entries":true}'),
        ("Hold", '{"key":[1],"reason":"USER"}'),
        ("Hold", '{"key":[1,"c"],"reason":"MOON"}'),
        ("Hold", '{"key":"c1","reason":"USER"}'),
        ("Sent", '{"keys":{}}'),
    ],
)
def test_what_this_version_does_not_know_is_kept_as_it_is(kind: str, body: str) -> None:
    kept = decode(kind, body.encode())
    assert kept == Foreign(kind, body.encode())
    assert encode(kept) == (kind, body.encode())


def test_a_field_that_an_older_version_had_not_has_its_default() -> None:
    assert decode("Hold", b'{"key":[1,"c1"]}') == Hold(CallKey(1, "c1"))
    assert decode("Begun", b'{"delivery":{"hold":false}}') == Begun(Delivery(hold=False))


def test_entries_of_this_version_can_be_read_by_every_later_one() -> None:
    """What stands in files must not change its meaning: these lines are never edited."""
    written = {
        "Run": '{"key":[1,"c1"],"call":'
        '{"call_id":"c1","name":"order","arguments":"{}","expects_result":true,"echo":[["a","1"]]}}',
        "Passed": '{"why":"LATE_RESULT","call_id":"c1"}',
        "Lost": '{"entries":3}',
        "Malformed": '{"reason":"no JSON"}',
        "Sent": '{"keys":[[1,"c1"],[2,"c2"]]}',
    }
    for kind, body in written.items():
        fact = decode(kind, body.encode())
        assert type(fact) is KINDS[kind]
        assert encode(fact) == (kind, body.encode())


def test_a_result_beside_its_claim_comes_back() -> None:
    assert result_from(result_text(RESULT)) == RESULT
    with pytest.raises(ValueError, match=r"\[\]"):
        result_from(b"[]")


@settings(deadline=None)
@given(TEXT)
def test_a_name_is_printable_ascii_and_comes_back(name: str) -> None:
    plain = escaped(name)
    assert plain.isascii()
    assert "\0" not in plain
    assert unescaped(plain) == name


@settings(deadline=None)
@given(TEXT, TEXT)
def test_two_names_stay_two(one: str, other: str) -> None:
    assert (escaped(one) == escaped(other)) is (one == other)


def test_the_kinds_have_names_of_their_own() -> None:
    assert isinstance(RUN, KINDS["Run"])
    assert {Run, Malformed, Passed, Lost, Begun} <= set(KINDS.values())
    assert ToolResult not in KINDS.values()


@pytest.mark.parametrize("hint", [set[str], bytes, "text"])
def test_a_fact_cannot_get_a_field_that_cannot_be_read_back(hint: Any) -> None:
    with pytest.raises(TypeError, match="a fact cannot hold"):
        _reader(hint)
