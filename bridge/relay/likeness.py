"""The quickest way to recognise audio: a frame that is like the one before. Pure.

Frames of audio follow each other in one size, with the same text around what is said, or nearly so. Once one of them
has been looked at with all care, the next need only be compared with it. This is run for nearly every frame that is
relayed, and written for that.

A frame is like another if its audio is at the same place, without a quote in it, and what is around that is the same,
or has the same type, no second one and no escapes: then the audio is a value whatever it says, and names no key.
"""

from __future__ import annotations

from typing import Final, Self

from .frames import apply_mask

__all__ = ["Likeness"]

_KEY: Final = b'"type"'
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_NO_KEY: Final = bytes(4)
"""What a key becomes if it is masked with itself: then it need not be cut off."""
_AFTER_TYPE: Final = 5
"""Where the next text comes in a message that is cut at its quotes, after its type."""


class Likeness:
    """What a frame like this one must look like, and how often one did.

    `size` is the frame's, `text_size` that of its text, of which `envelope` bytes are not audio; `seen` counts.
    """

    __slots__ = (
        "_after",
        "_audio_size",
        "_before",
        "_begin",
        "_header",
        "_masked",
        "_opening",
        "_readable_size",
        "envelope",
        "seen",
        "size",
        "text_size",
    )

    def __init__(self, frame: bytes, text: bytes, parts: list[bytes], audio: int, *, masked: bool) -> None:
        """`parts` are the text cut at its quotes; the part of this number is the audio."""
        body = len(frame) - len(text)
        begin = _NO_KEY if masked else frame[:body]
        before = b'"'.join([*parts[:audio], b""])
        self._masked = masked
        self._header = frame[: body - 4]
        self._before = begin + before
        self._begin = begin + b'"'.join([*parts[: _AFTER_TYPE - 1], b""])
        self._opening = b'"%b"' % parts[audio - 1]
        self._audio_size = len(parts[audio])
        self._after = text[len(before) + self._audio_size :]
        self._readable_size = len(begin) + len(text)
        self.seen = 0
        self.size = len(frame)
        self.text_size = len(text)
        self.envelope = len(text) - self._audio_size

    @classmethod
    def of(cls, frame: bytes, text: bytes, *, masked: bool) -> Self | None:
        """Of a frame whose text is certainly a medium, begins with its type, and has no escapes.

        The audio is its longest value; None if there is no other value than the type.
        """
        parts = text.split(b'"')  # every other part is a text, the others are what is between them
        values = [i for i in range(_AFTER_TYPE, len(parts), 2) if parts[i] and parts[i - 1].strip() == b":"]
        return cls(frame, text, parts, max(values, key=lambda i: len(parts[i])), masked=masked) if values else None

    def recognises(self, frame: bytes) -> bool:
        """Is this frame like it? Then it is counted."""
        if len(frame) != self.size:
            return False
        text = frame
        if self._masked:
            keyed = frame.removeprefix(self._header)
            text = apply_mask(keyed, keyed[:4])
        audio = text.removeprefix(self._before).removesuffix(self._after)
        # Having its size, it has lost everything that was to be removed.
        if len(audio) != self._audio_size:
            audio = self._audio_in(text)
        if not audio or _QUOTE in audio or audio[-1] == _BACKSLASH:
            return False
        self.seen += 1
        return True

    def _audio_in(self, text: bytes) -> bytes:
        """Where what is around the audio is not the same: the audio, if that does not matter, else nothing."""
        begin, end = len(self._before), len(self._before) + self._audio_size
        before, after = text[:begin], text[end:]
        around = before + after
        alike = len(text) == self._readable_size and before.startswith(self._begin) and before.endswith(self._opening)
        harmless = after.startswith(b'"') and around.count(_KEY) == 1 and around.find(b"\\") < 0
        return text[begin:end] if alike and harmless else b""
