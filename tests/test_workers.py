"""Several processes behind one port: as an operator runs them, and their parent alone with workers made of scraps."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
import pytest
from anyio.to_thread import run_sync as in_thread
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bridge.admin.feed import End, Event, Feed
from bridge.config import read
from bridge.errors import ConfigError
from bridge.relay.server import Relay
from bridge.serve import Serving
from bridge.simulator import Simulator
from bridge.workers import Fleet, fleet, run
from bridge.workers.channel import Channel, packed
from bridge.workers.fleet import pause_after
from bridge.workers.worker import Order, _Answers, obey

pytestmark = pytest.mark.anyio

TOOLS = '''
from bridge import Toolset

tools = Toolset()


@tools.tool(effect="read")
async def get_weather(city: str) -> dict:
    """Current weather in a city."""
    return {"city": city, "sky": "clear"}
'''


# ------------------------------------------------------------------------------------------ the parent and scraps

STUB = """
import json, os, socket, sys, time

kind, number, parent = sys.argv[1], int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3]))

def say(**message):
    text = json.dumps(message).encode()
    parent.sendall(len(text).to_bytes(4, "big") + text)

def hear():
    head = parent.recv(4, socket.MSG_WAITALL)
    return json.loads(parent.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)) if head else None

kind = kind.split(",")[number - 1]
if kind == "refuses":
    say(failed="the port is painted blue")
    sys.exit(2)
if kind == "vanishes":
    sys.exit(3)
if kind == "dawdles":
    hear()
say(started=number)
if kind == "dies":
    os.kill(os.getpid(), 15)
    time.sleep(60)
reloads = 0
while asked := hear():
    what = asked["ask"]
    reloads += what == "reload"
    if kind == "dies when asked":
        sys.exit(4)
    if kind == "has left in order":
        sys.exit(0)
    if kind == "silent":
        continue
    tells = {"follow": ("follow", "fact"), "attend": ("attend", "asked"), "detach": ("follow", "detached")}
    verdict = "accepted" if kind == "knows" else "unknown"
    answers = {
        "calls": [{"key": f"k{number}"}, {"key": f"k{3 - number}", "elsewhere": True}],
        "pending": [{"id": f"a{number}"}, {"id": f"a{3 - number}", "elsewhere": True}],
        "settle": {"verdict": verdict, "of": number},
        "decide": {"verdict": verdict, "of": number},
        "ready": "full" if kind == "full" else "",
        "sessions": [{"id": f"s{number}", "reloads": reloads}],
        "metrics": f"# TYPE things counter\\nthings_total {number}\\n",
        "drain": number,
    }
    say(id=asked["id"], said=answers.get(what))
    if what in tells:
        of, event = tells[what]
        say(event=event, of=of, data={"id": f"a{number}"})
if kind == "lingers":
    time.sleep(60)
