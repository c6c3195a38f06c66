"""Batches that are small to send and large to look into, and what they cost the broker."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from crc32c import crc32c

from penstock import Broker
from penstock.records.batch import CRC_OFFSET, CRC_START, HEADER
from penstock.records.compression import Codec, compress
from penstock.records.varint import varint
from tests.raw_peer import API_VERSIONS, RawPeer, api_versions

MIB = 1024 * 1024
PING_CPU_S_MAX = 0.05


def batch_of(payload: bytes, count: int, codec: int) -> bytes:
    """A batch that says it has so many records, of one time."""
    packed = compress(codec, payload)
    now_ms = time.time_ns() // 1_000_000
    header = HEADER.pack(0, 49 + len(packed), -1, 2, 0, codec, count - 1, now_ms, now_ms, -1, -1, -1, count)
    batch = bytearray(header + packed)
    struct.pack_into(">I", batch, CRC_OFFSET, crc32c(batch[CRC_START:]))
    return bytes(batch)


def record_of(offset_delta: int, key: bytes, value: bytes, headers: bytes = b"\0") -> bytes:
    body = b"\0\0" + varint(offset_delta) + varint(len(key)) + key + varint(len(value)) + value + headers
    return varint(len(body)) + body


@cache
def many_headers(codec: int, records: int, headers: int) -> bytes:
    """Records with as many empty headers each."""
    each = varint(headers) + bytes(2 * headers)
    return batch_of(b"".join(record_of(at, b"k", b"", each) for at in range(records)), records, codec)


@cache
def zeros(codec: int, size: int) -> bytes:
    """One record with a value of so many zeros."""
    return batch_of(record_of(0, b"k", bytes(size)), 1, codec)


@cache
def many_records(codec: int, records: int) -> bytes:
    """So many records with keys of their own."""
    return batch_of(b"".join(record_of(at, b"%x" % (at % 65_521), b"") for at in range(records)), records, codec)


BOMBS: dict[str, Callable[[int], bytes]] = {
    "headers": lambda codec: many_headers(codec, 800 if codec == Codec.SNAPPY else 6_000, 10_000),
    "headers within the bytes": lambda codec: many_headers(codec, 700, 10_000),
    "zeros": lambda codec: zeros(codec, 20 * MIB if codec == Codec.SNAPPY else 127 * MIB),
    "records": lambda codec: many_records(codec, 1_000_000),
}


def cpu_s(broker: Broker) -> float:
    """Processor time of all threads of the broker."""
    used = 0
    for task in Path(f"/proc/{broker.pid}/task").iterdir():
        try:
            used += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended
            pass
    return used / 1e9


def memory_bytes(broker: Broker, what: str) -> int:
    for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    raise AssertionError(what)


class Watch:
    """Pings the broker while something else happens to it: the longest ping by its processor time, and the memory."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.pings = 0
        self.longest_cpu_s = 0.0
        self._memory_before = 0

    def during(self, work: Callable[[], object]) -> None:
        """Ping until `work` is done, on another thread; raises what it raises."""
        Path(f"/proc/{self._broker.pid}/clear_refs").write_text("5\n")
        self._memory_before = memory_bytes(self._broker, "VmRSS")
        errors: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again below
                errors.append(error)

        thread = threading.Thread(target=run)
        with RawPeer(self._broker) as peer:
            peer.ask(API_VERSIONS, 0, api_versions())
            thread.start()
            while thread.is_alive():
                before = cpu_s(self._broker)
                peer.ask(API_VERSIONS, 0, api_versions())
                self.longest_cpu_s = max(self.longest_cpu_s, cpu_s(self._broker) - before)
                self.pings += 1
        thread.join()
        if errors:
            raise errors[0]

    @property
    def memory_growth_bytes(self) -> int:
        return memory_bytes(self._broker, "VmHWM") - self._memory_before
