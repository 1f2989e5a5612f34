from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from bridge.errors import ConfigError, InvalidArguments
from bridge.tools import schema
from bridge.tools.schema import Parameters, describe

if TYPE_CHECKING:
    from nowhere import Unimportable  # type: ignore[import-not-found]  # only a name for type checkers


class Hidden:
    pass


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(BaseModel):
    title: str
    street: Annotated[str, Field(description="With number")] = "Main Street 1"


@dataclass
class Stay:
    nights: int
    address: Address | None = None


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


class Tree(BaseModel):
    children: list[Tree]


class Opaque:
    pass


class Picky(BaseModel):
    code: str

    @field_validator("code")
    def refuse(cls, value: str) -> str:
        raise ValueError(f"bad code {value}")


class Custom(BaseModel):
    code: str

    @field_validator("code")
    def refuse(cls, value: str) -> str:
        raise PydanticCustomError("odd", "odd code {code}", {"code": value})


def read(function: Callable[..., Any], *, strict: bool = False) -> Parameters:
    return describe(function, name="tool", hidden=Hidden, strict=strict)


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(read(function).schema)
    return value


def complaint(function: Callable[..., Any], arguments: str, *, strict: bool = False) -> str:
    with pytest.raises(InvalidArguments) as caught:
        read(function, strict=strict).check(arguments)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------- schemas


def test_a_function_without_parameters_has_an_empty_object_schema() -> None:
    def tool() -> None: ...

    assert schema_of(tool) == {"type": "object", "properties": {}}


def test_basic_types_and_defaults_are_described() -> None:
    def tool(city: str, days: int = 3, scale: float = 1.5, loud: bool = False, tags: list[str] = []) -> None: ...  # noqa: B006

    assert schema_of(tool) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "default": 3},
            "scale": {"type": "number", "default": 1.5},
            "loud": {"type": "boolean", "default": False},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        "required": ["city"],
    }


def test_both_spellings_of_an_optional_type_give_the_same_schema() -> None:
    def old(a: Optional[int] = None) -> None: ...  # noqa: UP045
    def new(a: int | None = None) -> None: ...

    nullable = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert schema_of(old)["properties"]["a"] == schema_of(new)["properties"]["a"] == nullable


def test_choices_and_dates_are_described() -> None:
    def tool(unit: Literal["c", "f"], color: Color = Color.RED, day: date | None = None) -> None: ...

    properties = schema_of(tool)["properties"]
    assert properties["unit"] == {"type": "string", "enum": ["c", "f"]}
    assert properties["color"] == {"type": "string", "enum": ["red", "blue"], "default": "red"}
    assert properties["day"]["anyOf"][0] == {"type": "string", "format": "date"}


def test_nested_models_are_inlined_without_titles_but_a_property_called_title_stays() -> None:
    def tool(stay: Stay, others: dict[str, Address], pet: Cat | Dog) -> None: ...

    text = read(tool).schema
    assert "$" not in text
    address = {
        "type": "object",
        "properties": {
            "title": {"type": "string"},
            "street": {"type": "string", "default": "Main Street 1", "description": "With number"},
        },
        "required": ["title"],
    }
    properties = json.loads(text)["properties"]
    assert properties["stay"]["properties"]["address"]["anyOf"][0] == address
    assert properties["others"] == {"type": "object", "additionalProperties": address}


def test_a_default_that_holds_a_title_keeps_it() -> None:
    def tool(where: dict[str, str] = {"title": "home"}) -> None: ...  # noqa: B006

    assert schema_of(tool)["properties"]["where"]["default"] == {"title": "home"}


