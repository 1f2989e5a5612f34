from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.dialect import Nullable, SchemaProfile
from bridge.dialects import DIALECTS, HTTP_DIALECTS
from bridge.dialects.schemas import PROFILES, shape

OPEN = PROFILES["deepgram"]
GEMINI = PROFILES["gemini_live"]
ELEVEN = PROFILES["elevenlabs"]
LISTS = replace(GEMINI, provider="lists", nullable=Nullable.TYPE_LIST)


def of(parameter: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": parameter}, **more}


def told(parameter: Any, profile: SchemaProfile) -> tuple[Any, list[str]]:
    """One parameter as this provider is told about it, and what is lost."""
    shaped, lost = shape(of(parameter), profile)
    assert shaped.keys() == {"type", "properties"}
    parameter = shaped["properties"]["a"]
    if profile.described and parameter.get("description") == "a":
        del parameter["description"]
    return parameter, list(lost)


# ------------------------------------------------------------------------------------------------------ who takes all

EVERYTHING: dict[str, Any] = {
    "description": "x",
    "anyOf": [{"type": "integer", "enum": [1, None]}, {"type": "null"}, True],
    "oneOf": [{"const": 3}],
    "allOf": [{"minimum": 1}],
    "items": [{"type": "integer"}, {"items": {"multipleOf": 2}}],
    "additionalProperties": {"type": "integer"},
    "default": {"$schema": 1, "title": 2},
    "nullable": True,
}


@pytest.mark.parametrize("provider", ["assemblyai", "openai_realtime", "deepgram"])
def test_who_takes_json_schema_gets_it_as_it_is_but_for_what_names_it(provider: str) -> None:
    named = {"$schema": "x", "$id": "y", "title": "z", **EVERYTHING, "x-order": 1, "$comment": "no"}
    assert told(named, PROFILES[provider]) == (EVERYTHING, [])


def test_a_schema_may_come_as_text_and_always_has_properties() -> None:
    assert shape('{"type":"object"}', OPEN) == ({"type": "object", "properties": {}}, ())
    with pytest.raises(ValueError, match="end of data"):
        shape("{", OPEN)


def test_keywords_are_left_out_where_they_are_keywords_and_nowhere_else() -> None:
    names = ["title", "$schema", "x-order", "nullable", "const", "default"]
    schema = {"type": "object", "properties": {name: {"type": "string", "description": "x"} for name in names}}
    for profile in PROFILES.values():
        assert shape(schema, profile) == (schema, ())


def test_a_keyword_that_nobody_knows_is_left_out_and_said() -> None:
    assert told({"type": "string", "colour": "red"}, OPEN) == ({"type": "string"}, ["a: colour is not told"])


def test_parts_of_a_top_that_must_be_plain_are_told_together() -> None:
    b, c = {"type": "integer"}, {"type": "string"}
    schema = {
        "anyOf": [
            {"properties": {"b": b, "c": c}, "required": ["b"]},
            {"properties": {"b": b}, "required": ["b", "c"]},
        ],
        "allOf": [{"properties": {"d": c}, "required": ["d"], "minProperties": 1}, {"allOf": [{"required": ["e"]}]}],
        "properties": {"a": b},
        "required": ["a"],
    }
    assert shape(schema, PROFILES["openai_realtime"]) == (
        {
            "type": "object",
            "properties": {"a": b, "b": b, "c": c, "d": c},
            "required": ["a", "d", "e", "b"],
            "minProperties": 1,
        },
        ("the arguments: which of its parts go together is not told",),
    )


# ------------------------------------------------------------------------------------------------------ null and unions

NULLABLE_TEXT = [
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "null"}, {"type": "string"}]},
]


@pytest.mark.parametrize("form", NULLABLE_TEXT, ids=str)
def test_null_is_told_in_the_form_the_provider_knows(form: dict[str, Any]) -> None:
    form = {**form, "description": "x"}
    assert told(form, GEMINI) == ({"type": "string", "nullable": True, "description": "x"}, [])
    assert told(form, LISTS) == ({"type": ["string", "null"], "description": "x"}, [])
    assert told(form, OPEN) == (form, [])
    assert told(form, ELEVEN) == ({"type": "string", "description": "x"}, ["a: that it may be null is not told"])
    assert told({**form, "default": None}, ELEVEN) == ({"type": "string", "description": "x"}, [])


def test_null_is_told_of_choices_and_of_unions() -> None:
    choice = {"enum": ["x", None], "type": ["string", "null"]}
    assert told(choice, GEMINI) == ({"type": "string", "enum": ["x"], "nullable": True}, [])
    assert told(choice, LISTS) == ({"type": ["string", "null"], "enum": ["x", None]}, [])
    union = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    two = [{"type": "string"}, {"type": "integer"}]
    assert told(union, GEMINI) == ({"anyOf": two, "nullable": True}, [])
    assert told(union, LISTS) == ({"anyOf": [*two, {"type": "null"}]}, [])


