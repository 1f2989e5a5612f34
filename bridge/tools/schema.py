"""From a function's signature to what a model is told about its arguments, and back from JSON text to arguments.

The types decide: whatever pydantic can describe may be a parameter (`Optional`, `X | None`, `Literal`, enums, nested
models and dataclasses, lists, dicts, dates, `Annotated` with constraints or a description). The words come from
`Annotated[..., "text"]` or `Field(description="text")`, else from the docstring.

The schema is plain JSON Schema: `type`, `properties` and `required` at the top, everything inlined, no titles.

What arrives is checked once, by one validator made at registration. These and no other differences are forgiven:

* `""`, `null` or blank arguments count as `{}`;
* a number or a boolean may come as a string (`"3"`, `"true"`), an integer as `3.0`, as pydantic's lax mode has it;
* arguments that no parameter takes are dropped, and counted in a warning.

With `strict` the last two are refused. A parameter that is left out gets the function's own default. Error texts name
parameters and what is expected of them, never a value that was sent, nor a name: a model may take one for the other.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticSerializationError, core_schema, to_jsonable_python
from typing_extensions import TypedDict

from ..errors import ConfigError, InvalidArguments
from .call import served
from .plain import plain

try:
    import docstring_parser
except ImportError:  # the extra "docstrings"
    docstring_parser = None  # type: ignore[assignment]  # tested for before every use

__all__ = [
    "EXPECTED",
    "SHOWN",
    "UNKNOWN",
    "Parameters",
    "describe",
    "expected",
    "innermost",
    "kind_of",
    "property_names",
    "report_dropped",
]

logger = logging.getLogger("bridge.tools")

EXPECTED = ". Expected: "
"""Between what is wrong with arguments and what they should be."""
SHOWN = 20
"""How many parameters or faults an error text lists at most."""
UNKNOWN = "a name that was sent is not a parameter"


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a signature and its docstring say."""

    description: str
    schema: str
    """JSON Schema of the arguments, as text."""
    check: Callable[[str], dict[str, Any]]
    """Arguments as JSON text to keyword arguments; raises `InvalidArguments`."""
    hidden: str | None
    """Name of the parameter of the hidden type, if there is one."""


def describe(function: Callable[..., Any], *, name: str, hidden: type, strict: bool = False) -> Parameters:
    """Read a function's parameters. One annotated with the type `hidden` is not shown to the model.

    Raises `ConfigError` if a model could not call the function.
    """
    described = inspect.unwrap(innermost(function))
    description, words = _docstring(inspect.getdoc(described) or "")
    fields: dict[str, Any] = {}
    concealed = None
    for parameter, annotation in _annotations(function, described, name):
        if annotation is hidden or hidden in get_args(annotation):
            if concealed is not None:
                raise ConfigError(f"tool {name}: only one parameter can be a {hidden.__name__}")
            concealed = parameter.name
        else:
            fields[parameter.name] = _field(parameter, annotation, words.get(parameter.name), name)
    validator, schema = _compile(fields, name, strict)
    check = functools.partial(_check, validator.validate_json, frozenset(fields), name, schema)
    return Parameters(description, orjson.dumps(schema).decode(), check, concealed)


# ------------------------------------------------------------------------------------------------ reading a signature


def innermost(function: Any) -> Any:
    """What is called in the end, under partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _annotations(function: Callable[..., Any], described: Any, name: str) -> list[tuple[inspect.Parameter, Any]]:
    """The parameters that a model may fill in, each with its type. What a partial has bound is not among them."""
    bound = function.keywords if isinstance(function, functools.partial) else {}
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in bound]
        own = {key: value for key, value in described.__annotations__.items() if key != "return"}
        # A return type that only exists for type checkers is no obstacle, so it is left out.
        hints = get_type_hints(SimpleNamespace(__annotations__=own), described.__globals__, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"tool {name}: the type {error.name!r} is unknown at run time; import it at module level, "
            "outside of functions and of `if TYPE_CHECKING`"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name}: its signature cannot be read; wrap it in a typed `def`") from error
    for parameter in parameters:
        _refuse_unfit(parameter, name, parameter.name in hints)
    return [(parameter, hints[parameter.name]) for parameter in parameters]


def _refuse_unfit(parameter: inspect.Parameter, name: str, typed: bool) -> None:
    where = f"tool {name}: parameter {parameter}"
    match parameter.kind:
        case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
            raise ConfigError(f"{where} has no fixed names; spell the parameters out")
        case parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where} is positional-only; remove the `/`, arguments are passed by name")
    if isinstance(parameter.default, FieldInfo):
        raise ConfigError(f"{where} has a Field as its default; write Annotated[type, Field(...)] instead")
    if not typed and parameter.name in ("self", "cls"):
        raise ConfigError(f"{where} is not bound yet; register the bound method, as in `toolset.tool(object.method)`")
    if not typed:
        raise ConfigError(f"{where} has no type; annotate it, so that the model knows what to send")


def _field(parameter: inspect.Parameter, annotation: Any, words: str | None, name: str) -> Any:
    """The type of one parameter with everything the schema shall say about it."""
    described = any(isinstance(each, FieldInfo) and each.description for each in get_args(annotation)[1:])
    if get_origin(annotation) is Annotated:
        words = next((each for each in get_args(annotation)[1:] if isinstance(each, str)), words)
    if words and not described:
        annotation = Annotated[annotation, Field(description=words)]
    if parameter.default is parameter.empty:
        return annotation
    try:
        default = to_jsonable_python(parameter.default)
    except PydanticSerializationError:  # a marker object: the function knows what it means, a model need not
        return NotRequired[annotation]
    return NotRequired[Annotated[annotation, Field(json_schema_extra={"default": default})]]


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """A docstring's description, and its words on each parameter. Without the parser all of it is the description."""
    if docstring_parser is None:
        return text, {}
    parsed = docstring_parser.parse(text)
    words = {each.arg_name: " ".join((each.description or "").split()) for each in parsed.params}
    return parsed.description or "", words


