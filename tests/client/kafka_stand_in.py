"""A broker that says what a test wants it to say, for what a sound broker never says; and a TLS proxy for a real one."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA = 18, 17, 36, 3

Answer = Callable[[int, int, bytes], bytes | None]
"""Key, version and all that follows them in the request -> the body of the answer; None closes the connection."""


class StandIn:
    """Listens on a free port and serves one connection after the other, each request through `answer`."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.asked: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._server.accept()
            except OSError:
                return
            with accepted, accepted.makefile("rb") as stream, contextlib.suppress(OSError):
                while (request := _frame(stream)) is not None:
                    key, version, correlation_id = struct.unpack_from(">hhi", request)
                    self.asked.append((key, version))
                    body = self._answer(key, version, request[8:])
                    if body is None:
                        break
                    accepted.sendall(struct.pack(">ii", 4 + len(body), correlation_id) + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ignored: object) -> None:
        # A blocked accept ends when the socket is shut down, not when it is closed.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()


def _frame(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def api_versions(version: int, ranges: dict[int, tuple[int, int]], error: int = 0) -> bytes:
    if version >= 3:
        rows = b"".join(struct.pack(">hhhB", key, low, high, 0) for key, (low, high) in ranges.items())
        return struct.pack(">hB", error, len(ranges) + 1) + rows + struct.pack(">iB", 0, 0)
    rows = b"".join(struct.pack(">hhh", key, low, high) for key, (low, high) in ranges.items())
    return struct.pack(">hi", error, len(ranges)) + rows + (struct.pack(">i", 0) if version else b"")


def sasl_handshake(error: int, *mechanisms: str) -> bytes:
    return struct.pack(">hi", error, len(mechanisms)) + b"".join(_string(name) for name in mechanisms)


def sasl_authenticate(error: int, message: str | None, token: bytes, lifetime_ms: int = 0) -> bytes:
    """Version 1."""
    said = b"\xff\xff" if message is None else _string(message)
    return struct.pack(">h", error) + said + struct.pack(">i", len(token)) + token + struct.pack(">q", lifetime_ms)


def sasl_token(rest: bytes) -> bytes:
    """What a SaslAuthenticate request of version 1 carries, behind its correlation id."""
    (name_length,) = struct.unpack_from(">h", rest)
    return rest[2 + name_length + 4 :]


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


# ---- TLS ----------------------------------------------------------------------------------------------------------


class Certificates(NamedTuple):
    """PEM files: who is trusted, and a server and a client that it vouches for, each with its key."""

    authority: Path
    server: Path
    client: Path


def make_certificates(folder: Path) -> Certificates:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def issue(name: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> bytes:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        now = dt.datetime.now(dt.UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(names, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return built.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def identity(common_name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = issue(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]), key, False)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = folder / f"{common_name}.pem"
        path.write_bytes(private + certificate)
        return path

    authority = folder / "authority.pem"
    authority.write_bytes(issue(authority_name, authority_key, True))
    return Certificates(authority, identity("server"), identity("client"))


@contextlib.contextmanager
def tls_proxy(certificates: Certificates, target: Callable[[], str], asks_clients: bool = False) -> Iterator[str]:
    """The address of a TLS end in front of the broker at `target()`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server)
    if asks_clients:
        context.load_verify_locations(certificates.authority)
        context.verify_mode = ssl.CERT_REQUIRED
    server = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                plain, _ = server.accept()
            except OSError:
                return
            open_sockets.append(plain)
            try:
                outer = context.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()
                continue
            host, port = target().rsplit(":", 1)
            inner = socket.create_connection((host, int(port)))
            open_sockets.extend((outer, inner))
            for ends in ((outer, inner), (inner, outer)):
                threads.append(threading.Thread(target=pump, args=ends))
                threads[-1].start()

    acceptor = threading.Thread(target=serve)
    acceptor.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        acceptor.join()
        for one in open_sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for one in open_sockets:
            one.close()