def test_what_may_be_anything_or_null_is_still_a_text_where_types_are_wanted() -> None:
    anything = {"anyOf": [True, {"type": "null"}]}
    assert told(anything, GEMINI) == ({"anyOf": [{"type": "string"}], "nullable": True}, [])
    assert told({"type": "null"}, GEMINI) == ({"type": "null"}, [])


def test_several_types_become_a_union_or_the_first_of_them() -> None:
    several = {"type": ["integer", "string", "null"], "description": "x", "maximum": 3}
    assert told(several, GEMINI) == (
        {
            "description": "x",
            "anyOf": [{"type": "integer", "maximum": 3}, {"type": "string", "maximum": 3}],
            "nullable": True,
        },
        [],
    )
    assert told(several, LISTS)[0]["type"] == ["integer", "string"]
    shaped, lost = told(several, ELEVEN)
    assert shaped == {"type": "integer", "description": "x (at most 3)"}
    assert lost == ["a: any but the first of its 2 types is not told", "a: that it may be null is not told"]


def test_of_a_union_the_first_form_is_told_where_there_are_no_unions() -> None:
    union = {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}], "description": "x", "default": 1}
    shaped, lost = told(union, ELEVEN)
    assert shaped == {"type": "integer", "description": "x (by default 1)"}
    assert lost == ["a: any but the first of its 2 forms is not told"]
    assert told({"anyOf": [], "type": "string"}, ELEVEN) == ({"type": "string"}, [])


def test_a_union_of_constants_is_a_choice() -> None:
    union = {"oneOf": [{"const": "x", "type": "string"}, {"enum": ["y", "z"], "type": "string"}]}
    assert told(union, ELEVEN) == ({"type": "string", "enum": ["x", "y", "z"]}, [])
    assert told({"const": "x"}, ELEVEN) == ({"type": "string", "enum": ["x"]}, [])


def test_a_union_of_objects_is_one_object_with_all_their_properties() -> None:
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}, "age": {"type": "integer"}}}
    shaped, lost = told({"anyOf": [cat, dog]}, ELEVEN)
    assert shaped["properties"].keys() == {"kind", "age"}
    assert "required" not in shaped
    assert lost == ["a: which of its parts go together is not told"]
    one, lost = told({"anyOf": [cat, {"type": "null"}], "default": None}, ELEVEN)
    assert one["required"] == ["kind"]
    assert lost == []


def test_parts_that_hold_together_are_laid_on_top_of_each_other() -> None:
    parts = [{"type": "integer", "minimum": 1}, {"minimum": 2, "maximum": 3}, True]
    assert told({"allOf": parts}, GEMINI) == ({"type": "integer", "minimum": 1, "maximum": 3}, [])


# --------------------------------------------------------------------------------------- what is said in words, or lost


def test_what_has_no_keyword_is_said_in_the_description() -> None:
    parameter = {
        "type": "integer",
        "description": "Guests",
        "minimum": 1,
        "maximum": 8,
        "exclusiveMinimum": 0,
        "exclusiveMaximum": 9,
        "multipleOf": 2,
        "default": 2,
    }
    words = "Guests (at least 1, at most 8, more than 0, less than 9, a multiple of 2, by default 2)"
    assert told(parameter, ELEVEN) == ({"type": "integer", "description": words}, [])
    text = {"type": "string", "minLength": 1, "maxLength": 9, "pattern": "^x", "format": "date", "default": ""}
    words = "(at least 1 characters, at most 9 characters, matching ^x, format date)"
    assert told(text, ELEVEN) == ({"type": "string", "description": words}, [])
    tags = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2, "default": ["x", "y"]}
    words = "(at least 1 items, at most 2 items, by default x, y)"
    assert told(tags, ELEVEN)[0]["description"] == words
    assert told({"type": "boolean", "default": False}, GEMINI)[0] == {
        "type": "boolean",
        "description": "(by default false)",
    }
    assert told({"type": "object", "properties": {"b": {"type": "string"}}, "default": {}}, GEMINI)[0].keys() == {
        "type",
        "properties",
    }


def test_choices_that_are_no_texts_are_said_where_only_texts_can_be_chosen() -> None:
    assert told({"type": "integer", "enum": [1, 2]}, GEMINI) == (
        {"type": "integer", "description": "(one of 1, 2)"},
        [],
    )
    assert told({"type": "string", "enum": ["x"]}, GEMINI) == ({"type": "string", "enum": ["x"]}, [])


def test_every_schema_names_its_type_where_that_is_wanted() -> None:
    assert told({"properties": {"b": True}}, GEMINI)[0] == {"type": "object", "properties": {"b": {"type": "string"}}}
    assert told({"items": {"type": "integer"}}, GEMINI)[0] == {"type": "array", "items": {"type": "integer"}}
    assert told({"enum": ["x"]}, GEMINI) == ({"type": "string", "enum": ["x"]}, [])
    assert told({}, GEMINI) == ({"type": "string"}, ["a: that it may be anything, and not just a text, is not told"])


