"""Opening a connection: versions, SASL and TLS, and peers that are not what they should be."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.kafka import EARLIEST, KafkaClient, KafkaError, KafkaSettings
from penstock.client.kafka_apis import VERSIONS, Api
from penstock.client.kafka_connection import Connection
from penstock.records.builder import NewRecord, build_batch
from tests.client.kafka_stand_in import (
    API_VERSIONS,
    METADATA,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Certificates,
    StandIn,
    api_versions,
    make_certificates,
    sasl_authenticate,
    sasl_handshake,
    sasl_token,
    tls_proxy,
)

RANGES = {API_VERSIONS: (0, 4), SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, 1), METADATA: (0, 12)}


def opened(at: str, **options: str) -> Connection:
    settings = KafkaSettings.of_options({"bootstrap.servers": at, "request.timeout.ms": "5000", **options})
    tls = None if settings.tls is None else settings.tls.context()
    return Connection(settings.bootstrap[0], settings, tls)


def login(mechanism: str, password: str = "pencil") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "user",
        "sasl.password": password,
    }


# ---------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("broker_max", [0, 1, 2, 3])
def test_a_broker_that_does_not_know_the_newest_question_is_asked_an_older_one(broker_max: int) -> None:
    def answer(key: int, version: int, rest: bytes) -> bytes:
        if version > broker_max:
            return api_versions(0, {API_VERSIONS: (0, broker_max)}, error=35)
        return api_versions(version, RANGES)

    with StandIn(answer) as peer:
        connection = opened(peer.address)
        assert peer.asked == [(API_VERSIONS, VERSIONS[Api.API_VERSIONS][1]), (API_VERSIONS, broker_max)]
        assert connection.version(Api.METADATA) == 12
        assert connection.version(Api.METADATA, 5) == 5
        with pytest.raises(KafkaError, match=r"UNSUPPORTED_VERSION: .* the broker does not support Produce"):
            connection.version(Api.PRODUCE)
        connection.close()


# ---------------------------------------------------------------------------------------------------- SASL


def test_plain_is_let_in_and_a_wrong_password_is_not() -> None:
    def answer(key: int, version: int, rest: bytes) -> bytes:
        if key == API_VERSIONS:
            return api_versions(version, RANGES)
        if key == SASL_HANDSHAKE:
            return sasl_handshake(0, "PLAIN")
        if sasl_token(rest) == b"\0user\0pencil":
            return sasl_authenticate(0, None, b"")
        return sasl_authenticate(58, "Authentication failed", b"")

    with StandIn(answer) as peer:
        opened(peer.address, **login("PLAIN")).close()
        with pytest.raises(KafkaError, match=r"SASL_AUTHENTICATION_FAILED: .*\(Authentication failed\)") as refused:
            opened(peer.address, **login("PLAIN", "wrong"))
        assert not refused.value.retriable
        assert "wrong" not in str(refused.value)
        started = time.monotonic()
        settings = KafkaSettings.of_options({"bootstrap.servers": peer.address, **login("PLAIN", "wrong")})
        with KafkaClient(settings) as client, pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
            client.metadata()
        assert time.monotonic() - started < 30


def test_a_mechanism_that_the_broker_lacks_is_an_error_that_says_which_it_has() -> None:
    def answer(key: int, version: int, rest: bytes) -> bytes:
        return api_versions(version, RANGES) if key == API_VERSIONS else sasl_handshake(33, "GSSAPI", "PLAIN")

    with StandIn(answer) as peer, pytest.raises(KafkaError, match="does not support SCRAM-SHA-512, only GSSAPI, PLAIN"):
        opened(peer.address, **login("SCRAM-SHA-512"))


class ScramServer:
    """The other side of RFC 5802, written from the RFC's text."""

    def __init__(self, hash_name: str, password: bytes, is_honest: bool = True) -> None:
        self.hash_name = hash_name
        self.salted = hashlib.pbkdf2_hmac(hash_name, password, b"salt", 4_096)
        self.is_honest = is_honest
        self.spoken: list[bytes] = []

    def answer(self, key: int, version: int, rest: bytes) -> bytes:
        if key == API_VERSIONS:
            self.spoken = []
            return api_versions(version, RANGES)
        if key == SASL_HANDSHAKE:
            return sasl_handshake(0, "SCRAM-SHA-256", "SCRAM-SHA-512")
        token = sasl_token(rest)
        if not self.spoken:
            first = token.removeprefix(b"n,,")
            challenge = first[first.index(b"r=") :] + b"XYZ,s=" + base64.b64encode(b"salt") + b",i=4096"
            self.spoken = [first, challenge]
            return sasl_authenticate(0, None, challenge)
        without_proof, _, proof = token.rpartition(b",p=")
        message = b",".join((*self.spoken, without_proof))
        stored = hashlib.new(self.hash_name, self.mac(self.salted, b"Client Key")).digest()
        key_shown = bytes(a ^ b for a, b in zip(base64.b64decode(proof), self.mac(stored, message), strict=True))
        if hashlib.new(self.hash_name, key_shown).digest() != stored:
            return sasl_authenticate(58, "wrong password", b"")
        signature = self.mac(self.mac(self.salted, b"Server Key"), message) if self.is_honest else bytes(64)
        return sasl_authenticate(0, None, b"v=" + base64.b64encode(signature), lifetime_ms=3_600_000)

    def mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self.hash_name).digest()


