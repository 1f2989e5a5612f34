"""One call on its way, and what is said at its end: to the model, and to the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import islice
from pathlib import PurePath
from traceback import walk_tb
from typing import Any

from ..core.events import CallKey, ToolCall, ToolResult
from ..errors import InvalidArguments, ToolBusy, ToolError, ToolNotFound, ToolTimeout, ToolUnavailable
from ..tools.call import session_of
from ..tools.encode import TooLarge, Unencodable, decode, encode
from ..tools.tool import CallContext, Tool
from .approvals import ApprovalDenied
from .guards import Health, TooOften
from .limits import Looping, Slots

__all__ = [
    "CANCELLED",
    "NOT_INVOKED",
    "WELL",
    "Finished",
    "Interim",
    "Outcome",
    "Run",
    "Stage",
    "busy",
    "explained",
    "failure",
    "health_of",
    "identity",
    "interim",
    "marked",
    "no_such_tool",
    "pending",
    "success",
    "trace",
]

_NAMES_SHOWN = 20
_CAUSES_SHOWN = 3
_FRAMES_SHOWN = 3
_SENTENCE = 1000
"""Characters of an error text that a model is shown at most."""
_NO_TOOL = "(unknown)"
"""Stands for names that the model made up, which must not become metric labels. No tool can be called this."""
_OURS = frozenset(str(PurePath(__file__).with_name(name)) for name in ("run.py", "calls.py", "steps.py"))


class Outcome(Enum):
    """How a call ended; the values are metric labels."""

    OK = "ok"
    REPLAYED = "replayed"
    """The same call had succeeded before, and its result was given again."""
    ERROR = "error"
    INVALID = "invalid"
    UNKNOWN = "unknown"
    TIMEOUT = "timeout"
    BUSY = "busy"
    DENIED = "denied"
    """It had to be approved, and was not."""
    CANCELLED = "cancelled"
    LOOP = "loop"
    TOO_OFTEN = "too_often"
    UNAVAILABLE = "unavailable"
    UNENCODABLE = "unencodable"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one call."""

    key: CallKey
    name: str
    """The tool's name, or `(unknown)`."""
    result: ToolResult
    outcome: Outcome
    seconds: float
    """Since the call was started, waiting included."""
    detail: str = field(default="", repr=False)
    """For the log: what went wrong and where, without values."""


WELL = (Outcome.OK, Outcome.REPLAYED)

Interim = Callable[[CallKey, ToolResult], None]
"""Is told the interim result of a call that goes on."""

_OUTCOMES: dict[type[BaseException], Outcome] = {
    InvalidArguments: Outcome.INVALID,
    ToolNotFound: Outcome.UNKNOWN,
    ToolTimeout: Outcome.TIMEOUT,
    ToolBusy: Outcome.BUSY,
    ApprovalDenied: Outcome.DENIED,
    Looping: Outcome.LOOP,
    TooOften: Outcome.TOO_OFTEN,
    ToolUnavailable: Outcome.UNAVAILABLE,
    Unencodable: Outcome.UNENCODABLE,
    TooLarge: Outcome.TOO_LARGE,
}


class Stage(Enum):
    CREATED = "its task has not begun"
    REPEATED = "the same call runs already"
    ASKING = "waits to be approved"
    WAITING = "not invoked yet"
    INVOKED = "the tool has been called"
    LEFT = "the tool has left it open, and its outcome comes from elsewhere"
    ANSWERED = "reported before the tool ended"


NOT_INVOKED = (Stage.CREATED, Stage.REPEATED, Stage.ASKING, Stage.WAITING)


@dataclass(slots=True, eq=False)
class Run:
    """One call on its way."""

    key: CallKey
    call: ToolCall
    tool: Tool | None
    context: CallContext
    report: Callable[[Finished], None]
    interim: Interim | None
    began: float
    task: asyncio.Task[None] = field(init=False)
    stage: Stage = Stage.CREATED
    stop_asked: bool = False
    """A cancellation that we did not ask for is the tool's own failure."""
    outcome: Outcome = Outcome.OK
    """If all goes well."""
    answer: Outcome | None = None
    """How it was reported."""
    shown: str = ""
    """What may be shown of its arguments."""
    timer: asyncio.TimerHandle | None = None
    """For what it does at the moment."""
    patience: asyncio.TimerHandle | None = None
    """For how long its session waits for the result."""
    words: str = ""
    """What its session is told meanwhile, if the tool has said so in this very call."""
    parked: float | None = None
    """Since when its session waits no longer."""
    outlives: bool = False
    """Its tool has left it open, and the journal knows: it waits on whatever becomes of this process."""
    held: list[Slots] = field(default_factory=list)
    """Of what it has taken a place, to be given back once."""
    health: Health | None = None
    """What it has said about the tool."""

    @property
    def name(self) -> str:
        return self.tool.spec.name if self.tool is not None else _NO_TOOL

    @property
    def session(self) -> str:
        """Its session as the log names it."""
        return session_of(self.context)


