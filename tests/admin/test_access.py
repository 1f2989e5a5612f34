"""Who is let in, and how often."""

from __future__ import annotations

import pytest

from bridge.admin import Access, Readers, Token
from bridge.admin.rate import Rate
from bridge.config import read
from bridge.errors import ConfigError
from bridge.serve import access_of
from tests.admin.rig import BOSS, GUARDED, OPEN, READER, WORKER, desk

pytestmark = pytest.mark.anyio

READS = ["/sessions", "/v1/sessions", "/v1/sessions/s1", "/v1/sessions/s1/calls", "/v1/calls", "/v1/approvals"]
CHANGES = ["/drain", "/v1/calls/k/result", "/v1/approvals/k"]


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz", "/openapi.json"])
async def test_metrics_and_health_are_for_everybody(path: str) -> None:
    async with desk(Access(), token="") as (_, port):
        assert (await port.get(path, host="10.1.2.3:9090", origin="https://evil.example")).status_code == 200


@pytest.mark.parametrize("path", READS)
async def test_sessions_are_shown_to_everybody_only_where_that_was_said(path: str) -> None:
    async with desk(OPEN, token="") as (_, port):
        assert (await port.get(path)).status_code == 200
    async with desk(GUARDED, token="") as (_, port):
        assert (await port.get(path)).status_code == 401
        assert (await port.get(path, "wrong")).status_code == 401
        assert (await port.get(path, READER)).status_code == 200
        assert (await port.get(path, WORKER)).status_code == 403


@pytest.mark.parametrize("path", [*READS, "/v1/facts", "/v1/approvals/stream"])
async def test_without_a_token_in_the_settings_a_guarded_port_shows_nothing(path: str) -> None:
    async with desk(Access(), token="anything") as (_, port):
        answer = await port.get(path)
    assert answer.status_code == 403
    assert "set admin.token_env" in answer.json()["error"]


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("sent", ["", "wrong", READER, "\xe9"])
async def test_nothing_changes_without_the_right_token_also_where_everybody_may_read(path: str, sent: str) -> None:
    access = Access(GUARDED.tokens, Readers.ANYBODY)
    async with desk(access, token=sent) as (host, port):
        answer = await port.post(path, {"status": "completed"})
    assert answer.status_code == (403 if sent == READER else 401)
    assert ("www-authenticate" in answer.headers) == (answer.status_code == 401)
    assert host.drained == []


@pytest.mark.parametrize("path", CHANGES)
async def test_without_a_token_in_the_settings_nothing_can_be_changed(path: str) -> None:
    async with desk(OPEN, token="anything") as (host, port):
        assert (await port.post(path, {})).status_code == 403
    assert host.drained == []


async def test_a_token_does_only_what_its_scopes_say() -> None:
    async with desk() as (_, port):
        assert (await port.post("/v1/calls/k/result", {"status": "completed"}, WORKER)).status_code == 404
        assert (await port.post("/v1/approvals/k", {"decision": "deny"}, BOSS)).status_code == 404
        answer = await port.post("/v1/approvals/k", {"decision": "deny"}, WORKER)
    assert answer.json()["error"] == "the token worker does not allow this: give it the scope 'approve'"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9090", "localhost.evil.example"])
async def test_a_name_that_is_not_ours_is_refused_so_that_no_page_can_make_one_point_here(host: str) -> None:
    access = Access(readers=Readers.ANYBODY, hosts=("localhost", "[::1]"))
    async with desk(access, token="") as (_, port):
        assert (await port.get("/v1/sessions", host=host)).status_code == 403
        assert (await port.get("/v1/sessions", host="LocalHost:1234")).status_code == 200
        assert (await port.get("/v1/sessions", host="[::1]:1234")).status_code == 200