"""


@asynccontextmanager
async def scraps(kinds: str, **options: Any) -> AsyncIterator[Fleet]:
    """A fleet with a worker of each kind, kept until the end of the block; `stop` is up to the test."""

    def command(number: int, channel: int) -> list[str]:
        return [sys.executable, "-S", "-E", "-c", STUB, kinds, str(number), str(channel)]

    workers = Fleet(options.pop("command", command), kinds.count(",") + 1, end_seconds=0.3, **options)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(workers.keep)
            yield workers
            await workers.stop()


@pytest.mark.parametrize(
    ("pause", "lived", "expected"),
    [(0, 0, 0.1), (0.1, 0.5, 0.2), (0.2, 59, 0.4), (6.4, 1, 10), (10, 1, 10), (10, 60, 0.1), (0, 60, 0.1)],
)
async def test_a_worker_that_dies_soon_is_replaced_later_each_time(pause: float, lived: float, expected: float) -> None:
    assert pause_after(pause, lived) == pytest.approx(expected)


async def test_a_worker_that_keeps_dying_is_replaced_with_pauses_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    lives = iter([0, 1, 1, 2, 2, 65, 65, 66])  # begins and ends: one, one, 63 and one second
    seen: list[float] = []

    def clock() -> float:
        seen.append(next(lives, 66))
        if len(seen) == 8:
            done.set()
        return seen[-1]

    done = anyio.Event()
    async with scraps("dies", clock=clock) as workers:
        await done.wait()
        text = (await in_thread(workers.render)).decode()
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    pauses = [match[1] for line in said if (match := re.search(r"another starts in (\S+) s", line))]
    assert pauses[:4] == ["0.1", "0.2", "0.1", "0.2"]
    assert "worker 1 was ended by signal 15, Terminated (if nobody sent it, PYTHONFAULTHANDLER=1" in said[0]
    assert re.search(r'bridge_worker_restarts_total\{worker="1"\} [4-9]\.0', text)


async def test_a_worker_that_cannot_start_fails_the_whole_start_and_nobody_waits_for_the_others() -> None:
    async with scraps("dawdles,refuses,up") as workers:
        assert await workers.started() == "worker 2 could not start: the port is painted blue"


async def test_a_worker_that_ends_before_it_has_started_fails_the_whole_start() -> None:
    async with scraps("vanishes") as workers:
        assert "worker 1 ended with exit code 3" in await workers.started()


async def test_a_process_that_cannot_be_made_fails_the_whole_start() -> None:
    async with scraps("up", command=lambda number, channel: ["/no/such/program"]) as workers:
        assert await workers.started() == "worker 1 could not be started (No such file or directory)"


async def test_a_fleet_is_ready_if_one_worker_is() -> None:
    async with scraps("full,up") as workers:
        assert await workers.started() == ""
        assert await workers.ready == ""


async def test_a_fleet_that_is_not_ready_says_why_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_READY_SECONDS", 0.2)
    async with scraps("dawdles,full,silent") as workers:
        while await workers.ready != "worker 1: starting; worker 2: full; worker 3: does not answer":
            pass


async def test_a_worker_between_two_lives_is_not_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_FIRST_PAUSE", 30.0)
    async with scraps("dies") as workers:
        while await workers.ready != "worker 1: not running":
            pass


async def test_sessions_and_metrics_say_which_worker_they_are_of() -> None:
    async with scraps("up,full,up") as workers:
        await workers.started()
        await workers.reload()
        sessions = await workers.sessions
        page = (await in_thread(workers.render)).decode()
    assert sessions == [
        {"worker": 1, "id": "s1", "reloads": 1},
        {"worker": 2, "id": "s2", "reloads": 1},
        {"worker": 3, "id": "s3", "reloads": 1},
    ]
    assert 'things_total{worker="1"} 1.0' in page
    assert 'things_total{worker="3"} 3.0' in page
    assert 'bridge_worker_restarts_total{worker="2"} 0.0' in page
    assert page.count("# TYPE bridge_worker_restarts_total") == 1


async def test_what_a_silent_worker_does_not_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_PAGE_SECONDS", 0.3)
    async with scraps("silent,up") as workers:
        await workers.started()
        assert [each["worker"] for each in await workers.sessions] == [2]
        page = (await in_thread(workers.render)).decode()
    assert 'things_total{worker="2"} 2.0' in page
    assert 'things_total{worker="1"}' not in page
    assert 'bridge_worker_restarts_total{worker="1"} 0.0' in page


async def test_a_worker_that_dies_while_it_is_asked_is_not_waited_for() -> None:
    async with scraps("up,dies when asked") as workers:
        await workers.started()
        with anyio.fail_after(20):
            assert [each["worker"] for each in await workers.sessions] == [1]


async def test_what_was_left_is_added_up_and_a_worker_that_does_not_say_counts_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scraps("up,silent,up") as workers:
        await workers.started()
        assert await workers.drain(0) == 1 + 1 + 3
        assert await workers.ready == "draining"
    assert "worker 2 did not say how its sessions ended" in caplog.text


async def test_a_worker_that_dies_while_draining_is_not_replaced() -> None:
    async with scraps("up,dies when asked") as workers:
        await workers.started()
        assert await workers.drain(0) == 1 + 1
        assert [each["worker"] for each in await workers.sessions] == [1]


async def test_a_worker_that_has_drained_by_itself_has_left_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with scraps("has left in order,up") as workers:
        await workers.started()
        assert await workers.drain(0) == 0 + 2
    assert "take them for lost" not in caplog.text


async def test_a_worker_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet, "_EXIT_SECONDS", 0.2)
    async with scraps("lingers,up") as workers:
        await workers.started()
    assert "worker 1 does not end, and is killed" in caplog.text
    assert "worker 2 does not end" not in caplog.text


# -------------------------------------------------------------------------------------- what waits for the outside


@pytest.mark.slow
async def test_calls_and_approvals_of_all_workers_are_listed_once_each() -> None:
    async with scraps("up,up") as workers:
        await workers.started()
        assert await workers.calls() == [{"worker": 1, "key": "k1"}, {"worker": 2, "key": "k2"}]
        assert await workers.pending() == [{"worker": 1, "id": "a1"}, {"worker": 2, "id": "a2"}]


@pytest.mark.slow
async def test_a_result_or_a_decision_is_answered_by_the_worker_that_knows() -> None:
    async with scraps("up,knows,up") as workers:
        await workers.started()
        assert await workers.settle("k", {}) == {"verdict": "accepted", "of": 2}
        assert await workers.decide("a", {}) == {"verdict": "accepted", "of": 2}


@pytest.mark.slow
async def test_what_no_worker_knows_is_unknown_only_if_all_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scraps("up,up") as workers:
        await workers.started()
        assert (await workers.settle("k", {}))["verdict"] == "unknown"
    monkeypatch.setattr(fleet, "_PAGE_SECONDS", 0.2)
    async with scraps("up,silent") as workers:
        await workers.started()
        assert (await workers.settle("k", {}))["verdict"] == "unsure"
    async with scraps("knows,silent") as workers:
        await workers.started()
        assert (await workers.decide("a", {}))["verdict"] == "accepted"


@pytest.mark.slow
async def test_before_any_worker_has_started_nothing_is_known() -> None:
    async with scraps("dawdles") as workers:
        while await workers.ready != "worker 1: starting":
            pass
        assert await workers.settle("k", {}) == {"verdict": "unknown"}


@pytest.mark.slow
async def test_workers_tell_what_happens_once_somebody_wants_to_know_also_those_that_start_later() -> None:
    async with scraps("up,dies when asked") as workers:
        await workers.started()
        reader = (await workers.follow()).reader(0)
        seen: list[tuple[str, int]] = []
        while ("lost", 2) not in seen or ("fact", 1) not in seen:
            event = await reader.next()
            assert isinstance(event, Event)
            seen.append((event.name, event.data["worker"]))
        assert (await workers.follow()) is (await workers.follow())
        reader.close()


@pytest.mark.slow
async def test_workers_are_attended_while_anybody_is_who_can_decide() -> None:
    async with scraps("up") as workers:
        await workers.started()
        facts = (await workers.follow()).reader(0)
        assert (await facts.next()).name == "fact"
        async with workers.attend() as feed, workers.attend() as second:
            event = await feed.reader(0).next()
            assert isinstance(event, Event)
            assert (event.name, event.data) == ("asked", {"worker": 1, "id": "a1"})
            assert second is not feed
        assert (await facts.next()).name == "detached"
        facts.close()


@pytest.mark.slow
async def test_a_worker_that_starts_while_somebody_attends_is_attended_too() -> None:
    async with scraps("up") as workers, workers.attend() as feed:
        await workers.started()
        event = await feed.reader(0).next()
        assert isinstance(event, Event)
        assert event.name == "asked"
        workers.close()
        assert await feed.reader().next() is End.CLOSED


def governed(monkeypatch: pytest.MonkeyPatch, kinds: str, started: Callable[[int, int], None]) -> int:
    """What the parent comes to if its workers are scraps."""

    def command(self: Order, number: int, channel: int) -> list[str]:
        assert self.overrides["listen"]["port"] > 0
        return [sys.executable, "-S", "-E", "-c", STUB, kinds, str(number), str(channel)]

    monkeypatch.setattr(Order, "command", command)
    overrides = {"listen": {"port": 0, "workers": kinds.count(",") + 1}, "admin": {"port": 0}}
    return run(read(None, overrides), None, overrides, started)


def test_the_parent_adds_up_what_its_workers_had_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(port: int, admin_port: int) -> None:
        assert port != admin_port
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)

    assert governed(monkeypatch, "up,up", started) == 1 + 2


def test_the_parent_ends_with_the_fault_of_a_worker_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="worker 2 could not start: the port is painted blue"):
        governed(monkeypatch, "up,refuses", lambda port, admin_port: pytest.fail("it has not started"))


def test_a_host_that_is_none_is_said_at_once() -> None:
    sidecar = read(None, {"listen": {"host": "no.such.host.invalid", "workers": 2}})
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.host\.invalid:8787"):
        run(sidecar, None, {}, lambda port, admin_port: None)


@pytest.mark.parametrize("table", ["listen", "admin"])
def test_a_port_that_is_taken_is_said_before_any_worker_starts(monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    monkeypatch.setattr(Order, "command", lambda *_: pytest.fail("a worker was started"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        overrides = {"listen": {"port": 0, "workers": 2}, "admin": {"port": 0}, table: {"port": port}}
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            run(read(None, overrides), None, overrides, lambda port, admin_port: None)


def test_workers_share_a_port_of_ipv6_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Order, "command", lambda *_: ["/no/such/program"])
    overrides: dict[str, dict[str, object]] = {"listen": {"host": "::1", "port": 0}, "admin": {"port": 0}}
    with pytest.raises(ConfigError, match="worker 1 could not be started"):  # so there was a port
        run(read(None, overrides), None, overrides, lambda port, admin_port: None)


# ------------------------------------------------------------------------------------------------------- a worker


@asynccontextmanager
async def obeying(tmp_path: Path, **options: Any) -> AsyncIterator[Channel]:
    """A worker in this very process; the parent's end of its channel."""
    (tmp_path / "weather.py").write_text(TOOLS)
    sidecar = read(None, {"tools": {"python": [str(tmp_path / "weather.py")]}, "listen": {"port": 0, "workers": 2}})
    ours, theirs = socket.socketpair()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(obey, theirs, sidecar, **options))
            channel = await Channel.over(ours)
            assert (await channel.receive())["started"] > 0
            yield channel
            channel.close()