def test_a_discriminated_union_keeps_no_pointer_into_definitions() -> None:
    def tool(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert set(schema_of(tool)["properties"]["pet"]) == {"oneOf"}


def test_constraints_are_part_of_the_schema_and_of_the_check() -> None:
    def tool(guests: Annotated[int, Field(ge=1, le=8)]) -> None: ...

    assert schema_of(tool)["properties"]["guests"] == {"type": "integer", "minimum": 1, "maximum": 8}
    assert "guests: should be less than or equal to 8" in complaint(tool, '{"guests":9}')


def test_a_default_without_json_form_is_left_out_of_the_schema() -> None:
    def tool(a: int = Opaque()) -> None: ...  # type: ignore[assignment]  # a marker object

    assert schema_of(tool) == {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert read(tool).check("{}") == {}


def test_a_strict_schema_says_that_nothing_else_may_come() -> None:
    def tool(a: int) -> None: ...

    assert json.loads(read(tool, strict=True).schema)["additionalProperties"] is False


# ------------------------------------------------------------------------------------------------------------ words


def documented(
    city: str, days: Annotated[int, "how many"] = 1, unit: Annotated[str, Field(description="c or f")] = "c"
) -> None:
    """Current weather.

    Takes a moment.

    Args:
        city: Name of the
            city.
        days: not this
        unit: nor this
    """


def test_words_come_from_annotations_and_else_from_the_docstring() -> None:
    found = read(documented)
    properties = json.loads(found.schema)["properties"]
    assert found.description == "Current weather.\n\nTakes a moment."
    assert [each["description"] for each in properties.values()] == ["Name of the city.", "how many", "c or f"]


def test_without_the_parser_the_whole_docstring_is_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "docstring_parser", None)
    found = read(documented)
    assert found.description.startswith("Current weather.\n\nTakes a moment.\n\nArgs:\n    city: Name")
    assert "description" not in json.loads(found.schema)["properties"]["city"]


def test_a_docstring_with_broken_markup_still_gives_a_description() -> None:
    def tool(a: int) -> None:
        """Does it.

        :param: : :
        :raises
        """

    assert read(tool).description.startswith("Does it.")


# -------------------------------------------------------------------------------------------------- hidden parameter


def test_the_hidden_parameter_is_named_and_not_described() -> None:
    def plain(a: int, ctx: Hidden) -> None: ...
    def optional(ctx: Hidden | None = None) -> None: ...

    assert read(plain).hidden == "ctx"
    assert list(schema_of(plain)["properties"]) == ["a"]
    assert read(optional).hidden == "ctx"


def test_two_hidden_parameters_are_refused() -> None:
    def tool(a: Hidden, b: Hidden) -> None: ...

    with pytest.raises(ConfigError, match="only one parameter can be a Hidden"):
        read(tool)


# ---------------------------------------------------------------------------------------------------------- refusals


def no_type(a) -> None: ...  # type: ignore[no-untyped-def]
def not_bound(self, a: int) -> None: ...  # type: ignore[no-untyped-def]
def positional(a: int, /) -> None: ...
def many(*a: int) -> None: ...
def any_name(**a: int) -> None: ...
def field_default(a: int = Field(description="x")) -> None: ...
def opaque(a: Opaque) -> None: ...
def function(a: Callable[[], int]) -> None: ...
def recursive(a: Tree) -> None: ...
def checkers_only(a: Unimportable) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (no_type, "parameter a has no type; annotate it"),
        (not_bound, "register the bound method"),
        (positional, "remove the `/`"),
        (many, "spell the parameters out"),
        (any_name, "spell the parameters out"),
        (field_default, "write Annotated"),
        (opaque, "Opaque"),
        (function, "JSON cannot carry"),
        (recursive, "Tree contains itself"),
        (checkers_only, "'Unimportable' is unknown at run time; import it"),
        (print, "wrap it in a typed `def`"),
    ],
)
def test_a_signature_that_a_model_could_not_use_is_refused_with_advice(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="tool tool: ") as caught:
        read(function)
    assert words in str(caught.value)


def test_a_return_type_that_only_exists_for_type_checkers_is_no_obstacle() -> None:
    def tool(a: int) -> Unimportable: ...

    assert read(tool).check('{"a":1}') == {"a": 1}


# --------------------------------------------------------------------------------------------------------- arguments


def book(guests: int, day: date | None = None, note: str = "", paid: bool = False) -> None: ...


EXPECTED = (
    "Expected: guests (integer), day (string or null, optional), note (string, optional), paid (boolean, optional)"
)


@pytest.mark.parametrize("nothing", ["", "  ", "null", " null\n", "{}"])
def test_no_arguments_count_as_an_empty_object(nothing: str) -> None:
    def tool(a: int = 1) -> None: ...

    assert read(tool).check(nothing) == {}
    assert complaint(book, nothing) == f"guests is missing. {EXPECTED}"


@pytest.mark.parametrize(
    "broken", ["{", '{"guests":1', "nul", "{'guests':1}", '{"note":"\\ud800"}', "\ud800", "[" * 300]
)
def test_broken_json_is_refused_and_the_parameters_are_named(broken: str) -> None:
    assert EXPECTED in complaint(book, broken)


@pytest.mark.parametrize("value", ["[]", "3", '"x"', "true", '[{"guests":1}]'])
def test_json_that_is_no_object_is_refused(value: str) -> None:
    assert complaint(book, value) == f"the arguments are not a JSON object. {EXPECTED}"


def test_documented_conversions_are_made() -> None:
    arguments = read(book).check('{"guests":"3","paid":"true","day":"2026-09-01"}')
    assert arguments == {"guests": 3, "paid": True, "day": date(2026, 9, 1)}
    assert read(book).check('{"guests":3.0}') == {"guests": 3}


