"""Who gets in, what is carried to the provider, and what is answered when there will be no session."""

from __future__ import annotations

import asyncio
import errno
import re
import resource
import socket
import ssl
import subprocess
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import InvalidStatus
from websockets.utils import accept_key

from bridge import ConfigError
from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.relay import Limits, Listen, Relay, Route, Upstream
from bridge.relay.door import Door
from bridge.relay.frames import Opcode, frame
from tests.relay.rig import PATIENCE, address, ask, providing, relaying, request, serving_bytes, until, upstream
from tests.simulator.raw import dial
from tests.sockets import connected, listening

pytestmark = pytest.mark.anyio

NOWHERE = "ws://127.0.0.1:9/v1/ws"


async def refused(relay: Relay, path: str = "/v1/ws", **headers: str) -> tuple[int, str]:
    """The status and the text with which this application is refused."""
    with pytest.raises(InvalidStatus) as refusal:
        await connect(address(relay, path), additional_headers=headers, compression=None)
    response = refusal.value.response
    return response.status_code, bytes(response.body or b"").decode().strip()


# ---------------------------------------------------------------------------------------------------- what is carried


async def test_path_query_subprotocol_and_headers_are_carried_and_the_subprotocol_comes_back() -> None:
    async with providing(subprotocols=["voice.v2"]) as providers, relaying(providers.url) as relay:
        headers = {"Authorization": "Bearer theirs", "X-Trace": "7", "Proxy-Authorization": "no"}
        url = address(relay, "/other/path?a=1&token=t%20t")
        async with connect(url, subprotocols=["voice.v1", "voice.v2"], additional_headers=headers) as app:  # type: ignore[list-item]  # a NewType of str
            assert app.subprotocol == "voice.v2"
            assert app.protocol.extensions == []
            seen = (await providers.next()).socket.request
    assert seen is not None
    assert seen.path == "/other/path?a=1&token=t%20t"
    assert (seen.headers["Authorization"], seen.headers["X-Trace"]) == ("Bearer theirs", "7")
    assert seen.headers["Host"] == providers.url.split("/")[2]
    assert seen.headers.get_all("Sec-WebSocket-Protocol") == ["voice.v1, voice.v2"]
    assert not {"Sec-WebSocket-Extensions", "Proxy-Authorization"} & set(seen.headers)
    assert len(seen.headers.get_all("Sec-WebSocket-Key")) == 1


async def test_headers_that_the_application_names_as_its_own_connections_stop_here() -> None:
    async with (
        providing() as providers,
        relaying(providers.url) as relay,
        connected(relay.port) as (reader, writer),
    ):
        writer.write(request("/v1/ws", "X-Mine: 1", "X-Yours: 2").replace(b"Connection: ", b"Connection: X-Mine, "))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        seen = (await providers.next()).socket.request
        assert seen is not None
        assert ("X-Mine" in seen.headers, "X-Yours" in seen.headers) == (False, True)


async def test_a_path_that_is_not_given_is_the_providers_own() -> None:
    async with (
        providing() as providers,
        relaying(providers.url + "?region=eu") as relay,
        dial(address(relay, "/?b=2")),
    ):
        seen = (await providers.next()).socket.request
    assert seen is not None
    assert seen.path == "/v1/ws?region=eu&b=2"


def agreement(head: bytes) -> bytes:
    """What a provider answers to this request, by hand."""
    lines = head.decode().split("\r\n")
    key = next(line.split(": ")[1] for line in lines if line.startswith("Sec-WebSocket-Key"))
    said = ["HTTP/1.1 101 OK", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept_key(key)}"]
    return "\r\n".join([*said, "", ""]).encode()