async def asked(channel: Channel, question: str, **more: Any) -> Any:
    channel.send({"id": 5, "ask": question, **more})
    answer = await channel.receive()
    assert answer["id"] == 5
    return answer["said"]


async def test_a_worker_answers_its_parent_and_ends_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with obeying(tmp_path) as channel:
        assert await asked(channel, "ready") == ""
        assert await asked(channel, "sessions") == []
        assert "bridge_build_info" in await asked(channel, "metrics")
        assert await asked(channel, "reload") is None
    assert "the parent process has gone" in caplog.text


async def test_a_message_keeps_large_numbers_and_names_that_no_utf_8_can_hold_break_nothing() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = await Channel.over(ours), await Channel.over(theirs)
    sender.send({"output": 2**90, "key": "\ud800"})
    assert await receiver.receive() == {"output": 2**90, "key": "?"}
    sender.close()
    receiver.close()


async def test_a_worker_answers_for_calls_and_approvals_and_tells_what_happens(tmp_path: Path) -> None:
    result, decision = {"status": "running"}, {"decision": "deny", "by": "Ann", "reason": ""}
    async with obeying(tmp_path) as channel:
        assert await asked(channel, "calls", session=None) == []
        assert await asked(channel, "pending") == []
        assert await asked(channel, "settle", key="k", result=result) == {"verdict": "unknown"}
        assert await asked(channel, "decide", request_id="a", decision=decision) == {"verdict": "unknown"}
        assert await asked(channel, "follow") is None
        assert await asked(channel, "attend") is None
        assert await asked(channel, "detach") is None


