"""What can be called: a `Tool`, a `Toolset` of them, and the decorator that makes tools of functions.

    tools = Toolset()

    @tools.tool(timeout=5, effect="read", filler="One moment, I'm checking.")
    async def get_weather(city: str) -> dict[str, object]:
        '''Current weather in a city.'''

Every source of tools makes `Tool` values; after that nobody asks where they came from. A function that could not be
called as a model would call it is refused here, at start-up, with a `ConfigError` that says how to mend it.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

import orjson

from ..core.events import Deliver, Start, ToolSpec
from ..errors import ConfigError, InvalidArguments, ToolUnavailable
from .call import CallContext, Parked, serving
from .encode import decode, encodable, encode
from .policy import Approval, Dedupe, Example, Rate
from .schema import EXPECTED, Parameters, describe, expected, innermost

__all__ = [
    "TOOL_NAME",
    "CallContext",
    "CheckOutcome",
    "Effect",
    "Parked",
    "Policy",
    "Tool",
    "ToolOptions",
    "Toolset",
    "make_tool",
]

Effect = Literal["read", "write", "terminal"]
"""What running a tool does: looks something up, changes something, or ends something for good (the call, say)."""

OnInterrupt = Literal["finish", "cancel"]

OnSessionEnd = Literal["finish", "cancel"]

CheckOutcome = Callable[[Mapping[str, Any], str], Awaitable[object]]
"""From the checked arguments, and the ticket of the call (`CallContext.ticket`), to the call's result."""

ApprovalRule = Approval | Callable[[Mapping[str, Any], CallContext], Approval]
"""Must a person approve a call? Always the same, or by its checked arguments: a quick function, which is not awaited.

A function that fails, or that returns anything else, forbids the call.
"""

TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes."""
_PROVIDER_MARGIN = 1.0
"""Seconds that a provider is told to wait beyond our own limits, so that our answer comes first."""

_TERMINAL = Dedupe(3600)

_LIMITS = (
    "timeout",
    "answer_within",
    "follow_up_within",
    "approval_timeout",
    "queue_timeout",
    "filler_after",
    "result_limit",
    "concurrency",
    "session_concurrency",
)
_WHOLE = ("result_limit", "concurrency", "session_concurrency")
_CHOICES = {
    "effect": get_args(Effect),
    "on_interrupt": get_args(OnInterrupt),
    "on_session_end": get_args(OnSessionEnd),
    "approval": get_args(Approval),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that can be called, whatever it is made of. Raises `ConfigError` if its fields do not go together."""

    spec: ToolSpec
    """Where it names no timeout, the provider is told to wait a little longer than a call can take."""
    invoke: Callable[[Mapping[str, Any], CallContext], object]
    """Checked arguments in, an awaitable of the result out. If `blocking`, the result itself will do."""
    check: Callable[[str], dict[str, Any]]
    """Arguments as JSON text to checked ones. Raises `InvalidArguments`, whose text must not quote values."""
    blocking: bool = False
    """Is `invoke` to be called in a thread?"""
    timeout: float = 10.0
    """Seconds for the whole run, counted from its start; also if it goes on after an interim result."""
    answer_within: float | None = None
    """Seconds from the call after which the agent is told that nothing has happened yet, if that is so. The call goes
    on as a parked one, and its outcome is told later, once. None: the agent waits for the result."""
    interim: str = ""
    """What the agent is told then, instead of our own words."""
    follow_up_within: float | None = None
    """Seconds from then for which the outcome is worth telling; later it is kept, but not told. None: always."""
    on_session_end: OnSessionEnd | None = None
    """Does a parked call go on when its session ends? None: "cancel" if its effect is "read", else "finish"."""
    approval: ApprovalRule = "always_allow"
    """Must a person approve the call before it runs?"""
    approval_timeout: float = 60.0
    """Seconds for that; they do not count towards the other limits."""
    queue_timeout: float = 5.0
    """Seconds that a call may wait for its start before it is answered "busy"."""
    effect: Effect = "write"
    idempotent: bool | None = None
    """May it be run again when nobody knows whether it ran? None: if its effect is "read"."""
    check_outcome: CheckOutcome | None = None
    """Looks after a crash whether a call that had begun has happened, and returns its result; raises if it has not."""
    on_interrupt: OnInterrupt = "finish"
    """What happens to a run when the user interrupts the reply that asked for it."""
    result_limit: int = 32 * 1024
    """Bytes of JSON text that a result may have."""
    filler: str | Callable[..., str] | None = None
    """What the agent should say if the result is not there soon: a text, or a function of the arguments by name."""
    filler_after: float = 1.0
    """Seconds until then, and between two things that are said while it runs."""
    spoken_progress: int = 0
    """How many of the texts that the tool reports as its progress the agent is asked to say, at most."""
    concurrency: int | None = None
    """Runs of this tool at once, in all sessions together; None: as many as the process allows."""
    session_concurrency: int | None = None
    """Runs of this tool at once in one session."""
    rate: Rate | None = None
    """How often it may be called; one more call is refused at once."""
    dedupe: Dedupe | None = None
    """Which calls count as repeated, and get the first success again. None: those of a terminal tool, for an hour."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """Parameters that models neither see nor set: the name of each, and where its value comes from, which is a key of
    the session's metadata, or `session_id`, `call_id`, or `tool`."""
    log_arguments: tuple[str, ...] = ()
    """Arguments whose values may be logged and traced. By default none are."""
    redact: tuple[str, ...] = ()
    """Arguments and fields of the result, at any depth, that are masked wherever a call is shown or stored."""
    examples: tuple[Example, ...] = ()
    """Calls to test it with."""
    source: str = ""
    """Where it comes from, for error messages."""

    def __post_init__(self) -> None:
        name = self.spec.name
        if not TOOL_NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no tool name: 1 to 64 of A-Z a-z 0-9 _ - are allowed; pass name=...")
        if self.spec.hold and self.spec.start is Start.AFTER_REPLY:
            raise ConfigError(
                f"tool {name}: no reply follows a call that is on hold, so it would never start; "
                "leave out hold, or pass start='now'"
            )
        for limit in _LIMITS:
            value, whole = getattr(self, limit), limit in _WHOLE
            if value is not None and not (isinstance(value, int if whole else int | float) and 0 < value < math.inf):
                raise ConfigError(f"tool {name}: {limit} must be a {'whole ' if whole else ''}number greater than 0")
        if self.spec.timeout is None:
            object.__setattr__(self, "spec", replace(self.spec, timeout=self.longest + _PROVIDER_MARGIN))
        if self.on_session_end is None:
            object.__setattr__(self, "on_session_end", "cancel" if self.effect == "read" else "finish")
        for choice, choices in _CHOICES.items():
            value = getattr(self, choice)
            if value not in choices and not (choice == "approval" and callable(value)):
                raise ConfigError(f"tool {name}: {choice} must be one of {', '.join(choices)}")
        if self.effect == "terminal" and self.dedupe is None:
            object.__setattr__(self, "dedupe", _TERMINAL)  # whoever has hung up need not do it again
        if self.hidden:
            object.__setattr__(self, "spec", replace(self.spec, parameters=_without(self.hidden, self.spec.parameters)))

    @property
    def longest(self) -> float:
        """Seconds until the agent has an answer, at most."""
        if self.answer_within is not None:
            return self.answer_within
        asking = 0.0 if self.approval == "always_allow" else self.approval_timeout
        return asking + self.queue_timeout + self.timeout

    @property
    def repeatable(self) -> bool:
        """May it be run again when nobody knows whether it ran?"""
        return self.effect == "read" if self.idempotent is None else self.idempotent

    def arguments(self, text: str, context: CallContext) -> dict[str, Any]:
        """What a model sent, checked, and with what is hidden from it filled in.

        Raises `InvalidArguments`, or `ToolUnavailable` from that if it is what is hidden that does not fit.
        """
        with serving(context):
            return self._checked(text, context)

    def _checked(self, text: str, context: CallContext) -> dict[str, Any]:
        if not self.hidden:
            return self.check(text)
        try:
            return self.check(_filled(text, self.hidden, context))
        except InvalidArguments as error:
            faults = str(error).partition(EXPECTED)[0].split("; ")
        # A model can mend only what it sees.
        if theirs := [each for each in faults if re.split("[ .:]", each, maxsplit=1)[0] not in self.hidden]:
            raise InvalidArguments(f"{'; '.join(theirs)}{EXPECTED}{expected(orjson.loads(self.spec.parameters))}")
        why = InvalidArguments(f"hidden parameters cannot be filled from the session's metadata: {'; '.join(faults)}")
        raise ToolUnavailable(f"{self.spec.name} is not available now") from why