@pytest.mark.parametrize(("mechanism", "hash_name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_is_let_in_only_with_the_password_and_only_by_who_knows_it(mechanism: str, hash_name: str) -> None:
    server = ScramServer(hash_name, b"pencil")
    with StandIn(server.answer) as peer:
        connection = opened(peer.address, **login(mechanism))
        assert connection.is_usable
        connection.close()
        with pytest.raises(KafkaError, match="wrong password"):
            opened(peer.address, **login(mechanism, "pen"))
        server.is_honest = False
        with pytest.raises(KafkaError, match="server signature mismatch"):
            opened(peer.address, **login(mechanism))


def test_a_connection_is_replaced_before_its_authentication_ends() -> None:
    def answer(key: int, version: int, rest: bytes) -> bytes:
        if key == API_VERSIONS:
            return api_versions(version, RANGES)
        return sasl_handshake(0, "PLAIN") if key == SASL_HANDSHAKE else sasl_authenticate(0, None, b"", lifetime_ms=1)

    with StandIn(answer) as peer:
        connection = opened(peer.address, **login("PLAIN"))
        deadline = time.monotonic() + 10
        while connection.is_usable:
            assert time.monotonic() < deadline
        assert not connection.is_broken
        connection.close()


# ---------------------------------------------------------------------------------------------------- strange peers


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"", "NETWORK_EXCEPTION: .*: the broker closed the connection"),
        (b"\0\0", "NETWORK_EXCEPTION: .*: the broker closed the connection"),
        (struct.pack(">ii", 100, 1), "NETWORK_EXCEPTION: .*: the broker closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "CORRUPT_MESSAGE: .*: invalid response length 1213486160"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "CORRUPT_MESSAGE: .*: the server uses TLS"),
        (struct.pack(">ii", 3, 1), "CORRUPT_MESSAGE: .*: invalid response length 3"),
        (struct.pack(">ii", -1, 1), "CORRUPT_MESSAGE: .*: invalid response length -1"),
        (struct.pack(">iih", 6, 7, 0), "CORRUPT_MESSAGE: .*: response has correlation id 7, expected 1"),
        (struct.pack(">iih", 6, 1, 0), "CORRUPT_MESSAGE: .*: malformed response: it is shorter than its fields"),
        (struct.pack(">ii", 4, 1), "CORRUPT_MESSAGE: .*: malformed response: it is shorter than its fields"),
    ],
)
def test_a_peer_that_is_no_broker_is_an_error_that_says_so(sent: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1_000)
                accepted.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(KafkaError, match=said) as refused:
            opened(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert refused.value.retriable == (refused.value.name == "NETWORK_EXCEPTION")


def test_a_peer_that_says_nothing_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            KafkaError, match=r"REQUEST_TIMED_OUT: .*: timed out waiting for the response to ApiVersions"
        ) as late:
            opened(at, **{"request.timeout.ms": "50"})
        assert late.value.retriable


def test_a_broken_connection_fails_all_that_wait_on_it() -> None:
    def answer(key: int, version: int, rest: bytes) -> bytes | None:
        return api_versions(version, RANGES) if key == API_VERSIONS else None

    with StandIn(answer) as peer:
        connection = opened(peer.address)
        fields = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        first, second = (connection.begin(Api.METADATA, fields) for _ in range(2))
        for waiting in (second, first, second):
            with pytest.raises(KafkaError, match="NETWORK_EXCEPTION"):
                waiting.wait()
        assert connection.is_broken
        with pytest.raises(KafkaError, match="NETWORK_EXCEPTION"):
            connection.begin(Api.METADATA, fields)