async def test_a_worker_passes_on_what_happens_and_what_it_had_to_leave_out() -> None:
    ours, theirs = socket.socketpair()
    channel, parent, feed = await Channel.over(theirs), await Channel.over(ours), Feed(keep=1)

    class Asked:
        async def follow(self) -> Feed:
            return feed

    served = cast(Serving, (None, None, Asked()))
    async with anyio.create_task_group() as group:
        group.start_soon(_Answers(channel, served, None).give, {"id": 1, "ask": "follow"})
        assert await parent.receive() == {"id": 1, "said": None}
        feed.put("fact", {"session": "s1"})
        feed.put("fact", {"session": "s2"})
        assert (await parent.receive())["event"] == "lost"
        assert await parent.receive() == {"event": "fact", "of": "follow", "data": {"session": "s2"}}
        parent.close()
        feed.put("fact", {"session": "s3"})
        feed.close()
    channel.close()


async def test_a_worker_that_was_drained_ends_in_silence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with obeying(tmp_path) as channel:
        assert await asked(channel, "drain", seconds=0) == 0
        assert await asked(channel, "ready") == "draining"
    assert "parent" not in caplog.text


async def test_a_question_that_cannot_be_answered_does_not_end_a_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with obeying(tmp_path) as channel:
        channel.send({"id": 4, "ask": "the way"})
        assert await asked(channel, "ready") == ""
    assert "the parent asked for the way and gets no answer" in caplog.text


