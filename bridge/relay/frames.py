"""Raw WebSocket frames: what passes as it came, and what is to be read. Pure.

A `Walker` takes the bytes of one direction, split anywhere, and gives them back in whole messages. Nearly all of them
are audio: those are passed on as the very bytes that came, many in one piece, without being decoded. Only the type of a
message is looked at, and whatever leaves a doubt about it is parsed:

* the text begins with the type of a medium, names no type after that, and has no escapes: audio, done;
* the text begins like the audio before it, and names no type after its own: audio, too;
* a long text that names one type only: its first key (head rule) or its last key (tail rule) is that type;
* anything else is parsed.

A message with two types is refused: which of them counts depends on the reader, so it could be one thing to us and a
tool's result to somebody else.

A message leaves only when it is complete. So memory is bounded by the largest message allowed, and whatever we write
ourselves always falls between two messages. Control frames may overtake the message that they arrived within.

Framing rules are those of RFC 6455, sections 5 and 7.4.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

import orjson
from websockets.frames import EXTERNAL_CLOSE_CODES

try:
    from websockets.speedups import apply_mask
except ImportError:  # only where websockets was built without its C part
    from websockets.utils import apply_mask

__all__ = [
    "Broken",
    "Control",
    "DoubleType",
    "Message",
    "Opcode",
    "Piece",
    "Walker",
    "close_payload",
    "frame",
    "type_of",
]


class Opcode(IntEnum):
    """What a frame carries."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class Message(NamedTuple):
    """A text message that is no medium. `raw` are its frames as they came."""

    payload: bytes
    raw: bytes


class Control(NamedTuple):
    """A control frame."""

    opcode: Opcode
    payload: bytes
    raw: bytes


class Broken(NamedTuple):
    """The peer broke the protocol, and the walker reads no further: the close code it deserves, and why."""

    code: int
    reason: str


Piece = bytes | Message | Control | Broken
"""Bytes are messages to be passed on unseen."""


# ------------------------------------------------------------------------------------------------ the type of a message

_SMALL: Final = 1024
"""Bytes up to which parsing is cheaper than looking."""
_KEY: Final = b'"type"'
_HEAD: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"]*)"\s*[,}]')
_TAIL: Final = re.compile(rb',\s*"type"\s*:\s*"([^"]*)"\s*\}\s*$')
_TAIL_LENGTH: Final = 128


class DoubleType(ValueError):
    """A message has more than one `type`."""


def type_of(payload: bytes) -> str | None:
    """The `type` of a JSON object; None if it has none, or is no JSON object.

    Raises `DoubleType`, and `UnicodeDecodeError` for what is no UTF-8.
    """
    # Without escapes the key can only be spelled in one way, and found once it is there once, at whatever depth.
    if b"\\" in payload or payload.count(_KEY) > 1:
        return _exact_type(payload)
    if len(payload) > _SMALL:
        found = _HEAD.match(payload) or _TAIL.search(payload, len(payload) - _TAIL_LENGTH)
        if found:
            return found[1].decode()
    try:
        message = orjson.loads(payload)
    except orjson.JSONDecodeError:
        payload.decode()
        return None
    return _text(message.get("type")) if isinstance(message, dict) else None


