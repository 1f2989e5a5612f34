"""What relaying costs: CPU per frame and added delay, beside other proxies of the same run.

    python tests/bench/relay.py                      the relay on uvloop and asyncio, a naive proxy, nginx, HAProxy
    python tests/bench/relay.py --suite saturated    as many frames as go through
    python tests/bench/relay.py --suite tls          encrypted towards the provider
    python tests/bench/relay.py --suite memory       1,000 calls
    python tests/bench/relay.py --suite busy         while a Python tool computes for 20 of every 100 ms

Everything is on the loopback, bounded in time, and needs a C compiler with OpenSSL's headers. The proxy runs on one
core, the load generator on another. CPU is that of the proxy's process tree, over the measured time only. All variants
take turns within a round, and medians over the rounds are shown: only ratios of one run mean anything.
A relayed frame is one frame through the proxy in one direction.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from bridge.dialects.assemblyai import ASSEMBLYAI
from bridge.relay import Limits, Listen, Relay, Route, Upstream

HERE = Path(__file__).parent
PORTS = count(21_000, 2)


@dataclass(frozen=True)
class Load:
    """Calls, bytes of audio in a frame, frames a second each way (0: as many as go through)."""

    calls: int
    size: int = 160
    rate: int = 50


OURS = ["relay/uvloop", "relay/asyncio"]
SUITES: dict[str, tuple[list[str], list[Load]]] = {
    "paced": (
        ["direct", *OURS, "naive/uvloop", "naive/asyncio", "nginx", "haproxy"],
        [Load(100), Load(150), Load(300), Load(600)],
    ),
    "saturated": ([*OURS, "naive/uvloop", "naive/asyncio", "nginx", "haproxy"], [Load(50, 160, 0), Load(50, 2400, 0)]),
    "tls": (
        [each + tls for each in ("relay/uvloop", "relay/asyncio", "naive/uvloop", "nginx") for tls in ("", "+tls")],
        [Load(150), Load(300)],
    ),
    "memory": ([each + tls for each in (*OURS, "naive/uvloop") for tls in ("", "+tls")], [Load(1000, 160, 2)]),
    "busy": (["relay/uvloop", "relay/uvloop+busy"], [Load(100)]),
}

# ------------------------------------------------------------------------------------------------------------- proxies


async def relay(listen: int, url: str, tls: ssl.SSLContext | None) -> None:
    route = Route(upstream=Upstream(dialect=ASSEMBLYAI, url=url, tls=tls))
    async with Relay([route], limits=Limits(max_sessions=5000, setup_timeout=1e9)) as running:
        await running.start(Listen(port=listen))
        await asyncio.Event().wait()


async def naive(listen: int, url: str, tls: ssl.SSLContext | None) -> None:
    """Two connections and two tasks a call, as one would write it."""

    async def pump(source: Any, sink: Any) -> None:
        async for message in source:
            await sink.send(message)

    async def take(application: Any) -> None:
        async with connect(url, compression=None, ssl=tls) as provider:
            await asyncio.gather(pump(application, provider), pump(provider, application))

    async with serve(take, "127.0.0.1", listen, compression=None, backlog=4096) as server:
        gc.freeze()
        await server.serve_forever()


def burn() -> None:
    """What a tool in a thread does that computes for 20 of every 100 ms."""
    while True:
        end = time.perf_counter() + 0.02
        while time.perf_counter() < end:
            sum(range(500))
        time.sleep(0.08)


def serve_as(kind: str, listen: int, upstream: int, certificate: str) -> None:
    """Be one of the proxies, for ever."""
    name, _, loop = kind.removesuffix("+busy").partition("/")
    url = f"{'wss' if certificate else 'ws'}://localhost:{upstream}/v1/ws"
    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    if kind.endswith("+busy"):
        threading.Thread(target=burn, daemon=True).start()
    run = relay if name == "relay" else naive
    if loop == "uvloop":
        import uvloop  # only where it is measured

        uvloop.run(run(listen, url, tls))
    else:
        asyncio.run(run(listen, url, tls))


@cache
def runs(program: str) -> bool:
    """Is it installed, with all that it needs?"""
    return shutil.which(program) is not None and subprocess.run([program, "-v"], capture_output=True).returncode == 0


def command(variant: str, listen: int, upstream: int, folder: Path) -> list[str] | None:
    """How to start this variant; None if it is not installed."""
    kind = variant.replace("+tls", "")
    tls = kind != variant
    if kind == "nginx":
        (folder / "nginx.conf").write_text(_NGINX.format(d=folder, listen=listen, up=upstream, s="s" if tls else ""))
        return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")] if runs("nginx") else None
    if kind == "haproxy":
        (folder / "haproxy.cfg").write_text(_HAPROXY.format(listen=listen, up=upstream))
        return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")] if runs("haproxy") else None
    certificate = str(folder / "cert.pem") if tls else ""
    return [sys.executable, __file__, "--serve", kind, str(listen), str(upstream), certificate]


_NGINX = """
worker_processes 1; daemon off; pid {d}/pid; error_log {d}/error; worker_rlimit_nofile 16000; user root;
events {{ worker_connections 15000; }}
http {{ access_log off; client_body_temp_path {d}; proxy_temp_path {d}; fastcgi_temp_path {d}; uwsgi_temp_path {d};
scgi_temp_path {d}; server {{ listen 127.0.0.1:{listen} backlog=4096; location / {{
proxy_pass http{s}://127.0.0.1:{up}; proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade;
proxy_set_header Connection upgrade; proxy_read_timeout 1h; proxy_ssl_verify off; }} }} }}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 7000
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
listen l
  bind 127.0.0.1:{listen}
  server s 127.0.0.1:{up}
