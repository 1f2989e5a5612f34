"""Every dialect of the table against its cases."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.dialect import Endpoint, Message, refuse_inexpressible
from bridge.core.events import (
    ClientEvent,
    Malformed,
    ReplyStarted,
    SayAsked,
    ServerEvent,
    Start,
    ToolCall,
    ToolCalled,
    ToolSpec,
)
from bridge.core.http import HttpDialect
from bridge.core.turn import TurnMachine
from bridge.dialects import DIALECTS, HTTP_DIALECTS
from bridge.errors import ConfigError

from .conformance import Cases, assert_adds_tools_well, patient, specs, spoilt

TABLE = {**DIALECTS, **HTTP_DIALECTS}
ALL: dict[str, Cases] = {name: importlib.import_module(f".cases.{name}", __package__).CASES for name in TABLE}

every_dialect = pytest.mark.parametrize("cases", ALL.values(), ids=ALL.keys())


def rows_of(table: Callable[[Cases], Any]) -> pytest.MarkDecorator:
    """One test for each row of this table, in all dialects."""
    rows = [
        pytest.param(cases, row, id=f"{name}: {words}")
        for name, cases in ALL.items()
        for words, row in table(cases).items()
    ]
    return pytest.mark.parametrize(("cases", "row"), rows)


@cache
def _spoilt(name: str, table: str) -> st.SearchStrategy[Message]:
    return spoilt([row[0] for row in getattr(ALL[name], table).values()])


@every_dialect
def test_the_table_has_a_dialect_under_its_own_name(cases: Cases) -> None:
    assert TABLE[cases.dialect.name] is cases.dialect


def test_no_dialect_is_in_both_tables() -> None:
    assert not DIALECTS.keys() & HTTP_DIALECTS.keys()
    assert not any(isinstance(dialect, HttpDialect) for dialect in DIALECTS.values())


@pytest.mark.parametrize("name", HTTP_DIALECTS)
def test_a_provider_that_is_silent_while_its_turn_waits_for_a_tool_is_not_taken_for_stuck(name: str) -> None:
    machine = TurnMachine(HTTP_DIALECTS[name].delivery)
    for event in (ReplyStarted("r1"), ToolCalled(ToolCall("a", "book")), SayAsked("And then?")):
        machine, _ = machine.handle(event)
    assert machine.sayings  # the provider refuses it while a turn runs, or is resumed by it: it has to wait
    assert machine.delivery.max_hold >= 3600


@rows_of(lambda cases: cases.server)
def test_a_message_of_the_provider_means(cases: Cases, row: tuple[Message, tuple[ServerEvent, ...]]) -> None:
    message, meant = row
    assert tuple(cases.dialect.decode_server(message)) == meant


@rows_of(lambda cases: cases.server)
def test_an_event_carries_its_message(cases: Cases, row: tuple[Message, tuple[ServerEvent, ...]]) -> None:
    message, _ = row
    for event in cases.dialect.decode_server(message):
        assert event.message is message


@rows_of(lambda cases: cases.client)
def test_a_message_of_an_application_means(cases: Cases, row: tuple[Message, tuple[ClientEvent, ...]]) -> None:
    message, meant = row
    assert tuple(cases.dialect.decode_client(message)) == meant


@rows_of(lambda cases: cases.said)
def test_an_event_is_said_with(cases: Cases, row: tuple[ClientEvent, tuple[Message, ...]]) -> None:
    event, messages = row
    assert tuple(cases.dialect.encode_client(event)) == messages


@rows_of(lambda cases: cases.setups)
def test_a_setup_with_our_tools_is(cases: Cases, row: tuple[Message, list[ToolSpec], Message]) -> None:
    setup, tools, expected = row
    before = copy.deepcopy(setup)
    assert cases.dialect.add_tools(setup, tools) == expected
    assert setup == before


@rows_of(lambda cases: cases.replacements)
def test_the_tools_of_a_running_session_are_replaced_by(
    cases: Cases, row: tuple[Message, list[ToolSpec], Message | None]
) -> None:
    setup, tools, expected = row
    assert cases.dialect.replace_tools(setup, tools) == expected


@rows_of(lambda cases: cases.endpoints)
def test_the_place_to_connect_to_is(cases: Cases, row: tuple[str, str, Endpoint]) -> None:
    url, key, endpoint = row
    assert cases.dialect.endpoint(url, key) == endpoint


@every_dialect
def test_a_key_does_not_show_in_the_endpoint(cases: Cases) -> None:
    assert "s3cret" not in repr(cases.dialect.endpoint("", "s3cret"))


@every_dialect
def test_audio_is_framed_or_refused(cases: Cases) -> None:
    if cases.audio is None:
        with pytest.raises(ConfigError, match="no audio"):
            cases.dialect.encode_audio(b"\0\0")
        return
    data, frame = cases.audio
    assert cases.dialect.encode_audio(data) == frame


@pytest.mark.parametrize("name", HTTP_DIALECTS)
def test_a_tool_that_is_to_start_after_a_reply_that_waits_for_it_is_refused(name: str) -> None:
    refuse_inexpressible(HTTP_DIALECTS[name], [ToolSpec("look")])
    with pytest.raises(ConfigError, match=f"tool hang_up: cannot start after its reply, since {name}"):
        refuse_inexpressible(HTTP_DIALECTS[name], [ToolSpec("hang_up", start=Start.AFTER_REPLY)])


@every_dialect
@patient
@given(data=st.data())
def test_whatever_the_provider_says_is_decoded(cases: Cases, data: st.DataObject) -> None:
    message = data.draw(_spoilt(cases.dialect.name, "server"))
    events = tuple(cases.dialect.decode_server(message))
    assert events
    assert all(event.message is message for event in events)
    hash(events)


@every_dialect
@patient
@given(data=st.data())
def test_whatever_an_application_says_is_decoded(cases: Cases, data: st.DataObject) -> None:
    message = data.draw(_spoilt(cases.dialect.name, "client"))
    hash(tuple(cases.dialect.decode_client(message)))


@every_dialect
@patient
@given(data=st.data())
def test_whatever_is_set_up_gets_tools_or_stays_as_it_is(cases: Cases, data: st.DataObject) -> None:
    setup = data.draw(_spoilt(cases.dialect.name, "setups"))
    cases.dialect.add_tools(setup, [ToolSpec("ours")])


@every_dialect
@patient
@given(data=st.data())
def test_adding_tools_keeps_everything_else(cases: Cases, data: st.DataObject) -> None:
    names = st.text("abc", min_size=1, max_size=2)
    theirs = data.draw(st.lists(names, max_size=4, unique=True))
    assert_adds_tools_well(cases, theirs, data.draw(specs(names)))


@every_dialect
@pytest.mark.parametrize("broken", [ToolSpec("ours", parameters="{"), ToolSpec("ours", extra=(("x", "{"),))])
def test_a_tool_with_broken_json_is_refused_by_its_name(cases: Cases, broken: ToolSpec) -> None:
    with pytest.raises(ConfigError, match="tool ours"):
        cases.dialect.add_tools(cases.setup_with([]), [broken])


@every_dialect
def test_what_is_said_can_be_written(cases: Cases) -> None:
    for event, _ in cases.said.values():
        for message in cases.dialect.encode_client(event):
            assert orjson.loads(orjson.dumps(message)) == message


@every_dialect
def test_some_message_is_malformed(cases: Cases) -> None:
    assert any(isinstance(event, Malformed) for _, meant in cases.server.values() for event in meant)
