"""What a user says about an HTTP endpoint that is to be a tool: a table of the settings, or the same in Python.

    [[tools.http]]
    name = "find_order"
    description = "Look up an order by its number."
    url = "https://shop.example.com/orders/{order}"
    result = "/order"

    [tools.http.parameters.order]
    type = "string"
    description = "Order number, such as A-1001"

Each parameter is the JSON Schema of one argument, with a word on how it travels. Everything that cannot work is said
here, before anything connects.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    JsonValue,
    model_validator,
)

from ...errors import ConfigError
from ..declared import Declared
from ..policy import Approval, Dedupe, Example, Rate
from ..tool import TOOL_NAME, Effect, OnInterrupt
from .addresses import is_listed, is_public, literal

__all__ = ["PLACEHOLDER", "HttpTable", "HttpTool", "Parameter", "Place"]

Place = Literal["path", "query", "header", "body", "form"]
"""Where an argument travels: `body` is a field of a JSON object, `form` one of a form."""

PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
"""`{order}` in an address."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
_OURS: Final = frozenset(
    {
        *("host", "connection", "content-length", "transfer-encoding", "upgrade", "expect", "te", "trailer"),
        *("accept-encoding", "idempotency-key"),
    }
)
"""Headers that say how a request is sent, or who makes it; so do all that begin with `x-bridge-`."""