# ------------------------------------------------------------------------------------------------------ what is said

CANCELLED = "the call was cancelled"
_WORKED_ON = "It is still being worked on"


def success(run: Run, output: str, now: float) -> Finished:
    result = ToolResult(run.call.call_id, output, name=run.call.name, echo=run.call.echo)
    return Finished(run.key, run.name, result, run.outcome, now - run.began)


def explained(run: Run, now: float, error: BaseException) -> Finished:
    """The result for an exception. Only the text of a `ToolError` is for the model; the log gets no text of a tool."""
    leaves = leaves_of(error)
    texts = [str(leaf) for leaf in leaves if isinstance(leaf, ToolError)]
    sentence = "; ".join(texts) if len(texts) == len(leaves) else ""
    outcome = next((each for kind, each in _OUTCOMES.items() if isinstance(leaves[0], kind)), Outcome.ERROR)
    ours = run.stage in NOT_INVOKED or isinstance(error, Unencodable | TooLarge)
    detail = sentence if ours and sentence else trace(error)
    if isinstance(error.__cause__, InvalidArguments):  # it is not the model's fault, and not for it to know
        detail = str(error.__cause__)
    return failure(run, now, outcome, sentence or f"the tool {run.name} failed", detail)


def failure(run: Run, now: float, outcome: Outcome, sentence: str, detail: str = "") -> Finished:
    output = encode({"error": sentence[:_SENTENCE]})
    result = ToolResult(run.call.call_id, output, is_error=True, name=run.call.name, echo=run.call.echo)
    return Finished(run.key, run.name, result, outcome, now - run.began, detail or sentence)


def interim(run: Run) -> ToolResult:
    """What a model is told of a call that goes on, so that it neither waits nor claims that it is done."""
    words = run.words or (run.tool.interim if run.tool is not None else "")
    why = "It waits to be approved by a person" if run.stage is Stage.ASKING else _WORKED_ON
    return replace(pending(run.call, words, why), echo=run.call.echo)


def pending(call: ToolCall, words: str = "", why: str = _WORKED_ON) -> ToolResult:
    """The same of any call: in these words, or in our own that tell why."""
    said = words or (
        f"{why}. Nothing has happened yet: do not say that it is done, and do not call the tool again for this. "
        "Its outcome will be given to you later; until then, go on with the conversation."
    )
    output = encode({"status": "pending", "message": said})
    return ToolResult(call.call_id, output, interim=True, name=call.name)


def no_such_tool(known: Iterable[str]) -> str:
    names = list(known)
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    more = len(names) - _NAMES_SHOWN
    return f"there is no such tool; available: {shown}" + (f" and {more} more" if more > 0 else "")


def busy(run: Run) -> str:
    if run.stage is Stage.REPEATED:
        return f"{run.name} was not run, because the same call is still running; wait for its result"
    return f"{run.name} was not run, because too many calls are running already; try again later"


def identity(name: str, arguments: Mapping[str, Any], fields: Sequence[str]) -> Hashable:
    """What makes two calls the same, however their arguments were spelled."""
    chosen = {field: arguments.get(field) for field in fields or arguments}
    return name, json.dumps(decode(encode(chosen)), sort_keys=True)


def marked(output: str) -> str:
    """An object says that it has been given before; other values have no place for that."""
    value = decode(output)
    return encode({**value, "replayed": True}) if isinstance(value, dict) else output


def health_of(run: Run, error: BaseException) -> Health:
    """What the end of a run says about its tool. An error in the tool's own words is an answer."""
    leaves = leaves_of(error)
    if isinstance(error, ToolBusy | ApprovalDenied) or (isinstance(error, asyncio.CancelledError) and run.stop_asked):
        return Health.UNKNOWN
    answered = all(isinstance(leaf, ToolError) and not isinstance(leaf, ToolUnavailable) for leaf in leaves)
    return Health.WELL if answered else Health.FAILED


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, at any depth; any other is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves_of(each)]
    return [error]


def trace(error: BaseException) -> str:
    """Types and places of an exception and its causes. Texts are left out: they may quote what a user said."""
    return "; ".join(" from ".join(islice(map(_place, _causes(leaf)), _CAUSES_SHOWN)) for leaf in leaves_of(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(error: BaseException) -> str:
    """`ValueError at client.py:31 (fetch) < weather.py:12 (get_weather)`; our own frames say nothing."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    frames = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__)]
    places = [
        f"{PurePath(code.co_filename).name}:{line} ({code.co_name})"
        for code, line in frames
        if code.co_filename not in _OURS
    ]
    return f"{name} at {' < '.join(places[: -_FRAMES_SHOWN - 1 : -1]) or 'an unknown place'}"