async def test_what_follows_either_handshake_in_the_same_packet_is_relayed() -> None:
    theirs, ours = frame(Opcode.TEXT, b'{"type":"a"}', masked=False), frame(Opcode.TEXT, b'{"type":"b"}', masked=True)

    async def eager(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(agreement(await reader.readuntil(b"\r\n\r\n")) + theirs)
        assert await reader.readexactly(len(ours)) == ours
        writer.write(theirs)
        await reader.read()

    async with serving_bytes(eager) as url, relaying(url) as relay, connected(relay.port) as (reader, writer):
        writer.write(request() + ours)
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2 * len(theirs)) == theirs * 2


async def test_an_application_that_does_not_wait_for_the_answer_is_held_and_loses_nothing() -> None:
    go_on = asyncio.Event()
    much = frame(Opcode.TEXT, b'{"type":"input.audio","audio":"' + b"A" * 50_000 + b'"}', masked=True) * 20

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await go_on.wait()
        writer.write(agreement(head))
        assert await reader.readexactly(len(much)) == much
        writer.write(frame(Opcode.TEXT, b"{}", masked=False))
        await reader.read()

    async with serving_bytes(late) as url, relaying(url) as relay, connected(relay.port) as (reader, writer):
        writer.write(request() + much)
        go_on.set()
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"\x81\x02{}"


# ------------------------------------------------------------------------------------------------------------ bad input

NO_HANDSHAKES = {
    "no request at all": (b"\x00\x01\x02 hello\r\n\r\n", 400),
    "TLS where there is none": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "a plain request": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 426),
    "another method": (request().replace(b"GET", b"PUT"), 405),
    "an older HTTP": (request().replace(b"HTTP/1.1", b"HTTP/1.0"), 505),
    "no key": (request().replace(b"Sec-WebSocket-Key", b"X"), 400),
    "a key that is none": (request().replace(b"AAAA==", b"!"), 400),
    "another version": (request().replace(b"Version: 13", b"Version: 8"), 400),
    "no host": (request().replace(b"Host", b"X"), 403),
    "two hosts": (request("/v1/ws", "Host: localhost"), 403),
    "the name of another": (request(host="evil.example.com"), 403),
    "a body": (request("/v1/ws", "Content-Length: 3") + b"abc", 400),
    "a long line": (request("/v1/ws?" + "x" * 9000), 414),
    "a long header": (request("/v1/ws", "X: " + "x" * 9000), 431),
    "many headers": (request("/v1/ws", *["X: y"] * 200), 431),
    "an endless head": (b"GET /" + b"x" * 20_000, 431),
    "a subprotocol that cannot be read": (request("/v1/ws", "Sec-WebSocket-Protocol: a b ("), 400),
}


@pytest.mark.parametrize("name", NO_HANDSHAKES)
async def test_what_is_no_handshake_is_refused_with_a_status(name: str, caplog: pytest.LogCaptureFixture) -> None:
    head, status = NO_HANDSHAKES[name]
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)) as other:
        answer = await ask(relay, head)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\n\r\n" in answer
        assert relay.counters.refused == {status: 1}
        # One line says why, and the other call does not notice.
        (line,) = (record for record in caplog.records if record.getMessage().startswith("refused"))
        assert line.levelname == "WARNING"
        assert re.search(r": \d+, .+; .+", line.getMessage()), "it does not say what to do"
        provider = await providers.next()
        await provider.say("hello")
        await other.until("hello")


async def test_a_request_that_does_not_come_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async with relaying(NOWHERE, limits=Limits(handshake_timeout=0.05)) as relay:
        assert (await ask(relay, b"GET / HT")).startswith(b"HTTP/1.1 408 ")
        assert "such as a check of the port" in caplog.text


async def test_an_application_that_goes_away_in_its_handshake_leaves_nothing() -> None:
    dialled = asyncio.Event()
    gone = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await reader.read()
        gone.set()

    async with serving_bytes(silent) as url, relaying(url) as relay:
        async with connected(relay.port) as (_, writer):
            writer.write(request())
            await dialled.wait()
        await gone.wait()
        assert (relay.sessions, relay.ready) == ([], "")


