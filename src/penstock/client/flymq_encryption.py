"""Payload encryption of FlyMQ's clients: AES-256-GCM, as nonce (12 random bytes), ciphertext, tag (16 bytes).

The broker stores and serves what it is given; who has no key sees ciphertext, in every dialect.
"""

from __future__ import annotations

import os

from penstock.client.flymq_connection import FlyMQError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


class Encryption:
    def __init__(self, key: bytes | str) -> None:
        """32 bytes, or 64 hex digits as in FLYMQ_ENCRYPTION_KEY."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as missing:
            hint = "payload encryption requires cryptography: pip install 'penstock-broker[encryption]'"
            raise ModuleNotFoundError(hint, name=missing.name) from None

        raw = bytes.fromhex(key) if isinstance(key, str) else key
        if len(raw) != KEY_BYTES:
            raise ValueError(f"an AES-256 key must have {KEY_BYTES} bytes, not {len(raw)}")
        self._cipher = AESGCM(raw)

    def encrypt(self, plain: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, None)

    def decrypt(self, sealed: bytes) -> bytes:
        """Raises FlyMQError for what was not made with this key, or was changed since."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            raise FlyMQError(0, f"a value of {len(sealed)} bytes is not encrypted")
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], None)
        except InvalidTag:
            raise FlyMQError(0, "a value was encrypted with another key or was modified") from None