async def test_a_worker_reloads_when_it_is_told_to_by_its_parent_or_a_signal(tmp_path: Path) -> None:
    relays: list[Relay] = []
    twice = anyio.Event()

    async def reload(relay: Relay) -> None:
        relays.append(relay)
        if len(relays) == 2:
            twice.set()

    async with obeying(tmp_path, reload=reload) as channel:
        await asked(channel, "reload")
        os.kill(os.getpid(), signal.SIGHUP)
        await twice.wait()
    assert isinstance(relays[0], Relay)


async def test_a_reload_that_fails_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failed = anyio.Event()

    async def reload(relay: Relay) -> None:
        failed.set()
        raise OSError("no such thing")

    async with obeying(tmp_path, reload=reload) as channel:
        os.kill(os.getpid(), signal.SIGHUP)
        await failed.wait()
        assert await asked(channel, "ready") == ""
    assert "the settings could not be read again" in caplog.text


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_one_worker_alone_ends_it(tmp_path: Path, sent: signal.Signals) -> None:
    async with obeying(tmp_path) as channel:
        assert await asked(channel, "ready") == ""
        os.kill(os.getpid(), sent)
        assert await channel.receive() is None


async def test_a_message_arrives_whole_in_whatever_pieces_it_comes() -> None:
    ours, theirs = socket.socketpair()
    channel = await Channel.over(theirs)
    message = {"said": "x" * 300_000}
    with ours, anyio.fail_after(20):
        await in_thread(ours.sendall, packed(message) + packed(1)[:2])
        assert await channel.receive() == message
        ours.shutdown(socket.SHUT_WR)
        assert await channel.receive() is None  # half a message is none
    channel.close()
    with pytest.raises(ConnectionError):
        channel.send({})


# ----------------------------------------------------------------------------------------------------- the command


