"""The cases of the Autobahn test suite, played by us: the suite itself needs Python 2, its cases hardly do.

A case is a class that is told what comes in (`onMessage`, `onPing`, `onConnectionLost`) and sends through `self.p`. It
takes text for bytes, as Python 2 did: here every character of such a text is one byte (latin-1).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from websockets.frames import Opcode
from websockets.speedups import apply_mask

__all__ = ["Fuzzer", "cases", "folder"]

_UNUSED = ("case12", "case9_9", "__init__")
"""Compression, which is not negotiated; one that the suite leaves out, too."""
_LEFT_OUT = re.compile(r"Case9_([5-8]_|[34]_[12]$)")
"""Cases that measure rather than test, and those with more fragments than the peers used here take."""


def folder() -> Path | None:
    """Where the cases are, if the package `autobahntestsuite` is there. It is not imported."""
    found = importlib.util.find_spec("autobahntestsuite")
    return Path(found.submodule_search_locations[0]) / "case" if found and found.submodule_search_locations else None


class _Validator:
    def reset(self) -> None: ...

    def validate(self, text: str) -> tuple[bool, bool]:
        try:
            text.encode("latin-1").decode()
        except UnicodeDecodeError:
            return False, False
        return True, True


def cases(where: Path) -> dict[str, Callable[[Any], Any]]:
    """The classes by name, in the suite's own order as far as their names tell it."""
    space: dict[str, Any] = {
        "__name__": "cases",
        "pickle": pickle,
        "xrange": range,
        "Utf8Validator": _Validator,
        "binascii": SimpleNamespace(b2a_hex=lambda text: text.encode("latin-1").hex()),
        "WebSocketProtocol": SimpleNamespace(STATE_OPEN="open"),
    }
    files = sorted(where.glob("case*.py"), key=lambda path: (path.stem != "case", _numbers(path.stem), path.stem))
    for file in files:
        if not file.stem.startswith(_UNUSED):
            exec(compile(_modern(file.read_text("latin-1")), str(file), "exec"), space)
    names = sorted((name for name in space if re.fullmatch(r"Case\d+(_\d+)+", name)), key=_numbers)
    found = {name: space[name] for name in names}
    for group in ("Case6_X_X", "Case7_7_X", "Case7_9_X"):
        found |= {each.__name__: each for each in space[group]}
    return {name: case for name, case in found.items() if not _LEFT_OUT.match(name)}


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def _modern(source: str) -> str:
    source = re.sub(r"(?m)^(from|import) .*$", "", source)
    source = re.sub(r"(?m)^(\s+)print\b.*$", r"\1pass", source)
    return source.replace("(object, Case, )", "(Case, )").replace("len(self.payload) / ", "len(self.payload) // ")


