from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from bridge.loading import Loaded, load, load_tools

HEAD = "from bridge import Toolset\ntools = Toolset()\n"


@pytest.fixture(autouse=True)
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test imports is forgotten after it. No bytecode: its time stamps are too coarse for edits in a test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = dict(sys.modules)
    yield
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]
    sys.modules.update(before)


def tool(name: str) -> str:
    return f"@tools.tool\ndef {name}() -> str:\n    '''Does it.'''\n    return {name!r}\n"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return path.name


def names(loaded: Loaded) -> list[str]:
    assert loaded.errors == ()
    return list(loaded.tools)


# ------------------------------------------------------------------------------------------------------- what is found


def test_files_and_modules_are_loaded_in_the_order_they_are_named(tmp_path: Path) -> None:
    one = written(tmp_path / "one.py", HEAD + tool("first"))
    (tmp_path / "part").mkdir()
    written(tmp_path / "part" / "two.py", HEAD + tool("second"))
    written(tmp_path / "three_of_loading.py", HEAD + tool("third"))
    assert names(load(["part/two.py", "three_of_loading", one], tmp_path)) == ["second", "third", "first"]


def test_every_toolset_of_a_file_counts(tmp_path: Path) -> None:
    file = written(
        tmp_path / "t.py", HEAD + tool("a") + "more = also = Toolset()\n" + tool("b").replace("tools", "more")
    )
    assert names(load([file, file], tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("order", [["shop.py", "all.py"], ["all.py", "shop.py"], ["all.py", "shop", "shop.py"]])
def test_a_toolset_that_two_files_hold_counts_once(tmp_path: Path, order: list[str]) -> None:
    written(tmp_path / "shop.py", HEAD + tool("a"))
    written(tmp_path / "all.py", "from shop import tools\n")
    assert names(load(order, tmp_path)) == ["a"]
    assert names(load(order, tmp_path, fresh=True)) == ["a"]


def test_two_files_of_the_same_name_are_two_files(tmp_path: Path) -> None:
    for part in ("x", "y"):
        (tmp_path / part).mkdir()
        written(tmp_path / part / "same.py", HEAD + tool(part))
    assert names(load(["x/same.py", "y/same.py"], tmp_path)) == ["x", "y"]


def test_types_may_be_text_and_classes_of_the_file_are_found(tmp_path: Path) -> None:
    text = (
        "'''Tools.'''\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n"
        + HEAD
        + "@dataclass\nclass Place:\n    name: str\n\n"
        + "@tools.tool\ndef find(place: Place) -> str:\n    return place.name\n"
    )
    found = load([written(tmp_path / "t.py", text)], tmp_path)
    assert names(found) == ["find"]
    assert '"name":{"type":"string"}' in found.tools["find"].spec.parameters


def test_an_edited_file_is_run_anew(tmp_path: Path) -> None:
    file = written(tmp_path / "t.py", HEAD + tool("old"))
    before = load([file], tmp_path).tools
    written(tmp_path / "t.py", HEAD + tool("new"))
    assert names(load([file], tmp_path)) == ["new"]
    assert list(before) == ["old"]


def test_an_edited_module_is_run_anew_only_if_that_is_asked_for(tmp_path: Path) -> None:
    written(tmp_path / "shop_of_loading.py", HEAD + tool("old"))
    sources = ["shop_of_loading"]
    assert names(load(sources, tmp_path, fresh=True)) == ["old"]
    written(tmp_path / "shop_of_loading.py", HEAD + tool("new"))
    assert names(load(sources, tmp_path)) == ["old"]
    assert names(load(sources, tmp_path, fresh=True)) == ["new"]


# ------------------------------------------------------------------------------------------------------- what is wrong


def wrong(loaded: Loaded) -> str:
    (line,) = loaded.errors
    return line


def test_all_broken_definitions_of_all_files_are_named_with_their_lines(tmp_path: Path) -> None:
    broken = "@tools.tool\ndef {}(x) -> int:\n    return x\n"
    one = written(tmp_path / "one.py", HEAD + broken.format("a") + tool("good") + broken.format("b") + "again = b\n")
    two = written(tmp_path / "two.py", "raise ValueError('no\\nmore')\n")
    found = load([one, two], tmp_path)
    a, b, c = found.errors
    assert a.startswith("one.py:3: tool a: parameter x has no type")
    assert b.startswith("one.py:10: tool b: parameter x has no type")
    assert c == "two.py:1: ValueError: no"
    assert found.unusable == (c,)
    assert list(found.tools) == ["good"]


def test_a_name_that_is_used_twice_is_an_error_with_both_places(tmp_path: Path) -> None:
    one, two = (written(tmp_path / f"{name}.py", HEAD + tool("find")) for name in ("one", "two"))
    line = wrong(load([one, two], tmp_path))
    assert line.startswith("two tools are called find: ")
    assert f"{tmp_path / 'one.py'}:3" in line
    assert f"{tmp_path / 'two.py'}:3" in line


def test_a_name_that_is_used_twice_in_a_file_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path / "t.py", HEAD + tool("find") + tool("find"))
    assert wrong(load([file], tmp_path)).startswith("t.py:7: two tools are called find")


def test_a_missing_name_is_said_unless_a_broken_definition_would_have_made_it(tmp_path: Path) -> None:
    assert wrong(load([written(tmp_path / "t.py", HEAD + "nothing\n")], tmp_path)).startswith("t.py:3: NameError: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "t.py: this is not Python: invalid syntax (line 1 of t.py)"),
        ("a = '\0'\n", "t.py: this is not Python: source code string cannot contain null bytes"),
        ("\nimport no_such_module\n", "t.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit\n", "t.py:1: SystemExit: "),
        (
            "import json\n\n\njson.loads('')\n",
            "t.py:4: JSONDecodeError: Expecting value: line 1 column 1 (char 0) (line ",
        ),
        ("import bad\n", "t.py:1: SyntaxError: '(' was never closed (bad.py, line 1) (line 1 of bad.py)"),
        ("x = 1\n", "t.py: there is no Toolset in it: make one called `tools`"),
    ],
)
def test_a_file_that_comes_to_nothing_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "bad.py").write_text("f(\n")
    found = load([written(tmp_path / "t.py", text)], tmp_path)
    assert wrong(found).startswith(words)
    assert found.unusable == found.errors
    assert "\n" not in wrong(found)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("gone.py", "gone.py: there is no such file"),
        ("./notes.txt", "./notes.txt: this is no Python file: its name has to end in .py"),
        ("no_such_module_here", "no_such_module_here: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("broken_of_loading", "broken_of_loading: tool f: parameter x has no type"),
        ("syntax_of_loading", "syntax_of_loading: this is not Python: '(' was never closed (line 1 of syntax_of_load"),
        ("raising_of_loading", "raising_of_loading: KeyError: 'x' (line 2 of raising_of_loading.py)"),
        ("empty_of_loading", "empty_of_loading: there is no Toolset in it"),
    ],
)
def test_a_source_that_cannot_be_loaded_is_said_in_one_line(tmp_path: Path, source: str, words: str) -> None:
    written(tmp_path / "notes.txt", "x")
    written(tmp_path / "broken_of_loading.py", HEAD + "@tools.tool\ndef f(x): ...\n")
    written(tmp_path / "syntax_of_loading.py", "f(\n")
    written(tmp_path / "raising_of_loading.py", "\nraise KeyError('x')\n")
    written(tmp_path / "empty_of_loading.py", "")
    found = load([source], tmp_path)
    assert wrong(found).startswith(words)
    assert found.unusable == found.errors


def test_a_file_that_may_not_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    file = written(tmp_path / "t.py", HEAD)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert wrong(load([file], tmp_path)) == "t.py: Permission denied"


def test_whoever_wants_only_sound_tools_gets_all_that_is_wrong_in_one_error(tmp_path: Path) -> None:
    good = written(tmp_path / "good.py", HEAD + tool("find"))
    assert list(load_tools([good], tmp_path)) == ["find"]
    with pytest.raises(ConfigError) as caught:
        load_tools(["gone.py", good, "away.py"], tmp_path)
    assert str(caught.value) == "gone.py: there is no such file\naway.py: there is no such file"
