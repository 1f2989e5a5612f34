"""Where connections may lead: by the address itself, and by what a name turns out to mean."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_address

import httpcore2
import pytest

from bridge.tools.webhook.addresses import is_listed, is_public
from bridge.tools.webhook.guard import Forbidden, Guard

from .webhook_rig import called, declared, endpoint, error, output, reply, saying

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1", "172.31.0.1"),
        *(
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
        ),
        *("255.255.255.255", "100.100.100.200", "168.63.129.16"),
        *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::7f00:1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "64:ff9b::808:808"),
        *("64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:7f00:1::", "100::1", "4000::1", "3fff::1"),
    ],
)
def test_an_address_of_the_inside_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450:4001::1"])
def test_an_address_of_everybody_is_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_host_is_listed_by_its_name_or_by_name_and_port() -> None:
    listed = frozenset({"db.internal", "app.internal:8080", "[::1]:3000"})
    assert is_listed("db.internal", 1, listed)
    assert is_listed("app.internal", 8080, listed)
    assert is_listed("::1", 3000, listed)
    assert not is_listed("app.internal", 80, listed)
    assert not is_listed("evil.db.internal", 1, listed)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "::ffff:127.0.0.1"])
async def test_no_way_to_write_the_own_machine_leads_to_it(host: str) -> None:
    async with endpoint(saying(reply({}))) as rig:
        with pytest.raises(Forbidden, match="is not public"):
            await Guard(frozenset()).connect_tcp(host, rig.port, timeout=5)
        assert not rig.connections


class Names:
    """What names mean, in the place of the network's own directory: the answers to each look-up in turn."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = iter(answers)
        self.asked = 0

    def getaddrinfo(self, host: str, port: int, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(self.answers)]


@pytest.fixture
def public_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 stands for a public address, since no other than the loopback can be reached from here."""
    monkeypatch.setattr("bridge.tools.webhook.guard.is_public", lambda address: str(address) == "127.0.0.2")


@pytest.mark.usefixtures("public_loopback")
async def test_a_name_that_means_another_address_a_moment_later_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(["127.0.0.2"], ["127.0.0.1"])
    async with endpoint(saying(reply("inside"))) as inside, endpoint(saying(reply("outside")), "127.0.0.2") as outside:
        monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
        stream = await Guard(frozenset()).connect_tcp("rebinding.example.com", outside.port, timeout=5)
        assert stream.get_extra_info("server_addr") == ("127.0.0.2", outside.port)
        await stream.aclose()
        assert names.asked == 1
        with pytest.raises(Forbidden):
            await Guard(frozenset()).connect_tcp("rebinding.example.com", inside.port, timeout=5)
        assert not inside.connections


@pytest.mark.usefixtures("public_loopback")
async def test_of_several_addresses_only_public_ones_are_tried_and_the_next_if_one_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with endpoint(saying(reply({})), "127.0.0.2") as rig:
        monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.1", "127.0.0.2"]).getaddrinfo)
        stream = await Guard(frozenset()).connect_tcp("shop.example.com", rig.port)
        await stream.aclose()
        monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.3", "127.0.0.2"]).getaddrinfo)
        stream = await Guard(frozenset({"shop.example.com"})).connect_tcp("shop.example.com", rig.port)
        assert stream.get_extra_info("server_addr") == ("127.0.0.2", rig.port)
        await stream.aclose()


async def test_a_name_that_nobody_knows_cannot_be_connected_to() -> None:
    for host in ("no-such-host.invalid", "x" * 80, "a..b"):
        with pytest.raises(httpcore2.ConnectError, match="could not be looked up"):
            await Guard(frozenset()).connect_tcp(host, 80, timeout=10)


async def test_a_directory_that_does_not_answer_takes_no_longer_than_a_connection_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(httpcore2.ConnectTimeout):
        await Guard(frozenset()).connect_tcp("shop.example.com", 80, timeout=0.05)


async def test_a_tool_reaches_a_private_host_only_if_it_lists_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that one tool has opened there is no way in for another."""
    async with endpoint(saying(reply("inside"))) as rig:
        monkeypatch.setattr(socket, "getaddrinfo", Names(["127.0.0.1"], ["127.0.0.1"]).getaddrinfo)
        url = f"http://orders.example.com:{rig.port}"
        listed = declared(rig, url=f"{url}/", private_hosts=("ORDERS.example.com",))
        assert output(await called(listed)) == "inside"
        finished = await called(declared(rig, url=f"{url}/", private_hosts=("other.example.com",)))
        assert error(finished) == "the tool lookup failed"
        assert rig.connections == 1
