"""A Python file with tools, as the commands take it: loaded, shown as the provider would see it, and looked over.

The file is run statement by statement, so that one tool that cannot work does not hide what is wrong with the next.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from .agents import AssemblyAI
from .core.events import Deliver, Start
from .errors import BridgeError, ConfigError
from .tools.tool import Tool, Toolset

__all__ = ["ToolFile", "ToolFileUnreadable", "advice", "definitions", "load"]

_MANY: Final = 10
"""Tools beyond which models choose worse."""


class ToolFileUnreadable(BridgeError):
    """The file cannot be read, is not Python, fails when it is run, or holds no tools."""


@dataclass(frozen=True, slots=True)
class ToolFile:
    """The tools of a file; `errors` are the definitions that cannot work, as `file:line: reason`."""

    tools: Toolset
    errors: tuple[str, ...]


def load(path: Path) -> ToolFile:
    """Run the file, and find its `Toolset`: the one called `tools`, or else the only one.

    Raises `ToolFileUnreadable`, whose text is one line.
    """
    tree, flags = _parse(path)
    module = ModuleType(f"tools_in_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and others look their types up there
    sys.path.insert(0, str(path.resolve().parent))
    errors: list[str] = []
    for statement in tree.body:
        code = compile(ast.Module([statement], []), str(path), "exec", flags=flags, dont_inherit=True)
        _run(code, module, path, errors)
    return ToolFile(_toolset(module, path, errors), tuple(errors))


def _parse(path: Path) -> tuple[ast.Module, int]:
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ToolFileUnreadable(f"{path}: {error.strerror}") from None
    try:
        tree = ast.parse(source, str(path))
        whole = compile(tree, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ToolFileUnreadable(f"{path}: this is not Python: {error}") from None
    return tree, whole.co_flags & annotations.compiler_flag


def _run(code: CodeType, module: ModuleType, path: Path, errors: list[str]) -> None:
    """Run one statement; a tool that cannot work is noted, anything else that goes wrong ends it."""
    try:
        exec(code, module.__dict__)
    except ConfigError as error:
        errors.append(f"{path}:{_line(error, path)}: {error}")
    except (Exception, SystemExit) as error:
        if errors and isinstance(error, NameError):
            return  # it needs what a broken definition would have made
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ToolFileUnreadable(f"{path}:{_line(error, path)}: {what}") from None


def _line(error: BaseException, path: Path) -> int | None:
    """The line of the file in which it went wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename == str(path)), 1)


def _toolset(module: ModuleType, path: Path, errors: list[str]) -> Toolset:
    found = {name: value for name, value in vars(module).items() if isinstance(value, Toolset)}
    if "tools" in found:
        return found["tools"]
    match list({id(toolset): toolset for toolset in found.values()}.values()):
        case [toolset]:
            return toolset
        case [] if errors:
            return Toolset()
        case []:
            raise ToolFileUnreadable(f"{path}: there is no Toolset in it: make one called `tools`")
        case _:
            raise ToolFileUnreadable(f"{path}: which Toolset, {' or '.join(found)}? Call it `tools`")


# ---------------------------------------------------------------------------------------------- what would be sent


def definitions(tools: Toolset) -> list[dict[str, Any]]:
    """The entries of `session.tools`, as they would be sent."""
    agent = AssemblyAI()
    session = agent.dialect.add_tools(agent.setup(), tools.specs())["session"]
    entries: list[dict[str, Any]] = session.get("tools", [])
    return entries


def advice(tools: Toolset) -> list[str]:
    """What will work, but not well."""
    found = [line for entry in definitions(tools) for line in _advice(tools[entry["name"]], entry)]
    if len(tools) > _MANY:
        found.append(f"{len(tools)} tools: beyond {_MANY}, models choose worse; offer fewer at a time")
    return found


def _advice(tool: Tool, entry: dict[str, Any]) -> Iterator[str]:
    name = tool.spec.name
    longest, window = tool.timeout + tool.queue_timeout, entry.get("timeout_seconds", 0.0)
    if window < longest:
        yield f"{name}: it may take {longest:g} s, its wait for a free slot included; the provider waits {window:g} s"
    if not tool.spec.description.strip():
        yield f"{name}: no description: the model has to guess what it is for; write a docstring"
    for parameter, schema in entry["parameters"]["properties"].items():
        if not schema.get("description"):
            yield f"{name}: parameter {parameter} has no description"
    if tool.effect == "terminal" and tool.spec.start is Start.NOW:
        yield f"{name}: cannot be undone, but starts before its reply has been heard"
    if tool.spec.deliver is Deliver.NOW:
        yield f"{name}: its result is sent at once, even if the caller cuts in"
