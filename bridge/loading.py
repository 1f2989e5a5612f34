"""Finds the tools that settings name: Python files or modules, and every `Toolset` in them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from .errors import ConfigError
from .tools.tool import Tool, Toolset

__all__ = ["load_tools"]


def load_tools(sources: Iterable[str], base: Path) -> Toolset:
    """All tools of these files (`*.py`, or with a slash in them) and modules, in that order.

    `base` is the directory that files are relative to; modules are looked for there, too. A toolset that several of
    them hold counts once. Raises `ConfigError` with everything that is wrong, a line each.
    """
    found: dict[int, Toolset] = {}
    faults: list[str] = []
    for source in sources:
        try:
            toolsets = list(_toolsets(_load(source, base)))
        except ConfigError as error:
            faults.append(f"{source}: {error}")
        except (Exception, SystemExit) as error:
            faults.append(f"{source}: {_first_line(error)}")
        else:
            if not toolsets:
                faults.append(f"{source}: there is no Toolset in it; write tools = Toolset(), and @tools.tool")
            found.update((id(each), each) for each in toolsets)
    tools = Toolset()
    for tool in _tools(found.values()):
        try:
            tools.add(tool)
        except ConfigError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError("\n".join(faults))
    return tools


def _load(source: str, base: Path) -> ModuleType:
    if source.endswith(".py") or "/" in source:
        return _load_file((base / source).resolve())
    _make_importable(base.resolve())
    return importlib.import_module(source)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError("there is no such file")
    _make_importable(path.parent)  # as if it were run
    known = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == str(path)]
    if known:
        return known[0]
    name = path.stem if path.stem not in sys.modules else f"tools_in_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError("this is no Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and others look their types up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _toolsets(module: ModuleType) -> Iterator[Toolset]:
    return (value for value in vars(module).values() if isinstance(value, Toolset))


def _tools(toolsets: Iterable[Toolset]) -> Iterator[Tool]:
    return (tool for toolset in toolsets for tool in toolset.values())


def _first_line(error: BaseException) -> str:
    """What went wrong, and the line of the user's code where it did."""
    where = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    place = f" (line {where[-1].lineno} of {Path(where[-1].filename).name})" if where else ""
    if isinstance(error, SyntaxError):
        place = f" (line {error.lineno} of {Path(error.filename or '?').name})"
        return f"this is not Python: {error.msg}{place}"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}{place}"
