"""From the bytes of one direction to whole messages: what passes as it came, and what is to be read. Pure.

A `Walker` takes bytes, split anywhere. Nearly all messages are audio: those are given back as the very bytes that came,
many in one piece, without being decoded. A walker looks the less, the better it knows what it sees:

* a frame that is like the latest audio, of the same size and with the same text around it: audio, done;
* a text that begins with the type of a medium, names no type after that and has no escapes: audio, and to be
  remembered for the next look;
* of anything else the type is found out exactly (`kind`).

A message leaves only when it is complete. So memory is bounded by the largest message allowed, and whatever we write
ourselves always falls between two messages. Control frames may overtake the message that they arrived within.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from .frames import (
    MASKED,
    MAX_CONTROL,
    Broken,
    Control,
    Header,
    Message,
    Opcode,
    Piece,
    apply_mask,
    close_fault,
    read_header,
)
from .kind import DoubleType, type_of
from .likeness import Likeness

__all__ = ["Walker"]

_KEY: Final = b'"type"'
_OPCODES: Final = {int(opcode): opcode for opcode in Opcode}
_FRAGMENT_ROOM: Final = 4096
"""Bytes of frame headers that the fragments of one message may have, beyond those of its own size."""


class _Verdict(Enum):
    INCOMPLETE = "more bytes have to come"
    PASS = "goes on with what is around it"
    KEPT = "a fragment; the message is not complete"


class Walker:
    """The frames of one direction. `masked`: they come from a client, whose frames must be masked (else must not).

    `media` are the types that pass unseen. A message beyond `max_size` bytes is refused before it is buffered.
    The counters are for whoever measures; `slow_looks` are media that the first look did not recognise.
    """

    __slots__ = (
        "_ended",
        "_held",
        "_latest",
        "_looked_at",
        "_looked_at_bytes",
        "_mask_bit",
        "_max_size",
        "_media",
        "_need",
        "_next",
        "_open",
        "_payload",
        "_prefixes",
        "_raw",
        "bytes",
        "control",
        "messages",
        "slow_looks",
    )

    def __init__(self, *, masked: bool, media: frozenset[str], max_size: int) -> None:
        self._mask_bit = MASKED if masked else 0
        self._media = media
        self._max_size = max_size
        names = [name.encode() for name in media]
        self._prefixes = tuple(head + name + b'"' for name in names for head in (b'{"type":"', b'{"type": "'))
        self._held = bytearray()
        self._need = 0
        self._open: int | None = None
        self._raw = bytearray()
        self._payload = bytearray()
        self._ended = False
        self._latest: Likeness | None = None
        self._next: Likeness | None = None
        self._looked_at = self._looked_at_bytes = 0
        self.bytes = self.messages = self.control = self.slow_looks = 0

    @property
    def media(self) -> int:
        """Media that have passed."""
        return self._looked_at + (self._latest.seen if self._latest else 0)

    @property
    def media_bytes(self) -> int:
        """Bytes of their texts."""
        return self._looked_at_bytes + (self._latest.seen * self._latest.text_size if self._latest else 0)

    @property
    def envelope(self) -> int:
        """How many bytes of a medium's text are not audio, as in the latest one."""
        return self._latest.envelope if self._latest else 0

    def feed(self, data: bytes) -> list[Piece] | None:
        """What is complete now, in order. None, as nearly always, if it is just `data`, and all of that passes."""
        self.bytes += len(data)
        like = self._next
        return None if like is not None and like.recognises(data) else self._walk(data)

    def _walk(self, data: bytes) -> list[Piece]:
        """Any data, by all the rules."""
        if self._held or self._ended:
            data = self._joined(data)
        pieces: list[Piece] = []
        pos = start = 0  # what is between them passes
        while pos < len(data):
            like = self._next
            if like is not None and like.recognises(data[pos : pos + like.size]):
                pos += like.size
                continue
            end, piece = self._frame(data, pos)
            if piece is not _Verdict.PASS:
                if pos > start:
                    pieces.append(data[start:pos])
                start = end
                if piece is _Verdict.INCOMPLETE:
                    self._need = end - pos
                    self._held += data[pos:]
                elif not isinstance(piece, _Verdict):
                    pieces.append(piece)
            self._expect()
            if self._ended:
                return pieces
            pos = end
        if pos > start:
            pieces.append(data[start:pos])
        return pieces

    def _joined(self, data: bytes) -> bytes:
        """What was held, and this; nothing while that cannot make a frame, nor after the end."""
        if self._ended:
            return b""
        self._held += data
        if len(self._held) < self._need:
            return b""
        data = bytes(self._held)
        self._held = bytearray()
        self._expect()
        return data

    def _expect(self) -> None:
        """What may come next: a medium like the latest, but only where a message can begin."""
        between = not self._held and not self._ended and self._open is None
        self._next = self._latest if between else None

    # ------------------------------------------------------------------------------------------- one frame, all rules

    def _frame(self, data: bytes, pos: int) -> tuple[int, Piece | _Verdict]:
        """Any frame: where it ends, and what it is."""
        header = read_header(data, pos)
        if header is None:
            return len(data) + 1, _Verdict.INCOMPLETE
        fault = self._fault(header)
        if fault is not None:
            return pos, self._broken(fault)
        end = header.body + header.size
        if end > len(data):
            return end, _Verdict.INCOMPLETE
        payload = data[header.body : end]
        if self._mask_bit:
            payload = apply_mask(payload, data[header.body - 4 : header.body])
        if header.opcode & 8:
            return end, self._control(header, payload, data[pos:end])
        return end, self._data(header, payload, data[pos:end])

    def _fault(self, header: Header) -> Broken | None:
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
            if not header.fin or header.size > MAX_CONTROL:
                return Broken(1002, "a control frame is fragmented or too long")
        elif (header.opcode == Opcode.CONTINUATION) is (self._open is None):
            return Broken(1002, "a fragment is out of order")
        elif header.size + len(self._payload) > self._max_size:
            return Broken(1009, f"a message is longer than {self._max_size} bytes")
        return None

    def _control(self, header: Header, payload: bytes, raw: bytes) -> Control | Broken:
        self.control += 1
        if header.opcode == Opcode.CLOSE:
            self._ended = True
            return close_fault(payload) or Control(Opcode.CLOSE, payload, raw)
        return Control(_OPCODES[header.opcode], payload, raw)

    def _data(self, header: Header, payload: bytes, raw: bytes) -> Piece | _Verdict:
        if self._open is None and header.fin:
            return self._judge(header.opcode, payload, raw, _Verdict.PASS)
        if self._open is None:
            self._open = header.opcode
        self._raw += raw
        self._payload += payload
        if len(self._raw) - len(self._payload) > _FRAGMENT_ROOM + self._max_size:
            return self._broken(Broken(1009, "a message has too many fragments"))
        if not header.fin:
            return _Verdict.KEPT
        opcode, self._open = self._open, None
        payload, raw = bytes(self._payload), bytes(self._raw)
        self._payload, self._raw = bytearray(), bytearray()
        return self._judge(opcode, payload, raw, raw)

    def _judge(self, opcode: int, payload: bytes, raw: bytes, passed: bytes | _Verdict) -> Piece | _Verdict:
        """A whole message: a medium is given back as `passed`."""
        if opcode == Opcode.TEXT and not self._is_plainly_a_medium(payload):
            try:
                kind = type_of(payload)
            except DoubleType as double:
                return self._broken(Broken(1008, str(double)))
            except UnicodeDecodeError:
                return self._broken(Broken(1007, "a text is no UTF-8"))
            if kind not in self._media:
                self.messages += 1
                return Message(payload, raw)
            self.slow_looks += 1
        elif opcode == Opcode.TEXT and passed is _Verdict.PASS:
            self._remember(Likeness.of(raw, payload, masked=bool(self._mask_bit)))
        self._looked_at += 1
        self._looked_at_bytes += len(payload)
        return passed

    def _is_plainly_a_medium(self, payload: bytes) -> bool:
        """At the first look. Without escapes there is one way to spell the key, and so one type."""
        return payload.startswith(self._prefixes) and b"\\" not in payload and payload.find(_KEY, 2) < 0

    def _remember(self, like: Likeness | None) -> None:
        """The next may be like this one."""
        if like is not None:
            self._looked_at, self._looked_at_bytes = self.media, self.media_bytes
            self._latest = like

    def _broken(self, fault: Broken) -> Broken:
        self._ended = True
        return fault