"""

# ------------------------------------------------------------------------------------------------------------ measuring


def tree(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        for children in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            todo += map(int, children.read_text().split())
    return found


def cpu_seconds(pid: int) -> float:
    files = [file for each in tree(pid) for file in Path(f"/proc/{each}/task").glob("*/schedstat")]
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def resident_kib(pid: int) -> int:
    lines = [line for each in tree(pid) for line in Path(f"/proc/{each}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def favoured(core: int) -> Any:
    """On a core of its own and, where that is allowed, before everything else: others must not look like delay."""

    def prepare() -> None:
        os.setsid()
        os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text("-20")
            os.setpriority(os.PRIO_PROCESS, 0, -20)

    return prepare


def listening(port: int) -> bool:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def measure(variant: str, load: Load, seconds: float, folder: Path) -> dict[str, float] | None:
    """One run of one variant; None if it is not installed."""
    listen = next(PORTS)
    upstream = listen + 1
    proxy = None
    if variant != "direct":
        start = command(variant, listen, upstream, folder)
        if start is None:
            return None
        proxy = subprocess.Popen(start, preexec_fn=favoured(0), stderr=subprocess.DEVNULL)
        while not listening(listen):
            assert proxy.poll() is None, f"{variant} does not start"
            time.sleep(0.05)
    try:
        return _loaded(variant, load, seconds, folder, (listen if proxy else upstream, upstream), proxy)
    finally:
        if proxy is not None:
            stop(proxy)


def stop(proxy: subprocess.Popen[bytes]) -> None:
    proxy.terminate()  # nginx would leave its worker behind if it were killed
    try:
        proxy.wait(3)
    except subprocess.TimeoutExpired:
        proxy.kill()
        proxy.wait()


def _loaded(
    variant: str,
    load: Load,
    seconds: float,
    folder: Path,
    ports: tuple[int, int],
    proxy: subprocess.Popen[bytes] | None,
) -> dict[str, float]:
    listen, upstream = ports
    options = {"-p": listen, "-s": upstream, "-n": load.calls, "-b": load.size, "-r": load.rate, "-d": seconds}
    arguments = [str(part) for pair in options.items() for part in pair]
    if variant.endswith("+tls"):
        arguments += ["-c", str(folder / "cert.pem"), "-k", str(folder / "key.pem")]
    before = resident_kib(proxy.pid) if proxy else 0
    marks: dict[str, float] = {}
    loadgen = [str(folder / "loadgen"), *arguments]
    with subprocess.Popen(loadgen, preexec_fn=favoured(1), stdout=subprocess.PIPE, text=True) as generator:
        assert generator.stdout is not None
        for line in generator.stdout:
            if line.startswith("{"):
                told: dict[str, float] = json.loads(line)
            elif proxy is not None:
                marks[line.strip()] = cpu_seconds(proxy.pid)
                marks["kib"] = resident_kib(proxy.pid)
    assert generator.returncode == 0, f"{variant}: the load generator failed"
    frames = told["up"] + told["down"]
    cpu = marks.get("E", 0.0) - marks.get("S", 0.0)
    return told | {
        "us": cpu / frames * 1e6,
        "core": cpu / told["secs"],
        "thousands": frames / cpu / 1e3 if cpu else 0.0,
        "kib": (marks.get("kib", 0) - before) / load.calls,
    }


def show(load: Load, results: dict[str, list[dict[str, float]]]) -> None:
    def median(variant: str, key: str) -> float:
        return statistics.median(result[key] for result in results[variant])

    pace = f"{load.rate} frames/s each way" if load.rate else "saturated"
    print(f"\n{load.calls} calls, {load.size} B, {pace}")
    print(
        f"{'':22}{'us/frame':>9}{'x nginx':>9}{'x naive':>9}{'core':>7}{'k/s/core':>10}{'p50':>8}{'p99':>8}{'KiB':>7}"
    )
    for variant in results:
        us = median(variant, "us")
        against = [us / median(base, "us") if base in results else float("nan") for base in ("nginx", "naive/uvloop")]
        added = [median(variant, f"up_{p}") - (median("direct", f"up_{p}") if "direct" in results else 0) for p in _P]
        print(
            f"{variant:22}{us:9.2f}{against[0]:9.2f}{against[1]:9.2f}{median(variant, 'core'):7.2f}"
            f"{median(variant, 'thousands'):10.0f}{added[0]:8.0f}{added[1]:8.0f}{median(variant, 'kib'):7.1f}"
        )


_P = ("p50", "p99")


def bench(variants: Sequence[str], loads: Sequence[Load], rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = ["cc", "-O2", "-o", str(folder / "loadgen"), str(HERE / "loadgen.c"), "-lssl", "-lcrypto"]
        subprocess.run(build, check=True)
        files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
        names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        request = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *files, *names]
        subprocess.run(request, check=True, capture_output=True)
        for load in loads:
            results: dict[str, list[dict[str, float]]] = {}
            for _ in range(rounds):
                for variant in variants:
                    if (result := measure(variant, load, seconds, folder)) is not None:
                        results.setdefault(variant, []).append(result)
            show(load, results)
            if missing := set(variants) - set(results):
                print(f"not installed: {', '.join(sorted(missing))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=SUITES, default="paced")
    parser.add_argument("--calls", type=int, nargs="*", help="only with so many calls")
    known = sorted({variant for variants, _ in SUITES.values() for variant in variants})
    parser.add_argument("--only", nargs="*", choices=known, help="only these variants")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        kind, listen, upstream, certificate = chosen.serve
        serve_as(kind, int(listen), int(upstream), certificate)
    variants, loads = SUITES[chosen.suite]
    loads = [load for load in loads if not chosen.calls or load.calls in chosen.calls]
    bench(chosen.only or variants, loads, chosen.rounds, chosen.seconds)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends, as by Ctrl-C
    main()