async def test_pages_of_an_origin_that_is_not_listed_are_refused() -> None:
    listen = Listen(port=0, origins=("https://ours.example.com",))
    async with providing() as providers, relaying(providers.url, listen=listen) as relay:
        assert (await refused(relay, Origin="https://theirs.example.com"))[0] == 403
        async with dial(address(relay), Origin="https://ours.example.com"):
            await providers.next()


async def test_the_names_of_this_server_can_be_listed() -> None:
    listen = Listen(port=0, hosts=("Voice.example.com",))
    async with providing() as providers, relaying(providers.url, listen=listen) as relay:
        assert (await refused(relay))[0] == 403
        assert b" 403 " in await ask(relay, request(host="voice.example.com.evil.com"))
        async with connected(relay.port) as (_, writer):
            writer.write(request(host="voice.example.com:8787"))
            await providers.next()


# --------------------------------------------------------------------------------------------------------------- routes


async def test_the_longest_prefix_that_fits_counts_and_the_rest_is_carried() -> None:
    async with providing() as one, providing() as other:
        routes = [
            Route(upstream=upstream(one.url), prefix="/a"),
            Route(upstream=upstream(other.url), prefix="/a/b"),
        ]
        async with relaying("", routes=routes) as relay:
            async with dial(address(relay, "/a/b/v2")), dial(address(relay, "/a/bc")):
                (seen, elsewhere) = (await other.next()).socket.request, (await one.next()).socket.request
                assert {session.route for session in relay.sessions} == {"/a", "/a/b"}
            assert (await refused(relay, "/abc"))[0] == 404
    assert seen is not None
    assert elsewhere is not None
    assert (seen.path, elsewhere.path) == ("/v2", "/bc")


# ----------------------------------------------------------------------------------------------------------------- keys


