"""Finds the tools that are named by file or module: every `Toolset` in them.

A file is run statement by statement, so that one tool that cannot work does not hide what is wrong with the next. It is
run anew each time, so that what has been edited counts; the modules it imports are not, unless they are named, too.
"""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from .errors import ConfigError
from .tools.tool import Tool, Toolset

__all__ = ["Loaded", "load", "load_tools"]

_NO_TOOLSET: Final = "there is no Toolset in it: make one called `tools`, as in tools = Toolset(), and use @tools.tool"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found."""

    tools: Toolset
    errors: tuple[str, ...] = ()
    """Everything that is wrong, a line each: `file.py:12: tool find: ...`."""
    unusable: tuple[str, ...] = ()
    """Those of the errors for which a source as a whole came to nothing."""


def load(sources: Iterable[str], base: Path, *, fresh: bool = False) -> Loaded:
    """All tools of these files (`*.py`, or with a slash in them) and modules, in that order.

    `base` is the directory that files are relative to; modules are looked for there, too. A toolset that several of
    them hold counts once. `fresh` runs modules anew that have been imported before.
    """
    sources, base = list(dict.fromkeys(sources)), base.resolve()
    for source in filter(_is_file, sources):
        _forget(base / source)
    run = _Run(base, fresh)
    for source in sources:
        run.load(source)
    tools, clashes = _united(run.found.values())
    return Loaded(tools, (*run.errors, *clashes), tuple(run.unusable))


def load_tools(sources: Iterable[str], base: Path) -> Toolset:
    """The tools that `load` finds. Raises `ConfigError` with everything that is wrong, a line each."""
    loaded = load(sources, base)
    if loaded.errors:
        raise ConfigError("\n".join(loaded.errors))
    return loaded.tools


def _united(toolsets: Iterable[Toolset]) -> tuple[Toolset, list[str]]:
    tools, clashes = Toolset(), []
    for tool in _tools(toolsets):
        try:
            tools.add(tool)
        except ConfigError as error:
            clashes.append(str(error))
    return tools, clashes


def _tools(toolsets: Iterable[Toolset]) -> Iterator[Tool]:
    return (tool for toolset in toolsets for tool in toolset.values())


class _Unusable(Exception):
    """A source came to nothing; the text is the line that says so."""


@dataclass(slots=True)
class _Run:
    """One loading of several sources, in which none of them is run twice."""

    base: Path
    fresh: bool
    found: dict[int, Toolset] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    before: set[str] = field(default_factory=lambda: set(sys.modules))
    """Modules that this loading has not asked for."""

    def load(self, source: str) -> None:
        known = len(self.errors)
        try:
            module = self._file(source) if _is_file(source) else self._module(source)
            toolsets = [value for value in vars(module).values() if isinstance(value, Toolset)]
            if not toolsets and len(self.errors) == known:
                raise _Unusable(f"{source}: {_NO_TOOLSET}")
        except _Unusable as error:
            self.errors.append(str(error))
            self.unusable.append(str(error))
        else:
            self.found.update((id(each), each) for each in toolsets)

    # ------------------------------------------------------------------------------------------------------- modules

    def _module(self, source: str) -> ModuleType:
        _make_importable(self.base)
        try:
            module = importlib.import_module(source)
            if self.fresh and source in self.before:
                importlib.reload(module)
            self.before.discard(source)
            return module
        except ConfigError as error:
            raise _Unusable(f"{source}: {error}") from None
        except SyntaxError as error:
            raise _Unusable(f"{source}: {_not_python(error, error.filename)}") from None
        except (Exception, SystemExit) as error:
            raise _Unusable(f"{source}: {_what(error)}{_place(error)}") from None

    # --------------------------------------------------------------------------------------------------------- files

    def _file(self, source: str) -> ModuleType:
        path = (self.base / source).resolve()
        tree, flags = _parsed(source, path)
        _make_importable(path.parent)  # as if it were run
        for name, module in _modules_of(path):
            if name not in self.before:  # another source has just imported it
                return module
        module = ModuleType(path.stem if path.stem not in sys.modules else f"tools_in_{path.stem}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module  # dataclasses and others look their types up there
        for statement in tree.body:
            code = compile(ast.Module([statement], []), str(path), "exec", flags=flags, dont_inherit=True)
            self._statement(code, module, source, path)
        return module

    def _statement(self, code: CodeType, module: ModuleType, source: str, path: Path) -> None:
        """A tool that cannot work is noted; whatever else goes wrong is the end of the file."""
        try:
            exec(code, module.__dict__)
        except ConfigError as error:
            self.errors.append(f"{source}:{_line(error, path)}: {error}")
        except (Exception, SystemExit) as error:
            if isinstance(error, NameError) and any(line.startswith(f"{source}:") for line in self.errors):
                return  # it needs what a broken definition would have made
            del sys.modules[module.__name__]
            raise _Unusable(f"{source}:{_line(error, path)}: {_what(error)}{_place(error, path)}") from None


def _parsed(source: str, path: Path) -> tuple[ast.Module, int]:
    """The statements of a file, and what its `from __future__` lines ask of the compiler."""
    if not path.is_file():
        raise _Unusable(f"{source}: there is no such file")
    if path.suffix != ".py":
        raise _Unusable(f"{source}: this is no Python file: its name has to end in .py")
    try:
        text = path.read_bytes()
        tree = ast.parse(text, str(path))
        whole = compile(tree, str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise _Unusable(f"{source}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise _Unusable(f"{source}: {_not_python(error, path)}") from None
    return tree, whole.co_flags & _FUTURE


_FUTURE: Final = annotations.compiler_flag


def _is_file(source: str) -> bool:
    return source.endswith(".py") or "/" in source


def _forget(path: Path) -> None:
    """Let the file be run, and imported, anew."""
    for name, _ in _modules_of(path.resolve()):
        if name != "__main__":
            del sys.modules[name]


def _modules_of(path: Path) -> list[tuple[str, ModuleType]]:
    modules = list(sys.modules.items())
    return [(name, module) for name, module in modules if getattr(module, "__file__", None) == str(path)]


def _make_importable(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


# ------------------------------------------------------------------------------------------------------- what is said


def _what(error: BaseException) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _not_python(error: SyntaxError | ValueError, file: str | Path | None) -> str:
    line = error.lineno if isinstance(error, SyntaxError) else None
    where = f" (line {line} of {Path(file or '?').name})" if line else ""
    return f"this is not Python: {getattr(error, 'msg', error)}{where}"


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Those of the user's code, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]


def _line(error: BaseException, path: Path) -> int | None:
    """The line of this file in which it went wrong."""
    return next((frame.lineno for frame in reversed(_frames(error)) if frame.filename == str(path)), 1)


def _place(error: BaseException, path: Path | None = None) -> str:
    """Where it went wrong, unless that is in this file."""
    if isinstance(error, SyntaxError):
        return f" (line {error.lineno} of {Path(error.filename or '?').name})"
    match [frame for frame in _frames(error) if not frame.filename.startswith(str(Path(importlib.__file__).parent))]:
        case [*_, frame] if frame.filename != str(path):
            return f" (line {frame.lineno} of {Path(frame.filename).name})"
        case _:
            return ""