class Sidecar:
    """`serve`, as a process: its address, its admin port, and what it logs."""

    def __init__(self, process: asyncio.subprocess.Process, client: httpx2.AsyncClient) -> None:
        self.process = process
        self.client = client
        self.log: list[str] = []
        self.url = self.admin = ""

    async def line(self, pattern: str) -> re.Match[str]:
        """The next line of the log that this is found in."""
        assert self.process.stderr is not None
        with anyio.fail_after(40):
            while text := (await self.process.stderr.readline()).decode():
                self.log.append(text)
                if found := re.search(pattern, text):
                    return found
        raise AssertionError("".join(self.log))

    async def address(self) -> None:
        assert self.process.stdout is not None
        with anyio.fail_after(40):
            line = (await self.process.stdout.readline()).decode()
        found = re.search(r"(ws://\S+:\d+).*; admin at port (\d+)", line)
        assert found, (line, await self.ended())
        self.url, self.admin = f"{found[1]}/v1/ws", f"http://127.0.0.1:{found[2]}"

    async def get(self, path: str) -> httpx2.Response:
        return await self.client.get(self.admin + path)

    async def sessions(self) -> dict[str, int]:
        """The worker of each session, by the provider's id."""
        found = (await self.get("/sessions")).json()["sessions"]
        return {each["provider_session_id"]: each["worker"] for each in found}

    async def ended(self) -> int:
        """Its exit code; the rest of what it had to say is in the log."""
        assert self.process.stderr is not None
        with anyio.fail_after(40):
            self.log.append((await self.process.stderr.read()).decode())
            return await self.process.wait()


@asynccontextmanager
async def command(*arguments: str, **environment: str) -> AsyncIterator[Sidecar]:
    words = [sys.executable, "-m", "bridge", "serve", "--port", "0", "--admin-port", "0", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env={**os.environ, **environment})
    async with httpx2.AsyncClient(trust_env=False) as client:
        try:
            yield Sidecar(process, client)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()


async def session(sidecar: Sidecar) -> tuple[str, ClientConnection]:
    """A session that is open: its id, and the application's end."""
    application = await connect(sidecar.url)
    await application.send('{"type":"session.update","session":{}}')
    with anyio.fail_after(20):
        while (message := json.loads(await application.recv()))["type"] != "session.ready":
            pass
    return str(message["session_id"]), application


async def one_for_each_worker(sidecar: Sidecar, *wanted: int) -> dict[int, ClientConnection]:
    """An open session of each of these workers. The kernel chooses: so as many are opened as it takes."""
    found: dict[int, ClientConnection] = {}
    for _ in range(60):
        name, application = await session(sidecar)
        worker = (await sidecar.sessions())[name]
        if worker in found or worker not in wanted:
            await application.close()
        found.setdefault(worker, application)
        if found.keys() >= set(wanted):
            return found
    raise AssertionError(f"only workers {sorted(found)} take sessions")


@asynccontextmanager
async def two_workers(tmp_path: Path, **environment: str) -> AsyncIterator[tuple[Sidecar, dict[int, int]]]:
    """`serve --workers 2` in front of the offline provider, and the process of each worker."""
    (tmp_path / "weather.py").write_text(TOOLS)
    async with (
        Simulator(pace=0.1) as sim,
        command("--workers", "2", "--tools", str(tmp_path / "weather.py"), "--url", sim.url, **environment) as sidecar,
    ):
        started = [await sidecar.line(r"worker (\d) has started: process (\d+)") for _ in range(2)]
        await sidecar.address()
        yield sidecar, {int(found[1]): int(found[2]) for found in started}


