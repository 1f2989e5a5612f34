"""What can be declared, what cannot, and what is said about it."""

from __future__ import annotations

import dataclasses
import traceback
import typing
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.tools import Tool
from bridge.tools.webhook import HttpTool, Parameter

URL = "https://shop.example.com/orders"
TEXT = {"type": "string"}


def faults(**fields: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        HttpTool(**{"name": "a", "url": URL, **fields})
    return str(refused.value)


def test_name_and_address_are_enough() -> None:
    tool = HttpTool(name="a", url=URL)
    assert (tool.method, tool.acts, tool.attempts) == ("GET", "read", 3)
    assert tool.schema_ == {"type": "object", "properties": {}}


@pytest.mark.parametrize("name", ["", "find order", "é", "x" * 65])
def test_a_name_that_no_provider_takes_is_refused_with_all_else(name: str) -> None:
    said = faults(name=name, result="order")
    assert "name must be 1 to 64 of A-Z a-z 0-9 _ -; result must be a JSON pointer" in said


def test_what_is_not_said_is_as_for_any_other_tool() -> None:
    """A `Tool` decides by itself what `effect` is."""
    ours = {name: each.get_default(call_default_factory=True) for name, each in HttpTool.model_fields.items()}
    theirs = {field.name: field for field in dataclasses.fields(Tool)}
    for name in (ours.keys() & theirs.keys()) - {"effect", "on_session_end"}:
        field = theirs[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        assert ours[name] == default, name


def test_everything_that_a_tool_may_say_about_itself_can_be_declared() -> None:
    made_by_the_source = {"spec", "invoke", "check", "blocking", "source"}
    never_said = {"spoken_progress", "check_outcome"}  # an endpoint reports no progress; a function is no setting
    assert {field.name for field in dataclasses.fields(Tool)} - made_by_the_source - never_said <= set(
        HttpTool.model_fields
    )


def test_arguments_travel_in_the_path_that_names_them_else_in_the_query_or_the_body() -> None:
    parameters = {"order": TEXT, "note": TEXT, "the_caller": TEXT | {"in": "header"}, "n": TEXT | {"send_as": "nr"}}
    reading = HttpTool(name="a", url=URL + "/{order}", parameters=parameters)
    writing = HttpTool(name="a", url=URL + "/{order}", parameters=parameters, method="PATCH")
    shared = {"order": ("path", "order"), "the_caller": ("header", "the-caller")}
    assert reading.travels == shared | {"note": ("query", "note"), "n": ("query", "nr")}
    assert writing.travels == shared | {"note": ("body", "note"), "n": ("body", "nr")}


def test_an_argument_is_required_unless_it_is_optional_or_has_a_default() -> None:
    parameters = {"a": TEXT, "b": TEXT | {"optional": True}, "c": TEXT | {"default": "x"}}
    schema = HttpTool(name="a", url=URL, parameters=parameters).schema_
    assert schema["required"] == ["a"]
    assert schema["properties"] == {"a": TEXT, "b": TEXT, "c": TEXT | {"default": "x"}}


def test_a_parameter_can_be_written_in_python_too() -> None:
    assert Parameter(type="string", place="header") == Parameter(**{"type": "string", "in": "header"})


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.example.com/x", "url must be an address"),
        ("ftp://shop.example.com/x", "url must be an address"),
        ("https:///x", "url must be an address"),
        ("https://shop.example.com:port/", "url must be an address"),
        ("https://[::1/", "url must be an address"),
        ("https://shop.example.com/a b", "without spaces"),
        ("https://shop.example.com\\@evil.example.com/", "without spaces and backslashes"),
        ("https://user:pw@shop.example.com/", "must not hold credentials"),
        ("https://shop.example.com/#top", "after #"),
        ("https://{host}/x", "in its path only"),
        ("https://shop.example.com:{port}/x", "url must be an address"),
        ("{scheme}://shop.example.com/x", "url must be an address"),
        ("https://shop.example.com{rest}", "in its path only"),
        ("https://shop.example.com/x?q={q}", 'write in = "query"'),
        ("https://shop.example.com/x/{a", "a brace without its partner"),
        ("https://shop.example.com/x/{{a}}", "a brace without its partner"),
        ("https://shop.example.com/../x", "must not have a dot or two"),
        ("https://shop.example.com/{order}", "names {order}, which is no parameter"),
        ("http://127.0.0.1:3000/", "private_hosts = ['127.0.0.1']"),
        ("http://localhost:3000/", "private_hosts = ['localhost']"),
        ("http://api.localhost/", "not public"),
        ("http://[::1]/", "not public"),
        ("http://169.254.169.254/latest/meta-data/", "not public"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(url: str, said: str) -> None:
    assert said in faults(url=url)


def test_an_address_may_be_private_if_its_host_is_listed() -> None:
    for url, listed in (
        ("http://127.0.0.1:3000/", "127.0.0.1"),
        ("http://127.0.0.1:3000/", "127.0.0.1:3000"),
        ("http://[::1]:80/", "[::1]:80"),
        ("http://[::1]/", "::1"),
        ("http://localhost/", "localhost:80"),
    ):
        HttpTool(name="a", url=url, private_hosts=(listed,))
    assert "not public" in faults(url="http://127.0.0.1:3000/", private_hosts=("127.0.0.1:3001",))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parameters": {"x": TEXT | {"optinal": True}}}, "did you mean optional?"),
        ({"parameters": {"x": TEXT | {"zzzzzz": 1}}}, "zzzzzz is neither"),
        ({"parameters": {"x": TEXT | {"in": "cookie"}}}, "'path', 'query', 'header', 'body' or 'form'"),
        ({"parameters": {"x": TEXT | {"in": "path"}}}, "url has to name {x}"),
        ({"url": URL + "/{x}", "parameters": {"x": TEXT | {"in": "query"}}}, "url has to name {x}"),
        ({"url": URL + "/{x}", "parameters": {"x": TEXT | {"optional": True}}}, "cannot be optional"),
        ({"parameters": {"x": TEXT | {"in": "body"}}}, "a GET has no body"),
        ({"method": "POST", "parameters": {"x": TEXT, "y": TEXT | {"in": "form"}}}, "at all of them, or at none"),
        ({"hidden": {"x": "caller"}}, "hidden names x, which is no parameter"),
        ({"headers": {"Authorization": "Bearer abc"}}, "Authorization is a secret"),
        ({"parameters": {"cookie": TEXT | {"in": "header"}}}, "cookie is a secret"),
        ({"headers": {"Host": "evil"}}, "is set by the bridge itself"),
        ({"headers": {"X-Bridge-Call": "c1"}}, "is set by the bridge itself"),
        ({"headers": {"a b": "c"}}, "is no name of a header"),
        ({"headers": {"X-A": "b\r\nX-C: d"}}, "X-A has a line break"),
        ({"headers": {"X-A": "b"}, "headers_env": {"x-a": "PATH"}}, "set twice"),
        ({"headers_env": {"X-A": "NO_SUCH_VARIABLE"}}, "must name an environment variable that is set"),
        ({"signing_key_env": "NO_SUCH_VARIABLE"}, "must name an environment variable that is set"),
        ({"result": "data.price"}, "must be a JSON pointer"),
        ({"method": "POST", "retries": 1}, "set idempotent = true"),
        ({"method": "BREW"}, "'GET', 'POST', 'PUT', 'PATCH' or 'DELETE'"),
        ({"method": 7}, "method"),
        ({"expect": (20,)}, "greater than or equal to 200"),
        ({"timeout": 0}, "greater than 0"),
        ({"response_limit": 0}, "greater than or equal to 1"),
        ({"rate": "often"}, "'often' is no rate"),
        ({"rate": 7}, "rate"),
        ({"dedupe": True}, "how many seconds?"),
        ({"dedupe": {"seconds": 0}}, "greater than 0"),
        ({"dedupe": {"second": 1}}, "dedupe"),
        ({"examples": [{"argument": {}}]}, "examples"),
        ({"descripton": "x"}, "descripton"),
    ],
)
def test_what_cannot_work_is_refused_and_said(fields: dict[str, Any], said: str) -> None:
    assert said in faults(**fields)


def test_a_secret_that_would_break_the_headers_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_KEY", "one\ntwo")
    text = faults(headers_env={"Authorization": "SHOP_KEY"})
    assert "the environment variable SHOP_KEY has a line break in it" in text
    assert "one" not in text


def test_all_that_is_wrong_with_a_tool_is_said_at_once() -> None:
    text = faults(url="http://10.0.0.1/{x}", headers={"Cookie": "a"}, result="x", retries=2, effect="write")
    for said in ("10.0.0.1", "no parameter", "Cookie is a secret", "JSON pointer", "idempotent"):
        assert said in text


def test_what_was_written_is_not_repeated_in_the_text_of_the_error() -> None:
    with pytest.raises(ConfigError) as refused:
        HttpTool(name="a", url="https://user:hush@shop.example.com/", headers={"Authorization": "Bearer hush"})
    written = "".join(traceback.format_exception(refused.value))  # as a program that dies of it prints it
    assert "hush" not in written.replace("https://user:hush@", "").replace("Bearer hush", "")
    assert refused.value.__cause__ is refused.value.__context__ is None


def test_an_unknown_field_is_named_with_the_nearest_and_no_value_is_shown() -> None:
    assert faults(header={"Authorization": "Bearer hush"}) == "HttpTool: header is unknown; did you mean headers?"
    assert faults(colour="hush") == "HttpTool: colour is unknown"
    assert faults(headers={"Accept": 5}, timeout="hush").splitlines() == [
        "HttpTool: headers.Accept: must be a valid string",
        "HttpTool: timeout: must be a valid number, unable to parse string as a number",
    ]


def test_every_setting_says_what_it_is_for() -> None:
    for model in (HttpTool, Parameter):
        assert not [name for name, field in model.model_fields.items() if name != "name" and not field.description]
    assert typing.get_type_hints(HttpTool)