def _exact_type(payload: bytes) -> str | None:
    """By a parser that shows every key, for texts in which the key might occur twice in one object."""
    top: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        top[:] = pairs  # the outermost object is the last to be complete

    text = payload.decode()
    try:
        json.loads(text, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        return None
    if not text.lstrip().startswith("{"):
        return None
    types = [value for key, value in top if key == "type"]
    if len(types) > 1:
        raise DoubleType("a message has more than one type")
    return _text(types[0]) if types else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


# ------------------------------------------------------------------------------------------------------- walking frames

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_MASKED: Final = 0x80
_WHOLE_TEXT: Final = _FIN | Opcode.TEXT
_OPCODES: Final = {int(opcode): opcode for opcode in Opcode}
_MAX_CONTROL: Final = 125
_BACKSLASH: Final = 0x5C
_LONG_HEADER: Final = 8
"""Bytes of a masked frame's header with a size of 16 bits."""
_FRAGMENT_ROOM: Final = 4096
"""Bytes of frame headers that the fragments of one message may have, beyond those of its own size."""


def _ends_plainly(text: bytes, audio_ends: int, last: int) -> bool:
    """Is the `type` not named once more, from where the audio ends? There is no quote in it, and so no key."""
    if text[audio_ends - 1] == _BACKSLASH:
        return False
    if audio_ends + 2 == last:
        return True
    return audio_ends > 0 and text.find(_KEY, audio_ends, last) < 0 and text.find(b"\\", audio_ends, last) < 0


class _Header(NamedTuple):
    opcode: int
    fin: bool
    reserved: bool
    masked: bool
    body: int
    """Where the payload begins."""
    size: int


class _Verdict(Enum):
    INCOMPLETE = "more bytes have to come"
    PASS = "goes on with what is around it"
    KEPT = "a fragment; the message is not complete"


class Walker:
    """The frames of one direction. `masked`: they come from a client, whose frames must be masked (else must not).

    `media` are the types that pass unseen. A message beyond `max_size` bytes is refused before it is buffered.
    The counters are for whoever measures. `slow_looks` are media that the first look did not recognise; `envelope` is
    how many bytes of a medium's text are not audio, give or take a few digits.
    """

    __slots__ = (
        "_ended",
        "_head",
        "_held",
        "_mask_bit",
        "_max_size",
        "_media",
        "_need",
        "_open",
        "_payload",
        "_prefixes",
        "_raw",
        "bytes",
        "control",
        "envelope",
        "media",
        "media_bytes",
        "messages",
        "slow_looks",
    )

    def __init__(self, *, masked: bool, media: frozenset[str], max_size: int) -> None:
        self._mask_bit = _MASKED if masked else 0
        self._media = media
        self._max_size = max_size
        names = [name.encode() for name in media]
        self._prefixes = tuple(head + name + b'"' for name in names for head in (b'{"type":"', b'{"type": "'))
        self._head = b"\0"  # no text begins like this
        self._held = bytearray()
        self._need = 0
        self._open: int | None = None
        self._raw = bytearray()
        self._payload = bytearray()
        self._ended = False
        self.bytes = self.media = self.media_bytes = self.messages = self.control = self.slow_looks = self.envelope = 0

    def feed(self, data: bytes) -> Sequence[Piece]:
        """What is complete now, in order. A chunk of nothing but whole media comes back as the very same object."""
        self.bytes += len(data)
        if self._held or self._ended:
            data = self._joined(data)
        pos = self._pass_media(data, 0)
        return (data,) if pos == len(data) > 0 else self._walk(data, pos)

    def _joined(self, data: bytes) -> bytes:
        """What was held, and this; nothing while that cannot make a frame."""
        self._held += data
        if self._ended or len(self._held) < self._need:
            return b""
        data = bytes(self._held)
        self._held = bytearray()
        return data

    def _walk(self, data: bytes, pos: int) -> list[Piece]:
        """`data` from `pos` on; what is before that passes."""
        pieces: list[Piece] = []
        start = 0
        while pos < len(data):
            end, piece = self._frame(data, pos)
            if piece is not _Verdict.PASS:
                if pos > start:
                    pieces.append(data[start:pos])
                start = end
                if piece is _Verdict.INCOMPLETE:
                    self._need = end - pos
                    self._held = bytearray(data[pos:])
                    break
                if not isinstance(piece, _Verdict):
                    pieces.append(piece)
                if self._ended:
                    break
            pos = self._pass_media(data, end)
        else:
            if pos > start:
                pieces.append(data[start:pos])
        return pieces

    def _pass_media(self, data: bytes, pos: int) -> int:
        """The end of the media that can be told at the first look, from `pos` on: what all this is for."""
        n, mask_bit = len(data), self._mask_bit
        while n - pos > _LONG_HEADER and data[pos] == _WHOLE_TEXT and self._open is None:
            size = data[pos + 1] ^ mask_bit
            body = pos + 2
            if size == 126:
                size = data[pos + 2] << 8 | data[pos + 3]
                body = pos + 4
            elif size > 126:
                break
            if mask_bit:
                body += 4
            end = body + size
            if end > n or size > self._max_size:
                break
            if mask_bit:
                text, first, last = apply_mask(data[body:end], data[body - 4 : body]), 0, size
            else:
                text, first, last = data, body, end
            audio_ends = text.find(b'"', first + len(self._head), last)
            known = text.startswith(self._head, first) and _ends_plainly(text, audio_ends, last)
            if not known and not self._learn(text[first:last]):
                break
            self.media += 1
            self.media_bytes += size
            pos = end
        return pos

    def _learn(self, payload: bytes) -> bool:
        """Is this certainly a medium? If so, the next may begin like it, up to its audio, which is its longest text."""
        if not payload.startswith(self._prefixes) or b"\\" in payload or payload.find(_KEY, 2) >= 0:
            return False
        parts = payload.split(b'"')
        longest = max(parts, key=len)
        self.envelope = len(payload) - len(longest)
        head = b'"'.join([*parts[: parts.index(longest)], b""])
        if head.startswith(self._prefixes):  # or its longest text would be the type itself
            self._head = head
        return True

    def _frame(self, data: bytes, pos: int) -> tuple[int, Piece | _Verdict]:
        """Any frame, with all the rules: where it ends, and what it is."""
        header = _read_header(data, pos)
        if header is None:
            return len(data) + 1, _Verdict.INCOMPLETE
        fault = self._fault(header)
        if fault is not None:
            self._ended = True
            return pos, fault
        end = header.body + header.size
        if end > len(data):
            return end, _Verdict.INCOMPLETE
        payload = data[header.body : end]
        if self._mask_bit:
            payload = apply_mask(payload, data[header.body - 4 : header.body])
        if header.opcode & 8:
            return end, self._control(header, payload, data[pos:end])
        return end, self._data(header, payload, data[pos:end])

    def _fault(self, header: _Header) -> Broken | None:
        """Whatever can be wrong with a frame before its payload is there."""
        if header.reserved:
            return Broken(1002, "reserved bits are set, and no extension was agreed on")
        if header.opcode not in _OPCODES:
            return Broken(1002, "unknown opcode")
        if header.masked is not bool(self._mask_bit):
            return Broken(
                1002, "a client must mask its frames" if self._mask_bit else "a server must not mask its frames"
            )
        if header.opcode & 8:
            if not header.fin or header.size > _MAX_CONTROL:
                return Broken(1002, "a control frame is fragmented or too long")
        elif (header.opcode == Opcode.CONTINUATION) is (self._open is None):
            return Broken(1002, "a fragment is out of order")
        elif header.size + len(self._payload) > self._max_size:
            return Broken(1009, f"a message is longer than {self._max_size} bytes")
        return None

    def _control(self, header: _Header, payload: bytes, raw: bytes) -> Control | Broken:
        self.control += 1
        if header.opcode == Opcode.CLOSE:
            self._ended = True
            return _close_fault(payload) or Control(Opcode.CLOSE, payload, raw)
        return Control(_OPCODES[header.opcode], payload, raw)

    def _data(self, header: _Header, payload: bytes, raw: bytes) -> Piece | _Verdict:
        if self._open is None and header.fin:
            return self._judge(header.opcode, payload, raw, _Verdict.PASS)
        if self._open is None:
            self._open = header.opcode
        self._raw += raw
        self._payload += payload
        if len(self._raw) - len(self._payload) > _FRAGMENT_ROOM + self._max_size:
            self._ended = True
            return Broken(1009, "a message has too many fragments")
        if not header.fin:
            return _Verdict.KEPT
        opcode, self._open = self._open, None
        payload, raw = bytes(self._payload), bytes(self._raw)
        self._payload, self._raw = bytearray(), bytearray()
        return self._judge(opcode, payload, raw, raw)

    def _judge(self, opcode: int, payload: bytes, raw: bytes, passed: bytes | _Verdict) -> Piece | _Verdict:
        """A whole message: a medium is given back as `passed`."""
        if opcode == Opcode.TEXT:
            try:
                kind = type_of(payload)
            except DoubleType as double:
                return self._broken(1008, str(double))
            except UnicodeDecodeError:
                return self._broken(1007, "a text is no UTF-8")
            if kind not in self._media:
                self.messages += 1
                return Message(payload, raw)
            self.slow_looks += 1
        self.media += 1
        self.media_bytes += len(payload)
        return passed

    def _broken(self, code: int, reason: str) -> Broken:
        self._ended = True
        return Broken(code, reason)


def _read_header(data: bytes, pos: int) -> _Header | None:
    """The header of the frame at `pos`; None while it is not complete."""
    left = len(data) - pos
    if left < 2:
        return None
    first, second = data[pos], data[pos + 1]
    size, body = second & 0x7F, pos + 2
    if size > 125:
        body += 2 if size == 126 else 8
        if len(data) < body:
            return None
        size = int.from_bytes(data[pos + 2 : body], "big")
    masked = bool(second & _MASKED)
    if masked:
        body += 4
    return _Header(first & 15, bool(first & _FIN), bool(first & _RESERVED), masked, body, size)


def _close_fault(payload: bytes) -> Broken | None:
    if not payload:
        return None
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (code in EXTERNAL_CLOSE_CODES or 3000 <= code < 5000):
        return Broken(1002, "a close frame has no valid code")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return Broken(1007, "a close reason is no UTF-8")
    return None


# ------------------------------------------------------------------------------------------------------- writing frames


def frame(opcode: Opcode, payload: bytes, *, masked: bool) -> bytes:
    """One whole frame, masked with a fresh key as a client's must be, or not."""
    size, bit = len(payload), _MASKED if masked else 0
    if size < 126:
        head = bytes((_FIN | opcode, bit | size))
    elif size < 65536:
        head = bytes((_FIN | opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FIN | opcode, bit | 127)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + apply_mask(payload, key)


def close_payload(code: int, reason: str = "") -> bytes:
    """The payload of a close frame; the reason is cut to what fits."""
    text = reason.encode()[: _MAX_CONTROL - 2].decode(errors="ignore")
    return code.to_bytes(2, "big") + text.encode()
