"""The JSON Schema of a tool's arguments as each provider takes it.

`shape` rewrites a schema by a provider's profile, and tells in words what got lost. What a provider has no keyword for
goes into the description if it can be said there (`at least 1`), since a model reads that as well. Keywords are handled
where a schema stands, and nowhere else.

`PROFILES` has what is known of each provider, also of those without a dialect yet. Its sources are:

* AssemblyAI: https://www.assemblyai.com/docs/voice-agents/voice-agent-api, client-side tools.
* OpenAI Realtime: the reference of `session.update`; the names and the plain top are those of all its function tools.
* Gemini Live: the reference of `FunctionDeclaration`, field `parameters`, and of `Schema`, its subset of OpenAPI 3.0.
* ElevenLabs: the types of client tools in its Python SDK (`ClientToolConfigInput`, `ObjectJsonSchemaPropertyInput`,
  `ArrayJsonSchemaPropertyInput`, `LiteralJsonSchemaProperty`).
* Deepgram: the reference of `Settings`, `agent.think.functions`, which knows no limits.
* OpenAI Agent Sessions, H Company, Herm: see their dialects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import orjson

from bridge.core.dialect import Nullable, SchemaProfile
from bridge.core.events import ToolSpec
from bridge.errors import ConfigError

__all__ = ["PROFILES", "declared", "shape"]

Schema = dict[str, Any]

_STRUCTURE: Final = frozenset({"type", "description", "properties", "required", "items", "enum"})
_LIMITS: Final = frozenset(
    {"minimum", "maximum", "minLength", "maxLength", "pattern"}
    | {"minItems", "maxItems", "minProperties", "maxProperties"}
)
_JSON_SCHEMA: Final = (
    _STRUCTURE
    | _LIMITS
    | {"anyOf", "oneOf", "allOf", "not", "if", "then", "else", "const", "default", "examples", "format", "deprecated"}
    | {"additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "dependentSchemas"}
    | {"dependentRequired", "prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains"}
    | {"maxContains", "uniqueItems", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "nullable", "readOnly"}
    | {"writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "$ref", "$defs", "definitions"}
)

_PROFILES: Final = (
    # A schema is passed on unread, but for `properties`. With a `$schema` in it, calls came with empty arguments.
    SchemaProfile(
        "assemblyai",
        _JSON_SCHEMA,
        reserved=frozenset({"aai_credit_card_luhn_check", "aai_pre_connect_context"}),
        wait=(1.0, 300.0),
    ),
    SchemaProfile("openai_realtime", _JSON_SCHEMA, plain_top=True),
    # `Schema.enum` is for type STRING; `default` is accepted and ignored, so it is said in words.
    SchemaProfile(
        "gemini_live",
        _STRUCTURE | _LIMITS | {"format", "nullable", "anyOf"},
        nullable=Nullable.KEYWORD,
        only_text_enums=True,
        typed=True,
        tool_name="[A-Za-z_][A-Za-z0-9_.:-]{0,127}",
    ),
    # A parameter without a description counts as one that somebody else fills in.
    SchemaProfile(
        "elevenlabs",
        _STRUCTURE,
        nullable=Nullable.UNTOLD,
        only_text_enums=True,
        typed=True,
        described=True,
        wait=(1.0, 120.0),
    ),
    SchemaProfile("deepgram", _JSON_SCHEMA),
    # Function tools are those of the provider's other interfaces.
    SchemaProfile("openai_sessions", _JSON_SCHEMA, plain_top=True),
    # The schema is passed on to the model; nothing says that a keyword is not taken.
    SchemaProfile("hcompany", _JSON_SCHEMA, tool_name="[A-Za-z_][A-Za-z0-9_]{0,63}"),
    # Nothing is said about keywords and names. A call is waited for about five minutes, whatever it is told.
    SchemaProfile("herm", _JSON_SCHEMA, wait=(300.0, 300.0)),
)

PROFILES: Final[Mapping[str, SchemaProfile]] = MappingProxyType({each.provider: each for each in _PROFILES})
"""What is known of the providers, by name."""


def shape(parameters: str | Mapping[str, Any], profile: SchemaProfile) -> tuple[Schema, tuple[str, ...]]:
    """The schema of a tool's arguments as this provider takes it, and what it could not be told, a line each.

    `parameters`: an object, or its JSON text. The result always has `properties`. Raises `ValueError` for broken JSON.
    """
    schema = orjson.loads(parameters) if isinstance(parameters, str) else parameters
    shaper = _Shaper(profile)
    shaped = {"properties": {}, **shaper.schema(schema)}
    return shaped, tuple(dict.fromkeys(shaper.lost))


def declared(spec: ToolSpec, profile: SchemaProfile) -> tuple[Any, dict[str, Any]]:
    """The parameters of a tool as this provider takes them, and the tool's further fields.

    What got lost is told where the tools are checked. Raises `ConfigError` for a tool whose JSON text is broken.
    """
    try:
        parameters = orjson.loads(spec.parameters)
        extra = {key: orjson.loads(text) for key, text in spec.extra}
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"tool {spec.name}: its definition holds broken JSON: {error}") from None
    return shape(parameters, profile)[0] if isinstance(parameters, dict) else parameters, extra


# ---------------------------------------------------------------------------------------------- rewriting one schema

_BY_NAME: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "items"})
_SINGLE: Final = frozenset(
    {"items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties"}
    | {"propertyNames", "not", "if", "then", "else", "contentSchema"}
)
_UNSAID: Final = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "discriminator", "examples"}
    | {"deprecated", "readOnly", "writeOnly", "nullable", "uniqueItems"}
)
"""Keywords whose loss nobody notices."""
_LOST: Final = {"additionalProperties": "what its entries hold", "prefixItems": "which of its items is what"}


@dataclass(slots=True)
class _Shaper:
    """One schema on its way to one provider."""

    profile: SchemaProfile
    lost: list[str] = field(default_factory=list)

    def schema(self, schema: Any, where: str = "") -> Any:
        """`where`: the way to it, by the names of parameters."""
        if not isinstance(schema, Mapping):  # true and false are schemas, too
            return {"type": "string"} if self.profile.typed else schema
        shaped, nullable = self._in_known_forms(dict(schema), where), False
        if self.profile.nullable is not Nullable.ANY_FORM:
            shaped, nullable = _without_null(shaped)
            shaped = self._with_one_type(shaped, where)
        if self.profile.typed:
            shaped = self._typed(shaped, where)
        if nullable and self.profile.nullable is Nullable.UNTOLD and "default" not in shaped:
            self._lose(where, "that it may be null")
        shaped = self._kept(shaped, where)
        return self._nullable(shaped) if nullable else shaped

    def _lose(self, where: str, what: str) -> None:
        self.lost.append(f"{where or 'the arguments'}: {what} is not told")

    # ------------------------------------------------------------------------------------------------ combinations

    def _in_known_forms(self, schema: Schema, where: str) -> Schema:
        """Without combinations that this provider does not know."""
        known, flat = self.profile.keywords, self.profile.plain_top and not where
        if flat or "allOf" not in known:
            schema = _all_of(schema)
        if "const" in schema and "const" not in known:
            schema["enum"] = [schema.pop("const")]
        for key in ("oneOf", "anyOf"):
            forms = schema.get(key)
            if isinstance(forms, list) and (flat or "anyOf" not in known):
                schema = self._without_union({name: schema[name] for name in schema if name != key}, forms, where)
        if "oneOf" in schema and "oneOf" not in known:
            schema.setdefault("anyOf", schema.pop("oneOf"))
        return schema

    def _without_union(self, schema: Schema, forms: Iterable[Any], where: str) -> Schema:
        """One form, or what the forms come to together; null is kept apart."""
        told = [self._in_known_forms(_enumerated(each), where) for each in forms if isinstance(each, Mapping)]
        some = [each for each in told if each.get("type") != "null"]
        if some and all(each.get("type") == "object" or "properties" in each for each in some):
            schema = _any_of_objects(schema, some)
            what = "which of its parts go together"
        elif some and all("enum" in each for each in some):
            together = {"enum": [value for each in some for value in each["enum"]]}
            schema, what = {**some[0], **together, **schema}, ""
        else:
            schema = {**some[0], **schema} if some else schema
            what = f"any but the first of its {len(some)} forms"
        if len(some) > 1 and what:
            self._lose(where, what)
        kind = schema.get("type")
        return {**schema, "type": [kind, "null"]} if len(some) < len(told) and isinstance(kind, str) else schema

    def _with_one_type(self, schema: Schema, where: str) -> Schema:
        kinds = schema.get("type")
        if not isinstance(kinds, list) or not kinds or self.profile.nullable is Nullable.TYPE_LIST:
            return schema
        if "anyOf" in self.profile.keywords and "anyOf" not in schema:
            outer: Schema = {key: schema[key] for key in ("description", "default") if key in schema}
            return {**outer, "anyOf": [{**_omit(schema, *outer), "type": kind} for kind in kinds]}
        self._lose(where, f"any but the first of its {len(kinds)} types")
        return {**schema, "type": kinds[0]}

    def _typed(self, schema: Schema, where: str) -> Schema:
        """Every schema names its type, and every list what it holds."""
        if not schema.keys() & {"type", "anyOf"}:
            if "enum" not in schema and "properties" not in schema and "items" not in schema:
                self._lose(where, "that it may be anything, and not just a text,")
            kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
            schema = {**schema, "type": kind}
        if schema.get("type") == "array" and not isinstance(schema.get("items"), Mapping):
            listed = schema.get("prefixItems") or schema.get("items")
            first = listed[0] if isinstance(listed, list) and listed else True
            schema = {**schema, "items": first if isinstance(first, Mapping) else {"type": "string"}}
        return schema

    def _nullable(self, schema: Schema) -> Schema:
        match self.profile.nullable:
            case Nullable.KEYWORD:
                return {**schema, "nullable": True}
            case Nullable.TYPE_LIST if isinstance(schema.get("type"), str):
                enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
                return {**schema, **enum, "type": [schema["type"], "null"]}
            case Nullable.TYPE_LIST if "anyOf" in schema:
                return {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
            case _:
                return schema

    # ------------------------------------------------------------------------------------------ keyword by keyword

    def _kept(self, schema: Schema, where: str) -> Schema:
        """Only known keywords. Of the others, some are said in words."""
        strange = [key for key in schema if key not in self.profile.keywords]
        for key in strange:
            silent = key in _UNSAID or key in _IN_WORDS or key.startswith("x-") or isinstance(schema[key], bool)
            if not silent:
                self._lose(where, _LOST.get(key, key))
        if self.profile.only_text_enums and not all(isinstance(each, str) for each in schema.get("enum", ())):
            strange.append("enum")
        return {key: self._value(key, value, where) for key, value in _in_words(schema, strange).items()}

    def _value(self, key: str, value: Any, where: str) -> Any:
        match value:
            case Mapping() if key in _BY_NAME:
                return {name: self._named(name, each, f"{where}.{name}".strip(".")) for name, each in value.items()}
            case list() if key in _LISTS:
                return [self.schema(each, where) for each in value]
            case Mapping() if key in _SINGLE:
                return self.schema(value, f"{where}[]")
            case _:
                return value

    def _named(self, name: str, schema: Any, where: str) -> Any:
        shaped = self.schema(schema, where)
        if self.profile.described and isinstance(shaped, dict) and not shaped.get("description"):
            return {**shaped, "description": name.replace("_", " ")}
        return shaped


# --------------------------------------------------------------------------------------------------- parts of schemas

_IN_WORDS: Final = {
    "enum": "one of {}",
    "format": "format {}",
    "pattern": "matching {}",
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "default": "by default {}",
}


def _in_words(schema: Schema, keys: Sequence[str]) -> Schema:
    """Without these keywords; what they say is added to the description, as far as there are words for it."""
    values = {key: _plainly(schema[key]) for key in keys if key in _IN_WORDS}
    said = ", ".join(_IN_WORDS[key].format(value) for key, value in values.items() if value)
    description = f"{schema.get('description') or ''} ({said})".strip()
    return _omit(schema, *keys) | ({"description": description} if said else {})


def _plainly(value: Any) -> str:
    """As a model reads it; nothing for what is empty."""
    if isinstance(value, list):
        return ", ".join(map(_plainly, value))
    if isinstance(value, str) or value in (None, {}):
        return value or ""
    return orjson.dumps(value).decode()


def _omit(schema: Mapping[str, Any], *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _enumerated(schema: Mapping[str, Any]) -> Schema:
    """A single constant is an enumeration, too."""
    return {**_omit(schema, "const"), "enum": [schema["const"]]} if "const" in schema else dict(schema)


def _without_null(schema: Schema) -> tuple[Schema, bool]:
    """The same for values that are not null; was null allowed?"""
    found, kinds, forms = schema, schema.get("type"), schema.get("anyOf")
    if isinstance(kinds, list) and "null" in kinds and len(kinds) > 1:
        some = [kind for kind in kinds if kind != "null"]
        found = {**found, "type": some[0] if len(some) == 1 else some}
    if isinstance(forms, list) and _NULL in forms and len(forms) > 1:
        some = [each for each in forms if each != _NULL]
        alone = some[0] if len(some) == 1 and isinstance(some[0], Mapping) else {"anyOf": some}
        found = {**alone, **_omit(found, "anyOf")}
    if found is not schema and isinstance(found.get("enum"), list):
        found = {**found, "enum": [value for value in found["enum"] if value is not None]}
    return found, found is not schema


_NULL: Final = {"type": "null"}


def _all_of(schema: Schema) -> Schema:
    """With the parts of an `allOf` laid on top of each other."""
    parts = [part for part in schema.get("allOf", ()) if isinstance(part, Mapping)]
    result = _omit(schema, "allOf")
    for part in map(_all_of, map(dict, parts)):
        properties = {**part.get("properties", {}), **result.get("properties", {})}
        required = list(dict.fromkeys([*result.get("required", ()), *part.get("required", ())]))
        both = {"properties": properties, "required": required}
        result = {**part, **result, **{key: value for key, value in both.items() if value}}
    return result


def _any_of_objects(schema: Schema, forms: Sequence[Mapping[str, Any]]) -> Schema:
    """One object with the properties of all; required is what all require."""
    properties = {name: each for form in reversed(forms) for name, each in form.get("properties", {}).items()}
    common = [name for name in forms[0].get("required", ()) if all(name in form.get("required", ()) for form in forms)]
    required = [*schema.get("required", ()), *common]
    whole = {"type": "object", **schema, "properties": {**properties, **schema.get("properties", {})}}
    return {**whole, "required": required} if required else whole