async def test_a_key_of_ours_replaces_the_credentials_of_the_application() -> None:
    async with (
        providing() as providers,
        relaying(providers.url, api_key="the-key", tokens=("one", "two")) as relay,
        dial(address(relay, "/v1/ws?x=1&token=mine"), Authorization="Bearer two", Cookie="c=1"),
    ):
        seen = (await providers.next()).socket.request
    assert seen is not None
    assert seen.headers.get_all("Authorization") == ["Bearer the-key"]
    assert seen.path == "/v1/ws?x=1"
    assert "Cookie" not in seen.headers


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/v1/ws", None, 401),
        ("/v1/ws", "Bearer tw", 401),
        ("/v1/ws", "Bearer twoo", 401),
        ("/v1/ws", "Bearer \xe9", 401),
        ("/v1/ws?token=", None, 401),
        ("/v1/ws?token=wrong", None, 401),
        ("/v1/token", "Bearer two", 404),
        ("/v1/ws/../token", "Bearer two", 404),
        ("/v1/ws%2f..", "Bearer two", 404),
        ("//v1/ws", "Bearer two", 404),
    ],
)
async def test_with_a_key_of_ours_only_who_has_a_token_reaches_only_the_right_path(
    path: str, authorization: str | None, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with relaying(NOWHERE, api_key="the-key", tokens=("one", "two")) as relay:
        headers = {} if authorization is None else {"Authorization": authorization}
        found, text = await refused(relay, path, **headers)
    assert found == status
    assert not any(secret in caplog.text + text for secret in ("the-key", "twoo", "wrong"))


@pytest.mark.parametrize("shown", ["Bearer two", "bearer two", "two", "?token=two"])
async def test_a_token_may_be_shown_in_each_of_the_ways_of_the_provider(shown: str) -> None:
    async with providing() as providers, relaying(providers.url, api_key="k", tokens=("one", "two")) as relay:
        query, headers = (shown, {}) if shown.startswith("?") else ("", {"Authorization": shown})
        async with dial(address(relay, f"/v1/ws{query}"), **headers):
            await providers.next()


async def test_applications_on_this_machine_need_no_token_if_there_is_none() -> None:
    async with providing() as providers, relaying(providers.url, api_key="k") as relay, dial(address(relay)):
        await providers.next()


async def test_a_key_without_tokens_is_not_offered_to_everybody() -> None:
    route = Route(upstream=upstream(NOWHERE, api_key="the-key"))
    async with Relay([route]) as relay:
        with pytest.raises(ConfigError, match="set tokens"):
            await relay.start(Listen(host="0.0.0.0", port=0))


@pytest.mark.parametrize(
    "route",
    [
        Route(upstream=Upstream(dialect=ASSEMBLYAI, url="https://example.com")),
        Route(upstream=upstream(NOWHERE), prefix="a"),
        Route(upstream=upstream(NOWHERE), prefix="/a/"),
        Route(upstream=upstream(NOWHERE, tokens=("t",))),
        Route(upstream=upstream(NOWHERE, api_key="two\nlines")),
    ],
)
def test_routes_that_cannot_work_are_refused_at_the_start(route: Route) -> None:
    with pytest.raises(ConfigError):
        Relay([route])


# ----------------------------------------------------------------------------------------------------- bad providers


async def answering(status: bytes) -> tuple[int, str]:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(status + b"\r\nLocation: http://elsewhere\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with serving_bytes(play) as url, relaying(url) as relay:
        return await refused(relay)


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"HTTP/1.1 401 Unauthorized", 401),
        (b"HTTP/1.1 403 Forbidden", 403),
        (b"HTTP/1.1 404 Not Found", 404),
        (b"HTTP/1.1 429 Too Many Requests", 429),
        (b"HTTP/1.1 500 Oops", 500),
        (b"HTTP/1.1 503 Busy", 503),
        (b"HTTP/1.1 599 What", 502),
        (b"HTTP/1.1 307 Elsewhere", 502),
        (b"HTTP/1.1 200 OK", 502),
        (b"HTTP/1.1 101 Fine, but no accept", 502),
        (b"SSH-2.0-OpenSSH_9", 502),
        (b"", 502),
    ],
)
async def test_a_provider_that_refuses_is_the_answer_to_the_application(said: bytes, status: int) -> None:
    found, text = await answering(said)
    assert found == status
    assert "provider" in text


@pytest.mark.parametrize("status", [401, 403])
async def test_a_provider_that_refuses_our_key_is_not_taken_for_the_application_being_wrong(status: int) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} No\r\n\r\n".encode())
        await writer.drain()

    async with serving_bytes(play) as url, relaying(url, api_key="the-key") as relay:
        found, text = await refused(relay)
    assert (found, "relay's key" in text, "the-key" in text) == (502, True, False)


