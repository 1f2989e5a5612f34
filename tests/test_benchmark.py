"""`bench`: its arithmetic, its load on real sockets, and the whole command with a real sidecar."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus

from bridge.benchmark import Delays, Report, Unmeasurable, Verdict, benchmark
from bridge.benchmark import run as running
from bridge.benchmark.figures import MAX_LATENESS, Direction, Reading, Sent, Trip, percentile, report
from bridge.benchmark.load import FROM_CALLER, FROM_PROVIDER, Audio, Call, answer, converse, dial, main
from bridge.cli.bench import bench_command
from bridge.errors import ConfigError
from bridge.relay.walker import Walker

# -------------------------------------------------------------------------------------------------------- percentiles


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([7], 0.5, 7), ([7], 0.99, 7), ([1, 2], 0.5, 1), ([1, 2, 3], 0.5, 2), ([1, 2], 0.99, 2), ([1, 2], 0.0, 1)],
)
def test_a_percentile_is_the_value_of_the_nearest_rank(values: list[float], share: float, found: float) -> None:
    assert percentile(values, share) == found


def test_of_a_hundred_values_the_99th_percentile_is_the_last_but_one() -> None:
    assert percentile(range(1, 101), 0.99) == 99


@given(st.lists(st.integers(0, 9), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], share: float) -> None:
    found = percentile(sorted(values), share)
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    assert sum(value < found for value in values) < share * len(values)


# ---------------------------------------------------------------------------------------------------------- the report


def trip(p50: float = 0.1, p99: float = 0.2, *, sent: int = 5000, lost: int = 0, late: float = 1.0) -> Trip:
    return Trip(Sent(sent, late), sent - lost, Delays(p50, p99))


def measured(relayed: Trip, direct: Trip, *, cpu: float = 0.3, kib: int = 1980) -> Report:
    """A hundred calls for a second, in which the relay used so many seconds of CPU."""
    readings = [Reading(0.0, 9.0, 40_000), Reading(1.0, 10.0, 41_000), Reading(2.0, 10.0 + cpu, 40_000 + kib)]
    return report(100, 1.0, (relayed, relayed), (direct, direct), readings)


def test_what_the_relay_adds_is_the_difference_to_the_calls_without_it() -> None:
    figures = measured(trip(0.3, 0.9), trip(0.1, 0.2))
    added = figures.to_provider.added
    assert (added.p50, added.p99) == pytest.approx((0.2, 0.7))
    assert figures.added_p99 == pytest.approx(0.7)


def test_the_slower_direction_counts() -> None:
    figures = measured(trip(0.3, 0.9), trip(0.1, 0.2))
    slower = replace(figures, to_caller=Direction(trip(0.3, 2.2), trip(0.1, 0.2)))
    assert slower.added_p99 == pytest.approx(2.0)


def test_costs_are_those_between_the_readings_shared_by_the_frames_of_both_directions() -> None:
    figures = measured(trip(), trip(), cpu=0.3)
    assert figures.cpu_share == pytest.approx(0.3)
    assert figures.cpu_us_per_frame == pytest.approx(30.0)
    assert figures.calls_per_core == 200
    assert figures.memory_kib_per_call == pytest.approx(20.0)


def test_the_cost_of_a_frame_does_not_depend_on_when_exactly_the_readings_were_taken() -> None:
    readings = [Reading(0.0, 0.0, 0), Reading(1.0, 0.0, 0), Reading(3.0, 0.6, 0)]
    figures = report(100, 1.0, (trip(), trip()), (trip(), trip()), readings)
    assert figures.cpu_us_per_frame == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("relayed", "cpu", "verdict", "words"),
    [
        (trip(0.2, 0.4), 0.4, Verdict.CARRIED, ("are carried: 1 %", "0.2 ms", "40% of a core", "Plan for 150 calls")),
        (trip(0.2, 0.4), 0.2, Verdict.CARRIED, ("with ease", "--calls 300")),
        (trip(0.2, 0.1), 0.4, Verdict.CARRIED, ("delayed by 0.0 ms",)),
        (trip(0.2, 5.1), 0.6, Verdict.CARRIED, ("4.9 ms", "Plan for 100 calls")),
        (trip(0.2, 0.4), 0.61, Verdict.FULL, ("no room for peaks", "Plan for 98 calls a core", "add workers")),
        (trip(0.2, 5.3), 0.61, Verdict.OVERLOADED, ("too many for a core", "5.1 ms", "Plan for 98 calls")),
        (trip(0.2, 0.4, lost=7), 0.9, Verdict.OVERLOADED, ("14 frames did not arrive in time",)),
        (trip(0.2, 5.3), 0.4, Verdict.DISTURBED, ("disturbed", "not at its limit", "--calls")),
        (trip(0.2, 0.4, lost=1), 0.4, Verdict.DISTURBED, ("2 frames did not arrive in time",)),
    ],
)
def test_the_verdict_says_whether_the_calls_are_carried_and_what_to_do(
    relayed: Trip, cpu: float, verdict: Verdict, words: tuple[str, ...]
) -> None:
    figures = measured(relayed, trip(), cpu=cpu)
    assert figures.verdict is verdict
    assert all(each in figures.words for each in words), figures.words


@pytest.mark.parametrize("which", range(4))
def test_a_load_that_was_late_in_any_run_gives_no_figures(which: int) -> None:
    trips = [trip(late=MAX_LATENESS + 1 if each == which else 1.0) for each in range(4)]
    readings = [Reading(0.0, 0.0, 0), Reading(1.0, 0.0, 0), Reading(2.0, 0.5, 0)]
    with pytest.raises(Unmeasurable, match=r"could not keep the pace of 100 calls: .* 11\.0 ms late .*--calls"):
        report(100, 1.0, (trips[0], trips[1]), (trips[2], trips[3]), readings)


def test_a_load_that_is_just_in_time_will_do() -> None:
    assert measured(trip(late=MAX_LATENESS), trip()).calls == 100


# ------------------------------------------------------------------------------------------------------------ the load


@pytest.mark.parametrize(("audio", "masked"), [(FROM_CALLER, True), (FROM_PROVIDER, False)])
def test_a_frame_is_audio_to_the_relay_and_carries_its_time(audio: Audio, masked: bool) -> None:
    frame = audio.at(0x0123456789ABCDEF)
    walker = Walker(masked=masked, media=frozenset({"input.audio", "reply.audio"}), max_size=1000)
    walker.feed(frame + frame)
    assert (walker.media, walker.slow_looks, walker.messages) == (2, 0, 0)
    assert audio.sent_at(b"x" + frame, 1) == 0x0123456789ABCDEF
    assert len(frame) == audio.size


@pytest.fixture
def ends() -> Iterator[tuple[Call, socket.socket]]:
    """One end of a call, and what it is connected to."""
    near, far = socket.socketpair()
    with near, far:
        yield Call(near), far


def test_frames_are_told_apart_however_they_are_split(ends: tuple[Call, socket.socket]) -> None:
    call, far = ends
    ping, masked_pong = b"\x89\x02hi", b"\x8a\x81\0\0\0\0x"
    stream = FROM_CALLER.at(1) + ping + FROM_CALLER.at(2) + masked_pong + FROM_CALLER.at(3)
    found = []
    for at in range(len(stream)):
        far.send(stream[at : at + 1])
        found += call.receive(FROM_CALLER)
    far.send(stream)
    assert found == [1, 2, 3]
    assert call.receive(FROM_CALLER) == [1, 2, 3]


def test_what_is_not_audio_is_not_counted_as_such(ends: tuple[Call, socket.socket]) -> None:
    call, far = ends
    far.send(FROM_PROVIDER.at(1).replace(b"reply.audio", b"reply.other"))
    with pytest.raises(ValueError, match="other than audio"):
        call.receive(FROM_PROVIDER)


def test_a_call_that_is_cut_off_is_noticed(ends: tuple[Call, socket.socket]) -> None:
    call, far = ends
    far.close()
    with pytest.raises(ConnectionError, match="cut off"):
        call.receive(FROM_CALLER)


def test_what_a_peer_does_not_take_now_is_sent_later_and_in_order(ends: tuple[Call, socket.socket]) -> None:
    call, far = ends
    sent, received = b"", b""
    far.setblocking(False)
    for number in range(1000):  # more than the kernel takes at once
        frame = FROM_CALLER.at(number)
        call.send(frame)
        sent += frame
    while len(received) < len(sent):
        received += far.recv(1 << 20)
        call.send(b"")
    assert received == sent


def test_two_sides_that_talk_count_the_same_frames_and_know_their_delays() -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    begin = time.monotonic_ns() + 50_000_000
    end = begin + 200_000_000
    results: dict[str, dict[str, float]] = {}

    def provide() -> None:
        calls = [Call(far) for _, far in pairs]
        results["provider"] = converse(calls, FROM_PROVIDER, FROM_CALLER, begin, end)

    thread = threading.Thread(target=provide)
    thread.start()
    results["callers"] = converse([Call(near) for near, _ in pairs], FROM_CALLER, FROM_PROVIDER, begin, end)
    thread.join(10)
    for near, far in pairs:
        near.close()
        far.close()
    for here, there in (("callers", "provider"), ("provider", "callers")):
        assert results[here]["sent"] == results[there]["arrived"]
        assert results[here]["sent"] == pytest.approx(40, abs=12)
        assert 0 < results[here]["p50"] <= results[here]["p99"]
        assert results[here]["late"] >= 0


def test_a_side_that_hears_nothing_has_no_figures(ends: tuple[Call, socket.socket]) -> None:
    now = time.monotonic_ns()
    with pytest.raises(ValueError, match="no audio arrived"):
        converse([ends[0]], FROM_CALLER, FROM_PROVIDER, now - 10**9, now - 10**9)


def test_a_caller_and_the_provider_set_up_a_call() -> None:
    answered: list[Call] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: answered.append(answer(listening.accept()[0])))
        thread.start()
        caller = dial(f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/ws")
        thread.join(10)
    caller.send(FROM_CALLER.at(5))
    answered[0].socket.setblocking(True)
    assert answered[0].receive(FROM_CALLER) == [5]
    caller.socket.close()
    answered[0].socket.close()


def test_a_caller_that_is_refused_says_so() -> None:
    def refuse() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(InvalidStatus, match="503"):
            dial(f"ws://127.0.0.1:{listening.getsockname()[1]}/v1/ws")
        thread.join(10)


def test_callers_set_up_one_call_then_all_and_tell_what_came_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there: dict[str, float] = {}

    class Input(io.StringIO):
        """What the callers are told. It is closed when the provider is through, too."""

        def read(self, size: int | None = -1) -> str:
            there.update(json.loads(output.readline()))
            return ""

    command = [sys.executable, "-m", "bridge.benchmark.load", "provider", "3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as provider:
        assert provider.stdin is not None
        assert provider.stdout is not None
        output = provider.stdout
        port = json.loads(output.readline())["port"]
        begin = time.monotonic_ns() + 300_000_000
        when = json.dumps({"begin": begin, "end": begin + 200_000_000})
        print(when, file=provider.stdin, flush=True)
        monkeypatch.setattr(sys, "stdin", Input(f"{{}}\n{when}\n"))
        main("callers", "3", f"ws://127.0.0.1:{port}/v1/ws")
        gc.enable()
        gc.unfreeze()
    first, all_open, here = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first, all_open) == ({"open": 1}, {"open": 3})
    assert 0 < here["sent"] == there["arrived"] <= 45
    assert 0 < there["sent"] == here["arrived"] <= 45


def test_callers_that_reach_nobody_tell_why(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    main("callers", "2", f"ws://127.0.0.1:{port}/v1/ws")
    assert "refused" in json.loads(capsys.readouterr().out)["fault"]


# --------------------------------------------------------------------------------------------------------- the command


def bench(*options: str) -> Result:
    return CliRunner().invoke(bench_command, options)


def test_the_table_has_every_figure_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = measured(trip(0.31, 0.92), trip(0.1, 0.2), cpu=0.4)

    async def at_once(calls: int, seconds: float) -> Report:
        return figures

    monkeypatch.setattr("bridge.cli.bench.benchmark", at_once)
    result = bench()
    assert result.exit_code == 0
    assert result.stdout.startswith("100 calls, 5 s through the sidecar and 5 s without it ...\n")
    assert "| to the provider, p50 |   0.10 |    0.31 |  0.21 |" in result.stdout
    assert "| to the caller, p99   |   0.20 |    0.92 |  0.72 |" in result.stdout
    for words in ("40.0 us", "40% of a core", "150 (extrapolated, at 60 % of a core)", "20 KiB", figures.words):
        assert words in result.stdout


def test_without_figures_there_is_a_reason_and_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(calls: int, seconds: float) -> Report:
        raise Unmeasurable("the load was late")

    monkeypatch.setattr("bridge.cli.bench.benchmark", late)
    result = bench("--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "Error: no figures: the load was late\n"


def test_a_single_call_is_refused() -> None:
    result = bench("--calls", "1")
    assert result.exit_code == 2
    assert "x>=2" in result.stderr


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        ("nan", "nan is no finite number"),
        ("inf", "inf is not in the range 0.1<=x<=600"),
        ("0", "0.0 is not in the range 0.1<=x<=600"),
        ("-1", "-1.0 is not in the range 0.1<=x<=600"),
    ],
)
def test_seconds_that_are_no_time_to_measure_are_refused(seconds: str, why: str) -> None:
    result = bench("--seconds", seconds)
    assert result.exit_code == 2
    assert f"Invalid value for '--seconds': {why}" in result.stderr


def test_too_few_file_descriptors_are_noticed_before_anything_starts() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
    try:
        result = bench("--calls", "300", "--json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert result.exit_code == 2
    assert result.stderr == ("Error: 300 calls need 664 file descriptors, and 500 are allowed: raise `ulimit -n`\n")


def test_the_clock_of_a_process_is_found_by_its_id() -> None:
    before = time.process_time()
    reading = running._reading(os.getpid())
    assert before <= reading.cpu <= time.process_time()
    assert reading.kib > 1000


def test_a_process_that_has_ended_cannot_be_read() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(10)
    with pytest.raises(Unmeasurable, match="ended while it was measured"):
        running._reading(ended.pid)


# -------------------------------------------------------------------------------------------- with a sidecar, for real


@pytest.mark.slow
def test_ten_calls_give_all_figures_and_they_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.benchmark.figures.MAX_LATENESS", 1000.0)  # other tests are running
    monkeypatch.setenv("BRIDGE_LISTEN__CERTIFICATE", "nowhere.pem")  # the operator's settings are not used
    result = bench("--calls", "10", "--seconds", "0.5", "--json")
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["calls"], figures["seconds"]) == (10, 0.5)
    assert figures["verdict"] in {each.value for each in Verdict}
    assert figures["words"].startswith("10 calls ")
    for direction in (figures["to_provider"], figures["to_caller"]):
        assert direction["frames_sent"] == pytest.approx(250, rel=0.2)
        assert 0.8 * direction["frames_sent"] < direction["frames_arrived"] <= direction["frames_sent"]
        direct, relayed, added = direction["direct_ms"], direction["relayed_ms"], direction["added_ms"]
        for share in ("p50", "p99"):
            assert added[share] == pytest.approx(relayed[share] - direct[share], abs=0.001)
        assert 0 < direct["p50"] <= direct["p99"]
        assert 0 < relayed["p50"] <= relayed["p99"]
    frames = figures["to_provider"]["frames_arrived"] + figures["to_caller"]["frames_arrived"]
    assert 0 < figures["cpu_share"] < 1
    assert figures["cpu_share"] == pytest.approx(figures["cpu_us_per_frame"] * frames / 0.5 / 1e6, rel=0.02)
    assert figures["calls_per_core"] == pytest.approx(6000 / figures["cpu_us_per_frame"], abs=2)
    assert abs(figures["memory_kib_per_call"]) < 1000


@pytest.mark.slow
def test_a_load_that_cannot_keep_the_pace_is_reported_and_no_figure_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.benchmark.figures.MAX_LATENESS", 0.0)
    result = bench("--calls", "5", "--seconds", "0.1")
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    assert "could not keep the pace of 5 calls" in result.stderr


@pytest.mark.slow
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starlette.py").write_text("raise ModuleNotFoundError('gone', name='starlette')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    result = bench("--calls", "2", "--json")
    assert result.exit_code == 2
    assert "starlette is missing: pip install 'voice-tool-bridge[cli,sidecar]'" in result.stderr


def _until_it_has_ended(pid: int) -> None:
    """The event loop is not to hear of it: it is kept busy."""
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.001)


@pytest.mark.slow
def test_a_process_that_has_just_ended_by_itself_is_left_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def leave() -> None:
        async with running._process("this") as process:  # a module that prints a poem, and ends
            _until_it_has_ended(process.pid)

    policy = asyncio.get_event_loop_policy()
    if sys.version_info < (3, 12):  # later ones do so by themselves
        policy.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        asyncio.run(leave())
    finally:
        if sys.version_info < (3, 12):
            policy.set_child_watcher(None)
    assert caplog.records == []


@pytest.mark.slow
def test_a_sidecar_that_dies_meanwhile_ends_it_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = running._reading

    def read_and_kill(pid: int) -> Reading:
        os.kill(pid, signal.SIGKILL)
        return reading(pid)

    monkeypatch.setattr(running, "_reading", read_and_kill)
    with pytest.raises(Unmeasurable, match="The sidecar's last complaint: none"):
        asyncio.run(benchmark(3, 0.2))


def test_a_machine_without_proc_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(ConfigError, match="only Linux"):
        asyncio.run(benchmark(3, 0.2))


def test_calls_that_cannot_be_set_up_in_time_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_PATIENCE", 0.01)
    with pytest.raises(Unmeasurable, match="to set the calls up; use fewer"):
        asyncio.run(benchmark(2, 0.01))


def children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_operator_who_ends_it_leaves_no_process_behind(sent: signal.Signals) -> None:
    command = [sys.executable, "-c", "from bridge.cli.bench import bench_command; bench_command()", "--seconds", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        started: set[int] = set()
        until = time.monotonic() + 30
        while len(started) < 3 and time.monotonic() < until:
            started |= children(process.pid)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=20)
    assert len(started) == 3
    assert process.returncode == 1
    assert errors.strip() == "Aborted!"
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
