"""Scenarios as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.simulator import script
from bridge.simulator.hcompany import Answer, Ask, Call, OwnTool
from bridge.simulator.openai_sessions import LateResults, Rules
from bridge.simulator.reading import read_file, read_rules, read_steps, refuse_others

ASK = {"ask": {"calls": [{"name": "book", "args": {"no": "77"}}]}}


def test_a_step_is_a_table_that_bears_its_name() -> None:
    own = {"own_tool": {"call": {"name": "look", "id": None}, "result": [1]}}
    assert read_steps([ASK, own, {"answer": {}}], Ask, OwnTool, Answer) == (
        Ask((Call("book", {"no": "77"}),)),
        OwnTool(Call("look", id=None), [1]),
        Answer(),
    )


def test_steps_of_a_spoken_conversation_are_read_the_same_way() -> None:
    steps = [{"user_says": {"text": "Oslo?"}}, {"reply": {"text": "", "calls": [{"name": "f", "args": "{"}]}}]
    assert read_steps(steps, script.UserSays, script.Reply) == (
        script.UserSays("Oslo?"),
        script.Reply("", (script.Call("f", "{"),)),
    )


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("ask", "steps: must be a list"),
        ({"ask": {}}, "steps: must be a list"),
        ([{}], "steps.0: must be a table with one key"),
        ([ASK, "ask"], "steps.1: must be a table with one key"),
        ([{"asq": {}}], "steps.0: there is no step asq; there are ask, answer"),
        ([{"ask": 3}], "steps.0.ask: "),
        ([{"ask": {"calls": [{}]}}], "steps.0.ask.calls.0.name: Field required"),
        ([{"answer": {"word": "x"}}], "steps.0.answer.word: Unexpected"),
    ],
)
def test_what_is_no_step_is_refused_and_its_place_is_named(steps: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_steps(steps, Ask, Answer)


def test_rules_name_the_members_of_enums_in_small_letters() -> None:
    rules = read_rules({"late_results": "unknown", "stored_agents": ["a"], "max_events": 3}, Rules)
    assert rules == Rules(late_results=LateResults.UNKNOWN, stored_agents=frozenset({"a"}), max_events=3)


@pytest.mark.parametrize(
    ("rules", "words"), [([], "rules: must be a table"), ({"late_results": "never"}, "late_results"), ({"x": 1}, "x")]
)
def test_rules_that_do_not_exist_are_refused(rules: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_rules(rules, Rules)


def test_a_file_is_toml_or_json(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[[steps]]\nanswer = {}\n")
    (tmp_path / "a.json").write_text('{"steps": [{"answer": {}}]}')
    assert read_file(tmp_path / "a.toml") == read_file(tmp_path / "a.json") == {"steps": [{"answer": {}}]}
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(ValueError, match="object"):
        read_file(tmp_path / "a.json")


def test_a_table_that_nobody_reads_is_refused() -> None:
    refuse_others({"steps": []}, "steps", "rules")
    with pytest.raises(ValueError, match="step is unknown; there are steps, rules"):
        refuse_others({"step": []}, "steps", "rules")