async def test_compression_that_nobody_asked_for_is_no_agreement() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert "Extensions" not in head
        writer.write(b"HTTP/1.1 101 OK\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
        await writer.drain()

    async with serving_bytes(play) as url, relaying(url) as relay:
        assert (await refused(relay))[0] == 502


async def test_a_provider_that_cannot_be_reached_is_a_bad_gateway(caplog: pytest.LogCaptureFixture) -> None:
    async with relaying(NOWHERE) as relay:
        assert await refused(relay) == (502, "the provider cannot be reached")
    assert "check the url" in caplog.text


async def test_a_name_that_does_not_exist_is_a_bad_gateway() -> None:
    async with relaying("ws://nowhere.invalid/v1/ws") as relay:
        assert (await refused(relay))[0] == 502


async def test_a_provider_that_hangs_up_is_a_bad_gateway() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with serving_bytes(play) as url, relaying(url) as relay:
        assert (await refused(relay))[0] == 502


async def test_a_provider_that_does_not_answer_is_not_waited_for() -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving_bytes(play) as url, relaying(url, limits=Limits(dial_timeout=0.1)) as relay:
        assert (await refused(relay))[0] == 504


async def test_no_more_providers_are_dialled_at_once_than_allowed() -> None:
    asked = now = most = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked, now, most
        await reader.readuntil(b"\r\n\r\n")
        asked, now = asked + 1, now + 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1
        writer.write(b"HTTP/1.1 500 Oops\r\n\r\n")
        await writer.drain()

    async with serving_bytes(play) as url, relaying(url, limits=Limits(max_dials=3)) as relay:
        statuses = await asyncio.gather(*(refused(relay) for _ in range(40)))
    assert {status for status, _ in statuses} == {500}
    assert (asked, most) == (40, 3)


# ------------------------------------------------------------------------------------------------------ the machine


async def test_a_port_that_is_taken_is_said_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with Relay([Route(upstream=upstream(NOWHERE))]) as relay:
            with pytest.raises(ConfigError, match="choose another port"):
                await relay.start(Listen(port=taken.getsockname()[1]))


async def test_without_file_descriptors_new_calls_are_refused_and_others_go_on() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with providing() as providers, relaying(providers.url) as relay, dial(address(relay)) as app:
        provider = await providers.next()
        with socket.socket() as probe, socket.socket() as spare:
            free = spare.fileno() + 1
            probe.setblocking(False)
            spare.connect(("127.0.0.1", relay.port))
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))  # enough to be heard, not to dial
                spare.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(spare, request())
                assert (await loop.sock_recv(spare, 1000)).startswith(b"HTTP/1.1 503 ")
                await provider.say("still here")
                await app.until("still here")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with dial(address(relay)):
            await providers.next()


# ------------------------------------------------------------------------------------------------------------------ TLS


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


def _server_side(certificate: Path) -> ssl.SSLContext:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    return tls


async def test_both_sides_may_be_encrypted(certificate: Path) -> None:
    tls, trusting = _server_side(certificate), ssl.create_default_context(cafile=str(certificate))
    async with providing(ssl=tls) as providers:
        url = providers.url.replace("ws://127.0.0.1", "wss://localhost")
        async with (
            relaying(url, tls=trusting, listen=Listen(port=0, tls=tls)) as relay,
            connect(f"wss://localhost:{relay.port}/v1/ws", ssl=trusting, compression=None) as app,
        ):
            provider = await providers.next()
            await app.send('{"type":"input.audio","audio":"' + "A" * 100_000 + '"}')
            assert len((await provider.hear())["audio"]) == 100_000
            await provider.say("reply.audio", data="B" * 100_000)
            assert len(await app.recv()) > 100_000
            await app.send('{"type":"session.end"}')
            await provider.hear("session.end")


async def test_a_provider_whose_certificate_is_not_trusted_or_has_another_name_is_refused(certificate: Path) -> None:
    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, ssl=_server_side(certificate)) as server:
        port = server.sockets[0].getsockname()[1]
        async with relaying(f"wss://localhost:{port}/v1/ws") as relay:
            assert await refused(relay) == (502, "the provider's certificate is not valid for its name")
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with relaying(f"wss://127.0.0.1:{port}/v1/ws", tls=trusting) as relay:
            assert await refused(relay) == (502, "the provider's certificate is not valid for its name")


async def test_a_provider_that_speaks_no_tls_is_a_bad_gateway() -> None:
    async with providing() as providers, relaying(providers.url.replace("ws:", "wss:")) as relay:
        assert (await refused(relay))[0] == 502