@pytest.mark.slow
async def test_a_killed_worker_is_replaced_and_the_session_of_the_other_goes_on(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (sidecar, processes):
        applications = await one_for_each_worker(sidecar, 1, 2)
        os.kill(processes[1], signal.SIGKILL)
        with pytest.raises(ConnectionClosed):
            await applications[1].recv()
        await sidecar.line(r"ERROR bridge.workers: worker 1 was ended by signal 9, Killed \(.*another starts in 0.1 s")
        assert (await sidecar.get("/readyz")).status_code == 200
        await asyncio.wait_for(await applications[2].ping(), 20)
        assert set((await sidecar.sessions()).values()) == {2}
        await sidecar.line("worker 1 has started")
        replaced = await one_for_each_worker(sidecar, 1)
        page = (await sidecar.get("/metrics")).text
        assert 'bridge_worker_restarts_total{worker="1"} 1.0' in page
        assert 'bridge_worker_restarts_total{worker="2"} 0.0' in page
        assert 'bridge_sessions_open{worker="1"}' in page
        await asyncio.wait_for(await applications[2].ping(), 20)
        for application in (*replaced.values(), applications[2]):
            await application.close()
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 0


@pytest.mark.slow
async def test_the_sessions_of_all_workers_are_drained_and_the_exit_code_tells_what_was_left(tmp_path: Path) -> None:
    async with two_workers(tmp_path, BRIDGE_SESSION__DRAIN_SECONDS="0.2") as (sidecar, _):
        await one_for_each_worker(sidecar, 1, 2)
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 1
    log = "".join(sidecar.log)
    assert "SIGTERM: no new sessions; 2 are open and have 0.2 s" in log
    assert "2 sessions had to be ended" in log
    assert re.search(r"INFO worker [12] bridge.relay: session", log)
    assert "Traceback" not in log


@pytest.mark.slow
async def test_a_signal_to_all_processes_at_once_is_a_drain_like_any_other(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (sidecar, processes):
        for process in processes.values():
            os.kill(process, signal.SIGTERM)
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 0
    async with two_workers(tmp_path, BRIDGE_SESSION__DRAIN_SECONDS="0.2") as (sidecar, processes):
        await one_for_each_worker(sidecar, 1)
        for process in processes.values():
            os.kill(process, signal.SIGTERM)
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 1


@pytest.mark.slow
async def test_a_hangup_ends_neither_parent_nor_workers_and_a_second_signal_ends_all_sessions_at_once(
    tmp_path: Path,
) -> None:
    async with two_workers(tmp_path) as (sidecar, processes):
        sidecar.process.send_signal(signal.SIGHUP)
        for process in processes.values():
            os.kill(process, signal.SIGHUP)
        await one_for_each_worker(sidecar, 1, 2)
        page = (await sidecar.get("/metrics")).text
        sidecar.process.send_signal(signal.SIGINT)
        await sidecar.line("SIGINT: no new sessions")
        assert (await sidecar.get("/readyz")).json() == {"ready": False, "reason": "draining"}
        sidecar.process.send_signal(signal.SIGINT)
        assert await sidecar.ended() == 1
    assert page.count("bridge_worker_restarts_total{") == page.count("bridge_worker_restarts_total{worker=") == 2
    assert "was ended" not in "".join(sidecar.log)


@pytest.mark.slow
async def test_without_their_parent_the_workers_let_their_sessions_end_and_end_themselves(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as (sidecar, _):
        applications = await one_for_each_worker(sidecar, 1, 2)
        sidecar.process.kill()
        for _ in range(2):
            await sidecar.line(r"WARNING worker \d bridge.workers: the parent process has gone")
        for application in applications.values():
            await asyncio.wait_for(await application.ping(), 20)
            await application.close()
        # Nobody holds the log any longer: the workers, which inherited it, have ended.
        await sidecar.ended()


def only_in_workers(line: str) -> str:
    """Tools that this line is run before, but not in the parent, which is no `python -c`."""
    return f'import sys\nif sys.argv[0] == "-c":\n    {line}\n{TOOLS}'


@pytest.mark.slow
async def test_a_fault_that_only_workers_have_is_said_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(only_in_workers('raise OSError("the depot is closed")'))
    async with command("--workers", "2", "--tools", str(tmp_path / "tools.py")) as sidecar:
        assert await sidecar.ended() == 2
    assert re.search(r"Error: worker [12] could not start: .*the depot is closed", sidecar.log[-1])
    assert "Traceback" not in sidecar.log[-1]


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_workers_that_take_long_to_start(tmp_path: Path) -> None:
    loading = 'import time; print("loading", file=sys.stderr, flush=True); time.sleep(60)'
    (tmp_path / "tools.py").write_text(only_in_workers(loading))
    async with command("--workers", "2", "--tools", str(tmp_path / "tools.py")) as sidecar:
        await sidecar.line("loading")
        sidecar.process.send_signal(signal.SIGTERM)
        assert await sidecar.ended() == 0
        assert sidecar.process.stdout is not None
        assert await sidecar.process.stdout.read() == b""
