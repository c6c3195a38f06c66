"""SASL from the client's side: PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677). No I/O: messages in, messages out.

Names and passwords go as UTF-8 without SASLprep, which is what Kafka's brokers compare with.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Protocol

from kio.schema.errors import ErrorCode

from penstock.client.kafka_errors import KafkaError
from penstock.client.kafka_settings import Sasl

ITERATIONS_MIN = 4_096
"""Kafka's own lower bound: with fewer a stolen answer is cheap to search."""
ITERATIONS_MAX = 1_000_000
"""The server says how often to hash, before it has shown that it knows the password."""
_NONCE_BYTES = 24


class Exchange(Protocol):
    """One authentication: `first` is sent, then `answer` turns each of the server's messages into the next, None at
    the end."""

    def first(self) -> bytes: ...

    def answer(self, challenge: bytes) -> bytes | None: ...


def exchange(sasl: Sasl) -> Exchange:
    if sasl.mechanism == "PLAIN":
        return Plain(sasl.username, sasl.password)
    return Scram(sasl.username, sasl.password, sasl.mechanism.removeprefix("SCRAM-").replace("-", ""))


class Plain:
    def __init__(self, username: str, password: str) -> None:
        self._username = username
        self._password = password

    def first(self) -> bytes:
        return b"\0".join((b"", self._username.encode(), self._password.encode()))

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class Scram:
    """`hash_name` is hashlib's; the nonce is drawn unless a test gives one."""

    def __init__(self, username: str, password: str, hash_name: str, nonce: str | None = None) -> None:
        self._hash_name = hash_name.lower()
        self._password = password.encode()
        self._nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        # "=" and "," have a meaning in messages.
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._final(challenge)
        self._verify(challenge, self._server_signature)
        return None

    def _final(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise _refused("server nonce mismatch: possible man-in-the-middle attack")
        try:
            salt = base64.b64decode(fields["s"], validate=True)
            iterations = int(fields["i"])
        except (KeyError, ValueError, binascii.Error):
            raise _refused("the broker's first SCRAM message is malformed") from None
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise _refused(
                f"the broker requests {iterations} SCRAM iterations; allowed: {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash_name, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = b",".join((self._bare.encode(), challenge, without_proof.encode()))
        signature = self._hmac(hashlib.new(self._hash_name, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, challenge: bytes, signature: bytes) -> None:
        fields = _fields(challenge)
        if "e" in fields:
            raise _refused(f"SCRAM authentication failed: {fields['e']}")
        try:
            shown = base64.b64decode(fields.get("v", ""), validate=True)
        except binascii.Error:
            shown = b""
        if not hmac.compare_digest(shown, signature):
            raise _refused("server signature mismatch: the broker does not know the password")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash_name).digest()


def _fields(message: bytes) -> dict[str, str]:
    """`r=...,s=...,i=...`"""
    try:
        parts = (part.partition("=") for part in message.decode().split(","))
        return {name: value for name, _, value in parts}
    except UnicodeDecodeError:
        raise _refused("the broker's SCRAM message is malformed") from None


def _refused(text: str) -> KafkaError:
    return KafkaError(ErrorCode.sasl_authentication_failed, text)
