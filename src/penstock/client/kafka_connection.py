"""One connection to one broker: frames out, frames in, answers in the order of their requests.

Opening one is TCP, TLS if asked for, ApiVersions, SASL if asked for. Requests may be sent before earlier ones are
answered. Once anything goes wrong on the wire the connection is broken for good and every request that waits on it fails;
making a new one is the cluster's business.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from penstock.client.kafka_apis import VERSIONS, Api
from penstock.client.kafka_codec import Message, decode, encode, is_flexible, skip_tags
from penstock.client.kafka_errors import KafkaError, check
from penstock.client.kafka_sasl import exchange
from penstock.client.kafka_settings import Address, KafkaSettings, Sasl

ANSWER_BYTES_MAX = 256 * 1024 * 1024
"""Five times what a fetch asks for at most; a peer of another protocol sends text or a TLS alert where the size is."""
_TLS_RECORDS = (0x15, 0x16)
_SESSION_SHARE = 0.85
"""A connection whose authentication expires (KIP-368) is replaced a little before that."""
_HEAD = struct.Struct(">ihhi")
_SIZE = struct.Struct(">i")
_SOFTWARE = {"client_software_name": "penstock", "client_software_version": "1"}


class Pending:
    """A request that was sent; `wait` gives its answer."""

    __slots__ = ("_connection", "_correlation_id", "_error", "_message", "_timeout_s", "_version", "api")

    def __init__(self, connection: Connection, api: Api, version: int, correlation_id: int, timeout_s: float) -> None:
        self._connection = connection
        self._correlation_id = correlation_id
        self._timeout_s = timeout_s
        self._version = version
        self._message: Message | None = None
        self._error: KafkaError | None = None
        self.api = api

    def wait(self) -> Message:
        deadline = time.monotonic() + self._timeout_s
        while self._message is None and self._error is None:
            self._connection.receive(deadline)
        if self._error is not None:
            raise self._error
        assert self._message is not None
        return self._message

    def take(self, frame: memoryview) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if correlation_id != self._correlation_id:
            raise KafkaError(
                ErrorCode.corrupt_message,
                f"response has correlation id {correlation_id}, expected {self._correlation_id}",
                retriable=False,
            )
        api, version = self.api, self._version
        start = _SIZE.size
        if api is Api.API_VERSIONS:
            # Its header is the old one always, and a broker that does not know the version answers in version 0 (KIP-511).
            if frame[start : start + 2] == _SIZE.pack(ErrorCode.unsupported_version)[2:]:
                version = 0
        elif is_flexible(api, version):
            start = skip_tags(frame, start)
        self._message = decode(api, version, frame, start)

    def fail(self, error: KafkaError) -> None:
        self._error = error


class Connection:
    """Raises KafkaError if it cannot be opened: NETWORK_EXCEPTION, or why the broker does not let us in."""

    def __init__(self, address: Address, settings: KafkaSettings, tls: ssl.SSLContext | None) -> None:
        self.address = address
        self.is_broken = False
        self.features: dict[str, int] = {}
        """Finalized features of the cluster and their levels, such as transaction.version."""
        self._settings = settings
        self._ranges: dict[int, tuple[int, int]] = {}
        self._in_flight: deque[Pending] = deque()
        self._correlation_id = 0
        self._expires_at: float | None = None
        self._socket = self._connect(tls)
        try:
            self._greet()
            if settings.sasl is not None:
                self._authenticate(settings.sasl)
        except KafkaError:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------------ requests

    def version(self, api: Api, version_max: int | None = None) -> int:
        """The highest version that both sides speak, at most `version_max`; raises KafkaError if there is none."""
        low, high = VERSIONS[api]
        if version_max is not None:
            high = min(high, version_max)
        if api not in self._ranges:
            raise self._error(ErrorCode.unsupported_version, f"the broker does not support {api.label}")
        broker_low, broker_high = self._ranges[api]
        version = min(high, broker_high)
        if version < max(low, broker_low):
            raise self._error(
                ErrorCode.unsupported_version,
                f"the broker supports {api.label} versions {broker_low} to {broker_high}, this client {low} to {high}",
            )
        return version

    def begin(
        self,
        api: Api,
        fields: Mapping[str, Any],
        *,
        version_max: int | None = None,
        timeout_ms: int | None = None,
        is_answered: bool = True,
    ) -> Pending:
        """Send a request; for one that the broker does not answer (Produce with acks 0) there is nothing to wait for."""
        return self._send(api, self.version(api, version_max), fields, timeout_ms, is_answered)

    def request(
        self, api: Api, fields: Mapping[str, Any], *, version_max: int | None = None, timeout_ms: int | None = None
    ) -> Message:
        return self.begin(api, fields, version_max=version_max, timeout_ms=timeout_ms).wait()

    def _send(
        self, api: Api, version: int, fields: Mapping[str, Any], timeout_ms: int | None = None, is_answered: bool = True
    ) -> Pending:
        timeout_s = (self._settings.request_timeout_ms if timeout_ms is None else timeout_ms) / 1_000
        if self.is_broken:
            raise self._error(ErrorCode.network_exception)
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        pending = Pending(self, api, version, self._correlation_id, timeout_s)
        name = self._settings.client_id.encode()
        tags = b"\0" if is_flexible(api, version) else b""
        body = encode(api, version, fields)
        size = _HEAD.size - _SIZE.size + 2 + len(name) + len(tags) + len(body)
        head = _HEAD.pack(size, api, version, self._correlation_id) + len(name).to_bytes(2, "big") + name + tags
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(head + body)
        except TimeoutError:
            raise self._broken(
                ErrorCode.request_timed_out, f"timed out sending {api.label} after {timeout_s:g} s"
            ) from None
        except OSError as error:
            raise self._broken(ErrorCode.network_exception, _reason(error)) from None
        if is_answered:
            self._in_flight.append(pending)
        return pending

    def receive(self, deadline: float) -> None:
        """Read one answer and hand it to the request that waits longest."""
        if self.is_broken:
            # Whoever still waits was told; only a request without an answer comes here.
            raise self._error(ErrorCode.network_exception)
        pending = self._in_flight[0]
        try:
            (size,) = _SIZE.unpack(self._read(_SIZE.size, deadline))
            if not _SIZE.size <= size <= ANSWER_BYTES_MAX:
                raise self._broken(ErrorCode.corrupt_message, _not_kafka(size), retriable=False)
            frame = self._read(size, deadline)
            pending.take(frame)
        except TimeoutError:
            raise self._broken(
                ErrorCode.request_timed_out, f"timed out waiting for the response to {pending.api.label}"
            ) from None
        except OSError as error:
            raise self._broken(ErrorCode.network_exception, _reason(error)) from None
        except KafkaError as error:
            if not self.is_broken:
                raise self._broken(error.code, error.text, retriable=error.retriable) from None
            raise
        self._in_flight.popleft()

    def _read(self, size: int, deadline: float) -> memoryview:
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            count = self._socket.recv_into(view[at:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            at += count
        return view.toreadonly()

    # ------------------------------------------------------------------------------------------------ opening

    def _connect(self, tls: ssl.SSLContext | None) -> socket.socket:
        timeout_s = self._settings.connect_timeout_ms / 1_000
        host, port = self.address
        try:
            plain = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise self._error(ErrorCode.network_exception, _reason(error)) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return plain
        try:
            return tls.wrap_socket(plain, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            plain.close()
            raise self._error(
                ErrorCode.network_exception, f"the certificate is not trusted: {error.verify_message}", retriable=False
            ) from None
        except ssl.SSLError as error:
            plain.close()
            said = (error.reason or str(error)).lower().replace("_", " ")
            raise self._error(ErrorCode.network_exception, f"TLS failed: {said}", retriable=False) from None
        except OSError as error:
            plain.close()
            raise self._error(ErrorCode.network_exception, f"TLS failed: {_reason(error)}") from None

    def _greet(self) -> None:
        """Ask what the broker speaks; one that does not know the newest form of the question says so in the oldest."""
        _, version = VERSIONS[Api.API_VERSIONS]
        answer = self._send(Api.API_VERSIONS, version, _SOFTWARE).wait()
        if answer.error_code == ErrorCode.unsupported_version:
            ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys or ()}
            _, known = ranges.get(Api.API_VERSIONS, (0, 0))
            answer = self._send(Api.API_VERSIONS, min(version, known), _SOFTWARE).wait()
        check(answer.error_code, where=str(self.address))
        self._ranges = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        finalized = getattr(answer, "finalized_features", None) or ()
        self.features = {feature.name: feature.max_version_level for feature in finalized}

    def _authenticate(self, sasl: Sasl) -> None:
        shaken = self.request(Api.SASL_HANDSHAKE, {"mechanism": sasl.mechanism})
        if shaken.error_code == ErrorCode.unsupported_sasl_mechanism:
            offered = ", ".join(shaken.mechanisms) or "none"
            raise self._error(shaken.error_code, f"the broker does not support {sasl.mechanism}, only {offered}")
        check(shaken.error_code, where=str(self.address))
        conversation = exchange(sasl)
        message: bytes | None = conversation.first()
        lifetime_ms = 0
        while message is not None:
            answer = self.request(Api.SASL_AUTHENTICATE, {"auth_bytes": message})
            check(answer.error_code, answer.error_message, where=str(self.address))
            lifetime_ms = getattr(answer, "session_lifetime", 0)
            message = conversation.answer(bytes(answer.auth_bytes))
        if lifetime_ms > 0:
            self._expires_at = time.monotonic() + lifetime_ms * _SESSION_SHARE / 1_000

    # ------------------------------------------------------------------------------------------------ end

    @property
    def is_usable(self) -> bool:
        """Whether a new request may be sent; one that waits may still be answered."""
        return not self.is_broken and (self._expires_at is None or time.monotonic() < self._expires_at)

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def close(self) -> None:
        self.is_broken = True
        self._socket.close()
        for pending in self._in_flight:
            pending.fail(self._error(ErrorCode.network_exception, "the client is closed"))
        self._in_flight.clear()

    def _broken(self, code: int, detail: str = "", *, retriable: bool | None = None) -> KafkaError:
        """The connection is of no use any more: all that wait on it fail, with the error that is given back."""
        error = self._error(code, detail, retriable=retriable)
        self.is_broken = True
        self._socket.close()
        for pending in self._in_flight:
            pending.fail(error)
        self._in_flight.clear()
        return error

    def _error(self, code: int, detail: str = "", *, retriable: bool | None = None) -> KafkaError:
        return KafkaError(code, detail, where=str(self.address), retriable=retriable)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _not_kafka(size: int) -> str:
    if size > 0 and size >> 24 in _TLS_RECORDS:
        return "the server uses TLS: set security.protocol to SSL or SASL_SSL"
    return f"invalid response length {size}: the server does not speak the Kafka protocol"
