"""What every dialect must do, written once; `cases/<name>.py` holds the tables for one of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bridge.core.dialect import Dialect, Endpoint, Message
from bridge.core.events import ClientEvent, Frame, ServerEvent, Setup, ToolSpec

Means = Mapping[str, tuple[Message, tuple[ServerEvent, ...]]]
Asks = Mapping[str, tuple[Message, tuple[ClientEvent, ...]]]
Says = Mapping[str, tuple[ClientEvent, tuple[Message, ...]]]


@dataclass(frozen=True)
class Cases:
    """The tables of one dialect. Each row has a name in words."""

    dialect: Dialect
    server: Means
    """Messages of the provider, and what they mean."""
    client: Asks
    """Messages of an application, and what they mean."""
    said: Says
    """Events, and the messages that say them."""
    setups: Mapping[str, tuple[Message, Sequence[ToolSpec], Message]]
    """Setup messages, our tools, and the setup with them."""
    replacements: Mapping[str, tuple[Message, Sequence[ToolSpec], Message | None]]
    """Setup messages, our new tools, and the message that replaces the list of tools in the running session."""
    endpoints: Mapping[str, tuple[str, str, Endpoint]]
    """Address of the user, key, and where to connect."""
    audio: tuple[bytes, Frame] | None
    """A piece of audio and its frame; None where there is no audio."""
    setup_with: Callable[[Sequence[Any]], Message]
    """A setup with these entries in its list of tools, and fields nobody knows."""
    entry: Callable[[str], Any]
    """The application's own entry for a tool of this name."""
    tools_of: Callable[[Message], Sequence[Any]]
    """The entries in a setup's list of tools."""


patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For properties: that the machine is busy proves nothing."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def spoilt(messages: Sequence[Message]) -> st.SearchStrategy[Message]:
    """Known messages in which one part, at any depth, is missing or something else; and objects of any kind."""
    places = [(message, path) for message in messages for path in _paths(message, depth=5)]
    replaced = st.builds(_replaced, st.sampled_from(places), JSON)
    without = st.sampled_from(places).map(_without)
    return replaced | without | st.dictionaries(st.text(max_size=8), JSON, max_size=4)


def specs(names: st.SearchStrategy[str]) -> st.SearchStrategy[list[ToolSpec]]:
    """Tools with names of this kind; a name may occur twice."""
    return st.lists(
        st.builds(
            ToolSpec,
            name=names,
            description=st.text(max_size=8),
            parameters=st.sampled_from(['{"type":"object"}', '{"$schema":"x","type":"object","properties":{"a":{}}}']),
            timeout=st.none() | st.floats(0, 1000),
            hold=st.booleans(),
            extra=st.sampled_from([(), (("name", '"other"'), ("more", "[1]"))]),
        ),
        max_size=4,
    )


def assert_adds_tools_well(cases: Cases, names: Sequence[str], tools: Sequence[ToolSpec]) -> None:
    """`add_tools` keeps what it finds, lists each name once, and changes neither its input nor its own output."""
    dialect = cases.dialect
    theirs = [cases.entry(name) for name in names]
    setup = cases.setup_with(theirs)
    added = dialect.add_tools(setup, tools)
    assert setup == cases.setup_with(theirs)
    ours = list(dict.fromkeys(spec.name for spec in tools if spec.name not in names))
    assert tuple(dialect.decode_client(added)) == (Setup((*names, *ours)),)
    entries = cases.tools_of(added)
    # As text, since the order of the fields is to be kept too.
    assert orjson.dumps(added) == orjson.dumps(cases.setup_with([*theirs, *entries[len(theirs) :]]))
    assert dialect.add_tools(added, tools) == added


def _paths(value: Any, depth: int) -> Iterator[tuple[str | int, ...]]:
    parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts if depth else ():
        yield (key,)
        for path in _paths(part, depth - 1):
            yield (key, *path)


def _replaced(place: tuple[Message, tuple[Any, ...]], value: object) -> Message:
    message = copy.deepcopy(place[0])
    *above, last = place[1]
    _at(message, above)[last] = value
    return message


def _without(place: tuple[Message, tuple[Any, ...]]) -> Message:
    message = copy.deepcopy(place[0])
    *above, last = place[1]
    del _at(message, above)[last]
    return message


def _at(value: Any, path: Sequence[Any]) -> Any:
    for key in path:
        value = value[key]
    return value
