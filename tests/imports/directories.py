"""Data directories of the five small brokers, made byte by byte as their documents and servers have them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.imports import source
from penstock.imports.source import Findings, SourcePartition
from penstock.records.record import Record, read_records


def read(reader: str, root: Path) -> tuple[dict[str, list[Record]], dict[str, Findings]]:
    """Every record that a reader gives, and its findings, by TOPIC-PARTITION."""
    records: dict[str, list[Record]] = {}
    findings: dict[str, Findings] = {}
    for partition in source.load(reader).find(root).partitions:
        found = findings[str(partition)] = Findings()
        records[str(partition)] = [
            record for batch in source.load(reader).batches(partition, found) for record in read_records(batch)
        ]
    return records, findings


def values(records: Iterable[Record]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in records]


def flip(path: Path, position: int, bit: int = 0x40) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def tear(path: Path, count: int) -> None:
    """Take so many bytes from the end."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - count])


def only(partitions: Sequence[SourcePartition]) -> SourcePartition:
    (one,) = partitions
    return one


# ------------------------------------------------------------------------------------------------ fluxgo


def fluxgo_log(folder: Path, base_offset: int, records: Sequence[bytes], *, index: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    log, entries, position = b"", b"", 0
    for number, record in enumerate(records):
        entries += struct.pack(">QQ", number, position)
        piece = struct.pack(">Q", len(record)) + record
        log += piece
        position += len(piece)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(log)
    if index:
        path.with_suffix(".index").write_bytes(entries)
    return path


def fluxgo_commit(root: Path, group: str, topic: str, partition: int, offset: int) -> None:
    folder = root / "__consumer_offsets" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{topic}_{partition}.offset").write_bytes(struct.pack(">Q", offset))


# ------------------------------------------------------------------------------------------------ minikafka


def minikafka_record(record_id: int, timestamp: int, key: bytes, payload: bytes) -> bytes:
    stored = key.decode("latin-1").encode()
    body = struct.pack(">Iqqi", zlib.crc32(payload), record_id, timestamp, len(stored)) + stored
    body += struct.pack(">i", len(payload)) + payload
    return struct.pack(">i", len(body)) + body


def minikafka_log(root: Path, topic: str, partition: int, first_id: int, records: Iterable[bytes]) -> Path:
    folder = root / "logs" / topic / str(partition)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first_id}.log"
    path.write_bytes(b"".join(records))
    return path


# ------------------------------------------------------------------------------------------------ rustlog


def rustlog_record(offset: int, payload: bytes) -> bytes:
    return struct.pack(">IQ", len(payload), offset) + payload


def rustlog_log(folder: Path, base_offset: int, records: Iterable[bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{base_offset:020d}.log"
    path.write_bytes(b"".join(records))
    path.with_suffix(".index").write_bytes(struct.pack(">QQ", base_offset, 0))
    return path


# ------------------------------------------------------------------------------------------------ flymq


def flymq_message(key: bytes, value: bytes) -> bytes:
    return struct.pack(">I", len(key)) + key + struct.pack(">I", len(value)) + value


def flymq_document_message(
    key: bytes, value: bytes, headers: Sequence[tuple[str, str]] = (), timestamp: int = 1_700_000_000_000
) -> bytes:
    """A message as FlyMQ's document encodes it."""
    message = flymq_message(key, value) + struct.pack(">i", len(headers))
    for text in (text.encode() for pair in headers for text in pair):
        message += struct.pack(">H", len(text)) + text
    return message + struct.pack(">q", timestamp)


def flymq_store(path: Path, messages: Sequence[bytes], form: str, *, index: bool = True, padded: int = 0) -> Path:
    """`form` is the length's: >Q as the server writes, >I as the document says; `padded` zeros as a killed server leaves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    store, entries = b"", b""
    for number, message in enumerate(messages):
        entries += struct.pack(">IQ", number, len(store))
        store += struct.pack(form, len(message)) + message
    path.write_bytes(store)
    if index:
        path.with_suffix(".index").write_bytes(entries + bytes(padded))
    return path


def flymq_commit(root: Path, group: str, topic: str, offsets: dict[str, int]) -> None:
    folder = root / "__consumer_offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{topic}_{group}.json").write_text(
        json.dumps({"group_id": group, "topic": topic, "offsets": offsets}, indent=2)
    )


# ------------------------------------------------------------------------------------------------ day1


def day1_record(offset: int, key: bytes, value: bytes) -> bytes:
    return struct.pack(">qH", offset, len(key)) + key + struct.pack(">I", len(value)) + value


def day1_log(root: Path, topic: str, partition: int, records: Iterable[bytes]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"{topic}-{partition}.log"
    path.write_bytes(b"".join(records))
    return path