async def test_a_tls_handshake_that_does_not_come_is_not_waited_for(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limits = Limits(handshake_timeout=0.1)
    listen = Listen(port=0, tls=_server_side(certificate))
    async with relaying(NOWHERE, limits=limits, listen=listen) as relay:
        async with connected(relay.port) as (reader, _):
            assert await reader.read() == b""
        assert "408, the TLS handshake did not come in time" in caplog.text
        async with connected(relay.port) as (reader, writer):
            writer.write(request())  # what is no TLS
            with suppress(ConnectionError):
                await reader.read()
        trusting = ssl.create_default_context(cafile=str(certificate))
        slow = await asyncio.open_connection("localhost", relay.port, ssl=trusting)
        try:
            assert (await slow[0].read()).startswith(b"HTTP/1.1 408 ")
        finally:
            slow[1].transport.abort()
            with suppress(OSError):
                await slow[1].wait_closed()
    assert "Traceback" not in caplog.text


def _ended_handshake(port: int, tls: ssl.SSLContext | None) -> None:
    """Connect, and come to nothing: by a TLS handshake that fails, or by words that are none."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain, suppress(OSError):
        if tls is None:
            plain.sendall(request())
            plain.recv(1000)
        else:
            tls.wrap_socket(plain, server_hostname="localhost")


@pytest.mark.parametrize("trusts", [True, False], ids=["speaks no TLS", "does not trust the certificate"])
@pytest.mark.parametrize("backend", ["asyncio", "uvloop"])
def test_a_tls_handshake_that_fails_is_logged_and_counted(
    certificate: Path, caplog: pytest.LogCaptureFixture, trusts: bool, backend: str
) -> None:
    async def fail() -> dict[int, int]:
        async with relaying(NOWHERE, listen=Listen(port=0, tls=_server_side(certificate))) as relay:
            client = None if trusts else ssl.create_default_context()
            await asyncio.to_thread(_ended_handshake, relay.port, client)
            await until(lambda: bool(relay.counters.refused))
            return dict(relay.counters.refused)

    assert anyio.run(fail, backend_options={"use_uvloop": backend == "uvloop"}) == {400: 1}
    (line,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert line.startswith("refused 127.0.0.1:")
    assert "the TLS handshake failed (" in line
    assert ("http request" in line.lower()) is trusts
    assert ("unknown ca" in line.lower()) is not trusts


async def test_whoever_goes_away_during_the_tls_handshake_goes_in_silence(
    certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        providing() as providers,
        relaying(providers.url, listen=Listen(port=0, tls=_server_side(certificate))) as relay,
    ):
        async with connected(relay.port):
            pass
        trusting = ssl.create_default_context(cafile=str(certificate))
        async with connect(f"wss://localhost:{relay.port}/v1/ws", ssl=trusting, compression=None):
            assert relay.counters.refused == {}
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


# ---------------------------------------------------------------------------------------------------- faults and ends


async def test_a_fault_of_our_own_is_answered_and_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with providing() as providers, relaying(providers.url) as relay:
        with monkeypatch.context() as broken:
            broken.setattr("bridge.relay.door.dial", None)
            assert (await refused(relay))[0] == 500
        assert relay.counters.refused == {500: 1}
        assert "a fault of our own" in caplog.text
        async with dial(address(relay)):
            await providers.next()


async def test_a_connection_that_is_made_when_the_door_is_shut_is_broken_off() -> None:
    door = Door(Limits(), lambda: "", lambda guest: None)
    await door.shut()
    gone = asyncio.Event()
    async with serving_bytes(_silent) as url:
        host, _, port = url.removeprefix("ws://").partition("/")[0].partition(":")
        opening = door.knock()
        opening.lost = gone.set
        await asyncio.get_running_loop().create_connection(lambda: opening, host, int(port))
        assert not opening.is_open
        await gone.wait()


@pytest.mark.parametrize("why", ["cleared", "shut", "no descriptor"])
async def test_a_connection_whose_tls_handshake_cannot_begin_is_broken_off(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(Limits(), lambda: "", lambda guest: None)
    door.listen = Listen(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    gone = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        gone.set()

    async with asyncio.timeout(PATIENCE), listening(play) as port:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        if why == "shut":
            await door.shut()
        elif why == "no descriptor":
            monkeypatch.setattr("os.dup", _exhausted)
        door.knock().connection_made(transport)
        await door.clear()
        await gone.wait()


def _exhausted(descriptor: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files")


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