class Fuzzer:
    """One end of a connection, which does what a case says. Its public names are those that cases use."""

    CLOSE_STATUS_CODE_NORMAL = 1000
    CLOSE_STATUS_CODE_PROTOCOL_ERROR = 1002
    CLOSE_STATUS_CODE_INVALID_PAYLOAD = 1007

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, server: bool) -> None:
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self.factory = SimpleNamespace(isServer=server)
        self.state = "open"
        self.connectionWasOpen = True
        self.closedByMe = self.droppedByMe = self.failedByMe = self.wasClean = False
        self.remoteCloseCode: int | None = None
        self.localCloseReason = ""
        self.autoFragmentSize = 0
        self.txFrameStats = {0: 0, 1: 0}
        self._closes = 0
        self._opened = 0

    async def play(self, case: Callable[[Any], Any]) -> Any:
        """Play this case to the end of the connection; the case, which knows the outcome."""
        played = case(self)
        played.onOpen()
        parts: list[bytes] = []
        opcode = Opcode.TEXT
        try:
            while True:
                kind, data, ends = await self._receive()
                match kind:
                    case Opcode.CLOSE:
                        self._close_heard(data)
                    case Opcode.PING:  # not told to the case: a relay may ping whenever it likes
                        self.sendFrame(opcode=10, payload=data.decode("latin-1"))
                    case Opcode.PONG:
                        played.onPong(data.decode("latin-1"))
                    case _:
                        opcode = kind if kind is not Opcode.CONT else opcode
                        parts.append(data)
                        if ends and self.state == "open":
                            played.onMessage(b"".join(parts).decode("latin-1"), opcode is Opcode.BINARY)
                        if ends:
                            parts.clear()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        self.state = "closed"
        self._writer.close()
        played.onConnectionLost(self.failedByMe)
        return played

    async def _receive(self) -> tuple[Opcode, bytes, bool]:
        first, second = await self._reader.readexactly(2)
        size = second & 127
        if size > 125:
            size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8), "big")
        key = await self._reader.readexactly(4) if second & 128 else b""
        data = await self._reader.readexactly(size)
        return Opcode(first & 15), apply_mask(data, key) if key else data, bool(first & 128)

    def _close_heard(self, payload: bytes) -> None:
        self.remoteCloseCode = int.from_bytes(payload[:2], "big") if payload else None
        if self.state == "open":
            self._send_close(payload)
        self.wasClean = True
        self.state = "closing"
        if self.factory.isServer:
            self._writer.close()

    # ------------------------------------------------------------------------------------------- what cases call

    def sendFrame(
        self,
        opcode: int,
        payload: str = "",
        fin: bool = True,
        rsv: int = 0,
        payload_len: int | None = None,
        chopsize: int | None = None,
        sync: bool = False,
    ) -> None:
        data = payload.encode("latin-1")
        if payload_len is not None:
            data = (data * (payload_len // max(len(data), 1) + 1))[:payload_len]
        whole = self._header(opcode, len(data), fin=fin, rsv=rsv, key=(key := os.urandom(4)))
        self._write(whole + (data if self.factory.isServer else apply_mask(data, key)), chopsize)

    def sendMessage(self, payload: str, isBinary: bool = False, fragmentSize: int | None = None) -> None:
        size = fragmentSize or self.autoFragmentSize or max(len(payload), 1)
        starts = range(0, max(len(payload), 1), size)
        for start in starts:
            part = payload[start : start + size]
            self.txFrameStats[int(len(part) < size)] += 1
            opcode = (2 if isBinary else 1) if start == 0 else 0
            self.sendFrame(opcode, part, fin=start == starts[-1])

    def beginMessage(self, isBinary: bool = False) -> None:
        self._opened = 2 if isBinary else 1

    def beginMessageFrame(self, length: int) -> None:
        self._write(self._header(self._opened, length, fin=False, rsv=0, key=bytes(4)))

    def sendMessageFrameData(self, payload: str) -> None:
        self._write(payload.encode("latin-1"))

    def endMessage(self) -> None:
        self.sendFrame(0)

    def sendClose(self, code: int | None = None, reason: str = "") -> None:
        if self.state == "open":
            self.sendCloseFrame(code, reason)

    def sendCloseFrame(self, code: int | None = None, reasonUtf8: str = "", isReply: bool = False) -> None:
        self.closedByMe = True
        self._send_close((code.to_bytes(2, "big") if code is not None else b"") + reasonUtf8.encode("latin-1"))

    def continueLater(self, delay: float, function: Callable[[], None], tag: object = None) -> None:
        self._later(delay, function)

    def killAfter(self, delay: float) -> None:
        self._later(delay * _PATIENCE, self._kill)

    def closeAfter(self, delay: float) -> None:
        self._later(delay, self.sendClose)

    def enableWirelog(self, enable: bool) -> None: ...

    # ------------------------------------------------------------------------------------------- how

    def _later(self, delay: float, function: Callable[[], None]) -> None:
        self._loop.call_later(delay, lambda: function() if self.state != "closed" else None)

    def _kill(self) -> None:
        self.failedByMe = self.droppedByMe = self.closedByMe = True
        self._writer.transport.abort()

    def _send_close(self, payload: bytes) -> None:
        self.sendFrame(8, payload.decode("latin-1"))
        self.state = "closing"

    def _header(self, opcode: int, size: int, *, fin: bool, rsv: int, key: bytes) -> bytes:
        masked = 0 if self.factory.isServer else 128
        first = bytes((fin << 7 | rsv << 4 | opcode,))
        if size < 126:
            length = bytes((masked | size,))
        elif size < 65536:
            length = bytes((masked | 126,)) + size.to_bytes(2, "big")
        else:
            length = bytes((masked | 127,)) + size.to_bytes(8, "big")
        return first + length + (key if masked else b"")

    def _write(self, data: bytes, chop: int | None = None) -> None:
        for start in range(0, len(data), chop or len(data)):
            self._writer.write(data[start : start + (chop or len(data))])


_PATIENCE = 12
"""How much longer than the suite we wait before a peer is cut off: this machine may be busy."""