def test_a_list_says_what_it_holds_where_types_are_wanted() -> None:
    assert told({"type": "array"}, GEMINI) == ({"type": "array", "items": {"type": "string"}}, [])
    pair = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}
    assert told(pair, GEMINI) == (
        {"type": "array", "items": {"type": "integer"}},
        ["a: which of its items is what is not told"],
    )
    old = {"type": "array", "items": [{"type": "integer"}]}
    assert told(old, GEMINI) == ({"type": "array", "items": {"type": "integer"}}, [])


def test_a_table_of_anything_loses_what_its_entries_hold() -> None:
    table = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert told(table, GEMINI) == ({"type": "object"}, ["a: what its entries hold is not told"])
    assert told({**table, "additionalProperties": False}, GEMINI) == ({"type": "object"}, [])


def test_what_is_lost_is_said_with_the_way_to_it() -> None:
    inner = {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string", "contains": {}}}}}
    assert told(inner, GEMINI)[1] == ["a[].b: contains is not told"]
    assert shape({"contains": {}}, GEMINI)[1] == (
        "the arguments: that it may be anything, and not just a text, is not told",
        "the arguments: contains is not told",
    )


def test_a_parameter_without_a_description_gets_its_name_where_one_is_wanted() -> None:
    schema = {"type": "object", "properties": {"day_of_week": {"type": "string"}, "b": {"type": "string"}}}
    shaped, _ = shape(schema, ELEVEN)
    assert [each["description"] for each in shaped["properties"].values()] == ["day of week", "b"]
    assert shape(schema, GEMINI)[0] == schema


# ---------------------------------------------------------------------------------------------------- any schema at all

_TYPES = ["string", "integer", "number", "boolean", "object", "array", "null"]


def _wider(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    forms = st.lists(schemas, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(_TYPES) | st.lists(st.sampled_from(_TYPES), min_size=1, unique=True),
            "properties": st.dictionaries(st.sampled_from(["a", "title", "$ref"]), schemas, max_size=2),
            "required": st.just(["a"]),
            "items": schemas,
            "prefixItems": forms,
            "additionalProperties": schemas,
            "anyOf": forms,
            "oneOf": forms,
            "allOf": forms,
            "enum": st.lists(st.none() | st.integers(-9, 9) | st.text(), min_size=1, max_size=3),
            "const": st.integers(-9, 9) | st.none(),
            "default": st.none() | st.integers(-9, 9) | st.lists(st.integers(-9, 9), max_size=2),
            "description": st.text(max_size=3),
            "minimum": st.integers(-9, 9),
            "format": st.just("date"),
            "nullable": st.booleans(),
        },
    )


SCHEMAS = st.recursive(st.booleans() | st.just({"type": "string"}), _wider, max_leaves=6)


def every_schema(schema: Any) -> list[dict[str, Any]]:
    if not isinstance(schema, dict):
        return []
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items")]
    return [schema, *(each for part in below for each in every_schema(part))]


@settings(max_examples=60, deadline=None)
@given(SCHEMAS)
def test_any_schema_comes_out_typed_and_in_the_keywords_of_the_provider(schema: Any) -> None:
    for profile in (GEMINI, ELEVEN, LISTS):
        before = json.dumps(schema)
        shaped, _ = shape(of(schema), profile)
        assert json.dumps(schema) == before
        for each in every_schema(shaped):
            assert each.keys() <= profile.keywords
            assert each.keys() & {"type", "anyOf"}


# ------------------------------------------------------------------------------------------------------------ profiles


def test_each_dialect_has_the_profile_of_its_provider() -> None:
    for name, dialect in {**DIALECTS, **HTTP_DIALECTS}.items():
        assert dialect.tool_schema is PROFILES[name]


def test_names_that_a_provider_does_not_take_are_known() -> None:
    assert PROFILES["assemblyai"].takes_name("get_weather")
    assert not PROFILES["assemblyai"].takes_name("aai_pre_connect_context")
    assert not PROFILES["openai_realtime"].takes_name("files.read")
    assert GEMINI.takes_name("files.read")
    assert not GEMINI.takes_name("3d")
    assert not GEMINI.takes_name("x" * 129)


def test_a_provider_waits_within_its_own_bounds() -> None:
    assert [ELEVEN.window(seconds) for seconds in (0.1, 20, 500)] == [1.0, 20, 120.0]
    assert OPEN.window(20) is None
    assert [PROFILES["herm"].window(seconds) for seconds in (1, 900)] == [300.0, 300.0]


def test_every_pattern_of_names_is_a_regular_expression() -> None:
    for profile in PROFILES.values():
        assert re.fullmatch(profile.tool_name, "get_weather")
