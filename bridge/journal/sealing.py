"""Encryption at rest, and digests that cannot be guessed at: both from one key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from typing import TYPE_CHECKING

from ..errors import ConfigError, JournalError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["KEY_BYTES", "Seal", "read_key"]

KEY_BYTES = 32
_NONCE = 12
_TAG = 16


def read_key(text: str) -> bytes:
    """A key as people write one down: 32 bytes in base64 (`openssl rand -base64 32`) or hex. Raises `ConfigError`."""
    text = text.strip()
    try:
        key = bytes.fromhex(text) if len(text) == 2 * KEY_BYTES else base64.b64decode(text, altchars=b"-_")
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError("the journal's key is not 32 bytes in base64 or hex: make one with 'openssl rand -base64 32'")
    return key


class Seal:
    """AES-GCM with a random nonce. What is sealed is bound to what it is `about`, so that nobody can move it elsewhere.

    Without a key it changes nothing, and digests can be guessed at by trying. Raises `ConfigError` for a key of another
    length, or if the `encryption` extra is missing.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._cipher = None if key is None else _cipher(_derived(key, b"seal"))
        self._digest_key = b"" if key is None else _derived(key, b"digest")
        self.check = "" if key is None else self.digest(b"voice-tool-bridge journal")
        """Tells whether two keys are the same, and no more; empty without a key."""

    @property
    def closed(self) -> bool:
        """Is there a key?"""
        return self._cipher is not None

    def digest(self, data: bytes) -> str:
        """32 hexadecimal digits that are the same for the same data."""
        return hashlib.blake2b(data, digest_size=16, key=self._digest_key).hexdigest()

    def seal(self, data: bytes, about: str) -> bytes:
        if self._cipher is None:
            return data
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, data, about.encode())

    def unseal(self, data: bytes, about: str) -> bytes:
        """Raises `JournalError` for what has not been sealed with this key, about this."""
        if self._cipher is None:
            return data
        try:
            if len(data) < _NONCE + _TAG:
                raise ValueError("too short")
            return self._cipher.decrypt(data[:_NONCE], data[_NONCE:], about.encode())
        except Exception as error:  # the library's own exception is there only if the extra is
            raise JournalError(
                "the journal holds an entry that was not sealed with this key, or was changed"
            ) from error


def _derived(key: bytes, purpose: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ConfigError(f"the journal's key has {len(key)} bytes instead of {KEY_BYTES}")
    return hashlib.blake2b(key=key, person=purpose, digest_size=KEY_BYTES).digest()


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "a journal with a key needs the encryption extra: pip install 'voice-tool-bridge[encryption]'"
        ) from None
    return AESGCM(key)
