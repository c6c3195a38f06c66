"""A data directory of Apache Kafka, or of another Penstock: the format is ours too, so batches come over as they are.

Every batch is checked against its CRC, and its records are counted. A damaged batch is left out, and the scan continues at
the next valid one: directly after it if its length is plausible, otherwise at the next start of a batch. Indexes and
snapshots are not read; the log is sufficient. Kafka's own topics are not imported, except the committed offsets in
`__consumer_offsets`. Batches of formats before 0.11 (magic 0 and 1) are reported as unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.imports.entries import Folder, read_small, walk
from penstock.imports.kafka_commits import Committed, read_commit
from penstock.imports.kafka_scan import KafkaScan
from penstock.imports.kafka_search import next_sound
from penstock.imports.source import (
    OFFSET_END,
    Commit,
    Findings,
    Found,
    Skips,
    SourcePartition,
    partition_number,
)
from penstock.imports.transactions import Transactions
from penstock.model.limits import IMPORT_SMALL_FILE_BYTES_MAX
from penstock.records.batch import Batch, BatchError
from penstock.records.record import read_records
from penstock.storage.segment_reader import Damage, base_offset_of, read_segment

RECORD_BYTES_MAX = 1 << 30
TAKES_FILES_OVER = True
COMMITS = "__consumer_offsets"
OWN_TOPICS = frozenset({COMMITS, "__transaction_state", "__cluster_metadata", "__share_group_state"})
START_OFFSETS = "log-start-offset-checkpoint"

_PARTITION = re.compile(r"(?P<topic>.+)-(?P<number>[0-9]+)", re.DOTALL)
_LEFT_BEHIND = ("-delete", "-future", "-stray")
_NO_DATA = frozenset({".trash", ".import"})
"""Folders of a Penstock data directory for deleted or imported partitions."""
_ROOT_FILES = frozenset(
    {
        ".kafka_cleanshutdown",
        ".lock",
        "bootstrap.checkpoint",
        "checkpoint",
        "cleaner-offset-checkpoint",
        "clean-stop",
        "identity",
        "leader-epoch",
        "meta.properties",
        "producer-ids",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "topics",
        START_OFFSETS,
    }
)
_LOG_FILES = re.compile(
    r".*\.(index|timeindex|txnindex|snapshot|tmp|checkpoint)|.*\.(deleted|cleaned|replaced)([.-].*)?"
    r"|leader-epoch-checkpoint|partition\.metadata",
    re.DOTALL,
)
_SEGMENT_DIGITS = 20


def find(root: Path) -> Found:
    found = Found()
    found.partitions = [one for one in _partitions(root, found.skipped) if one.topic not in OWN_TOPICS]
    return found


def _partitions(root: Path, skips: Skips) -> Iterator[SourcePartition]:
    """Partitions by topic and number, including those of Kafka's own topics."""
    found = []
    for folder in walk(root, skips):
        match = _PARTITION.fullmatch(folder.name)
        if not folder.name:
            folder.folders[:] = [name for name in folder.folders if name not in _NO_DATA]
            folder.skip_rest(skips, "not a file of Kafka", lambda name: name in _ROOT_FILES or name.endswith(".tmp"))
        elif folder.name.endswith(_LEFT_BEHIND):
            skips.add(folder.name, "the broker was deleting or moving it", is_loss=False)
            folder.folders.clear()
        elif match is None or "/" in folder.name:
            folder.skip_whole(skips, "its name is not TOPIC-PARTITION")
        else:
            files, sizes = folder.take_segments(".log", _SEGMENT_DIGITS)
            if files:
                found.append(SourcePartition(match["topic"], int(match["number"]), files, sizes=sizes))
            if match["topic"] not in OWN_TOPICS:
                _skip_rest(folder, skips)
    return iter(sorted(found, key=lambda one: (one.topic, one.partition)))


def _skip_rest(folder: Folder, skips: Skips) -> None:
    for name in [
        name for name in folder.files if "swap" in name and not name.endswith((".deleted", ".cleaned", ".replaced"))
    ]:
        del folder.files[name]
        skips.add(f"{folder.name}/{name}", "compaction was interrupted: start the broker once and stop it")
    folder.skip_rest(skips, "not a file of Kafka", lambda name: _LOG_FILES.fullmatch(name) is not None)


def batches(partition: SourcePartition, findings: Findings, start: int = 0) -> Iterator[Batch]:
    for batch in KafkaScan(partition, findings):
        if batch.last_offset >= start:
            yield Batch(memoryview(bytes(batch.view)))


def sound_batches(path: Path, findings: Findings) -> Iterator[tuple[int, Batch]]:
    return scan_past_damage(
        path, lambda damage, length: findings.add(str(path), damage.position, length, damage.reason)
    )


def scan_past_damage(path: Path, damaged_by: Callable[[Damage, int], None]) -> Iterator[tuple[int, Batch]]:
    """Every valid batch with its position; `damaged_by` is called with each damage and its length in bytes."""
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
        damaged_by(scan.damage, end - damaged)
        if sound is None:
            return
        position = sound


def log_start_offsets(root: Path) -> dict[tuple[str, int], int]:
    """What Kafka noted about logs that do not begin where their first segment does (delete-records)."""
    try:
        version, _, *rows = read_small(root / START_OFFSETS, IMPORT_SMALL_FILE_BYTES_MAX).decode().splitlines()
    except (OSError, ValueError):
        return {}
    if version != "0":
        return {}
    starts = {}
    for row in rows:
        topic, _, rest = row.partition(" ")
        number, _, offset = rest.partition(" ")
        if partition_number(number) is not None and partition_number(offset) is not None:
            starts[topic, int(number)] = min(int(offset), OFFSET_END)
    return starts


def commits(root: Path, findings: Findings) -> list[Commit]:
    latest: dict[tuple[str, str, int], Committed] = {}
    for partition in _partitions(root, Skips()):
        if partition.topic != COMMITS:
            continue
        transactions = Transactions()
        for batch in batches(partition, findings):
            transactions.note(batch)
        for batch in transactions.committed(batches(partition, Findings())):
            try:
                _read_commits(batch, latest)
            except BatchError as error:
                reason = f"the batch at offset {batch.base_offset}: {error}"
                findings.add(partition.files[0], 0, batch.size, reason)
    return [
        Commit(group, topic, number, one.offset, one.metadata, one.leader_epoch)
        for (group, topic, number), one in sorted(latest.items())
    ]


def _read_commits(batch: Batch, latest: dict[tuple[str, str, int], Committed]) -> None:
    for record in read_records(batch):
        entry = read_commit(record.key, record.value)
        if entry is not None and entry[1] is not None:
            latest[entry[0]] = entry[1]
        elif entry is not None:
            latest.pop(entry[0], None)
