"""The turn machine, broken on purpose: one edit at a time, and each must be noticed.

Every edit must be noticed by the stories; most must also be noticed by a walk through small worlds, which knows only
the invariants. An edit whose text is not in the source any more fails: mend it together with the source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import CodeType, ModuleType
from typing import Any

import pytest

from bridge.core import release, turn
from bridge.core.dialect import Delivery

from . import script, test_turn_calls, test_turn_cases, test_turn_table, test_turn_time, walk
from .edits import EDITS, Edit
from .walk import CAREFUL, CAREFUL_SILENT, EAGER, HELD, PLAIN, RECORD, SILENT, World

STORIES = (test_turn_cases, test_turn_table, test_turn_calls, test_turn_time)
SOURCES = {module: inspect.getsource(module) for module in (turn, release)}

# The small ones come first: most edits are noticed there.
WORLDS = (
    World(Delivery(), 1, (PLAIN, CAREFUL, HELD, EAGER, SILENT, CAREFUL_SILENT), cancelling=True),
    World(Delivery(), 1, (PLAIN, CAREFUL), reply_ids=False),
    World(Delivery(), 1, (PLAIN, CAREFUL), words=True),
    World(Delivery(void=False), 1, (PLAIN, CAREFUL, SILENT, RECORD)),
    World(Delivery(hold=False, asks=False, speech=False), 1, (PLAIN,), asking=True, pausing=True),
    World(Delivery(), 1, (PLAIN, CAREFUL), link=True),
    World(Delivery(asks=False), 2, (PLAIN,)),
    World(Delivery(hold=False), 2, (PLAIN,)),
    World(Delivery(), 2, (PLAIN,)),
    World(Delivery(), 2, (PLAIN,), parking=True),
    World(Delivery(whole_turn=True), 2, (PLAIN, EAGER)),
    World(Delivery(), 1, (PLAIN, HELD), asking=True, sayings=2),
    World(Delivery(), 2, (PLAIN, CAREFUL, EAGER)),
)


def broken(edit: Edit) -> ModuleType:
    """The machine with this edit, as a module beside the real one."""
    found = sum(source.count(edit.old) for source in SOURCES.values())
    assert found == 1, "the text to be edited is not there, or not once"
    edited = {module: _edited(module, edit) for module in SOURCES}
    vars(edited[turn]).update({name: getattr(edited[release], name) for name in release.__all__})
    return edited[turn]


def _edited(module: ModuleType, edit: Edit) -> ModuleType:
    copy = ModuleType(f"{module.__name__}_edited")
    copy.__package__ = module.__package__
    exec(_compiled(SOURCES[module].replace(edit.old, edit.new), f"{copy.__name__}.py"), vars(copy))
    return copy


@cache
def _compiled(source: str, name: str) -> CodeType:
    """Of two modules at least one is as it was."""
    return compile(source, name, "exec")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Stories and walk use the broken machine."""
    module = broken(edit)
    for user in (walk, script, *STORIES):
        for name in set(turn.__all__) & vars(user).keys():
            monkeypatch.setattr(user, name, getattr(module, name))


def stories() -> Iterator[Callable[[], None]]:
    """Every test of the files of stories, with every row of its table."""
    for file in STORIES:
        for name, test in vars(file).items():
            if name.startswith("test_") and not _marked(test, "xfail"):
                yield from _rows(test)


def _rows(test: Callable[..., None]) -> Iterator[Callable[[], None]]:
    marks = _marked(test, "parametrize")
    if not marks:
        yield test
        return
    (mark,) = marks
    names, rows = mark.args
    for row in rows:
        yield partial(test, *row) if len(_names(names)) > 1 else partial(test, row)


def _marked(test: Callable[..., None], name: str) -> list[pytest.Mark]:
    return [mark for mark in getattr(test, "pytestmark", []) if mark.name == name]


def _names(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def noticed(tell: Callable[[], object]) -> bool:
    """Does this fail, in whatever way?"""
    try:
        tell()
    except Exception:
        return True
    return False


def test_the_stories_notice_nothing_in_the_real_machine() -> None:
    assert not any(noticed(story) for story in stories())


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
@pytest.mark.usefixtures("machine")
def test_the_stories_notice_that(edit: Edit) -> None:
    assert any(noticed(story) for story in stories())


def _walked() -> list[Any]:
    """A few edits now that are noticed early on, the others among the slow tests."""
    walked = [(name, edit) for name, edit in EDITS.items() if edit.walked]
    step = len(walked) // 6
    return [
        pytest.param(edit, id=name, marks=() if n % step == 2 else pytest.mark.slow)
        for n, (name, edit) in enumerate(walked)
    ]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("edit", _walked())
@pytest.mark.usefixtures("machine")
def test_the_walk_notices_that(edit: Edit) -> None:
    assert any(noticed(partial(walk.walk, world)) for world in WORLDS)
