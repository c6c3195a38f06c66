"""A data directory of Apache Kafka, or of another Penstock: the format is ours too, so batches come over as they are.

Every batch is checked against its CRC. A damaged one is left out, and the scan goes on at the next sound batch: right behind
it where its length can be believed, else wherever one begins. Indexes and snapshots are not read; the log says it all.
Kafka's own topics are not taken over: of `__consumer_offsets` the committed offsets are, and producers are known from the
logs. Batches of the formats before 0.11 (magic 0 and 1) are reported as what cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.imports.bytes_of_file import FileBytes
from penstock.imports.kafka_commits import Committed, read_commit
from penstock.imports.source import Commit, Findings, Found, Skipped, SourcePartition
from penstock.imports.transactions import Transactions
from penstock.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, Batch, BatchError
from penstock.records.record import read_records
from penstock.storage.segment_reader import base_offset_of, list_partitions, list_segments, read_segment

RECORD_BYTES_MAX = 1 << 30
TAKES_FILES_OVER = True
COMMITS = "__consumer_offsets"
OWN_TOPICS = frozenset({COMMITS, "__transaction_state", "__cluster_metadata", "__share_group_state"})
START_OFFSETS = "log-start-offset-checkpoint"

_MAGIC_AT = 16
_LENGTH_AT = 8
_SEARCH_BYTES_MAX = 64 * 1024 * 1024
"""How far behind damage a sound batch is looked for."""


def find(root: Path) -> Found:
    found = Found()
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if folder.name.endswith(("-delete", "-future", "-stray")):
            found.skipped.append(Skipped(folder.name, "the broker was deleting or moving it"))
    for folder in list_partitions(root):
        topic, _, number = folder.name.rpartition("-")
        if topic not in OWN_TOPICS:
            found.partitions.append(SourcePartition(topic, int(number), tuple(map(str, list_segments(folder)))))
    return found


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    for _, _, batch in located_batches(partition, findings):
        if batch.last_offset >= start:
            yield batch


def located_batches(partition: SourcePartition, findings: Findings) -> Iterator[tuple[str, int, Batch]]:
    """Every sound batch with its file and position, offsets rising over all files."""
    following = 0
    for file in partition.files:
        for position, batch in sound_batches(Path(file), findings):
            if batch.base_offset < following:
                findings.add(file, position, batch.size, f"offset {batch.base_offset} again, {following} is due")
                continue
            following = batch.next_offset
            yield file, position, batch


def sound_batches(path: Path, findings: Findings) -> Iterator[tuple[int, Batch]]:
    position = 0
    following = base_offset_of(path)
    while True:
        scan = read_segment(path, position)
        for at, batch in scan:
            yield at, batch
            following = batch.next_offset
        if scan.damage is None:
            return
        damaged = scan.damage.position
        sound = next_sound(path, damaged, following)
        end = damaged + scan.damage.bytes_left if sound is None else sound
        findings.add(str(path), damaged, end - damaged, scan.damage.reason)
        if sound is None:
            return
        position = sound


def next_sound(path: Path, damaged: int, following: int) -> int | None:
    """Where the next sound batch with offsets from `following` on begins behind `damaged`."""
    with FileBytes(path) as file:
        head = file.at(damaged, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            size = int.from_bytes(head[_LENGTH_AT:LENGTH_PREFIX_BYTES], "big", signed=True) + LENGTH_PREFIX_BYTES
            if size > HEADER_BYTES and _is_sound(file, damaged + size, following):
                return damaged + size
        at = damaged + 1
        end = min(file.size, damaged + _SEARCH_BYTES_MAX)
        while at < end:
            magic = file.find(bytes([MAGIC]), at + _MAGIC_AT, end)
            if magic < 0:
                return None
            at = magic - _MAGIC_AT
            if _is_sound(file, at, following):
                return at
            at += 1
    return None


def _is_sound(file: FileBytes, position: int, following: int) -> bool:
    head = file.at(position, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        return False
    header = Batch.of_header(memoryview(head))
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= file.size - position:
        return False
    if not following <= header.base_offset < 1 << 62 or header.last_offset_delta < 0 or header.count < 0:
        return False
    return Batch(memoryview(file.at(position, header.size))).crc_is_right()


def log_start_offsets(root: Path) -> dict[tuple[str, int], int]:
    """What Kafka noted about logs that do not begin where their first segment does (delete-records)."""
    try:
        version, _, *rows = (root / START_OFFSETS).read_text().splitlines()
    except (OSError, ValueError):
        return {}
    if version != "0":
        return {}
    starts = {}
    for row in rows:
        topic, _, rest = row.partition(" ")
        number, _, offset = rest.partition(" ")
        if number.isdecimal() and offset.isdecimal():
            starts[topic, int(number)] = int(offset)
    return starts


def commits(root: Path, findings: Findings) -> list[Commit]:
    latest: dict[tuple[str, str, int], Committed] = {}
    for folder in list_partitions(root):
        topic, _, number = folder.name.rpartition("-")
        if topic != COMMITS:
            continue
        partition = SourcePartition(topic, int(number), tuple(map(str, list_segments(folder))))
        transactions = Transactions()
        for batch in batches(partition, findings):
            transactions.note(batch)
        for batch in transactions.committed(batches(partition, Findings())):
            try:
                records = list(read_records(batch))
            except BatchError as error:
                findings.add(str(folder), 0, batch.size, f"the batch at offset {batch.base_offset}: {error}")
                continue
            for record in records:
                entry = read_commit(record.key, record.value)
                if entry is not None and entry[1] is not None:
                    latest[entry[0]] = entry[1]
                elif entry is not None:
                    latest.pop(entry[0], None)
    return [
        Commit(group, topic, number, one.offset, one.metadata, one.leader_epoch)
        for (group, topic, number), one in sorted(latest.items())
    ]
