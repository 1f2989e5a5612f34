"""What the README says of options, commands, extras, errors and files is what there is."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest

import bridge
from bridge import BridgeError, Tool, ToolError
from bridge.cli import cli
from bridge.tools.tool import ToolOptions

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The table of a section, cell by cell, without its head."""
    section = re.search(rf"(?ms)^##+ {heading}$(.*?)(?=^##|\Z)", README)
    assert section is not None
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    return [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_option_of_a_tool_is_in_the_table_and_no_other() -> None:
    documented = [name for option, *_ in rows("Tools") for name in named(option)]
    assert sorted(documented) == sorted(get_type_hints(ToolOptions))


_UNITS = {"10 s": 10, "5 s": 5, "60 s": 60, "1 s": 1, "32 KiB": 32 * 1024, '`"write"`': "write", '`"finish"`': "finish"}


def defaults() -> Iterator[tuple[str, str]]:
    for option, default, *_ in rows("Tools"):
        parts = [part.strip() for part in default.split(",")]
        names = named(option)
        yield from zip(names, parts * len(names) if len(parts) == 1 else parts, strict=False)


def test_the_defaults_of_the_table_are_those_of_the_code() -> None:
    fields: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(Tool)}
    shown = {name: _UNITS[text] for name, text in defaults() if text in _UNITS}
    assert shown == {name: fields[name] for name in shown}
    assert {
        "timeout",
        "queue_timeout",
        "effect",
        "on_interrupt",
        "result_limit",
        "filler_after",
        "approval_timeout",
    } == {*shown}


def test_every_command_is_in_the_table_and_no_other() -> None:
    documented = {named(command)[0].split()[1] for command, _ in rows("Commands")}
    assert documented == set(cli.commands)


@pytest.mark.parametrize("line", [*dict.fromkeys(re.findall(r"voice-tool-bridge ([a-z][^`\n#]*)", README))])
def test_the_commands_that_are_shown_have_the_options_that_are_shown(line: str) -> None:
    words, command = line.split(), cli.commands[line.split()[0]]
    for word in words[1:]:
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if re.fullmatch(r"--[a-z-]+", word)} <= options


def test_every_extra_that_is_named_is_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named_in_brackets = {
        name for each in re.findall(r"voice-tool-bridge\[([a-z,]+)\]", README) for name in each.split(",")
    }
    assert named_in_brackets | set(re.findall(r"extras? `([a-z]+)`", README)) <= set(extras)


def test_every_example_that_is_named_is_there() -> None:
    found = re.findall(r"`(examples/[\w.]+\w)`", README)
    assert found
    assert [name for name in found if not (ROOT / name).exists()] == []


def test_every_error_that_a_host_may_meet_is_in_the_table_and_no_other() -> None:
    public = {name: getattr(bridge, name) for name in bridge.__all__}
    errors = {name for name, each in public.items() if isinstance(each, type) and issubclass(each, BridgeError)}
    raised = {name for name in errors if not issubclass(public[name], ToolError)} - {"BridgeError"}
    assert {named(exception)[0] for exception, *_ in rows("Errors")} == raised


def test_its_links_lead_to_its_sections() -> None:
    sections = {
        re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in re.findall(r"(?m)^##+ (.*)$", README)
    }
    links = re.findall(r"\]\(#([^)]+)\)", README)
    assert links
    assert set(links) <= sections
