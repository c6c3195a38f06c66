"""A Kafka peer without a client library: bytes over a socket, so that they can be wrong."""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Any, Self

from penstock import Broker
from tests.dialects.kafka.oracle import decode_answer, request_body

WAIT_S = 30.0

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 2, 3, 18, 19
FLEXIBLE_FROM = {PRODUCE: 9, FETCH: 12, LIST_OFFSETS: 6, METADATA: 9, API_VERSIONS: 3, CREATE_TOPICS: 5}


def request(key: int, version: int, body: bytes, correlation_id: int = 1, client_id: str | None = "raw") -> bytes:
    """A whole frame with header version 1 or 2, whichever the version has."""
    name = None if client_id is None else client_id.encode()
    header = struct.pack(">hhih", key, version, correlation_id, -1 if name is None else len(name)) + (name or b"")
    if version >= FLEXIBLE_FROM.get(key, 1 << 15):
        header += b"\x00"
    return struct.pack(">i", len(header) + len(body)) + header + body


def api_versions(correlation_id: int = 1, version: int = 0) -> bytes:
    return request(API_VERSIONS, version, b"", correlation_id)


def metadata(*topics: str, correlation_id: int = 1, create: bool = False) -> bytes:
    tree = {
        "topics": [{"name": topic, "topic_id": None} for topic in topics],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return request(METADATA, 9, request_body(METADATA, 9, tree), correlation_id)


def produce(topic: str, records: bytes | None, *, acks: int = -1, partition: int = 0, correlation_id: int = 1) -> bytes:
    tree = {
        "transactional_id": None,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": records}]}],
    }
    return request(PRODUCE, 8, request_body(PRODUCE, 8, tree), correlation_id)


def fetch(
    topic: str, offset: int = 0, *, max_bytes: int = 50 << 20, min_bytes: int = 1, max_wait_ms: int = 500,
    partition: int = 0, correlation_id: int = 1,
) -> bytes:  # fmt: skip
    tree = {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "current_leader_epoch": -1,
                        "fetch_offset": offset,
                        "log_start_offset": -1,
                        "partition_max_bytes": max_bytes,
                    }
                ],
            }
        ],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return request(FETCH, 11, request_body(FETCH, 11, tree), correlation_id)


def create_topics(topic: str, partitions: int, correlation_id: int = 1) -> bytes:
    wanted = {
        "name": topic,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    tree = {"topics": [wanted], "timeout": 30_000, "validate_only": False}
    return request(CREATE_TOPICS, 4, request_body(CREATE_TOPICS, 4, tree), correlation_id)


class RawPeer:
    """One connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._log_start = len(broker.log)
        host, _, port = broker.bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_if_open(self, data: bytes) -> None:
        """The broker may close in the middle of what it does not like."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def read(self, count: int) -> bytes:
        """That many bytes, or fewer when the broker closed."""
        data = bytearray(count)
        view = memoryview(data)
        filled = 0
        while filled < count:
            try:
                got = self._socket.recv_into(view[filled:])
            except ConnectionResetError:
                got = 0
            if not got:
                break
            filled += got
        return bytes(view[:filled])

    def read_frame(self) -> bytes | None:
        """The next answer with its size in front; None when the broker closed instead."""
        size = self.read(4)
        if len(size) < 4:
            return None
        body = self.read(struct.unpack(">i", size)[0])
        return size + body

    def ask(self, key: int, version: int, frame: bytes) -> Any:
        self.send(frame)
        answer = self.read_frame()
        assert answer is not None, "the broker closed the connection"
        return decode_answer(key, version, answer)

    @property
    def log_lines(self) -> list[str]:
        """What the broker has written about the end of this connection."""
        return [line for line in self._broker.log[self._log_start :].splitlines() if f":{self.port} closed" in line]

    def wait_for_log_line(self) -> list[str]:
        deadline = time.monotonic() + WAIT_S
        while not (lines := self.log_lines):
            assert time.monotonic() < deadline, self._broker.log
            time.sleep(0.005)
        return lines

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """No goodbye: a reset instead of an orderly end."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