@pytest.mark.parametrize(
    "arguments", ['{"guests":"3"}', '{"guests":3.0}', '{"guests":1,"paid":"true"}', '{"guests":1,"extra":1}']
)
def test_a_strict_tool_refuses_conversions_and_extras(arguments: str) -> None:
    complaint(book, arguments, strict=True)
    assert read(book, strict=True).check('{"guests":3,"day":"2026-09-01"}') == {"guests": 3, "day": date(2026, 9, 1)}


def test_a_strict_tool_says_that_a_name_is_no_parameter_and_does_not_repeat_it() -> None:
    said = complaint(book, '{"guests":1,"4111111111111111":2,"gests":2}', strict=True)
    assert said.startswith("the arguments: a name that was sent is not a parameter. Expected: guests (integer)")
    assert "4111111111111111" not in said


def test_extras_are_dropped_and_counted_in_a_warning_without_their_names(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bridge.tools"):
        assert read(book).check('{"guests":1,"Guests":"hunter2","4111111111111111":{}}') == {"guests": 1}
    assert [record.message for record in caplog.records] == [
        "tool tool: 2 of the arguments dropped, since no parameter is called so (there are day, guests, note, paid)"
    ]


def test_numbers_that_json_does_not_have_are_refused() -> None:
    def tool(a: float) -> None: ...

    assert "a: should be a finite number" in complaint(tool, '{"a":NaN}')


def test_the_last_of_two_equal_names_counts() -> None:
    assert read(book).check('{"guests":1,"guests":2}') == {"guests": 2}


def test_types_reach_the_function_as_they_were_declared() -> None:
    def tool(stay: Stay, color: Color, ids: set[UUID]) -> None: ...

    arguments = read(tool).check(
        '{"stay":{"nights":2,"address":{"title":"x"}},"color":"blue","ids":["00000000-0000-0000-0000-000000000001"]}'
    )
    assert arguments == {"stay": Stay(2, Address(title="x")), "color": Color.BLUE, "ids": {UUID(int=1)}}


def test_a_parameter_may_have_another_name_outside() -> None:
    def tool(from_: Annotated[str, Field(alias="from")]) -> None: ...

    assert schema_of(tool)["required"] == ["from"]
    assert read(tool).check('{"from":"Oslo"}') == {"from_": "Oslo"}


@pytest.mark.parametrize(
    "name", ["schema", "copy", "model_config", "_private", "title", "type", "properties", "default"]
)
def test_any_parameter_name_will_do(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def tool({name}: int): ...", space)
    assert schema_of(space["tool"]) == {
        "type": "object",
        "properties": {name: {"type": "integer"}},
        "required": [name],
    }
    assert read(space["tool"]).check(f'{{"{name}":1}}') == {name: 1}


def mixed(
    picky: Picky | None = None,
    custom: Custom | None = None,
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
    uuid: UUID | None = None,
    counts: dict[str, int] | None = None,
    dogs: list[Dog] | None = None,
    color: Color | None = None,
    day: date | None = None,
) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"picky":{"code":"hunter2"}}', "picky.code is not accepted"),
        ('{"custom":{"code":"hunter2"}}', "custom.code is not accepted"),
        ('{"pet":{"kind":"hunter2"}}', "pet is not accepted"),
        ('{"uuid":"hunter2"}', "uuid: should be a valid UUID"),
        ('{"counts":{"hunter2":"hunter2"}}', "counts: should be a valid integer"),
        ('{"dogs":[{"kind":"dog","age":1},{"kind":"dog","age":"hunter2"}]}', "dogs.1.age: should be a valid integer"),
        ('{"dogs":[{"kind":"dog"}]}', "dogs.0.age is missing"),
        ('{"color":"hunter2"}', "color: should be 'red' or 'blue'"),
        ('{"day":"hunter2"}', "day: should be a valid date"),
        ('{"day":', "not valid JSON"),
    ],
)
def test_a_complaint_says_where_and_what_but_never_quotes_a_value(arguments: str, words: str) -> None:
    text = complaint(mixed, arguments)
    assert words in text
    assert "hunter2" not in text


def test_a_complaint_about_many_faults_is_bounded() -> None:
    def tool(numbers: list[int]) -> None: ...

    assert len(complaint(tool, json.dumps({"numbers": ["x"] * 10_000}))) < 3_000


def test_expected_choices_are_spelled_out() -> None:
    def tool(unit: Literal["c", "f"], one: Literal["x"], pet: Cat | Dog, whatever: Any) -> None: ...

    assert complaint(tool, "[]").endswith("unit (one of c, f), one (x), pet (object), whatever (anything)")