async def test_a_web_page_is_refused_also_with_a_token_unless_its_origin_is_listed() -> None:
    access = Access(GUARDED.tokens, origins=("https://desk.example.com",))
    async with desk(access) as (_, port):
        assert (await port.get("/v1/sessions", origin="https://desk.example.com")).status_code == 200
        answer = await port.post("/drain", origin="https://evil.example")
    assert answer.status_code == 403
    assert "admin.origins" in answer.json()["error"]


def test_tokens_that_are_empty_or_the_same_are_refused() -> None:
    with pytest.raises(ConfigError, match="'desk' is empty"):
        Access((Token("desk", ""),))
    for tokens in (Token("a", "x"), Token("a", "y")), (Token("a", "x"), Token("b", "x")):
        with pytest.raises(ConfigError, match="the same"):
            Access(tokens)
    assert "x1y2" not in repr(Access((Token("a", "x1y2"),)))


# ---------------------------------------------------------------------------------------------------------- how often


async def test_changes_are_limited_for_each_token_and_for_those_who_show_none() -> None:
    now = 0.0
    async with desk(rate=Rate(0.5, 2, lambda: now)) as (_, port):
        tries = [await port.post("/drain?seconds=x") for _ in range(3)]
        assert [each.status_code for each in tries] == [400, 400, 429]
        assert (tries[2].headers["retry-after"], tries[2].json()["retryable"]) == ("2", True)
        assert [(await port.post("/drain", token="wrong")).status_code for _ in range(3)] == [401, 401, 429]
        assert (await port.post("/v1/approvals/k", {"decision": "deny"}, BOSS)).status_code == 404
        assert (await port.get("/v1/sessions")).status_code == 200
        now = 2.0
        assert (await port.post("/drain?seconds=x")).status_code == 400


def test_of_many_who_ask_only_the_latest_are_remembered() -> None:
    rate = Rate(1, 1, lambda: 0.0)
    assert [rate.take("0"), rate.take("0")] == [0, 1]
    for number in range(1, 1025):
        rate.take(str(number))
    assert rate.take("0") == 0
    assert rate.take("1024") == 1


# ---------------------------------------------------------------------------------------------------------- settings


def access(**table: object) -> Access:
    return access_of(read(None, {"admin": table}).settings.admin)


def test_on_the_loopback_everybody_reads_until_there_is_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access().readers is Readers.ANYBODY
    assert access().hosts == ("localhost", "127.0.0.1", "[::1]", "127.0.0.1")
    assert access(host="0.0.0.0").readers is Readers.WITH_TOKEN
    assert access(host="0.0.0.0").hosts == ()
    assert access(host="0.0.0.0", hosts=["Desk.example.com"]).hosts == ("desk.example.com",)
    monkeypatch.setenv("A_TOKEN", "abc")
    guarded = access(token_env="A_TOKEN")
    assert guarded.readers is Readers.WITH_TOKEN
    assert guarded.whose("Bearer abc") == guarded.whose("bearer abc") == Token("admin", "abc")
    assert guarded.whose("abc") is guarded.whose("Basic abc") is guarded.whose("") is None


def test_tokens_with_scopes_come_from_a_table_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    (token,) = access(tokens=[{"name": "desk", "token_env": "A_TOKEN", "scopes": ["approve", "read"]}]).tokens
    assert (token.name, token.secret, {each.value for each in token.scopes}) == ("desk", "abc", {"approve", "read"})
    with pytest.raises(ConfigError, match=r"admin\.tokens\.0\.scopes"):
        access(tokens=[{"name": "desk", "token_env": "A_TOKEN", "scopes": ["everything"]}])


def test_a_token_whose_secret_is_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match="'desk' is empty"):
        access(tokens=[{"name": "desk", "scopes": ["read"]}])


def test_decisions_over_the_port_need_somebody_who_may_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="approvals: nobody could decide"):
        access(approvals=True)
    monkeypatch.setenv("A_TOKEN", "abc")
    assert access(approvals=True, token_env="A_TOKEN").tokens
    assert access(approvals=True, tokens=[{"name": "d", "token_env": "A_TOKEN", "scopes": ["approve"]}]).tokens