class Policy(TypedDict, total=False):
    """What can be said about a tool of any kind; see the fields of `Tool`. What is left out follows from its effect."""

    timeout: float
    answer_within: float | None
    interim: str
    follow_up_within: float | None
    on_session_end: OnSessionEnd | None
    approval: ApprovalRule
    approval_timeout: float
    check_outcome: CheckOutcome | None
    queue_timeout: float
    effect: Effect
    idempotent: bool | None
    on_interrupt: OnInterrupt
    result_limit: int
    filler: str | Callable[..., str] | None
    filler_after: float
    spoken_progress: int
    concurrency: int | None
    session_concurrency: int | None
    rate: Rate | str | None
    """A text such as "10/minute" will do."""
    dedupe: Dedupe | float | None
    """Seconds will do."""
    hidden: Mapping[str, str]
    log_arguments: tuple[str, ...]
    redact: tuple[str, ...]
    examples: tuple[Example, ...]
    hold: bool
    start: Start | Literal["now", "after_reply"]
    """By default after the reply if the effect is "terminal", else now."""
    deliver: Deliver | Literal["after_reply", "between_replies", "now"]
    """By default between replies if on hold, else after the reply."""
    reply: bool
    """False: the result is for the record, and the agent is not to speak about it."""


class ToolOptions(Policy, total=False):
    """Everything that can be said about a function that becomes a tool."""

    name: str
    """Instead of the function's own."""
    description: str
    """Instead of the docstring's."""
    strict: bool
    """Refuse arguments that would have to be converted, and those that no parameter takes."""


_F = TypeVar("_F", bound=Callable[..., Any])


class Toolset(Mapping[str, Tool]):
    """Tools by name, in the order they were added. A session takes a snapshot, so later additions do not reach it."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.add(each)

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def add(self, tool: Tool) -> None:
        """Raises `ConfigError` if the name is taken."""
        name = tool.spec.name
        if name in self._tools:
            sources = f"{self._tools[name].source or 'an earlier tool'} and {tool.source or 'another one'}"
            raise ConfigError(f"two tools are called {name}: {sources}; give one of them another name")
        self._tools[name] = tool

    @overload
    def tool(self, function: _F, /) -> _F: ...

    @overload
    def tool(self, /, **options: Unpack[ToolOptions]) -> Callable[[_F], _F]: ...

    @overload
    def tool(self, function: _F, /, **options: Unpack[ToolOptions]) -> _F: ...

    def tool(self, function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Add a function and return it unchanged: `@tools.tool`, `@tools.tool(timeout=5)`, `tools.tool(api.find)`.

        Functions, bound methods, partials and callable objects will do. Async ones run on the event loop, others in
        a thread. Raises `ConfigError` for what a model could not call.
        """
        if function is None:
            return partial(self.tool, **options)
        self.add(_tool_of(function, **options))
        return function

    def specs(self) -> tuple[ToolSpec, ...]:
        """What models are told."""
        return tuple(tool.spec for tool in self._tools.values())


def make_tool(
    name: str,
    description: str,
    parameters: Parameters,
    invoke: Callable[[Mapping[str, Any], CallContext], object],
    *,
    blocking: bool = False,
    source: str = "",
    **policy: Unpack[Policy],
) -> Tool:
    """A tool of any kind. Raises `ConfigError` for a policy that cannot be."""
    values: dict[str, Any] = dict(policy)
    hold, reply = values.pop("hold", False), values.pop("reply", True)
    terminal = values.get("effect") == "terminal"
    start = values.pop("start", None) or (Start.AFTER_REPLY if terminal else Start.NOW)
    deliver = values.pop("deliver", None) or (Deliver.BETWEEN_REPLIES if hold else Deliver.AFTER_REPLY)
    if isinstance(rate := values.get("rate"), str):
        values["rate"] = Rate.parse(rate)
    if isinstance(dedupe := values.get("dedupe"), int | float):
        values["dedupe"] = Dedupe(dedupe)
    _refuse_unknown(values, orjson.loads(parameters.schema), name)
    spec = ToolSpec(
        name=name,
        description=description,
        parameters=parameters.schema,
        hold=hold,
        start=_choice(Start, start, name),
        deliver=_choice(Deliver, deliver, name),
        reply=reply,
    )
    return Tool(spec=spec, invoke=invoke, check=parameters.check, blocking=blocking, source=source, **values)