def test_who_waits_when_the_client_is_closed_is_told() -> None:
    with StandIn(lambda key, version, rest: api_versions(version, RANGES)) as peer:
        connection = opened(peer.address)
        waiting = connection.begin(
            Api.METADATA,
            {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False},
        )
        connection.close()
        with pytest.raises(KafkaError, match="closed"):
            waiting.wait()


# ---------------------------------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Served:
    """A broker that tells clients another address than it listens on."""

    def __init__(self, folder: Path, told: str) -> None:
        host, port = told.rsplit(":", 1)
        config = folder / "penstock.yaml"
        config.write_text(
            "listeners:\n  kafka:\n"
            f"    - {{host: 127.0.0.1, port: 0, advertised_host: {host}, advertised_port: {port}}}\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "penstock.server", "--config", str(config), "--data-dir", str(folder / "data")],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(60)
        line = os.read(self.process.stdout.fileno(), 4_096).decode().splitlines()[0]
        self.address = line.split()[-1]

    def stop(self) -> None:
        assert self.process.stdout is not None
        self.process.terminate()
        assert self.process.wait(30) == 0
        self.process.stdout.close()


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker behind TLS, that asks clients who they are."""
    served: list[Served] = []
    with tls_proxy(certificates, lambda: served[0].address, asks_clients=True) as told:
        served.append(Served(tmp_path_factory.mktemp("secured"), told))
        try:
            yield told
        finally:
            served[0].stop()


def tls_options(certificates: Certificates) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.keystore.location": str(certificates.client),
    }


def test_batches_go_both_ways_through_tls(secured: str, certificates: Certificates) -> None:
    settings = KafkaSettings.of_options({"bootstrap.servers": secured, **tls_options(certificates)})
    big = build_batch([NewRecord(1, None, os.urandom(900_000))])
    with KafkaClient(settings) as client:
        client.create_topic("t", 1, exists_ok=True)
        start = client.produce({("t", 0): big})["t", 0].base_offset
        assert client.fetch({("t", 0): start})["t", 0].records[16:] == big[16:]
        assert client.list_offsets({("t", 0): EARLIEST})["t", 0].offset == 0


def test_keys_and_certificates_may_be_texts(secured: str, certificates: Certificates) -> None:
    identity = certificates.client.read_text()
    at = identity.index("-----BEGIN CERTIFICATE")
    opened(
        secured,
        **{
            "security.protocol": "SSL",
            "ssl.truststore.certificates": certificates.authority.read_text(),
            "ssl.keystore.key": identity[:at],
            "ssl.keystore.certificate.chain": identity[at:],
        },
    ).close()


def test_a_broker_that_nobody_vouches_for_is_not_trusted(secured: str, certificates: Certificates) -> None:
    options = tls_options(certificates)
    del options["ssl.truststore.location"]
    with pytest.raises(KafkaError, match="certificate is not trusted") as refused:
        opened(secured, **options)
    assert not refused.value.retriable
    opened(secured, **options, **{"enable.ssl.certificate.verification": "false"}).close()


def test_the_name_in_the_certificate_is_checked_unless_told(secured: str, certificates: Certificates) -> None:
    port = secured.rsplit(":", 1)[1]
    options = tls_options(certificates)
    with pytest.raises(KafkaError, match="certificate is not trusted"):
        opened(f"localhost:{port}", **options)
    opened(f"localhost:{port}", **options, **{"ssl.endpoint.identification.algorithm": ""}).close()


def test_a_client_that_does_not_say_who_it_is_is_not_let_in(secured: str, certificates: Certificates) -> None:
    options = tls_options(certificates)
    del options["ssl.keystore.location"]
    with pytest.raises(KafkaError, match="NETWORK_EXCEPTION"):
        opened(secured, **options)


def test_a_plain_client_of_a_tls_port_and_a_tls_client_of_a_plain_one_are_told(
    secured: str, certificates: Certificates
) -> None:
    with pytest.raises(KafkaError, match=r"speaks TLS|closed the connection|reset"):
        opened(secured)
    with StandIn(lambda key, version, rest: None) as peer:
        options = {**tls_options(certificates), "socket.connection.setup.timeout.ms": "500"}
        with pytest.raises(KafkaError, match="TLS failed"):
            opened(peer.address, **options)