_KEYWORDS: Final = frozenset(
    {
        *("type", "enum", "const", "description", "title", "default", "examples", "format", "deprecated", "$ref"),
        *("pattern", "minLength", "maxLength", "contentEncoding", "contentMediaType", "$defs", "$comment"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("items", "prefixItems", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems"),
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "readOnly", "writeOnly"),
    }
)
"""Of JSON Schema 2020-12."""


# ------------------------------------------------------------------------------------------------- kinds of values


def _set(name: str) -> str:
    if not os.environ.get(name):
        raise ValueError("must name an environment variable that is set")
    return name


def _upper(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


def _made(kind: Callable[[Any], Any], *raw: type) -> BeforeValidator:
    """Let `kind` make the value of what a file can hold, and have its own complaint reported with the others."""

    def make(value: Any) -> Any:
        try:
            return kind(value) if isinstance(value, raw) else value
        except (ConfigError, TypeError) as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(make)


def _deduped(value: Any) -> Dedupe:
    if isinstance(value, bool):
        raise ConfigError("how many seconds? write a number of them")
    fields = {**value, "fields": tuple(value.get("fields", ()))} if isinstance(value, Mapping) else {"seconds": value}
    return Dedupe(**fields)


Method = Annotated[Literal["GET", "POST", "PUT", "PATCH", "DELETE"], BeforeValidator(_upper)]
Timeout = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Status = Annotated[int, Field(ge=200, le=599)]
VariableName = Annotated[str, AfterValidator(_set)]
_Rate = Annotated[InstanceOf[Rate], _made(Rate.parse, str)]
_Dedupe = Annotated[InstanceOf[Dedupe], _made(_deduped, int, float, dict)]
_Example = Annotated[InstanceOf[Example], _made(lambda value: Example(**value), dict)]


# ------------------------------------------------------------------------------------------------------ the tables


class Parameter(BaseModel):
    """One argument: the keywords of its JSON Schema, and how it travels."""

    model_config = ConfigDict(
        extra="allow", frozen=True, use_attribute_docstrings=True, populate_by_name=True, hide_input_in_errors=True
    )
    __pydantic_extra__: dict[str, JsonValue]

    place: Place | None = Field(default=None, alias="in")
    """Where it travels. By default: in the path if the address names it, in the query of a GET or DELETE, else in the
    body."""
    send_as: str = ""
    """Its name there, if that is not the argument's own. A header's name has hyphens where the argument's has `_`."""
    optional: bool = False
    """May it be left out? A parameter with a `default` may, too."""

    @property
    def schema_(self) -> dict[str, JsonValue]:
        """What the model is told."""
        return self.__pydantic_extra__

    @property
    def required(self) -> bool:
        return not self.optional and "default" not in self.__pydantic_extra__

    @model_validator(mode="after")
    def _known(self) -> Self:
        for word in self.__pydantic_extra__.keys() - _KEYWORDS:
            near = difflib.get_close_matches(word, [*_KEYWORDS, "in", "send_as", "optional"], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{word} is neither a keyword of JSON Schema nor one of in, send_as, optional{hint}")
        return self


class HttpTool(Declared):
    """An HTTP endpoint that is a tool. Raises `ConfigError`."""

    name: str
    """What models call it: 1 to 64 of `A-Z a-z 0-9 _ -`."""
    description: str = ""
    """What it does, and when to use it, for models."""
    method: Method = "GET"
    """GET, POST, PUT, PATCH or DELETE."""
    url: str
    """The endpoint's address. `{argument}` in its path is replaced by that argument, which stays one step of the
    path whatever it holds."""
    parameters: dict[str, Parameter] = Field(default_factory=dict)
    """The arguments, by name."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Headers that are always sent. Secrets do not stand here."""
    headers_env: dict[str, VariableName] = Field(default_factory=dict)
    """Headers whose whole value comes from an environment variable: `{ Authorization = "SHOP_AUTHORIZATION" }`."""
    signing_key_env: VariableName | None = None
    """Environment variable with the secret that signs each request, so that the endpoint can tell that it is ours."""

    expect: tuple[Status, ...] = ()
    """Statuses that mean success; by default 200 to 299."""
    result: str = ""
    """Which part of a JSON answer is the result, as a JSON pointer: `/data/0/price`. By default all of it."""
    response_limit: Count = 256 * 1024
    """Bytes that an answer may have, once unpacked."""
    follow_redirects: bool = False
    """Follow an answer that points elsewhere? Headers that could be secret are not sent to another host."""
    private_hosts: tuple[str, ...] = ()
    """Hosts, as `name` or `name:port`, that may be on a loopback, private or link-local address. All others must be
    on public ones."""
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    """How often a request may be sent again that failed for the moment, within the timeout. By default 2 if the tool
    is idempotent or reads, and 0 otherwise, when it has to be."""

    timeout: Timeout = 10.0
    """Seconds for the whole run, from its start, retries included."""
    queue_timeout: Timeout = 5.0
    """Seconds that a call may wait for its start before it is answered "busy"."""
    effect: Effect | None = None
    """`read`, `write` or `terminal`. By default a GET reads and everything else writes."""
    idempotent: bool | None = None
    """May it be run again when nobody knows whether it ran? By default if it reads."""
    answer_within: Timeout | None = None
    """Seconds after which the agent is told that the work goes on; its outcome comes later. By default it waits."""
    interim: str = ""
    """What the agent is told then, instead of our own words."""
    follow_up_within: Timeout | None = None
    """Seconds from then for which the outcome is worth telling; by default always."""
    on_session_end: Literal["finish", "cancel"] | None = None
    """Does such a call go on when its session ends? By default one that reads does not."""
    approval: Approval = "always_allow"
    """Must a person approve a call before it runs? `always_allow`, `always_ask` or `always_deny`."""
    approval_timeout: Timeout = 60.0
    """Seconds for that."""
    start: Literal["now", "after_reply"] | None = None
    """By default after the reply if the effect is `terminal`, else now."""
    deliver: Literal["after_reply", "between_replies", "now"] | None = None
    """When the result may be sent: by default between replies if on hold, else after the reply."""
    hold: bool = False
    """Use the provider's silent mode for slow tools, where it has one."""
    reply: bool = True
    """False: the result is for the record, and the agent is not to speak about it."""
    on_interrupt: OnInterrupt = "finish"
    """What happens to a run when the user interrupts the reply that asked for it."""
    result_limit: Count = 32 * 1024
    """Bytes of JSON text that the result may have."""
    filler: str | Callable[..., str] | None = None
    """What the agent should say if the result is not there soon."""
    filler_after: Timeout = 1.0
    """Seconds until then."""
    concurrency: Count | None = None
    """Runs at once, in all sessions together; by default as many as the process allows."""
    session_concurrency: Count | None = None
    """Runs at once in one session."""
    rate: _Rate | None = None
    """How often it may be called: `10/minute`."""
    dedupe: _Dedupe | None = None
    """Calls with the same arguments within so many seconds get the first success again: a number, or a table with
    `seconds`, `scope` (`session` or `process`) and `fields`."""
    hidden: dict[str, str] = Field(default_factory=dict)
    """Parameters that models neither see nor set, and where each one's value comes from: a key of the session's
    metadata, or `session_id`, `call_id` or `tool`."""
    log_arguments: tuple[str, ...] = ()
    """Arguments whose values may be logged and traced. By default none are."""
    redact: tuple[str, ...] = ()
    """Arguments and fields of the result that are masked wherever a call is shown or stored."""
    examples: tuple[_Example, ...] = ()
    """Calls to test it with: `arguments`, and the `result` that has to come out."""

    @property
    def acts(self) -> Effect:
        """Its effect, decided."""
        return self.effect or ("read" if self.method == "GET" else "write")

    @property
    def repeatable(self) -> bool:
        """May a request be sent again when nobody knows what became of it?"""
        return self.acts == "read" if self.idempotent is None else self.idempotent

    @property
    def attempts(self) -> int:
        """How often a request is sent at most."""
        return 1 + ((2 if self.repeatable else 0) if self.retries is None else self.retries)

    def expects(self, status: int) -> bool:
        """Does this status mean success?"""
        return status in self.expect or (not self.expect and 200 <= status < 300)

    @property
    def schema_(self) -> dict[str, Any]:
        """JSON Schema of all arguments together."""
        required = [name for name, each in self.parameters.items() if each.required]
        properties = {name: each.schema_ for name, each in self.parameters.items()}
        return {"type": "object", "properties": properties} | ({"required": required} if required else {})

    @cached_property
    def travels(self) -> Mapping[str, tuple[Place, str]]:
        """Where each argument goes, and under which name."""
        return {name: self._travel(name, each) for name, each in self.parameters.items()}

    def _travel(self, name: str, parameter: Parameter) -> tuple[Place, str]:
        place = parameter.place
        if place is None and name in PLACEHOLDER.findall(self.url.partition("?")[0]):
            place = "path"
        if place is None:
            place = "query" if self.method in ("GET", "DELETE") else "body"
        return place, parameter.send_as or (name.replace("_", "-") if place == "header" else name)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        faults = [*_address(self), *_headers(self), *_rest(self)]
        if faults:
            raise ValueError("; ".join(faults))
        return self


class HttpTable(HttpTool):
    """The same, as a table of the settings."""

    is_table = True


# -------------------------------------------------------------------------------------------------- what cannot work


def _address(tool: HttpTool) -> Iterator[str]:
    """The address is for its author alone to choose, but for the steps of its path."""
    try:
        parts = urlsplit(tool.url)
        port = parts.port
    except ValueError:
        yield "url must be an address: https://host/path"
        return
    if re.search(r"[\x00-\x20\x7f\\]", tool.url) or parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        yield "url must be an address without spaces and backslashes: https://host/path"
        return
    if parts.username is not None:
        yield "url must not hold credentials; put them into headers_env"
    if parts.fragment:
        yield "url must not have a part after #; it would never be sent"
    if any(brace in part for part in (parts.netloc, parts.query, parts.fragment) for brace in "{}"):
        yield 'url can have {arguments} in its path only; for the query, write in = "query" at the parameter'
    elif any(brace in PLACEHOLDER.sub("", parts.path) for brace in "{}"):
        yield "url has a brace without its partner"
    if {".", ".."} & set(parts.path.split("/")):
        yield "url must not have a dot or two as a step of its path"
    yield from _inside(tool, parts, port or _DEFAULT_PORTS[parts.scheme])
    yield from _arguments(tool, PLACEHOLDER.findall(parts.path))


def _inside(tool: HttpTool, parts: SplitResult, port: int) -> Iterator[str]:
    host = parts.hostname or ""
    address = literal(host)
    inside = not is_public(address) if address else host == "localhost" or host.endswith(".localhost")
    if inside and not is_listed(host, port, frozenset(tool.private_hosts)):
        yield f"url leads to {host}, which is not public; if that is meant, add private_hosts = [{host!r}]"


def _arguments(tool: HttpTool, named: list[str]) -> Iterator[str]:
    """`named`: in the path."""
    places = {name: place for name, (place, _) in tool.travels.items()}
    yield from (f"url names {{{each}}}, which is no parameter" for each in named if each not in places)
    for name, place in places.items():
        if (place == "path") != (name in named):
            yield f"parameter {name} travels in the path, so url has to name {{{name}}}, and only such parameters"
        elif place == "path" and not tool.parameters[name].required and "default" not in tool.parameters[name].schema_:
            yield f"parameter {name} is part of the path, so it cannot be optional"
    if tool.method == "GET" and {"body", "form"} & set(places.values()):
        yield "a GET has no body; send the arguments in the query, or use another method"
    if {"body", "form"} <= set(places.values()):
        yield 'arguments are sent in the body or as a form; write in = "form" at all of them, or at none'
    yield from (f"hidden names {each}, which is no parameter" for each in tool.hidden if each not in places)


def _headers(tool: HttpTool) -> Iterator[str]:
    chosen = [sent for place, sent in tool.travels.values() if place == "header"]
    names = [*tool.headers, *tool.headers_env, *chosen]
    for name in names:
        if not _TOKEN.fullmatch(name):
            yield f"{name!r} is no name of a header"
        elif name.lower() in _OURS or name.lower().startswith("x-bridge-"):
            yield f"the header {name} is set by the bridge itself"
    if len({name.lower() for name in names}) < len(names):
        yield "a header is set twice in headers, headers_env and parameters"
    for name in [*tool.headers, *chosen]:
        if name.lower() in _CREDENTIALS:
            yield f"the header {name} is a secret: set it in headers_env, which names an environment variable"
    yield from (f"the header {name} has a line break" for name, value in tool.headers.items() if not _fit(value))
    for name, variable in tool.headers_env.items():
        if not _fit(os.environ[variable].strip()):
            yield f"the header {name} cannot be sent: the environment variable {variable} has a line break in it"


def _fit(value: str) -> bool:
    return not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value)


def _rest(tool: HttpTool) -> Iterator[str]:
    if not TOOL_NAME.fullmatch(tool.name):
        yield "name must be 1 to 64 of A-Z a-z 0-9 _ -"
    if tool.result and not tool.result.startswith("/"):
        yield "result must be a JSON pointer, such as /data/price"
    if tool.retries and not tool.repeatable:
        yield 'retries are for tools that may run twice: set idempotent = true, or effect = "read"'
