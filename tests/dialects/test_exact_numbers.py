"""An account number is an integer of any length: no dialect rounds it, on the way to a tool or back."""

from __future__ import annotations

import json
from typing import Any

from bridge.core.events import ToolCall, ToolCalled, ToolResult, ToolResults
from bridge.core.http import HttpDialect
from bridge.core.messages import decode, encode, parse
from bridge.transports.answers import json_object

from .conformance import Cases
from .test_dialects import every_dialect

LONG = 41_111_111_111_111_111_111_111
TEXT = f'{{"n":{LONG}}}'


def with_the_number(value: Any) -> Any:
    """A message of the provider, with the number in the arguments of its calls."""
    match value:
        case dict():
            arguments = value.keys() & {"arguments", "args", "input"}
            return {key: {"n": LONG} if key in arguments else with_the_number(each) for key, each in value.items()}
        case list():
            return [with_the_number(each) for each in value]
        case _:
            return value


def calls(cases: Cases) -> list[ToolCall]:
    """All calls of the tables that have an object as their arguments, as they come from the wire."""
    found = []
    for message, meant in cases.server.values():
        if any(isinstance(event, ToolCalled) and event.call.arguments.startswith("{") for event in meant):
            text = json.dumps(with_the_number(message))
            assert parse(text) == json_object(text.encode())
            found += [
                each.call for each in cases.dialect.decode_server(parse(text) or {}) if isinstance(each, ToolCalled)
            ]
    return [call for call in found if call.arguments != "{}"]  # there are some without


@every_dialect
def test_a_tool_is_called_with_all_digits_of_a_number(cases: Cases) -> None:
    found = calls(cases)
    assert found
    assert {call.arguments for call in found} == {TEXT}


@every_dialect
def test_a_result_is_sent_with_all_digits_of_a_number(cases: Cases) -> None:
    call = calls(cases)[0]
    result = ToolResult(call.call_id, TEXT, name=call.name, echo=call.echo)
    (message,) = cases.dialect.encode_client(ToolResults((result,)))
    sent = decode(encode(message))
    if isinstance(cases.dialect, HttpDialect):
        request = cases.dialect.request("s1", sent)
        assert request is not None
        sent = request.body
    assert str(LONG) in json.dumps(sent)
