from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import ConfigError, InvalidArguments
from bridge.tools.foreign import accept, safe_name
from bridge.tools.patterns import is_light

SECRET = "hunter2"

BOOKING = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "title": "Booking",
    "properties": {
        "guests": {"type": "integer", "minimum": 1, "maximum": 8, "title": "Guests"},
        "price": {"type": "number"},
        "paid": {"type": "boolean", "default": False},
        "note": {"type": ["string", "null"], "maxLength": 5},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    },
    "required": ["guests"],
}
EXPECTED = (
    "Expected: guests (integer), price (number, optional), paid (boolean, optional), "
    "note (string or null, optional), unit (one of c, f, optional), tags (array, optional)"
)


def shown(schema: dict[str, Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(accept(schema, name="tool").schema)
    return value


def checked(schema: dict[str, Any], arguments: str) -> dict[str, Any]:
    return accept(schema, name="tool").check(arguments)


def complaint(schema: dict[str, Any], arguments: str) -> str:
    with pytest.raises(InvalidArguments) as caught:
        checked(schema, arguments)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def refusal(schema: Any) -> str:
    with pytest.raises(ConfigError, match=r"^tool tool: ") as caught:
        accept(schema, name="tool")
    return str(caught.value)


def of(parameter: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": parameter}, **more}


# ------------------------------------------------------------------------------------------------------ the plain form


def test_titles_and_the_language_of_a_schema_are_left_out_and_its_description_is_the_tools() -> None:
    accepted = accept({**BOOKING, "description": "Books."}, name="tool")
    schema = json.loads(accepted.schema)
    assert accepted.description == "Books."
    assert accepted.hidden is None
    assert not schema.keys() & {"$schema", "title", "description"}
    assert schema["properties"]["guests"] == {"type": "integer", "minimum": 1, "maximum": 8}


def test_an_empty_schema_takes_no_arguments() -> None:
    assert shown({}) == {"type": "object", "properties": {}}
    assert checked({}, "null") == {}


@pytest.mark.parametrize("name", ["title", "$ref", "$schema", "$defs", "definitions", "pattern", "type", "items"])
def test_a_parameter_may_have_the_name_of_a_keyword(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    assert shown(schema) == schema
    assert checked(schema, f'{{"{name}":1}}') == {name: 1}


def test_data_in_a_schema_is_left_as_it_is() -> None:
    parameter = {"default": {"title": "x", "$ref": "y"}, "enum": [{"title": "x", "$ref": "y"}]}
    assert shown(of(parameter))["properties"]["a"] == parameter


def test_references_are_put_in_place_wherever_schemas_stand() -> None:
    kind = {"type": "integer"}
    positions = {
        "anyOf": [{"$ref": "#/$defs/kind"}],
        "items": {"$ref": "#/$defs/kind"},
        "patternProperties": {"^x": {"$ref": "#/definitions/kind"}},
        "not": {"$ref": "#/properties/plain"},
        "additionalProperties": {"$ref": "#/$defs/list/anyOf/0"},
        "prefixItems": [True, {"$ref": "#/$defs/sl~1ash~0%20"}],
    }
    schema = {
        "properties": {"a": positions, "plain": kind},
        "$defs": {"kind": kind, "list": {"anyOf": [kind]}, "sl/ash~ ": kind},
        "definitions": {"kind": kind},
    }
    assert shown(schema)["properties"]["a"] == {
        "anyOf": [kind],
        "items": kind,
        "patternProperties": {"^x": kind},
        "not": kind,
        "additionalProperties": kind,
        "prefixItems": [True, kind],
    }


def test_the_whole_schema_may_be_a_reference() -> None:
    assert shown({"$ref": "#/definitions/A", "definitions": {"A": of({"type": "string"})}}) == of({"type": "string"})


def test_words_beside_a_reference_win_and_limits_beside_it_count_too() -> None:
    schema = of({"$ref": "#/$defs/n", "description": "mine", "minimum": 3})
    schema["$defs"] = {"n": {"type": "integer", "minimum": 1, "maximum": 5, "description": "theirs"}}
    limits = shown(schema)["properties"]["a"]
    assert limits["description"] == "mine"
    assert "a: should be greater than or equal to 3" in complaint(schema, '{"a":2}')
    assert "a: should be less than or equal to 5" in complaint(schema, '{"a":6}')
    assert checked(schema, '{"a":"4"}') == {"a": 4}
    schema["properties"]["a"] = {"$ref": "#/$defs/n", "description": "mine"}
    assert shown(schema)["properties"]["a"] == {"type": "integer", "minimum": 1, "maximum": 5, "description": "mine"}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (of({"$ref": "#"}), "it contains itself"),
        (of({"$ref": "#/$defs/T"}, **{"$defs": {"T": {"items": {"$ref": "#/$defs/T"}}}}), "type T contains itself"),
        (of({"$ref": "#/properties/b"}) | {"properties": {"a": {"items": {"$ref": "#/properties/a"}}}}, "itself"),
        (of({"$dynamicRef": "#node"}), "dynamic reference"),
        (of({"$ref": "https://example.org/schema.json"}), "leads out of it"),
        (of({"$ref": "#anchor"}), "leads out of it"),
        (of({"$ref": 3}), "leads out of it"),
        (of({"$ref": "#/$defs/none"}), "points at nothing"),
        (of({"$ref": "#/properties/a/0"}, allOf=[]), "points at nothing"),
        (of({"$ref": "#/allOf/x"}, allOf=[{}]), "points at nothing"),
        ({"type": "string"}, "must be an object"),
        ({"type": ["object", "null"]}, "must be an object"),
        ({"$ref": "#/$defs/n", "$defs": {"n": True}, "type": "string"}, "must be an object"),
        (of("string"), "a str stands where a schema should"),
        ({"properties": ["a"]}, "properties must be a table of schemas"),
        ({"anyOf": {"type": "object"}}, "anyOf must be a list of schemas"),
        (of({"type": "strin"}), "not valid at properties.a.type"),
        ({"required": "a"}, "not valid at required"),
        (of({"default": object()}), "cannot be written as JSON"),
        (of({"enum": ["x" * 70_000]}), "more than 64 KiB"),
    ],
)
def test_a_schema_that_no_model_could_be_told_is_refused_with_the_reason(schema: Any, words: str) -> None:
    assert words in refusal(schema)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"items": deep}
    assert "more than 32 schemas lie in each other" in refusal(of(deep))


def test_a_small_schema_that_would_come_to_a_huge_one_is_refused() -> None:
    laughs = {f"l{n}": {"properties": {str(i): {"$ref": f"#/$defs/l{n + 1}"} for i in range(10)}} for n in range(9)}
    assert "more than 64 KiB" in refusal(of({"$ref": "#/$defs/l0"}, **{"$defs": {**laughs, "l9": {}}}))


UNMATCHABLE = ["(?=a)b", r"(a)\1", "[", "a{99999999999999999999}", "(" * 3000 + ")" * 3000, r"(\w{1,90}){9}"]


@pytest.mark.parametrize("pattern", UNMATCHABLE, ids=range(len(UNMATCHABLE)))
def test_a_pattern_that_cannot_be_matched_is_left_out_with_a_warning(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = of({"type": "string", "pattern": pattern}) | {"patternProperties": {pattern: {}}}
    with caplog.at_level(logging.WARNING, "bridge.tools"):
        assert shown(schema) == of({"type": "string"}, patternProperties={})
    assert caplog.text.count("tool tool: a pattern is left out") == 2


@pytest.mark.parametrize(
    "pattern",
    [r"\w{81}", r"[\w-]{81}", r"(x|\p{L}{13}){10,10}", r"((\W{4}){8}){5}", ".{5000,}", r"[^a]{5000}", "x" * 8001],
)
def test_a_pattern_that_would_keep_everybody_while_it_is_compiled_is_left_out(
    pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert shown(of({"type": "string", "pattern": pattern})) == of({"type": "string"})
    assert "a pattern is left out" in caplog.text


@pytest.mark.parametrize(
    "pattern", [r"^\w{1,64}$", r"^[\w.+-]+@[\w-]+\.[a-z]{2,63}$", r"(\d{3}-){2}\d{4}", ".{1,1000}", "a)", r"\("]
)
def test_patterns_as_people_write_them_are_light(pattern: str) -> None:
    assert is_light(pattern)


def test_in_a_schema_of_the_users_own_a_heavy_pattern_is_kept() -> None:
    kept = accept(of({"type": "string", "pattern": ".{5000}"}), name="tool", own=True)
    assert ".{5000}" in kept.schema


def test_in_a_schema_of_the_users_own_such_a_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the pattern '\^\(\?!admin\)' cannot be matched: no look-around"):
        accept(of({"pattern": "^(?!admin)"}), name="tool", own=True)


def test_a_pattern_matches_what_it_matches_in_json_schema() -> None:
    assert checked(of({"pattern": r"^\p{L}+$"}), '{"a":"Zoë"}') == {"a": "Zoë"}
    assert checked(of({"pattern": r"b"}), '{"a":"abc"}') == {"a": "abc"}
    assert checked(of({"pattern": r"b"}), '{"a":5}') == {"a": 5}
    assert "should match the pattern" in complaint(of({"pattern": "^a$"}), r'{"a":"a\n"}')


HOPELESS = r"^(\w+\s?)*$"
"""Python's own engine takes twice as long for each letter more: for forty of them a day."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "schema",
    [
        of({"pattern": HOPELESS}),
        of({"propertyNames": {"pattern": HOPELESS}}),
        of({"patternProperties": {HOPELESS: {}}, "additionalProperties": False}),
        of({"patternProperties": {HOPELESS: {}}, "unevaluatedProperties": False}),
        of({"anyOf": [{"pattern": HOPELESS}, {"patternProperties": {HOPELESS: {"type": "integer"}}}]}),
    ],
    ids=["a value", "names", "names that are known", "names that are not evaluated", "a union"],
)
def test_no_pattern_can_keep_the_process_for_ever(schema: dict[str, Any]) -> None:
    for size in (40, 9_999, 100_000):
        text = "a" * size + "!"
        for value in (text, {text: 1}):
            with contextlib.suppress(InvalidArguments):
                checked(schema, json.dumps({"a": value}))


def test_a_text_that_is_too_long_to_be_looked_at_matches_no_pattern() -> None:
    assert checked(of({"pattern": "a"}), json.dumps({"a": "a" * 10_000}))
    assert "should match the pattern a" in complaint(of({"pattern": "a"}), json.dumps({"a": "a" * 10_001}))


@pytest.mark.timeout(60)
def test_a_long_list_whose_items_have_to_differ_is_checked_quickly() -> None:
    items: list[Any] = [{"n": n} for n in range(20_000)]
    schema = of({"uniqueItems": True})
    assert checked(schema, json.dumps({"a": items})) == {"a": items}
    assert complaint(schema, json.dumps({"a": [*items, {"n": 7}]})).startswith("a is not accepted")
    assert checked(of({"uniqueItems": False}), '{"a":[1,1]}') == {"a": [1, 1]}
    assert checked(schema, '{"a":[1,true,"1"]}') == {"a": [1, True, "1"]}


def test_keys_that_a_pattern_names_are_no_extras() -> None:
    schema = of({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False})
    assert checked(schema, '{"a":{"x1":1}}') == {"a": {"x1": 1}}
    assert complaint(schema, '{"a":{"x1":1,"y":1}}').startswith("a: a name that was sent is not a parameter. ")
    assert complaint(schema, '{"a":{"x1":"one"}}').startswith("a: should be integer. ")


@pytest.mark.parametrize("language", [None, 5, {}, [], "", "http://json-schema.org/draft-03/schema#", "urn:mine"])
def test_a_schema_in_an_unknown_language_is_read_as_the_latest_one(language: Any) -> None:
    assert checked(of({"type": "integer"}, **{"$schema": language}), '{"a":"1"}') == {"a": 1}
    assert "not valid at required" in refusal(of({}, **{"$schema": language, "required": True}))


def test_a_schema_may_be_of_an_older_draft() -> None:
    schema = of({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}})
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    assert checked(schema, '{"a":["1","true"]}') == {"a": [1, True]}
    assert "a.1: should be boolean" in complaint(schema, '{"a":[1,2]}')


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    monkeypatch.delitem(sys.modules, "bridge.tools.validator", raising=False)
    assert refusal({}) == "tool tool: jsonschema is missing: pip install 'voice-tool-bridge[http]'"


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("nothing", ["", "  ", "null", " null\n", "{}"])
def test_no_arguments_count_as_an_empty_object(nothing: str) -> None:
    assert checked(of({"type": "integer"}), nothing) == {}
    assert complaint(BOOKING, nothing) == f"guests is missing. {EXPECTED}"


@pytest.mark.parametrize("broken", ["{", '{"guests":1', "nul", "{'guests':1}", '{"note":"\\ud800"}', '{"guests":NaN}'])
def test_broken_json_is_refused_and_the_parameters_are_named(broken: str) -> None:
    text = complaint(BOOKING, broken)
    assert text.startswith("the arguments are not valid JSON (")
    assert text.endswith(EXPECTED)


def test_a_number_of_any_length_keeps_its_digits() -> None:
    for kind in ("integer", "number"):
        assert checked(of({"type": kind}), '{"a":12345678901234567890123}') == {"a": 12345678901234567890123}


@pytest.mark.parametrize("value", ["[]", "3", '"x"', "true"])
def test_json_that_is_no_object_is_refused(value: str) -> None:
    assert complaint(BOOKING, value) == f"the arguments are not a JSON object. {EXPECTED}"
    assert complaint({}, value).endswith("Expected: no arguments")


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ({"guests": "3"}, {"guests": 3}),
        ({"guests": " 3 "}, {"guests": 3}),
        ({"guests": 3.0}, {"guests": 3}),
        ({"guests": "3.0"}, {"guests": 3}),
        ({"guests": 1, "price": "2.50"}, {"guests": 1, "price": 2.5}),
        ({"guests": 1, "price": "2"}, {"guests": 1, "price": 2}),
        ({"guests": 1, "paid": "True"}, {"guests": 1, "paid": True}),
        ({"guests": 1, "note": "3"}, {"guests": 1, "note": "3"}),
        ({"guests": 1, "note": None}, {"guests": 1, "note": None}),
        ({"guests": 1, "tags": ["1", 2.0]}, {"guests": 1, "tags": [1, 2]}),
    ],
)
def test_documented_conversions_are_made(sent: dict[str, Any], taken: dict[str, Any]) -> None:
    assert checked(BOOKING, json.dumps(sent)) == {"paid": False, **taken}
    assert type(checked(BOOKING, json.dumps(sent))["guests"]) is int


@pytest.mark.parametrize("sent", ['{"guests":"three"}', '{"guests":2.5}', '{"guests":"2.5"}', '{"guests":true}'])
def test_other_conversions_are_not_made(sent: str) -> None:
    assert complaint(BOOKING, sent).startswith("guests: should be integer. ")


def test_in_a_union_what_fits_as_it_came_is_left_alone() -> None:
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert checked(of(either), '{"a":"3"}') == {"a": "3"}
    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert checked(of(nullable), '{"a":"3"}') == {"a": 3}
    assert checked(of(nullable), '{"a":null}') == {"a": None}
    assert "a: should be integer or null" in complaint(of(nullable), '{"a":"x"}')


def test_defaults_are_filled_in_at_any_depth() -> None:
    inner = {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}
    schema = of({"type": "object", "properties": {"list": {"type": "array", "items": {"anyOf": [inner]}}}})
    schema["properties"]["b"] = {"default": {"x": []}}
    assert checked(schema, '{"a":{"list":[{},{"n":2}]}}') == {"a": {"list": [{"n": 1}, {"n": 2}]}, "b": {"x": []}}


def test_a_default_is_not_shared_between_calls() -> None:
    accepted = accept(of({"default": []}), name="tool")
    accepted.check("{}")["a"].append(1)
    assert accepted.check("{}") == {"a": []}


def test_a_default_that_the_schema_itself_forbids_is_not_filled_in() -> None:
    assert checked(of({"type": "string", "default": None}), "{}") == {}


def test_a_required_parameter_with_a_default_may_be_left_out() -> None:
    assert checked(of({"type": "integer", "default": 1}, required=["a"]), "{}") == {"a": 1}


def test_extras_are_dropped_and_counted_in_a_warning_without_their_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bridge.tools"):
        assert checked(of({"type": "integer"}), f'{{"a":1,"A":"{SECRET}","{SECRET}":{{}}}}') == {"a": 1}
    assert [record.message for record in caplog.records] == [
        "tool tool: 2 of the arguments dropped, since no parameter is called so (there are a)"
    ]


def test_the_schema_says_when_extras_are_refused_or_kept() -> None:
    closed = of({"type": "integer"}, additionalProperties=False)
    said = complaint(closed, f'{{"{SECRET}":1,"y":1}}')
    assert said.startswith("the arguments: a name that was sent is not a parameter. ")
    assert SECRET not in said
    assert checked(of({}, additionalProperties=True), '{"x":1}') == {"x": 1}
    assert checked(of({}, additionalProperties={"type": "integer"}), '{"x":"1"}') == {"x": 1}
    assert checked(of({}, patternProperties={"^x": {}}), '{"x1":1}') == {"x1": 1}


def test_parameters_of_the_parts_of_a_schema_are_known_too() -> None:
    b, c = {"properties": {"b": {"type": "integer"}}}, {"properties": {"c": {}}, "required": ["c"]}
    schema = of({}, anyOf=[{"required": ["b"]}, c], allOf=[b, True], **{"if": {"required": ["b"]}, "then": c})
    assert checked(schema, '{"a":1,"b":"2","c":3}') == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("parameter", "sent", "words"),
    [
        ({"type": "object", "properties": {"b": {"type": "integer"}}}, {"b": SECRET}, "a.b: should be integer"),
        ({"additionalProperties": {"type": "integer"}}, {SECRET: SECRET}, "a: should be integer"),
        (
            {"properties": {"b": {}}, "additionalProperties": False},
            {SECRET: 1},
            "a: a name that was sent is not a parameter",
        ),
        ({"properties": {"b": {}}, "required": ["b", "c"]}, {}, "a.b is missing; a.c is missing"),
        ({"items": {"type": "integer"}}, [1, SECRET], "a.1: should be integer"),
        ({"enum": ["c", 3]}, SECRET, "a: should be 'c' or 3"),
        ({"const": 3}, SECRET, "a: should be 3"),
        ({"type": "string", "minLength": 9}, SECRET, "a: should have at least 9 characters"),
        ({"type": "string", "maxLength": 3}, SECRET, "a: should have at most 3 characters"),
        ({"type": "string", "pattern": "^x"}, SECRET, "a: should match the pattern ^x"),
        ({"exclusiveMinimum": 3}, 3, "a: should be greater than 3"),
        ({"exclusiveMaximum": 3}, 3, "a: should be less than 3"),
        ({"multipleOf": 3}, 4, "a: should be a multiple of 3"),
        ({"minItems": 2}, [1], "a: should have at least 2 items"),
        ({"maxItems": 0}, [1], "a: should have at most 0 items"),
        ({"minProperties": 2}, {SECRET: 1}, "a: should have at least 2 properties"),
        ({"maxProperties": 0}, {SECRET: 1}, "a: should have at most 0 properties"),
        ({"uniqueItems": True}, [SECRET, SECRET], "a is not accepted"),
        ({"not": {"type": "string"}}, SECRET, "a is not accepted"),
        (False, SECRET, "the arguments are not accepted"),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, SECRET, "a: should be integer or null"),
        (
            {"anyOf": [{"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
            {"b": SECRET},
            "a.b: should be integer",
        ),
    ],
)
def test_a_complaint_says_where_and_what_but_never_quotes_a_value(parameter: Any, sent: Any, words: str) -> None:
    text = complaint(of(parameter), json.dumps({"a": sent}))
    assert text.startswith(f"{words}. Expected: a (")
    assert SECRET not in text


def test_formats_are_not_checked() -> None:
    assert checked(of({"type": "string", "format": "date"}), '{"a":"tomorrow"}') == {"a": "tomorrow"}


def test_a_complaint_about_many_faults_is_bounded() -> None:
    schema = of({"items": {"type": "integer"}}, additionalProperties=False)
    assert len(complaint(schema, json.dumps({"a": ["x"] * 10_000}))) < 3_000
    assert len(complaint(schema, json.dumps({"x" * 1000 + str(n): 1 for n in range(1_000)}))) < 3_000


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(), lambda each: st.lists(each)))
def test_whatever_is_sent_is_taken_or_refused(value: Any) -> None:
    accepted = accept({**BOOKING, "anyOf": [{"required": ["price"]}, {}]}, name="tool")
    try:
        taken = accepted.check(json.dumps({"guests": value, "price": value, "note": value, "tags": value}))
    except InvalidArguments:
        return
    assert type(taken["guests"]) is int


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("get_weather", "get_weather"),
        ("files.read", "files_read"),
        ("a/b c", "a_b_c"),
        ("_private-1", "_private-1"),
        ("x" * 64, "x" * 64),
    ],
)
def test_a_name_keeps_what_every_provider_takes(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_long_names_and_names_without_a_letter_stay_apart() -> None:
    names = ["x" * 65, "x" * 66, "天気", "予約", "", "..."]
    assert len({safe_name(name) for name in names}) == len(names)


@given(st.text())
def test_any_name_becomes_one_that_every_provider_takes(name: str) -> None:
    assert re.fullmatch("[A-Za-z0-9_-]{1,64}", safe_name(name))
    assert safe_name(safe_name(name)) == safe_name(name)
