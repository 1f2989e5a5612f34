"""A TCP proxy in front of a database, which can be told to fail at the worst moments."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

__all__ = ["Mood", "Proxy", "proxy"]


class Mood(Enum):
    """What it does to connections."""

    WELL = "passes everything on"
    LOSES_ANSWER = "passes the next commit on, and breaks the connection before its answer"
    LOSES_COMMIT = "breaks the connection instead of passing the next commit on"
    FROZEN = "takes everything, and passes nothing on"
    AWAY = "lets nobody in"


class Proxy:
    """Sits between one port of its own and another."""

    def __init__(self, port: int) -> None:
        self.mood = Mood.WELL
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._thawed = threading.Event()
        self._thawed.set()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._spawn(self._accept)

    def become(self, mood: Mood) -> None:
        """From now on; connections that are there go when it is away."""
        self.mood = mood
        (self._thawed.clear if mood is Mood.FROZEN else self._thawed.set)()
        if mood is Mood.AWAY:
            for each in list(self._sockets):
                self._break(each)

    def close(self) -> None:
        self.become(Mood.AWAY)
        self._break(self._listening)
        for thread in self._threads:
            thread.join(5)
        for each in (*self._sockets, self._listening):
            each.close()

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                if self.mood is Mood.AWAY:
                    client.close()
                    continue
                server = socket.create_connection(("127.0.0.1", self._to))
                self._sockets |= {client, server}
                self._spawn(self._pass_requests, client, server)
                self._spawn(self._pass_answers, server, client)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self._thawed.wait()
                if b"COMMIT" in data and self.mood is Mood.LOSES_COMMIT:
                    self.mood = Mood.WELL
                    break
                server.sendall(data)
        self._break(server)

    def _pass_answers(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._thawed.wait()
                if self.mood is Mood.LOSES_ANSWER and b"COMMIT" in data:
                    self.mood = Mood.WELL
                    break
                client.sendall(data)
        self._break(client)

    @staticmethod
    def _break(each: socket.socket) -> None:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    running = Proxy(port)
    try:
        yield running
    finally:
        running.close()