def _refuse_unknown(policy: Mapping[str, Any], schema: Mapping[str, Any], name: str) -> None:
    """A misspelled name would show a model what is hidden from it, or make all calls the same."""
    if schema.get("additionalProperties"):  # then there are parameters without a name
        return
    dedupe = policy.get("dedupe")
    named = {"hidden": policy.get("hidden") or (), "dedupe": dedupe.fields if dedupe else ()}
    for option, names in named.items():
        if unknown := [each for each in names if each not in schema["properties"]]:
            known = ", ".join(schema["properties"]) or "none"
            raise ConfigError(f"tool {name}: {option} names {unknown[0]}, which is no parameter; there are {known}")


def _tool_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = False,
    **policy: Unpack[Policy],
) -> Tool:
    name = name or _name_of(function)
    _refuse_uncallable(function, name)
    parameters = describe(function, name=name, hidden=CallContext, strict=strict)
    return make_tool(
        name,
        parameters.description if description is None else description,
        parameters,
        partial(_invoke, function, parameters.hidden),
        blocking=not _is_async(function),
        source=_source_of(function),
        **policy,
    )


_E = TypeVar("_E", Start, Deliver)


def _choice(kind: type[_E], value: str | Start | Deliver, name: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(each.value for each in kind)
        raise ConfigError(f"tool {name}: {kind.__name__.lower()} must be one of {choices}") from None


def _invoke(
    function: Callable[..., Any], hidden: str | None, arguments: Mapping[str, Any], context: CallContext
) -> object:
    return function(**arguments) if hidden is None else function(**arguments, **{hidden: context})


# --------------------------------------------------------------------------------------------------- hidden parameters


def _without(hidden: Mapping[str, str], parameters: str) -> str:
    """The schema as a model sees it."""
    schema = orjson.loads(parameters)
    shown = {name: each for name, each in schema.get("properties", {}).items() if name not in hidden}
    required = [name for name in schema.get("required", ()) if name not in hidden]
    slim = {key: value for key, value in schema.items() if key != "required"} | {"properties": shown}
    return orjson.dumps(slim | {"required": required} if required else slim).decode()


def _filled(text: str, hidden: Mapping[str, str], context: CallContext) -> str:
    """The arguments with the hidden ones set by us, whatever a model sent for them."""
    try:
        sent = decode(text.strip() or "{}")
    except json.JSONDecodeError:
        return text
    if sent is None:
        sent = {}
    if not isinstance(sent, dict):
        return text
    known = {**context.metadata, "session_id": context.session_id, "call_id": context.key.call_id, "tool": context.tool}
    ours = {name: encodable(known[source]) for name, source in hidden.items() if source in known}
    shown = {name: value for name, value in sent.items() if name not in hidden}
    return encode(shown | ours)


# ------------------------------------------------------------------------------------------------- looking at functions


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _source_of(function: Any) -> str:
    """`package.module.function (file.py:12)`, as far as it can be told."""
    inner = inspect.unwrap(innermost(function))
    where = f"{inner.__module__}.{inner.__qualname__}"
    code = getattr(inner, "__code__", None)
    return f"{where} ({code.co_filename}:{code.co_firstlineno})" if code else where


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(innermost(function))


def _refuse_uncallable(function: Any, name: str) -> None:
    """Whatever calling or awaiting would not make a result of."""
    if inspect.isclass(function):
        raise ConfigError(f"tool {name}: a class makes objects, not results; register a method of an instance")
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigError(f"tool {name}: it has been called already; register the function without the parentheses")
    if not callable(function):
        raise ConfigError(f"tool {name}: it cannot be called; register a function, or a bound method")
    inner = innermost(function)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise ConfigError(f"tool {name}: a generator has no single result; return a list instead of yielding")
