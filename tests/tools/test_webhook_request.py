"""Requests as values: whatever the arguments hold, they stay where the author of the tool has put them."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import InvalidArguments
from bridge.tools.webhook import HttpTool, signed
from bridge.tools.webhook.answer import _retry_after
from bridge.tools.webhook.request import Prepared, prepared, redirected

TEXT = {"type": "string"}
ADDRESS = HttpTool(
    name="a",
    url="https://shop.example.com:8443/v1/{a}/x-{b}{c}?fixed=1",
    parameters={"a": TEXT, "b": TEXT, "c": TEXT, "q": TEXT, "h": TEXT | {"in": "header"}},
)


@given(*[st.text(st.characters(codec="utf-8"), max_size=12) for _ in range(5)])
def test_no_argument_changes_anything_but_its_own_place(a: str, b: str, c: str, q: str, h: str) -> None:
    try:
        request = prepared(ADDRESS, {"a": a, "b": b, "c": c, "q": q, "h": h}, {})
    except InvalidArguments:
        return
    for url in (httpx2.URL(request.url), urlsplit(request.url)):
        assert (url.scheme, url.port) == ("https", 8443)
    sent = httpx2.URL(request.url)
    assert sent.host == "shop.example.com"
    path, _, query = sent.raw_path.decode().partition("?")
    _, version, first, second = path.split("/")
    assert (version, unquote(first), unquote(second)) == ("v1", a, f"x-{b}{c}")
    assert parse_qsl(query, keep_blank_values=True) == [("fixed", "1"), ("q", q)]
    assert sent.fragment == ""
    assert dict(request.headers)["h"] == h.strip()
    assert len(request.headers) == 3


@pytest.mark.parametrize(
    "value", ["", ".", "..", "../admin", "a/../../admin", "a\\..\\b", "x/.", "a\r\nb", "\x00", "\x7f"]
)
def test_an_argument_that_could_climb_out_of_its_step_is_refused_without_being_quoted(value: str) -> None:
    with pytest.raises(InvalidArguments, match=r"^a must not") as refused:
        prepared(ADDRESS, {"a": value, "b": "b", "c": "c", "q": "q", "h": "h"}, {})
    assert "admin" not in str(refused.value)


@pytest.mark.parametrize("value", ["a/b", "2026/01", "...", "a..b", "%2e%2e", "?x#y", ";", "//evil.example.com"])
def test_an_argument_with_signs_of_an_address_in_it_stays_one_step(value: str) -> None:
    url = prepared(ADDRESS, {"a": value, "b": "b", "c": "c", "q": "q", "h": "h"}, {}).url
    assert unquote(urlsplit(url).path.split("/")[2]) == value
    assert urlsplit(url).path.count("/") == 3


@given(st.text(".x", min_size=1, max_size=3), st.text(".x", min_size=1, max_size=3))
def test_arguments_do_not_even_together_climb_out_of_their_step(a: str, b: str) -> None:
    for path in ("{a}{b}", ".{a}{b}", "{a}{b}."):
        tool = HttpTool(name="a", url=f"https://shop.example.com/v1/{path}", parameters={"a": TEXT, "b": TEXT})
        try:
            step = prepared(tool, {"a": a, "b": b}, {}).url.rpartition("/")[2]
        except InvalidArguments:
            continue
        assert step not in (".", "..")


def test_a_header_takes_no_line_breaks_and_an_argument_that_is_null_leaves_it_empty() -> None:
    tool = HttpTool(name="a", url="https://shop.example.com/", parameters={"h": {"in": "header"}})
    with pytest.raises(InvalidArguments, match="h must not have control characters"):
        prepared(tool, {"h": "a\r\nHost: b"}, {})
    assert dict(prepared(tool, {"h": None}, {}).headers)["h"] == ""


def test_values_travel_as_text_or_as_json_and_null_is_left_out_of_a_query() -> None:
    tool = HttpTool(name="a", url="https://shop.example.com/", parameters={"q": {}, "r": {}})
    query = urlsplit(prepared(tool, {"q": [1.5, True, None, "x y", {"a": [1]}], "r": None}, {}).url).query
    assert query == "q=1.5&q=true&q=x%20y&q=%7B%22a%22%3A%5B1%5D%7D"


def test_only_methods_that_usually_have_a_body_send_an_empty_one() -> None:
    for method, body in (("GET", None), ("DELETE", None), ("POST", b""), ("PUT", b""), ("PATCH", b"")):
        assert prepared(HttpTool(name="a", url="https://shop.example.com/", method=method), {}, {}).body == body


def test_a_body_of_optional_arguments_of_which_none_is_given_is_an_empty_object() -> None:
    parameters = {"note": {"type": "string", "optional": True}}
    tool = HttpTool(name="a", url="https://shop.example.com/", method="POST", parameters=parameters)
    assert prepared(tool, {}, {}).body == b"{}"


# ---------------------------------------------------------------------------------------------------------- redirects

HERE = Prepared("POST", "https://shop.example.com/a/b", (("accept", "x"), ("content-type", "y"), ("x-key", "z")), b"{}")


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "POST", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"), (301, "DELETE", "DELETE"), (308, "POST", "POST")],
)
def test_a_redirect_changes_the_method_as_the_standard_has_it(status: int, method: str, then: str) -> None:
    request = redirected(Prepared(method, HERE.url, HERE.headers, b"{}"), status, "c")
    assert request is not None
    assert (request.method, request.url) == (then, "https://shop.example.com/a/c")
    assert (request.body, "content-type" in dict(request.headers)) == (
        (None, False) if then == "GET" else (b"{}", True)
    )
    assert dict(request.headers)["x-key"] == "z"


@pytest.mark.parametrize(
    "location",
    [
        "https://evil.example.com/",
        "//evil.example.com/",
        "https://shop.example.com:444/",
        "https://shop.example.com@evil.example.com/",
        "https://shop.example.com.evil.example.com/",
    ],
)
def test_to_another_host_go_only_the_headers_that_say_nothing(location: str) -> None:
    request = redirected(HERE, 307, location)
    assert request is not None
    assert dict(request.headers) == {"accept": "x", "content-type": "y"}
    assert "@" not in request.url


def test_a_redirect_does_not_lead_from_an_encrypted_address_to_a_plain_one() -> None:
    assert redirected(HERE, 302, "http://shop.example.com/") is None
    assert redirected(Prepared("GET", "http://shop.example.com/", ()), 302, "https://shop.example.com/") is not None


# ------------------------------------------------------------------------------------------------- times and signatures


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("120", 120),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10),
        ("Thu, 01 Jan 2026 01:00:10 +0100", 10),
        ("Thu, 01 Jan 2026 00:00:10", 10),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("9" * 400, 999_999_999),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("\u0661", None),
    ],
)
def test_the_time_to_wait_is_read_as_seconds_or_as_a_date(text: str, seconds: float | None) -> None:
    assert _retry_after(text, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_a_signature_is_over_four_lines_time_method_address_and_body() -> None:
    digest = hmac.new("schlüssel".encode(), b'1767225600\nPOST\n/a?b=c\n{"a":1}', hashlib.sha256).hexdigest()
    assert signed("schlüssel", 1767225600, "POST", "/a?b=c", b'{"a":1}') == {
        "X-Bridge-Timestamp": "1767225600",
        "X-Bridge-Signature": f"v1={digest}",
    }
