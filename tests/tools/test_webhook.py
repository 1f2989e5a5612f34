"""HTTP tools as they are called: real requests to real servers, good ones and bad ones, through the runner."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import hmac
import json
import logging
import shutil
import socket
import ssl
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import cast

import pytest

from bridge.core.events import Deliver, Start
from bridge.errors import ConfigError, ToolError, ToolUnavailable
from bridge.runner.runner import Finished, Outcome
from bridge.tools import Tool
from bridge.tools.policy import Dedupe, Example, Rate
from bridge.tools.webhook import HttpSource, HttpTool
from tests.sockets import listening

from .webhook_rig import Endpoint, Seen, call_context, called, declared, endpoint, error, opened, output, reply, saying

pytestmark = pytest.mark.anyio

Writer = asyncio.StreamWriter


async def against(answer: bytes, arguments: object = None, **fields: object) -> tuple[Finished, Endpoint]:
    """One call of an endpoint that always gives this answer."""
    async with endpoint(saying(answer)) as rig:
        return await called(declared(rig, **fields), arguments), rig  # type: ignore[arg-type]  # of any field


# -------------------------------------------------------------------------------------------------------- the request


async def test_arguments_travel_where_they_are_declared_to() -> None:
    parameters = {
        "order": {"type": "string"},
        "full": {"type": "boolean", "in": "query"},
        "caller_name": {"type": "string", "in": "header", "send_as": "X-Caller"},
        "note": {"type": "string"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "unsaid": {"type": "string", "optional": True},
        "units": {"type": "string", "default": "metric"},
    }
    arguments = {"order": "A/1 ü", "full": True, "caller_name": "Zoë", "note": 'say "hi"', "items": [1, 2]}
    async with endpoint(saying(reply({"ok": True}))) as rig:
        tool = declared(rig, "/orders/{order}?v=2", method="post", parameters=parameters)
        assert output(await called(tool, arguments)) == {"ok": True}
        (seen,) = rig.seen
    assert (seen.method, seen.target) == ("POST", "/orders/A%2F1%20%C3%BC?v=2&full=true")
    assert json.loads(seen.body) == {"note": 'say "hi"', "items": [1, 2], "units": "metric"}
    assert seen.headers["x-caller"] == "Zoë"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["host"] == f"127.0.0.1:{rig.port}"


async def test_a_form_is_sent_as_a_form_and_lists_item_by_item() -> None:
    parameters = {
        "name": {"type": "string", "in": "form"},
        "tags": {"type": "array", "items": {"type": "string"}, "in": "form"},
    }
    async with endpoint(saying(reply({}))) as rig:
        await called(declared(rig, method="POST", parameters=parameters), {"name": "a&b", "tags": ["x", "y"]})
        assert rig.seen[0].body == b"name=a%26b&tags=x&tags=y"
        assert rig.seen[0].headers["content-type"] == "application/x-www-form-urlencoded"


async def test_arguments_are_checked_by_the_declared_schema_and_nothing_is_sent_if_they_do_not_fit() -> None:
    finished, rig = await against(reply({}), {"hour": 23}, parameters={"hour": {"type": "integer", "maximum": 17}})
    assert finished.outcome is Outcome.INVALID
    assert "hour" in error(finished)
    assert "23" not in error(finished)
    assert not rig.seen


async def test_headers_come_from_the_table_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", "Bearer s3cret\n")
    _, rig = await against(
        reply({}), headers={"accept": "application/vnd.shop+json"}, headers_env={"Authorization": "SHOP_KEY"}
    )
    assert rig.seen[0].headers["authorization"] == "Bearer s3cret"
    assert rig.seen[0].headers["accept"] == "application/vnd.shop+json"


async def test_a_request_says_which_call_it_serves_and_its_key_has_nothing_to_do_with_the_arguments() -> None:
    parameters = {"item": {"type": "string"}}
    async with endpoint(saying(reply({}))) as rig, opened(declared(rig, parameters=parameters)) as (tool,):
        await tool.invoke({"item": "lamp"}, call_context("c1"))
        await tool.invoke({"item": "chair"}, call_context("c1"))
        await tool.invoke({"item": "lamp"}, call_context("c2"))
        await tool.invoke({"item": "lamp"}, call_context("c1", epoch=1))
        await tool.invoke({"item": "lamp"}, call_context("c1", session_id="s2"))
        first, same, *others = [seen.headers for seen in rig.seen]
    assert (first["x-bridge-session"], first["x-bridge-call"]) == ("s1", "c1")
    assert same["idempotency-key"] == first["idempotency-key"]
    assert len({first["idempotency-key"], *(each["idempotency-key"] for each in others)}) == 4


async def test_an_id_that_a_header_cannot_carry_is_encoded_and_sets_no_other_header() -> None:
    async with endpoint(saying(reply({}))) as rig, opened(declared(rig)) as (tool,):
        await tool.invoke({}, call_context("c1\r\nX-Admin: yes é%"))
        assert rig.seen[0].headers["x-bridge-call"] == "c1%0D%0AX-Admin:%20yes%20%C3%A9%25"
        assert "x-admin" not in rig.seen[0].headers


async def test_an_argument_that_makes_the_address_too_long_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    finished, rig = await against(reply({}), {"q": "x" * 70_000}, parameters={"q": {"type": "string"}})
    assert error(finished) == "the tool lookup failed"
    assert not rig.seen
    assert "the request cannot be sent as it is" in caplog.text
    assert "xxx" not in caplog.text


async def test_a_request_is_signed_over_its_time_its_method_its_address_and_its_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hush")
    parameters = {"item": {"type": "string"}, "q": {"type": "string", "in": "query"}}
    arguments = {"item": "lamp", "q": "ä/ {b}'"}
    _, rig = await against(reply({}), arguments, method="POST", parameters=parameters, signing_key_env="SHOP_SECRET")
    (seen,) = rig.seen
    assert seen.body == b'{"item":"lamp"}'
    stamp = seen.headers["x-bridge-timestamp"]
    message = f"{stamp}\nPOST\n{seen.target}\n".encode() + seen.body
    digest = hmac.new(b"hush", message, hashlib.sha256).hexdigest()
    assert seen.headers["x-bridge-signature"] == f"v1={digest}"
    assert abs(time.time() - int(stamp)) < 60


async def test_without_a_signing_key_there_is_no_signature() -> None:
    _, rig = await against(reply({}))
    assert not {"x-bridge-timestamp", "x-bridge-signature"} & rig.seen[0].headers.keys()


async def test_calls_share_connections_and_no_cookie_of_one_caller_goes_out_with_the_call_of_another() -> None:
    async with endpoint(saying(reply({}, set_cookie="session=of-the-first-caller"))) as rig:
        async with opened(declared(rig)) as (tool,):
            for number in range(3):
                await tool.invoke({}, call_context(f"c{number}"))
        assert rig.connections == 1
        assert not any("cookie" in seen.headers for seen in rig.seen)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    finished, _ = await against(reply("straight"))
    assert output(finished) == "straight"


# ---------------------------------------------------------------------------------------------------------- the answer


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (reply({"a": [1, None]}), {"a": [1, None]}),
        (reply(0), 0),
        (reply(b"", 204, content_type=""), None),
        (reply(b" \r\n"), None),
        (reply(b'{"a":1}', content_type=""), {"a": 1}),
        (reply(b'{"a":1}', 201, content_type="application/vnd.shop+json"), {"a": 1}),
        (reply(b"on its way", content_type="text/plain"), "on its way"),
        (reply("grün".encode("iso-8859-1"), content_type="text/plain; charset=ISO-8859-1"), "grün"),
        (reply('\ufeff{"a":"grün"}'.encode(), content_type='application/json; charset="utf-8"'), {"a": "grün"}),
        (reply(gzip.compress(b'{"a":1}'), content_encoding="gzip"), {"a": 1}),
        (reply(zlib.compress(b'{"a":1}'), content_encoding="deflate"), {"a": 1}),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntrue\r\n0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ntrue", True),
    ],
)
async def test_an_answer_becomes_the_result(answer: bytes, result: object) -> None:
    finished, _ = await against(answer)
    assert not finished.result.is_error
    assert output(finished) == result


async def test_the_part_of_the_answer_that_is_asked_for_becomes_the_result() -> None:
    finished, _ = await against(reply({"data": [{"a/b": 7}]}), result="/data/0/a~1b")
    assert output(finished) == 7


async def test_a_status_that_is_expected_is_a_success_and_any_other_is_none() -> None:
    finished, _ = await against(reply({"state": "gone"}, 410), expect=(200, 410))
    assert output(finished) == {"state": "gone"}
    finished, _ = await against(reply({}, 202), expect=(200,))
    assert finished.result.is_error


@pytest.mark.parametrize(
    "answer",
    [
        reply(b"<html>log in first</html>", content_type="text/html"),
        reply(b"{'a': 1}"),
        reply(b'{"a": NaN}'),
        reply(b"[" * 10_000),
        reply(b'{"a": "\xff"}'),
        reply("grün".encode("iso-8859-1"), content_type="text/plain"),
        reply(b"abc", content_type="text/plain; charset=punycode"),
        reply(b"abc", content_type="text/plain; charset=no-such-thing"),
        reply(b"{}", content_type="application/octet-stream"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_one_clear_error(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    finished, rig = await against(answer)
    assert error(finished) == "the answer of lookup could not be read"
    assert len(rig.seen) == 1
    assert "the answer cannot be read: it" in caplog.text


async def test_an_answer_without_the_part_that_is_asked_for_is_an_error_that_names_the_pointer_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for value in ({"data": {}}, {"data": [1]}, "text", {"data": {"1": None}}):
        finished, _ = await against(reply(value), result="/data/1/price")
        assert error(finished) == "the answer of lookup could not be read"
    assert "it has nothing at /data/1/price" in caplog.text


async def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    written = 0

    async def endless(seen: Seen, writer: Writer) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()
            written += 65536

    async with endpoint(endless) as rig:
        finished = await called(declared(rig, response_limit=100_000))
    assert finished.outcome is Outcome.TOO_LARGE
    assert error(finished) == "the answer of lookup has more than 100000 bytes"
    assert written < 50_000_000


async def test_an_answer_of_exactly_the_limit_is_read() -> None:
    finished, _ = await against(reply(b'"' + b"x" * 98 + b'"'), response_limit=100)
    assert output(finished) == "x" * 98


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip"])
async def test_a_small_answer_that_unpacks_to_a_huge_one_is_stopped_at_the_limit(coding: str) -> None:
    bomb = gzip.compress(b"0" * 200_000_000, 1) if coding == "gzip" else gzip.compress(gzip.compress(bytes(50_000_000)))
    finished, _ = await against(reply(bomb, content_encoding=coding), response_limit=1000)
    assert finished.outcome is Outcome.TOO_LARGE
    assert finished.seconds < 1


async def test_an_answer_that_cannot_be_unpacked_is_an_error() -> None:
    finished, _ = await against(reply(b"not packed at all", content_encoding="gzip"))
    assert error(finished) == "the tool lookup failed"


async def test_a_hung_endpoint_is_answered_for_when_the_time_is_over() -> None:
    async def hang(seen: Seen, writer: Writer) -> None:
        await asyncio.Event().wait()

    async with endpoint(hang) as rig:
        finished = await called(declared(rig, timeout=0.2))
    assert finished.outcome is Outcome.TIMEOUT
    assert error(finished) == "lookup did not answer within 0.2 s"
    assert finished.seconds < 1


async def test_an_endpoint_that_answers_drop_by_drop_does_not_get_more_time() -> None:
    async def drip(seen: Seen, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with endpoint(drip) as rig:
        finished = await called(declared(rig, timeout=0.3))
    assert finished.outcome is Outcome.TIMEOUT
    assert finished.seconds < 1


async def test_a_tool_that_is_called_without_a_runner_ends_in_time_as_well() -> None:
    async def hang(seen: Seen, writer: Writer) -> None:
        await asyncio.Event().wait()

    async with endpoint(hang) as rig, opened(declared(rig, timeout=0.5)) as (tool,):
        with pytest.raises(ToolError, match=r"^lookup did not answer within 0\.5 s$"):
            await tool.invoke({}, call_context())


@pytest.mark.parametrize(
    "garbage", [b"SSH-2.0-OpenSSH\r\n", b"\x16\x03\x01", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, b""]
)
async def test_what_is_no_http_at_all_is_one_clear_error(garbage: bytes) -> None:
    async def answering(seen: Seen, writer: Writer) -> None:
        writer.write(garbage)
        writer.close()

    async with endpoint(answering) as rig:
        finished = await called(declared(rig, retries=0))
    assert error(finished) == "the connection to lookup was lost"


# ------------------------------------------------------------------------------------------------------------- refusals


async def test_a_failure_of_the_endpoint_is_told_without_its_status_which_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finished, _ = await against(reply({"error": "password of the database is wrong"}, 500))
    assert error(finished) == "the tool lookup failed"
    assert finished.outcome is Outcome.UNAVAILABLE
    assert "tool lookup: GET http://127.0.0.1:" in caplog.text
    assert "the endpoint answered 500, in session s1" in caplog.text
    assert "password" not in caplog.text


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (reply({"error": "No such  order."}, 404), "No such order."),
        (reply({"error": "x" * 5000}, 422), "x" * 300),
        (reply({"error": {"code": 7}}, 400), "lookup refused the request: bad request"),
        (reply([1], 400), "lookup refused the request: bad request"),
        (reply(b"<html>", 403), "lookup refused the request: forbidden"),
        (reply(b"x" * 100_000, 418), "lookup refused the request: i'm a teapot"),
        (reply({}, 499), "lookup refused the request: 499"),
    ],
)
async def test_what_an_endpoint_refuses_is_told_in_its_own_words_or_by_the_kind_of_refusal(
    answer: bytes, text: str
) -> None:
    finished, rig = await against(answer)
    assert error(finished) == text
    assert finished.outcome is Outcome.ERROR
    assert len(rig.seen) == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (reply({"error": "That hour is taken."}, 409), "conflict: That hour is taken."),
        (reply(b"", 409), "conflict: it clashes with something that was done before"),
        (reply({"error": "Still booking."}, 425), "still in progress: Still booking."),
        (reply(b"", 425), "still in progress: an earlier request has not ended yet; ask again later"),
        (reply({"error": "Still booking."}, 409, retry_after="60"), "still in progress: Still booking."),
    ],
)
async def test_a_conflict_and_work_in_progress_are_told_apart_and_not_tried_again_blindly(
    answer: bytes, text: str
) -> None:
    finished, rig = await against(answer, method="POST", idempotent=True)
    assert error(finished) == text
    assert len(rig.seen) == 1


async def test_a_redirect_is_not_followed_unless_that_is_allowed(caplog: pytest.LogCaptureFixture) -> None:
    finished, rig = await against(reply({}, 302, location="/elsewhere"))
    assert error(finished) == "the tool lookup failed"
    assert len(rig.seen) == 1
    assert "see follow_redirects" in caplog.text


# ------------------------------------------------------------------------------------------------------------- repeats


async def test_a_failure_of_the_moment_is_tried_again_under_the_same_key() -> None:
    async with endpoint(saying(reply(b"", 503), reply(b"", 502), reply({"ok": 1}))) as rig:
        finished = await called(declared(rig))
        assert output(finished) == {"ok": 1}
        assert len(rig.seen) == 3
        assert len({seen.headers["idempotency-key"] for seen in rig.seen}) == 1


async def test_a_tool_that_changes_something_is_not_run_twice() -> None:
    for answer in (reply(b"", 503), reply(b"", 429, retry_after="0")):
        finished, rig = await against(answer, method="POST")
        assert finished.result.is_error
        assert len(rig.seen) == 1


async def test_a_tool_that_changes_something_is_run_again_if_its_author_says_so() -> None:
    async with endpoint(saying(reply(b"", 504), reply({"ok": 1}))) as rig:
        assert output(await called(declared(rig, method="POST", idempotent=True))) == {"ok": 1}
        assert rig.seen[0].body == rig.seen[1].body == b""


@pytest.mark.parametrize("status", [409, 425, 429, 503])
async def test_the_time_that_the_endpoint_names_is_waited_for(status: int) -> None:
    async with endpoint(saying(reply(b"", status, retry_after="0"), reply({"ok": 1}))) as rig:
        assert output(await called(declared(rig, retries=1))) == {"ok": 1}
        assert len(rig.seen) == 2


@pytest.mark.parametrize(
    "when", [lambda: "30", lambda: format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)]
)
async def test_nothing_is_begun_that_could_not_end_in_time(when: Callable[[], str]) -> None:
    finished, rig = await against(reply(b"", 429, retry_after=when()), timeout=5)
    assert error(finished) == "lookup takes no more requests now; try again later"
    assert finished.outcome is Outcome.BUSY
    assert len(rig.seen) == 1
    assert finished.seconds < 1


async def test_an_endpoint_that_stays_away_is_tried_as_often_as_allowed_and_then_told_of() -> None:
    finished, rig = await against(reply(b"", 503), retries=1)
    assert error(finished) == "the tool lookup failed"
    assert len(rig.seen) == 2


async def test_a_connection_that_breaks_is_made_again() -> None:
    broken = iter([True, False])

    async def answering(seen: Seen, writer: Writer) -> None:
        if next(broken):
            writer.close()
        else:
            writer.write(reply("second time"))

    async with endpoint(answering) as rig:
        assert output(await called(declared(rig))) == "second time"
        assert rig.connections == 2


async def test_of_a_change_that_was_cut_off_it_is_said_that_nobody_knows_whether_it_was_made() -> None:
    async def answering(seen: Seen, writer: Writer) -> None:
        writer.close()

    async with endpoint(answering) as rig:
        finished = await called(declared(rig, method="POST"))
        assert len(rig.seen) == 1
    assert "it is not known whether it has done anything" in error(finished)


async def test_an_endpoint_that_is_not_there_is_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:  # by somebody who does not listen
        taken.bind(("127.0.0.1", 0))
        rig = Endpoint(saying(b""), port=taken.getsockname()[1])
        finished = await called(declared(rig, retries=1))
    assert error(finished) == "lookup cannot be reached now"
    assert finished.outcome is Outcome.UNAVAILABLE
    assert finished.seconds < 2
    assert "it cannot be reached" in caplog.text


# ----------------------------------------------------------------------------------------------------------- redirects


async def test_a_redirect_that_is_allowed_is_followed_on_the_same_host_with_all_that_belongs_to_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hush")
    fields = {"follow_redirects": True, "signing_key_env": "SHOP_SECRET", "parameters": {"a": {"type": "integer"}}}
    async with endpoint(saying(reply({}, 303, location="/done?x=1"), reply("done"))) as rig:
        assert output(await called(declared(rig, "/start", method="POST", **fields), {"a": 1})) == "done"
        first, second = rig.seen
    assert (second.method, second.target, second.body) == ("GET", "/done?x=1", b"")
    assert second.headers["idempotency-key"] == first.headers["idempotency-key"]
    assert "content-type" not in second.headers
    message = f"{second.headers['x-bridge-timestamp']}\nGET\n/done?x=1\n".encode()
    digest = hmac.new(b"hush", message, hashlib.sha256).hexdigest()
    assert second.headers["x-bridge-signature"] == f"v1={digest}"


async def test_a_redirect_may_keep_method_and_body() -> None:
    parameters = {"a": {"type": "integer"}}
    async with endpoint(saying(reply({}, 307, location="/there"), reply("done"))) as rig:
        tool = declared(rig, method="PUT", follow_redirects=True, parameters=parameters)
        assert output(await called(tool, {"a": 1})) == "done"
        assert (rig.seen[1].method, rig.seen[1].target, rig.seen[1].body) == ("PUT", "/there", b'{"a":1}')


async def test_to_another_host_goes_nothing_secret_and_nothing_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hush")
    async with endpoint(saying(reply("elsewhere"))) as other:
        to_other = reply({}, 302, location=f"http://user:pw@127.0.0.1:{other.port}/x#part")
        async with endpoint(saying(to_other)) as rig:
            tool = declared(
                rig,
                follow_redirects=True,
                headers={"X-Tenant": "acme"},
                headers_env={"Authorization": "SHOP_SECRET"},
                signing_key_env="SHOP_SECRET",
            )
            assert output(await called(tool)) == "elsewhere"
        (seen,) = other.seen
    assert seen.target == "/x"
    assert seen.headers.keys() == {"host", "user-agent", "accept", "accept-encoding"}


async def test_a_redirect_into_the_own_network_is_refused_when_the_connection_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with endpoint(saying(reply("secret"))) as inside:
        for host in ("localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "2130706433"):
            location = f"http://{host}:{inside.port}/"
            async with endpoint(saying(reply({}, 302, location=location))) as rig:
                tool = declared(rig, follow_redirects=True, private_hosts=(f"127.0.0.1:{rig.port}",))
                assert error(await called(tool)) == "the tool lookup failed"
        assert not inside.connections
    assert "is not public" in caplog.text


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/", "file:///etc/passwd", "http://[", "http://a b/"])
async def test_a_redirect_to_where_no_request_can_go_is_an_error(location: str) -> None:
    finished, rig = await against(reply({}, 302, location=location), follow_redirects=True, retries=0)
    assert finished.result.is_error
    assert len(rig.seen) == 1


async def test_a_redirect_without_an_address_is_an_error() -> None:
    finished, _ = await against(reply({}, 302), follow_redirects=True)
    assert error(finished) == "the tool lookup failed"


async def test_redirects_that_go_in_circles_come_to_an_end() -> None:
    finished, rig = await against(reply({}, 302, location="/again"), follow_redirects=True)
    assert error(finished) == "the tool lookup failed"
    assert len(rig.seen) == 6


# --------------------------------------------------------------------------------------------------------- connections


async def test_a_connection_that_the_endpoint_has_closed_meanwhile_is_not_used_again() -> None:
    async def once(seen: Seen, writer: Writer) -> None:
        writer.write(reply("done"))
        await writer.drain()
        writer.close()

    async with endpoint(once) as rig, opened(declared(rig, method="POST")) as (tool,):
        for number in range(1, 4):
            assert await tool.invoke({}, call_context()) == "done"
            assert rig.connections == number


async def test_of_two_idle_connections_the_one_that_is_still_open_is_used() -> None:
    both = asyncio.Barrier(2)
    writers: list[Writer] = []

    async def together(seen: Seen, writer: Writer) -> None:
        if len(writers) < 2:
            writers.append(writer)
            await both.wait()
            if writer is writers[1]:
                await first_is_idle.wait()
        writer.write(reply("done"))

    first_is_idle = asyncio.Event()
    async with endpoint(together) as rig, opened(declared(rig)) as (tool,):
        calls = [asyncio.ensure_future(invoked(tool, str(number))) for number in range(2)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        first_is_idle.set()
        await asyncio.gather(*calls)
        writers[1].close()
        await writers[1].wait_closed()
        assert await invoked(tool, "c3") == "done"
        assert (rig.connections, rig.seen[2].connection) == (2, rig.seen[0].connection)


async def test_connections_that_were_idle_for_long_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    both = asyncio.Barrier(2)

    async def together(seen: Seen, writer: Writer) -> None:
        await both.wait()
        writer.write(reply("done"))

    async with endpoint(together) as rig, opened(declared(rig)) as (tool,):
        assert await asyncio.gather(invoked(tool, "c1"), invoked(tool, "c2")) == ["done", "done"]
        later = time.monotonic() + 10
        monkeypatch.setattr(time, "monotonic", lambda: later)
        await asyncio.gather(invoked(tool, "c3"), invoked(tool, "c4"))
        assert rig.connections == 4


async def test_a_connection_to_a_host_that_is_never_asked_again_is_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply("there"))
        await reader.read()
        closed.set()

    async with listening(once) as port:
        leads_away = reply({}, 302, location=f"http://127.0.0.1:{port}/")
        answering = saying(leads_away, reply("here"))
        async with endpoint(answering) as rig, opened(declared(rig, follow_redirects=True)) as (tool,):
            assert await invoked(tool, "c1") == "there"
            assert not closed.is_set()
            later = time.monotonic() + 10
            monkeypatch.setattr(time, "monotonic", lambda: later)
            assert await invoked(tool, "c2") == "here"
            await asyncio.wait_for(closed.wait(), 20)


async def test_a_call_that_is_cut_off_closes_its_connection_and_leaves_the_others_alone() -> None:
    asked = asyncio.Event()

    async def answering(seen: Seen, writer: Writer) -> None:
        if seen.target == "/quick":
            writer.write(reply("quick"))
            return
        asked.set()
        await asyncio.Event().wait()

    async with endpoint(answering) as rig, opened(declared(rig, "/{step}", parameters=STEP)) as (tool,):
        assert await tool.invoke({"step": "quick"}, call_context()) == "quick"
        task = asyncio.ensure_future(invoked(tool, step="slow"))
        await asyncio.wait_for(asked.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await tool.invoke({"step": "quick"}, call_context()) == "quick"
        assert rig.seen[-1].connection != rig.seen[-2].connection


STEP = {"step": {"type": "string"}}


async def invoked(tool: Tool, call_id: str = "c1", **arguments: object) -> object:
    return await cast("Awaitable[object]", tool.invoke(arguments, call_context(call_id)))


# ----------------------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    shape = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(folder / "key"), "-out", str(folder / "cert"))
    subprocess.run(["openssl", "req", *shape, *name, *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return both


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not there to make a certificate")
async def test_an_encrypted_endpoint_has_to_show_a_certificate_for_its_name(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    async with endpoint(saying(reply("encrypted")), tls=tls) as rig:
        named = declared(rig, url=f"https://localhost:{rig.port}/", private_hosts=("localhost",), retries=0)
        assert error(await called(named)) == "lookup cannot be reached now"
        assert "certificate verify failed" in caplog.text
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert output(await called(named)) == "encrypted"
        numbered = declared(rig, url=f"https://127.0.0.1:{rig.port}/", retries=0)
        assert error(await called(numbered)) == "lookup cannot be reached now"
        assert "IP address mismatch" in caplog.text


# ---------------------------------------------------------------------------------------------------------------- logs


async def test_no_argument_no_answer_and_no_secret_gets_into_a_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("SHOP_SECRET", "hush-hush")
    parameters = {"order": {"type": "string"}, "q": {"type": "string"}, "h": {"type": "string", "in": "header"}}
    arguments = dict.fromkeys(parameters, "private-4711")
    answers = (
        reply({"answer": "private-4711"}),
        reply({"error": "private-4711"}, 404),
        reply(b"private-4711"),
        reply(b"", 503),
        reply({}, 302, location="/private-4711"),
    )
    for answer in answers:
        async with endpoint(saying(answer)) as rig:
            tool = declared(
                rig,
                "/orders/{order}?key=hush-hush",
                parameters=parameters,
                headers_env={"Authorization": "SHOP_SECRET"},
                signing_key_env="SHOP_SECRET",
                retries=1,
            )
            await called(tool, arguments)
            assert "private-4711" in rig.seen[0].target
    assert "/orders/{order}:" in caplog.text
    written = caplog.text + "".join(str(vars(record)) for record in caplog.records)  # some write every field, as JSON
    assert "private-4711" not in written
    assert "hush-hush" not in written


# --------------------------------------------------------------------------------------------------------- the source


async def test_what_is_said_about_any_tool_can_be_said_about_this_one() -> None:
    tool = HttpTool.model_validate(
        {
            "name": "hang_up",
            "url": "https://pbx.example.com/hangup",
            "method": "POST",
            "effect": "terminal",
            "timeout": 3,
            "queue_timeout": 2,
            "deliver": "now",
            "reply": False,
            "on_interrupt": "cancel",
            "result_limit": 100,
            "filler": "One moment.",
            "filler_after": 2,
            "concurrency": 8,
            "session_concurrency": 1,
            "rate": "10/minute",
            "dedupe": {"seconds": 60, "scope": "process", "fields": ["a"]},
            "parameters": {"a": {"type": "string"}, "phone": {"type": "string"}},
            "hidden": {"phone": "caller"},
            "redact": ["phone"],
            "log_arguments": ["a"],
            "examples": [{"arguments": {"a": "b"}, "result": None}, {"arguments": {"a": "c"}}],
        }
    )
    async with opened(tool) as (made,):
        pass
    assert (made.spec.start, made.spec.deliver, made.spec.reply) == (Start.AFTER_REPLY, Deliver.NOW, False)
    assert (made.timeout, made.queue_timeout, made.effect, made.on_interrupt) == (3, 2, "terminal", "cancel")
    assert (made.result_limit, made.filler, made.filler_after) == (100, "One moment.", 2)
    assert (made.concurrency, made.session_concurrency, made.rate) == (8, 1, Rate(10, 60))
    assert made.dedupe == Dedupe(60, "process", ("a",))
    assert (made.hidden, made.redact, made.log_arguments) == ({"phone": "caller"}, ("phone",), ("a",))
    assert made.examples == (Example({"a": "b"}, None), Example({"a": "c"}))
    assert "phone" not in made.spec.parameters
    assert made.source == "POST https://pbx.example.com/hangup"


async def test_a_get_reads_everything_else_writes_and_a_held_call_is_answered_between_replies() -> None:
    url = "https://shop.example.com/"
    reading = HttpTool(name="a", url=url)
    writing = HttpTool(name="b", url=url, method="DELETE", hold=True)
    async with opened(reading, writing) as (first, second):
        assert (first.effect, first.repeatable, first.spec.start) == ("read", True, Start.NOW)
        assert (second.effect, second.repeatable, second.spec.deliver) == ("write", False, Deliver.BETWEEN_REPLIES)


def test_a_source_says_all_that_is_wrong_with_its_tools_at_once() -> None:
    url = "https://shop.example.com/"
    tools = [
        HttpTool(name="misspelled", url=url, dedupe=Dedupe(60, fields=("ordr",))),
        HttpTool(name="a", url=url, parameters={"x": {"type": "sting"}}),
        HttpTool(name="b", url=url),
        HttpTool(name="b", url=url, method="POST"),
    ]
    with pytest.raises(ConfigError) as refused:
        HttpSource(tools)
    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == "tool misspelled: dedupe names ordr, which is no parameter; there are none"
    assert "tool a" in lines[1]
    assert "two tools are called b: GET https://shop.example.com/ and POST" in lines[2]


async def test_a_tool_whose_source_is_closed_is_not_available() -> None:
    source = HttpSource([HttpTool(name="a", url="https://shop.example.com/")], name="shop")
    assert (source.name, source.reason) == ("shop", "")
    async with source.open(lambda changed: None) as (tool,):
        pass
    with pytest.raises(ToolUnavailable, match="a is not available now"):
        await tool.invoke({}, call_context())


async def test_without_the_packages_of_the_extra_it_is_said_which_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    monkeypatch.delitem(sys.modules, "bridge.tools.webhook.client", raising=False)
    source = HttpSource([HttpTool(name="a", url="https://shop.example.com/")])
    with pytest.raises(ConfigError, match=r"need the package httpx2: pip install 'voice-tool-bridge\[http\]'"):
        async with source.open(lambda changed: None):
            pass


@pytest.mark.slow
def test_declaring_a_tool_imports_none_of_the_packages_of_the_extra() -> None:
    script = (
        "import sys, bridge.tools.webhook; print([m for m in ('httpx2', 'httpcore2', 'stamina') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT)
    assert said.stdout.strip() == "[]"


ROOT = Path(__file__).parents[2]
