"""Raw WebSocket frames, as far as a relay has to know them: their headers, control frames, and those of our own. Pure.

Framing rules are those of RFC 6455, sections 5 and 7.4.
"""

from __future__ import annotations

import os
from enum import IntEnum
from typing import Final, NamedTuple

from websockets.frames import EXTERNAL_CLOSE_CODES

try:
    from websockets.speedups import apply_mask
except ImportError:  # only where websockets was built without its C part
    from websockets.utils import apply_mask

__all__ = [
    "FIN",
    "MASKED",
    "MAX_CONTROL",
    "Broken",
    "Control",
    "Header",
    "Message",
    "Opcode",
    "Piece",
    "apply_mask",
    "close_fault",
    "close_payload",
    "frame",
    "read_header",
]

FIN: Final = 0x80
"""The bit of the first byte that says that a message ends with this frame."""
MASKED: Final = 0x80
"""The bit of the second byte that says that the payload is masked."""
_RESERVED: Final = 0x70
MAX_CONTROL: Final = 125
"""Bytes that a control frame carries at most."""


class Opcode(IntEnum):
    """What a frame carries."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


# ------------------------------------------------------------------------------------------------- what a read comes to


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
    """The peer broke the protocol, and nothing more of it is read: the close code it deserves, and why."""

    code: int
    reason: str


Piece = bytes | Message | Control | Broken
"""Bytes are messages to be passed on unseen."""


# ------------------------------------------------------------------------------------------------------- reading frames


class Header(NamedTuple):
    """The header of a frame."""

    opcode: int
    fin: bool
    reserved: bool
    masked: bool
    body: int
    """Where the payload begins. The four bytes before it are the key, if it is masked."""
    size: int


def read_header(data: bytes, pos: int) -> Header | None:
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
    masked = bool(second & MASKED)
    if masked:
        body += 4
    return Header(first & 15, bool(first & FIN), bool(first & _RESERVED), masked, body, size)


def close_fault(payload: bytes) -> Broken | None:
    """What is wrong with the payload of a close frame."""
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
    size, bit = len(payload), MASKED if masked else 0
    if size < 126:
        head = bytes((FIN | opcode, bit | size))
    elif size < 65536:
        head = bytes((FIN | opcode, bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((FIN | opcode, bit | 127)) + size.to_bytes(8, "big")
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + apply_mask(payload, key)


def close_payload(code: int, reason: str = "") -> bytes:
    """The payload of a close frame; the reason is cut to what fits."""
    text = reason.encode()[: MAX_CONTROL - 2].decode(errors="ignore")
    return code.to_bytes(2, "big") + text.encode()