# ------------------------------------------------------------------------------------------------- making the schema


def _compile(fields: dict[str, Any], name: str, strict: bool) -> tuple[Any, dict[str, Any]]:
    """One validator for all arguments together, and its schema."""
    arguments = TypedDict("arguments", fields)  # type: ignore[misc]  # the fields are only known now
    config = ConfigDict(extra="forbid" if strict else "allow", strict=strict, allow_inf_nan=False)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(with_config(config)(arguments))
        schema = adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"tool {name}: a parameter has a type that JSON cannot carry ({reason}); "
            "use basic types, enums, lists, dicts, dataclasses or pydantic models"
        ) from error
    if not strict:
        del schema["additionalProperties"]
    return adapter.validator, plain(schema, name=name)


# ------------------------------------------------------------------------------------------------ checking arguments

_KNOWN_FAULTS = frozenset(get_args(core_schema.ErrorType))


def _check(
    validate: Callable[[str], dict[str, Any]], names: frozenset[str], name: str, schema: Mapping[str, Any], text: str
) -> dict[str, Any]:
    if text.strip() in ("", "null"):
        text = "{}"
    try:
        arguments = validate(text)
    except ValidationError as error:
        # The chain would carry what was sent into logs.
        raise InvalidArguments(_complaint(error, schema)) from None
    if not arguments.keys() <= names:
        report_dropped(name, len(arguments.keys() - names), names)
        arguments = {key: value for key, value in arguments.items() if key in names}
    return arguments


def report_dropped(name: str, number: int, known: Iterable[str]) -> None:
    """Say that arguments were dropped. Their names were made up by a model, and may be anything: a card's number."""
    takes = ", ".join(sorted(known)[:SHOWN]) or "none"
    line = "tool %s: %d of the arguments dropped, since no parameter is called so (there are %s)%s"
    logger.warning(line, name, number, takes, served())


def _complaint(error: ValidationError, schema: Mapping[str, Any]) -> str:
    """What is wrong and what is expected, in one sentence."""
    faults = error.errors(include_url=False, include_input=False)
    match faults[0]["type"]:
        case "json_invalid":
            what = f"the arguments are not valid JSON ({faults[0]['msg'].removeprefix('Invalid JSON: ')})"
        case "dict_type" if not faults[0]["loc"]:
            what = "the arguments are not a JSON object"
        case _:
            names = property_names(schema)
            what = "; ".join(dict.fromkeys(_fault(each, names) for each in faults[:SHOWN]))
    return f"{what}{EXPECTED}{expected(schema)}"


def expected(schema: Mapping[str, Any]) -> str:
    """The parameters with their types, as in `guests (integer), note (string, optional)`."""
    required = schema.get("required", ())
    shown = list(schema["properties"].items())[:SHOWN]
    words = (f"{name} ({kind_of(each)}{'' if name in required else ', optional'})" for name, each in shown)
    return ", ".join(words) or "no arguments"


def _fault(error: ErrorDetails, names: frozenset[str]) -> str:
    """Where one value fails and what should be there. Keys of dicts count as values, and are not shown."""
    where = ".".join(str(part) for part in error["loc"] if isinstance(part, int) or part in names) or "the arguments"
    quoted = error.get("ctx", {}).keys() & {"tag", "tz_actual"}
    match error["type"]:
        case "missing":
            return f"{where} is missing"
        case "extra_forbidden":
            return f"{where}: {UNKNOWN}"
        case "value_error" | "assertion_error":
            return f"{where} is not accepted"
        case kind if kind not in _KNOWN_FAULTS or quoted:
            return f"{where} is not accepted"
    text = error["msg"]
    if "error" in error.get("ctx", {}):  # the parser's own words, which may quote the value, come after a comma
        text = text.partition(", ")[0]
    return f"{where}: {text.replace('Input should', 'should')}"


def property_names(schema: Any) -> frozenset[str]:
    """The names of all properties at any depth."""
    if isinstance(schema, list):
        return frozenset().union(*map(property_names, schema))
    if not isinstance(schema, dict):
        return frozenset()
    below = frozenset[str]().union(*map(property_names, schema.values()))
    properties = schema.get("properties")
    return below | properties.keys() if isinstance(properties, dict) else below


def kind_of(schema: Mapping[str, Any]) -> str:
    """A property's type in a word or two."""
    match schema:
        case {"enum": list(choices)}:
            return "one of " + ", ".join(map(str, choices[:SHOWN]))
        case {"const": constant}:
            return str(constant)
        case {"anyOf": list(kinds)} | {"oneOf": list(kinds)}:
            return " or ".join(dict.fromkeys(map(kind_of, kinds)))
        case {"type": str(kind)}:
            return kind
        case {"type": list(kinds)}:
            return " or ".join(map(str, kinds))
        case _:
            return "anything"
