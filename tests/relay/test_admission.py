"""Who is let in, as far as no socket is needed to tell."""

from __future__ import annotations

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from bridge.relay import Limits, Listen, Route
from bridge.relay.admission import admit, correlation
from bridge.relay.handshake import Refusal
from bridge.relay.upstream import target_of
from tests.relay.rig import upstream

ELSEWHERE = ("192.0.2.1", 5000)
EVERYWHERE = Listen(host="0.0.0.0")


def request(path: str = "/v1/ws", **headers: str) -> Request:
    return Request(path, Headers({"Host": "voice.example.com", **headers}))


def admitted(asked: Request, peer: object, listen: Listen = EVERYWHERE, **options: object) -> str:
    """The path at the provider."""
    target = target_of(Route(upstream=upstream("wss://provider.example/v1/ws", **options)), {}, Limits())
    return admit(asked, peer, listen, [target])[1]


@pytest.mark.parametrize("peer", [("127.0.0.1", 1), ("127.9.9.9", 1), ("::1", 1, 0, 0), ("::ffff:127.0.0.1", 1, 0, 0)])
def test_with_a_key_of_ours_and_no_tokens_this_machine_is_let_in(peer: tuple[object, ...]) -> None:
    assert admitted(request(), peer, api_key="k") == "/v1/ws"


@pytest.mark.parametrize("peer", [ELSEWHERE, ("2001:db8::1", 1, 0, 0), ("::ffff:192.0.2.1", 1, 0, 0)])
def test_with_a_key_of_ours_and_no_tokens_nobody_else_is(peer: tuple[object, ...]) -> None:
    with pytest.raises(Refusal) as refusal:
        admitted(request(), peer, api_key="k")
    assert refusal.value.status == 401


def test_with_tokens_it_does_not_matter_where_one_is() -> None:
    asked = request(Authorization="Bearer t")
    assert admitted(asked, ELSEWHERE, api_key="k", tokens=("t",)) == "/v1/ws"


@pytest.mark.parametrize("host", ["localhost:8787", "127.0.0.1", "[::1]:8787", "LOCALHOST"])
def test_on_the_loopback_its_own_names_are_known(host: str) -> None:
    assert admitted(request(Host=host), None, Listen()) == "/v1/ws"


def test_elsewhere_any_name_is_taken_unless_some_are_listed() -> None:
    assert admitted(request(), ELSEWHERE) == "/v1/ws"
    with pytest.raises(Refusal):
        admitted(request(), ELSEWHERE, Listen(host="0.0.0.0", hosts=("other.example.com",)))


@pytest.mark.parametrize(
    ("asked", "carried"),
    [
        ("/v1/ws?a=%74oken&to%6Ben=t&b", "/v1/ws?a=%74oken&b"),
        ("/?token=t", "/v1/ws"),
        ("?token=t&x", "/v1/ws?x"),
    ],
)
def test_only_the_token_is_taken_out_of_the_query(asked: str, carried: str) -> None:
    assert admitted(request(asked), None, api_key="k", tokens=("t",)) == carried


def test_a_correlation_cannot_forge_log_lines() -> None:
    headers = Headers()
    headers["X-Call"] = "one\tsession"
    headers["X-Call"] = "two \xe9" + "x" * 200
    assert correlation(Request("/", headers), Listen(correlation_header="x-call")) == "onesession two " + "x" * 113
    assert correlation(Request("/", headers), Listen()) == ""
