"""What the API says and does: calls are completed, approvals decided, and nobody learns more than is meant for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator
from starlette.routing import Route

from bridge import CallKey, ToolCall, ToolResult
from bridge.admin import Desk, Verdicts, admin, guard, shown
from bridge.admin.openapi import OPERATIONS
from bridge.admin.rate import Rate
from bridge.core.events import (
    CallConcluded,
    Discard,
    FollowUp,
    Run,
    Sent,
    SessionEnded,
    ToolFinished,
)
from bridge.errors import JournalError
from bridge.metrics import Metrics
from bridge.runner.approvals import ApprovalRequest, Decision, Resolution
from bridge.runner.parking import Completion, Waiting
from bridge.runner.post import Post
from tests.admin.rig import ALL, BOSS, DOCUMENT, Host, Port, asked, desk, result_of, served

pytestmark = pytest.mark.anyio

DONE = {"status": "completed", "output": {"shipped": True}}
K1 = CallKey(1, "c1")


# ------------------------------------------------------------------------------------------------------------- results


async def test_a_call_is_completed_once_and_the_same_again_is_fine() -> None:
    async with desk() as (host, port):
        key = await host.parked()
        first = await port.post(result_of(key), DONE)
        again = await port.post(result_of(key), DONE)
        other = await port.post(result_of(key), {"status": "completed", "output": {"shipped": False}})
        failed = await port.post(result_of(key), {"status": "failed", "error": "It is lost."})
        await host.over(key)
    assert (first.status_code, first.json()) == (200, {"key": key, **DONE, "repeated": False})
    assert (again.status_code, again.json()["repeated"], again.json()["output"]) == (200, True, {"shipped": True})
    for refused in (other, failed):
        assert (refused.status_code, refused.json()["retryable"]) == (409, False)
        assert "shipped" not in refused.text
    assert host.finished[key].result.output == '{"shipped":true}'


async def test_a_call_that_failed_tells_the_sentence() -> None:
    async with desk() as (host, port):
        key = await host.parked()
        answers = [await port.post(result_of(key), {"status": "failed", "error": "It is lost."}) for _ in range(2)]
        result = (await host.over(key)).result
    assert [each.json()["repeated"] for each in answers] == [False, True]
    assert answers[1].json() | {"repeated": False} == answers[0].json()
    assert (answers[0].json()["status"], answers[0].json()["error"]) == ("failed", "It is lost.")
    assert result.is_error
    assert "It is lost." in result.output


@pytest.mark.parametrize("output", [None, "", 0, False, [], {}, 1.5, "text", [1, {"a": None}]])
async def test_any_json_is_a_result_and_stays_what_it_is(output: Any) -> None:
    async with desk() as (host, port):
        key = await host.parked()
        assert (await port.post(result_of(key), {"status": "completed", "output": output})).json()["output"] == output
        assert json.loads((await host.over(key)).result.output) == output


async def test_a_number_is_never_rounded() -> None:
    number = 123456789012345678901234567890
    async with desk() as (host, port):
        key = await host.parked()
        answer = await port.post(result_of(key), b'{"status":"completed","output":%d}' % number)
        assert json.loads(answer.text)["output"] == number
        assert (await host.over(key)).result.output == str(number)


async def test_what_is_nested_too_deeply_is_refused_in_a_few_words() -> None:
    async with desk() as (host, port):
        key = await host.parked()
        answer = await port.post(result_of(key), b'{"status":"completed","output":' + b"[" * 300 + b"]" * 300 + b"}")
        assert (answer.status_code, len(answer.text) < 300) == (422, True)
        assert host.runner.waiting == (key,)


async def test_a_name_that_no_utf_8_can_hold_breaks_no_list() -> None:
    async with desk() as (host, port):
        await host.parked("\ud800")
        host.see(Run(CallKey(1, "\ud800"), ToolCall("\ud800", "order")))
        assert (await port.get("/v1/calls")).json()["calls"][0]["key"] == "s1.1.?"


async def test_nothing_of_a_result_or_a_token_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with desk() as (host, port):
        key, request = await host.parked(), await host.asking()
        await port.post(result_of(key), {"status": "completed", "output": "a secret"})
        await port.post(result_of(key), {"status": "failed", "error": "a secret"})
        await port.post(f"/v1/approvals/{request}", {"decision": "deny", "reason": "a secret"})
        await host.over(key)
    assert "by all: accepted" in caplog.text
    for secret in ("a secret", "4711471147114711", ALL):
        assert secret not in caplog.text


@pytest.mark.parametrize("call_id", ["a/b", "../../x", "a b", "100%", "%2F", "a?b#c", "s/result", "tür", "x.y.z", "."])
async def test_a_key_with_any_characters_comes_through_percent_encoded(call_id: str) -> None:
    async with desk() as (host, port):
        key = await host.parked(call_id)
        assert (await port.post(result_of(key), DONE)).json()["key"] == key
        assert key.endswith(call_id)
        assert (await host.over(key)).result.output == '{"shipped":true}'


async def test_a_call_that_nobody_knows_is_404() -> None:
    async with desk() as (_, port):
        for body in (DONE, {"status": "running"}):
            answer = await port.post(result_of("s1.1.nothing"), body)
            assert (answer.status_code, answer.json()["retryable"]) == (404, False)


async def test_a_call_whose_time_is_over_is_410_for_good() -> None:
    async with desk() as (host, port):
        key = await host.parked(timeout=0.01)
        host.see(Run(K1, ToolCall("c1", "order")), ToolFinished(K1, ToolResult("c1", "null", is_error=True)))
        await host.over(key)
        late = await port.post(result_of(key), DONE)
        running = await port.post(result_of(key), {"status": "running"})
    for answer in (late, running):
        assert (answer.status_code, answer.json()["retryable"]) == (410, False)


async def test_a_sign_of_life_says_that_the_call_still_waits_and_changes_nothing() -> None:
    async with desk() as (host, port):
        key = await host.parked()
        for _ in range(2):
            answer = await port.post(result_of(key), {"status": "running"})
            assert (answer.status_code, answer.json()) == (200, {"key": key, "status": "running"})
        assert host.runner.waiting == (key,)
        assert host.finished == {}


async def test_a_worker_that_is_faster_than_the_tool_hears_that_the_call_is_wanted() -> None:
    async with desk() as (host, port):
        host.see(Run(K1, ToolCall("c1", "order")))
        assert (await port.post(result_of("s1.1.c1"), {"status": "running"})).status_code == 200


async def test_what_cannot_be_a_result_is_422_and_the_call_stays_open() -> None:
    async with desk() as (host, port):
        key = await host.parked(result_limit=10)
        answer = await port.post(result_of(key), {"status": "completed", "output": "x" * 100})
        assert (answer.status_code, answer.json()["retryable"]) == (422, False)
        assert "xxx" not in answer.text
        assert host.runner.waiting == (key,)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"status": "done"},
        {"status": "failed"},
        {"status": "failed", "error": " "},
        {"status": "failed", "error": "x" * 1001},
        {"status": "failed", "error": "no", "output": 1},
        {"status": "completed", "error": "no"},
        {"status": "running", "output": 1},
        {"status": "completed", "outpu": "a secret"},
    ],
)
async def test_a_body_of_another_shape_is_422_and_is_not_repeated(body: Any) -> None:
    async with desk() as (host, port):
        key = await host.parked()
        answer = await port.post(result_of(key), body)
        assert answer.status_code == 422
        assert "secret" not in answer.text
        assert host.runner.waiting == (key,)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"status":"completed","output":NaN}', b"[" * 5000])
async def test_a_body_that_is_no_json_is_400(body: bytes) -> None:
    async with desk() as (_, port):
        assert (await port.post("/v1/calls/k/result", body)).status_code == 400


async def test_a_body_that_is_too_large_is_413() -> None:
    async with desk() as (_, port):
        answer = await port.post("/v1/calls/k/result", b'"' + b"x" * 1024 * 1024 + b'"')
    assert answer.status_code == 413


async def test_a_body_that_does_not_come_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.01)
    async with desk() as (_, port):
        assert (await port.ask("POST", "/v1/calls/k/result", never(), None, {})).status_code == 408


@pytest.mark.slow
async def test_a_peer_that_goes_away_in_the_middle_of_its_body_is_no_fault_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk(at=served) as (_, port):
        number = int(port.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", number)
        head = (
            f"POST /v1/calls/k/result HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\nContent-Length: 9\r\n\r\n{{"
        )
        writer.write(head.encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        while 'route="/v1/calls/{key}/result",status="400"} 1.0' not in (await port.get("/metrics")).text:
            pass
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# --------------------------------------------------------------------------------------------------------------- calls


async def test_calls_that_wait_are_listed_with_what_is_known_of_them() -> None:
    async with desk() as (host, port):
        key, unseen = await host.parked(), await host.parked("c2")
        host.see(Run(K1, ToolCall("c1", "order", '{"item":"a secret"}')))
        host.see(ToolFinished(K1, ToolResult("c1", '"a secret"', interim=True)))
        answer = await port.get("/v1/calls")
        assert "secret" not in answer.text
        first, second = answer.json()["calls"]
        assert first.pop("since") > 0
        assert first == {
            "key": key,
            "session": "s1",
            "tool": "order",
            "state": "waiting",
            "parked": True,
            "outcome": "",
        }
        assert second.pop("since") > 0
        assert second == {**first, "key": unseen}
        await port.post(result_of(key), DONE)
        await host.over(key)
        assert [each["key"] for each in (await port.get("/v1/calls")).json()["calls"]] == [unseen]


async def test_the_calls_of_a_session_say_how_far_each_has_come() -> None:
    def key(number: int) -> CallKey:
        return CallKey(1, f"c{number}")

    def result(number: int, **more: Any) -> ToolResult:
        return ToolResult(f"c{number}", "1", **more)

    async with desk() as (host, port):
        host.see(*(Run(key(n), ToolCall(f"c{n}", "order")) for n in range(7)))
        host.see(Run(key(0), ToolCall("c0", "order")), session="another")
        host.see(*(ToolFinished(key(n), result(n, is_error=n == 1)) for n in (1, 2)))
        host.see(Sent((key(2), CallKey(9, "unknown"))), Discard(key(3)))
        host.see(ToolFinished(key(4), result(4, interim=True)), Sent((key(4),)))
        host.see(ToolFinished(key(5), result(5, interim=True)), CallConcluded(key(5), result(5)))
        host.see(ToolFinished(key(6), result(6, interim=True)), FollowUp(key(6), result(6)))
        host.see(ToolFinished(CallKey(9, "unknown"), result(9)), Discard(CallKey(9, "unknown")))
        calls = (await port.get("/v1/sessions/s1/calls")).json()["calls"]
        states = [(each["state"], each["parked"], each["outcome"]) for each in calls]
        assert states == [
            ("running", False, ""),
            ("done", False, "error"),
            ("sent", False, "ok"),
            ("discarded", False, ""),
            ("running", True, ""),
            ("done", True, "ok"),
            ("sent", True, ""),
        ]
        host.sessions = ()
        host.see(SessionEnded("it is over"))
        calls = (await port.get("/v1/sessions/s1/calls")).json()["calls"]
        assert [each["state"] for each in calls] == ["ended", "ended", "sent", "discarded", "ended", "ended", "sent"]


async def test_only_so_many_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_REMEMBERED", 2)
    async with desk() as (host, port):
        host.see(*(Run(CallKey(1, f"c{n}"), ToolCall(f"c{n}", "order")) for n in range(3)))
        calls = (await port.get("/v1/sessions/s1/calls")).json()["calls"]
    assert [each["key"] for each in calls] == ["s1.1.c1", "s1.1.c2"]


async def test_a_session_is_shown_by_its_id_and_one_that_is_not_there_is_404() -> None:
    async with desk() as (_, port):
        assert (await port.get("/v1/sessions/s1")).json()["id"] == "s1"
        assert (await port.get("/v1/sessions/s2")).status_code == 404
        assert (await port.get("/v1/sessions/s1/calls")).json() == {"calls": []}
        assert (await port.get("/v1/sessions/s2/calls")).status_code == 404


# ----------------------------------------------------------------------------------------------------------- approvals


async def test_pending_approvals_are_listed_with_masked_arguments() -> None:
    async with desk() as (host, port):
        request_id = await host.asking()
        answer = await port.get("/v1/approvals")
    (request,) = answer.json()["approvals"]
    assert request.pop("asked") > 0
    assert request == {
        "id": request_id,
        "session": "s1",
        "key": "s1.1.a1",
        "tool": "refund",
        "arguments": {"amount": 3, "card": "(masked)"},
        "seconds": 60,
    }
    assert "4711471147114711" not in answer.text


@pytest.mark.parametrize(("word", "how"), [("approve", Resolution.APPROVED), ("deny", Resolution.DENIED)])
async def test_the_first_decision_stands(word: str, how: Resolution) -> None:
    async with desk() as (host, port):
        path = f"/v1/approvals/{await host.asking()}"
        first = await port.post(path, {"decision": word, "by": "Ann", "reason": "a good one"})
        again = await port.post(path, {"decision": word})
        other = await port.post(path, {"decision": "deny" if word == "approve" else "approve"})
        await host.over("s1.1.a1")
    assert (first.status_code, first.json()["decision"], first.json()["by"]) == (200, word, "Ann")
    for answer in (again, other):
        assert (answer.status_code, answer.json()["error"]) == (409, f"already decided: {word}, by Ann")
    assert host.approvals.resolved[how] == 1
    assert host.finished["s1.1.a1"].outcome.value == ("ok" if word == "approve" else "denied")


async def test_a_decision_that_names_nobody_is_that_of_the_token() -> None:
    async with desk() as (host, port):
        answer = await port.post(f"/v1/approvals/{await host.asking()}", {"decision": "approve"}, BOSS)
    assert answer.json()["by"] == "boss"


async def test_a_decision_that_is_too_late_is_410_and_one_about_nothing_404() -> None:
    async with desk() as (host, port):
        request_id = await host.asking(approval_timeout=0.01)
        await host.over("s1.1.a1")
        late = await port.post(f"/v1/approvals/{request_id}", {"decision": "approve"})
        unknown = await port.post("/v1/approvals/nothing", {"decision": "approve"})
    assert (late.status_code, late.json()["retryable"]) == (410, False)
    assert (unknown.status_code, unknown.json()["retryable"]) == (404, False)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"decision": "perhaps"},
        {"decision": "approve", "by": "two\nlines"},
        {"decision": "approve", "by": "x" * 101},
        {"decision": "approve", "reason": "x" * 1001},
        {"decision": "approve", "arguments": {}},
    ],
)
async def test_a_decision_of_another_shape_is_422_and_decides_nothing(body: Any) -> None:
    async with desk() as (host, port):
        assert (await port.post(f"/v1/approvals/{await host.asking()}", body)).status_code == 422
        assert len(host.approvals.pending) == 1


# --------------------------------------------------------------------------------------------------------- description


class Unsure(Desk):
    """A subject of which a part does not answer."""

    async def settle(self, key: str, result: Any) -> Any:
        return {"verdict": Verdicts.UNSURE.value}

    async def decide(self, request_id: str, decision: Any) -> Any:
        return {"verdict": Verdicts.UNSURE.value}


async def test_somebody_who_may_know_and_does_not_answer_is_503_to_be_tried_again() -> None:
    async with asked(Unsure(Host())) as port:
        for path, body in (result_of("k"), DONE), ("/v1/approvals/k", {"decision": "deny"}):
            answer = await port.post(path, body)
            assert (answer.status_code, answer.json()["retryable"], answer.headers["retry-after"]) == (503, True, "1")


class Sharing(Host):
    """A host that shares its journal with other processes; `others` is what it hears of them."""

    def __init__(self, others: tuple[ApprovalRequest, ...] | JournalError) -> None:
        super().__init__()
        self.others = others
        self.runner.post = cast(Post, "a mailbox")
        self.runner.requests_elsewhere = self.elsewhere  # type: ignore[method-assign]  # as a database would tell it
        self.runner.calls_elsewhere = self.calls_elsewhere  # type: ignore[method-assign]

    async def elsewhere(self) -> tuple[ApprovalRequest, ...]:
        if isinstance(self.others, JournalError):
            raise self.others
        return self.others

    async def calls_elsewhere(self) -> tuple[Waiting, ...]:
        return tuple([Waiting("s7.1.c7", each.session_id, each.tool, 5.0) for each in await self.elsewhere()])

    async def settle(self, ticket: str, value: object = None, *, error: str = "") -> Completion:
        raise JournalError("the database is away")

    async def decide(self, request_id: str, *, approve: bool, by: str, reason: str = "") -> Decision:
        raise JournalError("the database is away")


OTHER = ApprovalRequest("a7", "s7", CallKey(1, "c7"), "refund", '{"card":"(masked)"}', "", 5.0, 60.0)


@pytest.mark.parametrize(("over", "status"), [(True, 410), (False, 200), (None, 503)])
async def test_whether_a_call_of_another_process_is_over_is_asked_of_the_journal(
    over: bool | None, status: int
) -> None:
    class Mail:
        async def is_over(self, ticket: str) -> bool:
            assert ticket == "s7.1.c7"
            if over is None:
                raise JournalError("away")
            return over

    host = Sharing(())
    host.runner.post = cast(Post, Mail())
    async with asked(Desk(host)) as port:
        answer = await port.post(result_of("s7.1.c7"), {"status": "running"})
    assert (answer.status_code, answer.json().get("status")) == (status, "running" if status == 200 else None)


async def test_without_the_database_that_says_whose_it_is_a_result_may_be_sent_again() -> None:
    async with asked(Desk(Sharing(()))) as port:
        for path, body in (result_of("k"), DONE), ("/v1/approvals/k", {"decision": "deny"}):
            assert (await port.post(path, body)).status_code == 503


async def test_approvals_that_wait_at_other_processes_are_listed_too_as_far_as_they_are_known() -> None:
    async with asked(Desk(Sharing((OTHER,)))) as port:
        (request,) = (await port.get("/v1/approvals")).json()["approvals"]
        assert (request["id"], request["key"], request["elsewhere"]) == ("a7", "s7.1.c7", True)
    async with asked(Desk(Sharing(JournalError("away")))) as port:
        assert (await port.get("/v1/approvals")).json() == {"approvals": []}


async def test_calls_that_wait_at_other_processes_are_listed_too_as_far_as_they_are_known() -> None:
    async with asked(Desk(Sharing((OTHER,)))) as port:
        (call,) = (await port.get("/v1/calls")).json()["calls"]
        assert (call["key"], call["session"], call["tool"], call["since"]) == ("s7.1.c7", "s7", "refund", 5.0)
        assert (call["state"], call["elsewhere"]) == ("waiting", True)
    async with asked(Desk(Sharing(JournalError("away")))) as port:
        assert (await port.get("/v1/calls")).json() == {"calls": []}


async def test_the_description_is_served_and_names_every_path_of_the_app() -> None:
    async with desk(token="") as (_, port):
        told = (await port.get("/openapi.json")).json()
    assert told == json.loads(json.dumps(DOCUMENT))
    for schema in told["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    routes: set[tuple[str, ...]] = set()
    for route in admin(Host(), Metrics()).routes:
        assert isinstance(route, Route)
        routes.add((route.path.replace(":path", ""), *((route.methods or set()) - {"HEAD"})))
    assert routes == {(path, method.upper()) for path, each in told["paths"].items() for method in each}


async def test_every_answer_that_is_described_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the rig checks the shape of each; here they are all provoked, and none is left out."""
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.01)
    seen: set[tuple[str, str, int]] = set()
    described = {(op.method, op.path, status) for op in OPERATIONS for status in op.statuses}
    streams = {(op.method, op.path, 200) for op in OPERATIONS if "text/event-stream" in op.answers.values()}

    async with desk() as (host, port):
        for operation in OPERATIONS:
            for token in (ALL, "", "wrong"):
                if (operation.method, operation.path, 200) not in streams or token != ALL:
                    await port.ask(operation.method, filled(operation.path), b"{}", token, {})
            await port.ask(operation.method, filled(operation.path), b"{}", BOSS, {"origin": "https://evil.example"})
            if operation.body is not None:
                await refuse_bodies(port, filled(operation.path))
        await settle_all(host, port)
        await port.get("/v1/sessions/s1")
        await port.get("/v1/sessions/s1/calls")
        await port.post("/drain?seconds=soon")
        await port.post("/drain?seconds=0")
        await port.get("/readyz")
        seen |= port.seen
    async with desk(rate=Rate(1, 0), at_most=0) as (_, port):
        for operation in OPERATIONS:
            await port.ask(operation.method, filled(operation.path), b"{}", ALL, {})
        seen |= port.seen
    async with asked(Unsure(Host())) as port:
        await port.post(result_of("k"), DONE)
        await port.post("/v1/approvals/k", {"decision": "deny"})
        seen |= port.seen
    assert described - streams == seen


def filled(path: str) -> str:
    return path.replace("{id}", "nobody").replace("{key}", "nobody")


async def refuse_bodies(port: Port, path: str) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    await port.post(path, b"{")
    await port.post(path, b"x" * 1024 * 1025)
    await port.ask("POST", path, never(), None, {})


async def settle_all(host: Host, port: Port) -> None:
    """Complete and decide, twice, too late, and about nothing."""
    key, late = await host.parked("c1"), await host.parked("c2", timeout=0.01)
    request, over = await host.asking("a1"), await host.asking("a2", approval_timeout=0.01)
    await host.over(late)
    await host.over("s1.1.a2")
    for each in (key, late, "nobody"):
        await port.post(result_of(each), DONE)
    await port.post(result_of(key), {"status": "completed", "output": 1})
    for each in (request, over, "nobody", request):
        await port.post(f"/v1/approvals/{each}", {"decision": "deny"})
