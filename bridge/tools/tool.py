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
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, get_args, overload

from ..core.events import CallKey, Deliver, Start, ToolSpec
from ..errors import ConfigError
from .schema import describe, innermost

__all__ = ["CallContext", "Effect", "Tool", "ToolOptions", "Toolset"]

Effect = Literal["read", "write", "terminal"]
"""What running a tool does: looks something up, changes something, or ends something for good (the call, say)."""

OnInterrupt = Literal["finish", "cancel"]

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PROVIDER_MARGIN = 1.0
"""Seconds that a provider is told to wait beyond our own limits, so that our answer comes first."""


class EndSession(Protocol):
    def __call__(self, reason: str = "", /) -> None: ...


def _nowhere(text: str = "", /) -> None:
    """What a tool says when no session listens."""


@dataclass(slots=True, kw_only=True, eq=False)
class CallContext:
    """What a tool may know of the call it serves: it takes one by a parameter of this type, hidden from the model.

    The three functions only put something into a queue: they never wait, may be called from any thread, and raise
    `SessionClosed` once the session is closing. Made by hand, as in a test of a tool, they do nothing.
    """

    session_id: str
    key: CallKey
    tool: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the host passed when it opened the session."""
    progress: Callable[[str], None] = _nowhere
    """Note how far the work has come, for observers. Does not extend the timeout."""
    say: Callable[[str], None] = _nowhere
    """Have the agent say something as soon as that talks over nobody."""
    end_session: EndSession = _nowhere
    """End the session once what is owed has been sent."""


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
    """Seconds for the whole run, counted from its start."""
    queue_timeout: float = 5.0
    """Seconds that a call may wait for its start before it is answered "busy"."""
    effect: Effect = "write"
    idempotent: bool | None = None
    """May it be run again when nobody knows whether it ran? None: if its effect is "read"."""
    on_interrupt: OnInterrupt = "finish"
    """What happens to a run when the user interrupts the reply that asked for it."""
    result_limit: int = 32 * 1024
    """Bytes of JSON text that a result may have."""
    filler: str | Callable[..., str] | None = None
    """What the agent should say if the result is not there soon: a text, or a function of the arguments by name."""
    filler_after: float = 1.0
    """Seconds until then."""
    source: str = ""
    """Where it comes from, for error messages."""

    def __post_init__(self) -> None:
        if self.spec.timeout is None:
            told = self.timeout + self.queue_timeout + _PROVIDER_MARGIN
            object.__setattr__(self, "spec", replace(self.spec, timeout=told))
        name = self.spec.name
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no tool name: 1 to 64 of A-Z a-z 0-9 _ - are allowed; pass name=...")
        if self.spec.hold and self.spec.start is Start.AFTER_REPLY:
            raise ConfigError(
                f"tool {name}: no reply follows a call that is on hold, so it would never start; "
                "leave out hold, or pass start='now'"
            )
        for limit in ("timeout", "queue_timeout", "filler_after", "result_limit"):
            if not 0 < getattr(self, limit) < math.inf:
                raise ConfigError(f"tool {name}: {limit} must be a number greater than 0")
        for choice, choices in (("effect", Effect), ("on_interrupt", OnInterrupt)):
            if getattr(self, choice) not in get_args(choices):
                raise ConfigError(f"tool {name}: {choice} must be one of {', '.join(get_args(choices))}")


class Limits(TypedDict, total=False):
    """The fields of a `Tool` that its author chooses."""

    timeout: float
    queue_timeout: float
    effect: Effect
    idempotent: bool | None
    on_interrupt: OnInterrupt
    result_limit: int
    filler: str | Callable[..., str] | None
    filler_after: float


class ToolOptions(Limits, total=False):
    """Everything that can be said about a function that becomes a tool."""

    name: str
    """Instead of the function's own."""
    description: str
    """Instead of the docstring's."""
    strict: bool
    """Refuse arguments that would have to be converted, and those that no parameter takes."""
    hold: bool
    start: Start | Literal["now", "after_reply"]
    """By default after the reply if the effect is "terminal", else now."""
    deliver: Deliver | Literal["after_reply", "between_replies", "now"]
    """By default between replies if on hold, else after the reply."""


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


def _tool_of(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    strict: bool = False,
    hold: bool = False,
    start: str | Start | None = None,
    deliver: str | Deliver | None = None,
    **limits: Unpack[Limits],
) -> Tool:
    name = name or _name_of(function)
    _refuse_uncallable(function, name)
    parameters = describe(function, name=name, hidden=CallContext, strict=strict)
    if start is None:
        start = Start.AFTER_REPLY if limits.get("effect") == "terminal" else Start.NOW
    if deliver is None:
        deliver = Deliver.BETWEEN_REPLIES if hold else Deliver.AFTER_REPLY
    spec = ToolSpec(
        name=name,
        description=parameters.description if description is None else description,
        parameters=parameters.schema,
        hold=hold,
        start=_choice(Start, start, name),
        deliver=_choice(Deliver, deliver, name),
    )
    return Tool(
        spec=spec,
        invoke=partial(_invoke, function, parameters.hidden),
        check=parameters.check,
        blocking=not _is_async(function),
        source=_source_of(function),
        **limits,
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
